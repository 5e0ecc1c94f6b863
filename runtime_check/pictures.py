"""Pictures for code whose package for images is not installed: what PIL, cv2 and torchvision.io read.

A picture has random pixels of the size that it is asked to have; a file has to be there to be opened.
"""
from __future__ import annotations

import os
import re
import sys
import types
from typing import Any

import torch

SIDE = 256  # of a picture that was read
MODES = {**dict.fromkeys(("L", "1", "P", "I", "F"), 1), "LA": 2, "RGBA": 4, "CMYK": 4}  # the rest have three channels
NAMES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
CONSTANT = re.compile(r"^[A-Z][A-Z0-9_]*$")


class Image:
    """A picture: numbers of 0 to 255, height by width by channels."""

    format, filename = "PNG", ""

    def __init__(self, pixels: torch.Tensor, mode: str = "") -> None:
        self.pixels = pixels
        self.mode = mode or NAMES.get(pixels.shape[2], "RGB")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[1], self.pixels.shape[0]

    @property
    def width(self) -> int:
        return self.size[0]

    @property
    def height(self) -> int:
        return self.size[1]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._plain().numpy().__array_interface__  # type: ignore[no-any-return]

    def _plain(self) -> torch.Tensor:
        """The numbers as numpy gets them: no axis for a single channel."""
        pixels = self.pixels.contiguous()
        return pixels[..., 0].contiguous() if pixels.shape[2] == 1 else pixels

    def tensor(self) -> torch.Tensor:
        """Channels first, 0 to 1: what `ToTensor` gives."""
        return self.pixels.permute(2, 0, 1).float() / 255

    def like(self, image: torch.Tensor) -> Image:
        """A picture of the numbers of a tensor with channels first."""
        return Image((image * 255).round().to(torch.uint8).permute(1, 2, 0), self.mode)

    def tobytes(self) -> bytes:
        return bytes(self._plain().flatten().tolist())

    def getdata(self, band: int | None = None) -> list[Any]:
        """The pixels row by row: numbers for one channel, else tuples."""
        rows = self.pixels.flatten(0, 1).tolist()
        if band is not None or self.pixels.shape[2] == 1:
            return [row[band or 0] for row in rows]
        return [tuple(row) for row in rows]

    def getbands(self) -> tuple[str, ...]:
        return tuple(self.mode)

    def convert(self, mode: str = "RGB", *more: object, **options: object) -> Image:
        count = MODES.get(mode, 3)
        pixels = self.pixels
        if count < pixels.shape[2]:
            pixels = pixels.float().mean(2, keepdim=True).to(torch.uint8)
        return Image(pixels[..., :1].expand(-1, -1, count).clone() if pixels.shape[2] != count else pixels, mode)

    def resize(self, size: Any, *more: object, **options: object) -> Image:
        width, height = (max(int(item), 1) for item in size)
        image = torch.nn.functional.interpolate(self.tensor()[None], (height, width))[0]
        return self.like(image)

    def thumbnail(self, size: Any, *more: object, **options: object) -> None:
        self.pixels = self.resize(size).pixels

    def crop(self, box: Any = None) -> Image:
        left, top, right, bottom = (int(item) for item in box or (0, 0, *self.size))
        across = torch.arange(left, max(right, left + 1)) % self.width
        down = torch.arange(top, max(bottom, top + 1)) % self.height
        return Image(self.pixels[down][:, across], self.mode)

    def transpose(self, method: object = 0) -> Image:
        return Image(self.pixels.flip(1), self.mode)

    def split(self) -> tuple[Image, ...]:
        return tuple(Image(self.pixels[..., [number]]) for number in range(self.pixels.shape[2]))

    def getpixel(self, place: Any) -> Any:
        found = self.pixels[int(place[1]), int(place[0])].tolist()
        return found[0] if len(found) == 1 else tuple(found)

    def copy(self, *args: object, **options: object) -> Image:
        """A copy; also for what changes the pixels only: rotations, filters, curves."""
        return Image(self.pixels.clone(), self.mode)

    rotate = filter = point = quantize = transform = effect_spread = copy

    def nothing(self, *args: object, **options: object) -> None:
        """For what leaves nothing behind: saving, closing, drawing into it."""

    save = close = load = show = paste = putalpha = putpixel = verify = seek = draft = putpalette = nothing

    def __enter__(self) -> Image:
        return self

    def __exit__(self, *details: object) -> None: ...


def random_pixels(height: int = SIDE, width: int = SIDE, channels: int = 3) -> torch.Tensor:
    """Numbers of 0 to 255."""
    return torch.randint(0, 256, (height, width, channels), dtype=torch.uint8)


def must_exist(path: Any) -> None:
    """Raises FileNotFoundError for a path that leads nowhere, as all readers of files do."""
    if isinstance(path, (str, os.PathLike)):
        with open(path, "rb"):
            pass


# PIL.Image


def opened(path: Any, *more: object, **options: object) -> Image:
    """`Image.open`."""
    must_exist(path)
    return Image(random_pixels())


def new(mode: str, size: Any, *more: object, **options: object) -> Image:
    """`Image.new`."""
    return Image(torch.zeros(int(size[1]), int(size[0]), MODES.get(mode, 3), dtype=torch.uint8), mode)


def fromarray(values: Any, mode: str | None = None) -> Image:
    """`Image.fromarray`."""
    pixels = torch.as_tensor(values.copy() if hasattr(values, "copy") else values).to(torch.uint8)
    return Image(pixels[..., None] if pixels.dim() == 2 else pixels, mode or "")


def merge(mode: str, bands: Any) -> Image:
    """`Image.merge`, `Image.blend` and others that give a picture for pictures."""
    first = bands[0] if isinstance(bands, (tuple, list)) else bands
    return Image(random_pixels(first.height, first.width, MODES.get(mode, 3)), mode)


class Constants(types.ModuleType):
    """A module whose names in capitals are numbers: modes, filters, flags."""

    def __getattr__(self, name: str) -> Any:
        if CONSTANT.match(name):
            return 0
        if name in ("Resampling", "Transpose", "Dither", "Palette"):
            return self
        raise AttributeError(name)


PIL = Constants("PIL.Image")
PIL.__dict__.update(Image=Image, open=opened, new=new, fromarray=fromarray, merge=merge,
                    MAX_IMAGE_PIXELS=None, LANCZOS=1, BILINEAR=2, BICUBIC=3)

# cv2, skimage, imageio, torchvision.io


def imread(path: Any, *more: object, **options: object) -> Any:
    """`cv2.imread` and its like: an array."""
    must_exist(path)
    return random_pixels().numpy()


def read_image(path: Any, *more: object, **options: object) -> torch.Tensor:
    """`torchvision.io.read_image`: channels first."""
    must_exist(path)
    return random_pixels().permute(2, 0, 1)


def resized(image: Any, size: Any, *more: object, **options: object) -> Any:
    """`cv2.resize`."""
    numpy = sys.modules["numpy"]
    width, height = (int(item) for item in size)
    rows, columns = numpy.arange(height) * image.shape[0] // height, numpy.arange(width) * image.shape[1] // width
    return image[rows][:, columns]


def unchanged(image: Any = None, *more: object, **options: object) -> Any:
    """A function of arrays that keeps their size."""
    return image


def in_colours(image: Any, code: int = 0, *more: object) -> Any:
    """`cv2.cvtColor`."""
    return image.mean(2).astype(image.dtype) if code == GREY and image.ndim == 3 else image


GREY = 6
CV2 = Constants("cv2")
CV2.__dict__.update(imread=imread, resize=resized, cvtColor=in_colours, COLOR_BGR2GRAY=GREY, COLOR_RGB2GRAY=GREY,
                    IMREAD_COLOR=1, GaussianBlur=unchanged, flip=unchanged,
                    normalize=unchanged, imwrite=lambda *args: True, setNumThreads=unchanged, blur=unchanged)
READERS = {"imread": imread, "read_image": read_image}

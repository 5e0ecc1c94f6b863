"""Small stand-ins for well-known packages that code under test reads data from or reports to.

Data sets of images that need no files, transforms of tensors, progress bars that pass items through,
environments with random observations, and loggers and plots that keep nothing. `known(name)` gives
the stand-in for a dotted name, or None.
"""
from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from runtime_check import environments, pictures, spaces
from runtime_check.placeholder import Missing

QUIET = re.compile(
    r"^(wandb|mlflow|comet_ml|visdom|loguru|matplotlib|seaborn|IPython|tensorboardX|tensorboard|tensorboard_logger|clearml"
    r"|neptune|aim|swanlab|colorama|termcolor|tabulate|rich|torch\.utils\.tensorboard|torchvision\.utils|sacred)(\.|$)"
)
LENGTH = 160  # items of a data set


class Quiet:
    """A logger, plot or writer: takes every call and keeps nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], nn.Module):
            return args[0]  # used as a decorator
        return self

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *details: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __setitem__(self, key: object, value: object) -> None: ...

    def __getitem__(self, key: object) -> Quiet:
        return self

    def __format__(self, spec: str) -> str:
        return "0"

    def __float__(self) -> float:
        return 0.0

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__


class Bar:
    """A progress bar: passes the items through."""

    def __init__(self, items: Any = (), *args: object, **kwargs: Any) -> None:
        self.items = items if items is not None else range(kwargs.get("total") or 0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *details: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    @staticmethod
    def write(*args: object, **kwargs: object) -> None: ...


class Images(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random images with class numbers, of the size that the named data set has."""

    size, classes_count = (3, 64, 64), 10

    def __init__(self, *args: object, transform: Any = None, target_transform: Any = None, **kwargs: object) -> None:
        self.transform, self.target_transform = transform, target_transform
        shape = self.size[1:] if self.size[0] == 1 else self.size
        self.data = torch.randint(0, 256, (LENGTH, *shape), dtype=torch.uint8)
        self.targets = self.labels = torch.arange(LENGTH) % self.classes_count
        self.train_data = self.test_data = self.data  # the older names
        self.train_labels = self.test_labels = self.targets
        self.classes = [str(item) for item in range(self.classes_count)]
        self.class_to_idx = {name: item for item, name in enumerate(self.classes)}
        self.imgs = self.samples = [(f"{item}.png", int(label)) for item, label in enumerate(self.targets)]

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not 0 <= int(index) < LENGTH:
            raise IndexError(index)
        image: Any = (self.data[index].float() / 255).reshape(self.size)
        label: Any = int(self.targets[index])
        if callable(self.transform):
            image = self.transform(picture(image, self.transform))
        return image, self.target_transform(label) if callable(self.target_transform) else label


def picture(image: torch.Tensor, transform: Any) -> Any:
    """The image as the transform wants it: a tensor for our own transforms, a PIL image for installed ones."""
    if type(transform).__module__ == __name__:
        return image
    try:
        from torchvision.transforms.functional import to_pil_image  # type: ignore[import-not-found,unused-ignore]

        return to_pil_image(image)
    except Exception:
        return image


def images_of(name: str) -> type[Images]:
    """The class that stands for a data set of torchvision."""
    small = {"size": (1, 28, 28)} if "MNIST" in name or name == "USPS" else {}
    if name.startswith(("CIFAR", "SVHN")):
        small = {"size": (3, 32, 32)}
    count = 100 if name == "CIFAR100" else 47 if name == "EMNIST" else 10
    return type(name, (Images,), {**small, "classes_count": count})


class Transform:
    """A transform of image tensors and pictures; one of an unknown kind changes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    def __call__(self, image: Any) -> Any:
        return image


class ToTensor(Transform):
    def __call__(self, image: Any) -> Any:
        return to_tensor(image)


def to_tensor(image: Any) -> torch.Tensor:
    """A tensor, 0 to 1 and channels first, of a tensor, an array or a picture."""
    if isinstance(image, pictures.Image):
        return image.tensor()
    if isinstance(image, torch.Tensor):
        return image
    values = torch.as_tensor(image)
    values = values[None] if values.dim() == 2 else values.permute(2, 0, 1)
    return values.float() / 255 if values.dtype == torch.uint8 else values


class Compose(Transform):
    def __call__(self, image: Any) -> Any:
        for step in self.args[0] if self.args else self.kwargs.get("transforms", ()):
            image = step(image)
        return image


class Resize(Transform):
    """Also for crops: whatever size is asked for comes out."""

    def __call__(self, image: Any) -> Any:
        return resize(image, self.args[0] if self.args else self.kwargs.get("size", 64))


def resize(image: Any, size: Any, *more: object, **options: object) -> Any:
    """A tensor or a picture of another size; a single number is that of both sides."""
    pair = (size, size) if isinstance(size, int) else tuple(size)[:2] if len(size) > 1 else (size[0], size[0])
    if isinstance(image, pictures.Image):
        return image.resize(pair[::-1])
    return nn.functional.interpolate(image[None].float(), pair)[0]


class Normalize(Transform):
    def __call__(self, image: Any) -> Any:
        given = [*self.args[:2], *(self.kwargs[key] for key in ("mean", "std") if key in self.kwargs)]
        return normalize(image, *given)


def normalize(image: Any, mean: Any, std: Any, *more: object) -> Any:
    """A tensor less its mean, in units of its deviation."""
    means, deviations = (torch.as_tensor(item).float().reshape(-1, 1, 1) for item in (mean, std))
    return (to_tensor(image) - means) / deviations


class Grayscale(Transform):
    def __call__(self, image: Any) -> Any:
        return image.convert("L") if isinstance(image, pictures.Image) else image.mean(0, keepdim=True)


class Lambda(Transform):
    def __call__(self, image: Any) -> Any:
        return next(iter([*self.args, *self.kwargs.values()]))(image)


def grid(images: Any, *more: object, **options: object) -> Any:
    """`make_grid`, of which one picture is enough."""
    return images[0]


TRANSFORMS = {"Compose": Compose, "Resize": Resize, "Scale": Resize, "CenterCrop": Resize, "RandomCrop": Resize,
              "RandomResizedCrop": Resize, "Normalize": Normalize, "Grayscale": Grayscale, "Lambda": Lambda,
              "ToTensor": ToTensor, "PILToTensor": ToTensor, "ToImage": ToTensor}
FUNCTIONS: dict[str, Any] = {"to_tensor": to_tensor, "pil_to_tensor": to_tensor, "resize": resize,
                             "normalize": normalize, "center_crop": resize}


def feature_layers() -> Iterator[nn.Module]:
    """As many layers as the longest networks have from which code takes some by their numbers."""
    width = 3
    for convolutions in (2, 2, 4, 4, 4):
        for _ in range(convolutions):
            yield nn.Conv2d(width, 16, 3, padding=1)
            yield nn.ReLU()
            width = 16
        yield nn.MaxPool2d(2, ceil_mode=True)


class Vision(nn.Module):  # type: ignore[misc]
    """A small network with the parts that code takes from the models of torchvision."""

    def __init__(self, *args: object, num_classes: int = 1000, **kwargs: object) -> None:
        super().__init__()
        self.features = nn.Sequential(*feature_layers())
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        head = getattr(self, "classifier", self.fc)
        return head(self.flatten(self.avgpool(self.features(x))))


class Residual(nn.Module):  # type: ignore[misc]
    """As above, for networks of the residual family."""

    def __init__(self, *args: object, num_classes: int = 1000, **kwargs: object) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU()
        self.maxpool = nn.MaxPool2d(2)
        self.layer1, self.layer2, self.layer3, self.layer4 = (nn.Conv2d(64, 64, 1) for _ in range(4))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def configured(kind: Any = None, *args: Any, **options: Any) -> Any:
    """What a parser of the command line makes of a configuration class: its defaults, and little to begin with."""
    made = kind(**options.get("default", {})) if isinstance(kind, type) else kind
    for key, value in vars(made).items():
        if type(value) is int and BEGINNING.search(key):
            setattr(made, key, min(value, ENOUGH))
    return made


#: What is gathered before training begins, and how much of it is enough.
BEGINNING, ENOUGH = re.compile(r"(^|_)(starts?|warm_?up|buffer|capacity|replay|memory)(_|$)"), 512


class Models(types.ModuleType):
    """`torchvision.models`, whose functions are found by name too: `models.__dict__[name]`."""

    def __init__(self) -> None:
        super().__init__("torchvision.models")
        self.__dict__.update({name: model_of(name) for name in MODELS})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return known(f"torchvision.models.{name}") or Missing(
            f"torchvision.models.{name}", "the package `torchvision` is not installed")


def model_of(name: str) -> type[nn.Module]:
    """The small network that stands for one of torchvision."""
    return Residual if "res" in name else Vision


MODELS = ("alexnet", "vgg11", "vgg16", "vgg19", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152",
          "mobilenet_v2", "densenet121", "inception_v3", "efficientnet_b0", "vit_b_16", "squeezenet1_0")


def validated(validator: object) -> Callable[..., Any]:
    """What makes fields of a data class that are looked at by a validator: plain fields."""

    def field(**options: Any) -> Any:
        known_ones = inspect.signature(dataclasses.field).parameters
        return dataclasses.field(**{name: value for name, value in options.items() if name in known_ones})

    return field


def subplots(*args: object, **kwargs: object) -> tuple[Quiet, Quiet]:
    """A figure and its axes."""
    return Quiet(), Quiet()


RULES: list[tuple[str, Callable[[str], Any]]] = [
    (r"^torchvision\.datasets\.(\w+)$", images_of),
    (r"^torchvision\.transforms(?:\.v2)?\.([A-Z]\w+)$", lambda name: TRANSFORMS.get(name, Transform)),
    (r"^torchvision\.transforms(?:\.v2)?\.functional\.(\w+)$", lambda name: FUNCTIONS.get(name, pictures.unchanged)),
    (r"^(PIL)\.Image$", lambda name: pictures.PIL),
    (r"^PIL\.(Image\w+)$", lambda name: Quiet()),
    (r"^cv2\.(\w+)$", lambda name: getattr(pictures.CV2, name, None)),
    (r"^(?:skimage\.io|imageio(?:\.v\d)?|torchvision\.io|matplotlib\.image|matplotlib\.pyplot)\.(imread|read_image)$",
     pictures.READERS.get),
    (r"^torchvision\.utils\.(make_grid)$", lambda name: grid),
    (r"^torchvision\.models\.(?:\w+\.)?([a-z]\w+)$", model_of),
    (r"^torchvision\.(models)$", lambda name: Models()),
    (r"^tqdm(?:\.\w+)*\.(tqdm|track)$|^rich\.progress\.(track)$", lambda name: Bar),
    (r"^tqdm(?:\.\w+)*\.(trange)$", lambda name: lambda *args, **kwargs: Bar(range(*args))),
    (r"^(?:gym|gymnasium)\.(?:core\.)?(make|make_vec|Env|\w*Wrapper)$", environments.NAMED.get),
    (r"^(?:gym|gymnasium)\.(?:vector|wrappers)\.(?:\w+\.)?([A-Z]\w+)$", environments.named),
    (r"^stable_baselines3\.common\.atari_wrappers\.([A-Z]\w+)$", environments.named),
    (r"^(?:tyro\.|simple_parsing\.)(cli|parse)$", lambda name: configured),
    (r"^(?:gym|gymnasium)\.(?:spaces\.)?(?:utils\.)?(Space|Box|Discrete|Multi\w+|Dict|Tuple|flatdim)$", spaces.named),
    (r"^matplotlib\.pyplot\.(subplots)$", lambda name: subplots),
    (r"^huggingface_hub\.dataclasses\.(as_validated_field)$", lambda name: validated),
    (r"^huggingface_hub\.constants\.(\w*(?:HOME|CACHE))$", lambda name: f"no_{name.lower()}"),
    (r"^huggingface_hub\.constants\.(\w*(?:OFFLINE|DISABLE|ENABLE)\w*)$", lambda name: "OFFLINE" in name),
]
#: Names that are replaced also where the package is installed, because using them needs files or a network.
ALWAYS = re.compile(r"^torchvision\.datasets\.[A-Z]\w+$")


def known(name: str) -> Any:
    """The stand-in for a dotted name, or None."""
    for pattern, make in RULES:
        match = re.match(pattern, name)
        if match is not None:
            return make(next(item for item in match.groups() if item))
    return Quiet() if QUIET.match(name) else None

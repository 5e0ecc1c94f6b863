"""Scripts whose data, sizes and names keep them from being run as they are."""
from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from runtime_check.drive import Drive, drives
from runtime_check.extract import Namespace, target_at

torch.set_num_threads(1)


def ways(text: str, line: int | None = None) -> tuple[Namespace, Callable[[], list[Drive]]]:
    """The namespace of a text and what lists its first drives for the line that ends in `#!`."""
    text = textwrap.dedent(text).lstrip("\n")
    line = line or next(number for number, row in enumerate(text.splitlines(), 1) if "#!" in row)
    space = Namespace(text, "scripted_case.py")
    return space, lambda: [drive for _, drive in zip(range(12), drives(space, target_at(text, line)), strict=False)]


UNREAD = """
    import argparse
    import torch
    from torch import nn
    parser = argparse.ArgumentParser()
    parser.add_argument("--img_size", type=int, default=512)
    parser.add_argument("--channels", type=int, default=3)
    opt = parser.parse_args()
    net = nn.Conv2d(opt.channels, 4, 3)
    loader = torch.utils.data.DataLoader([], batch_size=4, shuffle=True)
    held_out = torch.utils.data.DataLoader([], batch_size=4, shuffle=True)
    def show(step):
        batch = next(iter(held_out))
        seen.append(net(batch["left"]).shape)  #!
    seen = []
    for epoch in range(3):
        for i, batch in enumerate(loader):
            if i % 2 == 0:
                show(epoch * len(loader) + i)
"""


def test_loaders_that_a_call_depends_on_are_made_up_in_the_form_that_functions_take_apart() -> None:
    space, found = ways(UNREAD)
    called = [drive for drive in found() if drive.kind == "call"]
    called[0].run()
    (shape,) = space.globals["seen"]
    assert shape[:2] == (2, 4)
    assert any("`held_out` of line 10 is made up (ValueError" in text for text in space.skipped)


def test_a_call_in_a_heavy_script_is_tried_with_small_sizes_first() -> None:
    space, found = ways(UNREAD)
    called = [drive for drive in found() if drive.kind == "call"]
    small = [drive.label.endswith(", with small sizes") for drive in called]
    assert small == sorted(small, reverse=True)
    assert "as called on line 18" in [drive.label for drive in called]
    sides = []
    for label in ("as called on line 18, with small sizes", "as called on line 18"):
        next(drive for drive in called if drive.label == label).run()
        sides.append(space.globals["seen"][0][-1])
    assert sides == [62, 510]

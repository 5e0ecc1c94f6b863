"""Arguments that the conditions around a line ask for, which no default and no input gives."""

from __future__ import annotations

import ast
import textwrap

import pytest

pytest.importorskip("torch")

from runtime_check.asked import PRESENT, asked_by
from runtime_check.drive import drives
from runtime_check.evidence import Verdict
from runtime_check.extract import Namespace, target_at
from runtime_check.made import reaches
from runtime_check.onerank import one_rank
from runtime_check.plan import Case, Lines
from runtime_check.probes import examine
from runtime_check.probes.bench import Bench
from runtime_check.sandbox import Guard
from runtime_check.standins import surroundings
from torchlint.claims import HooksSkipped, NoEffect

MODULE = """
import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, width, gated=False, mode="sum", learn=False, strict=False, depth=1, norm=True):
        super().__init__()
        if learn and strict:
            raise ValueError("either")
        self.gated = gated
        self.mode, self.norm = mode, norm
        self.depth = depth
        self.scale = nn.Parameter(torch.ones(1)) if learn else 1.0
        self.extra = None
        if depth > 1:
            self.extra = nn.Linear(width, width)
        self.layer = nn.Linear(width, width)
        self.reset_parameters()
        if not self.norm:
            self.shift = torch.zeros(1)  #norm

    def reset_parameters(self):
        if isinstance(self.scale, Tensor):
            self.scale.data.fill_(1.0)  #learn

    def forward(self, x, mask=None, *, twice=False):
        x = self.layer(x)
        if self.gated and not self.mode == "mean":
            x = x * x.sigmoid()  #gated
        if self.extra is not None:
            x = self.extra(x)  #extra
        if twice:
            x = x + x  #twice
        if self.mode != "max":
            return x
        return x + 1  #max
"""
FUNCTION = """
import torch


def loss(x: torch.Tensor, reduction: str = "mean", weight=None, log: bool = False):
    scale = weight
    if log:
        x = x.exp()  #log
    if scale is not None:
        x = x * 2  #weight
    if reduction in ("sum", "none"):
        return x.sum()  #reduction
    if not log:
        return x.mean()
    return x.mean().log()  #not
"""


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"#{mark}"))


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        *((MODULE, mark) for mark in ("norm", "learn", "gated", "extra", "twice", "max")),
        *((FUNCTION, mark) for mark in ("log", "weight", "reduction", "not")),
    ],
)
def test_lines_under_conditions_on_arguments_are_reached(text: str, mark: str) -> None:
    space, line = Namespace(text, "asked_case.py"), line_of(text, mark)
    found = drives(space, target_at(text, line), budget_s=2.0)
    assert any(reaches(drive.run, space.path, line) for drive, _ in zip(found, range(6), strict=False))


def test_conditions_say_which_values_they_want() -> None:
    text = textwrap.dedent("""
        class Loader:
            def __init__(self, size, kind="a", cache=None, limit=0):
                self.kind, self.size = kind, size
                self.cache = cache
                self.limit = limit

            def load(self, name, retry=True):
                if self.kind == "b" or name:
                    if self.cache is not None and self.limit > 3 and not retry:
                        return 1  #deep
                return 2  #outside
    """)
    tree = ast.parse(text)
    asked = asked_by(tree, "Loader.load", line_of(text, "deep"))
    assert dict(asked.made.values) == {"kind": "b", "cache": PRESENT, "limit": 4}
    assert dict(asked.called.values) == {"retry": False}
    outside = asked_by(tree, "Loader.load", line_of(text, "outside"))
    assert not outside.made.values and not outside.called.values


IDLE = """
import torch
from torch import nn

log = print


class Scale(nn.Module):
    def __call__(self, x: torch.Tensor):
        return x * 2
"""


@pytest.mark.parametrize(
    ("more", "first"),
    [("", "made"), ("log('ready')\n", "script"), ("twice = Scale()\n", "script"), ("other = list()\n", "made")],
)
def test_a_file_that_only_defines_things_is_run_as_a_script_last(more: str, first: str) -> None:
    text = IDLE + more
    line = line_of(text.replace("x * 2", "x * 2  #here"), "here")
    case = Case(1, "idle_case.py", "TL401", "", HooksSkipped(), text, (Lines(line, line),))
    bench = Bench(case, Guard(()))
    ways = bench.all_ways(bench.flagged, None, True)
    kinds = [way.kind for way, _ in zip(ways, range(30), strict=False)]
    assert kinds[0] == first and {"made", "script"} <= set(kinds)


def test_a_class_of_containers_is_registered_again_by_code_that_is_read_anew() -> None:
    from torch.utils import _pytree as pytree

    class Pair:
        def __init__(self, items: list[int]) -> None:
            self.items = items

    for _ in range(2):
        with surroundings("pair_case.py"):
            pytree.register_pytree_node(Pair, lambda pair: (pair.items, None), lambda items, _: Pair(list(items)))
    assert pytree.tree_leaves(Pair([1, 2])) == [1, 2]


def test_a_rank_that_is_not_there_is_refused() -> None:
    import torch
    import torch.distributed as dist

    with one_rank():
        for rank in (-1, 1):
            with pytest.raises(ValueError, match=f"no rank {rank}"):
                dist.isend(torch.ones(2), rank)
        with pytest.raises(TypeError, match="a rank is a number, not Tensor"):
            dist.isend(torch.ones(2), torch.ones(2))  # type: ignore[arg-type]


CONFIGURED = """
import torch
from torch import nn


class Inner:
    def __init__(self, kind="plain"):
        self.kind = kind


class NetConfig:
    def __init__(self, width=8, stable=False, scaled=False):
        self.width, self.stable, self.scaled = width, stable, scaled
        self.inner = Inner()


class Net(nn.Module):
    def __init__(self, config: NetConfig):
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.width, config.width)
        if self.config.stable:
            self.layer.requires_grad = False  #made

    def forward(self, x):
        x = self.layer(x)
        if self.config.scaled:
            x = x * 2  #called
        if self.config.inner.kind == "deep":
            x = x + 1  #inner
        return x
"""


@pytest.mark.parametrize("mark", ["made", "called", "inner"])
def test_what_a_configuration_has_to_hold_is_put_into_it(mark: str) -> None:
    space, line = Namespace(CONFIGURED, "configured_case.py"), line_of(CONFIGURED, mark)
    found = drives(space, target_at(CONFIGURED, line), budget_s=2.0)
    assert any(reaches(drive.run, space.path, line) for drive, _ in zip(found, range(6), strict=False))


def test_a_module_that_is_only_made_is_made_so_in_the_corrected_program_too() -> None:
    text = CONFIGURED.replace("x = self.layer(x)", "x = self.layer(x)[never]")
    line = line_of(text, "made")
    fixed = text.replace("requires_grad = False", "requires_grad_(False)")
    spot = (Lines(line, line),)
    case = Case(1, "configured_case.py", "TL209", "", NoEffect(), text, spot, fixed, spot)
    outcome = examine(case, Guard(()))
    assert outcome.verdict is Verdict.CONFIRMED, outcome
    assert "with stable=True" in outcome.how

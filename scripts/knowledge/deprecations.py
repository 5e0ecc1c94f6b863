"""The table of deprecated and removed names: hand-kept rows, each tried on the installed torch."""
from __future__ import annotations

import importlib
import inspect
import io
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchgen
import yaml

from knowledge.operators import allow_test_helpers

ROWS = Path(__file__).parent / "deprecated"
TELLING = re.compile("deprecat|remove|renamed|instead|no longer|required|stop|should not|now calls")
KINDS = {"function", "class", "method", "attribute", "module", "argument", "missing", "value", "decorator", "signature"}


@dataclass(frozen=True)
class Row:
    """One deprecated name. The columns are explained at the head of `deprecated/tensors.txt`."""

    name: str
    kind: str
    since: str
    removed: str
    replacement: str
    arguments: str
    differs: str
    probe: str
    evidence: str


def written() -> Iterator[Row]:
    """The rows of the text files. ValueError names the line that is not one."""
    for path in sorted(ROWS.glob("*.txt")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            columns = [column.strip() for column in re.split(r"(?:^|(?<= ))\|(?= |$)", line)]
            if len(columns) != 9 or columns[1] not in KINDS:
                raise ValueError(f"{path}:{number}: {len(columns)} columns, kind {columns[1]!r}")
            yield Row(*columns)


def families() -> Iterator[Row]:
    """Rows that follow a pattern of the installed torch."""
    yield from initializers()
    yield from verbose_schedulers()
    yield from legacy_reductions()
    yield from signatures()


def initializers() -> Iterator[Row]:
    """torch.nn.init: names without the underscore (nn/init.py, _make_deprecate)."""
    for name in ("uniform", "normal", "constant", "dirac", "xavier_uniform", "xavier_normal", "kaiming_uniform",
                 "kaiming_normal", "orthogonal", "sparse"):
        extra = {"constant": ", 0.0", "sparse": ", 0.5"}.get(name, "")
        value = "torch.zeros(2, 2, 2)" if name == "dirac" else "torch.zeros(2, 2)"
        yield Row(f"torch.nn.init.{name}", "function", "1.8", "", f"torch.nn.init.{name}_", "same", "",
                  f"torch.nn.init.{name}({value}{extra})", "nn/init.py")


def verbose_schedulers() -> Iterator[Row]:
    """`verbose` of every scheduler: a warning from 2.2 on, gone in 2.7."""
    made = {"LambdaLR": "lambda e: 1.0", "MultiplicativeLR": "lambda e: 1.0", "StepLR": "1", "MultiStepLR": "[1]",
            "ConstantLR": "", "LinearLR": "", "ExponentialLR": "0.9", "PolynomialLR": "", "CosineAnnealingLR": "2",
            "CosineAnnealingWarmRestarts": "2", "CyclicLR": "0.1, 0.2", "OneCycleLR": "0.1, 2",
            "ReduceLROnPlateau": "", "SequentialLR": "[], []"}
    for name, args in made.items():
        call = f"torch.optim.lr_scheduler.{name}(o, {args}{', ' if args else ''}verbose=True)"
        yield Row(f"torch.optim.lr_scheduler.{name}(verbose)", "argument", "2.2", "2.7",
                  f"torch.optim.lr_scheduler.{name}", "verbose", "print get_last_lr()", call, "absent")


def legacy_reductions() -> Iterator[Row]:
    """`size_average` and `reduce` of losses (nn/_reduction.py, legacy_get_string)."""
    for prefix, module in (("torch.nn", nn), ("torch.nn.functional", F)):
        for name, value in sorted(vars(module).items()):
            if name.startswith("_") or not callable(value):
                continue
            target = value.__init__ if isinstance(value, type) else value
            try:
                parameters = inspect.signature(target).parameters
            except (TypeError, ValueError):
                continue
            for argument in ("size_average", "reduce"):
                if argument in parameters:
                    probe = f"{prefix}.{name}({argument}=True)" if isinstance(value, type) else ""
                    yield Row(f"{prefix}.{name}({argument})", "argument", "1.8", "", f"{prefix}.{name}", "",
                              "reduction='mean', 'sum' or 'none'", probe, "nn/_reduction.py")


def signatures() -> Iterator[Row]:
    """Positional orders that only old code uses: torchgen's own list of deprecated signatures."""
    path = Path(torchgen.__file__).parent / "packaged" / "autograd" / "deprecated.yaml"
    seen = set()
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        match = re.match(r"(\w+)\((.*)\) ->", entry["name"])
        assert match is not None, entry
        name, text = match.groups()
        names = [part.split()[-1] for part in text.split(", *")[0].split(", ")]
        kinds = [part.split()[0].partition("(")[0].lower() for part in text.split(", *")[0].split(", ")]
        keywords = " ".join(f"{old}={old}" for old in names if old in ("alpha", "beta", "value"))
        places = [old for old in names if old not in ("alpha", "beta", "value")]
        moved = " ".join(f"{old}={place}" for place, old in enumerate(places))
        order = {part.split("=")[0]: part for part in f"{keywords} {moved}".split()}
        for prefix in ("torch.", "torch.Tensor."):
            key = f"{prefix}{name}({','.join(names)})"
            if key in seen or not hasattr(torch.Tensor if "Tensor" in prefix else torch, name):
                continue
            seen.add(key)
            yield Row(key, "signature", "1.8", "", prefix + name, " ".join(order[old] for old in names),
                      "", "", "torchgen deprecated.yaml " + ",".join(kinds))


def observed(probe: str) -> str:
    """What the installed torch does: the category of its warning, "raises X", "silent", or "" without a probe."""
    if not probe:
        return ""
    model = nn.Linear(2, 2)
    names = {"torch": torch, "importlib": importlib, "io": io, "x": torch.tensor([[2.0, 1.0], [1.0, 3.0]]), "m": model,
             "o": torch.optim.SGD(model.parameters(), lr=0.1), "ctx": context(), "fresh": fresh}
    if "functorch." in probe:
        names["functorch"] = importlib.import_module("functorch")
    for module in re.findall(r"torch(?:\.[a-z_0-9]+)+", probe):
        for end in range(2, module.count(".") + 2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try_import(".".join(module.split(".")[:end]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.storage._warn_typed_storage_removal.__dict__.pop("has_warned", None)
        error = ""
        try:
            eval(probe, names)  # the rows are ours
        except Exception as failure:
            error = f"raises {type(failure).__name__}"
    told = [each for each in caught if TELLING.search(str(each.message))]
    return told[0].category.__name__ if told else error or "silent"


def fresh(name: str) -> Any:
    """Import a module anew: it warns only when it is first loaded."""
    for loaded in [key for key in sys.modules if key == name or key.startswith(name + ".")]:
        del sys.modules[loaded]
    return importlib.import_module(name)


def try_import(name: str) -> None:
    """Make a submodule reachable as an attribute, if there is one."""
    try:
        importlib.import_module(name)
    except Exception:
        return


def context() -> Any:
    """The ctx of a real autograd Function."""
    kept = []

    class Keep(torch.autograd.Function):
        """Hands its ctx out."""

        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            """Save the input."""
            ctx.save_for_backward(value)
            return value * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            """Pass the gradient on and keep ctx."""
            kept.append(ctx)
            return grad

    Keep.apply(torch.ones(1, requires_grad=True)).sum().backward(retain_graph=True)
    return kept[0]


def build() -> dict[str, dict[str, Any]]:
    """The table "deprecated". AssertionError if a row says something that the installed torch contradicts."""
    allow_test_helpers()
    torch.set_warn_always(True)
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    table: dict[str, Any] = {}
    for row in [*written(), *families()]:
        assert row.name not in table, f"{row.name} is listed twice"
        seen = observed(row.probe)
        gone = bool(row.removed) and tuple(map(int, row.removed.split("."))) <= version
        assert not row.probe or gone == seen.startswith("raises"), f"{row.name}: {seen}, removed={row.removed}"
        entry = {key: value for key, value in vars(replace(row, probe="")).items() if value and key != "name"}
        table[row.name] = {**entry, **({"observed": seen} if seen else {})}
    return {"deprecated": dict(sorted(table.items()))}

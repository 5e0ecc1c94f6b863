"""What torch's derivative formulas say of operators that could not be run."""
from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torchgen
from torchgen.packaged.autograd.load_derivatives import load_derivatives

PACKAGED = Path(torchgen.__file__).parent / "packaged"


@functools.cache
def formulas() -> dict[str, list[Any]]:
    """Operator name without overload -> its differentiability infos."""
    native = PACKAGED / "ATen" / "native"
    infos, _ = load_derivatives(str(PACKAGED / "autograd" / "derivatives.yaml"),
                                str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    found: dict[str, list[Any]] = {}
    for schema, by_key in infos.items():
        if "Default" in by_key:
            found.setdefault(str(schema.name.name), []).append(by_key["Default"])
    return found


def facts(name: str, params: list[str]) -> dict[str, Any] | None:
    """Table facts of an operator from its formulas, None if it has none. `params` are its parameter names."""
    infos = formulas().get(name)
    if not infos:
        return None
    info = infos[0]
    if not info.has_derivatives:
        return {}
    marks = info.output_differentiability or [True] * len(info.func.func.returns)
    saves: dict[str, str] = {}
    for derivative in info.derivatives:
        wanted = " ".join(own_name(each, params) for each in derivative.var_names)
        for saved in (*derivative.saved_inputs, *derivative.saved_outputs):
            if "Tensor" in str(saved.nctype.type) and "." not in saved.expr and "(" not in saved.expr:
                key = own_name(str(saved.nctype.name), params)
                saves[key] = " ".join(sorted({*saves.get(key, "").split(), *wanted.split()}))
    found: dict[str, Any] = {"grad": "".join("+" if mark else "-" for mark in marks)}
    if saves:
        found["saves"] = saves
    if zero(name):
        found["zero"] = True
    return found


def zero(name: str) -> bool:
    """Whether all formulas of an operator give zeros."""
    written = [derivative.formula for info in formulas().get(name, ()) for derivative in info.derivatives]
    return bool(written) and all("zeros" in formula and "*" not in formula for formula in written)


def own_name(name: str, params: list[str]) -> str:
    """The formulas say `self` where functions say `input`."""
    if name == "self" and "self" not in params and params:
        return params[0]
    return name

"""The table of names: which public name an object of torch has, whatever module it is imported from."""
from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
import types
import warnings
from collections import defaultdict
from typing import Any

# Packages whose modules users import from. Each is walked; modules that fail to import here are left out.
# `functorch` and `torch.quantization` hold old names of objects that moved: these stay visible to rules.
WALKED = ("torch.nn", "torch.optim", "torch.utils.data", "torch.autograd", "torch.amp", "torch.cuda", "torch.func",
          "torch.jit", "torch.distributions", "torch.distributed", "torch.nested", "torch.profiler",
          "torch.multiprocessing", "torch.ao", "torch.cpu", "torch.xpu", "torch.backends", "torch.fx", "torch.export",
          "torch.library")
SINGLE = ("torch", "torch.functional", "torch.serialization", "torch.random", "torch.hub", "torch.overrides",
          "torch.storage", "torch.types", "torch.utils", "torch.utils.checkpoint", "torch.utils.hooks",
          "torch.utils._pytree", "torch._tensor", "torch._C._VariableFunctions", "torch._C._nn", "torch._VF",
          "torch._C",
          "torch._lowrank", "torch._lobpcg", "torch.fft", "torch.linalg", "torch.special", "torch.onnx",
          "torch.compiler", "torch.sparse")
# Inner parts that no user code imports from.
SKIPPED = ("._internal", ".testing._", "._shard", ".examples", ".benchmark", "torch.fx.experimental", "torch.fx.passes",
           "torch.jit.", "torch.distributed.elastic", "torch.distributed._", "torch.distributed.launcher",
           "torch.distributed.flight_recorder", ".datapipes", "torch.nn.quant", "torch.nn.intrinsic", "torch.nn.qat",
           "torch.nn.backends", "torch.export.", "torch.distributed.run")
# Here also what a module merely imports is kept: people write `from torch.nn.modules.transformer import Linear`.
LOOSE = ("torch.nn.", "torch.optim.", "torch.utils.data.", "torch.autograd", "torch.functional", "torch._tensor")


def modules() -> dict[str, types.ModuleType]:
    """Every module that names are taken from."""
    found: dict[str, types.ModuleType] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*SINGLE, *WALKED]:
            load(name, found)
        for name in WALKED:
            package = found.get(name)
            for info in pkgutil.walk_packages(getattr(package, "__path__", []), name + ".", onerror=lambda _: None):
                if not any(word in info.name for word in SKIPPED):
                    load(info.name, found)
    return dict(sorted(found.items()))


def load(name: str, found: dict[str, types.ModuleType]) -> None:
    """Import a module if that is possible here."""
    with contextlib.suppress(Exception, SystemExit):
        found[name] = sys.modules[name] if name in sys.modules else importlib.import_module(name)


def is_public(path: str) -> bool:
    """Whether no part of a dotted name starts with an underscore."""
    return not any(part.startswith("_") for part in path.split("."))


def inside(module: str, home: str) -> bool:
    """Whether a module is the one that defines an object, or a package around it."""
    return home == module or home.startswith(module + ".") or home.startswith("torch._C")


def preference(path: str, home: str, listed: bool) -> tuple[bool, bool, bool, int, bool, int, str]:
    """Sort key: the best public path of an object defined in `home` comes first."""
    around = inside(path.rpartition(".")[0], home)
    offered = is_public(path) and (around or listed)  # else a module has merely imported it
    return (path not in PREFERRED, not offered, not around, path.count("."), not listed, len(path), path)


def build() -> dict[str, Any]:
    """module -> {public module: names that it also holds}, with "=" for objects that have another name there."""
    paths: dict[int, list[tuple[str, bool]]] = defaultdict(list)
    objects: dict[int, Any] = {}
    for module_name, module in modules().items():
        listed = set(getattr(module, "__all__", ()))
        for name, value in sorted(vars(module).items()):
            if not name.startswith("__") and wanted(value):
                objects[id(value)] = value
                paths[id(value)].append((f"{module_name}.{name}", name in listed))
    table: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(list))
    for key, value in objects.items():
        home = getattr(value, "__module__", None) or "torch._C"
        ordered = sorted(paths[key], key=lambda item: preference(item[0], home, item[1]))
        for path, listed_ in ordered[1:]:
            add(table, path, ordered[0][0], home, listed_)
    return {module: {target: " ".join(sorted(names)) if target != "=" else dict(sorted(names.items()))
                     for target, names in sorted(targets.items())} for module, targets in sorted(table.items())}


def add(table: dict[str, dict[str, Any]], path: str, best: str, home: str, listed: bool) -> None:
    """Note that `path` is another way to write `best`, where that is of use."""
    module, _, name = path.rpartition(".")
    target, _, last = best.rpartition(".")
    if not is_public(best) or name.startswith("_") or (module in KEPT and name == last):
        return
    if not (listed or inside(module, home) or module.startswith(LOOSE)):
        return
    if name == last:
        table[module][target].append(name)
    else:
        table[module].setdefault("=", {})[name] = best


# Documented under this name, though torch has a shorter one.
PREFERRED = {"torch.amp.GradScaler", "torch.profiler.record_function"}
# Documented under this name too, even where torch has the same object under another one; tables hold both.
KEPT = {"torch.nn.functional", "torch.linalg", "torch.fft", "torch.special"}


def wanted(value: Any) -> bool:
    """Classes and functions that torch defines."""
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    home = getattr(value, "__module__", None)
    if home is None:
        return isinstance(value, types.BuiltinFunctionType)  # operators bound from C++ name no module
    return isinstance(home, str) and home.split(".")[0] == "torch"

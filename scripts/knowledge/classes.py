"""The table of torch's classes: modules, optimizers, schedulers, data, contexts and other objects."""
from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import textwrap
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn as nn

from knowledge import names, operators, signatures

# File of torch/nn/modules -> kind of the modules defined there.
KINDS = {
    "loss": "loss", "container": "container", "activation": "activation", "dropout": "dropout", "batchnorm": "norm",
    "instancenorm": "norm", "normalization": "norm", "rnn": "rnn", "linear": "linear", "conv": "conv",
    "pooling": "pool", "sparse": "embedding", "transformer": "transformer", "padding": "padding",
}
# Constructor arguments that most modules can be built with, by parameter name.
TYPICAL: dict[str, Any] = {
    "in_features": 4, "out_features": 4, "in1_features": 4, "in2_features": 4, "in_channels": 4, "out_channels": 4,
    "kernel_size": 3, "num_features": 4, "num_channels": 4, "num_groups": 2, "normalized_shape": 4, "input_size": 4,
    "hidden_size": 4, "embed_dim": 8, "num_heads": 2, "d_model": 8, "nhead": 2, "num_embeddings": 5,
    "embedding_dim": 4, "n_classes": 10, "cutoffs": [4], "threshold": 0.5, "value": 0.5, "padding": 1, "groups": 2,
    "upscale_factor": 2, "downscale_factor": 2, "output_size": 2, "norm_type": 2, "dim": 0, "unflattened_size": (2, 2),
    "size": 4, "num_layers": 1, "min_val": -1.0, "max_val": 1.0, "output_ratio": 0.5, "scale_factor": 2, "mode": "LSTM",
    "upper": 0.3, "lower": 0.1, "bias": True, "num_chunks": 4,
    "encoder_layer": nn.TransformerEncoderLayer(8, 2), "decoder_layer": nn.TransformerDecoderLayer(8, 2),
}


def module_classes() -> dict[str, type[nn.Module]]:
    """Every public Module class of torch by canonical name."""
    found = {}
    for module_name, module in names.modules().items():
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__.startswith("torch"):
                found[public_name(value, module_name, name)] = value
    return dict(sorted(found.items()))


@functools.cache
def canonical_table() -> dict[str, Any]:
    """The table of names, as written."""
    return names.build()


def public_name(value: type, module: str, name: str) -> str:
    """Canonical name of a class found as `module.name`."""
    home = value.__module__
    for target, words in canonical_table().get(home, {}).items():
        if target != "=" and value.__name__ in words.split():
            return f"{target}.{value.__name__}"
    return f"{home}.{value.__name__}"


def constructor(cls: type) -> str:
    """Parameters of `__init__` in signature text, without self."""
    try:
        source = textwrap.dedent(inspect.getsource(cls.__init__))
        node = ast.parse(source).body[0]
        assert isinstance(node, ast.FunctionDef)
        signature = signatures.from_node(node)
    except (OSError, TypeError, SyntaxError, AssertionError):
        return ""
    params = signature.params[1:]
    if len(params) == 2 and [p.name for p in params] == ["*args", "**kwargs"]:
        base = next((b for b in cls.__mro__[1:] if "__init__" in vars(b)), object)
        if base is nn.RNNBase:
            # LSTM and its like pass their own name as `mode`; users do not write it.
            return constructor(base).partition("|")[2]
        return constructor(base) if base not in (object, nn.Module) else "*args|**kwargs"
    return signatures.text_of(signatures.Signature(params, "none")).rpartition(">")[0]


def build_one(cls: type[nn.Module]) -> nn.Module | None:
    """An instance, with typical arguments for what has no default."""
    try:
        if issubclass(cls, nn.RNNBase) and cls is not nn.RNNBase:
            return cls(4, 4)
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        args = {p.name: TYPICAL[p.name] for p in parameters
                if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        return cls(**args)
    except Exception:
        return None


def module_entry(cls: type[nn.Module]) -> dict[str, Any]:
    """The table entry of a module class."""
    home = cls.__module__
    last = home.rpartition(".")[2]
    kind = KINDS.get(last, "other") if home.startswith("torch.nn.modules.") else "other"
    if "Attention" in cls.__name__ and kind == "activation":
        kind = "attention"
    entry: dict[str, Any] = {"is": "module", "kind": kind, "params": constructor(cls)}
    made = build_one(cls)
    modules = list(made.modules()) if made is not None else []
    if made is not None:
        entry["built"] = True
        entry["parameters"] = " ".join(name for name, _ in made.named_parameters(recurse=False))
        entry["buffers"] = " ".join(name for name, _ in made.named_buffers(recurse=False))
        entry["has_parameters"] = any(True for _ in made.parameters())
        entry["has_buffers"] = any(True for _ in made.buffers())
    if any(reads_training(type(each)) for each in modules or [cls]):
        entry["mode"] = True
    entry["functional"] = functional_of(cls)
    entry["returns"] = results().get(cls, "")
    return {key: value for key, value in entry.items() if value not in ("", False)}


@functools.cache
def results() -> dict[type, str]:
    """What calling a module gives, measured on the inputs that torch tests its own modules with: "tensor", or
    the nested shape of a tuple, such as "(tensor,(tensor,tensor))"."""
    found: dict[type, set[str]] = {}
    for info in operators.module_infos():
        with contextlib.suppress(Exception):
            for each in info.module_inputs_func(info, "cpu", torch.float32, False, True):
                if each.forward_input is None:
                    continue
                made = info.module_cls(*each.constructor_input.args, **each.constructor_input.kwargs)
                given = each.forward_input
                found.setdefault(info.module_cls, set()).add(shape_of(made(*given.args, **given.kwargs)))
    return {cls: words.pop() for cls, words in found.items() if len(words) == 1}


def shape_of(value: Any) -> str:
    """The nesting of tensors in a result."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, tuple):
        return "(" + ",".join(map(shape_of, value)) + ")"
    return "none" if value is None else "other"


def reads_training(cls: type) -> bool:
    """Whether a class's forward behaves differently in training mode."""
    for base in cls.__mro__:
        if base in (nn.Module, object) or not base.__module__.startswith("torch"):
            continue
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):
            continue
        if re.search(r"self\.training\b(?!\s*=)", source):
            return True
    return False


def functional_of(cls: type) -> str:
    """The one function that forward returns the result of: of torch.nn.functional, or an activation of torch."""
    if issubclass(cls, (nn.RNNBase, nn.RNNCellBase, nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return ""
    called = set()
    for name in ("_conv_forward", "forward"):
        method = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), nn.Module.forward)
        if method is nn.Module.forward:
            continue
        try:
            node = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
        except (OSError, TypeError, SyntaxError):
            return ""
        called |= {ast.unparse(each.value.func) for each in ast.walk(node)
                   if isinstance(each, ast.Return) and isinstance(each.value, ast.Call)}
    found = [name for name in called if name.startswith(("F.", "torch.")) and name.count(".") == 1]
    if len(found) != 1 or len(called - {"self._conv_forward"}) != 1:
        return ""
    head, _, last = found[0].rpartition(".")
    return f"torch.nn.functional.{last}" if head == "F" else found[0]


def subclasses(module: types.ModuleType, base: type) -> Iterator[type]:
    """Public subclasses of `base` reachable in a namespace."""
    for _, value in sorted(vars(module).items()):
        if isinstance(value, type) and issubclass(value, base):
            yield value


def others() -> dict[str, dict[str, Any]]:
    """Optimizers, schedulers, data classes, contexts and single objects."""
    import torch.distributed.optim
    import torch.optim.swa_utils
    import torch.utils.data as data
    from torch.optim import lr_scheduler

    found: dict[str, dict[str, Any]] = {}
    for cls in subclasses(torch.optim, torch.optim.Optimizer):
        found[f"torch.optim.{cls.__name__}"] = {"is": "optimizer", "params": constructor(cls),
                                               **({"closure": True} if "LBFGS" in cls.__name__ else {})}
    for cls in subclasses(lr_scheduler, lr_scheduler.LRScheduler):
        found[f"torch.optim.lr_scheduler.{cls.__name__}"] = scheduler(cls)
    found["torch.optim.swa_utils.SWALR"] = scheduler(torch.optim.swa_utils.SWALR)
    for what, base in (("dataset", data.Dataset), ("sampler", data.Sampler), ("loader", data.DataLoader)):
        for module in (data, torch.utils.data.distributed):
            for cls in subclasses(module, base):
                found[public_name(cls, "", "")] = {"is": what, "params": constructor(cls)}
    for dotted, what in OBJECTS.items():
        value = resolve(dotted)
        found[dotted] = {"is": what, **({"params": constructor(value)} if isinstance(value, type) else {})}
    for name, value in sorted(vars(torch).items()):
        if isinstance(value, torch.dtype):
            found[f"torch.{name}"] = {"is": "dtype"}
    return {key: {k: v for k, v in value.items() if v != ""} for key, value in sorted(found.items())}


def resolve(dotted: str) -> Any:
    """The object of a dotted name; LookupError if the installed torch lacks it."""
    value: Any = torch
    for name in dotted.split(".")[1:]:
        value = getattr(value, name, None)
    if value is None:
        raise LookupError(f"{dotted} is not in this torch")
    return value


def scheduler(cls: type) -> dict[str, Any]:
    """A scheduler, with how often it is usually stepped: its own documentation's example tells."""
    doc = cls.__doc__ or ""
    per_batch = cls.__name__ in ("OneCycleLR", "CyclicLR") or "after every batch" in doc
    return {"is": "scheduler", "params": constructor(cls), "step": "batch" if per_batch else "epoch"}


# Single objects: what they are. Checked to exist in the installed torch.
OBJECTS = {
    "torch.Tensor": "tensor", "torch.nn.Parameter": "parameter", "torch.nn.Buffer": "buffer",
    "torch.nn.UninitializedParameter": "parameter", "torch.nn.UninitializedBuffer": "buffer",
    "torch.autograd.Variable": "tensor", "torch.autograd.Function": "function",
    "torch.autograd.function.InplaceFunction": "function", "torch.autograd.function.FunctionCtx": "ctx",
    "torch.device": "device", "torch.dtype": "dtype_class", "torch.Size": "size", "torch.Generator": "generator",
    "torch.amp.GradScaler": "scaler", "torch.cuda.amp.GradScaler": "scaler", "torch.cpu.amp.GradScaler": "scaler",
    "torch.no_grad": "context:no_grad", "torch.inference_mode": "context:inference_mode",
    "torch.enable_grad": "context:enable_grad", "torch.set_grad_enabled": "context:set_grad_enabled",
    "torch.autograd.set_detect_anomaly": "context:anomaly", "torch.autograd.detect_anomaly": "context:anomaly",
    "torch.autograd.graph.saved_tensors_hooks": "context:saved_tensors",
    "torch.autograd.graph.save_on_cpu": "context:saved_tensors",
    "torch.autograd.forward_ad.dual_level": "context:forward_ad",
    "torch.autocast": "context:autocast", "torch.amp.autocast": "context:autocast",
    "torch.cuda.amp.autocast": "context:autocast", "torch.cpu.amp.autocast": "context:autocast",
    "torch.random.fork_rng": "context:rng", "torch.autograd.profiler.profile": "context:profiler",
    "torch.profiler.profile": "context:profiler", "torch.profiler.record_function": "context:profiler",
    "torch.cuda.device": "context:device", "torch.cuda.stream": "context:stream",
    "torch.nn.utils.parametrize.cached": "context:parametrize",
    "torch.jit.ScriptModule": "module", "torch.nn.utils.rnn.PackedSequence": "packed",
    "torch.utils.hooks.RemovableHandle": "handle", "torch.cuda.Stream": "stream", "torch.cuda.Event": "event",
}


def build() -> dict[str, dict[str, Any]]:
    """The table "classes"."""
    warnings.simplefilter("ignore")
    found = {name: module_entry(cls) for name, cls in module_classes().items()}
    found.update(others())
    for name in WRAPPERS:
        found[name] = {**found[name], "wrapper": True}
    return {"classes": found, "names": canonical_table()}


# Modules whose `module` attribute is the module that they were given, and that synchronise its gradients.
WRAPPERS = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.DataParallel",
            "torch.distributed.fsdp.FullyShardedDataParallel")

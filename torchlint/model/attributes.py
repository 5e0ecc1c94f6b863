"""Names from outside the body, attributes of values, and what storing an attribute does."""
from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model import tensors
from torchlint.model.classes import class_kind
from torchlint.model.replaced import overridden
from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Grad, Kind, Value, join_all

if TYPE_CHECKING:
    from torchlint.knowledge import ModuleClass
    from torchlint.model.functions import FunctionInfo
    from torchlint.model.interp import Run


def free_name(run: Run, node: ast.Name) -> Value:
    """A name that the body has not bound: an import, a definition, a closure variable or a global."""
    dotted = run.model.name_of(node)
    if dotted:
        return named(run, dotted)
    model = run.model
    for scope in model.scopes(node):
        if node.id in scope.nonlocals or node.id not in scope.bindings:
            continue
        owner = scope.node
        if owner in run.active:
            return borrowed(run, owner, node.id)
        if isinstance(owner, ast.ClassDef):
            return Value(ident=(owner, node.id))
        if isinstance(owner, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            found = model.flow(owner).end.get(node.id)
            if found is not None and found.known:
                return found.but(sure=min(found.sure, Confidence.LIKELY), const=None)
        return Value(ident=(owner, node.id))
    return UNKNOWN


def borrowed(run: Run, owner: ast.AST, name: str) -> Value:
    """A variable of a function (or file) that is being followed: what it holds at the moment of the call."""
    run.model.session.moments += 1  # the answer depends on the moment: it must not be remembered
    outer = run.outer
    while outer is not None and outer.active[-1] is not owner:
        outer = outer.outer
    found = outer.get(name) if outer is not None else None
    return found if found is not None else Value(ident=(owner, name))


def named(run: Run, dotted: str) -> Value:
    """What a dotted name refers to."""
    found = run.model.definition(dotted)
    if found is None:
        return outside(dotted)
    model, node = found
    if isinstance(node, ast.ClassDef):
        return Value(Kind.CLASS, name=dotted, cls=model.class_info(node))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return Value(Kind.FUNCTION, name=dotted, func=model.function_info(node))
    if isinstance(node, ast.Module):
        return Value(Kind.NAMESPACE, name=dotted)
    if isinstance(node, ast.expr):
        value = model.value(node)
        return value.but(sure=min(value.sure, Confidence.LIKELY)) if value.known else Value(ident=node)
    return UNKNOWN


@functools.lru_cache(maxsize=4096)
def outside(dotted: str) -> Value:
    """What a name that the project does not define refers to."""
    own = knowledge.torch_class(dotted)
    if own is not None and own.what == "dtype":
        return Value(Kind.DTYPE, name=dotted)
    if dotted in ("math.pi", "math.inf", "math.nan", "math.e", "numpy.pi", "torch.pi", "torch.inf", "numpy.inf"):
        return NUMBER
    if own is not None or class_kind(dotted) is not Kind.UNKNOWN:
        return Value(Kind.CLASS, name=dotted)
    if dotted.startswith("builtins.") and dotted[9:10].isupper():
        return Value(Kind.CLASS, name=dotted)
    return Value(Kind.FUNCTION if knowledge.function(dotted) is not None else Kind.NAMESPACE, name=dotted)


def attribute(run: Run, node: ast.Attribute, base: Value) -> Value:
    """`base.attr` when nothing on the way has bound that path; no surer than what `base` is."""
    value = _attribute(run, node, base)
    return value.but(sure=base.sure) if base.sure < value.sure and base.known and value.known else value


def _attribute(run: Run, node: ast.Attribute, base: Value) -> Value:
    name = node.attr
    if base.kind in (Kind.NAMESPACE, Kind.FUNCTION, Kind.CLASS) and base.name:
        dotted = run.model.name_of(node)
        if base.cls is not None:
            return class_attribute(run, node, base)
        if dotted:
            return named(run, dotted)
        return Value(Kind.NAMESPACE, name=f"{base.name}.{name}") if base.kind is Kind.NAMESPACE else UNKNOWN
    if base.is_tensor and (base.cls is None or base.cls.method(name) is None):
        return tensors.attribute(run, node, base)
    if base.cls is not None:
        return instance_attribute(run, node, base)
    if base.kind is Kind.MODULE:
        return module_attribute(run, node, base)
    if base.kind is Kind.OPTIMIZER and name == "param_groups":
        taken = Value(Kind.LIST, item=any_parameter(node), bound=base)
        group = Value(Kind.DICT, item=UNKNOWN, fields=(("params", taken),), bound=base)
        return Value(Kind.LIST, item=group, ident=(base.ident, name), bound=base)
    if base.kind in (Kind.LOADER, Kind.DATASET) and name in ("dataset", "sampler", "batch_sampler"):
        return Value(Kind.DATASET if name == "dataset" else Kind.SAMPLER, ident=(base.ident, name))
    if base.kind is Kind.CTX:
        if name == "saved_tensors":
            return Value(Kind.TUPLE, item=saved_tensor(run, node), ident=node)
        return Value(ident=(base.ident, name))
    if base.kind is Kind.TUPLE:  # `x.max(dim=1).values`
        return base.field(name) or UNKNOWN
    if base.name in ("numpy.finfo", "numpy.iinfo"):
        return STRING if name == "dtype" else NUMBER
    if base.kind is Kind.NDARRAY:
        return {"shape": Value(Kind.SIZE), "ndim": NUMBER, "size": NUMBER, "T": base}.get(name, UNKNOWN)
    if base.kind is Kind.DEVICE:
        return STRING if name == "type" else NUMBER
    if base.ident is not None:
        return Value(ident=(base.ident, name))
    return UNKNOWN


def class_attribute(run: Run, node: ast.Attribute, base: Value) -> Value:
    """`Class.attr`: a method, a class-level value, or `Function.apply`."""
    assert base.cls is not None
    up = "super" in base.facts
    method = parent_method(run, node, base) if up else base.cls.method(node.attr)
    if method is not None:
        bound = base.but(name=base.cls.dotted, facts=base.facts - {"super"}) if method.is_classmethod else None
        return Value(Kind.FUNCTION, name=method.dotted, func=method, bound=bound)
    if up:
        return UNKNOWN
    if base.cls.is_function and node.attr == "apply":
        return Value(Kind.FUNCTION, name="torch.autograd.Function.apply", bound=base)
    inner = base.cls.inner_class(node.attr)
    if inner is not None:
        return Value(Kind.CLASS, name=inner.dotted, cls=inner)
    return base.cls.attr(node.attr)


def instance_attribute(run: Run, node: ast.Attribute, base: Value) -> Value:
    """`instance.attr` of a project class."""
    assert base.cls is not None
    name = node.attr
    method = parent_method(run, node, base) if "super" in base.facts else base.cls.method(name)
    if method is not None:
        if method.is_property:
            value = method.returned(base)
            doubtful = value.known and may_differ(base, name)
            return value.but(sure=min(value.sure, Confidence.LIKELY)) if doubtful else value
        receiver = base.but(name=base.cls.dotted, facts=base.facts - {"super"})
        sure = Confidence.LIKELY if may_differ(base, name) else Confidence.SURE
        return Value(Kind.FUNCTION, sure=sure, name=method.dotted, func=method, bound=receiver)
    if "super" in base.facts:
        return UNKNOWN
    value = base.cls.attr(name)
    if value.known:
        if value.ident is None:
            return value.but(ident=(base.cls, name))
        return value
    if base.kind is Kind.MODULE:
        found = module_attribute(run, node, base)
        if found.known:
            return found
    return Value(ident=(base.cls if base.cls is not None else base.ident, name))


def may_differ(base: Value, name: str) -> bool:
    """Whether an object's method may be another one than its class': of a subclass, or put there by other code."""
    if base.cls is None or "super" in base.facts:
        return False
    if "isinstance" in base.facts or name in base.cls.model.replaced.outside:
        return True
    if any(not prefix for prefix in base.cls.computed_names):
        return True
    return isinstance(base.ident, ast.arg) and overridden(base.cls, name)


def parent_method(run: Run, node: ast.Attribute, base: Value) -> FunctionInfo | None:
    """The method that `super().name` finds: in the classes after the one that holds the code."""
    here = run.model.class_of(node)
    if here is None:
        return None
    for cls in here.project_mro:
        if cls is not here and node.attr in cls.methods:
            return cls.methods[node.attr]
    return None


def module_attribute(run: Run, node: ast.Attribute, base: Value) -> Value:
    """Attributes that torch's own Modules have."""
    name = node.attr
    if name == "training":
        return NUMBER
    info = torch_module(base)
    usual = ("weight", "bias", "in_proj_weight", "in_proj_bias")
    if info is not None and name in (info.parameters if info.built else usual):
        return Value(Kind.TENSOR, sure=Confidence.LIKELY, role="parameter", grad=parameter_grad(run),
                     ident=(base.ident, name), storage=(base.ident, name), site=node)
    if info is not None and name in (*info.buffers, "running_mean", "running_var", "num_batches_tracked"):
        return Value(Kind.TENSOR, role="buffer", grad=Grad.NO, ident=(base.ident, name), storage=(base.ident, name))
    if name == "module" and "wrapper" in base.facts:
        return base.bound or UNKNOWN
    if name in ("in_features", "out_features", "in_channels", "out_channels", "hidden_size", "num_embeddings",
                "embedding_dim", "num_layers", "padding_idx", "eps", "momentum", "p"):
        return NUMBER
    if base.cls is None and knowledge.module_class(base.name) is None and base.ident is not None:
        return Value(ident=(base.ident, name))
    return Value(ident=(base.ident, name)) if base.ident is not None else UNKNOWN


def torch_module(base: Value) -> ModuleClass | None:
    """The torch Module that a module is, or that its class derives from."""
    found = knowledge.module_class(base.name)
    if found is None and base.cls is not None:
        bases = (knowledge.module_class(knowledge.canonical(name)) for name in base.cls.outside)
        found = next((info for info in bases if info is not None and info.name != "torch.nn.Module"), None)
    return found


def parameter_grad(run: Run) -> Grad:
    """A parameter is a leaf that requires grad, whatever the mode; freezing is not followed."""
    return Grad.YES


def any_parameter(site: ast.AST) -> Value:
    """Some parameter of some module."""
    return Value(Kind.TENSOR, role="parameter", grad=Grad.YES, ident=site, storage=site)


def store_attribute(run: Run, target: ast.Attribute, base: Value, value: Value) -> None:
    """`base.attr = value`."""
    from torchlint.model.evaluate import path_of

    name = target.attr
    if base.is_tensor:
        if name == "data":
            run.event("data_write", target, base, value=value, name="=")
        elif name == "grad":
            run.event("clear_grad" if value.kind is Kind.NONE else "set_grad", target, base, value=value)
        elif name == "requires_grad":
            tensors.set_requires_grad(run, target.value, base, value)
    elif name == "grad" and value.kind is Kind.NONE:
        run.event("clear_grad", target, base)
    run.event("store_attr", target, base, value=value, path=path_of(target), name=name)
    path = path_of(target)
    if path:
        method = base.cls.method(name) if base.cls is not None else None
        if method is not None and method.is_property:
            value = UNKNOWN  # a setter decides what it keeps
        if base.cls is not None and value.is_tensor and base.cls.registered_as(name) == "buffer":
            value = value.but(role="buffer")
        run.set(path, value)
    run.record(target, value)


def submodule_item(run: Run, node: ast.AST, base: Value, key: Value) -> Value:
    """A member of a ModuleList, ModuleDict or Sequential; if some may be frozen, it may be."""
    found = _submodule_item(node, base, key)
    return tensors.frozen(found, True) if "frozen" in base.facts and found.kind is Kind.MODULE else found


def _submodule_item(node: ast.AST, base: Value, key: Value) -> Value:
    if base.elements is not None:
        if isinstance(key.const, int) and -len(base.elements) <= key.const < len(base.elements):
            return base.elements[key.const]
        either = join_all(list(base.elements))
        return either.but(ident=(base.ident, "item")) if either.known and either.ident is None else either
    if base.item is not None:
        return base.item
    if base.name in ("torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict"):
        return Value(Kind.MODULE, ident=(base.ident, "item"))
    if base.name in ("torch.nn.ParameterList", "torch.nn.ParameterDict"):
        return any_parameter(node)
    return UNKNOWN


def dataset_item(run: Run, base: Value, at: ast.AST) -> Value:
    """A sample or batch: what the project's `__getitem__` returns, else unknown data without a graph."""
    source = base.bound if base.kind is Kind.LOADER and base.bound is not None else base
    if source.cls is not None:
        getter = source.cls.method("__getitem__") or source.cls.method("__iter__")
        if getter is not None:
            flow = getter.model.flow(getter.node)
            sample = flow.returns if getter.name == "__getitem__" else flow.yields
            return batched(sample, base.kind is Kind.LOADER, at)
    if source.kind is Kind.DATASET and source.name == "torch.utils.data.TensorDataset":
        return Value(Kind.TUPLE, item=batch_tensor(at), ident=at)
    return Value(ident=(base.ident, "item"), item=None, facts=frozenset({"batch"}))


def batched(sample: Value, loader: bool, at: ast.AST) -> Value:
    """What the default collation makes of a sample: tensors and numbers become detached tensors."""
    if not loader:
        return sample
    if sample.kind in (Kind.TENSOR, Kind.NUMBER, Kind.NDARRAY):
        return batch_tensor(at)
    if sample.elements is not None:
        return Value(Kind.LIST, elements=tuple(batched(v, True, at) for v in sample.elements), ident=at)
    if sample.fields:
        return Value(Kind.DICT, fields=tuple((k, batched(v, True, at)) for k, v in sample.fields), ident=at)
    return Value(ident=(at, "batch"), facts=frozenset({"batch"}))


def batch_tensor(at: ast.AST) -> Value:
    """A tensor that a loader made."""
    return Value(Kind.TENSOR, sure=Confidence.LIKELY, grad=Grad.NO, ident=at, storage=at, facts=frozenset({"batch"}))


__all__ = ["NONE", "attribute", "dataset_item", "free_name", "named", "store_attribute", "submodule_item"]


def saved_tensor(run: Run, node: ast.Attribute) -> Value:
    """A member of `ctx.saved_tensors`: a saved input requires grad as before, and None may have been saved."""
    from torchlint.model.saving import may_save_none

    cls = run.owner.cls
    optional = cls is not None and may_save_none(cls)
    return Value(Kind.TENSOR, ident=node, storage=node, optional=optional)

"""Methods of receivers that are not tensors: optimizers, modules, scalers, containers, and the unknown."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model import calls, data_methods, distributions, modules, tensor_calls, tensors
from torchlint.model.duck import makes_module
from torchlint.model.values import CONTAINERS, NONE, NUMBER, STRING, UNKNOWN, Grad, Kind, Value, promised

if TYPE_CHECKING:
    from torchlint.model.interp import Run

Keywords = dict[str, Value]
Method = Callable[["Run", ast.Call, Value, str, list[Value], Keywords], "Value | None"]
SELF_RETURNING = {
    "to",
    "cuda",
    "cpu",
    "float",
    "half",
    "double",
    "bfloat16",
    "train",
    "eval",
    "requires_grad_",
    "apply",
    "type",
    "share_memory",
    "xpu",
    "to_empty",
    "ipu",
}
CONVERSIONS = {"to", "cuda", "cpu", "float", "half", "double", "bfloat16", "type", "to_empty"}
HOOKS = {
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_backward_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_state_dict_pre_hook",
    "register_load_state_dict_post_hook",
}
# Class methods that return an instance.
MAKERS = {"from_pretrained", "from_config", "_from_config", "load_from_checkpoint", "from_state_dict"}
# Keyword arguments that only a tensor's backward takes.
BACKWARD_KEYWORDS = {"gradient", "retain_graph", "create_graph", "inputs"}


def call(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: Keywords) -> Value | None:
    """`base.name(...)`; None when nothing is known of it."""
    assert isinstance(node.func, ast.Attribute)
    name = node.func.attr
    handler = BY_KIND.get(base.kind)
    if handler is not None:
        found = handler(run, node, base, name, args, keywords)
        if found is not None:
            return found
    return by_name(run, node, base, name, args, keywords)


# -- modules ----------------------------------------------------------------------------------


def module_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of torch.nn.Module."""
    if name in ("train", "eval"):
        flag = args[0] if args else keywords.get("mode")
        what = "eval" if name == "eval" or (flag is not None and flag.const is False) else "train"
        if flag is not None and not isinstance(flag.const, bool):
            what = "set_mode"
        run.event(what, node, base, name=name)
        return base
    if name in SELF_RETURNING:
        run.event("convert" if name in CONVERSIONS else name, node, base, args=tuple(args), name=name)
        return switched(run, node, base, args, keywords) if name == "requires_grad_" else base
    if name in ("parameters", "named_parameters", "buffers", "named_buffers"):
        return registered_tensors(node, base, name)
    if name in ("children", "modules"):
        return Value(Kind.LIST, item=Value(Kind.MODULE, ident=(base.ident, name)), facts=frozenset({"generator"}))
    if name in ("named_children", "named_modules"):
        pair = Value(Kind.TUPLE, elements=(STRING, Value(Kind.MODULE, ident=(base.ident, name))))
        return Value(Kind.LIST, item=pair, facts=frozenset({"generator"}))
    if name == "state_dict":
        return Value(
            Kind.STATE_DICT,
            bound=base,
            ident=node,
            site=node,
            item=Value(Kind.TENSOR, grad=Grad.NO, ident=(base.ident, "state"), storage=(base.ident, "state")),
        )
    if name in ("load_state_dict", "zero_grad"):
        run.event("zero_grad" if name == "zero_grad" else "load_state", node, base, args=tuple(args), name=name)
        return NONE if name == "zero_grad" else Value(Kind.TUPLE)
    if name in HOOKS:
        run.event("register_hook", node, base, args=tuple(args), name=name)
        return Value(Kind.HANDLE, ident=node, site=node)
    if name in ("forward", "__call__") and base.cls is None:
        run.event("forward", node, base, args=tuple(args), name=name)
        return modules.call(run, node, base, args, keywords)
    if name == "no_sync":
        return Value(Kind.CONTEXT, name="no_sync", bound=base)
    if name in ("append", "extend", "insert", "add_module", "register_module", "register_buffer", "register_parameter"):
        run.event("register", node, base, args=tuple(args), name=name)
        return base if name in ("append", "extend") else NONE
    if name in ("items", "values", "keys") and base.name == "torch.nn.ModuleDict":
        member = base.item or Value(Kind.MODULE, ident=(base.ident, "item"))
        pair = Value(Kind.TUPLE, elements=(STRING, member))
        return Value(Kind.LIST, item={"items": pair, "values": member, "keys": STRING}[name])
    return None


def switched(run: Run, node: ast.Call, base: Value, args: list[Value], keywords: Keywords) -> Value:
    """`module.requires_grad_(flag)`: the module, frozen unless the flag is surely true."""
    flag = args[0] if args else keywords.get("requires_grad", Value(Kind.NUMBER, const=True))
    tensors.freeze(run, node, base, flag.const is not True)
    return tensors.frozen(base, flag.const is not True)


def registered_tensors(node: ast.Call, base: Value, name: str) -> Value:
    """`parameters()` and its relatives: an iterator that is used up by one pass."""
    if "buffers" in name:
        tensor = Value(Kind.TENSOR, role="buffer", grad=Grad.NO, ident=(base.ident, name), storage=(base.ident, name))
    else:
        tensor = Value(
            Kind.TENSOR,
            role="parameter",
            grad=Grad.YES,
            ident=(base.ident, name),
            storage=(base.ident, name),
            bound=base,
        )
    item = Value(Kind.TUPLE, elements=(STRING, tensor)) if name.startswith("named") else tensor
    return Value(
        Kind.PARAMETERS, bound=base, ident=node, site=node, item=item, name=name, facts=frozenset({"generator"})
    )


# -- optimizers and the like ------------------------------------------------------------------


def optimizer_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of optimizers."""
    match name:
        case "step":
            run.event("step", node, base, args=tuple(args), name=name)
            follow_closure(run, node, args)
            return UNKNOWN
        case "zero_grad":
            run.event("zero_grad", node, base, name=name)
            return NONE
        case "add_param_group":
            run.event("add_params", node, base, args=tuple(args), name=name)
            return NONE
        case "state_dict":
            return Value(Kind.STATE_DICT, bound=base, ident=node, site=node)
        case "load_state_dict":
            run.event("load_state", node, base, args=tuple(args), name=name)
            return NONE
        case "backward":
            run.event("backward", node, args[0] if args else UNKNOWN, via=base, name=name)
            return NONE
        case "train" | "eval":
            run.event(f"optimizer_{name}", node, base, name=name)
            return NONE
    return None


def follow_closure(run: Run, node: ast.Call, args: list[Value]) -> None:
    """`optimizer.step(closure)` calls the closure."""
    if args and args[0].kind is Kind.FUNCTION and args[0].func is not None:
        calls.follow_value(run, node, args[0], [], {})


def scheduler_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of learning-rate schedulers."""
    if name == "step":
        run.event("scheduler_step", node, base, args=tuple(args), name=name)
        return NONE
    if name == "get_last_lr":
        return Value(Kind.LIST, item=NUMBER)
    if name == "state_dict":
        return Value(Kind.DICT, ident=node, site=node)
    return None


def scaler_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of GradScaler."""
    first = args[0] if args else UNKNOWN
    if name in ("step", "unscale_") and args and not first.known:
        first = first.but(kind=Kind.OPTIMIZER, sure=Confidence.LIKELY)  # what else could it be
    match name:
        case "scale":
            return (
                first.but(ident=node, site=node, facts=first.facts | {"scaled"}, bound=base)
                if first.is_tensor
                else (
                    Value(
                        Kind.TENSOR,
                        sure=Confidence.LIKELY,
                        grad=Grad.YES,
                        ident=node,
                        storage=node,
                        site=node,
                        facts=frozenset({"scaled"}),
                        bound=base,
                        graph=tensors.made_from(node, first).graph,
                    )
                )
            )
        case "step":
            run.event("step", node, first, via=base, name="scaler.step")
            return UNKNOWN
        case "unscale_":
            run.event("unscale", node, first, via=base, name=name)
            return NONE
        case "update":
            run.event("scaler_update", node, base, name=name)
            return NONE
    return None


def loader_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of loaders and samplers."""
    if name == "set_epoch":
        run.event("set_epoch", node, base, args=tuple(args), name=name)
        return NONE
    return None


def context_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of an autograd Function's ctx."""
    if name in ("save_for_backward", "mark_dirty", "mark_non_differentiable", "set_materialize_grads"):
        run.event("ctx", node, base, args=tuple(args), name=name)
        return NONE
    return None


def handle_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Methods of hook handles and asynchronous work."""
    run.event(name, node, base, name=name)
    return NONE


def class_method(
    run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """Class methods by which libraries make instances: `BertModel.from_pretrained(...)`."""
    if name not in MAKERS or not makes_module(base):
        return None
    if base.cls is not None:
        return base.cls.instance(ident=node, site=node)
    freeze = keywords.get("freeze", args[1] if len(args) > 1 else UNKNOWN)
    frozen = base.name.startswith("torch.nn.Embedding") and freeze.const is not False  # the default there
    return Value(Kind.MODULE, name=base.name, ident=node, site=node, facts=frozenset({"frozen"} if frozen else ()))


# -- by the method's name alone ---------------------------------------------------------------


def by_name(run: Run, node: ast.Call, base: Value, name: str, args: list[Value], keywords: Keywords) -> Value | None:
    """What the name of a method of an unknown receiver tells."""
    assert isinstance(node.func, ast.Attribute)
    from torchlint.model.evaluate import path_of

    path = path_of(node.func.value)
    if name == "backward" or name == "manual_backward":
        return unknown_backward(run, node, base, path, args, keywords)
    lightning = base.kind is Kind.MODULE and name == "clip_gradients"
    if (lightning or base.kind in (Kind.UNKNOWN, Kind.INSTANCE, Kind.NAMESPACE)) and name in UNKNOWN_EVENTS:
        run.event(UNKNOWN_EVENTS[name], node, base, args=tuple(args), path=path, name=name)
        return None if name not in ("zero_grad", "eval", "train") else base if name != "zero_grad" else NONE
    if base.kind is Kind.UNKNOWN and name in ("append", "extend", "add", "appendleft", "push", "update") and args:
        run.event("store", node, base, value=args[0], path=path, name=name)
        return None
    if (
        base.kind is Kind.UNKNOWN
        and "output" in base.facts
        and knowledge.method(name) is not None
        and (name not in DICT_LIKE)
    ):
        tensor = base.but(kind=Kind.TENSOR, sure=Confidence.LIKELY)
        run.flow.values[node.func.value] = tensor
        return tensor_calls.call_method(run, node, tensor, name, args, keywords)
    if base.kind is Kind.UNKNOWN and name in ("detach", "detach_") and not args:
        run.flow.values[node.func.value] = Value(
            Kind.TENSOR, sure=Confidence.GUESS, ident=base.ident, storage=base.ident
        )
        return Value(Kind.TENSOR, sure=Confidence.LIKELY, grad=Grad.NO, ident=node, storage=base.ident, site=node)
    if base.kind is Kind.UNKNOWN and name == "item" and not args:
        run.event("host_read", node, base, name=name)
        return NUMBER
    if base.kind is Kind.UNKNOWN and name in ("parameters", "named_parameters") and not args:
        module = Value(Kind.MODULE, sure=Confidence.LIKELY, ident=base.ident)
        return promised(registered_tensors(node, module, name))
    if base.kind is Kind.UNKNOWN and name in ("to", "cuda", "cpu", "float", "half", "double") and base.known is False:
        return base if base.facts & {"batch", "output"} else None
    if base.kind in CONTAINERS or base.kind in (Kind.STRING, Kind.NUMBER):
        return UNKNOWN
    if (
        base.kind is Kind.UNKNOWN
        and name in PREPARING
        and args
        and all(value.kind in PREPARED or not value.known for value in args)
    ):
        return prepared(node, args)
    return None


# accelerate's and Lightning Fabric's way to wrap what the loop uses; the wrappers behave like what they wrap.
PREPARING = {
    "prepare",
    "setup",
    "setup_module",
    "setup_optimizers",
    "setup_dataloaders",
    "prepare_model",
    "prepare_optimizer",
    "prepare_data_loader",
    "prepare_scheduler",
}
PREPARED = {Kind.MODULE, Kind.OPTIMIZER, Kind.LOADER, Kind.SCHEDULER}


def prepared(node: ast.Call, args: list[Value]) -> Value | None:
    """What `accelerator.prepare(model, optimizer, ...)` hands back: its arguments, in order."""
    if not any(value.known for value in args) or any(isinstance(arg, ast.Starred) for arg in node.args):
        return None
    given = tuple(
        value.but(sure=min(value.sure, Confidence.LIKELY), ident=(node, i)) if value.known else value
        for i, value in enumerate(args)
    )
    return given[0] if len(given) == 1 else Value(Kind.TUPLE, elements=given, ident=node, site=node)


# Methods that a dict or dataclass of outputs has too.
DICT_LIKE = {"values", "to", "copy_", "get", "type", "cuda", "cpu", "float", "half", "size"}
UNKNOWN_EVENTS = {
    "step": "unknown_step",
    "zero_grad": "zero_grad",
    "train": "train",
    "eval": "eval",
    "set_epoch": "set_epoch",
    "unscale_": "unscale",
    "unscale_gradients": "unscale",
    "clip_grad_norm_": "clip",
    "clip_gradients": "clip",
    "clip_grad_value_": "clip",
    "register_forward_hook": "register_hook",
    "load_state_dict": "load_state",
}


def unknown_backward(
    run: Run, node: ast.Call, base: Value, path: str, args: list[Value], keywords: Keywords
) -> Value | None:
    """`x.backward()` proves that x carries a graph; `engine.backward(loss)` that loss does.

    Of an unknown x in `x.backward(y)` a y without a graph says that x is a tensor and y its gradient.
    """
    assert isinstance(node.func, ast.Attribute)
    from torchlint.model.evaluate import path_of

    seed = node.func.attr == "backward" and bool(args) and args[0].is_tensor and args[0].grad is Grad.NO
    if args and node.func.attr in ("backward", "manual_backward") and base.kind is not Kind.TENSOR and not seed:
        target = args[0]
        if not target.known:
            target = proven(target, node)
            spot = path_of(node.args[0]) if node.args else ""
            if spot:
                run.set(spot, target)
            if node.args:
                run.flow.values[node.args[0]] = target
        run.event("backward", node, target, via=base, path=path, name=f"{path}.{node.func.attr}")
        return UNKNOWN
    if node.func.attr == "backward" and set(keywords) <= BACKWARD_KEYWORDS and base.kind is Kind.UNKNOWN:
        target = proven(base, node)
        run.flow.values[node.func.value] = target
        if path:
            run.set(path, target)
        run.event("backward", node, target, name="torch.Tensor.backward", path=path)
        return NONE
    return None


def proven(value: Value, node: ast.AST) -> Value:
    """An unknown value that backward is called on."""
    return Value(
        Kind.TENSOR,
        sure=Confidence.LIKELY,
        grad=Grad.YES,
        ident=value.ident or node,
        storage=value.ident or node,
        site=value.site,
        source=value.source,
        graph=value.graph,
    )


BY_KIND: dict[Kind, Method] = {
    Kind.MODULE: module_method,
    Kind.OPTIMIZER: optimizer_method,
    Kind.SCHEDULER: scheduler_method,
    Kind.SCALER: scaler_method,
    Kind.LOADER: loader_method,
    Kind.SAMPLER: loader_method,
    Kind.CTX: context_method,
    Kind.HANDLE: handle_method,
    Kind.WORK: handle_method,
    Kind.LIST: data_methods.container_method,
    Kind.DICT: data_methods.container_method,
    Kind.SET: data_methods.container_method,
    Kind.TUPLE: data_methods.container_method,
    Kind.STATE_DICT: data_methods.container_method,
    Kind.SIZE: data_methods.size_method,
    Kind.STRING: data_methods.text_method,
    Kind.NDARRAY: data_methods.array_method,
    Kind.RNG: data_methods.random_method,
    Kind.CLASS: class_method,
    Kind.INSTANCE: distributions.method,
}

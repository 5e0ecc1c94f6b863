"""What an object is by the names that code reads from it, and what a class value makes."""
from __future__ import annotations

from torchlint import knowledge
from torchlint.model.values import Kind, Value


def duck_kind(names: set[str]) -> Kind:
    """What has these attributes: combinations that only one kind of object in torch code has."""
    if "step" in names and ("zero_grad" in names or "param_groups" in names):
        return Kind.OPTIMIZER
    if "unscale_" in names or {"scale", "update", "step"} <= names:
        return Kind.SCALER
    if names & {"named_parameters()", "parameters()", "load_state_dict", "named_modules()"} and not (
        names & {"fit", "fit_transform", "step"}
    ):
        return Kind.MODULE
    if "eval()" in names:
        return Kind.MODULE
    if "backward()" in names:
        return Kind.TENSOR
    if names & {"get_last_lr", "get_last_lr()"}:
        return Kind.SCHEDULER
    return Kind.UNKNOWN


def makes_module(value: Value) -> bool:
    """Whether a class value's instances are Modules."""
    if value.cls is not None:
        return value.cls.is_module
    other = knowledge.third_party_class(value.name)
    return knowledge.module_class(value.name) is not None or (other is not None and other.what == "module")

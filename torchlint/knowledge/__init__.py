"""Facts about torch and the libraries around it, as typed look-ups.

The tables beside this file are generated from torch itself by `scripts/generate_knowledge.py`; facts about
other libraries are kept by hand. torch is not needed to read them. Every look-up is one dictionary access, and
a table is loaded on its first use.
"""
from torchlint.knowledge.callables import Callable_, Overload, Param, function, method, tensor_attribute
from torchlint.knowledge.deprecations import (
    Deprecated,
    Moved,
    deprecated,
    deprecated_arguments,
    deprecations,
    public_name,
)
from torchlint.knowledge.frameworks import Hook, framework_hook, framework_method
from torchlint.knowledge.names import (
    ModuleClass,
    TorchClass,
    canonical,
    context,
    data_class,
    module_class,
    optimizer_class,
    scheduler_class,
    torch_class,
)
from torchlint.knowledge.tables import torch_version
from torchlint.knowledge.third_party import ThirdParty, third_party_class, third_party_packages

__all__ = [
    "Callable_", "Deprecated", "Hook", "ModuleClass", "Moved", "Overload", "Param", "ThirdParty", "TorchClass",
    "canonical", "context", "data_class", "deprecated", "deprecated_arguments", "deprecations", "framework_hook",
    "framework_method", "function", "method", "module_class", "optimizer_class", "public_name", "scheduler_class",
    "tensor_attribute", "third_party_class", "third_party_packages", "torch_class", "torch_version",
]

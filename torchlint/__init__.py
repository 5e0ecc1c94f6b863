"""Finds, fixes and proves the mistakes that PyTorch's internals make easy."""
from __future__ import annotations

TYPE_CHECKING = False  # what `typing` says, which takes long to load: until then Ctrl-C cannot be answered

__version__ = "0.1.0"
__all__ = ["Finding", "Fix", "Options", "__version__", "fix_source", "lint_source"]

if TYPE_CHECKING:
    from typing import Any

    from torchlint.api import fix_source, lint_source
    from torchlint.config import Options
    from torchlint.findings import Finding, Fix

_HOMES = {
    "Finding": "torchlint.findings",
    "Fix": "torchlint.findings",
    "Options": "torchlint.config",
    "fix_source": "torchlint.api",
    "lint_source": "torchlint.api",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that `import torchlint.findings` loads nothing else."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

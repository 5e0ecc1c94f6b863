"""Finds, fixes and proves the mistakes that PyTorch's internals make easy."""
from __future__ import annotations

__version__ = "0.1.0"

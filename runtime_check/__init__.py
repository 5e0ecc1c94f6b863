"""Runs flagged code in child processes and says whether a finding is real.

This package is the only place that imports torch and the only place that executes user code.
It guards against accidents (endless loops, lost files, network calls), not against malice.
"""

from __future__ import annotations

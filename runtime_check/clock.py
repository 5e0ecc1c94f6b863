"""A clock that stands still while a process waits for a processor, so that a busy machine changes no verdict.

Linux keeps that waiting time for every process; elsewhere this is the ordinary clock.
"""

from __future__ import annotations

import time

MOST = 10.0  # a limit for another process is never stretched further than this, however busy the machine is


def waited(process: int | str = "self") -> float:
    """Seconds that a process was ready to run while others ran."""
    try:
        with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def now() -> float:
    """Seconds since some moment, less those in which this process waited for a processor."""
    return time.monotonic() - waited()


def left(started: float, seconds: float, process: int) -> float:
    """What remains of the seconds that another process was given, its waiting not counted."""
    spent = time.monotonic() - started
    return min(seconds - spent + waited(process), MOST * seconds - spent)

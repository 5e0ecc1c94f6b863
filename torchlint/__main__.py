"""`python -m torchlint`, and the command `torchlint`."""
from __future__ import annotations

import os
import sys


def open_streams() -> None:
    """Gives a process that was started without some standard streams others that hold nothing.

    What is opened next would take their numbers, and be written to.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def run() -> None:
    """Loads the command line and runs it. Ctrl-C is one line, also while it is loaded and when it ends."""
    try:
        open_streams()
        from torchlint.cli import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("torchlint: error: interrupted\n")
        sys.exit(130)
    finally:
        import signal  # late: what is loaded above is loaded before Ctrl-C can be answered

        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to say while Python ends


if __name__ == "__main__":
    run()

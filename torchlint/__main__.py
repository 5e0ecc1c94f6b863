"""`python -m torchlint`, and the command `torchlint`."""
from __future__ import annotations

import sys


def run() -> None:
    """Loads the command line and runs it. Ctrl-C is one line, also while it is loaded and when it ends."""
    try:
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

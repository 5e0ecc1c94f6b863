"""`python -m torchlint`, and the command `torchlint`."""
from __future__ import annotations

import sys


def run() -> None:
    """Loads the command line and runs it. Ctrl-C while it is loaded is one line too."""
    try:
        from torchlint.cli import main
    except KeyboardInterrupt:
        sys.stderr.write("torchlint: error: interrupted\n")
        sys.exit(2)
    main()


if __name__ == "__main__":
    run()

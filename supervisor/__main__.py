"""``stoker`` and ``python -m supervisor``."""

from __future__ import annotations

import gc
import sys
import threading


def main() -> int:
    """Run the command line. Return the exit code."""
    from supervisor.cli.main import main as cli_main

    sys.excepthook = _crashed
    threading.excepthook = lambda found: _crashed(*found[:3])
    code = cli_main(sys.argv[1:])
    # The process ends here: the interpreter's last collection would walk all that is loaded for nothing (4 ms, a
    # tenth of `stoker diagnose` on a small log).
    gc.freeze()
    return code


def _crashed(*found: object) -> None:
    from supervisor.cli.common import say_crash  # loaded by nearly every verb, but not for the help

    say_crash(*found)


if __name__ == "__main__":
    sys.exit(main())

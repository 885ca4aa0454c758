"""``stoker`` and ``python -m supervisor``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; the return value is the exit code."""
    from supervisor.cli.main import main as cli_main

    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

"""An argparse parser whose errors are one line: what is wrong and what to do."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """ArgumentParser with one-line errors, the nearest flag named, and no abbreviations."""

    def __init__(self, *, prog: str, description: str | None = None) -> None:
        summary, _, _rest = (description or "").partition("\n\n")
        super().__init__(prog=prog, description=summary, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print one line to stderr and exit with 2."""
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        hint = f"`{self.prog} --help` lists what it takes"
        if unknown:
            import difflib

            flags = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[1].split("=")[0], flags, n=1, cutoff=0.6)
            message = f"unknown argument {unknown[1]!r}"
            hint = f"did you mean {near[0]}?" if near else hint
        from supervisor.text.redact import redact_text  # of what is wrong, a part may be a secret

        print(redact_text(f"{self.prog}: {message}: {hint}"), file=sys.stderr)
        sys.exit(2)

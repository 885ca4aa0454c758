"""Write docs/commands.md: every verb and flag of the command line, from the parsers themselves."""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "commands.md"
sys.path.insert(0, str(ROOT))

from supervisor.cli.common import Parser  # noqa: E402
from supervisor.cli.main import VERBS  # noqa: E402 - the path comes first
from supervisor.cli.run import GROUPS  # noqa: E402
from supervisor.job.arguments.flags import INIT_FLAGS, STOKER_FLAGS, TORCHRUN_FLAGS, explained  # noqa: E402

HEAD = """\
# Commands

Every verb and flag, as `stoker VERB --help` has them: made by `python scripts/commands_page.py`, do not edit by hand. `stoker` alone, on a
terminal, opens the list of runs of this folder (`--theme`, `--ascii`, `--lang`, `--runs-dir`, `--all` as below). Exit codes stand in the [README](../README.md), keys of files in [configs/README.md](../configs/README.md).
"""
RUN = """
`stoker run [flags] SCRIPT.py …`, `stoker run [flags] -m MODULE …`, `stoker run [flags] -- COMMAND…` or
`stoker run --config FILE|PRESET [--key=value …]`. What has a key may also stand in a file, or in a variable: `STOKER_` and the flag's name in
capitals.
"""
INIT = """
`stoker init [flags] [SCRIPT.py …]` or `stoker init [flags] -m MODULE …`. Asks what is not given, shows what is known so far, writes a job file
and offers to start it. A form on a terminal; elsewhere, or with `--plain`, plain questions, one line an answer. Flags of `stoker run` with a key in a file are kept in it.
"""
TORCHRUN = """
torchrun's own flags stand there too, with dashes or underscores, and `PET_*` variables count as for torchrun: {names}.
Others are passed on as `--flag=value` where the target's torchrun knows them.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for verb, (module, what) in VERBS.items():
        parts.append(f"\n## stoker {verb}\n\n{what[0].upper()}{what[1:]}.\n")
        made = {"run": _run, "init": _init}.get(verb)
        parts.append(_verb(verb, module) if made is None else made())
    return "".join(parts)


def _run() -> str:
    rows = [
        (f"{flag.name} {flag.metavar}".rstrip(), explained(flag), f"`{flag.setting}`" if flag.setting else "")
        for group in GROUPS
        for flag in STOKER_FLAGS
        if flag.group == group
    ]
    names = ", ".join(f"`{flag.name}`" for flag in TORCHRUN_FLAGS)
    return f"{RUN}\n{_table(('flag', 'what it does', 'key in a file'), rows)}{TORCHRUN.format(names=names)}"


def _init() -> str:
    rows = [(f"{flag.name} {flag.metavar}".rstrip(), flag.help) for flag in INIT_FLAGS]
    return f"{INIT}\n{_table(('flag', 'what it does'), rows)}"


def _verb(verb: str, module: str) -> str:
    parser = Parser(prog=f"stoker {verb}")
    importlib.import_module(f"supervisor.cli.{module}").add_arguments(parser)
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001 - argparse has no other list of them
    return (
        f"\n{_table(('word', 'what it does'), [(_spelt(action), action.help or '') for action in actions])}"
    )


def _spelt(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(action.choices) if action.choices else action.dest.upper())
    if not action.option_strings:
        return str(value)
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for first, *rest in rows:
        lines.append(" | ".join([f"| `{_cell(first)}`", *(_cell(text) for text in rest)]) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

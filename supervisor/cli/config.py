"""Explain settings: what each means and takes, its value, where that came from, and what it overrode."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.common import complain, say
from supervisor.job.errors import JobError

if TYPE_CHECKING:
    from supervisor.job.config.explain import Source

USAGE = """\
usage: stoker config explain [--json] [KEY] [flags] [SCRIPT.py ...]

KEY is a setting by any of its names (policy.grace_s, grace, STOKER_GRACE, device_batch_size), or a variable that reaches
the ranks (NCCL_DEBUG); without one all are listed, as `stoker run --show-config` does. The other words are those of
`stoker run`: the value is the one that this job would have. Nothing is started or written. Exit 0; 2 for no such name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments, for the page of commands."""
    parser.add_argument("explain", choices=["explain"], help="the one thing to do")
    parser.add_argument(
        "key",
        nargs="?",
        metavar="KEY",
        help="a setting by any of its names, or a variable of the job; none: all",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="JOB",
        help="the job: flags and words as after `stoker run`; none: what holds for any",
    )
    parser.add_argument("--json", action="store_true", help="one object on one line")


def main(argv: list[str]) -> int:
    """Explain what the words name. Exit 0, or 2 for no such name and for words that are no job."""
    if argv[:1] in (["-h"], ["--help"]):
        say(*USAGE.splitlines())
        return 0
    if argv[:1] != ["explain"]:
        return complain("config", "say what to do: stoker config explain [KEY]")
    words = argv[1:]
    ahead = [words.pop(0)] if words[:1] == ["--json"] else []
    key = words.pop(0) if words and _is_key(words[0]) else None
    try:
        return _explain(key, [*ahead, *words])
    except JobError as error:
        return complain("config explain", error)


def _is_key(word: str) -> bool:
    """Whether the first word names a setting: it is no flag and no script."""
    return not word.startswith("-") and not word.endswith(".py")


def _explain(key: str | None, words: list[str]) -> int:
    from supervisor.cli.starting.job_inputs import load_settings, parse_words
    from supervisor.cli.starting.show_settings import show_all, show_one
    from supervisor.job.config.explain import explain
    from supervisor.run.failures import FailureClass

    parsed = parse_words(words, os.environ)
    if parsed.help:
        say(*USAGE.splitlines())
        return 0
    spec = load_settings(parsed, os.environ, Path.cwd())
    as_json = parsed.switch("json")
    if key is None:
        return show_all(spec, os.environ, as_json=as_json)
    found = explain(key, spec, os.environ, [str(each) for each in FailureClass])
    if found.name == "ui.theme" and not found.sources:
        found = replace(found, sources=_chosen_theme())
    return show_one(found, as_json=as_json)


def _chosen_theme() -> tuple[Source, ...]:
    """The theme that was chosen last with the key T; none where no other was."""
    from supervisor.cli.open_app import kept_file
    from supervisor.job.config.explain import Source
    from supervisor.views.tui.saved_layout import load
    from supervisor.views.tui.widgets.palette import PALETTES

    path = kept_file(os.environ)
    kept = load(path).theme
    return tuple(
        Source(str(name), f"chosen last with the key T, {path}")
        for name, palette in PALETTES.items()
        if palette.name == kept
    )

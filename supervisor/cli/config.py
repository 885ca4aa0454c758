"""Explain settings: what each one means, what it accepts, its value, where that came from, and what it overrode."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.cli.common import complain, say, say_json, say_table
from supervisor.cli.job_inputs import load_settings, parse_words
from supervisor.job.config.explain import NOT_SET, explain, row, variables
from supervisor.job.errors import JobError
from supervisor.job.spec import JobSpec
from supervisor.run.records import FailureClass
from supervisor.text.redact import redact, redact_text

USAGE = """\
usage: stoker config explain [--json] [KEY] [flags] [SCRIPT.py ...]

KEY is a setting by any of its names (policy.grace_s, grace, STOKER_GRACE, device_batch_size), or a variable that reaches
the ranks (NCCL_DEBUG); without one all are listed, as `stoker run --show-config` does. The other words are those of
`stoker run`: the value is the one that this job would have. Nothing is started or written. Exit 0; 2 for no such name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments for the command reference."""
    parser.add_argument("explain", choices=["explain"], help="the only action")
    parser.add_argument(
        "key",
        nargs="?",
        metavar="KEY",
        help="a setting by any of its names, or a variable of the job (default: all)",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="JOB",
        help="the job, as after `stoker run` (default: settings of any job)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")


def main(argv: list[str]) -> int:
    """Explain the requested settings. Exit 0, or 2 if a name is unknown or the arguments do not describe a job."""
    if argv[:1] in (["-h"], ["--help"]):
        say(*USAGE.splitlines())
        return 0
    if argv[:1] != ["explain"]:
        return complain("config", "say what to do: stoker config explain [KEY]")
    words = argv[1:]
    ahead = [words.pop(0)] if words[:1] == ["--json"] else []
    # The first word is a setting's name, unless it is a flag or a script.
    key = words.pop(0) if words and not words[0].startswith("-") and not words[0].endswith(".py") else None
    try:
        return _explain(key, [*ahead, *words])
    except JobError as error:
        return complain("config explain", error)


def _explain(key: str | None, words: list[str]) -> int:
    parsed = parse_words(words, os.environ)
    if parsed.help:
        say(*USAGE.splitlines())
        return 0
    spec = load_settings(parsed, os.environ, Path.cwd())
    as_json = parsed.switch("json")
    if key is None:
        return show_all(spec, os.environ, as_json=as_json)
    found = explain(key, spec, os.environ, [str(each) for each in FailureClass])
    return show_one(found, as_json=as_json)


def show_all(spec: JobSpec, env: Mapping[str, str], *, as_json: bool) -> int:
    """Print every setting with its value and origin, then every variable changed at launch and why."""
    changed = variables(spec, env)
    if as_json:
        rows = []
        for key, _, _ in spec.effective:
            shown = key.removeprefix("env.")
            rows.append(row(key, [(redact(shown, text), where) for text, where in spec.sources(key)]))
        say_json({"settings": rows, "variables": changed})
        return 0
    say_table(
        [(name, redact(name.removeprefix("env."), value), origin) for name, value, origin in spec.effective]
    )
    if changed:
        say("", "variables of the job:")
        say_table([(each["key"], _value(each), each["origin"]) for each in changed])
    return 0


def show_one(told: Mapping[str, Any], *, as_json: bool) -> int:
    """Print a setting's meaning, value and origin, followed by its allowed values and the values it overrode."""
    if as_json:
        say_json(told)
        return 0
    not_set = told["origin"] == NOT_SET
    lines = [
        f"{told['key']}: {NOT_SET}" if not_set else f"{told['key']} = {_value(told)}  ({told['origin']})"
    ]
    facts = {name: told[name] for name in ("meaning", "takes", "unit", "default")}
    facts["other names"] = ", ".join(told["other_names"])
    lines += [f"  {name + ':':<13}{text}" for name, text in facts.items() if text]
    lines += [
        f"  {'overrode:' if not at else '':<13}{_value(each)}  ({each['origin']})"
        for at, each in enumerate(told["overrode"])
    ]
    say(*map(redact_text, lines))
    return 0


def _value(of: Mapping[str, Any]) -> str:
    return "(removed)" if of["value"] is None else str(of["value"])

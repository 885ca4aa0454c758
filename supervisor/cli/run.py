"""Launch a training job: with the screen, headless (--no-ui) or detached (--detach)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.common import complain
from supervisor.job.errors import JobError

if TYPE_CHECKING:
    from supervisor.cli.starting.job_inputs import Job
    from supervisor.job.spec import JobSpec

USAGE = """\
usage: stoker run [flags] SCRIPT.py [the script's arguments]
       stoker run [flags] -m MODULE [the module's arguments]
       stoker run [flags] -- COMMAND...          accelerate, deepspeed, python: supervised as one process tree
       stoker run --config FILE|PRESET [--key=value ...]

torchrun's own flags are taken as they are (--nproc-per-node 2, --nnodes, --master-port, ...), both spellings.
What stands after the script is never touched."""
GROUPS = {"general": "flags", "screen": "screen", "retry": "restarts", "batch": "batch"}


def main(argv: list[str]) -> int:
    """Run the verb; the exit code is the run's own under --no-ui, else 0 once the screen is left."""
    from supervisor.cli.starting.job_inputs import load_job, parse_words

    try:
        if not argv:
            return _offer_init()
        parsed = parse_words(argv, os.environ)
        if parsed.help:
            print(_help())
            return 0
        job = load_job(parsed, os.environ, Path.cwd())
        if parsed.switch("show_config"):
            return _show_config(job.spec, os.environ)
        return _launch(job)
    except JobError as error:
        return complain("run", error.message, error.exit_code)


def _offer_init() -> int:
    """Nothing is named: on a terminal the guided start is offered."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        from supervisor.cli.common import says_yes

        if says_yes(
            "stoker run: no script is named. Look at this folder, ask the rest and write a job file (stoker init)?"
        ):
            from supervisor.cli.init import main as init

            return init([])
    how = "stoker run [flags] SCRIPT.py; `stoker init` makes a job file for a script you have"
    return complain("run", f"a script is missing: {how}")


def _launch(job: Job) -> int:
    from supervisor.cli.starting.startup_probes import StartupProbes

    dry, alone = job.parsed.switch("dry_run"), job.parsed.switch("check_only")
    probes = StartupProbes(job.spec, os.environ, commit=not (dry or alone))
    try:
        if alone:
            from supervisor.cli.starting.check_job import check_alone

            return check_alone(job.spec, job.parsed, os.environ, probes)
        from supervisor.cli.starting.start_run import dry_run, start

        return dry_run(job, os.environ, probes) if dry else start(job, os.environ, probes)
    finally:
        probes.close()


def _help() -> str:
    from supervisor.job.arguments.flags import STOKER_FLAGS, help_text

    parts = [USAGE]
    for group, title in GROUPS.items():
        parts.append(f"\n{title}:\n{help_text(STOKER_FLAGS, group)}")
    return "\n".join(parts)


def _show_config(spec: JobSpec, env: Mapping[str, str]) -> int:
    """Each setting with its value and origin, then each variable that a launch changes for the job, with the reason."""
    from supervisor.job.env import environment
    from supervisor.text.redact import redact

    settings = [
        (name, redact(name.removeprefix("env."), value), origin) for name, value, origin in spec.origins
    ]
    variables = [
        (
            change.name,
            "(removed)" if change.value is None else redact(change.name, change.value),
            change.reason,
        )
        for change in environment(spec, base=env, wire={})
    ]
    _print_table(settings)
    if variables:
        print("\nvariables of the job:")
        _print_table(variables)
    return 0


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    width = max((len(name) for name, _, _ in rows), default=0)
    value_width = min(max((len(value) for _, value, _ in rows), default=0), 60)
    for name, value, why in rows:
        print(f"{name:<{width}}  {value:<{value_width}}  {why}")

"""Launch a training job: in the TUI, headless (--no-ui) or detached (--detach)."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.cli.common import complain, has_terminal, say
from supervisor.job.errors import JobError

USAGE = """\
usage: stoker run [flags] SCRIPT.py [the script's arguments]
       stoker run [flags] -m MODULE [the module's arguments]
       stoker run [flags] -- COMMAND...          accelerate, deepspeed, python: supervised as one process tree
       stoker run --config FILE|PRESET [--key=value ...]

torchrun's own flags work in both spellings (--nproc-per-node 2, --nnodes, --master-port, ...).
Arguments after the script are passed on unchanged."""
GROUPS = {"general": "flags", "screen": "screen", "retry": "restarts", "batch": "batch"}


def main(argv: list[str]) -> int:
    """Run the verb. Return the run's own exit code under --no-ui, otherwise 0 once the user leaves the TUI."""
    from supervisor.cli.job_inputs import load_job, parse_words, with_asked_resume

    try:
        if not argv:
            how = "stoker run [flags] SCRIPT.py; `stoker init` makes a job file for a script you have"
            return complain("run", f"a script is missing: {how}")
        parsed = parse_words(argv, os.environ)
        if parsed.help:
            say(*_help().splitlines())
            return 0
        from supervisor.cluster.scheduler import scheduler_of

        in_job = scheduler_of(os.environ).job is not None
        if in_job:
            from supervisor.cli.in_allocation import placed

            parsed = placed(parsed, os.environ)
        spec = load_job(parsed, os.environ, Path.cwd())
        if parsed.switch("show_config"):
            from supervisor.cli.config import show_all

            return show_all(spec, os.environ, as_json=parsed.switch("json"))
        if in_job:
            from supervisor.cli.in_allocation import requeued

            if (code := requeued(parsed, spec, os.environ)) is not None:
                return code
        elif has_terminal():
            spec = with_asked_resume(spec, parsed, os.environ)
        if parsed.switch("check_only"):
            from supervisor.cli.check import check_alone

            return check_alone(spec, parsed, os.environ)
        from supervisor.cli.start_run import dry_run, start

        return (dry_run if parsed.switch("dry_run") else start)(spec, parsed, os.environ)
    except JobError as error:
        return complain("run", error)


def _help() -> str:
    from supervisor.job.arguments.run_arguments import STOKER_FLAGS, help_text

    groups = (f"\n{title}:\n{help_text(STOKER_FLAGS, group)}" for group, title in GROUPS.items())
    return "\n".join([USAGE, *groups])

"""What will be run: the script, what an out-of-memory failure could change of it, what earlier runs say of its batch."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from supervisor.job.knobs.batch_settings.find import why_not_changeable
from supervisor.job.oom_plan import OomRefusal, oom_plan
from supervisor.job.spec import EntryKind
from supervisor.preflight.context import CheckContext, ok, warn
from supervisor.preflight.memory import check_memory
from supervisor.run.records import Finding
from supervisor.run.regular import open_regular

MAX_SOURCE_BYTES: Final = 4 * 2**20


def check_script(context: CheckContext) -> Iterator[Finding]:
    """Whether the script compiles. Only a warning: it may be generated, or meant for another Python."""
    spec = context.spec
    if spec.entry_kind is not EntryKind.SCRIPT or not spec.entry.endswith(".py"):
        return
    path = Path(spec.cwd) / spec.entry
    try:
        with open_regular(path) as file:
            source = file.read(MAX_SOURCE_BYTES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source, filename=spec.entry)
    except SyntaxError as error:
        what = f"{spec.entry}:{error.lineno or 1}: {error.msg}"
        yield warn("script", what, "it will fail at once unless its Python reads it otherwise")
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        yield warn("script", f"{spec.entry} could not be read as Python: {error}")
    else:
        yield ok("script", f"{spec.entry} compiles")


def check_knobs(context: CheckContext) -> Iterator[Finding]:
    """Whether the job could be restarted without a person: reported now, not after the first failure at night."""
    spec = context.spec
    if not spec.retry.enabled or spec.entry_kind is EntryKind.TRAINER:
        return
    missing: list[str] = []
    fixes: list[str] = []
    plan = oom_plan(spec)
    if isinstance(plan, OomRefusal) and spec.batch is None and spec.knobs.can_change_batch:
        missing.append(f"out of memory will not be restarted smaller: {plan.why} ({plan.help})")
    elif isinstance(plan, OomRefusal) and not spec.knobs.can_change_batch:
        missing.append(f"out of memory will not be restarted smaller: {why_not_changeable(spec.knobs)}")
    resumes = spec.knobs.resume_is_set or spec.knobs.self_resuming
    flag = spec.knobs.start or spec.knobs.resume_step
    if not resumes and not spec.retry.restart_from_scratch:
        missing.append(
            "after its first step a crash will not be restarted: no resume flag is known (--resume-knob)"
            if flag is None
            else f"after its first step a crash is restarted only if a whole checkpoint is found for {flag}"
        )
        told = f"{flag or 'FLAG'}=PATH"
        if flag is not None and flag == spec.knobs.resume:  # its word for the newest one; a switch has none
            told = f"{flag}={spec.knobs.resume_value}" if spec.knobs.resume_value else flag
        fixes.append(
            "a script that keeps one file up to date can be told it: --resume-knob "
            f"'{told}', handed over from the second attempt on"
        )
    if not missing:
        yield ok("restarts", "batch and resume flags are known")
    else:
        yield warn("restarts", "; ".join(missing), "; ".join(fixes))


def check_batch_memory(context: CheckContext) -> Iterator[Finding]:
    """What earlier runs of the same kind say of the micro-batch."""
    found = check_memory(context.spec, context.env)
    if found is not None:
        yield found

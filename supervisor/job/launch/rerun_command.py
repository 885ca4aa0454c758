"""The command line that starts a job again, from the record of how it was started (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from supervisor.job.arguments.flags import STOKER_FLAGS, TORCHRUN_FLAGS
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.text.decode import shell_word

# What `settings.Resolver` notes of a value that stood on the command line.
_GIVEN: Final = "flag --"
_OURS: Final = {flag.name: flag.takes_value for flag in (*STOKER_FLAGS, *TORCHRUN_FLAGS)}
_ENV: Final = "env."
_SAFE: Final = re.compile(r"[\w@%+=:,./<>…-]+")


def real_command_of(job: JobSpec) -> str | None:
    """The command of the real run that a trial was of; None where `command_of` gives none."""
    rows = tuple(row for row in job.origins if not row[2].startswith("flag --trial"))
    if job.trial is not None:
        job = replace(job, entry_args=job.trial.args, torchrun_flags=job.trial.flags, trial=None)
    return command_of(replace(job, origins=rows))


def command_of(job: JobSpec, more: Sequence[str] = ()) -> str | None:
    """``stoker run --nproc-per-node 2 train.py --lr 3e-4``, with `more` flags; None where the job was not started by a line of ours.

    Settings from files and from the environment are found there again; a secret stays hidden, as it was recorded.
    """
    words = ["stoker", "run", *more]
    if job.config_path is not None:
        words += ["--config", job.config_path]
    for name, value, origin in job.origins:
        if not origin.startswith(_GIVEN):
            continue
        flag = origin.removeprefix("flag ")
        if _OURS.get(flag) is False:
            words.append(flag)
        elif name.startswith(_ENV):
            words += [flag, f"{name.removeprefix(_ENV)}={value}"]
        elif flag in _OURS:
            words += [flag, value]
        else:
            words.append(f"{flag}={value}")
    words += job.given
    args, flags = job.entry_args, job.torchrun_flags
    if job.trial is not None:
        args, flags = job.trial.args, job.trial.flags
    words += flags
    match job.entry_kind:
        case EntryKind.SCRIPT | EntryKind.MODULE if _from_file(job, "run.script") or _from_file(
            job, "run.module"
        ):
            pass
        case EntryKind.SCRIPT:
            words += [job.entry, *args]
        case EntryKind.MODULE:
            words += ["-m", job.entry, *args]
        case EntryKind.COMMAND:
            words += ["--", job.entry, *args]
        case EntryKind.TRAINER if job.config_path is None:
            return None
        case EntryKind.TRAINER:
            pass
    return " ".join(word if _SAFE.fullmatch(word) else shell_word(word) for word in words)


def _from_file(job: JobSpec, name: str) -> bool:
    return any(
        key == name and not origin.startswith(_GIVEN) and origin != "default"
        for key, _, origin in job.origins
    )

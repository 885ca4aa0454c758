"""A job's secrets: hidden in all files, and supplied again when a run is adopted or continued.

Secrets are never written to disk. Whoever adopts or continues the run sets an environment variable of the same
name. A job with a secret among its arguments has to be started again instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from supervisor.job.errors import JobError
from supervisor.job.launch.env import APPLY
from supervisor.job.launch.plan import LaunchPlan
from supervisor.job.spec import JobSpec
from supervisor.run.runfile import RunFile
from supervisor.text.redact import HIDDEN, Redactor, redact, redact_argv, redact_text


@dataclass(frozen=True, slots=True)
class Missing:
    """A secret that is needed but unknown, identified by its variable name or by a word in the command."""

    what: str
    is_variable: bool = False


def redactor_of(job: JobSpec, env: Mapping[str, str]) -> Redactor:
    """Return a redactor for the secrets in a job and in its launch environment."""
    return Redactor.of((*env.items(), *job.env), (job.entry, *job.entry_args))


def without_secrets(record: RunFile) -> RunFile:
    """Return the record as it is written to disk, with secrets hidden."""
    spec, trial = record.job, record.job.trial
    if trial is not None:
        args = redact_argv((spec.entry, *trial.args))[1:]
        trial = replace(trial, args=args, flags=redact_argv(trial.flags))
    job = replace(
        spec,
        name=redact_text(spec.name),
        env=tuple((name, redact(name, value)) for name, value in spec.env),
        entry_args=redact_argv((spec.entry, *spec.entry_args))[1:],
        torchrun_flags=redact_argv(spec.torchrun_flags),
        trial=trial,
        set_knobs=tuple((name, redact(name, value)) for name, value in spec.set_knobs),
        origins=tuple(
            (key, redact(key.removeprefix("env."), value), redact_text(origin))
            for key, value, origin in spec.origins
        ),
        notes=tuple(map(redact_text, spec.notes)),
    )
    return msgspec.structs.replace(record, job=job)


def missing_secrets(job: JobSpec, env: Mapping[str, str]) -> tuple[Missing, ...]:
    """Return the secrets that a job read from disk needs but `env` does not supply."""
    found = [
        Missing(name, is_variable=True) for name, value in job.env if HIDDEN in value and name not in env
    ]
    for index, word in enumerate(job.entry_args):
        before = job.entry_args[index - 1] if index else ""
        shown = f"{before} {word}" if word == HIDDEN and before.startswith("-") else word
        found += [Missing(f"argument {index + 1} ({shown})")] if HIDDEN in word else []
    others = (*job.torchrun_flags, *(value for _, value in job.set_knobs))
    return (*found, *(Missing(word) for word in others if HIDDEN in word))


def with_secrets(job: JobSpec, env: Mapping[str, str]) -> JobSpec:
    """Return the job with its hidden variables filled in from `env`.

    Raises:
        JobError: a secret is missing; the message says which one and what to do.
    """
    if missing := missing_secrets(job, env):
        raise JobError(asks_for(missing))
    return replace(job, env=tuple((name, env[name] if HIDDEN in value else value) for name, value in job.env))


def with_hidden_words(argv: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return `argv` with its hidden words filled in from `known`. The user may have typed different arguments."""
    shown = redact_argv(("", *known))[1:]
    hidden = {
        (before, word): meant
        for before, word, meant in zip(("", *shown), shown, known, strict=False)
        if HIDDEN in word
    }
    return tuple(hidden.get((before, word), word) for before, word in zip(("", *argv), argv, strict=False))


def asks_for(missing: Sequence[Missing]) -> str:
    """Return a one-line message that says what is missing and how to supply it."""
    lost = [item.what for item in missing if not item.is_variable]
    if lost:
        return f"{', '.join(lost)}: a secret, not kept on disk: start the job again with `stoker run`"
    names = [item.what for item in missing]
    return (
        f"{', '.join(names)}: a secret, not kept on disk: set {' and '.join(names)} and try again, "
        "or start the job again with `stoker run`"
    )


def require_nothing_hidden(plan: LaunchPlan) -> None:
    """Refuse to launch with a hidden value, wherever it came from. This is the last check before a launch.

    Raises:
        JobError: an argument or a variable is still hidden.
    """
    hidden = [word for word in plan.argv if HIDDEN in word]
    # A rank's command line, used to find ranks for a plan, stays hidden: it is never started.
    hidden += [c.name for c in plan.env if c.value is not None and HIDDEN in c.value and c.name != APPLY]
    if hidden:
        raise JobError(asks_for([Missing(word) for word in hidden]))

"""A job's secrets: hidden in all files, and supplied again when a run is adopted or continued.

Secrets are never written to disk. Whoever adopts or continues the run supplies a variable under the same name in the
environment, and a hidden argument as `STOKER_ARGUMENT_<n>`, where n is the argument's position after the script, from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from supervisor.job.errors import JobError
from supervisor.job.launch.env import APPLY
from supervisor.job.launch.plan import LaunchPlan
from supervisor.job.spec import JobSpec
from supervisor.run.runfile import RunFile
from supervisor.text.redact import HIDDEN, Redactor, redact, redact_argv, redact_text

GIVEN_AGAIN: Final = "STOKER_ARGUMENT_"


@dataclass(frozen=True, slots=True)
class Missing:
    """A secret that is needed but unknown. `variable`: the variable to set; None: the whole job must be given again."""

    what: str
    variable: str | None


def redactor_of(job: JobSpec, env: Mapping[str, str]) -> Redactor:
    """A redactor that knows the secrets of a job and of its launch environment."""
    return Redactor.of((*env.items(), *job.env), (job.entry, *job.entry_args))


def without_secrets(record: RunFile) -> RunFile:
    """The record as it is written to disk."""
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
    """The secrets of a job read from disk that `env` does not supply."""
    found = [Missing(name, name) for name, value in job.env if HIDDEN in value and name not in env]
    for index, word in enumerate(job.entry_args):
        variable = f"{GIVEN_AGAIN}{index + 1}"
        one = word.count(HIDDEN) == 1
        if HIDDEN in word and not (one and variable in env):
            before = job.entry_args[index - 1] if index else ""
            shown = f"{before} {word}" if word == HIDDEN and before.startswith("-") else word
            found.append(Missing(f"argument {index + 1} ({shown})", variable if one else None))
    others = (*job.torchrun_flags, *(value for _, value in job.set_knobs))
    return (*found, *(Missing(word, None) for word in others if HIDDEN in word))


def with_secrets(job: JobSpec, env: Mapping[str, str]) -> JobSpec:
    """The job with its hidden variables and arguments filled in from `env`.

    Raises:
        JobError: a secret is missing; one line names it and says how to supply it.
    """
    if missing := missing_secrets(job, env):
        raise JobError(asks_for(missing))
    variables = tuple((name, env[name] if HIDDEN in value else value) for name, value in job.env)
    return replace(job, env=variables, entry_args=_arguments(job, env))


def _arguments(job: JobSpec, env: Mapping[str, str]) -> tuple[str, ...]:
    """The script's arguments with those that `env` supplies; the rest stays hidden."""
    return tuple(
        word.replace(HIDDEN, env[name])
        if word.count(HIDDEN) == 1 and (name := f"{GIVEN_AGAIN}{index}") in env
        else word
        for index, word in enumerate(job.entry_args, 1)
    )


def with_hidden_words(argv: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """`argv` with its hidden words taken from `known`; a person may have typed other arguments."""
    shown = redact_argv(("", *known))[1:]
    hidden = {
        (before, word): meant
        for before, word, meant in zip(("", *shown), shown, known, strict=False)
        if HIDDEN in word
    }
    return tuple(hidden.get((before, word), word) for before, word in zip(("", *argv), argv, strict=False))


def asks_for(missing: Sequence[Missing]) -> str:
    """One line: what is missing and how to supply it."""
    known = [item for item in missing if item.variable is not None]
    lost = [item.what for item in missing if item.variable is None]
    if lost:
        return f"{', '.join(lost)}: a secret, not kept on disk: start the job again with `stoker run`"
    what = ", ".join(item.what for item in known)
    variables = " and ".join(str(item.variable) for item in known)
    meant = f" (in place of {HIDDEN})" if any(item.what != item.variable for item in known) else ""
    return f"{what}: a secret, not kept on disk: set {variables}{meant} and try again, or start the job again with `stoker run`"


def given_again(record: RunFile, env: Mapping[str, str]) -> tuple[RunFile, dict[str, str]]:
    """The record with the secrets from `env`, and `env` without those arguments, which the job must not see.

    What is still missing stays hidden: `with_secrets` refuses to launch it.
    """
    job, arguments = record.job, _arguments(record.job, env)
    rest = {name: value for name, value in env.items() if not name.startswith(GIVEN_AGAIN)}
    return msgspec.structs.replace(record, job=replace(job, entry_args=arguments)), rest


def require_nothing_hidden(plan: LaunchPlan) -> None:
    """The last check before a launch: refuse to start with a hidden value, wherever it came from.

    Raises:
        JobError: an argument or a variable is hidden.
    """
    hidden = [word for word in plan.argv if HIDDEN in word]
    # A rank's command line, used to find ranks for a plan, stays hidden: it is compared, never started.
    hidden += [c.name for c in plan.env if c.value is not None and HIDDEN in c.value and c.name != APPLY]
    if hidden:
        raise JobError(asks_for([Missing(word, None) for word in hidden]))

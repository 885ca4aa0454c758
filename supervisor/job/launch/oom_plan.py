"""Determines how a job changes after it runs out of memory.

Dry runs, start checks and restarts share this arithmetic: `choose_smaller` picks the next micro-batch, and
`batch_values` returns its settings. Without memory figures, as here, the largest divisor below the current one is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from supervisor.job.arguments.command_line import container_options, value_of
from supervisor.job.batch import BatchSpec, BatchUnit, factors
from supervisor.job.errors import JobError
from supervisor.job.knobs.set_batch import batch_values, why_not_changeable, why_size_unknown
from supervisor.job.knobs.setting_names import Place, config_file, is_argument, place_of
from supervisor.job.launch.plan import LaunchPlan
from supervisor.job.memory_fit import choose_smaller
from supervisor.job.spec import AccumulationCounts, EntryKind, JobSpec, Knobs, KnobScope
from supervisor.text.redact import redact, redact_argv

SCHEMA: Final = 1
MEASURED_LATER: Final = "known after the first step"
# Placeholder for a value, the step of the newest checkpoint.
STEP: Final = "STEP"
RESUME_KNOB: Final = "--resume-knob"
# The number of further restarts to show. Beyond that, the user would rather change the model.
MAX_STEPS: Final = 16


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A setting before and after a change. `old` is None if it is not set yet."""

    knob: str
    old: str | None
    new: str


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """How a restart resumes: ``flag`` (a setting), ``self`` (by the script itself), ``none`` (not at all) or ``unknown``.

    For ``flag``, a `value` of None stands for the newest checkpoint's path, once known. `source` says how this was determined.
    """

    how: str
    knob: str | None = None
    value: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class OomPlan:
    """The changes after the first out-of-memory failure and after later ones, or `why` there are none and what would `help`.

    `smaller_global` means that a smaller global batch is allowed by the user and is the only option.
    """

    resume: ResumePlan
    changes: tuple[KnobChange, ...] = ()
    then: tuple[tuple[KnobChange, ...], ...] = ()
    smaller_global: bool = False
    why: str = ""
    help: str = ""


def resume_plan(knobs: Knobs) -> ResumePlan:
    """Return how a restart would continue once some steps have been completed."""
    if knobs.self_resuming:
        return ResumePlan("self", None, None, knobs.resumes or None)
    if knobs.resume is not None:
        return ResumePlan("flag", _shown(knobs.resume), knobs.resume_value, knobs.resumes or None)
    if knobs.resume_path is not None:
        return ResumePlan("flag", _shown(knobs.resume_path), None, knobs.resumes or None)
    if knobs.resume_step is not None:
        return ResumePlan("flag", knobs.resume_step, STEP, "takes the step of a checkpoint")
    return ResumePlan("none" if knobs.cannot_resume else "unknown", source=knobs.resumes or None)


def resume_words(resume: ResumePlan) -> str:
    """Describe what a restart sets in order to resume, or what it waits for."""
    match resume.how:
        case "self":
            return f"by itself ({resume.source})"
        case "flag":
            value = resume.value if resume.value is not None else "PATH of the newest checkpoint"
            return f"{resume.knob} {value}".rstrip()
        case "none":
            return "not at all: a restart begins at step 0"
    source = f" ({resume.source})" if resume.source else ""
    return f"not known{source}: a restart after the first step waits for you (--resume-knob, --self-resuming)"


def oom_plan(spec: JobSpec, *, is_measured: bool = False) -> OomPlan:
    """Return the response to running out of memory, for the job as started or once it `is_measured`. Pure."""
    knobs, batch, resume = spec.knobs, spec.batch, resume_plan(spec.knobs)
    later = is_measured_later(spec) and not is_measured
    # The user allowed it and enough is known, as in `policy.changes.offer_for`.
    is_known = knobs.batch is not None and knobs.batch_scope is not KnobScope.UNKNOWN and batch is not None
    smaller_global = not knobs.can_change_batch and spec.retry.allow_smaller_global and is_known
    if batch is None or not (knobs.can_change_batch or smaller_global):
        why, help_ = knobs.refusal or why_not_changeable(knobs), knobs.help
        if knobs.can_change_batch:
            why, help_ = why_size_unknown(knobs)
        if later:
            why = f"{MEASURED_LATER} ({why})" if why else MEASURED_LATER
        return OomPlan(resume, why=why, help=help_)
    steps: list[tuple[KnobChange, ...]] = []
    try:
        while len(steps) < MAX_STEPS and (next_ := next_batch(spec, batch, smaller_global=smaller_global)):
            steps.append(_changes(spec, batch if steps else None, batch, next_))
            batch = next_
    except JobError as error:
        return OomPlan(resume, why=error.message)
    if not steps:
        least = spec.retry.min_micro_batch
        why = f"no micro-batch of {least} or more below {batch.micro_batch_per_rank} is left"
        return OomPlan(resume, why=why)
    return OomPlan(resume, steps[0], tuple(steps[1:]), smaller_global)


def missing_words(spec: JobSpec) -> tuple[str, ...]:
    """Return the command-line declarations that a restart after OOM still needs, or an empty tuple if it needs none."""
    plan, knobs = oom_plan(spec, is_measured=True), spec.knobs
    words: list[str] = []
    if not plan.changes:
        if knobs.batch is None:
            words += ["--batch-knob", "NAME"]
        elif knobs.batch_scope is KnobScope.UNKNOWN and not knobs.paired:
            words += ["--batch-scope", "SCOPE"]
        if not knobs.keeps_global_batch:
            words += ["--accumulation-knob", "NAME"]
    if not spec.retry.restart_from_scratch:
        resume = {"unknown": [RESUME_KNOB, "FLAG=PATH"], "none": ["--restart-from-scratch"]}
        words += resume.get(plan.resume.how, [])
    return tuple(words)


def oom_notice(spec: JobSpec, *, waits: bool, tries: Sequence[str] = ()) -> tuple[str, bool]:
    """Return a one-line notice of what would happen on OOM, and whether the job would restart by itself.

    `spec` includes everything known so far. `waits` means that the run would ask the user as a last resort.
    `tries` lists settings in `spec` that a restart would merely try, before the first step.
    """
    plan, missing = oom_plan(spec, is_measured=True), missing_words(spec)
    how = f"; {' '.join(missing)}" if missing else ""
    end = "would wait for you" if waits else "would end this run"
    if not plan.changes:
        return f"out of memory {end}: {plan.why}{how}", False
    batch = next_batch(spec, spec.batch, smaller_global=plan.smaller_global) if spec.batch else None
    assert batch is not None, "a plan has a first step"
    if tries:
        start = f"restarts with {factors(batch)} from step 0, to try {', '.join(tries)}"
        return f"out of memory before the first step: {start}", True
    if missing:
        why = "how the script resumes is not known"
        if plan.resume.how == "none":
            why = "the script does not resume"
        return f"out of memory {end} after its first step: {why}{how}", False
    from_ = "step 0" if plan.resume.how in {"unknown", "none"} else "the newest checkpoint"
    return f"out of memory: restarts with {factors(batch)} from {from_}", True


def next_batch(spec: JobSpec, batch: BatchSpec, *, smaller_global: bool) -> BatchSpec | None:
    """Return the next smaller batch, or None if there is none. `smaller_global` means to keep the accumulation."""
    choice = choose_smaller(batch, minimum=spec.retry.min_micro_batch, smaller_global=smaller_global)
    return choice.batch if choice is not None else None


def is_measured_later(spec: JobSpec) -> bool:
    """Check whether measuring a step will settle the open questions about the batch."""
    knobs = spec.knobs
    open_ = bool(knobs.help) if knobs.refusal else spec.batch is None or not knobs.can_change_batch
    return spec.instrument and spec.entry_kind is not EntryKind.TRAINER and open_


def _changes(
    spec: JobSpec, shown: BatchSpec | None, before: BatchSpec, batch: BatchSpec
) -> tuple[KnobChange, ...]:
    """Return the settings that change from `before` to `batch`. Old values are those for `shown`, or else the initial ones."""
    local = spec.nproc_per_node
    was = dict(batch_values(spec.knobs, shown, before=before, local_world_size=local)) if shown else None
    after = batch_values(spec.knobs, batch, before=before, local_world_size=local)
    changes = (
        KnobChange(_shown(name), _present(spec, name) if was is None else was.get(name), value)
        for name, value in after
    )
    return tuple(change for change in changes if change.old != change.new)


def _present(spec: JobSpec, name: str) -> str | None:
    """Return a setting's initial value."""
    knobs = spec.knobs
    given = value_of(spec.entry_args, name) if is_argument(name) else None
    if (given := dict(spec.set_knobs).get(name) or given) is not None:
        return given
    same = dict(knobs.same).get(name, "")
    if same.isdigit():
        return None  # the value follows from another setting
    roles = {knobs.batch: "micro", knobs.accumulation: "accumulation", knobs.global_batch: "total"}
    number = knobs.number(roles.get(name, same))
    return str(number.value) if number is not None and number.value is not None else None


def _shown(name: str) -> str:
    return config_file(name) if place_of(name) is Place.FILE else name


def container_line(spec: JobSpec, plan: LaunchPlan) -> str:
    """Return options for measuring inside a container started after ``--``, or "" if there is no container or measuring is off."""
    own = {change.name: change.value or "" for change in plan.env}
    variables = [name for name in own if name.startswith("STOKER_") or name == "PYTHONPATH"]
    if spec.entry_kind is not EntryKind.COMMAND or not spec.instrument or "PYTHONPATH" not in own:
        return ""
    folders = own["STOKER_RUN_DIR"], own["PYTHONPATH"].partition(":")[0]
    return container_options((spec.entry, *spec.entry_args), folders, variables)


def answer(spec: JobSpec, plan: LaunchPlan) -> dict[str, Any]:
    """Return the output of ``stoker run --dry-run --json`` as plain data, with secrets redacted (docs/dry-run.md)."""
    return {
        "schema": SCHEMA,
        "argv": list(redact_argv(plan.argv)),
        "env": {c.name: None if c.value is None else redact(c.name, c.value) for c in plan.env},
        "batch": _batch(spec),
        "on_oom": _on_oom(oom_plan(spec)),
        **({"container": line} if (line := container_line(spec, plan)) else {}),
    }


def _batch(spec: JobSpec) -> dict[str, Any]:
    knobs = spec.knobs
    batch = spec.batch if spec.batch is not None and spec.batch.ranks_known else None
    derived = knobs.accumulation is None and knobs.global_batch is not None
    total = knobs.number("total")
    steps = _number(knobs, "accumulation", knobs.accumulation)
    if derived and batch is not None:
        steps |= {"value": batch.accumulation_steps, "source": "derived"}
    unit = None if derived else BatchUnit.SAMPLES.value
    return {
        "micro": _number(knobs, "micro", knobs.batch),
        "accumulation": {
            **steps,
            "counts": None if knobs.accumulation is None and not derived else knobs.counts.value,
        },
        "global": batch.global_batch if batch is not None else total.value if total is not None else None,
        "unit": batch.unit.value if batch is not None else unit,
        "scope": knobs.batch_scope.value,
        "world_size": world_size(spec),
    }


def world_size(spec: JobSpec) -> int | None:
    """Return the total number of ranks in the job, or None if unknown."""
    if spec.batch is not None and spec.batch.ranks_known:
        return spec.batch.world_size
    return spec.world_size or None


def _number(knobs: Knobs, what: str, name: str | None) -> dict[str, Any]:
    found = knobs.number(what)
    return {
        "value": found.value if found is not None else None,
        "knob": _shown(name) if name is not None else None,
        "source": found.where if found is not None else None,
    }


def _on_oom(plan: OomPlan) -> dict[str, Any]:
    how, knob, value, source = astuple(plan.resume)
    resume = {"how": how, "knob": knob, "value": value, "from": source}
    if not plan.changes:
        return {"refused": True, "why": plan.why, "what_would_help": plan.help or None, "resume": resume}
    steps = [
        [{"knob": c.knob, "from": c.old, "to": c.new} for c in step] for step in (plan.changes, *plan.then)
    ]
    smaller = {"smaller_global": True} if plan.smaller_global else {}
    return {"changes": steps[0], **smaller, "then": steps[1:], "resume": resume}


def four_lines(spec: JobSpec) -> tuple[str, str, str, str]:
    """Describe the plan in four lines: the batch, its first change, later changes, and how the job resumes."""
    plan = oom_plan(spec)
    how, batch_line = resume_words(plan.resume), _batch_line(spec)
    if plan.changes:
        then = "; ".join(_text(step) for step in plan.then[:3]) or "nothing smaller is left"
        kept = "a smaller global batch, as allowed" if plan.smaller_global else "same global batch"
        return (batch_line, f"{_text(plan.changes)} ({kept})", then, how)
    if plan.why.startswith(MEASURED_LATER):
        return (batch_line, plan.why, f"to say it now: {plan.help}" if plan.help else "-", how)
    return (batch_line, f"nothing by itself: {plan.why}", plan.help or "-", how)


def _batch_line(spec: JobSpec) -> str:
    """Describe the current values of the batch settings."""
    knobs = spec.knobs
    micro, steps, total = (knobs.number(number) for number in ("micro", "accumulation", "total"))
    world, unknown = world_size(spec), MEASURED_LATER if is_measured_later(spec) else "not known"
    whole = knobs.batch_scope is KnobScope.GLOBAL and world is None
    named = "of all ranks" if whole else "micro-batch"
    parts = [f"{named} {unknown}"]
    if micro is not None:
        parts = [f"{named} of {_shown(knobs.batch or '')}: {unknown}"]
        if micro.value is not None:
            parts = [f"{named} {micro.value} ({_shown(knobs.batch or '')}, {micro.where})"]
    if steps is not None:
        ranks = ", of all ranks" if knobs.counts is AccumulationCounts.ALL_RANKS else ""
        shown = f"{_shown(knobs.accumulation or '')}{ranks}"
        given = f"accumulation {steps.value} ({shown}, {steps.where})"
        parts.append(given if steps.value is not None else f"accumulation of {shown}: {unknown}")
    if total is not None:
        value = total.value if total.value is not None else "auto"
        parts.append(f"accumulation follows from {knobs.global_batch} {value}")
    if not whole:
        parts.append("× ranks" if world is None else f"× {world} rank{'s' if world > 1 else ''}")
    return " · ".join(parts)


def _text(changes: Sequence[KnobChange]) -> str:
    return ", ".join(f"{c.knob} {c.old if c.old is not None else 'unset'} → {c.new}" for c in changes)

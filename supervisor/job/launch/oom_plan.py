"""The changes to a job after it runs out of memory, as data: shown by the dry run, checked before the start, used by the restart.

All use the same arithmetic: `choose_smaller` picks the next micro-batch, `batch_values` its settings. Without
memory numbers, as here, the next one is the largest that divides the present micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from supervisor.job.arguments.command_line import value_of
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
# Placeholder for a value: the step of the newest checkpoint.
STEP: Final = "STEP"
RESUME_KNOB: Final = "--resume-knob"
# How many further restarts to show: beyond, a person changes the model instead.
MAX_STEPS: Final = 16


@dataclass(frozen=True, slots=True)
class KnobChange:
    """One setting before and after; `old` None: it is not set yet."""

    knob: str
    old: str | None
    new: str


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """How the restart continues: ``flag`` (a setting), ``self`` (the script finds it), ``none`` (it cannot), ``unknown``.

    `value` None with ``flag``: the path of the newest checkpoint, once there is one. `source`: where it was read.
    """

    how: str
    knob: str | None = None
    value: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class OomPlan:
    """The changes at the first out-of-memory failure, and at later ones; `smaller_global`: only in this way, which a person allowed."""

    changes: tuple[KnobChange, ...]
    then: tuple[tuple[KnobChange, ...], ...]
    resume: ResumePlan
    smaller_global: bool = False


@dataclass(frozen=True, slots=True)
class OomRefusal:
    """Why nothing would change automatically, and what would allow it."""

    why: str
    help: str
    resume: ResumePlan


def resume_plan(knobs: Knobs) -> ResumePlan:
    """How a restart after some steps would continue."""
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
    """The plan in words: what a restart sets or waits for."""
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


def oom_plan(spec: JobSpec, *, is_measured: bool = False) -> OomPlan | OomRefusal:
    """The response to an out-of-memory failure of the job as started, or once it `is_measured`; pure."""
    knobs, resume = spec.knobs, resume_plan(spec.knobs)
    smaller_global = not knobs.can_change_batch and _allows_smaller_global(spec)
    if not knobs.can_change_batch and not smaller_global:
        why, help_ = knobs.refusal or why_not_changeable(knobs), knobs.help
        return _refusal(spec, why, help_, resume, is_measured=is_measured)
    if spec.batch is None:
        return _refusal(spec, *why_size_unknown(knobs), resume, is_measured=is_measured)
    steps: list[tuple[KnobChange, ...]] = []
    batch = spec.batch
    try:
        while len(steps) < MAX_STEPS and (next_ := next_batch(spec, batch, smaller_global=smaller_global)):
            steps.append(_changes(spec, batch if steps else None, batch, next_))
            batch = next_
    except JobError as error:
        return OomRefusal(error.message, "", resume)
    if not steps:
        least = max(spec.retry.min_micro_batch, 1)
        return OomRefusal(
            f"no micro-batch of {least} or more below {batch.micro_batch_per_rank} is left", "", resume
        )
    return OomPlan(steps[0], tuple(steps[1:]), resume, smaller_global)


def missing_words(spec: JobSpec) -> tuple[str, ...]:
    """The declarations, as typed, that would turn an out-of-memory failure from an end into a restart; none if it restarts anyway."""
    plan, knobs = oom_plan(spec, is_measured=True), spec.knobs
    words: list[str] = []
    if isinstance(plan, OomRefusal):
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
    """The effect of an out-of-memory failure of this job, in one line, and whether it restarts automatically.

    `spec`: with everything known so far. `waits`: it finally asks a person, who may be watching. `tries`: the
    settings of `spec` that a restart only tries, before the first step.
    """
    plan, missing = oom_plan(spec, is_measured=True), missing_words(spec)
    how = f"; {' '.join(missing)}" if missing else ""
    end = "would wait for you" if waits else "would end this run"
    if isinstance(plan, OomRefusal):
        return f"out of memory {end}: {plan.why}{how}", False
    assert spec.batch is not None, "a plan has a batch"
    batch = next_batch(spec, spec.batch, smaller_global=plan.smaller_global)
    assert batch is not None, "a plan has a first step"
    if tries:
        names = ", ".join(tries)
        return (
            f"out of memory before the first step: restarts with {factors(batch)} from step 0, to try {names}",
            True,
        )
    if missing:
        why = (
            "the script does not resume"
            if plan.resume.how == "none"
            else "how the script resumes is not known"
        )
        return f"out of memory {end} after its first step: {why}{how}", False
    from_ = "step 0" if plan.resume.how in {"unknown", "none"} else "the newest checkpoint"
    return f"out of memory: restarts with {factors(batch)} from {from_}", True


def next_batch(spec: JobSpec, batch: BatchSpec, *, smaller_global: bool) -> BatchSpec | None:
    """The batch after `batch`, with the same accumulation if the global batch shrinks; None if none is left."""
    choice = choose_smaller(batch, minimum=spec.retry.min_micro_batch, smaller_global=smaller_global)
    return choice.batch if choice is not None else None


def _refusal(spec: JobSpec, why: str, help_: str, resume: ResumePlan, *, is_measured: bool) -> OomRefusal:
    """The refusal for the job before its start: if a declaration would decide it, so does the first measured step."""
    if is_measured_later(spec) and not is_measured:
        return OomRefusal(f"{MEASURED_LATER} ({why})" if why else MEASURED_LATER, help_, resume)
    return OomRefusal(why, help_, resume)


def is_measured_later(spec: JobSpec) -> bool:
    """Whether open questions about the batch will be settled once a step has been measured."""
    knobs = spec.knobs
    open_ = bool(knobs.help) if knobs.refusal else spec.batch is None or not knobs.can_change_batch
    return spec.instrument and spec.entry_kind is not EntryKind.TRAINER and open_


def _allows_smaller_global(spec: JobSpec) -> bool:
    """Whether a person allowed a smaller global batch, and enough is known for one: as planned by `policy.changes.offer_for`."""
    knobs = spec.knobs
    known = knobs.batch is not None and knobs.batch_scope is not KnobScope.UNKNOWN
    return spec.retry.allow_smaller_global and known and spec.batch is not None


def _changes(
    spec: JobSpec, shown: BatchSpec | None, before: BatchSpec, batch: BatchSpec
) -> tuple[KnobChange, ...]:
    """The settings that change from `before` to `batch`; `shown` None: from the values at the start."""
    local = spec.nproc_per_node
    was = dict(batch_values(spec.knobs, shown, before=before, local_world_size=local)) if shown else None
    found = []
    for name, value in batch_values(spec.knobs, batch, before=before, local_world_size=local):
        old = was.get(name) if was is not None else _present(spec, name)
        if old != value:
            found.append(KnobChange(_shown(name), old, value))
    return tuple(found)


def _present(spec: JobSpec, name: str) -> str | None:
    """The value of a setting at the start."""
    knobs = spec.knobs
    set_now = dict(spec.set_knobs).get(name) or (
        value_of(spec.entry_args, name) if is_argument(name) else None
    )
    if set_now is not None:
        return set_now
    if dict(knobs.same).get(name, "").isdigit():
        return None  # it follows from another setting and has no number of its own
    roles: dict[str | None, str] = {
        knobs.batch: "micro",
        knobs.accumulation: "accumulation",
        knobs.global_batch: "total",
    }
    number = knobs.number(roles.get(name) or dict(knobs.same).get(name, ""))
    return str(number.value) if number is not None and number.value is not None else None


def _shown(name: str) -> str:
    return config_file(name) if place_of(name) is Place.FILE else name


def answer(spec: JobSpec, plan: LaunchPlan) -> dict[str, Any]:
    """The public answer of ``stoker run --dry-run --json``: plain data, secrets redacted; see docs/dry-run.md."""
    return {
        "schema": SCHEMA,
        "argv": list(redact_argv(plan.argv)),
        "env": {c.name: None if c.value is None else redact(c.name, c.value) for c in plan.env},
        "batch": _batch(spec),
        "on_oom": _on_oom(oom_plan(spec)),
    }


def _batch(spec: JobSpec) -> dict[str, Any]:
    knobs = spec.knobs
    batch = spec.batch if spec.batch is not None and spec.batch.ranks_known else None
    derived = knobs.accumulation is None and knobs.global_batch is not None
    total = knobs.number("total")
    return {
        "micro": _number(knobs, "micro", knobs.batch),
        "accumulation": {
            **_number(knobs, "accumulation", knobs.accumulation),
            **(
                {"value": batch.accumulation_steps, "source": "derived"}
                if derived and batch is not None
                else {}
            ),
            "counts": None if knobs.accumulation is None and not derived else knobs.counts.value,
        },
        "global": batch.global_batch if batch is not None else total.value if total is not None else None,
        "unit": batch.unit.value if batch is not None else None if derived else BatchUnit.SAMPLES.value,
        "scope": knobs.batch_scope.value,
        "world_size": world_size(spec),
    }


def world_size(spec: JobSpec) -> int | None:
    """Ranks of the whole job; None if unknown."""
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


def _on_oom(plan: OomPlan | OomRefusal) -> dict[str, Any]:
    resume = {
        "how": plan.resume.how,
        "knob": plan.resume.knob,
        "value": plan.resume.value,
        "from": plan.resume.source,
    }
    match plan:
        case OomPlan():
            return {
                "changes": _rows(plan.changes),
                **({"smaller_global": True} if plan.smaller_global else {}),
                "then": [_rows(step) for step in plan.then],
                "resume": resume,
            }
        case OomRefusal():
            return {"refused": True, "why": plan.why, "what_would_help": plan.help or None, "resume": resume}


def _rows(changes: Sequence[KnobChange]) -> list[dict[str, str | None]]:
    return [{"knob": c.knob, "from": c.old, "to": c.new} for c in changes]


def four_lines(spec: JobSpec) -> tuple[str, str, str, str]:
    """The same for people: the batch, its changes, the result, the resume."""
    plan = oom_plan(spec)
    how = resume_words(plan.resume)
    batch_line = _batch_line(spec)
    match plan:
        case OomPlan():
            then = "; ".join(_text(step) for step in plan.then[:3]) or "nothing smaller is left"
            kept = "a smaller global batch, as allowed" if plan.smaller_global else "same global batch"
            return (batch_line, f"{_text(plan.changes)} ({kept})", then, how)
        case OomRefusal():
            if plan.why.startswith(MEASURED_LATER):
                return (batch_line, plan.why, f"to say it now: {plan.help}" if plan.help else "-", how)
            return (batch_line, f"nothing by itself: {plan.why}", plan.help or "-", how)


def _batch_line(spec: JobSpec) -> str:
    """The present values of the settings."""
    knobs = spec.knobs
    micro, steps, total = (knobs.number(number) for number in ("micro", "accumulation", "total"))
    whole = knobs.batch_scope is KnobScope.GLOBAL and world_size(spec) is None
    named = "of all ranks" if whole else "micro-batch"
    unknown = MEASURED_LATER if is_measured_later(spec) else "not known"
    if micro is None:
        parts = [f"{named} {unknown}"]
    elif micro.value is None:
        parts = [f"{named} of {_shown(knobs.batch or '')}: {unknown}"]
    else:
        parts = [f"{named} {micro.value} ({_shown(knobs.batch or '')}, {micro.where})"]
    if steps is not None:
        ranks = ", of all ranks" if knobs.counts is AccumulationCounts.ALL_RANKS else ""
        shown = f"{_shown(knobs.accumulation or '')}{ranks}"
        given = f"accumulation {steps.value} ({shown}, {steps.where})"
        parts.append(given if steps.value is not None else f"accumulation of {shown}: {unknown}")
    if total is not None:
        parts.append(
            f"accumulation follows from {knobs.global_batch} {total.value if total.value is not None else 'auto'}"
        )
    world = world_size(spec)
    if not whole:
        parts.append("× ranks" if world is None else f"× {world} rank{'s' if world > 1 else ''}")
    return " · ".join(parts)


def _text(changes: Sequence[KnobChange]) -> str:
    return ", ".join(f"{c.knob} {c.old if c.old is not None else 'unset'} → {c.new}" for c in changes)

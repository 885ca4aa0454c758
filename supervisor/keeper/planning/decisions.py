"""Asks the policy for a decision after the latest attempt, passing it the run's history."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from supervisor.cluster.scheduler import scheduler_of
from supervisor.job.knobs.conventions import find_loader
from supervisor.job.knobs.resume_settings import given_start
from supervisor.job.launch.batch_questions import to_try
from supervisor.job.launch.env import is_measured
from supervisor.job.memory_fit import choose_smaller
from supervisor.job.spec import BatchQuestion, EntryKind, JobSpec, LoaderKnobs, Unread
from supervisor.keeper.planning.attempt_evidence import known_trials, memory_point_of
from supervisor.keeper.planning.resume_points import (
    batch_refusal,
    number_of,
    start_checkpoint,
    unsound_text,
    usable_checkpoint,
    why_not_now,
)
from supervisor.policy import PolicyInput, decide
from supervisor.run.answers import batch_question, exit_code_question, recalled, resume_question, script_of
from supervisor.run.events import BatchAnswered, BatchMeasured
from supervisor.run.fold import fold
from supervisor.run.next_job import next_job, undecided
from supervisor.run.paths import RunPaths
from supervisor.run.records import OUT_OF_MEMORY, Decision
from supervisor.run.runfile import RunFile
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.checkpoint_layouts import find_checkpoints, has_checkpoint_names


def decide_next(
    record: RunFile, state: RunState, *, env: Mapping[str, str], watched: bool = False
) -> Decision:
    """Return the policy's decision after the latest attempt. `watched` says whether anyone is viewing the run."""
    return decide(replace(policy_input(record, state, env=env), watched=watched))


def needs_smaller_batch(record: RunFile, state: RunState, view: AttemptState) -> bool:
    """Check whether an attempt that ran out of memory or ran the wrong batch has a batch that stoker cannot change."""
    knobs = state.answered_job(record.job).knobs
    return (view.failure in OUT_OF_MEMORY or view.refuted) and not knobs.can_change_batch


def question_after(record: RunFile, state: RunState, number: int) -> BatchQuestion | None:
    """Return the question that must be answered after attempt `number`, if any."""
    view = state.find(number)
    question = batch_question(record.job, state)
    if view is None or (question is not None and needs_smaller_batch(record, state, view)):
        return question
    if view.job_exit_code == 0:
        return exit_code_question(record.job)
    return resume_question(record.job, view.measured.resume_candidates if view.measured is not None else ())


def next_answer(
    record: RunFile, state: RunState, env: Mapping[str, str], t: float, *, tries: bool = False
) -> BatchAnswered | None:
    """Return the batch answer from an earlier run of the script, or None if the user must be asked.

    With `tries`, an unknown answer is replaced by one that is safe to try; the first steps confirm or refute it.
    """
    question, seen = batch_question(record.job, state), state.measured
    if question is None or seen is None:
        return None
    known, answers = recalled(question, env), {answer.value for answer in question.answers}
    if known is not None and known.value in answers - set(state.wrong):
        told = BatchAnswered(t=t, question=question, value=known.value, day=known.day)
    else:
        value = to_try(seen.settings.answered(state.values_answered), state.wrong) if tries else None
        if value is None or not _loses_nothing(record, state, seen):
            return None
        told = BatchAnswered(t=t, question=question, value=value, trial=len(state.wrong) + 1)
    # With the batch that the attempts so far ran with, according to this answer.
    return structs.replace(told, batch=fold(state, told).answered_job(record.job).batch)


def _loses_nothing(record: RunFile, state: RunState, seen: BatchMeasured) -> bool:
    """Check whether a restart from scratch loses nothing: no step was taken and no checkpoint was loaded or left in the outputs."""
    job, now = state.answered_job(record.job), next_job(record.job, state)
    has_stepped = any(a.stepped for a in state.attempts)
    is_unseen = "no_step" in seen.how.get("accumulation", "")
    loads = seen.has_loaded or given_start(now.job.entry_args, job.knobs.starts) is not None
    if has_stepped or loads or not is_unseen or state.checkpoints or job.trial is not None:
        return False
    folders = [Path(job.cwd, folder) for folder in (*job.outputs, *job.output_prefixes, *seen.outputs)]
    return not find_checkpoints(folders, 0.0) and not has_checkpoint_names(folders)


def policy_input(
    record: RunFile, state: RunState, *, env: Mapping[str, str], on_disk: bool = True
) -> PolicyInput:
    """Return everything that the policy considers after the latest attempt in `state`.

    If `on_disk`, this includes what is on disk now. It is False when an old decision is being explained.
    """
    job, now = state.answered_job(record.job), next_job(record.job, state)
    arguments = now.job.entry_args
    newest, saved = state.attempts[-1], state.checkpoint
    trusted, progress = Unread.EXIT_CODE in state.answers, state.progress
    # A bar that has not moved shows that a step would have been seen.
    awaited = progress.attempt if progress is not None and progress.total_steps is not None else None
    failure = newest.verdict.failure if newest.verdict is not None else None
    newest_saved = usable_checkpoint(job, state.sound_checkpoints) if on_disk else state.resumable
    begins_at = newest_saved or (start_checkpoint(job, arguments) if on_disk else None)
    now_batch = now.current_batch
    less = (
        choose_smaller(now_batch) if on_disk and failure in OUT_OF_MEMORY and now_batch is not None else None
    )
    return PolicyInput(
        attempts=state.attempts,
        missed=_missed_text(newest, state),
        steps_seen=all(view.first_step is not None or view.number == awaited for view in state.attempts),
        retry=replace(job.retry, exit_zero="trust") if trusted else job.retry,
        knobs=job.knobs,
        interactive=record.settings.interactive,
        total_steps=state.total_steps,
        final_checkpoint=saved is not None and saved.attempt == newest.number and saved.final,
        memory=memory_point_of(newest, newest.shown_batch or now_batch),
        trials=known_trials(job, state, env) if failure in OUT_OF_MEMORY else (),
        port_named=job.master_port is not None,
        leads=job.entry_kind is not EntryKind.COMMAND and job.node_rank == 0,
        newest_checkpoint=begins_at.path if begins_at is not None else None,
        newest_number=number_of(newest_saved),
        not_now=why_not_now(job) if on_disk and begins_at is None else "",
        old_batch=batch_refusal(record, state, less.batch, arguments, env) if less is not None else "",
        # The measurements are of the original command line.
        question=not now.is_typed and batch_question(record.job, state) is not None,
        given_start=given_start(arguments, job.knobs.starts),
        unsound=unsound_text(job, state, newest_saved, on_disk=on_disk),
        trial=job.trial,
        in_batch_job=scheduler_of(env).job is not None,
        loader=_loader(job, arguments),
        measured=_was_measured(record, state, env),
        code_hidden_by=_code_hidden_by(job) if newest.job_exit_code == 0 else "",
        jitter=random.random(),
    )


def _was_measured(record: RunFile, state: RunState, env: Mapping[str, str]) -> bool:
    """Check whether a process of the latest attempt was instrumented. The first such process creates a folder."""
    if record.path is None:
        return False
    now = next_job(record.job, undecided(state))
    folder = RunPaths(Path(record.path)).node().attempt(state.attempts[-1].number).telemetry
    return (
        is_measured(now.job, {**env, **dict(now.job.env), **now.env}) and (folder / "instrumented").is_dir()
    )


def _code_hidden_by(job: JobSpec) -> str:
    """Return a clause saying why a command's exit code is hidden, or "" if the command's text shows no reason."""
    name, text = script_of(job)
    where = name or "the command"
    if job.has_own_code:
        return ""
    if re.search(r"\|&?\s*tee\b", text) and "pipefail" not in text:
        return f"the pipe in {where} hides the exit code (`set -o pipefail`)"
    return f"`|| true` in {where} hides the exit code" if re.search(r"\|\|\s*true\b", text) else ""


def _loader(job: JobSpec, arguments: tuple[str, ...]) -> LoaderKnobs:
    """Return the DataLoader settings from the current command line or, failing that, from the original one."""
    now = find_loader(arguments)
    return now if now.workers is not None else job.loader


def _missed_text(view: AttemptState, state: RunState) -> str:
    """Describe how an attempt failed to resume or ran a different batch, and whether a copy exists. Return "" if it ran as planned."""
    missed, differs = view.missed, view.differs
    if missed is None and (differs is None or not differs.of_resume):
        return differs.text if differs is not None else ""
    how = differs.text if differs is not None else ""
    if missed is not None:
        how = f"did not resume: began at step {missed.began}"
    step = missed.step if missed is not None else view.resume_at
    kept = next((k for k in reversed(state.kept) if k.step == step), None)
    copy = f"is kept as a copy: {kept.copy}" if kept is not None and kept.copy else "is not protected"
    return f"{how}; checkpoint {step} {copy}"

"""The console summary of a finished run and the report of a trial: attempts, verdicts, changes, losses, memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.job.batch import BatchSpec, describe, describe_change
from supervisor.job.launch.plan import real_command_of
from supervisor.job.spec import TrialSettings, steps_seen
from supervisor.run.events import Outcome
from supervisor.run.journal import read_state
from supervisor.run.node_files import LEADER
from supervisor.run.paths import RunPaths
from supervisor.run.records import Cause, FailureClass
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.series import GPU, HOST, METRICS, SeriesReader, at_first, highest
from supervisor.run.state import AttemptState, Finished, RunState
from supervisor.text.decode import printable
from supervisor.text.redact import redact_text
from supervisor.views import format as fm
from supervisor.views.headless.still_chart import draw, loss_points
from supervisor.views.model.cause_context import read_context
from supervisor.views.wording.kinds import end_of_request, resume_place, unread_text, values_of
from supervisor.views.wording.translate import Tr, english

NO_STEP = "no step was seen"
NO_CHECKPOINT = "no checkpoint was seen"
USED, OWN = "memory_used_bytes", "own_memory_bytes"
GREW_BYTES = 256 << 20
"""More memory than a bare CUDA context takes up."""
LEAST_STEP_S = 0.001
"""Anything shorter means that the lines were read in one batch, which says nothing about step time."""


def story(state: RunState, run: RunPaths, *, redact: Callable[[str], str] = str) -> str:
    """Summarize a run in a few lines: attempts, verdicts, changes, losses, a loss curve, and file paths."""
    # Imported at the end of a run, so that starting does not wait for these modules.
    from supervisor.policy.health.early_signs import (
        MEMORY_UNEXPECTED,
    )
    from supervisor.run.next_job import declared_again

    curve = ""  # the curve has separate lines
    lines = ["", f"run       {state.run_id}  {state.name}"]
    for index, attempt in enumerate(state.attempts):
        lines += _attempt_story(attempt, run)
        same = state.same_failure(attempt.verdict, attempt.number)
        if earlier := tuple(number for number in same if number < attempt.number):
            many = "s" if len(earlier) > 1 else ""
            lines.append(f"          the same failure as attempt{many} {fm.ranges(earlier)}")
        following = state.attempts[index + 1] if index + 1 < len(state.attempts) else None
        if following is not None:
            lines.append(f"change    {_change_story(attempt)}{_confirmed(attempt, following)}")
            if resumed := _resumed_story(state, attempt, following):
                lines.append(f"resumed   {resumed}")
            if following.compared is not None:
                headline = english.sentence("comparison", "headline", values_of(following.compared))
                lines.append(f"compared  {headline}: {following.compared.text}")
    lines += _nodes_story(state, run)
    points = loss_points(run.node().series)
    if points:
        (_, first, begin), (_, last, end) = points[0], points[-1]
        lines.append(f"loss      {begin:.4f}{_at_step(first)} → {end:.4f}{_at_step(last)}")
        curve = draw(points, title="loss").rstrip("\n")
        lines += ["", curve, ""] if curve else []
    lines += [f"note      {one.text}" for one in state.advisories if one.code == MEMORY_UNEXPECTED]
    lines.append(f"directory {run.root}")
    lines += trial_lines(state, run, english)
    with contextlib.suppress(BadRunFile):
        if command := declared_again(state, read_run_file(run.run_json).job):
            lines.append(command)  # the last line has only the command, ready to paste
    return "\n".join(line if line is curve else printable(redact(line)) for line in lines)


def _nodes_story(state: RunState, run: RunPaths) -> Iterator[str]:
    """Yield a line for each node of a multi-node run, listing its ranks in the last attempt and how they exited."""
    for number in sorted({LEADER, *state.nodes}) if state.nodes else ():
        its = read_state(run.node(number).journal)
        attempt = its.attempt
        if attempt is None:
            yield f"node {number}    {its.host}: nothing was started there"
            continue
        ranks = tuple(rank.rank for rank in attempt.ranks.values() if rank.rank is not None)
        whose = f"ranks {fm.ranges(ranks)}, " if ranks else ""
        ended = exit_text(attempt.exit_code) if attempt.ended_t is not None else "its end is not known"
        yield f"node {number}    {its.host}: attempt {attempt.number}, {whose}{ended}"


def _at_step(step: float | None) -> str:
    return "" if step is None else f" at step {step:.0f}"


def _attempt_story(attempt: AttemptState, run: RunPaths) -> list[str]:
    span = ""
    if attempt.started_t is not None and attempt.ended_t is not None:
        span = f" after {max(attempt.ended_t - attempt.started_t, 0.0):.0f} s"
    steps = "no step" if attempt.last_step is None else f"steps {attempt.first_step}–{attempt.last_step}"
    batch = f", {batch_text(attempt.shown_batch)}" if attempt.shown_batch else ""
    code = "unknown" if attempt.exit_code is None else attempt.exit_code
    cut = f", {unread_text(attempt)}" if attempt.has_unread else ""
    lines = [f"attempt {attempt.number} {steps}, exit {code}{span}{cut}{batch}"]
    verdict = attempt.verdict
    if attempt.ended_on_request:
        lines.append(f"ended     {end_of_request(attempt)}")
    elif verdict is not None and verdict.failure is not FailureClass.HEALTHY:
        lines.append(f"verdict   {verdict.failure}: {verdict.title}")
        if verdict.node is not None:
            lines.append(f"node      {verdict.node}")
        if verdict.cause is not None:
            place = place_text(verdict.cause, run.node().attempt(attempt.number).root)
            lines.append(f"cause     {place}")
            if not verdict.title_says_cause:
                lines.append(f"          {shortened(verdict.cause.text, 160)}")
            if code := code_text(verdict.cause, run, attempt.number):
                lines.append(f"code      {code}")
    return lines


def _resumed_story(state: RunState, before: AttemptState, attempt: AttemptState) -> str:
    """Describe an attempt's checkpoint and first step. Return "" if the attempt, or every earlier one, made no steps."""
    if attempt.missed is not None:
        return english.sentence("moment", "resume_missed", values_of(attempt.missed))
    if attempt.resumed_step is not None:
        return f"at step {attempt.resumed_step}, a committed checkpoint of attempt {before.number}"
    if attempt.first_step is None or (attempt.first_step <= 1 and before.first_step is None):
        return ""
    how = f"with {attempt.resume}" if attempt.resume else "without a resume setting"
    if attempt.resume_at is not None and attempt.is_resume_seen:
        how = f"from the checkpoint {resume_place(state, attempt.resume_at)}"
    # A script that logs every tenth step may have begun before the first step seen.
    began = (
        "started again at step 1"
        if attempt.first_step <= 1
        else f"its first step seen is {attempt.first_step}"
    )
    return f"{how}: {began}"


def _confirmed(before: AttemptState, attempt: AttemptState) -> str:
    """Say whether measurements confirmed a batch change. Return "" if it is unchanged or needs no check (bundled trainer)."""
    change = before.decision.change if before.decision is not None else None
    if (
        change is None
        or change.batch is None
        or attempt.differs is not None
        or attempt.resumed_step is not None
    ):
        return ""
    return " (as planned)" if attempt.confirmed is not None else " (planned, not confirmed)"


def _change_story(attempt: AttemptState) -> str:
    decision = attempt.decision
    if decision is None or decision.change is None:
        return "none: relaunched as it was"
    parts = [decision.reason] if decision.change.batch is None else [describe_change(decision.change.batch)]
    parts += [f"{name}={value}" for name, value in decision.change.env]
    if decision.change.new_port:
        parts.append("another port")
    return ", ".join(parts)


def exit_text(code: int | None) -> str:
    """Format a process's exit code."""
    return "exit code unknown" if code is None else f"exit code {code}"


def place_text(cause: Cause, root: Path) -> str:
    """Return the cause's location as a path that can be opened from here. `root` is the attempt's directory."""
    path = cause.path
    if not os.path.isabs(path):
        whole = os.path.normpath(root / path)
        path = min(whole, os.path.relpath(whole), key=len)
    return f"{path}:{cause.line}" if cause.line else path


def code_text(cause: Cause, run: RunPaths, attempt: int) -> str:
    """Return the user's own line, with its location, from the traceback behind the cause, or "" if there is none."""
    own = read_context(run, attempt, cause).own
    return shortened(f"{own.path}:{own.line}  {own.text}", 240) if own is not None else ""


def shortened(text: str, limit: int) -> str:
    """Shorten `text` to a single line of at most `limit` characters."""
    line = printable(redact_text(text).strip())  # redact first, because cutting may hide a token
    return line if len(line) <= limit else line[: limit - 1] + "…"


def batch_text(batch: BatchSpec) -> str:
    """Format the effective batch as a product."""
    return f"micro-batch {describe(batch)}"


# -- a trial run: steps and their time, the loss, memory, checkpoint, and the command of the real run -------------------


def trial_lines(state: RunState, run: RunPaths, tr: Tr) -> list[str]:
    """Return the lines of a trial's report, labels first. The list is empty if there was no trial or nothing was launched."""
    attempt = state.attempt
    try:
        job = read_run_file(run.run_json).job
    except BadRunFile:
        return []
    if job.trial is None or attempt is None:
        return []
    rows = list(_trial_rows(job.trial, state, attempt, run, tr))
    succeeded = isinstance(state.condition, Finished) and state.condition.outcome is Outcome.SUCCEEDED
    if succeeded and (command := real_command_of(job)):
        rows.append(("real run", command))
    return [f"{tr(label):<9} {redact_text(text)}" for label, text in rows]


def _trial_rows(
    trial: TrialSettings, state: RunState, attempt: AttemptState, run: RunPaths, tr: Tr
) -> Iterator[tuple[str, str]]:
    for knob in trial.knobs:
        before = knob.before or tr("as the script has it")
        yield "set", tr(f"{knob.name} is {knob.value or 'empty'}, in the real run {before}")
    series = run.node().series
    seen, first, last = (
        steps_seen(attempt.first_step, attempt.last_step),
        attempt.first_step,
        attempt.last_step,
    )
    yield "steps", tr(f"{seen} seen: {first} to {last}") if seen else tr(NO_STEP)
    step_s = step_time_s(run, attempt.number)
    if step_s is not None and step_s >= LEAST_STEP_S:
        yield "step time", tr(f"{fm.seconds(step_s)}, without the first step")
    if attempt.first_loss is not None and attempt.last_loss is not None:
        yield "loss", f"{attempt.first_loss:.4f} → {attempt.last_loss:.4f}"
    for key, used, total in _gpus(run, attempt.number):
        yield "memory", tr(f"GPU {key}: {fm.memory_pair(used, total)} at most, {fm.percent(used / total)}")
    ranks = {key: v for key, v in highest(series, HOST, attempt.number).items() if key.isdecimal()}
    if rss := max((v.get("rss_bytes", 0.0) for v in ranks.values()), default=0.0):
        yield "memory", tr(f"host: {fm.memory(rss)} at most of a rank")
    saved = [found for found in state.checkpoints if found.attempt == attempt.number]
    newest = saved[-1] if saved else None
    if newest is None:
        yield "saved", tr(NO_CHECKPOINT)
    elif newest.step_by_time:  # no step in its name, only the newest step at its time
        yield "saved", tr(f"a checkpoint: {newest.path}")
    else:
        yield "saved", tr(f"a checkpoint at step {newest.step}: {newest.path}")


def _gpus(run: RunPaths, attempt: int) -> Iterator[tuple[str, float, float]]:
    """Yield each GPU that the attempt used, with its peak usage and its capacity in bytes.

    In containers, memory is not attributed to processes, so total usage counts if there is only one GPU or its usage grew.
    """
    series = run.node().series
    most, early = highest(series, GPU, attempt), at_first(series, GPU, attempt, USED)
    whose = any(values.get(OWN) for values in most.values())
    for key, values in sorted(most.items()):
        used, total = values.get(OWN if whose else USED), values.get("memory_total_bytes")
        grew = whose or len(most) == 1 or (used or 0) - early.get(key, used or 0) > GREW_BYTES
        if used and total and grew:
            yield key, used, total


def step_time_s(run: RunPaths, attempt: int) -> float | None:
    """Return an attempt's seconds per step, excluding the first (compilation, warm-up), or None for fewer than three steps."""
    reader = SeriesReader(run.node().series, METRICS)
    times: dict[float, float] = {}
    while samples := reader.read():
        for sample in samples:
            step = sample.v.get("step")
            if sample.a == attempt and step is not None:
                times.setdefault(step, sample.t)
    if len(times) < 3:
        return None
    second, last = sorted(times)[1], max(times)
    return max(times[last] - times[second], 0.0) / (last - second)

"""The summary at the end of a run on a console: attempts, verdicts, changes and losses in a few lines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.job.batch import BatchSpec, describe, describe_change
from supervisor.run.failure_history import recurrence_lines, same_failure
from supervisor.run.journal import read_state
from supervisor.run.node_files import LEADER
from supervisor.run.paths import RunPaths
from supervisor.run.records import Cause, FailureClass
from supervisor.run.state import AttemptState, MomentKind, RunState
from supervisor.text.decode import printable
from supervisor.text.redact import redact_text
from supervisor.views import format as fm
from supervisor.views.headless.still_chart import draw, loss_points
from supervisor.views.model.cause_context import read_context
from supervisor.views.wording.kinds import end_of_request, resume_place, unread_text, values_of
from supervisor.views.wording.translate import english


def story(state: RunState, run: RunPaths, *, redact: Callable[[str], str] = str) -> str:
    """The run in a few lines: attempts, verdicts, changes, losses, a curve, and the paths of its files."""
    # At the end of a run, so no start waits for them.
    from supervisor.policy.health.early_signs import (
        MEMORY_UNEXPECTED,
    )
    from supervisor.run.next_job import declared_again
    from supervisor.run.runfile import BadRunFile, read_run_file
    from supervisor.views.headless.trial_report import trial_lines

    curve = ""  # it has its own lines
    lines = ["", f"run       {state.run_id}  {state.name}"]
    for index, attempt in enumerate(state.attempts):
        lines += _attempt_story(attempt, run)
        if attempt.verdict is not None:
            same = same_failure(state, attempt.verdict.fingerprint, attempt.number)
            earlier = tuple(number for number in same if number < attempt.number)
            lines += [f"          {line}" for line in recurrence_lines(earlier)]
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
            lines.append(command)  # the last line contains only the command, so that it can be pasted
    return "\n".join(line if line is curve else printable(redact(line)) for line in lines)


def _nodes_story(state: RunState, run: RunPaths) -> Iterator[str]:
    """For a run on several nodes, one line per node: its ranks in the last attempt, and how its part ended."""
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
    """An attempt's checkpoint and first step after a resume; empty if it made no step, or no earlier attempt did."""
    if attempt.missed is not None:
        return english.sentence("moment", MomentKind.MISSED, values_of(attempt.missed))
    if attempt.resumed_step is not None:
        return f"at step {attempt.resumed_step}, a committed checkpoint of attempt {before.number}"
    if attempt.first_step is None or (attempt.first_step <= 1 and before.first_step is None):
        return ""
    how = f"with {attempt.resume}" if attempt.resume else "without a resume setting"
    if attempt.went_on:
        how = f"from the checkpoint {resume_place(state, attempt.resume_at or 0)}"
    return (
        f"{how}: {'started again' if attempt.first_step <= 1 else 'continued'} at step {attempt.first_step}"
    )


def _confirmed(before: AttemptState, attempt: AttemptState) -> str:
    """Whether a changed batch was measured as planned. The bundled trainer, which reports where it resumes, uses the batch it is given."""
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
    """How a process ended."""
    return "exit code unknown" if code is None else f"exit code {code}"


def place_text(cause: Cause, root: Path) -> str:
    """The position of the cause, as a path that opens from here. `root`: the attempt's folder, its base."""
    path = cause.path
    if not os.path.isabs(path):
        whole = os.path.normpath(root / path)
        path = min(whole, os.path.relpath(whole), key=len)
    return f"{path}:{cause.line}" if cause.line else path


def code_text(cause: Cause, run: RunPaths, attempt: int) -> str:
    """The user's own line in the traceback that ends in the cause, with its position; empty if there is none."""
    own = read_context(run, attempt, cause).own
    return shortened(f"{own.path}:{own.line}  {own.text}", 240) if own is not None else ""


def shortened(text: str, limit: int) -> str:
    """`text` in one line of at most `limit` characters."""
    line = printable(redact_text(text).strip())  # before truncation: nobody recognizes half a token
    return line if len(line) <= limit else line[: limit - 1] + "…"


def batch_text(batch: BatchSpec) -> str:
    """The effective batch as a product."""
    return f"micro-batch {describe(batch)}"

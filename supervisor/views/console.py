"""The headless view: facts as log lines while a run lives, and its story at the end.

Lines are ``[LEVEL] YYYY-MM-DD HH:MM:SS text``, on the console and in a file at once; colour on a terminal
only. With ``--json`` stdout carries the journal's own lines instead.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TextIO

import msgspec

from supervisor.job.batch import BatchSpec, describe, describe_change
from supervisor.run import events as ev
from supervisor.run.fold import merge_progress
from supervisor.run.history.recurrence import recurrence_lines, same_failure
from supervisor.run.journal import StateReader
from supervisor.run.paths import RunPaths
from supervisor.run.records import Cause, DecisionKind, FailureClass, FindingLevel, Reason, Sameness, Verdict
from supervisor.run.state import AttemptView, RunState
from supervisor.run.timeline import left as processes_left
from supervisor.text.decode import strip_escapes
from supervisor.views import format as fm
from supervisor.views.chart import draw, loss_points
from supervisor.views.model.nearby import read_context

POLL_S = 0.2
PROGRESS_INTERVAL_S = 5.0


class Level(StrEnum):
    """Levels of a console line."""

    INFO = "INFO"
    SUCCESS = "SUCCESS"
    WARNING = "WARNING"
    ERROR = "ERROR"


WEIGHTS = {Level.INFO: 1, Level.SUCCESS: 2, Level.WARNING: 2, Level.ERROR: 3}
LEAST = {"debug": 1, "info": 1, "warning": 2, "error": 3}

OUTCOME_LEVELS = {ev.Outcome.SUCCEEDED: Level.SUCCESS, ev.Outcome.STOPPED: Level.INFO}

COLOURS = {Level.INFO: "36", Level.SUCCESS: "32", Level.WARNING: "33", Level.ERROR: "31"}


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Where lines go and how.

    `as_json`: journal lines on stdout, words only in the file. `least`: the least level that is printed
    (a key of `LEAST`); the file gets all.
    """

    stdout: TextIO
    log_file: Path | None
    colour: bool = False
    as_json: bool = False
    least: str = "info"


class ConsoleView:
    """Follows one run in a thread and prints what happens. Reads the run directory only.

    `only_news`: what the journal holds already is not printed.
    """

    def __init__(
        self, run: RunPaths, settings: ConsoleSettings, *, node: int = 0, only_news: bool = False
    ) -> None:
        self._run = run
        self._node = run.node(node)
        self._settings = settings
        self._reader = StateReader(self._node.journal)
        while only_news and self._reader.refresh():
            pass
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="stoker-console")
        self._last_progress_t = float("-inf")
        self._progress: ev.Progress | None = None
        self._reads_on = 0
        self._encoder = msgspec.json.Encoder()
        self._file: TextIO | None = None
        if settings.log_file is not None:
            with contextlib.suppress(OSError):
                self._file = settings.log_file.open("a", encoding="utf-8", errors="backslashreplace")

    @property
    def state(self) -> RunState:
        """The state as last read."""
        return self._reader.state

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def finish(self, *, with_story: bool = False) -> None:
        """End the thread; print what is left in the journal, then the story (but no story among JSON lines)."""
        self._stop.set()
        self._thread.join()
        self._print_news()
        if with_story:
            text = story(self.state, self._run, colour=self._settings.colour)
            self._write(self._file, text)
            if not self._settings.as_json:
                self._write(self._settings.stdout, text)
        if self._file is not None:
            self._file.close()

    def _follow(self) -> None:
        while not self._stop.wait(POLL_S):
            self._print_news()

    def _print_news(self) -> None:
        while news := self._reader.refresh():
            for event in news:
                if self._settings.as_json:
                    self._write(self._settings.stdout, self._encoder.encode(event).decode("utf-8"))
                for level, text in self._lines(event):
                    self._print(event.t, level, text)

    def _print(self, t: float, level: Level, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
        line = strip_escapes(text).replace("\r", " ").replace("\n", " ")
        self._write(self._file, f"[{level}] {stamp} {line}")
        if self._settings.as_json or WEIGHTS[level] < LEAST[self._settings.least]:
            return
        tag = f"\x1b[{COLOURS[level]}m[{level}]\x1b[0m" if self._settings.colour else f"[{level}]"
        self._write(self._settings.stdout, f"{tag} {stamp} {line}")

    def _write(self, stream: TextIO | None, text: str) -> None:
        """A reader that left, a terminal that is gone, a full disk: they cost the line, never the run."""
        if stream is not None:
            with contextlib.suppress(OSError):
                print(text, file=stream, flush=True)

    def _lines(self, event: ev.Event) -> Iterator[tuple[Level, str]]:
        if isinstance(event, ev.Progress):
            # Not the state's: that is ahead, at the end of the facts that were read with this one.
            self._progress = merge_progress(self._progress, event)
            if event.t - self._last_progress_t >= PROGRESS_INTERVAL_S:
                self._last_progress_t = event.t
                yield Level.INFO, progress_text(self._progress, self.state.total_steps)
            return
        if isinstance(event, ev.Diagnosed) and not event.provisional:
            yield from verdict_lines(event.verdict, self._run, event.attempt)
            return
        if isinstance(event, ev.Diagnosed) and self._reads_on == event.attempt:
            # All of its logs may take minutes to read; what they seem to say is worth knowing before.
            yield Level.WARNING, f"so far {event.verdict.failure}: {event.verdict.title}"
            return
        if isinstance(event, ev.ProcessesGone):
            self._reads_on = event.attempt
        yield from fact_lines(event)


def wants_colour(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Colour on a terminal only; NO_COLOR and FORCE_COLOR have the last word."""
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR"):
        return True
    return stream.isatty() and env.get("TERM") != "dumb"


def fact_lines(event: ev.Event) -> Iterator[tuple[Level, str]]:
    """What a fact says to a person, as (level, text); nothing for facts that only machines need."""
    match event:
        case ev.RunStarted():
            yield Level.INFO, f"run {event.run_id}: {event.name} on {event.host}"
        case ev.KeeperStarted(continued_by=by) if by:
            yield Level.INFO, f"{by} continues the run"
        case ev.PreflightFound(finding=finding):
            if finding.level in {FindingLevel.WARNING, FindingLevel.REFUSE}:
                fix = f": {finding.fix}" if finding.fix else ""
                level = Level.ERROR if finding.level is FindingLevel.REFUSE else Level.WARNING
                yield level, f"{finding.check}: {finding.what}{fix}"
        case ev.LaunchIntended():
            batch = f" · {batch_text(event.batch)}" if event.batch else ""
            yield Level.INFO, f"attempt {event.attempt}: {event.reason}{batch}"
        case ev.AttemptStarted():
            if event.pid:  # a watched log has no process
                yield Level.INFO, f"attempt {event.attempt} started (pid {event.pid})"
        case ev.TrainerReady():
            if event.resumed_step is not None:
                yield Level.INFO, f"resumed at step {event.resumed_step}"
        case ev.CheckpointCommitted():
            yield Level.INFO, f"checkpoint committed at step {event.step}"
        case ev.EvidenceSeen():
            where = f" ({event.path}:{event.line})" if event.line else ""
            who = f"rank {event.rank}: " if event.rank is not None else ""
            yield Level.WARNING, f"{who}{event.text.strip()[:200]}{where}"
        case ev.StopIntended():
            yield (
                Level.INFO,
                f"stopping attempt {event.attempt}: {event.why} (by {event.by}, grace {event.grace_s:.0f} s)",
            )
        case ev.StopStepTaken(rung=ev.StopStep.SURVIVORS):
            yield Level.ERROR, f"would not end: pids {', '.join(map(str, event.pids))}"
        case ev.ProcessesLeft():
            yield Level.WARNING, processes_left(event)
        case ev.ProcessesGone():
            code = "unknown" if event.exit_code is None else event.exit_code
            yield (
                Level.INFO,
                f"attempt {event.attempt}: its processes have ended, exit code {code}; reading its logs",
            )
        case ev.AttemptEnded():
            cut = f", {event.unread_text}" if event.unread_text else ""
            level = Level.INFO if event.exit_code == 0 and not cut else Level.WARNING
            at = f" at step {event.last_step}" if event.last_step is not None else ""
            code = "unknown" if event.exit_code is None else event.exit_code
            yield level, f"attempt {event.attempt} ended{at}, exit code {code}{cut}"
        case ev.Decided():
            bad = event.decision.kind in {DecisionKind.FAIL, DecisionKind.GIVE_UP}
            level = Level.ERROR if bad else Level.INFO
            yield level, f"decision: {event.decision.kind.replace('_', ' ')}: {event.decision.reason}"
        case ev.ChangePlanned():
            for line in event.lines:
                yield Level.INFO, f"change: {line}"
        case ev.WaitingFor():
            yield Level.WARNING, event.text
        case ev.LaunchCleared(text=text) if text:
            yield Level.WARNING, text
        case ev.Recovered() | ev.ResumeCompared():
            yield _resumed(event)
        case ev.ProbeStarted():
            yield Level.INFO, f"probe {event.probe}: does micro-batch {event.micro_batch} fit?"
        case ev.ProbeEnded():
            took = f"{event.took_s:.0f} s"
            yield Level.INFO, f"probe {event.probe}: micro-batch {event.micro_batch} {event.why} ({took})"
        case ev.BatchFitted():
            yield Level.INFO, event.text
        case ev.BackoffStarted():
            if event.delay_s > 0:
                yield Level.INFO, f"next attempt in {event.delay_s:.0f} s"
        case ev.Held():
            yield Level.WARNING, f"held: {event.reason}"
        case ev.RequestRefused():
            yield Level.WARNING, f"request {event.request} refused: {event.reason}"
        case ev.Advisory():
            yield Level.WARNING, event.text
        case ev.HangCountdown():
            left = f"will be ended in {event.left_s:.0f} s"
            yield Level.WARNING, f"hang: {left}: {event.text}; Esc in the dashboard keeps waiting"
        case ev.HangWithdrawn():
            yield Level.INFO, f"hang: not ended: {event.why}"
        case ev.HangKept():
            yield Level.INFO, f"hang: {event.by} keeps waiting"
        case ev.ClockSet():
            yield (
                Level.WARNING,
                f"the machine's clock was set: it is {event.ahead_s:+.0f} s from the times here",
            )
        case ev.NoteAdded():
            yield Level.INFO, f"note by {event.by}: {event.text}"
        case ev.RunEnded():
            level = OUTCOME_LEVELS.get(event.outcome, Level.ERROR)
            yield level, f"{event.outcome.replace('_', ' ')}: {event.reason} (exit code {event.exit_code})"
        case _:
            return


def _resumed(event: ev.Recovered | ev.ResumeCompared) -> tuple[Level, str]:
    if isinstance(event, ev.Recovered):
        return Level.INFO, f"the next step came {event.total_s:.1f} s after the failure"
    level = Level.WARNING if event.result is Sameness.DIFFERS else Level.INFO
    return level, f"resume: {event.headline}: {event.text}"


def verdict_lines(verdict: Verdict, run: RunPaths, attempt: int) -> Iterator[tuple[Level, str]]:
    """A verdict in lines: title, cause, the user's line of code that raised it, what followed, advice."""
    if verdict.failure is FailureClass.HEALTHY:
        return
    if verdict.failure is FailureClass.TERMINATED and verdict.reason is Reason.USER:
        yield Level.INFO, verdict.title
        return
    yield Level.ERROR, f"{verdict.failure} ({fm.sure(verdict.confidence)}): {verdict.title}"
    if verdict.cause is not None:
        place = place_text(verdict.cause, run.node().attempt(attempt).root)
        yield Level.ERROR, f"cause  {place}  {shortened(verdict.cause.text, 240)}"
        if code := code_text(verdict.cause, run, attempt):
            yield Level.ERROR, f"code   {code}"
    if verdict.consequences:
        counts: dict[str, int] = {}
        for item in verdict.consequences:
            counts[item.words] = counts.get(item.words, 0) + 1
        folded = ", ".join(f"{name} ×{count}" for name, count in counts.items())
        yield Level.INFO, f"what followed: {folded}"
    for advice in verdict.advice[:3]:
        yield Level.INFO, f"advice: {advice}"


def place_text(cause: Cause, root: Path) -> str:
    """Where the cause stands, as a path that opens from here. `root`: the attempt's folder, which it is relative to."""
    path = cause.path
    if not os.path.isabs(path):
        whole = os.path.normpath(root / path)
        path = min(whole, os.path.relpath(whole), key=len)
    return f"{path}:{cause.line}" if cause.line else path


def code_text(cause: Cause, run: RunPaths, attempt: int) -> str:
    """The user's own line in the traceback that ends in the cause, with its place; empty where there is none."""
    own = read_context(run, attempt, cause).own
    return shortened(f"{own.path}:{own.line}  {own.text}", 240) if own is not None else ""


def shortened(text: str, limit: int) -> str:
    """`text` in one line of at most `limit` characters."""
    line = strip_escapes(text).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def batch_text(batch: BatchSpec) -> str:
    """The effective batch as a product."""
    return f"micro-batch {describe(batch)}"


def progress_text(progress: ev.Progress, total_steps: int | None = None) -> str:
    """One line of progress, of what is known. `total_steps`: where the progress does not say it."""
    parts: list[str] = []

    def add(value: float | None, form: Callable[[float], str]) -> None:
        if value is not None:
            parts.append(form(value))

    steps = progress.total_steps or total_steps
    total = f"/{steps}" if steps else ""
    add(progress.step, lambda v: f"step {v:.0f}{total}")
    add(progress.loss, lambda v: f"loss {v:.4f}")
    add(progress.val_loss, lambda v: f"val {v:.4f}")
    add(progress.lr, lambda v: f"lr {v:.2e}")
    add(progress.tokens_per_sec, lambda v: f"{v:,.0f} tokens/s")
    add(progress.samples_per_sec, lambda v: f"{v:,.1f} samples/s")
    add(progress.step_time_s, lambda v: f"{v * 1000:.0f} ms/step")
    parts += [progress.unread_text] if progress.unread_text else []
    return " · ".join(parts) or "alive, no step seen yet"


def story(state: RunState, run: RunPaths, *, colour: bool = False) -> str:
    """The run in a few lines: attempts, verdicts, changes, losses, a curve, where it all lies."""
    lines = ["", f"run       {state.run_id}  {strip_escapes(state.name)}"]
    for index, attempt in enumerate(state.attempts):
        lines += _attempt_story(attempt, run)
        if attempt.verdict is not None:
            same = same_failure(state, attempt.verdict.fingerprint, attempt.number)
            earlier = tuple(number for number in same if number < attempt.number)
            lines += [f"          {line}" for line in recurrence_lines(earlier, None)]
        following = state.attempts[index + 1] if index + 1 < len(state.attempts) else None
        if following is not None:
            lines.append(f"change    {strip_escapes(_change_story(attempt))}")
            if following.resumed_step is not None:
                lines.append(
                    f"resumed   at step {following.resumed_step}, a committed checkpoint of attempt {attempt.number}"
                )
            elif following.first_step is not None:
                how = f"told to by {following.resume}" if following.resume else "not told to"
                began = "it began anew" if following.first_step <= 1 else "it went on"
                lines.append(f"resumed   {how}: {began} at step {following.first_step}")
            if following.compared is not None:
                compared = following.compared
                lines.append(f"compared  {compared.headline}: {strip_escapes(compared.text)}")
    points = loss_points(run.node().series)
    if points:
        (_, first, begin), (_, last, end) = points[0], points[-1]
        lines.append(f"loss      {begin:.4f}{_at_step(first)} → {end:.4f}{_at_step(last)}")
        curve = draw(points, title="loss", colour=colour)
        if curve:
            lines += ["", curve.rstrip("\n"), ""]
    lines.append(f"directory {run.root}")
    return "\n".join(lines)


def _at_step(step: float | None) -> str:
    return "" if step is None else f" at step {step:.0f}"


def _attempt_story(attempt: AttemptView, run: RunPaths) -> list[str]:
    span = ""
    if attempt.started_t is not None and attempt.ended_t is not None:
        span = f" after {attempt.ended_t - attempt.started_t:.0f} s"
    steps = "no step" if attempt.last_step is None else f"steps {attempt.first_step}–{attempt.last_step}"
    batch = f", {batch_text(attempt.batch)}" if attempt.batch else ""
    code = "unknown" if attempt.exit_code is None else attempt.exit_code
    cut = f", {attempt.unread_text}" if attempt.unread_text else ""
    lines = [f"attempt {attempt.number} {steps}, exit {code}{span}{cut}{batch}"]
    verdict = attempt.verdict
    if attempt.wish_text:
        lines.append(f"ended     {attempt.wish_text}")
    elif verdict is not None and verdict.failure is not FailureClass.HEALTHY:
        lines.append(f"verdict   {verdict.failure}: {verdict.title}")
        if verdict.cause is not None:
            place = place_text(verdict.cause, run.node().attempt(attempt.number).root)
            lines.append(f"cause     {place}")
            lines.append(f"          {shortened(verdict.cause.text, 160)}")
            if code := code_text(verdict.cause, run, attempt.number):
                lines.append(f"code      {code}")
    return lines


def _change_story(attempt: AttemptView) -> str:
    decision = attempt.decision
    if decision is None or decision.change is None:
        return "none: relaunched as it was"
    parts = [decision.reason] if decision.change.batch is None else [describe_change(decision.change.batch)]
    parts += [f"{name}={value}" for name, value in decision.change.env]
    if decision.change.new_port:
        parts.append("another port")
    return ", ".join(parts)

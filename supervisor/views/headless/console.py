"""The view used when there is no TUI. It logs events during a run and prints a summary when the run is over.

Lines have the format ``[LEVEL] YYYY-MM-DD HH:MM:SS text``, both on the console and in a file. Color is
used only on a terminal. With ``--json``, stdout gets the raw journal lines instead.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import msgspec

from supervisor.job.spec import Unread
from supervisor.run import events as ev
from supervisor.run.fold import merge_progress
from supervisor.run.journal import StateReader, without_secrets
from supervisor.run.paths import RunPaths, private
from supervisor.run.records import FailureClass, FindingLevel, Reason, Verdict
from supervisor.run.state import RunState, Tone
from supervisor.run.timeline import moment_of
from supervisor.text.decode import ascii_json, printable
from supervisor.text.redact import Redactor
from supervisor.views import format as fm
from supervisor.views.headless.story import batch_text, code_text, exit_text, place_text, shortened, story
from supervisor.views.wording.kinds import (
    counter_text,
    failing_line,
    unread_text,
)
from supervisor.views.wording.phrases import (
    answer_text,
    effect_text,
    flags_text,
    question_text,
    used_batch_lines,
)
from supervisor.views.wording.translate import english

POLL_S = 0.2
PROGRESS_INTERVAL_S = 5.0


class Level(StrEnum):
    """Log levels for console lines."""

    INFO = "INFO"
    SUCCESS = "SUCCESS"
    WARNING = "WARNING"
    ERROR = "ERROR"


WEIGHTS = {Level.INFO: 1, Level.SUCCESS: 2, Level.WARNING: 2, Level.ERROR: 3}
LEAST = {"debug": 1, "info": 1, "warning": 2, "error": 3}

OUTCOME_LEVELS = {ev.Outcome.SUCCEEDED: Level.SUCCESS, ev.Outcome.STOPPED: Level.INFO}
FINDING_LEVELS = {FindingLevel.WARNING: Level.WARNING, FindingLevel.REFUSE: Level.ERROR}

COLOURS = {Level.INFO: "36", Level.SUCCESS: "32", Level.WARNING: "33", Level.ERROR: "31"}

Line: TypeAlias = tuple[Level, str]


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Where and how the console view writes its lines. If `stdout` is None, they go only to the file.

    If `as_json`, stdout gets journal lines and only the file gets text. `least` is the lowest level to print (a key of
    `LEAST`); the file gets all levels. `redactor` hides environment secrets that an older version may have journaled.
    """

    stdout: TextIO | None
    log_file: Path | None
    colour: bool = False
    as_json: bool = False
    least: str = "info"
    redactor: Redactor = field(default_factory=Redactor)


class ConsoleView:
    """Console view of a run. A thread reads the run directory and prints its events.

    If `only_news` is true, skip earlier events. Otherwise, print the latest events of a long journal (or all in JSON mode).
    """

    def __init__(
        self, run: RunPaths, settings: ConsoleSettings, *, node: int = 0, only_news: bool = False
    ) -> None:
        self._run = run
        self._node = run.node(node)
        self._settings = settings
        self._reader = StateReader(self._node.journal, tail_first=not (only_news or settings.as_json))
        while only_news and self._reader.refresh():
            pass
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="stoker-console")
        self._last_progress_t = float("-inf")
        self._gone = False
        self._progress: ev.Progress | None = None
        self._lost = ""  # the word for a non-finite loss
        self._is_behind = self._is_cut = False
        self._reads_on = 0
        self._measured: tuple[tuple[int, Line], ...] = ()
        self._encoder = msgspec.json.Encoder()
        self._kept: TextIO | None = None
        if settings.log_file is not None:
            with contextlib.suppress(OSError):
                self._kept = open(  # noqa: SIM115 - closed by finish
                    settings.log_file, "a", encoding="utf-8", errors="backslashreplace", opener=private
                )

    @property
    def state(self) -> RunState:
        """The most recently read state."""
        return self._reader.state

    def start(self) -> None:
        """Start following the run."""
        self._thread.start()

    def finish(self, *, with_story: bool = False) -> None:
        """Stop the thread, print the rest of the journal, and then print the summary unless in JSON mode."""
        self._stop.set()
        self._thread.join()
        self._print_news()
        while self.state.journal_read is not None:  # the summary needs the whole journal
            self._print_news()
        if with_story:
            redact = self._settings.redactor.text
            text = story(self.state, self._run, redact=redact)
            self._write(self._kept, text)
            if not self._settings.as_json:
                self._write(self._settings.stdout, text)
        if self._kept is not None:
            with contextlib.suppress(OSError):  # after a full disk: write the failed lines again
                self._kept.close()

    def _follow(self) -> None:
        while not self._stop.wait(POLL_S):
            self._print_news()
            gone = not self._run.root.is_dir()
            if gone and not self._gone:
                text = f"the run directory is gone: {self._run.root} was deleted or moved; what runs continues, and is not shown here"
                self._print(time.time(), Level.ERROR, text)
            self._gone = gone

    def _print_news(self) -> None:
        while news := self._reader.refresh():
            if (left_out := self._reader.left_out) and not self._is_cut:
                self._is_cut = True
                text = f"the first {left_out / 1e6:.0f} MB of the journal are left out: `stoker attach --no-ui --json"
                self._print(news[0].t, Level.INFO, f"{text} {self._run.run_id}` prints all")
            for event in news:
                if self._settings.as_json:
                    shown = without_secrets(event, self._settings.redactor)
                    self._write(
                        self._settings.stdout, ascii_json(self._encoder.encode(shown).decode("utf-8"))
                    )
                for level, text in self._lines(event):
                    self._print(event.t, level, text)

    def _print(self, t: float, level: Level, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
        line = printable(self._settings.redactor.text(text))
        self._write(self._kept, f"[{level}] {stamp} {line}")
        if self._settings.as_json or WEIGHTS[level] < LEAST[self._settings.least]:
            return
        tag = f"\x1b[{COLOURS[level]}m[{level}]\x1b[0m" if self._settings.colour else f"[{level}]"
        self._write(self._settings.stdout, f"{tag} {stamp} {line}")

    def _write(self, stream: TextIO | None, text: str) -> None:
        """Write to a stream. A closed pipe, a lost terminal or a full disk costs the line but not the run."""
        if stream is not None:
            with contextlib.suppress(OSError):
                print(text, file=stream, flush=True)

    def _lines(self, event: ev.Event) -> Iterator[Line]:
        if isinstance(event, ev.Progress):
            # Merge events here, because the current state already includes later events of the same read.
            self._progress = merge_progress(self._progress, event)
            was_behind, self._is_behind = self._is_behind, bool(event.lag_bytes)
            falls_behind = self._is_behind and not was_behind
            if event.loss is not None:
                self._lost = ""
            if falls_behind or event.t - self._last_progress_t >= PROGRESS_INTERVAL_S:
                self._last_progress_t = event.t
                yield Level.INFO, progress_text(self._progress, self.state.planned_steps, lost=self._lost)
            return
        if isinstance(event, ev.LossNotFinite | ev.LaunchIntended):
            value = event.value if isinstance(event, ev.LossNotFinite) else ""
            self._lost = value if value in {"", "nan"} else f"{value} or nan"  # inf usually becomes nan
        if isinstance(event, ev.Diagnosed) and not event.provisional:
            yield from verdict_lines(event.verdict, self._run, event.attempt)
            return
        if isinstance(event, ev.Diagnosed) and self._reads_on == event.attempt:
            # Reading all logs may take minutes, so report the preliminary verdict first.
            yield Level.WARNING, f"so far {event.verdict.failure}: {event.verdict.title}"
            return
        if isinstance(event, ev.ProcessesGone):
            self._reads_on = event.attempt
        if isinstance(event, ev.BatchMeasured):
            lines = tuple(event_lines(event))
            yield from (line for line in lines if (event.attempt, line) not in self._measured)
            self._measured = tuple((event.attempt, line) for line in lines)
            return
        yield from event_lines(event)


def console_file(run: RunPaths, node: int = 0) -> Path:
    """Return the log file for a console view that starts now. Each node has its own file."""
    of_node = f"-node{node}" if node else ""
    return run.artifacts / f"console-{time.strftime('%Y%m%d-%H%M%S')}{of_node}.log"


def wants_colour(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Check whether to use color. By default only a terminal gets color; NO_COLOR and FORCE_COLOR override that."""
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR"):
        return True
    return stream.isatty() and env.get("TERM") != "dumb"


def event_lines(event: ev.Event) -> Iterable[Line]:
    """Render an event as log lines. Events meant only for programs produce none."""
    kind = type(event)
    if (made := MADE.get(kind)) is not None:
        return made(event)
    if kind in AS_ON_THE_TIMELINE and (moment := moment_of(event, RunState())) is not None:
        text = english.moment(moment)
        return ((TONE_LEVELS.get(moment.tone, Level.INFO), text),) if text else ()
    return ()


TONE_LEVELS = {Tone.BAD: Level.WARNING, Tone.WARN: Level.WARNING}
# Events that the console prints as on the timeline.
AS_ON_THE_TIMELINE: frozenset[type[ev.Event]] = frozenset(
    {
        ev.ProcessesLeft,
        ev.WaitingFor,
        ev.LaunchCleared,
        ev.Recovered,
        ev.Held,
        ev.Decided,
        ev.ResumeCompared,
        ev.ProbeStarted,
        ev.BatchFitted,
        ev.BatchAnswered,
        ev.CheckpointCommitted,
        ev.CheckpointKept,
        ev.ResumeMissed,
        ev.PlanConfirmed,
        ev.PlanDiffers,
        ev.LossNotFinite,
        ev.LossFinite,
        ev.NodeSeen,
        ev.RequestRefused,
        ev.ClockSet,
        ev.NoteAdded,
    }
)


def _finding(event: ev.PreflightFound) -> Iterable[Line]:
    finding = event.finding
    level = FINDING_LEVELS.get(finding.level)
    fix = f": {finding.fix}" if finding.fix else ""
    return ((level, f"{finding.check}: {finding.what}{fix}"),) if level is not None else ()


def _countdown(event: ev.HangCountdown) -> Iterable[Line]:
    text = f"hang: will be ended in {event.left_s:.0f} s: {event.text}; Esc in the dashboard keeps waiting"
    yield Level.WARNING, text


def _launch(event: ev.LaunchIntended) -> Iterable[Line]:
    batch = f" · {batch_text(event.batch)}" if event.batch else ""
    yield Level.INFO, f"attempt {event.attempt}: {event.reason}{batch}"


def _measured(event: ev.BatchMeasured) -> Iterable[Line]:
    if (batch := event.batch) is not None:
        setting = f", set by {event.setting}" if event.setting else ""
        yield Level.INFO, f"measured: {batch_text(batch)}{setting}"
    if text := counter_text(event):
        yield Level.INFO, text


def _evidence(event: ev.EvidenceSeen) -> Iterable[Line]:
    where = f" ({event.path}:{event.line})" if event.line else ""
    who = f"rank {event.rank}: " if event.rank is not None else ""
    yield Level.WARNING, f"{who}{event.text.strip()[:200]}{where}"


def _stopping(event: ev.StopIntended) -> Iterable[Line]:
    text = f"stopping attempt {event.attempt}: {event.why} (by {event.by}, grace {event.grace_s:.0f} s)"
    again = "; Ctrl-C again kills at once" if event.by == ev.CTRL_C and event.grace_s > 0 else ""
    yield Level.INFO, f"{text}{again}"


def _stop_step(event: ev.StopStepTaken) -> Iterable[Line]:
    if event.step is ev.StopStep.SIGKILL and event.pids:
        yield Level.WARNING, f"killing what is left (SIGKILL): pids {event.labels}"
    if event.step is ev.StopStep.SURVIVORS:
        why = ": they wait in the kernel, for a GPU, a disk or a network" if event.uninterruptible else ""
        yield Level.ERROR, f"would not end: pids {event.labels}{why}"


def _processes_gone(event: ev.ProcessesGone) -> Iterable[Line]:
    gone = f"attempt {event.attempt}: its processes have ended"
    yield Level.INFO, f"{gone}, {exit_text(event.exit_code)}; reading its logs"


def _attempt_ended(event: ev.AttemptEnded) -> Iterable[Line]:
    unread = unread_text(event)
    level = Level.INFO if event.exit_code == 0 and not unread else Level.WARNING
    at = f" at step {event.last_step}" if event.last_step is not None else ""
    cut = f", {unread}" if unread else ""
    yield level, f"attempt {event.attempt} ended{at}, {exit_text(event.exit_code)}{cut}"


def _asked(event: ev.BatchAsked) -> Iterable[Line]:
    """Render a question as a single line that lists the flag for each answer."""
    question = event.question
    if question.what is Unread.EXIT_CODE:
        yield Level.INFO, f"if that was a success: {question.flag('trust')}"
        return
    answers = []
    for one in question.answers:
        text = f"{answer_text(question, one.value, english)}: {effect_text(one, english)}"
        # Omit a flag that would change nothing.
        has_flag = one.change is not None or question.what is Unread.RESUME
        answers.append(f"{flags_text(question, one)} ({text})" if has_flag else text)
    why = {
        Unread.COUNTER: "to continue, answer, or set [policy] step_counter",
        Unread.RESUME: "to continue, answer, or say it with --resume-knob FLAG=PATH or --self-resuming",
    }.get(question.what, "to restart smaller, answer")
    yield Level.WARNING, f"{why}: {question_text(question, english)} {' | '.join(answers)}"


def _advisory(event: ev.Advisory) -> Iterable[Line]:
    yield Level.INFO if event.code == f"{ev.ON_OOM}restarts" else Level.WARNING, event.text


def _run_ended(event: ev.RunEnded) -> Iterable[Line]:
    outcome = english.sentence("outcome", event.outcome)
    level = OUTCOME_LEVELS.get(event.outcome, Level.ERROR)
    if event.outcome is ev.Outcome.LOST and event.exit_code == 0:  # watched; no failure in its log
        yield Level.WARNING, f"{outcome}: {event.reason}"
    else:
        yield level, f"{outcome}: {event.reason} (exit code {event.exit_code})"


# Events with their own console lines.
MADE: Mapping[type[ev.Event], Callable[[Any], Iterable[Line]]] = {
    ev.RunStarted: lambda e: [(Level.INFO, f"run {e.run_id}: {e.name} on {e.host}")],
    ev.KeeperStarted: lambda e: [(Level.INFO, f"{e.continued_by} continues the run")] * bool(e.continued_by),
    ev.TrainerReady: lambda e: (
        [(Level.INFO, f"resumed at step {e.resumed_step}")] if e.resumed_step is not None else []
    ),
    ev.ProbeEnded: lambda e: [
        (Level.INFO, f"probe {e.probe}: micro-batch {e.micro_batch} {e.why} ({e.took_s:.0f} s)")
    ],
    ev.HangCountdown: _countdown,
    ev.HangWithdrawn: lambda e: [(Level.INFO, f"hang: not ended: {e.why}")],
    ev.HangKept: lambda e: [(Level.INFO, f"hang: {e.by} keeps waiting")],
    ev.PreflightFound: _finding,
    ev.LaunchIntended: _launch,
    # A watched log has no process.
    ev.AttemptStarted: lambda e: [(Level.INFO, f"attempt {e.attempt} started (pid {e.pid})")] * bool(e.pid),
    ev.BatchMeasured: _measured,
    ev.EvidenceSeen: _evidence,
    ev.RankFailing: lambda event: [(Level.ERROR, failing_line(event))],
    ev.StopIntended: _stopping,
    ev.StopStepTaken: _stop_step,
    ev.ProcessesGone: _processes_gone,
    ev.AttemptEnded: _attempt_ended,
    ev.BatchAsked: _asked,
    ev.Advisory: _advisory,
    ev.ChangePlanned: lambda event: [(Level.INFO, f"change: {line}") for line in event.lines],
    ev.BackoffStarted: lambda e: [(Level.INFO, f"next attempt in {e.delay_s:.0f} s")] * (e.delay_s > 0),
    ev.RunEnded: _run_ended,
}


def verdict_lines(verdict: Verdict, run: RunPaths, attempt: int) -> Iterator[Line]:
    """Yield a verdict as log lines: title, cause, the user code that raised it, consequences, advice."""
    if verdict.failure is FailureClass.HEALTHY:
        return
    if verdict.failure is FailureClass.TERMINATED and verdict.reason is Reason.USER:
        yield Level.INFO, verdict.title
        return
    sure = fm.sure(verdict)
    yield Level.ERROR, f"{verdict.failure}{f' ({sure})' if sure else ''}: {verdict.title}"
    if verdict.node is not None:
        yield Level.ERROR, f"node   {verdict.node}"
    if verdict.cause is not None:
        place = place_text(verdict.cause, run.node().attempt(attempt).root)
        text = "" if verdict.title_says_cause else f"  {shortened(verdict.cause.text, 240)}"
        yield Level.ERROR, f"cause  {place}{text}"
        if code := code_text(verdict.cause, run, attempt):
            yield Level.ERROR, f"code   {code}"
    for text in used_batch_lines(verdict.batches):
        yield Level.INFO, f"batch  {text}"
    if counts := Counter(item.words for item in verdict.consequences):
        folded = ", ".join(f"{name} ×{count}" for name, count in counts.items())
        yield Level.INFO, f"what followed: {folded}"
    for advice in verdict.advice[:3]:
        yield Level.INFO, f"advice: {advice}"


def progress_text(progress: ev.Progress, total_steps: int | None = None, *, lost: str = "") -> str:
    """Format reported values as a progress line. `total_steps` is the default total; `lost` is a non-finite loss as logged."""
    steps = progress.total_steps or total_steps
    known: Sequence[tuple[float | None, Callable[[float], str]]] = (
        (progress.step, lambda v: f"step {v:.0f}{f'/{steps}' if steps else ''}"),
        (None if lost else progress.loss, lambda v: f"loss {v:.4f}"),
        (progress.val_loss, lambda v: f"val {v:.4f}"),
        (progress.lr, lambda v: f"lr {v:.2e}"),
        (progress.tokens_per_sec, lambda v: f"{v:,.0f} tokens/s"),
        (progress.samples_per_sec, lambda v: f"{v:,.1f} samples/s"),
        (progress.step_time_s, lambda v: f"{v * 1000:.0f} ms/step"),
    )
    parts = [form(value) for value, form in known if value is not None]
    if lost:
        parts.insert(progress.step is not None, f"loss {lost}")
    parts.append(unread_text(progress))
    return " · ".join(filter(None, parts)) or "alive, no step seen yet"

"""The current attempt's instrumentation records: batch, rates, times and, for a script that prints no steps, its steps.

For the batch, samples and times, the process is authoritative, so its values replace those from logs. For the step,
the script's own counter is authoritative if printed, because checkpoints are named after it. Counted steps are used
only if the logs show no step for `SILENT_S`. The trainer's own telemetry is never replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from supervisor.job.batch import BatchSpec, factors
from supervisor.job.config.script_settings import total_steps
from supervisor.job.knobs.conventions import longer_than_usual
from supervisor.job.knobs.measured import Certainty, MeasuredBatch, Why, first_steps, is_named, measured_batch
from supervisor.job.knobs.measured_knobs import MeasuredSettings
from supervisor.job.knobs.resume_settings import knob_name, measured_outputs, resume_seen, resume_way
from supervisor.job.knobs.written_facts import Facts, Rank
from supervisor.job.launch.batch_questions import asked_settings, with_declared
from supervisor.job.spec import JobSpec, Knobs, Unread
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import FactSeen, Observation, Sampled, StepSeen
from supervisor.run import events as ev
from supervisor.run.answers import keep_answers
from supervisor.run.next_job import next_job
from supervisor.run.node_files import LEADER
from supervisor.run.paths import AttemptPaths
from supervisor.run.runfile import RunFile
from supervisor.run.series import RANKS
from supervisor.run.state import AttemptState, Running, RunState
from supervisor.sources.telemetry import step_values
from supervisor.text.redact import redact_argv

LOOK_S, MOST_LOOK_S = 0.5, 300.0
"""First and longest seconds between derivations (doubled each time). Each takes up to 55 ms and may journal 5 KB."""
SILENT_S: Final = 20.0
"""A script that logs no step within this many seconds after its first step is assumed to log none."""
MOST_STEPS: Final = 4096
LATE_S: Final = 2.0
"""Seconds by which the delay between a log line and the next count may vary. Counts come once a second."""
OPEN_STEPS: Final = 20
"""After this many steps, values that still could not be determined are journaled as unknown."""


class MeasuredFacts:
    """Used only by the keeper's single thread. `emit` writes an event; `observe` takes a step as if it came from a log.

    Attributes:
        group_timeout_s: the longest process-group timeout that the job sets or its ranks were seen to request, if it
            exceeds PyTorch's default.
        steps: wall time and step of the latest counted steps; empty if the script logs its own.
    """

    def __init__(
        self,
        emit: Callable[[ev.Event], None],
        observe: Callable[[Observation], None],
        clock: Clock,
        check: PlanCheck,
    ) -> None:
        self._emit, self._observe, self._clock, self._check = emit, observe, clock, check
        self.begin(0, None)

    def begin(self, attempt: int, job: JobSpec | None, *, adopted: RunState | None = None) -> None:
        """Begin an attempt, possibly one `adopted` in the given state. Values already journaled are not written again."""
        self._attempt, self._local_world = attempt, job.nproc_per_node if job is not None else None
        self.group_timeout_s = job.group_timeout_s if job is not None else None
        self._named = job.knobs if job is not None and job.knobs.declared else Knobs()
        self._facts = Facts((job.entry, *job.entry_args), job.cwd) if job is not None else Facts()
        self._asked: tuple[MeasuredBatch, Knobs, MeasuredSettings] | None = None
        self._is_new, self._next_look, self._apart_s = False, 0.0, LOOK_S
        view = adopted.attempt if adopted is not None else None
        self._journalled = view.measured if view is not None else None
        self._is_silent = self._journalled is not None and self._journalled.counts_steps
        self.logs_steps = view is not None and view.first_step is not None and not self._is_silent
        self._has_telemetry = False
        self._first_step_at: float | None = None
        self.steps: deque[tuple[float, float]] = deque(maxlen=MOST_STEPS)
        self._before = 0 if attempt == 1 else None
        """Steps completed in earlier attempts, based on the count in the optimizer's state, which continues across attempts."""
        self._held: deque[tuple[dict[str, Any], StepSeen]] = deque(maxlen=MOST_STEPS)
        """Counted steps, held back until the logs have gone long enough without showing a step."""
        self._values: dict[int, dict[str, float]] = {}
        """Each rank's latest values."""
        self._adopted_t = adopted.last_t if adopted is not None else None
        self._ratio = StepRatio(self._journalled.logged_step if self._journalled is not None else None)

    def hear(self, seen: Observation) -> Observation:
        """Process a record, or note that a log or the trainer's telemetry has steps. Return log steps with measured values added."""
        if isinstance(seen, StepSeen) and "step" in seen.values:
            if not self.logs_steps:
                self._values.clear()  # times of the optimizer's steps
            self.logs_steps, self._has_telemetry = True, self._has_telemetry or seen.from_telemetry
            if not seen.rank and self._adopted_t is None:  # logs that are read again have no reliable times
                self._ratio.log(seen.t, seen.values["step"])
            if not self._has_telemetry and (measured := self._values.get(seen.rank or 0)):
                return dataclasses.replace(seen, measured={**measured})
        elif isinstance(seen, FactSeen):
            self._facts.add({**seen.record, "rank": seen.rank})
            if (timeout_s := longer_than_usual(seen.record.get("timeout_s"))) is not None:
                self.group_timeout_s = max(timeout_s, self.group_timeout_s or 0.0)
            self._is_new = True
            if seen.record["kind"] in {"step", "timing"} and not self._has_telemetry:
                self._take_values(seen)
        return seen

    def step_after(self, counted: int) -> int | None:
        """Return the training run's optimizer step once a process has counted `counted` in this attempt, or None if unknown."""
        return None if self._before is None else self._before + counted

    def look(self, state: RunState, *, is_over: bool = False) -> None:
        """Journal the batch once it is known for certain and whenever it changes. If `is_over`, no more records will arrive."""
        now, condition = self._clock.mono(), state.condition
        begins = isinstance(condition, Running) and condition.phase in {ev.Phase.RENDEZVOUS, ev.Phase.LOADING}
        if begins and self._first_step_at is not None and not self.logs_steps:
            self._emit(ev.PhaseChanged(t=self._clock.wall(), attempt=self._attempt, phase=ev.Phase.STEPPING))
        if self._is_new:
            self._check.look(self._facts, state)
        if self._before is None:
            self._before = _confirmed_step(state)
        if not is_over and (not self._is_new or now < self._next_look):
            return
        # A script that has ended logs no more steps.
        self._is_silent = self._is_silent or (is_over and bool(self._held) and not self.logs_steps)
        self._is_new, self._next_look = False, now + LOOK_S
        self._look_at_batch(state, is_over=is_over)
        if is_over:
            self._release()  # after the batch, because rates depend on it

    def _look_at_batch(self, state: RunState, *, is_over: bool) -> None:
        named, view = self._named, state.attempt
        if view is not None and changed_batch(state, view) is not None:
            for what, value in state.values_answered.items():
                named = with_declared(named, Unread(what), value)
        found = measured_batch(self._facts, local_world_size=self._local_world, named=named)
        steps = max((rank.steps for rank in self._facts.ranks), default=0)
        is_settled = found.accumulated.certainty is Certainty.MEASURED or steps >= OPEN_STEPS or is_over
        if not is_settled:
            return
        event = self._event(found, named)
        if found.micro.why is Why.NOTHING_SEEN and event.resume is None:
            return
        if event.micro_batch is None and event.resume is None and not (is_over or steps >= OPEN_STEPS):
            return
        self._next_look = self._clock.mono() + self._apart_s
        self._apart_s = min(2 * self._apart_s, MOST_LOOK_S)
        if self._journalled is not None and event == replace(self._journalled, t=event.t):
            return
        self._journalled = event
        self._emit(event)

    def _take_values(self, seen: FactSeen) -> None:
        """Use a rank's measured values to complete the steps in a log, or to stand in for a log that has none."""
        record, now = seen.record, self._clock.mono()
        counted, in_state = record.get("step"), record.get("optimizer_step")
        values = self._values.setdefault(seen.rank, {})
        values.update(step_values(record, self._journalled, self._ratio.value if self.logs_steps else 1.0))
        if record["kind"] != "step" or not isinstance(counted, int):
            return
        if self._first_step_at is None:
            self._first_step_at = now
        if isinstance(in_state, int) and in_state:
            self._before = in_state - counted
        if not seen.rank:
            self._ratio.count(seen.t, counted)
        if not self.logs_steps and (step := self.step_after(counted)) is not None:
            self.steps.append((seen.t, step))
        if not self.logs_steps:
            log = f"telemetry/measured{seen.rank}.jsonl"
            self._held.append(
                (record, StepSeen(seen.t, seen.rank, {**values}, from_telemetry=False, log=log))
            )
            if self._is_silent or now - self._first_step_at >= SILENT_S:
                self._release()
        elif values and seen.t > (self._adopted_t or 0.0):
            self._observe(Sampled(seen.t, RANKS, str(seen.rank), {**values}))

    def _release(self) -> None:
        """Pass on the steps that were held back, now that the script is known to log none."""
        if self._held and not self.logs_steps and not self._is_silent:
            # Journal this now, so that an adopting keeper knows it.
            self._is_silent, self._next_look = True, 0.0
        while self._held and not self.logs_steps:
            record, seen = self._held.popleft()
            if (step := self.step_after(record["step"])) is not None:
                seen.values.update(step_values(record, self._journalled), step=float(step))
                self._observe(seen)

    def _event(self, found: MeasuredBatch, named: Knobs) -> ev.BatchMeasured:
        if self._asked is None or self._asked[:2] != (found, named):
            measure = partial(measured_batch, self._facts, local_world_size=self._local_world)
            asked = asked_settings(lambda named: measure(named=named), named, found)
            self._asked = found, named, asked
        settings = self._asked[2]
        answers = {
            "micro_batch": found.micro,
            "accumulation": found.accumulated,
            "setting": found.set_by,
            "accumulation_setting": found.accumulated_by,
        }
        how = {name: f"{answer.certainty}: {answer.why}" for name, answer in answers.items()}
        total, value = settings.total or (None, None)
        way = resume_way(self._facts)
        first = next(iter(self._facts.ranks), Rank())
        is_one_shape = len(first.forwards) == 1
        length = found.sequence_length if is_one_shape else None
        planned_steps = None
        if found.accumulated.number == 1 and self._ratio.value == (1.0 if self.logs_steps else None):
            # With accumulation the setting's number may count passes. What a script's own counter counts is unknown.
            inputs = (setting for setting in self._facts.settings if setting.is_input)
            planned_steps = total_steps([(f"--{s.name}", str(s.number)) for s in inputs if s.number])
        is_leading = is_one_shape and first.shape[0] == found.micro.number
        return ev.BatchMeasured(
            t=self._clock.wall(),
            attempt=self._attempt,
            micro_batch=found.micro.number,
            accumulation=settings.batch.accumulation_steps if settings.batch else settings.passes,
            world_size=found.world_size,
            global_batch=settings.batch.global_batch if settings.batch else None,
            sequence_length=length,
            sample_shape=(length,) if length is not None else first.shape[1:] if is_leading else (),
            planned_steps=planned_steps,
            logged_step=self._ratio.value,
            counts_steps=self._is_silent and not self.logs_steps,
            setting=settings.setting,
            scope=settings.scope.value if settings.scope is not None else None,
            accumulation_setting=settings.accumulation,
            how=how,
            candidates=tuple(map(knob_name, found.set_by.candidates)),
            counts_accumulation=settings.counts_accumulation,
            accumulation_counts_ranks=settings.accumulation_counts_ranks,
            total_setting=total,
            total=value,
            refusal=settings.refusal,
            help=settings.help,
            argv=redact_argv(self._facts.argv),
            words=self._words(settings, way.setting),
            resume=way.resume,
            resume_setting=way.setting,
            resume_how=way.how,
            resume_candidates=way.candidates,
            asks=settings.asks,
            answers=settings.answers,
            has_loaded=found.has_loaded,
            outputs=measured_outputs(self._facts.settings),
        )

    def _words(self, settings: MeasuredSettings, resume: str | None) -> dict[str, tuple[str, ...]]:
        """Return all spellings of each setting that a plan may change; ``-b 16`` equals ``--batch-size 16``."""
        named = self._named
        total = settings.total[0] if settings.total is not None else None
        own = {settings.setting, settings.accumulation, total, resume}
        names = own | {named.batch, named.accumulation, named.start, *_candidates(settings)}
        found = {}
        for setting in self._facts.settings:
            name = next((name for name in names if name is not None and is_named(setting, name)), None)
            if name is not None and len(setting.words) > 1:
                found[name] = setting.words
        return found


def _candidates(settings: MeasuredSettings) -> Iterator[str]:
    """Yield all settings that a user may name in an answer."""
    for one in settings.answers:
        yield one.value
        yield from _candidates(one.then)


def _confirmed_step(state: RunState) -> int | None:
    """Return the step of the checkpoint that the latest attempt loaded, or None if unknown or only derived from a time."""
    view = state.attempt
    if view is None or view.confirmed is None or view.confirmed.resume is None:
        return None
    is_exact = any(c.step == view.resume_at and not c.step_by_time for c in state.checkpoints)
    return view.resume_at if is_exact else None


class StepRatio:
    """How many optimizer steps make up one step of the script's own counter, or None if unknown.

    The two counters are compared over time windows, and two consecutive windows must agree.
    """

    def __init__(self, value: float | None) -> None:
        self.value = value
        self._logged: tuple[float, float] | None = None
        self._first: tuple[float, float, float] | None = None
        """The start of a window: wall time and both counters."""
        self._candidate: float | None = None

    def log(self, t: float, step: float) -> None:
        """Record a logged step at `t` (wall seconds). If several arrive between two counts, the first is used."""
        self._logged = self._logged or (t, step)

    def count(self, t: float, step: float) -> None:
        """Record that training had completed `step` optimizer steps by `t`."""
        if self._logged is not None and self._logged[0] <= t:
            self._compare(*self._logged, step)
            self._logged = None

    def _compare(self, t: float, logged: float, counted: float) -> None:
        took_s, steps, made = (
            now - then for now, then in zip((t, logged, counted), self._first or (t, 0, 0), strict=True)
        )
        if took_s <= 0 or steps < 0:  # the first comparison, or a counter that restarted
            self._first, self._candidate = (t, logged, counted), None
        elif steps and made:
            times = max(made / steps, steps / made)
            error = LATE_S / took_s + 1 / made
            if error > 1 / (4 * times):
                return  # another whole number may be just as close
            whole = round(times) if abs(times / round(times) - 1) <= error else None
            found = None if whole is None else float(whole) if made >= steps else 1 / whole
            self.value = found if found is not None and found == self._candidate else self.value
            self._first, self._candidate = (t, logged, counted), found


# -- whether a restarted attempt trains as planned --------------------------------------------------
#
# The saves of a restarted attempt wait for the file `CONFIRMED`, for at most 20 s (instrument/checkpoints.py). An attempt with another
# batch, or without its checkpoint, is therefore ended before it overwrites a checkpoint.

CONFIRMED: Final = "confirmed"


class PlanCheck:
    """Checks once per restarted attempt whether its first steps match the plan. Used only by the keeper's single thread."""

    def __init__(
        self, record: RunFile, emit: Callable[[ev.Event], None], clock: Clock, env: Mapping[str, str]
    ) -> None:
        self._record, self._emit, self._clock, self._env = record, emit, clock, env
        self._confirmed: Path | None = None
        self._saved: set[str] = set()
        """Checkpoints whose saving was measured in an earlier attempt. If one of them is loaded, that is measured too."""

    def begin(self, number: int, paths: AttemptPaths) -> None:
        """Begin a new attempt."""
        self._confirmed = paths.telemetry / CONFIRMED if number > 1 else None

    def look(self, facts: Facts, state: RunState) -> None:
        """Journal what the attempt's first steps show, once per attempt. Allow saves if the steps match the plan."""
        view = state.attempt
        if self._confirmed is None or view is None or view.differs is not None:
            self._saved |= set(map(os.path.realpath, facts.saved))
            return
        planned, before = changed_batch(state, view), state.measured
        accumulates = before is not None and before.accumulation is not None
        micro, steps, agreed = first_steps(facts, accumulates=accumulates)
        if planned is not None and (other := _other(planned, facts, micro, agreed)) is not None:
            about, number, found = other
            knobs = next_job(self._record.job, state).job.knobs
            knob = knobs.batch if about is Unread.MICRO else knobs.accumulation
            knob = knob if about is not None else None
            why = _why(facts, knob, number)
            if about is Unread.MICRO and Unread.SCOPE in state.answers:
                about = Unread.SCOPE
            wrong = about if about in state.answers else None
            if wrong is not None:
                self._keep_answers(state, wrong=wrong)
            self._differ(view, planned=factors(planned), measured=found, why=why, wrong=wrong)
            return
        first = next(iter(facts.ranks), None)
        ranks = (first.local_world_size or first.world_size or 1) if first is not None else 1
        if sum(rank.steps > 0 for rank in facts.ranks) < ranks:
            return  # some rank of this node may still load a checkpoint
        if planned is not None and (micro is None or steps not in {None, planned.accumulation_steps}):
            return
        wanted = {c.path for c in state.checkpoints if c.attempt < view.number and c.step == view.resume_at}
        wanted |= {view.resume_copy} if view.resume_copy is not None else set()
        wanted = set(map(os.path.realpath, wanted))
        resumed = next((path for path in wanted if resume_seen(facts, path, real=os.path.realpath)), None)
        if not facts.loaded and wanted & self._saved and self._record.node == LEADER:
            resume = f"a resume from checkpoint {view.resume_at}"
            self._differ(view, planned=resume, measured="no checkpoint was loaded", of_resume=True)
            return
        if view.resume_at is None or resumed is not None:
            with contextlib.suppress(OSError):  # the saves wait for a while, and then proceed
                self._confirmed.touch(mode=0o600)
            self._confirmed = None
        if view.confirmed is None and (planned is not None or resumed is not None):
            if planned is not None:
                self._keep_answers(state)
            self._emit(
                ev.PlanConfirmed(
                    t=self._clock.wall(),
                    attempt=view.number,
                    planned=factors(planned) if planned is not None else "",
                    resume=resumed,
                )
            )

    def _keep_answers(self, state: RunState, *, wrong: Unread | None = None) -> None:
        with contextlib.suppress(OSError):  # the answers are tried or asked for again
            keep_answers(state, self._env, self._clock.wall(), wrong=wrong)

    def _differ(self, view: AttemptState, **found: Any) -> None:
        self._confirmed = None
        self._emit(ev.PlanDiffers(t=self._clock.wall(), attempt=view.number, **found))


def changed_batch(state: RunState, view: AttemptState) -> BatchSpec | None:
    """Return the planned batch if a restart changed it. An unchanged batch is only assumed by convention and may be wrong."""
    return view.batch if any(a.changes_batch for a in state.attempts if a.number < view.number) else None


def _other(
    planned: BatchSpec, facts: Facts, micro: int | None, agreed: int | None
) -> tuple[Unread | None, int, str] | None:
    """Return the setting that differs, its measured value and a description, or None if everything matches the plan."""
    if micro is not None and micro != planned.micro_batch_per_rank:
        return Unread.MICRO, micro, f"micro-batch {micro}"
    if agreed is not None and agreed != planned.accumulation_steps:
        return Unread.ACCUMULATION, agreed, f"accumulation {agreed}"
    world = facts.world_size
    if planned.ranks_known and world is not None and world > planned.world_size:
        return None, world, f"{world} ranks"
    return None


def _why(facts: Facts, knob: str | None, number: int | None) -> str:
    """Explain why the setting did not have the planned value, if the reason is known."""
    if knob is None:
        return ""
    mine = [setting for setting in facts.seen if is_named(setting, knob)]
    other = next((s for s in mine if s.number == number and s.file is not None), None)
    if other is not None and other.file is not None:
        return f"{knob} is overridden by {os.path.basename(other.file)}"
    return f"{knob} does not make it" if mine else f"{knob} was not seen in the ranks"

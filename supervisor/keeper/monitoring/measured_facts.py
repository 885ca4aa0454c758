"""The instrumentation's records of the attempt that lives: its batch, its rates and times, and steps for a script that prints none.

For batch, samples and times, the process is right: they replace what a log says of them. For the step, the script's own counter is, if
it prints one: checkpoints are named by it. So the counted steps are used only if the logs have shown no step for `SILENT_S`.
What the trainer's own telemetry says is never replaced.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from supervisor.job.batch import BatchUnit
from supervisor.job.config.script_settings import total_steps
from supervisor.job.knobs.facts import Facts, Rank
from supervisor.job.knobs.measured import Certainty, MeasuredBatch, Why, is_named, measured_batch
from supervisor.job.knobs.measured_knobs import MeasuredSettings
from supervisor.job.knobs.resume_settings import knob_name, measured_outputs, resume_way
from supervisor.job.launch.batch_questions import asked_settings, with_declared
from supervisor.job.spec import JobSpec, Knobs, Unread
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import FactSeen, Observation, Sampled, StepSeen
from supervisor.keeper.monitoring.plan_check import PlanCheck, changed_batch
from supervisor.run import events as ev
from supervisor.run.series import RANKS
from supervisor.run.state import Running, RunState
from supervisor.sources.telemetry import step_values
from supervisor.text.redact import redact_argv

LOOK_S, MOST_LOOK_S, RARELY_S = 0.5, 30.0, 3600.0
"""Seconds between two derivations, which take up to 55 ms: each that changes no settled answer doubles the time to the next."""
SILENT_S: Final = 20.0
"""Seconds from the first step. A script that logs steps has logged one by then."""
MOST_STEPS: Final = 4096
LATE_S: Final = 2.0
"""By so many seconds one line of a log may be further before the next count, which comes once a second, than another."""
OPEN_STEPS: Final = 20
"""After this many steps, unknown answers are journalled as unknown."""


class MeasuredFacts:
    """Used by the keeper's one thread. `emit` writes an event, `observe` takes a step as if a log had shown it."""

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
        """A new attempt, or one `adopted` with the state it was left in: what the journal has is not written again."""
        self._attempt, self._local_world = attempt, job.nproc_per_node if job is not None else None
        self._named = job.knobs if job is not None and job.knobs.declared else Knobs()
        self._facts = Facts((job.entry, *job.entry_args), job.cwd) if job is not None else Facts()
        self._asked: tuple[MeasuredBatch, Knobs, MeasuredSettings] | None = None
        self._is_new, self._next_look, self._apart_s = False, 0.0, LOOK_S
        self._least_apart_s = LOOK_S
        """Twice as long after each answer that was journalled: some change with every look, and have 5 KB."""
        view = adopted.attempt if adopted is not None else None
        self._journalled = view.measured if view is not None else None
        self._is_silent = self._journalled is not None and self._journalled.counts_steps
        self.logs_steps = view is not None and view.first_step is not None and not self._is_silent
        self._has_telemetry = False
        self._first_step_at: float | None = None
        self.steps: deque[tuple[float, float]] = deque(maxlen=MOST_STEPS)
        """Wall time and step of the newest that were counted; empty where the script logs its own."""
        self._before = 0 if attempt == 1 else None
        """Steps of earlier attempts, by the count in an optimizer's state, which continues over all of them."""
        self._held: deque[tuple[dict[str, Any], StepSeen]] = deque(maxlen=MOST_STEPS)
        """Counted steps, until the logs have been silent for long enough."""
        self._values: dict[int, dict[str, float]] = {}
        """The newest values of each rank."""
        self._adopted_t = adopted.last_t if adopted is not None else None
        self._ratio = StepRatio(self._journalled.logged_step if self._journalled is not None else None)

    def hear(self, seen: Observation) -> Observation:
        """Take a record; or note that a log, or the trainer's own telemetry, names steps. Returns a log's step with what was measured."""
        if isinstance(seen, StepSeen) and "step" in seen.values:
            if not self.logs_steps:
                self._values.clear()  # times of the optimizer's steps
            self.logs_steps, self._has_telemetry = True, self._has_telemetry or seen.from_telemetry
            if not seen.rank and self._adopted_t is None:  # logs that are read again say nothing of when
                self._ratio.log(seen.t, seen.values["step"])
            if not self._has_telemetry and (measured := self._values.get(seen.rank or 0)):
                return dataclasses.replace(seen, measured={**measured})
        elif isinstance(seen, FactSeen):
            self._facts.add({**seen.record, "rank": seen.rank})
            self._is_new = True
            if seen.record["kind"] in {"step", "timing"} and not self._has_telemetry:
                self._take_values(seen)
        return seen

    def step_after(self, counted: int) -> int | None:
        """All optimizer steps of the training after so many of a process of this attempt; None where that is not known."""
        return None if self._before is None else self._before + counted

    def look(self, state: RunState, *, is_over: bool = False) -> None:
        """Journal the batch once it is settled, and again when it changes. `is_over`: no more records will come."""
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
        # A script that has ended can log no step any more.
        self._is_silent = self._is_silent or (is_over and bool(self._held) and not self.logs_steps)
        self._is_new, self._next_look = False, now + self._apart_s
        self._look_at_batch(state, is_over=is_over)
        if is_over:
            self._release()  # after the batch, from which the rates follow

    def _look_at_batch(self, state: RunState, *, is_over: bool) -> None:
        named, view = self._named, state.attempt
        if view is not None and changed_batch(state, view) is not None:
            for what, value in state.values_answered.items():
                named = with_declared(named, Unread(what), value)
        found = self._derive(named)
        steps = max((rank.steps for rank in self._facts.ranks), default=0)
        is_settled = found.accumulated.certainty is Certainty.MEASURED or steps >= OPEN_STEPS or is_over
        if not is_settled:
            return
        event = self._event(found, named)
        if found.micro.why is Why.NOTHING_SEEN and event.resume is None:
            return
        if event.micro_batch is None and event.resume is None and not (is_over or steps >= OPEN_STEPS):
            return
        if self._journalled is not None and event == replace(self._journalled, t=event.t):
            self._apart_s = max(min(2 * self._apart_s, MOST_LOOK_S), self._least_apart_s)
            return
        self._journalled, self._apart_s = event, self._least_apart_s
        self._least_apart_s = min(2 * self._least_apart_s, RARELY_S)
        self._emit(event)

    def _take_values(self, seen: FactSeen) -> None:
        """What was measured of a rank's step: for a log that names steps, or, with the step itself, in place of one that does not."""
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
        """Pass the steps on that were held back: the script logs none."""
        if self._held and not self.logs_steps and not self._is_silent:
            self._is_silent, self._next_look = True, 0.0  # journalled now: an adopting keeper must know it
        while self._held and not self.logs_steps:
            record, seen = self._held.popleft()
            if (step := self.step_after(record["step"])) is not None:
                seen.values.update(step_values(record, self._journalled), step=float(step))
                self._observe(seen)

    def _derive(self, named: Knobs) -> MeasuredBatch:
        return measured_batch(self._facts, local_world_size=self._local_world, named=named)

    def _event(self, found: MeasuredBatch, named: Knobs) -> ev.BatchMeasured:
        if self._asked is None or self._asked[:2] != (found, named):
            self._asked = found, named, asked_settings(self._derive, named, found)
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
        is_leading = is_one_shape and first.shape[0] == found.micro_batch
        return ev.BatchMeasured(
            t=self._clock.wall(),
            attempt=self._attempt,
            micro_batch=found.micro_batch,
            accumulation=settings.batch.accumulation_steps if settings.batch else found.accumulation,
            world_size=found.world_size,
            global_batch=settings.batch.global_batch if settings.batch else found.global_batch,
            unit=found.unit.value if found.unit is BatchUnit.TOKENS else "",
            sequence_length=length,
            sample_shape=(length,) if length is not None else first.shape[1:] if is_leading else (),
            planned_steps=self._planned_steps(found),
            logged_step=self._ratio.value,
            counts_steps=self._is_silent and not self.logs_steps,
            setting=settings.setting,
            scope=found.scope.value if found.scope is not None else None,
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

    def _planned_steps(self, found: MeasuredBatch) -> int | None:
        """The optimizer steps of the whole training, by the one setting whose name means that.

        With accumulation, its number may be that of the passes; of a script's own counter it is not known what it counts.
        """
        if found.accumulation != 1 or self._ratio.value != (1.0 if self.logs_steps else None):
            return None
        inputs = (setting for setting in self._facts.settings if setting.is_input)
        return total_steps((f"--{s.name}", str(s.number)) for s in inputs if s.number)

    def _words(self, settings: MeasuredSettings, resume: str | None) -> dict[str, tuple[str, ...]]:
        """All words of each setting that a plan may change: ``-b 16`` and ``--batch-size 16`` are one."""
        named = self._named
        total = settings.total[0] if settings.total is not None else None
        names = {
            settings.setting,
            settings.accumulation,
            total,
            resume,
            named.batch,
            named.accumulation,
            named.start,
            *_candidates(settings),
        }
        found = {}
        for setting in self._facts.settings:
            name = next((name for name in names if name is not None and is_named(setting, name)), None)
            if name is not None and len(setting.words) > 1:
                found[name] = setting.words
        return found


def _candidates(settings: MeasuredSettings) -> Iterator[str]:
    """All settings that an answer may name."""
    for one in settings.answers:
        yield one.value
        yield from _candidates(one.then)


def _confirmed_step(state: RunState) -> int | None:
    """The step of the checkpoint that the newest attempt was seen to load; None where it is only known about when it was written."""
    view = state.attempt
    if view is None or view.confirmed is None or view.confirmed.resume is None:
        return None
    is_exact = any(c.step == view.resume_at and not c.step_by_time for c in state.checkpoints)
    return view.resume_at if is_exact else None


class StepRatio:
    """How many optimizer steps one step of the counter is that a script prints; None: not known.

    Both are compared over windows of time. Two windows in a row that agree are believed.
    """

    def __init__(self, value: float | None) -> None:
        self.value = value
        self._logged: tuple[float, float] | None = None
        self._first: tuple[float, float, float] | None = None
        """Where a window began: wall time, and both counters."""
        self._candidate: float | None = None

    def log(self, t: float, step: float) -> None:
        """The log named a step at `t`, wall seconds. Of those between two counts the first is taken."""
        self._logged = self._logged or (t, step)

    def count(self, t: float, step: float) -> None:
        """So many optimizer steps were made at `t`."""
        if self._logged is not None and self._logged[0] <= t:
            self._compare(*self._logged, step)
            self._logged = None

    def _compare(self, t: float, logged: float, counted: float) -> None:
        took_s, steps, made = (
            now - then for now, then in zip((t, logged, counted), self._first or (t, 0, 0), strict=True)
        )
        if took_s <= 0 or steps < 0:  # the first, or a counter that begins again
            self._first, self._candidate = (t, logged, counted), None
        elif steps and made:
            times = max(made / steps, steps / made)
            error = LATE_S / took_s + 1 / made
            if error > 1 / (4 * times):
                return  # another whole number may be as near
            whole = round(times) if abs(times / round(times) - 1) <= error else None
            found = None if whole is None else float(whole) if made >= steps else 1 / whole
            self.value = found if found is not None and found == self._candidate else self.value
            self._first, self._candidate = (t, logged, counted), found

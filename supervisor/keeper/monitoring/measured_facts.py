"""The instrumentation's records of the attempt that lives: its batch, and steps for a script that prints none.

For the batch, the process is right. For the step, the script's own counter is, if it prints one: checkpoints are named by it. So the
counted steps are used only if the logs have shown no step for `SILENT_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from supervisor.job.batch import BatchUnit
from supervisor.job.knobs.checkpoint_names import measured_outputs
from supervisor.job.knobs.facts import Facts
from supervisor.job.knobs.measured import Certainty, MeasuredBatch, Why, is_named, measured_batch
from supervisor.job.knobs.measured_knobs import MeasuredSettings
from supervisor.job.knobs.measured_resume import knob_name, resume_way
from supervisor.job.knobs.questions import asked_settings, with_declared
from supervisor.job.spec import JobSpec, Knobs, Unread
from supervisor.keeper.clock import Clock
from supervisor.keeper.monitoring.observations import FactSeen, Observation, StepSeen
from supervisor.keeper.monitoring.plan_check import PlanCheck, changed_batch
from supervisor.run import events as ev
from supervisor.run.state import RunState
from supervisor.text.redact import redact_argv

LOOK_S, MOST_LOOK_S = 0.5, 30.0
"""Seconds between two derivations, which take up to 55 ms: each that changes no settled answer doubles the time to the next."""
SILENT_S: Final = 20.0
"""Seconds from the first step. A script that logs steps has logged one by then."""
MOST_STEPS: Final = 4096
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
        self._facts = Facts()
        self._asked: tuple[MeasuredBatch, Knobs, MeasuredSettings] | None = None
        self._is_new, self._next_look, self._apart_s = False, 0.0, LOOK_S
        view = adopted.attempt if adopted is not None else None
        self._journalled = view.measured if view is not None else None
        self._logs_step = view is not None and view.first_step is not None
        self._first_step_at: float | None = None
        self.steps: deque[tuple[float, float]] = deque(maxlen=MOST_STEPS)
        """Wall time and step of the newest that were counted; empty where the script logs its own."""
        self._before = 0 if attempt == 1 else None
        """Steps of earlier attempts, by the count in an optimizer's state, which continues over all of them."""
        self._waiting: StepSeen | None = None

    def hear(self, seen: Observation) -> None:
        """Take a record; or note that a log, or the trainer's own telemetry, names steps."""
        if isinstance(seen, StepSeen):
            self._logs_step = self._logs_step or "step" in seen.values
        elif isinstance(seen, FactSeen):
            self._facts.add({**seen.record, "rank": seen.rank})
            self._is_new = True
            if seen.record["kind"] == "step" and not self._logs_step:
                self._count(seen)

    def step_after(self, counted: int) -> int | None:
        """The training's step after so many optimizer steps of a process of this attempt; None where it is not known, or logged."""
        return None if self._logs_step or self._before is None else self._before + counted

    def look(self, state: RunState, *, is_over: bool = False) -> None:
        """Journal the batch once it is settled, and again when it changes. `is_over`: no more records will come."""
        now = self._clock.mono()
        if self._is_new:
            self._check.look(self._facts, state)
        if self._before is None:
            self._before = _confirmed_step(state)
        if is_over and self._waiting is not None and not self._logs_step:
            self._observe(self._waiting)  # the script ended before it could have logged a step
        if not is_over and (not self._is_new or now < self._next_look):
            return
        self._is_new, self._next_look = False, now + self._apart_s
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
            self._apart_s = min(2 * self._apart_s, MOST_LOOK_S)
            return
        self._journalled, self._apart_s = event, LOOK_S
        self._emit(event)

    def _count(self, seen: FactSeen) -> None:
        """Pass a counted step on. Until the logs have been silent for long enough, only keep the newest."""
        record = seen.record
        now = self._clock.mono()
        if self._first_step_at is None:
            self._first_step_at = now
        counted, in_state = record.get("step"), record.get("optimizer_step")
        if isinstance(counted, int) and isinstance(in_state, int) and in_state:
            self._before = in_state - counted
        step = self.step_after(counted) if isinstance(counted, int) else None
        if step is None:
            return
        values = {"step": float(step)}
        self.steps.append((seen.t, step))
        steps, took_s = record.get("steps"), record.get("step_time_s")
        if isinstance(steps, int) and isinstance(took_s, int | float) and steps > 0 and took_s > 0:
            values["step_time_s"] = took_s / steps
            samples = record.get("samples")
            if isinstance(samples, int):
                values["samples_per_sec"] = samples * (self._facts.world_size or 1) / took_s
        peak = record.get("memory_peak_bytes")
        if isinstance(peak, int):
            values["memory_peak_bytes"] = float(peak)
        log = f"telemetry/measured{seen.rank}.jsonl"
        self._waiting = StepSeen(seen.t, seen.rank, values, from_telemetry=False, log=log)
        if now - self._first_step_at >= SILENT_S:
            self._observe(self._waiting)

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
        way = resume_way(found.resume)
        return ev.BatchMeasured(
            t=self._clock.wall(),
            attempt=self._attempt,
            micro_batch=found.micro_batch,
            accumulation=settings.batch.accumulation_steps if settings.batch else found.accumulation,
            world_size=found.world_size,
            global_batch=settings.batch.global_batch if settings.batch else found.global_batch,
            unit=found.unit.value if found.unit is BatchUnit.TOKENS else "",
            sequence_length=found.sequence_length,
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

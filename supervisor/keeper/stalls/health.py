"""The health of a live attempt: stalls and hangs, stragglers, early signs. Health only advises; the keeper's loop acts.

Receives sensor observations and is updated on every tick of the loop. Paces and earlier advice outlive an attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from supervisor.job.spec import HangSettings
from supervisor.keeper.base.background import BackgroundTask
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import (
    FactSeen,
    LinesSeen,
    Observation,
    Reported,
    ReportedEvent,
    Sampled,
    StepSeen,
)
from supervisor.keeper.stalls.hang_watch import HangContext, HangWatch
from supervisor.keeper.stalls.stack_rounds import Round, StackBroker, Targets, take_round
from supervisor.policy.health.early_signs import PAUSE_S, Advice, EarlySigns
from supervisor.policy.health.memory_forecast import MemoryForecast
from supervisor.policy.health.stall import Paces, StallWatch
from supervisor.policy.health.straggler import Stragglers
from supervisor.run import events as ev
from supervisor.run.journal import facts_in
from supervisor.run.paths import NodePaths
from supervisor.run.series import GPU, HOST, MACHINE_KEY, METRICS, RANKS, SeriesReader
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.checkpoint_layouts import tree_bytes

READ_AGAIN_S = 3.0
"""An adopting keeper rereads the logs, so whatever it sees in its first seconds happened earlier."""
LOG_STEP_GAP_S = 0.05
"""Steps in one batch of a log are read at the same moment, so only gaps between batches count."""
AWAY_S = 2.0
RESET_STEPS = 10
"""Ranks are never this many steps apart, so a counter that drops by more must restart every epoch."""
STRAGGLER_INTERVAL_S = 10.0


class Health:
    """Follows successive attempts.

    `targets` returns the processes whose stacks can be taken now, or None as long as no rank is known. `around`
    holds the other values that decide whether to stop a silent attempt.
    """

    _flagged_before: ev.StallFlagged | None
    _slow: int | None
    _past_t: float | None
    _last_tick: float

    def __init__(
        self,
        node: NodePaths,
        settings: HangSettings,
        emit: Callable[[ev.Event], None],
        clock: Clock,
        targets: Callable[[], Targets | None],
        take: Callable[[Targets, Clock], Round] = take_round,
        around: HangContext | None = None,
        total_steps: int | None = None,
    ) -> None:
        self._node = node
        self._asked_total = total_steps
        self._settings = settings
        self._emit = emit
        self._clock = clock
        self._stacks = StackBroker(emit, clock, targets, take)
        self._paces = Paces()
        self._said: dict[str, float] = {}
        self._hangs = HangWatch(settings, emit, clock, self._stacks, around or HangContext(), self._say)
        self._watch: StallWatch | None = None
        self._reset(0)

    def begin(self, attempt: int, *, adopted: RunState | None = None) -> None:
        """Begin a new attempt, or continue one that was `adopted` in the given state."""
        now = self._clock.mono()
        self._reset(attempt)
        self._watch = StallWatch(self._paces, self._settings, started=now)
        view = adopted.attempt if adopted is not None else None
        if adopted is None or view is None:
            return
        self._watch, self._past_t = resumed_watch(self._node, view, self._paces, self._settings, self._mono)
        self._read_again = self._replayed = now + READ_AGAIN_S
        for advisory in adopted.advisories:
            self._said[advisory.code] = now
        self._hangs.adopt(view, self._read_again)
        self._flagged_before = view.stall
        if view.slow_rank is not None:
            self._slow = view.slow_rank.rank

    def end(self) -> None:
        """Stop checking, because the attempt has ended. Any round in progress finishes on its own."""
        self._watch = None

    @property
    def working(self) -> bool:
        """Whether stacks are currently being taken."""
        return self._stacks.working

    def close(self) -> None:
        """Wait for any rounds in progress."""
        self._watch = None
        self._stacks.close()

    def observe(self, seen: Observation) -> None:
        """Process a sensor observation."""
        watch = self._watch
        if watch is None:
            return
        match seen:
            case StepSeen():
                self._step(watch, seen)
            case Reported(event=event, rank=rank):
                if not self._is_past(event.t):
                    self._report(watch, event, rank)
            case LinesSeen():
                if seen.again:
                    watch.recall(seen.log, seen.lines)
                else:
                    watch.printed(seen.log, seen.lines, self._mono(seen.t))
            case Sampled():
                self._sample(seen)
            case FactSeen():
                self._say(self._memory.add(seen.rank, seen.record))

    def saved(self, checkpoint: ev.CheckpointCommitted) -> None:
        """Count a checkpoint that was found in a folder as progress."""
        if self._watch is not None:
            self._watch.progress(self._mono(checkpoint.written_t or checkpoint.t))

    def tick(self) -> bool:
        """Check for silence. Return True if the attempt is hanging and must be stopped."""
        watch = self._watch
        if watch is None:
            return False
        now = self._clock.mono()
        if now - self._last_tick > AWAY_S:
            # The keeper slept, but the ranks did not. Read the logs first.
            self._read_again = max(self._read_again, now + AWAY_S)
        self._last_tick = now
        self._look_for_stragglers(now)
        taken = self._stacks.poll()
        over = watch.ended_s()
        if over is not None:
            self._hangs.over(over)
        if now < self._read_again:
            return False
        limit = watch.flag(now)
        if limit is not None:
            self._hangs.flag(watch, limit, now)
        if self._flagged_before is not None:
            self._close_flagged(self._flagged_before, watch, now)
        if watch.flagged is None:
            return False
        return self._hangs.look(watch, watch.flagged, taken, now)

    def keep_waiting(self, by: str) -> None:
        """Let this silence continue, because the user chose to keep waiting."""
        self._hangs.keep_waiting(by)

    def stacks_now(self) -> BackgroundTask[Round, str] | None:
        """Start a round that a user requested. The task returns the artifact's name. Return None if no rank is known."""
        return self._stacks.ask()

    # -- the memory of an attempt ----------------------------------------------------------------

    def _reset(self, attempt: int) -> None:
        self._attempt = attempt
        self._stacks.begin(attempt)
        self._early, self._memory = EarlySigns(), MemoryForecast(self._asked_total)
        self._stragglers = Stragglers()
        self._past_t = None
        self._read_again = self._replayed = float("-inf")
        self._wire = False
        self._last_tick = self._clock.mono()
        self._max_step = self._max_epoch = -1.0
        self._total = float("inf")
        self._log_step_mono = float("-inf")
        self._speaker: int | None = None
        self._hangs.begin(attempt)
        self._flagged_before = None
        self._next_straggler = float("-inf")
        self._slow = None

    def _close_flagged(self, stall: ev.StallFlagged, watch: StallWatch, now: float) -> None:
        """Close the stall that the previous keeper flagged, unless the silence was flagged again."""
        self._flagged_before = None
        if watch.flagged is None:
            lasted_s = self._clock.wall() - (now - watch.last_sign) - stall.since
            self._hangs.over(max(stall.waited_s, lasted_s))
            self._paces.returned_s = max(self._paces.returned_s, lasted_s)

    def _is_past(self, t: float) -> bool:
        """Check whether an earlier keeper saw time `t`. Always False once the logs have been reread, because clocks may differ."""
        is_known = self._past_t is not None and t <= self._past_t
        return is_known and self._clock.mono() < self._replayed

    # -- signs of life ---------------------------------------------------------------------------

    def _step(self, watch: StallWatch, seen: StepSeen) -> None:
        if seen.from_telemetry and self._is_past(seen.t):
            return
        self._wire = self._wire or seen.from_telemetry
        if self._wire and not seen.from_telemetry:
            return  # telemetry has the exact values
        if seen.again:
            return
        step = seen.values.get("step")
        mono, epoch = self._mono(seen.t), seen.values.get("epoch", -1.0)
        is_next_epoch, self._max_epoch = epoch > self._max_epoch >= 0, max(epoch, self._max_epoch)
        if step is not None:
            is_new = step > self._max_step or step < self._max_step - RESET_STEPS
        else:
            is_new = is_next_epoch and self._max_step < 0  # a script whose log counts only epochs
        if is_new and not seen.from_telemetry and mono - self._log_step_mono < LOG_STEP_GAP_S:
            watch.progress(mono)
        elif is_new:
            watch.step(mono)
            self._log_step_mono = mono
        elif is_next_epoch:
            watch.progress(mono)
        self._max_step = step if is_new and step is not None else self._max_step
        total = seen.values.get("total_steps")
        if step is not None and total is not None and total > 0:
            self._total = total
            watch.finish(done=step >= total)
        elif step is not None and self._asked_total is not None:
            # A step beyond this number shows that it meant something else.
            watch.finish(done=step == self._asked_total)
        elif step is not None and step > self._total:
            watch.finish(done=False)  # that total was the end of an epoch
        if seen.rank is not None:
            if seen.from_telemetry:
                self._stragglers.step(seen.rank, seen.t, seen.values)
            else:
                self._stragglers.measured(seen.rank, seen.values)
        self._say(self._early.step(seen.rank, mono, seen.values))

    def _report(self, watch: StallWatch, event: ReportedEvent, rank: int | None) -> None:
        mono = self._mono(event.t)
        match event:
            case ev.PhaseChanged():
                if self._is_progress_of(rank):
                    watch.enter(event.phase, mono)
                    self._stragglers.pause()
            case ev.CheckpointCommitted():
                watch.progress(mono)
                self._stragglers.pause()
                self._say(self._early.checkpoint(tree_bytes(Path(event.path))))
            case ev.EvidenceSeen():
                self._early.complaint(rank, mono, event.failure, event.text)

    def _is_progress_of(self, rank: int | None) -> bool:
        """Check whether this rank's phases count for the attempt: those of rank 0 or of the first rank to report any."""
        if rank in {None, 0}:
            self._speaker = 0
        elif self._speaker is None:
            self._speaker = rank
        return self._speaker == (rank or 0)

    def _sample(self, seen: Sampled) -> None:
        mono = self._mono(seen.t)
        if seen.stream == RANKS and seen.key.isdecimal():
            self._stragglers.measured(int(seen.key), seen.values)
        elif seen.stream == GPU:
            self._say(self._early.gpu(seen.key, mono, seen.values))
        elif seen.stream == HOST and seen.key == MACHINE_KEY:
            self._say(self._early.machine(mono, seen.values))

    def _mono(self, wall: float) -> float:
        """Convert a wall time to the keeper's monotonic clock. The result is never in the future."""
        return self._clock.mono() - max(0.0, self._clock.wall() - wall)

    # -- advice ----------------------------------------------------------------------------------

    def _look_for_stragglers(self, now: float) -> None:
        if now < self._next_straggler:
            return
        self._next_straggler = now + STRAGGLER_INTERVAL_S
        found = self._stragglers.find()
        slow = ev.SlowRankFound(t=self._clock.wall(), attempt=self._attempt)
        if found is not None:
            numbers = {"lost_s": round(found.lost_s, 4), "step_s": round(found.step_s, 4)}
            slow = replace(slow, rank=found.rank, **numbers)
        if slow.rank != self._slow:
            self._slow = slow.rank
            self._emit(slow)
        self._say([found.advice] if found is not None else [])

    def _say(self, advice: Iterable[Advice]) -> None:
        for item in advice:
            now = self._clock.mono()
            if now - self._said.get(item.code, -math.inf) >= PAUSE_S:
                self._said[item.code] = now
                self._emit(
                    ev.Advisory(
                        t=self._clock.wall(),
                        attempt=self._attempt,
                        code=item.code,
                        text=item.text[:400],
                        rank=item.rank,
                    )
                )


# -- where an earlier keeper left the attempt ------------------------------------------------------

TAIL_BYTES = 1 << 20


def resumed_watch(
    node: NodePaths, view: AttemptState, paces: Paces, settings: HangSettings, mono: Callable[[float], float]
) -> tuple[StallWatch, float | None]:
    """Return the watch for an adopted attempt, restored from its samples, and the wall time of its last step or phase change.

    Other paces are learned again. `mono` converts a wall time to the keeper's clock.
    """
    watch = StallWatch(paces, settings, started=mono(view.started_t or view.planned_t))
    if view.first_step_t is not None:
        watch.step(mono(view.first_step_t))
    for fact in facts_in(node.journal):
        if isinstance(fact, ev.StallEnded):
            paces.returned_s = max(
                paces.returned_s, fact.stalled_s
            )  # a later silence of this length is not ended, either
    last_t, resumed = view.first_step_t, False
    reader = SeriesReader(node.series, METRICS)
    reader.seek_tail(TAIL_BYTES)
    for sample in chain.from_iterable(iter(reader.read, [])):
        if sample.a != view.number or sample.v.get("step") is None:
            continue
        at = mono(sample.t)
        if not resumed:  # earlier samples are not read, so this one ends no gap
            watch.resume(at)
        watch.step(at)
        resumed, last_t = True, sample.t
    if not resumed:  # no sample shows when it last stepped, so the silence begins now
        watch.progress(mono(math.inf))
    if view.phase is not None and view.phase_t is not None and view.phase_t >= (last_t or 0.0):
        watch.enter(view.phase, mono(view.phase_t))
        last_t = view.phase_t
    return watch, last_t

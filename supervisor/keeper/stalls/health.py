"""The health of a live attempt: stalls and hangs, stragglers, early signs. It advises; the keeper's loop acts.

Fed with what the sensors saw, looked after at every tick of the loop. Paces and what was said outlive an attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from supervisor.diagnosis.hang.stack_groups import Doing, alike
from supervisor.job.spec import HangSettings
from supervisor.keeper.background_task import BackgroundTask
from supervisor.keeper.clock import Clock
from supervisor.keeper.monitoring.observations import (
    CheckpointSeen,
    Observation,
    PhaseSeen,
    Sampled,
    StepSeen,
)
from supervisor.keeper.monitoring.sensors import MACHINE
from supervisor.keeper.stalls.pace_history import Past, past_of
from supervisor.keeper.stalls.stack_broker import StackBroker
from supervisor.keeper.stalls.stack_rounds import Round, Targets, take_round
from supervisor.policy.health.advice import Advice, Quota
from supervisor.policy.health.early import EarlySigns
from supervisor.policy.health.pace import Paces
from supervisor.policy.health.stall import StallWatch, Threshold, moved
from supervisor.policy.health.straggler import Stragglers
from supervisor.run import events as ev
from supervisor.run.paths import NodePaths
from supervisor.run.series import GPU, HOST
from supervisor.run.state import RunState
from supervisor.sources.sizes import tree_bytes

ROUND_GAP_S = 3.0
LONGEST_GAP_S = 300.0
"""Rounds of a long silence that prove nothing come at doubling distances up to this: each writes an artifact."""
SETTLE_S = 3.0
"""An adopting keeper reads the logs again: what it sees in its first seconds happened earlier."""
LOG_STEP_GAP_S = 0.05
"""Steps read from one batch of a log come at the same moment: only a gap between batches is one."""
AWAY_S = 2.0
RESET_STEPS = 10
"""A counter that falls by more than ranks can lie apart starts anew with each epoch."""
STRAGGLER_INTERVAL_S = 10.0
SURE_ROUNDS, KERNEL_ROUNDS = 2, 3
"""Rounds that must be alike before an act; where only /proc could be read, one more: it says less."""


class Health:
    """Follows one attempt after the other. Used by the keeper's one thread.

    Args:
        emit: journals a fact.
        targets: whom stacks are to be taken of now; None while no rank is known.
    """

    _line: float
    _last_tick: float

    def __init__(
        self,
        node: NodePaths,
        settings: HangSettings,
        emit: Callable[[ev.Event], None],
        clock: Clock,
        targets: Callable[[], Targets | None],
        take: Callable[[Targets, Clock], Round] = take_round,
    ) -> None:
        self._node = node
        self._settings = settings
        self._emit = emit
        self._clock = clock
        self._desk = StackBroker(emit, clock, targets, take)
        self._paces = Paces()
        self._quota = Quota()
        self._watch: StallWatch | None = None
        self._reset(0)

    def begin(self, attempt: int, *, adopted: RunState | None = None) -> None:
        """A new attempt, or one `adopted` in the state that it was left in."""
        now = self._clock.mono()
        self._reset(attempt)
        self._watch = StallWatch(self._paces, self._settings, started=now)
        view = adopted.attempt if adopted is not None else None
        if adopted is None or view is None:
            return
        past = past_of(self._node, attempt)
        self._past = past
        self._settled = self._replayed = now + SETTLE_S
        for stage, durations in past.durations.items():
            for duration in durations:
                self._paces.add(stage, duration)
        for stage, silent_s in past.silences:
            self._paces.forgive(stage, silent_s)
        if past.last_t is not None and view.first_step is not None:
            self._watch.resume(view.phase, min(now, self._mono(past.last_t)))
        self._desk.begin(attempt, probed=view.stack_source is not None)
        for advisory in adopted.advisories:
            self._quota.said(advisory.code, now)
        if view.stall is not None:
            # Flagged by the keeper before: found again here, or over.
            self._emit(ev.StallEnded(t=self._clock.wall(), attempt=attempt, stalled_s=view.stall.waited_s))

    def end(self) -> None:
        """The attempt has ended: no more looks. A round that is being taken is left to finish by itself."""
        self._watch = None
        self._desk.end()

    @property
    def working(self) -> bool:
        """Whether stacks are being taken now."""
        return self._desk.working

    def close(self) -> None:
        """Wait for what is still being taken."""
        self._watch = None
        self._desk.close()

    def observe(self, seen: Observation) -> None:
        """Something that a sensor saw."""
        watch = self._watch
        if watch is None:
            return
        match seen:
            case StepSeen():
                self._step(watch, seen)
            case PhaseSeen():
                if not self._is_past(seen.t) and self._speaks(seen.rank):
                    watch.enter(seen.phase, self._mono(seen.t))
                    self._stragglers.pause()
            case CheckpointSeen():
                if not self._is_past(seen.t):
                    watch.sign(self._mono(seen.t))
                    self._stragglers.pause()
                    self._say(self._early.checkpoint(tree_bytes(Path(seen.path))))
            case Sampled():
                self._sample(seen)
            case _:
                pass

    def line_seen(self, mono: float | None) -> None:
        """When some rank last wrote to its log, by the keeper's clock."""
        if self._watch is None or mono is None or mono <= self._line or mono < self._replayed:
            return
        self._line = mono
        self._watch.line(mono)

    def tick(self) -> bool:
        """Look at the silence; True: this is a hang, end the attempt."""
        watch = self._watch
        if watch is None:
            return False
        now = self._clock.mono()
        if now - self._last_tick > AWAY_S:
            self._settled = max(
                self._settled, now + AWAY_S
            )  # we slept, not the ranks: look at the logs first
        self._last_tick = now
        self._desk.look()
        if self._max_step >= 0:
            self._desk.probe()
        self._look_for_stragglers(now)
        taken = self._desk.poll()
        over = watch.ended_s()
        if over is not None:
            self._rounds.clear()
            self._emit(ev.StallEnded(t=self._clock.wall(), attempt=self._attempt, stalled_s=over))
        if now < self._settled:
            return False
        limit = watch.flag(now)
        if limit is not None:
            self._flag(watch, limit, now)
        if taken is not None and watch.flagged is not None:
            self._keep(taken)
        if watch.flagged is None:
            return False
        if not self._told and self._rounds and now >= self._next_round:
            self._start_round(now)  # what the first round did not show, a second may
        return self._confirm(watch, watch.flagged, now)

    def stacks_now(self) -> BackgroundTask[Round, str] | None:
        """Begin a round for a person: its answer is the artifact's name. None where there is nobody to look at."""
        return self._desk.ask()

    # -- what is remembered of an attempt --------------------------------------------------------

    def _reset(self, attempt: int) -> None:
        self._attempt = attempt
        self._desk.begin(attempt)
        self._early = EarlySigns()
        self._stragglers = Stragglers()
        self._past = Past()
        self._settled = self._replayed = float("-inf")
        self._wire = False
        self._last_tick = self._clock.mono()
        self._line = float("-inf")
        self._max_step = -1.0
        self._log_step_mono = float("-inf")
        self._speaker: int | None = None
        self._rounds: list[Round] = []
        self._told = False
        self._next_round = float("-inf")
        self._gap_s = ROUND_GAP_S
        self._next_straggler = float("-inf")

    def _is_past(self, t: float) -> bool:
        """Whether a keeper before this one saw it. Only while the files are read again: its clock may have been another."""
        known = self._past.last_t
        return known is not None and t <= known and self._clock.mono() < self._replayed

    # -- signs of life ---------------------------------------------------------------------------

    def _step(self, watch: StallWatch, seen: StepSeen) -> None:
        if seen.from_wire and self._is_past(seen.t):
            return
        self._wire = self._wire or seen.from_wire
        if self._wire and not seen.from_wire:
            return  # the console line of what telemetry says exactly
        step = seen.values.get("step")
        if not seen.from_wire:
            known = self._past.last_step
            if self._clock.mono() < self._replayed or (
                step is not None and known is not None and step <= known
            ):
                return
        mono = self._mono(seen.t)
        if not seen.from_wire and mono - self._log_step_mono < LOG_STEP_GAP_S:
            watch.sign(mono)
        elif step is not None and (step > self._max_step or step < self._max_step - RESET_STEPS):
            self._max_step = step
            watch.step(mono)
            self._log_step_mono = mono
        else:
            watch.sign(mono)
        self._max_step = max(self._max_step, step if step is not None else -1.0)
        total = seen.values.get("total_steps")
        if step is not None and total is not None and total > 0:
            watch.finish(done=step >= total)
        if seen.rank is not None:
            self._stragglers.step(seen.rank, seen.t, seen.values)
        self._say(self._early.step(seen.rank, mono, seen.values))

    def _speaks(self, rank: int | None) -> bool:
        """One rank's phases are the attempt's: rank 0's, or those of the first that spoke."""
        if rank in {None, 0}:
            self._speaker = 0
        elif self._speaker is None:
            self._speaker = rank
        return self._speaker == (rank or 0)

    def _sample(self, seen: Sampled) -> None:
        mono = self._mono(seen.t)
        if seen.stream == GPU:
            self._stragglers.gpu(seen.key, seen.values)
            self._say(self._early.gpu(seen.key, mono, seen.values))
        elif seen.stream == HOST and seen.key == MACHINE:
            self._stragglers.machine(seen.values)
            self._say(self._early.machine(mono, seen.values))

    def _mono(self, wall: float) -> float:
        """A wall time by the keeper's monotonic clock; never in the future."""
        return self._clock.mono() - max(0.0, self._clock.wall() - wall)

    # -- advice ----------------------------------------------------------------------------------

    def _look_for_stragglers(self, now: float) -> None:
        if now < self._next_straggler:
            return
        self._next_straggler = now + STRAGGLER_INTERVAL_S
        found = self._stragglers.find()
        self._say([found] if found is not None else [])

    def _say(self, advice: Iterable[Advice]) -> None:
        for item in advice:
            if self._quota.allows(item.code, self._clock.mono()):
                self._emit(
                    ev.Advisory(
                        t=self._clock.wall(),
                        attempt=self._attempt,
                        code=item.code,
                        text=item.text[:400],
                        rank=item.rank,
                    )
                )

    # -- stacks ----------------------------------------------------------------------------------

    def _flag(self, watch: StallWatch, limit: Threshold, now: float) -> None:
        wall, silent = self._clock.wall(), watch.silent_s(now)
        self._emit(
            ev.StallFlagged(
                t=wall,
                attempt=self._attempt,
                since=wall - silent,
                waited_s=silent,
                stage=str(limit.stage),
                pace_s=limit.pace_s,
                flag_s=limit.flag_s,
                act_s=limit.act_s,
            )
        )
        self._rounds.clear()
        self._told = False
        self._gap_s = min(ROUND_GAP_S, (limit.act_s or LONGEST_GAP_S) / 4)
        self._start_round(now)

    def _start_round(self, now: float) -> None:
        if self._desk.start():
            self._next_round = now + self._gap_s

    def _keep(self, taken: Round) -> None:
        """One more round of a flagged silence; it becomes advice once the stacks say more than that a step is long."""
        before = self._rounds[-1] if self._rounds else None
        same = before is not None and self._alike(before, taken)
        if before is not None and not same:
            self._rounds.clear()
            self._gap_s = min(2 * self._gap_s, LONGEST_GAP_S)
        self._rounds.append(taken)
        if (same or taken.shows_a_wait) and self._watch is not None and (limit := self._watch.flagged):
            self._told = True
            silent = self._watch.silent_s(self._clock.mono())
            usual = f"usually {limit.pace_s:.2g} s"
            text = f"nothing has moved for {silent:.0f} s ({usual}): {taken.stacks.text}"
            self._say([Advice("stall", text, taken.odd[0] if len(taken.odd) == 1 else None)])

    def _alike(self, before: Round, after: Round) -> bool:
        return alike(before.stacks, after.stacks) and not moved(before.activity, after.activity)

    def _confirm(self, watch: StallWatch, limit: Threshold, now: float) -> bool:
        """Whether the silence is a hang: long enough, the last rounds alike, and they look like one."""
        if not watch.due(now) or limit.act_s is None:
            return False
        newest = self._rounds[-1] if self._rounds else None
        long_enough = newest is not None and watch.silent_s(newest.mono) >= limit.act_s
        if newest is None or not long_enough or len(self._rounds) < _rounds_needed(newest):
            if not self._desk.busy and now >= self._next_round:
                self._start_round(now)
            return False
        if not newest.stacks.proves_hang and not newest.absent:
            self._rounds.clear()
            self._gap_s = min(2 * self._gap_s, LONGEST_GAP_S)
            self._next_round = now + self._gap_s
            return False
        line = (newest.lines or {}).get(newest.odd[0]) if newest.odd else 1
        self._emit(
            ev.HangFound(
                t=self._clock.wall(),
                attempt=self._attempt,
                waited_s=watch.silent_s(now),
                act_s=limit.act_s,
                text=newest.stacks.text[:400],
                ranks=newest.odd,
                line_at=newest.line_at,
                artifact=newest.artifact,
                line=line,
                collective=newest.collective,
                groups=newest.groups,
            )
        )
        return True


def _rounds_needed(newest: Round) -> int:
    known = all(place.doing is not Doing.KERNEL for place in newest.stacks.places)
    return SURE_ROUNDS if known else KERNEL_ROUNDS

"""Follows a flagged silence: its rounds of stacks, why the attempt is not stopped, and the countdown to stopping it.

Gathers the values for the rules (`policy.health.ending`), then journals and carries out their rulings. A silence
ends on its own, is ended by a stop, or continues because the user chose to wait.
A keeper that adopts the run continues where the previous one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from msgspec import structs

from supervisor.diagnosis.hang.stack_groups import Doing, RankPlace, alike
from supervisor.diagnosis.hang.stacks import BY_KIND, Kind
from supervisor.job.spec import HangSettings
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.stalls.stack_rounds import Round, StackBroker
from supervisor.policy.health.early_signs import Advice
from supervisor.policy.health.ending import Act, LateRank, Silence, Wait, judge
from supervisor.policy.health.stall import StallWatch, Threshold, moved, phase_in_stack
from supervisor.run import events as ev
from supervisor.run.state import AttemptState

ROUND_GAP_S = 3.0
LONGEST_GAP_S = 300.0
"""The longest interval between inconclusive rounds, in seconds. Intervals double, because each round writes a file."""
CONFIRM_S = 5.0
"""The last round of stacks is taken this many seconds before the stop, or halfway through a shorter countdown, so it is recent."""
KEPT_ROUNDS = 8
"""How many of the latest consecutive identical rounds of stacks are kept, in addition to the first."""


@dataclass(frozen=True, slots=True)
class HangContext:
    """What the watch needs from the keeper. `group_timeout_s` is the process-group timeout, if longer than PyTorch's default."""

    watched: Callable[[], bool] = lambda: False
    can_resume: Callable[[], bool] = lambda: False
    group_timeout_s: Callable[[], float | None] = lambda: None


class HangWatch:
    """Follows one flagged silence after another. `say` gives advice, but no more often than its quota allows."""

    _countdown: tuple[float, float] | None
    """The deadline, and the time from which a round of stacks must still look the same, in monotonic seconds."""
    _kept: bool

    def __init__(
        self,
        settings: HangSettings,
        emit: Callable[[ev.Event], None],
        clock: Clock,
        stacks: StackBroker,
        around: HangContext,
        say: Callable[[Iterable[Advice]], None],
    ) -> None:
        self._settings, self._emit, self._clock, self._stacks = settings, emit, clock, stacks
        self._around, self._say = around, say
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Begin a new attempt."""
        self._attempt = attempt
        self._clear()

    def adopt(self, view: AttemptState, read_again: float) -> None:
        """Take over a silence from an earlier keeper. `read_again` is when this keeper will have reread the logs."""
        self._kept = view.kept is not None
        if (counting := view.countdown) is not None:
            # The countdown is kept, but this keeper first takes two rounds of its own.
            rounds_s = read_again - self._clock.mono() + self._settings.rounds_apart_s + CONFIRM_S
            left_s = max(counting.until - self._clock.wall(), rounds_s, self._settings.countdown_s)
            self._count_down(left_s, counting.text, counting.rule)

    def flag(self, watch: StallWatch, limit: Threshold, now: float) -> None:
        """Journal a silence that exceeded the stall threshold and start taking stacks."""
        wall, stalled_s = self._clock.wall(), watch.stalled_s(now)
        act_s = watch.asked_s()
        if act_s is None and limit.act_s is not None:
            act_s = max(limit.act_s, self._around.group_timeout_s() or 0.0)
        self._emit(
            ev.StallFlagged(
                t=wall,
                attempt=self._attempt,
                since=wall - stalled_s,
                waited_s=stalled_s,
                stage=str(limit.stage),
                pace_s=limit.pace_s,
                flag_s=limit.flag_s,
                act_s=act_s,
            )
        )
        self._gap_s = min(ROUND_GAP_S, (limit.act_s or LONGEST_GAP_S) / 4)
        self._start_round(now)

    def over(self, stalled_s: float) -> None:
        """Journal that the attempt is making progress again."""
        self._clear()
        self._emit(ev.StallEnded(t=self._clock.wall(), attempt=self._attempt, stalled_s=stalled_s))

    def keep_waiting(self, by: str) -> None:
        """Let this silence continue, because the user chose to keep waiting."""
        self._countdown, self._kept = None, True
        self._emit(ev.HangKept(t=self._clock.wall(), attempt=self._attempt, by=by))

    def look(self, watch: StallWatch, limit: Threshold, taken: Round | None, now: float) -> bool:
        """Check an ongoing silence. Return True if the attempt should be stopped. `taken` is a round that just finished."""
        if taken is not None and taken.mono >= watch.last_sign:  # otherwise it belongs to an earlier silence
            self._keep(watch, limit, taken)
        silence = self._silence(watch, limit, now)
        match judge(silence):
            case Wait() as ruling:
                self._wait(ruling, silence, now)
                return False
            case Act() as ruling:
                return self._act(ruling, silence, now)
            case _ as unreachable:
                assert_never(unreachable)

    # -- the input of the rules ------------------------------------------------------------------

    def _clear(self) -> None:
        self._rounds: list[Round] = []
        self._changed = ""
        self._reported = False
        self._kept = False
        self._countdown = None
        self._last_rule: tuple[str, str] = ("", "")
        self._next_round = float("-inf")
        self._gap_s = ROUND_GAP_S

    def _silence(self, watch: StallWatch, limit: Threshold, now: float) -> Silence:
        newest = self._rounds[-1] if self._rounds else None
        asked_s = watch.asked_s()
        silent_s = watch.silent_s(now) if asked_s is None else watch.stalled_s(now)
        silence = Silence(
            settings=self._settings,
            silent_s=silent_s,
            act_s=limit.act_s if asked_s is None else asked_s,
            asked=asked_s is not None,
            group_timeout_s=self._around.group_timeout_s(),
            stepped=watch.stepped,
            kept=self._kept,
            changed=self._changed,
            watched=self._around.watched(),
            can_resume=self._around.can_resume(),
        )
        if newest is None:
            return silence
        places = newest.stacks.places
        return replace(
            silence,
            seen=len(places),
            here=newest.here,
            world=newest.world,
            waiting=bool(newest.absent) or any(place.kind is Kind.PEERS for place in places),
            blind=tuple(
                f"rank {place.rank} {BY_KIND[Kind.STOPPED].words}"
                if place.kind is Kind.STOPPED
                else f"there is no Python stack of rank {place.rank}: py-spy, or [hang] faulthandler = true, would give it"
                for place in places
                if not place.is_python
            ),
            late=self._late(newest),
            alike_s=newest.mono - self._rounds[0].mono,
        )

    def _late(self, newest: Round) -> tuple[LateRank, ...]:
        """Return the ranks that the others are waiting for or, if all seem to be waiting, those that may be in the backward pass."""
        late = [place for rank in newest.absent if (place := newest.stacks.place_of(rank)) is not None]
        if not late:
            outside = [place for place in newest.stacks.places if place.kind is not Kind.PEERS]
            # A rank that waits for its device may be waiting for its peers on it.
            late = [place for place in outside if place.doing is not Doing.GPU] or outside
        busy = {place.rank for place in newest.stacks.places if self._computes(place)}
        if not late:
            late = [p for p in newest.stacks.places if p.doing is Doing.BACKWARD and p.rank in busy]
        return tuple(LateRank(p.rank, p.kind, p.where, computes=p.rank in busy) for p in late)

    def _computes(self, place: RankPlace) -> bool:
        """Check whether a rank used its CPU between the two compared rounds or was seen running."""
        newest = self._rounds[-1]
        apart = [r for r in self._rounds if newest.mono - r.mono >= self._settings.rounds_apart_s]
        before = apart[-1] if apart else self._rounds[0]
        if place.kind is Kind.RUNS:
            return True
        seconds = newest.mono - before.mono
        used_s = newest.cpu_s.get(place.rank, 0.0) - before.cpu_s.get(place.rank, 0.0)
        return seconds > 0 and used_s > self._settings.busy_ratio * seconds

    # -- rounds of stacks ------------------------------------------------------------------------

    def _start_round(self, now: float) -> None:
        if not self._stacks.working and self._stacks.ask() is not None:
            self._next_round = now + self._gap_s

    def _keep(self, watch: StallWatch, limit: Threshold, taken: Round) -> None:
        """Store another round. Give advice once the stacks show that this is more than a long step."""
        before = self._rounds[-1] if self._rounds else None
        self._changed = ""
        if before is not None and not alike(before.stacks, taken.stacks):
            self._changed = "the stacks change"
        elif before is not None and moved(before.activity, taken.activity):
            self._changed = "data workers, disks or uploads are busy"
        same = before is not None and not self._changed
        if self._changed:
            self._rounds.clear()
            self._gap_s = min(2 * self._gap_s, LONGEST_GAP_S)
        self._rounds.append(taken)
        del self._rounds[1:-KEPT_ROUNDS]
        works = (place for place in taken.stacks.places if place.kind not in {Kind.PEERS, Kind.LOCK})
        if (phase := next(filter(None, (phase_in_stack(place.mark) for place in works)), None)) is not None:
            watch.announce(phase)
        if same or taken.shows_a_wait:
            self._reported = True
            stalled_s = watch.stalled_s(self._clock.mono())
            usual = f" (normally {limit.pace_s:.2g} s)" if limit.pace_s else ""
            text = f"No progress for {stalled_s:.0f} s{usual}: {taken.stacks.text}"
            self._say([Advice("stall", text, taken.odd[0] if len(taken.odd) == 1 else None)])

    # -- carrying out a ruling -------------------------------------------------------------------

    def _wait(self, ruling: Wait, silence: Silence, now: float) -> None:
        """Let the silence continue for now. Report each reason once, and take more stacks when they are due."""
        due = silence.act_s is not None and silence.silent_s >= silence.act_s
        if self._countdown is not None and not ruling.passing:
            self._countdown = None
            wall = self._clock.wall()
            self._emit(
                ev.HangWithdrawn(t=wall, attempt=self._attempt, rule=ruling.rule, why=ruling.why[:400])
            )
        shown = (ruling.rule, ruling.why if ruling.reported else "")
        if ((ruling.reported and self._reported) or self._last_rule[0]) and shown != self._last_rule:
            self._last_rule = shown
            self._emit(
                ev.OnlyFlagged(
                    t=self._clock.wall(),
                    attempt=self._attempt,
                    rule=ruling.rule,
                    why=ruling.why[:400],
                    until_s=ruling.until_s,
                )
            )
        if due and ruling.reported and self._last_rule[0]:
            text = f"No progress for {silence.silent_s:.0f} s, but stoker won't end it: {ruling.why}; if it hangs, stop it with s or `stoker stop`"
            if ruling.until_s is not None:
                text = f"No progress for {silence.silent_s:.0f} s, not ended yet: {ruling.why} (will end after {ruling.until_s:.0f} s)"
            self._say([Advice(f"hang_{ruling.rule}", text)])
        if self._stacks.working or now < self._next_round:
            return
        if not self._reported and self._rounds:
            self._start_round(now)  # a second round may show what the first did not
        elif due and not self._kept:
            # Another round may be all that is missing, or it may show something else.
            apart = ruling.passing and self._rounds
            if apart and now < self._rounds[0].mono + self._settings.rounds_apart_s:
                return
            self._start_round(now)
            if not (ruling.passing or self._changed):
                self._gap_s = min(2 * self._gap_s, LONGEST_GAP_S)

    def _act(self, ruling: Act, silence: Silence, now: float) -> bool:
        """Count down, take one more round of stacks, then stop the attempt."""
        newest = self._rounds[-1] if self._rounds else None
        text = newest.stacks.text if newest is not None else "could not take any stacks"
        if self._countdown is None:
            left_s = self._settings.countdown_s
            if silence.asked:  # never longer than a limit that a person set
                left_s = min(left_s, silence.act_s or left_s)
            self._count_down(left_s, text, ruling.rule)
            return False
        until, confirm = self._countdown
        confirmed = newest is None or newest.mono >= confirm
        if not confirmed and now >= confirm and not self._stacks.working:
            self._start_round(now)
        if now < until or not confirmed:
            return False
        found = ev.HangFound(
            t=self._clock.wall(),
            attempt=self._attempt,
            waited_s=silence.silent_s,
            act_s=max(silence.act_s or 0.0, 0.0 if silence.asked else silence.group_timeout_s or 0.0),
            text=text[:400],
            rule=ruling.rule,
        )
        if newest is not None:
            found = structs.replace(
                found,
                ranks=newest.odd,
                line_at=newest.line_at,
                artifact=newest.artifact,
                line=(newest.lines or {}).get(newest.odd[0]) if newest.odd else 1,
                collective=newest.collective,
                groups=newest.groups,
            )
        self._emit(found)
        return True

    def _count_down(self, left_s: float, text: str, rule: str) -> None:
        now, wall = self._clock.mono(), self._clock.wall()
        until = now + left_s
        self._countdown = until, until - min(CONFIRM_S, left_s / 2)
        self._emit(
            ev.HangCountdown(
                t=wall, attempt=self._attempt, until=wall + left_s, left_s=left_s, text=text[:400], rule=rule
            )
        )

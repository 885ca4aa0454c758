"""Decides whether an attempt whose silence was flagged may be stopped. Named rules apply in order, and each can forbid it.

Stopping a healthy attempt loses work, and usually nobody is watching. A real hang that is only flagged costs time,
and PyTorch's own timeout stops it eventually. Anything unknown therefore counts against stopping. A user who sets a
limit accepts the risk, so only the time and one round of stacks are required in that case. Pure: values go in, a
ruling comes out, and the journal records the ruling's rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from supervisor.diagnosis.hang.stacks import BY_KIND, Kind
from supervisor.job.spec import HangSettings


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that the others are waiting for. `where` is e.g. ``in read() at data.py:41``. `computes` is true if it is using its CPU."""

    rank: int
    kind: Kind
    where: str
    computes: bool

    @property
    def may_be_ended(self) -> bool:
        """Whether the rank's stack shows nothing that would finish by itself in a healthy job."""
        unknown_but_busy = self.computes and self.kind in {Kind.UNKNOWN, Kind.LOCK, Kind.PEERS}
        return BY_KIND[self.kind].may_end or unknown_but_busy

    @property
    def words(self) -> str:
        """Text such as ``rank 1 sleeps in sleep() at train.py:30`` or ``rank 1 is waiting for data at train.py:30``."""
        kind = Kind.RUNS if self.computes and self.may_be_ended else self.kind
        does = BY_KIND[kind].words if self.where.startswith("in ") else "is"
        return f"rank {self.rank} {does} {self.where}"


@dataclass(frozen=True, slots=True)
class Silence:
    """Inputs to the rules. Times are in seconds.

    Attributes:
        settings: the limits, and whether the user allows hangs to be ended.
        silent_s: time since the last new output, or since the last progress if the user set the limit.
        act_s: how long a silence must last before it may be ended, based on the pace, the settings and earlier silences, or
            set by the user. None means never.
        asked: whether the user set that limit, in which case it does not matter what the ranks are doing.
        group_timeout_s: the timeout of the job's process groups, if it is longer than PyTorch's default.
        stepped: whether this attempt has completed a step.
        kept: whether the user chose to keep waiting.
        changed: how the latest round differs from the previous one, in words, or empty if it does not.
        watched: whether a viewer that can act is open.
        can_resume: whether a restart would continue from a checkpoint or may start from scratch.
        blind: what is known about each rank that has no Python stack.
        seen, here, world: number of ranks in the latest round of stacks (0 if none), on this node, and in the job, or None.
        waiting: whether any rank is waiting for others, in a collective or in DDP's backward pass.
        late: the ranks that the others are waiting for.
        alike_s: time between the first and last of the identical rounds, or 0 if there is only one.
    """

    settings: HangSettings
    silent_s: float
    act_s: float | None
    asked: bool
    group_timeout_s: float | None
    stepped: bool
    kept: bool
    changed: str
    watched: bool
    can_resume: bool
    blind: tuple[str, ...] = ()
    seen: int = 0
    here: int | None = None
    world: int | None = None
    waiting: bool = False
    late: tuple[LateRank, ...] = ()
    alike_s: float = 0.0

    @property
    def barring(self) -> tuple[LateRank, ...]:
        """Late ranks that may still arrive on their own."""
        return tuple(late for late in self.late if not late.may_be_ended)

    @property
    def computing(self) -> tuple[LateRank, ...]:
        """Late ranks that are busy computing."""
        return tuple(late for late in self.late if late.computes)


@dataclass(frozen=True, slots=True)
class Act:
    """The silent attempt may be stopped. `rule` is the reason."""

    rule: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason not to stop a silent attempt. It applies until the silence has lasted `until_s` (indefinitely if None).

    `reported` says whether to notify the user, and `passing` whether another round of stacks may settle the question.
    """

    rule: str
    why: str
    until_s: float | None = None
    reported: bool = True
    passing: bool = False


def _first(late: tuple[LateRank, ...]) -> str:
    others = len(late) - 1
    more = f", and {others} other rank{'s' if others != 1 else ''}" if others else ""
    return f"{late[0].words}{more}"


LOOK_S: Final = 30.0
"""Seconds to wait for stacks once the user's limit has passed. Before the first step there may be no rank to inspect."""
UNWATCHED_WHY: Final = (
    "nobody watches, and how the script resumes is not known: --end-hangs would end it, "
    "and --resume-knob FLAG let it continue"
)


def _shows_life(s: Silence) -> Wait | None:
    """Apply the rules about what was observed. The first one that matches forbids stopping, however long the silence."""
    if s.act_s is None:
        return Wait("switched_off", "act_s is 0: nothing is ended", reported=False)
    if s.kept:
        return _KEPT
    if not s.stepped:
        return Wait("before_first_step", "no step of this attempt is done yet")
    if not s.seen:
        return _not_looked(s.act_s)
    if s.blind:
        return Wait("no_python_stacks", s.blind[0])
    if s.here is None or s.seen < s.here:
        here = "?" if s.here is None else s.here
        return Wait("not_all_seen", f"stacks are there of {s.seen} ranks of {here} on this node")
    if not s.waiting:
        return Wait("nobody_waits", "no rank waits for another in a collective")
    if not s.late and (s.world is None or s.seen < s.world):
        return Wait("late_elsewhere", "all ranks here wait: the one that is late is on another node")
    if s.barring:
        return Wait("late_may_come", _first(s.barring))
    return Wait("something_moves", s.changed) if s.changed else None


def _is_too_early(s: Silence) -> Wait | None:
    """Apply the rules about duration and viewers, once nothing that was observed forbids stopping."""
    act_s, group_s = s.act_s or 0.0, s.group_timeout_s or 0.0
    if s.silent_s < act_s:
        return _too_short(s.silent_s, act_s)
    if s.alike_s < s.settings.rounds_apart_s:
        why = f"stacks that lie {s.settings.rounds_apart_s:g} s apart must be alike"
        return Wait("one_look", why, act_s, reported=False, passing=True)
    if s.silent_s < group_s:
        return Wait("group_timeout", f"the job's process groups wait {group_s:.0f} s", group_s)
    busy_s = max(s.settings.busy_act_s, act_s)
    if s.computing and not s.settings.end_hangs and s.silent_s < busy_s:
        return Wait("late_computes", _first(s.computing), busy_s)
    if not (s.watched or s.can_resume or s.settings.end_hangs):
        return Wait("unwatched", UNWATCHED_WHY)
    return None


def _forbidden_though_asked(s: Silence) -> Wait | None:
    """Apply the rules for a limit set by the user, which require only the time and one round of stacks."""
    act_s = s.act_s or 0.0
    if s.kept:
        return _KEPT
    if not s.seen and s.silent_s <= act_s + LOOK_S:
        return _not_looked(act_s)
    return _too_short(s.silent_s, act_s) if s.silent_s < act_s else None


_KEPT: Final = Wait("kept_waiting", "a person keeps waiting", reported=False)


def _not_looked(act_s: float) -> Wait:
    return Wait("not_looked", "no stacks are there yet", act_s, reported=False, passing=True)


def _too_short(silent_s: float, act_s: float) -> Wait:
    return Wait("too_short", f"it has lasted {silent_s:.0f} s", act_s, reported=False)


# If no rule forbids ending, the first ground that holds is the reason.
GROUNDS: Final[tuple[tuple[str, Callable[[Silence], bool]], ...]] = (
    ("computes_for_ever", lambda s: bool(s.computing)),
    ("lock_for_ever", lambda s: any(late.kind is Kind.LOCK for late in s.late)),
    ("no_progress", lambda s: s.asked and (bool(s.barring) or not s.waiting)),
    ("other_collective", lambda s: bool(s.late)),
    ("all_wait", lambda _: True),
)


def judge(silence: Silence) -> Act | Wait:
    """Decide what to do about a flagged silence."""
    forbidden = (
        _forbidden_though_asked(silence) if silence.asked else _shows_life(silence) or _is_too_early(silence)
    )
    if forbidden is not None:
        return forbidden
    return Act(next(name for name, holds in GROUNDS if holds(silence)))

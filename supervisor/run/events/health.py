"""Events about a live attempt's health: stalls, stacks, hangs. Part of the closed set in `run.events`."""

from __future__ import annotations

import msgspec

from supervisor.run.events.base import JournalEvent


class StacksProbed(JournalEvent, frozen=True, kw_only=True, tag="stacks_probed"):
    """What will give the ranks' stacks: "py-spy", "faulthandler" or "proc"; `note`: why nothing better does."""

    attempt: int
    source: str
    note: str = ""


class StallFlagged(JournalEvent, frozen=True, kw_only=True, tag="stall_flagged"):
    """No progress for longer than this phase of this run usually takes. Nothing is done about it yet.

    `since`: wall time of the last sign of life. `stage`: what the pace was learned of (step, log, start, compile,
    evaluation, checkpoint). `act_s`: the silence that would be ended, None: none would. `pace_s`: the 99th percentile.
    """

    attempt: int
    since: float
    waited_s: float
    stage: str
    pace_s: float
    flag_s: float
    act_s: float | None = None


class RanksAt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that did the same at the same line when stacks were taken.

    `doing`: a value of `diagnosis.hang.stack_groups.Doing`. `what`: ``in all_reduce``. `line_at`: the user's own line. `lines`: of the
    artifact, 1-based, where that frame of each of them stands.
    """

    ranks: tuple[int, ...]
    doing: str
    what: str
    line_at: str | None = None
    lines: tuple[int, ...] = ()


class StacksTaken(JournalEvent, frozen=True, kw_only=True, tag="stacks_taken"):
    """A round of stacks of all ranks. `text`: what the ranks do, in one line; `odd`: those who keep the others waiting.

    `line_at`: the odd one's own line. `artifact`: the text of all stacks, relative to the run directory. `source`:
    see `StacksProbed`. `collective`: what a flight recorder or NCCL's RAS adds. `groups`: the ranks by what they do, of very many
    the first.
    """

    attempt: int
    text: str
    odd: tuple[int, ...] = ()
    line_at: str | None = None
    artifact: str | None = None
    source: str = ""
    collective: str | None = None
    groups: tuple[RanksAt, ...] = ()


class StallEnded(JournalEvent, frozen=True, kw_only=True, tag="stall_ended"):
    """A flagged stall ended by itself: there is progress again."""

    attempt: int
    stalled_s: float


class OnlyFlagged(JournalEvent, frozen=True, kw_only=True, tag="only_flagged"):
    """Why a flagged silence is not ended as things stand: `rule` of `policy.health.ending`, in words `why`.

    Journalled when another rule applies. `until_s`: the silence at which it would be ended after all; None: at none.
    """

    attempt: int
    rule: str
    why: str
    until_s: float | None = None


class HangCountdown(JournalEvent, frozen=True, kw_only=True, tag="hang_countdown"):
    """A silence is a hang by all rules: the attempt is ended at wall time `until`, `left_s` from now, unless somebody keeps waiting.

    `text`: what the ranks do. `rule`: which rule lets it be ended.
    """

    attempt: int
    until: float
    left_s: float
    text: str
    rule: str


class HangWithdrawn(JournalEvent, frozen=True, kw_only=True, tag="hang_withdrawn"):
    """A countdown was broken off: a rule forbids the end now, see `OnlyFlagged`."""

    attempt: int
    rule: str
    why: str


class HangKept(JournalEvent, frozen=True, kw_only=True, tag="hang_kept"):
    """A person keeps waiting: this silence is not ended, however long it lasts."""

    attempt: int
    by: str


class HangFound(JournalEvent, frozen=True, kw_only=True, tag="hang_found"):
    """A stall that is a hang: the attempt is ended for it. Journalled just before the intent to stop.

    `ranks`: the odd ones out, empty where it is not known. `rule`: which rule of `policy.health.ending` lets it be ended. `line`: of `artifact`, 1-based, where the user's own frame of the first
    of them stands, or its stack begins. The rest as in `StacksTaken`.
    """

    attempt: int
    waited_s: float
    act_s: float
    text: str
    ranks: tuple[int, ...] = ()
    line_at: str | None = None
    artifact: str | None = None
    line: int | None = None
    collective: str | None = None
    groups: tuple[RanksAt, ...] = ()
    rule: str = ""


class ClockSet(JournalEvent, frozen=True, kw_only=True, tag="clock_set"):
    """Somebody set the machine's clock; this keeper's events go on as if nobody had.

    `ahead_s`: by how much the machine's clock is ahead of the events' times from now on, negative if it is behind.
    """

    ahead_s: float

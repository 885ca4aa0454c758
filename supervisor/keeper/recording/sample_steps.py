"""Which step a sample out of a log belongs to, where its own line does not say.

Three habits of printing stand between a log and a curve over steps:

- the numbers on one line, the step on a bar beside it. transformers.Trainer writes ``{'loss': …}`` to stdout; its tqdm
  bar on stderr is wiped before and drawn again after (transformers/trainer_callback.py, ProgressCallback; tqdm's
  `write`). The state drawn after a wipe is exact (a `StepHint`); any other may be older by tqdm's mininterval.
- a counter that starts again with each epoch (`counters`).
- a second bar within the first, over an evaluation: its counter is not the training's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from supervisor.keeper.monitoring.observations import LOSSES, StepHint, StepSeen
from supervisor.keeper.recording.epoch_counters import Counters, Places
from supervisor.run.series import CONTEXT, READING
from supervisor.sources.metrics.progress_bars import FASTEST

# Line and bar stand in two files and are read some milliseconds apart, in either order; on a busy machine later.
WAIT_S = 1.0
# Where bars were drawn again after lines before, it will come.
WAIT_AGAIN_S = 5.0
# Two lines without a step as close as this were read from a backlog, not as they were written.
TOGETHER_S = 0.05
MAX_WAITING = 10_000
EPOCH = "epoch"
HEADING = frozenset({EPOCH, "total_epochs"})
LOSSES_BESIDE = 2
BAR_ONLY = frozenset({"step", "total_steps", "eta_s", "step_time_s"})
STEP_TIME = "step_time_s"
# The first step is mostly longer than the others: a time so much longer than it is that of more than one.
LONGER = 3.0


class _Hint(NamedTuple):
    """A bar's step after it was wiped for a line that was not read yet: when, and in which log the bar is."""

    since: float
    step: float
    log: str


class _Waiting(NamedTuple):
    """A sample without a step, when it came, and the step that was known then."""

    seen: StepSeen
    since: float
    before: float | None


@dataclass(slots=True)
class _PlainTimes:
    """Times that no line shows to be those of one step: "[300/100000] loss: 2.4 | time: 4.45s", a line every 100 steps.

    Where a line is printed for each step, or all its steps could not be made in its time, it is that of one. Where it is far longer
    than that of the very first step, it is that of all steps since the line before. Else it is not known, and left out.
    """

    at: tuple[float, float | None, float | None] | None = None  # step, number and epoch of the newest reading
    every: float = math.inf  # steps from one line to the next
    first: float = math.inf  # the time of the very first step

    def of_one_step(self, values: dict[str, float]) -> dict[str, float]:
        """The values with the time of one step, or with none."""
        step, took = values["step"], values[STEP_TIME]
        number, epoch = values.get(READING), values.get(EPOCH)
        if self.at is None:
            self.first = took if step <= 1 else math.inf
        elif step > self.at[0] and epoch == self.at[2]:
            lines = 1.0 if number is None or self.at[1] is None else max(number - self.at[1], 1.0)
            self.every = (step - self.at[0]) / lines
        self.at = step, number, epoch
        if self.every <= 1 or took * FASTEST < self.every < math.inf:
            return values
        if took > LONGER * self.first and self.every < math.inf:
            return {**values, STEP_TIME: took / self.every}
        return {name: value for name, value in values.items() if name != STEP_TIME}


@dataclass(slots=True)
class _Rank:
    """What is known of one rank's lines."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    hints: deque[_Hint] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))
    has_hints: bool = False
    below: set[str] = field(default_factory=set)  # logs in which the bar is drawn again below its lines
    given_up: deque[float] = field(
        default_factory=lambda: deque(maxlen=MAX_WAITING)
    )  # when a line waited in vain
    step: float | None = None
    has_bar: bool = False
    bar_total: float | None = None  # of the training's bar
    # Since a shorter bar was drawn, and no state of the training's since then.
    losses_beside: int | None = None
    at: dict[str, float] = field(default_factory=dict)  # the newest sample with a step
    begins_again: bool = False  # its counter names neither total nor epoch, and starts again with each epoch
    places: Places = field(default_factory=Places)
    times: _PlainTimes = field(default_factory=_PlainTimes)


@dataclass(slots=True)
class StepSense:
    """Completes the samples of a run's logs, attempt by attempt; what was learnt of its counters is kept."""

    _counters: Counters = field(default_factory=Counters)
    _ranks: dict[int | None, _Rank] = field(default_factory=dict)

    def begin(self) -> None:
        """Another attempt."""
        self._ranks.clear()
        self._counters.begin()

    def take(self, seen: StepSeen, now: float) -> Iterator[StepSeen]:
        """One sample in; what is complete comes out, in the order in which it was printed."""
        rank = self._ranks.setdefault(seen.rank, _Rank())
        if "step" not in seen.values:
            _heed_shorter_bar(rank, seen.values)
            if seen.values.keys() - CONTEXT <= HEADING:
                rank.places.heading = {n: v for n, v in seen.values.items() if n in HEADING}
                yield _at(seen, rank.step)  # what follows bears the next steps: there is none to wait for
                return
            yield from self._without_step(rank, seen, now)
            return
        if (seen.drawn or seen.bar) and _is_second_bar(rank, seen.values):
            return
        if _counts_epochs(rank, seen.values):
            values = {n: v for n, v in seen.values.items() if n not in BAR_ONLY}
            yield from self._without_step(rank, replace(seen, values=values), now)
            return
        if not LOSSES.isdisjoint(seen.values) or _is_of_later_epoch(rank, seen.values):
            yield from _overtaken(rank, seen.log, now)
        values = rank.times.of_one_step(seen.values) if seen.plain_time else seen.values
        seen = replace(seen, values=self._counters.count_on(rank.places, values))
        rank.at = seen.values
        rank.begins_again = rank.begins_again or _begins_again(rank, seen.values)
        rank.step = seen.values["step"]
        rank.has_bar = rank.has_bar or seen.drawn
        yield seen

    def hint(self, hint: StepHint, now: float) -> Iterator[StepSeen]:
        """The state of a bar that was drawn again after a line; it is no sample of its own."""
        rank = self._ranks.setdefault(hint.rank, _Rank())
        rank.has_bar = True
        if _is_second_bar(rank, hint.values):
            return
        step = self._counters.count_on(rank.places, hint.values)["step"]
        rank.has_hints = True
        rank.step = step
        if hint.below:
            rank.below.add(hint.log)
            yield from _above(rank, hint.log, step)
            return
        if hint.log in rank.below:
            return  # this one was wiped for something else, as a save's own bar
        while rank.given_up and now - rank.given_up[0] > WAIT_AGAIN_S:
            rank.given_up.popleft()
        if rank.given_up:
            rank.given_up.popleft()  # too late for its line, and not the next one's
            return
        while rank.waiting and _is_anothers(rank.waiting[0].seen, hint.log):
            yield rank.waiting.popleft().seen
        if rank.waiting and not _is_of(rank.waiting[0].seen, hint.log):
            yield _at(rank.waiting.popleft().seen, step)
        else:
            rank.hints.append(_Hint(now, step, hint.log))  # its line is read, or written to this log, later

    def due(self, now: float, *, final: bool = False) -> Iterator[StepSeen]:
        """Samples that have waited long enough: no bar was drawn again after them."""
        for rank in self._ranks.values():
            wait_s = WAIT_AGAIN_S if rank.has_hints else WAIT_S
            while rank.waiting and (final or now - rank.waiting[0].since >= wait_s):
                one = rank.waiting.popleft()
                rank.given_up.append(now)
                crowded = bool(rank.waiting) and rank.waiting[0].since - one.since < TOGETHER_S
                known = one.before if one.before is not None else rank.step
                yield _at(one.seen, None if crowded else known)

    def _without_step(self, rank: _Rank, seen: StepSeen, now: float) -> Iterator[StepSeen]:
        if EPOCH in rank.places.heading and EPOCH not in seen.values and not LOSSES.isdisjoint(seen.values):
            # It may wait for its step while the next heading comes.
            seen = replace(seen, values={**seen.values, EPOCH: rank.places.heading[EPOCH]}, headed=True)
        while rank.hints and now - rank.hints[0].since > WAIT_S:
            rank.hints.popleft()
        # Of a log that is written in blocks, the lines of some steps stand below the bars of all of them.
        in_blocks = bool(rank.hints) and _is_of(seen, rank.hints[0].log)
        if rank.hints and not (in_blocks and LOSSES.isdisjoint(seen.values)):
            if in_blocks:
                yield from _overtaken(rank, seen.log, now)
            yield _at(seen, rank.hints.popleft().step)
        elif rank.has_bar or rank.step is None:
            rank.waiting.append(_Waiting(seen, now, rank.step))
            if len(rank.waiting) > MAX_WAITING:
                yield rank.waiting.popleft().seen
        else:
            yield from _overtaken(rank, seen.log, now)
            yield _at(seen, None if rank.begins_again else rank.step)


def _is_of_later_epoch(rank: _Rank, values: dict[str, float]) -> bool:
    """Whether a bar is of a later epoch than the line that waits for one."""
    epoch = values.get(EPOCH)
    return epoch is not None and bool(rank.waiting) and rank.waiting[0].seen.values.get(EPOCH, epoch) < epoch


def _begins_again(rank: _Rank, values: dict[str, float]) -> bool:
    """Whether a counter goes back to its beginning, and no line can tell how far the training is."""
    places = {"total_steps", EPOCH}
    return rank.step is not None and places.isdisjoint(values) and values["step"] < rank.step / 2


def _overtaken(rank: _Rank, log: str | None, now: float) -> Iterator[StepSeen]:
    """The samples that wait for a bar, where the next loss of their log has its step: later they would look like the newest."""
    while rank.waiting and log and rank.waiting[0].seen.log == log:
        one = rank.waiting.popleft()
        if not LOSSES.isdisjoint(one.seen.values):
            rank.given_up.append(now)
        yield _at(one.seen, one.before)


def _above(rank: _Rank, log: str, step: float) -> Iterator[StepSeen]:
    """The sample of the line right above a bar; those that waited before it had none below."""
    mine = [place for place, one in enumerate(rank.waiting) if _is_of(one.seen, log)]
    for place in range(mine[-1] + 1 if mine else 0):
        one = rank.waiting.popleft()
        yield _at(one.seen, step if place == mine[-1] else one.before)


def _is_of(seen: StepSeen, log: str) -> bool:
    """Whether a sample stands in this log."""
    return bool(log) and seen.log == log


def _is_anothers(seen: StepSeen, log: str) -> bool:
    """Whether this is a sample of a backlog of which not all are kept, and the bar stands in another log: which of them it means is not known."""
    return READING in seen.values and seen.log != log


def _is_second_bar(rank: _Rank, values: dict[str, float]) -> bool:
    """Whether this is a bar beside the training's: shorter, and it says nothing but how far it is."""
    total = values.get("total_steps")
    if total is None:
        return False
    if rank.bar_total is not None and total < rank.bar_total and values.keys() - CONTEXT <= BAR_ONLY:
        rank.losses_beside = rank.losses_beside or 0
        return True
    rank.bar_total, rank.losses_beside = total, None
    return False


def _heed_shorter_bar(rank: _Rank, values: dict[str, float]) -> None:
    """Believe a shorter bar beside which the training's losses are printed: an evaluation prints none, so another training began."""
    if rank.losses_beside is not None and "loss" in values:
        rank.losses_beside += 1
        if rank.losses_beside >= LOSSES_BESIDE:
            rank.bar_total = None


def _counts_epochs(rank: _Rank, values: dict[str, float]) -> bool:
    """Whether a bar that names no epoch counts the epochs around one that does: "100%|…| 10/10 [08:43]" below "Epoch 10: 96/96"."""
    step, total, epoch = values["step"], values.get("total_steps"), rank.at.get(EPOCH)
    if total is None or epoch is None or EPOCH in values:
        return False
    inner = rank.at.get("epoch_steps")
    return inner is not None and total < inner and epoch - 1 <= step <= epoch <= total


def _at(seen: StepSeen, step: float | None) -> StepSeen:
    if step is None or not math.isfinite(step):
        return seen
    return replace(seen, values={**seen.values, "step": step}, joined=True)

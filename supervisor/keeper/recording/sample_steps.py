"""Finds the step for a sample whose own log line does not contain it.

Three logging habits make the step ambiguous:

- The numbers are on one line and the step is on a separate bar. transformers.Trainer writes ``{'loss': …}`` to
  stdout; its tqdm bar on stderr is cleared before that line and redrawn after it. The redrawn state (a `StepHint`)
  is exact; others may lag by tqdm's mininterval.
- A counter restarts every epoch: Lightning's ``Epoch 3:  40%|…| 4/10`` is step 34. Keras puts a line ``Epoch 2/3``
  above each bar, and a bare ``for batch in tqdm(loader)`` shows no epoch.
- A second bar, for an evaluation, runs inside the first. Its counter is not the training counter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from supervisor.keeper.monitoring.observations import LOSSES, StepHint, StepSeen
from supervisor.run.events import is_share_of_epochs
from supervisor.run.series import CONTEXT, READING

# Line and bar are in two files, and are read some milliseconds apart in either order; later on a busy machine.
WAIT_S = 1.0
# If bars were redrawn after earlier lines, another redraw will come.
WAIT_AGAIN_S = 5.0
# Two lines without a step that are this close together were read from a backlog, not live.
TOGETHER_S = 0.05
MAX_WAITING = 10_000
EPOCH = "epoch"
STEP_TIME = "step_time_s"
HEADING = frozenset({EPOCH, "total_epochs"})
BAR_ONLY = frozenset({"step", "total_steps", "eta_s", STEP_TIME})
LOSSES_BESIDE = 2
"""No training loss is printed while an evaluation's bar is drawn, so this many losses mean that another training run began."""
SAME_TOTAL = 0.25
"""Epochs of one training run differ in length by less than this. A counter for the whole run goes at least twice as far."""
MAX_COUNTERS = 16


class _Position(NamedTuple):
    """A counter's state. `behind` is the number of steps in its earlier passes, or the number of epochs by which its label lags."""

    behind: float
    step: float
    total: float
    epoch: float | None = None

    def begins_again(self, step: float, total: float) -> bool:
        """Check whether a full counter began a new pass, i.e. is in its first half. A late rank's counter would be near its end."""
        return self.step >= self.total and step <= total / 2


class _Waiting(NamedTuple):
    """A sample without a step, with its arrival time and the latest step at that time."""

    seen: StepSeen
    since: float
    before: float | None


@dataclass(slots=True)
class _Rank:
    """The state of a single rank's lines."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    hints: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))
    """For each bar redrawn after a line that has not been read yet: when it was redrawn and the step it showed."""
    has_hints: bool = False
    below: set[str] = field(default_factory=set)
    """Logs whose bar is redrawn below their lines."""
    step: float | None = None
    has_bar: bool = False
    bar_total: float | None = None
    losses_beside: int | None = None
    """Losses since a shorter bar was drawn, or None if the training bar was drawn last."""
    begins_again: bool = False
    """Whether the counter has neither a total nor an epoch and restarts every epoch."""
    heading: dict[str, float] = field(default_factory=dict)
    thinned: bool = False
    """Whether some lines of a long log were skipped, which makes it impossible to count passes."""
    positions: dict[float, _Position] = field(default_factory=dict)


class StepSense:
    """Adds steps to the samples from a run's logs, attempt by attempt. Remembers how the counters behave."""

    def __init__(self) -> None:
        self._ranks: dict[int | None, _Rank] = {}
        self._first_epoch: float | None = None
        self._in_epoch: dict[float, bool] = {}
        """Whether a counter's steps start over each epoch. Counters are distinguished by their totals."""
        self._earlier: frozenset[float] = frozenset()

    def begin(self) -> None:
        """Begin a new attempt. If the micro-batch changed, the counters have new totals."""
        self._ranks.clear()
        self._earlier = frozenset(self._in_epoch)

    def take(self, seen: StepSeen, now: float) -> Iterator[StepSeen]:
        """Process one sample. Yield completed samples in the order in which they were printed."""
        rank = self._ranks.setdefault(seen.rank, _Rank())
        if "step" not in seen.values:
            if rank.losses_beside is not None and "loss" in seen.values:
                rank.losses_beside += 1
                if rank.losses_beside >= LOSSES_BESIDE:
                    rank.bar_total = None
            if seen.values.keys() - CONTEXT <= HEADING:
                rank.heading = {n: v for n, v in seen.values.items() if n in HEADING}
                yield _at(seen, rank.step)  # later output has later steps, so do not wait for a step
            else:
                yield from self._without_step(rank, seen, now)
            return
        if (seen.drawn or seen.bar) and _is_second_bar(rank, seen.values):
            return
        # Does this bar belong to a later epoch than the line that waits for a bar?
        waits_of = rank.waiting[0].seen.values.get(EPOCH) if rank.waiting else None
        is_later = waits_of is not None and waits_of < seen.values.get(EPOCH, waits_of)
        if is_later or not LOSSES.isdisjoint(seen.values):
            yield from _overtaken(rank, seen.log)
        values = seen.values
        if seen.plain_time and values["step"] - 1 != rank.step:  # the time may cover many steps
            values = {name: value for name, value in values.items() if name != STEP_TIME}
        values = self._count_on(rank, values)
        is_back = rank.step is not None and values["step"] < rank.step / 2
        rank.begins_again = rank.begins_again or (is_back and {"total_steps", EPOCH}.isdisjoint(values))
        rank.step = values["step"]
        rank.has_bar = rank.has_bar or seen.drawn
        yield replace(seen, values=values)

    def hint(self, hint: StepHint, now: float) -> Iterator[StepSeen]:
        """Use the state of a bar that was redrawn after a line. The hint itself is not a sample."""
        rank = self._ranks.setdefault(hint.rank, _Rank())
        rank.has_bar = True
        if _is_second_bar(rank, hint.values):
            return
        rank.has_hints, rank.step = True, self._count_on(rank, hint.values)["step"]
        if hint.below:
            rank.below.add(hint.log)
            mine = [place for place, one in enumerate(rank.waiting) if one.seen.log == hint.log]
            for place in range(mine[-1] + 1 if mine else 0):  # earlier samples had no bar below
                one = rank.waiting.popleft()
                yield _at(one.seen, rank.step if place == mine[-1] else one.before)
            return
        if hint.log in rank.below:
            return  # this bar was wiped for other output, such as the bar of a save
        while (
            rank.waiting and READING in rank.waiting[0].seen.values and rank.waiting[0].seen.log != hint.log
        ):
            yield rank.waiting.popleft().seen  # a backlog skips lines, so the hint's line is unknown
        if rank.waiting and (not hint.log or rank.waiting[0].seen.log != hint.log):
            yield _at(rank.waiting.popleft().seen, rank.step)
        else:
            rank.hints.append((now, rank.step))  # the hint's line is read, or written to this log, later

    def due(self, now: float, *, final: bool = False) -> Iterator[StepSeen]:
        """Yield samples that have waited long enough without being followed by a redrawn bar."""
        for rank in self._ranks.values():
            wait_s = WAIT_AGAIN_S if rank.has_hints else WAIT_S
            while rank.waiting and (final or now - rank.waiting[0].since >= wait_s):
                one = rank.waiting.popleft()
                crowded = bool(rank.waiting) and rank.waiting[0].since - one.since < TOGETHER_S
                known = one.before if one.before is not None else rank.step
                yield _at(one.seen, None if crowded else known)

    def _without_step(self, rank: _Rank, seen: StepSeen, now: float) -> Iterator[StepSeen]:
        has_loss = not LOSSES.isdisjoint(seen.values)
        if EPOCH in rank.heading and EPOCH not in seen.values and has_loss:
            # The sample may wait for its step while the next heading arrives.
            seen = replace(seen, values={**seen.values, EPOCH: rank.heading[EPOCH]}, headed=True)
        while rank.hints and now - rank.hints[0][0] > WAIT_S:
            rank.hints.popleft()
        if rank.hints and has_loss:
            yield from _overtaken(rank, seen.log)
            yield _at(seen, rank.hints.popleft()[1])
        elif rank.has_bar or rank.step is None:
            rank.waiting.append(_Waiting(seen, now, rank.step))
            if len(rank.waiting) > MAX_WAITING:
                yield rank.waiting.popleft().seen
        else:
            yield from _overtaken(rank, seen.log)
            yield _at(seen, None if rank.begins_again else rank.step)

    # -- counters that restart with each epoch -----------------------------------------------------

    def _count_on(self, rank: _Rank, values: dict[str, float]) -> dict[str, float]:
        """Return the values with a step that keeps counting across epochs, once the counter has been seen to restart.

        The total then covers all epochs, or is unknown if the number of epochs is unknown. The logged values are kept as
        ``epoch_step`` and ``epoch_steps``.
        """
        step, total = values["step"], values.get("total_steps")
        if total is None or not 0 <= step <= total:
            return values
        is_named = EPOCH in values  # otherwise a heading gives the epoch, perhaps for an earlier training
        if not is_named:
            values = {**values, **rank.heading}
        epoch, epochs = values.get(EPOCH), values.get("total_epochs")
        rank.thinned = rank.thinned or READING in values
        if epoch is None:
            behind = 0.0 if rank.thinned else self._passes(rank, step, total)
            return _moved(values, behind, None) if behind else values
        if not math.isfinite(epoch) or epoch % 1:
            return values
        # "Epoch 0/3" may be the first of four: rich's bar in Lightning shows the last epoch, not the count.
        if is_named and epochs and epoch > 1 and not is_share_of_epochs(step / (total or 1), epoch, epochs):
            self._in_epoch[self._counter(total)] = True  # a log that starts in the middle
        before = self._epochs(rank, epoch, step, total)
        if before is None:
            return values
        return _moved(values, before * total, max(epochs, before + 1) * total if epochs is not None else None)

    def _passes(self, rank: _Rank, step: float, total: float) -> float:
        """Return the number of steps in the earlier passes of a counter that shows no epoch."""
        counter = self._counter(total)
        last = rank.positions.get(counter)
        behind = 0.0
        if last is not None and last.epoch is None:
            behind = last.behind + (last.total if last.begins_again(step, total) else 0.0)
        rank.positions[counter] = _Position(behind, step, total)
        return behind

    def _epochs(self, rank: _Rank, epoch: float, step: float, total: float) -> float | None:
        """Return the number of earlier epochs, or None as long as the counter may cover the whole training run."""
        if self._first_epoch is None or epoch < self._first_epoch:
            self._first_epoch = epoch if epoch in {0, 1} else 0
        counter = self._counter(total)
        last, behind = rank.positions.get(counter), 0.0
        if last is not None and last.epoch is not None and epoch > last.epoch:
            # A counter that was full before the last epoch counts one epoch: only last states may be kept.
            was_full = last.step >= last.total or last.behind > 0
            self._in_epoch[counter] = self._in_epoch[counter] or was_full or step < last.step
        elif last is not None and epoch == last.epoch:
            behind = last.behind
            # Lightning's bar returns to 0 before it shows the next epoch's name.
            if last.begins_again(step, total):
                behind += 1
                self._in_epoch[counter] = True
        rank.positions[counter] = _Position(behind, step, total, epoch)
        return epoch - self._first_epoch + behind if self._in_epoch[counter] else None

    def _counter(self, total: float) -> float:
        """Find the counter with approximately this total. It need not match exactly, because epochs can differ in length."""
        known = next((one for one in self._in_epoch if abs(one - total) <= one * SAME_TOTAL), None)
        if known is not None:
            return known
        if len(self._in_epoch) >= MAX_COUNTERS:
            return next(iter(self._in_epoch))
        # Epochs of a new length, as after a smaller micro-batch. If all earlier counters counted epochs, so does this one.
        self._in_epoch[total] = bool(self._earlier) and all(self._in_epoch[one] for one in self._earlier)
        return total


def _moved(values: dict[str, float], behind: float, total: float | None) -> dict[str, float]:
    """Return the values moved to a different step. The remaining time is dropped, because it covers only this pass."""
    kept = {name: value for name, value in values.items() if name not in {"eta_s", "total_steps"}}
    kept |= {"epoch_step": values["step"], "epoch_steps": values["total_steps"]}
    kept["step"] = behind + values["step"]
    return kept if total is None else {**kept, "total_steps": total}


def _overtaken(rank: _Rank, log: str) -> Iterator[StepSeen]:
    """Yield samples still waiting for a step that a newer loss in their log already has. Later, they would look current."""
    while rank.waiting and log and rank.waiting[0].seen.log == log:
        one = rank.waiting.popleft()
        yield _at(one.seen, one.before)


def _is_second_bar(rank: _Rank, values: dict[str, float]) -> bool:
    """Check whether this bar is not the training bar, because it is shorter and shows nothing but its progress."""
    total = values.get("total_steps")
    if total is None:
        return False
    if rank.bar_total is not None and total < rank.bar_total and values.keys() - CONTEXT <= BAR_ONLY:
        rank.losses_beside = rank.losses_beside or 0
        return True
    rank.bar_total, rank.losses_beside = total, None
    return False


def _at(seen: StepSeen, step: float | None) -> StepSeen:
    if step is None or not math.isfinite(step):
        return seen
    return replace(seen, values={**seen.values, "step": step}, joined=True)

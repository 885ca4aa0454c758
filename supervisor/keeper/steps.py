"""Which step a sample out of a log belongs to, where its own line does not say.

Three habits of printing stand between a log and a curve over steps:

- the numbers on one line, the step on a bar beside it. transformers.Trainer writes ``{'loss': …}`` to stdout; its tqdm
  bar on stderr is wiped before and drawn again after (transformers/trainer_callback.py, ProgressCallback; tqdm's
  `write`). The state drawn after a wipe is exact (a `StepHint`); any other may be older by tqdm's mininterval.
- a counter that starts again with each epoch: Lightning's ``Epoch 3:  40%|…| 4/10`` is step 34.
  Keras heads each bar with a line ``Epoch 2/3``; a bare ``for batch in tqdm(loader)`` names no epoch at all.
- a second bar within the first, over an evaluation: its counter is not the training's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from supervisor.keeper.observations import StepHint, StepSeen

# Line and bar stand in two files and are read some milliseconds apart, in either order; on a busy machine later.
WAIT_S = 1.0
# Where bars were drawn again after lines before, it will come.
WAIT_AGAIN_S = 5.0
# Two lines without a step as close as this were read from a backlog, not as they were written.
TOGETHER_S = 0.05
MAX_WAITING = 10_000
# Epochs of one training differ by less in length; a counter of the whole training counts twice as far at least.
SAME_TOTAL = 0.25
MAX_COUNTERS = 16
HEADING = frozenset({"epoch", "total_epochs"})
BAR_ONLY = frozenset({"step", "total_steps", "eta_s", "step_time_s"})


class _Waiting(NamedTuple):
    """A sample without a step, when it came, and the step that was known then."""

    seen: StepSeen
    since: float
    before: float | None


class _Pass(NamedTuple):
    """Where a counter stands, and the steps of its passes before."""

    behind: float
    step: float
    total: float


@dataclass(slots=True)
class _Rank:
    """What is known of one rank's lines."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    hints: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))  # when, step
    has_hints: bool = False
    given_up: deque[float] = field(
        default_factory=lambda: deque(maxlen=MAX_WAITING)
    )  # when a line waited in vain
    step: float | None = None
    has_bar: bool = False
    bar_total: float | None = None  # of the training's bar
    heading: dict[str, float] = field(default_factory=dict)  # the epoch that a line of its own named
    passes: dict[float, _Pass] = field(default_factory=dict)  # of a counter that no epoch is named for
    raw: dict[float, tuple[float, float]] = field(
        default_factory=dict
    )  # of a counter: epoch and step as printed last


@dataclass(slots=True)
class StepSense:
    """Completes the samples of a run's logs, attempt by attempt.

    Learnt and kept for the attempts that come: `first_epoch`, what the run counts epochs from, and `in_epoch`,
    whether a counter's steps count from each epoch's start. Counters are told apart by how far they count: a bar over an epoch
    and lines over the whole training stand in one log (Ignite's ``[51/64]`` beside ``Iteration[140/192]``).
    """

    first_epoch: float | None = None
    in_epoch: dict[float, bool] = field(default_factory=dict)
    _ranks: dict[int | None, _Rank] = field(default_factory=dict)

    def begin(self) -> None:
        """Another attempt."""
        self._ranks.clear()

    def take(self, seen: StepSeen, now: float) -> Iterator[StepSeen]:
        """One sample in; what is complete comes out, in the order in which it was printed."""
        rank = self._ranks.setdefault(seen.rank, _Rank())
        if "step" not in seen.values:
            if seen.values.keys() <= HEADING:
                rank.heading = seen.values
            yield from self._without_step(rank, seen, now)
            return
        if seen.drawn and _is_second_bar(rank, seen.values):
            return
        seen = replace(seen, values=self._over_epochs(rank, seen.values))
        rank.step = seen.values["step"]
        rank.has_bar = rank.has_bar or seen.drawn
        yield seen

    def hint(self, hint: StepHint, now: float) -> Iterator[StepSeen]:
        """The state of a bar that was drawn again after a line; it is no sample of its own."""
        rank = self._ranks.setdefault(hint.rank, _Rank())
        rank.has_bar = True
        if _is_second_bar(rank, hint.values):
            return
        step = self._over_epochs(rank, hint.values)["step"]
        rank.has_hints = True
        while rank.given_up and now - rank.given_up[0] > WAIT_AGAIN_S:
            rank.given_up.popleft()
        if rank.given_up:
            rank.given_up.popleft()  # too late for its line, and not the next one's
        elif rank.waiting:
            yield _at(rank.waiting.popleft().seen, step)
        else:
            rank.hints.append((now, step))

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
        while rank.hints and now - rank.hints[0][0] > WAIT_S:
            rank.hints.popleft()
        if rank.hints:
            yield _at(seen, rank.hints.popleft()[1])
        elif rank.has_bar or rank.step is None:
            rank.waiting.append(_Waiting(seen, now, rank.step))
            if len(rank.waiting) > MAX_WAITING:
                yield rank.waiting.popleft().seen
        else:
            yield _at(seen, rank.step)

    def _over_epochs(self, rank: _Rank, values: dict[str, float]) -> dict[str, float]:
        """The values with a step that counts on over the epochs, once a counter was seen to start again.

        The total is then that of all epochs, or, where nobody said how many there are, the end of this one.
        """
        step, total = values["step"], values.get("total_steps")
        if total is None or not 0 <= step <= total:
            return values
        if "epoch" not in values:
            values = {**values, **rank.heading}
        epoch = values.get("epoch")
        if epoch is None:
            return self._over_passes(rank, values, step, total)
        if not math.isfinite(epoch) or epoch % 1:
            return values
        if self.first_epoch is None or epoch < self.first_epoch:
            self.first_epoch = epoch if epoch in {0, 1} else 0
        counter = self._counter(total)
        before = rank.raw.get(counter)
        if before is not None and epoch > before[0] and step < before[1]:
            self.in_epoch[counter] = True
        rank.raw[counter] = (epoch, step)
        if not self.in_epoch[counter]:
            return values
        behind = epoch - self.first_epoch
        over = {name: value for name, value in values.items() if name != "eta_s"}
        over["step"] = behind * total + step
        # "Epoch 0/3" may be the first of four: rich's bar in Lightning names the last epoch, not how many.
        over["total_steps"] = max(values.get("total_epochs", 0.0), behind + 1) * total
        return over

    def _over_passes(
        self, rank: _Rank, values: dict[str, float], step: float, total: float
    ) -> dict[str, float]:
        """The same where no epoch is named: a counter that was full and stands in its first half has begun again."""
        counter = self._counter(total)
        last = rank.passes.get(counter)
        behind = last.behind if last is not None else 0.0
        if last is not None and last.step >= last.total and step <= total / 2:
            behind += last.total
        rank.passes[counter] = _Pass(behind, step, total)
        if not behind:
            return values
        over = {name: value for name, value in values.items() if name != "eta_s"}
        return {**over, "step": behind + step, "total_steps": behind + total}

    def _counter(self, total: float) -> float:
        """The counter that counts so far, or about so far: an epoch may be longer than the last."""
        known = next((one for one in self.in_epoch if abs(one - total) <= one * SAME_TOTAL), None)
        if known is not None:
            return known
        if len(self.in_epoch) >= MAX_COUNTERS:
            return next(iter(self.in_epoch))
        self.in_epoch[total] = False
        return total


def _is_second_bar(rank: _Rank, values: dict[str, float]) -> bool:
    """Whether this is a bar beside the training's: shorter, and it says nothing but how far it is."""
    total = values.get("total_steps")
    if total is None:
        return False
    if rank.bar_total is not None and total < rank.bar_total and values.keys() <= BAR_ONLY:
        return True
    rank.bar_total = total
    return False


def _at(seen: StepSeen, step: float | None) -> StepSeen:
    if step is None or not math.isfinite(step):
        return seen
    return replace(seen, values={**seen.values, "step": step}, joined=True)

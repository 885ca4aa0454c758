"""Counters that start again with each epoch, counted on.

Lightning's ``Epoch 3:  40%|…| 4/10`` is step 34. Keras heads each bar with a line ``Epoch 2/3``; a bare
``for batch in tqdm(loader)`` names no epoch at all; Ignite's bar counts an epoch while the lines beside it count the
whole training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from supervisor.run.events import is_share_of_epochs
from supervisor.run.series import READING

# Epochs of one training differ by less in length; a counter of the whole training counts twice as far at least.
SAME_TOTAL = 0.25
MAX_COUNTERS = 16
# What is left of an epoch differs by less from the steps that it has left, at the time of the newest.
OF_EPOCH = 2.0


class _Place(NamedTuple):
    """Where a counter stands. `behind`: the steps of its passes before, or the epochs that the label is behind."""

    behind: float
    step: float
    total: float
    epoch: float | None = None

    def begins_again(self, step: float, total: float) -> bool:
        """Whether a full counter that now stands in its first half has begun another pass; a late rank's stands near its end."""
        return self.step >= self.total and step <= total / 2


@dataclass(slots=True)
class Places:
    """Where the counters of one rank stand. `heading`: the epoch that a line of its own named.

    `thinned`: of a long log not all was kept, so that passes cannot be counted.
    """

    thinned: bool = False
    heading: dict[str, float] = field(default_factory=dict)
    of: dict[float, _Place] = field(default_factory=dict)


@dataclass(slots=True)
class Counters:
    """What is learnt of a run's counters, and kept for the attempts that come.

    Counters are distinguished by how far they count. `first_epoch`: what the run counts epochs from. `in_epoch`: whether a
    counter's steps count from each epoch's start. `earlier`: the counters of the attempts before.
    """

    first_epoch: float | None = None
    in_epoch: dict[float, bool] = field(default_factory=dict)
    earlier: frozenset[float] = frozenset()

    def begin(self) -> None:
        """Another attempt: with another micro-batch its counters count to other totals."""
        self.earlier = frozenset(self.in_epoch)

    def count_on(self, places: Places, values: dict[str, float]) -> dict[str, float]:
        """The values with a step that counts on over the epochs, once its counter was seen to start again.

        The total is then that of all epochs; where their number is not known, so is the total. What the log prints stays as
        ``epoch_step`` and ``epoch_steps``.
        """
        step, total = values["step"], values.get("total_steps")
        if total is None or not 0 <= step <= total:
            return values
        is_named = "epoch" in values  # else it is a heading's, which may be of an earlier training
        if not is_named:
            values = {**values, **places.heading}
        epoch = values.get("epoch")
        places.thinned = places.thinned or READING in values
        if epoch is None and places.thinned:
            return values
        if epoch is None:
            behind = self._passes(places, step, total)
            return _moved(values, behind, None) if behind else values
        if not math.isfinite(epoch) or epoch % 1:
            return values
        # "Epoch 0/3" may be the first of four: rich's bar in Lightning names the last epoch, not how many.
        all_epochs = values.get("total_epochs")
        if (
            is_named
            and all_epochs
            and epoch > 1
            and not is_share_of_epochs(step / total if total else 0.0, epoch, all_epochs)
        ):
            self.in_epoch[self._counter(total)] = True  # a log that begins in the middle
        epochs = self._epochs(places, epoch, step, total)
        if epochs is None:
            return values
        over = max(all_epochs, epochs + 1) * total if all_epochs is not None else None
        return _moved(values, epochs * total, over)

    def _passes(self, places: Places, step: float, total: float) -> float:
        """Steps of the passes before this one, where no epoch is named."""
        counter = self._counter(total)
        last = places.of.get(counter)
        behind = 0.0
        if last is not None and last.epoch is None:
            behind = last.behind + (last.total if last.begins_again(step, total) else 0.0)
        places.of[counter] = _Place(behind, step, total)
        return behind

    def _epochs(self, places: Places, epoch: float, step: float, total: float) -> float | None:
        """Epochs before this one; None while the counter may count the whole training."""
        if self.first_epoch is None or epoch < self.first_epoch:
            self.first_epoch = epoch if epoch in {0, 1} else 0
        counter = self._counter(total)
        last = places.of.get(counter)
        behind = 0.0
        if last is not None and last.epoch is not None:
            if epoch > last.epoch:
                # Full before the training's last epoch, it counted that epoch alone: only the last state of each bar may be kept.
                was_full = last.step >= last.total or last.behind > 0
                self.in_epoch[counter] = self.in_epoch[counter] or was_full or step < last.step
            elif epoch == last.epoch:
                behind = last.behind
                if last.begins_again(step, total):
                    # Lightning's bar goes back to 0 before it bears the next epoch's name.
                    behind += 1
                    self.in_epoch[counter] = True
        places.of[counter] = _Place(behind, step, total, epoch)
        return epoch - self.first_epoch + behind if self.in_epoch[counter] else None

    def _counter(self, total: float) -> float:
        """The counter that counts so far, or about so far: an epoch may be longer than the last."""
        known = next((one for one in self.in_epoch if abs(one - total) <= one * SAME_TOTAL), None)
        if known is not None:
            return known
        if len(self.in_epoch) >= MAX_COUNTERS:
            return next(iter(self.in_epoch))
        # Epochs of a new length, as a smaller micro-batch makes them: where all counters of before counted epochs, so does this one.
        self.in_epoch[total] = bool(self.earlier) and all(self.in_epoch[one] for one in self.earlier)
        return total


def _moved(values: dict[str, float], behind: float, total: float | None) -> dict[str, float]:
    """The values at another step; what is left of the pass is not what is left of the training."""
    ends = {"total_steps"} if _is_of_training(values) else {"eta_s", "total_steps"}
    over = {name: value for name, value in values.items() if name not in ends}
    printed = {"epoch_step": values["step"], "epoch_steps": values["total_steps"]}
    return (
        over | printed | {"step": behind + values["step"]} | ({} if total is None else {"total_steps": total})
    )


def _is_of_training(values: dict[str, float]) -> bool:
    """Whether the time that a line says is left is longer than its epoch lasts: MMEngine's is, a bar's or torchvision's is not."""
    left_s, took_s = values.get("eta_s"), values.get("step_time_s")
    if left_s is None or took_s is None:
        return False
    return left_s > OF_EPOCH * took_s * (values["total_steps"] - values["step"]) + took_s

"""What an attempt's samples say about the job as a whole: how far it is, its lowest losses, and a loss that is not finite."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from supervisor.keeper.monitoring.observations import StepSeen
from supervisor.run import events as ev
from supervisor.run.fold import MEASURED, merge_progress
from supervisor.run.series import CONTEXT
from supervisor.run.state import AttemptState

Minimum: TypeAlias = tuple[int | None, float]
"""A step (None before any was named) and its loss."""

# A loss that falls with every step makes each one a minimum; with this many, a line of the journal stays below 1 KiB.
MAX_MINIMA = 32
# A loss that is nan from the first step on is reported after this many, because some scripts first print an empty mean.
NOT_FINITE_FROM_START = 3
PROGRESS_FIELDS = frozenset(MEASURED)
OF_STEP = frozenset({"step", "epoch_step", "epoch_steps"})
WHOLE = OF_STEP | {"total_steps"}
POSITION = WHOLE | {"epoch", "total_epochs"}
"""The values that say how far the job is."""


class RunningMinima:
    """Every new minimum of the loss in one attempt, which the journal's newest value misses at many steps a second.

    All of them are kept, because a later attempt may repeat some of these steps, and the remaining steps have their own minimum.
    """

    def __init__(self) -> None:
        self._least = math.inf
        self._step: int | None = None
        self._new: list[Minimum] = []

    def add(self, step: float | None, loss: float | None) -> None:
        """Add a sample; values that are not finite are ignored. A loss without a step belongs to the newest step."""
        at = self._step
        if step is not None and math.isfinite(step):
            at = int(step)
            self._step = at if self._step is None else max(self._step, at)
        if loss is None or not loss < self._least or not math.isfinite(loss):
            return
        self._least = loss
        self._new.append((at, loss))
        if len(self._new) > MAX_MINIMA:
            self._new = [*self._new[:-1][::2], self._new[-1]]

    def take(self) -> tuple[Minimum, ...]:
        """The minima since the last call, the lowest last. If there were too many, every second one was dropped, but never the last."""
        new, self._new = tuple(self._new), []
        return new


class LossWatch:
    """Finds the first loss of an attempt that is nan or inf, and the first finite one after that; `view`: as an adopted attempt stands."""

    def __init__(self, view: AttemptState | None = None) -> None:
        self._finite = view.last_loss if view is not None else None
        self._first: ev.LossNotFinite | None = None
        self._count = 0
        self._is_reported = view is not None and view.not_finite is not None
        self._is_over = view is not None and view.finite_again is not None

    def take(self, attempt: int, seen: StepSeen) -> ev.LossNotFinite | ev.LossFinite | None:
        """What to journal after this sample, if anything."""
        loss, step = seen.values.get("loss"), seen.values.get("step")
        if loss is None:
            return None
        at = int(step) if step is not None and math.isfinite(step) else None
        if math.isfinite(loss):
            self._finite, self._first, self._count = loss, None, 0
            if not self._is_reported or self._is_over:
                return None
            self._is_over = True
            return ev.LossFinite(t=seen.t, attempt=attempt, loss=loss, step=at)
        self._count += 1
        self._first = self._first or ev.LossNotFinite(
            t=seen.t, attempt=attempt, value=str(loss), step=at, rank=seen.rank, last=self._finite
        )
        if self._is_reported or (self._finite is None and self._count < NOT_FINITE_FROM_START):
            return None
        self._is_reported = True
        return self._first


class JobProgress:
    """How far the job is, merged until it is journalled.

    Attributes:
        pending: what has not been journalled yet.
    """

    def __init__(self, *, stepped: bool = False) -> None:
        """`stepped`: the attempt has made a step already."""
        self.pending: ev.Progress | None = None
        self._stepped = stepped
        self._at_loss: tuple[float, float] | None = None  # epoch and step of the newest loss
        self._bare_steps = False  # steps without a loss go beyond it, as a bar's do

    def add(self, attempt: int, seen: StepSeen) -> bool:
        """Merge a sample. Returns whether it is the attempt's first step, which shows where it continues."""
        fields: dict[str, Any] = {}
        aside = POSITION if self._is_evaluation(seen) else frozenset()
        for name, value in seen.values.items():
            # A sample that waited for its step may be older than the newest one, so it does not say where the job is.
            elsewhere = (seen.joined and name in OF_STEP) or (seen.headed and name == "epoch")
            if name in PROGRESS_FIELDS - aside and math.isfinite(value) and not elsewhere:
                fields[name] = int(value) if name in WHOLE else value
        if not fields:
            return False
        self.pending = merge_progress(self.pending, ev.Progress(t=seen.t, attempt=attempt, **fields))
        is_first = "step" in fields and not self._stepped
        self._stepped = self._stepped or "step" in fields
        return is_first

    def _is_evaluation(self, seen: StepSeen) -> bool:
        """Whether a counter without a loss is behind the newest loss, in a log whose steps all have one: it counts an evaluation."""
        values = seen.values
        epoch, step = values.get("epoch"), values.get("step") if not seen.joined else None
        if values.keys() - CONTEXT <= POSITION:
            return False  # a heading: another training may begin
        known = self._at_loss if self._at_loss is not None else (-math.inf, -math.inf)
        here = (known[0] if epoch is None else epoch, math.inf if step is None else step)
        if "loss" in values:
            self._at_loss = here if step is not None else self._at_loss
            return False
        is_behind = self._at_loss is not None and here < known
        is_held_out = "val_loss" in values  # in a backlog the training's own step before it may be left out
        self._bare_steps = self._bare_steps or (step is not None and not is_behind and not is_held_out)
        return is_behind and not self._bare_steps

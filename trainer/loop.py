"""The training loop; one step fits on one screen.

Read `train` first, then `train_step`. Every rank runs this same code on its own share of the global batch. Ranks
talk in four places: DDP averages gradients in the backward pass of a step's last micro-batch; `train_step` sums
four numbers; `evaluate` sums losses; a checkpoint is agreed on. All ranks come to each of these in the same order, or
they wait for each other for ever: whatever decides about a collective must be known to all of them.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Protocol

import torch
from torch import Tensor, nn

from trainer.config import Batch, Config, DataError, LengthSchedule
from trainer.data.loading import Feed, MicroBatch, of_step
from trainer.data.samples import Samples
from trainer.distributed.group import Group
from trainer.model.optim import lr_at, on_device, set_lr, step_unless, whole
from trainer.reporting.console import Console
from trainer.reporting.telemetry import Phase

# Steps with an invalid loss that may follow each other before --skip_invalid_loss gives up.
MAX_SKIPPED = 10
# Steps with unusable data before --continue_on_error gives up.
MAX_BAD_DATA = 10


class NonFiniteError(ArithmeticError):
    """The loss or the gradient is NaN or infinite, and nobody asked to skip it."""


class UnusedParameterError(RuntimeError):
    """Parameters took no part in the loss, named (``--debug``)."""


class Ending(Enum):
    """How `train` came back."""

    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True)
class TrainState:
    """Where the training stands; a checkpoint has all of it (of `val_losses` that of its own step)."""

    step: int = 0  # finished optimizer steps
    samples_seen: int = 0
    tokens_seen: int = 0
    skipped_in_a_row: int = 0
    bad_data: int = 0
    val_losses: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One finished step, alike on all ranks except for the times. `step` is the number of steps done."""

    step: int
    loss: float
    lr: float
    grad_norm: float  # before clipping
    length: int  # tokens of a sample
    tokens: int  # of the global batch
    step_time_s: float
    data_wait_s: float
    applied: bool  # False: skipped, for it was not finite
    stop: bool  # some rank was asked to stop
    saved: bool  # a write in the background has ended
    loss_scale: float | None = None  # of float16, after the step


class Hook:
    """Something that watches the loop, and does nothing: others override what they need.

    A hook may not talk to other ranks: not all of them have the same hooks.
    """

    def before_step(self, state: TrainState, /) -> None:
        """A step is about to begin; its data is not read yet."""

    def after_step(self, state: TrainState, report: StepReport, /) -> None:
        """A step is done."""

    def after_evaluation(self, state: TrainState, val_loss: float, seconds: float, /) -> None:
        """An evaluation is done."""

    def phase(self, phase: Phase, state: TrainState, /) -> None:
        """The loop turns to something else."""

    def close(self, *, failed: bool = False) -> None:
        """The training is over; `failed`: by an exception, and for a few seconds at most."""


class Saving(Protocol):
    """Checkpoints as the loop sees them. What has no "collective" beside it talks to nobody."""

    def save(self, state: TrainState, final: bool) -> None:
        """A collective. Begins a checkpoint; a final one is committed when this returns."""

    def ended(self) -> bool:
        """Whether a write in the background has ended here, and not all ranks have heard of it."""
        ...

    def settle(self) -> None:
        """A collective. Waits for a write in the background, and tells all ranks alike what became of it."""

    def close(self) -> None:
        """Joins the writer, whatever ended the training."""


@dataclass(slots=True)
class Run:
    """What one process needs to train; `trainer.build` puts it together once."""

    config: Config
    group: Group  # the other ranks
    device: torch.device
    model: nn.Module  # wrapped for the group, called with (tokens, targets)
    synced: Callable[[bool], AbstractContextManager[None]]  # gradients meet in the last micro-step only
    bare: nn.Module  # the same parameters, unwrapped
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    peak_lr: float  # learning rate after the warm-up
    batch: Batch  # how a step is cut over ranks and micro-steps
    lengths: LengthSchedule  # tokens of a sample, by step
    feed: Feed  # micro-batches, maybe read ahead
    probe: Feed  # reads here and now, and leaves `feed` where it is
    validation: Samples
    autocast: Callable[[], AbstractContextManager[None]]  # the compute type of forward passes
    stop_request: StopRequest  # whether this rank was asked to stop
    console: Console
    saving: Saving  # checkpoints
    state: TrainState = field(default_factory=TrainState)
    hooks: list[Hook] = field(default_factory=list)


def train(run: Run) -> Ending:
    """Trains from `run.state` to the last step, or until any rank is asked to stop.

    Raises:
        NonFiniteError: the loss or gradient is not finite and may not be skipped.
    """
    config, state = run.config, run.state
    if config.debug:
        check_gradients(run)
    _enter(run, Phase.STEPPING)
    while state.step < config.num_iterations:
        for hook in run.hooks:
            hook.before_step(state)
        micro_batches = next_micro_batches(run)
        if micro_batches is None:
            continue
        report = train_step(run, micro_batches)
        for hook in run.hooks:
            hook.after_step(state, report)
        if report.saved:
            run.saving.settle()
        last = state.step == config.num_iterations
        if report.stop and not last:
            _save(run, final=True)
            return Ending.STOPPED
        if config.eval_every and (last or state.step % config.eval_every == 0):
            evaluate(run)
        if config.save_every and state.step % config.save_every == 0 and not last:
            _save(run, final=False)
            _enter(run, Phase.STEPPING)
    _save(run, final=True)  # of a step that has a checkpoint already, this is nothing
    return Ending.DONE


def train_step(run: Run, micro_batches: Iterable[MicroBatch]) -> StepReport:
    """One optimizer step over the global batch: accumulate, clip, agree, apply."""
    config, state, batch = run.config, run.state, run.batch
    started = time.perf_counter()
    read_before_s = run.feed.take_wait()  # not 0 with --continue_on_error alone: see `next_micro_batches`
    length = run.lengths.at(state.step)
    lr = lr_at(config, run.peak_lr, state.step)
    set_lr(run.optimizer, lr)

    # Gradients add up in .grad over the micro-steps; each loss counts its share, so that the sum is the mean.
    # It is added up on the device: a float here would make the host wait for each micro-step.
    loss_sum = torch.zeros((), dtype=torch.float32, device=run.device)
    for turn, (tokens, targets) in enumerate(micro_batches):
        with run.synced(turn == batch.accumulation - 1):
            with run.autocast():
                loss: Tensor = run.model(tokens, targets) / batch.accumulation
            torch.autograd.backward(run.scaler.scale(loss))
        loss_sum += loss.detach()
        del loss  # the graph must not outlive its micro-step

    # Here gradients are the mean over ranks too. They are clipped at their true size: fp16's scale comes off first.
    run.scaler.unscale_(run.optimizer)
    max_norm = config.gradient_clip_val or math.inf
    norm = whole(nn.utils.clip_grad_norm_(run.bare.parameters(), max_norm))

    # The one small collective of a step: what each rank must know of all others. All of it stays on the device until the step is
    # launched: whoever reads a number here lets the GPU wait for the host, which has the optimizer still to launch.
    finite = torch.isfinite(loss_sum) & torch.isfinite(norm)
    mine = (loss_sum, ~finite, run.stop_request.asked(), run.saving.ended())
    agreed = run.group.summed(on_device(mine, run.device))
    # All ranks apply the step or none does: their weights would differ from here on.
    step_unless(run.optimizer, agreed[1] > 0)
    if run.scaler.is_enabled():
        run.scaler.update()  # lowers its scale where it found an overflow
    run.optimizer.zero_grad(set_to_none=True)

    losses, not_finite, stop, saved = agreed.tolist()
    loss_mean, grad_norm, applied = losses / batch.world_size, float(norm), not_finite == 0
    state.step += 1
    state.samples_seen += batch.samples
    state.tokens_seen += batch.samples * length
    _allow_skipping(run, applied, loss_mean, grad_norm)
    return StepReport(
        step=state.step,
        loss=loss_mean,
        lr=lr,
        grad_norm=grad_norm,
        length=length,
        tokens=batch.samples * length,
        step_time_s=read_before_s + time.perf_counter() - started,
        data_wait_s=read_before_s + run.feed.take_wait(),
        applied=applied,
        stop=stop > 0,
        saved=saved > 0,
        loss_scale=run.scaler.get_scale() if run.scaler.is_enabled() else None,
    )


def next_micro_batches(run: Run) -> Iterable[MicroBatch] | None:
    """This rank's micro-batches of the next step, read as they are needed.

    With --continue_on_error they are read at once, and all ranks agree to skip a step whose data cannot be
    used on one of them: then None.

    Raises:
        DataError: the data cannot be used, and may not be skipped (any longer).
    """
    state, batch = run.state, run.batch
    requests = of_step(batch, state.samples_seen, run.lengths.at(state.step), run.group.rank)
    if not run.config.continue_on_error:
        return run.feed.bring(requests)
    ready: list[MicroBatch] = []
    problem: DataError | None = None
    for request in requests:
        try:
            ready.extend(run.feed.bring([request]))
        except DataError as error:
            problem = error
    if not run.group.any_of(problem is not None):
        return ready
    state.bad_data += 1
    if problem is not None:
        run.console.warn(f"step {state.step} skipped: {problem}")
    if state.bad_data > MAX_BAD_DATA:
        raise problem or DataError("the data of another rank cannot be used, once too often")
    state.step += 1
    state.samples_seen += batch.samples
    return None


def check_gradients(run: Run) -> None:
    """Tells by name which parameters get no gradient, before DDP stops with their indices.

    Raises:
        UnusedParameterError: there are some, here or on another rank, and DDP was not told to look for them.
    """
    first = of_step(run.batch, run.state.samples_seen, run.lengths.at(run.state.step), 0)[0]
    batch = next(iter(run.probe.bring([first])))
    names = _without_gradient(run.bare, batch, run.autocast)
    if names:
        run.console.warn(f"no gradient for: {', '.join(names)}")
    else:
        run.console.say("debug: every parameter gets a gradient")
    if run.group.any_of(bool(names)) and not run.config.find_unused_parameters and run.group.world_size > 1:
        where = f"rank {run.group.rank}: {', '.join(names)}" if names else "another rank"
        raise UnusedParameterError(
            f"parameters without gradient on {where}; --find_unused_parameters allows them"
        )


def _without_gradient(
    model: nn.Module, batch: tuple[Tensor, Tensor], autocast: Callable[[], AbstractContextManager[None]]
) -> list[str]:
    """Names of parameters that get no gradient from one micro-batch; leaves no gradient behind.

    The model is the bare one, so that no rank waits for another: DDP itself would stop in the next step with
    indices in place of names.
    """
    with autocast():
        loss = model(*batch)
    torch.autograd.backward(loss)
    names = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    model.zero_grad(set_to_none=True)
    return names


@torch.no_grad()
def evaluate(run: Run) -> float:
    """The mean loss over fixed validation samples, shared out over the ranks.

    Returns:
        The mean, alike on all ranks.
    """
    _enter(run, Phase.EVALUATING)
    started = time.perf_counter()
    run.bare.eval()
    total = seen = 0.0
    micro, world = run.batch.micro, run.group.world_size
    # Every rank goes through the model equally often, if need be with samples that do not count: a split
    # model gathers its weights in each pass.
    for first in range(0, run.config.eval_samples, micro * world):
        start = first + run.group.rank * micro
        counting = max(min(micro, run.config.eval_samples - start), 0)
        numbers = range(start, start + counting) if counting else range(1)
        block = run.validation.batch(numbers, run.config.max_seq_len).to(run.device)
        with run.autocast():
            loss = run.bare(block[:, :-1], block[:, 1:])
        total += float(loss) * counting
        seen += counting
    run.bare.train()
    total, seen = run.group.total([total, seen])
    value = total / seen
    run.state.val_losses[run.state.step] = value
    took = time.perf_counter() - started
    for hook in run.hooks:
        hook.after_evaluation(run.state, value, took)
    _enter(run, Phase.STEPPING)
    return value


def _allow_skipping(run: Run, applied: bool, loss: float, grad_norm: float) -> None:
    """Raises unless this step was sound, or may be skipped."""
    state = run.state
    if applied:
        state.skipped_in_a_row = 0
        return
    state.skipped_in_a_row += 1
    overflow = run.scaler.is_enabled() and math.isfinite(loss)
    what = f"loss {loss}, gradient norm {grad_norm} at step {state.step}"
    if state.skipped_in_a_row > MAX_SKIPPED or not (overflow or run.config.skip_invalid_loss):
        raise NonFiniteError(f"training is not finite: {what}; --skip_invalid_loss skips such steps")
    run.console.warn(f"step skipped: {what}")


def _save(run: Run, *, final: bool) -> None:
    _enter(run, Phase.CHECKPOINTING)
    run.saving.save(run.state, final=final)


def _enter(run: Run, phase: Phase) -> None:
    for hook in run.hooks:
        hook.phase(phase, run.state)


class StopRequest:
    """Remembers that this process was asked to checkpoint and leave: by SIGTERM, SIGUSR1 (SLURM's warning) or the supervisor's stop file.

    A handler only sets a flag.
    """

    def __init__(self, stop_file: str) -> None:
        self._file = stop_file
        self.reason = ""

    def listen(self) -> None:
        """Installs the handlers; call once, from the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)

    def asked(self) -> bool:
        """Whether this rank was asked. A look at the stop file costs about 2 µs."""
        if not self.reason and self._file and os.path.exists(self._file):
            self.reason = "stop file"
        return bool(self.reason)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name

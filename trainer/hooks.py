"""What watches the loop: telemetry, the console, the average of the weights, the memory cap."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import torch

from trainer.data.samples import Stream
from trainer.faults import Faults
from trainer.loop import Hook, StepReport, TrainState
from trainer.model.optim import Ema
from trainer.reporting import memory
from trainer.reporting.console import Console, Line, step_line
from trainer.reporting.memory import MemoryCap
from trainer.reporting.telemetry import Kind, Phase, Telemetry


@dataclass(frozen=True, slots=True)
class Speed:
    """What a speed is measured against. `peak_flops`: FLOP/s of all ranks' devices; None where that is not known."""

    compiled: bool
    flops_per_token: float
    peak_flops: float | None

    def mfu(self, tokens_per_sec: float) -> float | None:
        """Model FLOPs utilization (PaLM paper, appendix B): the share of the peak that goes into the model."""
        return tokens_per_sec * self.flops_per_token / self.peak_flops if self.peak_flops else None


class TelemetryHook(Hook):
    """One record a step, and one a change of phase."""

    def __init__(
        self,
        telemetry: Telemetry,
        device: torch.device,
        *,
        total_steps: int,
        limit: MemoryCap,
        speed: Speed,
        train: Stream,
        valid: Stream,
    ) -> None:
        self._telemetry = telemetry
        self._device = device
        self._total = total_steps
        self._limit = limit
        self._speed = speed
        self._train = train
        self._valid = valid
        self._phase: Phase | None = None
        self._compiling = speed.compiled

    def after_step(self, state: TrainState, report: StepReport, /) -> None:
        """Writes the step: means over ranks, own times and own memory."""
        if not self._telemetry.on:
            return
        if self._compiling:
            self._compiling = False
            self.phase(Phase.STEPPING, state)
        if not report.applied:
            text = f"loss {report.loss}, gradient norm {report.grad_norm}: the step was not applied"
            self._telemetry.warn(report.step, "step_skipped", text)
        tokens_per_sec = report.tokens / report.step_time_s
        held = memory.read(self._device)
        self._telemetry.emit(
            Kind.STEP,
            report.step,
            total_steps=self._total,
            loss=report.loss,
            bits_per_byte=self._train.bits_per_byte(report.loss),
            lr=report.lr,
            grad_norm=report.grad_norm,
            loss_scale=report.loss_scale,
            tokens_per_sec=tokens_per_sec,
            samples_per_sec=tokens_per_sec / report.length,
            step_time_s=report.step_time_s,
            data_wait_s=report.data_wait_s,
            seq_len=report.length,
            tokens_seen=state.tokens_seen,
            mfu=self._speed.mfu(tokens_per_sec),
            memory_cap_bytes=self._limit.limit_bytes,
            memory_used_bytes=held.used_bytes,
            **asdict(held),
        )

    def after_evaluation(self, state: TrainState, val_loss: float, seconds: float, /) -> None:
        """Writes the validation loss as a step record without the rest."""
        self._telemetry.emit(
            Kind.STEP,
            state.step,
            total_steps=self._total,
            val_loss=val_loss,
            val_bits_per_byte=self._valid.bits_per_byte(val_loss),
            eval_time_s=seconds,
        )

    def phase(self, phase: Phase, state: TrainState, /) -> None:
        """Writes a change of phase; the compiler works within the first step."""
        if self._compiling and phase is Phase.STEPPING:
            phase = Phase.COMPILING
        if phase is not self._phase:
            self._phase = phase
            self._telemetry.emit(Kind.PHASE, state.step, phase=phase.value, total_steps=self._total)


class ConsoleHook(Hook):
    """One line every `interval` steps, with means since the line before."""

    def __init__(self, console: Console, *, interval: int, total_steps: int, valid: Stream) -> None:
        self._console = console
        self._valid = valid
        self._interval = interval
        self._total = total_steps
        self._steps = 0
        self._tokens = 0
        self._first = True
        self._since = time.perf_counter()

    def after_step(self, _state: TrainState, report: StepReport, /) -> None:
        """Prints, if this step is due."""
        self._steps += 1
        self._tokens += report.tokens
        first, self._first = self._first, False
        now = time.perf_counter()
        if report.step % self._interval and report.step != self._total:
            self._console.progress(report.step, self._total)
            if first:
                self._start(now)  # the first step of a process loads and compiles: no measure of the others
            return
        took = max(now - self._since, 1e-9)
        self._console.say(
            step_line(
                Line(
                    report.step,
                    self._total,
                    report.loss,
                    report.lr,
                    report.grad_norm,
                    self._tokens / took,
                    took / self._steps,
                )
            )
        )
        self._start(now)

    def after_evaluation(self, state: TrainState, val_loss: float, seconds: float, /) -> None:
        """Prints the validation loss."""
        bits = self._valid.bits_per_byte(val_loss)
        beside = f" | {bits:.4f} bits/byte" if bits is not None else ""
        self._console.say(
            f"step {state.step}/{self._total} | val_loss {val_loss:.4f}{beside} | {seconds:.1f} s"
        )

    def phase(self, phase: Phase, _state: TrainState, /) -> None:
        """Time outside of steps is no step time: the count starts again."""
        if phase is Phase.STEPPING:
            self._start(time.perf_counter())

    def _start(self, now: float) -> None:
        self._since = now
        self._steps = self._tokens = 0


class EmaHook(Hook):
    """Averages the weights after each step that was applied."""

    def __init__(self, ema: Ema) -> None:
        self._ema = ema

    def after_step(self, _state: TrainState, report: StepReport, /) -> None:
        """Takes in the new weights."""
        if report.applied:
            self._ema.update(report.step)


class FaultHook(Hook):
    """Fails on request, before a step."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def before_step(self, state: TrainState, /) -> None:
        """Fails now, if that is planned for this step."""
        self._faults.before_step(state.step)


class CapHook(Hook):
    """Sets the memory cap after the first steps of this process, when its short-sample needs are known."""

    def __init__(
        self,
        limit: MemoryCap,
        console: Console,
        telemetry: Telemetry,
        *,
        headroom_mib: float,
        after_steps: int,
    ) -> None:
        self._limit = limit
        self._console = console
        self._telemetry = telemetry
        self._headroom_mib = headroom_mib
        self._left = max(after_steps, 1)

    def after_step(self, _state: TrainState, report: StepReport, /) -> None:
        """Counts down, then caps."""
        self._left -= 1
        if self._left != 0:
            return
        limit_bytes = self._limit.set(self._headroom_mib)
        text = f"memory cap: {limit_bytes / memory.MIB:.0f} MiB, {self._headroom_mib:.0f} MiB over what is held now"
        self._console.say_from_any(text)
        self._telemetry.emit(
            Kind.WARNING, report.step, code="memory_cap", text=text, memory_cap_bytes=limit_bytes
        )

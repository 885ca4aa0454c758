"""Saving and resuming as all ranks together see it; the files themselves are `trainer.checkpoint`'s."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor, nn

from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.config import Config, UsageError
from trainer.console import Console
from trainer.dist import Group
from trainer.ema import Ema
from trainer.faults import Faults
from trainer.loop import TrainState
from trainer.optim import Moments, cut_like, whole
from trainer.telemetry import Kind, Phase, Telemetry


@dataclass(slots=True)
class Parts:
    """What a checkpoint holds besides plain facts."""

    model: nn.Module
    moments: Moments
    scaler: torch.amp.GradScaler
    ema: Ema | None
    split: bool  # tensors are split over ranks: putting them together needs all ranks

    def tensors(self) -> dict[str, Any]:
        """All of it by name; a collective if `split`."""
        return {
            "model": {name: whole(tensor) for name, tensor in self.model.state_dict().items()},
            "optimizer": self.moments.named(),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.state_dict() if self.ema else {},
            "rng": torch.get_rng_state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Puts all of it back, cut for this rank."""
        with torch.no_grad():
            held = self.model.state_dict()
            if held.keys() != state["model"].keys():
                raise KeyError(f"its weights are {sorted(state['model'])[:3]}…, not {sorted(held)[:3]}…")
            for name, tensor in held.items():
                tensor.copy_(cut_like(state["model"][name], tensor))
        self.moments.load(state["optimizer"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.ema:
            self.ema.load_state_dict(state["ema"] or state["model"])
        torch.set_rng_state(state["rng"])


@dataclass(slots=True)
class Pending:
    """A checkpoint that a thread is writing."""

    thread: Thread
    step: int
    path: str = ""
    problem: str = ""


@dataclass(slots=True)
class Saver:
    """Writes checkpoints: rank 0 writes, all ranks learn whether it could."""

    root: Path
    config: Config
    group: Group
    console: Console
    telemetry: Telemetry
    faults: Faults
    parts: Parts
    facts: Mapping[str, Any]  # shape and data, for meta.json
    last_step: int = -1
    pending: Pending | None = field(default=None, init=False)

    def save(self, state: TrainState, final: bool) -> None:
        """Commits a checkpoint of `state`; a collective. In the background, if asked for and not final.

        Raises:
            CheckpointError: rank 0 could not write, and the user did not ask to go on.
        """
        self.finish()
        if state.step == self.last_step:
            return
        self.telemetry.emit(Kind.PHASE, state.step, phase=Phase.CHECKPOINTING.value)
        tensors = self.parts.tensors() if self.group.is_main or self.parts.split else {}
        meta = self._meta(state)
        self.last_step = state.step
        if self.config.async_save and not final:
            if self.group.is_main:
                self._start(state.step, meta, _copied(tensors))
            return
        path = problem = ""
        if self.group.is_main:
            path, problem = self._write(state.step, meta, tensors)
        self._conclude(state.step, path, self.group.from_main(problem), final=final)

    def finish(self) -> None:
        """Waits for a checkpoint that is being written in the background; rank 0 only has one.

        Raises:
            CheckpointError: it could not be written, and the user did not ask to go on.
        """
        if self.pending is not None:
            self.pending.thread.join()
            self.poll()

    def poll(self) -> None:
        """Announces a checkpoint that was written in the background, if it is done.

        Raises:
            CheckpointError: it could not be written, and the user did not ask to go on.
        """
        done = self.pending
        if done is not None and not done.thread.is_alive():
            self.pending = None
            self._conclude(done.step, done.path, done.problem, final=False)

    def _start(self, step: int, meta: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        def write() -> None:
            pending.path, pending.problem = self._write(step, meta, tensors)

        pending = Pending(Thread(target=write, name=f"checkpoint-{step}", daemon=True), step)
        self.pending = pending
        pending.thread.start()

    def _write(self, step: int, meta: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[str, str]:
        """Returns: (path, "") or ("", what went wrong)."""
        try:
            path = checkpoint.save(self.root, step, meta, tensors, prepare=self.faults.before_save(step))
        except CheckpointError as error:
            return "", str(error)
        return str(path), ""

    def _conclude(self, step: int, path: str, problem: str, *, final: bool) -> None:
        if problem:
            self.last_step = -1
            if not self.config.continue_on_save_error:
                raise CheckpointError(problem)
            if self.group.is_main:
                self.console.warn(f"{problem}; training goes on")
                self.telemetry.warn(step, "checkpoint_failed", problem)
        elif self.group.is_main:
            self.telemetry.emit(Kind.CHECKPOINT_COMMITTED, step, path=path, final=final)
            self.console.say(f"checkpoint of step {step} committed: {path}")
            best = checkpoint.best(self.root) if self.config.keep_best else None
            checkpoint.prune(self.root, self.config.keep_checkpoints, {best} if best else set())
            self.faults.after_save(step, Path(path))

    def _meta(self, state: TrainState) -> dict[str, Any]:
        return {
            "samples_seen": state.samples_seen,
            "tokens_seen": state.tokens_seen,
            "val_loss": state.val_losses.get(state.step),
            "world_size": self.group.world_size,
            "torch": torch.__version__,
            **self.facts,
        }


def find(config: Config, root: Path, group: Group, console: Console) -> Path | None:
    """The checkpoint to resume from, the same on all ranks; None to start anew. A collective."""
    wanted = config.resume_from
    if not wanted:
        return None
    if wanted != "auto":
        return Path(wanted).absolute()
    chosen = ""
    if group.is_main:
        path, passed_over = checkpoint.newest(root)
        for reason in passed_over:
            console.warn(f"{reason}; trying an older one")
        chosen = str(path) if path else ""
        if not chosen:
            console.say(f"no committed checkpoint in {root}: starting at step 0")
    chosen = group.from_main(chosen)
    return Path(chosen) if chosen else None


def restore(saver: Saver, path: Path) -> TrainState:
    """Loads a checkpoint into the saver's parts.

    Raises:
        UsageError: it is another model's.
        CheckpointError: it is damaged or not committed.
    """
    loaded = checkpoint.load(path)
    meta, console = loaded.meta, saver.console
    theirs, ours = meta.get("shape"), saver.facts["shape"]
    if not isinstance(theirs, dict):
        raise CheckpointError(f"checkpoint {path} does not say its model's shape")
    if theirs != ours:
        differ = ", ".join(f"{k} {theirs.get(k)} (here {ours[k]})" for k in ours if theirs.get(k) != ours[k])
        raise UsageError(
            f"checkpoint {path} is of another model: {differ}; use the same settings, or start anew"
        )
    if meta.get("data") != saver.facts["data"]:
        console.warn(f"checkpoint {path} was trained on other data; going on with its sample position")
    try:
        saver.parts.load(loaded.state)
        state = TrainState(
            step=int(meta["step"]),
            samples_seen=int(meta["samples_seen"]),
            tokens_seen=int(meta["tokens_seen"]),
        )
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"checkpoint {path} does not fit: {' '.join(str(error).split())[:200]}"
        ) from None
    if math.isnan(state.step) or state.step < 0 or state.samples_seen < 0:
        raise CheckpointError(
            f"checkpoint {path} does not fit: step {state.step}, {state.samples_seen} samples"
        )
    saver.last_step = state.step if path.parent == saver.root else -1
    console.say(f"resumed from {path}: step {state.step}, {state.samples_seen} samples seen")
    return state


def _copied(held: Any) -> Any:
    """Deep copy in CPU memory: the training goes on changing what is being written."""
    if isinstance(held, Tensor):
        return held.detach().to("cpu", copy=True)
    if isinstance(held, dict):
        return {key: _copied(value) for key, value in held.items()}
    return held

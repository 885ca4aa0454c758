"""Saving and resuming as all ranks together see it; the files themselves are `trainer.checkpoint`'s."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.config import Config, UsageError
from trainer.console import Console
from trainer.dist import Group
from trainer.loop import TrainState
from trainer.telemetry import Kind, Phase, Telemetry


@dataclass(slots=True)
class Saver:
    """Writes checkpoints: rank 0 writes, all ranks learn whether it could."""

    root: Path
    config: Config
    group: Group
    console: Console
    telemetry: Telemetry
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    facts: Mapping[str, Any]  # shape and data, for meta.json
    last_step: int = -1

    def save(self, state: TrainState, final: bool) -> None:
        """Commits a checkpoint of `state`; a collective.

        Raises:
            CheckpointError: rank 0 could not write, and the user did not ask to go on.
        """
        if state.step == self.last_step:
            return
        self.telemetry.emit(Kind.PHASE, state.step, phase=Phase.CHECKPOINTING.value)
        problem = path = ""
        if self.group.is_main:
            try:
                path = str(checkpoint.save(self.root, state.step, self._meta(state), self._tensors()))
            except CheckpointError as error:
                problem = str(error)
        problem = self.group.from_main(problem)
        if problem:
            if not self.config.continue_on_save_error:
                raise CheckpointError(problem)
            if self.group.is_main:
                self.console.warn(f"{problem}; training goes on")
                self.telemetry.warn(state.step, "checkpoint_failed", problem)
            return
        self.last_step = state.step
        if self.group.is_main:
            self.telemetry.emit(Kind.CHECKPOINT_COMMITTED, state.step, path=path, final=final)
            self.console.say(f"checkpoint of step {state.step} committed: {path}")
            checkpoint.prune(self.root, self.config.keep_checkpoints, set())

    def _meta(self, state: TrainState) -> dict[str, Any]:
        return {
            "samples_seen": state.samples_seen,
            "tokens_seen": state.tokens_seen,
            "best_val_loss": state.best_val_loss if math.isfinite(state.best_val_loss) else None,
            "world_size": self.group.world_size,
            "torch": torch.__version__,
            **self.facts,
        }

    def _tensors(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "rng": torch.get_rng_state(),
        }


def find(config: Config, root: Path, group: Group, console: Console) -> Path | None:
    """The checkpoint to resume from, the same on all ranks; None to start anew. A collective.

    Raises:
        UsageError: a path was named and is no checkpoint.
    """
    wanted = config.resume_from
    if not wanted:
        return None
    if wanted != "auto":
        return Path(wanted)
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
    """Loads a checkpoint into the saver's model and optimizer.

    Raises:
        UsageError: it is another model's.
        CheckpointError: it is damaged or not committed.
    """
    loaded = checkpoint.load(path)
    meta, console = loaded.meta, saver.console
    theirs, ours = meta.get("shape", {}), saver.facts["shape"]
    if theirs != ours:
        differ = ", ".join(f"{k} {theirs.get(k)} (here {ours[k]})" for k in ours if theirs.get(k) != ours[k])
        raise UsageError(
            f"checkpoint {path} is of another model: {differ}; use the same settings, or start anew"
        )
    if meta.get("data") != saver.facts["data"]:
        console.warn(f"checkpoint {path} was trained on other data; going on with its sample position")
    try:
        saver.model.load_state_dict(loaded.state["model"])
        saver.optimizer.load_state_dict(loaded.state["optimizer"])
        saver.scaler.load_state_dict(loaded.state["scaler"])
        torch.set_rng_state(loaded.state["rng"])
        best = meta.get("best_val_loss")
        state = TrainState(
            step=int(meta["step"]),
            samples_seen=int(meta["samples_seen"]),
            tokens_seen=int(meta["tokens_seen"]),
            best_val_loss=math.inf if best is None else float(best),
        )
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {path} does not fit: {' '.join(str(error).split())[:200]}"
        ) from None
    saver.last_step = state.step if path.parent == saver.root else -1
    console.say(f"resumed from {path}: step {state.step}, {state.samples_seen} samples seen")
    return state

"""Saving and resuming as all ranks together see it; the files themselves are `storage`'s."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.checkpoint import storage
from trainer.checkpoint.shares import share_name, share_of
from trainer.checkpoint.storage import CheckpointError
from trainer.checkpoint.writer import Staging, Writer, Written, collect
from trainer.config import Config, UsageError
from trainer.distributed.group import Group
from trainer.faults import Faults
from trainer.loop import TrainState
from trainer.model.optim import Ema, Moments, cut_like
from trainer.reporting.console import Console
from trainer.reporting.telemetry import Kind, Telemetry

# All ranks hear of a write at least so often, however long it takes: a slow disk is no hung collective.
BEAT_S = 5.0
# A rank that leaves with an error still lets a checkpoint be finished for so long: stoker's own grace after a
# rank has died is 5 s too.
LEAVE_S = 5.0
_WRITING, _COMMITTED = "writing", "committed"


@dataclass(slots=True)
class Parts:
    """What a checkpoint holds besides plain facts."""

    model: nn.Module
    moments: Moments
    scaler: torch.amp.GradScaler
    ema: Ema | None
    split: bool  # what is saved is spread over ranks: putting it together needs all of them
    shares: bool  # it is not put together: each rank writes its own rows (FSDP2)

    def tensors(self) -> dict[str, Any]:
        """All of it by name, split as it is; a collective if `split`."""
        on_gpu = next(self.model.parameters()).is_cuda
        return {
            "model": self.model.state_dict(),
            "optimizer": self.moments.named(),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.state_dict() if self.ema else {},
            "rng": torch.get_rng_state(),
            "rng_cuda": torch.cuda.get_rng_state() if on_gpu else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Puts all of it back, cut for this rank."""
        put_weights(self.model, state["model"])
        self.moments.load(state["optimizer"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.ema:
            self.ema.load_state_dict(state["ema"] or state["model"])
        torch.set_rng_state(state["rng"])
        if state.get("rng_cuda") is not None and next(self.model.parameters()).is_cuda:
            torch.cuda.set_rng_state(state["rng_cuda"])


@torch.no_grad()
def put_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Puts whole tensors by name into a model, cut for this rank.

    Raises:
        KeyError: they are not those of this model.
    """
    held = model.state_dict()
    if held.keys() != weights.keys():
        raise KeyError(f"its weights are {sorted(weights)[:3]}…, not {sorted(held)[:3]}…")
    for name, tensor in held.items():
        tensor.copy_(cut_like(weights[name], tensor))


@dataclass(frozen=True, slots=True)
class Pending:
    """A write that all ranks know of and have not yet agreed on."""

    step: int
    path: Path
    final: bool
    blocked_s: float  # how long the step has waited for its start


@dataclass(slots=True)
class Saver:
    """Writes checkpoints: rank 0 writes, all ranks learn alike whether it could.

    Nothing here talks to other ranks from a thread. Rank 0's writer only writes; that it has ended travels
    with the one small collective of a step (`ended`), and all ranks then `settle` in the same place.
    """

    root: Path
    config: Config
    group: Group
    console: Console
    telemetry: Telemetry
    faults: Faults
    parts: Parts
    facts: Mapping[str, Any]  # shape and data, for meta.json
    tokenizer: bytes = b""  # a tokenizer.json, kept with each
    last_step: int = -1
    _pending: Pending | None = field(default=None, init=False)
    _writer: Writer = field(default_factory=Writer, init=False)
    _staging: Staging = field(default_factory=Staging, init=False)
    _written: Written | None = field(default=None, init=False)
    _file_system: int | None = field(default=None, init=False)  # the one that held `root` at the start
    _half_written: Path = field(default=Path(), init=False)  # of shares, on rank 0
    _facts_then: Mapping[str, Any] = field(default_factory=dict, init=False)
    _file: tuple[int, str] = field(default=(0, ""), init=False)  # size and checksum of this rank's share

    def open(self) -> None:
        """Makes the folder of checkpoints; a collective: a week's training is not lost to a wrong path.

        Raises:
            UsageError: rank 0 cannot make it, and the user did not ask to continue.
        """
        problem = ""
        if self.group.is_main:
            try:
                self._file_system = storage.open_root(self.root)
            except CheckpointError as error:
                problem = str(error)
        problem = self.group.from_main(problem)
        if problem and not self.config.continue_on_save_error:
            raise UsageError(problem)
        if problem and self.group.is_main:
            self.console.warn(f"{problem}; training continues")

    def save(self, state: TrainState, final: bool) -> None:
        """Commits a checkpoint of `state`; a collective. In the background, unless it is final or not wanted so.

        Raises:
            CheckpointError: rank 0 could not write this or the former one; all ranks raise it. Where the user
                asked to continue, only a final one raises: after it there is nothing to continue with.
        """
        self.settle()
        if state.step == self.last_step:
            return
        started = time.perf_counter()
        path = storage.folder_of(self.root, state.step)
        if self.group.any_of(self._writer.busy):
            # It outlasted save_timeout_s, and still reads the copy that this one would overwrite.
            self._failed(
                state.step,
                f"checkpoint {path} could not be written: the former write still hangs",
                final=final,
            )
            return
        later = self.config.async_save and not final
        if self.parts.shares:
            if problem := self._begin_share(state, later):
                self._failed(state.step, problem, final=final)
                return
        elif self.group.is_main or self.parts.split:
            staging = self._staging if later else None
            tensors = collect(self.parts.tensors(), staging, keep=self.group.is_main)
            if self.group.is_main:
                self._staging.finish()
                self._writer.start(partial(self._write, state.step, self._meta(state), tensors))
        self.last_step = state.step
        self._pending = Pending(state.step, path, final, time.perf_counter() - started)
        if not later:
            self.settle()

    def ended(self) -> bool:
        """Whether a write of this rank has ended since the last `settle`."""
        return self._writer.ended

    def settle(self) -> None:
        """Waits for a write that is under way, and tells what became of it; a collective.

        Raises:
            CheckpointError: see `save`.
        """
        if self._pending is None:
            return
        end = time.monotonic() + self.config.save_timeout_s
        if self.parts.shares:
            word = self._settle_shares(self._pending, end)
        else:
            while (word := self.group.from_main(self._word(self._pending, end))) == _WRITING:
                pass
        done, self._pending = self._pending, None
        if word != _COMMITTED:
            self._failed(done.step, word, final=done.final)
        elif self._written is not None and self.group.is_main:
            self._tell(done, self._written)
        self._written = None

    def close(self) -> None:
        """Joins the writer, for a bounded time; no collective: on the way out of an error peers may be gone.

        A checkpoint that is committed meanwhile rank 0 tells of alone: its marker is on disk.
        """
        pending, self._pending = self._pending, None
        if self.parts.shares:
            pending = None  # alone nobody knows whether the others have theirs
        written = self._writer.take(LEAVE_S) if pending is not None else None
        if pending is not None and written is not None and not written.problem:
            self._tell(pending, written)
        self._writer.close(0.0 if self._writer.busy else LEAVE_S)
        self._pass_on_complaints(pending.step if pending else self.last_step)

    def _word(self, pending: Pending, end: float) -> str:
        """What rank 0 knows of the write after one beat at most; nothing elsewhere."""
        if not self.group.is_main:
            return ""
        left_s = end - time.monotonic()
        self._written = self._writer.take(max(min(left_s, BEAT_S, self.config.dist_timeout_s / 4), 0.0))
        if self._written is not None:
            return self._written.problem or _COMMITTED
        if left_s > 0:
            return _WRITING
        limit = f"{self.config.save_timeout_s:g} s (save_timeout_s)"
        return f"checkpoint {pending.path} could not be written: it is not done after {limit}"

    def _write(self, step: int, meta: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Runs in the writer's thread."""
        self._check_root()
        storage.save(
            self.root, step, meta, tensors, tokenizer=self.tokenizer, prepare=self.faults.before_save(step)
        )

    def _begin_share(self, state: TrainState, later: bool) -> str:
        """Starts to write this rank's rows; a collective. Returns: why no rank can."""
        problem = ""
        if self.group.is_main:
            try:
                self._check_root()
                self._half_written = storage.begin(
                    self.root, state.step, prepare=self.faults.before_save(state.step)
                )
            except CheckpointError as error:
                problem = str(error)
        if problem := self.group.from_main(problem):
            return problem
        staging = self._staging if later else None

        def kept(place: str, tensor: Tensor) -> Tensor:
            return tensor if staging is None else staging.take(place, tensor, lasting=True)

        share = share_of(self.parts.tensors(), kept)
        self._staging.finish()
        temporary = storage.folder_of(self.root, state.step).with_suffix(".tmp")
        self._facts_then = self._meta(state)
        self._writer.start(partial(self._write_share, temporary, share))
        return ""

    def _write_share(self, temporary: Path, share: Mapping[str, Any]) -> None:
        """Runs in the writer's thread."""
        name = share_name(self.group.rank)
        self._file = storage.write(temporary, name, share)[name]

    def _settle_shares(self, pending: Pending, end: float) -> str:
        """Waits until all ranks have written, then rank 0 commits; a collective. Returns: `_COMMITTED`, or what went wrong."""
        writing = failed = 1.0
        while writing:
            left_s = max(end - time.monotonic(), 0.0)
            if self._written is None:
                self._written = self._writer.take(min(left_s, BEAT_S, self.config.dist_timeout_s / 4))
            late = self._written is None
            bad = self._written.problem if self._written is not None else ""
            writing, failed = self.group.total([float(late and left_s > 0), float(late or bool(bad))])
            failed -= writing
        if bad:
            self.console.warn(bad)
        if failed:
            if self.group.is_main:
                storage.drop(self._half_written)
            world = self.group.world_size
            return f"checkpoint {pending.path} could not be written: {failed:.0f} of {world} ranks have not written their share"
        # Sizes and checksums of all files (whole numbers that a double holds) meet in one sum.
        told = [0.0] * (2 * self.group.world_size)
        told[2 * self.group.rank : 2 * self.group.rank + 2] = [self._file[0], int(self._file[1], 16)]
        told = self.group.total(told)
        word = _COMMITTED
        if self.group.is_main:
            files = {
                share_name(rank): (int(told[2 * rank]), f"{int(told[2 * rank + 1]):08x}")
                for rank in range(self.group.world_size)
            }
            try:
                storage.finish(self._half_written, self._facts_then, files, self.tokenizer)
            except CheckpointError as error:
                word = str(error)
        return self.group.from_main(word)

    def _check_root(self) -> None:
        if self._file_system is None:
            self._file_system = storage.open_root(self.root)
        storage.check_root(self.root, self._file_system)

    def _tell(self, done: Pending, written: Written) -> None:
        """Announces a committed checkpoint; only then the oldest may go. Rank 0 alone."""
        self.telemetry.emit(
            Kind.CHECKPOINT_COMMITTED,
            done.step,
            path=str(done.path),
            final=done.final,
            blocked_time_s=done.blocked_s,
            write_time_s=written.seconds,
        )
        self.console.say(f"checkpoint of step {done.step} committed: {done.path}")
        self.faults.after_save(done.step, done.path)
        self._pass_on_complaints(done.step)
        self._writer.afterwards(self._prune)

    def _prune(self) -> list[str]:
        """Runs in the writer's thread: to delete gigabytes takes time too."""
        best = storage.best(self.root) if self.config.keep_best else None
        return storage.prune(self.root, self.config.keep_checkpoints, {best} if best else set())

    def _pass_on_complaints(self, step: int) -> None:
        for complaint in self._writer.complaints():
            self.console.warn(complaint)
            self.telemetry.warn(step, "checkpoint_not_deleted", complaint)

    def _failed(self, step: int, problem: str, *, final: bool) -> None:
        self.last_step = -1
        if final or not self.config.continue_on_save_error:
            raise CheckpointError(problem)
        if self.group.is_main:
            self.console.warn(f"{problem}; training continues")
            self.telemetry.warn(step, "checkpoint_failed", problem)

    def _meta(self, state: TrainState) -> dict[str, Any]:
        return {
            "samples_seen": state.samples_seen,
            "tokens_seen": state.tokens_seen,
            "skipped_in_a_row": state.skipped_in_a_row,
            "bad_data": state.bad_data,
            "val_loss": state.val_losses.get(state.step),
            "world_size": self.group.world_size,
            "torch": torch.__version__,
            **self.facts,
        }


def check_resume(config: Config) -> None:
    """Refuses a `resume_from` without a committed checkpoint; no collective, so that it comes before anything is built.

    Raises:
        UsageError: there is no such folder, or nothing in it is committed.
    """
    wanted = Path(config.resume_from)
    if config.resume_from in {"", "auto"}:
        return
    if not wanted.is_dir():
        raise UsageError(f"--resume_from {wanted}: {'not a folder' if wanted.exists() else 'no such folder'}")
    if not (wanted / storage.MARKER).is_file() and not storage.committed(wanted):
        raise UsageError(
            f"--resume_from {wanted}: no committed checkpoint (step_…/{storage.MARKER}) in this folder"
        )


def find(config: Config, root: Path, group: Group, console: Console) -> Path | None:
    """The checkpoint to resume from, the same on all ranks; None to start again. A collective.

    Raises:
        UsageError: a folder was named in which every checkpoint is damaged.
    """
    wanted = config.resume_from
    if not wanted:
        return None
    is_auto = wanted == "auto"
    if not is_auto:
        root = Path(wanted).absolute()
        if storage.step_of(root) >= 0 or (root / storage.MARKER).exists():
            return root
    chosen = ""
    if group.is_main:
        path, passed_over = storage.newest(root)
        for reason in passed_over:
            console.warn(f"{reason}; trying an older one")
        chosen = str(path) if path else ""
        if is_auto and not chosen:
            console.say(f"no committed checkpoint in {root}: starting at step 0")
    chosen = group.from_main(chosen)
    if not is_auto and not chosen:
        raise UsageError(f"--resume_from {wanted}: all checkpoints in this folder are damaged")
    return Path(chosen) if chosen else None


def restore(saver: Saver, path: Path) -> TrainState:
    """Loads a checkpoint into the saver's parts.

    Raises:
        UsageError: it is another model's.
        CheckpointError: it is damaged or not committed.
    """
    loaded = storage.load(path, by_rows=saver.parts.shares)
    meta, console = loaded.meta, saver.console
    theirs, ours = meta.get("shape"), saver.facts["shape"]
    if not isinstance(theirs, dict):
        raise CheckpointError(f"checkpoint {path} does not say its model's shape")
    theirs = {"arch": "rotary", **theirs}  # all that were written before there was another
    if theirs != ours:
        differ = ", ".join(f"{k} {theirs.get(k)} (here {ours[k]})" for k in ours if theirs.get(k) != ours[k])
        raise UsageError(
            f"checkpoint {path} is of another model: {differ}; use the same settings, or start again"
        )
    if meta.get("data") != saver.facts["data"]:
        console.warn(f"checkpoint {path} was trained on other data; going on with its sample position")
    try:
        saver.parts.load(loaded.state)
        state = TrainState(
            step=int(meta["step"]),
            samples_seen=int(meta["samples_seen"]),
            tokens_seen=int(meta["tokens_seen"]),
            skipped_in_a_row=int(meta.get("skipped_in_a_row", 0)),
            bad_data=int(meta.get("bad_data", 0)),
        )
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"checkpoint {path} does not fit: {' '.join(str(error).split())[:200]}"
        ) from None
    if state.step < 0 or state.samples_seen < 0:
        raise CheckpointError(
            f"checkpoint {path} does not fit: step {state.step}, {state.samples_seen} samples"
        )
    saver.last_step = state.step if path.parent == saver.root else -1
    console.say(f"resumed from {path}: step {state.step}, {state.samples_seen} samples seen")
    return state

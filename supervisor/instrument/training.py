"""Batches drawn, the shapes that the model sees, backward passes, optimizer steps, and the time and memory of a step.

PyTorch's own hooks are used where they exist (`register_module_forward_pre_hook`, `register_optimizer_step_post_hook`). The rest are
wrappers. Only the shape of a tensor is read, and no tensor is kept.
"""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import linecache
import re
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Iterator

from .imports import leave_environment
from .wire import Look, quietly, watch, wire

CLOSE_STEPS = 4
"""The first steps are recorded one by one, with the shapes of every forward. Then the forward hook is removed."""
RECORD_S = 1.0
"""Later steps are summed into one record per this many seconds."""
MAX_LOADERS = 40
MAX_FORWARDS = 200_000
"""After this many module calls without an optimizer step the forward hook is removed: a process that only evaluates pays no more."""

_ARITHMETIC = re.compile(r"[\w.+\-*/%(), ]{1,120}")
"""What is written of the text of a call ``…Loader(…, batch_size=…)``: names, numbers, operators and calls of functions, no text."""


class Loader:
    """One DataLoader: its number, and what was drawn from it since the last step."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.batches = 0
        self.samples = 0
        self.sizes: Any = None
        self.shown = 0.0


class Training:
    """What this process did since its last optimizer step."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        compiler = torch.compiler if hasattr(torch.compiler, "is_compiling") else torch._dynamo.external_utils
        self.compiling = compiler.is_compiling
        self.thread = threading.get_ident()
        self.loaders: weakref.WeakKeyDictionary[Any, Loader] = weakref.WeakKeyDictionary()
        self.iterators: weakref.WeakKeyDictionary[Any, Loader] = weakref.WeakKeyDictionary()
        self.numbered = 0
        self.last_loader: Any = None
        self.feeding: set[Loader] = set()
        self.within = 0
        """Calls of `next` and `backward` in progress. A forward inside them is a transform or a recomputation."""
        self.armed = True
        self.forward_calls = 0
        self.awaits_dynamo = False
        self.hook: Any = None
        self.backwards_ever = 0
        self.optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """The number of backward passes before the last step of each."""
        self.round: list[Any] = []
        """The optimizers that have stepped since a step was counted, that one first: one is counted when any of them steps again."""
        self.last_step_at: float | None = None
        self.since: Any = collections.Counter()
        self.sums: Any = collections.Counter()
        """What a `step` record counts: since the last step, and since the last record."""
        self.flushed_at = 0.0

    def loader_made(self, args: Any, _kwargs: Any) -> Look:
        """`DataLoader.__init__`."""
        yield
        if self.numbered >= MAX_LOADERS:
            return
        held = args[0]
        self.numbered += 1
        self.loaders[held] = Loader(self.numbered)
        own = held.__dict__
        sizes = {"batch_size": own.get("batch_size"), "workers": own.get("num_workers")}
        sizes["sampler_batch_size"] = getattr(own.get("batch_sampler"), "batch_size", None)
        sizes = {name: size for name, size in sizes.items() if type(size) is int}
        frame = sys._getframe(2)
        at = "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        wire.record("loader", id=self.numbered, at=at, expression=batch_expression(frame), **sizes)

    def iterator_made(self, args: Any, _kwargs: Any) -> Look:
        """`DataLoader._get_iterator`: which loader an iterator belongs to."""
        result = yield
        loader = self.loaders.get(args[0])
        if loader is not None:
            self.iterators[result] = loader

    def batch_asked(self, args: Any, _kwargs: Any) -> Look:
        """`_BaseDataLoaderIter.__next__`. A prefetching thread calls it too, and then training does not wait."""
        own = threading.get_ident() == self.thread
        self.within += own
        began = time.perf_counter()
        try:
            batch = yield
        finally:
            self.within -= own
        loader = self.iterators.get(args[0])
        if loader is None:
            return
        self.since["data_wait_s"] += time.perf_counter() - began if own else 0.0
        if loader is not self.last_loader:
            self.armed = True
            self.last_loader = loader
        loader.batches += 1
        seen = tensors_in(batch)
        sizes = [shape[0] for shape in seen["shapes"]]
        if not sizes:
            return
        loader.samples += sizes[0]
        now = time.monotonic()
        if wire.step < CLOSE_STEPS or (sizes != loader.sizes and now >= loader.shown + RECORD_S):
            wire.record("shape", step=wire.step, loader=loader.number, of="batch", **seen)
            loader.sizes, loader.shown = sizes, now

    def forward_begins(self, module: Any, inputs: Any) -> None:
        """Before a module's forward, outside of compiled code."""
        self.forward_calls += 1
        if wire.step >= CLOSE_STEPS or wire.off or self.forward_calls > MAX_FORWARDS:
            self.unhook()
            return
        trains = self.armed and not self.within and module.training and self.torch.is_grad_enabled()
        if not trains or next(module.parameters(), None) is None:
            return
        wire.start_reporting()
        seen = tensors_in(inputs)
        if not seen["shapes"]:
            return  # called with keywords: its first child that is given a tensor shows the shape
        self.armed = False
        loader = self.last_loader
        if loader is not None:
            # If the script keeps only the iterator, the DataLoader is garbage collected.
            self.feeding.add(loader)
        wire.record("shape", step=wire.step, loader=getattr(loader, "number", None), of="forward", **seen)

    def unhook(self) -> None:
        """Remove the forward hook, after the first steps or before a compilation, and the reading of the environment with it."""
        leave_environment()
        if self.hook is not None:
            self.hook.remove()

    def backward_called(self, _args: Any, _kwargs: Any) -> Look:
        """`torch.autograd.backward`."""
        self.within += 1
        try:
            yield
        finally:
            self.within -= 1
        self.since["micro_steps"] += 1
        self.backwards_ever += 1
        self.armed = True

    def compile_called(self, args: Any, _kwargs: Any) -> Look:
        """`torch.compile`. With a global hook a compiled module warns at each call, and dynamo takes other paths.

        So the hook is removed before the first compilation: of a module at once, of a function, which may be an optimizer's and decorated
        where it is imported, once dynamo begins. From then on compiled modules are observed where they are called, outside
        the compiled code: `OptimizedModule.__call__`, and the attribute that `Module.compile` sets, which is never pickled.
        """
        owner = __import__("torch._dynamo.eval_frame", fromlist=["OptimizedModule"]).OptimizedModule
        begins = getattr(sys.modules.get("torch._dynamo.callback"), "on_compile_start", None)
        if begins is None or (args and hasattr(args[0], "parameters")):
            self.unhook()
        elif not self.awaits_dynamo:
            self.awaits_dynamo = True
            begins(lambda *_: self.unhook())
        if "__call__" in owner.__dict__ and not hasattr(owner.__call__, "__wrapped__"):
            owner.__call__ = self.looking(owner.__call__)
        yield

    def compiled_in_place(self, args: Any, _kwargs: Any) -> Look:
        """`Module.compile`, which calls `torch.compile`."""
        yield
        args[0]._compiled_call_impl = self.looking(args[0]._compiled_call_impl, args[0])

    def looking(self, original: Any, *module: Any) -> Any:
        """Observe `original`, which calls a compiled module. `module`: the module, if it is not the first argument."""
        compiling = self.compiling

        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not compiling():
                with quietly("compiled"):
                    held, *inputs = module + args
                    self.forward_begins(held, (inputs, kwargs))
            return original(*args, **kwargs)

        return called

    def stepped(self, optimizer: Any) -> None:
        """After `Optimizer.step`: add up what happened since the last step, and write it when due.

        A step with no backward pass before it only creates state and does not count.
        """
        if self.optimizers.get(optimizer, 0) == self.backwards_ever:
            return
        self.optimizers[optimizer] = self.backwards_ever
        own = weakref.ref(optimizer)
        if own not in self.round and self.round and self.round[0]() is not None:
            self.round.append(own)
            return  # a GAN's second optimizer
        self.round = [own]
        wire.start_reporting()
        wire.step += 1
        now = time.perf_counter()
        self.since.update(steps=1, micro_steps=0, data_wait_s=0.0)
        if self.feeding:
            self.since["batches"] = sum(loader.batches for loader in self.feeding)
            self.since["samples"] = sum(loader.samples for loader in self.feeding)
        if self.last_step_at is not None:
            self.since["step_time_s"] = now - self.last_step_at
        self.last_step_at = now
        for loader in [*self.loaders.values(), *self.feeding]:
            loader.batches = loader.samples = 0
        self.sums.update(self.since)
        self.since.clear()
        if wire.step <= CLOSE_STEPS or now - self.flushed_at >= RECORD_S:
            wire.flush()

    def flush(self) -> None:
        """Write the sums since the last record, with what takes too long to be read at each step: memory, the optimizer's own count."""
        if not self.sums:
            return
        sums, self.sums = self.sums, collections.Counter()
        sums["optimizer_step"] = optimizer_step(self.round[0]())
        self.flushed_at = time.perf_counter()
        wire.record("step", step=wire.step, memory_peak_bytes=memory_peak(self.torch), **sums)

    def scaler_stepped(self, args: Any, kwargs: Any) -> Look:
        """`GradScaler.step`: if the optimizer did not step, gradients were not finite and the step was skipped."""
        optimizer = args[1] if len(args) > 1 else kwargs["optimizer"]
        before = self.optimizers.get(optimizer)
        yield
        if self.optimizers.get(optimizer) == before:
            self.since["skipped"] += 1
            self.flushed_at = 0.0

    def group_made(self, _args: Any, kwargs: Any) -> Look:
        """`init_process_group`."""
        yield
        timeout = kwargs.get("timeout")
        wire.start_reporting(timeout_s=timeout.total_seconds() if timeout is not None else None)


def watch_torch(torch: Any) -> None:
    """Install the hooks once torch is imported. A part that a release of torch lacks does not affect the others."""
    from . import checkpoints

    training = Training(torch)
    compiling = training.compiling
    wire.writers.append(training.flush)

    def before_forward(module: Any, inputs: Any) -> None:
        if compiling():  # first: anything else that dynamo reads here becomes a guard
            return
        with quietly("forward"):
            training.forward_begins(module, inputs)

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if compiling() or wire.off:
            return
        with quietly("step"):
            training.stepped(optimizer)

    with quietly("data"):
        data = torch.utils.data.dataloader
        watch(data.DataLoader, "__init__", training.loader_made)
        watch(data.DataLoader, "_get_iterator", training.iterator_made)
        watch(data._BaseDataLoaderIter, "__next__", training.batch_asked)
    with quietly("forward"):
        training.hook = torch.nn.modules.module.register_module_forward_pre_hook(before_forward)
        watch(torch, "compile", training.compile_called)
        watch(torch.nn.Module, "compile", training.compiled_in_place)
    with quietly("steps"):
        watch(torch.autograd, "backward", training.backward_called)
        watch(getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), "step", training.scaler_stepped)
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after_step)
    with quietly("group"):
        if torch.distributed.is_available():
            group = torch.distributed.distributed_c10d
            watch(group, "init_process_group", training.group_made, torch.distributed)
    with quietly("checkpoints"):
        checkpoints.watch_torch(torch)


def tensors_in(value: Any) -> dict[str, list[Any]]:
    """`shapes` of the first four tensors in a batch or in a call's arguments, and their `dtypes`, e.g. "int64"."""
    found = list(itertools.islice(_tensors(value, 3), 4))
    return {"shapes": [shape for shape, _ in found], "dtypes": [dtype for _, dtype in found]}


def _tensors(value: Any, depth: int) -> Iterator[tuple[list[int], str]]:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        if shape and all(type(size) is int for size in shape):  # not a symbolic one
            yield list(shape), str(getattr(value, "dtype", "")).rpartition(".")[2]
        return
    if not isinstance(value, (list, tuple)):
        items = getattr(value, "data", value)  # transformers' BatchEncoding keeps a dict there
        value = list(items.values()) if isinstance(items, dict) else []
    for held in value[:16] if depth else []:
        yield from _tensors(held, depth - 1)


def optimizer_step(optimizer: Any) -> Any:
    """An optimizer's own step count. None if it keeps none, keeps it on a device, or is gone."""
    first = next(iter(getattr(optimizer, "state", {}).values()), None)
    step: Any = first.get("step") if isinstance(first, dict) else None
    if isinstance(step, (int, float)) or (type(step).__name__ == "Tensor" and step.device.type == "cpu"):
        return int(step)
    return None


def memory_peak(torch: Any) -> int:
    """Peak memory so far, in bytes: CUDA's own counter if CUDA is in use, else the resident memory of the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def batch_expression(frame: Any) -> Any:
    """The text of ``batch_size=…`` in the call ``…Loader(…)`` that `frame` makes, if it is arithmetic, else None."""
    with suppress(
        AttributeError, IndexError, SyntaxError, TypeError, ValueError
    ):  # before 3.11; no source; no such call
        line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        lines = linecache.getlines(frame.f_code.co_filename)[line - 1 : end_line]
        data = "".join(lines).encode("utf-8")  # columns are counted in bytes
        data = data[column : len(data) - len(lines[-1].encode("utf-8")) + end_column]
        call: Any = ast.parse(data.decode("utf-8"), mode="eval").body
        if ast.unparse(call.func).endswith("Loader"):
            given = [keyword.value for keyword in call.keywords if keyword.arg == "batch_size"] + call.args[
                1:2
            ]
            text = ast.unparse(given[0])
            return text if _ARITHMETIC.fullmatch(text) else None
    return None

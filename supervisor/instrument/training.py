"""Measure the batches drawn, the model's input shapes, backward passes, optimizer steps, and each step's time and memory.

PyTorch's own hooks (`register_module_forward_pre_hook`, `register_optimizer_step_post_hook`) are used where available, and
wrappers elsewhere. Only the shape and dtype of a tensor are read, and no reference to it is kept.
"""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import linecache
import operator
import re
import sys
import threading
import time
import traceback
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Iterator

from .imports import leave_environment
from .recent_batches import RecentBatches
from .wire import Look, observe, place, quietly, watch, wire

CLOSE_STEPS = 4
"""The number of initial steps recorded individually, with all forward shapes. Then the forward hook is removed."""
RECORD_S = 1.0
"""Later steps are summed into one record for each period of this many seconds."""
MAX_LOADERS = 40

counts: Any = functools.partial(collections.defaultdict, int)
_ARITHMETIC = re.compile(r"[\w.+\-*/%(), ]{1,120}")
"""Matches recordable text in ``…Loader(…, batch_size=…)`` calls: names, numbers, operators and function calls, but no strings."""


class Training:
    """What this process has done since its last optimizer step."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        compiler = torch.compiler if hasattr(torch.compiler, "is_compiling") else torch._dynamo.external_utils
        self.compiling = compiler.is_compiling
        self.thread = threading.get_ident()
        self.loaders: Any = weakref.WeakKeyDictionary()
        """Maps each DataLoader and iterator to its number and the batches drawn from it since the last step."""
        self.numbered = 0
        self.last_loader: Any = None
        self.recent = RecentBatches()
        self.drawn: list[Any] = []
        """Loaders from which a batch was drawn since the last step."""
        self.feeding: list[Any] = []
        self.within = 0
        """Number of `next` and `backward` calls in progress. A forward pass inside one is a transform or a recomputation."""
        self.armed = True
        self.awaits_dynamo = False
        self.hook: Any = None
        self.newest: Any = None
        """Shapes in the latest outermost forward pass that no loader fed, unless it is the first pass since a backward pass."""
        self.passes = self.other_passes = 0
        """Backward passes since the last step of any optimizer, and the highest such count in this `round` after the first step."""
        self.optimizers: dict[Any, int] = {}
        """The number of backward passes before each optimizer's last step, keyed by weak reference."""
        self.round: list[Any] = []
        """Optimizers that have stepped, beginning with the last counted step. When one of them steps again, a new step is counted."""
        self.last_step_at: float | None = None
        self.since, self.sums = counts(), counts(micro_steps=0, data_wait_s=0.0)
        """Counts for a `step` record, since the last step and since the last record."""
        self.largest: Any = (0, {})
        """The number of elements of the largest batch since the last record, and its shapes."""
        self.slowest = (0.0, 0)
        """The longest step since the last record, in seconds, and its number."""
        self.trained: Any = weakref.WeakSet()
        """The models seen in a training forward pass, and those that they wrap."""
        self.evaluating_at: float | None = None
        self.flushed_at = self.timed_at = 0.0
        self.replicas: list[Any] = []
        """Weak references to DDP models."""
        self.sampled = 0
        """The last iteration for which DDP's own times were recorded."""
        self.is_waiting = False

    def loader_made(self, args: Any, _kwargs: Any) -> Look:
        """Observe `DataLoader.__init__`."""
        yield
        if self.numbered >= MAX_LOADERS:
            return
        held = args[0]
        self.numbered += 1
        self.loaders[held] = SimpleNamespace(
            number=self.numbered, epoch=-1, begun=0, batches=0, sizes=None, shown=0.0
        )
        own = held.__dict__
        sizes = {"batch_size": own.get("batch_size"), "workers": own.get("num_workers")}
        sizes["sampler_batch_size"] = getattr(own.get("batch_sampler"), "batch_size", None)
        sizes = {name: size for name, size in sizes.items() if type(size) is int}
        frame = sys._getframe(2)
        at = "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        wire.record("loader", id=self.numbered, at=at, expression=batch_expression(frame), **sizes)

    def iterator_made(self, args: Any, _kwargs: Any) -> Look:
        """Observe `DataLoader._get_iterator` to learn which loader each iterator belongs to."""
        result = yield
        loader = self.loaders.get(args[0])
        if loader is not None:
            self.loaders[result] = loader

    def batch_asked(self, args: Any, _kwargs: Any) -> Look:
        """Observe `_BaseDataLoaderIter.__next__`. Calls from a prefetching thread do not hold up training."""
        own, returned = threading.get_ident() == self.thread, False
        self.within += own
        began = time.perf_counter()
        try:
            batch = yield
            returned = True
        finally:
            self.within -= own
            taken, loader = self.recent.taken(args[0]), self.loaders.get(args[0])
            if not returned and own and loader is not None and taken[1] is not None:
                self.recent.add(args[0], loader, taken, {}, failed=True)
        if loader is None:
            return
        if own:  # a thread's prefetched batches belong to no particular step
            self.since["data_wait_s"] += time.perf_counter() - began
            self.last_step_at = self.last_step_at or began  # where the first step begins
            if not loader.batches:
                self.drawn.append(loader)
            loader.batches += 1
        if loader is not self.last_loader:
            self.armed = True
            self.last_loader = loader
        tensors = tensors_in(batch)
        if own:
            shapes = described(tensors)
            self.recent.add(args[0], loader, taken, shapes)
            if all(model.training for model in self.trained):
                self.evaluation_ended(began)
            elif self.evaluating_at is None and not self.passes:
                self.evaluating_at = began
            if self.evaluating_at is None:
                self.largest = max(self.largest, (elements_in(tensors), shapes), key=operator.itemgetter(0))
        if not tensors:
            return
        sizes = [tensor.shape[0] for tensor in tensors]
        if wire.step >= CLOSE_STEPS and sizes == loader.sizes:
            return
        now = time.monotonic()
        if wire.step < CLOSE_STEPS or now >= loader.shown + RECORD_S:
            wire.record("shape", step=wire.step, loader=loader.number, of="batch", **described(tensors))
            loader.sizes, loader.shown = sizes, now

    def evaluation_ended(self, now: float) -> None:
        """Count the time since an evaluation began, when a training batch is asked for or a backward pass begins."""
        if self.evaluating_at is not None:
            self.since["evaluation_s"] += now - self.evaluating_at
            self.evaluating_at = None

    def forward_begins(self, module: Any, inputs: Any) -> None:
        """Record input shapes before a module's forward pass, outside compiled code."""
        if wire.step >= CLOSE_STEPS or wire.off:
            self.unhook()
            return
        trains = not self.within and module.training and self.torch.is_grad_enabled()
        if not trains or next(module.parameters(), None) is None:
            return
        if not self.armed and (self.last_loader is not None or self.is_inner_call()):
            return
        wire.start_reporting()
        self.last_step_at = self.last_step_at or time.perf_counter()
        tensors = tensors_in(inputs)
        if not tensors:
            return  # keyword call: its first child called with a tensor shows the shape
        if not self.armed:  # the first forward may have been a rollout
            self.newest = described(tensors)
            return
        self.armed = False
        inner = getattr(module, "module", None)  # of a wrapper such as DDP
        self.trained.update(one for one in (module, inner) if isinstance(one, self.torch.nn.Module))
        loader = self.last_loader
        if loader is not None and loader not in self.feeding:
            self.feeding.append(loader)
        number = getattr(loader, "number", None)
        wire.record("shape", step=wire.step, loader=number, of="forward", **described(tensors))

    def is_inner_call(self) -> bool:
        """Check whether the module about to run was called by another module."""
        call = self.torch.nn.Module._call_impl.__code__
        return sum(frame.f_code is call for frame, _ in traceback.walk_stack(sys._getframe(1))) > 1

    def unhook(self) -> None:
        """Remove the forward hook and stop watching the environment, after the first steps or before compilation."""
        leave_environment()
        if self.hook is not None:
            self.hook.remove()
            self.hook = None

    def backward_called(self, _args: Any, _kwargs: Any) -> Look:
        """Observe `torch.autograd.backward`. DDP waits for other ranks at the end, unless its last forward pass disabled that."""
        self.within += 1
        self.evaluation_ended(time.perf_counter())
        if self.newest is not None:
            wire.record("shape", step=wire.step, of="backward", **self.newest)
            self.newest = None
        try:
            yield from self.waiting(is_wait=any(ddp().require_forward_param_sync for ddp in self.replicas))
        finally:
            self.within -= 1
        self.passes += 1
        wire.passes += 1
        self.armed = True

    def compile_called(self, args: Any, _kwargs: Any) -> Look:
        """Observe `torch.compile`. With a global hook installed, compiled modules warn on each call and dynamo takes other paths.

        The hook is therefore removed before the first compilation: right away for a module, or when dynamo first runs for a
        function (which may be part of an optimizer and decorated at import). From then on, calls of compiled modules are
        observed outside the compiled code: via `OptimizedModule.__call__` and the attribute that `Module.compile` sets, which
        is never pickled.
        """
        owner = __import__("torch._dynamo.eval_frame", fromlist=["OptimizedModule"]).OptimizedModule
        begins = getattr(sys.modules.get("torch._dynamo.callback"), "on_compile_start", None)
        if begins is None or (args and hasattr(args[0], "parameters")):
            self.unhook()
        elif not self.awaits_dynamo:
            self.awaits_dynamo = True
            begins(lambda *_: self.unhook())
        if "__call__" in owner.__dict__ and not hasattr(owner.__call__, "__wrapped__"):
            owner.__call__ = self.looking(
                owner.__call__, lambda args, kwargs: self.forward_begins(args[0], (args[1:], kwargs))
            )
        yield
        for kind in list(vars(self.torch.optim).values()):
            step: Any = getattr(kind, "step", None)
            # Up to 2.1, dynamo removes the hooks from torch's optimizers when it first compiles.
            if hasattr(step, "hooked") and step.__code__.co_name not in ("wrapper", "called"):
                kind.step = self.looking(step, self.step_called)

    def compiled_in_place(self, args: Any, _kwargs: Any) -> Look:
        """Observe `Module.compile`, which calls `torch.compile`."""
        yield
        module = args[0]
        module._compiled_call_impl = self.looking(
            module._compiled_call_impl, lambda *inputs: self.forward_begins(module, inputs)
        )

    def looking(self, original: Any, look: Any) -> Any:
        """Observe `original` with `look`, except while dynamo is tracing it."""
        compiling, observed = self.compiling, observe(original, look, "compiled")

        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if compiling() else observed(*args, **kwargs)

        return called

    def step_called(self, args: Any, _kwargs: Any) -> Look:
        """Observe the `step` method of an optimizer that has lost its hooks."""
        yield
        self.stepped(args[0])

    def stepped(self, optimizer: Any) -> None:
        """After `Optimizer.step`, add up the counts since the last step and write them when due.

        A step with no preceding backward pass only creates state and does not count.
        """
        own = weakref.ref(optimizer)
        if self.optimizers.get(own, 0) == wire.passes:
            return
        self.optimizers[own] = wire.passes
        passes, self.passes = self.passes, 0
        if own not in self.round and self.round and self.round[0]() is not None:
            self.round.append(own)
            self.other_passes = max(self.other_passes, passes)
            return  # a GAN's second optimizer
        self.round = [own]
        self.since["micro_steps"], self.other_passes = max(passes, self.other_passes), 0
        wire.start_reporting()
        wire.step += 1
        now, sums = time.perf_counter(), self.sums
        sums["steps"] += 1
        for loader in self.feeding:
            sums["batches"] += loader.batches
        for loader in self.drawn:
            loader.batches = 0
        self.drawn.clear()
        if self.last_step_at is not None:
            step_s = now - self.last_step_at
            sums["step_time_s"] += step_s
            self.slowest = max(self.slowest, (step_s, wire.step))
        self.last_step_at = now
        if wire.save_s:
            self.since["save_s"], wire.save_s = wire.save_s, 0.0
        for name, value in self.since.items():
            sums[name] += value
        self.since.clear()
        if wire.step <= CLOSE_STEPS or now - self.flushed_at >= RECORD_S:
            wire.flush()

    def flush(self) -> None:
        """Write the sums since the last record, plus memory and the optimizer's step count, which are too slow to read every step."""
        if not self.sums["steps"]:
            return
        sums, self.sums = self.sums, counts(micro_steps=0, data_wait_s=0.0)
        self.optimizers = {one: passes for one, passes in self.optimizers.items() if one() is not None}
        waited_s = sums.pop("waited_s", None)
        optimizer = self.round[0]()
        sums["optimizer_step"] = optimizer_step(optimizer)
        self.flushed_at = time.perf_counter()
        if self.slowest[1]:
            sums["slowest_s"], sums["slowest_step"] = self.slowest
        if self.largest[0]:
            sums["elements"], sums["shapes"] = self.largest[0], self.largest[1]["shapes"]
        self.largest, self.slowest = (0, {}), (0.0, 0)
        wire.record("step", step=wire.step, **memory_of(self.torch), **sums)
        if self.flushed_at - self.timed_at < RECORD_S or "step_time_s" not in sums:
            return
        times = self.reducer_times()
        if waited_s is not None and host_waits(self.torch, optimizer):
            times["compute_s"] = (sums["step_time_s"] - waited_s) / sums["steps"]
            if not self.replicas:
                times["collective_wait_s"] = waited_s / sums["steps"]
        if times:
            self.timed_at = self.flushed_at
            wire.record("timing", step=wire.step, **times)

    def reducer_times(self) -> dict[str, float]:
        """Return DDP's times for its last sampled iteration (the first ten, then every hundredth), on its device's clock.

        The wait lasts from the end of this rank's backward pass to the end of the last all-reduce. A forward pass that sends
        buffers also waits.
        """
        ddp: Any = self.replicas[0]() if len(self.replicas) == 1 else None
        seen = ddp._get_ddp_logging_data() if ddp is not None else {}
        if seen.get("iteration", 0) == self.sampled or not seen.get("backward_comm_time"):
            return {}
        self.sampled = seen["iteration"]
        wait_ns = seen["backward_comm_time"] - seen["backward_compute_comm_overlap_time"]
        return {"collective_wait_s": wait_ns / 1e9}

    def waiting(self, *_call: Any, is_wait: bool = True) -> Any:
        """Time a call in which the host waits for other ranks: `Work.wait` or one of DDP's calls."""
        if not is_wait or self.is_waiting or threading.get_ident() != self.thread:
            yield
            return
        self.is_waiting = True
        began = time.perf_counter()
        try:
            yield
        finally:
            self.is_waiting = False
            self.since["waited_s"] += time.perf_counter() - began

    def replica_made(self, args: Any, _kwargs: Any) -> Look:
        """Observe `DistributedDataParallel.__init__`."""
        yield
        self.replicas.append(weakref.ref(args[0], self.replicas.remove))

    def scaler_stepped(self, args: Any, kwargs: Any) -> Look:
        """Observe `GradScaler.step`. If the optimizer's step did not run, it was skipped because of non-finite gradients."""
        optimizer = args[1] if len(args) > 1 else kwargs["optimizer"]
        own = weakref.ref(optimizer)
        before = self.optimizers.get(own)
        yield
        if self.optimizers.get(own) == before:
            self.since["skipped"] += 1
            self.flushed_at = 0.0

    def group_made(self, _args: Any, kwargs: Any) -> Look:
        """Observe `init_process_group`. With CPU backends, waiting for other ranks always happens in `Work.wait`."""
        yield
        work = self.torch._C._distributed_c10d.Work
        if place()["backend"] in ("gloo", "mpi") and not hasattr(work.wait, "__wrapped__"):
            watch(work, "wait", self.waiting)
        timeout = kwargs.get("timeout")
        wire.start_reporting(timeout_s=timeout.total_seconds() if timeout is not None else None)


def watch_torch(torch: Any) -> None:
    """Install the hooks once torch is imported. If a torch release lacks one of the parts, the others still work."""
    from . import checkpoints

    training = Training(torch)
    compiling = training.compiling
    forward, step = quietly("forward"), quietly("step")
    wire.writers.append(training.flush)

    def before_forward(module: Any, inputs: Any) -> None:
        if compiling():  # first, because any other value that dynamo reads here becomes a guard
            return
        with forward:
            training.forward_begins(module, inputs)

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if compiling() or wire.off:
            return
        with step:
            training.stepped(optimizer)

    with quietly("data"):
        data = torch.utils.data.dataloader
        watch(data.DataLoader, "__init__", training.loader_made)
        watch(data.DataLoader, "_get_iterator", training.iterator_made)
        watch(data._BaseDataLoaderIter, "__next__", training.batch_asked)
        watch(data._BaseDataLoaderIter, "_reset", training.recent.began)
        watch(data._BaseDataLoaderIter, "_next_index", training.recent.asked)
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
            replica = torch.nn.parallel.DistributedDataParallel
            watch(replica, "__init__", training.replica_made)
            watch(replica, "_sync_buffers", training.waiting)
    with quietly("checkpoints"):
        checkpoints.watch_torch(torch)


def tensors_in(value: Any) -> list[Any]:
    """Return the first four tensors found in a batch or in call arguments."""
    return list(itertools.islice(_tensors(value, 3), 4))


def described(tensors: list[Any]) -> dict[str, list[Any]]:
    """Return the `shapes` of tensors and their `dtypes`, such as "int64"."""
    dtypes = [str(getattr(tensor, "dtype", "")).rpartition(".")[2] for tensor in tensors]
    return {"shapes": [list(tensor.shape) for tensor in tensors], "dtypes": dtypes}


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        if shape and all(type(size) is int for size in shape):  # skip symbolic sizes
            yield value
        return
    if not isinstance(value, (list, tuple)):
        items = getattr(value, "data", value)  # transformers' BatchEncoding keeps its dict in `data`
        value = list(items.values()) if isinstance(items, dict) else []
    for held in value[:16] if depth else []:
        yield from _tensors(held, depth - 1)


def host_waits(torch: Any, optimizer: Any) -> bool:
    """Check whether the host blocks on each collective, as it does on CPU with whole parameters (no FSDP or DTensor)."""
    first: Any = optimizer.param_groups[0]["params"][0] if optimizer is not None else None
    return (
        type(first) is torch.nn.Parameter and first.device.type == "cpu" and not torch.cuda.is_initialized()
    )


def optimizer_step(optimizer: Any) -> Any:
    """Return an optimizer's own step count, or None if it has none, keeps it on a device, or is gone."""
    first = next(iter(getattr(optimizer, "state", {}).values()), None)
    step: Any = first.get("step") if isinstance(first, dict) else None
    if isinstance(step, (int, float)) or (type(step).__name__ == "Tensor" and step.device.type == "cpu"):
        return int(step)
    return None


def elements_in(tensors: list[Any]) -> int:
    """Return the number of elements of the largest tensor."""
    return max((functools.reduce(operator.mul, tensor.shape, 1) for tensor in tensors), default=0)


def memory_of(torch: Any) -> dict[str, int]:
    """Return this rank's memory in bytes: its peak so far, its use now, and on CUDA what is reserved and the card's size.

    On CUDA these are the allocator's own counters, which are never reset, because the script may report them. On a CPU, the
    process's resident memory.
    """
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        seen: Any = torch.cuda.memory_stats()
        return {
            "memory_peak_bytes": seen.get("allocated_bytes.all.peak", 0),
            "memory_now_bytes": seen.get("allocated_bytes.all.current", 0),
            "memory_reserved_bytes": seen.get("reserved_bytes.all.current", 0),
            "memory_limit_bytes": torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory,
        }
    import resource

    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return {
        "memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "memory_now_bytes": resident,
    }


def batch_expression(frame: Any) -> Any:
    """Return the text of ``batch_size=…`` in the ``…Loader(…)`` call at `frame` if it is arithmetic, else None."""
    # Before Python 3.11, without source, or without a matching call.
    with suppress(AttributeError, IndexError, SyntaxError, TypeError, ValueError):
        line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        lines = linecache.getlines(frame.f_code.co_filename)[line - 1 : end_line]
        data = "".join(lines).encode("utf-8")  # columns are counted in bytes
        data = data[column : len(data) - len(lines[-1].encode("utf-8")) + end_column]
        call: Any = ast.parse(data.decode("utf-8"), mode="eval").body
        if ast.unparse(call.func).endswith("Loader"):
            named = [keyword.value for keyword in call.keywords if keyword.arg == "batch_size"]
            text = ast.unparse([*named, *call.args[1:2]][0])
            return text if _ARITHMETIC.fullmatch(text) else None
    return None

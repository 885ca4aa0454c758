"""Puts a run together from its settings, trains, and takes it apart in the order that ends cleanly."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer import faults as fl
from trainer import memory, saving
from trainer.config import Batch, Config, plan_batch, plan_lengths
from trainer.config import by_rank as cap_of_rank
from trainer.console import Console, short
from trainer.data import Feed, Samples, Stream, open_data
from trainer.device import peak_flops_of
from trainer.dist import Device, Group, Place, choose_device, detect
from trainer.ema import Ema
from trainer.hooks import CapHook, ConsoleHook, EmaHook, SaveHook, TelemetryHook
from trainer.loop import Ending, Run, TrainState, train
from trainer.model import GPT, flops_per_token, shape_of
from trainer.optim import Moments, build_optimizer, peak_rate
from trainer.stop import StopWish
from trainer.telemetry import Kind, Phase, Telemetry

EXIT_STOPPED = 75


def execute(config: Config, env: Mapping[str, str]) -> int:
    """Runs a training in this process.

    Returns:
        The exit code: 0 done, 75 stopped after a checkpoint.

    Raises:
        UsageError: the settings cannot work here.
    """
    place = detect(env, config)
    batch = plan_batch(config, place.world_size)
    faults = fl.Faults(fl.parse(config.fault), place.rank)
    device = choose_device(config, place)
    streams = open_data(config)
    wish = StopWish(env.get("STOKER_STOP_FILE", ""))
    wish.listen()
    telemetry = Telemetry(config.telemetry_dir or env.get("STOKER_TELEMETRY_DIR", ""), place.rank)
    limit = memory.MemoryCap(device.torch_device)
    console = Console(place.rank)
    group = Group(place, device)
    state = TrainState()
    try:
        telemetry.emit(
            Kind.PHASE, 0, phase=Phase.RENDEZVOUS.value, pid=os.getpid(), world_size=place.world_size
        )
        group.join(config, device.backend, env)
        telemetry.emit(Kind.PHASE, 0, phase=Phase.LOADING.value)
        run = _build(
            config, env, place, device, group, batch, streams, wish, telemetry, limit, console, faults
        )
        state = run.state
        telemetry.emit(
            Kind.PHASE,
            state.step,
            phase=Phase.LOADING.value,
            total_steps=config.num_iterations,
            memory_base_bytes=memory.read(device.torch_device).held_bytes,
            device=str(device.torch_device),
            backend=device.backend,
            micro_batch=batch.micro,
            accumulation=batch.accumulation,
            global_batch=batch.samples,
            resumed_step=state.step or None,
        )
        ending = train(run)
        run.finish_saving()
        # The order is what keeps a healthy run from aborting at exit: the graph went with the steps, now
        # all ranks meet, the group ends, and only then the model goes (with `run`, when this returns).
        group.leave()
        run.faults.at_exit()
    except BaseException as error:
        limit.lift()
        telemetry.emit(Kind.EXIT, state.step, exit_code=1, reason=f"{type(error).__name__}: {error}"[:500])
        raise
    code = 0 if ending is Ending.DONE else EXIT_STOPPED
    if ending is Ending.STOPPED:
        console.say(f"stopped at step {state.step} ({wish.reason or 'asked on another rank'}): exit {code}")
    telemetry.emit(Kind.EXIT, state.step, exit_code=code, reason=ending.value)
    telemetry.close()
    return code


def _build(
    config: Config,
    env: Mapping[str, str],
    place: Place,
    device: Device,
    group: Group,
    batch: Batch,
    streams: tuple[Stream, Stream],
    wish: StopWish,
    telemetry: Telemetry,
    limit: memory.MemoryCap,
    console: Console,
    faults: fl.Faults,
) -> Run:
    where = device.torch_device
    train_stream, valid_stream = streams
    torch.manual_seed(config.seed)
    if where.type == "cuda" and config.tf32:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    shape = shape_of(config, train_stream.vocab_size)
    bare = GPT(shape, recompute=config.gradient_checkpointing).to(where)
    parameters = sum(p.numel() for p in bare.parameters())
    optimizer = build_optimizer(config, bare, where)
    compute, scaler = _precision(config, where)
    ema = Ema(bare, config.ema_decay) if config.ema_decay else None
    saver = saving.Saver(
        root=checkpoint_root(config, env),
        config=config,
        group=group,
        console=console,
        telemetry=telemetry,
        faults=faults,
        parts=saving.Parts(bare, Moments(optimizer, bare), scaler, ema, split=False),
        facts={"shape": shape.as_record(), "data": train_stream.fingerprint()},
    )
    _say_start(config, place, device, batch, train_stream, parameters, compute, console)
    resume = saving.find(config, saver.root, group, console)
    state = saving.restore(saver, resume) if resume else TrainState()
    run = Run(
        config=config,
        group=group,
        device=where,
        model=_wrapped(config, bare, device, group, env, console),
        bare=bare,
        optimizer=optimizer,
        scaler=scaler,
        peak_rate=peak_rate(config, place.world_size),
        batch=batch,
        lengths=plan_lengths(config),
        feed=Feed(Samples(train_stream, config.max_seq_len, config.seed), where, pin=config.pin_memory),
        validation=Samples(valid_stream, config.max_seq_len, config.seed, shuffled=False),
        autocast=lambda: _autocast(where, compute),
        wish=wish,
        faults=faults,
        console=console,
        save=saver.save,
        finish_saving=saver.finish,
        state=state,
    )
    if ema is not None:
        run.hooks.append(EmaHook(ema))
    run.hooks.append(
        TelemetryHook(
            telemetry,
            where,
            total_steps=config.num_iterations,
            limit=limit,
            flops_per_token=flops_per_token(shape, parameters, config.max_seq_len),
            peak_flops=peak_flops_of(where, place.world_size, compute),
        )
    )
    run.hooks.append(ConsoleHook(console, interval=config.log_interval, total_steps=config.num_iterations))
    if config.async_save:
        run.hooks.append(SaveHook(saver))
    headroom = cap_of_rank(
        config.memory_cap_cuda_mib if where.type == "cuda" else config.memory_cap_mib, place.rank
    )
    if headroom is not None:
        run.hooks.append(
            CapHook(limit, console, telemetry, headroom_mib=headroom, after_steps=config.memory_cap_step)
        )
    return run


def checkpoint_root(config: Config, env: Mapping[str, str]) -> Path:
    """Where checkpoints go: as asked, else in the supervisor's run directory, else ./checkpoints."""
    if config.checkpoint_dir:
        return Path(config.checkpoint_dir).absolute()
    run_dir = env.get("STOKER_RUN_DIR")
    return Path(run_dir or ".").absolute() / "checkpoints"


def _precision(config: Config, where: torch.device) -> tuple[torch.dtype, torch.amp.GradScaler]:
    """The compute type and, for float16, a loss scaler."""
    compute = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.dtype]
    if config.mixed_precision and compute is torch.float32:
        has_bfloat16 = where.type != "cuda" or torch.cuda.is_bf16_supported()
        compute = torch.bfloat16 if has_bfloat16 else torch.float16
    return compute, torch.amp.GradScaler(where.type, enabled=compute is torch.float16)


def _autocast(where: torch.device, compute: torch.dtype) -> AbstractContextManager[None]:
    if compute is torch.float32:
        return nullcontext()
    return torch.autocast(where.type, compute)


def _wrapped(
    config: Config, bare: GPT, device: Device, group: Group, env: Mapping[str, str], console: Console
) -> nn.Module:
    """The model as the loop calls it: compiled where that pays, and wrapped in DDP for several ranks."""
    use, why = wants_compile(config, device, env)
    console.say(f"torch.compile: {'on' if use else 'off'} ({why})")
    model: Any = torch.compile(bare) if use else bare
    if group.world_size == 1:
        wrapped: nn.Module = model
        return wrapped
    on_gpu = device.torch_device.type == "cuda"
    return DistributedDataParallel(
        model,
        device_ids=[device.torch_device.index] if on_gpu else None,
        find_unused_parameters=config.find_unused_parameters,
        gradient_as_bucket_view=True,
    )


def wants_compile(config: Config, device: Device, env: Mapping[str, str]) -> tuple[bool, str]:
    """Whether to compile, and why."""
    if env.get("TORCH_COMPILE") == "0":
        return False, "TORCH_COMPILE=0"
    if config.compile != "auto":
        return config.compile == "on", f"--compile {config.compile}"
    if device.torch_device.type != "cuda":
        return False, "no gain on a CPU at this size"
    if device.shared:
        return False, device.reason
    if not any(shutil.which(name) for name in (env.get("CC", "cc"), "gcc", "clang")):
        return False, "no C compiler is on PATH"
    return True, "CUDA and a C compiler are there"


def _say_start(
    config: Config,
    place: Place,
    device: Device,
    batch: Batch,
    stream: Stream,
    parameters: int,
    compute: torch.dtype,
    console: Console,
) -> None:
    ranks = f"rank {place.rank} of {place.world_size}"
    console.say(
        f"started by {place.reason}: {ranks} on {device.torch_device} ({device.reason}), {device.backend}"
    )
    console.say(
        f"model: depth {config.depth}, width {config.width}, {short(parameters)} parameters, {compute}; "
        f"data: {stream.name}, {short(len(stream.tokens))} tokens"
    )
    tokens = batch.samples * config.max_seq_len
    console.say(
        f"batch: {batch.micro} × accumulation {batch.accumulation} × {batch.world_size} ranks = "
        f"{batch.samples} samples a step ({tokens} tokens at length {config.max_seq_len})"
    )
    peak = peak_rate(config, place.world_size)
    if peak != config.learning_rate:
        console.say(
            f"learning rate: {config.learning_rate:g} scaled {config.lr_scaling} by {place.world_size} ranks = {peak:g}"
        )

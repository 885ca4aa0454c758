"""Puts a run together from its settings, trains, and takes it apart in the order that ends cleanly."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from trainer import faults as fl
from trainer.checkpoint import saving
from trainer.config import Batch, Config, DataError, UsageError, by_rank, plan_batch, plan_lengths
from trainer.data.loading import Feed, Plan, Workers, worker_count
from trainer.data.samples import Samples, Stream, open_data
from trainer.data.tokenizer import Tokenizer, beside, known
from trainer.distributed.compute import TYPES, allow_tf32, autocast, compile_blocks, look, tools
from trainer.distributed.group import Device, Group
from trainer.distributed.machine import Decision, Report, decide
from trainer.distributed.place import Place, detect
from trainer.distributed.sharding import make_optimizer, split_model, syncing, wrap
from trainer.hooks import CapHook, ConsoleHook, EmaHook, FaultHook, Speed, TelemetryHook
from trainer.loop import Ending, Hook, Run, StopRequest, TrainState, train
from trainer.model.language_model import LanguageModel, flops_per_token, model_of, shape_of
from trainer.model.optim import Ema, peak_lr
from trainer.reporting import memory
from trainer.reporting.console import Console, short
from trainer.reporting.telemetry import Kind, Phase, Telemetry
from trainer.sample import SampleHook
from trainer.trackers import RequestedTraces, TraceHook, asked_for

EXIT_STOPPED = 75


@dataclass(frozen=True, slots=True)
class Session:
    """This process: its settings, its place, and what it talks through."""

    config: Config
    env: Mapping[str, str]
    place: Place
    sees: Report
    decision: Decision
    device: Device
    group: Group
    batch: Batch
    train_stream: Stream
    valid_stream: Stream
    faults: fl.Faults
    stop_request: StopRequest
    telemetry: Telemetry
    console: Console
    limit: memory.MemoryCap
    samples: Tokenizer | None  # what --sample_every writes with; None: no samples are asked for


def execute(config: Config, env: Mapping[str, str]) -> int:
    """Runs a training in this process.

    Returns:
        The exit code: 0 done, 75 stopped after a checkpoint.

    Raises:
        UsageError: the settings cannot work here.
    """
    opened = open_session(config, env)
    telemetry, state, limit = opened.telemetry, TrainState(), None
    hooks: list[Hook] = []
    opened.stop_request.listen()
    try:
        telemetry.emit(
            Kind.PHASE, 0, phase=Phase.RENDEZVOUS.value, pid=os.getpid(), world_size=opened.place.world_size
        )
        session = settle(opened)
        limit = session.limit
        session.group.join(config, session.device)
        telemetry.emit(Kind.PHASE, 0, phase=Phase.LOADING.value)
        run = build_run(session)
        state, hooks = run.state, run.hooks
        _tell_start(session, state)
        try:
            ending = train(run)
        finally:
            run.saving.close()
        for hook in hooks:
            hook.close()
        run.feed.close()
        # The graph went with the steps; now all ranks meet, the group ends, and only then the model goes
        # (with `run`, when this returns): a bare destroy aborted 7 of 46 healthy gloo runs at exit.
        session.group.leave()
        session.faults.at_exit()
    except BaseException as error:  # whatever ends the run is told on the wire, then raised on
        if limit is not None:
            limit.lift()
        code = {UsageError: 2, KeyboardInterrupt: 130}.get(type(error), 1)
        telemetry.emit(Kind.EXIT, state.step, exit_code=code, reason=f"{type(error).__name__}: {error}"[:500])
        _close_failed(hooks)
        raise
    code = 0 if ending is Ending.DONE else EXIT_STOPPED
    if ending is Ending.STOPPED:
        why = session.stop_request.reason or "asked on another rank"
        session.console.say(f"stopped at step {state.step} ({why}): exit {code}")
    telemetry.emit(Kind.EXIT, state.step, exit_code=code, reason=ending.value)
    telemetry.close()
    return code


def _close_failed(hooks: Sequence[Hook]) -> None:
    """Ends trackers and profiler of a training that failed: their runs would stand as running for ever."""
    for hook in hooks:
        with suppress(Exception):  # the exception that ended the training is the one to be shown
            hook.close(failed=True)


def checkpoint_root(config: Config, env: Mapping[str, str]) -> Path:
    """Where checkpoints go: as asked, else in the supervisor's run directory, else ./checkpoints."""
    if config.checkpoint_dir:
        return Path(config.checkpoint_dir).absolute()
    return Path(env.get("STOKER_RUN_DIR") or ".").absolute() / "checkpoints"


def open_session(config: Config, env: Mapping[str, str]) -> Session:
    """All that one rank alone can refuse is refused here, before any waits for another."""
    place = detect(env, config)
    batch = plan_batch(config, place.world_size)
    faults = fl.Faults(fl.parse(config.fault), place.rank)
    mine = look(config, place)
    # Alone it can be told what it asked for and does not have; what all of them have is known once they met.
    alone = decide(config, Place(0, 1, place.told_local_rank, place.reason), [mine], tools(env), env)
    saving.check_resume(config)
    train_stream, valid_stream = open_data(config)
    samples = _tokenizer(config, train_stream) if config.sample_every else None
    return Session(
        config=config,
        env=env,
        place=place,
        sees=mine,
        decision=alone,
        device=Device(torch.device("cpu"), alone.backend),
        group=Group(place),
        batch=batch,
        train_stream=train_stream,
        valid_stream=valid_stream,
        faults=faults,
        stop_request=StopRequest(env.get("STOKER_STOP_FILE", "")),
        telemetry=Telemetry(config.telemetry_dir or env.get("STOKER_TELEMETRY_DIR", ""), place.rank),
        console=Console(place.rank),
        limit=memory.MemoryCap(torch.device("cpu")),
        samples=samples,
    )


def _tokenizer(config: Config, stream: Stream) -> Tokenizer:
    try:
        tokenizer = known(stream.vocab_size, beside(config.train_data_path))
    except DataError as error:
        raise UsageError(f"sample_every: {error}") from None
    if tokenizer is None:
        raise UsageError(
            f"sample_every: what the tokens of {stream.name} stand for is not known: no tokenizer.json is noted beside it "
            "(trainer data prepare writes one)"
        )
    return tokenizer


def settle(session: Session) -> Session:
    """Meets the other ranks, and decides with them how to compute.

    Raises:
        UsageError: what was asked for is not there on some rank; the same on all.
    """
    reports = session.group.meet(session.config, session.sees, session.env)
    decision = decide(session.config, session.place, reports, tools(session.env), session.env)
    device = Device.of(decision)
    return replace(session, decision=decision, device=device, limit=memory.MemoryCap(device.torch_device))


def build_run(session: Session) -> Run:
    """Model, optimizer, data and hooks of this rank, resumed if that is asked for; ranks meet in here."""
    config, group, console = session.config, session.group, session.console
    where = session.device.torch_device
    torch.manual_seed(config.seed)
    allow_tf32(config, where)
    decision = session.decision
    compute = TYPES[decision.dtype]
    shape = shape_of(config, session.train_stream.vocab_size)
    with torch.device("meta"):  # no weights yet: it may be larger than one device, or than this host
        bare = model_of(shape, recompute=config.gradient_checkpointing)
    _plant_fault(session, bare)
    parameters = sum(p.numel() for p in bare.parameters())
    _say_start(session, parameters)
    # The order matters: drawing and splitting make the parameters again, the optimizer and the averages hold those, a checkpoint
    # is loaded into all of them, and DDP starts by sending rank 0's weights to the others.
    split_model(config, bare, session.device, group, compute)
    root = checkpoint_root(config, session.env)
    resume = saving.find(config, root, group, console)
    if config.init_from and resume is None:
        from trainer.model.gpt2 import weights_from

        saving.put_weights(bare, weights_from(Path(config.init_from), shape))
        console.say(f"weights from {config.init_from}")
    optimizer, moments = make_optimizer(config, bare, session.device, group)
    scaler = torch.amp.GradScaler(where.type, enabled=compute is torch.float16)
    ema = Ema(bare, config.ema_decay) if config.ema_decay else None
    saver = saving.Saver(
        root=root,
        config=config,
        group=group,
        console=console,
        telemetry=session.telemetry,
        faults=session.faults,
        parts=saving.Parts(
            bare, moments, scaler, ema, split=config.shard == "zero1", shares=config.shard == "fsdp2"
        ),
        facts={"shape": shape.as_record(), "data": session.train_stream.fingerprint()},
        tokenizer=beside(config.train_data_path) if group.is_main else b"",
    )
    saver.open()
    state = saving.restore(saver, resume) if resume else TrainState()
    console.say(f"torch.compile: {'on' if decision.compile else 'off'} ({decision.compile_why})")
    if decision.compile:
        compile_blocks(config, bare)
    samples = Samples(session.train_stream, config.max_seq_len, config.seed)
    wrapped = wrap(config, bare, session.device, group)
    run = Run(
        config=config,
        group=group,
        device=where,
        model=wrapped,
        synced=syncing(wrapped, config),
        bare=bare,
        optimizer=optimizer,
        scaler=scaler,
        peak_lr=peak_lr(config, group.world_size),
        batch=session.batch,
        lengths=plan_lengths(config),
        feed=_feed(session, samples, state),
        probe=Feed(samples, where, pin=config.pin_memory),
        validation=Samples(session.valid_stream, config.max_seq_len, config.seed, shuffled=False),
        autocast=lambda: autocast(where, compute),
        stop_request=session.stop_request,
        console=console,
        saving=saver,
        state=state,
    )
    if config.fault:
        bare.register_forward_hook(
            lambda model, _inputs, loss: (
                loss * math.nan if model.training and session.faults.spoils_loss(state.step) else loss
            )
        )
    speed = Speed(
        compiled=decision.compile,
        flops_per_token=flops_per_token(shape, parameters, config.max_seq_len),
        peak_flops=decision.peak_flops,
    )
    run.hooks.extend(_hooks(session, bare, ema, speed))
    return run


def _plant_fault(session: Session, bare: LanguageModel) -> None:
    """The parameter of ``--fault unused_parameter``: in the model of every rank, in the loss of the healthy ones."""
    if session.faults.plants_parameter:
        where = session.device.torch_device
        bare.register_parameter("spare", nn.Parameter(torch.zeros(8, device=where)))
        if not session.faults.leaves_unused:
            bare.register_forward_hook(lambda model, _inputs, loss: loss + 0 * model.spare.sum())


def _hooks(session: Session, bare: LanguageModel, ema: Ema | None, speed: Speed) -> list[Hook]:
    """What watches this rank, in the order in which it is told: the average first, the cap last."""
    config, group, console = session.config, session.group, session.console
    where = session.device.torch_device
    hooks: list[Hook] = [FaultHook(session.faults)] if config.fault else []
    if ema is not None:
        hooks.append(EmaHook(ema))
    hooks.append(
        TelemetryHook(
            session.telemetry,
            where,
            total_steps=config.num_iterations,
            limit=session.limit,
            speed=speed,
            train=session.train_stream,
            valid=session.valid_stream,
        )
    )
    hooks.append(
        ConsoleHook(
            console,
            interval=config.log_interval,
            total_steps=config.num_iterations,
            valid=session.valid_stream,
        )
    )
    if session.samples is not None and (group.is_main or config.shard == "fsdp2"):
        compute = TYPES[session.decision.dtype]
        every = config.sample_every
        hooks.append(
            SampleHook(bare, session.samples, lambda: autocast(where, compute), console.say, every=every)
        )
    if config.profile:
        hooks.append(TraceHook(config.profile, group.rank, console.say))
    stop_file, run_dir = session.env.get("STOKER_STOP_FILE"), session.env.get("STOKER_RUN_DIR")
    if stop_file and run_dir:
        asked, traces = Path(stop_file).with_name("profile"), Path(run_dir, "artifacts")
        hooks.append(RequestedTraces(asked, traces, group.rank, console.say_from_any, console.warn))
    if group.is_main:
        hooks.extend(asked_for(config, console.warn))
    headroom_mib = by_rank(
        config.memory_cap_cuda_mib if where.type == "cuda" else config.memory_cap_mib, group.rank
    )
    if headroom_mib is not None:
        cap = CapHook(
            session.limit,
            console,
            session.telemetry,
            headroom_mib=headroom_mib,
            after_steps=config.memory_cap_step,
        )
        hooks.append(cap)
    return hooks


def _feed(session: Session, samples: Samples, state: TrainState) -> Feed:
    config, place = session.config, session.place
    count = worker_count(config.num_workers, os.cpu_count() or 1, session.decision.local_ranks)
    steps = range(state.step, config.num_iterations)
    plan = Plan(steps, state.samples_seen, session.batch, plan_lengths(config), place.rank)
    workers = Workers(count, config.data_timeout_s, config.persistent_workers)
    return Feed(samples, session.device.torch_device, pin=config.pin_memory, workers=workers, plan=plan)


def _tell_start(session: Session, state: TrainState) -> None:
    """The last record before the first forward pass: what is held then does not grow with the batch."""
    where = session.device.torch_device
    session.telemetry.emit(
        Kind.PHASE,
        state.step,
        phase=Phase.LOADING.value,
        total_steps=session.config.num_iterations,
        memory_base_bytes=memory.read(where).held_bytes,
        device=str(where),
        backend=session.device.backend,
        micro_batch=session.batch.micro,
        accumulation=session.batch.accumulation,
        global_batch=session.batch.samples,
        resumed_step=state.step or None,
    )


def _say_start(session: Session, parameters: int) -> None:
    config, place, device, batch, say = (
        session.config,
        session.place,
        session.device,
        session.batch,
        session.console.say,
    )
    ranks = f"rank {place.rank} of {place.world_size}"
    decision = session.decision
    say(
        f"started by {place.reason}: {ranks} on {device.torch_device} ({decision.place_why}), {device.backend}"
    )
    say(
        f"model: depth {config.depth}, width {config.width}, {short(parameters)} parameters, "
        f"{decision.dtype} ({decision.dtype_why}); "
        f"data: {session.train_stream.name}, {short(len(session.train_stream.tokens))} tokens"
    )
    tokens = batch.samples * config.max_seq_len
    say(
        f"batch: {batch.micro} × accumulation {batch.accumulation} × {batch.world_size} ranks = "
        f"{batch.samples} samples a step ({tokens} tokens at length {config.max_seq_len})"
    )
    if decision.gpu is not None and decision.peak_flops is None:
        say(f"no model FLOPs utilization: {decision.peak_why}")
    if config.shard != "none":
        say(f"split over ranks: {config.shard}")
    peak = peak_lr(config, place.world_size)
    if peak != config.learning_rate:
        say(
            f"learning rate: {config.learning_rate:g} scaled {config.lr_scaling} by {place.world_size} ranks = {peak:g}"
        )

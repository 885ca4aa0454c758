"""Share a run directory among a job's nodes. Node 0 creates it; the others join."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from supervisor.cli.common import complain
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.job_secrets import without_secrets
from supervisor.run.heartbeat import BEAT_S, Pulse
from supervisor.run.node_files import (
    CONTINUED_WITHIN_S,
    LEADER,
    Order,
    Want,
    create,
    read_order,
)
from supervisor.run.ownership import check_folder, keeper_is_alive, read_holder
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.runfile import BadRunFile, RunFile, read_run_file

LOOK_S = 0.2
SAY_S = 5.0
LISTEN_S = 4 * BEAT_S
"""How long to listen for a heartbeat before declaring a keeper dead. Its machine may just be busy."""
FOLDER = "--run-dir"


def require_shareable(spec: JobSpec) -> None:
    """Check that nodes can share this job.

    Raises:
        JobError: they cannot. The message is one line.
    """
    if not spec.several_nodes:
        raise JobError(
            f"{FOLDER} is of a job on several nodes: say --nnodes N and --node-rank K too; else --runs-dir"
        )
    if spec.entry_kind is EntryKind.COMMAND:
        raise JobError(f"{FOLDER} is for torchrun's jobs: what stands behind -- starts its nodes itself")
    if spec.trial is not None or spec.fit is not None:
        raise JobError(f"{FOLDER}: trials and --fit-batch are of one node")


def shared_run(run: RunPaths, record: RunFile) -> tuple[RunPaths, RunFile]:
    """Return the run and this node's record of it. Node 0 creates the run; the others wait for it and join.

    Raises:
        JobError: this node already has a keeper, the folder holds another run, or node 0 is absent. The message is one line.
    """
    require_shareable(record.job)
    if record.node == LEADER:
        return _made(run, record)
    return _joined(run, record)


def _made(run: RunPaths, record: RunFile) -> tuple[RunPaths, RunFile]:
    try:
        make_private(run.root)
        real = RunPaths(Path(os.path.realpath(run.root)))
        record = msgspec.structs.replace(record, path=str(real.root), run_id=real.run_id)
        data = msgspec.json.format(msgspec.json.encode(without_secrets(record)), indent=1) + b"\n"
        if create(real.run_json, data):
            return real, record
    except OSError as error:
        raise JobError(
            f"{run.root}: {error.strerror}: choose another folder with {FOLDER}", exit_code=3
        ) from error
    if _lives(run, LEADER):
        raise JobError(f"{run.root}: {_keeper_words(run, LEADER)}: two nodes were started with --node-rank 0")
    again = f"`stoker continue {run.root}` starts its next attempt, `stoker attach --adopt {run.root}` takes it over"
    raise JobError(f"{run.root} holds a run already: {again}; for a new one name a new folder")


def _joined(run: RunPaths, record: RunFile) -> tuple[RunPaths, RunFile]:
    bound_s = record.job.timing.node_timeout_s
    began = said = time.monotonic()
    while True:
        try:
            theirs = read_run_file(run.run_json)
            if run.node(LEADER).journal.exists():  # its keeper has begun as well
                break
        except BadRunFile as error:
            if run.run_json.exists() and "newer than" in str(error):
                raise JobError(str(error)) from error
        now = time.monotonic()
        if now - began > bound_s:
            there = "is there, and holds no run that node 0 keeps" if run.root.is_dir() else "is not there"
            raise JobError(
                f"{run.root} {there} after {bound_s:.0f} s: node 0 makes it: was it started, and do all nodes see the same folder?"
            )
        if now - said >= SAY_S:
            said = float("inf")
            complain("run", f"node {record.node} waits for node 0 to make {run.root}")
        time.sleep(LOOK_S)
    run = RunPaths(Path(os.path.realpath(run.root)))
    if refusals := check_folder(run).refusals:
        raise JobError(f"{run.root}: {refusals[0]}")
    if differs := difference(theirs.job, record.job):
        raise JobError(f"{run.root}: {differs}: start all nodes with the same command but for --node-rank")
    if not theirs.settings.shared:
        raise JobError(f"{run.root} is a run of one machine: name a new folder")
    _require_a_live_run(run, record)
    _require_no_other(run, record.node)
    return run, msgspec.structs.replace(record, path=theirs.path, run_id=theirs.run_id)


def difference(theirs: JobSpec, ours: JobSpec) -> str:
    """Describe how node 0's job contradicts this node's job, or return "" if it does not."""
    for name, there, here in (
        ("--nnodes", theirs.nnodes, ours.nnodes),
        ("--nproc-per-node", theirs.nproc_per_node, ours.nproc_per_node),
        ("--master-addr", theirs.master_addr, ours.master_addr),
        ("--master-port", theirs.master_port, ours.master_port),
        ("as its script", theirs.entry, ours.entry),
    ):
        if there != here:
            given, own = (f"{name} {each}" if each is not None else f"no {name}" for each in (there, here))
            return f"node 0 has {given}, this node {own}"
    return ""


def _require_a_live_run(run: RunPaths, record: RunFile) -> None:
    """Refuse a finished run's folder unless node 0, which may still be starting, continues the run soon."""
    order = _end_of(run)
    if order is None:
        return
    bound_s = min(record.job.timing.node_timeout_s, CONTINUED_WITHIN_S)
    over = f"{run.root} is of a run that is over ({order.reason})"
    complain("run", f"{over}: node {record.node} waits up to {bound_s:.0f} s for node 0 to continue it")
    if beats(run, LEADER, bound_s) or _end_of(run) is None:
        return
    raise JobError(f"{over}: name a new folder on all nodes, or `stoker continue` it on node 0 first")


def _end_of(run: RunPaths) -> Order | None:
    """Return the order that ended the run, or None if it is not over."""
    order = read_order(run.node(LEADER))
    return order if order is not None and order.want is Want.OVER else None


def _require_no_other(run: RunPaths, node: int) -> None:
    """Refuse a second keeper with the same --node-rank, even on another machine whose locks cannot be seen."""
    if _lives(run, node):
        raise JobError(
            f"{run.root}: {_keeper_words(run, node)}: two nodes were started with --node-rank {node}"
        )


def _lives(run: RunPaths, node: int) -> bool:
    if keeper_is_alive(run.node(node).lock):
        return True
    holder = read_holder(run.node(node).lock)
    if holder is None or holder.host == socket.gethostname():
        return False  # for a process on this machine the lock decides
    return beats(run, node)


def beats(run: RunPaths, node: int, listen_s: float = LISTEN_S) -> bool:
    """Check whether a node's heartbeat changes within `listen_s`."""
    pulse, end = Pulse(run.node(node).heartbeat), time.monotonic() + listen_s
    while time.monotonic() < end:
        pulse.look(time.monotonic())
        if pulse.moved():
            return True
        time.sleep(LOOK_S)
    return False


def _keeper_words(run: RunPaths, node: int) -> str:
    holder = read_holder(run.node(node).lock)
    where = f" (pid {holder.pid} on {holder.host})" if holder is not None else ""
    return f"a keeper is node {node} of it already{where}"

"""What all nodes share in one attempt: the launch, each node's plan, and the rendezvous.

Leader and followers make their plans with the same function (`plan_on_node`), each from its own job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs

from supervisor.job.arguments.command_line import value_of
from supervisor.job.batch import BatchSpec, with_world_size
from supervisor.job.errors import JobError
from supervisor.job.knobs.set_batch import batch_values
from supervisor.job.launch.plan import ENDPOINT_PORT, MASTER_PORT, CheckpointCopy, LaunchPlan, endpoint_of
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.job_secrets import with_hidden_words, with_secrets
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.planning.launch_plans import next_launch, plan_with
from supervisor.preflight.meeting import CONNECT_S, Failed, Way, why_not
from supervisor.preflight.network import free_port
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.next_job import NextJob, next_job
from supervisor.run.node_files import Launch, Order
from supervisor.run.paths import AttemptPaths, RunPaths
from supervisor.run.runfile import RunFile
from supervisor.run.state import RunState

RDZV = "--rdzv-"
RDZV_ID = "--rdzv-id"
LR_SCALING = "--lr_scaling"
WAIT_S: Final = 10.0
"""Seconds that torchrun may need on a busy machine until node 0 listens and the other nodes have found it."""
EVERY_S: Final = 5.0
CODE: Final = "rendezvous"


def common_launch(
    record: RunFile, state: RunState, run: RunPaths, env: Mapping[str, str], nodes: tuple[int, ...]
) -> tuple[Launch, CheckpointCopy | None]:
    """Return the launch that the leader sends to all nodes for the next attempt, and the checkpoint to copy.

    Raises:
        JobError: the job cannot take the changes, its batch does not fit the nodes, or no port is free.
    """
    now = next_job(with_secrets(record.job, env), state)
    now = replace(now, batch=batch_on(now, len(nodes)))
    launch, copy = next_launch(record, state, run, now, env)
    flags = record.job.torchrun_flags
    meets = any(flag.startswith(RDZV) for flag in flags)
    named = next((flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == RDZV_ID), "")
    launch = structs.replace(
        launch,
        nodes=nodes,
        master_port=record.job.master_port or (None if meets else free_port()),
        # An agent of an earlier attempt must not meet the agents of this one.
        rdzv_id=f"{named or run.run_id}-{len(state.attempts) + 1}" if meets else None,
    )
    return launch, copy


def batch_on(now: NextJob, nodes: int) -> BatchSpec | None:
    """Return the batch for this many nodes, with the same global batch as on all nodes.

    Raises:
        JobError: fewer nodes would change, or might change, the global batch.
    """
    job, batch = now.job, now.current_batch
    if nodes == job.most_nodes:
        return now.batch
    if batch is None or not batch.ranks_known:
        raise JobError("the global batch is not known")
    if job.entry_kind is EntryKind.TRAINER and value_of(now.words, LR_SCALING) not in {None, "none"}:
        raise JobError(f"{LR_SCALING} makes the learning rate depend on the ranks")
    fewer = with_world_size(batch, batch.world_size * nodes // job.most_nodes)
    batch_values(job.knobs, fewer, before=job.batch, local_world_size=job.nproc_per_node)  # can it be set?
    return fewer


def plan_on_node(
    record: RunFile,
    launch: Launch,
    number: int,
    run: RunPaths,
    paths: AttemptPaths,
    env: Mapping[str, str],
) -> LaunchPlan:
    """Return this node's plan of attempt `number`.

    Raises:
        JobError: a change cannot be applied to this node's job, or a secret is unknown here.
    """
    job = with_secrets(record.job, env)
    flags = job.torchrun_flags
    if launch.rdzv_id is not None:
        kept = (flag for flag in flags if flag.partition("=")[0] != RDZV_ID)
        flags = (*kept, f"{RDZV_ID}={launch.rdzv_id}")
    job = replace(
        job,
        nnodes=str(len(launch.nodes)),
        node_rank=launch.nodes.index(record.node),
        master_port=launch.master_port,
        torchrun_flags=flags,
        entry_args=job.entry_args if launch.args is None else with_hidden_words(launch.args, job.entry_args),
    )
    return plan_with(record, job, launch, number, run, paths, env, node_dir=str(run.node(record.node).root))


# -- the rendezvous, which logs nothing until the ranks have started ------------------------------------


class RendezvousWatch:
    """Probes the rendezvous while an attempt has no rank here, and journals each reason for a failure once.

    Only a second refusal in a row counts, because node 0 may be about to listen or to end.
    """

    def __init__(self, clock: Clock, emit: Callable[[ev.Event], None]) -> None:
        self._clock, self._emit = clock, emit
        self._probe: Background[Failed | None] = Background("stoker-rendezvous")
        self._due = float("-inf")
        self._attempt = 0
        self._said: set[Way] = set()
        self._refused = False

    def look(self, view: st.AttemptState | None, where: tuple[str, int] | None) -> None:
        """Probe if due. Call often. `where`: see `meeting_point`."""
        if view is None or where is None or view.started_t is None:
            return
        if any(rank.pid for rank in view.ranks.values()):
            return
        now = self._clock.mono()
        if view.number != self._attempt:
            self._attempt, self._due, self._said, self._refused = view.number, now + WAIT_S, set(), False
        if self._probe.busy:
            if self._probe.working:
                return
            found, before = self._probe.poll(), self._refused
            self._refused = found is not None and found.way is Way.REFUSED
            if self._refused and not before:
                return
            if found is not None and found.way not in self._said:
                self._said.add(found.way)
                text = f"waiting for the rendezvous: {found.what}; {found.fix}"
                code = f"{CODE}_{view.number}_{found.way.value}"
                self._emit(ev.Advisory(t=self._clock.wall(), attempt=view.number, code=code, text=text))
        elif now >= self._due:
            self._due = now + EVERY_S
            self._probe.start(lambda: why_not(*where))

    def close(self) -> None:
        """Wait for a probe in progress."""
        self._probe.close(CONNECT_S)


def meeting_point(job: JobSpec, order: Order | None) -> tuple[str, int] | None:
    """Return where torchrun's store listens on node 0, or None if unknown."""
    host, port = endpoint_of(job)
    if host:
        return host, port or ENDPOINT_PORT
    if job.master_addr is None:
        return None
    launch = order.launch if order is not None else None
    port_given = launch.master_port if launch is not None else None
    return job.master_addr, port_given or job.master_port or MASTER_PORT

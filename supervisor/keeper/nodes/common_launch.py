"""What all nodes have in common at one attempt, and a node's own plan from it.

Leader and followers make their plans by the same function (`plan_on_node`), from the job that each was started with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from supervisor.job.arguments.assignments import value_of
from supervisor.job.batch import BatchSpec, with_world_size
from supervisor.job.errors import JobError
from supervisor.job.knobs.set_batch import batch_values
from supervisor.job.launch.plan import CheckpointCopy, LaunchPlan
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.job_secrets import with_hidden_words, with_secrets
from supervisor.keeper.planning.launch_plans import next_resume_point, plan_with, settings_of
from supervisor.preflight.ports import free_port
from supervisor.run.next_job import NextJob, next_job
from supervisor.run.nodes import Launch
from supervisor.run.paths import AttemptPaths, RunPaths
from supervisor.run.runfile import RunFile
from supervisor.run.state import RunState

RDZV = "--rdzv-"
RDZV_ID = "--rdzv-id"
LR_SCALING = "--lr_scaling"


def common_launch(
    record: RunFile, state: RunState, run: RunPaths, env: Mapping[str, str], nodes: tuple[int, ...]
) -> tuple[Launch, CheckpointCopy | None]:
    """What the leader tells all nodes of the next attempt; and the checkpoint that is to be copied before it.

    Raises:
        JobError: the changes cannot be applied to this job, its global batch cannot be kept on so many nodes, or no port is free.
    """
    now = next_job(with_secrets(record.job, env), state)
    now = replace(now, batch=batch_on(now, len(nodes)))
    number = len(state.attempts) + 1
    point = next_resume_point(record, state, run, now, env)
    flags = record.job.torchrun_flags
    meets = any(flag.startswith(RDZV) for flag in flags)
    launch = Launch(
        nodes=nodes,
        args=now.job.entry_args if now.is_typed else None,
        batch=now.batch,
        env=tuple(now.env.items()),
        set_args=settings_of(now, point),
        resume=point.switch,
        resume_at=point.at,
        raise_open_files=now.raise_open_files,
        master_port=record.job.master_port or (None if meets else free_port()),
        # An agent of an attempt before must not meet those of this one.
        rdzv_id=f"{_named(flags) or run.run_id}-{number}" if meets else None,
    )
    return launch, point.copy


def batch_on(now: NextJob, nodes: int) -> BatchSpec | None:
    """The batch that is set where so many nodes take part: the global batch is that of all nodes.

    Raises:
        JobError: fewer nodes would change it, or it is not known whether they would.
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
    """This node's plan of attempt `number`.

    Raises:
        JobError: what is changed cannot be set in this node's job, or a secret is not known here.
    """
    job = job_on_node(with_secrets(record.job, env), launch, record.node)
    return plan_with(
        record,
        job,
        number,
        run,
        paths,
        env,
        batch=launch.batch,
        changed_env=launch.env,
        set_args=launch.set_args,
        resume=launch.resume,
        resume_at=launch.resume_at,
        node_dir=str(run.node(record.node).root),
    )


def job_on_node(job: JobSpec, launch: Launch, node: int) -> JobSpec:
    """The job with what the leader settled: who takes part, where they meet, what a person typed."""
    flags = job.torchrun_flags
    if launch.rdzv_id is not None:
        kept = (flag for flag in flags if flag.partition("=")[0] != RDZV_ID)
        flags = (*kept, f"{RDZV_ID}={launch.rdzv_id}")
    args = job.entry_args if launch.args is None else with_hidden_words(launch.args, job.entry_args)
    return replace(
        job,
        nnodes=str(len(launch.nodes)),
        node_rank=launch.nodes.index(node),
        master_port=launch.master_port,
        torchrun_flags=flags,
        entry_args=args,
    )


def _named(flags: tuple[str, ...]) -> str:
    return next((flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == RDZV_ID), "")

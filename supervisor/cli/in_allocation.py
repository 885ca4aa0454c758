"""Fill in and report a node's place when a scheduler has run ``stoker run`` on every node of its job.

A requeued job continues its earlier run, since to the user it is the same run.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from supervisor.cli.common import complain
from supervisor.cli.join_run import beats
from supervisor.cluster.scheduler import Place, Scheduler, scheduler_of
from supervisor.job.arguments.run_arguments import ParsedRun
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.policy import EXIT_ENDED_EARLY, EXIT_STOPPED
from supervisor.run import events as ev
from supervisor.run.index import runs_dir
from supervisor.run.journal import facts_in, read_state
from supervisor.run.node_files import LEADER
from supervisor.run.paths import RunPaths, is_run_directory
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.state import Finished

MAX_REQUEUES = 3


def placed(parsed: ParsedRun, env: Mapping[str, str]) -> ParsedRun:
    """Add this node's place to the command line if a scheduler started stoker on every node and no place was given.

    Raises:
        JobError: the same job would be started more than once.
    """
    place = scheduler_of(env).place
    if place is None or parsed.help or parsed.entry_kind is EntryKind.COMMAND:
        return parsed
    named = parsed.launcher("nnodes")
    if named in {"1", "1:1"} or not place.started_on_each:
        return parsed
    if place.tasks_here > 1:
        raise JobError(
            f"{place.why}: {place.tasks_here} tasks were started on this node, and each would start the whole job: "
            "srun --ntasks-per-node=1 stoker run … (torchrun starts the ranks), or --nnodes 1 where each task is a job of its own"
        )
    if place.nodes == 1:
        return parsed
    if named is not None and named.partition(":")[2] in {"", str(place.nodes)} and named != str(place.nodes):
        raise JobError(f"--nnodes {named}, and {place.why}: leave it out, or ask for as many")
    added = tuple(missing_flags(parsed, place))
    folder = () if parsed.flag("run_dir") else (("run_dir", str(_folder(parsed, env, place))),)
    words = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in (*added, *folder))
    complain("run", f"{place.why}: {words}")
    return replace(parsed, torchrun=(*added, *parsed.torchrun), stoker=(*folder, *parsed.stoker))


def missing_flags(parsed: ParsedRun, place: Place) -> Iterator[tuple[str, str]]:
    """Yield the (key, value) torchrun flags for a node's place that are not already on the command line."""
    if parsed.launcher("nnodes") is None:
        yield "nnodes", str(place.nodes)
    if parsed.launcher("node_rank") is None:
        yield "node_rank", str(place.node_rank)
    meets = any(key.startswith(("rdzv", "master_addr")) for key, _ in parsed.torchrun)
    if not meets and place.master is not None:
        yield "master_addr", place.master


def _folder(parsed: ParsedRun, env: Mapping[str, str], place: Place) -> Path:
    """Return the folder shared by all nodes of a step. A job's first step is always 0, even after a requeue."""
    scheduler, step = scheduler_of(env), place.step
    name = f"{scheduler.name.lower()}-{scheduler.job}" + ("" if step in {"", "0"} else f"-{step}")
    return runs_dir(parsed.flag("runs_dir"), env) / name


def requeued(parsed: ParsedRun, spec: JobSpec, env: Mapping[str, str]) -> int | None:
    """Continue the run of a job that the scheduler restarted, or return None to start a new run if there is none.

    Raises:
        JobError: node 0 did not continue the run in time.
    """
    scheduler = scheduler_of(env)
    if not scheduler.starts or not parsed.switch("no_ui") or parsed.switch("dry_run"):
        return None
    run = _run_before(parsed, scheduler, env)
    if run is None:
        return None
    if spec.node_rank != LEADER:
        bound_s = spec.timing.node_timeout_s
        if not beats(run, LEADER, bound_s):
            why = f"{run.root}: node 0 does not continue with it after {bound_s:.0f} s"
            raise JobError(why, exit_code=EXIT_STOPPED)
        return None
    over = read_state(run.node().journal).condition
    if isinstance(over, Finished) and over.exit_code == EXIT_ENDED_EARLY:
        return complain("run", f"{run.run_id}: {over.reason}: not started again", over.exit_code)
    most = int(parsed.flag("max_requeues") or MAX_REQUEUES)
    if (spent := _starts_without_progress(run)) > most:
        spent_text = f"started {spent} times without a new checkpoint (--max-requeues {most})"
        return complain("run", f"{run.run_id}: {spent_text}: not started again", scheduler.final_code)
    complain("run", f"{scheduler.name} started job {scheduler.job} again: {run.root} continues")
    from supervisor.cli import continuing

    return continuing.run(
        Namespace(
            run=str(run.root), yes=True, restart_from_scratch=spec.retry.restart_from_scratch, no_ui=True,
            json=parsed.switch("json"), detach=False, runs_dir=None, theme=None, ascii=False, lang=None,
        )
    )  # fmt: skip


def _run_before(parsed: ParsedRun, scheduler: Scheduler, env: Mapping[str, str]) -> RunPaths | None:
    """Return the most recent run started by this job, or None."""
    if named := parsed.flag("run_dir"):
        run = RunPaths(Path(named).absolute())
        return run if is_run_directory(run.root) else None
    try:
        folders = sorted(
            (each for each in runs_dir(parsed.flag("runs_dir"), env).iterdir() if not each.is_symlink()),
            key=lambda each: each.stat().st_mtime,
            reverse=True,
        )
    except OSError:
        return None
    for folder in folders[:50]:
        if is_run_directory(folder) and _job_of(RunPaths(folder)) == scheduler.job:
            return RunPaths(folder)
    return None


def _job_of(run: RunPaths) -> str | None:
    try:
        read_run_file(run.run_json)
        started = (fact for fact in facts_in(run.node().journal) if isinstance(fact, ev.KeeperStarted))
        return next((fact.slurm_job for fact in started), None)
    except (OSError, BadRunFile):
        return None


def _starts_without_progress(run: RunPaths) -> int:
    """Count keeper starts since the latest committed checkpoint, not counting the start that produced it."""
    count = 0
    for fact in facts_in(run.node().journal):
        if isinstance(fact, ev.CheckpointCommitted):
            count = 0
        elif isinstance(fact, ev.KeeperStarted):
            count += 1
    return count

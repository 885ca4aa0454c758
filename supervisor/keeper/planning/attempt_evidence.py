"""Collects the evidence that an attempt left on all nodes and reaches a verdict on the attempt.

Opens the files whose bytes `diagnosis` reads in chunks.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Final

from supervisor.cluster.scheduler import scheduler_of
from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords
from supervisor.diagnosis.journal_facts import FROM_ATTEMPT, with_journal_facts
from supervisor.diagnosis.verdict import diagnose
from supervisor.job.batch import BatchSpec, MemoryPoint
from supervisor.job.config.script_settings import is_plain_python
from supervisor.job.errors import JobError
from supervisor.job.memory_fit import Measure, MemoryTrial, memory_point
from supervisor.job.spec import JobSpec
from supervisor.keeper.base.background import Background, within
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.process.members import pids_are_the_drivers, user_of
from supervisor.preflight.network import free_port
from supervisor.preflight.target import kind_of
from supervisor.run.answers import JobKind, MemoryLine, recall_memory, remember_memory
from supervisor.run.events import StopWhy
from supervisor.run.journal import read_state
from supervisor.run.paths import AttemptPaths, NodePaths
from supervisor.run.records import OUT_OF_MEMORY, FailureClass, Verdict
from supervisor.run.regular import open_regular
from supervisor.run.series import GPU, HOST, MACHINE_KEY, RANKS, SeriesReader, highest
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.kernel_memory import read_cgroup_memory
from supervisor.sources.machine import disk_fill
from supervisor.sources.measured_files import rank_records, used_batches
from supervisor.sources.signature_files import Engine
from supervisor.sources.telemetry import measured_record
from supervisor.text.prefixes import Origin

CHUNK_BYTES = 1 << 20
# For a larger log, a hurried verdict reads the head, which shows which ranks wrote it, and the tail, which shows the end.
ENDS_FROM_BYTES, HEAD_BYTES, TAIL_BYTES = 1 << 26, 1 << 20, 1 << 24
# Only the newlines between them are counted, in pieces so large that waits for the interpreter's lock do not matter.
COUNT_BYTES = 1 << 24
EXIT_BYTES = 4096
MACHINE_TAIL_BYTES = 1 << 20
AT_ONCE_S = 0.05
"""Seconds the loop waits for a verdict. A verdict on a small log takes milliseconds."""
DRIVER_S = 5.0
"""Seconds to wait for the driver, which may never respond after a GPU failure."""
XID = re.compile(r"gpu_xid_(\d+)_(\d+)")

CUT_OFF: Final = "cut_off"
"""Code of a follower's advisory that node 0's machine did not respond after an attempt failed."""
_OF_THE_NETWORK: Final = frozenset(
    {FailureClass.NCCL_TIMEOUT, FailureClass.NCCL_ERROR, FailureClass.RENDEZVOUS}
)
_LABEL = re.compile(r"node(\d+)")


@dataclass(frozen=True, slots=True)
class NodeAttempt:
    """An attempt on one node: its folder and its state in that node's journal."""

    number: int
    node: NodePaths
    state: RunState
    view: AttemptState

    @property
    def name(self) -> str:
        """The node as displayed, such as ``1 (gpu07)``."""
        return f"{self.number} ({self.state.host})" if self.state.host else str(self.number)

    @property
    def is_cut_off(self) -> bool:
        """Whether the node could not reach node 0 after the attempt failed there."""
        code = f"{CUT_OFF}_{self.view.number}"
        return any(advisory.code == code for advisory in self.state.advisories)


def diagnose_attempt(context: RunContext, number: int, engine: Engine, *, whole: bool = True) -> Verdict:
    """Return the verdict on attempt `number` from all nodes' evidence. If not `whole`, skip the middle of large logs."""
    nodes = {0: (context.node, context.ledger.state)}
    for other in context.others:
        nodes[other] = context.run.node(other), read_state(context.run.node(other).journal)
    attempts = [
        NodeAttempt(node, paths, state, view)
        for node, (paths, state) in nodes.items()
        if (view := state.find(number)) is not None  # the node started it
    ]
    evidence = evidence_of(attempts, context.record.job, whole=whole)
    return with_node(diagnose(evidence, engine.signatures, engine.matcher), attempts)


def evidence_of(attempts: Sequence[NodeAttempt], job: JobSpec, *, whole: bool = True) -> JobEvidence:
    """Return the evidence of an attempt that has just ended: its records and the machine's current state.

    `whole`: see `diagnose_attempt`.
    """
    own, memory = attempts[0], read_cgroup_memory()
    kills_now = memory.oom_kills if memory is not None else None
    found = recorded_evidence(attempts, job, whole=whole, kills_now=kills_now)
    by_scheduler, scheduler = None, scheduler_of(os.environ)
    stopped = own.view.stop is not None and own.view.stop.why is StopWhy.SIGNAL
    if whole and scheduler.job is not None and stopped:  # a SIGTERM from the scheduler
        by_scheduler = scheduler.end_of(scheduler.job) or None
    machine = found.machine._replace(slurm_state=by_scheduler)
    if (fill := disk_fill(str(own.node.root))) is not None:
        machine = machine._replace(disk_free_bytes=fill.available_bytes, disk_path=fill.path)
    port = None
    if job.node_rank == 0:
        with contextlib.suppress(JobError):
            port = free_port()
    values = found.run_values._replace(free_port=port, user_of=user_of if pids_are_the_drivers() else None)
    if whole:  # earlier runs' logs, too, because the decision uses them
        values = values._replace(trials=lambda: known_trials(job, own.state, os.environ))
    return found._replace(machine=machine, run_values=values)


def recorded_evidence(
    attempts: Sequence[NodeAttempt],
    job: JobSpec | None,
    *,
    whole: bool = True,
    kills_now: int | None = None,
    run_root: str = FROM_ATTEMPT,
) -> JobEvidence:
    """Return an attempt's logs, exit codes, samples and journaled values from all of its nodes, starting with the first.

    `whole`: see `diagnose_attempt`. `kills_now`: the kernel's current OOM-kill count on the first node. `run_root`: the
    run directory, as shown in the verdict's paths.
    """
    own = attempts[0]
    logs: list[LogSource] = []
    raised: dict[int, str] = {}
    for one in attempts:
        paths = one.node.attempt(own.view.number)
        origin = Origin(node=f"node{one.number}" if len(attempts) > 1 else None)
        files = {paths.agent_log: origin}
        for local_rank, folder in paths.rank_folders().items():
            known = one.view.ranks.get(local_rank)
            mine = origin._replace(rank=known.rank if known is not None else None, local_rank=local_rank)
            files |= {
                folder / f"{stream}.log": mine._replace(stream=stream) for stream in ("stdout", "stderr")
            }
        for file, whose in files.items():
            if file.is_file():
                base = own.node.attempt(own.view.number).root
                name = os.path.relpath(file, base) if run_root == FROM_ATTEMPT else str(file)
                logs.append(LogSource(name, _chunks(file, whole=whole), whose))
        raised |= _raised(paths)
    found = JobEvidence(logs=tuple(logs), raised=raised, machine=_machine_records(attempts, kills_now))
    pairs = [(one.state, one.view) for one in attempts]
    found = with_journal_facts(found, pairs, spec=job, run_root=run_root)
    folders = [one.node.attempt(own.view.number).telemetry for one in attempts]
    nan_t = own.view.not_finite.t if own.view.not_finite is not None else None
    of_nan = partial(used_batches, folders, until=nan_t)
    batches = {True: of_nan, False: partial(used_batches, folders)}
    found = found._replace(run_values=found.run_values._replace(batches=lambda is_nan: batches[is_nan]()))
    if job is None:
        return found
    if own.view.exit_code is not None and not found.exit_codes and is_plain_python(job):
        found = found._replace(exit_codes={0: own.view.exit_code})  # the command itself is the only rank
    return found._replace(ranks_per_node=job.nproc_per_node)


def _machine_records(attempts: Sequence[NodeAttempt], kills_now: int | None) -> MachineRecords:
    """Return the machines' own records of the attempt: out-of-memory kills, /dev/shm usage and GPU faults."""
    own = attempts[0]
    samples = [_machine_samples(one) for one in attempts]
    counts = [[v["cgroup_oom_kills"] for v in values if "cgroup_oom_kills" in v] for values in samples]
    if kills_now is not None:
        counts[0].append(kills_now)
    known = [count[-1] - count[0] for count in counts if len(count) > 1]
    # A process may die between two samples, so samples alone can show kills, but not that there were none.
    is_sure = kills_now is not None and len(known) == len(attempts)
    return MachineRecords(
        cgroup_oom_kills=int(sum(known)) if any(known) or is_sure else None,
        gpu_xids=tuple(
            (int(found[1]), int(found[2]))
            for advisory in own.state.advisories
            if advisory.attempt == own.view.number and (found := XID.fullmatch(advisory.code))
        ),
        shm_used_share=samples[0][-1].get("shm_used_ratio") if samples[0] else None,
    )


def _machine_samples(one: NodeAttempt) -> list[dict[str, float]]:
    """Return the known values of a machine's last samples in the attempt."""
    reader = SeriesReader(one.node.series, HOST)
    newest = one.state.attempt
    if newest is not None and newest.number == one.view.number:
        reader.seek_tail(MACHINE_TAIL_BYTES)
    return [
        {name: value for name, value in sample.v.items() if value is not None}
        for sample in chain.from_iterable(iter(reader.read, []))
        if sample.k == MACHINE_KEY and sample.a == one.view.number
    ]


def _raised(paths: AttemptPaths) -> dict[int, str]:
    """Return the class of the exception that terminated each rank's script, from its process's last record."""
    found = {}
    for path in paths.telemetry.glob("measured*.jsonl"):
        try:
            with open_regular(path) as file:
                file.seek(-min(os.fstat(file.fileno()).st_size, EXIT_BYTES), os.SEEK_END)
                record = measured_record(file.read(EXIT_BYTES).rstrip().rpartition(b"\n")[2]) or {}
        except OSError:
            continue
        if record.get("kind") == "exit" and isinstance(record.get("exception"), str):
            found[record.get("rank", 0)] = record["exception"]
    return found


def _chunks(path: Path, *, whole: bool) -> Iterator[bytes]:
    """Yield a log in chunks. If not `whole`, yield only newlines for the middle of a large log, to keep line numbers right."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > ENDS_FROM_BYTES and not whole:
                yield file.read(HEAD_BYTES)
                while (left := size - TAIL_BYTES - file.tell()) > 0:
                    yield b"\n" * file.read(min(left, COUNT_BYTES)).count(b"\n")
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError:
        return


def with_node(verdict: Verdict, attempts: Sequence[NodeAttempt]) -> Verdict:
    """Return the verdict, with the displayed name of its rank's node if there are several nodes."""
    if len(attempts) == 1:
        return verdict
    named = _LABEL.fullmatch(verdict.node or "")
    number = int(named[1]) if named is not None else None
    # A peer's line contains the node that it was written on, not the node of the failed rank.
    of_rank = (one for one in attempts if any(r.rank == verdict.rank for r in one.view.ranks.values()))
    of_name = (one for one in attempts if one.number == number)
    one = next((of_rank if verdict.rank is not None else of_name), None) or next(of_name, None)
    cut = [one for one in attempts if one.is_cut_off]
    if verdict.failure in _OF_THE_NETWORK and cut:
        names = ", ".join(one.name for one in cut)
        advice = f"Check the network of these nodes, which did not reach node 0 after the failure: {names}."
        verdict = replace(verdict, advice=(advice, *verdict.advice))
        followers = attempts[1:]
        # A timed-out collective shows up on all ranks, so no line tells which node was cut off.
        if verdict.rank is None and len(followers) > 1:
            one = attempts[0] if len(cut) == len(followers) else cut[0]
    return replace(verdict, node=one.name) if one is not None else verdict


# -- what an attempt, and earlier runs of the same kind, showed about its micro-batch ---------------


def memory_point_of(view: AttemptState, batch: BatchSpec | None) -> MemoryPoint | None:
    """Return the memory figures from an attempt's out-of-memory message, or None if they are incomplete."""
    verdict = view.verdict
    if verdict is None or verdict.cause is None or batch is None or verdict.failure not in OUT_OF_MEMORY:
        return None
    base = view.memory_base_bytes or 0
    return memory_point(verdict.cause.text, batch.micro_batch_per_rank, base_bytes=base)


def trial_of(
    node: NodePaths, view: AttemptState, batch: BatchSpec | None, point: MemoryPoint | None
) -> MemoryTrial | None:
    """Return attempt `view` as a trial, or None if its batch is unknown or it took no step but did not run out of memory."""
    if batch is None or view.verdict is None:
        return None
    micro = batch.micro_batch_per_rank
    if view.verdict.failure in OUT_OF_MEMORY:
        if point is None:
            return MemoryTrial(micro, fitted=False)
        needed = point.allocated_bytes + point.tried_bytes
        at_zero, per_sample = _measured_line(node, view, micro)
        return MemoryTrial(
            micro,
            fitted=False,
            peak_bytes=needed,
            capacity_bytes=point.capacity_bytes,
            base_bytes=point.base_bytes,
            at_zero_bytes=at_zero,
            per_sample_bytes=per_sample,
        )
    if view.first_step is None:
        return None
    measure, peak, capacity = _peak(node, view.number)
    base = view.memory_base_bytes or 0
    return MemoryTrial(
        micro, fitted=True, peak_bytes=peak, capacity_bytes=capacity, measure=measure, base_bytes=base
    )


def _measured_line(node: NodePaths, view: AttemptState, micro_batch: int) -> tuple[float, float]:
    """Return a rank's bytes without a batch and bytes for each sample of the batch that failed, or zeros if they were not measured."""
    from supervisor.policy.health.memory_forecast import MemoryForecast  # only a failure needs it

    batch = next(iter(view.verdict.batches), None) if view.verdict is not None else None
    shape = max(batch.shapes, key=prod, default=()) if batch is not None else ()
    if batch is None or shape[:1] != (micro_batch,):
        return 0.0, 0.0
    forecast = MemoryForecast()
    for record in rank_records(node.attempt(view.number).telemetry, batch.rank):
        deque(forecast.add(batch.rank, record), maxlen=0)
    line = forecast.line(batch.rank)
    return (line[0], line[1] * prod(shape) / micro_batch) if line is not None else (0.0, 0.0)


def _peak(node: NodePaths, attempt: int) -> tuple[Measure, int | None, int | None]:
    """Return the most memory that any rank used, based on the most precise measurement available."""
    most: dict[Measure, float] = {}
    total: float | None = None
    for values in highest(node.series, RANKS, attempt).values():
        measure = Measure.ALLOCATOR if "memory_reserved_bytes" in values else Measure.RESIDENT
        if "memory_peak_bytes" in values:
            most[measure] = max(most.get(measure, 0.0), values["memory_peak_bytes"])
    for values in highest(node.series, GPU, attempt).values():
        total = values.get("memory_total_bytes") or total
        if "memory_used_bytes" in values:
            most[Measure.DEVICE] = max(most.get(Measure.DEVICE, 0.0), values["memory_used_bytes"])
    for measure in Measure:
        if measure in most:
            room = total if measure is not Measure.RESIDENT else None
            return measure, int(most[measure]), int(room) if room is not None else None
    return Measure.ALLOCATOR, None, None


def known_trials(record_job: JobSpec, state: RunState, env: Mapping[str, str]) -> tuple[MemoryTrial, ...]:
    """Return the trials from earlier runs of this kind and from this run's probes and attempts, oldest first."""
    kind = _kind(record_job)
    earlier = (
        [line.trial for line in recall_memory(kind, env, but_run=state.run_id)] if kind is not None else []
    )
    return (*earlier, *state.memory_trials)


def remember_trial(
    job: JobSpec, state: RunState, trial: MemoryTrial, env: Mapping[str, str], now: float
) -> None:
    """Save a trial for later runs."""
    kind = _kind(job)
    if kind is not None:
        remember_memory(MemoryLine(kind=kind, trial=trial, t=now, run=state.run_id), env)


def _kind(job: JobSpec) -> JobKind | None:
    """Return the kind of job, which includes the GPU model. The driver may not respond after a GPU failure."""
    return within(DRIVER_S, lambda: kind_of(job), "stoker-kind")


# -- when a verdict is made: scanning a log of 600 MB takes a second, or ten on a busy machine -------


class BackgroundVerdict:
    """Computes one verdict at a time in a thread, waiting for it if the log is small. Used only by the keeper's thread.

    `judge` computes an attempt's verdict in that thread. If its second argument is false, it skips the middle of large logs.
    """

    def __init__(self, judge: Callable[[int, bool], Verdict]) -> None:
        self._judge = judge
        self._making: Background[Verdict] = Background("stoker-verdict")
        self._wanted: tuple[int, bool] | None = None

    @property
    def busy(self) -> bool:
        """Whether a verdict is being computed in the thread."""
        return self._making.busy

    def look(self, number: int, *, whole: bool) -> Verdict | None:
        """Return the verdict once it is ready. The first call starts computing it, after any verdict already in progress."""
        wait_s = 0.0
        if not self._making.busy:
            self._wanted, wait_s = (number, whole), AT_ONCE_S
            self._making.start(lambda: self._judge(number, whole))
        verdict, mine = self._making.poll(wait_s), self._wanted == (number, whole)
        if not self._making.is_idle() or not mine:
            return None
        # A failure in the thread is raised again here.
        return verdict if verdict is not None else self._judge(number, whole)

    def at_once(self, number: int) -> Verdict:
        """Compute the verdict from the logs' heads and tails, blocking until it is ready."""
        return self._judge(number, False)

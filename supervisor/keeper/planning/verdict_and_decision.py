"""From an attempt's remains to a verdict, and from the run's history to a decision.

Opens the files that the pure packages only read: `diagnosis` gets chunks of bytes, `policy` frozen records.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from supervisor.cluster.scheduler import scheduler_of
from supervisor.diagnosis.evidence import ErrorFile, JobEvidence, LogSource, MachineRecords
from supervisor.diagnosis.journal_facts import with_journal_facts
from supervisor.diagnosis.verdict import diagnose
from supervisor.job.batch import BatchSpec, MemoryPoint
from supervisor.job.config.script_settings import is_plain_python
from supervisor.job.knobs.conventions import find_loader
from supervisor.job.knobs.resume_settings import given_start
from supervisor.job.launch.batch_questions import to_try
from supervisor.job.launch.env import is_measured
from supervisor.job.memory_fit import choose_smaller, memory_point
from supervisor.job.spec import EntryKind, JobSpec, LoaderKnobs, Unread
from supervisor.keeper.base.background import within
from supervisor.keeper.monitoring.found_checkpoints import (
    ConcurrentRun,
    concurrent_runs,
    newest_untaken,
    shown_path,
    untaken_text,
)
from supervisor.keeper.planning.batch_trials import known_trials
from supervisor.keeper.planning.host_facts import with_machine
from supervisor.keeper.planning.other_nodes import NodeAttempt, with_node
from supervisor.keeper.planning.resume_points import (
    batch_refusal,
    number_of,
    start_checkpoint,
    unsound_text,
    usable_checkpoint,
    why_not_now,
)
from supervisor.policy import Gpus, PastAttempt, PolicyInput, StopCause, decide
from supervisor.run.answers import batch_question, recalled, script_of
from supervisor.run.events import BatchAnswered, BatchMeasured, StopWhy
from supervisor.run.fold import fold
from supervisor.run.next_job import next_job, undecided
from supervisor.run.paths import AttemptPaths, NodePaths, RunPaths
from supervisor.run.records import OUT_OF_MEMORY, Decision, FailureClass, Verdict
from supervisor.run.regular import open_regular
from supervisor.run.runfile import RunFile
from supervisor.run.series import HOST, MACHINE_KEY, SeriesReader
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.checkpoints import find_checkpoints, newest_like_checkpoint
from supervisor.sources.gpu import probe_gpus, visible_devices
from supervisor.sources.host.cgroup import read_cgroup_memory
from supervisor.sources.host.kernel_log import oom_kills
from supervisor.sources.host.machine import disk_fill
from supervisor.sources.signature_files import Engine
from supervisor.sources.telemetry import measured_record
from supervisor.text.numbers import read_to
from supervisor.text.prefixes import Origin

CHUNK_BYTES = 1 << 20
# Of a log beyond this a verdict in a hurry reads the head, which tells whose lines there are, and the tail, which tells the end.
ENDS_FROM_BYTES, HEAD_BYTES, TAIL_BYTES = 1 << 26, 1 << 20, 1 << 24
# What lies between is only counted, in pieces large enough that waiting for the interpreter's lock between them does not matter.
COUNT_BYTES = 1 << 24
MAX_ERROR_FILE_BYTES = 1 << 20
EXIT_BYTES = 4096
MACHINE_TAIL_BYTES = 1 << 20
DRIVER_S = 5.0
"""How long the driver is waited for: of a GPU that has just failed it may never tell anything."""
XID = re.compile(r"gpu_xid_(\d+)_(\d+)")


def diagnose_attempt(
    node: NodePaths,
    state: RunState,
    number: int,
    job: JobSpec,
    engine: Engine,
    *,
    whole: bool = True,
    others: Sequence[NodeAttempt] = (),
) -> Verdict:
    """The verdict on attempt `number`, from everything it left; not `whole`: of large logs from both their ends.

    `others`: the same attempt on the other nodes of the run.
    """
    view = next(a for a in state.attempts if a.number == number)
    evidence = evidence_of(node, view, state, job, whole=whole, others=others)
    verdict = diagnose(evidence, engine.signatures, engine.matcher)
    return with_node(verdict, (NodeAttempt(0, node, state, view), *others)) if others else verdict


def log_bytes(node: NodePaths, number: int) -> int:
    """How much the logs of attempt `number` hold."""
    total = 0
    for path in node.attempt(number).logs():
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def evidence_of(
    node: NodePaths,
    view: AttemptState,
    state: RunState,
    job: JobSpec,
    *,
    paths: AttemptPaths | None = None,
    whole: bool = True,
    others: Sequence[NodeAttempt] = (),
) -> JobEvidence:
    """An attempt's logs, error files, exit codes and the facts that the journal holds of it.

    `paths`: where the attempt's files lie, if elsewhere than `node` keeps attempts (a probe's). `whole`, `others`: see `diagnose_attempt`.
    """
    paths = paths or node.attempt(view.number)
    mine = "node0" if others else None
    logs = list(_logs(paths, view, whole=whole, node=mine))
    errors = list(_error_files(paths, view, node=mine))
    raised = _raised(paths)
    for other in others:
        there, of_node = other.node.attempt(view.number), f"node{other.number}"
        logs += _logs(there, other.view, whole=whole, node=of_node, base=paths.root)
        errors += _error_files(there, other.view, node=of_node, base=paths.root)
        raised |= _raised(there)
    found = JobEvidence(
        logs=tuple(logs),
        error_files=tuple(errors),
        raised=raised,
        machine=machine_records(node, view, state)._replace(
            slurm_state=_end_by_scheduler(view) if whole else None
        ),
    )
    pairs = [(state, view), *((other.state, other.view) for other in others)]
    found = with_journal_facts(found, pairs, spec=job)
    if view.exit_code is not None and not found.exit_codes and is_plain_python(job):
        found = found._replace(exit_codes={0: view.exit_code})  # the command is the one rank itself
    values = with_machine(found.run_values, job, os.environ)
    if whole:  # those of earlier runs too, as the decision looks at them
        values = values._replace(trials=lambda: known_trials(job, state, os.environ))
    return found._replace(ranks_per_node=job.nproc_per_node, run_values=values)


def machine_records(node: NodePaths, view: AttemptState, state: RunState) -> MachineRecords:
    """What was seen of the machine while the attempt lived: kills for memory, full disks, GPU faults."""
    reader = SeriesReader(node.series, HOST)
    reader.seek_tail(MACHINE_TAIL_BYTES)
    kills: list[float] = []
    last: dict[str, float | None] = {}
    while samples := reader.read():
        for sample in samples:
            if sample.k == MACHINE_KEY and sample.a == view.number:
                last = sample.v
                count = sample.v.get("cgroup_oom_kills")
                kills += [count] if count is not None else []
    memory = read_cgroup_memory()
    if memory is not None and memory.oom_kills is not None:
        kills.append(memory.oom_kills)
    fill = disk_fill(str(node.root))
    return MachineRecords(
        cgroup_oom_kills=int(kills[-1] - kills[0]) if len(kills) > 1 else None,
        kernel_log=_kernel_log(view),
        gpu_xids=tuple(
            (int(found[1]), int(found[2]))
            for advisory in state.advisories
            if advisory.attempt == view.number and (found := XID.fullmatch(advisory.code))
        ),
        shm_used_share=last.get("shm_used_ratio"),
        disk_free_bytes=fill.available_bytes if fill is not None else None,
        disk_path=fill.path if fill is not None else "",
    )


def _end_by_scheduler(view: AttemptState) -> str | None:
    """Why the scheduler is ending the job now, whose processes it has sent SIGTERM; None: it did not, or gives no reason."""
    scheduler = scheduler_of(os.environ)
    if scheduler.job is None or view.stop is None or view.stop.why is not StopWhy.SIGNAL:
        return None
    return scheduler.end_of(scheduler.job) or None


def _kernel_log(view: AttemptState) -> str:
    """What the kernel's log says of our ranks being killed for memory since they began."""
    pids = {
        rank.pid: rank.start_time for rank in view.ranks.values() if rank.pid and rank.start_time is not None
    }
    # Start times count from boot, sleep included; the log's do not: it can only be earlier, never later.
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return oom_kills(pids, since_s=min(pids.values()) - asleep_s - 1.0) if pids else ""


def decide_next(
    record: RunFile, state: RunState, *, node: NodePaths, env: Mapping[str, str], watched: bool = False
) -> Decision:
    """What policy says after the newest attempt. `watched`: somebody has its screen open."""
    known = replace(policy_input(record, state, env=env), watched=watched)
    stepped = any(attempt.stepped for attempt in known.attempts)
    failed = known.now.verdict is not None and known.now.verdict.failure is not FailureClass.HEALTHY
    if not (failed and stepped):
        return decide(known)
    run = RunPaths(Path(record.path) if record.path is not None else node.root.parent.parent)

    def others(since_t: float) -> list[ConcurrentRun]:
        return concurrent_runs(run, since_t, env)

    decided = decide(known)
    untaken = newest_untaken(record.job, state, others, node.series)
    if untaken is None:
        return decided
    flag, path = state.answered_job(record.job).knobs.start, shown_path(record.job, untaken.path)
    how = f"e and {flag} {path} takes it" if flag is not None else "e gives it to the script's own flag"
    return replace(decided, reason=f"{decided.reason}; {untaken_text(record.job, untaken)}; {how}")


def next_answer(
    record: RunFile, state: RunState, env: Mapping[str, str], t: float, *, tries: bool = False
) -> BatchAnswered | None:
    """The answer about the batch that is known from an earlier run of the script; None where a person is to be asked.

    `tries`: else one that a restart may try, for nothing can be lost by it; the first steps of that restart confirm it or end it.
    """
    question, seen = batch_question(record.job, state), state.measured
    if question is None or seen is None:
        return None
    known = recalled(question, env)
    if known is not None and known.value in {answer.value for answer in question.answers} - set(state.wrong):
        return with_batch(
            record, state, BatchAnswered(t=t, question=question, value=known.value, day=known.day)
        )
    value = to_try(seen.settings.answered(state.values_answered), state.wrong) if tries else None
    if value is None or not _loses_nothing(record, state, seen):
        return None
    trial = len(state.wrong) + 1
    return with_batch(record, state, BatchAnswered(t=t, question=question, value=value, trial=trial))


def with_batch(record: RunFile, state: RunState, told: BatchAnswered) -> BatchAnswered:
    """With the batch that the attempts until now ran with, by this answer."""
    return structs.replace(told, batch=fold(state, told).answered_job(record.job).batch)


def _loses_nothing(record: RunFile, state: RunState, seen: BatchMeasured) -> bool:
    """Whether a restart from the beginning loses nothing: no step was made, nothing was loaded, and no checkpoint is where it writes."""
    job, now = state.answered_job(record.job), next_job(record.job, state)
    has_stepped = any(a.first_step is not None or a.last_step is not None for a in state.attempts)
    is_unseen = "no_step" in seen.how.get("accumulation", "")
    loads = seen.has_loaded or given_start(now.job.entry_args, job.knobs.starts) is not None
    if has_stepped or loads or not is_unseen or state.checkpoints or job.trial is not None:
        return False
    folders = [Path(job.cwd, folder) for folder in (*job.outputs, *job.output_prefixes, *seen.outputs)]
    return not find_checkpoints(folders, 0.0) and newest_like_checkpoint(folders, 0.0) is None


def policy_input(
    record: RunFile, state: RunState, *, env: Mapping[str, str], looks: bool = True
) -> PolicyInput:
    """All that policy looks at after the newest attempt of `state`.

    `looks`: what is on disk now counts; not where an old decision is explained.
    """
    job, now = state.answered_job(record.job), next_job(record.job, state)
    arguments = now.job.entry_args
    newest = state.attempts[-1]
    trusted = Unread.EXIT_CODE in state.answers
    failure = newest.verdict.failure if newest.verdict is not None else None
    newest_saved = usable_checkpoint(job, state.sound_checkpoints) if looks else state.resumable
    begins_at = newest_saved or (start_checkpoint(job, arguments) if looks else None)
    now_batch = now.current_batch
    less = choose_smaller(now_batch) if looks and failure in OUT_OF_MEMORY and now_batch is not None else None
    return PolicyInput(
        attempts=tuple(_past(view, state) for view in state.attempts),
        retry=replace(job.retry, exit_zero="trust") if trusted else job.retry,
        knobs=job.knobs,
        interactive=record.settings.interactive,
        total_steps=state.total_steps,
        final_checkpoint=_has_final_checkpoint(state, newest),
        memory=memory_point_of(newest, newest.shown_batch or now_batch),
        trials=known_trials(job, state, env) if failure in OUT_OF_MEMORY else (),
        port_named=job.master_port is not None,
        leads=job.entry_kind is not EntryKind.COMMAND and job.node_rank == 0,
        newest_checkpoint=begins_at.path if begins_at is not None else None,
        newest_number=number_of(newest_saved),
        not_now=why_not_now(job) if looks and begins_at is None else "",
        old_batch=batch_refusal(record, state, less.batch, arguments, env) if less is not None else "",
        # What was measured is the command line as it was at first.
        question=not now.is_typed and batch_question(record.job, state) is not None,
        given_start=given_start(arguments, job.knobs.starts),
        unsound=unsound_text(job, state, newest_saved, looks=looks),
        counter=state.values_answered.get(Unread.COUNTER, ""),
        gpus=_gpus(job, state, env) if failure is FailureClass.GPU_FAULT else None,
        trial=job.trial,
        in_batch_job=scheduler_of(env).job is not None,
        loader=_loader(job, arguments),
        measured=_was_measured(record, state, env),
        code_hidden_by=_code_hidden_by(job) if newest.job_exit_code == 0 else "",
        jitter=random.random(),
    )


def _was_measured(record: RunFile, state: RunState, env: Mapping[str, str]) -> bool:
    """Whether a process of the newest attempt was measured from inside: the first that is makes a folder."""
    if record.path is None:
        return False
    now = next_job(record.job, undecided(state))
    folder = RunPaths(Path(record.path)).node().attempt(state.attempts[-1].number).telemetry
    return (
        is_measured(now.job, {**env, **dict(now.job.env), **now.env}) and (folder / "instrumented").is_dir()
    )


def _code_hidden_by(job: JobSpec) -> str:
    """What keeps the exit code of a command's program from stoker, as a clause; empty where its text does not show it."""
    name, text = script_of(job)
    where = name or "the command"
    if job.has_own_code:
        return ""
    if re.search(r"\|&?\s*tee\b", text) and "pipefail" not in text:
        return f"the pipe in {where} hides the exit code (`set -o pipefail`)"
    return f"`|| true` in {where} hides the exit code" if re.search(r"\|\|\s*true\b", text) else ""


def _gpus(job: JobSpec, state: RunState, env: Mapping[str, str]) -> Gpus | None:
    """The GPUs of this node's ranks and the one at fault: by the driver's report, else by the rank that fell."""
    devices, _ = within(DRIVER_S, probe_gpus, "stoker-gpus") or ([], None)
    seen = {**env, **dict(job.env), **next_job(job, state).env}.get("CUDA_VISIBLE_DEVICES")
    visible = visible_devices(seen, devices)
    if not visible:
        return None
    newest = state.attempts[-1]
    reported = [
        int(found[1])
        for advisory in state.advisories
        if advisory.attempt == newest.number and (found := XID.fullmatch(advisory.code))
    ]
    names = tuple(str(device.index) for device in visible)
    faulty = next((at for at, device in enumerate(visible) if device.index in reported), None)
    if faulty is None and newest.verdict is not None and job.nnodes == "1":
        faulty = newest.verdict.rank
    return Gpus(names, faulty) if faulty is not None and faulty < len(names) else None


def _loader(job: JobSpec, arguments: tuple[str, ...]) -> LoaderKnobs:
    """The DataLoader's knobs of the present command line, and what those of the start told."""
    now, first = find_loader(arguments), job.loader
    return LoaderKnobs(
        workers=now.workers or first.workers,
        prefetch=now.prefetch or first.prefetch,
        pinned=now.pinned or first.pinned,
        sharing=now.sharing or first.sharing,
    )


def _past(view: AttemptState, state: RunState) -> PastAttempt:
    progress = state.progress
    # A bar that stands at its beginning says that a step would have been seen.
    awaited = progress is not None and progress.attempt == view.number and progress.total_steps is not None
    lived = None
    if view.started_t is not None and view.ended_t is not None:
        lived = max(view.ended_t - view.started_t, 0.0)
    return PastAttempt(
        verdict=view.verdict,
        exit_code=view.job_exit_code,
        first_step=view.first_step,
        last_step=view.last_step,
        checkpoint_steps=view.checkpoint_steps,
        batch=view.shown_batch,
        stop=StopCause(view.stop.why.value) if view.stop is not None else None,
        lived_s=lived,
        steps_seen=view.first_step is not None or awaited,
        decision=view.decision,
        by_person=view.decision is not None and view.decided_by != "policy",
        ended_t=view.ended_t,
        missed=_missed_text(view, state),
        refuted=view.differs is not None and view.differs.wrong is not None,
        misses_surely=view.differs is not None or (view.missed is not None and view.missed.certain),
        lost_at=_lost_at(view),
        resumed_at=view.resume_at,
        unread=read_to(view.log_read_bytes, view.log_size_bytes),
    )


def _lost_at(view: AttemptState) -> int | None:
    """The step from which on its loss was no number; a script that refuses such a loss ends before it logs it."""
    refused = view.verdict is not None and view.verdict.failure is FailureClass.NAN_LOSS
    if view.lost_at is not None or not refused or view.last_step is None:
        return view.lost_at
    return view.last_step + 1


def _missed_text(view: AttemptState, state: RunState) -> str:
    """How an attempt did not resume or had another batch than planned, and whether its checkpoint has a copy; empty where all was as planned."""
    missed, differs = view.missed, view.differs
    step: int | None
    if missed is not None:
        step, how = missed.step, f"did not resume: began at step {missed.began}"
    elif differs is not None and differs.of_resume:
        step, how = view.resume_at, differs.text
    else:
        return differs.text if differs is not None else ""
    kept = next((k for k in reversed(state.kept) if k.step == step), None)
    copy = f"is kept as a copy: {kept.copy}" if kept is not None and kept.copy else "is not protected"
    return f"{how}; checkpoint {step} {copy}"


def memory_point_of(view: AttemptState, batch: BatchSpec | None) -> MemoryPoint | None:
    """What the message of an attempt's memory failure said, if it said enough."""
    verdict = view.verdict
    if verdict is None or verdict.cause is None or batch is None or verdict.failure not in OUT_OF_MEMORY:
        return None
    base = view.memory_base_bytes or 0
    return memory_point(verdict.cause.text, batch.micro_batch_per_rank, base_bytes=base)


def _has_final_checkpoint(state: RunState, view: AttemptState) -> bool:
    found = state.checkpoint
    return found is not None and found.attempt == view.number and found.final


def _logs(
    paths: AttemptPaths,
    view: AttemptState,
    *,
    whole: bool,
    node: str | None = None,
    base: Path | None = None,
) -> Iterator[LogSource]:
    """`node`: as the origin of the lines bears it. `base`: the folder that names begin in, where that is another than the attempt's."""
    chunks = _chunks if whole else _ends
    if paths.agent_log.is_file():
        name = os.path.relpath(paths.agent_log, base or paths.root)
        yield LogSource(name, chunks(paths.agent_log), Origin(node=node))
    for local_rank, folder in paths.rank_folders().items():
        known = view.ranks.get(local_rank)
        rank = known.rank if known is not None else None
        for stream in ("stdout", "stderr"):
            file = folder / f"{stream}.log"
            if file.is_file():
                origin = Origin(rank=rank, local_rank=local_rank, stream=stream, node=node)
                yield LogSource(os.path.relpath(file, base or paths.root), chunks(file), origin)


def _raised(paths: AttemptPaths) -> dict[int, str]:
    """By rank, the class of the exception that ended its script, as the last record of its process says."""
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


def _error_files(
    paths: AttemptPaths, view: AttemptState, *, node: str | None = None, base: Path | None = None
) -> Iterator[ErrorFile]:
    for local_rank, folder in paths.rank_folders().items():
        file = folder / "error.json"
        try:
            with open_regular(file) as stream:
                content = stream.read(MAX_ERROR_FILE_BYTES)
        except OSError:
            continue
        known = view.ranks.get(local_rank)
        rank = known.rank if known is not None else None
        origin = Origin(rank=rank, local_rank=local_rank, node=node)
        yield ErrorFile(os.path.relpath(file, base or paths.root), content, origin)


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with open_regular(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError:
        return


def _ends(path: Path) -> Iterator[bytes]:
    """A large log's head and tail, with as many newlines between them as there are: the lines keep their numbers."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > ENDS_FROM_BYTES:
                yield file.read(HEAD_BYTES)
                while (left := size - TAIL_BYTES - file.tell()) > 0:
                    yield b"\n" * file.read(min(left, COUNT_BYTES)).count(b"\n")
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError:
        return

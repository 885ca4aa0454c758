"""Evidence outside the logs, and when it outranks them: one table of corrections to the root.

The root from the logs weighs as much as the evidence behind it (`Weight`): nothing, an exit code, complaints of peers, or a line that
names a cause. Each row of the table is one kind of evidence, with the highest weight that it outranks. Each stage applies the first
row that matches, and the next stage starts from the result. So a later stage outranks an earlier one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from supervisor.diagnosis.attribution.slurm_states import OUTCOMES
from supervisor.diagnosis.case import Case, Root
from supervisor.diagnosis.cause.exit_zero import (
    is_asked,
    planned_end,
    reached_end,
    says_end,
    standing,
    standing_exit,
)
from supervisor.diagnosis.cause.facts import Facts
from supervisor.diagnosis.cause.guess import guess
from supervisor.diagnosis.cause.roots import from_exit
from supervisor.diagnosis.evidence import ErrorFile
from supervisor.diagnosis.hang_verdict import (
    hang_by_recorder,
    hang_by_stacks,
    recorder_applies,
    timeout_by_stacks,
)
from supervisor.diagnosis.scan.signature_tables import Role, Signatures, Strength, Trait
from supervisor.run.failures import FailureClass, Reason
from supervisor.run.records import SURELY_OVER
from supervisor.text.decode import clean

# The first words show the kind of an error. Some patterns take quadratic time on 50,000 characters without a space.
_MESSAGE_CAP = 4096
# Xids that NVIDIA documents as hardware faults or as asking for a reset (docs.nvidia.com/deploy/xid-errors).
_HARD_XIDS = frozenset((46, 48, 54, 61, 62, 64, 74, 79, 94, 95, 109, 110, 119, 120, 140, 143))
# The maximum confidence of a SIGKILL without any text (see the rule `killed`).
BARE_KILL = 0.7
SHM_FULL_SHARE = 0.98
# SIGHUP, SIGINT, SIGKILL, SIGTERM. torchrun needs little memory, so the kernel would kill a rank first.
_FROM_OUTSIDE = frozenset((1, 2, 9, 15))
LAUNCHER_SIGNAL = 0.85
_WARNED = "requeue"  # the wire name of a stop that a batch system requested (`run.events.StopWhy`)
_RANK_DIED = "rank_died"  # likewise, of a stop of the rest after one part failed
NEARLY_DONE = 0.9
"""Past this share, a script that prints every hundredth step may have had no step left to print."""


class Stage(IntEnum):
    """The order of the corrections."""

    ERROR_FILES = 1
    MACHINE = 2
    AFTER_THE_END = 3
    OWN_KNOWLEDGE = 4
    WORDS = 5
    STACKS = 6
    EXIT_ZERO = 7
    PLANNED_END = 8


class Weight(IntEnum):
    """The evidence behind a root, from the weakest."""

    SILENCE = 1  # no failure is reported, or its class is unknown
    EXIT = 2  # only how a process ended
    COMPLAINT = 3  # ranks that lost or waited for others
    CAUSE = 4  # a line that names a cause, stacks, or a NaN loss


_ENDS = (FailureClass.WORKER_CRASH, FailureClass.HOST_OOM, FailureClass.TERMINATED)
_COMPLAINTS = (FailureClass.NCCL_ERROR, FailureClass.NCCL_TIMEOUT, FailureClass.RENDEZVOUS)


def weight_of(root: Root) -> Weight:
    """How much a root from the logs weighs against other evidence."""
    if root.failure in (FailureClass.UNKNOWN, FailureClass.HEALTHY):
        return Weight.SILENCE
    if root.failure in _COMPLAINTS:
        return Weight.COMPLAINT
    return Weight.EXIT if root.chosen is None and root.failure in _ENDS else Weight.CAUSE


@dataclass(frozen=True, slots=True)
class Correction:
    """One way in which other evidence changes a root of at most the weight `outranks`. `when` and `then` take the case and the root so far."""

    name: str
    stage: Stage
    when: Callable[[Case, Root], bool]
    then: Callable[[Case, Root], Root]
    why: str
    outranks: Weight = Weight.CAUSE


def _replaced(
    failure: FailureClass, reason: Reason | None, confidence: float
) -> Callable[[Case, Root], Root]:
    return lambda _case, root: root._replace(failure=failure, reason=reason, confidence=confidence)


# -- error files -----------------------------------------------------------------------------------


_ERROR_FILE_BYTES = 1 << 20
# A JSON string that may be cut off: `"message": "text…`.
_HALF_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\["\\/bfnrt]|\\u[\da-fA-F]{4})*)')


class RankError(NamedTuple):
    """What a rank wrote about its own failure: raw text, and the time in whole seconds since the epoch (0: unknown)."""

    message: str
    timestamp_s: int = 0


def read_error_file(data: bytes) -> RankError | None:
    """Read torchrun's error.json, complete or cut off by a kill during the write. None: it holds no message.

    ``torch.distributed.elastic.multiprocessing.errors`` writes it if ``@record`` wraps the script's main:
    ``{"message": {"message": str, "extraInfo": {"py_callstack": str, "timestamp": "<whole seconds>"}}}``.
    """
    text = data[:_ERROR_FILE_BYTES].decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        half = _HALF_MESSAGE.search(text)
        document = {"message": json.loads(f'"{half.group(1)}"', strict=False) if half else None}
    body = document.get("message") if isinstance(document, dict) else None
    body = body if isinstance(body, dict) else {"message": body}
    message, extra = body.get("message"), body.get("extraInfo")
    if not isinstance(message, str) or not message:
        return None
    second = str(extra.get("timestamp")) if isinstance(extra, dict) else ""
    is_whole = second.isascii() and second.isdigit() and len(second) <= 12
    return RankError(message, int(second) if is_whole else 0)


def _may_ask_error_files(case: Case, root: Root) -> bool:
    if root.chosen is not None and root.chosen.is_cause:
        return False
    return bool(case.job.error_files) and root.failure not in (FailureClass.TERMINATED, FailureClass.HANG)


def _from_error_files(case: Case, root: Root) -> Root:
    """The root of the earliest error file that is not about a peer; without one, the root as it is."""
    found: list[tuple[int, int, Root]] = []
    for place, file in enumerate(case.job.error_files):
        content = read_error_file(file.content)
        if content is None:
            continue
        judged = _judge_message(case, file, content.message, case.signatures)
        if judged is not None:
            found.append((content.timestamp_s, place, judged))
    return min(found, key=lambda item: item[:2])[2] if found else root


def _judge_message(case: Case, file: ErrorFile, message: str, signatures: Signatures) -> Root | None:
    text = clean(message[:_MESSAGE_CAP].split("\n", maxsplit=1)[0].encode("utf-8", "replace"))
    matched = [
        entry
        for entry in signatures.entries
        if entry.role is not Role.CONFIRMATION and re.search(entry.regex, text)
    ]
    if not matched or any(entry.role is not Role.CAUSE for entry in matched) or "SignalException" in text:
        return None
    top = max(matched, key=lambda entry: entry.strength)
    rank = file.origin.rank
    if rank is None and file.origin.local_rank is not None:
        rank = case.ranks.from_local(file.origin.local_rank, file.origin.node)
    return Root(
        top.failure, top.reason, rank, (rank,) if rank is not None else (), file.origin.node, file.path, 1, text,
        0.94 if top.strength >= Strength.CLEAR else 0.9,
    )  # fmt: skip


# -- the machine's records -------------------------------------------------------------------------


def _cgroup_killed(case: Case, root: Root) -> bool:
    if not case.job.machine.cgroup_oom_kills:
        return False
    killed = root.reason is Reason.KERNEL_KILL or any(item.code == -9 for item in case.launch.exits)
    return killed or weight_of(root) <= Weight.COMPLAINT


def _killed_by_somebody(case: Case, root: Root) -> bool:
    # oom_kill in memory.events counts the kills of every OOM killer (Linux, cgroup-v2.rst).
    counted_none = case.job.machine.cgroup_oom_kills == 0
    return counted_none and root.reason is Reason.KERNEL_KILL and root.confidence <= BARE_KILL


def _worker_killed_by_somebody(case: Case, root: Root) -> bool:
    machine = case.job.machine
    counted_none = machine.cgroup_oom_kills == 0 and not machine.kernel_log
    return counted_none and root.chosen is not None and root.chosen.has(Trait.SIGKILL_ONLY)


def _slurm(case: Case) -> tuple[FailureClass, Reason] | None:
    state = case.job.machine.slurm_state
    return OUTCOMES.get(state.split()[0].rstrip("+")) if state is not None else None


def _by_slurm(case: Case, root: Root) -> Root:
    known = _slurm(case)
    assert known is not None
    failure, reason = known
    if root.failure is not failure:
        root = root._replace(path="", line=0, text="")
    return root._replace(failure=failure, reason=reason, confidence=0.95)


def _shm_full(case: Case, root: Root) -> bool:
    share = case.job.machine.shm_used_share
    crashed = root.failure in (FailureClass.DATALOADER_WORKER, FailureClass.WORKER_CRASH)
    return share is not None and share > SHM_FULL_SHARE and crashed


def _hard_xid(case: Case, root: Root) -> bool:
    hard = any(xid in _HARD_XIDS for _, xid in case.job.machine.gpu_xids)
    return hard and (weight_of(root) <= Weight.COMPLAINT or root.failure is FailureClass.CUDA_ERROR)


# With less free space than this, a traceback no longer fits.
FULL_BYTES = 16 * 1024


def _disk_took_the_words(case: Case, root: Root) -> bool:
    """Whether the logs can no longer be written, and nothing is known but an exit code or a broken output pipe."""
    free_bytes = case.job.machine.disk_free_bytes
    if free_bytes is None or free_bytes >= FULL_BYTES:
        return False
    broken = root.failure is FailureClass.NCCL_ERROR and root.text.startswith("BrokenPipeError")
    by_code = root.failure is FailureClass.UNKNOWN or root.reason is Reason.EXIT_CODE
    return broken or (by_code and Facts(case).died)


def _launcher_killed(case: Case, root: Root) -> bool:
    """Whether a signal killed the launcher, and the ranks only lost it or one another."""
    lost = weight_of(root) is not Weight.EXIT and root.failure is not FailureClass.NCCL_TIMEOUT
    return case.job.launcher_signal is not None and lost


def by_launchers_signal(case: Case, _root: Root) -> Root:
    """The root for the signal that ended the launcher."""
    if case.job.launcher_signal in _FROM_OUTSIDE:
        return Root(FailureClass.TERMINATED, Reason.OUTSIDE, confidence=LAUNCHER_SIGNAL)
    return Root(FailureClass.WORKER_CRASH, Reason.SIGNAL, confidence=LAUNCHER_SIGNAL)


# -- the end, and what stoker itself knows ---------------------------------------------------------


def _aborted_at_exit(case: Case, root: Root) -> bool:
    aborted = root.failure is FailureClass.WORKER_CRASH or (
        root.failure is FailureClass.NCCL_ERROR and any(item.code == -6 for item in case.launch.exits)
    )
    return aborted and _had_finished(case, root)


def _had_finished(case: Case, root: Root) -> bool:
    job = case.job
    if job.final_checkpoint:
        return True
    if job.total_steps is not None and job.last_step is not None and job.last_step >= job.total_steps:
        return True
    return any(
        hit.has(Trait.GOOD_END) and hit.line < root.line and scan.path == root.path
        for scan in case.scans
        for hit in scan.hits
    )


def _stopped_by_us(case: Case, root: Root) -> bool:
    failed_before = (
        root.chosen is not None
        and root.chosen.is_cause
        and root.failure is not FailureClass.TERMINATED
        and root.chosen.strength >= Strength.PLAIN
    )
    return case.job.stop_reason is not None and not failed_before


def _ranks_never_met(case: Case, root: Root) -> bool:
    """Whether stoker ended the rest of an attempt because a node was gone, before any rank began."""
    job = case.job
    no_cause = root.failure in (FailureClass.TERMINATED, FailureClass.UNKNOWN, FailureClass.HEALTHY)
    no_rank = not (job.exit_codes or job.launcher_signal) and all(
        log.origin.rank is None and log.origin.local_rank is None for log in job.logs
    )
    return no_cause and no_rank and job.ended_for == _RANK_DIED


def _made_no_step(case: Case, root: Root) -> bool:
    """Whether an attempt exited with code 0 without a step, far from the end that an earlier attempt was training toward."""
    job = case.job
    if root.failure is not FailureClass.HEALTHY or job.launcher_exit != 0 or job.final_checkpoint:
        return False
    known = job.earlier_step is not None and job.total_steps is not None
    return known and (job.earlier_step or (0, 0))[1] < NEARLY_DONE * (job.total_steps or 0)


# -- words -----------------------------------------------------------------------------------------


def _barely_healthy(_case: Case, root: Root) -> bool:
    return root.failure is FailureClass.HEALTHY and not root.path and root.confidence < SURELY_OVER


def _without_line(_case: Case, root: Root) -> bool:
    exit_code_alone = root.reason is Reason.EXIT_CODE and root.failure is FailureClass.WORKER_CRASH
    return root.chosen is None and (root.failure is FailureClass.UNKNOWN or exit_code_alone)


# -- exit code 0 -----------------------------------------------------------------------------------


def _fails_with_zero(case: Case, root: Root) -> bool:
    """Whether the logs show a failure of an attempt that exited on its own with code 0. A NaN loss needs no other evidence."""
    no_failure = (FailureClass.HEALTHY, FailureClass.UNKNOWN, FailureClass.NAN_LOSS)
    return root.failure not in no_failure and is_asked(case)


def _of_standing_exit(case: Case, root: Root) -> Root:
    found = standing_exit(case)
    if found is None or (found.hit.has(Trait.SHELL_EXIT) and reached_end(case, root)):
        return root
    return from_exit(found, case, FailureClass.WORKER_CRASH, Reason.EXIT_CODE)._replace(confidence=0.75)


def _ended_early(case: Case, root: Root) -> bool:
    no_failure = root.failure in (FailureClass.HEALTHY, FailureClass.UNKNOWN) and root.reason is None
    end = planned_end(case) if no_failure and is_asked(case) else None
    return end is not None and not end.is_reached and not says_end(case)


CORRECTIONS = (
    Correction(
        "error_file",
        Stage.ERROR_FILES,
        when=_may_ask_error_files,
        then=_from_error_files,
        why="No log names a cause, but torchrun's error files do; the earliest one that is not about a peer counts.",
    ),
    Correction(
        "memory_kill_counted",
        Stage.MACHINE,
        when=_cgroup_killed,
        then=_replaced(FailureClass.HOST_OOM, Reason.CGROUP_KILL, 0.96),
        why="The job's memory counters show out-of-memory kills.",
    ),
    Correction(
        "no_memory_kill_counted",
        Stage.MACHINE,
        when=_killed_by_somebody,
        then=_replaced(FailureClass.WORKER_CRASH, Reason.SIGNAL, 0.85),
        why="The job's memory counters show no out-of-memory kill, so somebody else sent the SIGKILL.",
    ),
    Correction(
        "worker_killed_with_memory_left",
        Stage.MACHINE,
        when=_worker_killed_by_somebody,
        then=_replaced(FailureClass.DATALOADER_WORKER, Reason.KILLED, 0.85),
        why="A data worker was killed, but the job's memory counters show no out-of-memory kill.",
    ),
    Correction(
        "slurm_state",
        Stage.MACHINE,
        when=lambda case, _root: _slurm(case) is not None,
        then=_by_slurm,
        why="The logs show no cause, and SLURM recorded how the job ended.",
        outranks=Weight.COMPLAINT,
    ),
    Correction(
        "shared_memory_full",
        Stage.MACHINE,
        when=_shm_full,
        then=_replaced(FailureClass.SHM_EXHAUSTED, None, 0.93),
        why="A process crashed while /dev/shm was full.",
    ),
    Correction(
        "gpu_reported_fault",
        Stage.MACHINE,
        when=_hard_xid,
        then=_replaced(FailureClass.GPU_FAULT, None, 0.95),
        why="The driver reported a hardware fault (Xid) at this time.",
    ),
    Correction(
        "full_disk",
        Stage.MACHINE,
        when=_disk_took_the_words,
        then=_replaced(FailureClass.DISK_FULL, None, 0.8),
        why="A process failed without printing a cause, and the disk that holds its logs is full.",
        outranks=Weight.COMPLAINT,
    ),
    Correction(
        "launcher_killed",
        Stage.MACHINE,
        when=_launcher_killed,
        then=by_launchers_signal,
        why="A signal ended the launcher itself, and no rank reports a cause: the ranks ended because they lost it.",
        outranks=Weight.COMPLAINT,
    ),
    Correction(
        "aborted_at_exit",
        Stage.AFTER_THE_END,
        when=_aborted_at_exit,
        then=_replaced(FailureClass.WORKER_CRASH, Reason.AT_EXIT, 0.93),
        why="The crash came after the last step or the final checkpoint: training had finished.",
    ),
    Correction(
        "stopped_for_slurm",
        Stage.OWN_KNOWLEDGE,
        when=lambda case, root: _stopped_by_us(case, root) and _slurm(case) is not None,
        then=_by_slurm,
        why="SLURM was ending the job, so stoker stopped the run.",
    ),
    Correction(
        "warned_of_limit",
        Stage.OWN_KNOWLEDGE,
        when=lambda case, root: _stopped_by_us(case, root) and case.job.stop_reason == _WARNED,
        then=lambda _case, _root: Root(FailureClass.TERMINATED, Reason.TIME_LIMIT, confidence=0.95),
        why="The batch system warned of its limit, so stoker stopped the run.",
    ),
    Correction(
        "stopped_by_stoker",
        Stage.OWN_KNOWLEDGE,
        when=_stopped_by_us,
        then=lambda _case, _root: Root(FailureClass.TERMINATED, Reason.USER, confidence=0.97),
        why="stoker stopped the run, and the logs show no clear cause before that.",
    ),
    Correction(
        "node_never_came",
        Stage.OWN_KNOWLEDGE,
        when=_ranks_never_met,
        then=_replaced(FailureClass.RENDEZVOUS, None, 0.9),
        why="The ranks had not met yet, and stoker ended the attempt because a node was gone.",
    ),
    Correction(
        "made_no_step",
        Stage.OWN_KNOWLEDGE,
        when=_made_no_step,
        then=_replaced(FailureClass.UNKNOWN, Reason.NO_STEP, 0.9),
        why="The attempt exited with code 0 without a step, and an earlier attempt had not reached the last one.",
        outranks=Weight.SILENCE,
    ),
    Correction(
        "words_below_last_step",
        Stage.WORDS,
        when=_barely_healthy,
        then=lambda case, root: guess(case, root, ended_at_once=True),
        why="An error that matches no signature follows the last step; its words point to a class that ends a process at once.",
        outranks=Weight.SILENCE,
    ),
    Correction(
        "words_of_complaint",
        Stage.WORDS,
        when=_without_line,
        then=guess,
        why="No signature matches the cause; the class is guessed from the words of the clearest error.",
        outranks=Weight.EXIT,
    ),
    Correction(
        "stacks_of_hang",
        Stage.STACKS,
        when=lambda case, _root: case.job.hang is not None and case.job.hang.ended_for_it,
        then=hang_by_stacks,
        why="stoker ended the run as a hang; its stacks show which ranks kept the others waiting.",
    ),
    Correction(
        "stacks_of_timeout",
        Stage.STACKS,
        when=lambda case, _root: case.job.hang is not None,
        then=timeout_by_stacks,
        why="The waiting ranks timed out; the stacks that stoker took before show which ranks they waited for.",
    ),
    Correction(
        "flight_recorder",
        Stage.STACKS,
        when=recorder_applies,
        then=hang_by_recorder,
        why="PyTorch's flight recorder shows, rank by rank, which collective hangs and who did not join it.",
    ),
    Correction(
        "exit_zero_after_end",
        Stage.EXIT_ZERO,
        when=lambda case, root: _fails_with_zero(case, root) and reached_end(case, root) and standing(case, root),
        then=_replaced(FailureClass.HEALTHY, Reason.AT_EXIT, 0.94),
        why="Exit code 0, and the failure came after the planned end of the training or the results of an evaluation: a success that names the failure.",
    ),
    Correction(
        "exit_zero_not_a_failure",
        Stage.EXIT_ZERO,
        when=lambda case, root: _fails_with_zero(case, root) and not standing(case, root),
        then=lambda _case, _root: Root(FailureClass.HEALTHY, confidence=0.94),
        why="Exit code 0, and the program prints such errors routinely, or it continued after this one.",
    ),
    Correction(
        "exit_zero_of_launcher",
        Stage.EXIT_ZERO,
        when=lambda case, root: root.failure is FailureClass.UNKNOWN and is_asked(case),
        then=_of_standing_exit,
        why="Exit code 0, but a launcher or a shell reports that a process failed, and nothing continued after that.",
        outranks=Weight.SILENCE,
    ),
    Correction(
        "ended_early",
        Stage.PLANNED_END,
        when=_ended_early,
        then=_replaced(FailureClass.UNKNOWN, Reason.ENDED_EARLY, 0.9),
        why="Exit code 0, but the training stopped before its planned end, and nothing says why.",
        outranks=Weight.SILENCE,
    ),
)  # fmt: skip


def corrected(case: Case, root: Root) -> tuple[Root, tuple[Correction, ...]]:
    """The root after all corrections, and the corrections that changed it."""
    applied: list[Correction] = []
    for stage in Stage:
        weight = weight_of(root)
        own = (item for item in CORRECTIONS if item.stage is stage and weight <= item.outranks)
        first = next((item for item in own if item.when(case, root)), None)
        if first is not None and (changed := first.then(case, root)) != root:
            root = changed
            applied.append(first)
    return root, tuple(applied)

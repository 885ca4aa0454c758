"""The fault matrix: the verdict and decision for each failure, and how the run ends.

One table for the test that makes the failures happen and for the page that shows it (docs/recovery.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.run.records import DecisionKind, FailureClass, Reason

F, D, R = FailureClass, DecisionKind, Reason


@dataclass(frozen=True, slots=True)
class Case:
    """One fault of the bundled trainer. `rank` None: it strikes all ranks, or nothing tells which.

    `settings`: lines of ``[hang]``.
    `uncounted`: what it is called where the kernel does not tell how often it killed for memory. `decision` follows the attempt in which it strikes; `outcome` and `exit_code` are the run's.
    """

    fault: str
    what: str
    failure: FailureClass
    reason: Reason | None
    rank: int | None
    decision: DecisionKind
    outcome: str
    exit_code: int
    attempts: int
    change: str = ""
    args: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    uncounted: tuple[FailureClass, Reason | None] | None = None


OK = ("resumed and finished", 0, 2)
MATRIX: tuple[Case, ...] = (
    Case("oom@6:1", "out of memory", F.HOST_OOM, R.ALLOCATOR, 1, D.RESTART, *OK, "micro-batch 4 → 2, same global batch"),
    Case("exception@6:1", "an exception in the script", F.CODE_ERROR, None, 1, D.FAIL, "stopped", 1, 1),
    Case("exit:3@6:1", "a rank exits with 3", F.WORKER_CRASH, R.EXIT_CODE, 1, D.RESTART, *OK),
    Case("sigkill@6:1", "a rank is killed", F.WORKER_CRASH, R.SIGNAL, 1, D.RESTART, *OK),
    Case("sigsegv@6:1", "a segmentation fault", F.WORKER_CRASH, R.SIGNAL, 1, D.RESTART, *OK),
    Case("sigabrt@6:1", "an abort", F.WORKER_CRASH, R.SIGNAL, 1, D.RESTART, *OK),
    Case(
        "hang@10:1", "a rank hangs before a collective", F.HANG, None, 1, D.RESTART, *OK,
        # Later than the others: a pace is known after five gaps between steps, and a save is no part of one.
        # What the run came back from, a checkpoint on a busy machine, counts threefold.
        flags=("--hang-timeout", "4"), settings=("rounds_apart_s = 1.0", "countdown_s = 1.0"),
    ),
    Case(
        # Only flagged; those that wait for it, over gloo, run into their own time limit.
        # As late as the hang, so that stacks are taken before.
        "sigstop@10:1", "a rank is stopped by a signal", F.HANG, None, 1, D.RESTART, *OK,
        args=("--dist_timeout_s=25",), flags=("--hang-timeout", "4"), settings=("rounds_apart_s = 1.0",),
    ),
    Case("nan@6", "a NaN loss", F.NAN_LOSS, None, None, D.RESTART, *OK, "resume from before the loss became NaN or Inf"),
    Case("slow:0.3@6:1", "a slow rank", F.HEALTHY, None, None, D.SUCCEED, "finished", 0, 1),
    Case("abort_at_exit@0:1", "an abort after all work is done", F.WORKER_CRASH, R.AT_EXIT, 1, D.SUCCEED, "finished", 0, 1),
    Case("disk_full@4:0", "a checkpoint on a full disk", F.DISK_FULL, None, None, D.RESTART, *OK, "once there is space"),
    Case(
        "corrupt_checkpoint@6,sigkill@7:1",
        "a crash, and the newest checkpoint is damaged",
        F.WORKER_CRASH,
        R.SIGNAL,
        1,
        D.RESTART,
        *OK,
        "the trainer skips the damaged one",
    ),
    Case("unused_parameter@0*", "a parameter without a gradient", F.DDP_MISMATCH, None, None, D.FAIL, "stopped", 1, 1),
    Case("mismatch@6:1", "ranks in different collectives", F.DDP_MISMATCH, None, None, D.FAIL, "stopped", 1, 1),
    Case(
        # The kernel's counters say that it killed nobody for memory; without them that is the usual reason by far.
        "worker_killed@6:1", "a data loading process is killed", F.DATALOADER_WORKER, R.KILLED, 1, D.RESTART, *OK,
        args=("--num_workers=2",), uncounted=(F.HOST_OOM, R.KERNEL_KILL),
    ),
)  # fmt: skip

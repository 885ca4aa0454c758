"""What torchrun 2.13 writes when a rank fails and when it is stopped, as recorded; paths shortened."""

from __future__ import annotations

from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.state import RunState

PREFIX = "torch/distributed/elastic/multiprocessing/api.py"
CLOSING = f"W1121 10:00:10.250000 4242 {PREFIX}:1028] Sending process 4300 closing signal SIGTERM"
FAILED = f"E1121 10:00:10.500000 4242 {PREFIX}:1002] failed (exitcode: 1) local_rank: 1 (pid: 4301) of binary: /usr/bin/python"
DEATH = "W1121 10:00:10.250000 4242 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers"
STOPPED = [
    "Traceback (most recent call last):",
    '  File "/lib/torch/distributed/run.py", line 1032, in <module>',
    "    main()",
    '  File "/lib/torch/distributed/elastic/multiprocessing/api.py", line 86, in _terminate_process_handler',
    '    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)',
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 15",
]
REPORT = [
    "Traceback (most recent call last):",
    '  File "/lib/torch/distributed/run.py", line 1032, in <module>',
    "    main()",
    '  File "/lib/torch/distributed/launcher/api.py", line 383, in launch_agent',
    "    raise ChildFailedError(",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "train.py FAILED",
    "------------------------------------------------------------",
    "Failures:",
    "[1]:",
    "  time      : 2026-11-21_10:00:10",
    "  host      : localhost",
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : -15 (pid: 4300)  (SIGTERM)",
    "  error_file: <N/A>",
    "  traceback : Signal 15 (SIGTERM) received by PID 4300",
    "------------------------------------------------------------",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-11-21_10:00:10",
    "  host      : localhost",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : 1 (pid: 4301) ",
    "  error_file: <N/A>",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    "============================================================",
]
# 2026-11-21 10:00:00 UTC.
T0 = 1795255200.0


def trace(rank: int | None, said: str, frame: str = "forward") -> list[str]:
    """A rank's traceback as torch prints it; None: without the rank before each line."""
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 25, in <module>',
        "    train()",
        f'  File "train.py", line 12, in {frame}',
        "    raise",
        said,
    ]
    return lines if rank is None else [f"[rank{rank}]: {line}" for line in lines]


def launched(ranks: int, *, ended_t: float | None = None) -> RunState:
    """A run of some ranks that began at `T0`; their files lie in ``<local rank>/``."""
    facts: list[ev.Event] = [
        ev.RunStarted(t=T0, run_id="x", name="x", mode="launched", host="box"),
        ev.LaunchIntended(t=T0, attempt=1, argv=(), reason="first launch"),
        ev.AttemptStarted(t=T0, attempt=1, pid=0, start_time=0.0),
    ]
    facts += [
        ev.RankStarted(
            t=T0, attempt=1, local_rank=n, rank=n, stdout=f"{n}/stdout.log", stderr=f"{n}/stderr.log"
        )
        for n in range(ranks)
    ]
    if ended_t is not None:
        facts.append(ev.AttemptEnded(t=ended_t, attempt=1, exit_code=1))
    return replay(facts)

"""The ranks meet once before the real thing: as many processes as the job has on this machine, one process group, one sum."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Final

from supervisor.job.spec import EntryKind
from supervisor.preflight.context import CheckContext, ok, refuse
from supervisor.run.records import Finding
from supervisor.text.decode import printable

# Importing torch in all ranks at once takes up to 20 s from a cold disk; the group itself waits MEET_S.
LIMIT_S: Final = 90.0
MEET_S: Final = 30
TICK_S: Final = 0.05
# https://docs.pytorch.org/docs/stable/distributed.html: a file of its own needs neither a port nor a name.
_RANK: Final = dedent("""
    import datetime, sys
    import torch, torch.distributed as dist
    rank, ranks, store, wait_s = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    gpu = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    if gpu:
        torch.cuda.set_device(rank)
    backend = "nccl" if gpu else "gloo"
    wait = datetime.timedelta(seconds=wait_s)
    open(store + "-" + str(rank), "w").close()  # it has come this far
    dist.init_process_group(backend, init_method="file://" + store, rank=rank, world_size=ranks, timeout=wait)
    numbers = torch.full((1 << 20,), float(rank + 1), device="cuda" if gpu else "cpu")
    dist.all_reduce(numbers)
    right = bool((numbers == ranks * (ranks + 1) / 2).all())
    dist.destroy_process_group()
    print(backend if right else "wrong", flush=True)
""")


def check_collective(
    context: CheckContext, *, limit_s: float = LIMIT_S, meet_s: int = MEET_S
) -> Iterator[Finding]:
    """Whether this machine's ranks come together and add up the same 4 MiB, with the job's Python and environment."""
    spec, interpreter = context.spec, context.interpreter
    if spec.entry_kind is EntryKind.COMMAND or interpreter is None or interpreter.torch_version is None:
        return
    ranks = spec.nproc_per_node
    env = context.job_env
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stoker-check-") as folder:
        outputs = [Path(folder, f"{rank}") for rank in range(ranks)]
        children: list[subprocess.Popen[bytes]] = []
        store = Path(folder, "store")
        try:
            # In the `try` one by one: where one cannot be started, those before it are ended.
            for rank, output in enumerate(outputs):
                children.append(_start(interpreter.path, env, rank, ranks, store, output, meet_s))
            codes = [child.poll() for child in children]
            # Where one has failed, the others would wait for it.
            while None in codes and not any(codes) and time.monotonic() - begun < limit_s:
                time.sleep(TICK_S)
                codes = [child.poll() for child in children]
        finally:
            for child in children:
                if child.returncode is None:  # not reaped: the number is still its own
                    os.killpg(child.pid, signal.SIGKILL)  # each leads a group: a wrapper's own child too
                    child.wait()
        ended_t = time.time()
        said = [_last_line(output) for output in outputs]
        waited_s = [_waited_s(Path(f"{store}-{rank}"), ended_t) for rank in range(ranks)]
    yield _judged(codes, said, waited_s, meet_s, time.monotonic() - begun)


def _waited_s(began: Path, ended_t: float) -> float | None:
    """How long ago a rank began to meet the others; None: it never did."""
    try:
        return ended_t - began.stat().st_mtime
    except FileNotFoundError:
        return None


def _judged(
    codes: list[int | None], said: list[str], waited_s: list[float | None], meet_s: int, took_s: float
) -> Finding:
    """A rank that ended by itself explains it; one that gave up after `meet_s` was let down by those that never began."""
    ranks = len(codes)
    fix = "`stoker run` would fail in the same way: look at the interface and the driver"
    never = [rank for rank in range(ranks) if waited_s[rank] is None and not codes[rank]]
    ended = [rank for rank in range(ranks) if codes[rank]]
    by_itself = [rank for rank in ended if (waited_s[rank] or 0.0) < meet_s]
    failed = next(iter(by_itself or ([] if never else ended)), None)
    if failed is not None:
        what = (
            f"rank {failed} of {ranks} ended with exit code {codes[failed]} as the ranks met: {said[failed]}"
        )
        return refuse("collective", what, fix)
    late = never or [rank for rank, code in enumerate(codes) if code is None]
    if late:
        named = ", ".join(map(str, late[:8]))
        what = f"{len(late)} of {ranks} ranks did not come within {took_s:.0f} s: {named}"
        return refuse("collective", what, fix)
    if "wrong" in said:
        return refuse(
            "collective",
            f"the sum over {ranks} ranks is wrong on rank {said.index('wrong')}",
            "a GPU or its link is broken",
        )
    return ok("collective", f"{ranks} ranks met over {said[0]} and added up 4 MiB, in {took_s:.1f} s")


def _start(
    python: str, env: dict[str, str], rank: int, ranks: int, store: Path, output: Path, meet_s: int
) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [python, "-c", _RANK, str(rank), str(ranks), str(store), str(meet_s)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**env, "LOCAL_RANK": str(rank)},
            start_new_session=True,
            cwd=os.sep,  # else what lies in the present folder would come before what is installed
        )


def _last_line(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return printable(lines[-1])[:300] if lines else "it said nothing"

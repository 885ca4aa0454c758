"""How soon the screen says that a rank died: from the child's own write of its traceback's last line to the words on the terminal.

    python bench/state.py [--rounds 5] [--load 10] [--keep bench/results/state.json]

A real torchrun of two ranks over gloo; rank 1 raises CUDA's out-of-memory error and writes down when its traceback was out; a
dashboard of 120 by 40 on a pseudo-terminal. In "waits", rank 0 computes and takes three seconds to heed torchrun's SIGTERM, as a
peer inside a long kernel does; in "at once" it is in the next all-reduce and fails with it. With ``--load N``, N processes compute beside it.

Goals (seconds after the line): header 0.5, card 1; with ten processes beside it, 2 for both; no stall in the journal.
"Death" is when the kernel says that the process is gone: until then nothing may be claimed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, run_below, surroundings, tell, until
from bench.stage import Terminal
from supervisor.run import events as ev
from supervisor.run.journal import facts_in

JOB = """
import os, signal, sys, time, traceback
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def out(kind, value, trace):
    traceback.print_exception(kind, value, trace)
    sys.stderr.flush()
    with open("line.tmp", "w") as file:
        file.write(f"{time.monotonic()} {time.time()}")
    os.rename("line.tmp", "line")
if rank == 1:
    sys.excepthook = out
    open("pid", "w").write(str(os.getpid()))
elif sys.argv[1] == "waits":
    def late(*_):
        time.sleep(3.0)
        os._exit(1)
    signal.signal(signal.SIGTERM, late)
x = torch.ones(1000)
for step in range(1, 1000):
    dist.all_reduce(x / 2)
    time.sleep(0.05)
    print(f"step {step} loss {4 / step:.4f}", flush=True)
    if step == 40 and rank == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is free.")
    if step == 40 and sys.argv[1] == "waits":
        while True:
            time.sleep(0.05)
"""
ESCAPE = re.compile(rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;:?<>=]*[ -/]*[@-~]|\x1b[@-_]")
# Words of the header and of the card that say that the run fails.
HEADER = re.compile(
    "✗ rank 1 (?:is exiting|died)|◆ ended|◆ stopping|✗ cuda_oom|↻ restarts in|‖ held".encode()
)
CARD = re.compile("rank 1 (?:is exiting|died): |✗ attempt 1 (?:failed|is failing)|out of GPU memory".encode())
DIED = re.compile(b"rank 1 died")
DEADLINE_S = 90.0


class Watched(Terminal):
    """A terminal that notes when each piece came, by the monotonic clock."""

    def __init__(self, argv: list[str], folder: str) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        super().__init__(argv, folder)

    def _came(self, data: bytes) -> None:
        self.pieces.append((time.monotonic(), data))
        super()._came(data)

    def first(self, words: re.Pattern[bytes], since: float) -> float | None:
        """When words were first on the way to the screen after `since`."""
        seen = b""
        for at, data in list(self.pieces):
            if at < since:
                continue
            seen = (seen + data)[-(1 << 16) :]
            if words.search(ESCAPE.sub(b"", seen)):
                return at
        return None


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute at our own priority."""
    # In a session each: the kernel shares a machine by session first, and the job and stoker have theirs.
    argv = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(argv, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def note_death(pid: int, found: dict[str, float]) -> None:
    """When the kernel says that a process is gone."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        select.select([fd], [], [], DEADLINE_S)
        os.close(fd)
    found["death"] = time.monotonic()


def one(way: str, load: int) -> dict[str, float | None]:
    """Seconds from the line to everything else."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(JOB, encoding="utf-8")
        flags = ["--name", "bench", "--nproc-per-node=2", "--no-check", "--python", sys.executable]
        argv = [sys.executable, "-m", "supervisor", "run", *flags, "train.py", way]
        found: dict[str, float] = {}
        terminal = Watched(argv, place)
        try:
            until(lambda: (folder / "pid").exists() and (folder / "pid").read_text() != "")
            watcher = threading.Thread(target=note_death, args=(int((folder / "pid").read_text()), found))
            watcher.start()
            with busy(load):
                until((folder / "line").exists)
                line, wall = map(float, (folder / "line").read_text().split())
                watcher.join()
                run = run_below(folder)
                assert run is not None
                until(lambda: any(isinstance(f, ev.Decided) for f in facts_in(run.node().journal)))
                time.sleep(1.0)
            facts = list(facts_in(run.node().journal))
        finally:
            terminal.press(b"s")
            time.sleep(0.5)
            terminal.press(b"y")
            time.sleep(1.0)
            terminal.close()
        journalled = {
            "evidence": (f.t for f in facts if isinstance(f, ev.EvidenceSeen)),
            "rank gone": (f.t for f in facts if isinstance(f, ev.RankExited) and f.local_rank == 1),
            "provisional": (f.t for f in facts if isinstance(f, ev.Diagnosed) and f.provisional),
            "ended": (f.t for f in facts if isinstance(f, ev.AttemptEnded)),
            "verdict": (f.t for f in facts if isinstance(f, ev.Diagnosed) and not f.provisional),
        }
        header, card = terminal.first(HEADER, line), terminal.first(CARD, line)
        died = terminal.first(DIED, line)
        times: dict[str, float | None] = {
            "death": found["death"] - line,
            "header": header - line if header is not None else None,
            "card": card - line if card is not None else None,
            "died": died - line if died is not None else None,
            "stalls": float(sum(isinstance(f, ev.StallFlagged) for f in facts)),
        }
        for name, stamps in journalled.items():
            first = next(iter(stamps), None)
            times[f"journal: {name}"] = first - wall if first is not None else None
        return times


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", type=int, default=10)
    parser.add_argument("--before", type=Path, help="a result of another commit, kept beside this one")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    report: dict[str, object] = {"rounds": args.rounds, **surroundings()}
    for load in (0, args.load):
        for way in ("waits", "at once"):
            rounds = [one(way, load) for _ in range(args.rounds)]
            medians: dict[str, object] = {}
            for name in rounds[0]:
                values = [value for r in rounds if (value := r[name]) is not None]
                if values:
                    medians[name] = [
                        round(x, 3) for x in (statistics.median(values), min(values), max(values))
                    ]
            report[f"load {load}, peer {way}"] = medians
            print(f"load {load}, peer {way}", medians, flush=True)
    if args.before is not None:
        report["before"] = json.loads(args.before.read_text(encoding="utf-8"))
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())

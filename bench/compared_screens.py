"""The same five questions put to stoker and to other terminal tools, in tmux: which keys answer them, and after how many seconds.

    python bench/compared_screens.py [--rounds 3] [--gib 1.0] [--toolong PATH/tl] [--nvitop PATH/nvitop] [--keep bench/results/compared_screens.json]

A question is answered once the pane (160 × 48) shows the words that answer it. Seconds count from the command on, with the keys pressed without a pause
by a script that waits for the screen each key needs: what the tool takes, not the person. A tool that has no such screen is left out of that question.
Compare the tools within one run only. GPUs are the stand-in for NVML's library of tests/fakes/nvml.c, so no GPU is needed, and one C compiler is.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, surroundings, tell
from bench.stage import FakeRun, every
from supervisor.run import events as ev
from supervisor.run.series import RANKS
from tests.fakes.nvml import GIB, Card, StandIn, build

SIZE = (160, 48)
DEADLINE_S = 60.0
NEEDLE, HIT = "needle-7731", "stands-on-the-hit"
CAUSE = "CUDA out of memory"
LINES = 3000
POLL_S = 0.002


class Pane:
    """A tmux server of our own with one pane; another one each time, as one that ends may still answer."""

    def __init__(self, name: str, env: dict[str, str]) -> None:
        self._name = name
        self._env = env
        self._starts = 0

    def tmux(self, *args: str) -> str:
        command = ["tmux", "-L", f"{self._name}-{self._starts}", *args]
        return subprocess.run(command, capture_output=True, text=True, env=self._env, check=False).stdout

    def start(self, argv: list[str], size: tuple[int, int] = SIZE) -> float:
        """Start a command in a pane of so many columns and rows; returns when."""
        self._starts += 1
        began = time.perf_counter()
        self.tmux(
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            str(size[0]),
            "-y",
            str(size[1]),
            "exec " + " ".join(map(_quote, argv)),
        )
        return began

    def wait(self, marks: tuple[str, ...], began: float, *, deadline_s: float = DEADLINE_S) -> float:
        """Seconds until one of the marks is on the screen; nan: it never was."""
        while time.perf_counter() - began < deadline_s:
            text = self.tmux("capture-pane", "-p")
            if any(mark in text for mark in marks):
                return time.perf_counter() - began
            time.sleep(POLL_S)
        return float("nan")

    def press(self, key: str) -> float:
        began = time.perf_counter()
        self.tmux("send-keys", key)
        return began

    def pid(self) -> int:
        return int(self.tmux("list-panes", "-F", "#{pane_pid}").split()[0])

    def end(self) -> None:
        self.tmux("kill-server")
        time.sleep(0.3)


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


@dataclass(frozen=True)
class Way:
    """How a tool answers: its command, then keys, each after the words that must be there first (None: press at once). `shows`: the answer."""

    tool: str
    argv: list[str]
    keys: tuple[tuple[str | None, str], ...] = ()
    shows: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Keys pressed; what is typed counts letter by letter."""
        return sum(1 if key in NAMED else len(key) for _, key in self.keys)


NAMED = frozenset({"Enter", "Space", "Escape", "Down", "Up", "Home", "End", "C-f", "Tab"})


def failed_logs(folder: Path) -> Path:
    """Eight ranks' logs, no two of which begin alike (lnav would take them for one file); rank 3 runs out of memory, the others then complain for longer than a screen."""
    folder.mkdir()
    for rank in range(8):
        lines = [
            f"2026-11-21 10:{n // 60 % 60:02d}:{n % 60:02d},000 INFO rank{rank}: step {n} loss {2 + 1 / (1 + n):.4f}"
            for n in range(LINES)
        ]
        if rank == 3:
            lines += [
                "Traceback (most recent call last):",
                '  File "train.py", line 47, in <module>',
                "    loss.backward()",
                f"torch.OutOfMemoryError: {CAUSE}. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB of which 318.50 MiB is free.",
            ]
        else:
            lines += [
                f"[rank{rank}]:[E1121 11:06:4{n % 10}.000000 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n})"
                for n in range(60)
            ]
        (folder / f"rank_{rank}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def large_log(path: Path, size: int) -> int:
    """Write a training log with one line that is looked for, at three quarters; how many lines it has."""
    with path.open("wb") as out:
        block = b"".join(
            b"2026-11-21 10:%02d:%02d INFO train: step %7d | loss %.4f | lr 3.0e-04 | 27200 tok/s\n"
            % (n // 60 % 60, n % 60, n, 2 + 1 / (1 + n))
            for n in range(200_000)
        )
        hit, lines = False, 0
        while out.tell() < size:
            out.write(block)
            lines += 200_000
            if not hit and out.tell() > 0.75 * size:
                out.write(f"2026-11-21 10:00:00 WARN data: {NEEDLE} {HIT}\n".encode())
                hit, lines = True, lines + 1
    return lines


class Slow(FakeRun):
    """One rank in eight takes two fifths longer for each step, and its keeper has found that."""

    _is_found = False

    def advance(self, t: float) -> None:
        super().advance(t)
        for rank in range(self.ranks):
            took_s = 1.4 if rank == 5 else 1.0
            self._series.append(RANKS, t, str(rank), 1, {"step": float(self.step), "step_time_s": took_s})
        if not self._is_found:
            self._is_found = True
            self._journal.append(ev.SlowRankFound(t=t, attempt=1, rank=5, lost_s=0.4, step_s=1.4))


def _advance(fake: FakeRun) -> None:
    fake.advance(time.time())


@contextmanager
def runs_of(folder: Path) -> Iterator[Path]:
    """Two live runs; in both a rank is slow."""
    folder.mkdir()
    with ExitStack() as stack:
        for name in ("20261121-0000-bold-ant", "20261121-0001-calm-bee"):
            fake = Slow(folder / name, ranks=8, gpus=2)
            stack.callback(fake.close)
            stack.enter_context(every(1.0, partial(_advance, fake)))
        yield folder


def answered(pane: Pane, way: Way) -> float:
    """Seconds from the command to the answer; nan: it did not come."""
    began = pane.start(way.argv, SIZE)
    try:
        for first, key in way.keys:
            if first is not None:
                pane.wait((first,), began, deadline_s=DEADLINE_S)
            pane.tmux("send-keys", *([key] if key in NAMED else ["-l", key]))
        while time.perf_counter() - began < DEADLINE_S:
            text = pane.tmux("capture-pane", "-p")
            if all(word in text for word in way.shows):
                return time.perf_counter() - began
            time.sleep(0.01)
        return float("nan")
    finally:
        pane.end()


def main() -> int:
    """Ask, and print the answers."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--toolong", default="tl")
    parser.add_argument("--nvitop", default="nvitop")
    parser.add_argument("--tools", default="stoker,lnav,toolong,nvitop", help="those to ask, with commas")
    parser.add_argument("--only", default="", help="questions, with commas")
    args = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        home = Path(scratch)
        cards = StandIn(home / "nvml")
        cards.folder.mkdir()
        build(cards.folder)
        cards.show(Card("GPU-a", util=87, used=20 * GIB), Card("GPU-b", util=12, used=3 * GIB))
        env = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
        env |= {
            "HOME": scratch,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": f"{scratch}/state",
        }
        pane = Pane(f"stoker-compared-{os.getpid()}", env)
        failed = failed_logs(home / "failed")
        ranks = [str(path) for path in sorted(failed.iterdir())]
        runs = stack.enter_context(runs_of(home / "runs"))
        big = home / "large.log"
        lines = large_log(big, int(args.gib * 2**30))
        job = home / "job.py"
        job.write_text(
            "import time\nfor step in range(10**6):\n    print(f'step {step} loss {3 / (step + 1):.3f}', flush=True)\n    time.sleep(0.05)\n"
        )
        stoker = [sys.executable, "-m", "supervisor"]
        gpu = ["env", *(f"{name}={value}" for name, value in cards.env.items())]
        newest = str(runs / "20261121-0001-calm-bee")
        questions: dict[str, list[Way]] = {
            "why it failed": [
                Way("stoker", [*stoker, "attach", str(failed)], (), ("rank 3", CAUSE)),
                Way(
                    "lnav",
                    ["lnav", "-N", *ranks],
                    (
                        ("Watchdog", "g"),
                        ("step 0 ", "/"),
                        (None, "out of memory"),
                        ("out of memory", "Enter"),
                    ),
                    (CAUSE,),
                ),
                Way(
                    "toolong",
                    [args.toolong, "--merge", *ranks],
                    (("Find", "C-f"), ("Case sensitive", "out of memory"), ("out of memory", "Up")),
                    (CAUSE,),
                ),
            ],
            "the slow rank": [Way("stoker", [*stoker, "attach", newest], (), ("slow: 5",))],
            "two runs": [
                Way(
                    "stoker",
                    [*stoker, "--runs-dir", str(runs)],
                    (("bold-ant", "Space"), (None, "Down"), (None, "c")),
                    ("loss", "bold-ant", "calm-bee", "┤"),
                ),
            ],
            "a word in a large log": [
                Way(
                    "stoker",
                    [*stoker, "attach", str(big)],
                    (("? help", "/"), ("search", NEEDLE), (NEEDLE, "Enter")),
                    (HIT,),
                ),
                Way(
                    "lnav",
                    ["lnav", "-N", str(big)],
                    (
                        (f"L{lines - 1}", "g"),
                        (" step       0", "/"),
                        (None, NEEDLE),
                        (NEEDLE, "Enter"),
                        ("1 hits", "n"),
                    ),
                    (HIT,),
                ),
                Way(
                    "toolong",
                    [args.toolong, str(big)],
                    (("Find", "C-f"), ("Case sensitive", NEEDLE), (NEEDLE, "Up")),
                    (HIT,),
                ),
            ],
            "GPU memory over time": [
                Way(
                    "stoker",
                    [*gpu, *stoker, "run", "--runs-dir", str(home / "gpu"), "--", sys.executable, str(job)],
                    (),
                    ("20.0/80 GiB", "memory"),
                ),
                Way(
                    "nvitop",
                    ["sh", "-c", f"exec {' '.join(gpu)} {args.nvitop} 2>/dev/null"],
                    (),
                    ("20.00GiB / 80.00GiB", "AVG GPU MEM"),
                ),
            ],
        }
        for question, ways in questions.items():
            if args.only and question not in args.only.split(","):
                continue
            times: dict[str, list[float]] = {}
            for _ in range(args.rounds):
                for way in ways:
                    if way.tool in args.tools.split(",") and shutil.which(way.argv[0]) is not None:
                        times.setdefault(way.tool, []).append(answered(pane, way))
            found[question] = {
                way.tool: {
                    "keys": way.count,
                    "seconds": median(times[way.tool]),
                    "rounds": [round(one, 2) for one in times[way.tool]],
                }
                for way in ways
                if way.tool in times
            }
            print(question, found[question], flush=True)
    tell({**surroundings(), "rounds": args.rounds, "gib": args.gib, "questions": found}, args.keep)
    return 0


def median(values: list[float]) -> float | None:
    """The middle of those that came."""
    kept = [value for value in values if value == value]
    return round(statistics.median(kept), 2) if kept else None


if __name__ == "__main__":
    sys.exit(main())

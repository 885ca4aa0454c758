"""Viewing a log: open, jump, follow and memory, against an empty Textual app, lnav and toolong, in tmux.

    python bench/viewer.py [--rounds 5] [--gib 1.0] [--toolong PATH/tl] [--lnav lnav] [--keep bench/results/viewer.json]

All viewers take turns on the same files in a tmux pane of 200 × 50; a screen counts when `capture-pane` shows the
marked line. Polling and its own cost are some 5 ms. Prints ratios of medians. stoker shows a log's end before its app is
loaded: "keys" is when the app's own first frame is there, and keys are answered.
Goals: open at most 1.2 × an empty Textual app, 0.5 × (10 MB) and 0.1 × (1 GiB) toolong; jumps at most 0.5 × toolong,
2 × lnav; follow at most 0.25 × lnav; memory at most 1.15 × an empty Textual app.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, cpu_s, status, surroundings, tell

EMPTY = "from textual.app import App\nfrom textual.widgets import Label\nclass E(App):\n    def compose(self):\n        yield Label('EMPTY-APP-IS-UP')\nE().run()\n"
SIZE = (200, 50)
DEADLINE_S = 90.0
POLL_S = 0.002


@dataclass
class Viewer:
    """`argv` opens a file; `first`/`last` are keys to its ends; `before` is pressed once it is open, `then` before jumps.

    `ready`: what is on the screen once keys are answered, where that comes later than the log.
    """

    name: str
    argv: Callable[[str], list[str]]
    first: str = "Home"
    last: str = "End"
    before: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    ready: str = ""
    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, value: float) -> None:
        self.found.setdefault(what, []).append(value)


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


def memory_mib(pids: list[int]) -> tuple[float, float]:
    """Anonymous and peak resident memory of processes, MiB."""
    known = [status(number) for number in pids]
    anonymous, peak = (sum(one.get(name, 0) for one in known) / 2**20 for name in ("RssAnon", "VmHWM"))
    return anonymous, peak


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            found += [int(child), *_children(int(child))]
    return found


def write_log(path: Path, size: int) -> None:
    """A training log of a size; its first and last lines are marked."""
    with path.open("wb") as out:
        out.write(b"THE-FIRST-LINE of the log\n")
        number = 0
        while out.tell() < size:
            lines = []
            for _ in range(20_000):
                number += 1
                lines.append(
                    b"2026-11-21 10:%02d:%02d INFO train: step %8d | loss %.4f | lr 3.0e-04 | grad_norm 0.81 | 27200 tok/s | %s\n"
                    % (
                        number // 60 % 60,
                        number % 60,
                        number,
                        2 + 1 / (1 + number / 1000),
                        b"x" * (number % 23),
                    )
                )
            out.write(b"".join(lines))
        out.write(b"THE-LAST-LINE of the log\n")


def measure(pane: Pane, viewer: Viewer, path: Path, label: str) -> None:
    """One round of one viewer on one file."""
    try:
        began = pane.start(viewer.argv(str(path)))
        if viewer.name == "empty textual":
            viewer.add(f"open {label}", pane.wait(("EMPTY-APP-IS-UP",), began))
            time.sleep(1.0)
            _note_memory(pane, viewer, label)
            return
        marks = ("THE-LAST-LINE", "an appended line")
        if viewer.before:
            # It opens elsewhere: its first screen, then the way to the end is part of opening.
            pane.wait(("THE-FIRST-LINE", *marks), began)
        for key in viewer.before:
            pane.press(key)
        viewer.add(f"open {label}", pane.wait(marks, began))
        if viewer.ready:
            viewer.add(f"keys {label}", pane.wait((viewer.ready,), began))
        for number in range(3 if viewer.then else 0):
            viewer.add(f"follow in dashboard {label}", _follow(pane, path, number))
        for key in viewer.then:
            pane.press(key)
        _settle(pane)
        for _ in range(2):
            viewer.add(
                f"home {label}", pane.wait(("THE-FIRST-LINE",), pane.press(viewer.first), deadline_s=20)
            )
            time.sleep(0.2)
            viewer.add(f"end {label}", pane.wait(marks, pane.press(viewer.last), deadline_s=20))
            time.sleep(0.2)
        for number in range(4):
            viewer.add(f"follow {label}", _follow(pane, path, number))
        _note_memory(pane, viewer, label)
    finally:
        pane.end()


def _follow(pane: Pane, path: Path, number: int) -> float:
    mark = f"an appended line {time.time_ns()} {number}"
    began = time.perf_counter()
    with path.open("ab", buffering=0) as out:
        out.write(f"{mark}\n".encode())
    seen = pane.wait((mark,), began, deadline_s=4)
    time.sleep(0.37)
    return seen


def _settle(pane: Pane) -> None:
    """Until its process has used nearly no processor for a second: indexing is over."""
    pid = pane.pid()
    end = time.perf_counter() + DEADLINE_S
    while time.perf_counter() < end:
        before = _tree_cpu_s(pid)
        time.sleep(1.0)
        if _tree_cpu_s(pid) - before < 0.15:
            return


def _tree_cpu_s(pid: int) -> float:
    return sum(cpu_s(number) for number in (pid, *_children(pid)))


def _note_memory(pane: Pane, viewer: Viewer, label: str) -> None:
    pid = pane.pid()
    for name, pids in (("", [pid]), ("with children ", [pid, *_children(pid)])):
        anonymous, peak = memory_mib(pids)
        viewer.add(f"{name}anonymous MiB {label}", anonymous)
        viewer.add(f"{name}peak MiB {label}", peak)


def median(values: list[float]) -> float | None:
    kept = [value for value in values if value == value]
    return round(statistics.median(kept), 4) if kept else None


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--lnav", default="lnav")
    parser.add_argument("--toolong", default="tl")
    parser.add_argument("--only", default="", help="viewers to run, by name, with commas")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        env = {k: v for k, v in os.environ.items() if not k.startswith("TMUX")}
        env |= {
            "XDG_STATE_HOME": str(home / "state"),
            "HOME": str(home),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }
        (home / "empty.py").write_text(EMPTY, encoding="utf-8")
        python = sys.executable
        stoker = [python, "-m", "supervisor", "attach"]
        env["PYTHONPATH"] = str(ROOT)
        viewers = [
            Viewer("empty textual", lambda _path: [python, str(home / "empty.py")]),
            Viewer("stoker", lambda path: [*stoker, path], first="g", last="G", then=("L",), ready="? help"),
        ]
        if shutil.which(args.lnav):
            viewers.append(Viewer("lnav", lambda path: [args.lnav, "-N", path], first="Home", last="End"))
        if shutil.which(args.toolong):
            viewers.append(Viewer("toolong", lambda path: [args.toolong, path], before=("End",)))
        viewers = [v for v in viewers if not args.only or v.name in args.only.split(",")]
        logs = {"10 MB": home / "small.log", f"{args.gib:g} GiB": home / "large.log"}
        write_log(logs["10 MB"], 10 << 20)
        write_log(home / "large.log", int(args.gib * 2**30))
        os.sync()  # writing a gigabyte back is nobody's start
        pane = Pane(f"stoker-bench-{os.getpid()}", env)
        for label, path in logs.items():
            # One round of the small file is thrown away; a gigabyte takes some of the viewers half a minute.
            first = 0 if label == "10 MB" else 1
            for number in range(first, (args.rounds if label == "10 MB" else args.large_rounds) + 1):
                for viewer in viewers:
                    kept = {name: list(values) for name, values in viewer.found.items()}
                    measure(pane, viewer, path, label)
                    if number == 0:
                        viewer.found = kept
                    print(
                        label,
                        number,
                        viewer.name,
                        {k: median(v) for k, v in viewer.found.items() if label in k},
                        flush=True,
                    )
        report = summary(viewers, list(logs), args.rounds)
    tell(report, args.keep)
    return 0


def summary(viewers: list[Viewer], labels: list[str], rounds: int) -> dict[str, object]:
    """Medians in seconds and MiB, and stoker's ratio to each of the others."""
    medians = {v.name: {what: median(values) for what, values in v.found.items()} for v in viewers}
    mine = medians.get("stoker", {})
    ratios: dict[str, float] = {}
    for other, theirs in medians.items():
        for what, value in mine.items():
            peer = theirs.get(what.replace("keys ", "open ") if other == "empty textual" else what)
            if other != "stoker" and value and peer:
                ratios[f"{what} / {other}"] = round(value / peer, 3)
    return {
        **surroundings(),
        "rounds": rounds,
        "sizes": labels,
        "medians": medians,
        "ratios": ratios,
    }


if __name__ == "__main__":
    sys.exit(main())

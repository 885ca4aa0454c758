"""What the dashboard costs a terminal, as ratios in one run: processor, bytes, start, and a key's way to the screen.

    python bench/terminal.py [ROUNDS [RESULT.json]]        # peers: pip install textual-plotext; apt install glances

Goals (per cent of a core and bytes at 120×40, interleaved, medians):
- four and more charts, data once a second: at most 0.25 × four textual-plotext charts; four times a second: 0.20 ×;
- 8 GPUs and 64 ranks: at most 2 × the same dashboard with 2 ranks;
- bytes to the terminal at 1 Hz: at most 0.75 × textual-plotext;
- command to first paint: at most 1.2 × an empty Textual app;
- a key's way to the screen while 10,000 lines a second arrive: p99 at most 3 × an empty Textual app's.
A peer that is not installed is left out, and said.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import math
import os
import platform
import pty
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # tests/ and bench/ are no packages that are installed

from supervisor.run import events as ev  # noqa: E402
from supervisor.run.journal import JournalWriter  # noqa: E402
from supervisor.run.lock import KeeperLock  # noqa: E402
from supervisor.run.paths import RunPaths  # noqa: E402
from supervisor.run.series import GPU, HOST, METRICS, RANKS, SeriesWriter  # noqa: E402

SIZE = (120, 40)
WINDOW_S = 5.0
SETTLE_S = 3.0
PRESSES = 60
LINES_PER_S = 10_000
GIB = float(2**30)

EMPTY_APP = """
from textual.app import App
from textual.widgets import Static
class Empty(App):
    BINDINGS = [("x", "press", "press"), ("q", "quit", "quit")]
    count = 0
    def compose(self):
        yield Static("first paint 0000")
    def action_press(self):
        self.count += 1
        self.query_one(Static).update(f"pressed {self.count:04d}")
Empty().run()
"""
PLOTEXT_APP = """
import math, random, sys, time
from textual.app import App
from textual.containers import Grid
from textual_plotext import PlotextPlot
HZ = float(sys.argv[1])
class Charts(App):
    CSS = "Grid { grid-size: 2 2; }"
    BINDINGS = [("q", "quit", "quit")]
    def compose(self):
        with Grid():
            for n in range(4):
                yield PlotextPlot(id=f"p{n}")
    def on_mount(self):
        self.values = [[random.random() for _ in range(600)] for _ in range(4)]
        self.set_interval(1 / HZ, self.step)
    def step(self):
        for n, values in enumerate(self.values):
            values.append(random.random()); del values[0]
            plot = self.query_one(f"#p{n}", PlotextPlot)
            plot.plt.clear_data(); plot.plt.plot(values); plot.refresh()
Charts().run()
"""
STOKER_APP = """
import sys
from supervisor.run.paths import RunPaths
from supervisor.views.tui.app import run_tui
from pathlib import Path
run_tui(RunPaths(Path(sys.argv[1])), read_only=True)
"""


class Terminal:
    """A program on a pseudo-terminal of 120 by 40 whose output is read and counted all the time."""

    def __init__(self, argv: list[str], folder: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        env = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        env |= {"XDG_STATE_HOME": folder, "PYTHONPYCACHEPREFIX": f"{folder}/pyc"}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=folder, start_new_session=True
        )
        os.close(slave)
        self.bytes = 0
        self._seen = b""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="bench-terminal", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return
            if not data:
                return
            with self._changed:
                self.bytes += len(data)
                self._seen = (self._seen + data)[-(1 << 20) :]
                self._changed.notify_all()

    def wait_for(self, text: bytes, deadline_s: float = 30.0) -> float:
        """The moment at which `text` had come."""
        end = time.monotonic() + deadline_s
        with self._changed:
            while text not in self._seen:
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"{text!r} did not come; last: {self._seen[-200:]!r}")
            self._seen = self._seen[self._seen.index(text) + len(text) :]
            return time.perf_counter()

    def press(self, key: bytes) -> float:
        """Send a key; the moment at which it was sent."""
        with self._changed:
            self._seen = b""
        sent = time.perf_counter()
        os.write(self._master, key)
        return sent

    def cpu_s(self) -> float:
        """Processor seconds of the program so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it and everything of it."""
        with contextlib.suppress(OSError):
            os.write(self._master, b"q")
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self._master)
        self._thread.join(2)


class FakeRun:
    """A run directory that is written to as a keeper would: samples, progress, log lines; no training."""

    def __init__(self, root: Path, *, ranks: int, gpus: int) -> None:
        self.run = RunPaths(root)
        node = self.run.node()
        node.root.mkdir(parents=True)
        self.ranks, self.gpus, self.step = ranks, gpus, 0
        self._lock = KeeperLock(node.lock, start_time=1.0)
        self._journal = JournalWriter(node.journal)
        self._series = SeriesWriter(node.series)
        now = time.time()
        folder = node.attempt(1).root
        started = ev.RunStarted(
            t=now, run_id=root.name, name="bench", mode="launched", host="here", total_steps=100_000
        )
        self._journal.append(started)
        self._journal.append(ev.KeeperStarted(t=now, pid=os.getpid(), start_time=1.0, version="bench"))
        self._journal.append(ev.LaunchIntended(t=now, attempt=1, argv=("x",), reason="bench"))
        self._journal.append(ev.AttemptStarted(t=now, attempt=1, pid=1, start_time=1.0))
        self.logs = []
        for rank in range(ranks):
            path = folder / f"t/attempt_0/{rank}/stdout.log"
            path.parent.mkdir(parents=True)
            path.touch()
            self.logs.append(path)
            where = f"t/attempt_0/{rank}/stdout.log"
            self._journal.append(
                ev.RankStarted(t=now, attempt=1, local_rank=rank, rank=rank, pid=2, stdout=where)
            )
        self._journal.append(ev.PhaseChanged(t=now, attempt=1, phase=ev.Phase.STEPPING, step=0))
        for _ in range(600):
            self.advance(now - 600 + self.step)

    def advance(self, t: float) -> None:
        """One step: every chart changes in nearly every cell."""
        self.step += 1
        noise = math.sin(self.step * 12.9898) * 43758.5453 % 1
        loss = 2 + noise
        values = {
            "step": float(self.step),
            "loss": loss,
            "lr": 3e-4 * noise,
            "grad_norm": noise,
            "step_time_s": 1 + noise,
        }
        self._series.append(METRICS, t, "job", 1, {**values, "tokens_per_sec": 27_000 * (1 + noise)})
        for rank in range(self.ranks):
            self._series.append(RANKS, t, str(rank), 1, {**values, "data_wait_s": 0.01 * noise})
            self._series.append(HOST, t, str(rank), 1, {"cpu_ratio": noise, "rss_bytes": 3 * GIB})
        for gpu in range(self.gpus):
            sample = {
                "util_ratio": noise,
                "memory_used_bytes": 60 * GIB * noise,
                "memory_total_bytes": 80 * GIB,
            }
            self._series.append(
                GPU, t, str(gpu), 1, {**sample, "temperature_c": 60 + 9 * noise, "power_w": 600.0}
            )
        self._series.append(HOST, t, "machine", 1, {"cpu_ratio": noise, "memory_used_bytes": 9 * GIB})
        self._journal.append(ev.Progress(t=t, attempt=1, step=self.step, total_steps=100_000, loss=loss))

    def close(self) -> None:
        self._journal.close()
        self._series.close()
        self._lock.release()


@contextlib.contextmanager
def every(period_s: float, act: Callable[[], None]) -> Iterator[None]:
    """Do something at a steady pace beside the measurement."""
    stop = threading.Event()

    def loop() -> None:
        due = time.monotonic()
        while not stop.is_set():
            act()
            due += period_s
            stop.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=loop, name="bench-feeder")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def stoker_cost(folder: str, hz: float, ranks: int, gpus: int) -> tuple[float, float]:
    """Share of a core and bytes a second of the dashboard."""
    root = Path(tempfile.mkdtemp(dir=folder)) / "20261121-0000-bench-run"
    fake = FakeRun(root, ranks=ranks, gpus=gpus)
    try:
        with every(1 / hz, lambda: fake.advance(time.time())):
            return cost([sys.executable, "-c", STOKER_APP, str(root)], folder, b"stepping")
    finally:
        fake.close()
        shutil.rmtree(root.parent, ignore_errors=True)


def cost(argv: list[str], folder: str, ready: bytes | None) -> tuple[float, float]:
    """Share of a core and bytes a second, after it has settled."""
    terminal = Terminal(argv, folder)
    try:
        if ready is not None:
            terminal.wait_for(ready)
        time.sleep(SETTLE_S)
        cpu, sent, start = terminal.cpu_s(), terminal.bytes, time.monotonic()
        time.sleep(WINDOW_S)
        took = time.monotonic() - start
        return (terminal.cpu_s() - cpu) / took, (terminal.bytes - sent) / took
    finally:
        terminal.close()


def start_s(argv: list[str], folder: str, ready: bytes) -> float:
    """Command to first paint."""
    terminal = Terminal(argv, folder)
    try:
        return terminal.wait_for(ready) - terminal.started
    finally:
        terminal.close()


def key_times(terminal: Terminal, *, stoker: bool) -> list[float]:
    """Seconds from a key to what it paints."""
    times = []
    for number in range(1, PRESSES + 1):
        if stoker:
            sent = terminal.press(b"?")
            times.append(terminal.wait_for(b"Esc closes") - sent)
            terminal.press(b"?")  # closes it
            time.sleep(0.05)
        else:
            sent = terminal.press(b"x")
            times.append(terminal.wait_for(f"{number:04d}".encode()) - sent)
            time.sleep(0.05)
    return times


def p99(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]


def main(rounds: int, keep: str | None) -> int:
    has_plotext = importlib.util.find_spec("textual_plotext") is not None
    if not has_plotext:
        print("left out: textual-plotext is not installed")
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as folder:
        python = sys.executable
        for turn in range(rounds + 1):
            print(f"round {turn} of {rounds}" + (" (thrown away)" if not turn else ""), flush=True)
            taken: list[tuple[str, float]] = []
            for hz in (1.0, 4.0):
                cpu, sent = stoker_cost(folder, hz, 2, 2)
                taken += [(f"stoker cpu {hz:g} Hz", cpu), (f"stoker bytes {hz:g} Hz", sent)]
                if has_plotext:
                    cpu, sent = cost([python, "-c", PLOTEXT_APP, str(hz)], folder, None)
                    taken += [(f"plotext cpu {hz:g} Hz", cpu), (f"plotext bytes {hz:g} Hz", sent)]
            cpu, sent = stoker_cost(folder, 1.0, 64, 8)
            taken += [("stoker many cpu", cpu), ("stoker many bytes", sent)]
            fake = FakeRun(Path(folder, f"start-{turn}", "20261121-0000-start-run"), ranks=2, gpus=2)
            taken.append(
                ("stoker start", start_s([python, "-c", STOKER_APP, str(fake.run.root)], folder, b"stepping"))
            )
            fake.close()
            taken.append(("empty start", start_s([python, "-c", EMPTY_APP], folder, b"first paint")))
            taken += keys(folder, turn)
            for name, value in taken:
                if turn:
                    note(name, value)
    return report(found, rounds, keep)


def keys(folder: str, turn: int) -> list[tuple[str, float]]:
    """A key's way to the screen: an empty app, and the dashboard while lines pour in."""
    empty = Terminal([sys.executable, "-c", EMPTY_APP], folder)
    try:
        empty.wait_for(b"first paint")
        bare = key_times(empty, stoker=False)
    finally:
        empty.close()
    fake = FakeRun(Path(folder, f"keys-{turn}", "20261121-0000-keys-run"), ranks=2, gpus=2)
    count = 0

    def pour() -> None:
        nonlocal count
        with fake.logs[count % 2].open("a") as file:
            file.write(
                "".join(f"step {count + n} | loss 2.{n:04d} | lr 3e-4\n" for n in range(LINES_PER_S // 20))
            )
        count += 1

    terminal = Terminal([sys.executable, "-c", STOKER_APP, str(fake.run.root)], folder)
    try:
        terminal.wait_for(b"stepping")
        with every(0.05, pour):
            time.sleep(1.0)
            loaded = key_times(terminal, stoker=True)
    finally:
        terminal.close()
        fake.close()
    return [("empty key p99", p99(bare)), ("stoker key p99", p99(loaded))]


GOALS = (
    ("cpu, 1 Hz / textual-plotext", "stoker cpu 1 Hz", "plotext cpu 1 Hz", 0.25),
    ("cpu, 4 Hz / textual-plotext", "stoker cpu 4 Hz", "plotext cpu 4 Hz", 0.20),
    ("cpu, 8 GPUs and 64 ranks / 2 ranks", "stoker many cpu", "stoker cpu 1 Hz", 2.0),
    ("bytes, 1 Hz / textual-plotext", "stoker bytes 1 Hz", "plotext bytes 1 Hz", 0.75),
    ("start / empty app", "stoker start", "empty start", 1.2),
    ("key p99 under load / empty app", "stoker key p99", "empty key p99", 3.0),
)


def report(found: dict[str, list[float]], rounds: int, keep: str | None) -> int:
    """Print the ratios; 1 where a goal is missed."""
    missed = 0
    result: dict[str, object] = {
        "rounds": rounds,
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
    }
    result["medians"] = {name: round(statistics.median(values), 4) for name, values in found.items()}
    ratios = {}
    for name, mine, peer, goal in GOALS:
        if mine not in found or peer not in found:
            continue
        ratio = statistics.median(found[mine]) / max(statistics.median(found[peer]), 1e-9)
        ratios[name] = round(ratio, 3)
        missed += ratio > goal
        print(f"{name:<38} {ratio:6.2f} ×   goal {goal} {'' if ratio <= goal else '  MISSED'}")
    result["ratios"] = ratios
    for name, values in sorted(found.items()):
        print(f"    {name:<24} {statistics.median(values):10.4f}  ({min(values):.4f} to {max(values):.4f})")
    if keep:
        Path(keep).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2] if len(sys.argv) > 2 else None))

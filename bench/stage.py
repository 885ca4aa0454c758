"""Shared parts of the terminal benches: a counted pseudo-terminal, a fake run, and the apps to compare with."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.common import ROOT, cpu_s
from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.series import GPU, HOST, METRICS, RANKS, SeriesWriter

SIZE = (120, 40)
LINES_PER_S = 10_000
GIB = float(2**30)

EMPTY_APP = """
from textual.app import App
from textual.widgets import Static
def help_screen():
    from textual.containers import VerticalScroll
    from textual.screen import ModalScreen
    class Help(ModalScreen):
        BINDINGS = [("question_mark", "app.pop_screen", "close")]
        def compose(self):
            box = VerticalScroll()
            box.styles.border = ("round", "green")
            box.border_subtitle = "Esc closes"
            with box:
                yield Static("\\n".join(f"  {n}        what this key does" for n in range(60)))
    return Help
class Empty(App):
    BINDINGS = [("x", "press", "press"), ("q", "quit", "quit"), ("question_mark", "help", "help")]
    count, help = 0, None
    def compose(self):
        yield Static("first paint 0000")
    def action_help(self):
        self.help = self.help or help_screen()
        self.push_screen(self.help())
    def action_press(self):
        self.count += 1
        self.query_one(Static).update(f"pressed {self.count:04d}")
Empty().run()
"""
STOKER_APP = """
import sys
from supervisor.run.paths import RunPaths
from supervisor.views.tui.app import run_tui
from pathlib import Path
run_tui(RunPaths(Path(sys.argv[1])), read_only=True)
"""


class Terminal:
    """A program on a pseudo-terminal of 120 by 40 whose output is read and counted all the time.

    `env`: its environment; if not given ours, with a state folder of its own. `pieces`: a list for each piece of output with the
    monotonic time at which it came.
    """

    def __init__(
        self,
        argv: list[str],
        folder: str,
        env: Mapping[str, str] | None = None,
        pieces: list[tuple[float, bytes]] | None = None,
    ) -> None:
        self.pieces = pieces
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        if env is None:
            env = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "XDG_STATE_HOME": folder,
                # As after an installation: compiled once (in the round thrown away), apart from the checkout.
                "PYTHONPYCACHEPREFIX": f"{folder}/pyc",
            }
        whole = {**env, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        whole.pop("PYTHONDONTWRITEBYTECODE", None)
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=whole, cwd=folder, start_new_session=True
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
            self._arrived(data)

    def _arrived(self, data: bytes) -> None:
        if self.pieces is not None:
            self.pieces.append((time.monotonic(), data))
        with self._changed:
            self.bytes += len(data)
            self._seen = (self._seen + data)[-(1 << 20) :]
            self._changed.notify_all()

    def wait_for(self, text: bytes, deadline_s: float = 30.0) -> float:
        """Wait for `text`, and return the time."""
        end = time.monotonic() + deadline_s
        with self._changed:
            while text not in self._seen:
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"{text!r} did not come; last: {self._seen[-200:]!r}")
            self._seen = self._seen[self._seen.index(text) + len(text) :]
            return time.perf_counter()

    def press(self, key: bytes) -> float:
        """Send a key, and return the time."""
        with self._changed:
            self._seen = b""
        sent = time.perf_counter()
        os.write(self._master, key)
        return sent

    def cpu_s(self) -> float:
        """Return the CPU seconds of the program so far."""
        return cpu_s(self.process.pid)

    def close(self) -> None:
        """End the program and its process group."""
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
    """A run directory written as by a keeper (samples, progress, log lines), without a training."""

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
        """Make one step that changes nearly every cell of every chart."""
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
    """Call a function at a steady pace during the measurement."""
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


def p99(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]

"""The dashboard over a slow line: bytes on the tty, and a key's way to its answer behind a relay of 300 ms each way.

    python bench/ssh.py [--rounds 3] [--keep RESULT.json]

Goals: a key's answer comes within 1.1 × (the relay's two delays + what the answer takes on a near terminal), quiet and while
10,000 log lines a second arrive (medians of one run, interleaved): one round trip and no more, though the relay carries only
1 MB/s, as a poor connection does. Under that flood at most 3 × the bytes/s of the quiet dashboard at 1 Hz.
An empty Textual app stands beside them; the goal against it is that of bench/terminal.py.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import command_line, keep, surroundings
from bench.stage import EMPTY_APP, LINES_PER_S, STOKER_APP, FakeRun, Terminal, every, p99

DELAY_S = 0.3
SETTLE_S = 3.0
BYTES_PER_S = 1_000_000
PRESSES = 12
WINDOW_S = 6.0
FLOOD_GOAL = 3.0
KEY_GOAL = 1.1


class Line:
    """One way of a connection: what is put in comes out `delay_s` later, no faster than the line carries."""

    def __init__(self, deliver: Callable[[bytes], None], delay_s: float = DELAY_S) -> None:
        self._deliver = deliver
        self._delay_s = delay_s
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._free_t = 0.0
        self._news = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._carry, name="bench-line")
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Send."""
        with self._news:
            self._free_t = max(time.monotonic(), self._free_t) + len(data) / BYTES_PER_S
            self._waiting.append((self._free_t + self._delay_s, data))
            self._news.notify()

    def _carry(self) -> None:
        while True:
            with self._news:
                while not self._stopped and not self._waiting:
                    self._news.wait(0.5)
                if self._stopped:
                    return
                due, data = self._waiting.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            self._deliver(data)

    def close(self) -> None:
        """End it; what is still on its way is lost."""
        with self._news:
            self._stopped = True
            self._news.notify()
        self._thread.join()


class FarTerminal(Terminal):
    """A terminal at the far end of two lines."""

    def __init__(self, argv: list[str], folder: str) -> None:
        self._down = Line(self._arrived)
        super().__init__(argv, folder)
        self._up = Line(self._typed)

    def _came(self, data: bytes) -> None:
        self._down.put(data)

    def _typed(self, data: bytes) -> None:
        os.write(self._master, data)

    def press(self, key: bytes) -> float:
        """Send a key over the line; the moment at which it was sent."""
        with self._changed:
            self._seen = b""
        sent = time.perf_counter()
        self._up.put(key)
        return sent

    def close(self) -> None:
        """End the program and both lines."""
        self._up.close()
        super().close()
        self._down.close()


def key_times(terminal: Terminal, *, stoker: bool) -> list[float]:
    """Seconds from a key to its painted answer, without the relay's two delays where there is one."""
    relay_s = 2 * DELAY_S if isinstance(terminal, FarTerminal) else 0.0
    times = []
    for number in range(1, PRESSES + 1):
        if stoker:
            sent = terminal.press(b"?")
            times.append(terminal.wait_for(b"Esc closes") - sent - relay_s)
            terminal.press(b"?")  # closes it
        else:
            sent = terminal.press(b"x")
            times.append(terminal.wait_for(f"{number:04d}".encode()) - sent - relay_s)
        time.sleep(relay_s + 0.8)  # what is still on its way from the last answer must not pass for the next
    return times


def bytes_per_s(terminal: Terminal) -> float:
    """What reaches the terminal, once it has settled."""
    time.sleep(SETTLE_S)
    before, start = terminal.bytes, time.monotonic()
    time.sleep(WINDOW_S)
    return (terminal.bytes - before) / (time.monotonic() - start)


def measure(folder: Path) -> dict[str, list[float]]:
    """One round: an empty app and the dashboard behind the relay, a quiet log and a flood."""
    found: dict[str, list[float]] = {}
    empty = FarTerminal([sys.executable, "-c", EMPTY_APP], str(folder))
    try:
        empty.wait_for(b"first paint")
        found["empty key"] = key_times(empty, stoker=False)
    finally:
        empty.close()
    fake = FakeRun(folder / "20261121-0000-ssh-run", ranks=2, gpus=2)
    count = 0

    def pour() -> None:
        nonlocal count
        with fake.logs[count % 2].open("a") as file:
            file.writelines(
                f"step {count + n} | loss 2.{n:04d} | lr 3e-4\n" for n in range(LINES_PER_S // 20)
            )
        count += 1

    argv = [sys.executable, "-c", STOKER_APP, str(fake.run.root)]
    try:
        with every(1.0, lambda: fake.advance(time.time())):
            for flood in (False, True):
                with every(0.05, pour) if flood else contextlib.nullcontext():
                    load = "flood" if flood else "quiet"
                    for place, kind in (("near", Terminal), ("far", FarTerminal)):
                        terminal = kind(argv, str(folder))
                        try:
                            terminal.wait_for(b"stepping")
                            found[f"{load} bytes/s {place}"] = [bytes_per_s(terminal)]
                            found[f"{load} key {place}"] = key_times(terminal, stoker=True)
                        finally:
                            terminal.close()
    finally:
        fake.close()
    return found


def main() -> int:
    """Measure, print, keep; 1 where a goal is missed."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rounds: int = args.rounds
    found: dict[str, list[float]] = {}
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for name, values in measure(Path(folder)).items():
                found.setdefault(name, []).extend(values)
    median = {name: statistics.median(values) for name, values in found.items()}
    last = {name: p99(values) for name, values in found.items() if "key" in name}
    trip_s = 2 * DELAY_S

    def way(load: str) -> float:
        return (trip_s + median[f"{load} key far"]) / (trip_s + median[f"{load} key near"])

    ratios = {
        "key to answer / (trip + near), quiet": (way("quiet"), KEY_GOAL),
        "key to answer / (trip + near), flood": (way("flood"), KEY_GOAL),
        "bytes/s, flood / quiet log": (median["flood bytes/s far"] / median["quiet bytes/s far"], FLOOD_GOAL),
    }
    for name, (ratio, goal) in ratios.items():
        print(f"{name:<38} {ratio:6.2f} ×   goal {goal:g}{'' if ratio <= goal else '  MISSED'}")
    for name, value in median.items():
        unit = f"{value / 1000:8.1f} kB/s" if "bytes" in name else f"{1000 * value:8.1f} ms"
        print(f"    {name:<18} {unit}")
    result = {
        **surroundings(),
        "rounds": rounds,
        "delay_s_each_way": DELAY_S,
        "line_bytes_per_s": BYTES_PER_S,
        "log_lines_per_s": LINES_PER_S,
        "medians": {name: round(value, 4) for name, value in median.items()},
        "p99": {name: round(value, 4) for name, value in last.items()},
        "ratios": {name: round(ratio, 3) for name, (ratio, _) in ratios.items()},
    }
    keep(result, args.keep)
    return 1 if any(ratio > goal for ratio, goal in ratios.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""How soon the screen shows an attached log's state: it continues, it fails, or it is long and finished.

    python bench/attach.py [--rounds 5] [--mib 220] [--keep bench/results/attach.json]

A dashboard of 120 by 40 on a pseudo-terminal; what it draws is kept with the time at which it came, and read afterwards by pyte. Times
are from the writer's own write, or from the start of the command:

- "comes back": a log whose last line is an hour old is added to. Until the header says that it is live, and its step.
- "fails": a log that grows ends in a traceback. Until the header names the failure, and until the card does.
- "long": a finished log of --mib that ends in a traceback. Until its last line, the verdict's card, the loss chart, and all of it is read.

Goals (s): header 0.5 and card 1 after a line; of the long log the card 2 after the start of the command.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pyte

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, surroundings, tell
from bench.stage import SIZE, Terminal

OOM = """Traceback (most recent call last):
  File "/job/train.py", line 47, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is free.
"""
HOUR_S = 3600.0
DEADLINE_S = 120.0
STANDS_S = 1.5
Words = Callable[[list[str]], bool]


def header(pattern: str) -> Words:
    """Return a check for the pattern in the first line."""
    words = re.compile(pattern)
    return lambda rows: words.search(rows[0]) is not None


def anywhere(pattern: str) -> Words:
    """Return a check for the pattern in any line."""
    words = re.compile(pattern)
    return lambda rows: any(words.search(row) for row in rows)


def nowhere(pattern: str) -> Words:
    """Return a check for a drawn screen without the pattern."""
    there = anywhere(pattern)
    return lambda rows: bool(rows[0].strip()) and not there(rows)


class Screen:
    """The terminal's content, frame by frame."""

    def __init__(self, path: Path, place: str) -> None:
        self._pieces: list[tuple[float, bytes]] = []
        argv = [sys.executable, "-m", "supervisor", "attach", str(path)]
        self._terminal = Terminal(argv, place, pieces=self._pieces)
        self.began = time.monotonic()
        self._screen = pyte.Screen(*SIZE)
        self._stream = pyte.ByteStream(self._screen)
        self._fed = 0
        self._at = self.began

    def until(self, words: Words) -> float:
        """Return the time of the first frame, from the last one checked on, that meets the condition."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if words(list(self._screen.display)):
                return self._at
            while self._fed < len(self._pieces):
                self._at, data = self._pieces[self._fed]
                self._stream.feed(data)
                self._fed += 1
                if words(list(self._screen.display)):
                    return self._at
            time.sleep(0.005)
        raise TimeoutError("\n".join(self._screen.display))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._terminal.close()


def lines(first: int, last: int) -> str:
    return "".join(f"step {n} loss {2 + 1 / n:.4f} lr 3.0e-04\n" for n in range(first, last + 1))


def added(path: Path, text: str) -> float:
    """Write a text and return the time."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return time.monotonic()


def comes_back(place: str) -> dict[str, float]:
    path = Path(place, "train.log")
    path.write_text(lines(1, 500), encoding="utf-8")
    then = time.time() - HOUR_S
    os.utime(path, (then, then))
    with Screen(path, place) as screen:
        screen.until(header(r"quiet for.*step 500\b"))
        time.sleep(STANDS_S)
        wrote = added(path, lines(501, 501))
        step = screen.until(header(r"step 501\b"))
        live = screen.until(header("● (?:live|stepping)"))
        return {"step": step - wrote, "live": live - wrote}


def fails(place: str) -> dict[str, float]:
    path = Path(place, "train.log")
    path.write_text(lines(1, 500), encoding="utf-8")
    with Screen(path, place) as screen:
        screen.until(header(r"step 500\b"))
        time.sleep(STANDS_S)
        wrote = added(path, lines(501, 502) + OOM)
        said = screen.until(header("cuda_oom"))
        shown = screen.until(anywhere("GPU memory ran out"))
        return {"header": said - wrote, "card": shown - wrote}


def long(place: str, mib: int) -> dict[str, float]:
    path = Path(place, "train.log")
    with path.open("w", encoding="utf-8") as file:
        n = 1
        while file.tell() < mib << 20:
            file.write(lines(n, n + 9_999))
            n += 10_000
        file.write(OOM)
    then = time.time() - HOUR_S
    os.utime(path, (then, then))
    with Screen(path, place) as screen:
        wanted = {
            "last line": anywhere("Tried to allocate 2.00 GiB"),
            "card": anywhere("GPU memory ran out"),
            "all read": nowhere("reading"),
        }
        return {name: screen.until(words) - screen.began for name, words in wanted.items()}


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=220)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    report: dict[str, object] = {"rounds": args.rounds, "mib": args.mib, **surroundings()}
    for name, scene in (("comes back", comes_back), ("fails", fails), ("long", lambda p: long(p, args.mib))):
        # The first round compiles, in the same folder as the others, and is thrown away.
        with tempfile.TemporaryDirectory() as place:
            rounds = [scene(place) for _ in range(args.rounds + 1)]
        report[name] = {
            key: [round(x, 2) for x in (statistics.median(v), min(v), max(v))]
            for key in rounds[0]
            if (v := [each[key] for each in rounds[1:]])
        }
        print(name, report[name], flush=True)
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())

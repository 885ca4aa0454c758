"""Metric extraction: stoker's reader against regular expressions, msgspec and drain3 (where it is installed), on the same lines, in turn.

    python bench/metrics.py [--lines 100000] [--rounds 5] [--keep bench/results/metrics.json]

Prints microseconds a line (medians of CPU time) and ratios. What stoker learns of each shape is part of its time; "known" is the same
reader on lines whose shapes it has seen. Goals: one format at least 1.5 × as fast as a regular expression written for it (groupdict and
float); mixed shapes at least 6 × as fast as a key=value expression and 20 × as drain3; JSON lines at most 1.3 × msgspec into a struct.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, surroundings, tell

ONE = re.compile(r"iter (?P<step>\d+): loss (?P<loss>[\d.]+), time (?P<time>[\d.]+)ms, mfu (?P<mfu>[\d.]+)%")
PAIR = re.compile(r"([A-Za-z_][\w/ .-]*?)\s*[=:]\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


NUMBER = re.compile(r"(?<![\w@./:-])\d+(?:\.\d+)?(?![\w:/-])")


def one_format(count: int) -> list[str]:
    return [
        f"iter {n}: loss {3 - n / 1e6:.4f}, time {300 + n % 90}.{n % 97:02}ms, mfu {14 + n % 5}.{n % 10}%"
        for n in range(count)
    ]


def mixed(count: int, shapes: int = 33) -> list[str]:
    """Lines of the labelled corpus that report something, one a project, over and over with other digits."""
    chosen: list[str] = []
    for raw in (ROOT / "tests/corpus/data/metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(raw)
        lines = record["text"].split("\n")
        if record["expect"] and len(chosen) < shapes:
            chosen.append(lines[record["expect"][-1]["line"]].split("\r")[-1])
    draw = random.Random(0)
    return [
        NUMBER.sub(lambda found: other_number(found.group(), draw), line)
        for _ in range(count // len(chosen) + 1)
        for line in chosen
    ][:count]


def other_number(text: str, draw: random.Random) -> str:
    """Another number in its place: a counter of one digit fewer at times, a decimal with the same decimals."""
    if not text.strip("0."):
        return text
    whole, point, rest = text.partition(".")
    if len(whole) > 1 and not whole.startswith("0"):
        low = 10 ** (len(whole) - 1)
        whole = str(draw.randrange(low // 10 if draw.random() < 0.1 else low, low * 10))
    if rest.strip("0"):
        rest = "".join(draw.choice("123456789") for _ in rest)
    return whole + point + rest


def by_groupdict(lines: list[str]) -> None:
    for line in lines:
        match = ONE.match(line)
        assert match is not None
        found = match.groupdict()
        int(found["step"]), float(found["loss"]), float(found["time"]) / 1e3, float(found["mfu"]) / 100


def by_pairs(lines: list[str]) -> None:
    for line in lines:
        {name: float(value) for name, value in PAIR.findall(line)}


def by_stoker(lines: list[str]) -> None:
    from supervisor.sources.metrics import MetricReader

    feed = MetricReader().feed
    for line in lines:
        feed(line)


class Known:
    """A reader that has seen every shape."""

    def __init__(self, lines: list[str]) -> None:
        from supervisor.sources.metrics import MetricReader

        self._reader = MetricReader()
        for line in lines[: len(lines) // 10]:
            self._reader.feed(line)

    def __call__(self, lines: list[str]) -> None:
        feed = self._reader.feed
        for line in lines:
            feed(line)


class _Step(msgspec.Struct):
    step: int
    loss: float


def json_lines(count: int) -> list[str]:
    draw = random.Random(0)
    return [
        json.dumps({"event": "train", "step": n, "loss": round(draw.uniform(1, 9), 4), "lr": 0.0003})
        for n in range(count)
    ]


def by_msgspec(lines: list[str]) -> None:
    decode = msgspec.json.Decoder(_Step).decode
    for line in lines:
        decode(line)


def by_msgspec_untyped(lines: list[str]) -> None:
    decode = msgspec.json.Decoder().decode
    for line in lines:
        decode(line)


def by_nothing(lines: list[str]) -> None:
    for _ in lines:
        pass


def by_drain3(lines: list[str]) -> None:
    from drain3 import TemplateMiner  # type: ignore[import-not-found]

    miner = TemplateMiner()
    for line in lines[:5000]:
        miner.add_log_message(line)


def measure(ways: dict[str, Callable[[list[str]], None]], lines: list[str], rounds: int) -> dict[str, float]:
    """Microseconds of CPU time a line, the median of the rounds."""

    def timed(name: str, way: Callable[[list[str]], None]) -> Callable[[], float]:
        count = min(len(lines), 5000) if name == "drain3" else len(lines)

        def once() -> float:
            start = time.process_time()
            way(lines)
            return (time.process_time() - start) / count * 1e6

        return once

    times = in_turn({name: timed(name, way) for name, way in ways.items()}, rounds)
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    one_lines, many_lines, json_text = one_format(args.lines), mixed(args.lines), json_lines(args.lines)
    one = measure(
        {
            "pass": by_nothing,
            "groupdict": by_groupdict,
            "stoker": by_stoker,
            "stoker, known": Known(one_lines),
        },
        one_lines,
        args.rounds,
    )
    ways: dict[str, Callable[[list[str]], None]] = {
        "key=value": by_pairs,
        "stoker": by_stoker,
        "stoker, known": Known(many_lines),
    }
    try:
        import drain3  # noqa: F401

        ways["drain3"] = by_drain3
    except ImportError:
        pass
    many = measure(ways, many_lines, args.rounds)
    text = measure(
        {
            "msgspec typed": by_msgspec,
            "msgspec untyped": by_msgspec_untyped,
            "stoker": by_stoker,
            "stoker, known": Known(json_text),
        },
        json_text,
        args.rounds,
    )
    report = {
        **surroundings(),
        "lines": args.lines,
        "rounds": args.rounds,
        "one format, us a line": one,
        "as fast as groupdict": round(one["groupdict"] / one["stoker"], 2),
        "as fast as groupdict, known": round(one["groupdict"] / one["stoker, known"], 2),
        "mixed, us a line": many,
        "as fast as key=value": round(many["key=value"] / many["stoker"], 2),
        "as fast as key=value, known": round(many["key=value"] / many["stoker, known"], 2),
        "as fast as drain3": round(many["drain3"] / many["stoker"], 2) if "drain3" in many else None,
        "json lines, us a line": text,
        "times msgspec typed": round(text["stoker"] / text["msgspec typed"], 2),
        "times msgspec untyped": round(text["stoker"] / text["msgspec untyped"], 2),
    }
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())

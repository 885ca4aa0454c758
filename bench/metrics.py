"""Metric extraction: stoker's reader against regular expressions, msgspec and drain3 (where it is installed), on the same lines, in turn.

    python bench/metrics.py [--lines 100000] [--rounds 9] [--keep bench/results/metrics.json]

All are given the log's lines as bytes (drain3, and one key=value, as text). What stoker learns of each shape is part of its time; "known" is the same reader on
lines whose shapes it has seen. "floor" is the least that such a reader does: look the line up by its digits' places, cut the values out by
`struct`, `float` each, with no names, units or samples; for JSON lines, see that they are of one shape and decode them by one call.
Goals: one format at least 1.5 × as fast as a regular expression written for it (groupdict and float); mixed shapes at least 6 × as fast as
a key=value expression and 20 × as drain3; JSON lines at most 1.3 × msgspec into a struct of the same three numbers.
Prints microseconds a line (medians of CPU time) and the ratios of the rounds with their 95 % intervals.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, interval, surroundings, tell
from supervisor.sources.metrics import MetricReader

ONE = re.compile(rb"iter (?P<step>\d+): loss (?P<loss>[\d.]+), time (?P<time>[\d.]+)ms, mfu (?P<mfu>[\d.]+)%")
PAIR = re.compile(rb"([A-Za-z_][\w/ .-]*?)\s*[=:]\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
PAIR_OF_TEXT = re.compile(PAIR.pattern.decode())
NUMBER = re.compile(r"(?<![\w@./:-])\d+(?:\.\d+)?(?![\w:/-])")
VALUE = re.compile(rb"\d+(?:\.\d+)?")
DIGITS = b"0123456789"
ALIKE = bytes.maketrans(DIGITS, b"0" * 10)
# What is handed over at once: some 100 KiB; the tailer reads 256 KiB.
BLOCK = 1000
DRAIN3_LINES = 5000

Way = Callable[[Sequence[bytes]], None]


def one_format(count: int) -> list[bytes]:
    """What nanoGPT prints."""
    return [
        f"iter {n}: loss {3 - n / 1e6:.4f}, time {300 + n % 90}.{n % 97:02}ms, mfu {14 + n % 5}.{n % 10}%".encode()
        for n in range(count)
    ]


def mixed(count: int, shapes: int = 33) -> list[bytes]:
    """Lines of the labelled corpus that report something, one a project, over and over with other digits."""
    chosen: list[str] = []
    for raw in (ROOT / "tests/corpus/data/metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(raw)
        lines = record["text"].split("\n")
        if record["expect"] and len(chosen) < shapes:
            chosen.append(lines[record["expect"][-1]["line"]].split("\r")[-1])
    draw = random.Random(0)
    return [
        NUMBER.sub(lambda found: other_number(found.group(), draw), line).encode()
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


def json_lines(count: int) -> list[bytes]:
    """Three numbers and a word."""
    draw = random.Random(0)
    return [
        json.dumps({"event": "train", "step": n, "loss": round(draw.uniform(1, 9), 4), "lr": 0.0003}).encode()
        for n in range(count)
    ]


def blocks(lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The lines as a tailer hands them over."""
    for place in range(0, len(lines), BLOCK):
        yield lines[place : place + BLOCK]


def by_nothing(lines: Sequence[bytes]) -> None:
    for _ in lines:
        pass


def by_groupdict(lines: Sequence[bytes]) -> None:
    for line in lines:
        match = ONE.match(line)
        assert match is not None
        found = match.groupdict()
        int(found["step"]), float(found["loss"]), float(found["time"]) / 1e3, float(found["mfu"]) / 100


def by_pairs(lines: Sequence[bytes]) -> None:
    for line in lines:
        {name: float(value) for name, value in PAIR.findall(line)}


def by_pairs_of_text(lines: Sequence[bytes]) -> Way:
    """The same on text, which was decoded before: 1.1 × as slow."""
    text = [line.decode() for line in lines]

    def way(_lines: Sequence[bytes]) -> None:
        for line in text:
            {name: float(value) for name, value in PAIR_OF_TEXT.findall(line)}

    return way


def by_drain3(lines: Sequence[bytes]) -> None:
    from drain3 import TemplateMiner  # type: ignore[import-not-found]

    miner = TemplateMiner()
    for line in lines[:DRAIN3_LINES]:
        miner.add_log_message(line.decode())


class _Step(msgspec.Struct):
    step: int
    loss: float
    lr: float


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """The cheapest struct, as stoker's samples are."""

    step: int
    loss: float
    lr: float


def by_msgspec(lines: Sequence[bytes]) -> None:
    decode = msgspec.json.Decoder(_Step).decode
    for line in lines:
        decode(line)


def by_msgspec_kept(lines: Sequence[bytes]) -> None:
    """The same, with a block's structs held as long as the block: what any reader of blocks does."""
    decode = msgspec.json.Decoder(_Step).decode
    for block in blocks(lines):
        [decode(line) for line in block]


def by_msgspec_untyped(lines: Sequence[bytes]) -> None:
    decode = msgspec.json.Decoder().decode
    for line in lines:
        decode(line)


def by_stoker(lines: Sequence[bytes]) -> None:
    read = MetricReader().read
    for block in blocks(lines):
        read(block)


def known(lines: Sequence[bytes]) -> Way:
    """A reader that has seen every shape."""
    reader = MetricReader()
    for block in blocks(lines[: len(lines) // 5]):
        reader.read(block)

    def way(lines: Sequence[bytes]) -> None:
        for block in blocks(lines):
            reader.read(block)

    return way


def floor(lines: Sequence[bytes]) -> Way:
    """The least for lines of known shapes: as many values as stoker finds in a line, its last numbers."""
    cuts: dict[bytes, Callable[[bytes], tuple[bytes, ...]]] = {}
    reader = MetricReader()
    for line, sample in zip(lines, reader.read(lines), strict=True):
        count = len(sample.values) + len(sample.other) if sample is not None else 0
        if (key := line.translate(ALIKE)) not in cuts:
            form, place = [], 0
            for found in [*VALUE.finditer(line)][-count:] if count else []:
                form.append(f"{found.start() - place}x{found.end() - found.start()}s")
                place = found.end()
            cuts[key] = struct.Struct("".join(form) + f"{len(line) - place}x").unpack

    def way(lines: Sequence[bytes]) -> None:
        for line in lines:
            [*map(float, cuts[line.translate(ALIKE)](line))]

    return way


def json_floor(lines: Sequence[bytes]) -> None:
    """The least for JSON lines: that they are of one shape, and one call."""
    decode = msgspec.json.Decoder(_Kept).decode_lines
    shape = lines[0].translate(None, DIGITS) + b"\n"
    for some in blocks(lines):
        block = b"\n".join(some)
        assert block.translate(None, DIGITS) == (shape * len(some))[:-1]
        decode(block)


def measure(ways: dict[str, Way], lines: Sequence[bytes], rounds: int) -> dict[str, list[float]]:
    """Microseconds of CPU time a line, a value a round."""

    def timed(name: str, way: Way) -> Callable[[], float]:
        count = min(len(lines), DRAIN3_LINES) if name == "drain3" else len(lines)

        def once() -> float:
            start = time.process_time()
            way(lines)
            return (time.process_time() - start) / count * 1e6

        return once

    return in_turn({name: timed(name, way) for name, way in ways.items()}, rounds)


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """The middle of each way's rounds."""
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def ratio(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """How many times as long, by the median of the rounds, and its 95 % interval."""
    paired = [one / other for one, other in zip(above, below, strict=True)]
    return [round(value, 2) for value in (statistics.median(paired), *interval(paired, statistics.median))]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    lines, rounds = one_format(args.lines), args.rounds
    ways = {"pass": by_nothing, "groupdict": by_groupdict, "stoker": by_stoker, "stoker, known": known(lines)}
    one = measure({**ways, "floor": floor(lines)}, lines, rounds)
    lines = mixed(args.lines)
    ways = {"key=value": by_pairs, "key=value of text": by_pairs_of_text(lines)}
    ways |= {"stoker": by_stoker, "stoker, known": known(lines), "floor": floor(lines)}
    try:
        import drain3  # noqa: F401

        ways["drain3"] = by_drain3
    except ImportError:
        pass
    many = measure(ways, lines, rounds)
    lines = json_lines(args.lines)
    ways = {"typed": by_msgspec, "typed, kept": by_msgspec_kept, "untyped": by_msgspec_untyped}
    ways |= {"stoker": by_stoker, "stoker, known": known(lines), "floor": json_floor}
    text = measure(ways, lines, rounds)
    report: dict[str, object] = {
        **surroundings(),
        "lines": args.lines,
        "rounds": rounds,
        "one format, us a line": medians(one),
        "as fast as groupdict": ratio(one["groupdict"], one["stoker"]),
        "as fast as groupdict, known": ratio(one["groupdict"], one["stoker, known"]),
        "mixed, us a line": medians(many),
        "as fast as key=value": ratio(many["key=value"], many["stoker"]),
        "as fast as key=value of text": ratio(many["key=value of text"], many["stoker"]),
        "as fast as key=value, known": ratio(many["key=value"], many["stoker, known"]),
        "json lines, us a line": medians(text),
        "times msgspec typed": ratio(text["stoker"], text["typed"]),
        "times msgspec typed, known": ratio(text["stoker, known"], text["typed"]),
        "times msgspec typed, kept": ratio(text["stoker"], text["typed, kept"]),
        "times msgspec typed, floor": ratio(text["floor"], text["typed"]),
        "times msgspec untyped": ratio(text["stoker"], text["untyped"]),
    }
    if "drain3" in many:
        report["as fast as drain3"] = ratio(many["drain3"], many["stoker"])
        report["as fast as drain3, floor"] = ratio(many["drain3"], many["floor"])
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())

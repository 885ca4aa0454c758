"""Logs that a collector wrapped: each line behind a prefix of its own, or within a JSON object.

A traceback's own lines carry no prefix. Where some do, what stands before them is the collector's or the
launcher's, whatever it looks like, and is taken off; what names a rank or a node is left. So the
rules that know tracebacks, anchors and indentation see lines as they were printed, and lines keep their numbers.

A pure function of a window's bytes: windows may be looked at in any order (see `windows`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import NOWHERE, learn_hosts, split_prefix

# Lines that no program puts a prefix to, and what the next such line begins with: frames of Python's tracebacks
# and of faulthandler, py-spy's stacks, C++ frames (c10::Error), torchrun's closing box.
_CONTINUED: Final = (
    (b'  File "', b'(?:    |  File ")'),
    (b"Thread ", b"    "),
    (b"frame #", b"frame #"),
    (b"  rank      : ", b"  exitcode  : "),
)
# host:pid:tid [device] file:line, as NCCL's debug lines begin (nccl/src/debug.cc); old versions leave the host away.
_NCCL: Final = rb"(?:\b[\w.-]+:\d+:\d+ )?\[\d+\] (?:\S+:\d+ )?"
_ANY: Final = "any message"
# What is longer is a message.
MOST_PREFIX: Final = 160
MOST_SHAPES: Final = 24
MOST_LOOKS: Final = 400
MOST_PREFIXES: Final = 4096
HEAD_BYTES: Final = 65536
# A program that logs JSON of its own says so at once.
FIRST_RECORDS: Final = 8
# The keys of records whose message is a line of another program. With any other key, the record is the program's own.
_MESSAGE: Final = ("log", "message", "msg")
_COLLECTORS: Final = frozenset(
    ("log", "message", "msg", "stream", "time", "timestamp", "ts", "@timestamp", "severity", "level", "pod", "container", "node", "host", "hostname", "namespace", "source", "tag", "logtag", "logger", "kubernetes", "docker", "labels", "attrs", "insertId", "logName", "resource")
)  # fmt: skip
# The level counts for a line that stands for itself; a traceback's lines are weighed by their exception.
_GRAVE: Final = ("WARN", "ERROR", "CRITICAL", "FATAL")
_CONTINUES: Final = (" ", "\t", "Traceback ", "[rank")
_SEPARATORS: Final = Lazy(r"[ \t]|(?<=[\]>|:])(?=[\[(\w])")


def unwrapped_records(text: bytes) -> bytes:
    """The same lines; those that are a collector's JSON records become what the program printed."""
    return _without_records(text) if text[:2] == b'{"' or b'\n{"' in text else text


def unwrapped(text: bytes) -> bytes:
    """Whole lines without what collectors put around them; the same object where nothing is to be taken off."""
    return _without_prefixes(unwrapped_records(text))


class _Record(NamedTuple):
    """What a program printed, out of a collector's record, and the record's level."""

    message: str
    level: str


def _without_records(text: bytes) -> bytes:
    lines = text.split(b"\n")
    taken: dict[int, _Record] = {}
    looked = 0
    for row, raw in enumerate(lines):
        if not raw.startswith(b'{"') or not raw.rstrip().endswith(b"}"):
            continue
        looked += 1
        record = _record(raw)
        if record is not None:
            taken[row] = record
        elif looked >= FIRST_RECORDS and not taken:
            return text
    if not taken:
        return text
    # One level on all lines is the collector's word for a stream; several are the program's.
    own_levels = len({record.level for record in taken.values()}) > 1
    for row, record in taken.items():
        grave = own_levels and record.level.startswith(_GRAVE) and not record.message.startswith(_CONTINUES)
        level = f"{record.level} " if grave else ""
        lines[row] = f"{level}{record.message}".encode("utf-8", "replace")
    return b"\n".join(lines)


def _record(raw: bytes) -> _Record | None:
    """One collector's record; None for any other JSON."""
    import json

    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):  # a hostile record nests as deep as its line is long
        return None
    if not isinstance(record, dict) or not _COLLECTORS.issuperset(record):
        return None
    key = next((key for key in _MESSAGE if isinstance(record.get(key), str)), None)
    if key is None:
        return None
    # Lines within one record become parts of one line, as a progress bar's states are.
    message = record.pop(key).rstrip("\n").replace("\n", "\r")
    level = next((record[key] for key in ("level", "severity") if isinstance(record.get(key), str)), "")
    return _Record(message, level.upper())


def _without_prefixes(text: bytes) -> bytes:
    shapes = _shapes(text)
    if not shapes:
        return text
    pattern = re.compile(b"(?m)^(?:" + b"|".join(shapes) + b")")
    hosts = _hosts(text)
    known: dict[bytes, bytes] = {}

    def kept(match: re.Match[bytes]) -> bytes:
        """Whose line it is (worked out once for prefixes that differ in their time alone), and that it is a warning."""
        prefix, following = match.group(), match.string[match.end() : match.end() + 1]
        untimed = _clock().sub(b"", prefix)
        who = known.get(untimed)
        if who is None:
            who = _who(prefix.decode("utf-8", "replace"), hosts).encode("utf-8", "replace")
            if len(known) < MOST_PREFIXES:
                known[untimed] = who
        warns = (b"WARN" in prefix or _glog_warning().match(prefix)) and following not in {b" ", b"\t"}
        return who + b"WARNING " if warns else who

    return pattern.sub(kept, text)


@cache
def _glog_warning() -> re.Pattern[bytes]:
    return re.compile(rb"(?:\[rank\d+\]:)?W\d{4} ")


@cache
def _clock() -> re.Pattern[bytes]:
    return re.compile(rb"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")


def _shapes(text: bytes) -> list[bytes]:
    """Patterns of the prefixes that stand before lines which have none of their own, one below the other."""
    found: dict[bytes, bool] = {}
    hosts: frozenset[str] | None = None
    for at, prefix, following in _looks(text):
        if not prefix.strip() or len(prefix) > MOST_PREFIX or b"\r" in prefix:
            continue
        shape = _shape(prefix)
        if shape not in found and len(found) < MOST_SHAPES:
            hosts = _hosts(text) if hosts is None else hosts
            found[shape] = _is_new(prefix, hosts) and _goes_on(text, at, shape, following)
    return [shape for shape, is_prefix in found.items() if is_prefix]


def _looks(text: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Places of lines without a prefix of their own: (where, what stands before, pattern of what belongs below)."""
    for start, following in _CONTINUED:
        at = -1
        for _ in range(MOST_LOOKS):
            at = text.find(start, at + 1)
            if at < 0:
                break
            yield at, text[text.rfind(b"\n", 0, at) + 1 : at], following
    at = -1
    for _ in range(MOST_LOOKS):
        at = text.find(b" NCCL ", at + 1)
        if at < 0:
            return
        start_of_line = text.rfind(b"\n", 0, at) + 1
        if match := _nccl().search(text, start_of_line, at + 6):
            yield at, text[start_of_line : match.start()], _NCCL


@cache
def _nccl() -> re.Pattern[bytes]:
    return re.compile(_NCCL + rb"NCCL ")


def _hosts(text: bytes) -> frozenset[str]:
    lines = text[:HEAD_BYTES].split(b"\n")[:240]
    return learn_hosts(line.decode("utf-8", "replace")[:300] for line in lines)


def _is_new(prefix: bytes, hosts: frozenset[str]) -> bool:
    """Whether it is none of the prefixes that show whose line it is, which are understood as they are."""
    return split_prefix(prefix.decode("utf-8", "replace") + _ANY, hosts)[1] != _ANY


def _shape(prefix: bytes) -> bytes:
    """Numbers may change from line to line, and the padding before them."""
    parts = re.split(rb"([ \t]*\d+)", prefix)
    return b"".join(
        re.escape(part)
        if place % 2 == 0
        else (rb"[ \t]*" if part[:1].isspace() or not place else b"") + rb"\d+"
        for place, part in enumerate(parts)
    )


def _goes_on(text: bytes, start: int, shape: bytes, following: bytes) -> bool:
    """Whether the line that belongs below stands behind the same prefix: ranks may write between."""
    belongs = re.compile(shape + following)
    for _ in range(8):
        start = text.find(b"\n", start) + 1
        if start == 0:
            return False
        if belongs.match(text, start):
            return True
    return False


def _who(prefix: str, hosts: frozenset[str]) -> str:
    """The parts of a prefix that name a rank, a node or a worker."""
    parts: list[str] = []
    rest = prefix
    while rest.strip():
        origin, after = split_prefix(rest + _ANY, hosts)
        if origin != NOWHERE and after.endswith(_ANY):
            taken = rest[: len(rest) + len(_ANY) - len(after)]
            parts.append(taken)
            rest = rest[len(taken) :]
            continue
        cut = next((match.end() for match in _SEPARATORS.finditer(rest) if match.end() > 0), None)
        if cut is None:
            break
        rest = rest[cut:]
    return "".join(parts)

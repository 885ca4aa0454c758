"""Cut a log into windows of whole lines and match all signatures in each: the stateless part of a scan.

The matches in a window depend only on its bytes, so windows may be matched ahead of time and in another thread.
`scanner` handles positions, surrounding lines and excess matches across the whole log, in order.

The engine is Hyperscan, or re2 on platforms without a Hyperscan wheel. Hyperscan's compiled form takes 130-230 ms
to build and 0.3 ms to load. `dump` returns it for caching.

Anything a log collector added is removed first: a prefix before each line, or a JSON object around it. A
traceback's own lines have no prefix, so if some do, it comes from the collector or the launcher, in any format. The
parts that identify a rank or node are kept. As a result, rules about tracebacks, anchors and indentation see lines
as they were printed, and line numbers do not change.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import NOWHERE, learn_hosts, split_prefix

if TYPE_CHECKING:
    from supervisor.diagnosis.scan.signature_tables import Signatures

# 256 KiB windows scanned 20 % faster than 1 MiB here, and 64 KiB no faster.
WINDOW_BYTES = 1 << 18
# Above this size a log is large, and two threads may work on it (`sources.signature_files`). With windows of
# 256 KiB they wait for the interpreter's lock more than they work (1 GiB: 0.9 s; with 1 MiB: 0.47 s).
LARGE_LOG_BYTES = 8 << 20
LARGE_WINDOW_BYTES = 1 << 20
OVERLAP_BYTES = 512

Find = Callable[[bytes], list[tuple[int, int]]]
"""Scan function of an engine: maps a block of whole lines to its sorted (end offset, signature index) matches."""


Ahead = Callable[[Find, Iterable["Window"]], Generator["Matched", None, None]]
"""Matches windows in order, using an engine's scan function."""


class Window(NamedTuple):
    """Whole lines, or a piece of a very long line. `again` is how many trailing bytes the next window repeats."""

    data: bytes
    again: int = 0


class Matched(NamedTuple):
    """A window, its text without escape codes and collector prefixes, and that text's sorted (end, index) matches."""

    window: Window
    text: bytes
    matches: list[tuple[int, int]]


class Cutter:
    """Cuts a stream at newlines, holding back at most one window of data."""

    def __init__(self) -> None:
        self._open = b""

    def feed(self, data: bytes) -> Window | None:
        """Process the next bytes and return the lines completed so far."""
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            self._open = self._open + data if self._open else data
            if len(self._open) < WINDOW_BYTES:
                return None
            # Split a line longer than any window into overlapping pieces, to bound memory.
            piece, self._open = self._open, self._open[-OVERLAP_BYTES:]
            return Window(piece, OVERLAP_BYTES)
        whole = b"".join((self._open, memoryview(data)[:cut])) if self._open or cut < len(data) else data
        self._open = data[cut:]
        return Window(whole)

    def finish(self) -> Window | None:
        """Close the stream and return its incomplete last line."""
        rest, self._open = self._open, b""
        return Window(rest) if rest else None


def window_bytes(seen: int) -> int:
    """Return how many bytes to read at a time once `seen` bytes of the log have been read."""
    return WINDOW_BYTES if seen < LARGE_LOG_BYTES else LARGE_WINDOW_BYTES


def cut_windows(chunks: Iterable[bytes]) -> Iterator[Window]:
    """Yield an entire log as windows. Small chunks are joined so the engine runs once per window."""
    cutter, parts, size, seen = Cutter(), list[bytes](), 0, 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= window_bytes(seen):
            window = cutter.feed(b"".join(parts) if len(parts) > 1 else chunk)
            if window is not None:
                yield window
            seen += size
            parts, size = [], 0
    for window in (cutter.feed(b"".join(parts)), cutter.finish()):
        if window is not None:
            yield window


def match_window(find: Find, window: Window) -> Matched:
    """Return the engine's matches in a window. This is a pure function."""
    data = window.data
    text = without_escapes(data)
    matches = find(text)
    if matches:
        bare = unwrapped(text)
        if bare is not text:
            bare = without_escapes(bare)
            return Matched(window, bare, find(bare))
    return Matched(window, text, matches)


def without_escapes(data: bytes) -> bytes:
    """Remove what `text.decode.clean` removes from a line, except tabs and carriage returns: escapes and invisible characters.

    They can occur even within words, whether put there by a coloring logger, by a copied web page or on purpose. What
    matters is the text that the user sees.
    """
    # A file with a hole is full of NUL, for which `re` takes 20 times as long.
    if any(control in data for control in _COMMON_CONTROLS):
        data = data.translate(None, _DROPPED)
    # A bar of block characters has none of these first bytes. Only text that has one is searched, at 40 MB/s.
    if not data.isascii() and any(begin in data for begin in _HIDDEN_BEGINS):
        data = _HIDDEN.sub(b"", _CSI.sub(b"", data) if b"\xc2" in data else data)
    if b"\x1b" in data:
        data = _CSI.sub(b"", data)
    return data.translate(None, b"\x07") if b"\x07" in data else data


# All controls but BEL (it ends an OSC, and goes last), tab, newline, carriage return and ESC. Only those in the log are searched, at 20 GB/s.
_DROPPED = bytes([*range(7), 8, 11, 12, *range(14, 27), *range(28, 32), 127])
_COMMON_CONTROLS = (b"\0", b"\x08", b"\x7f")
# UTF-8 of the characters above ASCII that `text.decode` removes, and their first bytes.
_HIDDEN = re.compile(
    rb"\xc2[\x80-\x9f\xad]|\xcd\x8f|\xd8\x9c|\xe1(?:\x85[\x9f\xa0]|\x9e[\xb4\xb5]|\xa0[\x8b-\x8f])"
    rb"|\xe2(?:\x80[\x8b-\x8f\xa8-\xae]|\x81[\xa0-\xa9])|\xe3\x85\xa4"
    rb"|\xef(?:\xb8[\x80-\x8f]|\xbb\xbf|\xbe\xa0|\xbf[\xb9-\xbb])"
    rb"|\xf0(?:\x9b\xb2[\xa0-\xa3]|\x9d\x85[\xb3-\xba])|\xf3\xa0[\x80-\xbf][\x80-\xbf]"
)
_HIDDEN_BEGINS = (
    b"\xc2", b"\xcd", b"\xd8", b"\xe1", b"\xe2\x80", b"\xe2\x81", b"\xe3\x85", b"\xef", b"\xf0\x9b", b"\xf0\x9d", b"\xf3",
)  # fmt: skip


_CSI = re.compile(
    rb"(?:\x1b\[|\xc2\x9b)[0-?]*[ -/]*[@-~]"
    rb"|(?:\x1b[\]PX^_]|\xc2[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\n]{0,500}(?:\x07|\x1b\\|\xc2\x9c)?|\x1b[ -/]*[0-~]?"
)


# -- the engine ----------------------------------------------------------------------------------


class Matcher(Protocol):
    """Finds all signatures in a block of whole lines. Multiple threads may scan at the same time."""

    ahead: Ahead
    """How to match the windows of a large log: one by one (`in_turn`) or in a thread (`sources.signature_files`)."""

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """Return the matches in a block of whole lines as sorted (end offset, signature index) pairs."""


def in_turn(find: Find, windows: Iterable[Window]) -> Generator[Matched, None, None]:
    """Match windows one after another."""
    for window in windows:
        yield match_window(find, window)


def match_windows(
    matcher: Matcher, windows: Iterable[Window], large: int = LARGE_LOG_BYTES
) -> Generator[Matched, None, None]:
    """Match windows one after another. Once a log turns out to be large, switch to the matcher's `ahead` function."""
    rest, seen = iter(windows), 0
    for window in rest:
        yield match_window(matcher.scan, window)
        seen += len(window.data)
        if seen >= large:
            yield from matcher.ahead(matcher.scan, rest)


def _for_bytes(regex: str) -> bytes:
    # A line may end in a carriage return (Windows, progress), so an end-of-line anchor must see past it.
    return regex.replace("$", r"\r?$").encode("utf-8")


class HyperscanMatcher:
    """All signatures in a single Hyperscan database."""

    def __init__(self, database: Any) -> None:
        self.ahead: Ahead = in_turn
        self._database = database
        # A scratch serves one scan at a time (Hyperscan's guide, "Scratch space"), so each thread has its own.
        self._scratches: list[Any] = []

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """See `Matcher.scan`."""
        found: list[tuple[int, int]] = []

        def on_match(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((end, index))

        try:
            scratch = self._scratches.pop()
        except IndexError:
            import hyperscan

            scratch = hyperscan.Scratch(self._database)
        try:
            self._database.scan(block, match_event_handler=on_match, scratch=scratch)
        finally:
            self._scratches.append(scratch)
        found.sort()
        return found

    def dump(self) -> bytes:
        """Return the compiled database. It is specific to this machine and version of Hyperscan."""
        import hyperscan

        return bytes(hyperscan.dumpb(self._database))


def engine_name() -> str:
    """Return the name and version of the installed engine, for use in a cache key."""
    try:
        import hyperscan
    except ImportError:
        return "re2"
    # importlib.metadata would cost 20 ms, so use the binding's own number despite its type stubs.
    version = getattr(hyperscan, "__version__", "?")
    return f"hyperscan-{version}-{os.uname().machine if hasattr(os, 'uname') else sys.platform}"


def compile_matcher(signatures: Signatures) -> Matcher:
    """Build a matcher from the signatures' patterns."""
    try:
        import hyperscan
    except ImportError:
        return Re2Matcher([entry.regex for entry in signatures.entries])
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[_for_bytes(entry.regex) for entry in signatures.entries],
        ids=[entry.place for entry in signatures.entries],
        flags=hyperscan.HS_FLAG_MULTILINE,
    )
    return HyperscanMatcher(database)


def load_matcher(dumped: bytes) -> HyperscanMatcher:
    """Load the output of `HyperscanMatcher.dump`.

    Raises:
        ValueError: If the bytes are damaged or come from a different version.
    """
    import hyperscan

    try:
        database = hyperscan.loadb(dumped, mode=hyperscan.HS_MODE_BLOCK)
    except (hyperscan.error, TypeError) as error:
        raise ValueError(f"not a usable Hyperscan database: {error}") from error
    return HyperscanMatcher(database)


class Re2Matcher:
    """The fallback engine: a single alternation finds candidate lines, and an RE2 set finds the signatures that match."""

    def __init__(self, regexes: Sequence[str]) -> None:
        import re2

        self.ahead: Ahead = in_turn
        options = re2.Options()
        options.never_nl = False
        options.log_errors = False
        options.max_mem = 256 << 20
        self._set: Any = re2.Set.SearchSet(options)  # type: ignore[no-untyped-call]
        for regex in regexes:
            self._set.Add(_for_bytes("(?m)" + regex).decode("utf-8"))
        self._set.Compile()

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """See `Matcher.scan`."""
        # The set tells which signatures match, not where. Halve a block down to single lines, so quiet text is cheap.
        return sorted(self._scan(block, 0))

    def _scan(self, block: bytes, base: int) -> Iterator[tuple[int, int]]:
        matches = self._set.Match(block.decode("utf-8", "replace"))
        if not matches:
            return
        middle = block.find(b"\n", len(block) // 2)
        if middle < 0 or middle + 1 >= len(block):
            middle = block.rfind(b"\n", 0, max(len(block) - 1, 0))
        if middle < 0 or middle + 1 >= len(block):
            end = base + len(block.rstrip(b"\n"))
            yield from ((end, index) for index in matches)
            return
        yield from self._scan(block[: middle + 1], base)
        yield from self._scan(block[middle + 1 :], base + middle + 1)


# -- additions by collectors -----------------------------------------------------------------------

# Lines that no program prefixes, and the start of the next such line: frames of Python's tracebacks
# and of faulthandler, py-spy's stacks, C++ frames (c10::Error), torchrun's closing box.
_CONTINUED: Final = (
    (b'  File "', b'(?:    |  File ")'),
    (b"Thread ", b"    "),
    (b"frame #", b"frame #"),
    (b"  rank      : ", b"  exitcode  : "),
)
# host:pid:tid [device] file:line, the start of NCCL's debug lines (nccl/src/debug.cc). Old versions omit the host.
_NCCL: Final = rb"(?:\b[\w.-]+:\d+:\d+ )?\[\d+\] (?:\S+:\d+ )?"
_ANY: Final = "any message"
# Longer text is a message.
MOST_PREFIX: Final = 160
MOST_SHAPES: Final = 24
MOST_LOOKS: Final = 400
_LEARNT_BYTES: Final = 65536
# The keys of records whose message is a line of another program. A record with any other key is the program's own.
_MESSAGE: Final = ("log", "message", "msg")
_COLLECTORS: Final = frozenset(
    ("log", "message", "msg", "stream", "time", "timestamp", "ts", "@timestamp", "severity", "level", "pod", "container", "node", "host", "hostname", "namespace", "source", "tag", "logtag", "logger", "kubernetes", "docker", "labels", "attrs", "insertId", "logName", "resource")
)  # fmt: skip
# The level of a single line counts. A traceback's lines are weighed by their exception.
_GRAVE: Final = ("WARN", "ERROR", "CRITICAL", "FATAL")
_CONTINUES: Final = (" ", "\t", "Traceback ", "[rank")
_GLOG_WARNING: Final = re.compile(rb"(?:\[rank\d+\]:)?W\d{4} ")
_OF_TORCH: Final = re.compile(rb"\[rank\d+\]: ")  # understood without unwrapping
_CLOCK: Final = re.compile(rb"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_SEPARATORS: Final = Lazy(r"[ \t]|(?<=[\]>|:])(?=[\[(\w])")


def unwrapped_records(text: bytes) -> bytes:
    """Return the same lines, with each JSON record from a collector replaced by the program's output."""
    return _without_records(text) if text[:2] == b'{"' or b'\n{"' in text else text


def unwrapped(text: bytes) -> bytes:
    """Strip a collector's additions from whole lines. Return the same object if there are none."""
    return _without_prefixes(unwrapped_records(text))


class _Record(NamedTuple):
    """A program's output, extracted from a collector's record, along with the record's level."""

    message: str
    level: str


def _without_records(text: bytes) -> bytes:
    lines = text.split(b"\n")
    taken: dict[int, _Record] = {}
    for row, raw in enumerate(lines):
        if not raw.startswith(b'{"') or not raw.rstrip().endswith(b"}"):
            continue
        record = _record(raw)
        if record is not None:
            taken[row] = record
    if not taken:
        return text
    # A single level on all lines comes from the collector, for a stream. Several levels are the program's.
    own_levels = len({record.level for record in taken.values()}) > 1
    for row, record in taken.items():
        grave = own_levels and record.level.startswith(_GRAVE) and not record.message.startswith(_CONTINUES)
        level = f"{record.level} " if grave else ""
        lines[row] = f"{level}{record.message}".encode("utf-8", "replace")
    return b"\n".join(lines)


def _record(raw: bytes) -> _Record | None:
    """Parse a collector's record. Return None for any other JSON."""
    import json

    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):  # a hostile record's nesting may be as deep as its line is long
        return None
    if not isinstance(record, dict) or not _COLLECTORS.issuperset(record):
        return None
    key = next((key for key in _MESSAGE if isinstance(record.get(key), str)), None)
    if key is None:
        return None
    # Lines within one record become parts of one line, like a progress bar's states.
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
        """Return who wrote the line, with a marker if it is a warning. Prefixes that differ only in time share a lookup."""
        prefix, following = match.group(), match.string[match.end() : match.end() + 1]
        untimed = _CLOCK.sub(b"", prefix)
        who = known.get(untimed)
        if who is None:
            who = known[untimed] = _who(prefix.decode("utf-8", "replace"), hosts).encode("utf-8", "replace")
        warns = (b"WARN" in prefix or _GLOG_WARNING.match(prefix)) and following not in {b" ", b"\t"}
        return who + b"WARNING " if warns else who

    return pattern.sub(kept, text)


def _shapes(text: bytes) -> list[bytes]:
    """Return patterns for prefixes found on consecutive lines that normally have none."""
    found: dict[bytes, bool] = {}
    hosts: frozenset[str] | None = None
    for at, prefix, following in _looks(text):
        if not prefix.strip() or len(prefix) > MOST_PREFIX or b"\r" in prefix or _OF_TORCH.fullmatch(prefix):
            continue
        shape = _shape(prefix)
        if shape not in found and len(found) < MOST_SHAPES:
            hosts = _hosts(text) if hosts is None else hosts
            found[shape] = _is_new(prefix, hosts) and _goes_on(text, at, shape, following)
    return [shape for shape, is_prefix in found.items() if is_prefix]


def _looks(text: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (position, text before it, pattern of the next line) for lines that normally have no prefix of their own."""
    for start, following in _CONTINUED:
        at = -1
        for _ in range(MOST_LOOKS):
            at = text.find(start, at + 1)
            if at < 0:
                break
            yield at, text[text.rfind(b"\n", 0, at) + 1 : at], following
    nccl = re.compile(_NCCL + rb"NCCL ")
    at = -1
    for _ in range(MOST_LOOKS):
        at = text.find(b" NCCL ", at + 1)
        if at < 0:
            return
        start_of_line = text.rfind(b"\n", 0, at) + 1
        if match := nccl.search(text, start_of_line, at + 6):
            yield at, text[start_of_line : match.start()], _NCCL


def _hosts(text: bytes) -> frozenset[str]:
    lines = text[:_LEARNT_BYTES].split(b"\n")[:240]
    return learn_hosts(line.decode("utf-8", "replace")[:300] for line in lines)


def _is_new(prefix: bytes, hosts: frozenset[str]) -> bool:
    """Check that the prefix is not a rank prefix, since those do not need unwrapping."""
    return split_prefix(prefix.decode("utf-8", "replace") + _ANY, hosts)[1] != _ANY


def _shape(prefix: bytes) -> bytes:
    """Return a pattern for a prefix, allowing numbers and the padding before them to vary from line to line."""
    parts = re.split(rb"([ \t]*\d+)", prefix)
    return b"".join(
        re.escape(part)
        if place % 2 == 0
        else (rb"[ \t]*" if part[:1].isspace() or not place else b"") + rb"\d+"
        for place, part in enumerate(parts)
    )


def _goes_on(text: bytes, start: int, shape: bytes, following: bytes) -> bool:
    """Check whether the expected next line has the same prefix. Lines from other ranks may come in between."""
    belongs = re.compile(shape + following)
    for _ in range(8):
        start = text.find(b"\n", start) + 1
        if start == 0:
            return False
        if belongs.match(text, start):
            return True
    return False


def _who(prefix: str, hosts: frozenset[str]) -> str:
    """Return the parts of a prefix that identify a rank, node or worker."""
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

"""The multi-pattern engine: Hyperscan, or re2 on platforms without its wheel.

Both look for all signatures in one pass over bytes. Hyperscan's compiled form
takes 130-230 ms to make and 0.3 ms to load: `dump` returns it for a cache.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from supervisor.diagnosis.scan.windows import Matched, Window, match_in_turn

if TYPE_CHECKING:
    from supervisor.diagnosis.scan.signature_tables import Signatures


class Matcher(Protocol):
    """Finds all signatures in a block of whole lines. Several threads may scan at once."""

    def scan(self, block: bytes, found: Callable[[int, int], None]) -> None:
        """Call `found(signature index, end offset of the match)` for the matches in a block, in any order."""

    def each(self, windows: Iterable[Window]) -> Generator[Matched, None, None]:
        """Match window after window; results come in the same order. May read ahead."""


def _for_bytes(regex: str) -> bytes:
    # A line may end in a carriage return (Windows, progress): an end-of-line anchor must see past it.
    return regex.replace("$", r"\r?$").encode("utf-8")


class HyperscanMatcher:
    """All signatures in one Hyperscan database."""

    def __init__(self, database: Any) -> None:
        self._database = database
        # A scratch serves one scan at a time (Hyperscan's guide, "Scratch space"), so each thread has its own.
        self._scratches: list[Any] = []

    def scan(self, block: bytes, found: Callable[[int, int], None]) -> None:
        """See `Matcher.scan`."""

        def on_match(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found(index, end)

        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = _new_scratch(self._database)
        try:
            self._database.scan(block, match_event_handler=on_match, scratch=scratch)
        finally:
            self._scratches.append(scratch)

    def each(self, windows: Iterable[Window]) -> Generator[Matched, None, None]:
        """See `Matcher.each`."""
        return match_in_turn(self.scan, windows)

    def dump(self) -> bytes:
        """The compiled database, for this machine and this version of Hyperscan."""
        import hyperscan

        return bytes(hyperscan.dumpb(self._database))


def _new_scratch(database: Any) -> Any:
    import hyperscan

    return hyperscan.Scratch(database)


def engine_name() -> str:
    """The engine of this installation, with its version: part of a cache's key."""
    try:
        import hyperscan
    except ImportError:
        return "re2"
    # importlib.metadata would cost 20 ms, so use the binding's own number, whatever type stubs call it.
    version = getattr(hyperscan, "__version__", "?")
    return f"hyperscan-{version}-{os.uname().machine if hasattr(os, 'uname') else sys.platform}"


def compile_matcher(signatures: Signatures) -> HyperscanMatcher | Re2Matcher:
    """Build the engine from patterns."""
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
        ValueError: the bytes were made by another version or are damaged.
    """
    import hyperscan

    try:
        database = hyperscan.loadb(dumped, mode=hyperscan.HS_MODE_BLOCK)
    except (hyperscan.error, TypeError) as error:
        raise ValueError(f"not a usable Hyperscan database: {error}") from error
    return HyperscanMatcher(database)


class Re2Matcher:
    """The fallback: one alternation finds candidate lines, a set finds which signatures."""

    def __init__(self, regexes: Sequence[str]) -> None:
        import re2

        options = re2.Options()
        options.never_nl = False
        options.log_errors = False
        options.max_mem = 256 << 20
        self._set: Any = re2.Set.SearchSet(options)  # type: ignore[no-untyped-call]
        for regex in regexes:
            self._set.Add(_for_bytes("(?m)" + regex).decode("utf-8"))
        self._set.Compile()

    def scan(self, block: bytes, found: Callable[[int, int], None]) -> None:
        """See `Matcher.scan`."""
        # The set tells which match, not where: halve a block down to single lines, so that quiet text is cheap.
        self._scan(block, 0, found)

    def each(self, windows: Iterable[Window]) -> Generator[Matched, None, None]:
        """See `Matcher.each`."""
        return match_in_turn(self.scan, windows)

    def _scan(self, block: bytes, base: int, found: Callable[[int, int], None]) -> None:
        matches = self._set.Match(block.decode("utf-8", "replace"))
        if not matches:
            return
        middle = block.find(b"\n", len(block) // 2)
        if middle < 0 or middle + 1 >= len(block):
            middle = block.rfind(b"\n", 0, max(len(block) - 1, 0))
        if middle < 0 or middle + 1 >= len(block):
            end = base + len(block.rstrip(b"\n"))
            for index in matches:
                found(index, end)
            return
        self._scan(block[: middle + 1], base, found)
        self._scan(block[middle + 1 :], base + middle + 1, found)


def line_pattern(regex: str) -> re.Pattern[str]:
    """The same pattern for one clean line, to get its groups or position."""
    return re.compile(regex)

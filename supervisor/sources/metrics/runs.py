"""Runs of JSON lines of one shape: a typed decoder, made for the shape, reads many lines in one call.

The decoder alone would take too much for the same: other keys beside those it knows, keys in another order or twice,
other words in a string. So the lines without their digits must first be the shape, over and over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from supervisor.sources.metrics.layout import FIELD, OTHER, RANKS, Layout, Span, is_plain, is_whole
from supervisor.sources.metrics.samples import MetricSample, define
from supervisor.sources.metrics.values import PLAIN

DIGITS = b"0123456789"
# What the grammar takes for a counter (`layout.is_whole`: at most 15 digits, no sign).
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
_KEY = re.compile(r'"([^"]*)"\s*:\s*$')
_END = re.compile(r"\s*[,}]")


class JsonRun:
    """Reads lines of one shape.

    Args:
        shape: such a line without its digits.
        decode: makes samples of JSON lines.
        longest: in bytes; a longer line is not for this reader.
    """

    def __init__(self, shape: bytes, decode: Callable[[bytes], list[MetricSample]], longest: int) -> None:
        self._shape = shape + b"\n"
        self._decode = decode
        self._longest = longest

    def read(self, lines: Sequence[bytes]) -> list[MetricSample] | None:
        """The samples of all lines; None if any is not of the shape, or holds what is no number in JSON."""
        block = b"\n".join(lines)
        bare = block.translate(None, DIGITS)
        if bare != (self._shape * len(lines))[:-1]:
            return None
        # Digits are all in which the lines differ: one line can only be too long if all of them together hold so many.
        if len(block) - len(bare) + len(self._shape) > self._longest and max(map(len, lines)) > self._longest:
            return None
        try:
            return self._decode(block)
        except msgspec.DecodeError:
            return None


def make_run(line: str, layout: Layout, longest: int) -> JsonRun | None:
    """A reader for the lines of this shape; None when it is no flat JSON object, or not all of its values are plain numbers."""
    if line[:1] != "{" or line.count("{") > 1 or "[" in line or "\\" in line or layout.fixed:
        return None
    try:
        pairs = json.loads(line, object_pairs_hook=list)
    except ValueError:
        return None
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        return None
    members: dict[int, list[tuple[str, Any]]] = {FIELD: [], OTHER: [], RANKS: []}
    rename = {}
    for span in layout.spans:
        found = _KEY.search(line[: span.begin])
        kind = _type(span, line)
        if found is None or kind is None or span.target not in members or not _END.match(line, span.end):
            return None
        mine = members[span.target]
        member = f"own_{len(mine)}" if span.target == OTHER else span.name
        mine.append((member, kind))
        rename[member] = found[1]
    names = [[span.name for span in layout.spans if span.target == target] for target in (FIELD, OTHER)]
    if any(len(set(some)) < len(some) for some in names):
        return None
    made = define(
        [*members[FIELD], *members[OTHER], *members[RANKS]], tuple(names[0]), tuple(names[1]), rename
    )
    return JsonRun(line.encode().translate(None, DIGITS), msgspec.json.Decoder(made).decode_lines, longest)


def _type(span: Span, line: str) -> Any:
    """What the value decodes to; None where its number is not what stands there."""
    text = line[span.begin : span.end]
    if is_whole(span.conversion, text):
        return _Whole
    return float if span.conversion == PLAIN and is_plain(text) else None

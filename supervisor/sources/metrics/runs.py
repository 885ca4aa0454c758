"""Runs of JSON lines of one shape: a typed decoder, made for the shape, reads many lines in one call.

The decoder alone would take too much for the same: other keys beside those it knows, keys in another order or twice,
other words in a string. So the lines without their digits must first be the shape, over and over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from supervisor.sources.metrics.layout import FIELD, OTHER, RANKS, Layout, Span, is_plain, is_whole
from supervisor.sources.metrics.names import LOSS, STEP
from supervisor.sources.metrics.samples import MetricSample, define
from supervisor.sources.metrics.values import How

DIGITS = b"0123456789"
# What the grammar takes for a counter (`layout.is_whole`) has at most 15 digits; that it has no sign, the shape tells.
_Whole = Annotated[int, msgspec.Meta(lt=10**15)]
_KEY = re.compile(r'"([^"]*)"\s*:\s*$')
_END = re.compile(r"\s*[,}]")


class JsonRun:
    """Reads lines of one shape.

    Args:
        shape: such a line without its digits.
        decode: makes samples of JSON lines.
        longest: in bytes; a longer line is not for this reader.
    """

    def __init__(
        self, shape: bytes, decode: Callable[[bytes], list[MetricSample | None]], longest: int
    ) -> None:
        self._shape = shape + b"\n"
        self._decode = decode
        self._longest = longest

    def read(self, lines: Sequence[bytes]) -> list[MetricSample | None] | None:
        """The samples of all lines; None if any is not of the shape, or holds what is no number in JSON."""
        block = b"\n".join(lines)
        bare = block.translate(None, DIGITS)
        whole = self._shape * len(lines)
        if len(bare) != len(whole) - 1 or not whole.startswith(bare):
            return None
        if _has_longer(block, self._longest):
            return None
        try:
            return self._decode(block)
        except msgspec.DecodeError:
            return None


def _has_longer(block: bytes, size: int) -> bool:
    """Whether a line has more than `size` bytes: by strides of as many, which costs a tenth of looking at each line."""
    begin = 0
    while len(block) - begin > size:
        begin = block.rfind(b"\n", begin, begin + size + 1) + 1
        if not begin:
            return True
    return False


def make_run(line: str, shape: bytes, layout: Layout, longest: int) -> JsonRun | None:
    """A reader for the lines of this shape; None when it is no flat JSON object, or not all of its values are plain numbers."""
    if line[:1] != "{" or line.count("{") > 1 or "[" in line or "\\" in line or layout.fixed:
        return None
    try:
        keys = [key for key, _ in json.loads(line, object_pairs_hook=list)]
    except ValueError:
        return None
    spans = [span for target in (FIELD, OTHER, RANKS) for span in layout.spans if span.target == target]
    members: list[tuple[str, Any]] = []
    named: dict[str, str] = {}
    for place, span in enumerate(spans):
        key, kind = _KEY.search(line[: span.begin]), _type(span, line)
        if key is None or kind is None or not _END.match(line, span.end):
            return None
        member = f"own_{place}" if span.target == OTHER else span.name
        members.append((member, kind))
        named[member] = key[1]
    fields = [span for span in spans if span.target == FIELD]
    own = [span.name for span in spans if span.target == OTHER]
    if (
        len(spans) < len(layout.spans)
        or len(named) < len(spans)
        or any(len(set(some)) < len(some) for some in (keys, own))
    ):
        return None
    # By the whole number 1: a step stays one.
    scales = [span.conversion.scale if span.conversion.scale != 1 else 1 for span in fields]
    made = _run_type(
        tuple(members),
        tuple(span.name for span in fields),
        tuple(own),
        tuple(named.items()),
        tuple(scales) if any(scale != 1 for scale in scales) else (),
    )
    decoder: msgspec.json.Decoder[MetricSample | None] = msgspec.json.Decoder(made)
    return JsonRun(shape, decoder.decode_lines, longest)


@lru_cache(maxsize=256)
def _run_type(
    members: tuple[tuple[str, Any], ...],
    fields: tuple[str, ...],
    own: tuple[str, ...],
    named: tuple[tuple[str, str], ...],
    scales: tuple[float, ...],
) -> type[MetricSample]:
    """The ranks of a run write lines of one shape: their readers share its type."""
    return define(list(members), fields, own, dict(named), scales)


def _type(span: Span, line: str) -> Any:
    """What the value decodes to; None where what stands there is not its number, or another only in scale."""
    text = line[span.begin : span.end]
    if is_whole(span.conversion, text):
        return _Whole
    how, scale = span.conversion
    scalable = span.target == FIELD and span.name not in {STEP, LOSS}
    return float if how is How.NUMBER and is_plain(text) and (scale == 1 or scalable) else None

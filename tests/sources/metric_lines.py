"""Lines of the corpora, and samples compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from supervisor.sources.metrics import MetricReader, MetricSample

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "data"
LABELLED = {name: CORPUS / name for name in ("metrics.jsonl", "metrics_more.jsonl", "metrics_unseen.jsonl")}
# With excerpts that show one rule each.
CORPORA = {**LABELLED, "metric_excerpts.jsonl": Path(__file__).with_name("metric_excerpts.jsonl")}


def values(line: str) -> dict[str, float]:
    """What a fresh reader finds in one line."""
    sample = MetricReader().feed(line)
    return sample.values if sample is not None else {}


def read(reader: MetricReader, lines: Sequence[bytes]) -> list[MetricSample | None]:
    """What a reader that is given all of these lines at once says of each."""
    found: list[MetricSample | None] = [None] * len(lines)
    for row, columns, at, _ in reader.read_rows(lines):
        found[row] = columns.sample(at)
    return found


def same(one: MetricSample | None, two: MetricSample | None) -> bool:
    """Equal, with NaN equal to itself, whatever the order of the names."""
    if one is None or two is None:
        return one is two
    parts = ((one.values, two.values), (one.other, two.other))
    return one.rank == two.rank and all(
        sorted((k, repr(v)) for k, v in a.items()) == sorted((k, repr(v)) for k, v in b.items())
        for a, b in parts
    )


def corpus_texts() -> list[str]:
    """All excerpts of the labelled corpora."""
    return [
        json.loads(raw)["text"]
        for path in LABELLED.values()
        for raw in path.read_text(encoding="utf-8").splitlines()
    ]


def corpus_lines() -> list[str]:
    """All lines of the labelled corpora."""
    return [line for text in corpus_texts() for line in text.replace("\r", " ").split("\n")]

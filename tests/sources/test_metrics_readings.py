"""What is read of each excerpt of the corpora, number by number, is what readings.txt holds.

An excerpt of metric_excerpts.jsonl shows one rule, which its name says: a new rule or a new form is a line there. The labels say what must be found, and the goals of tests/corpus how much of it; here a change of one rule shows in every line that it
reads otherwise. Once each difference is looked at and better than before:

    python -m tests.sources.test_metrics_readings
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.sources.metrics import MetricReader
from supervisor.text.decode import clean
from tests.sources.metric_lines import CORPORA

KEPT = Path(__file__).with_name("readings.txt")


def readings(corpus: str) -> Iterator[str]:
    """Of each excerpt its name, and a line for each of its lines in which something is found; own names stand in quotes.

    In brackets: the loss is no point of the curve, the line is of held-out data.
    """
    for raw in CORPORA[corpus].read_text(encoding="utf-8").splitlines():
        record = json.loads(raw)
        yield f"# {corpus} {record['id']}"
        reader = MetricReader()
        for row, line in enumerate(record["text"].split("\n")):
            sample = reader.feed(clean(line.encode("utf-8", "surrogateescape")))
            if sample is not None:
                found = [f"{name}={value:.9g}" for name, value in sorted(sample.values.items())]
                found += [f"{json.dumps(name)}={value:.9g}" for name, value in sorted(sample.other.items())]
                rank = "" if sample.rank is None else f"rank {sample.rank}: "
                found += ["[off the curve]"] if sample.off_curve else []
                found += ["[held out]"] if sample.evaluates else []
                yield f"{row}: {rank}{' '.join(found)}"


@pytest.mark.parametrize("corpus", CORPORA)
def test_every_excerpt_is_read_as_it_was(corpus: str) -> None:
    kept = KEPT.read_text(encoding="utf-8").splitlines()
    begins = [index for index, line in enumerate(kept) if line.startswith("# ")]
    ends = [*begins[1:], len(kept)]
    was = {kept[begin]: kept[begin + 1 : end] for begin, end in zip(begins, ends, strict=True)}
    now: dict[str, list[str]] = {}
    for line in readings(corpus):
        if line.startswith("# "):
            found = now[line] = []
        else:
            found.append(line)
    names = now.keys() | {name for name in was if name.split()[1] == corpus}
    changed = {
        name: (was.get(name), now.get(name)) for name in sorted(names) if was.get(name) != now.get(name)
    }
    assert not changed, "look at each of them"


if __name__ == "__main__":
    KEPT.write_text("".join(f"{line}\n" for corpus in CORPORA for line in readings(corpus)), encoding="utf-8")

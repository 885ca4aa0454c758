"""A stream of samples is read whole and once, also where it goes from its older file into its newer one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from supervisor.run.series import METRICS, SKIM_BYTES, Sample, SeriesReader


def lines(*steps: int) -> bytes:
    samples = (Sample(t=float(step), k="job", a=1, v={"step": float(step)}) for step in steps)
    return b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)


def steps(reader: SeriesReader, **limit: int) -> list[float | None]:
    return [sample.v["step"] for sample in reader.read(**limit)]


def every(reader: SeriesReader) -> list[float | None]:
    found: list[float | None] = []
    while more := steps(reader):
        found += more
    return found


def test_the_newer_file_becomes_the_older_while_it_is_read(tmp_path: Path) -> None:
    new, old = tmp_path / f"{METRICS}.jsonl", tmp_path / f"{METRICS}.0.jsonl"
    reader = SeriesReader(tmp_path, METRICS)
    assert every(reader) == []
    assert not reader.is_thinned
    new.write_bytes(lines(1, 2))
    assert every(reader) == [1, 2]
    with new.open("ab") as file:
        file.write(lines(3))
    new.rename(old)
    assert every(reader) == [3]
    new.write_bytes(lines(4, 5))
    assert every(reader) == [4, 5]
    # Twice within one look: what it had been reading is neither of the two any more.
    old.unlink()
    new.rename(old)
    with old.open("ab") as file:
        file.write(lines(6))
    new.write_bytes(lines(7))
    assert every(reader) == [6, 7]
    newest = tmp_path / "other"
    newest.write_bytes(lines(8, 9))
    later = tmp_path / "later"
    later.write_bytes(lines(10))
    newest.replace(old)
    later.replace(new)
    assert every(reader) == [8, 9, 10]


@pytest.mark.parametrize(("older", "newer"), [(0, 5000), (3000, 2000), (3000, 400)])
def test_of_what_lies_before_the_tail_small_pieces_of_all_of_it_are_read(
    tmp_path: Path, older: int, newer: int
) -> None:
    if older:
        (tmp_path / f"{METRICS}.0.jsonl").write_bytes(lines(*range(older)))
    (tmp_path / f"{METRICS}.jsonl").write_bytes(lines(*range(older, older + newer)))
    reader = SeriesReader(tmp_path, METRICS)
    size = len(lines(1000))
    assert reader.seek_tail(1000 * size)
    found = [sample.v["step"] or 0.0 for sample in reader.before(5 * SKIM_BYTES)]
    rest = every(reader)
    assert rest[0] == pytest.approx(older + newer - 1000, abs=40)
    assert found[0] == 0.0
    assert found == sorted(found)
    assert found[-1] < (rest[0] or 0.0)
    assert 0.3 * 5 * SKIM_BYTES < len(found) * size < 2 * 5 * SKIM_BYTES
    assert max(b - a for a, b in pairwise([*found, rest[0] or 0.0])) < 1200, "from all of it"

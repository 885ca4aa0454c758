"""Samples have a budget: of what is older the minutes are kept; readers pass from file to file without a gap or a repeat."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from supervisor.run import series
from supervisor.run.series import (
    GPU,
    JOB_KEY,
    METRICS,
    SKIM_BYTES,
    Sample,
    SeriesReader,
    SeriesWriter,
    at_first,
    highest,
    read_rollups,
)
from supervisor.views.headless.still_chart import loss_points

SEGMENT = 4096
T = 1_795_000_000.0


def step_of(sample: Sample) -> int:
    return int(sample.v["step"] or 0)


def written(folder: Path, first: int, last: int, writer: SeriesWriter | None = None) -> SeriesWriter:
    writer = writer or SeriesWriter(folder, segment_bytes=SEGMENT)
    for step in range(first, last + 1):
        writer.append(METRICS, T + step, JOB_KEY, 1, {"step": float(step), "loss": 10.0 - step / 1000})
    return writer


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


@pytest.mark.fault(
    "journal and disk", "samples of months", "within a budget; all one-minute roll-ups are kept"
)
def test_a_stream_stays_within_its_budget_and_the_minutes_are_all_there(tmp_path: Path) -> None:
    written(tmp_path, 1, 6000).close()
    found = sizes(tmp_path)
    assert set(found) == {"metrics.jsonl", "metrics.0.jsonl", "metrics.1m.jsonl", "metrics.1m.0.jsonl"}
    assert all(size <= SEGMENT + 200 for size in found.values()), found
    reader = SeriesReader(tmp_path, METRICS)
    steps: list[int] = []
    while samples := reader.read():
        steps += map(step_of, samples)
    assert reader.is_thinned
    assert steps == list(range(steps[0], 6001)), "the newest, in order, each once"
    assert len(steps) > SEGMENT // 100
    minutes = read_rollups(tmp_path, METRICS)
    assert [minute.t for minute in minutes] == sorted({minute.t for minute in minutes})
    assert highest(tmp_path, METRICS, 1)[JOB_KEY]["step"] == 6000
    points = loss_points(tmp_path)
    assert points[0][1] is not None
    assert points[0][1] < steps[0], "the chart begins before the oldest sample"
    assert [point[1] for point in points] == sorted(point[1] for point in points if point[1] is not None)


@given(some.lists(some.integers(0, 90), min_size=1, max_size=12), some.integers(64, 5000))
@settings(max_examples=60, deadline=None)
@pytest.mark.fault("journal and disk", "a series rotates under its reader", "each sample is read once")
def test_a_reader_that_keeps_up_sees_every_sample_once(
    tmp_path_factory: object, batches: list[int], limit: int
) -> None:
    folder = Path(str(tmp_path_factory.mktemp("series")))  # type: ignore[attr-defined]
    steps: list[int]
    writer, reader, steps, last = (
        SeriesWriter(folder, segment_bytes=SEGMENT),
        SeriesReader(folder, METRICS),
        [],
        0,
    )
    for count in batches:  # less than a segment each: it never misses a whole one
        for step in range(last + 1, last + min(count, 30) + 1):
            writer.append(METRICS, T + step, JOB_KEY, 1, {"step": float(step)})
            last = step
        while samples := reader.read(limit_bytes=max(limit, 200)):
            steps += map(step_of, samples)
    writer.close()
    assert steps == list(range(1, last + 1))


@pytest.mark.fault("journal and disk", "the series folder is moved", "not created again")
def test_a_folder_that_was_moved_is_not_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "series"
    writer = written(folder, 1, 100)
    folder.rename(tmp_path / "moved")
    written(folder, 101, 300, writer).close()
    assert not folder.exists()
    assert sizes(tmp_path / "moved")["metrics.jsonl"] > SEGMENT, "it continues where it was"


def test_the_highest_and_the_first_are_found_without_reading_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SeriesWriter(tmp_path)
    for second in range(600):
        used = 9e9 if second == 100 else 1e9 + second
        writer.append(GPU, 60_000.0 + second, "0", 1, {"memory_used_bytes": used, "power_w": None})
    for second in range(10):
        writer.append(GPU, 60_600.0 + second, "0", 2, {"memory_used_bytes": 5e9 + second})
    monkeypatch.setattr(series, "NEWEST_BYTES", 2000)
    assert highest(tmp_path, GPU, 1) == {"0": {"memory_used_bytes": 9e9}}, "of a minute long past"
    assert at_first(tmp_path, GPU, 1, "memory_used_bytes") == {"0": 1e9}
    assert highest(tmp_path, GPU, 2) == {"0": {"memory_used_bytes": 5e9 + 9}}, "of a minute that is not over"
    assert at_first(tmp_path, GPU, 2, "memory_used_bytes") == {"0": 5e9}
    assert highest(tmp_path, GPU, 3) == {}
    writer.close()
    assert at_first(tmp_path, GPU, 2, "memory_used_bytes") == {"0": 5e9}


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

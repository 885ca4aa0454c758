"""The arrival index: the time of each byte of a log, as its keeper's tailer saw it arrive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.run import arrivals
from supervisor.run.arrivals import (
    MOST_BATCHES,
    NEWEST_BATCHES,
    Arrival,
    ArrivalReader,
    Arrivals,
    ArrivalWriter,
)
from supervisor.run.paths import AttemptPaths


def test_a_byte_has_the_time_of_its_batch() -> None:
    log = Arrivals()
    assert log.add(Arrival("a", 100, 10.0, 20.0))
    assert log.add(Arrival("a", 200, 90.0, 100.0))
    assert [log.time_of(at) for at in (0, 50, 100, 150, 200, 999)] == [10, 15, 20, 95, 100, 100]
    assert [log.offset_at(t) for t in (5, 15, 20, 70, 95, 100, 999)] == [0, 50, 100, 100, 150, 200, 200]
    assert not log.add(Arrival("a", 150, 110.0, 120.0)), "a file that is shorter than it was"
    assert not log.add(Arrival("a", 300, 80.0, 90.0)), "a clock that was set back"
    assert log.add(Arrival("a", 300, 80.0, 110.0))
    assert log.time_of(250) == 105, "it cannot have had a size before the one known already"


def test_what_was_written_is_read_as_it_comes_and_continued_by_another_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = AttemptPaths(tmp_path)
    opened = len(os.listdir("/proc/self/fd"))
    reader = ArrivalReader(attempt)
    assert not reader.refresh(), "there is none yet"
    writer = ArrivalWriter(attempt)
    assert writer.end_of("0/stdout.log") == 0
    assert not reader.refresh()
    writer.note("0/stdout.log", 100, 1.0, 2.0)
    writer.note("1/stdout.log", 50, 1.0, 2.0)
    assert reader.refresh()
    assert not reader.refresh()
    assert {path: log.end for path, log in reader.logs.items()} == {
        str(tmp_path / "0/stdout.log"): 100,
        str(tmp_path / "1/stdout.log"): 50,
    }
    writer.close()
    writer.note("0/stdout.log", 110, 3.0, 4.0)  # nobody reads it any more
    assert not reader.refresh()
    again = ArrivalWriter(attempt)
    assert again.end_of("0/stdout.log") == 100
    again.note("0/stdout.log", 90, 60.0, 61.0)
    again.note("0/stdout.log", 300, 60.0, 61.0)
    assert reader.refresh()
    log = reader.logs[str(tmp_path / "0/stdout.log")]
    assert [batch.end for batch in log.batches] == [100, 300], "what the first one knew is known"
    assert attempt.arrivals.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(arrivals, "REWRITE_BYTES", 100)
    for n in range(1, 5):
        again.note("0/stdout.log", 300 + n, 61.0 + n, 62.0 + n)
    again.close()
    assert reader.refresh(), "it was written anew"
    log = reader.logs[str(tmp_path / "0/stdout.log")]
    assert (len(log.batches), log.end) == (6, 304)
    with attempt.arrivals.open("ab") as file:
        file.write(b'{"log":"0/stdout')
    assert not reader.refresh(), "half a line waits"
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == opened
    assert reader.refresh(), "it may be opened again"
    assert reader.logs[str(tmp_path / "0/stdout.log")].end == 304
    reader.close()


def test_the_older_batches_of_a_log_are_merged_in_pairs() -> None:
    log = Arrivals()
    for n in range(1, MOST_BATCHES + 2):
        assert log.add(Arrival("a", 10 * n, float(n - 1), float(n)))
    older = MOST_BATCHES + 1 - NEWEST_BATCHES
    assert len(log.batches) == NEWEST_BATCHES + (older + 1) // 2
    assert log.batches[:2] == [Arrival("a", 20, 0.0, 2.0), Arrival("a", 40, 2.0, 4.0)]
    assert log.batches[-1] == Arrival("a", 10 * MOST_BATCHES + 10, MOST_BATCHES, MOST_BATCHES + 1.0)
    assert [log.time_of(10 * n) for n in range(1, MOST_BATCHES + 2)] == list(range(1, MOST_BATCHES + 2))


@pytest.mark.parametrize("text", ["", "[]\n", '{"log": "a"}\n', '{"log":"a","end":9,"since":2.0,"t":1.0}\n'])
def test_what_cannot_be_is_not_taken(tmp_path: Path, text: str) -> None:
    attempt = AttemptPaths(tmp_path)
    attempt.arrivals.write_text(text)
    reader = ArrivalReader(attempt)
    reader.refresh()
    assert not any(log.batches for log in reader.logs.values())
    reader.close()
    (tmp_path / "elsewhere").write_text("mine")
    attempt.arrivals.unlink()
    attempt.arrivals.symlink_to(tmp_path / "elsewhere")
    ArrivalWriter(attempt).note("a", 1, 1.0, 2.0)
    assert (tmp_path / "elsewhere").read_text() == "mine", "nothing is written through a link"

"""When the lines of a recorded run were there: by a sample, by their own clock, by a quoting event, by the file's last write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.run import series as se
from supervisor.run.events import EvidenceSeen
from supervisor.run.fold import replay
from supervisor.run.journal import facts_in
from supervisor.run.records import FailureClass
from supervisor.run.series import Sample
from supervisor.views.logs.sources import LogRef
from supervisor.views.model import replay_log
from supervisor.views.model.replay_log import (
    LogTimes,
    RecordedLine,
    SampleTimes,
    TimedLine,
    recorded_lines,
)
from tests.views.tui import recorded


def sample(t: float, key: str, values: dict[str, float | None], attempt: int = 1) -> Sample:
    return Sample(t=t, k=key, a=attempt, v=values)


def ranks(*taken: Sample) -> list[tuple[float, str, Sample]]:
    return [(each.t, se.RANKS, each) for each in taken]


def line(path: str, end: int) -> RecordedLine:
    return RecordedLine(1, "0", "text", path, end - 5, end)


def test_a_sample_is_found_from_its_own_moment_on() -> None:
    times = SampleTimes(ranks(sample(10.0, "0", {"step": 1}), sample(20.0, "0", {"step": 1})))
    assert times.of(1, "0", "step", 1, 9.0) == 10.0
    assert times.of(1, "0", "step", 1, 10.0) == 10.0, "the moment itself counts"
    assert times.of(1, "0", "step", 1, 10.1) == 20.0, "a step that was trained again"
    assert times.of(1, "0", "step", 1, 20.1) is None


def test_a_sample_is_of_its_attempt_and_rank_or_of_the_whole_job() -> None:
    job = sample(10.0, se.JOB_KEY, {"loss": 2.5})
    times = SampleTimes([(10.0, se.METRICS, job), *ranks(sample(11.0, "1", {"loss": 2.5}))])
    assert times.of(1, "1", "loss", 2.5, 0.0) == 11.0, "the rank's own before the job's"
    assert times.of(1, "0", "loss", 2.5, 0.0) == 10.0
    assert times.of(2, "0", "loss", 2.5, 0.0) is None
    assert times.of(1, "0", "loss", 2.6, 0.0) is None
    assert times.of(1, "0", "loss", None, 0.0) is None
    assert SampleTimes([(10.0, se.GPU, job)]).of(1, "0", "loss", 2.5, 0.0) is None, "no sample of a log"


def test_how_much_of_each_log_was_there_at_a_moment() -> None:
    times = LogTimes(
        [TimedLine(10.0, line("a", 5)), TimedLine(20.0, line("a", 12)), TimedLine(15.0, line("b", 7))], ()
    )
    assert times.at(9.9).ends == {}
    assert times.at(10.0).ends == {"a": 5}, "at its own moment a line is there"
    assert times.at(19.9).ends == {"a": 5, "b": 7}
    assert times.at(20.0).ends == {"a": 12, "b": 7}


def test_a_logs_length_never_shrinks_as_time_goes_on() -> None:
    """Lines of several ranks in one file may be dated out of the file's order."""
    times = LogTimes([TimedLine(10.0, line("a", 12)), TimedLine(20.0, line("a", 5))], ())
    assert times.at(10.0).ends == times.at(20.0).ends == {"a": 12}


@pytest.mark.parametrize(
    ("sizes", "total", "share"),
    [([], 10, 10), ([4, 6], 10, 10), ([4, 6], 9, 5), ([1, 9, 9], 10, 4), ([10, 10], 10, 5), ([3], 2, 2)],
)
def test_logs_share_what_is_played(sizes: list[int], total: int, share: int) -> None:
    cap = replay_log._fair_share(sizes, total)
    assert sum(min(size, cap) for size in sizes) <= total
    assert sum(min(size, cap + 1) for size in sizes) > total or cap >= max(sizes, default=0)
    if sum(sizes) > total:
        assert cap == share


@pytest.mark.parametrize(
    ("stamped", "plain", "own_clock"), [(2, 4, True), (2, 5, False), (1, 0, False), (3, 0, True)]
)
def test_own_clocks_hold_where_a_third_of_the_lines_bears_one(
    stamped: int, plain: int, own_clock: bool
) -> None:
    texts = [*(f"2026-11-20 14:00:{n:02} INFO x" for n in range(stamped)), *["no clock"] * plain]
    found = replay_log._stamped([line("a", 5)._replace(text=text) for text in texts], 1_795_000_000.0)
    assert bool(found) is own_clock
    assert set(found) == (set(range(stamped)) if own_clock else set())


def test_clocks_that_go_back_are_not_believed() -> None:
    texts = ["2026-11-20 14:00:05 x", "2026-11-20 14:00:01 x", "2026-11-20 14:00:09 x"]
    assert replay_log._stamped([line("a", 5)._replace(text=text) for text in texts], 1_795_000_000.0) == {}


def read(path: Path, budget: int, lived: tuple[float, float] = (0.0, 1e10)) -> replay_log._Part:
    return replay_log._read(LogRef(1, "0", "stdout", path), budget, SampleTimes(()), {}, lived)


def test_of_a_long_log_the_newest_whole_lines_are_played(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\nsecond\nthird\n")
    assert [each.text for each in read(path, 19).lines] == ["first", "second", "third"]
    cut = read(path, 10).lines
    assert [(each.text, each.offset, each.end) for each in cut] == [("third", 13, 19)]
    assert read(tmp_path / "gone", 10).lines == []


@pytest.mark.parametrize("written_t", [100.0, 150.0, 200.0])
def test_the_last_write_dates_the_last_line_within_the_attempt(tmp_path: Path, written_t: float) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    os.utime(path, (written_t, written_t))
    assert read(path, 100, (100.0, 200.0)).known == {1: written_t}
    assert read(path, 100, (written_t + 1, written_t + 2)).known == {}, "a copied file"
    assert read(path, 100, (written_t - 2, written_t - 1)).known == {}


def test_an_event_dates_the_line_that_it_quotes(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run", ranks=1, gpus=0)
    rec.launch("first start")
    for text in ("loading", "boom", "bye"):
        rec.say(0, text)
    start = rec.t
    (log,) = tmp_path.rglob("stdout.log")
    os.utime(log, (1.0, 1.0))  # copied from elsewhere
    run = rec.close()
    path = str(log.relative_to(run.node().attempt(1).root))
    quote = EvidenceSeen(
        t=start + 30, attempt=1, failure=FailureClass.CODE_ERROR, role="cause", text="boom", path=path, line=2
    )
    events = [*facts_in(run.node().journal), quote]
    lines, _ = recorded_lines(run, run.node(), replay(events), [], events, start + 60)
    mine = {timed.line.text: timed.t for timed in lines if timed.line.path == str(log)}
    assert mine == {"loading": start + 30, "boom": start + 30, "bye": start + 60}

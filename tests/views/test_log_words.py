"""What a log's reader types and sees: places after a colon, whose a line is, how it is shown, in whose name a file stands."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from supervisor.run.paths import NodePaths
from supervisor.run.state import RankState, RunState
from supervisor.views.logs.reading import BadJumpError, LogAt, parse_jump
from supervisor.views.logs.sources import AGENT, Tone, logs_of, split_rank, tone_of
from tests.views.tui.still import attempt_of


@pytest.mark.parametrize(
    ("typed", "line"), [("812", 812), (":812", 812), (" 1,024 ", 1024), ("12 000", 12000), ("0", 1), ("1", 1)]
)
def test_a_number_is_a_line(typed: str, line: int) -> None:
    assert parse_jump(typed) == LogAt(line=line)


@pytest.mark.parametrize(
    ("typed", "step"), [("step 1200", 1200), ("step 1,200", 1200), (":step 12 000", 12000), ("step 7", 7)]
)
def test_a_step_is_named_as_such(typed: str, step: float) -> None:
    assert parse_jump(typed) == LogAt(step=step)


def local(*parts: int) -> datetime:
    """What a person types is local time."""
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001


@pytest.mark.parametrize(
    ("typed", "when", "has_day"),
    [
        ("14:52", local(2026, 11, 23, 14, 52), False), (":14:52:10", local(2026, 11, 23, 14, 52, 10), False),
        ("0:00", local(2026, 11, 23), False), ("2026-02-03 04:05", local(2026, 2, 3, 4, 5), True),
        ("2026-2-3T04:05:06", local(2026, 2, 3, 4, 5, 6), True),
    ],
)  # fmt: skip
def test_a_time_is_of_today_to_the_whole_second(
    monkeypatch: pytest.MonkeyPatch, typed: str, when: datetime, has_day: bool
) -> None:
    now = local(2026, 11, 23, 9, 30, 40, 250_000).timestamp()
    monkeypatch.setattr("supervisor.views.logs.reading.time.time", lambda: now)
    assert parse_jump(typed) == LogAt(t=when.timestamp(), is_any_day=not has_day)


@pytest.mark.parametrize("typed", ["", "here", "25:00", "14:61", "2026-13-01 10:00", "-4", "14:5"])
def test_what_names_no_place_is_refused_with_what_was_typed(typed: str) -> None:
    with pytest.raises(BadJumpError, match=f"^{typed}: "):
        parse_jump(typed)


@pytest.mark.parametrize(
    ("text", "who", "found"),
    [
        ("[rank3]: step 5", AGENT, ("3", "step 5")), ("[rank3]: step 5", "", ("3", "step 5")),
        ("[rank3]: step 5", "0", ("3", "step 5")), ("(RANK 2) step 5", AGENT, ("2", "(RANK 2) step 5")),
        ("10:00:00 WARNING [rank2] y", "", ("2", "10:00:00 WARNING [rank2] y")),
        ("10:00:00 WARNING [rank2] y", "1", None), ("step 5", AGENT, (AGENT, "step 5")),
        ("step 5", "", ("", "step 5")), ("step 5", "1", ("1", "step 5")),
        ("[default0]:step 5", "", ("0", "step 5")), ("[info] step 5", "1", ("1", "[info] step 5")),
    ],
)  # fmt: skip
def test_a_prefix_names_the_rank_that_wrote(text: str, who: str, found: tuple[str, str] | None) -> None:
    assert split_rank(text, who) == (found or (who, text))


@pytest.mark.parametrize(
    ("line", "tone"),
    [
        ("loss 2.1", Tone.PLAIN), ("Traceback (most recent call last):", Tone.BAD),
        ("ValueError: bad shape", Tone.BAD), ("RuntimeError", Tone.BAD), ("CUDA out of memory", Tone.BAD),
        ("UserWarning: slow", Tone.WARN), ("WARN retry", Tone.WARN),
        ("UserWarning: from ValueError: x", Tone.BAD), ("an error rate of 0.2 with no warning", Tone.PLAIN),
        ("." * 389 + " ValueError: bad", Tone.BAD), ("." * 390 + " ValueError: bad", Tone.PLAIN),
    ],
)  # fmt: skip
def test_the_tone_of_a_line_is_that_of_its_words(line: str, tone: Tone) -> None:
    assert tone_of(line) is tone


def test_each_file_of_an_attempt_is_listed_once_in_the_name_of_its_rank(tmp_path: Path) -> None:
    ranks = {
        0: RankState(local_rank=0, rank=8, stdout="all.log", stderr="8.err"),
        1: RankState(local_rank=1, stdout="all.log", stderr="9.err"),
        2: RankState(local_rank=2),
    }
    attempt = attempt_of(ranks=ranks)

    def listed(state: RunState) -> list[tuple[str, str, str, bool]]:
        return [
            (ref.who, ref.stream, ref.path.name, ref.is_mixed)
            for ref in logs_of(state, NodePaths(tmp_path), [attempt])
        ]

    launched = listed(RunState(attempts=(attempt,)))
    assert launched[0][:2] == (AGENT, AGENT)
    assert launched[1:] == [
        ("8", "stdout", "all.log", False),
        ("8", "stderr", "8.err", False),
        ("1", "stderr", "9.err", False),
    ]
    watched = listed(RunState(attempts=(attempt,), mode="observed"))
    assert watched[1:] == [
        ("8", "stdout", "all.log", False),
        ("8", "stderr", "8.err", False),
        ("", "stderr", "9.err", True),
    ]

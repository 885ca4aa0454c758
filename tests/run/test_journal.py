"""The journal: replay gives the live state; torn lines and strangers' lines cost only themselves."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.run import events as ev
from supervisor.run.fold import fold, replay
from supervisor.run.journal import JournalReader, JournalWriter, StateReader, facts_in, read_state
from supervisor.run.records import (
    Action,
    Cause,
    Consequence,
    Decision,
    DecisionKind,
    FailureClass,
    Finding,
    FindingLevel,
    Reason,
    SpecChange,
    Verdict,
)
from supervisor.run.state import Backoff, Ended, Finished, HeldOpen, Running, RunState, Stopping
from supervisor.views.wording.kinds import unread_text
from supervisor.views.wording.translate import english

TIMES = st.floats(1.7e9, 2e9, allow_nan=False)
ATTEMPTS = st.integers(1, 3)
TEXTS = st.text(max_size=30)
RANKS = st.none() | st.integers(0, 7)
LOSSES = st.none() | st.floats(0, 20, allow_nan=False)
BATCHES = st.builds(
    BatchSpec,
    micro_batch_per_rank=st.integers(1, 64),
    accumulation_steps=st.integers(1, 8),
    world_size=st.integers(1, 8),
)
VERDICTS = st.builds(
    Verdict,
    failure=st.sampled_from(FailureClass),
    reason=st.none() | st.sampled_from(Reason),
    confidence=st.floats(0, 1),
    rank=RANKS,
    ranks=st.lists(st.integers(0, 7), max_size=3).map(tuple),
    node=st.none() | TEXTS,
    title=TEXTS,
    cause=st.none() | st.builds(Cause, path=TEXTS, line=st.none() | st.integers(1, 99), text=TEXTS),
    consequences=st.lists(
        st.builds(
            Consequence,
            failure=st.sampled_from(FailureClass),
            rank=RANKS,
            path=TEXTS,
            line=st.none(),
            text=TEXTS,
        ),
        max_size=2,
    ).map(tuple),
    advice=st.lists(TEXTS, max_size=2).map(tuple),
    action=st.sampled_from(Action),
    fingerprint=TEXTS,
)
DECISIONS = st.builds(
    Decision,
    kind=st.sampled_from(DecisionKind),
    reason=TEXTS,
    delay_s=st.floats(0, 60),
    change=st.none()
    | st.builds(SpecChange, batch=st.none() | st.builds(BatchChange, before=BATCHES, after=BATCHES)),
    exit_code=st.none() | st.integers(0, 130),
)
EVENTS: st.SearchStrategy[ev.Event] = st.one_of(
    st.builds(ev.RunStarted, t=TIMES, run_id=TEXTS, name=TEXTS, mode=st.just("launched"), host=TEXTS),
    st.builds(
        ev.KeeperStarted,
        t=TIMES,
        pid=st.integers(1, 9),
        start_time=TIMES,
        version=TEXTS,
        adopted=st.booleans(),
    ),
    st.builds(ev.KeeperLeft, t=TIMES, why=TEXTS),
    st.builds(
        ev.PreflightFound,
        t=TIMES,
        finding=st.builds(Finding, level=st.sampled_from(FindingLevel), check=TEXTS, what=TEXTS),
    ),
    st.builds(
        ev.LaunchIntended,
        t=TIMES,
        attempt=ATTEMPTS,
        argv=st.just(("a", "b")),
        reason=TEXTS,
        batch=st.none() | BATCHES,
    ),
    st.builds(ev.AttemptStarted, t=TIMES, attempt=ATTEMPTS, pid=st.integers(1, 9), start_time=TIMES),
    st.builds(ev.RankStarted, t=TIMES, attempt=ATTEMPTS, local_rank=st.integers(0, 3), rank=RANKS),
    st.builds(ev.PhaseChanged, t=TIMES, attempt=ATTEMPTS, phase=st.sampled_from(ev.Phase)),
    st.builds(
        ev.Progress, t=TIMES, attempt=ATTEMPTS, step=st.none() | st.integers(0, 99), loss=LOSSES, lr=LOSSES
    ),
    st.builds(ev.TrainerReady, t=TIMES, attempt=ATTEMPTS, resumed_step=st.none() | st.integers(0, 99)),
    st.builds(ev.CheckpointCommitted, t=TIMES, attempt=ATTEMPTS, step=st.integers(0, 99), path=TEXTS),
    st.builds(
        ev.EvidenceSeen,
        t=TIMES,
        attempt=ATTEMPTS,
        failure=st.sampled_from(FailureClass),
        role=TEXTS,
        text=TEXTS,
        path=TEXTS,
    ),
    st.builds(
        ev.RankExited,
        t=TIMES,
        attempt=ATTEMPTS,
        local_rank=st.integers(0, 3),
        exit_code=st.none() | st.integers(-9, 9),
    ),
    st.builds(
        ev.StopIntended,
        t=TIMES,
        attempt=ATTEMPTS,
        why=st.sampled_from(ev.StopWhy),
        by=TEXTS,
        grace_s=st.floats(0, 60),
    ),
    st.builds(ev.StopStepTaken, t=TIMES, attempt=ATTEMPTS, step=st.sampled_from(ev.StopStep)),
    st.builds(
        ev.AttemptEnded,
        t=TIMES,
        attempt=ATTEMPTS,
        exit_code=st.none() | st.integers(-9, 9),
        rank_exit_codes=st.dictionaries(st.integers(0, 3), st.integers(-9, 9), max_size=2),
    ),
    st.builds(ev.Diagnosed, t=TIMES, attempt=ATTEMPTS, verdict=VERDICTS, provisional=st.booleans()),
    st.builds(ev.Decided, t=TIMES, attempt=ATTEMPTS, decision=DECISIONS),
    st.builds(ev.BackoffStarted, t=TIMES, attempt=ATTEMPTS, until=TIMES, delay_s=st.floats(0, 60)),
    st.builds(ev.Held, t=TIMES, attempt=ATTEMPTS, reason=TEXTS),
    st.builds(ev.RequestDone, t=TIMES, request_id=TEXTS, request=st.sampled_from(ev.RequestKind), by=TEXTS),
    st.builds(ev.RequestRefused, t=TIMES, request_id=TEXTS, request=TEXTS, by=TEXTS, reason=TEXTS),
    st.builds(ev.Advisory, t=TIMES, attempt=ATTEMPTS, code=TEXTS, text=TEXTS),
    st.builds(ev.NoteAdded, t=TIMES, text=TEXTS, by=TEXTS),
    st.builds(
        ev.RunEnded, t=TIMES, outcome=st.sampled_from(ev.Outcome), exit_code=st.integers(0, 130), reason=TEXTS
    ),
)


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=150, deadline=None)
def test_replaying_a_journal_gives_exactly_the_live_state(
    tmp_path_factory: object, events: list[ev.Event]
) -> None:
    path = Path(str(tmp_path_factory.mktemp("journal"))) / "events.jsonl"  # type: ignore[attr-defined]
    writer = JournalWriter(path)
    live = RunState()
    for event in events:
        writer.append(event)
        live = fold(live, event)
    writer.close()
    assert read_state(path) == live
    assert msgspec.json.encode(read_state(path)) == msgspec.json.encode(live)


@given(st.lists(EVENTS, min_size=1, max_size=12), st.integers(0, 400))
@settings(max_examples=60, deadline=None)
@pytest.mark.fault(
    "journal and disk",
    "the journal is cut at any byte",
    "read up to the cut; new events follow on a line of their own",
)
def test_a_cut_journal_is_read_up_to_the_cut_and_goes_on(
    tmp_path_factory: object, events: list[ev.Event], cut: int
) -> None:
    path = Path(str(tmp_path_factory.mktemp("journal"))) / "events.jsonl"  # type: ignore[attr-defined]
    writer = JournalWriter(path)
    for event in events:
        writer.append(event)
    writer.close()
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    whole = data[: max(0, len(data) - cut)].count(b"\n")
    again = JournalWriter(path)
    again.append(ev.NoteAdded(t=1.0, text="after the cut", by="x"))
    again.close()
    state = read_state(path)
    kept = [*events[:whole], ev.NoteAdded(t=1.0, text="after the cut", by="x")]
    expected = replay(kept)
    half = int(bool(data[: max(0, len(data) - cut)]) and not data[: max(0, len(data) - cut)].endswith(b"\n"))
    # A cut that took only the newline leaves a whole fact behind.
    full = replay([*events[: whole + half], ev.NoteAdded(t=1.0, text="after the cut", by="x")])
    assert msgspec.structs.replace(state, unknown_events=0) in (expected, full)


@pytest.mark.fault("journal and disk", "events of a newer version", "passed over and counted")
def test_unknown_kinds_are_counted_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b'{"kind":"from_the_future","t":1.0}\nnot json\n{"kind":"note_added","t":2.0,"text":"hi","by":"me"}\n'
    )
    state = read_state(path)
    assert state.unknown_events == 2
    assert [english.moment(m) for m in state.timeline] == ["note: hi"]


HUGE = b"9" * 400


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"progress","t":1795989796.5,"attempt":1,"step":%s,"loss":1.5}',
        b'{"kind":"progress","t":1795989796.5,"attempt":1,"step":3,"total_steps":-%s}',
        b'{"kind":"progress","t":1795989796.5,"attempt":1,"step":3,"lows":[[%s,1.5]]}',
        b'{"kind":"from_the_future","v":%s,"t":1.0}',
        b'{"kind":"note_added","v":%s,"t":1.0,"text":"x","by":"me"}',
    ],
    ids=["step", "total", "pair", "unknown", "version"],
)
@pytest.mark.parametrize("number", [HUGE, b"18446744073709551616"], ids=["400", "20"])
def test_an_event_with_an_integer_beyond_64_bits_is_passed_over_and_counted(
    tmp_path: Path, line: bytes, number: bytes
) -> None:
    path = tmp_path / "events.jsonl"
    whole = b'{"kind":"progress","t":1795989797.5,"attempt":1,"step":9223372036854775807,"loss":1.5}'
    path.write_bytes(line % number + b"\n" + whole + b"\n")
    state = read_state(path)
    assert (state.unknown_events, state.newer_version) == (1, None)
    assert state.progress is not None
    assert state.progress.step == 2**63 - 1


def test_a_half_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = JournalReader(path)
    assert reader.read() == []
    line = b'{"kind":"note_added","t":2.0,"text":"hi","by":"me"}\n'
    path.write_bytes(line + line[:10])
    assert len(reader.read()) == 1
    with path.open("ab") as file:
        file.write(line[10:])
    assert len(reader.read()) == 1
    assert reader.read() == []


@pytest.mark.fault(
    "journal and disk", "the journal is replaced while it is read", "read again from its start"
)
def test_a_replaced_journal_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = b'{"kind":"note_added","t":2.0,"text":"%s","by":"me"}\n'
    path.write_bytes(line % b"one" + line % b"two")
    reader = StateReader(path)
    reader.refresh()
    other = tmp_path / "other"
    other.write_bytes(line % b"three")
    other.replace(path)
    reader.refresh()
    assert [english.moment(m) for m in reader.state.timeline] == ["note: three"]


def test_states_follow_a_run_that_restarts_and_ends() -> None:
    batch = BatchSpec(16, 2, 2)
    verdict = Verdict(
        FailureClass.CUDA_OOM, None, 0.99, 1, (), None, "rank 1", None, (), (), Action.REDUCE_BATCH, "f"
    )
    decision = Decision(DecisionKind.RESTART, "smaller", 3.0, SpecChange())
    state = replay(
        [
            ev.RunStarted(t=1, run_id="r", name="n", mode="launched", host="h", total_steps=10),
            ev.LaunchIntended(t=2, attempt=1, argv=("x",), reason="first", batch=batch),
            ev.AttemptStarted(t=3, attempt=1, pid=5, start_time=1.0),
        ]
    )
    assert state.condition == Running(attempt=1, phase=ev.Phase.RENDEZVOUS)
    state = fold(state, ev.Progress(t=4, attempt=1, step=3, loss=2.0))
    assert state.condition == Running(attempt=1, phase=ev.Phase.STEPPING)
    state = fold(state, ev.Progress(t=5, attempt=1, step=4, lr=0.1))
    assert state.progress is not None
    assert (state.progress.loss, state.progress.lr, state.progress.step) == (2.0, 0.1, 4)
    state = fold(state, ev.StopIntended(t=6, attempt=1, why=ev.StopWhy.RANK_DIED, by="keeper", grace_s=5))
    assert isinstance(state.condition, Stopping)
    for event in (
        ev.AttemptEnded(t=7, attempt=1, exit_code=1, last_step=4),
        ev.Diagnosed(t=8, attempt=1, verdict=verdict),
        ev.Decided(t=8, attempt=1, decision=decision),
        ev.BackoffStarted(t=8, attempt=1, until=11, delay_s=3.0),
    ):
        state = fold(state, event)
    assert state.condition == Backoff(attempt=1, until=11, decision=decision, delay_s=3.0)
    assert isinstance(fold(state, ev.Held(t=9, attempt=1, reason="asked")).condition, HeldOpen)
    state = fold(state, ev.LaunchIntended(t=11, attempt=2, argv=("x",), reason="smaller"))
    assert state.progress is None, "what attempt 1 said is not attempt 2's progress"
    state = fold(state, ev.RunEnded(t=12, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="done"))
    assert state.condition == Finished(outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="done")
    assert state.attempts[0].last_loss == 2.0
    assert state.best_loss is not None
    assert math.isclose(state.best_loss, 2.0)


@pytest.mark.fault("journal and disk", "a journal of days", "read to its end in bounded pieces")
def test_a_journal_of_days_is_read_to_its_end(tmp_path: Path) -> None:
    """One read takes 16 MiB: what failed last stands behind that."""
    path = tmp_path / "events.jsonl"
    padding = b'{"kind":"note_added","t":1.0,"text":"' + b"x" * 1000 + b'","by":"kim"}\n'
    path.write_bytes(padding * 17_000)
    writer = JournalWriter(path)
    writer.append(ev.RunEnded(t=2.0, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="done"))
    writer.close()
    count, last = 0, None
    for fact in facts_in(path):
        count, last = count + 1, fact
    assert count == 17_001
    assert isinstance(last, ev.RunEnded)


def test_while_logs_are_read_the_attempt_has_not_ended_and_its_time_is_the_jobs() -> None:
    state = replay([
        ev.RunStarted(t=1, run_id="r", name="n", mode="launched", host="h"),
        ev.LaunchIntended(t=2, attempt=1, argv=(), reason="first launch"),
        ev.AttemptStarted(t=3, attempt=1, pid=5, start_time=1.0),
        ev.Progress(t=4, attempt=1, step=3, loss=2.0),
        ev.ProcessesGone(t=5, attempt=1, exit_code=1),
    ])  # fmt: skip
    assert state.condition == Ended(attempt=1, exit_code=1)
    assert state.attempts[0].reads_on
    assert (state.attempts[0].exit_code, state.attempts[0].ended_t) == (1, None)
    state = fold(state, ev.Progress(t=65, attempt=1, lag_bytes=480_000_000, log_bytes=600_000_000))
    assert state.progress is not None
    assert (state.progress.t, state.progress.step) == (4, 3), "how far it was read is no progress of the job"
    assert unread_text(state.progress) == "log read to 120 of 600 MB"
    state = fold(state, ev.Progress(t=66, attempt=1, step=4))
    assert state.progress is not None
    assert (state.progress.t, state.progress.loss, unread_text(state.progress)) == (66, 2.0, "")
    over = ev.AttemptEnded(
        t=70, attempt=1, exit_code=1, last_step=4, log_read_bytes=450_000_000, log_size_bytes=600_000_000
    )
    state = fold(state, over)
    assert not state.attempts[0].reads_on
    assert state.attempts[0].ended_t == 5
    assert unread_text(state.attempts[0]) == "log read to 450 of 600 MB"
    assert english.moment(state.timeline[-1]) == "attempt 1 ended, exit 1, log read to 450 of 600 MB"

"""The journal: replay gives the live state; torn lines and strangers' lines cost only themselves."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.fold import fold
from supervisor.run.journal import JournalReader, JournalWriter, StateReader, facts_in, read_state
from supervisor.run.state import RunState
from supervisor.views.wording.translate import english
from tests.recorded.old_versions import ARCHIVE


def test_what_is_written_is_read_and_folds_as_it_did(tmp_path: Path) -> None:
    """Each kind of event, as all versions wrote them."""
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(tmp_path, filter="data")
    for number, old in enumerate(sorted(tmp_path.glob("*/every/nodes/0/events.jsonl"))):
        writer, live = JournalWriter(tmp_path / f"{number}.jsonl"), RunState()
        for event in facts_in(old):
            writer.append(event)
            live = fold(live, event)
        writer.close()
        assert [*facts_in(tmp_path / f"{number}.jsonl")] == [*facts_in(old)]
        assert read_state(tmp_path / f"{number}.jsonl") == live


@pytest.mark.fault("journal and disk", "events of a newer version", "passed over and counted")
def test_unknown_kinds_are_counted_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b'{"kind":"from_the_future","t":1.0}\nnot json\n{"kind":"note_added","t":2.0,"text":"hi","by":"me"}\n'
    )
    state = read_state(path)
    assert (state.newer_version, state.unknown_events) == (None, 2)
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

"""Flight-recorder dumps: plain data is read, anything else is refused before a byte of it is run; whose dump counts."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from supervisor.sources.stacks import collective_records as module
from supervisor.sources.stacks.collective_records import (
    SAME_INCIDENT_S,
    BadDump,
    dumps_of_job,
    find_dumps,
    read_dump,
)

DUMP = {
    "version": "2.10",
    "entries": [{"seq": 1, "sizes": [[2, 3]], "done": True, "t": 1.5}],
    "pg": {"0": ()},
}


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickle.dumps(Evil()), "it holds the instruction"),
        (pickle.dumps([1]), "no table"),
        (b"[1]", "neither JSON nor a pickle|it holds"),
        (b"{", "neither JSON nor a pickle"),
        (b"", "neither JSON nor a pickle"),
        (b"\x80\x04}r\x00\x00\x00\x70.", "its memo has holes"),
        # Read by the unpickler, the number ends with its frame, and its rest is instructions: these stored at 1.9 billion.
        (
            b"\x80\x04\x95\x04\x00\x00\x00\x00\x00\x00\x00}\x8a\x06r\x00\x00\x00\x70.0.",
            "crosses the end of its frame",
        ),
        (b"\x80\x04\x95\x14" + bytes(7) + b"\x95\x02" + bytes(7) + b"}.", "crosses the end of its frame"),
        (b"\x80\x04.", "a broken pickle"),
    ],
)
def test_what_is_no_plain_data_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadDump, match=why):
        read_dump(data)


def test_what_is_too_large_or_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(DUMP)
    monkeypatch.setattr(module, "MAX_BYTES", len(data))
    assert read_dump(data) == DUMP
    monkeypatch.setattr(module, "MAX_BYTES", len(data) - 1)
    with pytest.raises(BadDump, match="larger than"):
        read_dump(data)
    monkeypatch.undo()
    short = pickle.dumps({}, protocol=2)  # PROTO, EMPTY_DICT, BINPUT, STOP
    monkeypatch.setattr(module, "MAX_INSTRUCTIONS", 4)
    assert read_dump(short) == {}
    monkeypatch.setattr(module, "MAX_INSTRUCTIONS", 3)
    with pytest.raises(BadDump, match="too long"):
        read_dump(short)


def test_the_newest_dump_of_each_rank_since_the_attempt_began(tmp_path: Path) -> None:
    for name, t in (
        ("a/fr_0", 100),
        ("b/fr_0", 200),
        ("a/fr_1", 99),
        ("a/fr_10.json", 150),
        ("a/fr_x", 150),
        ("a/other_2", 150),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
        os.utime(path, (t, t))
    (tmp_path / "a" / "fr_3").mkdir()
    (tmp_path / "a" / "fr_4").symlink_to(tmp_path / "b" / "fr_0")
    prefixes = (str(tmp_path / "b/fr_"), str(tmp_path / "a/fr_"), str(tmp_path / "none/fr_"))
    found = find_dumps(prefixes, since_t=100.0)
    assert found == {0: tmp_path / "b/fr_0", 10: tmp_path / "a/fr_10.json"}
    assert list(found) == [0, 10]
    assert list(find_dumps(prefixes, since_t=100.5)) == [0, 10]
    assert list(find_dumps(prefixes, since_t=151.0)) == [0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_dump_of_somebody_else_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "fr_0"
    path.write_text("{}")
    os.chown(path, 65_534, 65_534)
    assert find_dumps((str(tmp_path / "fr_"),), since_t=0.0) == {}


def test_of_a_folder_the_dumps_of_the_newest_incident(tmp_path: Path) -> None:
    content = pickle.dumps({"version": "2.10", "pg_config": {}, "entries": []}, protocol=2)
    now = 1_000_000.0
    for name, t in (
        ("old/_dump_0", now - SAME_INCIDENT_S - 1),
        ("old/_dump_7", now - SAME_INCIDENT_S - 1),
        ("_dump_0", now),
        ("_dump_1", now - SAME_INCIDENT_S),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (t, t))
    found = dumps_of_job(str(path) for path in tmp_path.rglob("*") if path.is_file())
    assert found == {0: tmp_path / "_dump_0", 1: tmp_path / "_dump_1"}

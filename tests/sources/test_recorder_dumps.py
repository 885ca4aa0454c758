"""Flight-recorder dumps: plain data is read, anything else is refused before a byte of it is run; whose dump counts."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from supervisor.sources.stacks import collective_records as module
from supervisor.sources.stacks.collective_records import (
    SAME_INCIDENT_S,
    BadDump,
    DumpFiles,
    dump_prefixes,
    dumps_of_job,
    find_dumps,
    load_dumps,
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
            b"\x80\x04\x95\x04\x00\x00\x00\x00\x00\x00\x00}\x8a\x06r\x00\x00\x00\x70.N.",
            "crosses the end of its frame",
        ),
        (b"\x80\x04\x95\x14" + bytes(7) + b"\x95\x02" + bytes(7) + b"}.", "crosses the end of its frame"),
        # The number lies behind its frame by one byte.
        (b"\x80\x04\x95\x02" + bytes(7) + b"}K\x01K\x02s.", "crosses the end of its frame"),
        (b"\x80\x04.", "a broken pickle"),
    ],
)
def test_what_is_no_plain_data_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadDump, match=why):
        read_dump(data)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_read_as_every_protocol_writes_it(protocol: int) -> None:
    shared = ["shared"]
    data: dict[str, Any] = {
        "numbers": [0, 1, 300, 70_000, -70_000, 1 << 40, 1 << 3000, 2.5, None, True, False],
        "texts": ["", "short", "é" * 300, shared, shared],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, {"one": 1}, ["one"]],
        "many": [str(number) * 40 for number in range(2000)],  # several frames, and a long memo
    }
    data["again"] = data["many"][-3:]
    if protocol >= 3:
        data["bytes"] = [b"short", b"long" * 100]
    if protocol >= 4:
        data["sets"] = [set(), {1, 2}, frozenset({3})]
    assert read_dump(pickle.dumps(data, protocol)) == data


def test_a_dump_may_be_json() -> None:
    assert read_dump(b' {"entries": []}') == {"entries": []}


def test_a_dump_that_cannot_be_read_is_told_and_reads_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in (("0", pickle.dumps({"a": 1})), ("1", b"{"), ("2", pickle.dumps({"b": 2}))):
        (tmp_path / name).write_bytes(data)
    paths = {rank: tmp_path / str(rank) for rank in range(4)}
    found, trouble = load_dumps(paths)
    assert found == {0: {"a": 1}, 2: {"b": 2}}
    assert [line.partition(": ")[0] for line in trouble] == [str(paths[1]), str(paths[3])]
    assert all(line.partition(": ")[2] for line in trouble)
    dumps = DumpFiles(paths)
    assert (list(dumps), len(dumps)) == ([0, 1, 2, 3], 4)
    assert dict(dumps) == {0: {"a": 1}, 1: {}, 2: {"b": 2}, 3: {}}
    size = len(pickle.dumps({"a": 1}))
    monkeypatch.setattr(module, "MAX_TOTAL_BYTES", 2 * size)
    dumps = DumpFiles({0: paths[0], 2: paths[2], 4: paths[0]})
    assert list(dumps.values()) == [{"a": 1}, {"b": 2}, {}], "more than all dumps of a job may hold"
    monkeypatch.setattr(module, "MAX_TOTAL_BYTES", 2 * size - 1)
    assert list(DumpFiles({0: paths[0], 2: paths[2]}).values()) == [{"a": 1}, {}]


def test_dumps_are_looked_for_where_the_job_writes_them() -> None:
    last = "/tmp/nccl_trace_rank_"
    cache = "torch/comm_lib_trace_rank_"
    assert dump_prefixes({"HOME": "/home/kim"}) == (f"/home/kim/.cache/{cache}", last)
    assert dump_prefixes({}) == (f"/.cache/{cache}", last)
    named = {
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/b_",
        "TORCH_FR_DUMP_TEMP_FILE": "/a_",
        "HOME": "/h",
        "XDG_CACHE_HOME": "/c",
    }
    assert dump_prefixes(named) == ("/a_", "/b_", f"/c/{cache}", last)
    assert dump_prefixes({"TORCH_FR_DUMP_TEMP_FILE": "", "XDG_CACHE_HOME": "/c"}) == (f"/c/{cache}", last)


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

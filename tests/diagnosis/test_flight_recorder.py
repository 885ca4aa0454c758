"""Flight-recorder dumps and NCCL's RAS: read as data, whatever they hold; who did not come.

Neither NCCL nor its dumps exist here: the dumps are PyTorch 2.13's own on gloo, the report is that of NCCL's guide.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.hang.flight_recorder import stuck_collective
from supervisor.diagnosis.hang.ras_report import read_ras
from supervisor.sources.stacks.nccl_ras import query_ras, ras_address
from supervisor.sources.stacks.recorder_dumps import BadDump, dump_prefixes, find_dumps, load_dumps, read_dump

REPORT = """NCCL version 2.24.3 compiled with CUDA 12.5

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 6650
  1 ranks have launched up to operation 6649
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
"""
NEWER = """#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1
"""


def entry(seq: int, op: str = "nccl:all_reduce", *, line: int = 12) -> dict[str, Any]:
    """What torch._C._distributed_c10d._dump_fr_trace() gave for one collective (version 2.10), shortened."""
    return {
        "frames": [
            {
                "name": "all_reduce",
                "filename": "/v/site-packages/torch/distributed/distributed_c10d.py",
                "line": 3245,
            },
            {"name": "step", "filename": "/job/train.py", "line": line},
        ],
        "record_id": seq - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": op,
        "time_created_ns": 1_000 * seq,
        "state": "scheduled",
        "is_p2p": False,
    }


def dump(last: int, *, first: int = 1) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return {"version": "2.10", "pg_config": config, "entries": [entry(seq) for seq in range(first, last + 1)]}


def test_the_rank_that_did_not_come_is_named_with_the_collective_and_its_line() -> None:
    found = stuck_collective({0: dump(412, first=400), 1: dump(411, first=400), 2: dump(412, first=400)})
    assert found is not None
    assert (found.seq, found.op, found.missing, found.came) == (412, "all_reduce", (1,), (0, 2))
    assert found.text == "all_reduce 412 of default_pg: rank 1 did not come, called at train.py:12"
    assert stuck_collective({0: dump(7), 1: dump(7)}) is None


def test_a_rank_without_any_entry_never_came() -> None:
    silent = {**dump(0), "entries": []}
    found = stuck_collective({0: dump(1), 1: dump(1), 2: silent})
    assert found is not None
    assert found.missing == (2,)


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch PWNED",)


HOSTILE = {
    "reduce": pickle.dumps({"entries": [_Hostile()]}),
    "reduce-0": pickle.dumps({"entries": [_Hostile()]}, protocol=0),
    "global": pickle.dumps({"entries": [os.getcwd]}),
    "persistent": b"\x80\x02Pid\n.",
    "inst": b"(S'touch PWNED'\nios\nsystem\n.",
    "ext": b"\x80\x02\x82\x01.",
    "memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "huge": b"\x80\x04\x8d" + (1 << 62).to_bytes(8, "little") + b"x.",
    "list": pickle.dumps([1, 2]),
    "cut": pickle.dumps(dump(3))[:-9],
    "deep json": b'{"a":' + b"[" * 100_000,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_dump_runs_nothing(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadDump):
        read_dump(data)
    assert not list(tmp_path.iterdir())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_dump_or_refused(data: bytes) -> None:
    for start in (b"", b"\x80\x02", b"{"):
        try:
            read_dump(start + data)
        except BadDump:
            continue


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_plain_table_can_be_analysed(value: Any) -> None:
    stuck_collective(
        {0: {"entries": value, "pg_config": value}, 1: {"entries": [value, {"collective_seq_id": value}]}}
    )


def test_pickled_and_json_dumps_are_found_by_rank_and_age(tmp_path: Path) -> None:
    prefix = tmp_path / "trace_rank_"
    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps(dump(5)))
    (tmp_path / "trace_rank_1").write_text(json.dumps(dump(4)), encoding="utf-8")
    (tmp_path / "trace_rank_2").write_bytes(HOSTILE["reduce"])
    (tmp_path / "trace_rank_3").write_bytes(b"old")
    os.utime(tmp_path / "trace_rank_3", (1, 1))
    prefixes = dump_prefixes(
        {"TORCH_FR_DUMP_TEMP_FILE": str(prefix), "XDG_CACHE_HOME": str(tmp_path / "none")}
    )
    paths = {
        rank: path for rank, path in find_dumps(prefixes, since_t=1000.0).items() if path.parent == tmp_path
    }
    assert sorted(paths) == [0, 1, 2]
    dumps, trouble = load_dumps(paths)
    assert sorted(dumps) == [0, 1]
    assert "GLOBAL" in trouble[0]
    found = stuck_collective(dumps)
    assert found is not None
    assert found.missing == (1,)


def test_ras_names_who_launched_less() -> None:
    (lag,) = read_ras(REPORT)
    assert (lag.ranks, lag.launched, lag.others_launched) == ((3,), 6649, 6650)
    (newer,) = read_ras(NEWER)
    assert newer.text == "NCCL: rank 7 launched AllReduce 60, the others 64"
    assert read_ras("nothing of the kind") == ()


def test_ras_is_asked_in_its_own_words_and_strangers_are_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked: list[bytes] = []

        def serve() -> None:
            for answer in (REPORT.encode(), b"HTTP/1.1 400 Bad Request\r\n\r\n"):
                link, _ = server.accept()
                with link:
                    asked.append(link.recv(100))
                    link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = ("127.0.0.1", int(server.getsockname()[1]))
        assert query_ras(address) == REPORT
        assert query_ras(address) is None
        thread.join(5)
    assert asked[0] == b"verbose status\n"
    assert query_ras(address) is None, "nobody listens there any more"


def test_the_address_is_nccls_own() -> None:
    assert ras_address({}) == ("localhost", 28028)
    assert ras_address({"NCCL_RAS_ADDR": "10.0.0.1:99"}) == ("10.0.0.1", 99)
    assert ras_address({"NCCL_RAS_ENABLE": "0"}) is None

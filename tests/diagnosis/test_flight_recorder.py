"""Flight-recorder dumps and NCCL's RAS: read as data, whatever they hold; who did not come.

Neither NCCL nor its dumps exist here: the dumps are PyTorch 2.13's own on gloo, the report is that of NCCL's guide.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.hang.stuck_collectives import (
    ranks_at_fault,
    read_ras,
    stuck_collectives,
    stuck_text,
)
from supervisor.sources.stacks.collective_records import (
    BadDump,
    DumpFiles,
    dumps_of_job,
    query_ras,
    ras_address,
    read_dump,
)

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


def grouped(
    group: tuple[str, str],
    ranks: list[int],
    pending: list[int],
    *,
    done: int | None = None,
    op: str = "all_reduce",
) -> dict[str, Any]:
    """A dump of what is active, in one of several groups: `pending` numbers wait, `done` is the last that ended."""
    row = {"last_enqueued_collective": max([*pending, done or 0]), "last_completed_collective": done}
    entries = [
        {**entry(seq, f"nccl:{op}"), "process_group": group, "pg_id": int(group[0])} for seq in pending
    ]
    config = {group[0]: {"name": group[0], "desc": group[1], "ranks": str(ranks)}}
    return {"pg_config": config, "pg_status": {group[0]: row} if done is not None else {}, "entries": entries}


def joined(*parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "pg_config": {key: value for part in parts for key, value in part["pg_config"].items()},
        "pg_status": {key: value for part in parts for key, value in part["pg_status"].items()},
        "entries": [item for part in parts for item in part["entries"]],
    }


def test_the_rank_that_did_not_come_is_named_with_the_collective_and_its_line() -> None:
    (found,) = stuck_collectives({0: dump(412, first=400), 1: dump(411, first=400), 2: dump(412, first=400)})
    assert (found.seq, found.op, found.missing, found.came) == (412, "all_reduce", (1,), (0, 2))
    assert found.text == "all_reduce 412 of default_pg: rank 1 did not come, called at train.py:12"


def test_where_all_came_no_rank_is_named() -> None:
    (found,) = stuck_collectives({0: dump(7), 1: dump(7), 2: dump(7)})
    assert found.missing == ()
    assert (
        found.text == "all_reduce 1 of default_pg: all ranks came, and it does not end, called at train.py:12"
    )
    assert stuck_collectives({0: dump(7), 1: dump(7)}) == (), "of rank 2 there is no dump: it may be anywhere"


def test_a_rank_without_any_entry_never_came() -> None:
    silent = {**dump(0), "entries": []}
    assert ranks_at_fault(stuck_collectives({0: dump(1), 1: dump(1), 2: silent})) == (2,)


def test_who_waits_elsewhere_only_passes_the_wait_on() -> None:
    """Rank 1 is late in the data-parallel group because it waits for rank 2 in its tensor-parallel one."""
    data, tensor = ("1", "DATA"), ("2", "TENSOR")
    found = stuck_collectives(
        {
            0: grouped(data, [0, 1], [8], done=7),
            1: joined(grouped(data, [0, 1], [], done=7), grouped(tensor, [1, 2], [31], done=30)),
            2: grouped(tensor, [1, 2], [], done=30),
        }
    )
    assert ranks_at_fault(found) == (2,)


def test_a_rank_that_did_not_finish_what_others_finished_is_at_fault() -> None:
    group = ("1", "DATA")
    dumps = {
        0: grouped(group, [0, 1], [6, 7], done=5),
        1: grouped(group, [0, 1], [4, 5, 6, 7], done=3),
    }
    (found,) = stuck_collectives(dumps)
    assert (found.missing, found.seq, found.unfinished) == ((1,), 4, True)
    assert "rank 1 did not finish it, others did" in found.text
    # A broadcast is over for its source before it is for the others.
    for one in dumps.values():
        one["entries"] = [{**item, "profiling_name": "nccl:broadcast"} for item in one["entries"]]
    assert ranks_at_fault(stuck_collectives(dumps)) == ()


def test_different_collectives_under_one_number_are_named_as_such() -> None:
    group = ("0", "default_pg")
    found = stuck_collectives(
        {
            0: grouped(group, [0, 1, 2], [5], done=4),
            1: grouped(group, [0, 1, 2], [5], done=4, op="all_gather"),
            2: grouped(group, [0, 1, 2], [5], done=4),
        }
    )
    assert ranks_at_fault(found) == (1,)
    assert "rank 1 called all_gather instead" in stuck_text(found)


def fault_of(folder: Path) -> tuple[int, ...]:
    """The ranks that NVIDIA injected the fault into."""
    return tuple(json.loads((folder / "fault_injection.log").read_text().splitlines()[0].partition(": ")[2]))


@pytest.fixture(scope="module")
def nvrx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvrx")
    with tarfile.open(Path(__file__).parents[1] / "corpus" / "data" / "nvrx_fr_traces.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return folder / "fr_traces"


@pytest.mark.parametrize("fault", ["gpu_error_1st", "gpu_error_2nd", "lock_gil_1st", "lock_gil_2nd"])
def test_the_ranks_of_an_injected_fault(fault: str, nvrx: Path) -> None:
    """Megatron on 16 ranks with tensor, pipeline, expert and data parallelism, two ranks hurt in each run."""
    found = stuck_collectives(DumpFiles(dumps_of_job(map(str, (nvrx / fault).iterdir()))))
    assert ranks_at_fault(found) == fault_of(nvrx / fault)


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


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_plain_table_can_be_analysed(value: Any) -> None:
    stuck_collectives(
        {0: {"entries": value, "pg_config": value}, 1: {"entries": [value, {"collective_seq_id": value}]}}
    )


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

"""Where a process's records go and what each holds, and the stacks that a rank dumps on a signal; without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.instrument.child import asked_of, run

BEGIN = "import argparse, os, sys\nmodule = sys.modules['_stoker_instrument.wire']; wire = module.wire\n"
WRITES = """
os.umask(0)
wire.record("early", name="x", nothing=None)
wire.start_reporting(timeout_s=1800.0); wire.start_reporting()
wire.writers.append(lambda: wire.record("flushed"))
wire.step = 7
"""


def kinds(records: list[dict[str, Any]]) -> list[str]:
    return [record["kind"] for record in records]


def test_records_are_whole_and_lie_where_their_rank_and_owner_alone_read_them(tmp_path: Path) -> None:
    ranks: dict[str, Any] = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}
    telemetry = tmp_path / "telemetry"
    telemetry.mkdir()
    done = run(["-c", BEGIN + WRITES, "--batch=4"], tmp_path, **ranks)
    assert (done.code, done.out, done.err) == (0, "", "")
    modes = [
        path.stat().st_mode & 0o777 for path in (telemetry / "measured3.jsonl", telemetry / "instrumented")
    ]
    assert modes == [0o600, 0o700]
    phase, setting, early, flushed, end = done.records
    common = [(record.pop("v"), record.pop("rank")) for record in done.records]
    times = [(record.pop("t_wall") > 1.7e9, record.pop("t_mono") > 0) for record in done.records]
    assert (common, times) == ([(1, 3)] * 5, [(True, True)] * 5)
    assert (phase.pop("pid") > 1, phase.pop("argv")[-1]) == (True, "--batch=4")
    assert phase == {
        "kind": "phase",
        "phase": "loading",
        "world_size": 8,
        "local_world_size": 2,
        "timeout_s": 1800.0,
    }
    value = {"type": "str", "empty": False, "value": 4, "words": ["--batch"], "given": True}
    assert setting == {"kind": "setting", "by": "argv", "name": "batch", **value}
    assert (early, flushed) == ({"kind": "early", "name": "x"}, {"kind": "flushed"})
    assert end == {"kind": "exit", "step": 7, "passes": 0, "reason": "done"}


WORKER = """
import types
data = sys.modules["torch.utils.data"] = types.ModuleType("data")
data.get_worker_info = lambda: 1
wire.start_reporting(); wire.record("worker")
"""
SAID: dict[str, tuple[str, list[str]]] = {
    "bounded": ("for n in range(2010): wire.record('early')\nwire.start_reporting()", ["phase", *["early"] * 2000, "exit"]),
    "not training": ("wire.record('early')", []),
    "a fork of one that reports": ("wire.start_reporting()\nif os.fork(): os.wait()\nelse: wire.record('child')", ["phase", "exit"]),
    "a fork that reports": ("if os.fork(): os.wait()\nelse: wire.start_reporting()", ["phase", "exit"]),
    "a data worker": (WORKER, []),
}  # fmt: skip


@pytest.mark.parametrize(("script", "said"), SAID.values(), ids=SAID)
def test_a_process_that_does_not_train_writes_nothing(tmp_path: Path, script: str, said: list[str]) -> None:
    done = run(["-c", BEGIN + script], tmp_path)
    assert (done.code, done.err) == (0, "")
    assert kinds(done.records) == said


FAILS = """
wire.start_reporting()
def look(args, kwargs):
    1 // 0
module.watch(os, "getpgid", look)
for _ in range(25): os.getpgid(0)
wire.record("later")
"""


def test_after_twenty_errors_of_its_own_it_stops_measuring(tmp_path: Path) -> None:
    done = run(["-c", BEGIN + FAILS], tmp_path)
    assert (done.code, done.err) == (0, "")
    assert kinds(done.records) == ["phase", *["note"] * 20]
    line = (BEGIN + FAILS).split("\n").index("    1 // 0") + 1
    told = [(record["code"], record["where"]) for record in done.records[1:]]
    assert told == [("ZeroDivisionError", f"getpgid:{line}")] * 20


def test_a_large_file_is_set_aside_once(tmp_path: Path) -> None:
    script = (
        "module.MAX_FILE_BYTES = 400; wire.start_reporting()\nfor n in range(40): wire.record('more', n=n)"
    )
    done = run(["-c", BEGIN + script], tmp_path)
    assert done.code == 0
    files = sorted((tmp_path / "telemetry").glob("measured*"))
    assert [path.name for path in files] == ["measured0.jsonl", "measured0.jsonl.1"]
    assert 400 < files[1].stat().st_size < 800
    assert [record["n"] for record in done.records if "n" in record][-1] < 40


PLACES: list[tuple[dict[str, str], tuple[int, int | None]]] = [
    ({}, (0, None)),
    ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (3, 8)),
    ({"LOCAL_RANK": "1", "SLURM_PROCID": "5", "SLURM_STEP_ID": "0"}, (1, None)),
    ({"RANK": "x", "SLURM_PROCID": "5", "SLURM_STEP_ID": "0", "WORLD_SIZE": "x"}, (5, None)),
    ({"SLURM_PROCID": "5", "SLURM_STEP_ID": "0", "STOKER_SLURM_STEP": "0:5"}, (0, None)),
    ({"SLURM_PROCID": "5", "SLURM_STEP_ID": "1", "STOKER_SLURM_STEP": "0:5"}, (5, None)),
    ({"SLURM_PROCID": "0", "STOKER_SLURM_STEP": ":0"}, (0, None)),
]
PLACE = """, os, sys
from _stoker_instrument import wire
for line in sys.stdin:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_ID", "STOKER_SLURM_STEP"):
        os.environ.pop(name, None)
    os.environ.update(json.loads(line))
    print(json.dumps(wire.place()))
"""


def test_a_rank_is_what_its_launcher_calls_it(tmp_path: Path) -> None:
    told = asked_of(PLACE, "\n".join(json.dumps(env) for env, _ in PLACES), tmp_path)
    assert [(one["rank"], one["world_size"]) for one in told] == [place for _, place in PLACES]


DUMPS = """
import os, signal, subprocess, sys, threading
def waits(): go.wait()
go = threading.Event(); other = threading.Thread(target=waits); other.start()
signal.raise_signal(signal.SIGUSR2)
go.set(); other.join()
print(os.getpid())
subprocess.run([sys.executable, "-c", "import faulthandler, signal; print(faulthandler.unregister(signal.SIGUSR2))"])
"""


def test_a_rank_dumps_the_stacks_of_its_threads_and_no_child_of_it_does(tmp_path: Path) -> None:
    done = run(["-c", DUMPS], tmp_path, measured=False, STOKER_FAULTHANDLER="1", LOCAL_RANK="0")
    assert (done.code, done.err, done.records) == (0, "", [])
    pid, child = done.out.split()
    assert child == "False", "a data worker or compiler is no rank"
    (dump,) = (tmp_path / "stacks").iterdir()
    assert dump.name == f"{pid}.txt"
    assert ("in waits" in dump.read_text(), "Current thread" in dump.read_text()) == (True, True)
    assert (tmp_path / "stacks").stat().st_mode & 0o777 == 0o700
    offs: list[dict[str, Any]] = [{"LOCAL_RANK": "0"}, {"STOKER_FAULTHANDLER": "1"}]
    for off in offs:
        assert run(["-c", DUMPS], tmp_path / "off", measured=False, **off).code == -12, off


def test_what_keeps_the_instrumentation_from_starting_is_logged_and_nothing_else_happens(
    tmp_path: Path,
) -> None:
    (tmp_path / "stacks").touch()
    done = run(["-c", "import os; print(os.getpid())"], tmp_path, STOKER_FAULTHANDLER="1", LOCAL_RANK="0")
    assert (done.code, done.err) == (0, "")
    log = tmp_path / "telemetry" / "instrument.log"
    why = f"[Errno 17] File exists: '{tmp_path / 'stacks'}'"
    assert log.read_text() == f"{done.out.strip()} FileExistsError: {why}\n"
    assert log.stat().st_mode & 0o777 == 0o600

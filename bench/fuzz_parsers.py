"""All readers of foreign input in stoker, each with valid inputs and a way to play a hostile one (see fuzz.py)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from supervisor.cli.main import main as stoker
from supervisor.diagnosis.hang.stack_groups import RankStack, stack_round
from supervisor.diagnosis.hang.stuck_collectives import read_ras, stuck_collectives
from supervisor.diagnosis.scan.scanner import LiveScanner
from supervisor.job.config.files import parse_config
from supervisor.job.errors import JobError
from supervisor.keeper.process.child import read_exit, read_launcher, read_pid
from supervisor.run import control
from supervisor.run.journal import JournalReader, read_state
from supervisor.run.ownership import read_holder
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import BadRunFile, read_run_file, read_run_stream
from supervisor.sources.checkpoint_layouts import find_checkpoints
from supervisor.sources.metrics import MetricReader
from supervisor.sources.signature_files import load_engine
from supervisor.sources.stacks.collective_records import BadDump, read_dump
from supervisor.sources.tail.follow import FollowedFile
from supervisor.sources.telemetry import parse_telemetry
from supervisor.text.decode import clean
from supervisor.text.lines import LineSplitter
from supervisor.views.logs.query import BadQueryError, Query
from supervisor.views.model.replay import NothingRecorded, record_of
from tests.hostile import judged, shows
from tests.views.tui import recorded

CODES = {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 75, 93}

Play = Callable[[bytes], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Parser:
    """`open` returns the function that plays a case in the given folder. `seeds`: valid inputs; None: whole hostile logs."""

    open: Callable[[Path], Play]
    seeds: Callable[[], list[bytes]] | None = None


def verb(*argv: str, json_lines: bool = False) -> str:
    """Run a command in this process. Its output must be safe for a terminal, and JSON if requested.

    Raises:
        AssertionError: it is not, or the exit code is none of the documented ones.
    """
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = stoker(list(argv))
        except SystemExit as error:  # argparse
            code = error.code if isinstance(error.code, int) else 1
    text = raw.getvalue().decode()
    assert code in CODES, (code, err.getvalue()[-300:])
    assert "Traceback" not in err.getvalue(), err.getvalue()[-600:]
    for printed in (text, err.getvalue()):
        bad = sorted({char for char in printed if char not in "\n\t" and not shows(char)})
        assert not bad, f"unsafe in what {argv[0]} prints: {bad!r}"
    if json_lines:
        for line in text.splitlines():
            json.loads(line)
    return text


def one_of(choices: Sequence[T], data: bytes) -> T:
    """Choose by the case's bytes, so that its seed is enough to repeat it."""
    return choices[zlib.crc32(data) % len(choices)]


# --- Logs


def diagnosed(folder: Path) -> Play:
    path = folder / "case.log"

    def play(data: bytes) -> None:
        path.write_bytes(data)
        judged(path)

    return play


def measured(folder: Path) -> Play:
    path = folder / "case.log"

    def play(data: bytes) -> None:
        path.write_bytes(data)
        verb("metrics", str(path), "--json", json_lines=True)

    return play


def followed(folder: Path) -> Play:
    """Read a growing file as the keeper does: in pieces, with occasional truncation."""
    path, engine = folder / "case.log", load_engine()

    def play(data: bytes) -> None:
        path.write_bytes(b"")
        scanner, reader = LiveScanner(engine.signatures, engine.matcher), MetricReader()
        file = FollowedFile(str(path), "case", on_note=lambda _note: None)
        piece = max(len(data) // 7, 1)
        try:
            for start in range(0, len(data), piece):
                with path.open("ab") as log:
                    log.write(data[start : start + piece])
                    if data[start] == 7:
                        log.truncate(0)
                more = True
                while more:
                    batches, more = file.read(1 << 16)
                    for batch in batches:
                        scanner.feed("case", batch.data)
                        reader.read_rows([line.raw for line in batch.in_order()])
            file.finish()
        finally:
            file.close()

    return play


def queried(_folder: Path) -> Play:
    """Parse text typed into the search field."""

    def play(data: bytes) -> None:
        typed = " ".join(data[:2_000].decode("utf-8", "replace").splitlines())  # a field has one line
        for parse in (Query.parse, Query.search):
            try:
                query = parse(typed)
            except BadQueryError as error:
                assert "\n" not in str(error)  # noqa: PT017 - the message is one line
            else:
                str(query)

    return play


QUERIES = [
    b'error -warn "two words" /re[a-z]+/ r0-3,7 level:error',
    b"stream:stderr -/x|y/ ragent",
    b"step>100 loss<=2.5 /(a+)+b/",
]


# --- What a job and its libraries leave beside the logs

FRAMES = [
    {"name": "all_reduce", "filename": "/v/torch/distributed/distributed_c10d.py", "line": 3245},
    {"name": "step", "filename": "/job/train.py", "line": 12},
]
DUMP = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 4, "last_started_collective": 4, "last_completed_collective": 3}},
    "entries": [
        {
            "frames": FRAMES, "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number + 1, "p2p_seq_id": 0,
            "op_id": number + 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1795270320 * 10**9, "input_sizes": [[4]], "output_sizes": [[4]],
            "state": "completed" if number < 3 else "scheduled", "is_p2p": False, "retired": number < 3, "timeout_ms": 600000,
        }
        for number in range(4)
    ],
}  # fmt: skip
TELEMETRY = [
    {
        "kind": "step",
        "t_wall": 1795270320.5,
        "t_mono": 12.5,
        "step": 7,
        "rank": 0,
        "loss": 2.5,
        "phase": "training",
    },
    {
        "kind": "checkpoint",
        "t_wall": 1795270321.0,
        "step": 7,
        "rank": 0,
        "path": "/out/step-7",
        "final": False,
    },
    {"kind": "finished", "t_wall": 1795270322.0, "exit_code": 0, "text": "done"},
]
STACKS = """Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    wait (threading.py:331)
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    step (train.py:50)
    <module> (train.py:88)
Thread 4720 (active): "pt_data_worker"
    read (data.py:41)
"""
FAULT_HANDLER = """Fatal Python error: Segmentation fault

Thread 0x00007f2a9c7fb740 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/job/train.py", line 50 in step
"""
RAS = """Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    0         1         1         8         8         8   RUNNING  MISMATCH
#0-0 (27a079b828ff1a75) MISMATCH
  7 ranks have launched up to operation 6650
  1 ranks have launched up to operation 6649
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
"""
KERNEL = b"4,1203,88000000,-;Memory cgroup out of memory: Killed process 123 (python) total-vm:8kB, anon-rss:4kB\n SUBSYSTEM=x\n"


def job_folder(folder: Path) -> Play:
    """Judge a job's folder as torchrun leaves it, with one hostile log."""
    job = folder / "none_x1" / "attempt_0"
    (job / "0").mkdir(parents=True)
    (job / "1").mkdir()
    (job / "0" / "stderr.log").write_text("step 1 loss 2.0\n")

    def play(data: bytes) -> None:
        (job / "1" / "stderr.log").write_bytes(data)
        verb("diagnose", str(folder), "--json", json_lines=True)
        verb("diagnose", str(folder))

    return play


def dumps(_folder: Path) -> Play:
    def play(data: bytes) -> None:
        with contextlib.suppress(BadDump):
            dump = read_dump(data)
            stuck_collectives({0: dump, 1: dict(DUMP)})

    return play


def stack_texts(_folder: Path) -> Play:
    def play(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        lines = tuple(clean(line) for line in data.split(b"\n"))  # as sources/stacks cleans them
        other = RankStack(1, "py-spy", tuple(STACKS.split("\n")))
        for source in ("py-spy", "faulthandler", "proc"):
            stack_round([RankStack(0, source, lines, main_tid=4711), other])
        read_ras(text)

    return play


def telemetry(_folder: Path) -> Play:
    def play(data: bytes) -> None:
        splitter = LineSplitter()
        for line in splitter.feed(data):
            parse_telemetry(line.raw)
        parse_telemetry(data)

    return play


CHECKPOINT_FILES = {
    "trainer_state.json": b'{"global_step": 40, "train_batch_size": 8, "log_history": [{"loss": 2.0, "step": 40}]}',
    "latest": b"global_step40",
    "latest_checkpointed_iteration.txt": b"40",
    "meta.json": b'{"step": 40, "world_size": 2}',
    ".metadata": pickle.dumps({"a": 1}),
    "model.pt": b"PK\x03\x04" + bytes(200),
}


def checkpoints(folder: Path) -> Play:
    """Search checkpoints in all known layouts, with one hostile file."""

    def play(data: bytes) -> None:
        name = one_of(list(CHECKPOINT_FILES), data)
        out = folder / "out"
        for place in (out, out / "checkpoint-40", out / "global_step40", out / "iter_0000040"):
            place.mkdir(parents=True, exist_ok=True)
            for other, valid in CHECKPOINT_FILES.items():
                (place / other).write_bytes(data if other == name else valid)
        for found in find_checkpoints([out], 0.0):
            str(found)
        shutil.rmtree(out)

    return play


# --- What a person hands to `stoker run`

JOB_FILE = b"""script = "train.py"
nproc_per_node = 2
max_retries = 3
args = ["--batch-size", "8"]
[env]
OMP_NUM_THREADS = "8"
[batch]
knob = "--batch-size"
global = 32
[retry.oom]
max = 2
"""
CONFIG_FILES = [
    ("stoker.toml", JOB_FILE),
    ("job.json", b'{"script": "train.py", "nproc_per_node": 2, "args": ["--lr", "1e-4"], "env": {"A": "b"}}'),
    (
        "job.yaml",
        b"script: train.py\nnproc_per_node: 2\nargs: [--lr, 1e-4]\nenv:\n  A: b\nbatch: &b\n  global: 32\n",
    ),
]
SCRIPT = b"import torch\n"
SCRIPT_CONFIGS = [
    ("conf.yaml", b"train:\n  batch_size: 8\n  accumulate: 2\n  ratio: !ref <train>\ndefaults:\n  - model: base\n"),
    ("conf.json", b'{"train": {"batch_size": 64, "accumulate": 4}, "fp16": {"enabled": true}}'),
    ("conf.toml", b"[train]\nbatch_size = 8\naccumulate = 100\n"),
]  # fmt: skip


def with_script(folder: Path) -> None:
    """Write a script, and a fake interpreter, because a real one needs a second per case."""
    (folder / "train.py").write_bytes(SCRIPT)
    python = folder / "python"
    python.write_text("""#!/bin/sh\necho '{"python": "3.11.7", "torch": "2.13.0"}'\n""")
    python.chmod(0o755)


def dry_run(folder: Path, *words: str) -> None:
    with contextlib.chdir(folder):
        printed = verb("run", "--dry-run", "--json", "--python", "./python", *words)
    if printed.startswith("{"):
        json.loads(printed)


def job_files(folder: Path) -> Play:
    with_script(folder)

    def play(data: bytes) -> None:
        name, _ = one_of(CONFIG_FILES, data)
        with contextlib.suppress(JobError):
            parse_config(name, data)
        (folder / name).write_bytes(data)
        dry_run(folder, "--config", name)

    return play


def script_configs(folder: Path) -> Play:
    with_script(folder)

    def play(data: bytes) -> None:
        name, _ = one_of(SCRIPT_CONFIGS, data)
        (folder / name).write_bytes(data)
        knobs = f"--batch-knob {name}#train.batch_size --accumulation-knob {name}#train.accumulate"
        dry_run(folder, "--nproc-per-node", "2", *knobs.split(), "train.py", "--config", name)

    return play


COMMANDS = [
    b"--nproc-per-node\x002\x00train.py\x00--batch-size\x008",
    b"--\x00accelerate\x00launch\x00--num_processes\x002\x00train.py\x00--batch-size=8",
    b"--\x00torchrun\x00--standalone\x00--nproc-per-node=2\x00-m\x00train\x00trainer.batch=8\x00+model=x",
    b"--\x00deepspeed\x00--num_gpus\x002\x00train.py\x00--deepspeed\x00ds.json",
    b"--\x00bash\x00-c\x00srun -n 2 python train.py --lr 1e-4 | tee log",
    b"--set\x00batch_size=8\x00--max-retries\x003\x00--env\x00A=b\x00--global-batch-size\x0064\x00train.py",
]


def command_lines(folder: Path) -> Play:
    with_script(folder)

    def play(data: bytes) -> None:
        words = [word.decode("utf-8", "surrogateescape") for word in data.split(b"\0")][:2_000]
        dry_run(folder, *words)

    return play


# --- The run directory


def run_folders(folder: Path) -> list[RunPaths]:
    return [
        recorded.healthy(folder / "20261121-1412-brave-otter"),
        recorded.stalled(folder / "20261121-1413-calm-heron"),
    ]


def run_file_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        return [
            path.read_bytes()[:60_000]
            for run in run_folders(Path(name))
            for path in sorted(run.root.rglob("*"))
            if path.is_file()
        ]


def run_files(folder: Path) -> Play:
    """Make one file of a run's folder hostile, and run everything that reads runs."""
    runs = run_folders(folder / "runs")
    files = [(run, path) for run in runs for path in sorted(run.root.rglob("*")) if path.is_file()]

    def play(data: bytes) -> None:
        run, path = one_of(files, data)
        valid = path.read_bytes()
        path.write_bytes(data)
        try:
            reader = JournalReader(run.node().journal)
            while reader.read():
                pass
            read_state(run.node().journal)
            with contextlib.suppress(NothingRecorded):
                record_of(run)
            with contextlib.suppress(BadRunFile):
                read_run_file(run.run_json)
            with contextlib.suppress(BadRunFile):
                read_run_stream(data)
            verb("runs", "--runs-dir", str(folder / "runs"))
            verb("diagnose", str(run.root), "--json", json_lines=True)
            verb("metrics", str(run.root), "--json", json_lines=True)
            verb("policy", str(run.root))
            verb("export", str(run.root), "--chart")
        finally:
            path.write_bytes(valid)

    return play


REQUEST = {
    "id": "case", "kind": "stop", "by": {"uid": 0, "host": "box", "user": "me"}, "if_attempt": 1, "args": {"text": "a note", "now": True}, "schema": 1,
}  # fmt: skip
PID = {"pid": 4711, "start_ticks": 99, "boot_id": "x", "launcher_pid": 4710, "launcher_start_ticks": 98}


def small_files(folder: Path) -> Play:
    """Read hostile requests, and the files shared by launcher, keeper and views."""
    run = RunPaths(folder / "20261121-1412-brave-otter")
    attempt = run.node().attempt(1)
    attempt.root.mkdir(parents=True)
    run.control.mkdir()

    def play(data: bytes) -> None:
        (run.control / "case.json").write_bytes(data)
        control.pending(run.control)
        for name in ("pid", "exit"):
            (attempt.root / name).write_bytes(data)
        read_pid(attempt)
        read_launcher(attempt)
        read_exit(attempt)
        run.node().lock.write_bytes(data)
        read_holder(run.node().lock)

    return play


def state_home(folder: Path) -> Play:
    """Run `run` and `runs` with hostile files in stoker's state folder."""
    with_script(folder)
    home = folder / "stoker"
    home.mkdir()
    os.environ["XDG_STATE_HOME"] = str(folder)

    def play(data: bytes) -> None:
        for name in ("answers.jsonl", "memory.jsonl", "runs.jsonl", "recovery.jsonl", "layout.json"):
            (home / name).write_bytes(data)
        dry_run(folder, "--nproc-per-node", "2", "train.py", "--batch-size", "8")
        verb("runs", "--all")

    return play


STATE_LINES = [
    b'{"script":"abc","question":"scope","value":"per_rank","t":1795270320.0,"v":1}\n',
    b'{"path":"/runs/20261121-1412-brave-otter","run_id":"20261121-1412-brave-otter","name":"gpt","t":1795270320.0}\n',
]


def fixed(*inputs: bytes | str | object) -> Callable[[], list[bytes]]:
    return lambda: [
        item
        if isinstance(item, bytes)
        else item.encode()
        if isinstance(item, str)
        else json.dumps(item).encode()
        for item in inputs
    ]


PARSERS = {
    "log, diagnose": Parser(diagnosed),
    "log, metrics": Parser(measured),
    "log, followed": Parser(followed),
    "log query": Parser(queried, fixed(*QUERIES)),
    "job folder": Parser(job_folder, fixed(FAULT_HANDLER)),
    "flight recorder": Parser(dumps, lambda: [pickle.dumps(DUMP, protocol) for protocol in (2, 4)] + fixed(DUMP)()),
    "stacks": Parser(stack_texts, fixed(STACKS, FAULT_HANDLER, RAS, KERNEL)),
    "telemetry": Parser(telemetry, lambda: [b"\n".join(fixed(*TELEMETRY)()) + b"\n"]),
    "checkpoints": Parser(checkpoints, lambda: list(CHECKPOINT_FILES.values())),
    "job file": Parser(job_files, lambda: [data for _, data in CONFIG_FILES]),
    "script's config": Parser(script_configs, lambda: [data for _, data in SCRIPT_CONFIGS]),
    "command line": Parser(command_lines, fixed(*COMMANDS)),
    "run directory": Parser(run_files, run_file_seeds),
    "requests and records": Parser(small_files, fixed(REQUEST, PID, {"code": 1, "signal": None, "t": 1795270320.0})),
    "remembered": Parser(state_home, fixed(*STATE_LINES)),
}  # fmt: skip

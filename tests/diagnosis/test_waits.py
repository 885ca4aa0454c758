"""What a late rank waits for, by name: from made-up stacks, and from real processes that wait so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.diagnosis.hang.stack_groups import RankStack, stack_round
from supervisor.diagnosis.hang.stacks import Kind
from supervisor.sources.processes import identify
from supervisor.sources.stacks.python_stacks import collect_stacks, find_py_spy
from tests.conftest import wait_until

SITE = "/venv/lib/python3.11/site-packages"
STD = "/usr/lib/python3.11"
LOCKED = (f"Condition.wait ({STD}/threading.py:327)", f"Event.wait ({STD}/threading.py:629)")
USER = "main (/job/train.py:30)"


def kind(
    *frames: str,
    call: str | None = None,
    for_ever: bool | None = None,
    threads: str = "",
    state: str = "idle",
) -> Kind:
    lines = [f'Thread 1 ({state}): "MainThread"', *(f"    {frame}" for frame in (*frames, USER))]
    stack = RankStack(0, "py-spy", (*lines, *threads.splitlines()), 1, call, for_ever)
    return stack_round([stack]).places[0].kind


@pytest.mark.parametrize(
    ("frames", "call", "expected"),
    [
        ((), "230", Kind.SLEEP),
        ((), "0", Kind.FILE),
        ((), "1", Kind.FILE),
        ((), "45", Kind.NETWORK),
        ((), "42", Kind.NETWORK),
        ((), "7", Kind.NETWORK),
        ((), "61", Kind.PROCESS),
        ((), "202", Kind.UNKNOWN),
        ((), None, Kind.UNKNOWN),
        ((f"readinto ({STD}/socket.py:706)",), "0", Kind.NETWORK),
        (
            (f"read ({STD}/ssl.py:1100)", f"http_get ({SITE}/huggingface_hub/file_download.py:500)"),
            "202",
            Kind.NETWORK,
        ),
        ((f"request ({SITE}/requests/sessions.py:589)",), "running", Kind.NETWORK),
        ((f"_make_request ({SITE}/botocore/httpsession.py:464)",), None, Kind.NETWORK),
        ((f"result ({SITE}/grpc/_channel.py:100)",), "202", Kind.NETWORK),
        (
            (f"select ({STD}/selectors.py:415)", f"_communicate ({STD}/subprocess.py:2021)"),
            "7",
            Kind.PROCESS,
        ),
        (
            (f"select ({STD}/selectors.py:415)", f"poll ({STD}/multiprocessing/connection.py:257)"),
            "7",
            Kind.PROCESS,
        ),
        ((*LOCKED, f"wait ({STD}/multiprocessing/pool.py:768)"), "202", Kind.PROCESS),
        ((f"_save ({SITE}/torch/serialization.py:900)",), "running", Kind.FILE),
        (("exists (<frozen genericpath>:19)",), "4", Kind.FILE),
        ((f"open_binary ({STD}/gzip.py:90)",), None, Kind.FILE),
        ((f"acquire ({SITE}/filelock/_api.py:300)",), "230", Kind.FILE),
        ((f"try_get_data ({SITE}/torch/utils/data/dataloader.py:1243)",), "7", Kind.PROCESS),
        ((f"synchronize ({SITE}/torch/cuda/__init__.py:1)",), "running", Kind.DEVICE),
        ((f"all_reduce ({SITE}/torch/distributed/distributed_c10d.py:3252)",), "202", Kind.PEERS),
        ((f"_engine_run_backward ({SITE}/torch/autograd/graph.py:979)",), "202", Kind.PEERS),
        ((f"fit ({SITE}/sklearn/base.py:1)",), "202", Kind.UNKNOWN),
    ],
)
def test_frames_and_system_calls_tell_what_is_waited_for(
    frames: tuple[str, ...], call: str | None, expected: Kind
) -> None:
    assert kind(*frames, call=call) is expected


@pytest.mark.parametrize(
    ("for_ever", "expected"), [(True, Kind.LOCK), (False, Kind.TIMED), (None, Kind.UNKNOWN)]
)
def test_a_lock_is_for_ever_only_where_the_kernel_says_so(for_ever: bool | None, expected: Kind) -> None:
    assert kind(*LOCKED, call="202", for_ever=for_ever) is expected


BOTTOM = f"    Thread._bootstrap_inner ({STD}/threading.py:1045)\n    Thread._bootstrap ({STD}/threading.py:1002)\n"
IDLE = f"""Thread 2 (idle): "tqdm"
    Condition.wait ({STD}/threading.py:331)
    run ({SITE}/tqdm/_monitor.py:60)
{BOTTOM}Thread 3 (idle): "ThreadPoolExecutor-0_0"
    _worker ({STD}/concurrent/futures/thread.py:81)
    Thread.run ({STD}/threading.py:982)
{BOTTOM}Thread 4 (idle): "Thread-4"
    wait ({STD}/threading.py:327)
    prefetch (/job/data.py:9)
{BOTTOM}Thread 5 (idle): "pin"
    poll ({STD}/multiprocessing/connection.py:257)
    _pin_memory_loop ({SITE}/torch/utils/data/_utils/pin_memory.py:54)
{BOTTOM}"""


BACKWARD = (f"_engine_run_backward ({SITE}/torch/autograd/graph.py:979)",)


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        ("", Kind.PEERS),
        (IDLE, Kind.PEERS),
        (f"    read ({SITE}/safetensors/torch.py:9)\n    offload (/job/hooks.py:3)", Kind.FILE),
        ("    offload (/job/hooks.py:3)", Kind.UNKNOWN),
        (
            f"    all_gather ({SITE}/torch/distributed/distributed_c10d.py:9)\n    hook (/job/a.py:3)",
            Kind.PEERS,
        ),
    ],
)
def test_in_the_backward_pass_it_is_the_hook_that_is_waited_for(hook: str, expected: Kind) -> None:
    threads = hook if hook.startswith("Thread") or not hook else f'Thread 9 (idle): "Dummy-3"\n{hook}\n'
    assert kind(*BACKWARD, call="202", threads=threads) is expected


WAITS = {
    "time.sleep(60)": Kind.SLEEP,
    "input()": Kind.FILE,
    "import socket; a, b = socket.socketpair(); a.recv(1)": Kind.NETWORK,
    "import subprocess; subprocess.run(['sleep', '60'])": Kind.PROCESS,
    "threading.Event().wait()": Kind.LOCK,
    "threading.Event().wait(60)": Kind.TIMED,
    "t = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start(); t.join()": Kind.THREAD,
    "import queue; queue.Queue().get()": Kind.LOCK,
    "lock = threading.Lock(); lock.acquire(); lock.acquire()": Kind.UNKNOWN,
    "while True: pass": Kind.RUNS,
}


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_real_processes_are_told_apart(tmp_path: Path) -> None:
    """All at once: each process needs a second to come up."""
    children = []
    for number, code in enumerate(WAITS):
        script = tmp_path / f"job{number}.py"
        statements = "\n    ".join(code.split("; "))
        script.write_text(
            f"import threading, time\nprint('up', flush=True)\ndef main():\n    {statements}\nmain()\n"
        )
        command = [sys.executable, str(script)]
        children.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        )
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
        processes = [process for child in children if (process := identify(child.pid)) is not None]
        seen: list[Kind] = []

        def told() -> bool:
            taken = collect_stacks(processes, timeout_s=20.0)
            stacks = [
                RankStack(rank, s.source, s.lines, s.process.pid, s.main_call, s.for_ever)
                for rank, s in enumerate(taken)
            ]
            seen[:] = [place.kind for place in stack_round(stacks).places]
            return seen == list(WAITS.values())

        wait_until(told, 20, 0.2)
        assert dict(zip(WAITS, seen, strict=True)) == WAITS
    finally:
        for child in children:
            os.killpg(child.pid, signal.SIGKILL)  # one has a child of its own
            child.communicate()

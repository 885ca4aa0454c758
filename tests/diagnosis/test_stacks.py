"""Stacks: what ranks do in one line, who stands elsewhere, what a late rank waits for, and who may be asked how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.hang.stack_groups import Doing, RankStack, StackRound, stack_round
from supervisor.diagnosis.hang.stacks import Kind, parse_stack
from supervisor.sources.processes import identify, is_alive
from supervisor.sources.stacks.python_stacks import StackSource, collect_stacks, find_py_spy
from tests.conftest import wait_until

SITE = "/venv/lib/python3.11/site-packages"
STD = "/usr/lib/python3.11"
TORCH = f"{SITE}/torch"
GRAPH = f"_engine_run_backward ({TORCH}/autograd/graph.py:979)"
ALL_REDUCE = (
    "all_reduce (torch/distributed/distributed_c10d.py:3245)",
    "wrapper (torch/distributed/c10d_logger.py:83)",
    "sync (metrics.py:12)",
)
BACKWARD = (GRAPH, f"backward ({TORCH}/autograd/__init__.py:395)", "main (/job/train.py:23)")
READING = ("fetch (/job/data.py:41)", "main (/job/train.py:19)")
USER = "main (/job/train.py:30)"
FAULT = """Thread 0x00007f1f94e45000 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f1f94f16000 (most recent call first):
  File "/job/data.py", line 41 in fetch
  File "/job/train.py", line 19 in main
"""
FUTEX = "thread 11463 'python': state S, waits in futex_do_wait, system call 202"
SLEEPING = "thread 11464 'python': state S, waits in hrtimer_nanosleep, system call 230"


def spied(
    rank: int,
    *frames: str,
    call: str | None = None,
    for_ever: bool | None = None,
    threads: str = "",
    state: str = "idle",
) -> RankStack:
    """A rank's stack as py-spy prints it."""
    head = (f"Process {rank}: python -u train.py", "Python v3.11.7 (/usr/bin/python3.11)", "")
    main = (f'Thread 1 ({state}): "MainThread"', *(f"    {frame}" for frame in frames))
    return RankStack(rank, "py-spy", (*head, *main, *threads.splitlines()), 1, call, for_ever)


def round_of(*ranks: tuple[str, ...], state: str = "idle") -> StackRound:
    return stack_round([spied(number, *frames, state=state) for number, frames in enumerate(ranks)])


def test_the_odd_one_out_is_named_with_its_call_and_line() -> None:
    found = stack_round(
        [spied(n, *(READING if n == 3 else ALL_REDUCE), call="0" if n == 3 else "202") for n in range(8)]
    )
    assert found.text == "rank 3 in read() at data.py:41, 7 ranks in all_reduce at metrics.py:12"
    assert found.odd == (3,)
    assert found.proves_hang


ELSEWHERE = ("evaluate (/job/eval.py:7)", "main (/job/train.py:40)")


@pytest.mark.parametrize(
    ("ranks", "state", "odd", "proves"),
    [
        ((READING, READING, ELSEWHERE), "idle", (2,), True),
        ((READING, ELSEWHERE), "idle", (), True),
        ((READING, READING, ELSEWHERE, ELSEWHERE), "idle", (), True),
        ((READING, READING), "idle", (), True),
        ((READING, READING), "active", (), False),
        ((BACKWARD, BACKWARD), "active", (), True),
        ((BACKWARD, BACKWARD, ALL_REDUCE), "idle", (2,), True),
        ((BACKWARD, (f"item ({TORCH}/cuda/__init__.py:1)", USER)), "idle", (1,), False),
        ((BACKWARD, (f"item ({TORCH}/cuda/__init__.py:1)", USER), READING), "idle", (2,), True),
        (((f"item ({TORCH}/cuda/__init__.py:1)", USER),) * 2, "idle", (), False),
        ((READING, ()), "idle", (), False),
    ],
)
def test_who_is_apart_and_whether_it_proves_a_hang(
    ranks: tuple[tuple[str, ...], ...], state: str, odd: tuple[int, ...], proves: bool
) -> None:
    found = round_of(*ranks, state=state)
    assert (found.odd, found.proves_hang) == (odd, proves)


@pytest.mark.parametrize("call", ["init_process_group", "all_to_all", "all_to_all_single", "barrier", "recv"])
def test_every_public_call_that_meets_the_other_ranks_is_one_collective(call: str) -> None:
    place = round_of((f"{call} ({TORCH}/distributed/distributed_c10d.py:1)", USER)).places[0]
    assert (place.doing, place.what, place.line_at) == (Doing.COLLECTIVE, f"in {call}", "train.py:30")


def test_a_rank_in_the_set_up_of_ddp_waits_and_one_that_writes_its_part_of_a_checkpoint_does_not() -> None:
    found = round_of(
        (
            f"_verify_param_shape_across_processes ({TORCH}/distributed/utils.py:286)",
            f"__init__ ({TORCH}/nn/parallel/distributed.py:1064)",
            USER,
        ),
        (
            f"write_data ({TORCH}/distributed/checkpoint/state_dict_saver.py:430)",
            f"all_reduce ({TORCH}/distributed/checkpoint/utils.py:240)",
            USER,
        ),
        (
            f"_to_kwargs ({TORCH}/distributed/utils.py:100)",
            f"_pre_forward ({TORCH}/nn/parallel/distributed.py:1789)",
            USER,
        ),
        (f"_pre_forward ({TORCH}/nn/parallel/distributed.py:1775)", USER),
    )
    doing = [place.doing for place in found.places]
    assert doing == [Doing.COLLECTIVE, Doing.OWN, Doing.OWN, Doing.COLLECTIVE]
    assert found.places[0].what == "in DDP's set-up"
    assert found.odd == (1, 2)


def test_faulthandler_says_the_same_as_py_spy() -> None:
    place = stack_round([RankStack(0, "faulthandler", tuple(FAULT.splitlines()))]).places[0]
    assert (place.doing, place.line_at) == (Doing.OWN, "data.py:41")


def test_the_kernel_alone_tells_who_sleeps_and_who_waits() -> None:
    found = stack_round([RankStack(rank, "proc", (SLEEPING if rank == 1 else FUTEX,)) for rank in range(4)])
    assert found.odd == (1,)
    assert found.text == "rank 1 in sleep (hrtimer_nanosleep), 3 ranks in futex (futex_do_wait)"


@given(st.lists(st.text(), max_size=30))
def test_any_text_is_parsed_to_something(lines: list[str]) -> None:
    stack_round([RankStack(0, "py-spy", tuple(lines)), RankStack(1, "proc", tuple(lines))])
    assert all(thread.frames for thread in parse_stack(lines))


# -- what it waits for ------------------------------------------------------------------------------

LOCKED = (f"Condition.wait ({STD}/threading.py:327)", f"Event.wait ({STD}/threading.py:629)")
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
    _pin_memory_loop ({TORCH}/utils/data/_utils/pin_memory.py:54)
{BOTTOM}"""
HOOK = 'Thread 9 (idle): "Dummy-3"\n'


@pytest.mark.parametrize(
    ("frames", "call", "for_ever", "threads", "expected"),
    [
        *(
            ((), call, None, "", kind)
            for kind, calls in (
                (Kind.SLEEP, ("230",)),
                (Kind.FILE, ("0", "1")),
                (Kind.NETWORK, ("45", "42", "7")),
                (Kind.PROCESS, ("61",)),
                (Kind.UNKNOWN, ("202", None)),
            )
            for call in calls
        ),
        ((f"readinto ({STD}/socket.py:706)",), "0", None, "", Kind.NETWORK),
        ((f"read ({STD}/ssl.py:1100)", f"http_get ({SITE}/huggingface_hub/file_download.py:5)"), "202", None, "", Kind.NETWORK),
        ((f"request ({SITE}/requests/sessions.py:589)",), "running", None, "", Kind.NETWORK),
        ((f"select ({STD}/selectors.py:415)", f"_communicate ({STD}/subprocess.py:2021)"), "7", None, "", Kind.PROCESS),
        ((*LOCKED, f"wait ({STD}/multiprocessing/pool.py:768)"), "202", None, "", Kind.PROCESS),
        ((f"try_get_data ({TORCH}/utils/data/dataloader.py:1243)",), "7", None, "", Kind.PROCESS),
        ((f"_save ({TORCH}/serialization.py:900)",), "running", None, "", Kind.FILE),
        (("exists (<frozen genericpath>:19)",), "4", None, "", Kind.FILE),
        ((f"acquire ({SITE}/filelock/_api.py:300)",), "230", None, "", Kind.FILE),
        ((f"synchronize ({TORCH}/cuda/__init__.py:1)",), "running", None, "", Kind.DEVICE),
        ((f"all_reduce ({TORCH}/distributed/distributed_c10d.py:3252)",), "202", None, "", Kind.PEERS),
        ((f"fit ({SITE}/sklearn/base.py:1)",), "202", None, "", Kind.UNKNOWN),
        # A lock is for ever only where the kernel says so, and no thread can give it back.
        (LOCKED, "202", True, "", Kind.LOCK),
        (LOCKED, "202", True, IDLE, Kind.LOCK),
        (LOCKED, "202", False, "", Kind.TIMED),
        (LOCKED, "202", None, "", Kind.UNKNOWN),
        # In the backward pass the hook is waited for.
        ((GRAPH,), "202", None, "", Kind.PEERS),
        ((GRAPH,), "202", None, IDLE, Kind.PEERS),
        ((GRAPH,), "202", None, HOOK + f"    read ({SITE}/safetensors/torch.py:9)\n    offload (/job/hooks.py:3)", Kind.FILE),
        ((GRAPH,), "202", None, HOOK + "    offload (/job/hooks.py:3)", Kind.UNKNOWN),
        ((GRAPH,), "202", None, HOOK + f"    all_gather ({TORCH}/distributed/distributed_c10d.py:9)\n    hook (/job/a.py:3)", Kind.PEERS),
    ],
)  # fmt: skip
def test_frames_and_system_calls_tell_what_is_waited_for(
    frames: tuple[str, ...], call: str | None, for_ever: bool | None, threads: str, expected: Kind
) -> None:
    stack = spied(0, *frames, USER, call=call, for_ever=for_ever, threads=threads)
    assert stack_round([stack]).places[0].kind is expected


# -- real processes ---------------------------------------------------------------------------------

REGISTERED = """
import faulthandler, os, signal, sys, time
file = open(f"{sys.argv[1]}/{os.getpid()}.txt", "ab", buffering=0)
faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
def stuck():
    print("up", flush=True)
    time.sleep(60)
stuck()
"""
PLAIN = "import time; print('up', flush=True); time.sleep(60)"
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


def started(*args: str) -> subprocess.Popen[bytes]:
    """A Python process that printed "up", in a session of its own."""
    child = subprocess.Popen(
        [sys.executable, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


def ended(*children: subprocess.Popen[bytes]) -> None:
    for child in children:
        os.killpg(child.pid, signal.SIGKILL)  # one has a child of its own
        child.communicate()


@pytest.mark.parametrize("script", [REGISTERED, PLAIN], ids=["registered", "plain"])
def test_only_a_process_that_registered_a_handler_is_signalled(tmp_path: Path, script: str) -> None:
    denied = tmp_path / "py-spy"
    denied.write_text("#!/bin/sh\necho 'Permission Denied' >&2\nexit 1\n")
    denied.chmod(0o755)
    child = started("-c", script, str(tmp_path))
    try:
        process = identify(child.pid)
        assert process is not None
        if script is PLAIN:
            # A file alone is no consent: SIGUSR2 would end this process.
            (tmp_path / f"{child.pid}.txt").touch()
        (stack,) = collect_stacks([process], py_spy=str(denied), fault_folder=tmp_path)
        assert is_alive(process)
        if script is REGISTERED:
            assert stack.source is StackSource.FAULTHANDLER
            assert any("in stuck" in line for line in stack.lines)
        else:
            assert stack.source is StackSource.PROC
            assert "Permission Denied" in (stack.note or "")
    finally:
        ended(child)


def test_a_stopped_process_is_not_traced_and_is_named_as_stopped() -> None:
    child = started("-c", PLAIN)
    try:
        child.send_signal(signal.SIGSTOP)
        process = identify(child.pid)
        assert process is not None
        assert wait_until(lambda: " T " in Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8"), 5)
        (stack,) = collect_stacks([process], timeout_s=3.0)
        place = stack_round([RankStack(0, stack.source, stack.lines, child.pid)]).places[0]
        assert place.doing is Doing.STOPPED
    finally:
        ended(child)


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_real_processes_are_told_apart(tmp_path: Path) -> None:
    """All at once: each process needs a second to come up."""
    children = []
    try:
        for number, code in enumerate(WAITS):
            script = tmp_path / f"job{number}.py"
            statements = "\n    ".join(code.split("; "))
            script.write_text(
                f"import threading, time\nprint('up', flush=True)\ndef main():\n    {statements}\nmain()\n"
            )
            children.append(started(str(script)))
        processes = [process for child in children if (process := identify(child.pid)) is not None]
        seen: list[Kind] = []

        def told() -> bool:
            stacks = [
                RankStack(rank, s.source, s.lines, s.process.pid, s.main_call, s.for_ever)
                for rank, s in enumerate(collect_stacks(processes, timeout_s=20.0))
            ]
            seen[:] = [place.kind for place in stack_round(stacks).places]
            return seen == list(WAITS.values())

        wait_until(told, 20, 0.2)
        assert dict(zip(WAITS, seen, strict=True)) == WAITS
    finally:
        ended(*children)

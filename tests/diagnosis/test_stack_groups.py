"""Stacks: what ranks do in one line, who stands elsewhere, and who may be asked how."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.hang.stack_groups import Doing, RankStack, stack_round
from supervisor.diagnosis.hang.stacks import parse_stack
from supervisor.sources.processes import identify, is_alive
from supervisor.sources.stacks.python_stacks import StackSource, collect_stacks
from tests.conftest import wait_until

BACKWARD = """Process 11463: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 11463 (idle): "MainThread"
    _engine_run_backward (/venv/lib/python3.11/site-packages/torch/autograd/graph.py:979)
    backward (/venv/lib/python3.11/site-packages/torch/autograd/__init__.py:395)
    main (/job/train.py:23)
    <module> (/job/train.py:31)
Thread 11470 (idle): "Thread-1"
    wait (/usr/lib/python3.11/threading.py:331)
"""
READING = """Process 11464: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 11464 (idle): "MainThread"
    fetch (/job/data.py:41)
    main (/job/train.py:19)
    <module> (/job/train.py:31)
"""
ALL_REDUCE = """Process 1: python
Python v3.11.7

Thread 1 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3245)
    wrapper (torch/distributed/c10d_logger.py:83)
    sync (metrics.py:12)
    <module> (train.py:31)
"""
FAULT = """Thread 0x00007f1f94e45000 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f1f94f16000 (most recent call first):
  File "/job/data.py", line 41 in fetch
  File "/job/train.py", line 19 in main
"""
FUTEX = "thread 11463 'python': state S, waits in futex_do_wait, system call 202"
SLEEPING = "thread 11464 'python': state S, waits in hrtimer_nanosleep, system call 230"


def spied(rank: int, text: str, call: str | None = None) -> RankStack:
    return RankStack(rank, "py-spy", tuple(text.splitlines()), main_call=call)


def test_the_odd_one_out_is_named_with_its_call_and_line() -> None:
    ranks = [
        spied(rank, READING if rank == 3 else ALL_REDUCE, "0" if rank == 3 else "202") for rank in range(8)
    ]
    found = stack_round(ranks)
    assert found.text == "rank 3 in read() at data.py:41, 7 ranks in all_reduce at metrics.py:12"
    assert found.odd == (3,)
    assert found.proves_hang


def test_a_rank_in_the_set_up_of_ddp_waits_and_one_that_writes_its_part_of_a_checkpoint_does_not() -> None:
    def main(*frames: str) -> str:
        return "\n".join(['Thread 1 (idle): "MainThread"', *(f"    {frame}" for frame in frames)])

    torch = "/venv/lib/python3.11/site-packages/torch"
    set_up = main(
        f"_verify_param_shape_across_processes ({torch}/distributed/utils.py:286)",
        f"__init__ ({torch}/nn/parallel/distributed.py:1064)",
        "main (/job/train.py:23)",
    )
    writing = main(
        f"_write_item ({torch}/distributed/checkpoint/filesystem.py:400)",
        f"write_data ({torch}/distributed/checkpoint/state_dict_saver.py:430)",
        f"all_reduce ({torch}/distributed/checkpoint/utils.py:240)",
        "save (/job/train.py:40)",
    )
    moving = main(
        f"_to_kwargs ({torch}/distributed/utils.py:100)",
        f"_pre_forward ({torch}/nn/parallel/distributed.py:1789)",
        "main (/job/train.py:25)",
    )
    rebuilding = main(f"_pre_forward ({torch}/nn/parallel/distributed.py:1775)", "main (/job/train.py:25)")
    found = stack_round([spied(0, set_up), spied(1, writing), spied(2, moving), spied(3, rebuilding)])
    assert [place.doing for place in found.places] == [
        Doing.COLLECTIVE,
        Doing.OWN,
        Doing.OWN,
        Doing.COLLECTIVE,
    ]
    assert found.places[0].what == "in DDP's set-up"
    assert found.odd == (1, 2)


def test_faulthandler_says_the_same_as_py_spy() -> None:
    stack = RankStack(0, "faulthandler", tuple(FAULT.splitlines()))
    place = stack_round([stack]).places[0]
    assert (place.doing, place.line_at) == (Doing.OWN, "data.py:41")


def test_the_kernel_alone_tells_who_sleeps_and_who_waits() -> None:
    ranks = [RankStack(rank, "proc", (SLEEPING if rank == 1 else FUTEX,)) for rank in range(4)]
    found = stack_round(ranks)
    assert found.odd == (1,)
    assert found.text == "rank 1 in sleep (hrtimer_nanosleep), 3 ranks in futex (futex_do_wait)"


@given(st.lists(st.text(), max_size=30))
def test_any_text_is_parsed_to_something(lines: list[str]) -> None:
    stack_round([RankStack(0, "py-spy", tuple(lines)), RankStack(1, "proc", tuple(lines))])
    assert all(thread.frames for thread in parse_stack(lines))


REGISTERED = """
import faulthandler, os, signal, sys, time
folder = sys.argv[1]
file = open(f"{folder}/{os.getpid()}.txt", "ab", buffering=0)
faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
def stuck():
    print("up", flush=True)
    time.sleep(60)
stuck()
"""
PLAIN = "import time; print('up', flush=True); time.sleep(60)"


@pytest.mark.parametrize("script", [REGISTERED, PLAIN], ids=["registered", "plain"])
def test_only_a_process_that_registered_a_handler_is_signalled(tmp_path: Path, script: str) -> None:
    denied = tmp_path / "py-spy"
    denied.write_text("#!/bin/sh\necho 'Permission Denied' >&2\nexit 1\n")
    denied.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
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
            child.kill()


def test_a_stopped_process_is_not_traced_and_is_named_as_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", PLAIN], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGSTOP)
            process = identify(child.pid)
            assert process is not None
            assert wait_until(lambda: " T " in Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8"), 5)
            (stack,) = collect_stacks([process], timeout_s=3.0)
            place = stack_round([RankStack(0, stack.source, stack.lines, child.pid)]).places[0]
            assert place.doing is Doing.STOPPED
        finally:
            child.kill()

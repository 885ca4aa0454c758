"""stoker itself sends nothing: what all its processes ask of the network in a run that fails, restarts and ends, and in looking at it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.run.state import Finished
from tests.integration.harness import ROOT, facts, only_run, state_of, stoker, wait_for_state

# Loaded by every Python process of ours: notes each event by which a program reaches out or listens (Python's audit events table).
WATCH = """
import os, sys
WATCHED = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind", "urllib.Request", "http.client.connect"}
def note(event, args):
    if event in WATCHED:
        with open(os.environ["NOTED"], "a") as file:
            print(sys.orig_argv[1:4], event, [str(arg) for arg in args[-4:]], file=file)
sys.addaudithook(note)
"""
SCRIPT = """
import os, socket, sys, time
socket.getaddrinfo("127.0.0.1", 9)  # shows that the watch works
for step in range(5):
    print(f"step {step} loss {2 - step / 10}", flush=True)
    time.sleep(0.05)
if os.environ["STOKER_ATTEMPT"] == "1":
    sys.exit("RuntimeError: CUDA error: an illegal memory access was encountered")
"""


@pytest.mark.e2e
@pytest.mark.fault(
    "secrets and access",
    "a run that fails, restarts and is viewed",
    "no process of stoker connects, sends or resolves a name",
)
def test_nothing_reaches_out(tmp_path: Path) -> None:
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    (tmp_path / "train.py").write_text(SCRIPT)
    noted = tmp_path / "noted"
    env = {"PYTHONPATH": f"{tmp_path / 'watch'}:{ROOT}", "NOTED": str(noted)}
    done = stoker(
        "run", "--no-ui", "--restart-from-scratch", "--nproc-per-node", "1", "--", sys.executable, "train.py", cwd=tmp_path, env=env
    )  # fmt: skip
    run = only_run(tmp_path)
    wait_for_state(run, Finished)
    assert facts(run), done.err
    for verb in ("attach --no-ui", "diagnose", "metrics", "policy", "export --chart", "runs"):
        name, *flags = verb.split()
        target = [] if name == "runs" else [str(run.root)]
        stoker(name, *target, *flags, cwd=tmp_path, env=env)
    # The readiness checks bind a port of this machine for a moment, and give it back.
    reached = [line for line in noted.read_text().splitlines() if "socket.bind" not in line]
    assert len([line for line in reached if "train.py" in line]) == state_of(run).attempts[-1].number
    assert not [line for line in reached if "train.py" not in line]

"""Rounds that kill keepers, launchers, agents (torchrun) and ranks on both nodes of one run.

A round is one run of two nodes, two processes on this machine, under real torchrun; each node has one rank. It is hit one to three
times at moments drawn from the seed. After a keeper's death the round does what a user would: on node 1 the same command again; on
node 0 `attach --adopt`, or `continue` where node 0 has no live process. These must hold:

- no two attempts at once: each rank holds a lock on a file of its attempt, and checks the locks of other attempts;
- no two leaders: in the order of the numbers each leader's orders are contiguous, and each attempt has one order to run it;
- every attempt of node 1 is one of node 0, with node 0's verdict;
- the run ends within a bound and leaves no process.

Elastic runs have `--nnodes 1:2`, and node 1 is also lost as a whole (keeper, launcher, agent and rank at once). Every other time
node 1 then stays away, and the run must end without it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from bench.rounds import Broken, Processes, Tally
from supervisor.keeper.process.child import read_launcher, read_pid
from supervisor.keeper.process.members import find_members
from supervisor.run import state as st
from supervisor.run.journal import read_state
from supervisor.run.node_files import Order, Want
from supervisor.run.ownership import keeper_is_alive, read_holder
from supervisor.run.paths import RunPaths

STEPS, STEP_S = 30, 0.1
BOUND_S = 240.0
VICTIMS = ("keeper 0", "keeper 1", "launcher 0", "launcher 1", "agent 0", "agent 1", "rank 0", "rank 1")
WHOLE_NODE = "node 1"
# What makes the global batch known: fewer ranks take part only where it stays the same.
BATCH = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
parser.parse_args()
"""
BATCH_WORDS = ("--batch_size", "2", "--gradient_accumulation_steps", "2")
RANK = f"""\
import fcntl, glob, os, sys, time
rank, attempt = os.environ["RANK"], os.environ["STOKER_ATTEMPT"]
mine = open(f"locks/{{attempt}}-{{rank}}", "w")
fcntl.flock(mine, fcntl.LOCK_EX)
peer = f"locks/{{attempt}}-{{1 - int(rank)}}"
met = time.monotonic() + 60
def lives():
    if os.environ["WORLD_SIZE"] == "1":
        return True
    try:
        with open(peer) as other:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return os.path.exists(peer + ".done")
while not lives() and time.monotonic() < met:
    time.sleep(0.02)
for step in range(1, {STEPS} + 1):
    if not lives():
        sys.exit("RuntimeError: Connection closed by peer")
    for path in glob.glob("locks/*[01]"):
        if os.path.basename(path).split("-")[0] != attempt:
            with open(path) as other:
                try:
                    fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    open("overlaps", "a").write(f"{{attempt}} beside {{path}} at step {{step}}\\n")
    time.sleep({STEP_S})
    if rank == "0":
        print(f"step {{step}}/{STEPS} loss {{1 / step:.4f}}", flush=True)
open(f"locks/{{attempt}}-{{rank}}.done", "w").close()
"""


class NodeKills:
    """One run of two nodes, and what a user does for it."""

    def __init__(self, seed: int, number: int, folder: Path, tally: Tally, *, is_elastic: bool) -> None:
        self.number, self.folder, self.tally, self.is_elastic = number, folder, tally, is_elastic
        self.kind = "--nnodes 1:2" if is_elastic else "--nnodes 2"
        self.dice = random.Random(f"{seed}-{number}")
        self.run = RunPaths(folder / "run")
        self.processes = Processes(folder)
        self.keepers: dict[int, subprocess.Popen[bytes]] = {}
        self.killed_nodes: set[int] = set()
        self.is_away, self.last_hit = False, ""

    def play(self) -> None:
        """Play the whole round. Raises Broken."""
        (self.folder / "locks").mkdir()
        script = (BATCH if self.is_elastic else "") + RANK
        (self.folder / "train.py").write_text(script, encoding="utf-8")
        try:
            for node in self.dice.sample((0, 1), 2):
                self._start(node)
            self._hit_until_the_end()
            self._look()
        finally:
            self.processes.end()

    def _hit_until_the_end(self) -> None:
        victims = (*VICTIMS, *[WHOLE_NODE] * 4) if self.is_elastic else VICTIMS
        hits = range(self.dice.choice((1, 1, 2, 3)))
        plan = sorted((self.dice.uniform(1.5, 9.0), self.dice.choice(victims)) for _ in hits)
        began, revive_at = time.monotonic(), 0.0
        while (now := time.monotonic() - began) < BOUND_S and not (self._is_over(0) and self._is_over(1)):
            if plan and now >= plan[0][0]:
                _, victim = plan.pop(0)
                if self._kill(victim, now):
                    revive_at = now + self.dice.uniform(0.2, 6.0)
                else:  # not started yet, or gone: try again a little later
                    plan.append((now + self.dice.uniform(0.1, 1.0), victim))
                    plan.sort()
            if now >= revive_at:
                for node in (0, 1):
                    self._revive(node)
                revive_at = now + 2.0
            time.sleep(0.05)

    def _kill(self, victim: str, now: float) -> bool:
        pids = self._pids_of(victim)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if pids:
            self.is_away |= victim == WHOLE_NODE and self.dice.random() < 0.5
            if victim.startswith(("keeper", "node")):
                self.killed_nodes.add(int(victim[-1]))
            self.last_hit = f"{victim} at {now:.1f} s"
            self.tally.note(self.number, self.kind, f"{now:.1f} s", [victim])
            self.tally.done[f"killed: {victim}"] += 1
        return bool(pids)

    def _start(self, node: int) -> None:
        """Run the command of this node."""
        flags = ("--no-ui", "--no-check", "--python", sys.executable, "--run-dir", str(self.run.root))
        count, bound = ("1:2", "25") if self.is_elastic else ("2", "60")
        place = ("--node-rank", str(node), "--master-addr", "127.0.0.1")
        nodes = ("--nnodes", count, *place, "--node-timeout", bound)
        scope, words = (("--batch-scope", "per_rank"), BATCH_WORDS) if self.is_elastic else ((), ())
        policy = ("--restart-from-scratch", "--max-retries", "9", *scope)
        self.keepers[node] = self.processes.start("run", *flags, *nodes, *policy, "train.py", *words)

    def _pids_of(self, victim: str) -> list[int]:
        """Return the victim's live processes. A whole node without its keeper has none."""
        if victim != WHOLE_NODE:
            return [pid] if (pid := self._pid_of(victim)) is not None else []
        keeper = self._pid_of("keeper 1")
        others = [self._pid_of(f"{process} 1") for process in ("launcher", "agent", "rank")]
        return [keeper, *(pid for pid in others if pid is not None)] if keeper is not None else []

    def _pid_of(self, victim: str) -> int | None:
        process, node = victim.split()
        paths = self.run.node(int(node))
        if process == "keeper":
            holder = read_holder(paths.lock)
            return holder.pid if holder is not None and keeper_is_alive(paths.lock) else None
        if not paths.journal.exists() or (view := read_state(paths.journal).attempt) is None:
            return None
        if process == "rank":
            return next((rank.pid for rank in view.ranks.values() if rank.pid and not rank.exited), None)
        found = (read_launcher if process == "launcher" else read_pid)(paths.attempt(view.number))
        return found.pid if found is not None and found.pid > 0 and view.ended_t is None else None

    def _has_keeper(self, node: int) -> bool:
        return keeper_is_alive(self.run.node(node).lock)

    def _is_over(self, node: int) -> bool:
        """Whether the node's part of the run has ended. A keeper killed as the run ended cannot come back."""
        journal = self.run.node(node).journal
        if journal.exists() and isinstance(read_state(journal).condition, st.Finished):
            return True
        if node == 1 and self.is_away:
            return self._is_over(0)
        was_killed = node == 1 and 1 in self.killed_nodes
        return was_killed and self._is_over(0) and not self._has_keeper(1) and self._is_refused()

    def _is_refused(self) -> bool:
        return b"is of a run that is over" in self.processes.console.read_bytes()

    def _revive(self, node: int) -> None:
        """Do what a user would where the keeper is gone and the run has not ended."""
        process = self.keepers.get(node)
        if process is not None and process.poll() is None:
            return
        if self._has_keeper(node) or self._is_over(node) or (node == 1 and self.is_away):
            return
        how = "run again"
        if node == 1 or not self.run.run_json.exists():
            self._start(node)
        elif self.processes.run("attach", "--adopt", str(self.run.root)) == 0:
            how = "adopted"
        else:
            how = "continued"
            self.keepers[node] = self.processes.start("continue", "--yes", "--no-ui", str(self.run.root))
        self.tally.done[how] += 1

    def _look(self) -> None:
        """Check what must hold."""
        states = [read_state(self.run.node(node).journal) for node in (0, 1)]
        for node, state in enumerate(states):
            if not self._is_over(node):
                name = type(state.condition).__name__
                raise Broken(f"node {node} did not end within {BOUND_S:.0f} s: {name}")
        condition = states[0].condition
        if isinstance(condition, st.Finished):
            self.tally.done[f"outcome: {condition.outcome}"] += 1
        self.tally.done["attempts"] += len(states[0].attempts)
        if (overlaps := self.folder / "overlaps").exists():
            raise Broken(f"two attempts at once: {overlaps.read_text().splitlines()[:3]}")
        self._look_at_orders()
        leading = {view.number: view.verdict for view in states[0].attempts}
        for view in states[1].attempts:
            if view.number not in leading:
                raise Broken(f"attempt {view.number} of node 1 is none of node 0")
            if view.verdict is not None and view.verdict != leading[view.number]:
                raise Broken(f"attempt {view.number}: node 1 has another verdict: {view.verdict}")
        if find_members(str(self.run.root)).ours:
            time.sleep(2.0)
            if left := find_members(str(self.run.root)).ours:
                raise Broken(f"processes are left: {[process.pid for process in left]}")

    def _look_at_orders(self) -> None:
        files = sorted(self.run.node().orders.glob("*.json"), key=lambda path: int(path.stem))
        orders = [msgspec.json.decode(path.read_bytes(), type=Order) for path in files]
        if [order.seq for order in orders] != list(range(1, len(orders) + 1)):
            raise Broken(f"orders are not numbered one by one: {[order.seq for order in orders]}")
        row = [order.leader for order in orders]
        blocks = [leader for at, leader in enumerate(row) if at == 0 or row[at - 1] != leader]
        if len(set(blocks)) != len(blocks):
            raise Broken(f"two leaders by turns: {blocks}")
        launches = [order.launch for order in orders if order.want is Want.RUN and order.launch is not None]
        alone = sum(len(launch.nodes) == 1 for launch in launches)
        self.tally.done["attempts without node 1"] += alone
        if alone and not self.is_elastic:
            raise Broken("an attempt ran without node 1")
        runs = Counter(order.attempt for order in orders if order.want is Want.RUN)
        if any(count > 1 for count in runs.values()):
            raise Broken(f"an attempt was ordered twice: {dict(runs)}")

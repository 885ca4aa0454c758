"""Random SIGKILLs over both nodes of one run: keepers, launchers, agents (torchrun) and ranks. Never two attempts at once, never two leaders.

A round is one run of two nodes, two processes on this machine, under real torchrun; each node has one rank. It is hit one to three times at
moments drawn from the seed. After a keeper's death comes what a person would do: on node 1 the same command again; on node 0 `attach --adopt`,
or `continue` where nothing of it lives. These must hold:

- no two attempts at once: each rank locks a file of its attempt for as long as it lives, and looks whether one of another attempt is locked;
- no two leaders: in the order of the numbers each leader's orders stand together, and each attempt has one order to run it;
- every attempt of node 1 is one of node 0, and no verdict or decision of it is another than node 0's;
- the run ends, within a bound, and nothing of it is left alive.

    python bench/node_kills.py --kills 50 --seed 1 [--elastic] [--round 7] [--keep bench/results/node_kills.json]

`--elastic`: the run is of `--nnodes 1:2`, and node 1 is also lost as a whole (keeper, launcher, agent and rank at once). Every other time it then
stays away, and the run must end without it. `--round` repeats one round of the seed. The exit code is 1 where anything did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench.common import ROOT, surroundings
from supervisor.keeper.process.child import read_launcher, read_pid
from supervisor.keeper.process.members import find_members
from supervisor.run import state as st
from supervisor.run.journal import read_state
from supervisor.run.node_files import Order, Want
from supervisor.run.ownership import read_holder
from supervisor.run.paths import RunPaths

STOKER = (sys.executable, "-m", "supervisor")
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


@dataclass
class Round:
    """One run and what came of it."""

    number: int
    hits: list[str] = field(default_factory=list)
    revivals: list[str] = field(default_factory=list)
    outcome: str = ""
    attempts: int = 0
    leaders: int = 0
    alone: int = 0
    took_s: float = 0.0
    findings: list[str] = field(default_factory=list)


class Nodes:
    """The two keepers of a run, and what a person does for them."""

    def __init__(self, folder: Path, round_: Round, *, elastic: bool = False) -> None:
        self.elastic, self.is_away = elastic, False
        self.folder, self.run, self.round = folder, RunPaths(folder / "run"), round_
        self.keepers: dict[int, subprocess.Popen[bytes]] = {}
        self.log = (folder / "console").open("ab")

    def start(self, node: int) -> None:
        """The command of this node."""
        flags = ("--no-ui", "--no-check", "--python", sys.executable, "--run-dir", str(self.run.root))
        count, bound = ("1:2", "25") if self.elastic else ("2", "60")
        place = ("--node-rank", str(node), "--master-addr", "127.0.0.1")
        nodes = ("--nnodes", count, *place, "--node-timeout", bound)
        batch = ("--batch-scope", "per_rank") if self.elastic else ()
        policy = ("--restart-from-scratch", "--max-retries", "9", *batch, "train.py")
        self.keepers[node] = self.stoker(
            "run", *flags, *nodes, *policy, *(BATCH_WORDS if self.elastic else ())
        )

    def stoker(self, *words: str) -> subprocess.Popen[bytes]:
        """`stoker WORDS` beside us."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(self.folder / "state")}
        return subprocess.Popen([*STOKER, *words], cwd=self.folder, env=env, stdout=self.log, stderr=self.log)

    def pids_of(self, victim: str) -> list[int]:
        """The processes that are meant, as far as they live now; of a whole node none without its keeper."""
        if victim != WHOLE_NODE:
            return [pid] if (pid := self.pid_of(victim)) is not None else []
        keeper = self.pid_of("keeper 1")
        others = [self.pid_of(f"{what} 1") for what in ("launcher", "agent", "rank")]
        return [keeper, *(pid for pid in others if pid is not None)] if keeper is not None else []

    def pid_of(self, victim: str) -> int | None:
        """The process that is meant, if it lives now."""
        what, node = victim.split(maxsplit=1)[0], int(victim.split()[1])
        paths = self.run.node(node)
        if what == "keeper":
            holder = read_holder(paths.lock)
            return holder.pid if holder is not None and self.lives(node) else None
        if not paths.journal.exists() or (view := read_state(paths.journal).attempt) is None:
            return None
        if what == "rank":
            return next((rank.pid for rank in view.ranks.values() if rank.pid and not rank.exited), None)
        found = (read_launcher if what == "launcher" else read_pid)(paths.attempt(view.number))
        return found.pid if found is not None and found.pid > 0 and view.ended_t is None else None

    def lives(self, node: int) -> bool:
        """Whether the node has a keeper."""
        from supervisor.run.ownership import keeper_is_alive

        return keeper_is_alive(self.run.node(node).lock)

    def over(self, node: int) -> bool:
        """Whether the node's part of the run is over; a keeper that was killed as the run ended has nothing to come back to."""
        journal = self.run.node(node).journal
        if journal.exists() and isinstance(read_state(journal).condition, st.Finished):
            return True
        if node == 1 and self.is_away:
            return self.over(0)
        killed = any(hit.startswith((f"keeper {node}", f"node {node}")) for hit in self.round.hits)
        return node == 1 and killed and self.over(0) and not self.lives(1) and self.is_refused()

    def is_refused(self) -> bool:
        """Whether a node that comes back was told that the run is over."""
        return b"is of a run that is over" in (self.folder / "console").read_bytes()

    def revive(self, node: int) -> None:
        """What a person does where a keeper is gone and the run is not over."""
        process = self.keepers.get(node)
        if process is not None and process.poll() is None:
            return
        if self.lives(node) or self.over(node) or (node == 1 and self.is_away):
            return
        if node == 1 or not self.run.run_json.exists():
            self.round.revivals.append(f"run {node}")
            self.start(node)
            return
        adopting = self.stoker("attach", "--adopt", str(self.run.root))
        if adopting.wait(60) == 0:
            self.round.revivals.append("adopt")
            return
        self.round.revivals.append("continue")
        self.keepers[node] = self.stoker("continue", "--yes", "--no-ui", str(self.run.root))

    def end(self) -> None:
        """End what is left."""
        for process in self.keepers.values():
            if process.poll() is None:
                process.kill()
            process.wait(30)
        for node in (0, 1):
            holder = read_holder(self.run.node(node).lock)
            if self.lives(node) and holder is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGKILL)
        for left in find_members(str(self.run.root)).ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(left.pid, signal.SIGKILL)
        self.log.close()


def play(number: int, seed: int, keep: bool, *, elastic: bool) -> Round:
    """One round of the seed."""
    draw = random.Random(f"{seed}-{number}")
    round_, began = Round(number), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"node-kills-{number}-"))
    (folder / "locks").mkdir()
    (folder / "train.py").write_text((BATCH if elastic else "") + RANK, encoding="utf-8")
    nodes = Nodes(folder, round_, elastic=elastic)
    victims = (*VICTIMS, *[WHOLE_NODE] * 4) if elastic else VICTIMS
    plan = sorted((draw.uniform(1.5, 9.0), draw.choice(victims)) for _ in range(draw.choice((1, 1, 2, 3))))
    try:
        for node in draw.sample((0, 1), 2):
            nodes.start(node)
        revive_at = 0.0
        while time.monotonic() - began < BOUND_S and not (nodes.over(0) and nodes.over(1)):
            now = time.monotonic() - began
            if plan and now >= plan[0][0]:
                _, victim = plan.pop(0)
                if pids := nodes.pids_of(victim):
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    nodes.is_away |= victim == WHOLE_NODE and draw.random() < 0.5
                    round_.hits.append(f"{victim} at {now:.1f} s")
                    revive_at = now + draw.uniform(0.2, 6.0)
                else:  # it is not there yet, or no more: a little later then
                    plan.append((now + draw.uniform(0.1, 1.0), victim))
                    plan.sort()
            if now >= revive_at:
                for node in (0, 1):
                    nodes.revive(node)
                revive_at = now + 2.0
            time.sleep(0.05)
        look(nodes, round_)
    finally:
        nodes.end()
        round_.took_s = round(time.monotonic() - began, 1)
        if round_.findings or keep:
            print(f"round {number}: kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return round_


def look(nodes: Nodes, round_: Round) -> None:
    """What must hold."""
    find = round_.findings.append
    run = nodes.run
    states = [read_state(run.node(node).journal) for node in (0, 1)]
    for node, state in enumerate(states):
        if not nodes.over(node):
            find(f"node {node} did not end within {BOUND_S:.0f} s: {type(state.condition).__name__}")
    condition = states[0].condition
    round_.outcome = condition.outcome.value if isinstance(condition, st.Finished) else "-"
    round_.attempts = len(states[0].attempts)
    if (nodes.folder / "overlaps").exists():
        find(f"two attempts at once: {(nodes.folder / 'overlaps').read_text().splitlines()[:3]}")
    files = sorted(run.node().orders.glob("*.json"), key=lambda path: int(path.stem))
    orders = [msgspec.json.decode(path.read_bytes(), type=Order) for path in files]
    if [order.seq for order in orders] != list(range(1, len(orders) + 1)):
        find(f"orders are not numbered one by one: {[order.seq for order in orders]}")
    row = [order.leader for order in orders]
    blocks = [leader for at, leader in enumerate(row) if at == 0 or row[at - 1] != leader]
    round_.leaders = len(blocks)
    if len(set(blocks)) != len(blocks):
        find(f"two leaders by turns: {blocks}")
    ordered = [order.launch for order in orders if order.want is Want.RUN and order.launch is not None]
    round_.alone = sum(len(launch.nodes) == 1 for launch in ordered)
    if round_.alone and not nodes.elastic:
        find("an attempt ran without node 1")
    runs = Counter(order.attempt for order in orders if order.want is Want.RUN)
    if any(count > 1 for count in runs.values()):
        find(f"an attempt was ordered twice: {dict(runs)}")
    known = {view.number: view for view in states[0].attempts}
    for view in states[1].attempts:
        leads = known.get(view.number)
        if leads is None:
            find(f"attempt {view.number} of node 1 is none of node 0")
        elif view.verdict is not None and view.verdict != leads.verdict:
            find(
                f"attempt {view.number}: node 1 has another verdict: {view.verdict.title} / {leads.verdict and leads.verdict.title}"
            )
    left = find_members(str(run.root)).ours
    if left and not any(isinstance(state.condition, st.Running) for state in states):
        time.sleep(2.0)
        if left := find_members(str(run.root)).ours:
            find(f"processes are left: {[process.pid for process in left]}")


def main() -> int:
    """Play rounds until there were so many kills."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--round", type=int)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    began, rounds, number = time.monotonic(), [], args.round or 0
    while True:
        round_ = play(number, args.seed, args.round is not None, elastic=args.elastic)
        rounds.append(round_)
        print(f"round {number}: {', '.join(round_.hits) or 'no hit'}; {', '.join(round_.revivals) or '-'}: {round_.outcome}, "
              f"{round_.attempts} attempts, {round_.leaders} leaders, {round_.took_s} s {round_.findings or ''}", flush=True)  # fmt: skip
        number += 1
        if args.round is not None or sum(len(one.hits) for one in rounds) >= args.kills:
            break
    result: dict[str, Any] = {
        **surroundings(),
        "nnodes": "1:2" if args.elastic else "2",
        "seed": args.seed,
        "rounds": len(rounds),
        "kills": sum(len(one.hits) for one in rounds),
        "victims": dict(sorted(Counter(hit.split(" at ")[0] for one in rounds for hit in one.hits).items())),
        "revivals": dict(Counter(word.split()[0] for one in rounds for word in one.revivals)),
        "outcomes": dict(Counter(one.outcome for one in rounds)),
        "attempts": dict(sorted(Counter(one.attempts for one in rounds).items())),
        "attempts without node 1": sum(one.alone for one in rounds),
        "leaders": dict(sorted(Counter(one.leaders for one in rounds).items())),
        "took_s": round(time.monotonic() - began),
        "findings": [f"round {one.number}: {text}" for one in rounds for text in one.findings],
    }
    print(json.dumps(result, indent=1))
    if args.keep:
        kept = json.loads(args.keep.read_bytes()) if args.keep.exists() else {}
        kept[f"--nnodes {result['nnodes']}"] = result
        args.keep.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())

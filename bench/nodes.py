"""A run of many nodes, of which all but node 0 are replayed: what its leader and a viewer cost, and how late news arrives.

First two real keepers are recorded for some seconds: what a follower writes to its folder, and how often. Then a real leader is started
with 2, 16, 64 and 256 nodes; the others' keepers are replayed by a few processes with the same classes at the same rate (heartbeats,
reports, journal lines, samples, reads of node 0's two files), into one run directory. Launchers stand in for torchrun: what is measured is
stoker. At the end one node reports a failure, and the verdict reads the journals and logs of all nodes (8 ranks of 16 KiB each).

    python bench/nodes.py [--nodes 2 16 64 256] [--rounds 2] [--keep bench/results/nodes.json]

Goals at 64 nodes: the leader at most 2 × the processor time that it takes with 2 nodes and 5 % of a core, the viewer at most 1.5 × and
15 %; each opens at most 150 files of the run directory a second, and moves 300 kB; a failure on the last node is in the leader's journal
within 3 s. How long the verdict takes is measured without a goal. Exit code 1 where a goal is missed. Needs strace, and a ptrace that is allowed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench.common import ROOT, command_line, cpu_s, surroundings, tell, until
from bench.stage import Terminal
from supervisor.job.spec import EntryKind, JobSpec, RetrySettings, Timing
from supervisor.keeper.process.detach import start_detached
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.journal import JournalReader, read_state
from supervisor.run.nodes import (
    Heartbeat,
    NodePhase,
    Order,
    Pulse,
    Report,
    Want,
    new_session,
    read_order,
    write_report,
)
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.runfile import KeeperSettings, RunFile, write_run_file

RANKS: Final = 8
LOG_BYTES: Final = 16 << 10
RECORD_S, SETTLE_S, WINDOW_S, TRACE_S = 14.0, 4.0, 20.0, 6.0
LOOK_S: Final = 0.2
A_PROCESS: Final = 64
"""So many followers are replayed by one process."""
GOAL_NODES: Final = 64
GOALS: Final = {
    "leader cpu / with 2 nodes": 2.0,
    "leader cpu": 0.05,
    "leader opens": 150.0,
    "leader kB": 300.0,
    "viewer cpu / with 2 nodes": 1.5,
    "viewer cpu": 0.15,
    "viewer opens": 150.0,
    "viewer kB": 300.0,
    "failure seen after s": 3.0,
}
MOVED: Final = re.compile(r" (?:p?read(?:64|v)?|p?write(?:64|v)?|sendfile)\(.* = (\d+)$")

# Takes torchrun's command line and runs the script once a rank, into the same tree of logs.
LAUNCHER = f"""\
#!{sys.executable}
import os, signal, subprocess, sys
flags = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
script = next(n for n, word in enumerate(sys.argv) if word.endswith(".sh"))
node, ranks = int(flags["node-rank"]), {RANKS}
children = []
for local in range(ranks):
    folder = os.path.join(flags["log-dir"], "none_x", "attempt_0", str(local))
    os.makedirs(folder)
    env = {{**os.environ, "RANK": str(node * ranks + local), "LOCAL_RANK": str(local), "WORLD_SIZE": str(ranks * int(flags["nnodes"]))}}
    with open(folder + "/stdout.log", "w") as out, open(folder + "/stderr.log", "w") as err:
        children.append(subprocess.Popen(["sh", *sys.argv[script:]], env=env, stdout=out, stderr=err, start_new_session=True))
signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in children])
sys.exit(1 if any([child.wait() for child in children]) else 0)
"""
# Rank 0 prints its steps, as most trainings do.
SCRIPT = """\
n=0
while true; do
  n=$((n+1))
  [ "$RANK" = 0 ] && echo "step $n/100000 | loss 2.$((n % 10000)) | lr 3e-4 | 1000 ms"
  sleep 1
done
"""


@dataclass
class Recorded:
    """What a follower's keeper wrote: at its start, and then every so often (seconds into the stretch, file, line)."""

    start: list[tuple[str, bytes]] = field(default_factory=list)
    stretch: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    length_s: float = 0.0


def record_of(folder: Path, nodes: int, node: int) -> RunFile:
    """The job of one node."""
    timing = Timing(grace_s=2.0, death_grace_s=0.5, node_timeout_s=60.0)
    job = JobSpec(
        "many nodes", EntryKind.SCRIPT, "train.sh", nproc_per_node=RANKS, nnodes=str(nodes), node_rank=node, master_addr="127.0.0.1",
        cwd=str(folder), timing=timing, retry=RetrySettings(enabled=False),
    )  # fmt: skip
    run = folder / "run"
    return RunFile(
        run_id="run", job=job, interpreter=str(folder / "launcher"), settings=KeeperSettings(shared=True, checks=False), created_t=time.time(),
        host="bench", user="bench", stoker_version="bench", path=str(run), uid=os.geteuid(),
    )  # fmt: skip


def begin(folder: Path, nodes: int) -> RunPaths:
    """A folder with what a run needs."""
    launcher = folder / "launcher"
    launcher.write_text(LAUNCHER, encoding="utf-8")
    launcher.chmod(0o755)
    (folder / "train.sh").write_text(SCRIPT, encoding="utf-8")
    run = RunPaths(folder / "run")
    run.root.mkdir(mode=0o700)
    write_run_file(run.run_json, record_of(folder, nodes, 0))
    return run


def keeper(folder: Path, run: RunPaths, nodes: int, node: int) -> int:
    """Start a real keeper; its pid."""
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    return start_detached(run, env, record=record_of(folder, nodes, node), entry="supervisor.keeper.__main__")


def state_of(run: RunPaths, node: int = 0) -> st.RunState:
    journal = run.node(node).journal
    return read_state(journal) if journal.exists() else st.RunState()


def end(run: RunPaths, *pids: int) -> None:
    """Stop a run by its leader, the first of the keepers that were started here."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[0], signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        until(lambda: not any(keeper_is_alive(run.node(node).lock) for node in range(len(pids))), 60.0)


# -- recording --------------------------------------------------------------------------------------------


def record() -> Recorded:
    """What node 1 of a real run of two writes."""
    folder = Path(tempfile.mkdtemp(prefix="bench-nodes-record-"))
    run, found = begin(folder, 2), Recorded()
    pids = [keeper(folder, run, 2, node) for node in (0, 1)]
    try:
        until(lambda: isinstance(state_of(run, 1).condition, st.Running))
        time.sleep(SETTLE_S)
        sizes = {path: path.stat().st_size for path in _written(run)}
        found.start = [(_name(run, path), path.read_bytes()[:size]) for path, size in sizes.items()]
        began = time.time()
        time.sleep(RECORD_S)
        found.length_s = time.time() - began
        for path in _written(run):
            with path.open("rb") as file:
                file.seek(sizes.get(path, 0))
                for line in file.read().splitlines():
                    values = json.loads(line)
                    found.stretch.append(
                        (min(max(values["t"] - began, 0.0), found.length_s), _name(run, path), values)
                    )
    finally:
        end(run, *pids)
        shutil.rmtree(folder, ignore_errors=True)
    found.stretch.sort(key=lambda one: one[0])
    return found


def _written(run: RunPaths) -> list[Path]:
    node = run.node(1)
    return [node.journal, *sorted(node.series.glob("*.jsonl"))]


def _name(run: RunPaths, path: Path) -> str:
    return str(path.relative_to(run.node(1).root))


# -- replaying --------------------------------------------------------------------------------------------


class Follower:
    """One replayed keeper."""

    def __init__(self, run: RunPaths, number: int, recorded: Recorded, nodes: int) -> None:
        self.paths, self.number, self.recorded, self.nodes = run.node(number), number, recorded, nodes
        self.session = new_session()
        self.leader_node = run.node(0)
        for folder in (self.paths.root, self.paths.series):
            make_private(folder)
        self.heartbeat, self.leader = Heartbeat(self.paths, self.session), Pulse(self.leader_node)
        self.order: Order | None = None
        self.phase, self.fails = NodePhase.READY, False
        self.began = 0.0
        self.at = 0
        self.look_due = number * LOOK_S / 64  # not all at the same moment
        self.report()

    def report(self, exit_code: int | None = None) -> None:
        seq = self.order.seq if self.order is not None else 0
        report = Report(
            node=self.number, session=self.session, host=f"gpu{self.number:03d}", nnodes=self.nodes, phase=self.phase, seq=seq,
            attempt=0 if self.phase is NodePhase.READY else 1, exit_code=exit_code,
        )  # fmt: skip
        write_report(self.paths, report)

    def look(self, now: float) -> None:
        """What a follower's loop does that reaches the disk."""
        self.heartbeat.beat(now)
        if now < self.look_due:
            return
        self.look_due = now + LOOK_S
        self.leader.look(now)
        found = read_order(self.leader_node)
        if found is not None and (self.order is None or found.seq > self.order.seq):
            self.order = found
            if found.want is Want.RUN:
                self.start(now)
            elif self.phase is NodePhase.RUNNING:
                self.leave(1)
            else:
                self.report(1 if self.phase is NodePhase.ENDED else None)
        if self.phase is NodePhase.RUNNING:
            self.write(now)

    def start(self, now: float) -> None:
        """An attempt begins here."""
        self.phase, self.began = NodePhase.RUNNING, now
        for name, data in self.recorded.start:
            self.paths.root.joinpath(name).write_bytes(data)
        attempt = self.paths.attempt(1)
        line = (
            b"rank %d: some line that a library prints at its start, of the usual length of a line\n"
            % self.number
        )
        for rank in range(RANKS):
            folder = attempt.torchrun / f"none_x/attempt_0/{rank}"
            make_private(folder)
            (folder / "stdout.log").write_bytes(line * (LOG_BYTES // len(line)))
            (folder / "stderr.log").touch()
        self.report()

    def write(self, now: float) -> None:
        """The recorded lines that are due, again and again, with the time of now."""
        stretch = self.recorded.stretch
        while stretch:
            turn, place = divmod(self.at, len(stretch))
            offset, name, values = stretch[place]
            due = turn * self.recorded.length_s + offset
            if due > now - self.began:
                return
            values = {**values, "t": time.time()}
            with self.paths.root.joinpath(name).open("ab", buffering=0) as file:
                file.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")
            self.at += 1

    def leave(self, exit_code: int) -> None:
        """Its part ends."""
        self.phase = NodePhase.ENDED
        self.report(exit_code)


def replay(folder: Path, first: int, last: int, nodes: int) -> None:
    """Keep followers `first` to `last`, until the run is over; the last node fails once the file `fail` is there."""
    recorded = msgspec.json.decode((folder / "recorded.json").read_bytes(), type=Recorded)
    run = RunPaths(folder / "run")
    followers = [Follower(run, number, recorded, nodes) for number in range(first, last + 1)]
    while not any(one.order is not None and one.order.want is Want.OVER for one in followers):
        now = time.monotonic()
        for one in followers:
            one.look(now)
        if (
            followers[-1].number == nodes - 1
            and (folder / "fail").exists()
            and followers[-1].phase is NodePhase.RUNNING
        ):
            (folder / "failed").write_text(str(time.time()))
            followers[-1].leave(1)
        time.sleep(max(0.0, 0.02 - (time.monotonic() - now)))


# -- measuring --------------------------------------------------------------------------------------------


def cpu_share(pid: int, window_s: float = WINDOW_S) -> float:
    """Processor seconds a second."""
    began, before = time.monotonic(), cpu_s(pid)
    time.sleep(window_s)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


def directory_use(pid: int, run: RunPaths) -> dict[str, float]:
    """What a process does in the run directory, a second, by strace: opens, all calls, bytes read and written."""
    trace = run.root.parent / "trace"
    what = ("-f", "-qq", "-y", "-e", "trace=%file,%desc", "-e", "signal=none", "-o", str(trace))
    command = ["timeout", "-s", "INT", str(TRACE_S), "strace", *what, "-p", str(pid)]
    subprocess.run(command, capture_output=True, check=False)
    opens = calls = size = 0
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        if str(run.root) not in line:
            continue
        calls += 1
        opens += "openat(" in line
        if (done := MOVED.search(line)) is not None:
            size += int(done[1])
    trace.unlink()
    return {"opens": opens / TRACE_S, "calls": calls / TRACE_S, "kB": size / TRACE_S / 1e3}


def measure(nodes: int, recorded: Recorded) -> dict[str, Any]:
    """One run with so many nodes."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-nodes-{nodes}-"))
    run = begin(folder, nodes)
    (folder / "recorded.json").write_bytes(msgspec.json.encode(recorded))
    leader = keeper(folder, run, nodes, 0)
    replays = [
        subprocess.Popen([sys.executable, __file__, "--replay", str(folder), str(first), str(min(first + A_PROCESS, nodes) - 1), str(nodes)], cwd=ROOT)
        for first in range(1, nodes, A_PROCESS)
    ]  # fmt: skip
    try:
        until(lambda: isinstance(state_of(run).condition, st.Running), 120.0)
        time.sleep(SETTLE_S)
        found: dict[str, Any] = {"leader": {"cpu": cpu_share(leader), **directory_use(leader, run)}}
        found["replay cpu"] = [round(cpu_share(one.pid, 2.0), 3) for one in replays]
        terminal = Terminal([sys.executable, "-m", "supervisor", "attach", str(run.root)], str(folder))
        try:
            terminal.wait_for(b"step")
            time.sleep(SETTLE_S)
            pid = terminal.process.pid
            found["viewer"] = {"cpu": cpu_share(pid), **directory_use(pid, run)}
        finally:
            terminal.close()
        before_s = cpu_s(leader)
        (folder / "fail").touch()
        until(lambda: isinstance(state_of(run).condition, st.Finished), 900.0)
        found["end and verdict cpu s"] = (
            cpu_s(leader) - before_s
        )  # as long as nobody waits for it, its numbers are there
        failed = float((folder / "failed").read_text())
        facts = JournalReader(run.node().journal).read()
        ends = [fact for fact in facts if isinstance(fact, ev.NodeSeen) and fact.sight is ev.NodeSight.ENDED]
        seen = next(fact.t for fact in ends if fact.node == nodes - 1)
        own = next(fact.t for fact in facts if isinstance(fact, ev.AttemptEnded))
        judged = [fact.t for fact in facts if isinstance(fact, ev.Diagnosed)][-1]
        found["failure seen after s"] = seen - failed
        found["parts ended after s"] = max(own, *(fact.t for fact in ends)) - seen
        found["verdict after s"] = judged - max(own, *(fact.t for fact in ends))
        return found
    finally:
        end(run, leader)
        for one in replays:
            one.terminate()
            one.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Record, replay, print, keep; 1 where a goal is missed."""
    if sys.argv[1:2] == ["--replay"]:
        folder, first, last, nodes = sys.argv[2:]
        replay(Path(folder), int(first), int(last), int(nodes))
        return 0
    parser = command_line(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 16, GOAL_NODES, 256])
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    recorded = record()
    rounds: dict[int, list[dict[str, Any]]] = {}
    for _ in range(args.rounds):
        for nodes in args.nodes:
            rounds.setdefault(nodes, []).append(measure(nodes, recorded))
            print(f"{nodes:>4} nodes: {json.dumps(rounds[nodes][-1])}", flush=True)
    medians = {nodes: _median(found) for nodes, found in rounds.items()}
    result: dict[str, Any] = {
        **surroundings(),
        "rounds": args.rounds,
        "ranks_a_node": RANKS,
        "a follower writes a second": {
            "lines": round(len(recorded.stretch) / recorded.length_s, 1),
            "bytes": round(
                sum(len(json.dumps(values)) for _, _, values in recorded.stretch) / recorded.length_s
            ),
        },
        "medians": medians,
    }
    missed: list[str] = []
    if {2, GOAL_NODES} <= set(medians):
        result["goals"] = goals = _held(medians[2], medians[GOAL_NODES])
        missed = [name for name, value in goals.items() if value > GOALS[name]]
        for name, value in goals.items():
            print(f"{name:<36} {value:8.3f}   goal {GOALS[name]:g}{'  MISSED' if name in missed else ''}")
    tell(result, args.keep)
    return 1 if missed else 0


def _median(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all rounds, name by name."""
    first = found[0]
    out: dict[str, Any] = {}
    for name, value in first.items():
        values = [one[name] for one in found if name in one]
        if isinstance(value, dict):
            out[name] = _median(values)
        elif isinstance(value, list):
            out[name] = values[-1]
        else:
            out[name] = round(statistics.median(values), 4)
    return out


def _held(two: dict[str, Any], many: dict[str, Any]) -> dict[str, float]:
    return {
        **{
            f"{who} cpu / with 2 nodes": round(many[who]["cpu"] / two[who]["cpu"], 3)
            for who in ("leader", "viewer")
        },
        **{
            f"{who} {what}": many[who][what]
            for who in ("leader", "viewer")
            for what in ("cpu", "opens", "kB")
        },
        "failure seen after s": many["failure seen after s"],
    }


if __name__ == "__main__":
    sys.exit(main())

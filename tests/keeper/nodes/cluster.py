"""Keepers of several nodes on one machine: each in a thread, with a launcher that stands in for torchrun."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from supervisor.job.spec import EntryKind, RetrySettings, Timing
from supervisor.keeper.__main__ import make_keeper
from supervisor.keeper.loop import Keeper
from supervisor.run import events as ev
from supervisor.run.journal import JournalReader, read_state
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import KeeperSettings, RunFile, write_run_file
from supervisor.run.state import RunState
from tests.conftest import wait_until
from tests.keeper.fakes import job_of

DEADLINE_S = 60.0

# Takes torchrun's command line, and runs the script once, as the one rank of its node, into the same tree of logs.
FAKE_PYTHON = """\
#!{python}
import os, signal, subprocess, sys
flags = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
script = next(n for n, word in enumerate(sys.argv) if word.endswith(".py"))
folder = os.path.join(flags["log-dir"], "none_x", "attempt_0", "0")
os.makedirs(folder)
rank = flags["node-rank"]
env = {{**os.environ, "RANK": rank, "LOCAL_RANK": "0", "WORLD_SIZE": flags["nnodes"]}}
with open(folder + "/stdout.log", "w") as out, open(folder + "/stderr.log", "w") as err:
    child = subprocess.Popen([sys.executable, *sys.argv[script:]], env=env, stdout=out, stderr=err, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
code = child.wait()
if code:
    print(f"E1124 03:54:47.026000 {{os.getpid()}} torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {{code}}) "
          f"local_rank: 0 (pid: {{child.pid}}) of binary: /usr/bin/python", flush=True)
sys.exit(1 if code else 0)
"""


@dataclasses.dataclass
class Cluster:
    """Node k's record and, while it is kept, its keeper and thread."""

    run: RunPaths
    records: list[RunFile]
    keepers: dict[int, Keeper] = dataclasses.field(default_factory=dict)
    threads: dict[int, threading.Thread] = dataclasses.field(default_factory=dict)
    codes: dict[int, int] = dataclasses.field(default_factory=dict)

    def start(self, *nodes: int, continued_by: str = "") -> None:
        """Start these nodes' keepers; `continued_by`: as `stoker continue` does."""
        for node in nodes:
            keeper = make_keeper(self.run, self.records[node], env=os.environ, continued_by=continued_by)

            def carry(node: int = node, keeper: Keeper = keeper) -> None:
                self.codes[node] = keeper.run_to_end()
                keeper.close()

            self.keepers[node] = keeper
            self.threads[node] = threading.Thread(target=carry, name=f"node-{node}")
            self.threads[node].start()

    def wait(self, *nodes: int) -> list[int]:
        """The exit codes of these nodes' keepers, once they have left."""
        for node in nodes:
            self.threads[node].join(DEADLINE_S)
            assert not self.threads[node].is_alive(), (
                f"node {node} is still there: {self.keepers[node].state.condition}"
            )
        return [self.codes[node] for node in nodes]

    def state(self, node: int = 0) -> RunState:
        """What a node's journal says."""
        return read_state(self.run.node(node).journal)

    def facts(self, node: int = 0) -> list[ev.Event]:
        """A node's journal."""
        return JournalReader(self.run.node(node).journal).read()

    def rank_pids(self, node: int) -> list[int]:
        """The pids of a node's ranks, of its newest attempt."""
        view = self.state(node).attempt
        return [rank.pid for rank in view.ranks.values() if rank.pid] if view else []

    def wait_for_ranks(self, attempt: int = 1) -> None:
        """Until every node has its rank of this attempt."""

        def up() -> bool:
            views = [self.state(node).attempt for node in range(len(self.records))]
            return all(
                view is not None and view.number == attempt and any(r.pid for r in view.ranks.values())
                for view in views
            )

        assert wait_until(up, DEADLINE_S), [self.state(n).condition for n in range(len(self.records))]


@contextmanager
def cluster(folder: Path, script: str, nodes: int = 2, **changes: object) -> Iterator[Cluster]:
    """A cluster that is ended with the block."""
    python = folder / "fake-python"
    python.write_text(FAKE_PYTHON.format(python=sys.executable), encoding="utf-8")
    python.chmod(0o755)
    (folder / "train.py").write_text(script, encoding="utf-8")
    run = RunPaths(folder / "run")
    record = job_of(folder, "train.py")
    fields: dict[str, object] = {
        "entry_kind": EntryKind.SCRIPT,
        "nnodes": str(nodes),
        "master_addr": "127.0.0.1",
        "timing": Timing(grace_s=2.0, death_grace_s=0.5, hold_s=50.0, node_timeout_s=20.0),
        "retry": RetrySettings(restart_from_scratch=True),
        **changes,
    }
    settings = KeeperSettings(sample_interval_s=60.0, shared=True, checks=False)
    records = [
        msgspec.structs.replace(
            record,
            run_id="run",
            job=dataclasses.replace(record.job, node_rank=node, **fields),  # type: ignore[arg-type]  # a test's own dict
            interpreter=str(python),
            settings=settings,
            path=str(run.root),
            uid=os.geteuid(),
        )
        for node in range(nodes)
    ]
    run.root.mkdir(mode=0o700)
    write_run_file(run.run_json, records[0])
    made = Cluster(run, records)
    try:
        yield made
    finally:
        for node, thread in made.threads.items():
            if thread.is_alive():
                made.keepers[node]._control._signals.put(15)
        for thread in made.threads.values():
            thread.join(DEADLINE_S)

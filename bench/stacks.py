"""How long the Python stacks of all ranks take: by PyTorch's debug server, by py-spy, and from the key ``K`` to the words on the terminal.

    python bench/stacks.py [--rounds 20] [--keep bench/results/stacks.json]

A real torchrun of two ranks over gloo that run the debug server (a PyTorch that has one); rank 1 sleeps, rank 0 waits for it in an
all-reduce. The same ranks are looked at by turns. Goal: K within 1 s; the server no slower than py-spy.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, free_port, in_turn, run_below, surroundings, tell, until
from bench.stage import Terminal
from supervisor.run.journal import read_state
from supervisor.sources.processes import ProcessId
from supervisor.sources.stacks import python_stacks as ps
from supervisor.sources.stacks.debug_server import find_debug_server

JOB = """
import time
import torch, torch.distributed as dist
from torch.distributed.debug import start_debug_server
dist.init_process_group("gloo")
start_debug_server(port=PORT)
for step in range(1, 6):
    dist.all_reduce(torch.ones(10))
    print(f"step {step} loss {4 / step:.4f}", flush=True)
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(10))
"""
PRESSES = 5


def timed(ranks: list[ProcessId], source: ps.StackSource) -> float:
    """Seconds for one round by this source alone."""
    servers = mock.patch.object(ps, "find_debug_server", return_value=None)
    with servers if source is ps.StackSource.PY_SPY else contextlib.nullcontext():
        began = time.perf_counter()
        stacks = ps.collect_stacks(ranks)
        took = time.perf_counter() - began
    assert {stack.source for stack in stacks} == {source}, [stack.note for stack in stacks]
    return took


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        # The server's page on rank 0, which is not asked, wants this library.
        (folder / "tabulate.py").write_text("def tabulate(*a, **k): return ''\n", encoding="utf-8")
        (folder / "train.py").write_text(JOB.replace("PORT", str(free_port())), encoding="utf-8")
        os.environ["PYTHONPATH"] = f"{ROOT}:{place}"
        flags = ["--nproc-per-node=2", "--no-check", "--python", sys.executable]
        terminal = Terminal([sys.executable, "-m", "supervisor", "run", *flags, "train.py"], place)
        try:
            until(lambda: run_below(folder) is not None)
            run = run_below(folder)
            assert run is not None
            journal = run.node().journal
            until(lambda: (a := read_state(journal).attempt) is not None and a.last_step == 5)
            attempt = read_state(journal).attempt
            assert attempt is not None
            known = [(rank.pid, rank.start_time) for _, rank in sorted(attempt.ranks.items())]
            ranks = [ProcessId(pid, start) for pid, start in known if pid is not None and start is not None]
            until(lambda: all(find_debug_server(rank) for rank in ranks))
            presses = []
            for _ in range(PRESSES):
                time.sleep(1.0)
                pressed = terminal.press(b"K")
                presses.append(terminal.wait_for(b": done") - pressed)
                time.sleep(6.0)  # until the words are gone from where they will stand again
            sources = (ps.StackSource.DEBUG_SERVER, ps.StackSource.PY_SPY)
            found = in_turn({str(s): partial(timed, ranks, s) for s in sources}, args.rounds)
        finally:
            terminal.press(b"s")
            time.sleep(1.0)
            terminal.press(b"y")
            time.sleep(3.0)
            terminal.close()
    shown = {**found, "K to the words": presses}
    seconds = {
        name: [round(x, 3) for x in (statistics.median(v), min(v), max(v))] for name, v in shown.items()
    }
    result = {"rounds": args.rounds, **surroundings(), "median, least, greatest seconds": seconds}
    tell(result, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())

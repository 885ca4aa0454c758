"""How many lines a second a keeper follows on this machine, without a lost step, and with its lag shown.

Two trainings under torchrun, one after the other: 64 ranks of 200 lines/s each in a file each, and one rank of 50,000 lines/s. Every
50th line is a step with a number; a series with all numbers says that no line was lost. In the middle of the second the keeper is
stopped by a signal for `--frozen` seconds, and then let run a twentieth of the time until the header shows the lag, as where a
machine swaps (a fast one reads 30 MiB in half a second, and a lag that short is no news): the journal (and so the JSON on stdout),
the console and the dashboard's header must say how far behind it is.

    python bench/load.py --seconds 60 [--keep bench/results/load.json]

The exit code is 1 where a step is missing, the lag is not shown, progress was not journalled for more than 10 s (20 s with the
freeze), or not all was read 60 s after the end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, cpu_s, run_below, status, steps_in_series, surroundings, tell
from bench.rounds import STOKER, Processes
from bench.stage import Terminal
from supervisor.run import events as ev
from supervisor.run.journal import StateReader, facts_in
from supervisor.run.paths import RunPaths
from supervisor.run.series import JOB_KEY

SCRIPT = ROOT / "tests" / "integration" / "scripts" / "noisy_training.py"
STEP_EVERY = 50
LONGEST_GAP_S = 10.0
SLACK_S = 1.5  # a busy machine's, where the interval itself is 10 s
CATCH_UP_S = 60.0
SLOWED_S = 0.01, 0.19
"""Seconds in which a slowed keeper runs, and in which it is stopped."""
SHOWN = b"log read to"


@dataclass(frozen=True, slots=True)
class Load:
    """A load. The keeper is stopped for `frozen_s` in the middle."""

    ranks: int
    lines_a_second: int
    seconds: float
    frozen_s: float = 0.0


def carry(load: Load, folder: Path) -> dict[str, Any]:
    """Run one training in `folder`, viewed by `--json`, `attach --no-ui` and the dashboard."""
    processes = Processes(folder)
    command = [
        "--no-ui",
        "--json",
        "--python",
        sys.executable,
        "--nproc-per-node",
        str(load.ranks),
        str(SCRIPT),
    ]
    keeper = processes.start("run", *command, str(load.lines_a_second), str(load.seconds))
    screen: Terminal | None = None
    shown: list[bool] = []
    try:
        run = _begun(folder, keeper)
        console = processes.start("attach", "--no-ui", str(run.root))
        journal = StateReader(run.node().journal)
        _wait_for_step(journal, keeper)
        screen = Terminal([*STOKER, "attach", "--read-only", str(run.root)], str(folder))
        began = time.monotonic()
        _sleep_until(began + load.seconds / 2 - load.frozen_s / 2, keeper)
        watcher = None
        if load.frozen_s:
            keeper.send_signal(signal.SIGSTOP)
            _sleep_until(time.monotonic() + load.frozen_s, None)
            watcher = threading.Thread(target=_see, args=(screen, shown))
            watcher.start()
            _slow(keeper, watcher)
        rss = 0
        used_s = 0.0
        while keeper.poll() is None and time.monotonic() < began + load.seconds + 2 * CATCH_UP_S:
            rss = max(rss, status(keeper.pid).get("VmRSS", 0))
            used_s = max(used_s, cpu_s(keeper.pid))
            time.sleep(0.2)
        code = keeper.wait(1)
        console.wait(CATCH_UP_S)
        if watcher is not None:
            watcher.join()
    finally:
        processes.end()
        if screen is not None:
            screen.close()
    found = list(facts_in(run.node().journal))
    progress = [event for event in found if isinstance(event, ev.Progress)]
    ended = next(event for event in found if isinstance(event, ev.AttemptEnded))
    printed = processes.console.read_bytes().splitlines()
    lost, steps = _lost(run, load)
    lag = max((event.lag_bytes or 0 for event in progress), default=0)
    return {
        "ranks": load.ranks,
        "lines_a_second_each": load.lines_a_second,
        "lines_written": steps["lines"],
        "frozen_s": load.frozen_s,
        "exit_code": code,
        "steps_written": steps["steps"],
        "steps_lost": lost,
        "log_mib": round(sum(path.stat().st_size for path in _logs(run)) / 2**20, 1),
        "unread_bytes_at_the_end": (ended.log_size_bytes or 0) - (ended.log_read_bytes or 0),
        "seconds_from_exit_to_all_read": round(ended.t - (ended.exit_t or ended.t), 2),
        "most_lag_mib": round(lag / 2**20, 1),
        "events_with_lag": sum(bool(event.lag_bytes) for event in progress),
        "lag_in_json": sum(line.startswith(b"{") and b'"lag_bytes"' in line for line in printed),
        "lag_in_console": sum(SHOWN in line for line in printed if not line.startswith(b"{")),
        "lag_in_header": any(shown),
        "longest_between_progress_s": round(max((b.t - a.t for a, b in pairwise(progress)), default=0.0), 2),
        "cpu_cores": round(used_s / load.seconds, 2),
        "rss_mib": round(rss / 2**20, 1),
    }


def holds(found: dict[str, Any]) -> list[str]:
    """Describe what does not hold."""
    wrong = []
    if found["exit_code"] != 0:
        wrong.append(f"exit code {found['exit_code']}")
    if found["steps_lost"] or not found["steps_written"]:
        wrong.append(f"{found['steps_lost']} of {found['steps_written']} steps lost")
    if found["unread_bytes_at_the_end"] or found["seconds_from_exit_to_all_read"] > CATCH_UP_S:
        wrong.append("not caught up")
    if found["longest_between_progress_s"] > LONGEST_GAP_S + SLACK_S + found["frozen_s"]:
        wrong.append(f"no progress for {found['longest_between_progress_s']} s")
    if found["frozen_s"]:
        wrong += [
            f"no {name}"
            for name in ("events_with_lag", "lag_in_json", "lag_in_console", "lag_in_header")
            if not found[name]
        ]
    return wrong


def _slow(keeper: subprocess.Popen[bytes], watcher: threading.Thread) -> None:
    """Let a stopped keeper run in short slices until the watcher ends, then freely."""
    runs_s, stands_s = SLOWED_S
    while watcher.is_alive() and keeper.poll() is None:
        keeper.send_signal(signal.SIGCONT)
        time.sleep(runs_s)
        keeper.send_signal(signal.SIGSTOP)
        watcher.join(stands_s)
    keeper.send_signal(signal.SIGCONT)


def _see(screen: Terminal, shown: list[bool]) -> None:
    """Check for half a minute whether the header shows how far the logs are read."""
    try:
        screen.wait_for(SHOWN, 30.0)
        shown.append(True)
    except TimeoutError:
        shown.append(False)


def _begun(folder: Path, keeper: subprocess.Popen[bytes]) -> RunPaths:
    while keeper.poll() is None:
        if (run := run_below(folder)) is not None:
            return run
        time.sleep(0.05)
    raise SystemExit((folder / "commands.log").read_text())


def _wait_for_step(journal: StateReader, keeper: subprocess.Popen[bytes]) -> None:
    while keeper.poll() is None:
        journal.refresh()
        if journal.state.attempt is not None and journal.state.attempt.last_step:
            return
        time.sleep(0.1)
    raise SystemExit("it ended before its first step was seen")


def _sleep_until(moment: float, keeper: subprocess.Popen[bytes] | None) -> None:
    while time.monotonic() < moment and (keeper is None or keeper.poll() is None):
        time.sleep(0.1)


def _logs(run: RunPaths) -> list[Path]:
    return [folder / "stdout.log" for folder in run.node().attempt(1).rank_folders().values()]


def _lost(run: RunPaths, load: Load) -> tuple[int, dict[str, int]]:
    """Count the steps in the logs that are in no series, for each rank and the job."""
    seen = steps_in_series(run)
    lost = steps = lines = 0
    for rank in range(load.ranks):
        folder = run.node().attempt(1).rank_folders().get(rank)
        text = (folder / "stdout.log").read_bytes() if folder is not None else b""
        written = {int(line.split()[1]) for line in text.splitlines() if line.startswith(b"step ")}
        lines += text.count(b"\n")
        steps += len(written)
        lost += len(written - seen.get(str(rank), set()))
        if rank == 0:
            lost += len(written - seen.get(JOB_KEY, set()))
    return lost, {"steps": steps, "lines": lines}


def main() -> int:
    """Print the result. Return 1 if something does not hold."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--frozen", type=float, default=10.0)
    args = parser.parse_args()
    result: dict[str, Any] = {}
    wrong: list[str] = []
    loads = {"files": Load(64, 200, args.seconds), "flood": Load(1, 50_000, args.seconds, args.frozen)}
    for name, load in loads.items():
        with tempfile.TemporaryDirectory(prefix="stoker-load-") as folder:
            found = carry(load, Path(folder))
        print(json.dumps(found), flush=True)
        result[name] = found
        wrong += [f"{name}: {text}" for text in holds(found)]
    tell({**result, "wrong": wrong, **surroundings()}, args.keep)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""What makes a journal long, and how long one of 150 MB takes to open.

    python bench/long_journal.py [--days 30] [--mb 150] [--rounds 3] [--keep bench/results/long_journal.json]

*Bytes*: the keeper's own ledger and recorder live through days of a job that logs a step every second, changes its phase every 30 s and
saves every minute; the clock is made. Journal bytes by kind of event, on the first day, the second, and the last.

*Opening*: a journal of progress, checkpoints and phases with a failure at its end, with a snapshot beside it and without (as an older
stoker left it). Wall seconds, and processor seconds in brackets, which other work on the machine does not change. Goals: with a snapshot `stoker runs` 0.5 s,
`stoker diagnose`, `attach --no-ui` and the first screen of `attach` 2 s; without one the first screen, marked as being read, 2 s.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench.common import ROOT, command_line, surroundings, tell
from bench.stage import Terminal
from supervisor.keeper.base.ledger import APART_S, Ledger
from supervisor.keeper.monitoring.observations import CheckpointSeen, PhaseSeen, StepSeen
from supervisor.keeper.recording.recorder import Recorder
from supervisor.run import events as ev
from supervisor.run.journal import read_state, write_snapshot
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, FailureClass, Verdict

T = 1_790_000_000.0
DAY_S = 86_400
LOG = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    labels["x"]
KeyError: 'x'
"""
STOKER = [sys.executable, "-m", "supervisor"]


class MadeClock:
    """Time that is set."""

    now = 0.0
    was_set = False

    def mono(self) -> float:
        """Seconds."""
        return self.now

    def wall(self) -> float:
        """The same, as a time of day."""
        return T + self.now

    def ahead_s(self) -> float:
        """It is never set."""
        return 0.0


def grown(folder: Path, days: int) -> dict[str, object]:
    """Journal bytes of each kind by day."""
    run = RunPaths(folder / "grown")
    run.node().root.mkdir(parents=True)
    clock, ledger = MadeClock(), Ledger(run.node())
    recorder = Recorder(run.node().series, ledger.emit, clock, apart_s=lambda: ledger.apart_s)
    ledger.emit(ev.LaunchIntended(t=T, attempt=1, argv=("torchrun", "train.py"), reason="first launch"))
    ledger.emit(ev.AttemptStarted(t=T, attempt=1, pid=5, start_time=2.0))
    recorder.begin(1)
    second = 0
    while second < days * DAY_S:
        # No more often than is journalled, but for the phases: what comes between two reports is merged into the second.
        before, second = second, second + int(min(ledger.apart_s, 30.0))
        clock.now, t = float(second), T + second
        loss = 2.0 + (second * 7919 % 1000) / 1000 + 1e5 / (second + 1e5)
        values = {
            "step": float(second),
            "loss": loss,
            "lr": 3e-4,
            "grad_norm": loss / 3,
            "step_time_s": 0.987,
        }
        recorder.record(
            1, StepSeen(t, 0, {**values, "total_steps": 1e7, "tokens_per_sec": 12345.6 + loss}, True)
        )
        if second // 30 > before // 30:
            recorder.record(1, PhaseSeen(t, 0, ev.Phase.EVALUATING, second))
            recorder.record(1, PhaseSeen(t + 0.5, 0, ev.Phase.STEPPING, second))
        if second // 60 > before // 60:
            recorder.record(1, CheckpointSeen(t, 0, second, f"/data/run/step_{second}", False))
        recorder.tick()
    recorder.close()
    ledger.close()
    found: dict[int, Counter[str]] = {}
    total = 0
    for line in run.node().journal.open("rb"):
        event = json.loads(line)
        found.setdefault(int((event["t"] - T) // DAY_S), Counter())[event["kind"]] += len(line)
        total += len(line)
    days_shown = {f"day {day + 1}": dict(found[day].most_common()) for day in (0, 1, days - 1)}
    return {"days": days, "bytes": total, **days_shown, "apart_s": [[below, s] for below, s in APART_S]}


def make_run(root: Path, mb: float) -> RunPaths:
    """A run of so many MB whose attempt failed."""
    run = RunPaths(root)
    attempt = run.node().attempt(1)
    attempt.root.mkdir(parents=True)
    attempt.agent_log.write_text(LOG, encoding="utf-8")
    encoder = msgspec.json.Encoder()
    with run.node().journal.open("wb") as file:

        def write(*events: ev.Event) -> None:
            for event in events:
                file.write(encoder.encode(event) + b"\n")

        write(
            ev.RunStarted(t=T, run_id=root.name, name="old", mode="launched", host="gpu01", world_size=8),
            ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="0.1.0"),
            ev.LaunchIntended(t=T, attempt=1, argv=("torchrun", "train.py"), reason="first launch"),
            ev.AttemptStarted(t=T, attempt=1, pid=5, start_time=2.0),
            *(ev.RankStarted(t=T, attempt=1, local_rank=r, rank=r, pid=10 + r) for r in range(8)),
        )
        t, step = T, 0
        while file.tell() < mb * 1e6:
            t, step = t + 1.0, step + 3
            loss = 2.0 + (step * 7919 % 1000) / 1000 + 1e5 / (step + 1e5)
            write(
                ev.Progress(
                    t=t, attempt=1, step=step, total_steps=10_000_000, epoch=step / 1e5, loss=loss, lr=3e-4,
                    grad_norm=loss / 3, tokens_per_sec=123456.7 + loss, step_time_s=0.333 + loss / 100, mfu=0.41,
                )
            )  # fmt: skip
            if step % 900 == 0:
                write(
                    ev.CheckpointCommitted(t=t, attempt=1, step=step, path=f"/data/step_{step}", number=step)
                )
            if step % 300 == 0:
                write(
                    *(
                        ev.PhaseChanged(t=t, attempt=1, phase=p)
                        for p in (ev.Phase.CHECKPOINTING, ev.Phase.STEPPING)
                    )
                )
        verdict = Verdict(
            failure=FailureClass.CODE_ERROR, reason=None, confidence=0.9, rank=3, ranks=(3,), node=None, title="KeyError: 'x'",
            cause=None, consequences=(), advice=(), action=Action.NONE, fingerprint="f",
        )  # fmt: skip
        write(
            ev.AttemptEnded(t=t, attempt=1, exit_code=1),
            ev.Diagnosed(t=t, attempt=1, verdict=verdict),
            ev.RunEnded(t=t, outcome=ev.Outcome.FAILED, exit_code=1, reason="code_error: nothing to change"),
        )
    return run


def took(argv: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Wall and processor seconds of a command."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(argv, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, cpu


def screen(run: RunPaths, folder: Path, *marks: bytes) -> list[tuple[float, float]]:
    """Wall and processor seconds until each of the words is on the way to the screen."""
    terminal = Terminal([*STOKER, "attach", str(run.root)], str(folder))
    try:
        return [(terminal.wait_for(mark, 120.0) - terminal.started, terminal.cpu_s()) for mark in marks]
    finally:
        terminal.close()


def opened(folder: Path, mb: float, rounds: int) -> dict[str, object]:
    """Seconds of each way to open the run, with and without a snapshot."""
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT)}
    found: dict[str, object] = {"mb": mb}
    run = make_run(folder / "runs" / "20261101-0000-old-run", mb)
    path = str(run.root)
    verbs = {
        "runs": [*STOKER, "runs", "--runs-dir", str(run.root.parent)],
        "diagnose": [*STOKER, "diagnose", path],
        "attach --no-ui": [*STOKER, "attach", "--no-ui", path],
    }
    for kind in ("with a snapshot", "without"):
        if kind == "with a snapshot":
            journal, of = run.node().journal, run.node().journal.stat()
            write_snapshot(journal, read_state(journal), inode=of.st_ino, offset=of.st_size)
        else:
            run.node().snapshot.unlink()
        seconds: dict[str, list[tuple[float, float]]] = {}
        warm_up = kind == "with a snapshot"  # that round loads the disk's cache
        for number in range(rounds + warm_up):
            times = {name: took(argv, env) for name, argv in verbs.items()}
            if kind == "without":
                first, last = screen(run, folder, b"reading", b"KeyError")
                times |= {"attach: first screen, reading": first, "attach: complete": last}
            else:
                times["attach: first screen, complete"] = screen(run, folder, b"KeyError")[0]
            for name, pair in times.items() if number >= warm_up else ():
                seconds.setdefault(name, []).append(pair)
        found[kind] = {
            name: [round(statistics.median(one), 2) for one in zip(*pairs, strict=True)]
            for name, pairs in seconds.items()
        }
    return found


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--mb", type=float, default=150.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stoker-bench-"))
    try:
        report = {
            **surroundings(),
            "opening: wall seconds, processor seconds": opened(folder, args.mb, args.rounds),
            "journal": grown(folder, args.days),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())

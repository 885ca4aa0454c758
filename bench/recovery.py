"""The time from a rank's death to the next step: stoker against torchrun by hand.

The bundled trainer on two CPU ranks; rank 1 is killed after step 6; both ways resume from the checkpoint of step 6. They take turns:

- stoker: one command. Its back-off is an intended wait, and is subtracted as the journal has it.
- by hand: `torchrun --max-restarts=0`, and as soon as it has exited the same command again. Its parts are what a
  restart cannot do without: the agent's exit and a cold start.

Death and first step are read from the trainer's telemetry in both ways; a step counts once both ranks made it.
Ratios are of medians, with a 95 % bootstrap interval over whole rounds. The goals: `restart` at most 1.10, `cold` at
most 1.05, every run under stoker comes back.

    python bench/recovery.py --rounds 20 [--keep bench/results/recovery.json]
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import (
    ROOT,
    TRAINER,
    command_line,
    free_port,
    in_turn,
    interval,
    surroundings,
    tell,
    with_mark,
)

STEPS, KILLED_AFTER, RANKS = 12, 6, 2
TINY = (
    "--depth=2", "--model_dim=32", "--head_dim=16", "--max_seq_len=32", "--device_batch_size=4",
    "--total_batch_size=256", f"--num_iterations={STEPS}", "--save_every=3", "--log_interval=1", "--eval_every=0",
    "--corpus_mib=1", "--device=cpu", "--async_save=false",
)  # fmt: skip
FAULT = f"--fault=sigkill@{KILLED_AFTER}:1"
# A run takes 15 s on an idle machine.
DEADLINE_S = 90.0
MARK = "STOKER_RECOVERY_MARK"
RESTART_GOAL, COLD_GOAL = 1.10, 1.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """One arm in one round; seconds, None where it did not come to that.

    `cold_s`: command to the first step on all ranks. `exit_s`: death to the agent's exit. `again_s`: the second
    command to its first step. `restart_s`: death to the next step on all ranks.
    """

    came_back: bool
    cold_s: float | None = None
    exit_s: float | None = None
    again_s: float | None = None
    restart_s: float | None = None
    note: str = ""


def first_step_t(folder: Path, after_t: float) -> float | None:
    """Return when the last rank made its first step after a wall time."""
    firsts = []
    for rank in range(RANKS):
        times = [t for t, kind, _ in lines_of(folder, f"rank{rank}.jsonl") if kind == "step" and t > after_t]
        if not times:
            return None
        firsts.append(min(times))
    return max(firsts)


def death_t(folder: Path) -> float | None:
    """Return the time of the first launch's last record, up to the step after which a rank is killed."""
    known = [(t, step) for t, _, step in lines_of(folder, "rank*.jsonl") if step <= KILLED_AFTER]
    steps = [t for t, step in known if step == KILLED_AFTER]
    # The resumed launch speaks of this step too: only what came at once after the first mention counts.
    return max((t for t in steps if t - min(steps) < 1.0), default=None)


def lines_of(folder: Path, pattern: str) -> list[tuple[float, str, int]]:
    """Return (wall time, kind, step) of every telemetry line below a folder."""
    found = []
    for path in folder.rglob(pattern):
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["kind"] in {"step", "checkpoint_committed"}:
                found.append((float(record["t_wall"]), str(record["kind"]), int(record.get("step") or 0)))
    return found


def since(start: float | None, end: float | None) -> float | None:
    """Return the seconds between two times, if both are known."""
    return None if start is None or end is None else end - start


def run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int | None, str]:
    """Run a command, then kill all processes it left. Return its exit code, None if it took too long."""
    mark = uuid.uuid4().hex
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", MARK: mark, **env},
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "it hung"
    finally:
        sweep(mark)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")[-6000:]


def sweep(mark: str) -> None:
    """Kill what a command left, because ranks lead their own sessions and outlive torchrun."""
    for pid in with_mark(MARK, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def with_stoker(folder: Path) -> Outcome:
    """Run once under stoker, as a user without a terminal would."""
    (folder / "job.toml").write_text('nproc_per_node = 2\n[env]\nOMP_NUM_THREADS = "1"\n', encoding="utf-8")
    command = [sys.executable, "-m", "supervisor", "run", "--no-ui", "--python", sys.executable]
    began = time.time()
    code, said = run(
        [*command, "--config", "job.toml", *TINY, FAULT],
        folder,
        {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")},
    )
    attempts = folder / "runs" / "latest" / "nodes" / "0" / "attempts"
    died = death_t(attempts / "1")
    back = first_step_t(attempts / "2", died or began)
    whole = since(died, back)
    return Outcome(
        came_back=code == 0,
        cold_s=since(began, first_step_t(attempts / "1", began)),
        restart_s=whole - backoff_s(attempts.parent / "events.jsonl") if whole is not None else None,
        note="" if code == 0 else f"exit {code}: {said}",
    )


def backoff_s(journal: Path) -> float:
    """Return the seconds that stoker waited on purpose."""
    facts = (json.loads(line) for line in journal.read_text().splitlines())
    return sum(float(fact["delay_s"]) for fact in facts if fact["kind"] == "backoff_started")


def torchrun(folder: Path, attempt: int) -> list[str]:
    """Return the command that stoker launches, without what stoker adds for its own sake."""
    return [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--max-restarts=0",
        f"--master-port={free_port()}", str(TRAINER), *TINY, FAULT, f"--checkpoint_dir={folder / 'checkpoints'}",
        f"--telemetry_dir={folder / str(attempt)}", "--resume_from=auto",
    ]  # fmt: skip


def by_hand(folder: Path) -> Outcome:
    """Make the same two launches, one after the other."""
    began = time.time()
    run(torchrun(folder, 1), folder, {"PYTHONSAFEPATH": "1", "STOKER_ATTEMPT": "1"})
    ended = time.time()
    code, said = run(torchrun(folder, 2), folder, {"PYTHONSAFEPATH": "1", "STOKER_ATTEMPT": "2"})
    died = death_t(folder / "1")
    back = first_step_t(folder / "2", ended)
    return Outcome(
        came_back=code == 0,
        cold_s=since(began, first_step_t(folder / "1", began)),
        exit_s=since(died, ended),
        again_s=since(ended, back),
        restart_s=since(died, back),
        note="" if code == 0 else f"exit {code}: {said}",
    )


def ratio(
    rounds: Mapping[str, Sequence[Outcome]], part: Callable[[Outcome], float | None]
) -> dict[str, float]:
    """Return the ratio of the medians of a part, of the rounds in which both ways came to it, with its 95 % interval."""
    both = zip(map(part, rounds["stoker"]), map(part, rounds["by_hand"]), strict=True)
    pairs = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
    if not pairs:
        return {}
    low, high = interval(pairs, _of_medians)
    found = {"ratio": _of_medians(pairs), "low": low, "high": high, "rounds": len(pairs)}
    return {name: round(value, 3) for name, value in found.items()}


def _of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return how many runs came back, and how long the parts took."""
    found: dict[str, object] = {"runs": len(outcomes), "came_back": sum(o.came_back for o in outcomes)}
    for name in ("cold_s", "exit_s", "again_s", "restart_s"):
        values = [value for o in outcomes if (value := getattr(o, name)) is not None]
        if values:
            # What else a machine does only ever adds: the fastest is nearest to what the work itself takes.
            found[name] = {"median": round(statistics.median(values), 2), "fastest": round(min(values), 2)}
    return found


def main() -> int:
    """Print the comparison; 1 where a run under stoker did not come back or a goal is missed for sure."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()

    def in_a_folder(way: Callable[[Path], Outcome]) -> Callable[[], Outcome]:
        def once() -> Outcome:
            with tempfile.TemporaryDirectory() as folder:
                found = way(Path(folder))
            print(f"{way.__name__}: {found}", file=sys.stderr, flush=True)
            return found

        return once

    rounds = in_turn({"stoker": in_a_folder(with_stoker), "by_hand": in_a_folder(by_hand)}, args.rounds)
    restart = {"goal": RESTART_GOAL, **ratio(rounds, lambda o: o.restart_s)}
    cold = {"goal": COLD_GOAL, **ratio(rounds, lambda o: o.cold_s)}
    arms = {name: summary(outcomes) for name, outcomes in rounds.items()}
    tell({"restart": restart, "cold": cold, **arms, **surroundings()}, args.keep)
    is_missed = any(goal.get("low", 0.0) > goal["goal"] for goal in (restart, cold))
    return int(is_missed or not all(each.came_back for each in rounds["stoker"]))


if __name__ == "__main__":
    sys.exit(main())

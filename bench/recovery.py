"""From a rank's death to the next step: stoker against torchrun by hand, and against torchrun's own --max-restarts=1.

The bundled trainer on two CPU ranks; rank 1 is killed after step 6; every arm resumes from the checkpoint of step 6.
In each round, in turn, the order rotating:

- stoker: one command. Its back-off (a wait that is wanted) is taken off, as the journal has it.
- by hand: `torchrun --max-restarts=0`, and as soon as it has exited the same command again. Its parts are what a
  restart cannot do without: the agent's exit and a cold start.
- in agent: `torchrun --standalone --max-restarts=1`. It restarts on the same store, and gloo does not always survive
  that, so the share of runs that come back says as much as the time.

Death and first step are read from the trainer's telemetry, in every arm alike; a step counts once both ranks made it.
Ratios are of medians, with a 95 % bootstrap interval over whole rounds. The goals: `restart` at most 1.10, `cold` at
most 1.05, every run under stoker comes back.

    python bench/recovery.py --rounds 20 [--in-agent 20] [--keep bench/results/recovery.json]
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

from bench.common import ROOT, TRAINER, command_line, free_port, interval, keep, surroundings, tell, with_mark

STEPS, KILLED_AFTER, RANKS = 12, 6, 2
TINY = (
    "--depth=2", "--model_dim=32", "--head_dim=16", "--max_seq_len=32", "--device_batch_size=4",
    "--total_batch_size=256", f"--num_iterations={STEPS}", "--save_every=3", "--log_interval=1", "--eval_every=0",
    "--corpus_mib=1", "--device=cpu", "--async_save=false",
)  # fmt: skip
FAULT = f"--fault=sigkill@{KILLED_AFTER}:1"
# A run takes 15 s on an idle machine. torchrun's own restart hangs for ever where it does not come back.
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
    """When the last of the ranks made its first step after a wall time."""
    firsts = []
    for rank in range(RANKS):
        times = [t for t, kind, _ in lines_of(folder, f"rank{rank}.jsonl") if kind == "step" and t > after_t]
        if not times:
            return None
        firsts.append(min(times))
    return max(firsts)


def death_t(folder: Path) -> float | None:
    """The last sign of life of the first launch: what ranks tell up to the step after which one is killed."""
    known = [(t, step) for t, _, step in lines_of(folder, "rank*.jsonl") if step <= KILLED_AFTER]
    steps = [t for t, step in known if step == KILLED_AFTER]
    # The resumed launch speaks of this step too: only what came at once after the first mention counts.
    return max((t for t in steps if t - min(steps) < 1.0), default=None)


def lines_of(folder: Path, pattern: str) -> list[tuple[float, str, int]]:
    """(wall time, kind, step) of every telemetry line below a folder."""
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
    """The seconds between two times, if both are known."""
    return None if start is None or end is None else end - start


def run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int | None, str]:
    """Runs a command to its end, and ends by then whatever it left; its exit code, None if it took too long."""
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
    """Ends what a command left: ranks lead sessions of their own and outlive torchrun."""
    for pid in with_mark(MARK, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def with_stoker(folder: Path) -> Outcome:
    """One run under stoker, as a user without a terminal starts it."""
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
    """How long stoker waited on purpose."""
    facts = (json.loads(line) for line in journal.read_text().splitlines())
    return sum(float(fact["delay_s"]) for fact in facts if fact["kind"] == "backoff_started")


def torchrun(folder: Path, *flags: str, wrapper: Sequence[str] = (), telemetry: str) -> list[str]:
    """The command that stoker launches, without what stoker adds to it for its own sake."""
    return [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", *flags, *wrapper, str(TRAINER),
        *TINY, FAULT, f"--checkpoint_dir={folder / 'checkpoints'}", f"--telemetry_dir={folder / telemetry}",
        "--resume_from=auto",
    ]  # fmt: skip


def by_hand(folder: Path) -> Outcome:
    """The same two launches without anybody between them."""
    env = {"PYTHONSAFEPATH": "1"}
    began = time.time()
    port = f"--master-port={free_port()}"
    run(torchrun(folder, "--max-restarts=0", port, telemetry="first"), folder, env | {"STOKER_ATTEMPT": "1"})
    ended = time.time()
    port = f"--master-port={free_port()}"
    command = torchrun(folder, "--max-restarts=0", port, telemetry="second")
    code, said = run(command, folder, env | {"STOKER_ATTEMPT": "2"})
    died = death_t(folder / "first")
    back = first_step_t(folder / "second", ended)
    return Outcome(
        came_back=code == 0,
        cold_s=since(began, first_step_t(folder / "first", began)),
        exit_s=since(died, ended),
        again_s=since(ended, back),
        restart_s=since(died, back),
        note="" if code == 0 else f"exit {code}: {said}",
    )


# The trainer's fault strikes in the first attempt alone; torchrun counts attempts in another variable.
ONCE = """
import os, runpy, sys
os.environ["STOKER_ATTEMPT"] = str(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def in_agent(folder: Path) -> Outcome:
    """torchrun's own restart, the trainer's own resume."""
    once = folder / "once.py"
    once.write_text(ONCE, encoding="utf-8")
    flags = ("--standalone", "--max-restarts=1")
    command = torchrun(folder, *flags, wrapper=[str(once)], telemetry="telemetry")
    code, said = run(command, folder, {"PYTHONSAFEPATH": "1"})
    died = death_t(folder)
    # What is made right after the death is the first launch's own.
    back = first_step_t(folder, died + 1.0) if died is not None else None
    note = "" if code == 0 else said if code is None else f"exit {code}"
    return Outcome(came_back=code == 0, restart_s=since(died, back) if code == 0 else None, note=note)


def ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """The ratio of the medians of (ours, theirs), with the 95 % bootstrap interval over rounds."""
    if not pairs:
        return None
    low, high = interval(pairs, _of_medians)
    return {
        "ratio": round(_of_medians(pairs), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "rounds": len(pairs),
    }


def _of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def paired(
    rounds: Sequence[Mapping[str, Outcome]], one: str, other: str, part: Callable[[Outcome], float | None]
) -> list[tuple[float, float]]:
    """A part of both arms, of the rounds in which both came to it."""
    both = ((part(each[one]), part(each[other])) for each in rounds if one in each and other in each)
    return [(a, b) for a, b in both if a is not None and b is not None]


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """How many came back, and how long the parts took."""
    found: dict[str, object] = {"runs": len(outcomes), "came_back": sum(o.came_back for o in outcomes)}
    for name in ("cold_s", "exit_s", "again_s", "restart_s"):
        values = [value for o in outcomes if (value := getattr(o, name)) is not None]
        if values:
            # What else a machine does only ever adds: the fastest is nearest to what the work itself takes.
            found[name] = {"median": round(statistics.median(values), 2), "fastest": round(min(values), 2)}
    return found


def report(rounds: Sequence[Mapping[str, Outcome]]) -> dict[str, object]:
    """The goals' ratios, and what each arm did."""
    restart = ratio(paired(rounds, "stoker", "by_hand", lambda o: o.restart_s))
    cold = ratio(paired(rounds, "stoker", "by_hand", lambda o: o.cold_s))
    arms = {name: [each[name] for each in rounds if name in each] for name in ARMS}
    return {
        "restart": {"goal": RESTART_GOAL, **(restart or {})},
        "cold": {"goal": COLD_GOAL, **(cold or {})},
        "against_in_agent": ratio(paired(rounds, "stoker", "in_agent", lambda o: o.restart_s)),
        **{name: summary(outcomes) for name, outcomes in arms.items()},
        **surroundings(),
    }


ARMS: dict[str, Callable[[Path], Outcome]] = {"stoker": with_stoker, "by_hand": by_hand, "in_agent": in_agent}


def main() -> int:
    """Print the comparison; 1 where a run under stoker did not come back or a goal is missed for sure."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--in-agent", type=int, default=20, help="rounds in which --max-restarts=1 takes part"
    )
    args = parser.parse_args()
    rounds: list[dict[str, Outcome]] = []
    for number in range(args.rounds):
        names = [name for name in ARMS if name != "in_agent" or number < args.in_agent]
        turn = number % len(names)
        done: dict[str, Outcome] = {}
        for name in names[turn:] + names[:turn]:
            with tempfile.TemporaryDirectory() as folder:
                done[name] = ARMS[name](Path(folder))
            print(f"{number + 1}/{args.rounds} {name}: {done[name]}", file=sys.stderr, flush=True)
        rounds.append(done)
        result = report(rounds)
        keep(result, args.keep)  # as it grows: a bench of half an hour may be cut short
    tell(result, args.keep)
    missed = any(
        isinstance(goal := result[name], dict) and goal.get("low", 0.0) > goal["goal"]
        for name in ("restart", "cold")
    )
    return 1 if missed or not all(each["stoker"].came_back for each in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())

"""From a failure to the next step: stoker against torchrun's own --max-restarts=1, and how many runs come back.

Both run the bundled trainer on two CPU ranks, a rank is killed at step 6, and both resume from the checkpoint of
step 6. The failure's time is written by the trainer's own telemetry, the next step's too, so that both are read from
the same clock. Interleaved; the share of runs that come back is as important as the time: torchrun restarts in the
same agent, on the same store, and gloo does not always survive that.

    python bench/recovery.py --runs 20 [--keep bench/results/recovery.json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAIN = ROOT / "trainer" / "__main__.py"
STEPS = 12
TINY = (
    "--depth=2", "--model_dim=32", "--head_dim=16", "--max_seq_len=32", "--device_batch_size=4",
    "--total_batch_size=256", f"--num_iterations={STEPS}", "--save_every=3", "--log_interval=1", "--eval_every=0",
    "--corpus_mib=1", "--device=cpu", "--async_save=false",
)  # fmt: skip
# torchrun gives a failed rank's peers 30 s to heed SIGTERM; in both arms they are killed or gone long before.
DEADLINE_S = 120.0
MARK = "STOKER_RECOVERY_MARK"


def lines_of(folder: Path) -> list[dict[str, object]]:
    """Every telemetry line below a folder, by wall time."""
    found = []
    for path in folder.rglob("rank[0-9]*.jsonl"):
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return sorted(found, key=lambda record: float(record["t_wall"]))


def recovery_s(folder: Path) -> float | None:
    """Seconds from the last step before the kill to the first step of the next launch; None: none came."""
    steps = [(float(str(r["t_wall"])), int(str(r["step"]))) for r in lines_of(folder) if r["kind"] == "step"]
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(steps)]
    if not any(step >= STEPS for _, step in steps) or not gaps:
        return None
    return max(gaps)


def with_stoker(folder: Path) -> tuple[bool, float | None]:
    """One run under stoker, as a user starts it; back-off as it is without a person (1 s)."""
    (folder / "job.toml").write_text('nproc_per_node = 2\n[env]\nOMP_NUM_THREADS = "1"\n', encoding="utf-8")
    command = [sys.executable, "-m", "supervisor", "run", "--no-ui", "--python", sys.executable]
    command += ["--config", "job.toml", *TINY, "--fault=sigkill@6:1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=DEADLINE_S, check=False)
    if done.returncode != 0:
        print((done.stdout + done.stderr).decode(errors="replace")[-6000:], file=sys.stderr)
    return done.returncode == 0, recovery_s(folder / "runs")


def with_torchrun(folder: Path) -> tuple[bool, float | None]:
    """One run under torchrun alone: its own restart, the trainer's own resume."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
    ]
    command += [str(folder / "once.py"), str(MAIN), *TINY, "--fault=sigkill@6:1"]
    command += [
        f"--checkpoint_dir={folder / 'ck'}",
        f"--telemetry_dir={folder / 'telemetry'}",
        "--resume_from=auto",
    ]
    (folder / "once.py").write_text(ONCE, encoding="utf-8")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, None
    return done.returncode == 0, recovery_s(folder / "telemetry")


def sweep(mark: str) -> None:
    """End what torchrun left: its ranks lead sessions of their own and outlive it."""
    wanted = f"{MARK}={mark}".encode()
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                os.kill(int(entry), signal.SIGKILL)
        except OSError:
            continue


# The trainer's fault strikes in the first attempt alone; torchrun counts attempts in another variable.
ONCE = """
import os, runpy, sys
os.environ["STOKER_ATTEMPT"] = str(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def summary(found: list[tuple[bool, float | None]]) -> dict[str, object]:
    """How many came back, and how fast those did."""
    times = sorted(seconds for ok, seconds in found if ok and seconds is not None)
    return {
        "runs": len(found),
        "came_back": sum(ok for ok, _ in found),
        "median_s": round(statistics.median(times), 2) if times else None,
        "fastest_s": round(times[0], 2) if times else None,
        "slowest_s": round(times[-1], 2) if times else None,
    }


def main() -> int:
    """Print the comparison; 1 where stoker came back less often than it was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    arms = {"stoker": with_stoker, "torchrun --max-restarts=1": with_torchrun}
    found: dict[str, list[tuple[bool, float | None]]] = {name: [] for name in arms}
    for number in range(args.runs):
        for name, arm in arms.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(arm(Path(folder)))
            print(f"{number + 1}/{args.runs} {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    pairs = [
        a[1] / b[1]
        for a, b in zip(*found.values(), strict=True)
        if a[0] and b[0] and a[1] is not None and b[1] is not None
    ]
    result = {
        **{name: summary(each) for name, each in found.items()},
        "ratio_where_both_came_back": round(statistics.median(pairs), 2) if pairs else None,
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    print(json.dumps(result, indent=1))
    if args.keep:
        args.keep.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if all(ok for ok, _ in found["stoker"]) else 1


if __name__ == "__main__":
    sys.exit(main())

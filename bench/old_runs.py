"""What thousands of old runs cost: ``stoker runs --json``, and the list screen while it is open.

    python bench/old_runs.py [--runs 2000] [--rounds 5] [--keep RESULT.json]

Two real runs (one succeeds, one fails) are copied many times, each with its own id, times and path; of one in ten the end of the journal is
missing, as after a machine that went down. All of them stand in the user's index. CPU is that of the whole process, its start included:

- script: reads every run.json and every line of every journal, as JSON (`script_lines`: without decoding the lines);
- warm, cold: ``stoker runs --json -n RUNS`` with and without what is kept beside the runs (goals: 1 x and 3 x the script);
- screen: ``stoker`` in tmux, over 30 s after its first paint (goal: 5 % of a core), at rest and with a live run that writes twice a second;
  keys: from a filter, a sort or a jump to the last run to the screen that shows it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, surroundings, tell, until
from supervisor.run import events as ev
from supervisor.run.index import register
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.summaries import INDEX

STEPS = """\
import sys, time
for step in range(1, 121):
    time.sleep(0.1)
    print(f"step {step}/120 loss {3 - step / 100:.4f}", flush=True)
    if step == 80 and sys.argv[1:] == ["--fail"]:
        raise ValueError("label 1001 out of range")
"""
SCRIPT = """\
import json, os, sys
for entry in os.scandir(sys.argv[1]):
    if entry.is_dir(follow_symlinks=False):
        json.load(open(entry.path + "/run.json"))
        for line in open(entry.path + "/nodes/0/events.jsonl"):
            json.loads(line) if sys.argv[2] == "decoded" else line
"""
STOKER = (sys.executable, "-m", "supervisor")
WORDS = ["able", "bold", "brave", "brisk", "calm", "keen", "ant", "bat", "bee", "crane", "lynx", "otter"]
SETTLED_S, WATCHED_S = 15.0, 30.0


def real_runs(folder: Path, env: Mapping[str, str]) -> list[RunPaths]:
    """One run that succeeded and one that failed."""
    (folder / "train.py").write_text(STEPS, encoding="utf-8")
    runs = folder / "real"
    for more in ((), ("--fail",)):
        words = ("run", "--no-ui", "--runs-dir", str(runs), "--nproc-per-node", "1", "train.py", *more)
        subprocess.run([*STOKER, *words], cwd=folder, env=env, check=False, capture_output=True)
    return [RunPaths(path) for path in runs.iterdir() if path.is_dir() and not path.is_symlink()]


def copies(real: list[RunPaths], runs: Path, count: int, env: Mapping[str, str]) -> None:
    """Many runs of the same files, ten minutes apart."""
    draw = random.Random(37)
    for number in range(count):
        source, t = draw.choice(real), 1.75e9 + 600 * number
        stamp = time.strftime("%Y%m%d-%H%M", time.localtime(t))
        run = RunPaths(runs / f"{stamp}-{draw.choice(WORDS[:6])}-{draw.choice(WORDS[6:])}")
        shutil.copytree(source.root, run.root, symlinks=True)
        for path in (run.run_json, run.node().journal):
            text = path.read_text(encoding="utf-8").replace(str(source.root), str(run.root))
            path.write_text(text.replace(source.run_id, run.run_id), encoding="utf-8")
        facts = [json.loads(line) for line in run.node().journal.read_text(encoding="utf-8").splitlines()]
        cut = len(facts) - draw.randrange(1, 8) if draw.random() < 0.1 else len(facts)
        moved = [{**fact, "t": fact["t"] + t - facts[0]["t"]} for fact in facts[:cut]]
        lines = "".join(json.dumps(fact, separators=(",", ":")) + "\n" for fact in moved)
        run.node().journal.write_text(lines, encoding="utf-8")
        register(run, "train", env)


def cpu_s(command: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> float:
    """CPU seconds of a command, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=cwd, env=env, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


class Screen:
    """The list of runs in a terminal of its own."""

    def __init__(self, cwd: Path, env: Mapping[str, str]) -> None:
        self._tmux = ("tmux", "-L", f"old-runs-{os.getpid()}", "-f", "/dev/null")
        command = " ".join(["exec", *STOKER])
        self._env = dict(env)
        self._call("new-session", "-d", "-s", "a", "-x", "160", "-y", "50", "-c", str(cwd), command)
        self.pid = int(self._call("list-panes", "-t", "a", "-F", "#{pane_pid}"))

    def _call(self, *words: str) -> str:
        return subprocess.run(
            [*self._tmux, *words], env=self._env, check=True, capture_output=True, text=True
        ).stdout

    def ticks(self) -> int:
        """CPU that it has used, in ticks of the kernel's clock."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def after(self, shows: str, *keys: str) -> float:
        """Milliseconds from these keys to a screen that shows this text."""
        began = time.monotonic()
        for key in keys:
            self._call("send-keys", "-t", "a", *((key,) if len(key) > 1 else ("-l", key)))
        until(lambda: shows in self._call("capture-pane", "-p", "-t", "a"))
        return 1000 * (time.monotonic() - began)

    def share(self) -> float:
        """Part of a core that it takes."""
        before = self.ticks()
        time.sleep(WATCHED_S)
        return (self.ticks() - before) / os.sysconf("SC_CLK_TCK") / WATCHED_S

    def close(self) -> None:
        """End it."""
        self._call("kill-server")


@contextmanager
def live(runs: Path) -> Iterator[None]:
    """A run that makes a step twice a second."""
    run, done = RunPaths(runs / "20990101-0000-live-otter"), threading.Event()
    run.node().root.mkdir(parents=True)
    lock, journal = KeeperLock(run.node().lock, start_time=1.0), JournalWriter(run.node().journal)
    t = time.time()
    journal.append(ev.RunStarted(t=t, run_id=run.run_id, name="live", mode="launched", host="here"))
    journal.append(ev.LaunchIntended(t=t, attempt=1, argv=("train.py",), reason="first start"))
    journal.append(ev.AttemptStarted(t=t, attempt=1, pid=1, start_time=1.0))

    def train() -> None:
        step = 0
        while not done.wait(0.5):
            step += 1
            journal.append(ev.Progress(t=time.time(), attempt=1, step=step, loss=3 / step))

    trains = threading.Thread(target=train)
    trains.start()
    try:
        yield
    finally:
        done.set()
        trains.join()
        lock.release()
        journal.close()
        shutil.rmtree(run.root)


def measured(folder: Path, count: int, rounds: int) -> dict[str, object]:
    """All of it, in a folder of its own."""
    env = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
    }
    env |= {"XDG_CONFIG_HOME": str(folder / "config"), "PYTHONPATH": str(ROOT)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    runs = folder / "runs"
    copies(real_runs(folder, env), runs, count, env)
    listed = (*STOKER, "runs", "--json", "-n", str(count))

    def cold() -> float:
        (runs / INDEX).unlink(missing_ok=True)
        return cpu_s(listed, folder, env)

    script = (sys.executable, "-c", SCRIPT, str(runs))
    ways = {
        "script": lambda: cpu_s((*script, "decoded"), folder, env),
        "script_lines": lambda: cpu_s((*script, "read"), folder, env),
        "cold": cold,
        "warm": lambda: (cpu_s(listed, folder, env), cpu_s(listed, folder, env))[1],
    }
    found = in_turn(ways, rounds)
    result: dict[str, object] = {
        "runs": count,
        "cpu_s": {name: round(median(of), 2) for name, of in found.items()},
    }
    for name in ("warm", "cold"):
        ratios = [a / b for a, b in zip(found[name], found["script"], strict=True)]
        result[f"{name}_to_script"] = [round(each, 2) for each in (median(ratios), min(ratios), max(ratios))]
    oldest = min(path.name for path in runs.iterdir() if path.is_dir() and not path.is_symlink())
    screen = Screen(folder, env)
    try:
        screen.after(f"{count} of {count}")
        time.sleep(SETTLED_S)
        result["screen_share_of_a_core"] = round(screen.share(), 4)
        keys = {
            "last run": screen.after(oldest, "G"),
            "sort by state": screen.after("by state", "o"),
            "filter": screen.after("state:failed", "/", *"state:failed", "Enter"),
            "no filter": screen.after(f"{count} of {count}", "Escape"),
        }
        result["keys_ms"] = {name: round(ms) for name, ms in keys.items()}
        with live(runs):
            screen.after(f"{count + 1} of {count + 1}")
            result["screen_share_with_a_live_run"] = round(screen.share(), 4)
    finally:
        screen.close()
    return result


def main() -> None:
    """Measure, print, keep."""
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        result = measured(Path(name).resolve(), args.runs, args.rounds)
    tell({**surroundings(), **result}, args.keep)


if __name__ == "__main__":
    main()

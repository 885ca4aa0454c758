"""Record real runs for tests/recorded/runs.tar.xz: ``python tests/recorded/record.py OUT [--only NAME,…]``; as root, once for a base.

Each recording is a real `stoker` on real torchrun children, in a namespace of its own where the machine is called ``box`` and everything lies below
/home/me, so that no recording holds a name of the machine that made it. OUT gets a folder a recording; ``--pack OUT`` makes the archive of it, with what this
version says of each recording (`tests.recorded.recordings`): its verdicts and decisions, and its screens at three sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

HOME = Path("/home/me")
CHECKOUT, ENV = HOME / "stoker", HOME / "env"
INSIDE = "STOKER_RECORDING"
ACT_S = 120.0
SHORT_HANGS = "[hang]\nrounds_apart_s = 1.0\ncountdown_s = 1.0\nact_s = 4.0\n"
TWO = ("--nproc-per-node", "2")


@dataclass
class Job:
    """A recording being made. `cwd`: its folder; `process`: the `stoker` that runs; `run`: the run directory, once it is there."""

    cwd: Path
    process: subprocess.Popen[bytes]
    out: Path
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def run(self) -> Path:
        found = [path for path in self.cwd.glob("runs/*") if path.is_dir() and not path.is_symlink()]
        kept = list((HOME / ".local/state/stoker/kept").glob("*"))
        return (found or kept)[0]

    def journal(self) -> list[dict[str, object]]:
        try:
            lines = (self.run / "nodes/0/events.jsonl").read_bytes().splitlines()
        except (IndexError, OSError):
            return []
        return [json.loads(line) for line in lines if line.endswith(b"}")]

    def until(self, wanted: Callable[[dict[str, object]], bool]) -> None:
        """Wait for a fact of the journal."""
        end = time.monotonic() + ACT_S
        while not any(map(wanted, self.journal())):
            if time.monotonic() > end:
                raise TimeoutError(f"{self.cwd.name}: {[fact['kind'] for fact in self.journal()]}")
            time.sleep(0.1)

    def stepped(self, step: int, attempt: int = 1) -> None:
        self.until(
            lambda fact: (
                fact["kind"] == "progress"
                and int(str(fact.get("step") or 0)) >= step
                and fact.get("attempt") == attempt
            )
        )

    def kept(self) -> None:
        """Keep the run as it is now."""
        keep(self.run, self.out)

    def stoker(self, *args: str) -> None:
        subprocess.run([*STOKER, *args], cwd=self.cwd, env=environment(), check=False)


@dataclass(frozen=True)
class Recipe:
    """One recording: `stoker ARGS` in a folder with `files`. `act`: what happens meanwhile; `live`: it is kept while its keeper lives."""

    name: str
    what: str
    args: Sequence[str]
    act: Callable[[Job], None] | None = None
    files: tuple[tuple[str, str], ...] = ()
    live: bool = False


STOKER = (str(ENV / "bin/python"), "-m", "supervisor")


def run_of(*args: str) -> tuple[str, ...]:
    return ("run", "--no-ui", "--python", str(ENV / "bin/python"), *args)


def failing(how: str, *args: str, flags: Sequence[str] = ()) -> tuple[str, ...]:
    return run_of(*TWO, *flags, "failing.py", how, *args)


def stop_at(step: int, *flags: str) -> Callable[[Job], None]:
    def act(job: Job) -> None:
        job.stepped(step)
        job.stoker("stop", *flags, str(job.run))

    return act


def flagged(job: Job) -> None:
    job.until(lambda fact: fact["kind"] == "stacks_taken")
    job.stoker("stop", str(job.run))


def restarted(job: Job) -> None:
    from supervisor.run.events import RequestKind
    from supervisor.run.ownership import ask
    from supervisor.run.paths import RunPaths

    job.stepped(15)
    ask(RunPaths(job.run), RequestKind.RESTART)


def kept_while_held(job: Job) -> None:
    job.until(lambda fact: fact["kind"] == "held")
    job.kept()
    job.stoker("stop", str(job.run))


def kept_at(step: int) -> Callable[[Job], None]:
    def act(job: Job) -> None:
        job.stepped(step)
        job.kept()
        job.stoker("stop", "--now", str(job.run))

    return act


def kept_while_flagged(job: Job) -> None:
    job.until(lambda fact: fact["kind"] == "stacks_taken")
    job.kept()
    job.stoker("stop", "--now", str(job.run))


def launcher_killed(job: Job) -> None:
    job.stepped(15)
    started = next(fact for fact in job.journal() if fact["kind"] == "attempt_started")
    os.kill(int(str(started["pid"])), signal.SIGKILL)


RECIPES = (
    Recipe("healthy", "two ranks print each step, and end", run_of(*TWO, "plain_print.py", "--steps", "60")),
    Recipe("demo", "out of memory at micro-batch 16, restarted with 8, finished", run_of("--config", "demo.toml")),
    Recipe("exception", "a KeyError on rank 1 of 2", failing("exception")),
    Recipe("sigkill", "rank 1 is killed, nothing printed", failing("sigkill")),
    Recipe("sigsegv", "a segmentation fault on rank 1", failing("sigsegv")),
    Recipe("exit_code", "rank 1 leaves with 3 and prints nothing", failing("exit3")),
    Recipe("hang_flagged", "rank 1 waits for a lock; flagged, then stopped by a person", run_of(*TWO, "--hang-timeout", "0", "training.py", "--hang-at", "18"), flagged),
    Recipe("hang_ended", "the same with a resume: ended, restarted, finished", run_of(*TWO, "--resume-knob", "--resume=auto", "training.py", "--hang-at", "18"), None, (("stoker.toml", SHORT_HANGS),)),
    Recipe("hang_live", "the same while it is flagged", run_of(*TWO, "--hang-timeout", "0", "training.py", "--hang-at", "18"), kept_while_flagged, live=True),
    Recipe("nan", "the loss is nan from step 20 on; exit code 0", failing("nan")),
    Recipe("port_in_use", "a port of the script's own is taken", failing("port", "--port", "{port}")),
    Recipe("import_error", "a module that is not there", failing("import")),
    Recipe("usage_error", "an option that the script does not have", run_of(*TWO, "plain_print.py", "--learning_rate", "3e-4")),
    Recipe("missing_file", "a data file that is not there", failing("missing")),
    Recipe("disk_full", "a checkpoint on a full disk", failing("disk", "--rank", "0")),
    Recipe("dataloader_worker", "a data loading process of rank 1 is killed", failing("worker")),
    Recipe("gloo_timeout", "rank 1 comes late to a collective with a timeout of 4 s", failing("timeout")),
    Recipe("host_memory", "an allocation that cannot be", failing("memory")),
    Recipe("stopped", "stopped on request at step 10", run_of(*TWO, "plain_print.py", "--steps", "400", "--step-time", "0.1"), stop_at(10)),
    Recipe("restarted", "restarted on request at step 15, then finished", run_of(*TWO, "--restart-from-scratch", "training.py", "--steps", "40", "--step-time", "0.1"), restarted),
    Recipe("tqdm", "a foreign script with a bar a rank", run_of(*TWO, "tqdm_postfix.py", "--steps", "80")),
    Recipe("hf_trainer", "bars and dict lines as transformers prints them", run_of(*TWO, "hf_trainer.py", "--steps", "60")),
    Recipe("lightning", "bars as Lightning draws them", run_of(*TWO, "lightning.py", "--steps", "60")),
    Recipe("bash", "a shell script that starts one process", run_of("--", "bash", "launch.sh"), None, (("launch.sh", "set -e\necho preparing\nexport OMP_NUM_THREADS=1\npython job.py --steps 30 --step-time 0.1\necho copied\n"),)),
    Recipe("behind_tee", "a crash behind `| tee`: the shell's exit code is 0", run_of("--", "bash", "launch.sh"), None, (("launch.sh", "python job.py --steps 30 --step-time 0.1 --mode exception --fail-rank 0 2>&1 | tee train.log\n"),)),
    Recipe("attached", "a log that something else wrote, watched and kept", ("attach", "--no-ui", "--keep", "train.log"), None, (("train.log", "".join(f"epoch {step // 50} step {step} loss {3 - step / 100:.4f} lr 3.0e-04 time 0.21s\n" for step in range(1, 201)) + 'Traceback (most recent call last):\n  File "/home/me/gpt/train.py", line 88, in <module>\n    main()\n  File "/home/me/gpt/train.py", line 71, in main\n    loss.backward()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.02 GiB is free.\n'),)),
    Recipe("gave_up", "rank 1 leaves with 3, again and again: the budget is spent", failing("exit3", flags=("--restart-from-scratch", "--max-retries", "1"))),
    Recipe("held", "an exception with nobody there: it waits for a person", ("run", "--detach", "--python", str(ENV / "bin/python"), *TWO, "failing.py", "sigkill"), kept_while_held, live=True),
    Recipe("detached", "detached, at step 20 of 400", ("run", "--detach", "--python", str(ENV / "bin/python"), *TWO, "plain_print.py", "--steps", "400", "--step-time", "0.2"), kept_at(20), live=True),
    Recipe("trial", "a trial of 5 steps", run_of(*TWO, "--trial", "--trial-steps", "5", "plain_print.py", "--steps", "400", "--step-time", "0.1")),
    Recipe("silent", "a training that prints nothing", failing("silent")),
    Recipe("four_ranks", "four ranks", run_of("--nproc-per-node", "4", "plain_print.py", "--steps", "60")),
    Recipe("resumed", "rank 0 leaves with 7, resumed from the checkpoint that was found, finished", run_of(*TWO, "saves_like_hf.py", "--steps", "40")),
    Recipe("oom_resumed", "a foreign script's rank is out of memory: smaller, resumed", run_of("--nproc-per-node", "2", "resumed_training.py")),
    Recipe("launcher_killed", "somebody kills torchrun at step 15", run_of(*TWO, "plain_print.py", "--steps", "400", "--step-time", "0.1"), launcher_killed),
)  # fmt: skip


def environment() -> dict[str, str]:
    path = f"{ENV}/bin:/usr/local/bin:/usr/bin:/bin"
    told = {"HOME": str(HOME), "PATH": path, "PYTHONPATH": str(CHECKOUT), "LANG": "C.UTF-8", "TZ": "UTC"}
    return told | {"USER": "me", "LOGNAME": "me", "OMP_NUM_THREADS": "1"}


def keep(run: Path, out: Path) -> None:
    """A copy of a run directory, without locks."""
    target = out / "runs" / run.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(
        run, target, symlinks=True, ignore=shutil.ignore_patterns("keeper.lock", "viewer-*", "heartbeat")
    )
    for stacks in (target / "artifacts").glob("*.txt"):  # they name Python's own files
        stacks.write_bytes(stacks.read_bytes().replace(os.fsencode(sys.base_prefix), b"/usr"))


def record(recipe: Recipe, out: Path) -> None:
    cwd = HOME / recipe.name
    cwd.mkdir()
    for folder in (CHECKOUT / "tests/integration/scripts", CHECKOUT / "tests/recorded/scripts"):
        for script in folder.glob("*.py"):
            shutil.copy(script, cwd)
    shutil.copy(CHECKOUT / "configs/demo/demo.toml", cwd)
    for name, text in recipe.files:
        (cwd / name).write_text(text, encoding="utf-8")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        args = [arg.format(port=taken.getsockname()[1]) if "{port}" in arg else arg for arg in recipe.args]
        with (out / "console.txt").open("wb") as console:
            process = subprocess.Popen(
                [*STOKER, *args], cwd=cwd, env=environment(), stdout=console, stderr=subprocess.STDOUT
            )
            job = Job(cwd, process, out)
            if recipe.act is not None:
                recipe.act(job)
            code = process.wait(400)
        if recipe.live:
            job.until(lambda fact: fact["kind"] == "run_ended")
        else:
            job.kept()
    if (watched := cwd / "train.log").exists():
        shutil.copy(watched, out)
    told = {"what": recipe.what, "argv": args, "code": code, "live": recipe.live}
    (out / "record.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def inside(out: Path, names: set[str]) -> int:
    """Record, within the namespace."""
    failed = []
    for recipe in RECIPES:
        if names and recipe.name not in names:
            continue
        folder = out / recipe.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begun = time.monotonic()
        try:
            record(recipe, folder)
            print(f"{recipe.name}: {time.monotonic() - begun:.0f} s", flush=True)
        except (OSError, IndexError, TimeoutError, subprocess.TimeoutExpired) as error:
            failed.append(recipe.name)
            print(f"{recipe.name}: FAILED {error!r}", flush=True)
        shutil.rmtree(HOME / ".local", ignore_errors=True)
    return bool(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a folder for recordings; with --compare one to unpack to")
    parser.add_argument("--only", default="")
    parser.add_argument("--pack", action="store_true", help="make the archive of what is in OUT")
    parser.add_argument(
        "--compare", action="store_true", help="print what this version says and draws otherwise"
    )
    args = parser.parse_args()
    if args.pack:
        from tests.recorded.recordings import pack

        print(pack(args.out))
        return 0
    if args.compare:
        from tests.recorded.recordings import compared, unpacked

        every = unpacked(args.out)
        for line in compared({name: every[name] for name in args.only.split(",") if name} or every):
            print(line)
        return 0
    if INSIDE in os.environ:
        return inside(args.out, {name for name in args.only.split(",") if name})
    args.out.mkdir(parents=True, exist_ok=True)
    import torch

    env = Path(str(torch.__file__)).parents[4]
    script = (
        "set -e; hostname box; mount -t tmpfs -o mode=755 none /home; mkdir -p /home/me/stoker /home/me/env /home/me/small; "
        "mount -t tmpfs -o size=64k none /home/me/small; "
        f"mount --bind '{ROOT}' {CHECKOUT}; mount --bind '{env}' {ENV}; "
        f"exec {ENV}/bin/python {CHECKOUT}/tests/recorded/record.py '{args.out.resolve()}' --only '{args.only}'"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--uts", "sh", "-c", script],
        env={**environment(), INSIDE: "1"},
        cwd="/",
        check=False,
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

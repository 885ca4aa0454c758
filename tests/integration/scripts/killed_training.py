"""A training without torch for `bench/kills.py`: numbered lines, checkpoints with a marker, and a look for earlier attempts.

``killed_training.py FOLDER [--resume=auto]``. As a plain command it starts two ranks and ends with the first that fails, as a
home-made launcher does; with RANK in its environment it is a rank. It continues until ``FOLDER/finish`` exists. Rank 0 starts a
daemon (double fork, own session), as trackers and data servers do, which is named in ``FOLDER/daemon-<pid>`` too. Every process
writes ``FOLDER/<attempt>-<pid>`` first, and ``FOLDER/overlap`` where a process of another attempt lives; every rank stamps each step
in ``FOLDER/stamps-<attempt>-<pid>`` (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

STEP_S = 0.05
SAVE_EVERY = 5
MARKER = "COMPLETE"


def whole_checkpoints(folder: Path) -> list[Path]:
    """Those with a marker, oldest first."""
    return sorted(path.parent for path in folder.glob(f"checkpoints/step_*/{MARKER}"))


def load(checkpoint: Path) -> int:
    """The step that it holds. Raises ValueError where it is not whole."""
    record = json.loads((checkpoint / "state.json").read_bytes())
    if hashlib.sha256(record["state"].encode()).hexdigest() != record["sum"]:
        raise ValueError(f"{checkpoint}: its sum is another")
    return int(record["step"])


def save(folder: Path, step: int) -> None:
    state = str(step) * 2000
    final = folder / "checkpoints" / f"step_{step:08d}"
    final.mkdir(parents=True, exist_ok=True)
    record = {"step": step, "state": state, "sum": hashlib.sha256(state.encode()).hexdigest()}
    part = final / "state.json.part"
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(final / "state.json")
    (final / MARKER).touch()
    told = {
        "v": 1,
        "t_wall": time.time(),
        "t_mono": time.monotonic(),
        "kind": "checkpoint_committed",
        "rank": 0,
    }
    telemetry = Path(os.environ["STOKER_TELEMETRY_DIR"])
    telemetry.mkdir(exist_ok=True)
    line = json.dumps({**told, "step": step, "path": str(final), "final": False}) + "\n"
    fd = os.open(telemetry / "rank0.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def say(text: str) -> None:
    """One line in one write: what a log holds of it is all or nothing."""
    os.write(1, f"{text}\n".encode())


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)  # libfaketime 0.9.10 refuses the call that time.sleep makes


def start_daemon(folder: Path) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)  # else the next of a pipeline would never see its end
            (folder / f"daemon-{os.getpid()}").touch()
            enter(folder)
            while not (folder / "finish").exists():
                pause(0.2)
        os._exit(0)
    os.wait()


def rank(folder: Path) -> int:
    enter(folder)
    me = int(os.environ["RANK"])
    if me == 0:
        start_daemon(folder)
    found = whole_checkpoints(folder)
    step = load(found[-1]) if found else 0
    stop = Path(os.environ["STOKER_STOP_FILE"])
    line = 0
    stamps = os.open(
        folder / f"stamps-{os.environ['STOKER_ATTEMPT']}-{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600
    )
    while not (folder / "finish").exists():
        os.write(stamps, f"{time.monotonic():.4f}\n".encode())
        line += 1
        step += 1
        say(f"step {step} loss: {2 + 1 / step:.6f}" if me == 0 else f"rank {me} line {line}")
        if me == 0 and (step % SAVE_EVERY == 0 or stop.exists()):
            save(folder, step)
        if stop.exists():
            return 75
        pause(STEP_S)
    return 0


def launcher(folder: Path) -> int:
    enter(folder)
    ranks = [
        subprocess.Popen(
            [sys.executable, *(["-S"] if sys.flags.no_site else []), *sys.argv],
            env={**os.environ, "RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": "2"},
        )
        for n in range(2)
    ]
    while True:
        codes = [process.poll() for process in ranks]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            for process in ranks:
                if process.poll() is None:
                    process.terminate()
                process.wait()
            return 1 if failed and failed[0] < 0 else max(failed, default=0)
        pause(0.05)


if __name__ == "__main__":
    from family import enter

    place = Path(sys.argv[1])
    sys.exit(rank(place) if "RANK" in os.environ else launcher(place))

"""A job whose processes go where a supervisor easily loses them; each looks whether an earlier attempt still lives.

``family.py FOLDER WORKERS [SECONDS]``. As a plain command it starts WORKERS workers in sessions of their own; under torchrun
each rank is a worker. Beside the workers: a daemon (double fork, own session) and a child that was renamed by setproctitle,
which leaves no environment to read. Every process writes ``FOLDER/<attempt>-<pid>`` first, and ``FOLDER/overlap`` where a
process of another attempt lives.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def overwrite_environment() -> None:
    """As Ray and vLLM rename their workers: setproctitle takes the memory of arguments and environment for the title."""
    import setproctitle

    setproctitle.setproctitle("renamed")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def enter(folder: Path) -> None:
    attempt = os.environ["STOKER_ATTEMPT"]
    (folder / f"{attempt}-{os.getpid()}").touch()
    for other in folder.glob("[0-9]*-*"):
        number, _, pid = other.name.partition("-")
        if number != attempt and is_alive(int(pid)):
            (folder / "overlap").write_text(f"{other.name} lives beside {attempt}-{os.getpid()}")


def live(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)


def worker(folder: Path, seconds: float) -> None:
    enter(folder)
    if os.fork() == 0:  # a daemon: its parent is gone at once
        os.setsid()
        if os.fork() == 0:
            enter(folder)
            live(seconds)
        os._exit(0)
    os.wait()
    if os.fork() == 0:
        enter(folder)
        os.setsid()
        overwrite_environment()
        live(seconds)
        os._exit(0)
    print("step 1 loss 2.0", flush=True)
    live(seconds)


def main() -> None:
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 600.0
    if workers == 0 or "LOCAL_RANK" in os.environ:
        worker(folder, seconds)
        return
    enter(folder)
    children = [
        subprocess.Popen([sys.executable, __file__, str(folder), "0", str(seconds)], start_new_session=True)
        for _ in range(workers)
    ]
    sys.exit(max(child.wait() for child in children))


if __name__ == "__main__":
    main()

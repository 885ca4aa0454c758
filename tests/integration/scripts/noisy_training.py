"""A rank that writes numbered lines at a rate, and may rotate its own log: ``noisy_training.py LINES_A_SECOND SECONDS [ROTATE_MIB]``.

Every `STEP_EVERY`-th line is a step, numbered without a gap, so that a series without a gap says that no line was lost. Ranks of even
number rename their log and open it again, those of odd number copy and truncate it, as logrotate does either way.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

STEP_EVERY = 50
TICK_S = 0.02


def open_log(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(fd, 1)
    os.close(fd)


def rotate(path: str) -> None:
    if int(os.environ.get("RANK", "0")) % 2:
        shutil.copyfile(path, path + ".1")
        os.truncate(path, 0)
    else:
        os.rename(path, path + ".1")
        open_log(path)


def lines(first: int, count: int) -> bytes:
    words = b"worker %d took sample %d and put it where samples of its length go\n"
    step = b"step %d loss: %.4f\n"
    return b"".join(
        step % (n // STEP_EVERY, 2 + 100 / n) if n % STEP_EVERY == 0 else words % (n % 8, n)
        for n in range(first, first + count)
    )


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    rate, seconds = int(sys.argv[1]), float(sys.argv[2])
    rotate_bytes = int(float(sys.argv[3]) * (1 << 20)) if len(sys.argv) > 3 else 0
    path = os.readlink("/proc/self/fd/1")
    open_log(path)  # torchrun opens it without O_APPEND, and a truncated log would begin with a hole
    begin = time.monotonic()
    done = rotations = 0
    while (passed_s := time.monotonic() - begin) < seconds:
        # By the clock, not by sleeps: a busy machine makes the writer late, never slower on the whole.
        due = int(rate * passed_s) - done
        if due > 0:
            write(lines(done + 1, due))
            done += due
        if rotate_bytes and os.fstat(1).st_size >= rotate_bytes:
            rotate(path)
            rotations += 1
        time.sleep(TICK_S)
    write(b"%d lines, %d rotations\n" % (done, rotations))


if __name__ == "__main__":
    main()

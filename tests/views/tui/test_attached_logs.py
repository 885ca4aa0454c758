"""`stoker attach LOG` in a pseudo-terminal: what stands on the screen, from the first frame on."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.views.tui.wire import Wire, terminal

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 214, in <module>
    main()
  File "/home/ada/train.py", line 187, in main
    loss = model(x, y)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB.
"""
HOUR_S = 3600.0
READING = r"reading 6\d MB, \d+ %"


def old(log: Path, text: str) -> Path:
    """A log that was last written an hour ago."""
    log.write_text(text, encoding="utf-8")
    os.utime(log, (time.time() - HOUR_S,) * 2)
    return log


def large(log: Path, *, end: str, mib: int = 60) -> Path:
    """As nanoGPT prints it, with a loss of 9.75 at its first step and of 1.25 at its last."""
    rng = random.Random(7)
    lines = [
        f"iter {step}: loss {2 + rng.random():.4f}, time {120 + rng.random():.2f}ms, mfu 42.13%\n"
        for step in range(1, 5001)
    ]
    size, step = 0, 0
    with log.open("w", encoding="utf-8") as file:
        file.write("iter 0: loss 9.7500, time 120.00ms, mfu 42.13%\n")
        while size < mib << 20:
            text = "".join(
                re.sub(r"iter \d+", f"iter {step + at}", line, count=1) for at, line in enumerate(lines, 1)
            )
            step += len(lines)
            size += file.write(text)
        file.write(f"iter {step + 1}: loss 1.2500, time 120.00ms, mfu 42.13%\n{end}")
    os.utime(log, (time.time() - HOUR_S,) * 2)
    return log


def x_labels(screen: str) -> str:
    """The numbers below the loss chart, under the line that its marks have."""
    lines = screen.splitlines()
    at = next((n for n, line in enumerate(lines) if "└" in line), len(lines))
    return next((line for line in lines[at + 1 : at + 3] if re.search(r"\d", line)), "")


@pytest.mark.e2e
def test_a_backlog_is_said_with_per_cent_and_no_step_of_its_midst(tmp_path: Path) -> None:
    # Where this process gets no processor for as long as the log is read, it sees the end alone: again, with another log.
    for again in range(4):
        log = large(tmp_path / f"train{again}.log", end="")
        with terminal("attach", str(log), cwd=tmp_path) as screen:
            screen.until(lambda: re.search(READING + "|quiet for 1 h", screen.text()))
            shown = screen.text()
            if not re.search("● " + READING, shown):
                continue
            assert "no loss seen yet" not in shown
            assert "no step yet" not in shown
            while "● reading" in (shown := screen.text()):
                head = shown.splitlines()[0]
                assert not re.search(r"step +\d", head), f"a step from the midst of the log: {head}"
            done = screen.wait_for("quiet for 1 h", "step ")
            said = re.search(r"step ([\d ]+\d)", done.splitlines()[0])
            assert said is not None
            newest = re.findall(r"iter (\d+):", done)[-1]
            assert said[1].replace(" ", "") == newest, "header and log agree"
            return
    pytest.fail("no screen of four says that the log is being read")


@pytest.mark.e2e
def test_the_verdict_on_a_large_log_stands_while_its_curve_is_read(tmp_path: Path) -> None:
    log = large(tmp_path / "train.log", end=TRACEBACK)
    with terminal("attach", str(log), cwd=tmp_path) as screen:
        shown = screen.wait_for("GPU memory ran out")
        # The card comes with the first frame, before the header has been told of the end.
        assert re.search(rf"(✗ cuda_oom|ended, reading its logs) · {READING}", shown.splitlines()[0]), shown
        assert "before its first step" not in shown
        screen.until(lambda: "reading" not in screen.text().splitlines()[0])
        steps = int(re.findall(r"iter (\d+):", log.read_text(encoding="utf-8")[-600:])[-1])
        screen.press("M")  # its whole range, with its first and its last point
        screen.wait_for("loss", "1.250")
        screen.wait_for(f"{steps // 1_000_000} 000 000")


@pytest.mark.e2e
def test_a_log_without_steps_stands_by_what_it_names(tmp_path: Path) -> None:
    epochs = "".join(
        f"Epoch {n}/40 - Train Loss: {4 / n:.4f}, Val Loss: {4.2 / n:.4f}\n" for n in range(1, 41)
    )
    bare = "".join(f"loss: {3 + 1 / n:.5f}\n" for n in range(1, 301))
    stamped = "".join(
        f"2026-11-20 1{n // 60}:{n % 60:02d}:00 INFO train loss {3 + 1 / (n + 1):.4f}\n" for n in range(180)
    )
    for text, title, labels in (
        (epochs, "loss by epoch", r"\b10\b.*\b20\b.*\b30\b"),
        (bare, "loss by reading", r"\b100\b.*\b200\b"),
        (stamped, "loss by time since", r"\b1 h\b.*\b2 h\b"),
    ):
        log = old(tmp_path / "train.log", text)
        with terminal("attach", str(log), cwd=tmp_path) as screen:
            screen.until(lambda: re.search(labels, x_labels(screen.text())))  # noqa: B023 - called in this turn
            shown = screen.wait_for(title, "quiet for")
            assert time.strftime("%H:%M") not in x_labels(shown), "the second of attaching"
            if title != "loss by reading":
                screen.press("1")
                screen.until(lambda: other_axis(screen))


@pytest.mark.e2e
def test_a_log_is_over_when_its_writer_here_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    script = "import time\nfor n in range(1, 10**6): print(f'step {n}/90000 loss: {2 + 1 / n:.4f}', flush=True); time.sleep(0.2)"
    with log.open("w", encoding="utf-8") as out:  # closed here: who holds it open writes it
        job = subprocess.Popen([sys.executable, "-c", script], stdout=out)
    with job, terminal("attach", str(log), cwd=tmp_path) as screen:
        screen.wait_for("stepping", "step ")
        wait_until_seen(screen)
        job.kill()
        job.wait()
        screen.wait_for("ended: how is not known")
        screen.press("q")
        screen.wait_for_exit()


def other_axis(screen: Wire) -> bool:
    """Whether `x` has led on to the readings; a key that comes before the chart has the focus is nobody's."""
    screen.press("x")
    return "loss by reading" in screen.text()


def wait_until_seen(screen: Wire) -> None:
    """Its writer is looked for in the first second or two: three more steps."""
    first = _step(screen)
    screen.until(lambda: _step(screen) >= first + 15)


def _step(screen: Wire) -> int:
    found = re.search(r"step +(\d+) /", screen.text())
    return int(found[1]) if found is not None else 0

"""The metrics page with 64 series: from a key to its picture, in tmux, alone and with four other runs in each chart.

    python bench/metrics_page.py [--rounds 10] [--keep bench/results/metrics_page.json]

A key counts when `capture-pane` shows another screen than before; polling and its own cost are some 5 ms. Goal: 50 ms in the
median, as anywhere in the app, on a quiet machine; the charts that are not drawn by then follow (`DRAW_S` in views/tui/pages/metrics.py).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, surroundings, tell
from bench.viewer import DEADLINE_S, POLL_S, Pane
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS
from tests.views.tui.recording import Recording, noise

SERIES, STEPS, OTHERS = 64, 1500, 4
SIZE = (200, 50)
# What is pressed, by what it does to the charts: another one has the keys, all are other ones, all are drawn again.
KEYS = {
    "next chart": ("j", "k"),
    "next page": ("NPage", "PPage"),
    "cursor": ("Left", "Left"),
    "log scale": ("y", "y"),
    "smoothing": ("w", "w"),
    "full size": ("z", "z"),
}


def record(root: Path, tilt: float) -> RunPaths:
    """A run with a loss and a number a layer."""
    rec = Recording(root, total_steps=STEPS)
    rec.launch("first start")
    for step in range(1, STEPS + 1):
        rec.t += 1
        values: dict[str, float | None] = {"step": float(step), "loss": rec.loss(step) + tilt}
        values |= {f"layer{n:02d}/norm": n + tilt + 0.2 * noise(step + n / 7) for n in range(SERIES - 1)}
        rec.series.append(METRICS, rec.t, "job", 1, values)
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=0, last_step=STEPS, rank_exit_codes={0: 0, 1: 0}))
    rec.fact(ev.RunEnded(t=rec.t, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="all steps"))
    return rec.close()


def shown(pane: Pane) -> str:
    return pane.tmux("capture-pane", "-p")


def settled(pane: Pane, marks: tuple[str, ...] = ()) -> str:
    """The screen, once it shows the marks and stands still for a third of a second."""
    end, since, before = time.perf_counter() + DEADLINE_S, time.perf_counter(), ""
    while time.perf_counter() < end:
        now = shown(pane)
        if now != before or not all(mark in now for mark in marks):
            since, before = time.perf_counter(), now
        elif time.perf_counter() - since > 0.33:
            return now
        time.sleep(POLL_S)
    raise TimeoutError(f"never shown: {marks}")


def pressed_s(pane: Pane, key: str) -> float:
    """From the key to another screen."""
    before = settled(pane)
    began = pane.press(key)
    while shown(pane) == before:
        if time.perf_counter() - began > DEADLINE_S:
            raise TimeoutError(f"{key} changed nothing")
        time.sleep(POLL_S)
    return time.perf_counter() - began


def main() -> int:
    """Measure, print and keep."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "runs"
        runs = [record(folder / f"20261121-1{n}12-brave-otter-{n}", n / 4) for n in range(OTHERS + 1)]
        env = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        env |= {"XDG_STATE_HOME": scratch, "TMUX_TMPDIR": scratch}
        pane = Pane(f"stoker-metrics-{os.getpid()}", env)
        try:
            pane.start([sys.executable, "-m", "supervisor", "attach", str(runs[0].root)], SIZE)
            settled(pane, ("? help", "loss"))
            pane.press("M")
            settled(pane, (f"1-25 of {SERIES}",))
            for what in ("alone", f"with {OTHERS} runs"):
                for _ in range(args.rounds):
                    for name, keys in KEYS.items():
                        found.setdefault(f"{name} {what}", []).extend(pressed_s(pane, key) for key in keys)
                if what == "alone":
                    pane.press("c")
                    settled(pane, ("brave-otter-4",))
                    for key in ("Space", "Down") * OTHERS:
                        pane.press(key)
                    pane.press("Enter")
                    settled(pane, ("e brave-otter-",))
        finally:
            pane.end()
    rows = {
        name: [round(1000 * value, 1) for value in (statistics.median(all_s), max(all_s))]
        for name, all_s in found.items()
    }
    tell({**surroundings(), "rounds": args.rounds, "median_and_most_ms": rows}, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())

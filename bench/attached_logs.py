"""What the screen says of real training logs that nobody here wrote: attach to each in tmux, at three sizes, and keep the panes.

    python bench/attached_logs.py TEXTS CAPTURES [--only 23,232]

TEXTS/<blob> are the files that bench/attached_logs_truth.json names, as `git cat-file blob` gives them; the texts are not in the project. Each is
attached to as a file of its own that was last written an hour ago. CAPTURES/<number>.<columns>x<rows>.txt is the pane once it stands still. A person
reads the panes beside the truth, which was written down before the first attaching, and marks each field; bench/results/attached_logs.json holds the marks:
right, sign (not the value, and the screen says so or shows none where the log prints none in that form), absent (the log prints it, the screen does not),
wrong (a value that is not so, without a sign).
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line
from bench.viewer import Pane

TRUTH = ROOT / "bench" / "attached_logs_truth.json"
SIZES = ((80, 24), (120, 40), (200, 50))
STILL_S = 2.0
LOOK_S = 0.25
DEADLINE_S = 60.0
HOUR_S = 3600.0
# What continues changing on a screen that stands still: clocks, and stoker's own cost.
_MOVES = re.compile(r"\d+(?:\.\d+)? ?(?:%|s\b|min\b|h\b|[KMG]iB)|\d+:\d\d(?::\d\d)?")


def standing(pane: Pane) -> str:
    """The pane once it says nothing new for a while, or at the deadline."""
    end = time.monotonic() + DEADLINE_S
    before, since, text = "", time.monotonic(), ""
    while time.monotonic() < end:
        text = pane.tmux("capture-pane", "-p")
        now = _MOVES.sub("", text)
        if now != before or "● reading" in now or not now.strip():
            before, since = now, time.monotonic()
        elif time.monotonic() - since >= STILL_S:
            break
        time.sleep(LOOK_S)
    return text


def main() -> int:
    """Attach, and keep the panes."""
    parser = command_line(__doc__)
    parser.add_argument("texts", type=Path, help="a folder of files named by their blobs")
    parser.add_argument("captures", type=Path, help="the panes are written there")
    parser.add_argument("--only", default="", help="numbers of logs, with commas")
    args = parser.parse_args()
    truth = json.loads(TRUTH.read_text(encoding="utf-8"))
    logs = truth["logs"]
    for draw in (name for name in truth if name.endswith(" draw")):
        logs |= truth[draw]["logs"]
    args.captures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        env = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
        env |= {"HOME": scratch, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        env |= {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": f"{scratch}/state"}
        pane = Pane(f"stoker-attached-{os.getpid()}", env)
        for number, entry in logs.items():
            text = args.texts / entry["blob"]
            if (args.only and number not in args.only.split(",")) or not text.is_file():
                continue
            log = Path(scratch, "train.log")
            log.write_bytes(text.read_bytes())
            os.utime(log, (time.time() - HOUR_S,) * 2)
            for size in SIZES:
                pane.start([sys.executable, "-m", "supervisor", "attach", str(log)], size)
                try:
                    shown = standing(pane)
                finally:
                    pane.end()
                kept = args.captures / f"{number}.{size[0]}x{size[1]}.txt"
                kept.write_text(shown, encoding="utf-8")
                print(kept, shown.splitlines()[0] if shown.strip() else "nothing", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Film the demo: ``python scripts/demo_picture.py [--python PYTHON] [--keep FILM.json] [OUT.svg]``, or draw a kept film again with ``--film``.

The demo runs for real, in tmux, with the keys pressed that a person would press; what the pane shows is taken several times a second, and drawn as one
moving picture without a font of its own. A wait in which nothing changes is shortened. Needs tmux and a Python that can import torch.
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.terminal_svg import Frame, picture, rows_of  # noqa: E402 - the path comes first

COLUMNS, LINES = 100, 30
LOOK_S = 0.2
EVERY_S = 1.5  # of the picture: seconds from screen to screen
DEADLINE_S = 240.0
READ_S = 5.0  # the card stands so long before its key is pressed
# In the picture each screen shows so long, at most, where nothing changes; the card and the end for longer.
AT_MOST_S, CARD_S, END_S = 0.5, 2.0, 4.0
CARD = "attempt 1 failed"
END = "✓ succeeded"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the pane showed, with its colour sequences, and when: seconds from the start."""

    at_s: float
    ansi: str


def film(python: str) -> list[Shown]:
    """Run the demo and take its screen until it is over.

    Raises:
        TimeoutError: it was not over in time.
    """
    with tempfile.TemporaryDirectory(prefix="demo-") as scratch:
        env = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
        env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        env |= {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": f"{scratch}/state"}

        def tmux(*args: str) -> str:
            command = ["tmux", "-S", f"{scratch}/tmux", "-f", "/dev/null", *args]
            return subprocess.run(
                command, env=env, cwd=scratch, capture_output=True, text=True, check=True
            ).stdout

        stoker = (
            f"{sys.executable} -m supervisor run --python {python} --config {ROOT}/configs/demo/demo.toml"
        )
        tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "sh")
        tmux("set", "-g", "status", "off")
        tmux("set", "-sa", "terminal-overrides", ",*:Tc")
        tmux("send-keys", f"exec {stoker}", "Enter")
        began, shown = time.monotonic(), list[Shown]()
        pressed, over_since = None, None
        try:
            while (now := time.monotonic() - began) < DEADLINE_S:
                ansi = tmux("capture-pane", "-e", "-p")
                if not shown or ansi != shown[-1].ansi:
                    shown.append(Shown(now, ansi))
                text = _plain(ansi)
                if CARD in text and "Enter" in text and pressed is None:
                    pressed = now + READ_S
                elif pressed is not None and pressed < now:
                    tmux("send-keys", "Enter")
                    pressed = float("inf")
                if END in text.partition("\n")[0]:
                    over_since = over_since if over_since is not None else now
                    if now - over_since > 2.0:
                        return shown
                time.sleep(LOOK_S)
        finally:
            tmux("kill-server")
    raise TimeoutError(
        f"the demo was not over within {DEADLINE_S:g} s; the pane shows:\n{_plain(shown[-1].ansi)}"
    )


def _plain(ansi: str) -> str:
    return re.sub(r"\x1b\[[0-9;:]*m", "", ansi)


def cut(shown: list[Shown]) -> list[Shown]:
    """From the dashboard's first frame on, a screen each `EVERY_S`: the shell's line is not part of it."""
    film = [one for one in shown if "stoker" in _plain(one.ansi).partition("\n")[0] and "╭" in one.ansi]
    kept = film[:1]
    for one in film[1:]:
        if one.at_s - kept[-1].at_s >= EVERY_S:
            kept.append(one)
    return [*kept, film[-1]]


def elsewhere(text: str) -> str:
    """The text as on another machine: with a checkout in a folder whose name is as long, so that no frame moves."""
    packages = re.findall(
        r"/[\w./-]+?(?=/\.venv/)", text
    )  # torch may be installed in another checkout's environment
    for here in {str(ROOT), *packages}:
        text = text.replace(here, "/home/me/stoker-checkout".ljust(len(here), "t")[: len(here)])
    return text


def draw(shown: list[Shown]) -> str:
    """The film as one SVG; a reader who asked for no motion sees the card."""
    frames, card = [], 0
    for number, one in enumerate(shown):
        lasts = shown[number + 1].at_s - one.at_s if number + 1 < len(shown) else END_S
        is_card = CARD in _plain(one.ansi)
        most = END_S if number + 1 == len(shown) else CARD_S if is_card else AT_MOST_S
        frames.append(Frame(rows_of(elsewhere(one.ansi), COLUMNS), min(lasts, most)))
        card = number if is_card else card
    return picture(frames, COLUMNS, "make demo", still=card)


def main() -> int:
    """Film, or take a kept film, and draw it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "docs" / "pictures" / "demo.svg")
    parser.add_argument("--python", default=sys.executable, help="interpreter that can import torch")
    parser.add_argument("--keep", type=Path, metavar="FILM.json", help="keep what was filmed")
    parser.add_argument("--film", type=Path, metavar="FILM.json", help="draw this, run nothing")
    args = parser.parse_args()
    if args.film:
        shown = [Shown(*one) for one in json.loads(args.film.read_text(encoding="utf-8"))]
    else:
        shown = film(args.python)
    if args.keep:
        args.keep.write_text(json.dumps([[one.at_s, one.ansi] for one in shown]), encoding="utf-8")
    args.out.write_text(draw(cut(shown)), encoding="utf-8")
    print(args.out, f"{args.out.stat().st_size >> 10} KiB", f"{len(shown)} screens")
    return 0


if __name__ == "__main__":
    sys.exit(main())

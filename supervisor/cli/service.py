"""Print a systemd user unit that adopts runs whose supervisor process died, or write it with --write. Optional.

The unit runs this verb with --adopt: it looks at the runs it was given until they are over, and starts a new keeper for what lives
of one whose keeper is gone. After a reboot nothing lives: such runs are named and left for ``stoker continue``.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.cli.common import ACTED_ON, EXIT_REFUSED, PROGRAM, acted_on, add_runs_dir, complain, say
from supervisor.job.errors import JobError

if TYPE_CHECKING:
    from supervisor.run.paths import RunPaths

LOOK_S: Final = 15.0
MOST_DOUBLINGS: Final = 5
"""A keeper that dies again and again is started again after 15, 30, … 480 s."""
MOST_REFUSALS: Final = 3
PASSED: Final = (
    *(
        "PATH",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
    ),
    *("LANG", "HF_HOME", "TORCH_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
)
"""Variables that the unit gets: systemd has an environment of its own, and a restarted attempt gets the keeper's. No secrets."""
UNIT: Final = """\
[Unit]
Description={about}

[Service]
Type=simple
ExecStart={command}
# Supervisor processes that it has started live on, with what they launched, when it is stopped.
KillMode=process
Restart=on-failure
RestartSec=30
{environment}
[Install]
WantedBy=default.target
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help=ACTED_ON)
    parser.add_argument(
        "--write", action="store_true", help="write the unit to ~/.config/systemd/user instead of printing it"
    )
    parser.add_argument(
        "--adopt", action="store_true", help="what the unit does: adopt the runs, until they are over"
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=LOOK_S,
        metavar="S",
        help=f"seconds between looks (default {LOOK_S:g})",
    )
    add_runs_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Print or write the unit; with ``--adopt`` do what it is for."""
    if not (math.isfinite(args.interval) and args.interval > 0):
        return complain("service", f"--interval {args.interval:g}: must be above 0")
    found: dict[RunPaths, None] = {}
    for text in args.runs:
        try:
            found[acted_on("watch", text, args.runs_dir)] = None
        except JobError as error:
            code = complain("service", error)
            if not args.adopt:  # the unit continues with the others: one may have been deleted since
                return code
    runs = list(found)
    if args.adopt:
        return adopt_until_over(runs, interval_s=args.interval)
    unit = unit_of(runs, os.environ, args.interval)
    if not args.write:
        say(*unit.splitlines())
        return 0
    path = _write(runs, unit)
    say(str(path), f"systemctl --user daemon-reload && systemctl --user enable --now {path.name}")
    say("loginctl enable-linger    # or it starts at login only, and ends with the last session")
    return 0


def adopt_until_over(runs: Sequence[RunPaths], *, interval_s: float) -> int:
    """Adopt each run whose keeper is gone, as often as that happens; 0 once all are over, or nothing can be adopted of them."""
    from supervisor.cli.attach import adopt_run
    from supervisor.run.access.ownership import has_keeper
    from supervisor.run.journal import read_state

    tries, refused = dict.fromkeys(runs, 0), dict.fromkeys(runs, 0)
    due = dict.fromkeys(runs, 0.0)
    while due:
        now = time.monotonic()
        for paths in [paths for paths, when in due.items() if when <= now]:
            wait_s = interval_s
            if not has_keeper(paths):
                over = read_state(paths.node().journal).is_over
                refused[paths] = 0 if over or adopt_run(paths) != EXIT_REFUSED else refused[paths] + 1
                # Of another boot, not ours, or nothing of it lives: it stays so. A folder on a file server may come back.
                if over or refused[paths] == MOST_REFUSALS:
                    del due[paths]
                    continue
                wait_s *= 2.0 ** min(tries[paths], MOST_DOUBLINGS)
                tries[paths] += 1
            due[paths] = now + wait_s
        if due:
            time.sleep(interval_s)
    return 0


def unit_of(runs: Sequence[RunPaths], env: Mapping[str, str], interval_s: float = LOOK_S) -> str:
    """The unit for these runs."""
    from supervisor.text.decode import printable

    words = [
        sys.executable,
        "-P",
        "-m",
        PROGRAM,
        "service",
        "--adopt",
        f"--interval={interval_s:g}",
        *(str(paths.root) for paths in runs),
    ]
    given = {name: env[name] for name in PASSED if env.get(name)}
    lines = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in given.items())
    # A line of its own, whatever a folder is called.
    names = printable(", ".join(paths.run_id for paths in runs)).replace("\\", "?")
    return UNIT.format(
        about=f"stoker: a supervisor process for {names}".replace("%", "%%"),
        command=" ".join(_quoted(word).replace("$", "$$") for word in words),
        environment=lines,
    )


def _quoted(text: str) -> str:
    """As one word of a unit file (systemd.syntax(7)), its specifiers escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'


def _write(runs: Sequence[RunPaths], unit: str) -> Path:
    from supervisor.cli.common import user_settings
    from supervisor.run.paths import make_private, write_whole

    folder = user_settings(os.environ).parents[1] / "systemd" / "user"
    make_private(folder)
    more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
    path = folder / f"stoker-{runs[0].run_id}{more}.service"
    write_whole(path, unit.encode())
    return path

"""What the rounds of `bench/fault_run.py` share: the counts, the two ways in which a round ends early, and the processes of a round.

A round starts a job in its own folder, does something to the job, and raises `Broken` where something does not hold.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.common import ROOT, with_mark

MARK = "STOKER_KILLS_MARK"
STOKER = (sys.executable, "-m", "supervisor")
FOREIGN = ("STOKER_RUN", "STOKER_ATTEMPT", "SLURM_")
SKIPPED = "skipped"
COMMAND_S = 90.0


class Broken(Exception):  # noqa: N818 - a finding, not an error of the bench
    """Something that must hold does not."""


class Skipped(Exception):  # noqa: N818 - a state of affairs
    """The machine lacks what a round needs; one line."""


@dataclass(slots=True)
class Tally:
    """What rounds did and found. `faults`: one row for each fault."""

    done: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    faults: list[dict[str, object]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the counts of another round."""
        self.done += other.done
        self.findings += other.findings
        self.faults += other.faults

    def note(self, name: int | str, kind: str, moment: str, killed: Iterable[str] = ()) -> None:
        """Add the row of one fault of round `name`. The round's outcome is added when the round ends."""
        row: dict[str, object] = {"round": name, "kind": kind, "moment": moment}
        self.faults.append(row | {"killed": sorted(map(str, killed)), "outcome": "not checked"})


class Playable(Protocol):
    """A round. `last_hit`: the last fault, for the report."""

    last_hit: str

    def play(self) -> None:
        """Play the whole round. Raises Broken or Skipped."""


class Processes:
    """The `stoker` commands of a round. All processes below them carry the round's mark."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)},
            MARK: self.mark,
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(folder / "state"),
            "OMP_NUM_THREADS": "1",
            **env,
        }
        self.console = folder / "commands.log"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **more_env: str) -> subprocess.Popen[bytes]:
        """Start `stoker ARGUMENTS` in the background."""
        with self.console.open("ab") as out:
            out.write(f"$ stoker {shlex.join(arguments)}\n".encode())
            out.flush()
            process = subprocess.Popen(
                [*STOKER, *arguments],
                cwd=self.folder,
                env={**self.env, **more_env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self.started.append(process)
        return process

    def run(self, *arguments: str, deadline_s: float = COMMAND_S) -> int:
        """Run `stoker ARGUMENTS` to its end and return its exit code."""
        try:
            return self.start(*arguments).wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise Broken(f"stoker {shlex.join(arguments)} did not end within {deadline_s:.0f} s") from None

    def alive(self) -> list[int]:
        """All living processes of the round."""
        return with_mark(MARK, self.mark)

    def end(self) -> None:
        """Kill all processes of the round."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

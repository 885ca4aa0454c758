"""Starts real Python processes with the instrumentation in them, or without, and reads what they reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "supervisor" / "instrument"
ABORT_AT_EXIT = "terminate called without an active exception"
SCRIPTS = Path(__file__).parent / "scripts"
PYTHON = os.environ.get("STOKER_TEST_PYTHON", sys.executable)
"""What runs the scripts: another Python, or one with another torch, is tested by naming it."""


@dataclass
class Ended:
    """A process that ended: its exit code, its streams, and the records of all ranks in the order of their files."""

    code: int
    out: str
    err: str
    records: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind."""
        return [record for record in self.records if record["kind"] == kind]


def run(
    arguments: list[str | Path],
    folder: Path,
    *,
    measured: bool = True,
    telemetry: Path | None = None,
    python: str | Path = PYTHON,
    timeout_s: float = 280,
    **environment: str,
) -> Ended:
    """Run Python with `arguments` in `folder`, which is made; ``measured=False`` refuses the instrumentation."""
    folder.mkdir(parents=True, exist_ok=True)
    telemetry = telemetry or folder / "telemetry"
    own = {
        "STOKER_TELEMETRY_DIR": str(telemetry),
        "STOKER_INSTRUMENT": "1" if measured else "0",
        "PYTHONPATH": str(PACKAGE / "on_path"),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    command = [str(python), *map(str, arguments)]
    done = finished(command, telemetry, cwd=folder, env={**os.environ, **own}, timeout_s=timeout_s)
    return Ended(done.returncode, done.stdout, done.stderr, read(telemetry))


def asked_of(script: str, lines: str, folder: Path) -> list[Any]:
    """What one process with the instrumentation prints for each of these lines, as JSON."""
    (folder / "asked.py").write_text("import json" + script)
    own = {
        "PYTHONPATH": str(PACKAGE / "on_path"),
        "STOKER_TELEMETRY_DIR": str(folder),
        "STOKER_INSTRUMENT": "1",
    }
    done = subprocess.run(
        [PYTHON, "asked.py"], cwd=folder, env={**os.environ, **own}, input=lines,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def finished(
    command: list[str], telemetry: Path, *, cwd: Path, env: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; at most twice more if PyTorch itself aborts at the interpreter's exit.

    Of 30 launches of two gloo ranks without stoker on a busy machine 1 ended so, and of 30 with the instrumentation none.
    """
    for _ in range(3):
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode == 0 or ABORT_AT_EXIT not in done.stderr:
            break
        shutil.rmtree(telemetry, ignore_errors=True)
    return done


def read(telemetry: Path) -> list[dict[str, Any]]:
    """The records in a telemetry folder."""
    paths = [
        path for path in sorted(telemetry.glob("measured*.jsonl*")) if path.is_file()
    ]  # /dev/full is endless
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def without_ours(text: str) -> str:
    """Tracebacks without the frames of the instrumentation's wrappers, which are the one thing that may differ."""
    ours = re.escape(str(PACKAGE))
    frames = rf'  File "[^"\n]*{ours}[^"\n]*", line .*\n(?:    .*\n|  \[Previous .*\n)*'
    return re.sub(frames, "", text)

"""Run SLURM's programs with a time limit. Answers are returned as records, refusals as one line."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.diagnosis.slurm_states import ENDED, WAITING
from supervisor.text.patterns import host_names

ASK_S: Final = 30.0
_FIELDS: Final = "%i|%T|%r|%S|%L|%N|%D|%j"
_PAIR: Final = re.compile(r"(\w+)=(\S*)")
JOB: Final = re.compile(r"\d+(_\d+)?")


class SlurmError(Exception):
    """SLURM is missing or refused a request. The message is a single line."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as SLURM now reports it. `start` is an estimate if pending, `left` is the time left, `nodes` may be former nodes."""

    job: str
    state: str
    reason: str = ""
    start: str = ""
    left: str = ""
    nodes: tuple[str, ...] = ()
    name: str = ""
    exit_code: str = ""
    restarts: int = 0
    log: str = ""

    def line(self) -> str:
        """Format the job as one line for display."""
        said = [f"{self.job} {self.name}".strip(), self.state]
        if self.reason not in {"", "None"}:
            said.append(self.reason)
        if self.state in WAITING and self.start not in {"", "N/A", "Unknown"}:
            said.append(f"expected to start {self.start}")
        if self.state == "RUNNING" and self.left:
            said.append(f"{self.left} left")
        if self.nodes:
            said.append(",".join(self.nodes))
        if self.exit_code and self.state in ENDED:
            said.append(f"exit {self.exit_code}")
        if self.restarts:
            said.append(f"restarts {self.restarts}")
        return " · ".join(said)


def ask(words: Sequence[str], stdin: str | None = None, *, bound_s: float = ASK_S) -> str:
    """Run one of SLURM's programs and return its output, waiting at most `bound_s` seconds.

    Raises:
        SlurmError: the program is not on PATH, does not answer, or refuses. Includes its message.
    """
    program = shutil.which(words[0])
    if program is None:
        raise SlurmError(f"{words[0]} is not on PATH: this is no SLURM machine, or its module is not loaded")
    try:
        done = subprocess.run(
            [program, *words[1:]],
            input=None if stdin is None else stdin.encode("utf-8", "surrogateescape"),
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=bound_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(
            f"{words[0]} does not answer within {bound_s:.0f} s: the controller is down or busy"
        ) from error
    except OSError as error:
        raise SlurmError(f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        said = [line for line in done.stderr.decode("utf-8", "replace").split("\n") if line.strip()]
        text = "; ".join(re.sub(rf"^{words[0]}: (error: )?", "", line) for line in said[:3])
        raise SlurmError(f"{words[0]}: {text or f'exit {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")  # as bytes: a carriage return in a name ends no line


def submit(script: str) -> str:
    """Submit a batch script and return the job number. Raises SlurmError with sbatch's own message."""
    answer = ask(["sbatch", "--parsable"], stdin=script).strip().partition(";")[0]
    if not JOB.fullmatch(answer):
        raise SlurmError(f"sbatch: no job number in its answer {answer[:80]!r}")
    return answer


def queue() -> dict[str, QueuedJob]:
    """Return all of this user's pending and running jobs in one call. Raises SlurmError."""
    found = {}
    for line in ask(["squeue", "--me", "-h", "-o", _FIELDS]).split("\n"):
        parts = [part.strip() for part in line.split("|", 7)]
        if len(parts) == 8:
            job, state, reason, start, left, nodes, _, name = parts
            found[job] = QueuedJob(job, state, reason, start, left, host_names(nodes), name)
    return found


def job_record(job: str) -> QueuedJob | None:
    """Return SLURM's record of a job, finished or not, or None. Falls back to sacct if scontrol has forgotten it."""
    try:
        text = ask(["scontrol", "show", "job", "-o", job]).partition("\n")[0]
    except SlurmError:
        text = ""
    if not text:
        return _accounted(job)
    told = dict(_PAIR.findall(text))
    nodes = told.get("NodeList", "")
    return QueuedJob(
        job=job,
        state=told.get("JobState", ""),
        reason=told.get("Reason", ""),
        start=told.get("StartTime", ""),
        nodes=() if nodes.startswith("(") else host_names(nodes),
        name=told.get("JobName", ""),
        exit_code=told.get("ExitCode", ""),
        restarts=int(told["Restarts"]) if told.get("Restarts", "").isdigit() else 0,
        log=told.get("StdOut", ""),
    )


def _accounted(job: str) -> QueuedJob | None:
    fields = "JobID,State,NodeList,ExitCode,JobName"
    try:
        rows = ask(["sacct", "-X", "-n", "-P", "-j", job, f"--format={fields}"]).split("\n")
    except SlurmError:
        return None
    for row in rows:
        parts = row.split("|")
        if len(parts) == 5:
            state = parts[1].split()[0] if parts[1].split() else ""
            nodes = () if parts[2].startswith("None") else host_names(parts[2])
            return QueuedJob(job, state, nodes=nodes, exit_code=parts[3], name=parts[4])
    return None


def nodes_down(names: Sequence[str]) -> tuple[str, ...]:
    """Return which of the given nodes SLURM reports as down, failed or drained. Raises SlurmError."""
    if not names:
        return ()
    rows = ask(["sinfo", "-h", "-N", "-n", ",".join(names), "-o", "%N %T"]).splitlines()
    bad = map(str.split, rows)
    return tuple(
        dict.fromkeys(row[0] for row in bad if len(row) == 2 and re.match(r"down|fail|drain", row[1]))
    )


def exclude(job: str, nodes: Sequence[str]) -> None:
    """Keep a pending job off the given nodes. Raises SlurmError."""
    ask(["scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}"])


def cancel(job: str) -> None:
    """Cancel a job. Raises SlurmError."""
    ask(["scancel", job])

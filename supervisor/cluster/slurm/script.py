"""Generate a job's batch script, as if written by hand.

Per sbatch(1) and srun(1), ``--signal=B:`` reaches only the batch shell, srun forwards USR1 and TERM to its tasks, and a
shell runs its trap only after a foreground command exits. That is why srun runs in the background and the script waits.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from supervisor.diagnosis.slurm_states import OUTCOMES
from supervisor.policy import EXIT_REQUEUE
from supervisor.text.decode import printable, shell_word

WARN_S: Final = 120
_NAME: Final = re.compile(r"[^\w.-]+")
_TIME: Final = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d(:\d\d)?)?")


class BadBatch(Exception):  # noqa: N818 - a state of affairs, as JobError's
    """The batch script cannot be generated. The message is a single line."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch script requests from SLURM and the command it runs on each node.

    Attributes:
        words: the arguments to ``stoker run``.
        stoker: the command that starts stoker on the nodes.
        name: the job name.
        nodes: number of nodes, each with one task.
        time: the time limit in sbatch's format: minutes, HH:MM:SS, D-HH.
        warn_s: how many seconds before the limit SLURM sends USR1, which may arrive some 15 s late.
        logs: the folder for its log, which must exist when the job starts.
        more: additional ``#SBATCH`` options, such as ``--qos=high``.
        setup: shell lines to run first, such as ``module load cuda``.
    """

    words: tuple[str, ...]
    stoker: tuple[str, ...] = ("stoker",)
    name: str = "stoker"
    nodes: int = 1
    gpus: int | None = None
    cpus: int | None = None
    mem: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    array: str | None = None
    exclude: tuple[str, ...] = ()
    warn_s: int = WARN_S
    requeue: bool = True
    logs: str = "logs"
    more: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


def batch_script(batch: Batch) -> str:
    """Generate the batch script.

    Raises:
        BadBatch: SLURM would refuse or misread a value.
    """
    return "\n".join([*_head(batch), *_body(batch)]) + "\n"


def job_name(name: str) -> str:
    """Reduce a name to characters that are safe in a file name."""
    return _NAME.sub("-", name).strip("-")[:60] or "stoker"


def _head(batch: Batch) -> Iterator[str]:
    if batch.time is not None and not _TIME.fullmatch(batch.time):
        raise BadBatch(f"--time {batch.time}: SLURM takes minutes, MM:SS, HH:MM:SS or D-HH[:MM[:SS]]")
    if not batch.words:
        raise BadBatch("nothing to start: after the flags give what follows `stoker run`")
    log = f"{batch.logs}/%x-%A_%a.out" if batch.array else f"{batch.logs}/%x-%j.out"
    options = {
        "job-name": job_name(batch.name),
        "nodes": batch.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": batch.gpus,
        "cpus-per-task": batch.cpus,
        "mem": batch.mem,
        "time": batch.time,
        "partition": batch.partition,
        "account": batch.account,
        "array": batch.array,
        "exclude": ",".join(batch.exclude) or None,
        "signal": f"B:USR1@{batch.warn_s}",
        "output": log,
        "open-mode": "append",
    }
    yield "#!/bin/bash"
    for key, value in options.items():
        if value is None:
            continue
        text = str(value)
        if not text.isprintable() or " " in text:
            raise BadBatch(f"--{key} {text!r}: a space or a line break in it would end the option")
        yield f"#SBATCH --{key}={text}"
    yield "#SBATCH --requeue" if batch.requeue else "#SBATCH --no-requeue"
    for option in batch.more:
        if not re.fullmatch(r"--[a-z][\w-]*(=[^\s]+)?", option):
            raise BadBatch(f"--sbatch {option!r}: an option of sbatch is meant, --qos=high")
        yield f"#SBATCH {option}"


def _body(batch: Batch) -> Iterator[str]:
    start = " ".join(map(shell_word, [*batch.stoker, "run", "--no-ui", *batch.words]))
    node_log = f"{batch.logs}/%x-%j_%n.out"
    yield ""
    for line in batch.setup:
        if printable(line) != line.replace("\t", "    "):
            raise BadBatch(f"--setup {line!r}: a line of the shell is meant, without control characters")
        yield line
    yield "# One task on each node: stoker finds its place there, and torchrun starts the ranks. A job that is started again continues with its run."
    yield f"srun --kill-on-bad-exit=0 --open-mode=append --output={shlex.quote(node_log)} \\"
    yield f"  {start} &"
    yield "srun=$!"
    yield ""
    yield f"# USR1 comes to this shell alone, {batch.warn_s} s before the limit; srun hands it on: checkpoint, then exit {EXIT_REQUEUE}."
    yield "trap 'kill -USR1 $srun 2>/dev/null' USR1"
    yield "trap 'kill -TERM $srun 2>/dev/null' TERM"
    yield "wait $srun; code=$?"
    yield "while kill -0 $srun 2>/dev/null; do wait $srun; code=$?; done"
    if batch.requeue:
        yield ""
        yield f"# {EXIT_REQUEUE}: a checkpoint was committed. Any other code ends the job: what failed would fail again. A job that was cancelled,"
        yield f"# or is taken off its nodes, saves and ends with {EXIT_REQUEUE} too: SLURM calls it completing by then, and it stays ended."
        yield f"if [ $code -eq {EXIT_REQUEUE} ]; then"
        yield '  case $(squeue -h -j "$SLURM_JOB_ID" -o %T) in'
        yield f"    {'|'.join(['COMPLETING', *OUTCOMES])}) ;;"
        yield '    *) scontrol requeue "$SLURM_JOB_ID" && sleep 60 ;;'
        yield "  esac"
        yield "fi"
    yield "exit $code"

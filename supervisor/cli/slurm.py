"""Write, submit, watch or cancel a SLURM batch job that runs stoker, or print its logs.

The flags of the batch job come first, followed by what you would pass to ``stoker run``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from supervisor.cli.common import EXIT_REFUSED, PROGRAM, Parser, complain, own_words, say, says_yes
from supervisor.cluster.slurm.programs import (
    JOB,
    QueuedJob,
    SlurmError,
    cancel,
    exclude,
    job_record,
    nodes_down,
    queue,
    submit,
)
from supervisor.cluster.slurm.script import WARN_S, BadBatch, Batch, batch_script, job_name
from supervisor.diagnosis.slurm_states import ENDED, OUTCOMES, WAITING
from supervisor.run.records import Reason
from supervisor.text.decode import clean
from supervisor.text.patterns import host_names

VERB: Final = "slurm"
POLL_S: Final = 10.0
SLOWEST_S: Final = 60.0
ACTIONS: Final = ("script", "submit", "watch", "cancel", "logs")
LINES: Final = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("action", choices=ACTIONS, help=" | ".join(ACTIONS))
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="number of machines; stoker starts once on each"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs on each node")
    parser.add_argument("--cpus", type=int, metavar="N", help="CPU cores on each node")
    parser.add_argument("--mem", metavar="SIZE", help="memory on each node, as for sbatch (64G)")
    parser.add_argument("--time", metavar="T", help="time limit: minutes, HH:MM:SS, D-HH")
    parser.add_argument("--partition", metavar="NAME", help="queue")
    parser.add_argument("--account", metavar="NAME", help="account to charge")
    parser.add_argument("--job-name", metavar="NAME", help="name of the batch job (default: the script's)")
    parser.add_argument("--array", metavar="SPEC", help="a job array such as 0-3; each job is a separate run")
    parser.add_argument("--exclude", metavar="NODES", help="nodes to avoid, such as n3,n7")
    parser.add_argument(
        "--warn-s", type=int, metavar="S", help="seconds before the limit to checkpoint and requeue (120)"
    )
    parser.add_argument("--no-requeue", action="store_true", help="never start the job again")
    parser.add_argument("--log-dir", metavar="DIR", help="folder of the job's logs (default logs)")
    parser.add_argument(
        "--setup",
        metavar="LINE",
        action="append",
        help="a shell line to run before the start; may be repeated",
    )
    parser.add_argument("--sbatch", metavar="OPTION", action="append", help="another option for sbatch, such as --sbatch=--qos=high; may be repeated")  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="cancel: do not ask")
    parser.add_argument("--exclude-failed", action="store_true", help="watch: keep a requeued job off nodes that are down")  # fmt: skip
    parser.add_argument("-n", "--lines", type=int, default=LINES, metavar="N", help="logs: the last N lines of each file (default 40)")  # fmt: skip
    parser.add_argument("words", nargs="*", metavar="WORDS", help="script, submit: arguments of stoker run; otherwise job numbers")  # fmt: skip


def main(argv: list[str]) -> int:
    """Run the verb. Exit 0, 1 if a watched job did not complete, 2 for bad input or a SLURM refusal, or 3 if not confirmed."""
    parser = Parser(prog=f"stoker {VERB}", description=__doc__)
    add_arguments(parser)
    own, words = own_words(parser, argv, ACTIONS)
    args = parser.parse_args(own)
    try:
        match args.action:
            case "script" | "submit":
                batch = _batch(args, words)
                if args.action == "submit":
                    return _submit(batch)
                say(*batch_script(batch).splitlines())
                complain(VERB, f"mkdir -p {batch.logs} before sbatch, which makes no folders")
                return 0
            case "watch":
                return _watch(_jobs(words), exclude_failed=args.exclude_failed)
            case "cancel":
                return _cancel(_jobs(words), sure=args.yes)
            case _:
                return _logs(_jobs(words), args.lines)
    except (SlurmError, BadBatch) as error:
        return complain(VERB, error)


def _batch(args: argparse.Namespace, words: list[str]) -> Batch:
    for name in ("nodes", "gpus", "cpus", "warn_s"):
        value = getattr(args, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise BadBatch(f"--{name.replace('_', '-')} wants a whole number of at least 1, got {value!r}")
    script = next((word for word in words if word.endswith(".py")), "stoker")
    stoker = shutil.which("stoker")
    return Batch(
        words=tuple(words),
        stoker=(stoker,) if stoker else (sys.executable, "-m", PROGRAM),
        name=args.job_name or Path(script).stem,
        nodes=args.nodes or 1,
        gpus=args.gpus,
        cpus=args.cpus,
        mem=args.mem,
        time=None if args.time is None else str(args.time),
        partition=args.partition,
        account=args.account,
        array=args.array,
        exclude=host_names(args.exclude or ""),
        warn_s=args.warn_s or WARN_S,
        requeue=not args.no_requeue,
        logs=args.log_dir or "logs",
        more=tuple(args.sbatch or ()),
        setup=tuple(args.setup or ()),
    )


def _submit(batch: Batch) -> int:
    folder = Path(batch.logs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return complain(VERB, f"{folder}: {error.strerror}: choose another folder with --log-dir")
    job = submit(batch_script(batch))
    log, latest = f"{job_name(batch.name)}-{job}.out", folder / "latest"
    if batch.array is None and (latest.is_symlink() or not latest.exists()):  # keep a regular file
        new = folder / f".latest-{os.getpid()}"
        new.symlink_to(log)
        new.replace(latest)
    say(f"job {job}: log {folder / log}; `stoker slurm watch {job}`, `stoker slurm logs {job}`")
    return 0


def _jobs(words: Sequence[str]) -> tuple[str, ...]:
    for word in words:
        if not JOB.fullmatch(word):
            raise SlurmError(f"{word!r} is no number of a job: 4711, or 4711_2 of an array")
    return tuple(words)


def _watch(jobs: tuple[str, ...], *, exclude_failed: bool) -> int:
    """Print job state changes until all jobs finish, polling all jobs with one squeue call every 10 s (up to 60 s when idle)."""
    jobs = jobs or tuple(queue())
    if not jobs:
        say("no job of yours waits or runs")
        return 0
    seen: dict[str, str] = {}
    ran_on: dict[str, tuple[str, ...]] = {}
    open_jobs, failed, pause = list(jobs), False, POLL_S
    while True:
        now, changed = queue(), False
        for job in tuple(open_jobs):
            found = now.get(job)
            if found is None or found.state in ENDED:
                found = job_record(job) or found
                if found is None:
                    raise SlurmError(f"SLURM knows no job {job} (of yours)")
            told = f"{found.state} {found.reason} {found.nodes}"
            if seen.get(job) != told:
                seen[job], changed = told, True
                say(f"{time.strftime('%H:%M:%S')} {found.line()}", flush=True)
                if found.state in WAITING and job in ran_on:
                    _say_why_it_waits_again(found, ran_on.pop(job), exclude_failed=exclude_failed)
            if found.state == "RUNNING":
                ran_on[job] = found.nodes
            if found.state in ENDED:
                failed |= not _said_end(found)
                open_jobs.remove(job)
        if not open_jobs:
            return 1 if failed else 0
        pause = POLL_S if changed else min(pause * 1.5, SLOWEST_S)
        time.sleep(pause)


def _say_why_it_waits_again(job: QueuedJob, nodes: tuple[str, ...], *, exclude_failed: bool) -> None:
    """Print why a job that was running is pending again: it was requeued, or one of its nodes went down."""
    down = nodes_down(nodes)
    if not down:
        say("  requeued: it continues with its run when it starts again")
        return
    names = ",".join(down)
    say(f"  NODE_FAIL: {names} is down; SLURM started the job again (it may wait 2 minutes)")
    if exclude_failed:
        exclude(job.job, down)
        say(f"  {names} is excluded from it")
    else:
        say(f"  to keep it off: scontrol update JobId={job.job} ExcNodeList={names}")


def _said_end(job: QueuedJob) -> bool:
    """Print how the job ended. Return whether it succeeded."""
    if job.state == "COMPLETED":
        return True
    failure, reason = OUTCOMES.get(job.state, (None, None))
    if reason is Reason.NODE_FAIL:
        names = ",".join(nodes_down(job.nodes) or job.nodes)
        say(f"  node failed: {names}; submit again with --exclude")
    elif failure is not None and reason is not None:
        say(f"  {failure.value} ({reason.value}){_ADVICE.get(job.state, '')}")
    elif job.exit_code.startswith("93"):
        say("  exit 93: it would fail again, and was not requeued; `stoker diagnose` says why")
    elif job.exit_code.startswith("7:"):
        say("  exit 7: the job ended early with exit code 0 and was not requeued; see `stoker diagnose`")
    return False


_ADVICE: Final = {
    "TIMEOUT": ": no checkpoint was committed in time, or --warn-s is too short; ask for more time (--time)",
    "OUT_OF_MEMORY": ": the node's memory limit was reached; ask for more (--mem), or fewer DataLoader workers",
    "PREEMPTED": ": a job of higher priority took its nodes; submit with requeue",
}


def _cancel(jobs: tuple[str, ...], *, sure: bool) -> int:
    if not jobs:
        return complain(VERB, "cancel: which job? `stoker slurm watch` lists them")
    for job in jobs:
        found = job_record(job)
        if found is None:
            raise SlurmError(f"SLURM knows no job {job}")
        if found.state in ENDED:
            say(f"{found.line()}: it has ended already")
            continue
        if not sure and not says_yes(f"Cancel {found.line()}?"):
            return complain(VERB, f"{job}: not cancelled", EXIT_REFUSED)
        cancel(job)
        say(f"{job}: cancelled")
    return 0


def _logs(jobs: tuple[str, ...], lines: int) -> int:
    """Print the tail of every node's log, each line prefixed with its node."""
    for job in jobs or tuple(queue()):
        found = job_record(job)
        if found is None or not found.log:
            raise SlurmError(f"SLURM knows no log of job {job} any more: look in its folder of logs")
        for label, path in _log_files(Path(found.log)):
            with path.open("rb") as file:
                for line in deque(file, max(lines, 1)):
                    say(f"{label}: {clean(line.rstrip())}")
    return 0


def _log_files(log: Path) -> Iterator[tuple[str, Path]]:
    """Yield the batch script's log, then one log per node (``%x-%j_%n.out``)."""
    if log.is_file():
        yield "batch", log
    nodes = [
        each
        for each in log.parent.glob(f"{log.stem}_*{log.suffix}")
        if each.stem[len(log.stem) + 1 :].isdigit()
    ]
    for path in sorted(nodes, key=lambda each: int(each.stem[len(log.stem) + 1 :])):
        yield f"node {path.stem[len(log.stem) + 1 :]}", path

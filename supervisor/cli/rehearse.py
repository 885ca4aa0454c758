"""Rehearse a failure of a job: run it in a scratch folder, cause one failure, and check what the restart really does."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from supervisor.cli.common import Parser, complain, refuse, say, say_json
from supervisor.job.batch import factors
from supervisor.run.events import RequestKind
from supervisor.run.journal import StateReader
from supervisor.run.ownership import NotRequested, ask
from supervisor.run.paths import RunPaths
from supervisor.run.records import DecisionKind, FailureClass, Sameness
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.overlay import NoOverlayError, enter, remove

PROVED, DOES_NOT_HOLD, BAD_INPUT, REFUSED = 0, 1, 2, 3
FAULTS: Final = str(Path(__file__).parents[1] / "faults" / "on_path")
EXPECTED: Final = {
    "oom": {FailureClass.CUDA_OOM},
    "kill": {FailureClass.WORKER_CRASH},
    "hang": {FailureClass.HANG, FailureClass.NCCL_TIMEOUT},
    "nan": {FailureClass.NAN_LOSS},
}
STEPS_AFTER: Final = 4
"""The failure comes this many steps after a checkpoint, and the restart is watched until it is this many steps past the failure.

Losses are compared from three steps on that were trained twice.
"""
POLL_S: Final = 0.2
STOP_S: Final = 60.0
_FLAGS: Final = ("--fail", "--rank", "--for")
_PLACES: Final = ("/var/tmp", "/tmp")  # noqa: S108 - folders on a disk, in which mkdtemp makes one of its own
_SWITCHES: Final = ("--allow-remote", "--keep", "--json", "-h", "--help")
_REMOTE: Final = re.compile(r"(?:^|=)(?:s3|gs|gcs|hdfs|abfs|az)://|^-*(?:push_to_hub|hub_model_id)\b")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")


@dataclass
class Certificate:
    """What was checked, in order. The rehearsal holds if every line does."""

    holds: list[str] = field(default_factory=list)
    broken: str = ""
    help: str = ""

    def check(self, *, is_so: bool, text: str, otherwise: str, help_: str = "") -> None:
        """Add a line, or what does not hold and what would help. After something that does not hold, nothing is added."""
        if self.broken:
            return
        if is_so:
            self.holds.append(text)
        else:
            self.broken, self.help = otherwise, help_


def main(argv: list[str]) -> int:
    """Rehearse. Exit 0 if everything holds, 1 if something does not, 2 for bad input, 3 if the rehearsal is refused."""
    parser = Parser(prog="stoker rehearse", description=__doc__)
    add_arguments(parser)
    own, words = _split(argv)
    args = parser.parse_args(own)
    limit = _DURATION.fullmatch(args.limit)
    if limit is None:
        return complain("rehearse", f"--for {args.limit}: say 90s, 10m or 1h")
    if not words:
        return complain(
            "rehearse", "say the words of `stoker run`: stoker rehearse --nproc-per-node 2 train.py"
        )
    remote = next((word for word in words if _REMOTE.search(word)), None)
    if remote is not None and not args.allow_remote:
        return _refused(f"{remote} writes to another place, which no scratch folder can hold back", "--allow-remote if that is harmless, or leave it out")  # fmt: skip
    limit_s = float(limit[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[limit[2]]
    if any(word.partition("=")[0] == "--runs-dir" for word in words):
        return complain("rehearse", "--runs-dir: a rehearsal has its own folder of runs, which is deleted")
    for ended in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the job ends, and its folder goes
        signal.signal(ended, signal.default_int_handler)
    folders = _folders(words)
    outside = [
        place for place in _PLACES if not any(Path(place).is_relative_to(folder) for folder in folders)
    ]
    if not outside:
        return _refused(f"no place for the scratch folder: {' and '.join(_PLACES)} are below folders that the job may write to", "another TMPDIR")  # fmt: skip
    scratch = Path(tempfile.mkdtemp(prefix="stoker-rehearsal-", dir=outside[0]))
    try:
        began = time.monotonic()
        (scratch / "fault.json").write_text(json.dumps({"fault": args.fail, "rank": args.rank}))
        try:
            child = _start(scratch, words, folders)
        except NoOverlayError as error:
            return _refused(f"this kernel gives no view of the files that can be thrown away ({error})", "it takes Linux 5.12 or newer, user namespaces, and no other mount below these folders: " + ", ".join(map(str, folders)))  # fmt: skip
        state, run = _follow(child, scratch, began + limit_s)
        if state is None:  # `stoker run` has said why
            say(_printed(scratch), file=sys.stderr)
            return child.returncode or BAD_INPUT
        told = _judge(state, args.fail, limit_s)
        took_s = time.monotonic() - began
        if args.json:
            say_json({"proved": not told.broken, "holds": told.holds, "broken": told.broken or None, "help": told.help or None, "seconds": round(took_s, 1)})  # fmt: skip
        else:
            say(*_lines(told, args.fail, state, took_s))
            if args.keep and run is not None:
                say(f"kept: {run.root}")
        return DOES_NOT_HOLD if told.broken else PROVED
    finally:
        if not args.keep:
            remove(scratch)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own flags, which come before the words of `stoker run`."""
    parser.add_argument("--fail", choices=sorted(EXPECTED), default="oom", help="the failure (default: oom)")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="the rank that fails (default: 0)")
    parser.add_argument("--for", dest="limit", default="10m", metavar="TIME", help="give up after 90s, 10m or 1h (default: 10m)")  # fmt: skip
    parser.add_argument("--allow-remote", action="store_true", help="also where the command names remote storage or a hub")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split our own flags, which come first, from the words of `stoker run`, which may have the same names."""
    at = 0
    while at < len(argv) and argv[at].partition("=")[0] in {*_FLAGS, *_SWITCHES}:
        at += 2 if argv[at] in _FLAGS else 1
    return argv[:at], argv[at:]


def _refused(why: str, help_: str) -> int:
    return refuse("rehearse", why, [help_])


def _start(scratch: Path, words: Sequence[str], folders: Sequence[Path]) -> subprocess.Popen[bytes]:
    """Start `stoker run` with everything that it writes in `scratch`.

    Raises:
        NoOverlayError: the kernel refuses the view of the files; the text says which part.
    """
    env = {
        **os.environ,
        "STOKER_REHEARSAL": str(scratch),
        "PYTHONPATH": os.pathsep.join(filter(None, (FAULTS, os.environ.get("PYTHONPATH")))),
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"file:{scratch}/mlruns",
    }
    command = [
        sys.executable,
        "-m",
        __package__.rpartition(".")[0],
        "run",
        "--no-ui",
        "--runs-dir",
        str(scratch / "runs"),
    ]
    reading, writing = os.pipe()

    def enter_view() -> None:
        try:
            enter(folders, scratch)
        except OSError as error:
            os.write(writing, str(error).encode())  # Popen passes no text on
            raise

    with (scratch / "console.log").open("wb") as console, os.fdopen(reading) as why:
        try:
            return subprocess.Popen(
                [*command, *words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                preexec_fn=enter_view,  # noqa: PLW1509 - this process has no other thread
            )
        except subprocess.SubprocessError as error:
            os.close(writing)
            writing = -1
            raise NoOverlayError(why.read() or str(error)) from error
        finally:
            if writing >= 0:
                os.close(writing)


def _folders(words: Sequence[str]) -> list[Path]:
    """Return the folders that the job may write to: home, the working folder, temporary files, and those that the command names."""
    named = (word.partition("=")[2] or word for word in words)
    absolute = [Path(path) for path in named if path.startswith("/")]
    existing = [
        next((each for each in (path, *path.parents) if each.is_dir()), Path("/")) for path in absolute
    ]
    wanted = [Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *existing]
    found: list[Path] = []
    for folder in sorted({path.resolve() for path in wanted}, key=lambda path: len(path.parts)):
        is_device = any(folder.is_relative_to(place) for place in ("/dev", "/proc", "/sys"))
        if (
            folder.is_dir()
            and folder != Path("/")
            and not is_device
            and not any(folder.is_relative_to(outer) for outer in found)
        ):
            found.append(folder)
    return found


def _follow(
    child: subprocess.Popen[bytes], scratch: Path, deadline: float
) -> tuple[RunState | None, RunPaths | None]:
    """Cause the failure after the first checkpoint, watch the restart, stop the run, and return its last state."""
    reader: StateReader | None = None
    run: RunPaths | None = None
    failed_at: int | None = None
    try:
        while child.poll() is None:
            time.sleep(POLL_S)
            run = run or next(
                (RunPaths(path) for path in (scratch / "runs").glob("2*") if path.is_dir()), None
            )
            if run is None or not run.node().journal.exists():
                if time.monotonic() > deadline:
                    break
                continue
            reader = reader or StateReader(run.node().journal)
            reader.refresh()
            state = reader.state
            attempt, saved = state.attempt, state.checkpoint
            is_due = (
                saved is not None
                and attempt is not None
                and _step(attempt) >= (saved.step or 0) + STEPS_AFTER
            )
            if is_due and not (scratch / "fire").exists():
                (scratch / "fire").touch()
            if attempt is not None and attempt.number > 1 and failed_at is None:
                failed_at = _step(state.attempts[0])
            is_past = (
                failed_at is not None and attempt is not None and _step(attempt) >= failed_at + STEPS_AFTER
            )
            if is_past or time.monotonic() > deadline:
                break
    finally:
        _end(child, run)
    if reader is not None:
        reader.refresh()
    return (reader.state if reader is not None else None), run


def _end(child: subprocess.Popen[bytes], run: RunPaths | None) -> None:
    """Stop what is still alive, first gracefully, then at once. Another Ctrl-C does not leave the job without its folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for kind in (RequestKind.STOP, RequestKind.STOP_NOW):
        if child.poll() is None and run is not None:
            with contextlib.suppress(NotRequested, OSError):
                ask(run, kind)
        if child.poll() is None and run is None:
            child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
    if child.poll() is None:
        child.kill()
        child.wait()


def _step(attempt: AttemptState) -> int:
    return attempt.last_step if attempt.last_step is not None else -1


def _judge(state: RunState, fault: str, limit_s: float) -> Certificate:
    """Check the verdict, the batch, the checkpoint, the first step and the losses against what a restart promises."""
    told = Certificate()
    first = state.attempts[0] if state.attempts else None
    if first is None or first.first_step is None:
        told.broken, told.help = "the job made no step", "see what it printed: --keep, then console.log there"
        return told
    told.check(
        is_so=state.checkpoint is not None,
        text="it saves checkpoints, and stoker finds them",
        otherwise=f"no checkpoint was seen within {limit_s:.0f} s",
        help_="a flag that saves earlier, such as --save_steps 20, or a longer --for",
    )
    verdict = first.verdict
    seen = verdict.failure.value if verdict is not None else "nothing"
    told.check(
        is_so=verdict is not None and verdict.failure in EXPECTED[fault],
        text=f"the failure is recognized: {seen}",
        otherwise=f"the failure was judged as {seen}",
        help_="the script may catch the error, or no training step came after the checkpoint",
    )
    decision = first.decision
    told.check(
        is_so=decision is not None and decision.kind is DecisionKind.RESTART and len(state.attempts) > 1,
        text=f"it is restarted: {decision.reason if decision is not None else ''}",
        otherwise=f"it is not restarted: {decision.reason if decision is not None else 'no decision was made'}",
        help_=first.measured.help if first.measured is not None else "",
    )
    if told.broken:
        return told
    second = state.attempts[1]
    _judge_batch(told, first, second)
    where = second.resume_at
    told.check(
        is_so=second.resumed_step is not None or second.is_resume_seen,
        text=f"it goes on from checkpoint {where if where is not None else second.resumed_step}: its first step is {second.first_step}",
        otherwise=f"it did not go on from a checkpoint: its first step is {second.first_step}",
        help_="--resume-knob FLAG names the setting that takes a checkpoint, if the script has one",
    )
    compared = second.compared
    told.check(
        is_so=compared is None
        or compared.result in {Sameness.SAME, Sameness.SAME_WITHIN_NOISE, Sameness.UNKNOWN},
        text=compared.text
        if compared is not None and compared.text
        else "no step was trained twice, so no losses were compared",
        otherwise=f"it is not the same training: {compared.text if compared is not None else ''}",
        help_="the data order or the learning rate may not be restored: look at what the script loads",
    )
    return told


def _judge_batch(told: Certificate, first: AttemptState, second: AttemptState) -> None:
    change = (
        first.decision.change.batch
        if first.decision is not None and first.decision.change is not None
        else None
    )
    if change is None:
        return
    measured = second.measured
    now = (measured.micro_batch, measured.accumulation) if measured is not None else (None, None)
    planned = (change.after.micro_batch_per_rank, change.after.accumulation_steps)
    told.check(
        is_so=second.differs is None and (second.confirmed is not None or now == planned),
        text=f"measured after the restart: {factors(change.after)}, global batch {change.after.global_batch}",
        otherwise=f"the restart is not as planned: {second.differs.text}"
        if second.differs is not None
        else f"planned micro-batch × accumulation {planned}, measured {now}",
        help_="--batch-knob NAME names the setting that makes the batch",
    )
    told.check(
        is_so=change.after.global_batch == change.before.global_batch,
        text=f"the global batch stays {change.before.global_batch}",
        otherwise=f"the global batch becomes {change.after.global_batch}, from {change.before.global_batch}",
        help_="gradient accumulation in the script would keep it",
    )


def _lines(told: Certificate, fault: str, state: RunState, took_s: float) -> Iterator[str]:
    """Yield the certificate: one sentence, and what it rests on."""
    what = {"oom": "runs out of memory", "kill": "loses a rank", "hang": "hangs", "nan": "gets a NaN loss"}[
        fault
    ]
    minutes = f"{took_s // 60:.0f} min {took_s % 60:.0f} s" if took_s >= 60 else f"{took_s:.0f} s"
    if told.broken:
        yield f"does not hold: if this job {what}, {told.broken}"
        if told.help:
            yield f"  what would help: {told.help}"
    else:
        steps = f"{state.attempts[0].first_step} → {state.attempts[1].last_step}"
        yield f"proved on steps {steps} in {minutes}: if this job {what}, it goes on by itself"
    yield from (f"  ✓ {text}" for text in told.holds)
    yield "  nothing of yours was written: all files were in a scratch folder, which is deleted"


def _printed(scratch: Path) -> str:
    return (scratch / "console.log").read_text(encoding="utf-8", errors="replace").strip()

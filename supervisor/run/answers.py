"""What stoker remembers for later runs of a script, in ``$XDG_STATE_HOME/stoker``: the user's answers and the batches that fit.

``answers.jsonl`` has one line per answer about a script's batch, exit code or resume, and lists scripts that got
further without stoker's measurements. The key is the script's text and the question, so an edited script or a different
question prompts the user again. An answer is always one of the values that the question lists, so the file's content
cannot set anything else. The file is replaced as a whole. If two answers are given at the same moment, one may be lost,
and its question is asked again.

``memory.jsonl`` has one line per attempt. The key is the script, the flags that shape the model, the GPU type and the
number of ranks, since the same micro-batch then needs the same memory. Results are proposed and used in plans, but
never silently.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from supervisor.job.arguments.command_line import Launch, read_launch
from supervisor.job.launch.batch_questions import question_of
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import (
    BY_ITSELF,
    NEVER,
    OF_BATCH,
    AnswerGiven,
    BatchAnswer,
    BatchQuestion,
    EntryKind,
    JobSpec,
    Unread,
)
from supervisor.run.index import state_home
from supervisor.run.jsonl import append_line, decoded
from supervisor.run.paths import make_private, replace_file
from supervisor.run.regular import open_regular, read_regular
from supervisor.run.state import RunState

FILE = "answers.jsonl"
UNMEASURED = "instrument"
# Each answer was one key press. An answer for a script that was edited since is never looked up again.
MAX_ANSWERS = 200
MAX_BYTES = 256 << 10
MAX_RESUME_ANSWERS = 3  # the number of available keys
_SETTING = re.compile(
    r"--?[A-Za-z][\w.-]{0,80}(=[\w.-]{1,40})?|(env:|[\w./-]+#)?\+{0,2}[A-Za-z_][\w.-]{0,80}=[\w.-]{1,40}"
)
_Time = Annotated[float, msgspec.Meta(ge=0, le=4e9)]


class AnswerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded answer. `script` is a hash of its text, `question` a `BatchQuestion.key`, and `t` wall-clock seconds."""

    script: str
    question: str
    value: str
    t: _Time


def remember_answer(line: AnswerLine, env: Mapping[str, str]) -> None:
    """Record an answer, replacing an earlier answer to the same question.

    Raises:
        OSError: the file cannot be written.
    """
    path = state_home(env) / FILE
    others = [
        known for known in _read(path) if (known.script, known.question) != (line.script, line.question)
    ]
    kept = [*others, line][-MAX_ANSWERS:]
    data = b"".join(msgspec.json.encode(known) + b"\n" for known in kept)
    make_private(path.parent)
    replace_file(path, data)


def recall_answer(script: str, question: str, env: Mapping[str, str]) -> AnswerLine | None:
    """Return the latest answer to a question about a script, or None."""
    known = [
        line for line in _read(state_home(env) / FILE) if (line.script, line.question) == (script, question)
    ]
    return known[-1] if known else None


def recalled(question: BatchQuestion, env: Mapping[str, str]) -> AnswerGiven | None:
    """Return the recorded answer to this question, with its date, or None."""
    known = recall_answer(question.script, question.key, env) if question.script else None
    return AnswerGiven(question, known.value, day_of(known.t)) if known is not None else None


def day_of(t: float) -> str:
    """Format a wall-clock time in seconds as a date."""
    return time.strftime("%Y-%m-%d", time.localtime(t))


def exit_code_question(job: JobSpec) -> BatchQuestion:
    """Ask whether a script's exit code 0 means success whatever its logs show. With no file, ask about the command line."""
    answer = BatchAnswer("trust", refusal="from now on, exit code 0 of this script counts as a success")
    return BatchQuestion(Unread.EXIT_CODE, "", None, (answer,), _hash_of(job))


def resume_question(job: JobSpec, candidates: Sequence[str] = ()) -> BatchQuestion:
    """Ask how this job's script resumes. `candidates` are settings that may take a checkpoint path, in `--resume-knob` format."""
    values = [*candidates[: MAX_RESUME_ANSWERS - 1], BY_ITSELF, NEVER][:MAX_RESUME_ANSWERS]
    restarts, begins = "restart from the newest checkpoint", "a restart begins at step 0, so it waits for you"
    answers = tuple(BatchAnswer(value, refusal=begins if value == NEVER else restarts) for value in values)
    return BatchQuestion(Unread.RESUME, "", None, answers, _hash_of(job))


def batch_question(job: JobSpec, state: RunState) -> BatchQuestion | None:
    """Return the question that the measurements leave open about the batch, if any. `job` is the job as it was started."""
    if job.entry_kind is EntryKind.TRAINER or state.measured is None:
        return None
    seen = state.measured.settings.answered(state.values_answered)
    return question_of(job, seen, state.wrong, _hash_of(job)) if seen.asks is not None else None


def keep_answers(state: RunState, env: Mapping[str, str], now: float, *, wrong: Unread | None = None) -> None:
    """Record for later runs the batch answers that an attempt's steps confirmed, or forget the one they proved `wrong`.

    Raises:
        OSError: the file cannot be written.
    """
    for what, given in state.answers.items():
        if what in OF_BATCH and given.question.script and (wrong is None or what is wrong):
            value = "" if wrong is not None else given.value
            key = given.question.key
            remember_answer(AnswerLine(script=given.question.script, question=key, value=value, t=now), env)


def is_resume_answer(value: str) -> bool:
    """Check whether a recorded answer is one that `resume_question` can list: a keyword or the name of a setting."""
    return value in {BY_ITSELF, NEVER} or _SETTING.fullmatch(value) is not None


def remember_unmeasured(job: JobSpec, env: Mapping[str, str], now: float) -> None:
    """Record that later runs of this job's script should start without stoker's measurements.

    Raises:
        OSError: the file cannot be written.
    """
    remember_answer(AnswerLine(script=_hash_of(job), question=UNMEASURED, value="off", t=now), env)


def unmeasured_since(job: JobSpec, env: Mapping[str, str]) -> float | None:
    """Return when `remember_unmeasured` was last called for this script, in wall-clock seconds, or None if it never was."""
    known = recall_answer(_hash_of(job), UNMEASURED, env)
    return known.t if known is not None else None


def _hash_of(job: JobSpec) -> str:
    return hashlib.sha256(script_of(job)[1].encode("utf-8", "surrogatepass")).hexdigest()


def script_of(job: JobSpec) -> tuple[str, str]:
    """Return the name and text of the script that a job starts, or "" and the command line if it does not start a file."""
    words = (job.entry, *job.entry_args)
    launch = read_launch(words) if job.entry_kind is EntryKind.COMMAND else Launch(script=job.entry)
    is_module = job.entry_kind is EntryKind.MODULE or launch.module is not None
    # Launchers are text files, too, and all scripts started by one launcher would look the same.
    for word in (launch.script or "", *words) if not is_module else ():
        with contextlib.suppress(OSError, ValueError):
            data = read_regular(Path(job.cwd, word), MAX_BYTES)
            if b"\0" not in data:  # not a binary
                return os.path.basename(word), data.decode("utf-8", "replace")
    return "", " ".join(words)


def _read(path: Path) -> list[AnswerLine]:
    """Return all valid lines, oldest first, or [] if the file is not regular or is far too large."""
    try:
        data = read_regular(path, MAX_BYTES + 1)
    except OSError:
        return []
    return list(decoded(msgspec.json.Decoder(AnswerLine), data)) if len(data) <= MAX_BYTES else []


# -- the batches that fit --------------------------------------------------------------------------

MEMORY_FILE = "memory.jsonl"
MEMORY_BYTES = 4 << 20
"""About 15,000 lines, read in 40 ms. With a few runs a day, older lines come from a different version of the script."""


class JobKind(msgspec.Struct, frozen=True):
    """What determines a launch's memory use. `flags` is a hash; `device` is a GPU's name, or "cpu"."""

    script: str
    flags: str
    device: str
    world_size: int


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recorded trial. `t` is in wall-clock seconds, and `run` is the run's id."""

    kind: JobKind
    trial: MemoryTrial
    t: float
    run: str


def flags_hash(words: Iterable[str]) -> str:
    """Return a short hash of the arguments that shape a model. They may be secret, so the arguments are not stored."""
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def remember_memory(line: MemoryLine, env: Mapping[str, str]) -> None:
    """Append a line."""
    append_line(state_home(env) / MEMORY_FILE, line, follows=True)


def recall_memory(kind: JobKind, env: Mapping[str, str], *, but_run: str = "") -> list[MemoryLine]:
    """Return the lines for one kind of job, oldest first, except those of `but_run`. Skip damaged or foreign lines."""
    try:
        with open_regular(state_home(env) / MEMORY_FILE) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MEMORY_BYTES, 0))
            data = file.read()
    except OSError:
        return []
    known = decoded(msgspec.json.Decoder(MemoryLine), data)
    return [line for line in known if line.kind == kind and line.run != but_run]

"""The guided start: facts about a folder and a script, the next question, and the resulting job file. Pure.

`cli/init.py` asks the questions and writes the file. It passes in what it found in the folder and on the
machine, along with a function that resolves a draft of the job.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import Final, TypeAlias

from supervisor.job.arguments.run_arguments import STOKER_FLAGS, TORCHRUN_FLAGS, ParsedRun, check_nproc
from supervisor.job.errors import JobError
from supervisor.job.launch.oom_plan import four_lines, resume_plan
from supervisor.job.setting_keys import SETTINGS
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.text.patterns import host_names
from supervisor.text.redact import redact, redact_argv, redact_text

Setting: TypeAlias = str | int | float | bool
MOST_SCRIPTS: Final = 9
"""The maximum number of scripts to choose from, so that a single digit selects one."""

_FLAG_NAME: Final = re.compile(r"-{0,2}\+{0,2}[A-Za-z_][\w.-]*(=\S*)?")
# Settings files of the project and of a package. A job file with such a name would be read as settings.
_RESERVED: Final = frozenset({"stoker.toml", "pyproject.toml"})
_NAMED: Final = re.compile(r"train|tune|^(main|run)\.py$")


class Topic(StrEnum):
    """The topics to ask about, in order."""

    SCRIPT = "script"
    ARGUMENTS = "arguments"
    PYTHON = "python"
    RANKS = "ranks"
    NODES = "nodes"
    ADDRESS = "address"
    RESUME = "resume"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Option:
    """A possible answer and what it means."""

    value: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """The next question. `default` is used for an empty answer. `options` lists all possible answers, or as many as are known."""

    topic: Topic
    text: str
    default: str = ""
    options: tuple[Option, ...] = ()


_RESUMES: Final = (
    Option("wait", "a failure after the first step waits for you"),
    Option("scratch", "it begins at step 0 again"),
    Option("self", "the script finds its newest checkpoint itself"),
)
_RESUME_KEYS: Final = frozenset(("resume.knob", "resume.self_resuming", "policy.restart_from_scratch"))
_KEYS: Final = {
    Topic.SCRIPT: "run.script",
    Topic.PYTHON: "run.python",
    Topic.RANKS: "run.nproc_per_node",
    Topic.NODES: "run.nnodes",
    Topic.ADDRESS: "run.master_addr",
}
"""The job-file key that each topic's answer sets."""


@dataclass(frozen=True, slots=True)
class Slurm:
    """SLURM as seen from this shell. `job` is the shell's job ID, if any, `nodes` its node count, and `first` its first node."""

    job: str = ""
    nodes: int = 1
    first: str = ""


@dataclass(frozen=True, slots=True)
class Around:
    """What is known before the first question.

    Attributes:
        scripts: Python files that may be training scripts, likeliest first.
        gpus: the number of GPUs visible to a job.
        slurm: SLURM as seen from this shell, or None if it is not installed.
        files: the names already taken in the folder.
        python: a description of the interpreter with torch that `stoker run` would use, or empty if none was found.
    """

    scripts: tuple[str, ...] = ()
    gpus: int = 0
    slurm: Slurm | None = None
    files: frozenset[str] = frozenset()
    python: str = ""

    def lines(self) -> tuple[str, ...]:
        """Return lines that describe the machine to the user."""
        found = [f"GPUs here: {self.gpus}" if self.gpus else "no GPU is visible here: ranks run on the CPU"]
        if self.slurm is not None and self.slurm.job:
            found.append(f"SLURM job {self.slurm.job}, nodes: {self.slurm.nodes}")
        elif self.slurm is not None:
            found.append("SLURM is installed, and this shell is in no job of it")
        found.append(self.python or "no Python with torch is found here")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about the script before it runs. `lines` are (label, text) pairs. For `resume`, see `ResumePlan.how`.

    Whatever is unknown about the batch is measured once the script runs, and only then is the user asked.
    """

    lines: tuple[tuple[str, str], ...]
    resume: str = "unknown"


@dataclass(frozen=True, slots=True)
class Choices:
    """The decisions so far. `settings` is keyed by dotted job-file key. `decided` contains the topics that need no question."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    file: str = ""
    decided: frozenset[Topic] = frozenset()

    def having(self, topic: Topic, settings: Mapping[str, Setting]) -> Choices:
        """Return the choices with `topic` decided."""
        return replace(self, settings={**self.settings, **settings}, decided=self.decided | {topic})

    @property
    def entry(self) -> str:
        """The script or module, or empty if none has been chosen."""
        return str(self.settings.get("run.script") or self.settings.get("run.module") or "")

    @property
    def several(self) -> bool:
        """Whether the job runs on several machines."""
        return str(self.settings.get("run.nnodes", "1")) not in {"1", "1:1"}


def likely_scripts(names: Iterable[str]) -> tuple[str, ...]:
    """Return the Python files that may be training scripts, likely names first, without tests and setup files.

    Args:
        names: paths relative to the folder.
    """
    base = {name: posixpath.basename(name).lower() for name in names}
    mine = [name for name in base if not base[name].startswith(("test_", "conftest", "setup.", "__init__"))]
    mine.sort(key=lambda name: (_NAMED.search(base[name]) is None, name.count("/"), name))
    return tuple(mine)[:MOST_SCRIPTS]


def slurm_of(env: Mapping[str, str], *, installed: bool) -> Slurm | None:
    """Read SLURM's environment variables. `installed` says whether SLURM's programs exist."""
    job = env.get("SLURM_JOB_ID", "")
    if not job:
        return Slurm() if installed else None
    count = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "1"
    nodes = int(count) if count.isascii() and count.isdigit() and 0 < len(count) < 7 else 1
    return Slurm(job[:20], nodes, next(iter(host_names(env.get("SLURM_JOB_NODELIST", ""), most=1)), ""))


def found_in(spec: JobSpec) -> Found:
    """Describe a resolved draft: the script's batch, out-of-memory handling, resume method and outputs."""
    batch, smaller, then, resume = four_lines(spec)
    where = f"looked for in {', '.join(spec.outputs)}" if spec.outputs else "not looked for"
    lines = (
        ("batch", batch),
        ("out of memory", smaller),
        ("then", then),
        ("resume", resume),
        ("checkpoints", where),
    )
    return Found(lines, resume_plan(spec.knobs).how)


def choices_of(parsed: ParsedRun, file: str = "") -> Choices:
    """Return the decisions that ``stoker run`` flags on a command line imply, stored under their job-file keys.

    Raises:
        JobError: a flag has no job-file key, or the job is a command.
    """
    if parsed.entry_kind is EntryKind.COMMAND:
        raise JobError(
            "a job file names a script or a module: a command needs none, start it with `stoker run -- …`"
        )
    settings: dict[str, Setting] = {}
    if parsed.entry is not None:
        settings["run.module" if parsed.entry_kind is EntryKind.MODULE else "run.script"] = parsed.entry
    env = dict(pair.partition("=")[::2] for pair in parsed.flags("env"))
    known = {flag.key: flag for flag in (*STOKER_FLAGS, *TORCHRUN_FLAGS)}
    for key, value in (*parsed.stoker, *parsed.torchrun):
        flag = known.get(key)
        if key == "no_retry":
            settings["policy.retry"] = value != "true"
        elif flag is None or key == "env" or flag.setting.startswith("ui."):
            continue  # a flag of `init` itself or of the screen
        elif not flag.setting or flag.setting == "run.node_rank":
            raise JobError(f"{flag.name} is not kept in a job file: give it to `stoker run` beside --config")
        else:
            settings[flag.setting] = _typed(flag.setting, value)
    decided = {topic for topic, key in _KEYS.items() if key in settings}
    if parsed.entry is not None:
        decided |= {Topic.SCRIPT, *([Topic.ARGUMENTS] if parsed.entry_args else [])}
    choices = Choices(settings, parsed.entry_args, tuple(env.items()), "", frozenset(decided))
    return with_file(choices, file) if file else choices


def _typed(key: str, value: str) -> Setting:
    """Convert a value to the type that it has in the job file, or raise JobError."""
    if key == "run.nproc_per_node":
        check_nproc(value)
    is_count = key in {"run.nproc_per_node", "run.nnodes"} and value.isdigit()
    return int(value) if is_count else SETTINGS[key].held(key, value)


def with_file(choices: Choices, name: str) -> Choices:
    """Return the choices with the name of the file to write.

    Raises:
        JobError: the name is not valid for a job file.
    """
    base = posixpath.basename(name)
    if not base.endswith(".toml") or base == ".toml" or base in _RESERVED or not name.isprintable():
        raise JobError(f"{name}: name a file ending in .toml, other than {' and '.join(sorted(_RESERVED))}")
    return replace(choices, file=name, decided=choices.decided | {Topic.FILE})


def _question(topic: Topic, around: Around, choices: Choices, found: Found) -> Question | None:
    """Return the question about a topic, or None if there is nothing to ask."""
    slurm = around.slurm or Slurm()
    match topic:
        case Topic.SCRIPT:
            options, first = tuple(map(Option, around.scripts)), next(iter(around.scripts), "")
            # Of several files that are not named like it, any may train: `--yes` must not take the first by the alphabet.
            is_likely = len(options) == 1 or _NAMED.search(posixpath.basename(first).lower())
            return Question(topic, "which script trains?", first if is_likely else "", options)
        case Topic.ARGUMENTS:
            return Question(topic, f"what follows {choices.entry} on its command line?")
        case Topic.PYTHON if not around.python:
            return Question(topic, "which Python has torch? (empty: looked for again when it starts)")
        case Topic.RANKS:
            text = "how many ranks on each machine (one for each GPU)?"
            return Question(topic, text, str(around.gpus or 1))
        case Topic.NODES:
            return Question(topic, "how many machines?", str(slurm.nodes))
        case Topic.ADDRESS if choices.several:
            text = "name or address of the first machine, as the others reach it?"
            return Question(topic, text, slurm.first)
        case Topic.RESUME if found.resume in {"none", "unknown"} and _RESUME_KEYS.isdisjoint(
            choices.settings
        ):
            text = "how does the script continue from a checkpoint? (or name its flag, as --resume=auto)"
            return Question(topic, text, _RESUMES[0].value, _RESUMES)
        case Topic.FILE:
            return Question(topic, "write the job file as?", _free_name(choices.entry, around.files))
    return None


def _free_name(entry: str, taken: frozenset[str]) -> str:
    """Return the first free name among ``train.toml``, ``train-2.toml``, and so on."""
    stem = re.sub(r"\.py$", "", posixpath.basename(entry.replace("\\", "/"))) or "job"
    stem = re.sub(r"[^\w.-]", "-", stem).lstrip(".-") or "job"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.toml" for number in count(1))
    return next(name for name in names if name not in taken | _RESERVED)


def answered(choices: Choices, question: Question, text: str) -> Choices:
    """Return the choices after an answer: a number selects an option, and an empty answer means the default.

    Raises:
        JobError: the text does not answer this question.
    """
    topic, given, options = question.topic, text.strip() or question.default, question.options
    if options and given.isascii() and given.isdigit():
        if not 0 < int(given[:9]) <= len(options):
            raise JobError(f"{given}: choose one of 1 to {len(options)}")
        given = options[int(given) - 1].value
    match topic:
        case Topic.FILE:
            return with_file(choices, given)
        case Topic.ARGUMENTS:
            try:
                return replace(choices.having(topic, {}), args=tuple(shlex.split(given)))
            except ValueError as error:
                raise JobError(f"{str(error).lower()}: close the quote") from error
        case Topic.RESUME:
            return choices.having(topic, _resume_settings(given))
        case Topic.PYTHON if not given:
            return choices.having(topic, {})
        case Topic.NODES if not re.fullmatch(r"[1-9]\d{0,4}", given, re.ASCII):
            raise JobError(f"a number of machines is a whole number of at least 1, got {given!r}")
    if not given or (topic is Topic.ADDRESS and not re.fullmatch(r"[!-~]+", given)):
        raise JobError(_WANTED.get(topic, question.text))
    return choices.having(topic, {_KEYS[topic]: _typed(_KEYS[topic], given)})


_WANTED: Final = {
    Topic.SCRIPT: "name the script to run, for example train.py",
    Topic.ADDRESS: "name the first machine, for example --master-addr n01",
}


def _resume_settings(given: str) -> dict[str, Setting]:
    """Return the settings for an answer about resuming, or raise JobError if the answer is invalid."""
    known: dict[str, dict[str, Setting]] = {
        "wait": {},
        "scratch": {"policy.restart_from_scratch": True},
        "self": {"resume.self_resuming": True},
    }
    if given in known:
        return known[given]
    if not _FLAG_NAME.fullmatch(given) or ("=" not in given and not given.startswith("-")):
        values = ", ".join(known)
        raise JobError(f"{given}: one of {values}, or the script's flag, as --resume or resume=auto")
    return {"resume.knob": given}


def job_file(choices: Choices) -> str:
    """Return the contents of the job file.

    Raises:
        JobError: the file would contain something recognized as a secret.
    """
    tables: dict[str, list[str]] = {}
    for key, value in choices.settings.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, []).append(f"{name} = {_toml(value)}")
    if choices.args:
        tables.setdefault("run", []).insert(1, f"args = [{', '.join(map(_toml, choices.args))}]")
    if choices.env:
        tables["env"] = [f"{name} = {_toml(value)}" for name, value in choices.env]
    named = f" --config {shlex.quote(choices.file)}" if choices.file else ""
    parts = [f"# Made by `stoker init`. To start it: stoker run{named}"]
    for section in sorted(tables, key=_ORDER.index):
        parts += ["", f"[{section}]", *tables[section]]
    text = "\n".join(parts) + "\n"
    for name, value in choices.env:
        if redact(name, value) != value:
            raise JobError(f"{name} holds a secret, which the file would keep: set it in the environment")
    if redact_argv(choices.args) != choices.args or redact_text(text) != text:
        raise JobError(
            "an argument or a setting holds a secret, which the file would keep: set it in the environment"
        )
    return text


_ORDER: Final = ("run", "batch", "resume", "policy", "hang", "env")


def _toml(value: Setting) -> str:
    """Format a value as TOML. Basic strings are the same as in JSON, except for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def command_of(choices: Choices, around: Around) -> str:
    """Return the command that starts the job: on this machine, on each of several machines, or on all of them through SLURM."""
    start = f"stoker run --config {shlex.quote(choices.file)}"
    if not choices.several:
        return start
    if around.slurm is not None:
        return f"srun --ntasks-per-node=1 sh -c {shlex.quote(f'{start} --no-ui --node-rank $SLURM_NODEID')}"
    return f"{start} --node-rank K"


class GuidedStart:
    """A guided start: its questions and the decisions made so far.

    Args:
        around: what is known before the first question.
        choices: the decisions made on the command line.
        read: resolves a draft or raises JobError.
    """

    def __init__(self, around: Around, choices: Choices, read: Callable[[Choices], Found]) -> None:
        self.around, self.choices = around, choices
        self._read = read
        self.found: Found | None = None
        self._require_possible(choices)
        if choices.entry:
            self.found = read(choices)

    def question(self) -> Question | None:
        """Return the current question, or None once `job_file` can be written."""
        known = self.found or Found((), "self")
        left = (topic for topic in Topic if topic not in self.choices.decided)
        asked = (_question(topic, self.around, self.choices, known) for topic in left)
        return next((question for question in asked if question is not None), None)

    def take(self, text: str) -> None:
        """Accept an answer to the current question.

        Raises:
            JobError: the answer is invalid, or the job would not work with it. In that case, nothing changes.
        """
        question = self.question()
        assert question is not None, "there is nothing to answer"
        choices = answered(self.choices, question, text)
        self._require_possible(choices)
        found = self.found if question.topic is Topic.FILE else self._read(choices)
        self.choices, self.found = choices, found

    def _require_possible(self, choices: Choices) -> None:
        """Refuse choices whose job file could not be written."""
        job_file(choices)
        if choices.file in self.around.files:
            raise JobError(f"{choices.file}: already exists; give another name with --out")

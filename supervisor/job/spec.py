"""Defines JobSpec: a job, fully resolved and frozen before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from supervisor.job.batch import BatchChange, BatchSpec

NAMED: Final = "named"
"""The value of `Knobs.resumes` for a flag that the user named."""
NAMED_UNSEEN: Final = "named without a value"
"""The value of `Knobs.resumes` for a flag that the user named without a value. Whether the flag takes a value is unknown."""
BY_ITSELF, NEVER = "itself", "never"
IN_CODE = "code"
"""Answers other than a setting's name: the script resumes by itself, it never resumes, or its code sets the value."""
RESTARTS = "restarts"
"""The answer for a script whose step count restarts at 0 on each launch instead of continuing from the checkpoint."""


class EntryKind(StrEnum):
    """How the training program is specified."""

    SCRIPT = "script"  # a .py file, run under torchrun
    MODULE = "module"  # -m package.module, run under torchrun
    COMMAND = "command"  # -- CMD...: supervised as one process tree, without a torchrun of ours
    TRAINER = "trainer"  # the bundled trainer, by the absolute path of its __main__.py


class KnobScope(StrEnum):
    """What a batch setting counts."""

    PER_RANK = "per_rank"
    PER_NODE = "per_node"
    GLOBAL = "global"
    UNKNOWN = "unknown"


class AccumulationCounts(StrEnum):
    """What an accumulation setting counts."""

    PER_RANK = "per_rank"
    ALL_RANKS = "all_ranks"  # the script divides it by the number of ranks (nanoGPT)


class Unread(StrEnum):
    """Something about the script that could not be read and that the user can supply."""

    SCOPE = "scope"  # what the batch setting counts
    MICRO = "micro"  # which setting sets the micro-batch
    ACCUMULATION = "accumulation"  # which setting sets the accumulation
    COUNTER = "counter"  # asked by earlier versions: whether steps are counted from 0 at each start
    EXIT_CODE = "exit_code"  # not about the batch: whether exit code 0 is a success whatever the logs show
    RESUME = "resume"  # not about the batch: how the script resumes


OF_BATCH: Final = frozenset({Unread.SCOPE, Unread.MICRO, Unread.ACCUMULATION})


@dataclass(frozen=True, slots=True)
class FoundNumber:
    """A batch number found in a setting (``micro``, ``accumulation`` or ``total``), and where it was read."""

    what: str
    value: int | None
    where: str


@dataclass(frozen=True, slots=True)
class Knobs:
    """The script's settings for batch, accumulation and resuming, in the script's own spelling.

    A name is a whole flag (``--batch_size``) or a bare key (``train.batch_size``), set as ``key=value``. None means that it
    is unknown, so it is never changed automatically. `global_batch` is a flag from which the script derives its
    accumulation, so a smaller micro-batch needs no accumulation flag. `resume_value` is the resume flag's value (``auto``
    for the bundled trainer), empty for a switch. `resume_path` is a flag for the path of a checkpoint, if one was found;
    `resume` takes precedence. `declared` settings were named by the user or belong to the bundled trainer.

    `paired` means batch and accumulation are two factors of the global batch, whatever the batch counts: one is halved when
    the other is doubled. `same` lists settings with the same number, as (name, ``micro`` or ``accumulation``), that change
    together; a number in place of the word is set as is, because the setting would change otherwise. `refusal` says why the
    batch cannot change at the same global batch, and `help` what would allow it. `found` has the numbers and where each was
    read. `self_resuming` means the script finds its newest checkpoint, though any `resume_path` takes precedence; `resumes`
    tells the user how that was determined. `resume_step` is a flag for the number in the checkpoint's name. `cannot_resume`
    means there is no way to resume. `unsafe` says why a smaller micro-batch would change the training, whatever is
    measured.
    """

    batch: str | None = None
    batch_scope: KnobScope = KnobScope.UNKNOWN
    accumulation: str | None = None
    global_batch: str | None = None
    resume: str | None = None
    resume_value: str = "auto"
    declared: bool = False
    resume_path: str | None = None
    paired: bool = False
    counts: AccumulationCounts = AccumulationCounts.PER_RANK
    same: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    help: str = ""
    found: tuple[FoundNumber, ...] = field(default=(), compare=False)  # only what was read, not what runs
    self_resuming: bool = False
    resumes: str = ""
    resume_step: str | None = None
    cannot_resume: bool = False
    unsafe: str = field(default="", compare=False)

    def number(self, what: str) -> FoundNumber | None:
        """Return one of the numbers in `found`, or None if it is not there."""
        return next((n for n in self.found if n.what == what), None)

    @property
    def start(self) -> str | None:
        """The flag that takes the path of a checkpoint."""
        return self.resume or self.resume_path

    @property
    def starts(self) -> frozenset[str]:
        """The flags with which the user can choose the checkpoint to start from."""
        return frozenset(() if self.start is None else (self.start,))

    @property
    def resume_is_set(self) -> bool:
        """Whether the resume flag works before a checkpoint is known, because the user named or set it or the trainer is bundled."""
        return self.resume is not None and (
            self.resume_is_named or self.resumes in {"", "command line", "config"}
        )

    @property
    def resume_is_named(self) -> bool:
        """Whether the user named the resume flag."""
        return self.resumes in {NAMED, NAMED_UNSEEN}

    @property
    def keeps_global_batch(self) -> bool:
        """Whether a smaller micro-batch can keep the global batch, either through a flag or because the script does so."""
        if self.batch_scope is KnobScope.GLOBAL and not self.paired:
            return self.accumulation is not None
        return self.batch is not None and (self.accumulation is not None or self.global_batch is not None)

    @property
    def can_change_batch(self) -> bool:
        """Whether the micro-batch may be changed automatically because the names and the scope are known."""
        if self.refusal:
            return False
        if self.paired:
            return self.keeps_global_batch
        return self.batch_scope is not KnobScope.UNKNOWN and self.keeps_global_batch


_DECLARED_BY: Final[dict[str, str]] = {
    Unread.SCOPE: "--batch-scope",
    Unread.MICRO: "--batch-knob",
    Unread.ACCUMULATION: "--accumulation-knob",
    Unread.EXIT_CODE: "--trust-exit-code",
    Unread.RESUME: "--resume-knob",
    BY_ITSELF: "--self-resuming",
    NEVER: "--restart-from-scratch",
}


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """A possible answer to a `BatchQuestion`.

    Attributes:
        value: a scope, the name of a setting, or `IN_CODE`.
        change: what would change after running out of memory. Without accumulation, the global batch shrinks.
        refusal: why nothing could change even with this answer, or the next question.
        number: the setting's value.
    """

    value: str
    change: BatchChange | None = None
    refusal: str = ""
    number: int | None = None


@dataclass(frozen=True, slots=True)
class BatchQuestion:
    """A question that measurements leave open or that only the user can answer, with the result of each answer.

    Attributes:
        what: what the question is about.
        knob: the setting in question, or empty if the question is which of several settings applies.
        number: that setting's value, or the value that one of several settings must have: samples per rank and
            step, or passes per step.
        answers: all possible answers.
        script: hash of the script, or empty if the script could not be read, in which case no answer is saved.
        ranks, passes: properties of the measured batch, where known.
    """

    what: Unread
    knob: str
    number: int | None
    answers: tuple[BatchAnswer, ...]
    script: str = ""
    ranks: int | None = None
    passes: int | None = None

    @property
    def key(self) -> str:
        """A string that identifies this question for one script."""
        if self.what is Unread.RESUME:
            return self.what.value  # independent of the candidate answers
        return f"{self.what.value} {self.knob} {'|'.join(answer.value for answer in self.answers)}"

    def flag(self, value: str) -> str:
        """Return the command-line words that would answer the question permanently."""
        declared = _DECLARED_BY.get(value, _DECLARED_BY[self.what])
        return declared + ("" if self.what is Unread.EXIT_CODE or value in _DECLARED_BY else f" {value}")


@dataclass(frozen=True, slots=True)
class AnswerGiven:
    """The user's answer from an earlier run and the day it was given."""

    question: BatchQuestion
    value: str
    day: str


@dataclass(frozen=True, slots=True)
class LoaderKnobs:
    """A script's setting for DataLoader workers, as (name, current value), or None if unknown."""

    workers: tuple[str, int] | None = None


def signature_key(signature: str) -> str:
    """Return the key for a user's signature in the overrides, which are also keyed by failure class."""
    return f"signature:{signature}"


@dataclass(frozen=True, slots=True)
class ClassOverride:
    """A user's ``[policy.<class>]`` table. None keeps the built-in rule's value.

    For a ``[[signature]]`` with an action, `failure` is the `signature_key` of its id.

    `change` is a policy answer that changes the job (shrink, fewer_workers, ...), or ``none``. `show_first` lists
    the conditions for the next launch, and `wait_s` is how long to wait for them.
    """

    failure: str
    answer: str | None = None  # restart | hold | stop
    max_times: int | None = None
    delay_s: float | None = None
    change: str | None = None
    show_first: tuple[str, ...] | None = None
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class OwnSignature:
    """A user's ``[[signature]]`` table, which describes a failure in that user's logs.

    `failure` is a failure class; `title` is the user's name for a failure outside all classes. `role` is cause, consequence
    or advice (which masks the line). `start` says whether it is expected before or after the first step, if not empty.
    """

    id: str
    regex: str
    failure: str
    title: str = ""
    role: str = "cause"
    start: str = ""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """The user's limits on automatic restarts (``[policy]``). `setting_keys` describes each field."""

    enabled: bool = True
    max_retries: int = 3
    min_micro_batch: int = 1
    restart_from_scratch: bool = False
    overrides: tuple[ClassOverride, ...] = ()
    flap_max: int = 10
    flap_window_s: float = 600.0
    allow_smaller_global: bool = False
    step_counter: str = ""
    exit_zero: str = "check"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the keeper waits, in seconds (``[policy]``). `death_grace_s` is for the peers of a rank that died."""

    grace_s: float = 30.0
    death_grace_s: float = 5.0
    hold_s: float = 86_400.0
    node_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class HangSettings:
    """When a lack of progress counts as a stall, and when the attempt is stopped (``[hang]``). See `setting_keys`.

    A stall is flagged after max(`flag_s`, `flag_factor` x pace), where pace is the 99th percentile of this phase's
    earlier intervals in this run. The attempt is stopped after at least max(`act_s`, `act_factor` x pace, `return_factor`
    x the longest silence the run recovered from), if all rules in `policy.health.ending` agree. Without a pace, neither
    happens. If the user gave `act_s` (`act_given`) and `end_hangs` is set, `act_s` without progress is enough.
    """

    enabled: bool = True
    flag_s: float = 2.0
    flag_factor: float = 3.0
    act_s: float = 300.0
    act_factor: float = 10.0
    faulthandler: bool = False
    return_factor: float = 3.0
    busy_act_s: float = 1800.0
    busy_ratio: float = 0.5
    rounds_apart_s: float = 60.0
    countdown_s: float = 30.0
    end_hangs: bool = False
    act_given: bool = False
    start_timeout_s: float = 0.0

    @property
    def ends_by_progress(self) -> bool:
        """Whether `act_s` seconds without progress are enough to stop an attempt that has completed a step."""
        return self.end_hangs and self.act_given and self.act_s > 0


LEAST_FIT_STEPS: Final = 3
"""The minimum number of steps that reveals a probe's memory use. Optimizer state first exists during the second step."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """``--fit-batch``: find the largest micro-batch that fits, with probe launches before the first attempt.

    A probe fits once it completes `steps` steps or succeeds. If it is stopped after `timeout_s` seconds, it still
    fits if it completed `LEAST_FIT_STEPS`. Optimizer state exists after the first step, but caches, buckets and a
    compiled graph's last shapes appear only some steps later. Three steps gave too many false fits.
    """

    steps: int = 10
    timeout_s: float = 300.0


BEYOND_STEPS: Final = 10
"""A trial is stopped once its script runs for this many times its step limit, because it is clearly ignoring the limit."""


@dataclass(frozen=True, slots=True)
class TrialKnob:
    """A setting changed by a trial: its name, its new value, and its old value (None for the script's default)."""

    name: str
    value: str
    before: str | None = None


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """``--trial``: one rank, a few steps, no restart.

    If a setting stops the script after `steps` (`ends_itself`), the trial finishes on its own. Otherwise, it is
    stopped after `steps`. Either way, it is stopped after at most `timeout_s` seconds. `args` are the script's
    own arguments and `flags` are torchrun's, both for the real run's command. `knobs` are the changed arguments.
    """

    steps: int = 20
    timeout_s: float = 1800.0
    ends_itself: bool = False
    knobs: tuple[TrialKnob, ...] = ()
    args: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def is_over(self, first: int | None, last: int | None, age_s: float) -> bool:
        """Check whether to stop the trial now, given its first and latest step and the seconds since launch."""
        most = self.steps * BEYOND_STEPS if self.ends_itself else self.steps
        return steps_seen(first, last) >= most or age_s > self.timeout_s


def steps_seen(first: int | None, last: int | None) -> int:
    """Count the steps from the first to the latest, inclusive."""
    return 0 if first is None or last is None else max(last - first + 1, 0)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job, with everything needed to plan its launches.

    `entry` is a path, a module name or (for COMMAND) the program. `entry_args` are the words after it, unchanged.
    `torchrun_flags` are launcher flags that stoker does not own, already in the form ``--flag=value``. `master_port`
    is set only if the user chose it; otherwise, stoker may change the port. `metric_rules` are the user's own (name,
    regex) pairs for metrics in logs. `set_knobs` are (knob, value) pairs that every launch sets in addition to
    `entry_args`: knobs in config files and in the environment. `world_size` is the number of ranks in the whole job,
    or None if unknown, for example because a launcher after ``--`` hides it. `outputs` lists where a third-party
    script may write checkpoints, in the script's spelling. `output_prefixes` are the ones given in its arguments (in a
    run.json from earlier versions, some are in only one of the two). `group_timeout_s` is the timeout of the bundled
    trainer's process groups, if longer than PyTorch's default. `answered` is an answer from an earlier run that is
    used here. `instrument` means that the job's processes are measured from inside. The bundled trainer sends its own
    reports. `expected_memory_bytes` is the most GPU memory per rank that the configuration expects, or None if the
    configuration has no figure or was changed. `env` has the user's own environment changes (from config or --env).
    `origins` has a row for every source (flag, env, file, default) of every setting. A setting's last row is in effect
    and overrides the rows before it. `given` has the command-line flags that set nothing in the job, as words.
    """

    name: str
    entry_kind: EntryKind
    entry: str
    entry_args: tuple[str, ...] = ()
    nproc_per_node: int = 1
    nnodes: str = "1"
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    torchrun_flags: tuple[str, ...] = ()
    python: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = "."
    batch: BatchSpec | None = None
    knobs: Knobs = field(default_factory=Knobs)
    retry: RetrySettings = field(default_factory=RetrySettings)
    timing: Timing = field(default_factory=Timing)
    loader: LoaderKnobs = field(default_factory=LoaderKnobs)
    set_knobs: tuple[tuple[str, str], ...] = ()
    fit: FitSettings | None = None
    trial: TrialSettings | None = None
    hang: HangSettings = field(default_factory=HangSettings)
    instrument: bool = True
    expected_memory_bytes: int | None = None
    libuv: bool = True
    torch_local_path: str | None = None
    cuda_home: str | None = None
    debug_distributed: bool = False
    deterministic: bool = False
    total_steps: int | None = None
    log_level: str = "info"
    config_path: str | None = None
    metric_rules: tuple[tuple[str, str], ...] = ()
    signatures: tuple[OwnSignature, ...] = ()
    notes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    output_prefixes: tuple[str, ...] = ()
    group_timeout_s: float | None = None
    world_size: int | None = None
    answered: AnswerGiven | None = None
    origins: tuple[tuple[str, str, str], ...] = ()  # (setting, value, origin)
    given: tuple[str, ...] = ()

    @property
    def several_nodes(self) -> bool:
        """Whether more than one machine takes part or might take part."""
        return self.nnodes not in {"1", "1:1"}

    @property
    def least_nodes(self) -> int:
        """The number of nodes, or the minimum if it is given as MIN:MAX."""
        return int(self.nnodes.partition(":")[0])

    @property
    def most_nodes(self) -> int:
        """The number of nodes, or the maximum if it is given as MIN:MAX."""
        return int(self.nnodes.rpartition(":")[2])

    @property
    def has_own_code(self) -> bool:
        """Whether the exit code is the program's own. A shell, srun or pdsh may exit with 0 even if its program failed."""
        direct = re.fullmatch(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate)", self.entry) is not None
        return direct or self.entry_kind is not EntryKind.COMMAND

    def sources(self, setting: str) -> list[tuple[str, str]]:
        """Return each source of a setting as (value, origin). The last one is in effect and overrides the others."""
        return [(value, origin) for name, value, origin in self.origins if name == setting]

    @property
    def effective(self) -> tuple[tuple[str, str, str], ...]:
        """Each setting once, with its effective value and origin."""
        return tuple({row[0]: row for row in self.origins}.values())

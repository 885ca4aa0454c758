"""JobSpec: what to run, resolved and frozen, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from supervisor.job.batch import BatchSpec


class EntryKind(StrEnum):
    """How the training program is named."""

    SCRIPT = "script"  # a .py file, run under torchrun
    MODULE = "module"  # -m package.module, run under torchrun
    COMMAND = "command"  # -- CMD...: supervised as one process tree, no torchrun of ours
    TRAINER = "trainer"  # the bundled trainer, by the absolute path of its __main__.py


class KnobScope(StrEnum):
    """What a batch knob counts."""

    PER_RANK = "per_rank"
    PER_NODE = "per_node"
    GLOBAL = "global"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Knobs:
    """The names under which the script takes batch, accumulation and resume, as it would spell the flags.

    A name is the whole flag (``--batch_size``). None: not known, so never changed by itself.
    `resume_value` is what the resume flag is set to (``auto`` for the bundled trainer).
    """

    batch: str | None = None
    batch_scope: KnobScope = KnobScope.UNKNOWN
    accumulation: str | None = None
    resume: str | None = None
    resume_value: str = "auto"
    declared: bool = False


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """The user's bounds on automatic restarts."""

    enabled: bool = True
    max_retries: int = 3
    min_micro_batch: int = 1
    restart_from_scratch: bool = False


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job: everything that is needed to plan its launches.

    `entry` is a path, a module name or (COMMAND) the program; `entry_args` what follows it, untouched.
    `torchrun_flags` are launcher flags that stoker does not own, already spelt ``--flag=value``.
    `master_port` is set only when a person named one; stoker may move a port nobody named.
    `env` is the user's own environment delta (from config or --env). `origins` maps a
    setting's name to where it came from (flag, env, file, default), for --show-config.
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
    total_steps: int | None = None
    config_path: str | None = None
    notes: tuple[str, ...] = ()
    origins: tuple[tuple[str, str, str], ...] = ()  # (setting, value, origin)


class JobError(Exception):
    """A job that cannot be run as asked: one line for the user, exit code 2 (usage) or 3 (refused)."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code

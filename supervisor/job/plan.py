"""LaunchPlan: one launch as data, printable as a command a person could paste."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.job.batch import BatchSpec


@dataclass(frozen=True, slots=True)
class EnvChange:
    """One change to the environment of the launch and why. `value` None removes the name."""

    name: str
    value: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What one attempt executes: argv, environment changes with reasons, folder, batch numbers.

    `wire_env` (STOKER_RUN_DIR, ...) is part of `env`. `supervised_as` is "torchrun" when ranks live
    under torchrun's --log-dir tree, "command" when the child's own stdout/stderr are the only logs.
    `notes` say what of the user's command line was replaced, and why.
    """

    attempt: int
    argv: tuple[str, ...]
    cwd: str
    env: tuple[EnvChange, ...]
    supervised_as: str
    torchrun_log_dir: str | None
    batch: BatchSpec | None
    world_size: int
    local_world_size: int
    resume: str | None = None
    notes: tuple[str, ...] = ()

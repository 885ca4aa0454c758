"""Flags that take the step of the checkpoint to continue from: ``--resume_step 3000``, ``--milestone 12``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from supervisor.job.arguments.assignments import Setting
from supervisor.job.knobs.batch_settings.candidates import plain_last
from supervisor.job.knobs.batch_settings.names import words_of
from supervisor.job.knobs.resuming.checkpoint_flags import is_open
from supervisor.job.knobs.resuming.loaded_state import LoadedState
from supervisor.job.knobs.source.read_source import ScriptSource, leaves

_COUNTERS: Final = frozenset({"step", "steps", "epoch", "epochs", "iter", "iters"})
# Words of a number that may name a checkpoint, and of one that says how many or how often.
_NAMING: Final = frozenset(
    {"step", "epoch", "iter", "iteration", "milestone", "batch", "checkpoint", "ckpt", "resume", "load", "restore", "continue", "start", "last"}
)  # fmt: skip
_COUNTING: Final = frozenset({"num", "max", "total", "n", "every", "interval", "freq", "save", "size", "warmup"})  # fmt: skip


def step_flag(
    source: ScriptSource, settings: Sequence[Setting], loaded: LoadedState
) -> tuple[str | None, str]:
    """A flag that takes the step of the checkpoint to continue from; else why one of such a name is not used, for people."""
    given = {plain_last(s.name) for s in settings}
    unset = {f.dest for f in source.flags if is_open(f)} - given
    why = ""
    for flag in source.flags:
        name = max(flag.names, key=len)
        words = set(words_of(name))
        counted = not flag.is_switch and bool(words & _COUNTERS)
        says_so = counted and "resume" in words
        is_number = (flag.type == "int" or counted) and bool(words & _NAMING) and not words & _COUNTING
        if flag.is_switch or not (says_so or (is_number and _names_checkpoint(flag.dest, loaded))):
            continue
        if lost := loaded.unset_partner(flag.dest, unset):
            why = f"the path for {name} also needs {lost}, which has no value"
        else:
            return name, ""
    return None, why


def _names_checkpoint(dest: str, loaded: LoadedState) -> bool:
    """Whether a number alone names the checkpoint that the optimizer's state is loaded from."""
    paths = loaded.numbered_paths(dest)
    return any(all(leaves(test) <= names for test, _ in guards) for guards, names in paths)

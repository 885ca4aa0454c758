"""Whose checkpoint it is, where several runs train at the same time: the one's whose own output setting names its place.

The path and the time of a checkpoint do not say who wrote it. A run owns what lies in the folder that its own command line or config names, or
whose file name begins as that says; what lies where two runs that trained when it was written may both write, is nobody's. A training that
stoker does not run is in no list: what lies outside the folders that a run's own arguments name may be its, so it is not taken unasked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.knobs.resume_settings import ENDINGS, USUAL_OUTPUTS
from supervisor.job.knobs.setting_names import words_of
from supervisor.job.spec import JobSpec
from supervisor.run.access.lock import keeper_is_alive
from supervisor.run.index import known_runs
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.state import AttemptState

LOOK_BACK = 50
"""So many of the newest runs may have trained at the same time."""
SETTLE_S = 1.0
"""File systems stamp in steps of up to a second, and an attempt's own start is ours."""
_NO_OUTPUT = frozenset(
    {
        "data", "dataset", "datasets", "datadir", "input", "inputs", "cache", "model", "tokenizer", "load", "resume", "init", "from", "pretrained",
        "train", "val", "test", "eval", "image", "images", "root", "cwd", "chdir", "tmp", "temp",
        "log", "logs", "logging", "logger", "tb", "tensorboard", "wandb", "mlflow", "profile", "profiler", "trace", "plot", "plots", "samples",
        "result", "results", "metrics", "report",
    }
)  # fmt: skip
"""Words in the names of arguments whose folder is read, or written to, and holds other things than checkpoints."""


class Named(IntEnum):
    """How a run's settings name a path, the stronger the higher."""

    NOT = 0
    BEGINS = 1  # its file name begins so
    BELOW = 2  # it lies in that folder, or is that file


class Claim(NamedTuple):
    """How a path is named, and by how long a setting: of two beginnings of a file name the longer one is its own."""

    named: Named = Named.NOT
    length: int = 0


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a run writes. `folders`: that its settings name; `others`: what else they name; `cwd`: where it may write if they name no folder.

    `given`: those of them that stand in the arguments themselves; `perhaps`: what other arguments name, an output if the run writes there.
    """

    folders: tuple[Path, ...]
    others: tuple[Path, ...]
    cwd: Path
    given: tuple[Path, ...] = ()
    perhaps: tuple[Path, ...] = ()

    @classmethod
    def of(cls, job: JobSpec) -> Outputs:
        """Those of a job."""
        named = [name for name in job.outputs if name not in USUAL_OUTPUTS]
        settings = settings_of(job.entry_args)
        perhaps = [s.value for s in settings if s.value and _may_be_output(s.name)]
        return cls(
            tuple(absolute(job, name) for name in named),
            tuple(absolute(job, name) for name in job.output_prefixes),
            Path(job.cwd),
            tuple(absolute(job, name) for name in (*named, *job.output_prefixes) if name in perhaps),
            tuple(absolute(job, name) for name in perhaps),
        )

    @property
    def named(self) -> tuple[Path, ...]:
        """All that the settings name."""
        return (*self.folders, *self.others)

    def claim(self, path: str) -> Claim:
        """How the settings name this path."""
        return max((_claim(path, setting) for setting in self.named), default=Claim())

    def used(self, since_t: float) -> tuple[Path, ...]:
        """The folders that settings or arguments name and that were written to since a time (wall seconds)."""
        return tuple(folder for folder in (*self.others, *self.perhaps) if _is_used(folder, since_t))

    def outside(self, path: str, since_t: float) -> Path | None:
        """The output of a run that began at `since_t`, where its arguments name one and a path neither lies there nor bears its name."""
        if self.folders or self.claim(path).named is not Named.NOT:
            return None
        places = dict.fromkeys((*self.given, *self.used(since_t)))
        below = os.path.relpath(path, self.cwd).split("/")
        if any(
            is_below(path, (place,)) or any(_bears(part, place.name) for part in below) for place in places
        ):
            return None
        return next(iter(places), None)

    def may_hold(self, path: str, since_t: float = math.inf) -> bool:
        """Whether a run that began at `since_t` may have written there without a setting that names it."""
        return (
            not self.folders
            and is_below(path, (self.cwd,))
            and not any(_is_used(f, since_t) for f in self.perhaps)
        )


@dataclass(frozen=True, slots=True)
class ConcurrentRun:
    """A run that trained at the same time. `spans`: when each of its attempts began and ended, wall seconds."""

    name: str
    outputs: Outputs
    spans: tuple[tuple[float, float], ...] = ((-math.inf, math.inf),)

    def trained_at(self, t: float) -> bool:
        """Whether it may have written a file of that time."""
        return any(began - SETTLE_S <= t <= ended + SETTLE_S for began, ended in self.spans)

    def may_hold(self, path: str) -> bool:
        """Whether it may have written there without a setting that names it: not if it writes to a folder that its arguments name."""
        began_t = min((began for began, _ in self.spans), default=math.inf)
        return self.outputs.may_hold(path, began_t - SETTLE_S)


class Other(NamedTuple):
    """Another run that keeps a checkpoint from being this run's. `is_its_own`: its settings name the place, and this run's do not as closely."""

    name: str
    is_its_own: bool


def owner_besides(path: str, t: float, mine: Outputs, others: Iterable[ConcurrentRun]) -> Other | None:
    """The run that wrote a checkpoint of that time, or may have; None: this run's own."""
    claim, unclear = mine.claim(path), None
    for other in others:
        if not other.trained_at(t):
            continue
        theirs = other.outputs.claim(path)
        both_below = claim.named is theirs.named is Named.BELOW
        if theirs > claim and not both_below:
            return Other(other.name, True)
        if theirs == claim or both_below:
            is_open = theirs.named is Named.NOT and not other.may_hold(path)
            unclear = unclear if is_open else Other(other.name, False)
    return unclear


def concurrent_runs(run: RunPaths, since_t: float, env: Mapping[str, str]) -> list[ConcurrentRun]:
    """The runs of this machine with an attempt that had not ended at `since_t` (wall seconds)."""
    found = []
    for other in known_runs(run.root.parent, env)[:LOOK_BACK]:
        node = other.node()
        try:
            if other.root.samefile(run.root):
                continue
            if not keeper_is_alive(node.lock) and node.journal.stat().st_mtime < since_t:
                continue
            job = read_run_file(other.run_json).job
        except (OSError, BadRunFile):
            continue  # deleted meanwhile, or one that only watches
        spans = tuple(map(_span, read_state(node.journal).attempts))
        if any(ended >= since_t for _, ended in spans):
            found.append(ConcurrentRun(other.run_id, Outputs.of(job), spans))
    return found


def _span(attempt: AttemptState) -> tuple[float, float]:
    return attempt.planned_t, attempt.ended_t if attempt.ended_t is not None else math.inf


def absolute(job: JobSpec, name: str) -> Path:
    """A path as the job's script would open it."""
    return Path(job.cwd, os.path.expanduser(name))


def is_below(path: str, folders: Sequence[Path]) -> bool:
    """Whether a path is one of the folders or lies in one, whatever links lead there."""
    real = os.path.realpath(path)
    return any(os.path.commonpath((real, folder)) == folder for folder in map(os.path.realpath, folders))


def _may_be_output(name: str) -> bool:
    return _NO_OUTPUT.isdisjoint(word for part in name.split(".") for word in words_of(part))


def _is_used(folder: Path, since_t: float) -> bool:
    """Whether it is a folder in which something was created since a time."""
    try:
        return folder.is_dir() and folder.stat().st_mtime >= since_t
    except OSError:
        return False


def _bears(part: str, name: str) -> bool:
    """Whether a name in a path is this one, or begins with it: a script may put its output's name below a folder of its own."""
    return bool(name) and part.startswith(name) and not part[len(name) :][:1].isalnum()


def _claim(path: str, setting: Path) -> Claim:
    real, named = os.path.realpath(path), os.path.realpath(setting)
    if os.path.commonpath((real, named)) == named:
        return Claim(Named.BELOW, len(named))
    # A setting that names the file itself: names with a step begin as it does.
    stem = next((named.removesuffix(end) for end in ENDINGS if named.lower().endswith(end)), named)
    rest = real.removeprefix(stem)
    if rest in {real, ""} or "/" in rest or not os.path.basename(stem):
        return Claim()
    # run1 does not begin run12_5.pt, nor run the file runner.pt.
    cuts_a_word = stem[-1].isalnum() and (rest[0].isalpha() or (rest[0].isdigit() and stem[-1].isdigit()))
    return Claim() if cuts_a_word else Claim(Named.BEGINS, len(stem))

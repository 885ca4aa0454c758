"""Decides where and how the next attempt continues, by checking the journal and the disk at each launch.

The transformers Trainer, from 4.36 to 5.1, takes a resumed run's micro-batch from the checkpoint's
`trainer_state.json`, regardless of its arguments (issue 43708). After a change from 8 x 2 to 4 x 4 it continues as
8 x 4, doubling the global batch. With these versions, a run with a different micro-batch resumes from a modified
copy of the checkpoint: hard links to everything but that file, in a folder that the Trainer's own rotation does not
see.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from supervisor.job.batch import BatchSpec
from supervisor.job.errors import NotResumableError
from supervisor.job.knobs.resume_settings import given_start, takes_path
from supervisor.job.launch.plan import CheckpointCopy
from supervisor.job.spec import JobSpec, Knobs
from supervisor.keeper.base.background import within
from supervisor.keeper.monitoring.found_checkpoints import ranks_of, shown_path
from supervisor.policy.history import is_resume_known
from supervisor.preflight.interpreter import installed_version, interpreter_of
from supervisor.run.events import CheckpointCommitted
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.next_job import NextJob
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.regular import read_regular
from supervisor.run.runfile import RunFile
from supervisor.run.state import RunState
from supervisor.sources.checkpoint_layouts import TRANSFORMERS, whole_at

log = logging.getLogger("stoker.keeper")

LOOK_S = 10.0
"""Seconds to wait for a file server. A checkpoint that does not show up in time is not used."""
TRAINER_STATE: Final = "trainer_state.json"
# Hidden, and unlike transformers' `checkpoint-*`, so that no program mistakes the copy for a checkpoint.
COPY_NAME: Final = ".stoker-resume-"
# From 4.36.0 transformers takes over the micro-batch (PR 27568), from 5.2.0 only for auto_find_batch_size (PRs 43718, 43770).
OVERRIDES_BATCH_FROM, OVERRIDES_BATCH_UNTIL = (4, 36), (5, 2)


class ResumePoint(NamedTuple):
    """How the next launch continues.

    Attributes:
        settings: the settings that make the script continue.
        switch: whether the resume flag is set, in the form that `build_plan` expects.
        copy: a modified copy of the checkpoint, made before the launch.
        checkpoint: the checkpoint to continue from, if any.
    """

    settings: Mapping[str, str] = {}
    switch: bool | None = None
    copy: CheckpointCopy | None = None
    checkpoint: CheckpointCommitted | None = None


def usable_checkpoint(job: JobSpec, checkpoints: Sequence[CheckpointCommitted]) -> CheckpointCommitted | None:
    """Return the latest checkpoint that still exists. A trainer's report is trusted; a found checkpoint is checked again.

    The failure may have left the checkpoint half overwritten, or a rotation may have removed it.
    """
    ranks, newest = ranks_of(job), reversed(checkpoints)

    def is_there() -> CheckpointCommitted | None:
        return next((one for one in newest if not one.found or whole_at(one.path, ranks=ranks)), None)

    if not checkpoints or not checkpoints[-1].found:
        return checkpoints[-1] if checkpoints else None
    return within(LOOK_S, is_there, "stoker-checkpoint")


def start_checkpoint(job: JobSpec, arguments: tuple[str, ...]) -> CheckpointCommitted | None:
    """Return the checkpoint that the command line itself resumes from, if it is complete and has a known layout."""
    given = given_start(arguments, job.knobs.starts)
    if given is None:
        return None
    path = os.path.join(job.cwd, os.path.expanduser(given.partition("=" if "=" in given else " ")[2]))
    found = within(LOOK_S, lambda: whole_at(path), "stoker-checkpoint")
    if found is None:
        return None
    return CheckpointCommitted(
        t=found.t,
        attempt=1,
        step=found.step or 0,
        path=found.path,
        found=True,
        layout=found.layout,
        number=found.number,
        step_by_time=found.step is None,
    )


def why_not_now(job: JobSpec) -> str:
    """Return why the resume flag that the user named cannot be set yet, or "" if it can."""
    knobs, value = job.knobs, job.knobs.resume_value
    is_path = "/" in value or os.path.splitext(value)[1].lower() in {".pt", ".pth", ".ckpt", ".tar", ".bin"}
    if knobs.resume is None or not knobs.resume_is_named or not is_path:
        return ""
    if os.path.exists(os.path.join(job.cwd, os.path.expanduser(value))):
        return ""
    return f"{knobs.resume}={value}: there is no {value} yet"


def resume_point(
    record: RunFile, state: RunState, run: RunPaths, now: NextJob, env: Mapping[str, str]
) -> ResumePoint:
    """Return where the attempt after those in `state` continues.

    Args:
        record: the job.
        state: the run so far.
        run: the run's folder.
        now: the job for the next attempt.
        env: the environment that the user provided.

    Raises:
        NotResumableError: the script would continue with a different batch, which stoker cannot prevent.
    """
    job = state.answered_job(record.job)
    record, knobs = structs.replace(record, job=job), job.knobs
    if not state.attempts:
        return ResumePoint()
    arguments, batch = now.job.entry_args, now.current_batch
    # An earlier version of stoker chose a checkpoint after that attempt, so older checkpoints do not count.
    changes = ((a.number, a.decision.change) for a in state.attempts if a.decision is not None)
    since = max((at for at, change in changes if change and knobs.start in dict(change.set_args)), default=0)
    newest = usable_checkpoint(job, [one for one in state.sound_checkpoints if one.attempt > since])
    if since and knobs.start is not None and not now.from_scratch:
        path = newest.path if newest is not None else now.set_args.get(knobs.start, "")
        return ResumePoint({knobs.start: path}, checkpoint=newest)
    if now.from_scratch:
        return ResumePoint(switch=False)
    # A start that a person typed after the newest checkpoint was made takes precedence.
    typed = now.start_typed_after
    by_hand = newest is not None and typed is not None and newest.attempt <= typed
    begins_at = newest if newest is not None and not by_hand else start_checkpoint(job, arguments)
    if begins_at is not None and batch is not None and can_go_on(knobs, begins_at):
        folder = str(run.node().attempt(len(state.attempts) + 1).root)
        copied = _plan_copy(record, state, folder, begins_at, batch, env)
        if copied is not None:
            flag, copy = copied
            return ResumePoint({flag: copy.target}, switch=False, copy=copy, checkpoint=begins_at)
    if newest is None:
        return ResumePoint(switch=_without_checkpoint(state, job, arguments, begins_at))
    if by_hand:
        return ResumePoint(switch=False)
    return _at_checkpoint(state, knobs, newest)


def _without_checkpoint(
    state: RunState, job: JobSpec, arguments: tuple[str, ...], begins_at: CheckpointCommitted | None
) -> bool | None:
    """Decide whether to set the resume flag when there is no usable checkpoint. Return None to leave the flag to the caller.

    Raises:
        NotResumableError: the script would start over and lose its steps, which the user did not ask for.
    """
    knobs, has_stepped = job.knobs, any(view.stepped for view in state.attempts)
    if begins_at is None and has_stepped and not can_go_on(knobs, None):
        if bad := _passed_over(state, None):
            where = shown_path(job, bad[-1].path)
            raise NotResumableError(f"cannot resume from {where}: the script would begin at step 0")
        if state.sound_checkpoints and state.attempts[-1].decided_by == "policy":
            raise NotResumableError("its newest checkpoint is incomplete: the script would begin at step 0")
    if knobs.resume is None:
        return None
    if not knobs.resume_is_set or any(word.split("=")[0] == knobs.resume for word in arguments):
        return False  # the command line takes precedence
    return False if knobs.resume_is_named and (why_not_now(job) or not has_stepped) else None


def _at_checkpoint(state: RunState, knobs: Knobs, newest: CheckpointCommitted) -> ResumePoint:
    """Return how to make the script continue from its latest usable checkpoint."""
    if knobs.self_resuming and knobs.resume_path is None:
        return ResumePoint(checkpoint=newest)
    if knobs.resume is not None and (_passed_over(state, newest) and _path_flag(knobs)):
        return ResumePoint({knobs.resume: newest.path}, switch=False, checkpoint=newest)
    if knobs.resume is not None:
        return ResumePoint(switch=True, checkpoint=newest)
    if knobs.resume_path is not None:
        return ResumePoint({knobs.resume_path: newest.path}, checkpoint=newest)
    number = number_of(newest)
    if knobs.resume_step is not None and number is not None:
        return ResumePoint({knobs.resume_step: str(number)}, checkpoint=newest)
    return ResumePoint()


def number_of(checkpoint: CheckpointCommitted | None) -> int | None:
    """Return the value for a flag that takes a checkpoint's step: the number in its name, or else the trainer's step."""
    if checkpoint is None or checkpoint.number is not None:
        return checkpoint.number if checkpoint is not None else None
    return None if checkpoint.step_by_time else checkpoint.step


def can_go_on(knobs: Knobs, newest: CheckpointCommitted | None) -> bool:
    """Check whether a restart would continue from a checkpoint."""
    return is_resume_known(knobs, newest.path if newest is not None else None, number_of(newest))


def _path_flag(knobs: Knobs) -> str | None:
    """Return the flag that accepts a checkpoint path, even if it usually takes a keyword for the latest checkpoint."""
    if knobs.resume_path is not None or knobs.resume is None:
        return knobs.resume_path
    return knobs.resume if knobs.resume_value and takes_path(knobs.resume) else None


def _passed_over(
    state: RunState, newest: CheckpointCommitted | None, *, on_disk: bool = True
) -> list[CheckpointCommitted]:
    """Return the unusable checkpoints that a script loading its latest one would pick instead of `newest`."""
    after = (newest.step, newest.t) if newest is not None else (-1, -math.inf)
    bad = {one.path: one for one in state.checkpoints if state.unsound(one)}.values()
    later = [one for one in bad if one.step > after[0] or one.t > after[1]]
    return [one for one in later if not on_disk or os.path.exists(one.path)]


def unsound_text(
    job: JobSpec, state: RunState, newest: CheckpointCommitted | None, *, on_disk: bool = True
) -> str:
    """Explain why a restart would load NaN or Inf and which files to move away, or return "" if an option selects the checkpoint."""
    knobs, losses = job.knobs, [a.lost_at for a in state.attempts if a.lost_at is not None]
    finds_own = (knobs.self_resuming or knobs.resume is not None) and _path_flag(knobs) is None
    bad = _passed_over(state, newest, on_disk=on_disk)
    if not finds_own or not losses or not bad:
        return ""
    names = ", ".join(shown_path(job, one.path) for one in bad)
    return f"the script loads its newest checkpoint, written after the loss became NaN or Inf at step {losses[-1]}: move {names} away, then restart"


# -- transformers versions that take the micro-batch from the checkpoint ----------------------------------


def batch_refusal(
    record: RunFile, state: RunState, batch: BatchSpec, arguments: tuple[str, ...], env: Mapping[str, str]
) -> str:
    """Return why the next attempt would resume with a batch other than `batch`, or "" if it can continue with `batch`."""
    if not state.attempts:
        return ""
    record = structs.replace(record, job=state.answered_job(record.job))
    newest = usable_checkpoint(record.job, state.sound_checkpoints) or start_checkpoint(record.job, arguments)
    if newest is None:
        return ""
    if not can_go_on(record.job.knobs, newest):
        return ""  # the attempt starts from scratch
    try:
        _plan_copy(record, state, record.path or record.job.cwd, newest, batch, env)
    except NotResumableError as error:
        return error.message
    return ""


def _takes_old_batch(version: str) -> bool:
    """Check whether this transformers version takes the micro-batch from the checkpoint rather than from its arguments."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is None or OVERRIDES_BATCH_FROM <= (int(found[1]), int(found[2])) < OVERRIDES_BATCH_UNTIL


@lru_cache(maxsize=4)
def _version(interpreter: str, env: tuple[tuple[str, str], ...]) -> str | None:
    return installed_version(interpreter, "transformers", dict(env))


def _plan_copy(
    record: RunFile,
    state: RunState,
    folder: str,
    newest: CheckpointCommitted,
    batch: BatchSpec,
    env: Mapping[str, str],
) -> tuple[str, CheckpointCopy] | None:
    """Return the flag and the modified copy needed to resume with `batch`, or None if no copy is needed."""
    held = _held_batch(newest)
    before = next((view.shown_batch for view in state.attempts if view.number == newest.attempt), None)
    if held is None or before is None or before.micro_batch_per_rank == batch.micro_batch_per_rank:
        return None
    interpreter = interpreter_of(record.job, record.interpreter, env)
    version = _version(interpreter, tuple(sorted({**env, **dict(record.job.env)}.items())))
    finds_own = any("auto_find_batch_size" in word for word in record.job.entry_args)
    if version is not None and not _takes_old_batch(version) and not finds_own:
        return None
    # Under DataParallel, in one process, the held number counts all of its GPUs.
    shared = held // before.micro_batch_per_rank if before.world_size == 1 else 1
    wanted = batch.micro_batch_per_rank * max(shared, 1)
    if wanted == held:
        return None
    named = f"transformers {version}" if version is not None else "transformers (its version is not known)"
    would = f"{named} takes the micro-batch from {TRAINER_STATE}, and would resume with {held}"
    knobs = record.job.knobs
    flag = _path_flag(knobs)
    if flag is None:
        raise NotResumableError(
            f"{would}: no flag hands it another checkpoint; transformers 5.2 or newer does not (pip install -U transformers)"
        )
    name = f"{COPY_NAME}{newest.step}-{wanted}"
    for parent in (folder, os.path.dirname(newest.path)):
        if _can_link(newest.path, parent):
            return flag, CheckpointCopy(
                newest.path, os.path.join(parent, name), "train_batch_size", held, wanted
            )
    raise NotResumableError(f"{would}: its checkpoint cannot be hard-linked on that file system")


def _held_batch(checkpoint: CheckpointCommitted) -> int | None:
    """Return the micro-batch stored in a Trainer checkpoint's state, or None for any other checkpoint."""
    if checkpoint.layout not in {TRANSFORMERS, ""}:
        return None
    try:
        parsed = json.loads(read_regular(Path(checkpoint.path, TRAINER_STATE)))
    except (OSError, *NOT_DECODED):
        return None
    held = parsed.get("train_batch_size") if isinstance(parsed, dict) else None
    return held if isinstance(held, int) and held > 0 else None


def _can_link(source: str, parent: str) -> bool:
    """Check whether `source` can be hard-linked into `parent` or its nearest existing ancestor, without writing anything."""
    place = Path(parent)
    while not place.is_dir() and place != place.parent:
        place = place.parent
    try:
        return os.stat(source).st_dev == os.stat(place).st_dev and os.access(place, os.W_OK | os.X_OK)
    except OSError:
        return False


def make_copy(copy: CheckpointCopy) -> None:
    """Make the modified copy out of hard links and a new state file.

    Raises:
        NotResumableError: the copy cannot be made; no part of it is left behind.
    """
    target = Path(copy.target)
    shutil.rmtree(target, ignore_errors=True)
    try:
        make_private(target.parent)
        shutil.copytree(copy.source, target, copy_function=_link)
        state = target / TRAINER_STATE
        parsed = json.loads(read_regular(state))
        parsed[copy.field] = copy.after
        part = target / f"{TRAINER_STATE}.part"
        part.write_text(json.dumps(parsed, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        part.replace(state)  # replaces the link, not the original file
    except (OSError, ValueError, shutil.Error) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise NotResumableError(
            f"{copy.source}: a changed copy to resume from cannot be made: {error}"
        ) from error


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=True)


def drop_copies(state: RunState, *, over: bool = False) -> None:
    """Remove copies that are no longer needed because a newer checkpoint was committed or the run is `over`."""
    for view in state.attempts:
        copy = view.resume_copy
        if copy is None or not os.path.basename(copy).startswith(COPY_NAME):
            continue
        newer = any(one.attempt >= view.number for one in state.sound_checkpoints)
        if (newer or over) and os.path.isdir(copy):
            shutil.rmtree(copy, ignore_errors=True)
            log.info("%s: removed, a newer checkpoint is there", copy)

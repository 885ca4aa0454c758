"""The currently available actions, where the next attempt would start, and what an action would cost. Pure."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, NamedTuple

from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import choose_smaller
from supervisor.policy.history import FIRST_STEP
from supervisor.run import state as st
from supervisor.run.events import CheckpointCommitted, Outcome, RequestKind
from supervisor.run.records import OUT_OF_MEMORY, SpecChange
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.wording.kinds import checkpoint_place

if TYPE_CHECKING:
    from supervisor.job.spec import JobSpec, Knobs

# Actions that send a request to a keeper, or start a keeper. Most are named after the request.
ACTING = frozenset(
    [
        *("restart", "smaller_batch", "edit", "accept", "start_now", "hold", "keep_waiting", "answer"),
        *("stop", "stop_now", "stacks", "note", "adopt"),
    ]
)

ANSWER_KEYS = ("6", "7", "8")
"""The keys for the answers to a question, in order. No pane uses these digits."""
FROM_FIRST_STEP = "from the first step, unless the script resumes by itself"


def possible(snapshot: Snapshot, *, read_only: bool = False, can_adopt: bool = False) -> frozenset[str]:
    """Return the actions that are available now. Observers accept only notes and stacks. Notes on finished runs need no keeper."""
    state = snapshot.state
    if state.is_over and not (read_only or snapshot.gone):
        return frozenset(["note"])
    if read_only or snapshot.gone or snapshot.misplaced or state.is_over or state.started_t is None:
        return frozenset()
    if not snapshot.keeper_alive:
        return frozenset(["adopt"]) if can_adopt and state.mode != "observed" else frozenset()
    condition = state.condition
    runs = isinstance(condition, (st.Launching, st.Running, st.Stopping))
    found = {"note"} | ({"stacks"} if runs and has_processes(state) else set())
    if state.mode == "observed":
        return frozenset(found)
    found |= {"stop_now"} if isinstance(condition, st.Stopping) else {"stop_now", "stop"}
    if isinstance(condition, (st.Running, st.Ended, st.Backoff, st.HeldOpen)):
        found |= {"restart"} | ({"edit"} if snapshot.run_file is not None else set())
        found |= {"smaller_batch"} if suggested_batch(snapshot) is not None else set()
    if isinstance(condition, st.Backoff):
        found |= {"start_now", "hold"}
    if offer(snapshot) is not None:
        found.add("accept")
    if state.open_question is not None:
        found.add("answer")
    is_counted = state.attempt is not None and state.attempt.countdown is not None
    is_held = isinstance(condition, st.HeldOpen) and condition.until is not None
    if is_held or (isinstance(condition, st.Running) and is_counted):
        found.add("keep_waiting")
    return frozenset(found)


def has_processes(state: st.RunState) -> bool:
    """Check whether the run has processes whose stacks can be read. A watched log has none."""
    return state.mode != "observed" or (state.attempt is not None and bool(state.attempt.pid))


def why_not(name: str, snapshot: Snapshot, *, read_only: bool, can_adopt: bool) -> str:
    """Explain in one line why the requested action is not available now and what is available instead."""
    state = snapshot.state
    if snapshot.gone:
        return "the run directory is gone: nobody is there to be asked"
    if snapshot.misplaced:
        return snapshot.misplaced
    if state.is_over:
        if command := continue_text(snapshot):
            return f"the run is over: `{command}` starts the next attempt"
        return "the run is over: i shows the command that starts it again"
    if read_only:
        return "this view only looks (--read-only): nothing is asked of the supervisor process"
    if state.mode == "observed":
        if name == "stacks" and not has_processes(state):
            return "only a log is watched: no process is known whose stacks could be read"
        return "stoker did not start this job: it only watches"
    if not snapshot.keeper_alive:
        by_hand = f"`stoker attach --adopt {state.run_id}` adopts the run"
        then = "A adopts the run if it can" if can_adopt else by_hand
        return f"the supervisor process is gone, nobody would do it: {then}, then ask again"
    if isinstance(state.condition, st.Stopping):
        return "it is stopping: ask again when it has ended"
    if isinstance(state.condition, (st.Preflight, st.Launching)):
        return "it is only starting: ask again when it runs"
    if isinstance(state.condition, (st.Ended, st.DiagnosedAs)):
        return "a decision is being made: ask again"
    if name == "answer":
        asked = state.open_question is not None
        return "that is no answer to what is asked" if asked else "there is no open question"
    if name == "edit":
        return "run.json cannot be read: what this run was started with is not known"
    return {"stacks": "nothing runs", "adopt": "a supervisor process is there already"}.get(
        name, "it is not possible now"
    )


# -- the batch -----------------------------------------------------------------------------------------------


def knobs_of(snapshot: Snapshot) -> Knobs | None:
    """Return the job's settings, updated with later answers and measurements, or None if run.json is unreadable."""
    record = snapshot.run_file
    return snapshot.state.answered_job(record.job).knobs if record is not None else None


def current_batch(snapshot: Snapshot) -> BatchSpec | None:
    """Return the latest attempt's batch, measured or planned, or None if unknown."""
    attempt = snapshot.state.attempt
    return attempt.shown_batch if attempt else None


def batch_flag(snapshot: Snapshot) -> str:
    """Return the script's batch flag and value if the flag covers more than one rank, or "" otherwise."""
    from supervisor.job.knobs.set_batch import divided_flag

    if snapshot.run_file is None:
        return ""
    job = snapshot.state.answered_job(snapshot.run_file.job)
    return divided_flag(job.knobs, current_batch(snapshot), local_world_size=job.nproc_per_node)


def batch_copy(snapshot: Snapshot) -> str:
    """Say that the new batch goes into a copy of the user's config, or return "" if no config sets a batch."""
    from supervisor.job.knobs.setting_names import Place, config_file, place_of

    if (knobs := knobs_of(snapshot)) is None:
        return ""
    names = [name for name in (knobs.batch, knobs.accumulation) if name and place_of(name) is Place.FILE]
    files = dict.fromkeys(config_file(name.partition("#")[0]) for name in names)
    return f"in a copy of {', '.join(files)}" if files else ""


def suggested_batch(snapshot: Snapshot) -> BatchSpec | None:
    """Return a smaller batch to suggest, or None if the batch is unknown or cannot be passed to the script.

    The policy's planned batch is preferred, then the next divisor that did not run out of memory, then the current batch.
    """
    attempt, now, knobs = snapshot.state.attempt, current_batch(snapshot), knobs_of(snapshot)
    if attempt is None or now is None or (knobs is not None and not knobs.can_change_batch):
        return None
    change = attempt.decision.change if attempt.decision is not None else None
    if change is not None and change.batch is not None:
        return change.batch.after
    smaller = choose_smaller(now, trials=snapshot.state.memory_trials)
    return smaller.batch if smaller is not None else now


def why_no_batch(snapshot: Snapshot) -> str:
    """Explain in one line why no other batch is available and what would make one available."""
    # This import is slow, and the first screen must not wait for it.
    from supervisor.job.knobs.set_batch import why_not_changeable, why_size_unknown
    from supervisor.job.spec import OF_BATCH, Knobs

    knobs, question = knobs_of(snapshot) or Knobs(), snapshot.state.open_question
    why = ": ".join(why_size_unknown(knobs)) if knobs.can_change_batch else why_not_changeable(knobs)
    if question is None or question.what not in OF_BATCH:
        return why
    keys = " or ".join(key for key, _ in zip(ANSWER_KEYS, question.answers, strict=False))
    return f"{keys} answers what is asked on the card: {why}"


# -- where the next attempt would start ------------------------------------------------------------------------


class NextStart(NamedTuple):
    """Where the next attempt would start.

    `given` is the checkpoint named in the arguments, as in ``--resume c2.pt``; `saved` is the latest checkpoint found.
    `resumes` says whether the script would find a checkpoint; it is true if run.json is unreadable (no `knobs`).
    `looks_again` is true if the search will be repeated after the live attempt and its result passed to a flag.
    """

    given: str | None
    saved: CheckpointCommitted | None
    resumes: bool
    knobs: Knobs | None
    looks_again: bool = False


def next_start(snapshot: Snapshot, typed: tuple[str, ...] | None = None) -> NextStart:
    """Return where the next attempt would start. `typed` holds its new arguments, or is None if they are unchanged.

    A checkpoint typed by the user is kept. A checkpoint in the job's own arguments may be replaced by a newer one.
    """
    record, state, saved = snapshot.run_file, snapshot.state, snapshot.state.resumable
    knobs = knobs_of(snapshot)
    if record is None or knobs is None:
        return NextStart(None, saved, resumes=True, knobs=None)
    # Imported only after a failure or before a restart.
    from supervisor.job.knobs.resume_settings import given_start
    from supervisor.policy.history import is_resume_known
    from supervisor.run.next_job import next_job

    number = (saved.number if saved.found else saved.step) if saved is not None else None
    resumes = is_resume_known(knobs, saved.path if saved is not None else None, number)
    given = None
    if state.mode != "observed":
        now = next_job(record.job, state)
        if typed is not None and state.attempt is not None:
            now = now.after(SpecChange(argv=typed), state.attempt.number)
        typed_after = now.start_typed_after
        is_typed = typed_after is not None and (saved is None or saved.attempt <= typed_after)
        if is_typed or saved is None or not resumes:
            given = given_start(now.job.entry_args, knobs.starts)
        if given is None and saved is not None and saved.path and not resumes:
            given = _handed_over(now.job.entry_args, record.job, saved.path)
    takes_one = (knobs.start or knobs.resume_step) is not None and not knobs.self_resuming
    is_open = given is None and (saved is None or saved.found)
    looks_again = isinstance(state.condition, st.Running) and takes_one and is_open
    return NextStart(given, saved, resumes, knobs, looks_again)


def _handed_over(args: tuple[str, ...], job: JobSpec, path: str) -> str | None:
    """Return the flag (whatever its name) and value that the user added to pass this checkpoint to the script, or None."""
    from supervisor.job.arguments.command_line import settings_of

    whole = os.path.normpath(os.path.join(job.cwd, path))
    for setting in settings_of(args):
        value = setting.value
        if value and value not in job.entry_args and os.path.normpath(os.path.join(job.cwd, value)) == whole:
            return f"{setting.name} {value}"
    return None


def resume_text(snapshot: Snapshot, start: NextStart) -> tuple[str, str]:
    """Describe in one line where the next attempt would start. Also return a detail to show if there is room."""
    saved, attempt = start.saved, snapshot.state.attempt
    if start.given:
        return f"with {start.given}, as given", ""
    if saved is None and start.knobs is not None and start.knobs.self_resuming:
        return "from the newest checkpoint that the script finds", ""
    if saved is None:
        return FROM_FIRST_STEP, "no checkpoint is known"
    at, path = checkpoint_place(saved), checkpoint_path(snapshot)
    if not start.resumes:
        return FROM_FIRST_STEP, f"no flag takes the checkpoint {at}, {path}"
    lost = (attempt.last_step or 0) - saved.step if attempt is not None else 0
    about = "about " if saved.step_by_time else ""
    again = f" ({about}{fm.whole(lost)} step{'s' if lost != 1 else ''} again)" if lost > 0 else ""
    return f"from the checkpoint {at}{again}", path


def checkpoint_path(snapshot: Snapshot) -> str:
    """Return the newest checkpoint's path, relative to the job's folder if it is inside, or "" if there is no checkpoint."""
    saved, record = snapshot.state.resumable, snapshot.run_file
    if saved is None:
        return ""
    return saved.path.removeprefix(f"{record.job.cwd.rstrip('/')}/") if record is not None else saved.path


def set_to_resume(start: NextStart) -> str:
    """Return what the launch would add to the arguments to make the script resume, or "" if nothing is needed."""
    knobs, saved = start.knobs, start.saved
    if knobs is None or saved is None or not start.resumes or start.given:
        return ""
    if knobs.resume is not None:
        return f"{knobs.resume}={knobs.resume_value}" if knobs.resume_value else knobs.resume
    if knobs.resume_path is not None:
        return f"{knobs.resume_path}={saved.path}"
    number = saved.number if saved.number is not None else saved.step
    return f"{knobs.resume_step}={number}" if knobs.resume_step is not None else ""


def checkpoint_words(start: NextStart) -> str:
    """Return what to type to pass a checkpoint that is not passed automatically, including its flag if known, or "" if none."""
    if start.knobs is None or start.saved is None or not start.saved.path or start.resumes:
        return ""
    path = shlex.quote(start.saved.path)
    return f"{start.knobs.start}={path}" if start.knobs.start else path


def overwrite_warning(snapshot: Snapshot) -> str:
    """Warn that a restart may start over at step 0 and lose progress.

    The warning is empty if the restart resumes or the run never got past its first step.
    """
    record = snapshot.run_file
    steps = max((attempt.last_step or 0 for attempt in snapshot.state.attempts), default=0)
    # A live run is ahead of its recorded state, which is up to a second old.
    nothing_lost = 0 if isinstance(snapshot.state.condition, st.Running) else FIRST_STEP
    if record is None or steps <= nothing_lost or record.job.retry.restart_from_scratch:
        return ""
    start = next_start(snapshot)
    if start.knobs is None or start.resumes:
        return ""
    from supervisor.job.knobs.resume_settings import USUAL_OUTPUTS

    out = next((name for name in record.job.outputs if name not in USUAL_OUTPUTS), "outputs")
    if start.given is None and not (start.knobs.starts or start.knobs.cannot_resume):
        return (
            "stoker cannot tell whether the script resumes by itself: if it does not, it restarts from step 0 "
            f"and may overwrite {out}"
        )
    begins = f"starts from {start.given}" if start.given is not None else "restarts from step 0"
    if start.looks_again:
        return f"{begins} unless a checkpoint is found when it has ended, may overwrite {out}"
    return f"{begins}, may overwrite {out}"


def offer(snapshot: Snapshot) -> SpecChange | None:
    """Return the change suggested for restarting a run that is held after a failure, or None if there is none."""
    condition = snapshot.state.condition
    if not isinstance(condition, st.HeldOpen) or condition.decision is None:
        return None
    change = condition.decision.change
    return change if change is not None and (change.batch or change.env or change.set_args) else None


def offer_warning(snapshot: Snapshot) -> str:
    """Return a one-line warning to show before the user accepts the change, or "" if there is no risk."""
    change = offer(snapshot)
    batch = change.batch if change is not None else None
    risk = ""
    if batch is not None and batch.changes_global:
        risk = f"global batch {batch.before.global_batch} → {batch.after.global_batch}"
    return ", ".join(filter(None, (risk, overwrite_warning(snapshot))))


# -- commands that start the job again -------------------------------------------------------------------------


def continue_text(snapshot: Snapshot) -> str:
    """Return the command for a finished run's next attempt with the policy's planned change, or "" if the run succeeded."""
    state = snapshot.state
    done = isinstance(state.condition, st.Finished) and state.condition.outcome is Outcome.SUCCEEDED
    if not state.is_over or done or state.mode == "observed" or snapshot.run_file is None:
        return ""
    return f"stoker continue {state.run_id}"


def again_text(snapshot: Snapshot) -> str:
    """Return the command that runs this job again, with the settings a restart needs, or "" if unknown."""
    if snapshot.run_file is None or snapshot.state.mode == "observed":
        return ""
    from supervisor.job.launch.plan import command_of  # only once a run has finished
    from supervisor.run.next_job import declared_again

    job = snapshot.run_file.job
    return declared_again(snapshot.state, job) or command_of(job) or ""


# -- costs -----------------------------------------------------------------------------------------------------


def cost(snapshot: Snapshot) -> str:
    """Summarize the progress since the newest checkpoint that stopping a live attempt would lose, or "" if none."""
    state, attempt, saved = snapshot.state, snapshot.state.attempt, snapshot.state.resumable
    if attempt is None or attempt.last_step is None or not isinstance(state.condition, st.Running):
        return ""
    steps = attempt.last_step - (saved.step if saved is not None else 0)
    since = ", no checkpoint is known"
    if saved is not None:
        since = f" since the checkpoint {checkpoint_place(saved)}"
    return f"{fm.whole(steps)} step{'s' if steps != 1 else ''}{since}" if steps > 0 else ""


def restart_effect(snapshot: Snapshot, typed: tuple[str, ...] | None = None) -> str:
    """Say in one line what a restart stops and where the next attempt starts. `typed` holds new arguments, if any."""
    state, attempt, start = snapshot.state, snapshot.state.attempt, next_start(snapshot, typed)
    where, _ = resume_text(snapshot, start)
    if attempt is not None and isinstance(state.condition, st.Running):
        if attempt.last_step is None:
            return f"this ends attempt {attempt.number} before its first step; the next begins {where}"
        at = fm.whole(attempt.last_step)
        if start.looks_again:
            return f"this ends attempt {attempt.number} at step {at}+; the next begins {where}, or from a newer checkpoint found then"
        return f"this ends attempt {attempt.number} at step {at}+; the next begins {where}"
    # Resuming a held run loses nothing more. A script that starts over may overwrite everything.
    steps = max((attempt.last_step or 0 for attempt in state.attempts), default=0)
    resumes = start.saved is not None and start.resumes
    is_typed = typed is not None and start.given != next_start(snapshot).given
    if steps and isinstance(state.condition, st.HeldOpen) and not resumes and not is_typed:
        return f"{steps} step{'s' if steps != 1 else ''} may be lost: the next attempt begins {where}"
    return f"the next attempt begins {where}"


def question(kind: RequestKind, snapshot: Snapshot) -> str | None:
    """Return the confirmation question for a stop or for a request that would lose something, or None if none is needed."""
    condition, lost = snapshot.state.condition, cost(snapshot)
    if kind is RequestKind.RESTART:
        effect = restart_effect(snapshot)
        loses = isinstance(condition, (st.Running, st.HeldOpen)) and not effect.startswith("the next")
        attempt = snapshot.state.attempt
        is_memory = attempt is not None and attempt.failure in OUT_OF_MEMORY
        again = "it ran out of memory with these settings"
        reasons = [again] if is_memory and not isinstance(condition, st.Running) else []
        reasons += [effect] if loses else []
        return f"restart? {'; '.join(reasons)}" if reasons else None
    if kind not in {RequestKind.STOP, RequestKind.STOP_NOW}:
        return None
    is_now = kind is RequestKind.STOP_NOW
    if lost:
        return f"stop at once? lost: {lost}" if is_now else f"stop? may be lost: {lost}"
    if isinstance(condition, (st.HeldOpen, st.Backoff)):
        return "end the run now? `stoker continue` can start its next attempt later"
    runs = isinstance(condition, (st.Launching, st.Running, st.Stopping))
    return "stop at once, without a checkpoint?" if is_now and runs else "stop the run?"

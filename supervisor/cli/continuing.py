"""Start the next attempt of a run with no live process because it failed, was stopped or lost, or its machine rebooted.

Print what the next attempt will run and, on a terminal, ask first. Like any restart, it resumes from a checkpoint.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from supervisor.cli.common import (
    ACTED_ON,
    acted_on,
    add_appearance_flags,
    add_runs_dir,
    appearance_from,
    complain,
    has_terminal,
    refuse,
    say,
    says_yes,
)
from supervisor.cli.start_run import Going, set_going, start_in_background, user_name
from supervisor.cluster.scheduler import scheduler_asked
from supervisor.job.errors import JobError
from supervisor.job.launch.oom_plan import resume_plan
from supervisor.job.launch.plan import LaunchPlan, plan_as_shell
from supervisor.keeper.monitoring.found_checkpoints import shown_path
from supervisor.keeper.planning.launch_plans import plan_continued
from supervisor.keeper.process.takeover import (
    WATCH_S,
    Continuation,
    NotAdopted,
    examine_continuation,
    other_host_with_keeper,
)
from supervisor.run import state as st
from supervisor.run.ownership import LockTaken, Offer
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import RunFile
from supervisor.run.state import Finished, RunState
from supervisor.text.decode import shell_word
from supervisor.text.redact import redact_argv, redact_text
from supervisor.views.wording.kinds import resume_place

VERB = "continue"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("run", metavar="RUN", help=ACTED_ON)
    parser.add_argument(
        "--yes",
        action="store_true",
        help="start without asking (required without a terminal)",
    )
    parser.add_argument(
        "--restart-from-scratch",
        action="store_true",
        help="with --yes: begin at step 0 if no resume is known; may overwrite checkpoints",
    )
    parser.add_argument(
        "--no-ui", action="store_true", help="print log lines and stay in the foreground as the run's keeper"
    )
    parser.add_argument("--json", action="store_true", help="with --no-ui: JSON lines on stdout")
    parser.add_argument("--detach", action="store_true", help="print the run's id and return at once")
    add_runs_dir(parser)
    add_appearance_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the verb. Exit 0 once the attempt has started (with --no-ui, the run's own code), or 3 if refused."""
    appearance = appearance_from(vars(args), os.environ)
    paths = RunPaths(Path(os.path.realpath(acted_on(VERB, args.run, args.runs_dir).root)))
    found = examine_continuation(paths)
    for warning in found.warnings:
        complain(VERB, warning)
    refusals = found.refusals
    if not refusals and not (args.yes or has_terminal()):
        refusals = ("without a terminal nobody can be asked whether to start it: say --yes",)
    refusals = refusals or tuple(_doubted(paths, found))
    if refusals or found.record is None:
        return refuse(VERB, f"{paths.run_id}: not continued", refusals)
    record, by, journal = found.record, user_name(), paths.node().journal
    try:
        state = _settled(paths, record, found.state)
        if isinstance(state.condition, Finished) and state.condition.exit_code == 0:
            say(f"{paths.run_id}: {state.condition.reason}: it had succeeded, nothing is started")
            return 0
        plan, why = plan_continued(record, state, paths, os.environ, by)
        if args.yes and (lost := _written_over(record, state, plan)) and not args.restart_from_scratch:
            return complain(VERB, f"{paths.run_id}: not continued: {lost}")
        size = journal.stat().st_size
        say(*_described(paths, state, plan, why), *plan_as_shell(plan).splitlines(), file=sys.stderr)
        if not args.yes and not says_yes("Start it?"):
            return refuse(VERB, paths.run_id, ["not continued"])
        if journal.stat().st_size != size:
            return refuse(VERB, f"{paths.run_id}: not continued", ["it changed while you were asked"])
        interactive = not args.no_ui and (args.detach or has_terminal())
        record = replace(record, settings=replace(record.settings, interactive=interactive))
        has_screen = interactive and not args.detach
        how = Going(VERB, has_screen, args.json, read_only=False, appearance=appearance)
        return set_going(paths, record, os.environ, how, continued_by=by)
    except (LockTaken, OSError) as error:
        return complain(VERB, f"{paths.run_id}: {error}", 1 if isinstance(error, LockTaken) else 2)
    except JobError as error:
        return complain(VERB, f"{paths.run_id}: {error.message}", error.exit_code)


def _doubted(paths: RunPaths, found: Continuation) -> list[str]:
    """Return reasons to suspect that a process is still alive, after listening for heartbeats and asking SLURM and the user."""
    if found.listen_to:
        host = found.listen_to
        say(f"{paths.run_id}: it ran on {host}: listening for {WATCH_S:.0f} s", file=sys.stderr)
        if name := other_host_with_keeper(paths):
            return [f"{name} is being written: a keeper lives, on {host} or elsewhere"]
    if found.slurm_job and (text := scheduler_asked(found.slurm_job)):
        return [f"SLURM says of its job {found.slurm_job}: {text}"]
    for doubt in found.doubts:
        if not has_terminal():
            return [f"only a person can answer, on a terminal: {doubt}"]
        if not says_yes(doubt):
            return ["it may live"]
    return []


def _written_over(record: RunFile, state: RunState, plan: LaunchPlan) -> str:
    """Return why the next attempt may overwrite the run's saves, or "" if how the script resumes is known."""
    job, saved = state.answered_job(record.job), state.checkpoint
    is_known = job.retry.restart_from_scratch or resume_plan(job.knobs).how != "unknown"
    if saved is None or is_known or plan.resume or plan.resume_at is not None:
        return ""
    if any(kept.copy and kept.step == saved.step for kept in state.kept):
        return ""
    where = f"{shown_path(job, saved.path)} (step {saved.step})"
    return f"how the script resumes is not known, and it may write over {where}: --restart-from-scratch allows it"


def _settled(paths: RunPaths, record: RunFile, state: RunState) -> RunState:
    """Determine how and why the latest attempt ended and return the run's state. No process is started or signaled."""
    open_ended = st.Launching | st.Running | st.Stopping | st.Ended | st.DiagnosedAs
    if not isinstance(state.condition, open_ended):
        return state
    from supervisor.keeper.__main__ import make_keeper

    keeper = make_keeper(paths, record, env=os.environ)
    try:
        keeper.learn_end()
        return keeper.state
    finally:
        keeper.close("it is settled how the attempt ended")


def _described(paths: RunPaths, state: RunState, plan: LaunchPlan, why: str) -> Iterator[str]:
    """Yield lines that say how the run ended, what changes in the next attempt and where it begins."""
    view = state.attempt
    if view is None:
        return
    verdict = view.verdict
    title = verdict.title if verdict is not None else "nobody knows how it ended"
    cause = (
        f": {redact_text(verdict.cause.text)[:200]}"
        if verdict is not None and verdict.cause is not None and not verdict.title_says_cause
        else ""
    )
    yield f"{paths.run_id}: attempt {view.number}: {title}{cause}"
    saved = f"its checkpoint {resume_place(state, plan.resume_at)}" if plan.resume_at is not None else ""
    if plan.resume:
        named = plan.resume if "/" in plan.resume else "its newest checkpoint"
        begins = f"resumes from {saved or named}"
    else:
        begins = (
            f"resumes by itself from {saved}"
            if saved
            else "restarts from step 0, unless the script resumes by itself"
        )
    if why:
        yield f"attempt {plan.attempt} is changed: {why}"
    yield f"attempt {plan.attempt} {begins}:"


def start_next(paths: RunPaths, env: Mapping[str, str]) -> None:
    """Start the next attempt, unless there is a reason not to, and return once it begins.

    Raises:
        NotAdopted: the attempt is refused.
        KeeperDidNotStart, OSError: see `start_detached`.
    """
    offer, record = next_attempt(paths, env)
    if record is None:
        raise NotAdopted(offer.refusals)
    record = replace(record, settings=replace(record.settings, interactive=True))
    start_in_background(paths, record, env, continued_by=user_name())


def next_attempt(paths: RunPaths, env: Mapping[str, str]) -> tuple[Offer, RunFile | None]:
    """Preview a finished run's next attempt for the TUI. Also returns its job, or None if the attempt is refused.

    Nothing is started or written. The attempt is refused if the user must be asked first; the verb asks on a terminal.
    """
    found = examine_continuation(paths)
    refusals = found.refusals
    if not refusals and (found.doubts or not isinstance(found.state.condition, Finished)):
        refusals = (f"something has to be asked first: `stoker {VERB} {paths.run_id}` does",)
    if refusals or found.record is None:
        return Offer(refusals, found.warnings), None
    try:
        plan, why = plan_continued(found.record, found.state, paths, env, user_name())
    except JobError as error:
        return Offer((error.message,), found.warnings), None
    lines = [line.strip().rstrip(":") for line in _described(paths, found.state, plan, why)]
    command = " ".join(map(shell_word, redact_argv(plan.argv)))
    return Offer((), found.warnings, (*lines, f"it runs: {command}")), found.record

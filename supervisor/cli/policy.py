"""Show what the restart policy would do in a recorded run: `stoker policy explain RUN`. Nothing is started.

Print one line per attempt: how it ended and what the policy decides. If the given settings lead to a decision other
than the recorded one, print both. The rest of the record is taken as is.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from supervisor.cli.common import add_recorded_run, complain, named_run, say
from supervisor.cli.job_inputs import policy_of
from supervisor.keeper.planning.decisions import policy_input
from supervisor.policy import ASKED_FOR, budget_text, decide
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind
from supervisor.run.runfile import BadRunFile, RunFile, read_run_file
from supervisor.run.state import AttemptState
from supervisor.views.format import date_and_time
from supervisor.views.wording.kinds import changed_text, end_of_request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("what", nargs="?", choices=["explain"], help="explain each decision")
    add_recorded_run(parser)
    parser.add_argument("--config", metavar="FILE", help="use the [policy] of this file")
    parser.add_argument("--interactive", action="store_true", help="as on a terminal: hold instead of fail")


def run(args: argparse.Namespace) -> int:
    """Print one line per decision. Exit 0, or 2 if there is nothing to explain."""
    if args.what is None:
        return complain("policy", "say what to do: stoker policy explain [RUN]")
    found = named_run(args.run, args.runs_dir)
    try:
        record = read_run_file(found.run_json)
        retry = policy_of(args.config, os.environ, Path.cwd()) if args.config else record.job.retry
        job = replace(record.job, retry=retry)
    except BadRunFile as error:
        return complain("policy", error)
    settings = msgspec.structs.replace(
        record.settings, interactive=args.interactive or record.settings.interactive
    )
    lines = explained(found, msgspec.structs.replace(record, job=job, settings=settings), os.environ)
    if not lines:
        return complain("policy", f"{found.run_id}: no attempt has ended yet, so nothing was decided")
    say(*lines)
    return 0


def explained(run_: RunPaths, record: RunFile, env: Mapping[str, str]) -> list[str]:
    """Return the policy's decision after each completed attempt, along with the action taken if it differs."""
    node = run_.node()
    state = read_state(node.journal)
    lines = []
    for count, view in enumerate(state.attempts, start=1):
        measured = _measured(view)
        if view.ended_t is None or view.verdict is None:
            lines += [f"attempt {view.number}: nothing is decided yet", *measured] if measured else []
            continue
        # use the knowledge of that time, because the question is about this attempt's own decision
        asked = msgspec.structs.replace(view, decision=None, decided_by="")
        saved = tuple(c for c in state.checkpoints if c.attempt <= view.number)
        past = msgspec.structs.replace(
            state,
            attempts=(*state.attempts[: count - 1], asked),
            checkpoints=saved,
            checkpoint=saved[-1] if saved else None,
        )
        known = policy_input(record, past, env=env, on_disk=False)
        decision = decide(known)
        reason = f"/{view.verdict.reason.value}" if view.verdict.reason else ""
        ended = end_of_request(view) or f"{view.verdict.failure.value}{reason}"
        at = f" at step {view.last_step}" if view.last_step is not None else ""
        ends = decision.exit_code is not None and decision.kind is not DecisionKind.HOLD
        code = f", exit code {decision.exit_code}" if ends else ""
        done = view.decision
        what = f"{decision.kind.value}{code}: {decision.reason}"
        if view.ended_on_request and done is not None and done.kind is decision.kind:
            # policy only executes the request, so report who requested it
            what = _asked(done, view.decided_by) or f"{decision.kind.value}{code}: {done.reason}"
        lines.append(f"attempt {view.number}: {ended}{at} → {what}")
        lines.append(f"           ended {date_and_time(view.ended_t)}")
        by_person = done is not None and done.kind is DecisionKind.RESTART and view.decided_by != "policy"
        budget = ASKED_FOR if by_person else budget_text(known, decision)
        # A person's change is not policy's decision.
        shown = by_person and view.ended_on_request
        if done is not None and not shown and (done.kind, done.change) != (decision.kind, decision.change):
            request = _asked(done, view.decided_by) if by_person else ""
            was = f"was ({view.decided_by or 'policy'}): {done.kind.value}: {done.reason}"
            lines.append(f"           {f'was: {request}' if request else was}")
        if budget is not None:
            lines.append(f"           {budget}")
        lines += measured
    return lines


def _measured(view: AttemptState) -> list[str]:
    """Describe an attempt's measured batch, how certain each value is, and whether a plan was confirmed."""
    from supervisor.views.headless.console import event_lines

    events = (view.measured, view.confirmed, view.differs)
    lines = [line for event in events if event is not None for _, line in event_lines(event)]
    if view.measured is not None:
        lines.append("; ".join(f"{name}: {how}" for name, how in view.measured.how.items()).replace("_", " "))
        if view.measured.refusal:
            lines.append(f"a smaller batch: {view.measured.refusal}")
    elif view.batch is not None and view.number > 1 and view.memory_base_bytes is None:
        # The bundled trainer reports its batch and runs with the batch that it is given.
        lines.append("planned, not confirmed: nothing was measured")
    return [f"           {line}" for line in lines]


def _asked(decision: Decision, by: str) -> str:
    """Return who requested a restart and what it changes, as worded on the timeline, or "" if nothing changes."""
    changed = changed_text(decision.change) if decision.change is not None else ""
    return f"{by} asked: restart with {changed}" if changed else ""

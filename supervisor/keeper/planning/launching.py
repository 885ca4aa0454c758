"""Starts an attempt after a decision: the plan, its files, the intent, the spawn."""

from __future__ import annotations

import logging
from typing import Protocol

from supervisor.job.launch.plan import LaunchPlan
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.planning import launch_plans as plans
from supervisor.keeper.process.child import (
    Child,
    SpawnError,
    adopt,
    alive_of,
    end_all,
    raise_open_files_limit,
    spawn,
    started,
)
from supervisor.keeper.process.members import label_of
from supervisor.run import events as ev
from supervisor.run.next_job import next_job
from supervisor.run.paths import AttemptPaths

log = logging.getLogger("stoker.keeper")


class StillAlive(Exception):  # noqa: N818 - a state of affairs, not an error
    """Processes of an earlier attempt are alive, so nothing is launched beside them. One line."""


class Planner(Protocol):
    """Plans for several nodes; a run on one node has none."""

    def plan(self, number: int, paths: AttemptPaths) -> LaunchPlan:
        """The plan of attempt `number` on this node. Raises JobError."""
        ...

    def announce(self, number: int, reason: str) -> None:
        """Tell the other nodes about the launch: it is in the journal and about to start."""
        ...


class Launching:
    """Starts one attempt after another; journals each intent before the act.

    Attributes:
        took_over: the newest attempt was launched by an earlier keeper, whose journal lacks it.
    """

    def __init__(self, context: RunContext, planner: Planner | None = None) -> None:
        self._run, self._node, self._record = context.run, context.node, context.record
        self._env, self._clock, self._ledger = context.env, context.clock, context.ledger
        self._mark, self._planner, self.took_over = context.mark, planner, False

    def launch(self, reason: str) -> Child | None:
        """Plan the next attempt and start it; None if it did not start, which is then diagnosed.

        Raises:
            JobError: the decision cannot be applied to this job.
            StillAlive: another attempt is still alive.
        """
        number = len(self._ledger.state.attempts) + 1
        paths = self._node.attempt(number)
        # A pid file here is from a keeper that died with the disk full: its journal missed this launch.
        missed = adopt(paths, self._mark)
        if number > 1 and missed is None:
            self._require_none_alive(number - 1)
        if self._planner is not None:
            plan = self._planner.plan(number, paths)
        else:
            plan = plans.plan_next(self._record, self._ledger.state, self._run, paths, self._env)
        return self._start(number, plan, reason, missed)

    def launch_planned(self, number: int, plan: LaunchPlan, reason: str) -> Child | None:
        """Start an attempt that another node planned. See `launch`.

        Raises:
            JobError, StillAlive: see `launch`.
        """
        missed = adopt(self._node.attempt(number), self._mark)
        if missed is None:
            last = self._ledger.state.attempt
            self._require_none_alive(last.number if last is not None else number)
        return self._start(number, plan, reason, missed)

    def _start(self, number: int, plan: LaunchPlan, reason: str, missed: Child | None) -> Child | None:
        paths = self._node.attempt(number)
        if plan.copy is not None:
            from supervisor.keeper.planning.resume_points import make_copy  # not before a first launch

            make_copy(plan.copy)
        try:
            plans.write_plan(paths, plan)
        except OSError as error:
            log.error("%s: %s: the plan was not written", paths.plan, error.strerror)
        self._intend(number, plan, reason)
        if self._planner is not None:
            self._planner.announce(number, reason)
        if next_job(self._record.job, self._ledger.state).raise_open_files:
            raise_open_files_limit()
        self.took_over = missed is not None
        child = missed or self._spawn(number, plan, paths)
        if child is not None:
            self._ledger.emit(started(child, number, self._clock.wall()))
        return child

    def _require_none_alive(self, last: int) -> None:
        left = alive_of(self._mark, self._node.attempt(last))
        if left:
            names = ", ".join(map(label_of, left))
            raise StillAlive(
                f"processes of this run are still alive and could not be ended: {names}: end them, then restart"
            )

    def _intend(self, number: int, plan: LaunchPlan, reason: str) -> None:
        self._ledger.emit(
            ev.LaunchIntended(
                t=self._clock.wall(),
                attempt=number,
                argv=plans.journal_argv(plan),
                reason=reason,
                batch=plan.batch,
                resume=plan.resume,
                script_hash=plans.script_hash(self._record.job),
                resume_at=plan.resume_at,
                resume_copy=plan.copy.target if plan.copy is not None else None,
            ),
            durable=True,
        )
        if plans.script_was_edited(self._ledger.state):
            # Code edited between attempts is an unplanned change, so report it.
            text = "the script was edited since the last attempt"
            self._ledger.emit(
                ev.Advisory(t=self._clock.wall(), attempt=number, code="script_edited", text=text)
            )

    def _spawn(self, number: int, plan: LaunchPlan, paths: AttemptPaths) -> Child | None:
        try:
            return spawn(plan, paths, self._env)
        except SpawnError as error:
            log.error("attempt %d: %s", number, error)
            end_all(self._mark, paths)
            self._ledger.emit(ev.AttemptEnded(t=self._clock.wall(), attempt=number, exit_code=127))
            verdict = plans.spawn_verdict(str(error), disk_full=error.disk_full, killed=error.killed)
            self._ledger.emit(ev.Diagnosed(t=self._clock.wall(), attempt=number, verdict=verdict))
            return None

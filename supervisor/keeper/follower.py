"""The keeper of every node except node 0. It starts and stops attempts on the leader's orders and reports the results, but decides nothing.

While the leader's keeper shows no sign of life, running processes continue, but nothing new starts. If the leader's
entire node is gone, this keeper stops after a time limit (`_leader_is_gone`).
"""

from __future__ import annotations

import dataclasses
import logging
import socket
from typing import Final

import msgspec

from supervisor.job.errors import JobError
from supervisor.keeper.base.background import Background
from supervisor.keeper.loop import Group, Keeper
from supervisor.keeper.planning.attempt_evidence import CUT_OFF
from supervisor.keeper.planning.launch_plans import StillAlive
from supervisor.keeper.planning.readiness import RendezvousWatch, rendezvous_of
from supervisor.policy import EXIT_FAILED, EXIT_LOST, EXIT_STOPPED
from supervisor.run import events as ev
from supervisor.run import heartbeat
from supervisor.run import node_files as nd
from supervisor.run import state as st
from supervisor.run.heartbeat import Heartbeat, Pulse
from supervisor.run.node_files import (
    LEADER,
    NodePhase,
    Order,
    Report,
    Want,
    new_session,
    read_order,
    write_report,
)
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import RunFile

log = logging.getLogger("stoker.keeper")

LOOK_S: Final = 0.2
PROBE_EVERY_S, PROBE_S = 10.0, 3.0
"""How often to probe the leader's node while its keeper is silent, and how long each probe may take, in seconds."""
STOPPED_ALONE_S: Final = 30.0
"""Seconds a stopped node waits for the leader to end the run."""
BY: Final = f"node {LEADER}"
SILENT: Final = "leader_silent"


class Following(Group):
    """The role of every node except node 0 in a multi-node run. The leader does the planning."""

    leads = False

    def __init__(self, run: RunPaths, record: RunFile) -> None:
        self._record, self._job, self._session = record, record.job, new_session()
        self._leader, self._leader_node = Pulse(run.node(LEADER).heartbeat), run.node(LEADER)
        self._order: Order | None = None
        self._old_end: int | None = None
        """The number of the order that had already ended the run when this keeper started."""
        self._reported: Report | None = None
        self._look_due = float("-inf")
        self._end_since: tuple[int, float] | None = None
        self._told_to_stop: tuple[ev.StopWhy, str, float] | None = None
        self._probe: Background[bool] = Background("stoker-leader-probe")
        self._probe_due = float("-inf")
        self._answered_t: float | None = None
        self._routed = 0
        self._was_silent = False
        self._watched: set[int] = set()

    def join(self, keeper: Keeper) -> None:
        """Attach the keeper, which holds its lock and is about to start."""
        self._keeper, self._context, self._clock = keeper, keeper.context, keeper.context.clock
        self._node = self._context.node
        self._heartbeat = Heartbeat(self._node.heartbeat, self._session)
        self._rendezvous = RendezvousWatch(self._clock, keeper.emit)
        order = read_order(self._leader_node)
        self._patience_s = min(self._job.timing.node_timeout_s, nd.CONTINUED_WITHIN_S)
        if order is not None and order.want is Want.OVER:
            self._old_end = order.seq
            log.warning(
                "the run is over (%s): waiting up to %.0f s for %s to continue it",
                order.reason,
                self._patience_s,
                BY,
            )

    @property
    def _state(self) -> st.RunState:
        return self._keeper.state

    # -- called by the keeper ------------------------------------------------------------------------------

    def begin(self, continued_by: str) -> None:  # noqa: ARG002 - of any group
        """Wait if the run had ended on this node and node 0 is continuing it."""
        if isinstance(self._state.condition, st.Finished):
            view = self._state.attempt
            number = view.number if view is not None else 0
            self._keeper.emit(ev.Held(t=self._clock.wall(), attempt=number, reason=f"waits for {BY}"))

    def close(self, *, superseded: bool) -> None:  # noqa: ARG002 - of any group
        """Tell the leader that this keeper is exiting on purpose."""
        if isinstance(self._state.condition, st.Finished):
            self.publish()
        self._probe.close(PROBE_S)
        self._rendezvous.close()

    def may_launch(self, reason: str) -> str | None:
        """Refuse a launch that an earlier keeper never got to, because the leader will order a new one."""
        view = self._state.attempt
        log.warning("attempt %d is not started here: %s", view.number if view is not None else 0, reason)
        return None

    def step(self, *, hurried: bool) -> bool:  # noqa: ARG002 - of any group
        """Carry out the leader's orders. This keeper makes no decisions of its own."""
        now = self._clock.mono()
        self._heartbeat.beat(now)
        self._look(now)
        condition = self._state.condition
        match condition:
            case st.Launching() | st.Running() | st.Stopping():
                self._watched.add(condition.attempt)
                self._keeper.watch()
                self._obey(condition.attempt, now)
                self._rendezvous.look(self._state.attempt, rendezvous_of(self._job, self._order))
            case st.Ended() if self._keeper.reads_on:
                self._keeper.watch()
            case st.Finished():
                return True
            case _:
                self._wait_for_orders(now)
        return True

    def _look(self, now: float) -> None:
        if now < self._look_due:
            return
        self._look_due = now + LOOK_S
        self._leader.look(now)
        found = read_order(self._leader_node)
        if found is not None and (self._order is None or found.seq > self._order.seq):
            self._order = found
        silent, view = self._leader.silent_s(now) > heartbeat.SILENT_S, self._state.attempt
        if silent and not self._was_silent and view is not None:
            text = f"the keeper of node {LEADER} shows no sign of life for {heartbeat.SILENT_S:.0f} s: what runs here continues, nothing new is started"
            self._context.advise(view.number, f"{SILENT}_{view.number}", text)
        self._was_silent = silent

    # -- orders ---------------------------------------------------------------------------------------

    def _obey(self, number: int, now: float) -> None:
        """Stop the local attempt if the leader orders it or the leader's node is gone."""
        order, view = self._order, self._state.find(number)
        monitor = self._keeper.monitor
        if view is None or view.stop is not None or not monitor.is_stoppable:
            return
        grace_s = self._job.timing.death_grace_s
        is_same = order is not None and order.attempt == number
        if order is not None and (order.attempt > number or (is_same and order.want is not Want.RUN)):
            if is_same and order.why is not None and order.why in st.REQUESTED_STOPS:
                monitor.stop(order.why, order.by or BY, grace_s=self._job.timing.grace_s)
                return
            if self._end_since is None or self._end_since[0] != number:
                self._end_since = (number, now)
            # The ranks notice on their own that their peers are gone, and log it. Give them a moment.
            if now - self._end_since[1] > grace_s:
                monitor.stop(ev.StopWhy.RANK_DIED, BY, grace_s=grace_s)
        elif self._leader_is_gone(now):
            log.error(
                "node %d is gone: neither its keeper nor its port answers: what runs here is ended", LEADER
            )
            monitor.stop(ev.StopWhy.RANK_DIED, f"{BY} is gone", grace_s=grace_s)

    def _wait_for_orders(self, now: float) -> None:
        """While nothing is running on this node, adopt the leader's verdict and decision, start the next attempt, or exit."""
        order, view, told = self._order, self._state.attempt, self._told_to_stop
        number, t = view.number if view is not None else 0, self._clock.wall()
        if order is not None and view is not None and order.attempt == number:
            if order.verdict is not None and (view.verdict is None or view.verdict_provisional):
                self._keeper.emit(ev.Diagnosed(t=t, attempt=number, verdict=order.verdict))
            if order.decision is not None and view.decision != order.decision:
                decided = ev.Decided(t=t, attempt=number, decision=order.decision, by=BY)
                self._keeper.emit(decided, durable=True)
        silent_s, most_s = self._leader.silent_s(now), self._job.timing.node_timeout_s
        is_over = order is not None and order.want is Want.OVER
        # If the run ended before this keeper started, node 0 (alive or expected) may be about to continue it.
        waits = order is not None and order.seq == self._old_end and silent_s <= self._patience_s
        if order is not None and order.want is Want.RUN and order.attempt > number and told is None:
            self._start(order)
        elif order is not None and is_over and not waits:
            code = order.exit_code if order.exit_code is not None else EXIT_LOST
            self._keeper.end(order.outcome or ev.Outcome.LOST, code, order.reason)
        elif told is not None and now - told[2] > STOPPED_ALONE_S:
            self._keeper.end(ev.Outcome.STOPPED, EXIT_STOPPED, f"stopped by {told[1]}")
        elif silent_s > most_s:
            reason = f"node {LEADER} has shown no sign of life for {most_s:.0f} s: `stoker continue` on it takes the run up"
            self._keeper.end(ev.Outcome.LOST, EXIT_LOST, reason)

    def _start(self, order: Order) -> None:
        launch = order.launch
        if launch is None or self._record.node not in launch.nodes:
            return
        try:
            child = self._keeper.launching.launch_ordered(order.attempt, launch)
        except (JobError, StillAlive) as error:
            log.error("attempt %d: %s", order.attempt, error)
            self._keeper.end(ev.Outcome.FAILED, EXIT_FAILED, str(error))
            return
        self._keeper.follow(child)

    # -- the leader's node -----------------------------------------------------------------------------

    def _leader_is_gone(self, now: float) -> bool:
        """Check whether the leader's node has not responded for `node_timeout_s`. If only its keeper died, its port still answers."""
        if self._leader.silent_s(now) <= heartbeat.SILENT_S:
            self._answered_t = now
            return False
        where = rendezvous_of(self._job, self._order)
        if where is None:
            return self._leader.silent_s(now) > self._job.timing.node_timeout_s
        if self._answered_t is None:
            self._answered_t = now
        if self._probe.busy:
            if self._probe.poll():
                self._answered_t = now
        elif now >= self._probe_due:
            self._probe_due = now + PROBE_EVERY_S
            self._probe.start(lambda: connection_error(*where) is None)
        return now - self._answered_t > self._job.timing.node_timeout_s

    def _look_for_a_route(self, view: st.AttemptState) -> None:
        """If node 0's machine is unreachable after a local failure, journal that so the verdict can blame the node that was cut off."""
        asked = view.stop is not None and view.stop.why in st.REQUESTED_STOPS
        where = rendezvous_of(self._job, self._order)
        if view.number not in self._watched - {self._routed} or view.exit_code in {None, 0}:
            return
        self._routed = view.number
        error = connection_error(*where) if where is not None and not asked else None
        # A machine that refuses a connection is reachable.
        if where is not None and error is not None and not isinstance(error, ConnectionRefusedError):
            text = (
                f"node {LEADER} could not be reached at {where[0]} once attempt {view.number} had failed here"
            )
            self._context.advise(view.number, f"{CUT_OFF}_{view.number}", text)

    # -- reports -----------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Report this node's state to the leader if it has changed."""
        condition, view = self._state.condition, self._state.attempt
        lives = isinstance(condition, st.Launching | st.Running | st.Stopping) or self._keeper.reads_on
        phase = NodePhase.READY if view is None else NodePhase.ENDED
        if isinstance(condition, st.Finished):
            phase = NodePhase.LEFT
        elif lives:
            phase = NodePhase.RUNNING
        elif view is not None:
            self._look_for_a_route(view)
        ended = view if view is not None and not lives else None
        stop, by = None, ""
        if self._told_to_stop is not None:
            stop, by, _ = self._told_to_stop
        elif (
            # A request to this keeper, not to an earlier one, and not an order of the leader.
            ended is not None
            and ended.stop is not None
            and ended.number in self._watched
            and ended.stop.by != BY
            and ended.stop.why in {ev.StopWhy.SIGNAL, ev.StopWhy.REQUEUE}
        ):
            stop, by = ended.stop.why, ended.stop.by
        report = Report(
            node=self._record.node,
            session=self._session,
            host=socket.gethostname(),
            nnodes=self._job.most_nodes,
            phase=phase,
            seq=self._order.seq if self._order is not None else 0,
            attempt=view.number if view is not None else 0,
            exit_code=ended.exit_code if ended is not None else None,
            stop=stop,
            by=by,
        )
        if report == self._reported:
            return
        try:
            write_report(self._node, report)
        except OSError as error:
            log.error("%s: %s: it is written at the next look", self._node.report, error.strerror)
            return
        self._reported = report

    # -- signals ---------------------------------------------------------------------------------------

    def stop(self, why: ev.StopWhy, by: str, *, now: bool) -> bool:
        """Stop the local attempt on a signal; the leader ends the run. A second signal stops this keeper once nothing is running."""
        again = self._told_to_stop is not None
        self._told_to_stop = self._told_to_stop or (why, by, self._clock.mono())
        stopping = self._keeper.stop_attempt(why, by, now=now)
        if again and not stopping and not isinstance(self._state.condition, st.Finished):
            self._keeper.end(ev.Outcome.STOPPED, EXIT_STOPPED, f"stopped by {by}")
        return True


def quiet(record: RunFile) -> RunFile:
    """Return a follower's record, with hang detection off because node 0 counts rank 0's steps."""
    job = dataclasses.replace(record.job, hang=dataclasses.replace(record.job.hang, enabled=False))
    return msgspec.structs.replace(record, job=job)


def connection_error(host: str, port: int) -> OSError | None:
    """Return the error if connecting fails, or None if the port is open. The store tolerates connections that send nothing."""
    try:
        socket.create_connection((host, port), PROBE_S).close()
    except OSError as error:
        return error
    return None

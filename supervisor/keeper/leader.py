"""Node 0 of a multi-node run. Its keeper works like any other but waits for the other nodes before it launches or judges an attempt.

Its orders follow from its state (`publish`), so a keeper that takes over the run gives the same orders.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from supervisor.job.batch import BatchChange, describe_change
from supervisor.job.errors import JobError
from supervisor.keeper.loop import Group, Keeper
from supervisor.keeper.planning.launch_plans import batch_on
from supervisor.keeper.planning.readiness import RendezvousWatch, rendezvous_of
from supervisor.run import events as ev
from supervisor.run import heartbeat
from supervisor.run import state as st
from supervisor.run.heartbeat import Heartbeat, Pulse
from supervisor.run.next_job import next_job
from supervisor.run.node_files import (
    LEADER,
    Launch,
    NodePhase,
    Order,
    Orders,
    Report,
    Superseded,
    Want,
    new_session,
    read_report,
)
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.runfile import RunFile

log = logging.getLogger("stoker.keeper")

LOOK_S: Final = 0.25
LOOKS_PER_NODE_S: Final = 0.02
"""Seconds between checks, multiplied by the number of nodes. For 64 nodes with two files each, that is 100 reads per second."""
PEERS_S: Final = 60.0
"""Seconds the other nodes may take to finish once node 0 succeeds. torchrun's exit barrier makes its agents exit together."""
NOT_THERE: Final = 2
"""Exit code if the nodes never came together because the run was started incorrectly."""
IDLE: Final = frozenset({NodePhase.READY, NodePhase.ENDED})


@dataclass(slots=True)
class Member:
    """Another node, as seen by the leader."""

    node: int
    paths: NodePaths
    pulse: Pulse
    report: Report | None = None

    def lives(self, now: float) -> bool:
        """Check whether the node's keeper has reported, has not left, and still has a heartbeat."""
        return (
            self.report is not None
            and self.report.phase is not NodePhase.LEFT
            and self.pulse.lives(now, heartbeat.SILENT_S)
        )

    def is_idle(self, seq: int) -> bool:
        """Check whether nothing is running or about to start on the node. It must have read order `seq`, which starts nothing."""
        return self.report is not None and self.report.phase in IDLE and self.report.seq >= seq

    def has_ended(self, number: int) -> bool:
        """Check whether the node reports that its part of attempt `number` has ended."""
        report = self.report
        return (
            report is not None
            and report.phase in {NodePhase.ENDED, NodePhase.LEFT}
            and report.attempt == number
        )


class Leading(Group):
    """Node 0's role in a multi-node run."""

    def __init__(self, run: RunPaths, record: RunFile, *, continued_by: str = "") -> None:
        self._job = record.job
        self._members = {
            number: Member(number, run.node(number), Pulse(run.node(number).heartbeat))
            for number in range(1, record.job.most_nodes)
        }
        self.others = tuple(self._members)
        self.nodes = (LEADER, *self._members)
        # A continued run had ended already, so earlier stop requests to its nodes do not count.
        reports = (read_report(member.paths) for member in self._members.values() if continued_by)
        self._settled = {report.node: report for report in reports if report is not None}
        self._left_out: set[int] = set()
        self._why_not_fewer = ""
        self._begins_by = ""
        self._look_due = float("-inf")
        self._waits_since: float | None = None
        self._ended_since: tuple[int, float] | None = None
        self._failed_since: tuple[int, float] | None = None

    def join(self, keeper: Keeper) -> None:
        """Attach the keeper, which holds its lock and is about to start."""
        self._keeper, self._context, self._clock = keeper, keeper.context, keeper.context.clock
        session = new_session()
        self._heartbeat = Heartbeat(self._context.node.heartbeat, session)
        self._orders = Orders(self._context.node, session)
        self._rendezvous = RendezvousWatch(self._clock, keeper.emit)

    @property
    def _state(self) -> st.RunState:
        return self._keeper.state

    # -- called by the keeper ------------------------------------------------------------------------------

    def begin(self, continued_by: str) -> None:
        """If the run ended before any launch, wait for the other nodes, just as in a new run."""
        over = not isinstance(self._state.condition, st.Preflight)
        if continued_by and self._state.attempt is None and over:
            self._begins_by = continued_by
            self._keeper.emit(ev.Held(t=self._clock.wall(), attempt=0, reason="waits for the other nodes"))

    def close(self, *, superseded: bool) -> None:
        """Tell the other nodes that the run has ended."""
        if not superseded and isinstance(self._state.condition, st.Finished):
            try:
                self.publish()
            except (OSError, Superseded) as error:
                log.error("the other nodes were not told that the run is over: %s", error)
        self._rendezvous.close()

    def may_launch(self, reason: str) -> str | None:
        """Choose the nodes that take part. If called too early, between checks, return None; the call is repeated later."""
        if not self._choose(self._absent(self._clock.mono())):
            return None
        return reason + self._in_place_of_all()

    def announce(self, number: int, launch: Launch) -> None:
        """Order the launch. Raises Superseded, in which case nothing starts here either."""
        self._orders.give(Order(seq=0, leader="", want=Want.RUN, attempt=number, launch=launch))

    def step(self, *, hurried: bool) -> bool:
        """Check on the other nodes. Return whether to wait for them."""
        now = self._clock.mono()
        self._heartbeat.beat(now)
        self._look(now)
        waits = not hurried and self._waits(self._state.condition, now)
        if not waits:
            self._waits_since = None
        return waits

    def _waits(self, condition: st.Condition, now: float) -> bool:
        """Check whether to wait for other nodes and do nothing for now."""
        match condition:
            case st.Preflight():
                return not self._may_launch(now)
            case st.Launching() | st.Running() | st.Stopping():
                self._follow_others(condition.attempt, now)
                self._rendezvous.look(self._state.attempt, rendezvous_of(self._job, self._orders.newest_run))
                return False
            case st.Ended() if self._keeper.reads_on:
                return False
            case st.Ended():
                return self._waits_for_ends(condition.attempt, now)
            case st.Backoff():
                self._pass_on_stops()
                due = condition.until <= self._clock.wall()
                return isinstance(self._state.condition, st.Backoff) and due and not self._may_launch(now)
            case st.HeldOpen() if self._begins_by and self._state.attempt is None:
                if self._may_launch(now):
                    self._keeper.launch(f"{self._begins_by} continued it")
                return True
            case st.HeldOpen():
                self._pass_on_stops()
                return False
            case _:
                return False

    # -- the others -----------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Read heartbeats and reports, and journal what changed."""
        if now < self._look_due:
            return
        self._look_due = now + max(LOOK_S, LOOKS_PER_NODE_S * len(self._members))
        self._orders.check()
        for member in self._members.values():
            member.pulse.look(now)
            if (found := read_report(member.paths)) is not None and found.node == member.node:
                member.report = found
            self._journal_sight(member, now)
            if member.lives(now):
                self._left_out.discard(member.node)

    def _journal_sight(self, member: Member, now: float) -> None:
        report, before = member.report, self._state.nodes.get(member.node)
        if report is None:
            return
        lives, view = member.lives(now), self._state.attempt
        sight = before.sight if before is not None else None
        gone = sight in {ev.NodeSight.SILENT, ev.NodeSight.LEFT}
        if sight is None:
            seen = ev.NodeSight.JOINED if lives else None
        elif report.phase is NodePhase.LEFT:
            seen = ev.NodeSight.LEFT if member.pulse.moved() else None
        elif lives:
            seen = ev.NodeSight.BACK if gone else None
        else:
            seen = (
                ev.NodeSight.SILENT if not gone and member.pulse.silent_s(now) > heartbeat.SILENT_S else None
            )
        if seen is not None and seen is not sight:
            self._see(member, seen)
        # A stop there ends the attempt here first (`_follow_others`), so it counts as the reason only if the attempt ended on its own.
        if view is None or not member.has_ended(view.number) or member.node in view.node_exits:
            return
        if report.stop is None or view.stop is not None or view.ended_t is not None:
            self._see(member, ev.NodeSight.ENDED)

    def _see(self, member: Member, sight: ev.NodeSight) -> None:
        report = member.report
        assert report is not None, "it has reported"
        ended = sight is ev.NodeSight.ENDED
        self._keeper.emit(
            ev.NodeSeen(
                t=self._clock.wall(),
                node=member.node,
                sight=sight,
                host=report.host,
                attempt=report.attempt if ended else None,
                exit_code=report.exit_code if ended else None,
                stop=report.stop if ended else None,
                by=report.by if ended else "",
            ),
            durable=ended,
        )

    def _absent(self, now: float) -> list[int]:
        """Return the nodes that are not ready to launch."""
        newest = self._orders.newest
        seq = newest.seq if newest is not None else 0
        return [m.node for m in self._members.values() if not (m.lives(now) and m.is_idle(seq))]

    def _may_launch(self, now: float) -> bool:
        """Check whether all nodes are ready, or enough of them to run without the rest. After the time limit, end or hold the run."""
        absent = self._absent(now)
        if self._choose(absent):
            return True
        self._waits_since = now if self._waits_since is None else self._waits_since
        waited_s, bound_s = now - self._waits_since, self._job.timing.node_timeout_s
        if self._job.least_nodes < self._job.most_nodes:
            bound_s = max(
                bound_s, heartbeat.SILENT_S
            )  # a node must be known to be silent before it may be left out
        if waited_s <= bound_s:
            return False
        self._left_out |= {node for node in absent if not self._members[node].lives(now)}
        if self._choose(absent):
            return True
        names = ", ".join(map(str, absent))
        word, verb = ("node", "is") if len(absent) == 1 else ("nodes", "are")
        self._waits_since = None
        if self._state.attempt is None:
            how = f"start the same command there with its --node-rank; all nodes must see {self._context.run.root}"
            reason = f"{word} {names} did not join within {bound_s:.0f} s: {how}"
            self._keeper.end(ev.Outcome.REFUSED, NOT_THERE, reason + self._why_not_fewer)
        else:
            reason = f"{word} {names} {verb} not ready {bound_s:.0f} s after the others: start the same command there again"
            self._keeper.hold_or_fail(self._state.attempt.number, reason + self._why_not_fewer, None)
        return False

    def _choose(self, absent: Sequence[int]) -> bool:
        """Choose the next attempt's nodes among those not excluded: all or, with MIN:MAX, as many as preserve the global batch."""
        self._why_not_fewer = ""
        if not self._left_out.issuperset(absent):
            return False
        there = (LEADER, *(node for node in self._members if node not in absent))
        now = next_job(self._job, self._state)
        for count in range(len(there), self._job.least_nodes - 1, -1):
            try:
                batch_on(now, count)
            except JobError as error:
                self._why_not_fewer = f"; not started on {count} nodes: {error.message}"
            else:
                self.nodes = there[:count]
                return True
        return False

    def _waits_for_ends(self, number: int, now: float) -> bool:
        """Check whether other nodes are still running their part of an attempt. The verdict covers all parts, so it must wait."""
        if self._ended_since is None or self._ended_since[0] != number:
            self._ended_since = (number, now)
            self._look_due = float("-inf")  # journal pending reports before the verdict
            return True
        waited_s, newest = now - self._ended_since[1], self._orders.newest
        took_part = self._orders.take_part(number)
        told = newest is not None and newest.want is not Want.RUN
        for member in self._members.values():
            if took_part is not None and member.node not in took_part:
                continue
            idle = told and newest is not None and member.lives(now) and member.is_idle(newest.seq)
            silent = not member.pulse.lives(now, heartbeat.SILENT_S) and waited_s > heartbeat.SILENT_S
            ended = member.has_ended(number) or idle or silent
            if not ended and waited_s <= self._job.timing.node_timeout_s:
                self._waits_since = now if self._waits_since is None else self._waits_since
                return True
        view = self._state.find(number)
        if view is not None and view.started_t is None and view.exit_code is None and view.verdict is None:
            # A keeper died between its intent and the launch. Other nodes may have started and already ended.
            if self._may_launch(now):
                self._keeper.launch("the keeper died before it was launched")
            return True
        return False

    def _follow_others(self, number: int, now: float) -> None:
        """If one part of the attempt failed or was stopped, stop the others, including this node's."""
        view, monitor = self._state.find(number), self._keeper.monitor
        if view is None or view.stop is not None or not monitor.is_stoppable:
            return
        grace_s = self._job.timing.death_grace_s
        bound_s = max(self._job.timing.node_timeout_s, heartbeat.SILENT_S)
        took_part = self._orders.take_part(number) or ()
        met = any(rank.pid for rank in view.ranks.values())
        for member in self._members.values():
            # The node is gone before the ranks have met. torchrun would wait 15 minutes for it, and no work can be lost.
            if not met and member.node in took_part and member.pulse.silent_s(now) > bound_s:
                monitor.stop(ev.StopWhy.RANK_DIED, f"node {member.node} is gone", grace_s=grace_s)
                return
            report = member.report
            if report is None or not member.has_ended(number):
                continue
            if report.stop is not None:
                self._keeper.stop(report.stop, ev.on_node(member.node, report.by))
                return
            if report.exit_code == 0:
                continue
            if self._failed_since is None or self._failed_since[0] != number:
                self._failed_since = (number, now)
            elif now - self._failed_since[1] > grace_s:
                # The node's peers would wait in a collective until a timeout of half an hour.
                monitor.stop(ev.StopWhy.RANK_DIED, f"node {member.node}", grace_s=grace_s)
                return

    def _pass_on_stops(self) -> None:
        """End the run if a node was stopped between two attempts."""
        view = self._state.attempt
        for member in self._members.values():
            report, old = member.report, self._settled.get(member.node)
            if report is None or report.stop is None or view is None or report.attempt != view.number:
                continue
            # The stop predates the run's continuation. A new keeper there repeats the stop from its journal.
            if old is not None and (old.attempt, old.stop, old.by) == (view.number, report.stop, report.by):
                is_old = report.session == old.session or report.phase is not NodePhase.LEFT
            else:
                is_old = False
            # If the node's pulse has not moved, the stop may be from before this keeper's start.
            if not is_old and member.pulse.moved():
                self._keeper.end_stopped(ev.on_node(member.node, report.by), report.stop)
                return

    # -- orders to the others ----------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish the order that the state calls for if it differs from the latest one."""
        wanted, newest = self._wanted(), self._orders.newest
        if wanted is None:
            return
        if newest is None or replace(wanted, seq=newest.seq, leader=newest.leader) != newest:
            self._orders.give(wanted)

    def _wanted(self) -> Order | None:
        condition, view = self._state.condition, self._state.attempt
        stop = view.stop if view is not None else None
        asked = stop if stop is not None and stop.why in st.REQUESTED_STOPS else None
        verdict = view.verdict if view is not None and not view.verdict_provisional else None
        end = Order(
            seq=0,
            leader="",
            want=Want.END,
            attempt=view.number if view is not None else 0,
            why=asked.why if asked is not None else None,
            by=asked.by if asked is not None else "",
            verdict=verdict,
            decision=view.decision if view is not None and verdict is not None else None,
        )
        match condition:
            case st.Preflight() | st.Launching() | st.Running():
                return None
            case st.Ended() if view is not None and view.exit_code == 0 and asked is None:
                since = self._ended_since
                return end if since is not None and self._clock.mono() - since[1] > PEERS_S else None
            case st.Finished(outcome=outcome, exit_code=code, reason=reason):
                return replace(end, want=Want.OVER, outcome=outcome, exit_code=code, reason=reason)
            case _:
                return end

    def _in_place_of_all(self) -> str:
        """Describe what changes if the launch leaves out some nodes, or return "" if all of them take part."""
        nodes, now = self.nodes, next_job(self._job, self._state)
        missing = sorted(self._members.keys() - set(nodes))
        before, after = now.current_batch, batch_on(now, len(nodes))
        if not missing or before is None or after is None:
            return ""
        names = ", ".join(map(str, missing))
        word = "node" if len(missing) == 1 else "nodes"
        return f"; without {word} {names}: {describe_change(BatchChange(before, after))}"

"""A live attempt: its processes, its ranks, and its stop sequence.

The keeper calls `watch` a few times a second and gets events. Nothing here blocks, writes the journal or makes decisions. A
process belongs to the attempt if it descends from the launcher or has the run's mark (see `members`). It is identified by
its pid and start time. No other process is ever signaled. A rank is a process with LOCAL_RANK in its environment.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.process.child import Child, ExitStatus, kill_all
from supervisor.keeper.process.members import Members, find_members, is_marked, mark_in
from supervisor.run import events as ev
from supervisor.run.events import StopStep, StopWhy
from supervisor.run.paths import AttemptPaths
from supervisor.run.state import AttemptState
from supervisor.sources.processes import (
    ProcessId,
    command_of,
    descendants,
    exit_code_of,
    is_alive,
    is_uninterruptible,
    process_table,
    read_environ,
)

SEARCH_INTERVAL_S, TREE_INTERVAL_S = 0.2, 2.0
"""Seconds between process searches. The second value applies once all ranks are found or if their number is unknown."""
CODE_WAIT_S = 0.1
SETTLE_S = 0.5
"""Seconds that processes left behind by a command have to exit on their own. Data workers notice when their parent exits."""
FINAL = frozenset({ev.StopWhy.REQUEST, ev.StopWhy.SIGNAL, ev.StopWhy.REQUEUE})
"""Reasons for stopping after which no new attempt is started."""
_NOT_ASKED = frozenset(
    {ev.StopWhy.RANK_DIED, ev.StopWhy.HANG, ev.StopWhy.NOT_RESUMED, ev.StopWhy.PLAN_DIFFERS}
)
"""Reasons for stopping that do not call for a checkpoint first."""


class LiveAttempt:
    """A spawned or adopted attempt, until its last process has exited."""

    def __init__(
        self,
        number: int,
        child: Child,
        *,
        run_dir: str,
        clock: Clock,
        job: JobSpec,
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ends()` tells whether the agent's log shows that the agent is stopping its workers because one failed.

        `exit_codes`, keyed by local rank, is filled in by the code that waits for the ranks' processes. `run_dir` is the
        run's directory as passed to its processes.
        """
        self.number, self.child = number, child
        self.stop_sequence: StopSequence | None = None
        self.ranks: dict[int, ProcessId] = {}
        self.exit: ExitStatus | None = None
        self.exit_codes: dict[int, int] = {}
        self.sends_telemetry = False
        self._run_dir, self._clock = run_dir, clock
        self._local_world_size, self._one_node = job.nproc_per_node, job.nnodes == "1"
        self._death_grace_s, self._ends = job.timing.death_grace_s, ends
        # A plain command may not pass signals on (a shell does not), so a stop goes to all of its processes. Its number of ranks is unknown.
        self._whole_tree = job.entry_kind is EntryKind.COMMAND
        self._exited: set[int] = set()
        self._vanished: dict[int, float] = {}
        self._folders: set[int] = set()
        self._members: dict[int, ProcessId] = {p.pid: p for p in (child.pid,) if is_alive(p)}
        self._recorded: list[ProcessId] = []
        self._others = Members()
        self._next_search = 0.0
        self._exit_mono: float | None = None
        self._crash_deadline: float | None = None
        self._doomed: list[ProcessId] = []
        self._orphans_asked = self._given_up = self._over = False

    def know(self, view: AttemptState) -> None:
        """Reuse what an earlier keeper learned about the ranks that verifiably belong to the run."""
        reported = {
            local_rank: ProcessId(rank.pid, rank.start_time)
            for local_rank, rank in view.ranks.items()
            if rank.pid is not None and rank.start_time is not None
        }
        ours = set(self._find(reported.values()).ours)
        for local_rank, process in reported.items():
            if process in ours or not is_alive(process):
                self.ranks[local_rank] = process
            else:
                self._recorded.append(process)
        self._members |= {process.pid: process for process in ours}
        self._exited |= {local_rank for local_rank, rank in view.ranks.items() if rank.exited}
        self._folders |= {local_rank for local_rank, rank in view.ranks.items() if rank.stderr is not None}

    @property
    def paths(self) -> AttemptPaths:
        """The attempt's files."""
        return self.child.paths

    def alive(self) -> list[ProcessId]:
        """Return every known live process of the attempt: the command, its ranks, and their children."""
        return [process for process in self._members.values() if is_alive(process)]

    def is_over(self) -> bool:
        """Check whether the command has exited and left no live process, or whether every stop step has been tried.

        After the command exits with 0 on its own, remaining processes (a tracker's uploader, a server) are left alone.
        """
        return self._over

    def ended_well(self) -> bool:
        """Check whether the command exited with 0 on its own. If so, any remaining processes are left alone."""
        self._look_for_exit()
        return self.exit is not None and self.exit.exit_code == 0 and self.stop_sequence is None

    def _look_for_exit(self) -> None:
        """Record that the command has exited, and when. Its remaining processes then have `SETTLE_S` to exit."""
        if self.exit is None and (exit_status := self.child.poll()) is not None:
            self.exit, self._exit_mono = exit_status, self._clock.mono()
            self._next_search = self._exit_mono

    def stop(self, why: ev.StopWhy, by: str, *, grace_s: float, now: bool = False) -> ev.StopIntended | None:
        """Begin stopping the attempt. Return the intent as an event, to be journaled before the first action.

        A second call with `now` hurries the first along. A stop requested by the user overrides the keeper's, which may
        have been part of a restart. Return None if nothing changes or the command has exited with 0.
        """
        if self.ended_well():
            return None
        if self.stop_sequence is not None:
            if now:
                self.stop_sequence.hurry()
            if self.stop_sequence.why in FINAL or why not in FINAL:
                return None
            self.stop_sequence.why, self.stop_sequence.by = why, by
            return self._intent(self.stop_sequence)
        self._next_search = 0.0  # find the processes before the first signal
        self.stop_sequence = StopSequence(
            why=why,
            by=by,
            grace_s=0.0 if now else grace_s,
            started=self._clock.mono(),
            can_ask=self.sends_telemetry and why not in _NOT_ASKED,
            now=now,
        )
        return self._intent(self.stop_sequence)

    def _intent(self, stop_sequence: StopSequence) -> ev.StopIntended:
        return ev.StopIntended(
            t=self._clock.wall(),
            attempt=self.number,
            why=stop_sequence.why,
            by=stop_sequence.by,
            grace_s=stop_sequence.grace_s,
        )

    def watch(self) -> list[ev.Event]:
        """Run one check and return any new events."""
        self._look_for_exit()
        now = self._clock.mono()
        facts = self._search(now)
        facts += self._find_folders()
        facts += self._missed_ranks(now)
        if self.stop_sequence is None:
            # An intent from this check is journaled before the next check acts on it.
            facts += self._crash(now) + self._leftovers(now)
        else:
            facts += self._climb(now)
        return facts + self._end(now)

    # -- which processes belong to the attempt -----------------------------------------------------

    def _search(self, now: float) -> list[ev.Event]:
        """Find the launcher's descendants and, while the attempt is stopping, any process with the run's mark."""
        if now < self._next_search:
            return []
        ending = self.exit is not None or self.stop_sequence is not None
        awaits_ranks = len(self.ranks) < self._local_world_size and not self._whole_tree
        self._next_search = now + (SEARCH_INTERVAL_S if ending or awaits_ranks else TREE_INTERVAL_S)
        if ending:
            self._others = self._find(self._recorded)
            found = list(self._others.ours)
        else:
            table = process_table()
            roots = self.child.roots() or tuple(self._members.values())
            found = [process for root in roots for process in (root, *descendants(root, table))]
            found = [process for process in found if process != self.child.launcher]
        alive = {process.pid: process for process in (*self._members.values(), *found) if is_alive(process)}
        nested = set(self._others.nested)
        self._members = {pid: process for pid, process in alive.items() if process not in nested}
        return self._take_ranks(found)

    def _find(self, recorded: Iterable[ProcessId]) -> Members:
        return find_members(
            self._run_dir,
            started=(*self.child.roots(), *self._members.values()),
            recorded=recorded,
            launchers=(self.child.launcher,),
        )

    def _take_ranks(self, processes: list[ProcessId]) -> list[ev.Event]:
        # A rank's own children (DataLoader workers) inherit its environment. The first process found on
        # the way down from the command is therefore the rank itself.
        complete = len(self.ranks) >= self._local_world_size and not self._whole_tree
        facts: list[ev.Event] = []
        for process in () if complete else processes:
            env = read_environ(process)
            name, rank, mark = env.get("LOCAL_RANK", ""), env.get("RANK", ""), mark_in(env)
            nested = bool(mark) and not is_marked(mark, self._run_dir)
            if not name.isdecimal() or int(name) in self.ranks or nested:
                continue
            self.ranks[int(name)] = process
            facts.append(
                ev.RankStarted(
                    t=self._clock.wall(),
                    attempt=self.number,
                    local_rank=int(name),
                    pid=process.pid,
                    start_time=process.start_time,
                    rank=int(rank) if rank.isdecimal() else None,
                )
            )
        return facts

    def _find_folders(self) -> list[ev.Event]:
        if len(self._folders) >= self._local_world_size:
            return []
        new = {k: folder for k, folder in self.paths.rank_folders().items() if k not in self._folders}
        self._folders |= new.keys()
        places = {local_rank: folder.relative_to(self.paths.root) for local_rank, folder in new.items()}
        return [
            ev.RankStarted(
                t=self._clock.wall(),
                attempt=self.number,
                local_rank=local_rank,
                rank=local_rank if self._one_node else None,
                stdout=str(place / "stdout.log"),
                stderr=str(place / "stderr.log"),
            )
            for local_rank, place in places.items()
        ]

    def _missed_ranks(self, now: float) -> list[ev.Event]:
        facts: list[ev.Event] = []
        for local_rank, process in self.ranks.items():
            if local_rank in self._exited or is_alive(process):
                continue
            code = self.exit_codes.get(local_rank, exit_code_of(process))
            since = self._vanished.setdefault(local_rank, now)
            if code is None and self.exit is None and now - since < CODE_WAIT_S:
                continue  # a thread waits for the process and may soon have the code
            self._exited.add(local_rank)
            # Exits caused by the keeper's own signals show nothing. torchrun reports its own.
            code, t = code if self.stop_sequence is None else None, self._clock.wall()
            facts.append(ev.RankExited(t=t, attempt=self.number, local_rank=local_rank, exit_code=code))
        return facts

    # -- how the attempt ends --------------------------------------------------------------------

    def _crash(self, now: float) -> list[ev.Event]:
        """If torchrun is stopping the other ranks because one died, kill them after `death_grace_s` instead of torchrun's 30 s."""
        if self.exit is not None or not self._ends():
            return []
        if self._crash_deadline is None:
            self._crash_deadline = now + self._death_grace_s
        if now < self._crash_deadline:
            return []
        intent = self._stop_peers()
        assert self.stop_sequence is not None
        # torchrun has sent the SIGTERM. Kill only the ranks: torchrun then writes its report and exits on its
        # own, or goes through the stop sequence after another grace period.
        self.stop_sequence.step, self.stop_sequence.step_since = ev.StopStep.SIGTERM, now
        self._doomed = [p for p in self.ranks.values() if is_alive(p)]
        return [intent]

    def _leftovers(self, now: float) -> list[ev.Event]:
        """Stop the processes left behind by a failed command, as torchrun would have done."""
        if self.exit is None or self.exit.exit_code == 0 or not self.alive() or not self._settled(now):
            return []
        return [self._stop_peers()]

    def _stop_peers(self) -> ev.StopIntended:
        intent = self.stop(ev.StopWhy.RANK_DIED, "keeper", grace_s=self._death_grace_s)
        assert intent is not None, "nothing stops it yet, and it did not end with 0"
        return intent

    def _settled(self, now: float) -> bool:
        return self._exit_mono is not None and now - self._exit_mono >= SETTLE_S

    def _climb(self, now: float) -> list[ev.Event]:
        stop = self.stop_sequence
        assert stop is not None, "it is being stopped"
        if self._doomed:
            killed, self._doomed = kill_all(self._doomed), []
            return [self._step_taken(ev.StopStep.SIGKILL, killed)]
        alive = self.alive()
        begun = stop.step in {ev.StopStep.ASK, ev.StopStep.SIGTERM} and not stop.now
        if begun and self.exit is not None and alive and not (self._orphans_asked or self._whole_tree):
            # The command has exited, so no other process passes the signal on.
            self._orphans_asked = True
            return [self._step_taken(ev.StopStep.SIGTERM, kill_all(alive, signal.SIGTERM))]
        step = stop.tick(now, alive=bool(alive) or self.exit is None)
        return [self._step_taken(step, self._take(step, alive))] if step is not None else []

    def _step_taken(self, step: ev.StopStep, reached: list[ProcessId]) -> ev.StopStepTaken:
        stuck = filter(is_uninterruptible, reached) if step is ev.StopStep.SURVIVORS else ()
        return ev.StopStepTaken(
            t=self._clock.wall(),
            attempt=self.number,
            step=step,
            pids=tuple(p.pid for p in reached),
            uninterruptible=tuple(p.pid for p in stuck),
        )

    def _take(self, step: ev.StopStep, alive: list[ProcessId]) -> list[ProcessId]:
        match step:
            case ev.StopStep.ASK:
                # A full disk allows no checkpoint request. SIGTERM follows after ASK's share of the grace.
                with contextlib.suppress(OSError):
                    self.paths.stop_file.touch()
                return [p for p in self.ranks.values() if is_alive(p)]
            case ev.StopStep.SIGTERM:
                # torchrun passes SIGTERM on to its workers; without it, the keeper does. A command that is
                # itself a `stoker run` gets the signal, too, and ends its own job.
                if is_alive(self.child.pid) and not self._whole_tree:
                    return kill_all([self.child.pid], signal.SIGTERM)
                command = [self.child.pid] if self.child.pid not in alive else []
                self._orphans_asked = self.exit is not None
                return kill_all([*command, *alive], signal.SIGTERM)
            case ev.StopStep.SIGKILL | ev.StopStep.SWEEP:
                return kill_all(alive)
            case ev.StopStep.SURVIVORS:
                self._given_up = True
                return alive or list(self.child.roots())  # a frozen launcher outlives its children

    def _end(self, now: float) -> list[ev.Event]:
        """Finish the attempt if it has ended. Return events that say which processes are left and why."""
        alive = self.alive()
        by_itself = self.stop_sequence is None and self.exit is not None and self.exit.exit_code == 0
        gone = self.exit is not None and (not alive or (by_itself and self._settled(now)))
        if self._over or not (gone or self._given_up):
            return []
        if not alive:
            # This check sees processes that were forked during the last one.
            self._others = self._find(self._recorded)
            if self._others.ours:
                self._members = {process.pid: process for process in self._others.ours}
                return []
        self._over = True
        self.child.release()
        left = [(ev.LeftWhy.AFTER_SUCCESS, alive)] if by_itself else []
        left += [
            (ev.LeftWhy.NESTED, [p for p in self._others.nested if is_alive(p)]),
            (ev.LeftWhy.UNKNOWN, [p for p in self._others.unknown if is_alive(p)]),
        ]
        facts: list[ev.Event] = []
        for why, processes in left:
            named = tuple(ev.LeftProcess(pid=p.pid, command=command_of(p.pid) or "") for p in processes)
            if named:
                t = self._clock.wall()
                facts.append(ev.ProcessesLeft(t=t, attempt=self.number, why=why, processes=named))
        return facts


# -- the stop sequence: ask, SIGTERM, grace, SIGKILL, bounded wait, survivors ---------------------- Each
# worker of torchrun leads its own session, so a SIGKILL to torchrun's group leaves the workers alive
# (docs/DECISIONS.md). The last step therefore goes to every recorded process, each verified by pid and start
# time. `tick` decides the step and the keeper carries it out.

ASK_SHARE = 0.5
"""Fraction of the grace period a trainer gets to act on its stop file before SIGTERM repeats the request."""

KILL_WAIT_S = 5.0
"""Seconds a process may take to die after SIGKILL. In uninterruptible sleep (a hung GPU or NIC), it never does."""


@dataclass(slots=True)
class StopSequence:
    """The steps that stop an attempt, from the intent to completion. Times are in monotonic seconds.

    If `can_ask`, the trainer is known to check its stop file. If `now`, the sequence skips straight to SIGKILL.
    """

    why: StopWhy
    by: str
    grace_s: float
    started: float
    can_ask: bool = False
    now: bool = False
    step: StopStep | None = None
    step_since: float = 0.0

    def tick(self, clock_s: float, *, alive: bool) -> StopStep | None:
        """Return the step to take now, or None. Call this often while `alive`, and never afterwards."""
        if not alive:
            return None
        wanted = self._wanted(clock_s)
        if wanted is None or wanted is self.step:
            return None
        self.step, self.step_since = wanted, clock_s
        return wanted

    def hurry(self) -> None:
        """Speed up the stop: send SIGKILL on the next tick."""
        self.now = True

    def _wanted(self, clock_s: float) -> StopStep | None:
        match self.step:
            case None:
                if self.now:
                    return StopStep.SIGKILL
                return StopStep.ASK if self.can_ask else StopStep.SIGTERM
            case StopStep.ASK:
                if self.now:
                    return StopStep.SIGKILL
                return StopStep.SIGTERM if clock_s - self.started >= self.grace_s * ASK_SHARE else None
            case StopStep.SIGTERM:
                return StopStep.SIGKILL if self.now or clock_s - self.started >= self.grace_s else None
            case StopStep.SIGKILL:
                return StopStep.SWEEP if clock_s - self.step_since >= 0.5 else None
            case StopStep.SWEEP:
                return StopStep.SURVIVORS if clock_s - self.step_since >= KILL_WAIT_S else None
            case StopStep.SURVIVORS:
                return None

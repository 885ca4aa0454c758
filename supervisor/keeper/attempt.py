"""One live attempt: its process tree, its ranks, the ladder that ends it.

`watch` is called a few times a second and returns facts; nothing here blocks, writes the journal or
decides. Ranks are found among the launcher's descendants by their environment (LOCAL_RANK, RANK) and
from then on known by pid and start time, so that they are found again after torchrun is gone.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable

from supervisor.keeper.clock import Clock
from supervisor.keeper.ladder import StopLadder
from supervisor.keeper.process import Child, ExitStatus, kill_all, left_behind
from supervisor.run import events as ev
from supervisor.run.paths import AttemptPaths
from supervisor.run.state import AttemptView
from supervisor.sources.processes import ProcessId, descendants, is_alive, read_environ

RANK_SEARCH_INTERVAL_S = 0.25
TREE_SEARCH_INTERVAL_S = 1.0
TREE_INTERVAL_S = 5.0
FINAL = frozenset({ev.StopWhy.REQUEST, ev.StopWhy.SIGNAL, ev.StopWhy.REQUEUE})
"""Stops after which nothing is to be restarted."""


class LiveAttempt:
    """A spawned or adopted attempt until its last process is gone."""

    def __init__(
        self,
        number: int,
        child: Child,
        *,
        clock: Clock,
        local_world_size: int,
        one_node: bool,
        crash_grace_s: float,
        ends: Callable[[], bool] = lambda: False,
        whole_tree: bool = False,
    ) -> None:
        """`ends()`: true once the agent's log says that it is ending its workers because one failed.

        `whole_tree`: a plain command, which need not pass signals on (a shell does not): a stop goes to, and
        waits for, all that it started; how many ranks it has is not known.
        """
        self.number = number
        self.child = child
        self.ladder: StopLadder | None = None
        self.ranks: dict[int, ProcessId] = {}
        self.exit: ExitStatus | None = None
        self.speaks_wire = False
        self._clock = clock
        self._local_world_size = local_world_size
        self._one_node = one_node
        self._crash_grace_s = crash_grace_s
        self._ends = ends
        self._whole_tree = whole_tree
        self._exited: set[int] = set()
        self._folders: set[int] = set()
        self._tree: dict[int, ProcessId] = {}
        self._next_search = 0.0
        self._next_tree = 0.0
        self._crash_deadline: float | None = None
        self._doomed: list[ProcessId] = []
        self._given_up = False

    def know(self, view: AttemptView) -> None:
        """Take over what an earlier keeper had learnt of the ranks."""
        for local_rank, rank in view.ranks.items():
            if rank.pid is not None and rank.start_time is not None:
                self.ranks[local_rank] = ProcessId(rank.pid, rank.start_time)
            if rank.exited:
                self._exited.add(local_rank)
            if rank.stderr is not None:
                self._folders.add(local_rank)

    @property
    def paths(self) -> AttemptPaths:
        """The attempt's files."""
        return self.child.paths

    def alive(self) -> list[ProcessId]:
        """Every recorded process of the attempt that lives: the command, its ranks, their children."""
        known = {self.child.pid.pid: self.child.pid, **{p.pid: p for p in self.ranks.values()}, **self._tree}
        return [process for process in known.values() if is_alive(process)]

    def is_over(self) -> bool:
        """True once the command has ended and no rank lives, or no rung of the ladder is left.

        What else the ranks started (a tracker's uploader, say) may outlive them; only a SIGKILLed attempt,
        or a stopped plain command, takes it along.
        """
        if self._given_up:
            return True
        killed = self.ladder is not None and (
            self._whole_tree or self.ladder.rung in {ev.StopRung.SIGKILL, ev.StopRung.SWEEP}
        )
        waited_for = (*self.ranks.values(), *(self._tree.values() if killed else ()))
        return self.exit is not None and not any(is_alive(p) for p in waited_for)

    def stop(self, why: ev.StopWhy, by: str, *, grace_s: float, now: bool = False) -> ev.StopIntended | None:
        """Begin to end the attempt; the fact of the intent comes back, to be journalled before the act.

        A second call hurries the first one when `now` is set; a person's stop takes over one of ours, which
        may have been meant for a restart.
        """
        if self.ladder is not None:
            if now:
                self.ladder.hurry()
            if self.ladder.why in FINAL or why not in FINAL:
                return None
            self.ladder.why, self.ladder.by = why, by
            return self._intent(self.ladder)
        self.ladder = StopLadder(
            why=why,
            by=by,
            grace_s=0.0 if now else grace_s,
            started=self._clock.mono(),
            can_ask=self.speaks_wire and why not in {ev.StopWhy.RANK_DIED, ev.StopWhy.HANG},
            now=now,
        )
        return self._intent(self.ladder)

    def _intent(self, ladder: StopLadder) -> ev.StopIntended:
        return ev.StopIntended(
            t=self._clock.wall(), attempt=self.number, why=ladder.why, by=ladder.by, grace_s=ladder.grace_s
        )

    def watch(self) -> list[ev.Event]:
        """Look once; returns what was learnt."""
        now = self._clock.mono()
        facts: list[ev.Event] = []
        facts += self._search_ranks(now)
        if self.exit is None:
            self.exit = self.child.poll()
            facts += self._find_left_behind()
        facts += self._find_folders()
        facts += self._missed_ranks()
        self._remember_tree(now)
        if self.ladder is None:
            # What is intended here is journalled before the next look acts on it.
            return facts + self._crash(now) + self._orphans()
        return facts + self._climb(now)

    def _search_ranks(self, now: float) -> list[ev.Event]:
        complete = len(self.ranks) >= self._local_world_size and not self._whole_tree
        if complete or now < self._next_search or self.exit is not None:
            return []
        self._next_search = now + (TREE_SEARCH_INTERVAL_S if self._whole_tree else RANK_SEARCH_INTERVAL_S)
        # A rank's own children (DataLoader workers) inherit its environment: the first process found walking
        # down from torchrun is the rank itself.
        return self._take_ranks(self.child.tree())

    def _find_left_behind(self) -> list[ev.Event]:
        """Ranks that torchrun had started but not been seen with when it was killed: nobody else would end them."""
        seen_all = len(self.ranks) >= self._local_world_size or self._whole_tree
        if self.exit is None or self.exit.exit_code == 0 or seen_all:
            return []
        return self._take_ranks(left_behind(self.paths))

    def _take_ranks(self, processes: list[ProcessId]) -> list[ev.Event]:
        facts: list[ev.Event] = []
        for process in processes:
            env = read_environ(process)
            local_rank, rank = env.get("LOCAL_RANK", ""), env.get("RANK", "")
            if local_rank.isdecimal() and int(local_rank) not in self.ranks:
                self.ranks[int(local_rank)] = process
                facts.append(
                    ev.RankStarted(
                        t=self._clock.wall(),
                        attempt=self.number,
                        local_rank=int(local_rank),
                        pid=process.pid,
                        start_time=process.start_time,
                        rank=int(rank) if rank.isdecimal() else None,
                    )
                )
        return facts

    def _find_folders(self) -> list[ev.Event]:
        if len(self._folders) >= self._local_world_size:
            return []
        facts: list[ev.Event] = []
        for local_rank, folder in self.paths.rank_folders().items():
            if local_rank in self._folders:
                continue
            self._folders.add(local_rank)
            place = folder.relative_to(self.paths.root)
            facts.append(
                ev.RankStarted(
                    t=self._clock.wall(),
                    attempt=self.number,
                    local_rank=local_rank,
                    rank=local_rank if self._one_node else None,
                    stdout=str(place / "stdout.log"),
                    stderr=str(place / "stderr.log"),
                )
            )
        return facts

    def _missed_ranks(self) -> list[ev.Event]:
        facts: list[ev.Event] = []
        for local_rank, process in self.ranks.items():
            if local_rank not in self._exited and not is_alive(process):
                self._exited.add(local_rank)
                facts.append(ev.RankExited(t=self._clock.wall(), attempt=self.number, local_rank=local_rank))
        return facts

    def _remember_tree(self, now: float) -> None:
        """Keep the identities of the ranks' own children: a sweep must find them after their parent is gone."""
        if now < self._next_tree and self.ladder is None:
            return
        self._next_tree = now + TREE_INTERVAL_S
        # One walk over /proc while the command lives: its tree holds those of its ranks.
        roots = [self.child.pid] if is_alive(self.child.pid) else list(self.ranks.values())
        for root in roots:
            self._tree |= {process.pid: process for process in descendants(root)}
        self._tree = {pid: process for pid, process in self._tree.items() if is_alive(process)}

    def _crash(self, now: float) -> list[ev.Event]:
        """A rank died by itself and torchrun is ending the others: they get `crash_grace_s`, not its 30 s."""
        if self.exit is not None or not self._ends():
            return []
        if self._crash_deadline is None:
            self._crash_deadline = now + self._crash_grace_s
        if now < self._crash_deadline:
            return []
        intent = self.stop(ev.StopWhy.RANK_DIED, "keeper", grace_s=self._crash_grace_s)
        assert intent is not None
        assert self.ladder is not None
        # torchrun has sent the SIGTERM. The ranks alone are killed: it then writes its report and leaves by
        # itself, or goes the ladder's way after another grace.
        self.ladder.rung, self.ladder.rung_since = ev.StopRung.SIGTERM, now
        self._doomed = [p for p in self.ranks.values() if is_alive(p)]
        return [intent]

    def _orphans(self) -> list[ev.Event]:
        """The command is gone and left processes behind: they are ended, as torchrun would have done."""
        if self.exit is None or self.ladder is not None or self.is_over():
            return []
        intent = self.stop(ev.StopWhy.RANK_DIED, "keeper", grace_s=self._crash_grace_s)
        return [intent] if intent is not None else []

    def _climb(self, now: float) -> list[ev.Event]:
        if self.ladder is None:
            return []
        if self._doomed:
            killed, self._doomed = kill_all(self._doomed), []
            return [self._rung(ev.StopRung.SIGKILL, killed)]
        alive = self.alive()
        rung = self.ladder.tick(now, alive=bool(alive))
        if rung is None:
            return []
        return [self._rung(rung, self._take(rung, alive))]

    def _rung(self, rung: ev.StopRung, reached: list[ProcessId]) -> ev.StopRungTaken:
        pids = tuple(p.pid for p in reached)
        return ev.StopRungTaken(t=self._clock.wall(), attempt=self.number, rung=rung, pids=pids)

    def _take(self, rung: ev.StopRung, alive: list[ProcessId]) -> list[ProcessId]:
        match rung:
            case ev.StopRung.ASK:
                # On a full disk there is no asking: SIGTERM follows after its share of the grace.
                with contextlib.suppress(OSError):
                    self.paths.stop_file.touch()
                return [p for p in self.ranks.values() if is_alive(p)]
            case ev.StopRung.SIGTERM:
                # torchrun passes it on to its workers; without torchrun they get it from us.
                if is_alive(self.child.pid) and not self._whole_tree:
                    return kill_all([self.child.pid], signal.SIGTERM)
                return kill_all(alive, signal.SIGTERM)
            case ev.StopRung.SIGKILL | ev.StopRung.SWEEP:
                return kill_all(alive)
            case ev.StopRung.SURVIVORS:
                self._given_up = True
                return alive

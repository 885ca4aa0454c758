"""A round of stacks: all ranks side by side in groups, with NCCL and PyTorch reports, saved as an artifact.

Rounds are taken one at a time in their own thread, because py-spy may need several seconds and briefly stops each process.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from supervisor.diagnosis.hang.stack_groups import RankStack, StackRound, stack_round
from supervisor.diagnosis.hang.stacks import main_thread, parse_stack
from supervisor.diagnosis.hang.stuck_collectives import (
    ranks_at_fault,
    read_ras,
    stuck_collectives,
    stuck_text,
)
from supervisor.keeper.base.background import JOIN_S, BackgroundTask
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.policy.health.stall import Activity
from supervisor.run import events as ev
from supervisor.run.paths import private
from supervisor.sources.processes import ProcessId, helper_cpu_s, io_bytes, own_cpu_s, read_environ
from supervisor.sources.stacks.collective_records import (
    dump_prefixes,
    find_dumps,
    load_dumps,
    query_ras,
    ras_address,
)
from supervisor.sources.stacks.python_stacks import (
    Stack,
    collect_stacks,
    find_py_spy,
)
from supervisor.text.redact import redact_text

log = logging.getLogger("stoker.keeper")

STACKS_S = 5.0
FAULT_FOLDER = "stacks"
# If every rank does something different, there is no pattern. At most this many groups are journaled.
MOST_GROUPS = 32
# Launchers' variables for the number of ranks on this node: torchrun's, DeepSpeed's, Open MPI's and MPICH's.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True, slots=True)
class Targets:
    """The processes to inspect and where to write the round.

    `ranks` is keyed by global rank. `attempt_root` is the attempt's folder. `env` is the job's environment. `since_t` is
    the wall time at which the attempt started; older dumps belong to other runs.
    """

    attempt: int
    ranks: Mapping[int, ProcessId]
    attempt_root: Path
    artifacts: Path
    env: Mapping[str, str]
    since_t: float
    python: str | None


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round. `mono` is its time on the keeper's clock.

    `lines` gives the 1-based artifact line of each rank's own frame. `cpu_s` is the CPU time that each rank's process has used, in seconds. `here` and `world` are the numbers of ranks
    on this node and in the job, according to the ranks' environment.
    """

    mono: float
    stacks: StackRound
    activity: Activity
    source: str
    artifact: str | None = None
    lines: Mapping[int, int] | None = None
    collective: str | None = None
    absent: tuple[int, ...] = ()
    cpu_s: Mapping[int, float] = field(default_factory=dict)
    here: int | None = None
    world: int | None = None

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that keep the others waiting, according to the stacks or else to NCCL or the flight recorder."""
        return self.stacks.odd or self.absent

    @property
    def shows_a_wait(self) -> bool:
        """Whether this round alone shows that the others are waiting for a rank that is not running, or that all are waiting.

        A rank that is computing while the others wait may just be in a long step, for example with longer sequences. Only a
        second round can distinguish a long step from an endless loop.
        """
        if self.absent:
            return True
        places = [self.stacks.place_of(rank) for rank in self.stacks.odd]
        return self.stacks.proves_hang and all(place is None or place.idle is not False for place in places)

    @property
    def line_at(self) -> str | None:
        """The line of code that the first of the ranks holding up the others is executing."""
        place = self.stacks.place_of(self.odd[0]) if self.odd else None
        return place.line_at if place is not None else None

    @property
    def groups(self) -> tuple[ev.RanksAt, ...]:
        """The ranks grouped by what they are doing, for the journal. Ranks that keep the others waiting come first."""
        odd, lines = set(self.odd), self.lines or {}
        found = sorted(self.stacks.groups, key=lambda group: not odd.issuperset(group.ranks))
        if self.artifact is None:
            return tuple(found[:MOST_GROUPS])
        return tuple(
            msgspec.structs.replace(group, lines=tuple(lines.get(rank, 1) for rank in group.ranks))
            for group in found[:MOST_GROUPS]
        )


def take_round(targets: Targets, clock: Clock) -> Round:
    """Collect stacks, NCCL counts and flight-recorder dumps from all ranks, and write them to artifacts/."""
    order = sorted(targets.ranks)
    processes = [targets.ranks[rank] for rank in order]
    taken = collect_stacks(
        processes,
        timeout_s=STACKS_S,
        py_spy=find_py_spy(targets.python),
        fault_folder=targets.attempt_root / FAULT_FOLDER,
    )
    stacks = dict(zip(order, taken, strict=True))
    found = _by_rank(stacks)
    extra, collective, absent = _collectives(targets)
    artifact, lines = write_stacks(
        targets.artifacts, targets.attempt, clock.wall(), found.text, stacks, extra
    )
    env = read_environ(processes[0])
    return Round(
        mono=clock.mono(),
        stacks=found,
        activity=Activity(helper_cpu_s(processes), io_bytes(processes)),
        source="+".join(sorted({str(stack.source) for stack in taken})),
        artifact=artifact,
        lines=lines,
        collective=collective,
        absent=absent,
        cpu_s={rank: own_cpu_s(process) for rank, process in targets.ranks.items()},
        here=_size(env, *_LOCAL_SIZES),
        world=_size(env, "WORLD_SIZE"),
    )


def _by_rank(stacks: Mapping[int, Stack]) -> StackRound:
    return stack_round(
        [
            RankStack(rank, stack.source, stack.lines, stack.process.pid, stack.main_call, stack.for_ever)
            for rank, stack in stacks.items()
        ]
    )


def _size(env: Mapping[str, str], *names: str) -> int | None:
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)


def _collectives(targets: Targets) -> tuple[list[str], str | None, tuple[int, ...]]:
    """Return sections for the artifact, a one-line summary, and the ranks that did not arrive."""
    sections: list[str] = []
    finding: str | None = None
    absent: tuple[int, ...] = ()
    pids = {process.pid: rank for rank, process in targets.ranks.items()}
    address = ras_address(targets.env)
    report = query_ras(address) if address is not None else None
    # The port belongs to the machine, so another job may answer.
    if report is not None and any(f"process {pid} " in report for pid in pids):
        sections += ["== NCCL RAS", *report.splitlines(), ""]
        lags = read_ras(report)
        if lags:
            finding, absent = lags[0].text, lags[0].ranks if len(lags) == 1 else ()
    dumps, trouble = load_dumps(find_dumps(dump_prefixes(targets.env), since_t=targets.since_t))
    stuck = stuck_collectives(dumps)
    if dumps or trouble:
        sections += [f"== flight recorder, dumps of ranks {', '.join(map(str, dumps)) or 'none'}", *trouble]
        found = [item.text for item in stuck]
        sections += [*(found or ["all ranks came to the same collectives"]), ""]
    if stuck:
        finding, absent = stuck_text(stuck), ranks_at_fault(stuck)
    return sections, finding, tuple(rank for rank in absent if rank in targets.ranks)


# Several rounds may end within one second.
MOST_A_SECOND = 9


def write_stacks(
    artifacts: Path, attempt: int, wall: float, head: str, stacks: Mapping[int, Stack], extra: list[str]
) -> tuple[str | None, dict[int, int]]:
    """Write a round: `head`, then `stacks` by rank, then `extra`.

    Return the file's name relative to the run directory (None if it was not written) and, for each rank, the 1-based
    line of the innermost frame in the user's code, or else of the innermost frame overall.
    """
    parts = [head, ""]
    lines: dict[int, int] = {}
    for rank, stack in stacks.items():
        note = f" ({stack.note})" if stack.note else ""
        parts.append(f"== rank {rank}, pid {stack.process.pid}, by {stack.source}{note}")
        thread = main_thread(parse_stack(stack.lines))
        at = thread.at if thread is not None else ()
        frames = thread.frames if thread is not None else ()
        own = [place for place, frame in zip(at, frames, strict=True) if not frame.is_library]
        lines[rank] = len(parts) + next(iter((*own, *at)), 0) + 1
        parts += [*stack.lines, ""]
    parts += extra
    stem = f"stacks-{attempt}-{int(wall)}"
    names = (f"{stem}.txt", *(f"{stem}-{number}.txt" for number in range(2, MOST_A_SECOND + 1)))
    name = next((name for name in names if not (artifacts / name).exists()), names[-1])
    try:
        with open(artifacts / name, "w", encoding="utf-8", opener=private) as file:
            file.write("\n".join(map(redact_text, parts)))
    except OSError as error:
        log.error("artifacts/%s: %s", name, error.strerror)
        return None, lines
    return f"artifacts/{name}", lines


# -- who asks for stacks, and when they come -----------------------------------------------------------


class StackBroker:
    """Takes one round at a time, for the watch or for a user. Used by the keeper's only thread.

    Two tracers cannot attach to one process, so a request during a round gets that round.

    Args:
        emit: journals an event.
        targets: returns the processes to inspect now, or None while no rank is known.
        take: takes one round; called in a thread.
    """

    def __init__(
        self,
        emit: Callable[[ev.Event], None],
        clock: Clock,
        targets: Callable[[], Targets | None],
        take: Callable[[Targets, Clock], Round],
    ) -> None:
        self._emit, self._clock, self._targets, self._take = emit, clock, targets, take
        self._task: BackgroundTask[Round, str] | None = None
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Begin a new attempt. The watch does not get stacks that are still being taken for the previous one."""
        self._attempt = attempt
        self._newest: Round | None = None

    def close(self) -> None:
        """Wait for a round in progress."""
        if self._task is not None:
            self._task.close(JOIN_S)

    @property
    def working(self) -> bool:
        """Whether stacks are being taken now."""
        return self._task is not None and self._task.working

    def poll(self) -> Round | None:
        """Return the latest finished round of this attempt. Each round is returned only once."""
        self._fetch()
        taken, self._newest = self._newest, None
        return taken

    def ask(self) -> BackgroundTask[Round, str] | None:
        """Start a round, unless one is in progress. The task returns the artifact's name. Return None if no rank is known."""
        if self._task is not None and self._task.working:
            return self._task
        self._fetch()
        targets, attempt = self._targets(), self._attempt
        if targets is None:
            return None

        def finish(taken: Round) -> str:
            self._journal(taken, attempt)
            if attempt == self._attempt:
                self._newest = taken
            if taken.artifact is None:
                raise OSError("the stacks could not be written: see keeper.log")
            return taken.artifact

        self._task = BackgroundTask("stoker-stacks", lambda: self._take(targets, self._clock), finish)
        return self._task

    def _fetch(self) -> None:
        if self._task is not None:
            with contextlib.suppress(OSError):  # who asked for it gets the error
                self._task.poll()

    def _journal(self, taken: Round, attempt: int) -> None:
        self._emit(
            ev.StacksTaken(
                t=self._clock.wall(),
                attempt=attempt,
                text=taken.stacks.text[:400],
                odd=taken.odd,
                line_at=taken.line_at,
                artifact=taken.artifact,
                source=taken.source,
                collective=taken.collective,
                groups=taken.groups,
            )
        )

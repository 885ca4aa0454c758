"""Examines whether a run may be adopted or continued. Other modules do the actual work.

Adopting means starting a keeper for live processes. Continuing means starting the next attempt when no process can
be alive. Both require a folder that the user owns (`run.ownership`). A folder's claims about processes count
only if the processes confirm them (`members`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec.structs import replace as with_fields

from supervisor.cluster.scheduler import scheduler_of
from supervisor.keeper.process.child import NOBODY, read_pid
from supervisor.keeper.process.members import Members, find_members
from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.journal import read_state
from supervisor.run.ownership import Offer, check_folder, keeper_is_alive, read_holder
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.regular import open_regular
from supervisor.run.runfile import BadRunFile, RunFile, read_run_file
from supervisor.sources.processes import ProcessId, boot_id, command_of

# A keeper updates the times of its lock every 5 s, and its machine may be busy. Attributes are cached for at
# most 60 s unless a file is reopened, as it is here.
WATCH_S = 60.0
LOOK_S = 1.0
MAX_PIDS = 8
# Conditions in which the newest attempt has ended, whatever else is open.
BETWEEN = (st.Ended, st.DiagnosedAs, st.Backoff, st.HeldOpen)


class NotAdopted(Exception):  # noqa: N818 - a state of affairs, not an error
    """A run cannot be adopted. The message gives the reasons, one per line."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))


@dataclass(frozen=True, slots=True)
class Continuation:
    """Reasons not to start a keeper on a run's folder. `doubts` are questions for the user, asked one at a time.

    `listen_to` is the host where a keeper that is invisible from here might still be running, and `slurm_job` is
    the SLURM job it ran in. `record` is the job, or None if the folder cannot be trusted.
    """

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    listen_to: str = ""
    slurm_job: str | None = None
    record: RunFile | None = None
    state: st.RunState = field(default_factory=st.RunState)


def recorded_processes(node: NodePaths, state: st.RunState) -> list[ProcessId]:
    """Return the processes listed in the journal and the pid files, unverified."""
    named = [(view.pid, view.start_time) for view in state.attempts]
    named += [(rank.pid, rank.start_time) for view in state.attempts for rank in view.ranks.values()]
    found = [ProcessId(pid, start_time) for pid, start_time in named if pid and start_time is not None]
    numbers = range(1, len(state.attempts) + 2)  # one more: a launch that the journal missed
    folders = [node.attempt(number) for number in numbers]
    probes = range(1, len(state.probes) + 2)
    folders += [node.probe(number).attempt(1) for number in probes]
    found += [pid for folder in folders if (pid := read_pid(folder)) is not None and pid != NOBODY]
    return list(dict.fromkeys(found))


def examine_adoption(run: RunPaths) -> tuple[Offer, RunFile | None]:
    """Check whether a new keeper may adopt a run's live processes, and list what it would do."""
    found = _examine(run)
    record, state, again = found.record, found.state, f"`stoker continue {run.run_id}`"
    refusals, actions = found.refusals, tuple[str, ...]()
    if refusals or record is None:
        pass
    elif isinstance(state.condition, st.Finished):
        more = "" if _has_succeeded(state) else f": {again} starts the next attempt"
        refusals = (f"the run is over ({state.condition.outcome.replace('_', ' ')}){more}",)
    elif state.host != socket.gethostname():
        refusals = (f"it ran on {state.host}: there it can be adopted",)
    elif state.boot_id not in {None, boot_id()}:
        refusals = (f"this machine was booted since: nothing of it lives: {again} starts the next attempt",)
    else:
        members = _members(run, record, state)
        if members.ours:
            actions = tuple(_actions(record, state, members))
        elif members.unknown:
            named = _named(members.unknown)
            refusals = (f"only its files say that {named} belongs to it: that is not enough to take it over",)
        else:
            refusals = (f"nothing of it lives: {again} starts the next attempt",)
    return Offer(refusals, found.warnings, actions), record


def adopt(run: RunPaths, env: Mapping[str, str], *, entry: str) -> None:
    """Start a keeper for a run's live processes, if nothing rules it out. For `entry`, see `start_detached`.

    Raises:
        NotAdopted: the run may not be adopted.
        KeeperDidNotStart, OSError: see `start_detached`.
    """
    from supervisor.keeper.process.detach import start_detached

    offer, record = examine_adoption(run)
    if offer.refusals or record is None:
        raise NotAdopted(offer.refusals)
    start_detached(run, env, record=record, entry=entry)


def _actions(record: RunFile, state: st.RunState, members: Members) -> Iterator[str]:
    yield f"takes over what lives of it: {_named(members.ours)}"
    if members.nested:
        yield f"leaves alone what another stoker within it keeps: {_named(members.nested)}"
    yield f"starts a new supervisor process on this host ({socket.gethostname()})"
    retry = record.job.retry
    if isinstance(state.condition, st.Stopping):
        yield "continues with the stop that was begun"
    if state.probing is not None:
        yield "watches the probe that runs to its end"
    if isinstance(state.condition, st.Backoff):
        yield "starts the next attempt once its wait is over: that was decided already"
    if retry.enabled and retry.max_retries:
        yield f"may stop the job, and restart it by the run's policy (--max-retries {retry.max_retries})"
    else:
        yield "may stop the job; does not restart it by itself"


def examine_continuation(run: RunPaths) -> Continuation:
    """Check whether a run's next attempt may start, which requires that none of its processes can be alive."""
    found = _examine(run)
    record, state = found.record, found.state
    if found.refusals or record is None:
        return replace(found, record=None)
    if isinstance(state.condition, st.Finished) and _has_succeeded(state):
        why = f"it succeeded: {state.condition.reason}: there is nothing to continue"
        return replace(found, refusals=(why,), record=None)
    if state.host != socket.gethostname():
        return _continued_elsewhere(found)
    members = _members(run, record, state)
    doubts = tuple(
        f"the run's files name {_named([process])}, which lives, and whose it is cannot be seen. Is it none of this run's?"
        for process in members.unknown
    )
    if not members.ours:
        return replace(found, doubts=doubts)
    if isinstance(state.condition, st.Finished):
        left = f"left by its earlier attempts, and alive: {_named(members.ours)}"
        return replace(found, warnings=(*found.warnings, left), doubts=doubts)
    take = f"`stoker attach --adopt {run.run_id}` takes it over"
    return replace(found, refusals=(f"it lives: {_named(members.ours)}: {take}",), doubts=doubts)


def _continued_elsewhere(found: Continuation) -> Continuation:
    state = found.state
    if isinstance(state.condition, st.Finished):
        return found
    here = scheduler_of(os.environ)
    # If the scheduler restarted a job, the job has already ended on all of its nodes.
    if isinstance(state.condition, BETWEEN) or (here.starts and here.job == state.slurm_job):
        return replace(found, listen_to=state.host)
    doubt = f"it ran on {state.host}, and no end of it is on record. Is it certain that nothing of it lives there?"
    job = state.slurm_job if state.slurm_job != here.job else None  # inside that job, it proves nothing
    return replace(found, listen_to=state.host, doubts=(doubt,), slurm_job=job)


def other_host_with_keeper(
    run: RunPaths, watch_s: float | None = None, sleep: Callable[[float], object] = time.sleep
) -> str:
    """Return the host that wrote during the watch, or "". Uses only the local clock, because two machines' clocks differ."""
    end = time.monotonic() + (WATCH_S if watch_s is None else watch_s)
    before = _marks(run)
    while time.monotonic() < end:
        sleep(LOOK_S)
        now = _marks(run)
        for path in now.keys() | before.keys():
            if now.get(path) != before.get(path):
                return path.name
        if keeper_is_alive(run.node().lock):
            return run.node().lock.name
    return ""


def _marks(run: RunPaths) -> dict[Path, tuple[int, int, int]]:
    """Return the modification time and size of a keeper's files. Each is opened, because a file server's answer may be cached."""
    node = run.node()
    found: dict[Path, tuple[int, int, int]] = {}
    for path in (node.lock, node.journal, node.log, *node.series.glob("*.jsonl")):
        with contextlib.suppress(OSError), open_regular(path) as file:
            info = os.fstat(file.fileno())
            found[path] = (info.st_ino, info.st_mtime_ns, info.st_size)
    return found


def _examine(run: RunPaths) -> Continuation:
    """Return the job and state if the run has no keeper and the user owns its folder. Otherwise, return the refusals."""
    folder = check_folder(run)
    warnings = folder.warnings
    if folder.refusals:
        return Continuation(folder.refusals, warnings)
    try:
        record = read_run_file(run.run_json)
    except BadRunFile as error:
        return Continuation((str(error),), warnings)
    if record.uid != os.geteuid():
        return Continuation((f"uid {record.uid} started it, not you (uid {os.geteuid()})",), warnings)
    state = read_state(run.node().journal)
    # The keeper was killed before the first line, or that line is torn. run.json has the rest.
    if state.started_t is None:
        state = with_fields(state, mode="launched", host=record.host)
    if state.mode != "launched":
        return Continuation(("stoker did not start this job: it only watches",), warnings)
    keeper: tuple[str, ...] = ()
    if keeper_is_alive(run.node().lock):
        holder = read_holder(run.node().lock)
        who = f" (pid {holder.pid} on {holder.host})" if holder is not None else ""
        keeper = (f"a supervisor process looks after it{who}",)
    return Continuation(keeper, warnings, record=record, state=state)


def _has_succeeded(state: st.RunState) -> bool:
    return isinstance(state.condition, st.Finished) and state.condition.outcome is Outcome.SUCCEEDED


def _members(run: RunPaths, record: RunFile, state: st.RunState) -> Members:
    same_boot = state.boot_id in {None, boot_id()}  # pids of another boot mean nothing
    recorded = recorded_processes(run.node(), state) if same_boot else []
    own = run.node(record.node).root if record.settings.shared else run.root
    return find_members(os.path.realpath(own), recorded=recorded)


def _named(processes: Iterable[ProcessId]) -> str:
    """Return a list such as ``pids 12 (python3), 13 (pt_main_thread)``, naming only the first few of many."""
    pids = [process.pid for process in processes]
    words = ", ".join(f"{pid} ({command_of(pid) or '?'})" for pid in pids[:MAX_PIDS])
    more = f" and {len(pids) - MAX_PIDS} more" if len(pids) > MAX_PIDS else ""
    return f"pid{'s' if len(pids) != 1 else ''} {words}{more}"

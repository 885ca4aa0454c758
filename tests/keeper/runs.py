"""A run carried by a keeper to its end, and journals that a dead one may have left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from supervisor.keeper.loop import Keeper
from supervisor.keeper.process.child import Child, spawn
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, SpecChange
from supervisor.run.runfile import RunFile
from tests.conftest import TOKEN, processes_with
from tests.keeper.fakes import plan_of, verdict_of

T = 1_795_000_000.0


STARTED = ev.RunStarted(t=T, run_id="run-1", name="job", mode="launched", host="box")


INTENDED = ev.LaunchIntended(t=T, attempt=1, argv=(), reason="first launch")


RUNS = ev.AttemptStarted(t=T, attempt=1, pid=99_999_999, start_time=1.0)


SAVED = ev.CheckpointCommitted(t=T, attempt=1, step=4, path="c/4")


AGAIN = Decision(DecisionKind.RESTART, "again", change=SpecChange())


WAITS = (
    ev.AttemptEnded(t=T, attempt=1, exit_code=1),
    ev.Diagnosed(t=T, attempt=1, verdict=verdict_of()),
    ev.Decided(t=T, attempt=1, decision=AGAIN),
    ev.BackoffStarted(t=T, attempt=1, until=4e9, delay_s=10.0),
)


def carry(
    run: RunPaths,
    record: RunFile,
    *,
    signals: tuple[signal.Signals, ...] = (),
    env: Mapping[str, str] | None = None,
) -> tuple[int, st.RunState]:
    """Carry `run` to its end; the journal must give the state that the keeper had."""
    keeper = Keeper(run, record, env={**os.environ, **(env or {})})
    for number in signals:
        keeper._control._signals.put(number)
    try:
        code = keeper.run_to_end()
    finally:
        keeper.close()
    assert not keeper_is_alive(run.node().lock)
    assert not processes_with(os.environ[TOKEN])
    state = read_state(run.node().journal)
    assert state == keeper.state
    assert isinstance(state.condition, st.Finished)
    assert state.condition.exit_code == code
    return code, state


def outcome(state: st.RunState) -> tuple[Outcome, int]:
    assert isinstance(state.condition, st.Finished)
    return state.condition.outcome, len(state.attempts)


def child_in(run: RunPaths, code: str, number: int = 1) -> Child:
    """What a dead keeper had launched."""
    plan = plan_of((sys.executable, "-c", code), run.root)
    return spawn(plan, run.node().attempt(number), os.environ)


def journalled(child: Child) -> ev.AttemptStarted:
    return ev.AttemptStarted(t=T, attempt=1, pid=child.pid.pid, start_time=child.pid.start_time)


def append(run: RunPaths, *facts: ev.Event) -> None:
    writer = JournalWriter(run.node().journal)
    for fact in facts:
        writer.append(fact)
    writer.close()

"""What the panes write for given values, without an app: each row as a person reads it, and what gives way for width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.heartbeat import SILENT_S
from supervisor.run.paths import RunPaths
from supervisor.run.records import (
    Decision,
    DecisionKind,
)
from supervisor.views import format as fm
from supervisor.views.model.run_list import RunRow
from supervisor.views.model.snapshot import Node
from supervisor.views.model.thinned_series import Track, single
from supervisor.views.tui.panels import header
from supervisor.views.tui.panels import notice as bars
from supervisor.views.tui.panels import ranks_table as ranks
from tests.views.tui.still import (
    attempt_of,
    drawn,
    gpu_of,
    running,
    snapshot_of,
    state_of,
)

GIB = 2.0**30


pytestmark = pytest.mark.usefixtures("no_app")


# -- header ---------------------------------------------------------------------------------------


def progress(step: int | None = 10, **values: object) -> ev.Progress:
    return ev.Progress(**{"t": 0.0, "attempt": 1, "step": step, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("condition", "step_s", "now", "quiet"),
    [
        (running(), 1.0, 30.0, None),
        (running(), 1.0, 31.0, 31.0),
        (running(), 9.0, 91.0, 91.0),
        (running(phase=ev.Phase.EVALUATING), 1.0, 99.0, None),
        (st.Ended(attempt=1, exit_code=0), 1.0, 99.0, None),
    ],
)
def test_a_run_is_quiet_after_half_a_minute_or_ten_steps(
    condition: st.Condition, step_s: float, now: float, quiet: float | None
) -> None:
    metrics: dict[str, Track] = {"step_time_s": (single(0.0, 5.0, step_s, 1),)}
    assert header.quiet_s(snapshot_of(state_of(condition), metrics=metrics), now) == quiet
    behind = state_of(condition, progress=progress(lag_bytes=10))
    assert header.quiet_s(snapshot_of(behind, metrics=metrics), now) is None, "what is unread has steps"
    assert header.quiet_s(snapshot_of(state_of(condition)), now) is None, "no step was ever logged"
    second = state_of(condition, attempt_of(2, started_t=now - 4.0))
    assert header.quiet_s(snapshot_of(second, metrics=metrics), now) is None, "this attempt has only begun"
    last = state_of(condition, attempt_of(last_step=40), total_steps=40)
    assert header.quiet_s(snapshot_of(last, metrics=metrics), now) is None, "the last step was made"


def test_without_a_time_of_a_step_that_of_an_epoch_gives_the_eta() -> None:
    track = tuple(single(10.0 * n, None, 20.0 + n, 1)._replace(epoch=float(n)) for n in range(1, 4))
    state = state_of(running(), attempt_of(), progress=progress(None, epoch=3.0, total_epochs=10.0))
    printed = snapshot_of(state, metrics={"loss": track, "epoch_time_s": track})
    assert header.epoch_time_text(printed).strip() == "23.0 s/epoch"
    assert header.eta_s(printed) == 7 * 23.0
    timed = snapshot_of(state, metrics={"loss": track, "epoch_time_s": track, "step_time_s": track})
    assert header.epoch_time_text(timed) == ""


DECISION = Decision(DecisionKind.RESTART, "again")
TIMES = [
    (running(), [attempt_of()], True, "00:02:05"),
    (running(), [attempt_of()], False, "00:00:20"),  # its keeper died: nobody knows whether it trains
    (st.HeldOpen(attempt=1, reason="", decision=None), [attempt_of(ended_t=5.0)], True, "00:00:05"),
    (st.Backoff(attempt=1, until=200.0, decision=DECISION), [attempt_of(ended_t=5.0)], True, "00:00:05"),
    (running(2), [attempt_of(ended_t=5.0), attempt_of(2, planned_t=100.0)], True, "00:00:30"),
    (
        st.Finished(outcome=Outcome.FAILED, exit_code=1, reason=""),
        [attempt_of(ended_t=5.0)],
        False,
        "00:00:05",
    ),
]


@pytest.mark.parametrize(("condition", "attempts", "keeper", "elapsed"), TIMES)
def test_the_time_of_a_run_is_that_of_its_attempts(
    condition: st.Condition,
    attempts: list[st.AttemptState],
    keeper: bool,
    elapsed: str,
) -> None:
    """While a person decides, or a restart is waited for, it stands still, and it continues from there."""
    state = state_of(condition, *attempts, last_t=20.0, ended_t=110.0 if not keeper else None)
    if isinstance(condition, st.Running):
        state = replace(state, ended_t=None)
    panel = header.HeaderPanel(id="header")
    assert f"elapsed {elapsed}" in drawn(panel, snapshot_of(state, keeper=keeper), 150, 3, now=125.0)
    row = RunRow(RunPaths(Path("/runs/x")), state, live=keeper)
    assert fm.clock(row.duration_s(125.0)) == elapsed, "the list has the same time"


# -- the line that says what is worth saying --------------------------------------------------------


def advisory(code: str = "gpu_hot_0", t: float = 0.0, attempt: int = 1) -> ev.Advisory:
    return ev.Advisory(t=t, attempt=attempt, code=code, text=f"{code} is worth knowing")


@pytest.mark.parametrize(
    ("found", "now", "is_shown"),
    [
        (advisory(), 600.0, True),
        (advisory(), 601.0, False),
        (advisory(attempt=2), 0.0, False),
        (advisory("stall"), 0.0, False),
        (advisory("gpu_shared_1"), 0.0, True),
        (advisory("gpu_shared_0"), 0.0, False),
    ],
)
def test_an_advisory_stands_while_it_holds(found: ev.Advisory, now: float, is_shown: bool) -> None:
    gpus = (gpu_of(0, others_memory_bytes=0.0), gpu_of(1, others_memory_bytes=GIB))
    snapshot = snapshot_of(state_of(advisories=(found,)), gpus=gpus)
    assert (bars.current_advisory(snapshot, now) is found) is is_shown
    held = st.HeldOpen(attempt=1, reason="", decision=None)
    assert bars.current_advisory(snapshot_of(state_of(held, advisories=(found,)), gpus=gpus), now) is None


# -- ranks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sight", "condition", "values", "word"),
    [
        (None, running(), {}, "stepping"),
        (None, st.Launching(attempt=1), {}, "starting"),
        (None, st.Preflight(), {}, "ready"),
        (None, st.HeldOpen(attempt=1, reason="", decision=None), {}, "waits"),
        (None, st.Ended(attempt=1, exit_code=0), {"exit_code": 0}, "ended"),
        (None, st.Ended(attempt=1, exit_code=1), {"exit_code": 1}, "✗ ended"),
        (None, running(), {"number": 2}, "starting"),
        (None, TIMES[-1][0], {"exit_code": 1}, "✗ exit 1"),
        (None, TIMES[-1][0], {"exit_code": 0}, "✗ failed"),
        (ev.NodeSight.LEFT, running(), {}, "✗ gone"),
        (ev.NodeSight.SILENT, running(), {}, "⚠ no sign"),
        (ev.NodeSight.JOINED, running(), {"beat_t": 0.0}, "⚠ no sign"),
    ],
)
def test_what_a_node_does(
    sight: ev.NodeSight | None, condition: st.Condition, values: dict[str, Any], word: str
) -> None:
    own = {0: st.RankState(local_rank=0, rank=1)}
    known = {name: value for name, value in values.items() if name != "beat_t"}
    state = state_of(condition, attempt_of(**{"number": 1, "ranks": own, **known}))
    node = Node(1, RunPaths(Path("/r")).node(1), state, {}, (), None, values.get("beat_t"))
    nodes = {1: ev.NodeSeen(t=0.0, node=1, sight=sight, host="b")} if sight is not None else {}
    leader = snapshot_of(state_of(running(), attempt_of(), nodes=nodes))
    assert ranks.node_state(node, leader, SILENT_S + 1).text == word

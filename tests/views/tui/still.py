"""Panels drawn without an app: a snapshot made of a state and values, and a panel's rows as text. Takes no time at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.records import FailureClass, Verdict
from supervisor.views.model.cause_context import Nearby
from supervisor.views.model.snapshot import Gpu, Rank, Snapshot
from supervisor.views.model.thinned_series import Track, single
from supervisor.views.tui.widgets.paint import Row
from supervisor.views.tui.widgets.panel import Panel, View
from tests.keeper.fakes import verdict_of

SERIES = (
    "loss",
    "val_loss",
    "lr",
    "grad_norm",
    "tokens_per_sec",
    "samples_per_sec",
    "step_time_s",
    "data_wait_s",
)


def attempt_of(number: int = 1, **values: Any) -> st.AttemptState:
    return st.AttemptState(**{"number": number, "planned_t": 0.0, "started_t": 0.0, **values})


def running(number: int = 1, phase: ev.Phase = ev.Phase.STEPPING) -> st.Running:
    return st.Running(attempt=number, phase=phase)


def state_of(condition: st.Condition | None = None, *attempts: st.AttemptState, **values: Any) -> st.RunState:
    """The state of a run with these attempts; one that runs where none is given."""
    return st.RunState(
        **{
            "run_id": "20261121-1412-brave-otter",
            "name": "gpt",
            "started_t": 0.0,
            "condition": condition or running(),
            "attempts": attempts or (attempt_of(),),
            **values,
        }
    )


def track(*values: float, attempt: int = 1) -> Track:
    """A series with a step a second."""
    return tuple(single(float(at), float(at), value, attempt) for at, value in enumerate(values))


def snapshot_of(
    state: st.RunState, *, metrics: dict[str, Track] | None = None, keeper: bool = True, **values: Any
) -> Snapshot:
    every: dict[str, Track] = dict.fromkeys(SERIES, ()) | (metrics or {})
    empty: dict[str, Any] = {
        "revision": 1,
        "state": state,
        "keeper_alive": keeper,
        "gone": False,
        "run_file": None,
        "metrics": every,
        "series": metrics or {},
        "smoothed": (),
        "lost": (),
        "pace_s": None,
        "pace": (),
        "gpus": (),
        "gpu_util": (),
        "gpu_memory": (),
        "ranks": {},
        "machine": None,
        "nearby": Nearby({}),
    }
    return Snapshot(**(empty | values))


def rank_of(key: str, *, seen_t: float = 0.0, pace_s: float | None = None, **values: float | None) -> Rank:
    return Rank(key, seen_t, None, pace_s, values, (), ())


def gpu_of(index: int, **values: float | None) -> Gpu:
    return Gpu(index, 0.0, values, (), ())


def verdict(failure: FailureClass, **values: Any) -> Verdict:
    return replace(verdict_of(failure), **values)


def text_of(rows: Sequence[Row]) -> str:
    return "\n".join("".join(span.text for span in row) for row in rows)


def drawn(panel: Panel, snapshot: Snapshot, width: int = 100, height: int = 10, *, now: float = 0.0) -> str:
    """The rows of a panel's body, as text."""
    panel.view = View(snapshot, now)
    return text_of(panel.body(width, height))

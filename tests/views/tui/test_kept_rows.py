"""Panes row by row, with the style of each piece, compared with those kept in __snapshots__: what each state says at each width.

A difference is a question, not an error: read the diff, then ``pytest --snapshot-update``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields
from syrupy.assertion import SnapshotAssertion

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.preflight.context import KNOBS_CHECK
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.records import (
    Cause,
    Consequence,
    Decision,
    DecisionKind,
    FailureClass,
    Finding,
    FindingLevel,
    Reason,
    Sameness,
    SpecChange,
)
from supervisor.views.model.cause_context import Context, Nearby
from supervisor.views.model.snapshot import Gpu, Machine, Node, Rank
from supervisor.views.model.thinned_series import Track, single
from supervisor.views.tui.charts.live import UsePanel
from supervisor.views.tui.pages.failure import FailurePage
from supervisor.views.tui.panels.devices import DevicesPanel
from supervisor.views.tui.panels.failure_card import FailureCard
from supervisor.views.tui.panels.header import HeaderPanel
from supervisor.views.tui.panels.notice import NoticeBar
from supervisor.views.tui.panels.ranks_table import RanksPanel
from supervisor.views.tui.widgets.paint import Row, cells
from supervisor.views.tui.widgets.panel import Panel, View
from tests.views.tui.still import attempt_of, gpu_of, rank_of, running, snapshot_of, state_of, track, verdict

pytestmark = pytest.mark.usefixtures("no_app")

GIB = 2.0**30
NOW = 40.0


def lines(rows: list[Row] | tuple[Row, ...]) -> list[str]:
    """Each row as text, and below it the style of each of its words."""
    found = []
    for row in rows:
        found.append("".join(span.text for span in row))
        found.append("  " + " ".join(span.style for span in row if span.text.strip()))
    return found


def kept(
    made: Callable[..., Panel],
    state: st.RunState,
    *widths: int,
    now: float = NOW,
    height: int = 40,
    **values: Any,
) -> list[str]:
    """The titles and the body of a pane at each width."""
    panel, found = made(id="pane"), list[str]()
    panel.view = View(snapshot_of(state, **values), now)
    for width in widths:
        if isinstance(panel, HeaderPanel) and width < 100:
            panel.is_low = True
        body = panel.body(width, height)
        assert [row for row in body if cells(row) > width] == []
        found += [f"-- {width}", *lines([*filter(None, panel.titles()), *body])]
    return found


# -- the header -------------------------------------------------------------------------------------------------


def progress(step: int | None = 40, **values: Any) -> ev.Progress:
    return ev.Progress(**{"t": 0.0, "attempt": 1, "step": step, **values})


LOSS = track(*[3.0] * 41)
STEPS: dict[str, Any] = {"metrics": {"loss": LOSS, "step_time_s": track(*[2.0] * 41)}}
BATCH = BatchSpec(8, 2, 2)
BEHIND = {"lag_bytes": 30_000_000, "log_bytes": 40_000_000}
FAILED = st.Finished(outcome=Outcome.FAILED, exit_code=3, reason="")
OOM: dict[str, Any] = {"last_step": 40, "ended_t": 9.0, "verdict": verdict(FailureClass.CUDA_OOM)}


def going(batch: BatchSpec | None = BATCH, **values: Any) -> st.RunState:
    known = {"total_steps": 100, "world_size": 2, "progress": progress()}
    return state_of(running(), attempt_of(last_step=40, batch=batch), **known | values)


def watched(condition: st.Condition, **values: Any) -> st.RunState:
    attempt = attempt_of(log_checked=True, started_t=5.0, **values)
    return state_of(condition, attempt, mode="observed", progress=progress(**BEHIND))


def test_the_header(snapshot: SnapshotAssertion) -> None:
    header = HeaderPanel
    paced: dict[str, Any] = {"metrics": {"loss": LOSS}, "pace": track(1.0, 1.0, 1.0), "pace_s": 1.0}
    tokens = BatchSpec(8, 1, 2, BatchUnit.TOKENS, 128)
    in_epoch = progress(39, epoch=3.0, total_epochs=10.0, epoch_step=9, epoch_steps=10)
    again = state_of(running(2), attempt_of(ended_t=5.0), attempt_of(2, planned_t=6.0))
    failed = state_of(FAILED, attempt_of(**OOM))
    assert {
        "steps": kept(header, going(), 150, 149, 100, 99, 60, 50, 40, **STEPS),
        "no keeper": kept(header, going(), 100, keeper=False, **STEPS),
        "quiet": kept(header, going(), 100, now=99.0, **STEPS),
        "pace by line times": kept(header, going(), 100, 99, **paced),
        "unread lines": kept(header, going(progress=progress(**BEHIND)), 120, **STEPS),
        "tokens": kept(header, going(tokens), 150, 120),
        "one rank": kept(header, going(BatchSpec(8, 1, 1), world_size=1), 150),
        "ranks unknown": kept(header, going(BatchSpec(8, 2, 1, ranks_known=False)), 150),
        "no step yet": kept(header, state_of(), 100),
        "no step named": kept(header, state_of(running(), attempt_of(first_loss=2.0)), 100),
        "an epoch": kept(header, state_of(progress=progress(None, epoch=3.5)), 100),
        "a wrong total": kept(header, state_of(running(), attempt_of(last_step=145), total_steps=100), 100),
        "steps of an epoch": kept(header, going(progress=in_epoch), 150),
        "another share": kept(header, going(progress=progress(epoch=6.0, total_epochs=10.0)), 100),
        "failed": kept(header, failed, 150, **STEPS),
        "a loss by its name": kept(header, failed, 150, loss_name="mlm_loss", **STEPS),
        "nan": kept(header, failed, 150, odd={"loss": (1, "nan")}),
        "waiting left out": kept(header, again, 150, 149),
        "unread": kept(header, state_of(running(), attempt_of(), mode="observed"), 120),
        "reading": kept(header, watched(running(), day_guessed=True), 120, 60),
        "read to its end": kept(header, watched(st.Ended(attempt=1, exit_code=0)), 120),
    } == snapshot


# -- devices ------------------------------------------------------------------------------------------------------


def test_the_devices(snapshot: SnapshotAssertion) -> None:
    read: dict[str, float | None] = {
        "util_ratio": 0.97, "memory_used_bytes": 60 * GIB, "memory_total_bytes": 80 * GIB, "temperature_c": 64.0,
        "power_w": 612.0, "sm_clock_mhz": 1980.0, "throttle": 0.0,
    }  # fmt: skip
    box: dict[str, float | None] = {
        "cpu_ratio": 0.6, "memory_used_bytes": 11.4 * GIB, "memory_total_bytes": 32 * GIB, "load1": 3.2,
        "shm_used_ratio": 0.08, "disk_used_ratio": 0.95, "stoker_cpu_ratio": 0.012, "stoker_rss_bytes": 120 * 2.0**20,
    }  # fmt: skip
    history = track(*[0.1, 0.5, 0.9] * 30)
    odd: list[Any] = [{"throttle": bits} for bits in (32.0, 64.0, 128.0, 8.0, 4.0)] + [
        {"lost": 1.0},
        {"util_ratio": None, "memory_total_bytes": None},
    ]
    cards = tuple(Gpu(at, 1.0, read | values, history, ()) for at, values in enumerate([{}, *odd]))
    host = Machine(1.0, box, track(0.5, 0.6, 0.7), ())
    assert {
        "one": kept(DevicesPanel, state_of(), 120, 100, 80, 60, 50, 46, 40, 30, gpus=cards[:1]),
        "trouble": kept(DevicesPanel, state_of(), 120, gpus=cards),
        "a machine": kept(DevicesPanel, state_of(), 140, 100, 80, 60, machine=host),
        "nothing": kept(DevicesPanel, state_of(), 60),
    } == snapshot


def test_the_charts_of_use(snapshot: SnapshotAssertion) -> None:
    busy, memory = partial(UsePanel, memory=False), partial(UsePanel, memory=True)
    half = track(0.5, 0.75)
    same, mixed = (
        tuple(gpu_of(at, memory_total_bytes=size * GIB) for at, size in enumerate(sizes))
        for sizes in ((80, 80), (80, 40))
    )
    host = Machine(1.0, {"memory_total_bytes": 32 * GIB}, track(0.95, 0.97), track(8 * GIB, 16 * GIB))
    ranks = {
        name: Rank(name, 0.0, None, None, {}, cpu, ()) for name, cpu in (("0", track(0.5, 2.5)), ("1", half))
    }
    young = tuple(single(t, None, value, 1) for t, value in ((0.0, 0.2), (15.0, 0.6), (30.0, 2.0)))
    old = tuple(single(t, None, value, 1) for t, value in ((0.0, 2.0), (1000.0, 0.2), (1600.0, 0.6)))
    small: dict[str, Any] = {"now": 10.9, "height": 3}
    assert {
        "gpus": kept(busy, state_of(), 20, gpus=same, gpu_util=half, **small),
        "memory": kept(memory, state_of(), 20, gpus=same, gpu_memory=half, **small),
        "unlike memory": kept(memory, state_of(), 20, gpus=mixed, gpu_memory=half, **small),
        "cpu": kept(busy, state_of(), 20, machine=host, **small),
        "ram": kept(memory, state_of(), 20, machine=host, **small),
        "ram of unknown size": kept(memory, state_of(), 20, machine=Machine(1.0, {}, (), half), **small),
        "a process": kept(busy, state_of(), 20, ranks=ranks, **small),
        "nothing": kept(busy, state_of(), 20, **small),
        "stale": kept(busy, state_of(), 20, gpus=same, gpu_util=half, now=11.0, height=3),
        "over": kept(busy, state_of(FAILED), 20, gpus=same, gpu_util=half, now=99.0, height=3),
        "a minute at least": kept(busy, state_of(), 15, gpus=same, gpu_util=young, now=30.0, height=3),
        "ten minutes": kept(busy, state_of(), 15, gpus=same, gpu_util=old, now=1600.0, height=3),
    } == snapshot


# -- notices ------------------------------------------------------------------------------------------------------

SHM = Finding(FindingLevel.WARNING, "shm", "/dev/shm has 64 MiB", "x")
FLAGS = Finding(
    FindingLevel.WARNING, KNOBS_CHECK, "no flag: --batch-knob, --batch-scope, --batch-knob; --lr", "x"
)
STALL = ev.StallFlagged(t=60.0, attempt=1, since=50.0, waited_s=10, stage="step", pace_s=1, flag_s=10)


def advised(*codes: str) -> st.RunState:
    found = (ev.Advisory(t=0.0, attempt=1, code=code, text=f"{code} is worth knowing") for code in codes)
    return state_of(advisories=tuple(found))


def test_the_notices(snapshot: SnapshotAssertion) -> None:
    newer, bar = state_of(None, unknown_events=3), NoticeBar
    sleeps = ev.StacksTaken(t=61.0, attempt=1, text="rank 1 sleeps")
    silent = attempt_of(stall=with_fields(STALL, stage="log"), stacks=sleeps)
    early: dict[str, Any] = {"findings": (FLAGS, SHM), "started_t": 5.0}
    assert {
        "newer": kept(bar, newer, 100),
        "no keeper": kept(bar, newer, 100, keeper=False),
        "unwatched": kept(bar, state_of(mode="observed"), 100, keeper=False),
        "moved": kept(bar, newer, 100, keeper=False, misplaced="moved here"),
        "gone": kept(bar, newer, 100, keeper=False, misplaced="moved here", gone=True),
        "not begun": kept(bar, state_of(started_t=None), 100, keeper=False),
        "advisory": kept(bar, advised("gpu_hot_0"), 100),
        "advisories": kept(bar, advised("gpu_hot_0", "gpu_hot_1"), 100, 30),
        "a plan": kept(bar, advised("oom_restarts"), 100),
        "no plan": kept(bar, advised("oom_ends"), 100),
        "stall": kept(bar, state_of(None, attempt_of(stall=STALL)), 100, now=61.0),
        "silence": kept(bar, state_of(None, silent), 100, now=61.0),
        "one warning": kept(bar, state_of(findings=(SHM,)), 100),
        "warnings": kept(bar, state_of(st.Preflight(), **early), 100, 40, now=604.0),
        "ten minutes later": kept(bar, state_of(**early), 100, now=605.0),
        "second attempt": kept(bar, state_of(None, attempt_of(), attempt_of(2), **early), 100),
    } == snapshot


# -- ranks ----------------------------------------------------------------------------------------------------------


def three(*, last: st.RankState | None = None, **values: Any) -> st.RunState:
    known = {at: st.RankState(local_rank=at, rank=at, pid=40 - at) for at in range(3)}
    return state_of(None, attempt_of(ranks=known | ({2: last} if last else {}), **values))


def test_the_ranks(snapshot: SnapshotAssertion) -> None:
    samples = {
        "0": rank_of("0", step=10.0, step_time_s=1.0, data_wait_s=0.0),
        "1": rank_of("1", step=9.0, step_time_s=1.2, data_wait_s=0.2),
        "2": rank_of("2", step=10.0, step_time_s=1.04, rss_bytes=GIB, compute_s=0.5),
    }
    unlike = samples | {"1": rank_of("1", step=10.0, step_time_s=2.0)}
    stepped = {name: with_fields(rank, stepped_t=50.0) for name, rank in samples.items()}
    slow = ev.SlowRankFound(t=1.0, attempt=1, rank=0, lost_s=0.5, step_s=1.5)
    dead = st.RankState(local_rank=2, rank=2, pid=38, exited=True, exit_code=1)
    alone = state_of(None, attempt_of(ranks={0: st.RankState(local_rank=0, rank=0, pid=40)}, last_step=7))
    only = {"0": rank_of("0", rss_bytes=GIB, cpu_ratio=0.5)}
    metrics: dict[str, Track] = {"step_time_s": track(0.25, 0.25)}
    own = {rank: st.RankState(local_rank=0, rank=rank, pid=50 + rank) for rank in (0, 1)}
    states = [state_of(None, attempt_of(ranks={0: own[node]}), host=f"box{node}") for node in (0, 1)]
    links: dict[str, float | None] = {"net_rx_bytes_per_s.ib0": 112e6, "net_tx_bytes_per_s.ib0": 999.5}
    box = Machine(1.0, links, (), ())
    nodes = tuple(
        Node(at, RunPaths(Path("/r")).node(at), states[at], {str(at): samples[str(at)]}, (), box, 100.0 * at)
        for at in (0, 1)
    )
    assert {
        "slow": kept(RanksPanel, three(slow_rank=slow), 120, 100, 80, 60, 40, ranks=samples),
        "very slow": kept(RanksPanel, three(slow_rank=with_fields(slow, lost_s=1.25)), 100, ranks=samples),
        "not said": kept(RanksPanel, three(), 100, ranks=samples),
        "not clear": kept(
            RanksPanel, three(slow_rank=with_fields(slow, rank=None, unclear=True)), 100, ranks=unlike
        ),
        "not the one": kept(RanksPanel, three(slow_rank=slow), 100, ranks=unlike),
        "stalled": kept(RanksPanel, three(last=dead, stall=STALL), 100, now=109.0, ranks=stepped),
        "stalled long": kept(RanksPanel, three(last=dead, stall=STALL), 100, now=110.0, ranks=stepped),
        "alone": kept(RanksPanel, alone, 100, ranks=only, metrics=metrics),
        "none": kept(RanksPanel, state_of(), 60),
        "not named": kept(RanksPanel, state_of(None, attempt_of(last_step=3)), 60),
        "nodes": kept(RanksPanel, states[0], 130, 100, 80, now=120.0, nodes=nodes),
    } == snapshot


# -- a failure --------------------------------------------------------------------------------------------------------

LOG, STACKS = "t/1/stderr.log", "artifacts/stacks-1.txt"
FELL = verdict(
    FailureClass.CUDA_OOM,
    title="rank 1 ran out of memory",
    rank=1,
    node=2,
    confidence=0.5,
    cause=Cause(LOG, 20, "CUDA out of memory"),
    advice=("use less", "or more", "or other", "a fourth"),
    consequences=(
        Consequence(FailureClass.NCCL_TIMEOUT, 0, "t/0/stderr.log", 9, "timed out"),
        Consequence(FailureClass.NCCL_TIMEOUT, 2, "t/2/stderr.log", 9, "timed out"),
        Consequence(FailureClass.TERMINATED, None, "log", 9, "bye"),
    ),
)
ALIKE = replace(FELL, rank=None, ranks=(0, 1), node=None, confidence=0.6, reason=Reason.ENDED_EARLY)
HUNG = replace(FELL, cause=Cause(STACKS, 3, "rank 1 sleeps"), consequences=FELL.consequences[:1], advice=())
UNSEEN = replace(FELL, cause=None, consequences=())
AGAIN = Decision(DecisionKind.RESTART, "it may pass", delay_s=10.0, change=SpecChange())
HELD = st.HeldOpen(attempt=1, reason="", decision=None)
WAITING = st.Backoff(attempt=1, until=50.0, decision=AGAIN)


def fell(condition: st.Condition = HELD, mode: str = "launched", **values: Any) -> st.RunState:
    known: dict[str, Any] = {
        "ended_t": 61.0,
        "last_step": 7,
        "verdict": FELL,
        "decision": AGAIN,
        "decided_by": "policy",
    }
    return state_of(condition, attempt_of(**known | values), mode=mode)


def test_a_failure(snapshot: SnapshotAssertion) -> None:
    log = [f"line {number}" for number in range(1, 31)]
    log[19] = f"        {' '.join(['CUDA out of memory'] * 3)}"
    near = Nearby({1: Context(LOG, 20, 1, tuple(log))})
    gone = Nearby({1: Context(LOG, 20, trouble="the log is gone")})
    code = replace(UNSEEN, failure=FailureClass.CODE_ERROR)
    three_times = state_of(HELD, *(attempt_of(number, verdict=FELL) for number in (1, 2, 3)))
    page, card = FailurePage, FailureCard
    differs = ev.ResumeCompared(t=0.0, attempt=1, result=Sameness.DIFFERS, text="samples of a step 16 → 8")
    asked = with_fields(differs, asked="--lr 2")
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    sign = ev.RankFailing(
        t=9.0, attempt=1, local_rank=1, sign=ev.FailureSign.EXITING, text=text, path=LOG, line=4
    )
    lives, died = ({1: st.RankState(local_rank=1, rank=1, exited=exited)} for exited in (False, True))
    early: dict[str, Any] = {"failing": sign, "ended_t": None, "decision": None, "verdict": None}
    killed = with_fields(sign, sign=ev.FailureSign.GONE, exit_code=-9, text="", path="")
    provisional: dict[str, Any] = {"verdict": FELL, "verdict_provisional": True}
    assert {
        "page": kept(page, fell(exit_code=1, decided_by="me"), 80, nearby=near),
        "narrow": kept(page, fell(), 60, nearby=gone),
        "alike": kept(page, fell(verdict=ALIKE, verdict_provisional=True), 80),
        "hung": kept(page, fell(verdict=HUNG, last_step=None), 80),
        "unseen": kept(page, fell(verdict=UNSEEN), 80),
        "again": kept(page, three_times, 80),
        "none": kept(page, state_of(), 80),
        "resumed": kept(page, state_of(None, attempt_of(compared=differs)), 80),
        "resumed as asked": kept(page, state_of(None, attempt_of(compared=asked)), 80),
        "exiting": kept(card, fell(running(), **early, ranks=lives), 100),
        "died": kept(card, fell(running(), **early, ranks=died), 100),
        "provisional": kept(card, fell(running(), **early | provisional, ranks=died), 100),
        "killed": kept(card, fell(running(), **early | {"failing": killed}, ranks=died), 100),
        "observed": kept(card, fell(running(), "observed", **early, ranks=lives), 100),
        "card": kept(card, fell(), 100, 60),
        "card of a hang": kept(card, fell(verdict=HUNG), 100),
        "until": kept(card, fell(with_fields(HELD, until=99.0), verdict=UNSEEN), 100),
        "nobody": kept(card, fell(verdict=UNSEEN), 100, keeper=False),
        "only an edit helps": kept(card, fell(verdict=code), 100),
        **{f"back-off at {now}": kept(card, fell(WAITING), 100, now=now) for now in (40.0, 45.0, 99.0)},
        "over": kept(card, fell(FAILED), 100),
        "undecided": kept(card, fell(decision=None), 100),
        "deciding": kept(card, fell(st.DiagnosedAs(attempt=1, verdict=FELL)), 100),
        "watched": kept(card, fell(mode="observed"), 100),
        "watched command": kept(card, fell(mode="observed", argv=("python", "train me.py")), 100),
        "low": kept(card, fell(), 80, height=6),
    } == snapshot

"""What the panes write for given values, without an app: each row as a person reads it, and what gives way for width."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.preflight.context import KNOBS_CHECK
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.heartbeat import SILENT_S
from supervisor.run.paths import RunPaths
from supervisor.run.records import (
    Decision,
    DecisionKind,
    FailureClass,
    Finding,
    FindingLevel,
)
from supervisor.views import format as fm
from supervisor.views.model.run_list import RunRow
from supervisor.views.model.snapshot import Node
from supervisor.views.model.thinned_series import Track, single
from supervisor.views.tui.panels import header
from supervisor.views.tui.panels import notice as bars
from supervisor.views.tui.panels import ranks_table as ranks
from supervisor.views.tui.widgets.paint import TextStyle
from supervisor.views.tui.widgets.panel import View
from tests.views.tui.still import (
    attempt_of,
    drawn,
    gpu_of,
    rank_of,
    running,
    snapshot_of,
    state_of,
    text_of,
    track,
    verdict,
)

GIB = 2.0**30


pytestmark = pytest.mark.usefixtures("no_app")


# -- header ---------------------------------------------------------------------------------------


def progress(step: int | None = 10, **values: object) -> ev.Progress:
    return ev.Progress(**{"t": 0.0, "attempt": 1, "step": step, **values})  # type: ignore[arg-type]


def head(state: st.RunState, width: int = 150, now: float = 40.0, **values: Any) -> list[str]:
    """The two rows of the header, with at most two blanks in a row."""
    panel = header.HeaderPanel(id="header")
    if width < 100:
        panel.is_low = True
    rows = drawn(panel, snapshot_of(state, **values), width, 3, now=now)
    return re.sub("  +", "  ", rows).split("\n")


LOSS = track(*[3.0] * 41)
STEPS: dict[str, Any] = {"metrics": {"loss": LOSS, "step_time_s": track(*[2.0] * 41)}}
BATCH = BatchSpec(8, 2, 2)
OOM: dict[str, Any] = {"last_step": 40, "ended_t": 9.0, "verdict": verdict(FailureClass.CUDA_OOM)}
FAILED = st.Finished(outcome=Outcome.FAILED, exit_code=1, reason="")
BEHIND = {"lag_bytes": 30_000_000, "log_bytes": 40_000_000}


def going(**values: object) -> st.RunState:
    known = {"total_steps": 100, "world_size": 2, "progress": progress(40)}
    return state_of(running(), attempt_of(last_step=40, batch=BATCH), **known | values)


def watched(condition: st.Condition, attempt: st.AttemptState, **values: object) -> st.RunState:
    return state_of(condition, attempt, mode="observed", progress=progress(40, **values))


@pytest.mark.parametrize(
    ("width", "first", "second"),
    [
        (150,
            " stoker  brave-otter · attempt 1 · ● stepping  step  40 / 100 ━━━━━━━━━━━━━───────────────────  40 % ",
            " gpt · 2 ranks · micro-batch 8 × accumulation 2 × 2 ranks = global batch 32  elapsed 00:00:40  ETA --:--:--  started 00:00 "),
        (100,
            " stoker  brave-otter · attempt 1 · ● stepping  step  40 / 100 ━━━━━━━━━━━━╸──────────────────  40 % ",
            " gpt · 2 ranks · global batch 32  elapsed 00:00:40  ETA --:--:--  started 00:00 "),
        (99,
            " stoker  brave-otter · attempt 1 · ● stepping  step  40 / 100 ━━━━━━━━━━━━──────────────────  40 % ",
            " gpt · 2 ranks · global batch 32  2.00 s/step  elapsed 00:00:40  ETA --:--:-- "),
        (60, " brave-otter · ● stepping  step  40 / 100 ━━━━╸──────  40 % ",
            " gpt · 2 ranks  2.00 s/step  elapsed 00:00:40  ETA --:--:-- "),
        (40, " brave-otter · ● stepping", " step  40 / 100  40 % "),
    ],
)  # fmt: skip
def test_the_header_has_what_fits_in_it(width: int, first: str, second: str) -> None:
    assert head(going(), width, **STEPS) == [first, second]


@pytest.mark.parametrize(
    ("state", "values", "first", "second"),
    [
        (going(), STEPS | {"keeper": False}, "? stepping ⚠ supervisor process is gone", ""),
        (going(), STEPS | {"now": 99.0}, "● stepping · no step for 59 s", "00:01:39  ETA --"),
        (going(), {"metrics": {"loss": LOSS}, "pace": track(1.0, 1.0, 1.0), "pace_s": 1.0, "width": 99},
            "● stepping", "  ~1.00 s/step  elapsed 00:00:40  ETA 00:01:00 "),
        (going(progress=progress(40, **BEHIND)), STEPS, "● stepping · log read to 10 of 40 MB  step", ""),
        (state_of(), {}, "● stepping  no step yet ", ""),
        (state_of(running(), attempt_of(first_loss=2.0)), {}, "  no step named ", ""),
        (state_of(running(), attempt_of(first_loss=2.0), progress=progress(None, epoch=3.5)), {},
            "  epoch 3.5 ", ""),
        (state_of(running(), attempt_of(), progress=progress(None, epoch=3.5)), {}, "  epoch 3.5 ", ""),
        (state_of(running(), attempt_of(last_step=145), total_steps=100), {}, "  step 145 ", ""),
        (going(progress=progress(39, epoch=3.0, total_epochs=10.0, epoch_step=9, epoch_steps=10)), {},
            "  epoch 3 / 10 · step 10 / 10 ━━━━━━━━━━━━━───────────────────  40 % ", ""),
        (going(progress=progress(40, epoch=6.0, total_epochs=10.0)), {}, "  epoch 6 / 10 · step  40 / 100 ",
            ""),
        (state_of(FAILED, attempt_of(**OOM)), STEPS, "✗ failed  step 40 ",
            "  loss 3.000  elapsed 00:00:09  s"),
        (state_of(FAILED, attempt_of(**OOM)), STEPS | {"loss_name": "mlm_loss"}, "",
            "  mlm_loss 3.000  elapsed 00:00:09  s"),
        (state_of(FAILED, attempt_of(**OOM)), {"odd": {"loss": (1, "nan")}}, "", "  loss nan  elapsed"),
        (state_of(running(2), attempt_of(ended_t=5.0), attempt_of(2, planned_t=6.0)), {"now": 10.0},
            " · attempt 2 · ● stepping", "  elapsed 00:00:09 (waiting left out)  ETA"),
        (watched(running(), attempt_of()), {}, " stoker  brave-otter · observed · ● reading",
            " gpt  elapsed --:--:--  ETA --:--:--  started – "),
        (watched(running(), attempt_of(log_checked=True, started_t=5.0, day_guessed=True), **BEHIND), {},
            " · ● reading 40 MB, 25 %  ━━━━━━━━──────────────────────── 25 % ",
            "  elapsed 00:00:35  ETA --:--:--  started ~00:00 "),
        (watched(st.Ended(attempt=1, exit_code=0), attempt_of(log_checked=True, started_t=5.0), **BEHIND), {},
            " · ◆ ended, reading its logs · reading 40 MB, 25 %  ━━━", "  elapsed 00:00:35  started 00:00 "),
    ],
)  # fmt: skip
def test_the_header_says_what_is_known(
    state: st.RunState, values: dict[str, Any], first: str, second: str
) -> None:
    above, below = head(state, **values)
    assert first in above
    assert second in below


@pytest.mark.parametrize(
    ("batch", "forms"),
    [
        (BatchSpec(8, 2, 2), ("8 × accumulation 2 × 2 ranks = global batch 32",
            "8, accumulation 2, global batch 32")),
        (BatchSpec(8, 1, 1), ("8 × accumulation 1 × 1 rank = global batch 8", "8, global batch 8")),
        (BatchSpec(8, 1, 2, BatchUnit.TOKENS, 128), ("8 × 128 tokens × accumulation 1 × 2 ranks = global batch 2 048 tokens",
            "8, global batch 2 048 tokens")),
    ],
)  # fmt: skip
def test_a_batch_is_shortened_to_what_counts(batch: BatchSpec, forms: tuple[str, str]) -> None:
    *longer, shortest = header.batch_forms(batch)
    assert longer == [f"micro-batch {form}" for form in forms]
    assert shortest == forms[1].rpartition(", ")[2]


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


def notice(snapshot_state: st.RunState, now: float = 0.0, width: int = 100, **values: object) -> str:
    panel = bars.NoticeBar(id="notice")
    return drawn(panel, snapshot_of(snapshot_state, **values), width, 1, now=now)  # type: ignore[arg-type]


def test_the_most_urgent_comes_first() -> None:
    state = state_of(None, unknown_events=3)
    gone = " ✗ the run directory is gone: what you see is the last that was read"
    begun = " no journal yet: the supervisor process has not begun, or this is not a run directory"
    assert notice(state) == " 3 facts of a newer version are not shown"
    adopts = " ⚠ the supervisor process is gone; A adopts the run if it can"
    assert notice(state, keeper=False) == adopts
    assert notice(state_of(mode="observed"), keeper=False) == " ⚠ it is no longer watched"
    assert notice(state, keeper=False, misplaced="moved here") == " ⚠ moved here"
    assert notice(state, keeper=False, misplaced="moved here", gone=True) == gone
    assert notice(state_of(started_t=None), keeper=False) == begun


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


SHM = Finding(FindingLevel.WARNING, "shm", "/dev/shm has 64 MiB", "x")
FLAGS = Finding(
    FindingLevel.WARNING, KNOBS_CHECK, "no flag: --batch-knob, --batch-scope, --batch-knob; --lr", "x"
)
STALL = ev.StallFlagged(t=60.0, attempt=1, since=50.0, waited_s=10, stage="step", pace_s=1, flag_s=10)
SLEEPS = ev.StacksTaken(t=61.0, attempt=1, text="rank 1 sleeps")


@pytest.mark.parametrize(
    ("state", "text", "more"),
    [
        (state_of(advisories=(advisory(),)), "⚠ gpu_hot_0 is worth knowing", ""),
        (state_of(advisories=(advisory("y"), advisory("x"))), "⚠ x is worth knowing", "1 more a"),
        (state_of(advisories=(advisory("oom_restarts"),)), "oom_restarts is worth knowing", "a"),
        (state_of(advisories=(advisory("oom_ends"),)), "⚠ oom_ends is worth knowing", "a"),
        (state_of(None, attempt_of(stall=STALL)), "⚠ No progress for 11 s", "a why"),
        (state_of(None, attempt_of(stall=replace(STALL, stage="log"), stacks=SLEEPS)),
            "⚠ No output for 11 s: rank 1 sleeps", "a why"),
        (state_of(findings=(SHM,)), "⚠ shm: /dev/shm has 64 MiB", "P why"),
        (state_of(st.Preflight(), findings=(FLAGS, SHM)),
            "⚠ some failures will not restart: add --batch-knob, --batch-scope", "1 more P why"),
    ],
)  # fmt: skip
def test_a_warning_has_the_key_that_says_more(state: st.RunState, text: str, more: str) -> None:
    assert notice(state, 61.0) == f" {text}{more and f'{more} '.rjust(99 - len(text))}".ljust(100)
    if state.findings:
        assert notice(state, 600.0) == "", "ten minutes are enough"
        assert notice(replace(state, attempts=(attempt_of(), attempt_of(2))), 61.0) == ""


# -- ranks ---------------------------------------------------------------------------------------------


def three_ranks(**values: st.RankState) -> st.RunState:
    known = {rank: st.RankState(local_rank=rank, rank=rank, pid=40 - rank) for rank in range(3)}
    return state_of(None, attempt_of(ranks=known | {int(k[1:]): v for k, v in values.items()}))


SAMPLES = {
    "0": rank_of("0", step=10.0, step_time_s=1.0, data_wait_s=0.0),
    "1": rank_of("1", step=9.0, step_time_s=1.2, data_wait_s=0.2),
    "2": rank_of("2", step=10.0, step_time_s=1.04, rss_bytes=GIB),
}


def rank_panel(state: st.RunState, samples: Mapping[str, object] | None = None) -> ranks.RanksPanel:
    panel = ranks.RanksPanel(id="ranks")
    known = SAMPLES if samples is None else samples
    panel.view = View(snapshot_of(state, ranks=known), 1.0)
    return panel


def table(panel: ranks.RanksPanel, width: int = 90) -> list[list[str]]:
    return [text_of([row]).split() for row in panel.body(width, 10)]


def slow_rank(rank: int | None = None, **values: object) -> st.RunState:
    """Three ranks, and what the keeper found about them."""
    state = three_ranks()
    assert state.attempt is not None
    found = ev.SlowRankFound(t=1.0, attempt=1, rank=rank, **values)  # type: ignore[arg-type]
    return replace(state, attempts=(replace(state.attempt, slow_rank=found),))


def test_the_rank_that_the_keeper_names_is_marked_whatever_it_prints() -> None:
    """It prints the shortest step time, and the others wait so long for it."""
    panel = rank_panel(slow_rank(0, lost_s=0.5, step_s=1.5))
    panel.take_lines({"1": "loss 2.0\n"})
    assert [" ".join(row) for row in table(panel, 120)] == [
        "rank state step ms/step skew data mem cpu pid seen last line",
        "0 stepping 10 1 000 +500ms 0 ms – – % 40 –",
        "1 stepping 9 1 200 +15 % ⚠ 200 ms – – % 39 – loss 2.0",
        "2 stepping 10 1 040 +0 % – 1.0G – % 38 –",
    ]
    assert [text_of([title]) for title in panel.titles()] == ["ranks · 3", "⚠ slow: 0"]
    assert "+1.25s" in table(rank_panel(slow_rank(0, lost_s=1.25, step_s=1.5)))[1]


def test_a_rank_that_died_and_those_that_stall_stand_out() -> None:
    dead = st.RankState(local_rank=2, rank=2, pid=38, exited=True, exit_code=1)
    attempt = three_ranks(r2=dead).attempts[0]
    state = state_of(None, replace(attempt, stall=STALL))
    panel = rank_panel(state, {name: replace(rank, stepped_t=50.0) for name, rank in SAMPLES.items()})
    assert panel.view is not None
    for now, ages in ((109.0, ["59 s", "59 s", "59 s"]), (110.0, ["1 m ⚠", "1 m ⚠", "1 m"])):
        panel.view = View(panel.view.snapshot, now)
        rows = panel.body(90, 10)[1:]
        assert [text_of([row]).rstrip()[-len(age) :] for row, age in zip(rows, ages, strict=True)] == ages
    styles = [[span.style for span in row if span.text.strip()] for row in rows]
    assert [(row[0], row[1], row[-1]) for row in styles] == [
        (TextStyle.STRONG, TextStyle.LIVE, TextStyle.WARN),
        (TextStyle.STRONG, TextStyle.LIVE, TextStyle.WARN),
        (TextStyle.STRONG, TextStyle.BAD, TextStyle.DIM),
    ]
    assert text_of([panel.titles()[1]]) == "✗ 1 gone"
    assert text_of(rank_panel(state_of(), {}).body(90, 10)[1:]) == "no rank has started yet"
    stepped = rank_panel(state_of(None, attempt_of(last_step=3)), {})
    assert text_of(stepped.body(90, 10)[1:]) == "no process says its rank"


def test_a_rank_alone_has_the_values_of_the_job() -> None:
    alone = attempt_of(ranks={0: st.RankState(local_rank=0, rank=0, pid=40)}, last_step=7)
    panel = ranks.RanksPanel(id="ranks")
    only = {"0": rank_of("0", rss_bytes=GIB, cpu_ratio=0.5)}
    metrics: dict[str, Track] = {"step_time_s": track(0.25, 0.25)}
    panel.view = View(snapshot_of(state_of(None, alone), ranks=only, metrics=metrics), 1.0)
    assert " ".join(table(panel, 100)[1]) == "0 stepping 7 250 – 1.0G 50 % 40 –"


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (120, "rank state step ms/step skew data compute mem peak cpu pid seen|last line"),
        (100, "rank state step ms/step skew data compute mem peak cpu pid seen"),
        (60, "rank state step ms/step skew mem seen"),
        (40, "rank state step ms/step mem"),
    ],
)
def test_the_columns_that_fit(width: int, names: str) -> None:
    first, _, line = names.partition("|")
    found = ranks.columns_of(width, reported={"data_wait_s", "compute_s", "memory_peak_bytes"})
    assert [name for name, _ in found] == [*first.split(), *([line] if line else [])]
    assert sum(size + 1 for _, size in found) <= width + 1


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
        (None, FAILED, {"exit_code": 1}, "✗ exit 1"),
        (None, FAILED, {"exit_code": 0}, "✗ failed"),
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


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0, "0"),
        (999.4, "999"),
        (999.5, "1.0K"),
        (9940, "9.9K"),
        (9950, "10K"),
        (112e6, "112M"),
        (1.2e9, "1.2G"),
    ],
)
def test_a_rate_of_a_network_has_four_cells(rate: float, text: str) -> None:
    assert ranks.short_rate(rate) == text


@pytest.mark.parametrize(
    ("state", "shown"),
    [(three_ranks(), "?"), (slow_rank(unclear=True), "?"), (slow_rank(0, lost_s=0.5, step_s=1.5), "–")],
)
def test_a_printed_step_time_alone_blames_no_rank(state: st.RunState, shown: str) -> None:
    samples = SAMPLES | {"1": rank_of("1", step=10.0, step_time_s=2.0)}
    panel = rank_panel(state, samples)
    assert shown in table(panel)[2]
    assert "1" not in text_of([panel.titles()[1]])

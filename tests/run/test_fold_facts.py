"""What each event changes in the state and puts on the timeline: the cases that a healthy run does not come to."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import BatchAnswer, BatchQuestion, KnobScope, Unread
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import merge_progress, replay
from supervisor.run.records import Decision, DecisionKind, FailureClass, Precondition
from tests.conftest import not_none
from tests.keeper.fakes import verdict_of
from tests.keeper.runs import INTENDED, RUNS, SAVED, STARTED, T

BEGUN = (STARTED, INTENDED, RUNS)


def attempt_after(*events: ev.Event) -> st.AttemptState:
    return not_none(replay((*BEGUN, *events)).attempt)


def stop(why: ev.StopWhy = ev.StopWhy.REQUEST) -> ev.StopIntended:
    return ev.StopIntended(t=T, attempt=1, why=why, by="me", grace_s=5.0)


# -- the state --------------------------------------------------------------------------------------


def changed(before: msgspec.Struct, after: msgspec.Struct) -> dict[str, Any]:
    names = set(after.__struct_fields__) - {"timeline", "last_t", "attempts"}
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}


DECIDED = ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.RESTART, "again"), by="me")
COUNTDOWN = ev.HangCountdown(t=T, attempt=1, until=T + 30, left_s=30.0, text="", rule="")
STALL = ev.StallFlagged(t=T, attempt=1, since=T, waited_s=9, stage="step", pace_s=1, flag_s=9)
ONLY = ev.OnlyFlagged(t=T, attempt=1, rule="x", why="")
WAITING = ev.WaitingFor(t=T, attempt=1, precondition=Precondition.DISK, text="")
PROBING = ev.ProbeStarted(t=T, probe=1, micro_batch=8, argv=())
HANG = ev.HangFound(t=T, attempt=1, waited_s=9.0, act_s=3.0, text="")
VERDICT = verdict_of(FailureClass.HANG)
RANK = ev.RankStarted(t=T, attempt=1, local_rank=0, pid=7, start_time=2.0, rank=4, stdout="o", stderr="e")
GONE = ev.RankFailing(t=T, attempt=1, local_rank=1, sign=ev.FailureSign.GONE)
ENDED = ev.AttemptEnded(
    t=T + 9,
    attempt=1,
    exit_code=3,
    last_step=8,
    rank_exit_codes={1: 3},
    memory_kills=2,
    log_read_bytes=5,
    log_size_bytes=6,
)
NEWER = ev.CheckpointCommitted(t=T, attempt=1, step=8, path="c/8")
COPY, COPIED = (
    ev.CheckpointKept(t=T, attempt=attempt, step=step, path="k") for attempt, step in ((2, 4), (1, 7))
)
PROBED = ev.ProbeEnded(t=T, probe=1, micro_batch=8, fitted=True, why="", took_s=1.0)


@pytest.mark.parametrize(
    ("before", "event", "of_run", "of_attempt"),
    [
        ([], ev.GpuFound(t=T, index=0), {}, {}),
        ([], ev.NoteAdded(t=T, text="x", by="me"), {}, {}),
        ([], ev.KeeperStarted(t=T, pid=5, start_time=1.0, version="1", boot_id="b", host="h", slurm_job="7"), {"keeper_pid": 5, "boot_id": "b", "host": "h", "slurm_job": "7"}, {}),
        ([], ev.KeeperLeft(t=T, why="detached"), {"keeper_left": "detached"}, {}),
        ([ev.KeeperLeft(t=T, why="x"), ev.ClockSet(t=T, ahead_s=5.0)], ev.KeeperStarted(t=T, pid=5, start_time=1.0, version="1"), {"keeper_pid": 5, "keeper_left": None, "clock_ahead_s": 0.0}, {}),
        ([], ev.ClockSet(t=T, ahead_s=5.0), {"clock_ahead_s": 5.0}, {}),
        ([], ev.TrainerReady(t=T, attempt=1, resumed_step=4, memory_base_bytes=9), {}, {"resumed_step": 4, "memory_base_bytes": 9}),
        ([], RANK, {}, {"ranks": {0: st.RankState(local_rank=0, pid=7, start_time=2.0, rank=4, stdout="o", stderr="e")}}),
        ([], ev.PhaseChanged(t=T + 1, attempt=1, phase=ev.Phase.COMPILING), {"condition": st.Running(attempt=1, phase=ev.Phase.COMPILING)}, {"phase": ev.Phase.COMPILING, "phase_t": T + 1}),
        ([stop()], ev.PhaseChanged(t=T + 1, attempt=1, phase=ev.Phase.COMPILING), {}, {"phase": ev.Phase.COMPILING, "phase_t": T + 1}),
        ([], stop(), {"condition": st.Stopping(attempt=1, why=ev.StopWhy.REQUEST, by="me")}, {"stop": stop()}),
        ([stop()], ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SIGTERM), {"condition": st.Stopping(attempt=1, why=ev.StopWhy.REQUEST, by="me", step=ev.StopStep.SIGTERM)}, {}),
        ([], ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SIGTERM), {}, {}),
        ([STALL], GONE, {}, {"failing": GONE, "stall": None}),
        ([], STALL, {}, {"stall": STALL}),
        ([STALL, ONLY], ev.StallEnded(t=T, attempt=1, stalled_s=9.0), {}, {"stall": None, "only_flagged": None}),
        ([ONLY], COUNTDOWN, {}, {"countdown": COUNTDOWN, "only_flagged": None}),
        ([COUNTDOWN], ev.HangWithdrawn(t=T, attempt=1, rule="", why=""), {}, {"countdown": None}),
        ([COUNTDOWN], ev.HangKept(t=T, attempt=1, by="me"), {}, {"countdown": None, "kept": ev.HangKept(t=T, attempt=1, by="me")}),
        ([COUNTDOWN], HANG, {}, {"countdown": None, "hang": HANG}),
        ([STALL], ev.ProcessesGone(t=T + 2, attempt=1, exit_code=1), {"condition": st.Ended(attempt=1, exit_code=1)}, {"failed_t": T + 2, "gone_t": T + 2, "exit_code": 1, "stall": None}),
        ([RANK], ENDED, {"condition": st.Ended(attempt=1, exit_code=3)}, {"failed_t": T + 9, "ended_t": T + 9, "exit_code": 3, "last_step": 8, "memory_kills": 2, "log_read_bytes": 5, "log_size_bytes": 6, "ranks": {0: st.RankState(local_rank=0, pid=7, start_time=2.0, rank=4, stdout="o", stderr="e"), 1: st.RankState(local_rank=1, exited=True, exit_code=3)}}),
        ([ev.Progress(t=T, attempt=1, step=8)], ev.AttemptEnded(t=T + 9, attempt=1, exit_code=0), {"condition": st.Ended(attempt=1, exit_code=0)}, {"ended_t": T + 9, "exit_code": 0}),
        ([], ev.LogsDated(t=T, attempt=1, began_t=2.0, over=True, over_t=4.0, copied=True, day_guessed=True), {}, {"started_t": 2.0, "found_over": True, "day_guessed": True, "stamped_t": 4.0}),
        ([], ev.LogQuiet(t=T, attempt=1, since_t=5.0), {}, {"quiet_since": 5.0, "log_checked": True}),
        ([ENDED], ev.LogQuiet(t=T, attempt=1, since_t=None), {"condition": st.Running(attempt=1, phase=ev.Phase.RENDEZVOUS)}, {"ended_t": None, "log_checked": True, "log_read_bytes": None, "log_size_bytes": None}),
        ([], ev.Diagnosed(t=T, attempt=1, verdict=VERDICT), {"condition": st.DiagnosedAs(attempt=1, verdict=VERDICT)}, {"verdict": VERDICT}),
        ([], ev.Diagnosed(t=T, attempt=1, verdict=VERDICT, provisional=True), {}, {"verdict": VERDICT, "verdict_provisional": True}),
        ([], DECIDED, {}, {"decision": DECIDED.decision, "decided_by": "me"}),
        ([DECIDED], ev.BackoffStarted(t=T, attempt=1, until=9.0, delay_s=3.0), {"condition": st.Backoff(attempt=1, until=9.0, decision=DECIDED.decision, delay_s=3.0)}, {}),
        ([DECIDED], ev.Held(t=T, attempt=1, reason="why", until=9.0), {"condition": st.HeldOpen(attempt=1, reason="why", decision=DECIDED.decision, until=9.0)}, {}),
        ([], ev.RequestDone(t=T, request_id="a", request=ev.RequestKind.NOTE, by="me"), {"answered": {"a": "done"}}, {}),
        ([], ev.RequestRefused(t=T, request_id="a", request="x", by="me", reason="stale"), {"answered": {"a": "stale"}}, {}),
        ([], SAVED, {"checkpoint": SAVED, "checkpoints": (SAVED,)}, {"checkpoint_steps": (4,)}),
        ([SAVED, COPY, COPIED], NEWER, {"checkpoint": NEWER, "checkpoints": (SAVED, NEWER), "kept": (COPY,)}, {"checkpoint_steps": (4, 8)}),
        ([WAITING], COPY, {"kept": (COPY,), "waiting": None}, {}),
        ([], ev.ChangePlanned(t=T, attempt=1, lines=("- a",)), {}, {"change": ("- a",)}),
        ([], WAITING, {"waiting": WAITING}, {}),
        ([WAITING], ev.LaunchCleared(t=T, attempt=1, waited_s=3.0), {"waiting": None}, {}),
        ([], PROBING, {"probing": PROBING}, {}),
        ([PROBING], PROBED, {"probing": None, "probes": (PROBED,)}, {}),
        ([ev.Progress(t=T, attempt=1, step=8)], ev.EvidenceSeen(t=T, attempt=1, failure=FailureClass.HANG, role="cause", text="", path="", line=1), {}, {"step_at_evidence": 8}),
        ([], ev.NodeSeen(t=T, node=1, attempt=1, sight=ev.NodeSight.ENDED, exit_code=2, stop=ev.StopWhy.SIGNAL, by="x"), {"nodes": {1: ev.NodeSeen(t=T, node=1, attempt=1, sight=ev.NodeSight.ENDED, exit_code=2, stop=ev.StopWhy.SIGNAL, by="x")}}, {"node_exits": {1: 2}, "stop": ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.SIGNAL, by=ev.on_node(1, "x"), grace_s=0.0)}),
        ([ENDED], ev.RunEnded(t=T + 9, outcome=ev.Outcome.FAILED, exit_code=3, reason="why"), {"condition": st.Finished(outcome=ev.Outcome.FAILED, exit_code=3, reason="why"), "ended_t": T + 9}, {"failed_t": None}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ev.Event) else "",
)  # fmt: skip
def test_an_event_changes_this_and_nothing_else(
    before: list[ev.Event], event: ev.Event, of_run: dict[str, Any], of_attempt: dict[str, Any]
) -> None:
    was = replay((*BEGUN, *before))
    now = replay((event,), was)
    assert changed(was, now) == of_run
    assert changed(not_none(was.attempt), not_none(now.attempt)) == of_attempt


FAILING = ev.RankFailing(t=T, attempt=1, local_rank=1, sign=ev.FailureSign.EXITING, text="ValueError: x")


def test_a_rank_that_fails_explains_a_silence_until_it_is_taken_back() -> None:
    stall = ev.StallFlagged(t=T, attempt=1, since=T, waited_s=9, stage="step", pace_s=1, flag_s=9)
    attempt = attempt_after(stall, FAILING)
    assert (attempt.failing, attempt.stall) == (FAILING, None)
    died = ev.RankExited(t=T + 1, attempt=1, local_rank=1, exit_code=1)
    late = ev.Progress(t=T + 2, attempt=1, step=3)  # a peer was a step ahead
    assert attempt_after(FAILING, died, late).failing == FAILING
    well = ev.RankExited(t=T + 1, attempt=1, local_rank=1, exit_code=0)
    assert attempt_after(FAILING, well).failing is None
    assert attempt_after(FAILING, ev.RankExited(t=T + 1, attempt=1, local_rank=0, exit_code=0)).failing
    assert attempt_after(FAILING, ev.Progress(t=T + 11, attempt=1, step=3)).failing is None


def test_the_time_between_two_attempts_is_no_time_of_the_run() -> None:
    again = ev.LaunchIntended(t=T + 3600, attempt=2, argv=(), reason="again")
    ended = ev.AttemptEnded(t=T + 60, attempt=1, exit_code=1)
    state = replay((*BEGUN, ended, again))
    began_t = not_none(state.began_t)
    assert state.waited_s == pytest.approx(3540)
    assert state.elapsed_s(T + 3700, has_keeper=True) == pytest.approx(T + 3700 - began_t - 3540)


def test_events_of_an_attempt_that_is_not_known_change_nothing() -> None:
    before = replay(BEGUN)
    for event in (
        ev.RankStarted(t=T, attempt=9, local_rank=0),
        ev.RankExited(t=T, attempt=9, local_rank=0),
        ev.LogsDated(t=T, attempt=9, began_t=1.0),
        ev.ProcessesLeft(t=T, attempt=9, why=ev.LeftWhy.UNKNOWN, processes=()),
        ev.BackoffStarted(t=T, attempt=9, until=1.0, delay_s=1.0),
        ev.BackoffStarted(t=T, attempt=1, until=1.0, delay_s=1.0),  # no decision led to it
    ):
        after = replay((*BEGUN, event))
        assert (after.attempts, after.condition) == (before.attempts, before.condition)


def test_a_value_that_is_not_repeated_stays_within_its_attempt() -> None:
    old = ev.Progress(t=1.0, attempt=1, step=3, loss=2.0)
    assert merge_progress(None, old) is old
    merged = merge_progress(old, ev.Progress(t=2.0, attempt=1, step=4))
    assert (merged.t, merged.step, merged.loss) == (2.0, 4, 2.0)
    other = ev.Progress(t=2.0, attempt=2, step=1)
    assert merge_progress(old, other) is other
    of_epoch = ev.Progress(t=1.0, attempt=1, step=204, epoch_step=4, epoch_steps=100, loss=1.0)
    later = merge_progress(of_epoch, ev.Progress(t=2.0, attempt=1, step=210))
    assert (later.step, later.epoch_step, later.epoch_steps, later.loss) == (210, None, None, 1.0)
    timed = merge_progress(of_epoch, ev.Progress(t=2.0, attempt=1, step=205, epoch_step=5, eta_s=60.0))
    assert timed.eta_s == 60.0
    assert merge_progress(timed, ev.Progress(t=3.0, attempt=1, step=206, epoch_step=6)).eta_s is None, "stale"
    read = merge_progress(old, ev.Progress(t=9.0, attempt=1, lag_bytes=5, log_bytes=9))
    assert (read.t, read.step, read.lag_bytes, read.log_bytes) == (1.0, 3, 5, 9), (
        "how far is read is no progress"
    )


@pytest.mark.parametrize(
    ("why", "kept"),
    [
        (ev.StopWhy.RESTART, True),
        (ev.StopWhy.RANK_DIED, True),
        (ev.StopWhy.HANG, True),
        (ev.StopWhy.REQUEST, False),
        (ev.StopWhy.SIGNAL, False),
        (ev.StopWhy.REQUEUE, False),
    ],
)
def test_a_stop_takes_back_a_restart_that_was_decided_on(why: ev.StopWhy, kept: bool) -> None:
    decided = ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.RESTART, "again"), by="me")
    attempt = attempt_after(decided, stop(why))
    assert (attempt.decision is not None) is kept
    assert attempt.decided_by == ("me" if kept else "")


@pytest.mark.parametrize(
    ("exit_t", "gone_t", "ended_t"),
    [(None, None, 9.0), (5.0, None, 5.0), (None, 7.0, 7.0), (5.0, 7.0, 5.0), (8.0, 7.0, 7.0)],
)
def test_when_an_attempt_ended(exit_t: float | None, gone_t: float | None, ended_t: float) -> None:
    gone = [ev.ProcessesGone(t=gone_t, attempt=1, exit_code=0)] if gone_t is not None else []
    ended = ev.AttemptEnded(t=9.0, attempt=1, exit_code=0, exit_t=exit_t)
    assert attempt_after(*gone, ended).ended_t == ended_t
    if gone:
        assert attempt_after(*gone).reads_on
    assert not attempt_after(*gone, ended).reads_on


def test_an_observed_logs_own_times() -> None:
    ended = ev.AttemptEnded(t=9.0, attempt=1, exit_code=None)
    over = ev.LogsDated(t=9.0, attempt=1, began_t=2.0, over=True, over_t=4.0)
    attempt = attempt_after(ended, over)
    assert (attempt.started_t, attempt.ended_t, attempt.found_over) == (2.0, 4.0, True)
    assert attempt_after(over).ended_t is None, "it continues"
    nothing = attempt_after(ended, ev.LogsDated(t=9.0, attempt=1, began_t=None))
    assert (nothing.started_t, nothing.found_over) == (RUNS.t, False)
    undated = attempt_after(ended, ev.LogsDated(t=9.0, attempt=1, began_t=None, over=True))
    assert (undated.started_t, undated.ended_t, undated.found_over) == (None, 9.0, True)


def test_who_continues_a_run_is_in_no_slurm_job_of_before() -> None:
    first = ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="1", host="a", slurm_job="7")
    adopted = ev.KeeperStarted(t=T, pid=2, start_time=1.0, version="1", adopted=True)
    assert (replay((STARTED, first, adopted)).slurm_job, replay((STARTED, first, adopted)).host) == ("7", "a")
    continued = ev.KeeperStarted(t=T, pid=2, start_time=1.0, version="1", continued_by="me", host="b")
    assert (replay((STARTED, first, continued)).slurm_job, replay((STARTED, first, continued)).host) == (
        None,
        "b",
    )


@pytest.mark.parametrize(
    ("first", "resumed", "planned", "begins", "went_on"),
    [
        (None, None, None, math.inf, False),
        (7, None, None, 7, False),
        (7, 4, None, 5, False),
        (7, None, 6, 7, True),
        (7, None, 5, 6, True),
        (7, None, 7, 7, False),
        (None, None, 5, math.inf, False),
    ],
)
def test_the_first_step_that_an_attempt_does(
    first: int | None, resumed: int | None, planned: int | None, begins: float, went_on: bool
) -> None:
    attempt = st.AttemptState(
        number=1, planned_t=0, first_step=first, resumed_step=resumed, resume_at=planned
    )
    assert (attempt.begins_at, attempt.went_on) == (begins, went_on)


@pytest.mark.parametrize(
    ("second", "resumed", "planned", "cuts", "best"),
    [
        ([(100, 2.5)], 20, None, {1: 21}, (1.0, 30)),
        ([], None, 20, {}, (1.0, 30)),
        ([(40, 0.5)], None, 20, {1: 21}, (0.5, 40)),
        ([(5, 4.0)], None, 20, {1: 5}, (1.0, 30)),
    ],
    ids=["resumed", "not yet", "went on", "did not do as told"],
)
def test_what_a_later_attempt_does_again_is_cut_and_the_best_loss_is_that_of_all(
    second: list[tuple[int, float]],
    resumed: int | None,
    planned: int | None,
    cuts: dict[int, float],
    best: tuple[float, int],
) -> None:
    first = [(10, 3.0), (20, 2.0), (30, 1.0)]
    state = replay(
        [
            ev.LaunchIntended(t=1.0, attempt=1, argv=("x",), reason=""),
            *(ev.Progress(t=2.0, attempt=1, step=at, loss=loss) for at, loss in first),
            ev.LaunchIntended(t=3.0, attempt=2, argv=("x",), reason="", resume_at=planned),
            ev.TrainerReady(t=3.0, attempt=2, resumed_step=resumed),
            *(ev.Progress(t=4.0, attempt=2, step=at, loss=loss) for at, loss in second),
        ]
    )
    assert state.cuts == cuts
    assert (state.best_loss, state.best_step) == best


def test_an_answer_about_the_exit_code_leaves_the_batch_that_was_answered() -> None:
    batch = BatchSpec(8, 2, 2)
    of_batch = BatchQuestion(Unread.MICRO, "", 8, (BatchAnswer("--bs"),))
    of_code = BatchQuestion(Unread.EXIT_CODE, "", None, (BatchAnswer("trust"),))
    state = replay(
        [
            ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason=""),
            ev.BatchAnswered(t=2.0, question=of_batch, value="--bs", batch=batch),
            ev.BatchAnswered(t=3.0, question=of_code, value="trust"),
        ]
    )
    assert state.attempts[0].batch == batch
    assert state.answer is not None
    assert (state.answer.value, set(state.answers)) == ("--bs", {Unread.MICRO, Unread.EXIT_CODE})


PLANNED = ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="")
FAILED = ev.AttemptEnded(t=11.0, attempt=1, exit_code=1)


def failed_t(*events: ev.Event) -> float | None:
    return replay([PLANNED, *events]).attempts[0].failed_t


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        (ev.RankExited(t=8.0, attempt=1, local_rank=1, exit_code=1), 8.0),
        (ev.RankExited(t=8.0, attempt=1, local_rank=1), 8.0),
        (ev.RankExited(t=8.0, attempt=1, local_rank=1, exit_code=0), 11.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=1), 8.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=None), 8.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=0), 11.0),
        (ev.StopIntended(t=8.0, attempt=1, why=ev.StopWhy.HANG, by="", grace_s=5.0), 8.0),
        (ev.StopIntended(t=8.0, attempt=1, why=ev.StopWhy.REQUEST, by="", grace_s=5.0), 11.0),
        (ev.RankExited(t=8.0, attempt=2, local_rank=1, exit_code=1), 11.0),
    ],
)
def test_a_failure_counts_from_its_first_sign(sign: ev.Event, expected: float) -> None:
    assert failed_t(sign, FAILED) == expected


def test_a_run_that_has_ended_does_not_recover() -> None:
    over = ev.RunEnded(t=12.0, outcome=ev.Outcome.FAILED, exit_code=1, reason="")
    assert failed_t(FAILED, over) is None


def test_a_measured_batch_is_known_once_all_of_its_parts_are() -> None:
    seen = ev.BatchMeasured(
        t=T,
        attempt=1,
        micro_batch=4,
        accumulation=2,
        world_size=3,
        setting="--bs",
        scope="global",
        total_setting="--total",
        total=24,
    )
    settings = seen.settings
    assert seen.batch == settings.batch == BatchSpec(4, 2, 3)
    assert (settings.setting, settings.scope, settings.total) == ("--bs", KnobScope.GLOBAL, ("--total", 24))
    assert (settings.micro, settings.passes, settings.ranks) == (4, 2, 3)
    for part in ("micro_batch", "accumulation", "world_size"):
        assert msgspec.structs.replace(seen, **{part: None}).batch is None
    tokens = msgspec.structs.replace(seen, unit="tokens", total=None)
    assert (tokens.batch, tokens.settings.micro, tokens.settings.total) == (None, None, None)
    known = msgspec.structs.replace(PLANNED, attempt=2)
    later = msgspec.structs.replace(seen, attempt=2, micro_batch=8)
    assert replay([PLANNED, seen, known, later]).measured == seen, "before any change"

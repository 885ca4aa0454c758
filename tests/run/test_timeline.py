"""What each fact of a run puts on the timeline: kind, tone and values."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import IN_CODE, BatchAnswer, BatchQuestion, Unread
from supervisor.run import events as ev
from supervisor.run.fold import fold, replay
from supervisor.run.records import (
    Decision,
    DecisionKind,
    FailureClass,
    Finding,
    FindingLevel,
    Precondition,
    Sameness,
)
from supervisor.run.state import RunState
from supervisor.run.timeline import moment_of

T = 0.0
B = BatchSpec(16, 2, 2)
Q = BatchQuestion(Unread.SCOPE, "--batch", 16, (BatchAnswer("per_rank"),))
M = BatchQuestion(Unread.MICRO, "", None, (BatchAnswer("--mb"),))


def left(count: int) -> tuple[ev.LeftProcess, ...]:
    return tuple(ev.LeftProcess(pid=n, command="" if n == 2 else f"w{n}") for n in range(1, count + 1))


@pytest.mark.parametrize(
    ("event", "moment"),
    [
    (ev.ProcessesLeft(t=T, attempt=1, why=ev.LeftWhy.AFTER_SUCCESS, processes=left(2)), ("processes_left", "warn", {"attempt": 1, "why": "after_success", "processes": "1 w1, 2"})),
    (ev.ProcessesLeft(t=T, attempt=1, why=ev.LeftWhy.UNKNOWN, processes=left(6)), ("processes_left", "warn", {"attempt": 1, "why": "unknown", "processes": "1 w1, 2, 3 w3, 4 w4, 5 w5, …"})),
    (ev.WaitingFor(t=T, attempt=1, precondition=Precondition.DISK, text="the disk is full"), ("waiting_for", "warn", {"attempt": 1, "precondition": "disk", "text": "the disk is full"})),
    (ev.LaunchCleared(t=T, attempt=1, waited_s=3.0), None),
    (ev.Recovered(t=T, attempt=2, after=1, total_s=61.0), ("recovered", "good", {"attempt": 2, "after": 1, "total_s": 61.0})),
    (ev.ProbeEnded(t=T, probe=2, micro_batch=8, fitted=True, why="fits", took_s=12.4), ("probe_ended", "info", {"probe": 2, "micro_batch": 8, "why": "fits", "took_s": 12.4, "steps": 0})),
    (ev.BatchFitted(t=T, probes=3, batch=B, text="micro-batch 8 fits"), ("batch_fitted", "good", {"probes": 3, "text": "micro-batch 8 fits"})),
    (ev.BatchAnswered(t=T, question=Q, value="per_rank", by="ada"), ("batch_answered", "info", {"value": "per_rank", "by": "ada", "day": "", "number": 16, "scope": "per_rank"})),
    (ev.BatchAnswered(t=T, question=M, value="--mb", day="2026-11-20"), ("batch_remembered", "info", {"value": "--mb", "by": "", "day": "2026-11-20", "micro": "--mb"})),
    (ev.BatchAsked(t=T, attempt=1, question=Q), ("batch_asked", "warn", {"attempt": 1, "knob": "--batch", "number": 16})),
    (ev.LossNotFinite(t=T, attempt=1, value="inf", step=7, last=2.5), ("loss_not_finite", "warn", {"attempt": 1, "value": "inf", "step": 7, "last": 2.5})),
    (ev.KeeperStarted(t=T, pid=1, continued_by="ada", start_time=1.0, version="1"), ("continued", "info", {"pid": 1, "continued_by": "ada", "start_time": 1.0, "version": "1"})),
    (ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="1", adopted=True), ("adopted", "info", {"pid": 1, "continued_by": "", "start_time": 1.0, "version": "1"})),
    (ev.CheckpointCommitted(t=T, attempt=1, step=7, path="c/7"), ("checkpoint_committed", "good", {"attempt": 1, "step": 7, "path": "c/7", "layout": ""})),
    (ev.CheckpointCommitted(t=T, attempt=1, step=7, path="c.pt", found=True, step_by_time=True), ("checkpoint_committed", "good", {"attempt": 1, "path": "c.pt", "layout": "", "about": 7})),
    (ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.HANG, by="stoker", grace_s=30.4), ("stop_intended", "warn", {"attempt": 1, "why": "hang", "by": "stoker", "grace_s": 30.4})),
    (ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.SIGNAL, by="stoker", grace_s=30.4), ("stop_intended", "info", {"attempt": 1, "why": "signal", "by": "stoker", "grace_s": 30.4})),
    (ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.REQUEST, by="ada", grace_s=30.4), None),
    (ev.RequestRefused(t=T, request_id="1", request="stop", by="ada", reason="stale"), ("request_refused", "warn", {"request_id": "1", "request": "stop", "by": "ada", "reason": "stale"})),
    (ev.RequestDone(t=T, request_id="1", request=ev.RequestKind.RESTART_WITH, by="ada"), ("request_done", "info", {"request_id": "1", "request": "restart", "by": "ada", "detail": ""})),
    (ev.RequestDone(t=T, request_id="1", request=ev.RequestKind.NOTE, by="ada"), None),
    (ev.HangCountdown(t=T, attempt=1, until=T + 30, left_s=30.0, text="rank 1 sleeps", rule="x"), ("hang_countdown", "warn", {"attempt": 1, "until": 30.0, "left_s": 30.0, "text": "rank 1 sleeps", "rule": "x"})),
    (ev.HangKept(t=T, attempt=1, by="ada"), None),
    (ev.StallFlagged(t=T, attempt=1, since=T, waited_s=40.0, stage="step", pace_s=1.0, flag_s=9.0), ("stall_flagged", "warn", {"attempt": 1, "since": 0.0, "waited_s": 40.0, "stage": "step", "pace_s": 1.0, "flag_s": 9.0})),
    (ev.ClockSet(t=T, ahead_s=-61.0), ("clock_back", "warn", {"ahead_s": -61.0, "by_s": 61.0})),
    (ev.PreflightFound(t=T, finding=Finding(FindingLevel.WARNING, "disk", "1 GB left", "free some")), None),
    (ev.LaunchIntended(t=T, attempt=2, argv=(), reason="first launch"), ("launch_intended", "info", {"attempt": 2, "reason": "first launch"})),
    (ev.EvidenceSeen(t=T, attempt=1, failure=FailureClass.CUDA_OOM, role="cause", text=" " + 300 * "x", path="a.log", line=3, rank=1), ("evidence_seen", "bad", {"attempt": 1, "failure": "cuda_oom", "role": "cause", "text": " " + 159 * "x", "path": "a.log", "line": 3, "rank": 1})),
    (ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SURVIVORS, pids=(4, 5), uninterruptible=(5,)), ("survivors", "bad", {"attempt": 1, "step": "survivors", "pids": "4, 5 (state D)"})),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=None), ("attempt_ended", "info", {"attempt": 1})),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=0), ("attempt_ended", "good", {"attempt": 1, "exit_code": 0})),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=0, last_step=3, log_read_bytes=123_000_000, log_size_bytes=600_000_000), ("attempt_ended", "warn", {"attempt": 1, "exit_code": 0, "last_step": 3, "log_read_bytes": 123000000, "log_size_bytes": 600000000, "read": "123", "size": "600", "unit": "MB"})),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=None, log_read_bytes=123_000_000, log_size_bytes=600_000_000), ("attempt_ended", "warn", {"attempt": 1, "log_read_bytes": 123000000, "log_size_bytes": 600000000, "read": "123", "size": "600", "unit": "MB"})),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=-9, last_step=3), ("attempt_ended", "bad", {"attempt": 1, "exit_code": -9, "last_step": 3})),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.RESTART, "so it is")), ("decided", "good", {"attempt": 1, "decision": "restart", "by": "policy", "reason": "so it is"})),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.HOLD, "so it is")), None),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.STOP, "so it is")), ("decided", "info", {"attempt": 1, "decision": "stop", "by": "policy", "reason": "so it is"})),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.RESTART, "so it is"), by="ada"), None),
    (ev.ResumeCompared(t=T, attempt=2, result=Sameness.SAME, text="30 steps"), ("resume_compared", "good", {"attempt": 2, "result": "same", "text": "30 steps", "steps_twice": 0, "steps_new": 0, "asked": ""})),
    (ev.ResumeCompared(t=T, attempt=2, result=Sameness.DIFFERS, text="30 steps"), ("resume_compared", "bad", {"attempt": 2, "result": "differs", "text": "30 steps", "steps_twice": 0, "steps_new": 0, "asked": ""})),
    (ev.RunEnded(t=T, outcome=ev.Outcome.SUCCEEDED, exit_code=3, reason="done"), ("run_ended", "good", {"outcome": "succeeded", "exit_code": 3, "reason": "done"})),
    (ev.RunEnded(t=T, outcome=ev.Outcome.FAILED, exit_code=3, reason="done"), ("run_ended", "bad", {"outcome": "failed", "exit_code": 3, "reason": "done"})),
    (ev.RunEnded(t=T, outcome=ev.Outcome.STOPPED, exit_code=3, reason="done"), ("run_ended", "info", {"outcome": "stopped", "exit_code": 3, "reason": "done"})),
    (ev.BatchAsked(t=T, attempt=1, question=BatchQuestion(Unread.MICRO, "", 16, M.answers, ranks=2, passes=4)), ("batch_asked", "warn", {"attempt": 1, "samples": 16, "ranks": 2, "passes": 4})),
    (ev.BatchAsked(t=T, attempt=1, question=BatchQuestion(Unread.MICRO, "", 16, M.answers, ranks=2, passes=1)), ("batch_asked", "warn", {"attempt": 1, "samples": 16, "ranks": 2})),
    (ev.BatchAsked(t=T, attempt=1, question=BatchQuestion(Unread.ACCUMULATION, "", 4, M.answers)), ("batch_asked", "warn", {"attempt": 1, "summed": 4})),
    (ev.BatchAsked(t=T, attempt=1, question=M), ("batch_asked", "warn", {"attempt": 1, "which": "micro"})),
    (ev.BatchAsked(t=T, attempt=1, question=BatchQuestion(Unread.EXIT_CODE, "", None, ())), ("batch_asked", "warn", {"attempt": 1, "which": "exit_code"})),
    (ev.BatchAnswered(t=T, question=M, value=IN_CODE), ("batch_answered", "info", {"value": "code", "by": "", "day": "", "in_code": "code"})),
    (ev.BatchAnswered(t=T, question=BatchQuestion(Unread.ACCUMULATION, "", 4, (BatchAnswer("--ga", number=4),)), value="--ga"), ("batch_answered", "info", {"value": "--ga", "by": "", "day": "", "accumulation": "--ga 4"})),
    (ev.Progress(t=T, attempt=1, step=3), None),
    (ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="1"), None),
    (ev.ClockSet(t=T, ahead_s=61.0), ("clock_forward", "warn", {"ahead_s": 61.0, "by_s": 61.0})),
    (ev.LaunchCleared(t=T, attempt=1, waited_s=3.0, text="the disk has room"), ("launch_cleared", "info", {"attempt": 1, "waited_s": 3.0, "text": "the disk has room"})),
    (ev.PlanDiffers(t=T, attempt=1, planned="4 × 2", measured="8 × 2", why="--bs is fixed"), ("plan_differs", "bad", {"attempt": 1, "planned": "4 × 2", "measured": "8 × 2", "why": "--bs is fixed", "text": "planned 4 × 2, measured 8 × 2: --bs is fixed"})),
    (ev.PlanDiffers(t=T, attempt=1, planned="step 40", measured="step 1", of_resume=True), ("plan_differs", "bad", {"attempt": 1, "planned": "step 40", "measured": "step 1", "why": "", "text": "did not resume: step 1"})),
    (ev.RankFailing(t=T, attempt=1, local_rank=1, rank=9, sign=ev.FailureSign.GONE), ("rank_failing", "bad", {"attempt": 1, "local_rank": 1, "sign": "gone", "rank": 9, "text": "", "path": ""})),
    (ev.RankFailing(t=T, attempt=1, local_rank=1, sign=ev.FailureSign.GONE), ("rank_failing", "bad", {"attempt": 1, "local_rank": 1, "sign": "gone", "rank": 1, "text": "", "path": ""})),
    (ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SIGTERM), None),
    (ev.ProcessesLeft(t=T, attempt=1, why=ev.LeftWhy.UNKNOWN, processes=left(5)), ("processes_left", "warn", {"attempt": 1, "why": "unknown", "processes": "1 w1, 2, 3 w3, 4 w4, 5 w5"})),
    (ev.RequestDone(t=T, request_id="1", request=ev.RequestKind.STACKS, by="ada"), ("request_done", "info", {"request_id": "1", "request": "stacks", "by": "ada", "detail": ""})),
    (ev.ResumeCompared(t=T, attempt=2, result=Sameness.DIFFERS, text="30 steps", asked="ada"), ("resume_compared", "info", {"attempt": 2, "result": "differs", "text": "30 steps", "steps_twice": 0, "steps_new": 0, "asked": "ada"})),
    (ev.ResumeCompared(t=T, attempt=2, result=Sameness.SAME_WITHIN_NOISE, text="30 steps"), ("resume_compared", "good", {"attempt": 2, "result": "same_within_noise", "text": "30 steps", "steps_twice": 0, "steps_new": 0, "asked": ""})),
    (ev.ResumeCompared(t=T, attempt=2, result=Sameness.UNKNOWN, text="30 steps"), ("resume_compared", "info", {"attempt": 2, "result": "unknown", "text": "30 steps", "steps_twice": 0, "steps_new": 0, "asked": ""})),
    (ev.NodeSeen(t=T, node=1, sight=ev.NodeSight.SILENT), ("node_seen", "warn", {"node": 1, "sight": "silent", "host": "", "by": ""})),
    (ev.NodeSeen(t=T, node=1, sight=ev.NodeSight.BACK), ("node_seen", "good", {"node": 1, "sight": "back", "host": "", "by": ""})),
    (ev.NodeSeen(t=T, node=1, sight=ev.NodeSight.LEFT), ("node_seen", "warn", {"node": 1, "sight": "left", "host": "", "by": ""})),
    (ev.NodeSeen(t=T, node=1, sight=ev.NodeSight.JOINED), ("node_seen", "info", {"node": 1, "sight": "joined", "host": "", "by": ""})),
    (ev.NodeSeen(t=T, node=1, sight=ev.NodeSight.ENDED, exit_code=0), ("node_seen", "info", {"node": 1, "sight": "ended", "host": "", "exit_code": 0, "by": ""})),
    (ev.NodeSeen(t=T, node=1, sight=ev.NodeSight.ENDED, exit_code=1), ("node_seen", "bad", {"node": 1, "sight": "ended", "host": "", "exit_code": 1, "by": ""})),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.REQUEUE, "so it is")), ("decided", "warn", {"attempt": 1, "decision": "requeue", "by": "policy", "reason": "so it is"})),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.SUCCEED, "so it is")), None),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.FAIL, "so it is")), None),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.GIVE_UP, "so it is")), None),
    (ev.RunEnded(t=T, outcome=ev.Outcome.LOST, exit_code=3, reason="done"), ("run_ended", "bad", {"outcome": "lost", "exit_code": 3, "reason": "done"})),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ev.Event) else "",
)  # fmt: skip
def test_a_fact_on_the_timeline(
    event: ev.Event, moment: tuple[str, str, dict[str, str | float]] | None
) -> None:
    found = moment_of(event, RunState())
    if moment is None:
        assert found is None
    else:
        assert found is not None
        kind, tone, values = moment
        assert (found.kind, found.tone, found.values, found.attempt) == (
            kind, tone, values, event.attempt if isinstance(event, ev.LaunchIntended) else None,
        )  # fmt: skip


@pytest.mark.parametrize(("written_t", "ahead_s", "shown_t", "place"), [
    (12.0, 0.0, 12.0, 1), (22.0, 10.0, 12.0, 1), (None, 0.0, 30.0, 2), (5.0, 0.0, 30.0, 2), (31.0, 0.0, 30.0, 2),
])  # fmt: skip
def test_a_checkpoint_stands_where_it_was_written_within_its_attempt(
    written_t: float | None, ahead_s: float, shown_t: float, place: int
) -> None:
    state = msgspec.structs.replace(RunState(), clock_ahead_s=ahead_s)
    for event in (
        ev.LaunchIntended(t=10.0, attempt=1, argv=(), reason="first launch"),
        ev.RankFailing(t=20.0, attempt=1, local_rank=1, sign=ev.FailureSign.GONE),
        ev.CheckpointCommitted(t=30.0, attempt=1, step=7, path="c/7", found=True, written_t=written_t),
    ):
        state = fold(state, event)
    moments = [(str(moment.kind), moment.t) for moment in state.timeline]
    assert moments.index(("checkpoint_committed", shown_t)) == place
    assert [t for _, t in moments] == sorted(t for _, t in moments)


def test_a_launch_that_a_person_asked_for_says_what_it_changes() -> None:
    before = [
        "run",
        "--log-dir=/r/attempts/1/x",
        "--lr",
        "1",
        "--fused",
        "--out",
        "attempts/1/o",
        "--ckpt",
        "a",
        "--n",
        "2",
    ]
    after = [
        "run",
        "--log-dir=/r/attempts/2/x",
        "--lr",
        "2",
        "--bf16",
        "--out",
        "attempts/2/o",
        "--ckpt",
        "b",
        "--n",
        "2",
    ]
    first = ev.LaunchIntended(t=1.0, attempt=1, argv=tuple(before), reason="first launch")
    again = ev.LaunchIntended(t=3.0, attempt=2, argv=tuple(after), reason="again", resume="--ckpt b")
    decision = Decision(DecisionKind.RESTART, "again")
    for by, kind in (("ada", "launch_requested"), ("policy", "launch_intended")):
        state = replay([first, ev.Decided(t=2.0, attempt=1, decision=decision, by=by)])
        moment = moment_of(again, state)
        assert moment is not None
        assert (moment.kind, moment.tone, moment.attempt) == (kind, "info", 2)
        changed = "--lr 1 → 2, − --fused, + --bf16" if by == "ada" else None
        assert moment.values.get("arguments") == changed

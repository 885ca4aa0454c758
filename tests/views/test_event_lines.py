"""Each fact of a run in the console's own words, and at its level."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.job.spec import BatchAnswer, BatchQuestion, Unread
from supervisor.run import events as ev
from supervisor.run.fold import replay
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
)
from supervisor.views.headless.console import (
    MADE,
    event_lines,
    progress_text,
    verdict_lines,
)
from supervisor.views.headless.story import place_text, story
from tests.keeper.fakes import verdict_of

T = 0.0
B = BatchSpec(16, 2, 2)

COUNTS = BatchQuestion(
    Unread.SCOPE,
    "--bs",
    24,
    (
        BatchAnswer("per_rank", BatchChange(BatchSpec(24, 1, 2), BatchSpec(12, 1, 2))),
        BatchAnswer("global", None, "how many ranks there are is not known"),
    ),
)


def left(count: int) -> tuple[ev.LeftProcess, ...]:
    return tuple(ev.LeftProcess(pid=n, command="" if n == 2 else f"w{n}") for n in range(1, count + 1))


# Every kind of event that the console prints, and some that it does not.
LINES: list[tuple[ev.Event, list[tuple[str, str]]]] = [
    (ev.LaunchCleared(t=T, attempt=1, waited_s=3.0, text="the disk has room"), [("INFO", "the disk has room")]),
    (ev.LaunchCleared(t=T, attempt=1, waited_s=3.0), []),
    (ev.ProbeEnded(t=T, probe=2, micro_batch=8, fitted=True, why="fits", took_s=12.4), [("INFO", "probe 2: micro-batch 8 fits (12 s)")]),
    (ev.RunStarted(t=T, run_id="r-1", name="gpt", mode="launched", host="box"), [("INFO", "run r-1: gpt on box")]),
    (ev.KeeperStarted(t=T, pid=1, continued_by="ada", start_time=1.0, version="1"), [("INFO", "ada continues the run")]),
    (ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="1"), []),
    (ev.TrainerReady(t=T, attempt=1, resumed_step=7), [("INFO", "resumed at step 7")]),
    (ev.TrainerReady(t=T, attempt=1), []),
    (ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.HANG, by="stoker", grace_s=30.4), [("INFO", "stopping attempt 1: hang (by stoker, grace 30 s)")]),
    (ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.SIGNAL, by="Ctrl-C", grace_s=30.4), [("INFO", "stopping attempt 1: signal (by Ctrl-C, grace 30 s); Ctrl-C again kills at once")]),
    (ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.SIGNAL, by="Ctrl-C", grace_s=0.0), [("INFO", "stopping attempt 1: signal (by Ctrl-C, grace 0 s)")]),
    (ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SURVIVORS, pids=(4, 5)), [("ERROR", "would not end: pids 4, 5")]),
    (ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SIGKILL, pids=(4, 5)), [("WARNING", "killing what is left (SIGKILL): pids 4, 5")]),
    (ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SIGKILL), []),
    (ev.RequestDone(t=T, request_id="1", request=ev.RequestKind.RESTART_WITH, by="ada"), []),
    (ev.Advisory(t=T, attempt=1, code="x", text="memory creeps"), [("WARNING", "memory creeps")]),
    (ev.Advisory(t=T, attempt=1, code=f"{ev.ON_OOM}restarts", text="it restarts"), [("INFO", "it restarts")]),
    (ev.HangCountdown(t=T, attempt=1, until=T + 30, left_s=30.0, text="rank 1 sleeps", rule="x"), [("WARNING", "hang: will be ended in 30 s: rank 1 sleeps; Esc in the dashboard keeps waiting")]),
    (ev.HangWithdrawn(t=T, attempt=1, rule="x", why="it moves"), [("INFO", "hang: not ended: it moves")]),
    (ev.HangKept(t=T, attempt=1, by="ada"), [("INFO", "hang: ada keeps waiting")]),
    (ev.HangFound(t=T, attempt=1, waited_s=40.0, act_s=30.0, text="rank 1 sleeps"), []),
    (ev.StallFlagged(t=T, attempt=1, since=T, waited_s=40.0, stage="step", pace_s=1.0, flag_s=9.0), []),
    (ev.StallEnded(t=T, attempt=1, stalled_s=50.0), []),
    (ev.PreflightFound(t=T, finding=Finding(FindingLevel.OK, "disk", "room")), []),
    (ev.PreflightFound(t=T, finding=Finding(FindingLevel.WARNING, "disk", "1 GB left", "free some")), [("WARNING", "disk: 1 GB left: free some")]),
    (ev.PreflightFound(t=T, finding=Finding(FindingLevel.REFUSE, "gpu", "none")), [("ERROR", "gpu: none")]),
    (ev.LaunchIntended(t=T, attempt=2, argv=(), reason="first launch"), [("INFO", "attempt 2: first launch")]),
    (ev.LaunchIntended(t=T, attempt=2, argv=(), reason="again", batch=B), [("INFO", "attempt 2: again · micro-batch 16 × accumulation 2 × 2 ranks = global batch 64")]),
    (ev.AttemptStarted(t=T, attempt=1, pid=77, start_time=1.0), [("INFO", "attempt 1 started (pid 77)")]),
    (ev.AttemptStarted(t=T, attempt=1, pid=0, start_time=0.0), []),
    (ev.EvidenceSeen(t=T, attempt=1, failure=FailureClass.CUDA_OOM, role="cause", text=" " + 300 * "x", path="a.log", line=3, rank=1), [("WARNING", "rank 1: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx (a.log:3)")]),
    (ev.EvidenceSeen(t=T, attempt=1, failure=FailureClass.CUDA_OOM, role="cause", text="boom", path="a.log"), [("WARNING", "boom")]),
    (ev.EvidenceSeen(t=T, attempt=1, failure=FailureClass.CUDA_OOM, role="cause", text="boom", path="a.log", rank=0), [("WARNING", "rank 0: boom")]),
    (ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SURVIVORS, pids=(4, 5), uninterruptible=(5,)), [("ERROR", "would not end: pids 4, 5 (state D): they wait in the kernel, for a GPU, a disk or a network")]),
    (ev.ProcessesGone(t=T, attempt=1, exit_code=None), [("INFO", "attempt 1: its processes have ended, exit code unknown; reading its logs")]),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=None), [("WARNING", "attempt 1 ended, exit code unknown")]),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=0), [("INFO", "attempt 1 ended, exit code 0")]),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=0, last_step=3, log_read_bytes=123_000_000, log_size_bytes=600_000_000), [("WARNING", "attempt 1 ended at step 3, exit code 0, log read to 123 of 600 MB")]),
    (ev.AttemptEnded(t=T, attempt=1, exit_code=-9, last_step=3), [("WARNING", "attempt 1 ended at step 3, exit code -9")]),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.RESTART, "so it is")), [("INFO", "restart: so it is")]),
    (ev.Decided(t=T, attempt=1, decision=Decision(DecisionKind.FAIL, "so it is")), []),
    (ev.ResumeCompared(t=T, attempt=2, result=Sameness.SAME, text="30 steps"), [("INFO", "attempt 2: same training: 30 steps")]),
    (ev.ResumeCompared(t=T, attempt=2, result=Sameness.DIFFERS, text="30 steps"), [("WARNING", "attempt 2: differs: 30 steps")]),
    (ev.ChangePlanned(t=T, attempt=2, lines=("--a 1", "--b 2")), [("INFO", "change: --a 1"), ("INFO", "change: --b 2")]),
    (ev.BackoffStarted(t=T, attempt=1, until=T + 4, delay_s=4.0), [("INFO", "next attempt in 4 s")]),
    (ev.BackoffStarted(t=T, attempt=1, until=T, delay_s=0.0), []),
    (ev.RunEnded(t=T, outcome=ev.Outcome.SUCCEEDED, exit_code=3, reason="done"), [("SUCCESS", "succeeded: done (exit code 3)")]),
    (ev.RunEnded(t=T, outcome=ev.Outcome.FAILED, exit_code=3, reason="done"), [("ERROR", "failed: done (exit code 3)")]),
    (ev.RunEnded(t=T, outcome=ev.Outcome.STOPPED, exit_code=3, reason="done"), [("INFO", "stopped: done (exit code 3)")]),
    (ev.RunEnded(t=T, outcome=ev.Outcome.LOST, exit_code=3, reason="done"), [("ERROR", "lost: done (exit code 3)")]),
    (ev.RunEnded(t=T, outcome=ev.Outcome.LOST, exit_code=0, reason="done"), [("WARNING", "lost: done")]),
    (ev.BatchMeasured(t=T, attempt=1, micro_batch=8, accumulation=2, world_size=2, global_batch=32, setting="--bs"), [("INFO", "measured: micro-batch 8 × accumulation 2 × 2 ranks = global batch 32, set by --bs")]),
    (ev.BatchMeasured(t=T, attempt=1, micro_batch=8), []),
    (ev.BatchMeasured(t=T, attempt=1, micro_batch=8, accumulation=2, world_size=2, global_batch=32, logged_step=4.0), [("INFO", "measured: micro-batch 8 × accumulation 2 × 2 ranks = global batch 32"), ("INFO", "1 step of the script is 4 optimizer steps")]),
    (ev.BatchMeasured(t=T, attempt=1, logged_step=0.25), [("INFO", "4 steps of the script are 1 optimizer step")]),
    (ev.RankFailing(t=T, attempt=1, local_rank=1, rank=0, sign=ev.FailureSign.EXITING, text="OSError: no space. More."), [("ERROR", "rank 0 is exiting: OSError: no space; waiting for the launcher to end")]),
    (ev.RankFailing(t=T, attempt=1, local_rank=1, sign=ev.FailureSign.GONE, exit_code=1), [("ERROR", "rank 1 died: exit code 1; waiting for the launcher to end")]),
    (ev.RankFailing(t=T, attempt=1, local_rank=1, sign=ev.FailureSign.GONE, exit_code=-99), [("ERROR", "rank 1 died: signal 99; waiting for the launcher to end")]),
    (ev.RankFailing(t=T, attempt=1, local_rank=1, sign=ev.FailureSign.GONE, text="x" * 121), [("ERROR", f"rank 1 died: {'x' * 119}…; waiting for the launcher to end")]),
    (ev.RankFailing(t=T, attempt=1, local_rank=1, sign=ev.FailureSign.GONE, text="x" * 120), [("ERROR", f"rank 1 died: {'x' * 120}; waiting for the launcher to end")]),
    (ev.BatchAsked(t=T, attempt=1, question=BatchQuestion(Unread.EXIT_CODE, "", None, ())), [("INFO", "if that was a success: --trust-exit-code")]),
    (ev.BatchAsked(t=T, attempt=1, question=BatchQuestion(Unread.RESUME, "", None, (BatchAnswer("--resume", refusal="try it"), BatchAnswer("itself", refusal="restart")))), [("WARNING", "to continue, answer, or say it with --resume-knob FLAG=PATH or --self-resuming: how does the script resume from a checkpoint? --resume-knob --resume (it resumes: --resume: try it) | --self-resuming (it resumes: by itself, from its newest checkpoint: restart)")]),
    (ev.BatchAsked(t=T, attempt=1, question=BatchQuestion(Unread.COUNTER, "", None, (BatchAnswer("restarts", refusal="restart"),))), [("WARNING", "to continue, answer, or set [policy] step_counter: does the script's step count start over at 0 after a resume? yes: its step count starts over at 0: restart")]),
    (ev.RankFailing(t=T, attempt=1, local_rank=1, sign=ev.FailureSign.GONE, exit_code=-9), [("ERROR", "rank 1 died: SIGKILL; waiting for the launcher to end")]),
    (ev.BatchAsked(t=T, attempt=1, question=COUNTS), [("WARNING", "to restart smaller, answer: what does --bs 24 count? --batch-scope per_rank --allow-smaller-global (24 is per rank: 12 × accumulation 1 × 2 ranks = global batch 24, no longer 48) | 24 is global: how many ranks there are is not known")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "lines"),
    LINES,
    ids=lambda value: type(value).__name__ if isinstance(value, ev.Event) else "",
)
def test_a_fact_in_the_consoles_words(event: ev.Event, lines: list[tuple[str, str]]) -> None:
    assert list(event_lines(event)) == lines


def test_every_line_of_the_console_can_be_made() -> None:
    assert set(MADE) <= {type(event) for event, _ in LINES}


def second(
    first_step: int | None,
    *,
    resume: str | None = None,
    at: int | None = None,
    ready: int | None = None,
    before: int | None = None,
) -> list[ev.Event]:
    facts: list[ev.Event] = [
        ev.RunStarted(t=T, run_id="r-1", name="gpt", mode="launched", host="box"),
        ev.LaunchIntended(t=T, attempt=1, argv=(), reason="first launch", batch=B),
        ev.AttemptStarted(t=T, attempt=1, pid=77, start_time=1.0),
        *([ev.Progress(t=T + 1, attempt=1, step=before, loss=2.0)] if before else []),
        ev.AttemptEnded(t=T + 8, attempt=1, exit_code=None),
        ev.LaunchIntended(t=T + 9, attempt=2, argv=(), reason="again", resume=resume, resume_at=at),
        ev.AttemptStarted(t=T + 9, attempt=2, pid=78, start_time=1.0),
    ]
    if ready is not None:
        facts.append(ev.TrainerReady(t=T + 9, attempt=2, resumed_step=ready))
    if first_step is not None:
        facts.append(ev.Progress(t=T + 10, attempt=2, step=first_step, loss=1.0))
    return facts


@pytest.mark.parametrize(
    ("facts", "resumed"),
    [
        (second(None), []),
        (second(1, before=7), ["resumed   without a resume setting: started again at step 1"]),
        (second(2), ["resumed   without a resume setting: its first step seen is 2"]),
        (second(9, resume="--resume"), ["resumed   with --resume: its first step seen is 9"]),
        (second(6, at=5), ["resumed   from the checkpoint at step 5: its first step seen is 6"]),
        (second(5, resume="x", at=5), ["resumed   with x: its first step seen is 5"]),
        (  # a script that counts from 0 goes on with the checkpoint's own step
            [*second(5, resume="x", at=5), ev.PlanConfirmed(t=T + 11, attempt=2, resume="c.pt")],
            ["resumed   from the checkpoint at step 5: its first step seen is 5"],
        ),
        ([ev.CheckpointCommitted(t=T, attempt=1, step=5, path="c.pt", found=True, step_by_time=True), *second(6, at=5)], ["resumed   from the checkpoint about step 5, by its time: its first step seen is 6"]),
        (second(5, ready=4), ["resumed   at step 4, a committed checkpoint of attempt 1"]),
        ([*second(5, ready=4), ev.ResumeCompared(t=T, attempt=2, result=Sameness.SAME, text="30 steps")], ["resumed   at step 4, a committed checkpoint of attempt 1", "compared  same training: 30 steps"]),
    ],
)  # fmt: skip
def test_the_story_says_how_an_attempt_went_on(
    tmp_path: Path, facts: list[ev.Event], resumed: list[str]
) -> None:
    state = replay(facts)
    first, last = state.attempts[1].first_step, state.attempts[1].last_step
    step = "no step" if first is None else f"steps {first}–{last}"
    before = state.attempts[0].last_step
    earlier = "no step" if before is None else f"steps {before}–{before}"
    assert story(state, RunPaths(tmp_path)).splitlines() == [
        "",
        "run       r-1  gpt",
        f"attempt 1 {earlier}, exit unknown after 8 s, micro-batch 16 × accumulation 2 × 2 ranks = global batch 64",
        "change    none: relaunched as it was",
        *resumed,
        f"attempt 2 {step}, exit unknown",
        f"directory {tmp_path}",
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "alive, no step seen yet"), ({"step": 3}, "step 3"), ({"step": 3, "total_steps": 9}, "step 3/9"),
        ({"loss": 1.23456}, "loss 1.2346"), ({"val_loss": 2.0}, "val 2.0000"), ({"lr": 1e-3}, "lr 1.00e-03"),
        ({"tokens_per_sec": 1234.5}, "1,234 tokens/s"), ({"samples_per_sec": 1234.56}, "1,234.6 samples/s"),
        ({"step_time_s": 0.0123}, "12 ms/step"), ({"step": 1, "loss": 0.0}, "step 1 · loss 0.0000"),
    ],
)  # fmt: skip
def test_progress_says_what_is_known(values: dict[str, Any], said: str) -> None:
    assert progress_text(ev.Progress(t=T, attempt=1, **values)) == said
    assert progress_text(ev.Progress(t=T, attempt=1, step=3), 7) == "step 3/7"


def test_what_a_verdict_comes_to(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    plain = dataclasses.replace(
        verdict_of(FailureClass.CUDA_OOM), title="out of memory", confidence=0.5, cause=None, consequences=()
    )
    assert list(verdict_lines(dataclasses.replace(plain, failure=FailureClass.HEALTHY), run, 1)) == []
    user = dataclasses.replace(plain, failure=FailureClass.TERMINATED, reason=Reason.USER)
    assert list(verdict_lines(user, run, 1)) == [("INFO", "out of memory")]
    sure = dataclasses.replace(
        plain,
        title="out of memory: boom",
        node="n3",
        cause=Cause("/x/a.log", 0, "boom " + "x" * 300),
        consequences=(Consequence(FailureClass.WORKER_CRASH, 0, "a", 1),) * 2,
    )
    assert list(verdict_lines(sure, run, 1)) == [
        ("ERROR", "cuda_oom (50 % sure): out of memory: boom"),
        ("ERROR", "node   n3"),
        ("ERROR", f"cause  /x/a.log  boom {'x' * 234}…"),
        ("INFO", "what followed: worker crash ×2"),
    ]
    told = dataclasses.replace(plain, advice=("a", "b", "c", "d"), cause=Cause("/x/a.log", 3, "boom"))
    assert list(verdict_lines(told, run, 1)) == [
        ("ERROR", "cuda_oom (50 % sure): out of memory"),
        ("ERROR", "cause  /x/a.log:3  boom"),
        *(("INFO", f"advice: {one}") for one in "abc"),
    ]
    # A path that is near to the working folder is shown relative to it.
    assert Path(place_text(Cause("a.log", 0, "boom"), tmp_path)).resolve() == (tmp_path / "a.log").resolve()

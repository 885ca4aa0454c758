"""Kinds and values: the state carries no sentence, both languages have words for every kind, and these are the words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.job.spec import IN_CODE, BatchAnswer, BatchQuestion, Unread
from supervisor.run import events as ev
from supervisor.run.fold import CHANGES, replay
from supervisor.run.records import (
    Decision,
    DecisionKind,
    Difference,
    FailureClass,
    Precondition,
    Sameness,
    SpecChange,
)
from supervisor.run.state import AttemptState, Moment, RunState
from supervisor.views.appearance import Lang
from supervisor.views.wording.kinds import (
    OPTIONAL,
    changed_text,
    epoch_text,
    place_of_end,
    reading_text,
    sections,
)
from supervisor.views.wording.translate import english, words_in
from tests.keeper.fakes import verdict_of
from tests.views.sentences import sentences

RUN = Path(__file__).parents[2] / "supervisor" / "run"


RESUMES = BatchQuestion(Unread.RESUME, "", None, (BatchAnswer("--load=PATH"), BatchAnswer("never")))
COUNTS = BatchQuestion(
    Unread.SCOPE,
    "--bs",
    24,
    (
        BatchAnswer("per_rank", BatchChange(BatchSpec(24, 1, 2), BatchSpec(12, 1, 2))),
        BatchAnswer("global", None, "how many ranks there are is not known"),
    ),
)
MAKES = BatchQuestion(
    Unread.MICRO,
    "",
    8,
    (BatchAnswer("--batch", number=8), BatchAnswer("--mini", number=8), BatchAnswer(IN_CODE)),
    "abc",
    ranks=2,
    passes=1,
)


def one(kind: Callable[..., ev.Event], **values: object) -> ev.Event:
    """An event of the first attempt."""
    return kind(t=2.0, attempt=1, **values)


def started(number: int = 1, t: float = 1.0, argv: tuple[str, ...] = ("x",)) -> list[ev.Event]:
    return [
        ev.RunStarted(t=t, run_id="run-1", name="gpt", mode="launched", host="box"),
        ev.LaunchIntended(t=t, attempt=number, argv=argv, reason="first launch"),
        ev.AttemptStarted(t=t, attempt=number, pid=7, start_time=t),
    ]


def stopped(why: ev.StopWhy, by: str = "ada") -> list[ev.Event]:
    return [*started(), ev.StopIntended(t=2.0, attempt=1, why=why, by=by, grace_s=3.0)]


def ended(exit_code: int | None, **cut: int) -> ev.AttemptEnded:
    return ev.AttemptEnded(
        t=3.0,
        attempt=1,
        exit_code=exit_code,
        log_read_bytes=cut.get("log_read_bytes"),
        log_size_bytes=cut.get("log_size_bytes"),
    )


def left(why: ev.LeftWhy, count: int) -> ev.ProcessesLeft:
    processes = tuple(ev.LeftProcess(pid=pid, command="python" * (pid > 1)) for pid in range(1, count + 1))
    return ev.ProcessesLeft(t=2.0, attempt=1, why=why, processes=processes)


def decided(kind: DecisionKind, change: SpecChange | None = None, by: str = "policy") -> ev.Decided:
    return ev.Decided(t=4.0, attempt=1, decision=Decision(kind, "stopped on request", change=change), by=by)


def done(kind: ev.RequestKind) -> ev.RequestDone:
    return ev.RequestDone(t=5.0, request_id="1", request=kind, by="ada")


CLOCK = "the machine's clock was set {} by 3600 s: times here continue without the jump"
# The events, and the newest moment in English.
EXAMPLES: list[tuple[list[ev.Event], str]] = [
    ([ev.KeeperStarted(t=1.0, pid=1, start_time=1.0, version="1", adopted=True)], "a new supervisor process adopted the run"),
    ([ev.KeeperStarted(t=1.0, pid=1, start_time=1.0, version="1", continued_by="kim")], "kim continues the run"),
    ([ev.ClockSet(t=1.0, ahead_s=3600.4)], CLOCK.format("forward")),
    ([ev.ClockSet(t=1.0, ahead_s=-3600.4)], CLOCK.format("back")), (started(), "attempt 1: first launch"),
    (
        [
            *started(
                argv=("torchrun", "--log-dir=/r/attempts/1/torchrun", "a.py", "--lr", "1e-2", "--fused")
            ),
            decided(DecisionKind.RESTART, SpecChange(argv=("--lr", "3e-3", "--seed=1")), "ada"),
            *started(
                2, argv=("torchrun", "--log-dir=/r/attempts/2/torchrun", "a.py", "--lr", "3e-3", "--seed=1")
            ),
        ],
        "attempt 2: as asked, with --lr 1e-2 → 3e-3, − --fused, + --seed 1",
    ),
    ([*started(), one(ev.CheckpointCommitted, step=1800, path="c")], "checkpoint at step 1800"),
    ([one(ev.EvidenceSeen, failure=FailureClass.CUDA_OOM, role="cause", text="{0}" * 99, path="p", rank=1)], f"rank 1: cuda_oom — {('{0}' * 99)[:160]}"),
    ([one(ev.RankFailing, local_rank=1, sign=ev.FailureSign.EXITING, text="boom")], "rank 1 is exiting after an error"),
    (stopped(ev.StopWhy.SIGNAL, ""), "stopping: signalled"),
    ([one(ev.StopStepTaken, step=ev.StopStep.SURVIVORS, pids=(4, 5))], "processes that would not end: 4, 5"),
    ([left(ev.LeftWhy.AFTER_SUCCESS, 2)], "left running after exit 0: 1, 2 python"),
    ([*started(), ended(None)], "attempt 1 ended"),
    ([*stopped(ev.StopWhy.REQUEST), ended(1)], "attempt 1 ended: stopped by ada"),
    ([*started(), one(ev.Diagnosed, verdict=verdict_of(FailureClass.CUDA_OOM))], f"verdict: {verdict_of(FailureClass.CUDA_OOM).title}"),
    ([*started(), decided(DecisionKind.RESTART)], "restart: stopped on request"),
    ([one(ev.Held, reason="ada stopped the restart")], "waiting for you: ada stopped the restart"),
    ([done(ev.RequestKind.STOP_NOW)], "ada asked: stop now"),
    ([ev.RequestRefused(t=5.0, request_id="1", request="stop_now", by="ada", reason="nothing runs")], "refused stop_now: nothing runs"),
    ([one(ev.StallFlagged, since=1.0, waited_s=9.6, stage="step", pace_s=1.2, flag_s=3.6)], "No progress for 10 s"),
    ([one(ev.StallEnded, stalled_s=12.4)], "Active again after 12 s"),
    ([one(ev.LossNotFinite, value="nan", step=120, rank=0, last=1.25)], "the loss became nan at step 120 on rank 0, last 1.25"),
    ([ev.CheckpointKept(t=2.0, attempt=2, step=200, path="/o/200.pt", copy="/r/.stoker-kept-200")], "checkpoint 200 is kept as a copy: /r/.stoker-kept-200"),
    ([ev.PlanConfirmed(t=2.0, attempt=2, planned="micro-batch 8 × accumulation 2")], "as planned: micro-batch 8 × accumulation 2"),
    ([ev.PlanDiffers(t=2.0, attempt=2, planned="micro-batch 8 × accumulation 2", measured="micro-batch 16")], "planned micro-batch 8 × accumulation 2, measured micro-batch 16"),
    ([ev.ResumeMissed(t=2.0, attempt=2, step=200, began=0)], "did not resume: began at step 0, not after checkpoint 200"),
    ([one(ev.LossFinite, loss=1.5, step=124)], "the loss is a number again at step 124: 1.5"),
    ([one(ev.HangCountdown, until=9.0, left_s=30.0, text="x", rule="r")], "ended as a hang in 30 s"),
    ([one(ev.HangWithdrawn, rule="r", why="the stacks change")], "not ended: the stacks change"),
    ([one(ev.HangFound, waited_s=1.0, act_s=1.0, text="rank 3 waiting for data at my/data.py:41")], "hang: rank 3 waiting for data at my/data.py:41"),
    ([one(ev.WaitingFor, precondition=Precondition.PORT, text="waiting, 60 s at most: port 7 is still held by pid 9")], "waiting, 60 s at most: port 7 is still held by pid 9"),
    ([one(ev.LaunchCleared, waited_s=1.0, text="waited 60 s: the disk")], "waited 60 s: the disk"),
    ([*started(), ended(1), ev.Recovered(t=6.0, attempt=2, after=1, total_s=4.04)], "the next step came 4.0 s after the failure"),
    ([*stopped(ev.StopWhy.REQUEST), ended(1), ev.Recovered(t=6.0, attempt=2, after=1, total_s=4.04)], "the next step came 4.0 s after the stop"),
    ([ev.ResumeCompared(t=1.0, attempt=2, result=Sameness.DIFFERS, difference=Difference.DATA_ORDER, text="30 steps trained twice")], "attempt 2: differs: data order: 30 steps trained twice"),
    ([ev.ProbeStarted(t=1.0, probe=2, micro_batch=8, argv=())], "probe 2: does micro-batch 8 fit?"),
    ([ev.ProbeEnded(t=1.0, probe=2, micro_batch=8, fitted=False, why="does not fit (cuda_oom)", took_s=1.0)], "probe 2: micro-batch 8 does not fit (cuda_oom)"),
    ([ev.BatchFitted(t=2.0, probes=3, batch=None, text="not even the smallest micro-batch fits; starting as asked for")], "not even the smallest micro-batch fits; starting as asked for"),
    ([*started(), one(ev.BatchAsked, question=COUNTS)], "asked: what does --bs 24 count?"),
    ([*started(), ev.BatchAnswered(t=2.0, question=MAKES, value="--mini", trial=2)], "trial 2: --mini 8 makes the micro-batch"),
    ([*started(), ev.BatchAnswered(t=2.0, question=RESUMES, value="never", day="2026-11-22")], "you answered on 2026-11-22: it resumes: not at all"),
    ([ev.NodeSeen(t=2.0, node=1, sight=ev.NodeSight.JOINED, host="gpu7")], "node 1 (gpu7) joined"),
    ([ev.NoteAdded(t=2.0, text="stop [x] {0}", by="kim")], "note: stop [x] {0}"),
    ([ev.RunEnded(t=3.0, outcome=ev.Outcome.GAVE_UP, exit_code=4, reason="finished at step 1000")], "gave up: finished at step 1000"),
]  # fmt: skip


def moments() -> Iterator[Moment]:
    for events, _ in EXAMPLES:
        yield from replay(events).timeline


@pytest.mark.parametrize(
    ("events", "text"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_newest_moment_reads(events: list[ev.Event], text: str) -> None:
    newest = replay(events).timeline[-1]
    assert english.moment(newest) == text
    chinese = words_in(Lang.ZH).moment(newest)
    assert chinese != text or newest.kind in {"evidence_seen", "launch_cleared"}


def watched(**facts: Any) -> RunState:
    attempt = AttemptState(number=1, planned_t=0.0, log_checked=True)
    progress = ev.Progress(t=1.0, attempt=1, **facts)
    return RunState(mode="observed", attempts=(attempt,), progress=progress)


FIRST, LAST, NEW = (
    AttemptState(number=number, planned_t=0.0, last_step=step)
    for number, step in ((1, 1200), (2, None), (1, None))
)
TWO = replace(watched(epoch=2.0), attempts=(FIRST, LAST))
SMALLER = SpecChange(
    batch=BatchChange(BatchSpec(16, 2, 2), BatchSpec(8, 4, 2)),
    env=(("A", "1"),), set_args=(("--lr", "2"), ("--x", "")), argv=("a",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (reading_text(watched(lag_bytes=63_000_000, log_bytes=100_000_000)), "reading 100 MB, 37 %"),
        (reading_text(watched(lag_bytes=100_000, log_bytes=100_000)), "reading 100 KB, 0 %"),
        (reading_text(watched(log_bytes=100_000)), ""), (reading_text(watched(lag_bytes=5)), ""),
        (reading_text(replace(watched(lag_bytes=5, log_bytes=9), mode="launched")), ""),
        (reading_text(RunState(journal_read=(1, 3))), "reading 3 bytes, 33 %"),
        (reading_text(replace(watched(), attempts=(NEW,))), "reading"), (reading_text(RunState(attempts=(NEW,))), ""),
        (reading_text(replace(watched(), attempts=(replace(NEW, ended_t=1.0),))), ""),
        (reading_text(replace(watched(), attempts=(replace(NEW, verdict=verdict_of()),))), ""),
        (epoch_text(RunState()), ""), (epoch_text(watched()), ""), (epoch_text(watched(epoch=3.5)), "epoch 3.5"),
        (epoch_text(watched(epoch=10.0, total_epochs=10.0)), "epoch 10 / 10"),
        (epoch_text(watched(epoch=10.256, total_epochs=10.0)), "epoch 10.26"),
        (place_of_end(TWO, 7, FIRST), "step 1 200"), (place_of_end(TWO, 7, LAST), "step 7"),
        (place_of_end(TWO, None, LAST), "epoch 2"), (place_of_end(TWO, None, NEW), "before its first step"),
        (place_of_end(replace(TWO, progress=None), None, LAST), "before its first step"),
        (place_of_end(replace(TWO, progress=None), None, replace(LAST, first_loss=2.0)), ""),
        (place_of_end(watched(lag_bytes=5, log_bytes=9), 7, NEW), ""), (changed_text(SpecChange()), ""),
        (changed_text(SMALLER), "micro-batch 16 → 8, accumulation 2 → 4, A=1, --lr 2, --x, other arguments"),
    ],
)  # fmt: skip
def test_reading_epochs_ends_and_changes_in_words(said: str, text: str) -> None:
    assert said == text


def test_values_stand_where_the_language_puts_them() -> None:
    missed = replay([one(ev.ResumeMissed, step=200, began=0)]).timeline[-1]
    assert words_in(Lang.ZH).moment(missed) == "未能续训：从第 0 步开始，而不是检查点 200 之后"


def test_every_kind_of_moment_has_an_example() -> None:
    assert {moment.kind for moment in moments()} == set(sections(Lang.EN)["kind"]["moment"])


@pytest.mark.parametrize(
    "path",
    [*RUN.glob("events/*.py"), *(RUN / f"{name}.py" for name in ("fold", "timeline", "state", "records"))],
    ids=lambda path: path.name,
)
def test_events_and_the_state_hold_no_sentence(path: Path) -> None:
    assert list(sentences(path)) == []


def names_in(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_both_languages_have_the_same_kinds_with_the_same_places() -> None:
    """The same values, and the same ones may be absent."""

    def shape(lang: Lang) -> dict[tuple[str, str], tuple[set[str], list[set[str]]]]:
        return {
            (table, kind): (
                names_in(OPTIONAL.sub("", text)),
                sorted((names_in(part) for part in OPTIONAL.findall(text)), key=sorted),
            )
            for table, kinds in sections(lang)["kind"].items()
            for kind, text in kinds.items()
        }

    assert shape(Lang.EN) == shape(Lang.ZH)


@pytest.mark.parametrize("lang", Lang)
def test_each_kind_has_its_words_and_the_values_that_they_need(lang: Lang) -> None:
    tables = sections(lang)["kind"]
    shown = {why for why in ev.StopWhy if why not in {ev.StopWhy.REQUEST, ev.StopWhy.RESTART}}
    for table, kinds in (
        ("stop_why", shown),
        ("left_why", ev.LeftWhy),
        ("decision", DecisionKind),
        ("request", ev.RequestKind),
        ("outcome", ev.Outcome),
    ):
        assert set(tables[table]) == {str(kind) for kind in kinds}, table
    for moment in moments():
        text = tables["moment"][moment.kind]
        assert names_in(OPTIONAL.sub("", text)) <= moment.values.keys()
        specs = {spec for _, _, spec, _ in Formatter().parse(OPTIONAL.sub(r"\1", text)) if spec}
        assert all(spec == "t" or spec in tables or spec.startswith(".") for spec in specs)


def test_every_kind_of_event_has_its_place_in_the_fold() -> None:
    assert set(CHANGES) == set(ev.KINDS)

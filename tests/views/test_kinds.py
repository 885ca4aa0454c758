"""Kinds and values: the state carries no sentence, both languages have words for every kind, and these are the words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

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
from supervisor.run.state import Moment, MomentKind
from supervisor.views.appearance import Lang
from supervisor.views.wording.kinds import OPTIONAL, sections
from supervisor.views.wording.translate import english, words_in
from tests.keeper.fakes import verdict_of
from tests.views.sentences import sentences

RUN = Path(__file__).parents[2] / "supervisor" / "run"
CUT = {"log_read_bytes": 27_000_000, "log_size_bytes": 600_000_000}
SMALLER = SpecChange(batch=BatchChange(BatchSpec(16, 1, 2), BatchSpec(8, 2, 2)), env=(("A", "1"),))


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
WHICH = BatchQuestion(
    Unread.ACCUMULATION,
    "",
    None,
    (
        BatchAnswer("--ga", BatchChange(BatchSpec(24, 1, 2), BatchSpec(12, 2, 2))),
        BatchAnswer("--acc", BatchChange(BatchSpec(24, 2, 2), BatchSpec(12, 4, 2))),
    ),
)


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
# The events, and the newest moment in English and in Chinese.
EXAMPLES: list[tuple[list[ev.Event], str, str]] = [
    (
        [ev.KeeperStarted(t=1.0, pid=1, start_time=1.0, version="1", adopted=True)],
        "a new supervisor process adopted the run",
        "新的监督进程接管了运行",
    ),
    (
        [ev.KeeperStarted(t=1.0, pid=1, start_time=1.0, version="1", continued_by="kim")],
        "kim continues the run",
        "kim 继续此运行",
    ),
    (
        [ev.ClockSet(t=1.0, ahead_s=3600.4)],
        CLOCK.format("forward"),
        "机器时钟被调快 3600 s：此处的时间不随之跳变",
    ),
    (
        [ev.ClockSet(t=1.0, ahead_s=-3600.4)],
        CLOCK.format("back"),
        "机器时钟被调慢 3600 s：此处的时间不随之跳变",
    ),
    (started(), "attempt 1: first launch", "第 1 次尝试：首次启动"),
    (
        [*started(), decided(DecisionKind.RESTART, SMALLER, "ada"), *started(2)],
        "attempt 2: as asked",
        "第 2 次尝试：按请求",
    ),
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
        "第 2 次尝试：按请求，改动 --lr 1e-2 → 3e-3, − --fused, + --seed 1",
    ),
    (
        [*started(), ev.CheckpointCommitted(t=2.0, attempt=1, step=1800, path="c")],
        "checkpoint at step 1800",
        "第 1800 步检查点",
    ),
    (
        [
            ev.EvidenceSeen(
                t=2.0,
                attempt=1,
                failure=FailureClass.CUDA_OOM,
                role="cause",
                text="{0}" * 99,
                path="p",
                rank=1,
            )
        ],
        f"rank 1: cuda_oom — {('{0}' * 99)[:160]}",
        f"rank 1：cuda_oom — {('{0}' * 99)[:160]}",
    ),
    (
        [
            ev.EvidenceSeen(
                t=2.0, attempt=1, failure=FailureClass.CUDA_OOM, role="cause", text="boom", path="p"
            )
        ],
        "cuda_oom — boom",
        "cuda_oom — boom",
    ),
    (
        [ev.RankFailing(t=2.0, attempt=1, local_rank=1, sign=ev.FailureSign.EXITING, text="boom")],
        "rank 1 is exiting after an error",
        "rank 1 出错后正在退出",
    ),
    (stopped(ev.StopWhy.SIGNAL, ""), "stopping: signalled", "正在停止：收到信号"),
    (
        [ev.StopStepTaken(t=2.0, attempt=1, step=ev.StopStep.SURVIVORS, pids=(4, 5))],
        "processes that would not end: 4, 5",
        "无法结束的进程：4, 5",
    ),
    (
        [left(ev.LeftWhy.AFTER_SUCCESS, 2)],
        "left running after exit 0: 1, 2 python",
        "退出码为 0 后仍在运行：1, 2 python",
    ),
    ([*started(), ended(None)], "attempt 1 ended", "第 1 次尝试结束"),
    ([*started(), ended(-9)], "attempt 1 ended, exit -9", "第 1 次尝试结束，退出码 -9"),
    (
        [*stopped(ev.StopWhy.REQUEST), ended(1)],
        "attempt 1 ended: stopped by ada",
        "第 1 次尝试结束：由 ada 停止",
    ),
    ([*stopped(ev.StopWhy.REQUEST, ""), ended(1)], "attempt 1 ended: stopped", "第 1 次尝试结束：停止"),
    (
        [*started(), ev.Diagnosed(t=4.0, attempt=1, verdict=verdict_of(FailureClass.CUDA_OOM))],
        f"verdict: {verdict_of(FailureClass.CUDA_OOM).title}",
        f"结论：{verdict_of(FailureClass.CUDA_OOM).title}",
    ),
    ([*started(), decided(DecisionKind.RESTART)], "restart: stopped on request", "重启：按请求停止"),
    (
        [ev.Held(t=2.0, attempt=1, reason="ada stopped the restart")],
        "waiting for you: ada stopped the restart",
        "等你决定：ada 取消了重启",
    ),
    ([done(ev.RequestKind.STOP_NOW)], "ada asked: stop now", "ada 请求：立即停止"),
    ([done(ev.RequestKind.KEEP_WAITING)], "ada asked: keep waiting", "ada 请求：继续等待"),
    (
        [ev.RequestRefused(t=5.0, request_id="1", request="stop_now", by="ada", reason="nothing runs")],
        "refused stop_now: nothing runs",
        "已拒绝立即停止：没有进程在运行",
    ),
    (
        [ev.StallFlagged(t=2.0, attempt=1, since=1.0, waited_s=9.6, stage="step", pace_s=1.2, flag_s=3.6)],
        "No progress for 10 s",
        "已 10 s 没有进展",
    ),
    ([ev.StallEnded(t=2.0, attempt=1, stalled_s=12.4)], "Progress resumed after 12 s", "12 s 后恢复进展"),
    (
        [ev.LossNotFinite(t=2.0, attempt=1, value="nan", step=120, rank=0, last=1.25)],
        "the loss became nan at step 120 on rank 0, last 1.25",
        "第 120 步：rank 0 的损失变为 nan，此前为 1.25",
    ),
    (
        [ev.CheckpointKept(t=2.0, attempt=2, step=200, path="/o/200.pt", copy="/r/.stoker-kept-200")],
        "checkpoint 200 is kept as a copy: /r/.stoker-kept-200",
        "检查点 200 已保留副本：/r/.stoker-kept-200",
    ),
    (
        [ev.PlanConfirmed(t=2.0, attempt=2, planned="micro-batch 8 × accumulation 2")],
        "as planned: micro-batch 8 × accumulation 2",
        "与计划一致：微批次 8 × 累积 2",
    ),
    (
        [
            ev.PlanDiffers(
                t=2.0, attempt=2, planned="micro-batch 8 × accumulation 2", measured="micro-batch 16"
            )
        ],
        "planned micro-batch 8 × accumulation 2, measured micro-batch 16",
        "计划 微批次 8 × 累积 2，实测 微批次 16",
    ),
    (
        [ev.ResumeMissed(t=2.0, attempt=2, step=200, began=0)],
        "did not resume: began at step 0, not after checkpoint 200",
        "未能续训：从第 0 步开始，而不是检查点 200 之后",
    ),
    (
        [ev.LossFinite(t=2.0, attempt=1, loss=1.5, step=124)],
        "the loss is a number again at step 124: 1.5",
        "第 124 步：损失恢复为数值 1.5",
    ),
    (
        [ev.HangCountdown(t=2.0, attempt=1, until=9.0, left_s=30.0, text="x", rule="r")],
        "ended as a hang in 30 s",
        "30 s 后按卡死结束",
    ),
    (
        [ev.HangWithdrawn(t=2.0, attempt=1, rule="r", why="the stacks change")],
        "not ended: the stacks change",
        "不结束：调用栈在变化",
    ),
    (
        [
            ev.HangFound(
                t=2.0, attempt=1, waited_s=1.0, act_s=1.0, text="rank 3 waiting for data at my/data.py:41"
            )
        ],
        "hang: rank 3 waiting for data at my/data.py:41",
        "卡死：rank 3 在等数据，my/data.py:41",
    ),
    (
        [
            ev.WaitingFor(
                t=2.0,
                attempt=1,
                precondition=Precondition.PORT,
                text="waiting, 60 s at most: port 7 is still held by pid 9",
            )
        ],
        "waiting, 60 s at most: port 7 is still held by pid 9",
        "等待中，最多 60 s：端口 7 仍被 pid 9 占用",
    ),
    (
        [ev.LaunchCleared(t=2.0, attempt=1, waited_s=1.0, text="waited 60 s: the disk")],
        "waited 60 s: the disk",
        "等待了 60 s：磁盘",
    ),
    (
        [*started(), ended(1), ev.Recovered(t=6.0, attempt=2, after=1, total_s=4.04)],
        "the next step came 4.0 s after the failure",
        "故障后 4.0 s 完成了下一步",
    ),
    (
        [*stopped(ev.StopWhy.REQUEST), ended(1), ev.Recovered(t=6.0, attempt=2, after=1, total_s=4.04)],
        "the next step came 4.0 s after the stop",
        "停止后 4.0 s 完成了下一步",
    ),
    (
        [
            ev.ResumeCompared(
                t=1.0,
                attempt=2,
                result=Sameness.DIFFERS,
                difference=Difference.DATA_ORDER,
                text="correlation 0.10 over 20 steps",
            )
        ],
        "attempt 2: differs: data order: correlation 0.10 over 20 steps",
        "第 2 次尝试：不同：数据顺序：20 步的相关系数 0.10",
    ),
    (
        [ev.ProbeStarted(t=1.0, probe=2, micro_batch=8, argv=())],
        "probe 2: does micro-batch 8 fit?",
        "探测 2：微批次 8 放得下吗？",
    ),
    (
        [
            ev.ProbeEnded(
                t=1.0, probe=2, micro_batch=8, fitted=False, why="does not fit (cuda_oom)", took_s=1.0
            )
        ],
        "probe 2: micro-batch 8 does not fit (cuda_oom)",
        "探测 2：微批次 8 放不下（cuda_oom）",
    ),
    (
        [
            ev.BatchFitted(
                t=2.0,
                probes=3,
                batch=None,
                text="not even the smallest micro-batch fits; starting as asked for",
            )
        ],
        "not even the smallest micro-batch fits; starting as asked for",
        "最小的微批次也放不下；按要求启动",
    ),
    (
        [*started(), ev.BatchAsked(t=2.0, attempt=1, question=COUNTS)],
        "asked: what does --bs 24 count?",
        "询问：--bs 24 计的是什么？",
    ),
    (
        [*started(), ev.BatchAsked(t=2.0, attempt=1, question=WHICH)],
        "asked: which setting makes the accumulation?",
        "询问：哪个参数决定累积步数？",
    ),
    (
        [*started(), ev.BatchAnswered(t=2.0, question=MAKES, value="--mini", trial=2)],
        "trial 2: --mini 8 makes the micro-batch",
        "第 2 次试验：--mini 8 决定微批次",
    ),
    (
        [*started(), ev.BatchAnswered(t=2.0, question=MAKES, value=IN_CODE, by="ada")],
        "ada answered: it is fixed in the code",
        "ada 回答：它写死在代码里（code）",
    ),
    (
        [*started(), ev.BatchAnswered(t=2.0, question=RESUMES, value="--load=PATH", by="ada")],
        "ada answered: it resumes: --load=PATH",
        "ada 回答：继续方式：--load=PATH",
    ),
    (
        [*started(), ev.BatchAnswered(t=2.0, question=RESUMES, value="never", day="2026-11-22")],
        "you answered on 2026-11-22: it resumes: not at all",
        "你于 2026-11-22 回答过：继续方式：完全不继续",
    ),
    (
        [*started(), ev.BatchAnswered(t=2.0, question=COUNTS, value="global", day="2026-11-22")],
        "you answered on 2026-11-22: 24 is global",
        "你于 2026-11-22 回答过：24 是全局的",
    ),
    (
        [ev.NodeSeen(t=2.0, node=1, sight=ev.NodeSight.JOINED, host="gpu7")],
        "node 1 (gpu7) joined",
        "节点 1（gpu7）已加入",
    ),
    ([ev.NoteAdded(t=2.0, text="stop [x] {0}", by="kim")], "note: stop [x] {0}", "备注：stop [x] {0}"),
    (
        [ev.RunEnded(t=3.0, outcome=ev.Outcome.GAVE_UP, exit_code=4, reason="finished at step 1000")],
        "gave up: finished at step 1000",
        "已放弃：在第 1000 步完成",
    ),
]


def moments() -> Iterator[Moment]:
    for events, _, _ in EXAMPLES:
        yield from replay(events).timeline


@pytest.mark.parametrize(
    ("events", "in_english", "in_chinese"),
    EXAMPLES,
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_the_newest_moment_reads(events: list[ev.Event], in_english: str, in_chinese: str) -> None:
    newest = replay(events).timeline[-1]
    assert english.moment(newest) == in_english
    assert words_in(Lang.ZH).moment(newest) == in_chinese


def test_every_kind_of_moment_has_an_example() -> None:
    assert {moment.kind for moment in moments()} == set(MomentKind)


@pytest.mark.parametrize(
    "path",
    [*RUN.glob("events/*.py"), *(RUN / f"{name}.py" for name in ("fold", "timeline", "state", "records"))],
    ids=lambda path: path.name,
)
def test_events_and_the_state_hold_no_sentence(path: Path) -> None:
    assert list(sentences(path)) == []


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_both_languages_have_the_same_kinds_with_the_same_places() -> None:
    """The same values, and the same ones may be absent."""

    def shape(lang: Lang) -> dict[tuple[str, str], tuple[set[str], list[set[str]]]]:
        return {
            (table, kind): (
                places(OPTIONAL.sub("", text)),
                sorted((places(part) for part in OPTIONAL.findall(text)), key=sorted),
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
        ("moment", MomentKind),
        ("stop_why", shown),
        ("left_why", ev.LeftWhy),
        ("decision", DecisionKind),
        ("request", ev.RequestKind),
        ("outcome", ev.Outcome),
    ):
        assert set(tables[table]) == {str(kind) for kind in kinds}, table
    for moment in moments():
        text = tables["moment"][moment.kind]
        assert places(OPTIONAL.sub("", text)) <= moment.values.keys() <= places(text)
        specs = {spec for _, _, spec, _ in Formatter().parse(OPTIONAL.sub(r"\1", text)) if spec}
        assert all(spec == "t" or spec in tables or spec.startswith(".") for spec in specs)


# Events without a moment of their own that the console prints all the same.


def test_every_kind_of_event_has_its_place_in_the_fold() -> None:
    assert set(CHANGES) == set(get_args(ev.Event))

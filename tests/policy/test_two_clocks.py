"""Progress flags a stall, output that is news holds its end back: hangs behind heartbeats, and healthy runs that make no step for a while."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import pytest

from supervisor.job.spec import HangSettings
from supervisor.policy.health.stall import (
    MOST_TEMPLATES,
    News,
    Output,
    Paces,
    StallWatch,
    phase_in_stack,
    printed,
)
from supervisor.run.events import Phase

TICK_S = 0.1
ASKED = HangSettings(act_s=20.0, end_hangs=True, act_given=True)
PROSE = (
    "The ship left the harbor before dawn",
    "Nobody in town remembered his name",
    "A letter arrived without a stamp",
    "Rain fell on the empty market",
    "She counted the coins twice",
)


class Run:
    """A run with a clock of its own: what its logs say, and when it would be accused or ended."""

    def __init__(
        self, settings: HangSettings = ASKED, paces: Paces | None = None, started: float = 0.0
    ) -> None:
        self.now = started
        self.watch = StallWatch(paces or Paces(), settings, started=started)
        self.flags: list[float] = []
        self.ended = False
        self.beats: list[tuple[float, Iterator[str]]] = []
        self._next: list[float] = []

    def behind(self, every_s: float, text: str) -> Run:
        """A heartbeat; `{n}` in its text counts."""
        self.beats.append((every_s, (text.format(n=n) for n in itertools.count(1))))
        self._next.append(self.now + every_s / 2)
        return self

    def steps(self, count: int, gap_s: float = 0.5, between: Callable[[], None] = lambda: None) -> Run:
        for number in range(count):
            self.wait(gap_s)
            between()
            self.say(f"step {number} loss 0.{number}")
            self.watch.step(self.now)
        return self

    def say(self, *lines: str, log: str = "0/stdout.log") -> None:
        self.watch.printed(log, [printed(line.encode()) for line in lines], self.now)

    def wait(self, seconds: float) -> Run:
        """Time passes, with the heartbeats that are due."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(self.now + TICK_S, end)
            for at, (every_s, lines) in enumerate(self.beats):
                if self.now >= self._next[at]:
                    self._next[at] += every_s
                    self.say(next(lines), log=f"{at % 2}/stderr.log")
            if self.watch.flag(self.now) is not None:
                self.flags.append(self.now)
            asked_s = self.watch.asked_s()
            if self.watch.flagged is not None and asked_s is not None:
                self.ended = self.ended or self.watch.stalled_s(self.now) >= asked_s
        return self

    def print_for(self, seconds: float, every_s: float, lines: Iterable[str]) -> Run:
        """A phase that prints a line now and then."""
        for line in itertools.islice(lines, round(seconds / every_s)):
            self.wait(every_s)
            self.say(line)
        return self


def prose() -> Iterator[str]:
    """Sentences, no two of them of the same words."""
    for number, (one, other) in enumerate(itertools.product(PROSE, repeat=2)):
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        yield f"{one}. {other}, said {word}{word}."


# -- healthy -------------------------------------------------------------------------------------------------


def evaluation_in_prose_for_a_long_time(run: Run) -> None:
    run.print_for(30.0, 1.5, prose())


def evaluation_that_counts(run: Run) -> None:
    run.print_for(50.0, 1.0, (f"[{n}/50] accuracy {0.9 - n / 1000:.3f}" for n in range(1, 51)))


def evaluations_that_come_again(run: Run) -> None:
    for _ in range(3):
        run.print_for(9.0, 1.0, (f"sample {n}: answer matches" for n in range(20)))
        run.steps(30)


def evaluations_that_say_the_same_once_each(run: Run) -> None:
    for _ in range(3):
        run.print_for(30.0, 1.5, prose())
        run.steps(120)


def announced_evaluation_that_is_silent(run: Run) -> None:
    run.say("Running validation on 500 batches")
    run.wait(50)
    run.steps(100)
    run.say("Running validation on 500 batches")
    run.wait(100)


def checkpoint(run: Run) -> None:
    run.say("Saving checkpoint to out/ckpt_200.pt")
    run.wait(50)


def recompilation_that_the_stacks_show(run: Run) -> None:
    run.wait(3)
    phase = phase_in_stack("compile_fx@torch/_inductor/compile_fx.py:9|forward@train.py:3")
    assert phase is Phase.COMPILING
    run.watch.announce(phase)
    run.wait(100)


def reported_evaluation(run: Run) -> None:
    run.watch.enter(Phase.EVALUATING, run.now)
    run.wait(300)
    run.watch.enter(Phase.STEPPING, run.now)


def pause(run: Run) -> None:
    run.wait(15)


def upload(run: Run) -> None:
    run.print_for(15.0, 1.5, (f"uploaded {n} MB, {n % 7} parts left" for n in range(20)))


def committed_checkpoints(run: Run) -> None:
    for _ in range(5):
        run.wait(1.9)
        run.watch.progress(run.now)


SILENT = frozenset(("recompilation_that_the_stacks_show", "pause", "upload"))
HEALTHY = (
    evaluation_in_prose_for_a_long_time, evaluation_that_counts, evaluations_that_come_again, evaluations_that_say_the_same_once_each,
    announced_evaluation_that_is_silent, checkpoint, recompilation_that_the_stacks_show, reported_evaluation, pause, upload, committed_checkpoints,
)  # fmt: skip


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind a heartbeat"])
@pytest.mark.parametrize("happens", HEALTHY, ids=lambda happens: happens.__name__)
def test_a_healthy_run_is_not_ended_and_only_where_it_is_silent_flagged(
    happens: Callable[[Run], None], behind: bool
) -> None:
    run = Run()
    if behind:
        run.behind(1.0, "10:00:01 INFO heartbeat phase=training seq={n} gpu_util=100%")
    run.steps(60)
    happens(run)
    run.steps(60)
    assert not run.ended
    assert bool(run.flags) == (happens.__name__ in SILENT), run.flags


def test_an_evaluation_that_repeats_its_words_for_long_is_flagged_once_and_not_ended_by_the_default_rules() -> (
    None
):
    run = Run(HangSettings()).steps(60)
    began = run.now
    run.print_for(600.0, 1.0, (f"sample {n}: answer matches" for n in range(600)))
    assert len(run.flags) == 1
    assert run.flags[0] - began == pytest.approx(12, abs=0.5), "5 × 2 s, and 2 s"
    assert run.watch.silent_s(run.now) <= 1.0, "but it is output: nothing is ended"


def test_the_first_save_that_is_announced_is_flagged_after_a_minute() -> None:
    run = Run(HangSettings()).steps(60)
    began = run.now
    run.say("Saving model checkpoint to out/checkpoint-25")
    run.wait(70)
    assert [flag - began for flag in run.flags] == [pytest.approx(60, abs=0.5)]


# -- hangs ---------------------------------------------------------------------------------------------------


HEARTBEATS = {
    "a heartbeat": ((1.0, "10:00:01 INFO heartbeat phase=training seq={n} gpu_util=100%"),),
    "faster than the steps": ((0.1, "alive {n}"),),
    "slower than the steps": ((10.0, "tracker: synced {n} files, {n}.5 MB"),),
    "several on several ranks": ((1.0, "beat {n}"), (1.3, "rank 1 beat {n}"), (5.0, "gpu temp {n} C")),
    "a spinner": ((0.5, "⠋ Training {n}s"),),
    "that speaks of evaluation": ((1.0, "INFO eval queue: {n} jobs"),),
}


@pytest.mark.parametrize("kind", HEARTBEATS)
@pytest.mark.parametrize("gap_s", [0.2, 3.0])
def test_a_hang_behind_a_heartbeat_is_flagged_as_without_one_and_ended_on_demand(
    kind: str, gap_s: float
) -> None:
    run, alone = Run(), Run()
    for every_s, text in HEARTBEATS[kind]:
        run.behind(every_s, text)
    for one in (run, alone):
        one.steps(60, gap_s)
        assert not one.flags
        began = one.now
        one.wait(19.5)
        assert not one.ended
        assert len(one.flags) == 1
        usual_s = max(2.0, 3 * gap_s)
        # A heartbeat that is slower than the steps may come early once, and begins the time anew.
        assert usual_s - 0.2 <= one.flags[0] - began <= usual_s + (0.3 if one is alone else 2.5)
        one.wait(0.6)
        assert one.ended


@pytest.mark.parametrize(
    "text", ["still waiting for peers ({n} s)", "retry {n}/99", "[rank0] watchdog: work {n} is pending"]
)
def test_who_reports_that_he_waits_holds_the_flag_back_for_seconds(text: str) -> None:
    run = Run().steps(60, 0.2)
    began = run.now
    run.behind(1.0, text)
    run.wait(14)
    if "/" not in text:  # what counts up to a total is an evaluation's, as far as anybody can tell
        assert run.flags
        assert run.flags[0] - began < 15
    run.wait(20)
    assert run.ended == ("/" not in text)


# -- a person's own limits -----------------------------------------------------------------------------------


def test_the_limit_counts_from_the_first_completed_step_and_needs_no_pace() -> None:
    run = Run()
    run.wait(500)
    assert (run.watch.asked_s(), run.flags, run.ended) == (None, [], False)
    run.steps(2).wait(19)
    assert not run.ended
    run.wait(1.5)
    assert run.ended


def test_a_phase_is_given_600_s_the_first_time_and_then_three_times_its_longest() -> None:
    run = Run().steps(20)
    for line in ("Evaluating on the validation set", "Saving checkpoint 3", "Recompiling model"):
        run.say(line)
        assert run.watch.asked_s() == 600.0, line
        run.wait(30).steps(1)
        assert run.watch.asked_s() == 20.0, line
        run.steps(9).say(line)
        assert run.watch.asked_s() == pytest.approx(3 * 30.5, abs=0.5), line
        run.steps(5)


@pytest.mark.parametrize("line", ["Saved checkpoint to c.pt", "validation loss 2.31", "Evaluation done", "eval_interval=100", "compiled with CUDA 12"])  # fmt: skip
def test_what_is_over_or_is_a_setting_announces_nothing(line: str) -> None:
    run = Run().steps(20)
    run.say(line)
    assert run.watch.asked_s() == 20.0


def test_a_limit_that_a_person_gave_flags_without_a_pace_and_ends_nothing() -> None:
    run = Run(HangSettings(act_s=20.0, act_given=True)).steps(2).wait(19)
    assert run.flags == []
    run.wait(100)
    assert len(run.flags) == 1
    assert not run.ended
    never = Run(HangSettings(act_s=0.0, act_given=True, end_hangs=True)).steps(2).wait(100)
    assert never.flags == []


@pytest.mark.parametrize("paces", [Paces(), None])
def test_a_start_is_ended_after_its_own_limit_whatever_it_prints(paces: Paces | None) -> None:
    run = Run(HangSettings(start_timeout_s=60.0, act_s=0.0), paces=paces)
    run.watch.enter(Phase.LOADING, 10.0)
    run.print_for(58.0, 1.0, itertools.chain(prose(), (f"loading shard {n}/99" for n in range(99))))
    assert not run.ended
    run.wait(3)
    assert run.flags == [pytest.approx(60.0, abs=0.2)]
    assert run.ended
    run.steps(1)
    assert (run.watch.flagged, run.watch.asked_s()) == (None, None)


# -- what a line is ------------------------------------------------------------------------------------------


def test_prose_without_end_is_forgotten_before_heartbeats_are() -> None:
    output = Output()
    for second in range(3):
        output.news("0", printed(b"alive"), float(second))
        output.step(float(second))
    for number in range(MOST_TEMPLATES + 5):
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        assert output.news("0", printed(f"w{word} said".encode()), 3.0) in {News.FRESH, News.REPEATED}
    assert len(output._templates) <= MOST_TEMPLATES
    assert output.news("0", printed(b"alive"), 4.0) is News.NONE


def test_what_an_earlier_keeper_saw_again_and_again_is_familiar() -> None:
    run = Run(HangSettings())
    run.watch.recall("0/stderr.log", [printed(f"alive {n}".encode()) for n in range(5)])
    run.watch.resume(run.now)
    run.steps(10).wait(1)
    run.say("alive 77", log="0/stderr.log")
    assert run.watch.silent_s(run.now) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("mark", "phase"),
    [
        ("sleep@train.py:3|evaluate@train.py:9", Phase.EVALUATING),
        ("forward@model.py:1|Trainer._run_validation@lib/loop.py:9", Phase.EVALUATING),
        ("write@io.py:1|save_checkpoint@train.py:9", Phase.CHECKPOINTING),
        ("_save@torch/serialization.py:9|main@train.py:1", Phase.CHECKPOINTING),
        ("_fn@torch/_dynamo/eval_frame.py:9|step@train.py:1", None),
        ("checkpoint@torch/utils/checkpoint.py:9|forward@model.py:1", None),
        ("retrieval@evaluate.py:9|<module>@evaluate.py:1", None),
        ("convert@torch/_dynamo/convert_frame.py:9", Phase.COMPILING),
    ],
)
def test_a_phase_is_seen_in_a_stack(mark: str, phase: Phase | None) -> None:
    assert phase_in_stack(mark) is phase

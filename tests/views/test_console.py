"""The headless view: lines, levels, JSON, the story, and a stdout that goes away."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from supervisor.job.batch import BatchChange, with_micro_batch
from supervisor.policy.health.early_signs import MEMORY_UNEXPECTED
from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import (
    Cause,
    Consequence,
    Decision,
    DecisionKind,
    FailureClass,
    SpecChange,
)
from supervisor.run.series import METRICS, SeriesWriter
from supervisor.views.headless.console import (
    LEAST,
    ConsoleSettings,
    ConsoleView,
    progress_text,
    wants_colour,
)
from supervisor.views.headless.story import place_text, story
from tests.conftest import wait_until
from tests.keeper.fakes import BATCH, run_in, verdict_of

T = 1_795_000_000.0
SMALLER = BatchChange(BATCH, with_micro_batch(BATCH, 8))


def memory_verdict() -> object:
    return replace(
        verdict_of(FailureClass.HOST_OOM),
        title="out of memory on rank 1",
        rank=1,
        cause=Cause("torchrun/1/stderr.log", 42, "RuntimeError: \x1b[31mcan't allocate\x1b[0m"),
        consequences=(Consequence(FailureClass.WORKER_CRASH, 0, "a", 1),) * 3,
        advice=("use less",),
    )


def journal() -> list[ev.Event]:
    from supervisor.run.records import Verdict

    verdict = memory_verdict()
    assert isinstance(verdict, Verdict)
    restart = Decision(DecisionKind.RESTART, "smaller", change=SpecChange(batch=SMALLER))
    return [
        ev.RunStarted(t=T, run_id="run-1", name="gpt", mode="launched", host="box", total_steps=9),
        ev.LaunchIntended(t=T, attempt=1, argv=(), reason="first launch", batch=BATCH),
        ev.AttemptStarted(t=T, attempt=1, pid=77, start_time=1.0),
        ev.Progress(t=T + 1, attempt=1, step=1, loss=4.0),
        ev.Progress(t=T + 2, attempt=1, step=4, loss=3.0),
        ev.CheckpointCommitted(t=T + 2, attempt=1, step=4, path="c/4"),
        ev.AttemptEnded(t=T + 8, attempt=1, exit_code=1, last_step=5),
        ev.Diagnosed(t=T + 8, attempt=1, verdict=verdict),
        ev.Decided(t=T + 8, attempt=1, decision=restart),
        ev.BackoffStarted(t=T + 8, attempt=1, until=T + 9, delay_s=1.0),
        ev.LaunchIntended(t=T + 9, attempt=2, argv=(), reason="smaller", batch=SMALLER.after),
        ev.AttemptStarted(t=T + 9, attempt=2, pid=78, start_time=1.0),
        ev.TrainerReady(t=T + 9, attempt=2, resumed_step=4),
        ev.Progress(t=T + 10, attempt=2, step=9, loss=1.0),
        ev.AttemptEnded(t=T + 12, attempt=2, exit_code=0, last_step=9),
        ev.RunEnded(t=T + 12, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="finished at step 9"),
    ]


@contextmanager
def console(run: RunPaths, out: TextIO, **settings: object) -> Iterator[ConsoleView]:
    view = ConsoleView(run, ConsoleSettings(stdout=out, log_file=None, **settings))  # type: ignore[arg-type]
    view.start()
    try:
        yield view
    finally:
        view.finish(with_story=True)


def printed(run: RunPaths, **settings: object) -> str:
    out = io.StringIO()
    with console(run, out, **settings):
        pass
    return out.getvalue()


def test_every_fact_is_a_stamped_line_with_a_level(tmp_path: Path) -> None:
    run = run_in(tmp_path, *journal())
    head = printed(run).split("\n\nrun ")[0].splitlines()
    place = place_text(Cause("torchrun/1/stderr.log", 42, ""), run.node().attempt(1).root)
    assert [re.sub(r"^(\[\w+\]) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?=\S)", r"\1 ", line) for line in head] == [
        "[INFO] run run-1: gpt on box",
        "[INFO] attempt 1: first launch · micro-batch 16 × accumulation 2 × 2 ranks = global batch 64",
        "[INFO] attempt 1 started (pid 77)", "[INFO] step 1/9 · loss 4.0000", "[INFO] checkpoint at step 4",
        "[WARNING] attempt 1 ended at step 5, exit code 1", "[ERROR] host_oom (100 % sure): out of memory on rank 1",
        f"[ERROR] cause  {place}  RuntimeError: \\x1b[31mcan't allocate\\x1b[0m",
        "[INFO] what followed: worker crash ×3", "[INFO] advice: use less", "[INFO] restart: smaller",
        "[INFO] next attempt in 1 s",
        "[INFO] attempt 2: smaller · micro-batch 8 × accumulation 4 × 2 ranks = global batch 64",
        "[INFO] attempt 2 started (pid 78)", "[INFO] resumed at step 4", "[INFO] step 9/9 · loss 1.0000",
        "[INFO] attempt 2 ended at step 9, exit code 0", "[SUCCESS] succeeded: finished at step 9 (exit code 0)",
    ]  # fmt: skip


def test_the_least_level_is_of_the_terminal_and_the_file_has_all(tmp_path: Path) -> None:
    run, log_file, levels = run_in(tmp_path, *journal()), tmp_path / "console.log", {}
    for least in LEAST:
        out = io.StringIO()
        view = ConsoleView(run, ConsoleSettings(stdout=out, log_file=log_file, least=least))
        view.start()
        view.finish()
        levels[least] = set(re.findall(r"^\[(\w+)\]", out.getvalue(), re.MULTILINE))
    warned = {"SUCCESS", "WARNING", "ERROR"}
    assert levels == {
        "debug": {"INFO"} | warned,
        "info": {"INFO"} | warned,
        "warning": warned,
        "error": {"ERROR"},
    }
    assert len(log_file.read_text(encoding="utf-8").splitlines()) == 4 * 18
    assert log_file.stat().st_mode & 0o777 == 0o600


def test_only_news_are_shown_and_a_run_directory_that_goes_away_is_said_once(tmp_path: Path) -> None:
    run, out = run_in(tmp_path, *journal()[:-1]), io.StringIO()
    view = ConsoleView(run, ConsoleSettings(stdout=out, log_file=None), only_news=True)
    writer = JournalWriter(run.node().journal)
    writer.append(journal()[-1])
    writer.close()
    view.start()
    assert wait_until(lambda: "succeeded" in out.getvalue(), 5)
    shutil.rmtree(run.root)
    assert wait_until(lambda: "[ERROR]" in out.getvalue(), 5)
    view.finish()
    assert [line[line.index("] ") + 22 :] for line in out.getvalue().splitlines()] == [
        "succeeded: finished at step 9 (exit code 0)",
        f"the run directory is gone: {run.root} was deleted or moved; what runs continues, and is not shown here",
    ]


def test_a_measurement_that_is_repeated_is_said_once_in_an_attempt(tmp_path: Path) -> None:
    facts = [ev.BatchMeasured(t=T, attempt=attempt, logged_step=2.0) for attempt in (1, 1, 1, 2)]
    text = printed(run_in(tmp_path, *journal()[:3], *facts))
    assert text.count("1 step of the script is 2 optimizer steps") == 2


def test_progress_is_a_line_every_five_seconds(tmp_path: Path) -> None:
    facts = [ev.Progress(t=T + n, attempt=1, step=n) for n in range(60)]
    text = printed(run_in(tmp_path, *journal()[:3], *facts))
    # The job's 9 steps are no total of a run that goes beyond them.
    assert [int(n) for n in re.findall(r"step (\d+)(?!\d|/)", text)] == list(range(0, 60, 5))


def test_json_lines_are_the_journals_own_and_nothing_else(tmp_path: Path) -> None:
    run = run_in(tmp_path, *journal())
    lines = printed(run, as_json=True).splitlines()
    assert lines == run.node().journal.read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["exit_code"] == 0


def test_the_story_names_attempts_the_change_the_resumed_step_and_the_loss(tmp_path: Path) -> None:
    run = run_in(tmp_path, *journal())
    writer = SeriesWriter(run.node().series)
    for step in range(1, 10):
        writer.append(METRICS, T + step, "job", 1 + (step > 4), {"step": float(step), "loss": 4.0 / step})
    writer.close()
    text = story(read_state(run.node().journal), run)
    place = place_text(Cause("torchrun/1/stderr.log", 42, ""), run.node().attempt(1).root)
    above, curve, below = text.split("\n\n")
    assert above.splitlines()[1:] == [
        "run       run-1  gpt",
        "attempt 1 steps 1–5, exit 1 after 8 s, micro-batch 16 × accumulation 2 × 2 ranks = global batch 64",
        "verdict   host_oom: out of memory on rank 1",
        f"cause     {place}",
        "          RuntimeError: \\x1b[31mcan't allocate\\x1b[0m",
        "change    micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged",
        "resumed   at step 4, a committed checkpoint of attempt 1",
        "attempt 2 steps 9–9, exit 0 after 3 s, micro-batch 8 × accumulation 4 × 2 ranks = global batch 64",
        "loss      4.0000 at step 1 → 0.4444 at step 9",
    ]
    assert below == f"directory {run.root}"
    assert [len(row) for row in curve.splitlines()] == [72] * 15
    assert curve.splitlines()[0].strip() == "loss"
    assert any("⠀" < char <= "⣿" for char in curve), "a curve in braille"


def test_the_story_of_failures_alike_and_of_changes_that_are_no_batch(tmp_path: Path) -> None:
    facts: list[ev.Event] = [ev.RunStarted(t=T, run_id="r", name="gpt", mode="launched", host="box")]
    smaller = SpecChange(batch=SMALLER)
    changes = (SpecChange(env=(("A", "1"), ("B", "2")), new_port=True), smaller, smaller, None)
    for number, change in enumerate(changes, 1):
        t = T + 10 * number
        facts += [
            ev.LaunchIntended(t=t, attempt=number, argv=(), reason="again"),
            ev.AttemptStarted(t=t, attempt=number, pid=7, start_time=1.0),
            ev.Progress(t=t + 1, attempt=number, step=3 * number),
        ]
        if number == 3:
            facts.append(ev.PlanConfirmed(t=t, attempt=number, planned="x"))
            facts.append(ev.Advisory(t=t, attempt=number, code=MEMORY_UNEXPECTED, text="more memory"))
        if change is None:
            facts.append(ev.StopIntended(t=t, attempt=number, why=ev.StopWhy.REQUEST, by="ada", grace_s=1.0))
        facts.append(ev.AttemptEnded(t=t + 8, attempt=number, exit_code=1))
        if change is not None:
            verdict = replace(verdict_of(FailureClass.WORKER_CRASH), node="n7" if number == 1 else None)
            decision = Decision(DecisionKind.RESTART, "so it is", change=change)
            facts.append(ev.Diagnosed(t=t + 8, attempt=number, verdict=verdict))
            facts.append(ev.Decided(t=t + 8, attempt=number, decision=decision))
    run = run_in(tmp_path, *facts)
    batch, resumed = (
        "micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged",
        "resumed   without a resume setting:",
    )
    assert story(read_state(run.node().journal), run).splitlines()[2:] == [
        "attempt 1 steps 3–3, exit 1 after 8 s", "verdict   worker_crash: it broke", "node      n7",
        "change    so it is, A=1, B=2, another port", f"{resumed} its first step seen is 6",
        "attempt 2 steps 6–6, exit 1 after 8 s", "verdict   worker_crash: it broke",
        "          the same failure as attempt 1", f"change    {batch} (as planned)", f"{resumed} its first step seen is 9",
        "attempt 3 steps 9–9, exit 1 after 8 s", "verdict   worker_crash: it broke",
        "          the same failure as attempts 1-2", f"change    {batch} (planned, not confirmed)",
        f"{resumed} its first step seen is 12", "attempt 4 steps 12–12, exit 1 after 8 s", "ended     stopped by ada",
        "note      more memory", f"directory {run.root}",
    ]  # fmt: skip


def test_a_story_of_nothing_and_hostile_names_stay_plain(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2Jname"
    run = run_in(tmp_path, ev.RunStarted(t=T, run_id="r", name=hostile, mode="launched", host="h"))
    text = printed(run)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "name" in text


def test_colour_is_for_terminals_and_settings_have_the_last_word(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert wants_colour(Terminal(), {"TERM": "xterm"})
    assert not wants_colour(Terminal(), {"TERM": "dumb"})
    assert not wants_colour(Terminal(), {"NO_COLOR": "1", "FORCE_COLOR": "1"})
    assert wants_colour(io.StringIO(), {"FORCE_COLOR": "1"})
    assert "\x1b[32m[SUCCESS]\x1b[0m" in printed(run_in(tmp_path, *journal()), colour=True)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_that_went_away_costs_the_lines_only(tmp_path: Path, as_json: bool) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    run = run_in(tmp_path, *journal()[:-1])
    log_file = tmp_path / "console.log"
    view = ConsoleView(run, ConsoleSettings(stdout=Gone(), log_file=log_file, as_json=as_json))
    view.start()
    assert wait_until(lambda: view.state.started_t is not None, 5)
    writer = JournalWriter(run.node().journal)
    writer.append(journal()[-1])
    writer.close()
    assert wait_until(lambda: view.state.is_over, 5), "it still follows"
    view.finish(with_story=True)
    text = log_file.read_text(encoding="utf-8")
    assert "succeeded: finished at step 9" in text
    assert "directory" in text, "the story lies in the file too"


def test_a_long_journal_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from supervisor.run.journal import JournalReader

    read = JournalReader.read
    monkeypatch.setattr(JournalReader, "read", lambda self, **_: read(self, limit_bytes=4096))
    facts = [ev.Progress(t=T + n, attempt=1, step=n) for n in range(1, 400)]
    text = printed(run_in(tmp_path, *journal()[:3], *facts, journal()[-1]))
    assert "attempt 1 steps 1–399" in text
    assert "[SUCCESS]" in text


def test_how_far_a_log_was_read_is_said_only_where_that_was_not_all(tmp_path: Path) -> None:
    lag = ev.Progress(t=T, attempt=1, step=3, lag_bytes=480_000_000, log_bytes=600_000_000)
    assert progress_text(lag) == "step 3 · log read to 120 of 600 MB"
    gone = ev.ProcessesGone(t=T + 1, attempt=1, exit_code=0)
    cut = ev.AttemptEnded(
        t=T + 2, attempt=1, exit_code=0, last_step=3, log_read_bytes=123_000_000, log_size_bytes=600_000_000
    )
    (verdict,) = (fact.verdict for fact in journal() if isinstance(fact, ev.Diagnosed))
    seems = ev.Diagnosed(t=T + 1, attempt=1, verdict=verdict, provisional=True)
    text = printed(run_in(tmp_path, *journal()[:3], lag, gone, seems, cut))
    assert "attempt 1: its processes have ended, exit code 0; reading its logs" in text
    assert "[WARNING]" in text
    assert "so far host_oom: out of memory on rank 1" in text
    assert "exit 0 after 1 s, log read to 123 of 600 MB" in text
    early = ev.AttemptEnded(
        t=T + 2, attempt=1, exit_code=0, exit_t=journal()[2].t - 0.4
    )  # before its start was noted
    assert "exit 0 after 0 s" in printed(run_in(tmp_path / "early", *journal()[:3], early))


def progress_lines(tmp_path: Path, *steps: ev.Event, mode: str = "launched") -> list[str]:
    """The lines of progress without their time stamps."""
    started = ev.RunStarted(t=T, run_id="r", name="n", mode=mode, host="h")
    launched = ev.LaunchIntended(t=T, attempt=1, argv=(), reason="first launch")
    text = printed(run_in(tmp_path, started, launched, *steps))
    return [line.split(" ", 3)[3] for line in text.splitlines() if "] 2" in line and " step " in line]


def test_a_loss_that_is_no_number_is_no_longer_shown_as_the_last_one(tmp_path: Path) -> None:
    events = (
        ev.Progress(t=T, attempt=1, step=1, loss=2.0),
        ev.LossNotFinite(t=T + 6, attempt=1, value="nan", step=2, rank=0, last=2.0),
        ev.Progress(t=T + 6, attempt=1, step=2),
        ev.Progress(t=T + 12, attempt=1, step=3, loss=1.5),
        ev.LossNotFinite(t=T + 18, attempt=1, value="inf", step=4, rank=0, last=1.5),
        ev.Progress(t=T + 18, attempt=1, step=4),
        ev.LaunchIntended(t=T + 20, attempt=2, argv=(), reason="again"),
        ev.Progress(t=T + 24, attempt=2, step=1),
    )
    assert progress_lines(tmp_path, *events) == [
        "step 1 · loss 2.0000",
        "the loss became nan at step 2 on rank 0, last 2",
        "step 2 · loss nan",
        "step 3 · loss 1.5000",
        "the loss became inf at step 4 on rank 0, last 1.5",
        "step 4 · loss inf or nan",
        "step 1",
    ]

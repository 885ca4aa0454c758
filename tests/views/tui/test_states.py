"""What is old shows its age, what stands still is not said to move, and what has no room is summed up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.records import Difference, FailureClass, Sameness
from supervisor.run.series import HOST, METRICS
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dashboard.panes import TrendPanel
from tests.keeper.fakes import verdict_of
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, shown, until


def test_a_stall_is_no_stepping_and_has_no_eta(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        header = pane(app, "header")
        assert "⚠ stalled · no step for" in header
        assert "stepping" not in header
        assert "ETA --:--:--" in header

    drive(recorded.stalled(tmp_path / "run"), play)


def test_old_readings_of_a_run_that_goes_on_show_their_age(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert "12 s ⚠" in pane(app, "util").splitlines()[0]

    drive(recorded.stalled(tmp_path / "run"), play)


def test_fresh_readings_and_those_of_a_run_that_is_over_do_not(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert "⚠" not in pane(app, "util").splitlines()[0]

    drive(recorded.healthy(tmp_path / "fresh"), play)
    drive(recorded.succeeded(tmp_path / "over"), play)


def test_ranks_without_room_stand_side_by_side_and_the_slow_one_stands_out(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        (rest,) = [line for line in pane(app, "ranks").splitlines() if "more" in line]
        bars = rest.partition("ms/step ")[2].strip(" │")
        assert bars.count(max(bars)) == 1
        assert abs(bars.index(max(bars)) - (17 - 2) * len(bars) / 62) <= 1

    drive(recorded.many(tmp_path / "run"), play)


def curves(app: StokerApp) -> list[str]:
    """The titles of the curves beside the loss."""
    panels = [panel for panel in app.dashboard.query(TrendPanel) if panel.size.height]
    return [pane(app, str(panel.id)).splitlines()[0].strip("╭╮─ ") for panel in panels]


def test_a_wide_terminal_shows_four_more_curves_and_leaves_no_half_empty_table(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: bool(app.dashboard.query("#trend1")), "the curves")
        await until(pilot, lambda: "26.9k" in pane(app, "trend0"), "the speed")
        assert [title.split()[0] for title in curves(app)] == ["tok/s", "grad", "step", "val"]
        assert len(pane(app, "ranks").splitlines()) == 5
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert not app.dashboard.query_one("#trends").display
        assert len(pane(app, "loss").splitlines()) > 5

    drive(recorded.healthy(tmp_path / "run"), play, size=(200, 50))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_without_a_gpu_the_machine_is_a_line_and_the_curves_have_its_place(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert not app.dashboard.query_one("#charts").display
        assert pane(app, "devices").count("host") == 1
        if size[0] < 100:
            return
        await until(pilot, lambda: "26.9k" in pane(app, "trend0"), "the speed")
        assert [title.split()[0] for title in curves(app)] == ["tok/s", "grad", "step", "val"][
            : 2 if size[0] < 160 else 4
        ]

    drive(recorded.healthy_cpu(tmp_path / "run"), play, size=size)


class LossAlone(recorded.Recording):
    """A script that names nothing but its loss, on a machine that nobody measures."""

    def _metrics(self, step: int, step_s: float) -> None:
        self.series.append(
            METRICS, self.t, "job", self.number, {"step": float(step), "loss": self.loss(step)}
        )

    def _machine(self, step: int) -> None:
        pass

    def _rank(self, step: int, step_s: float, rank: int, *, slow: bool) -> None:
        pass


def test_what_never_came_has_no_pane(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert not app.dashboard.query_one("#devices").display
        assert not app.dashboard.query_one("#charts").display
        assert "no reading yet" not in shown(app)
        await until(pilot, lambda: len(curves(app)) == 1, "the one curve that there is")
        assert curves(app)[0].startswith("step time")

    rec = LossAlone(tmp_path / "run", gpus=0)
    rec.launch("first start")
    rec.steps(1, 60)
    drive(rec.close(), play, size=(200, 50))


def test_a_run_that_begins_still_shows_where_its_machine_will_be(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "no reading yet" in pane(app, "devices")

    drive(recorded.empty(tmp_path / "run"), play)


def test_many_ranks_need_the_room_themselves(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert not any(found.display for found in app.dashboard.query("#trends"))

    drive(recorded.many(tmp_path / "run"), play, size=(200, 50))


def test_a_total_that_was_passed_was_none(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run", total_steps=4)
    rec.launch("first start")
    rec.steps(1, 30)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        header = pane(app, "header")
        assert "step 30" in header
        assert "/ 4" not in header
        assert "%" not in header
        assert "ETA --:--:--" in header

    drive(rec.close(), play)


def test_a_low_terminal_has_the_time_of_a_step_in_its_header(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert "1.19 s/step" in pane(app, "header")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert "/step" not in pane(app, "header"), "there a tile says it"

    drive(recorded.healthy(tmp_path / "run"), play, size=(80, 24))


def test_a_watched_log_of_one_job_has_its_step_in_its_one_row(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        (line,) = [line for line in pane(app, "ranks").splitlines() if " 0 " in line and "stepping" in line]
        assert " 20 " in line
        assert "~500" in line

    rec = recorded.Recording(tmp_path / "run", mode="observed", gpus=0, total_steps=None)
    rec.number = 1
    rec.fact(ev.LaunchIntended(t=rec.t, attempt=1, argv=(), reason="watching train.log"))
    rec.fact(ev.AttemptStarted(t=rec.t, attempt=1, pid=0, start_time=0.0))
    rec.fact(ev.RankStarted(t=rec.t, attempt=1, local_rank=0, stdout=str(tmp_path / "train.log")))
    for step in range(1, 21):
        rec.t += 0.5
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": 3.0})
        rec.series.append(HOST, rec.t, "machine", 1, {"cpu_ratio": 0.5})
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step, loss=3.0))
    drive(rec.close(), play)


def test_how_far_a_log_is_read_stands_in_the_header_while_the_reading_is_behind(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 30)
    rec.fact(ev.Progress(t=rec.t, attempt=1, lag_bytes=480_000_000, log_bytes=600_000_000))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert "· log read to 120 of 600 MB" in pane(app, "header")

    drive(rec.close(), play)


def test_a_failure_is_on_the_card_while_its_logs_are_still_being_read(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 30)
    rec.fact(ev.ProcessesGone(t=rec.t, attempt=1, exit_code=1))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict_of(FailureClass.HOST_OOM), provisional=True))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "it broke" in pane(app, "card"), "the card")
        assert "ended, reading its logs" in pane(app, "header")

    drive(rec.close(), play)


def test_news_from_before_a_failure_goes_when_its_card_comes(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 30)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        app.dashboard.notice.say("3 lines copied")
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=31, loss=3.0))
        await until(pilot, lambda: "31" in pane(app, "header"), "the next step")
        assert "3 lines copied" in pane(app, "notice"), "the state is the same"
        rec.fact(ev.ProcessesGone(t=rec.t, attempt=1, exit_code=1))
        rec.fact(
            ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict_of(FailureClass.HOST_OOM), provisional=True)
        )
        await until(pilot, lambda: "it broke" in pane(app, "card"), "the card")
        assert "copied" not in pane(app, "notice")
        app.dashboard.notice.say("4 lines copied")
        await pilot.pause()
        assert "4 lines copied" in pane(app, "notice"), "news of now"

    drive(rec.run, play)
    rec.close()


def test_an_end_that_was_not_read_to_the_last_line_says_so(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 30)
    rec.fact(
        ev.AttemptEnded(
            t=rec.t,
            attempt=1,
            exit_code=0,
            last_step=30,
            log_read_bytes=27_000_000,
            log_size_bytes=600_000_000,
        )
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "log read to 27 of 600 MB" in pane(app, "attempts"), "the attempt")
        assert "attempt 1 ended, exit 0, log read to 27 of 600 MB" in pane(app, "timeline")

    drive(rec.close(), play, size=(200, 50))


def test_another_training_after_a_resume_is_in_the_notice_and_on_the_card(tmp_path: Path) -> None:
    text = "samples of a step 16 → 8"
    differs = ev.ResumeCompared(
        t=0.0, attempt=1, result=Sameness.DIFFERS, difference=Difference.GLOBAL_BATCH, text=text
    )

    def recording(name: str) -> recorded.Recording:
        rec = recorded.Recording(tmp_path / name)
        rec.launch("first start")
        rec.steps(1, 30)
        rec.fact(msgspec.structs.replace(differs, t=rec.t))
        return rec

    async def runs(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(
            pilot, lambda: f"resumed, differs: global batch: {text}" in pane(app, "notice"), "the notice"
        )
        assert "attempt 1: differs: global batch:" in pane(app, "timeline")

    drive(recording("runs").close(), runs, size=(160, 50))

    async def narrow(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "resumed, differs: global batch" in pane(app, "notice"), "the notice")
        assert pane(app, "notice").rstrip().endswith("v more"), "a whole sentence, and the key for the rest"
        await pilot.press("v")
        assert "attempt 1: differs: global batch: samples" in pane(app, "failure")

    drive(recording("narrow").close(), narrow, size=(50, 30))
    rec = recording("over")
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=0, last_step=30))
    rec.fact(ev.RunEnded(t=rec.t, outcome=ev.Outcome.SUCCEEDED, reason="it succeeded", exit_code=0))
    drive(rec.close(), runs, size=(160, 50))
    rec = recording("failed")
    rec.fact(ev.ProcessesGone(t=rec.t, attempt=1, exit_code=1))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict_of(FailureClass.HOST_OOM), provisional=True))

    async def failed(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: f"resumed, differs: global batch: {text}" in pane(app, "card"), "the card")

    drive(rec.close(), failed)

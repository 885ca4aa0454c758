"""Pages answer one question each; editing arguments asks the keeper for exactly what was shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, FailureClass, Reason, Verdict
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dialogs.edit import BadEdit, EditScreen, differences, parse_edit
from tests.views.tui import recorded
from tests.views.tui.driving import drive, on_dashboard, pane, requests, shown, until
from tests.views.tui.recording import Recording


def test_failure_page_shows_evidence_in_its_context(tmp_path: Path) -> None:
    run = recorded.backing_off(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        page = pane(app, "failure")
        assert "code     train.py:418  loss.backward()" in page
        assert "log      rank 1 stderr.log:4" in page
        assert "/nodes/" not in page
        assert "      3 [rank1]:     loss.backward()" in page
        assert "▸     4 [rank1]: torch.OutOfMemoryError" in page
        assert "rank 0      nccl error" in page
        assert "micro-batch 16 → 8, accumulation 2 → 4" in page
        assert "restart with another micro-batch" in page
        await pilot.press("escape")
        assert not app.dashboard.query_one("#failure").display
        await pilot.pause()

    drive(run, play)
    assert requests(run) == [], "Esc left the page and held nothing"


def test_card_shows_ones_own_line(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        card = pane(app, "card")
        assert "cause    rank 1 stderr.log:4" in card
        assert "code     train.py:418  loss.backward()" in card

    drive(recorded.backing_off(tmp_path / "run"), play, size=(80, 24))


def test_a_low_page_keeps_what_happens_next_in_sight(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        for keys in ((), ("pagedown",)):
            await pilot.press(*keys)
            page = pane(app, "failure")
            assert "── next continues in 8 s  micro-batch 16 → 8, accumulation 2 → 4 ───" in page, (
                "a rule sets it apart"
            )
            assert "Enter now  Esc Esc wait  r as it was  b smaller batch  e edit  s stop" in page
        await pilot.press("G")
        page = pane(app, "failure")
        assert "restart with other arguments or environment" in page, "the end of the page is reached"
        assert "── next" not in page, "what happens next stands there at length"

    drive(recorded.backing_off(tmp_path / "run"), play, size=(80, 24))


def _ended_alike(
    root: Path, failure: FailureClass, reason: Reason, codes: dict[int, int], rank: int | None
) -> RunPaths:
    """Two attempts with one verdict; torchrun's exit code is 1, whatever ended a rank."""
    rec = Recording(root)
    for attempt in (1, 2):
        rec.launch("first start")
        rec.steps(1, 20)
        rec.fact(ev.AttemptEnded(t=rec.t, attempt=attempt, exit_code=1, last_step=20, rank_exit_codes=codes))
        verdict = Verdict(
            failure=failure, reason=reason, confidence=0.9, rank=rank, ranks=() if rank is None else (rank,), node=None,
            title="It ended", cause=None, consequences=(), advice=(), action=Action.NONE, fingerprint="",
        )  # fmt: skip
        rec.fact(ev.Diagnosed(t=rec.t, attempt=attempt, verdict=verdict))
    return rec.close()


def test_failure_page_tells_a_ranks_signal_from_the_launchers_exit_code(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        page = pane(app, "failure")
        assert "rank 1 fell first · step 20 · ended by SIGKILL · the launcher's exit code 1" in page

    run = _ended_alike(tmp_path / "run", FailureClass.WORKER_CRASH, Reason.SIGNAL, {0: -15, 1: -9}, 1)
    drive(run, play)


def test_two_stops_by_a_person_are_not_one_failure_twice(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        page = pane(app, "failure")
        assert "terminated (user)" in page
        assert "exit code 1" in page
        assert "same failure" not in page

    run = _ended_alike(tmp_path / "run", FailureClass.TERMINATED, Reason.USER, {0: -15, 1: -15}, None)
    drive(run, play)


def test_failure_of_an_earlier_attempt_stays_readable(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        page = pane(app, "failure")
        assert "attempt 1" in page
        assert "done: attempt 2 followed" in page
        assert "instead" not in page

    drive(run, play)


def test_no_failure_no_page(tmp_path: Path) -> None:
    run = recorded.empty(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        assert not app.dashboard.query("#failure")
        assert "why" not in pane(app, "footer")

    drive(run, play)


def test_a_cause_whose_file_is_gone_says_so(tmp_path: Path) -> None:
    run = recorded.held(tmp_path / "run")
    for log in run.root.rglob("stderr.log"):
        log.unlink()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        page = pane(app, "failure")
        assert "No such file" in page
        assert "CUDA out of memory" in page, "the journal kept the line itself"

    drive(run, play)


def test_processes_page_shows_the_newest_stacks(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    run.artifacts.mkdir(exist_ok=True)
    (run.artifacts / "stacks.txt").write_text(
        "== local rank 0, pid 4500\n    [bold]all_reduce[/] (ddp.py:1)\n"
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        page = pane(app, "processes")
        assert "rank 1    4501" in page
        assert "[bold]all_reduce[/] (ddp.py:1)" in page

    drive(run, play)


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("i", "settings", ("found in train.py", "<redacted>", "--batch_size (per rank)")),
        ("P", "preflight", ("⚠ shm", "→ start the container with --shm-size=8g", "✓ port")),
    ],
)
def test_page_opens_and_its_key_closes_it(
    tmp_path: Path, key: str, name: str, words: tuple[str, ...]
) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        assert all(word in pane(app, name) for word in words)
        await pilot.press(key)
        assert not app.dashboard.query_one(f"#{name}").display

    drive(run, play)


@pytest.mark.parametrize(
    ("key", "name", "text", "first", "second"),
    [
        ("v", "failure", "rank", "1 of ", "2 of "),
        ("a", "advisories", "workers", "1 of 1", "1 of 1"),
        ("p", "processes", "rank", "1 of 3", "2 of 3"),
        ("i", "settings", "batch", "1 of ", "2 of "),
        ("P", "preflight", "shm", "1 of 2", "2 of 2"),
    ],
)
def test_a_page_is_searched(tmp_path: Path, key: str, name: str, text: str, first: str, second: str) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press(key, "slash", *text, "enter")
        await until(pilot, lambda: f"/{text}: {first}" in pane(app, name), "the first match")
        assert "n next match" in pane(app, "footer")
        await pilot.press("n")
        await until(pilot, lambda: f"/{text}: {second}" in pane(app, name), "the next")
        await pilot.press("N")
        await until(pilot, lambda: f"/{text}: {first}" in pane(app, name), "the one before")
        assert "Esc close search" in pane(app, "footer")
        await pilot.press("escape")
        assert f"/{text}: " not in pane(app, name)
        assert app.dashboard.query_one(f"#{name}").display, "Esc closed the search alone"
        assert "Esc close page" in pane(app, "footer")

    drive(recorded.healthy(tmp_path / "run"), play)


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ("v", "L its log"),
        ("M", "z full size  Space pin  / find  c compare"),
        ("p", "K take stacks"),
        ("i", "j k scroll"),
    ],
)
def test_a_page_shows_its_own_keys(tmp_path: Path, key: str, own: str) -> None:
    """At 80 columns too, before the keys of the dashboard."""

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await until(pilot, lambda: own in pane(app, "footer"), own)

    drive(recorded.healthy(tmp_path / "run"), play, size=(80, 24))


def test_edit_sends_what_was_shown(tmp_path: Path) -> None:
    run = recorded.held(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e")
        assert isinstance(app.screen, EditScreen)
        area = app.screen.query_one(TextArea)
        before = area.text
        await pilot.press("q")
        assert area.text == f"{before}q", "what is typed continues at the end"
        area.text = "--lr 1e-4 --batch_size 16 '--name=a b'"
        await pilot.press("tab", *"X=1 Y", "enter")
        assert isinstance(app.screen, EditScreen), "Y is no NAME=VALUE"
        assert "write variables as NAME=VALUE" in shown(app)
        app.screen.query_one(Input).value = "X=1"
        await pilot.pause()
        text = shown(app)
        assert "- --lr 3e-4" in text
        assert "+ --lr 1e-4" in text
        assert "+ X=1" in text
        await pilot.press("enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    (request,) = requests(run)
    assert request.kind is RequestKind.RESTART_WITH
    assert request.args.argv == ("--lr", "1e-4", "--batch_size", "16", "--name=a b")
    assert request.args.env == {"X": "1"}


def test_edit_without_a_change_asks_nothing(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e", "enter")
        assert on_dashboard(app)
        assert "nothing changed; not restarted" in pane(app, "notice")
        await pilot.press("e", "escape")
        assert on_dashboard(app)

    drive(run, play)
    assert requests(run) == []


def test_palette_finds_and_does(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("colon")
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*"origin")
        await until(pilot, lambda: "settings" in shown(app), "the hit")
        await pilot.press("enter")
        await until(pilot, lambda: any(page.display for page in app.dashboard.query("#settings")), "the page")

    drive(run, play)


def test_the_palette_says_that_no_command_has_a_name_and_offers_the_nearest(tmp_path: Path) -> None:
    run = recorded.observed(tmp_path / "run", tmp_path / "train.log")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        for typed, found in (
            ("qqqq", "no command named qqqq here"),
            ("save", "no command named save here"),
            ("batch", "no command named batch here"),
            ("go 50%", "go works in a replay"),
            ("comparre", "no command named comparre here; nearest: compare"),
            ("settigns", "no command named settigns here; nearest: settings"),
        ):
            await pilot.press("colon", *typed)
            await until(pilot, lambda found=found: found in shown(app), found)  # type: ignore[misc]
            is_done = "nearest: settings" in found
            await pilot.press(*(("down", "enter") if is_done else ("escape",)))
            await until(pilot, lambda: on_dashboard(app), "the dashboard")
        assert any(page.display for page in app.dashboard.query("#settings")), "the nearest was done"

    drive(run, play)


def test_a_slip_in_stop_offers_the_stop_that_asks_first(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("colon", *"stpo")
        await until(pilot, lambda: "no command named stpo here; nearest: stop " in shown(app), "the report")
        assert "stop gracefully" in shown(app)
        assert "stop at once" not in shown(app)

    drive(recorded.healthy(tmp_path / "run"), play)


def test_enter_on_words_that_name_no_command_leaves_the_palette_open(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("colon", *"qqqq")
        await until(pilot, lambda: "no command named qqqq here" in shown(app), "the report")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)
        assert "no command named qqqq here" in shown(app)
        await pilot.press(*["backspace"] * 4, *"origin")
        await until(pilot, lambda: "settings" in shown(app), "the hit")
        await pilot.press("enter")
        await until(pilot, lambda: any(page.display for page in app.dashboard.query("#settings")), "the page")

    drive(recorded.healthy(tmp_path / "run"), play)


def test_the_palette_offers_no_batch_that_cannot_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.views.tui.dashboard.actions.suggested_batch", lambda _snapshot: None)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("colon", *"smaller")
        await until(pilot, lambda: "no command named smaller here" in shown(app), "that it is not possible")
        await pilot.press("escape")

    drive(recorded.healthy(tmp_path / "run"), play)


def test_the_processes_of_a_run_that_is_over_are_ended_and_take_nothing(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        await until(pilot, lambda: "none were taken" in pane(app, "processes"), "the page")
        text = pane(app, "processes")
        assert [line.split()[2:4] for line in text.splitlines() if "│ supervisor" in line] == [
            ["4100", "ended"]
        ]
        for wrong in ("K takes", "gone", "97 %", "3.1G"):
            assert wrong not in text

    drive(recorded.failed(tmp_path / "run"), play, keeper=False)


def test_edits_are_parsed_as_a_shell_would() -> None:
    edited = parse_edit(("--lr", "1"), "--lr 1", "A='x y' B=")
    assert (edited.argv, edited.env) == (None, {"A": "x y", "B": ""})
    for arguments, environment, said in [
        ("'--lr", "", "close the quote"),
        ("", "1A=2", "NAME=VALUE"),
        ("", "HF_TOKEN=abc", "holds a secret"),
    ]:
        with pytest.raises(BadEdit, match=said):
            parse_edit((), arguments, environment)


def test_differences_keep_a_flag_with_its_value() -> None:
    edited = parse_edit(("--lr", "-1e-4", "--seed", "1", "-v"), "--lr 2 --seed 1", "")
    assert differences(("--lr", "-1e-4", "--seed", "1", "-v"), edited) == ["- --lr -1e-4", "+ --lr 2", "- -v"]


def test_a_stall_and_all_advisories_on_one_page(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    writer = JournalWriter(run.node().journal)
    t = recorded.T0 + 2400
    writer.append(
        ev.StallFlagged(
            t=t, attempt=2, since=t - 4, waited_s=4, stage="step", pace_s=1.2, flag_s=3.6, act_s=60
        )
    )
    writer.append(
        ev.StacksTaken(t=t, attempt=2, text="1 rank in all_reduce, rank 1 in read() at data.py:41", odd=(1,))
    )
    writer.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("a")
        page = pane(app, "advisories")
        assert "No progress for" in page
        assert "rank 1 in read() at data.py:41" in page
        assert "ended as a hang after 1 m 00 s" in page
        assert "raise num_workers" in page

    drive(run, play)


def test_nothing_to_advise_says_so(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("a")
        assert "nothing to say" in pane(app, "advisories")

    drive(recorded.held(tmp_path / "run"), play)

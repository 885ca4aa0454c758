"""The list of runs on a terminal and in a pipe; flags without a verb; what is said after the screen was left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import main as cli
from supervisor.cli.runs import Columns, lines_of
from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter
from supervisor.run.lock import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.views.taste import Lang, Taste

OTTER = Columns(
    "20261121-1412-brave-otter",
    "live",
    "attempt 2",
    "step 1840/6000",
    "cuda_oom",
    "/data/runs/20261121-1412-brave-otter",
)
ANT = Columns(
    "20261120-0900-able-ant",
    "succeeded",
    "attempt 12",
    "step 900/1000",
    "-",
    "/data/runs/20261120-0900-able-ant",
)


def test_a_pipe_gets_all_and_a_terminal_what_fits() -> None:
    whole = lines_of([OTTER, ANT], None)
    assert whole[0].endswith(OTTER.folder)
    assert lines_of([OTTER, ANT], 200) == whole
    for width in range(20, 200):
        lines = lines_of([OTTER, ANT], width)
        assert all(len(line) <= width for line in lines)
        assert len({line.find("live") if "live" in line else line.find("succ") for line in lines}) == 1
    assert "cuda_oom" in lines_of([OTTER, ANT], 80)[0]
    assert lines_of([OTTER, ANT], 60)[1].split() == ["able-ant", "succeeded", "step", "900/1000", "-"]


def test_looks_may_be_asked_for_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--theme", "mauve"]) == 2
    assert "choose dark, light, safe" in capsys.readouterr().err
    assert cli.main(["--theme=light", "--ascii"]) == 2
    assert "needs a terminal: `stoker runs` prints it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["--theme", "light", "--colour"])
    assert "unknown argument '--colour'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("taste", "alive", "said"),
    [
        (Taste(), True, "training goes on; come back with: stoker attach run"),
        (Taste(lang=Lang.ZH), True, "训练继续；用以下命令回来：stoker attach run"),
        (Taste(lang=Lang.ZH), False, "此运行没有 keeper；用以下命令接管：stoker attach run"),
        (Taste(lang=Lang.ZH, ascii=True), True, "training goes on; come back with: stoker attach run"),
    ],
)
def test_what_is_said_after_leaving_is_in_the_persons_language(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    taste: Taste,
    alive: bool,
    said: str,
) -> None:
    run = RunPaths(tmp_path / "run")
    run.node().root.mkdir(parents=True)
    writer = JournalWriter(run.node().journal)
    writer.append(ev.RunStarted(t=1.0, run_id="run", name="x", mode="launched", host="box"))
    writer.close()
    from supervisor.cli import screen
    from supervisor.views.tui import terminal

    def left(*_args: Any, **_kept: Any) -> None:
        """The person left at once."""

    monkeypatch.setattr(terminal, "run_tui", left)
    lock = KeeperLock(run.node().lock, start_time=1.0) if alive else None
    try:
        assert screen.show(run, read_only=True, env={"HOME": str(tmp_path)}, taste=taste) == 0
    finally:
        if lock is not None:
            lock.release()
    assert capsys.readouterr().out.strip() == said

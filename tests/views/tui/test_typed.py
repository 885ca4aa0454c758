"""Keys as a terminal sends them: typed quickly, one behind the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.views.tui import recorded
from tests.views.tui.driving import keeper_of
from tests.views.tui.wire import SHOW_RUN, Wire, on_a_terminal


@contextmanager
def log_screen(tmp_path: Path) -> Iterator[Wire]:
    """The logs of a run that ran out of memory: a loss on 212 lines, each of two ranks."""
    run = recorded.held(tmp_path / "run")
    with keeper_of(run), on_a_terminal(SHOW_RUN, run.root) as wire:
        wire.wait_for("q leave")
        wire.press("L")
        wire.wait_for("merged by arrival", "Esc back")
        yield wire


def test_a_key_right_behind_enter_is_no_part_of_the_words(tmp_path: Path) -> None:
    with log_screen(tmp_path) as wire:
        wire.press("/loss\rnn")
        wire.wait_for("/loss: 421 of 425")
        wire.press("/nowhere at all\rnnnnN")
        wire.wait_for("not found")
        wire.press("\x1b")
        wire.wait_for("Esc back")

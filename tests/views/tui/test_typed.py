"""Keys as a terminal sends them: typed quickly, right behind Esc, and right behind the key that leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual import events

from supervisor.views.tui.terminal_input import EscapeThen, KeyParser
from tests.views.tui import recorded
from tests.views.tui.driving import keeper_of
from tests.views.tui.wire import SHOW_RUN, Wire, on_a_terminal

THEN_READS = SHOW_RUN + "\nprint('the shell reads', repr(input()))\n"


@contextmanager
def log_screen(tmp_path: Path) -> Iterator[Wire]:
    """The logs of a run that ran out of memory: a loss on 212 lines, each of two ranks."""
    run = recorded.held(tmp_path / "run")
    with keeper_of(run), on_a_terminal(SHOW_RUN, run.root) as wire:
        wire.wait_for("q leave")
        wire.press("L")
        wire.wait_for("merged by arrival", "Esc back")
        yield wire


def test_matches_typed_quickly_add_up(tmp_path: Path) -> None:
    with log_screen(tmp_path) as wire:
        wire.press("/loss\r")
        wire.wait_for("/loss: 425 of 425")
        wire.press("nnn")
        wire.wait_for("/loss: 419 of 425")
        wire.press("NN")
        wire.wait_for("/loss: 423 of 425")


def test_a_second_search_replaces_the_words_of_the_first_and_enter_alone_repeats_them(tmp_path: Path) -> None:
    with log_screen(tmp_path) as wire:
        wire.press("/loss\r")
        wire.wait_for("/loss: 425 of 425")
        wire.press("/\r")
        wire.wait_for("/loss: 423 of 425")
        wire.press("/backward\r")
        wire.wait_for("/backward:")
        wire.press("fr0\r")
        wire.wait_for("· rank 0")
        wire.press("fr1\r")
        wire.wait_for("· rank 1")


def test_a_key_right_behind_enter_is_no_part_of_the_words(tmp_path: Path) -> None:
    with log_screen(tmp_path) as wire:
        wire.press("/loss\rnn")
        wire.wait_for("/loss: 421 of 425")
        wire.press("/nowhere at all\rnnnnN")
        wire.wait_for("not found")
        wire.press("\x1b")
        wire.wait_for("Esc back")


@pytest.mark.parametrize("typed", ["\x1bf", "\x1b/", "\x1b:"])
def test_a_key_right_behind_esc_is_not_lost_and_nor_is_esc(tmp_path: Path, typed: str) -> None:
    with log_screen(tmp_path) as wire:
        wire.press("/loss\r")
        wire.wait_for("/loss: 425 of 425")
        wire.press(typed)
        wire.wait_for({"f": "words, -without", "/": "words, or /expr", ":": "a line (812)"}[typed[1]])
        assert "/loss:" not in wire.text(), "Esc closed the search"


def test_what_is_typed_behind_q_is_the_shells(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    with keeper_of(run), on_a_terminal(THEN_READS, run.root) as wire:
        wire.wait_for("stepping")
        wire.press("fqa\x15")  # a q in a text field leaves nothing
        wire.press("\x1bqecho hi\n")
        wire.wait_for("the shell reads 'echo hi'")


def events_of(typed: str) -> list[events.Key]:
    return [event for event in KeyParser().feed(typed) if isinstance(event, events.Key)]


def test_esc_and_a_character_are_two_keys_where_alt_means_nothing() -> None:
    (event,) = events_of("\x1bN")
    assert isinstance(event, EscapeThen)
    assert [(key.key, key.character) for key in event.two_keys()] == [("escape", "\x1b"), ("N", "N")]
    (event,) = events_of("\x1b1")
    assert isinstance(event, EscapeThen)
    assert [key.key for key in event.two_keys()] == ["escape", "1"], (
        "Textual made an inverted exclamation mark of it"
    )
    (event,) = events_of("\x1bb")
    assert isinstance(event, EscapeThen)
    assert event.word == "ctrl+left", "a text field goes a word back"
    assert [event.key for event in events_of("\x1b[A\x1bOP\x1b\x7f")] == ["up", "f1", "ctrl+w"]

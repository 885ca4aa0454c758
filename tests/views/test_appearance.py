"""Looks come from the flag, else the environment, else a file; what makes no sense is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from supervisor.cli.common import appearance_from
from supervisor.cli.main import main
from supervisor.views.appearance import Appearance, BadAppearance, Lang, NoticeKind, ThemeName, appearance_of
from supervisor.views.tui.widgets.filters import ascii_of


def test_the_first_word_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stoker.toml").write_text('[ui]\ntheme = "light"\nascii = true\nlang = "zh"\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path / "none"), "LANG": "en_US.UTF-8"}
    assert appearance_from({}, env) == Appearance(ThemeName.LIGHT, True, Lang.ZH)
    assert appearance_from({}, {**env, "STOKER_ASCII": "0", "STOKER_LANG": "en"}) == Appearance(
        ThemeName.LIGHT, False, Lang.EN
    )
    assert appearance_from({"theme": "safe"}, {**env, "STOKER_THEME": "dark"}).theme is ThemeName.SAFE


@pytest.mark.parametrize(
    ("env", "lang"),
    [
        ({"LANG": "zh_CN.UTF-8"}, Lang.ZH), ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, Lang.EN),
        ({"LC_MESSAGES": "zh_TW", "LANG": "en_US"}, Lang.ZH),
        ({"LC_MESSAGES": "zh_TW", "LC_ALL": "en_US"}, Lang.EN),
        ({"LC_MESSAGES": "zh_TW", "LC_ALL": ""}, Lang.ZH), ({}, Lang.EN),
    ],
)  # fmt: skip
def test_language_by_locale(env: dict[str, str], lang: Lang) -> None:
    assert appearance_of([], env).lang is lang


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"theme": "pink"}, "x: theme = pink: choose dark, light, safe"),
        ({"lang": "de"}, "x: lang = de: choose en, zh"),
        ({"notice": "mail"}, "x: notice = mail: choose off, osc9, osc777"),
        *(({name: "maybe"}, f"x: {name} = maybe: choose true, false") for name in ("ascii", "title", "bell")),
    ],
)
def test_bad_values_name_what_is_possible(values: dict[str, str], why: str) -> None:
    with pytest.raises(BadAppearance, match=f"^{why}$"):
        appearance_of([("x", values)], {})


def test_what_nobody_sets_is_as_usual() -> None:
    usual = Appearance(ThemeName.DARK, False, Lang.EN, title=True, bell=False, notice=NoticeKind.OFF)
    assert appearance_of([("x", {}), ("y", {"theme": "", "bell": None})], {}) == usual
    values = {"theme": "safe", "ascii": "On", "lang": "zh", "title": False, "bell": True, "notice": "osc777"}
    found = appearance_of([("x", {"notice": "osc9"}), ("y", values)], {"LANG": "en"})
    assert found == Appearance(ThemeName.SAFE, True, Lang.ZH, title=False, bell=True, notice=NoticeKind.OSC9)
    assert (found.spoken, appearance_of([], {"LANG": "ZH"}).spoken) == (Lang.EN, Lang.ZH)


def test_a_switch_is_set_by_any_common_word() -> None:
    words = ("1", "true", "Yes", "ON", "0", "false", "no", "off")
    found = [appearance_of([("x", {"bell": word, "title": word})], {}) for word in words]
    assert found == [Appearance(bell=on, title=on) for on in [True] * 4 + [False] * 4]


@pytest.mark.parametrize("verb", ["attach", "replay"])
def test_a_bad_flag_is_one_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--theme", "pink"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "choose dark, light, safe" in err


@given(st.text())
def test_ascii_is_ascii_and_as_wide(text: str) -> None:
    found = ascii_of(text)
    assert found.isascii()
    assert cell_len(found) == cell_len(text)


@given(st.text(alphabet="│─╭╮╰╯●○✗✓⚠→▸▶↻‖━┤┴└┊▁▂▃▄▅▆▇⠁⣿⡇…–×"))
def test_our_own_glyphs_all_have_a_plain_sign(text: str) -> None:
    assert "?" not in ascii_of(text)

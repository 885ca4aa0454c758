"""The settings of a command line: which there are, and one of them set."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.arguments.command_line import names_of, set_value, settings_of, value_of


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--a=1", [("--a", "1", 0, True)]),
        ("--a=", [("--a", "", 0, True)]),
        ("--a=b=c", [("--a", "b=c", 0, True)]),
        ("--a 1", [("--a", "1", 0, False)]),
        ("-n -1", [("-n", "-1", 0, False)]),
        ("-n -1e-3 -0.5", [("-n", "-1e-3", 0, False)]),
        ("--a --b", [("--a", None, 0, False), ("--b", None, 1, False)]),
        ("x --a", [("--a", None, 1, False)]),
        ("a.b=1 +c/d@e=2 ++f=3", [("a.b", "1", 0, True), ("+c/d@e", "2", 1, True), ("++f", "3", 2, True)]),
        ("a='1' b=\"2\" c='3 d='", [("a", "1", 0, True), ("b", "2", 1, True), ("c", "'3", 2, True), ("d", "'", 3, True)]),
        ("1=2 =3 -4 +++a=5", []),
    ],
)  # fmt: skip
def test_the_settings_of_a_command_line(line: str, found: list[tuple[str, str | None, int, bool]]) -> None:
    args = line.split()
    assert [(s.name, s.value, s.at, s.joined) for s in settings_of(args)] == found
    assert names_of(args) == [name for name, *_ in found]


@pytest.mark.parametrize(
    ("line", "name", "value", "after"),
    [
        ("--a 1 x", "--a", "2", "--a 2 x"),
        ("--a=1 x", "--a", "2", "--a=2 x"),
        ("--a --b", "--a", "2", "--a 2 --b"),
        ("--a 1 --a=3", "--a", "2", "--a 2 --a=2"),
        ("--a_b 1", "--a-b", "2", "--a_b 2"),
        ("x", "--a", "2", "x --a=2"),
        ("x", "-a", "2", "x -a 2"),
        ("x", "--a", "", "x --a"),
        ("x --a 1", "--a", "", "x --a 1"),
        ("lr=1 x", "lr", "2", "lr=2 x"),
        ("+lr=1", "lr", "2", "+lr=2"),
        ("x", "lr", "2", "x lr=2"),
        ("x", "ckpt", "epoch=3.ckpt", "x ckpt='epoch=3.ckpt'"),
        ("x", "ckpt", "it's=3", 'x ckpt="it\'s=3"'),
        ("x", "ckpt", "'a=3'", "x ckpt='a=3'"),
        ("x", "--ckpt", "a=3", "x --ckpt=a=3"),
    ],
)
def test_a_setting_is_set_in_its_place_and_spelling(line: str, name: str, value: str, after: str) -> None:
    assert set_value(line.split(), name, value) == tuple(after.split())


@settings(deadline=None)
@given(
    st.lists(st.text("abcxyz0123456789-_=./ ", max_size=10), max_size=6),
    st.sampled_from(["--micro_batch_size", "-b", "model.batch"]),
    st.integers(1, 999),
)
def test_setting_then_reading_gives_the_value(args: list[str], name: str, value: int) -> None:
    changed = set_value(args, name, str(value))
    assert value_of(changed, name) == str(value)
    assert value_of(set_value(changed, name, "7"), name) == "7"

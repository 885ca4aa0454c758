"""Patterns that are compiled when first used, a user's own that must not hang, and SLURM's lists of hosts."""

from __future__ import annotations

import re
import time

import pytest

from supervisor.text.patterns import Lazy, compile_linear, host_names


def test_a_lazy_pattern_is_the_compiled_one_once_it_is_used() -> None:
    lazy, made = Lazy(r"(b)c?", re.IGNORECASE), re.compile(r"(b)c?", re.IGNORECASE)
    assert lazy._made is None
    text = "aBc b"
    found, same = lazy.search(text), made.search(text)
    assert found is not None
    assert same is not None
    assert found.span() == same.span() == (1, 3)
    assert lazy._made is not None
    assert lazy.match(text) is None
    assert (head := lazy.match("bc")) is not None
    assert head[0] == "bc"
    assert lazy.findall(text) == made.findall(text) == ["B", "b"]
    assert [m.span() for m in lazy.finditer(text)] == [m.span() for m in made.finditer(text)]
    assert lazy.sub("-", text) == made.sub("-", text) == "a- -"


def test_a_users_pattern_takes_time_in_proportion_to_the_line() -> None:
    pattern = compile_linear(r"(a+)+$")
    began = time.process_time()
    assert pattern.search("a" * 4000 + "b") is None
    assert time.process_time() - began < 5.0
    assert pattern.groups == 1
    found = compile_linear(r"loss=(\d+)").search("x loss=12 y")
    assert found is not None
    assert found.group(1) == "12"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [(r"(", "is not a valid regular expression"), (r"(?=a)", "looks around"), (r"(a)\1", "refers back")],
)
def test_a_pattern_that_could_hang_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compile_linear(pattern)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[01-03,07],login1", ("n01", "n02", "n03", "n07", "login1")),
        ("rack[0-1]n[8-9]", ("rack0n8", "rack0n9", "rack1n8", "rack1n9")),
        ("gpu-[1,3]-ib", ("gpu-1-ib", "gpu-3-ib")),
        ("n[a-b]", ("na-b",)),
        ("n[", ("n",)),
    ],
)
def test_lists_of_host_names(text: str, names: tuple[str, ...]) -> None:
    assert host_names(text) == names


def test_a_huge_list_is_cut() -> None:
    assert len(host_names("n[0-999999999]x[0-9]", most=100)) == 100

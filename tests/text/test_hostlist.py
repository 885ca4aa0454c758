"""SLURM's short form of host names."""

from __future__ import annotations

import pytest

from supervisor.text.patterns import host_names


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

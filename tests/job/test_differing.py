"""Which settings two or more command lines do not have alike."""

from __future__ import annotations

import pytest

from supervisor.job.arguments.command_line import differing


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["--lr 1e-2 --seed 1", "--seed 1 --lr 1e-3"], [("--lr", ("1e-2", "1e-3"))]),
        (["--lr=1e-2", "--lr 1e-2"], []),
        (["--batch_size 8", "--batch-size 16"], [("--batch_size", ("8", "16"))]),
        (["a.py", "a.py --amp"], [("--amp", (None, ""))]),
        (["lr=1 model=x", "lr=2 model=x", "model=x"], [("lr", ("1", "2", None))]),
        (["--gpu 0 --gpu 1", "--gpu 1"], [("--gpu", ("0 1", "1"))]),
        (["", ""], []),
    ],
)
def test_what_differs(lines: list[str], found: list[tuple[str, tuple[str | None, ...]]]) -> None:
    assert differing(*(line.split() for line in lines)) == found

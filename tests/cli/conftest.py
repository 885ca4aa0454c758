"""One way to call a verb in this process."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple

import pytest

from supervisor.cli.main import main


class Answer(NamedTuple):
    """A command's exit code, and what it printed."""

    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Call a verb: a line as a person types it, then words that need no quotes, such as paths."""

    def call(line: str, *words: object) -> Answer:
        capsys.readouterr()
        try:
            code = main([*shlex.split(line), *map(str, words)])
        except SystemExit as left:  # raised by argparse
            code = int(str(left.code))
        return Answer(code, *capsys.readouterr())

    return call

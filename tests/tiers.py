"""Which of many like cases `make test` and `make e2e` run, and which `make thorough` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrized test: all but the first `count` are left to `make thorough`."""
    marked = []
    for at, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if at < count else pytest.mark.thorough))
    return marked

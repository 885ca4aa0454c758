"""A user's own rules (`[[metrics]] name, regex`): they are asked first, and what they find stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.text.linear import LinearPattern, compile_linear


@dataclass(frozen=True, slots=True)
class MetricRule:
    """The first group of `regex` is the value of `name`."""

    name: str
    regex: LinearPattern


def compile_rules(rules: Iterable[tuple[str, str]]) -> tuple[MetricRule, ...]:
    """Make rules of (name, regex) pairs.

    Raises:
        ValueError: a pattern does not compile, could hang, or has no group; the message names it.
    """
    made = []
    for name, pattern in rules:
        try:
            regex = compile_linear(pattern)
        except ValueError as error:
            raise ValueError(f"metric {name!r}: {pattern!r} {error}") from None
        if regex.groups < 1:
            raise ValueError(f"metric {name!r}: {pattern!r} has no group: put the number in (...)")
        made.append(MetricRule(name, regex))
    return tuple(made)

"""Lines that are a program's own text, or what it says of itself: code, exceptions, results of tests. They quote numbers and report none."""

from __future__ import annotations

import re

_FAILURE = re.compile(
    r"::\w+\[|\b(?:PASSED|FAILED)\b|\b(?:warn|print|raise|logger\.\w+)\(|(?:^|[\s\]:(])(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt|Warning)\b(?::|$|\()|\bTraceback\b|^\s+File \"|\bassert(?:ion)?\b|^\s*\^+\s*$|Watchdog caught|timed out|\s//\s|\s\*\*\s",
)
# Lines of programs: listings, differences, what `if` and `return` lead.
_CODE = re.compile(
    r"^\s*>>> \w[\w.]* = |^Step \d+/\d+ : [A-Z]{3,}\b|=\s*[-\d.e+]+ \* [A-Za-z_]|=\s*[A-Za-z_][\w.]*\s*[*/]\s*[\d.]|^\s*return\s+[{(]|^\s*(?:el)?if\s.*:\s*$|\blambda\s+\w+\s*:|^\s*def\s+\w+\("
    r"|^\s*[+-] {4,}\w[\w.]* = |^\s*>?\s*\d+ {4,}\w[\w.]* = |^\s*\d+ \| {4,}\w[\w.]* = |^\s*-+>\s*\d+ |^\s*\d+ -> \w+ = |(?:^|\s)\x01+:\s{3,}\w[\w.]* = "
)

_CODE_HEAD = re.compile(
    r"def \w+\(|class \w+[:(]|import \w[\w.]*(?: as \w+)?(?:, [\w., ]+)?$|from [\w.]+ import [\w(*]|@\w+[\w.]*(?:\(.*)?$|(?:for|while|with|if|elif) .*[\[(.=<>].*:(?:\s*#.*)?$"
)
_CODE_BODY = re.compile(
    r"[A-Za-z_][\w.\[\], ]*(?::\s*\w+\s*)?\s[-+*/|]?=\s|[)\]}#]|\"{3}|'{3}|\w[\w.]*\(.*\)\s*(?:#.*)?$"
)


def says_nothing(masked: str) -> bool:
    """Whether a (masked) line is an exception, a test's result or a line of code."""
    return _FAILURE.search(masked) is not None or _CODE.search(masked) is not None


def begins_code(stripped: str) -> bool:
    """Whether a line begins a piece of a program: some print their own text before they train."""
    return _CODE_HEAD.match(stripped) is not None


def goes_on_with_code(line: str, *, indented: bool) -> bool:
    """Whether a line below such a piece still belongs to it."""
    return indented or _CODE_BODY.match(line) is not None

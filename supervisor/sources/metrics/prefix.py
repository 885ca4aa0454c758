r"""Finds where a logger's or collector's own words end and the message begins.

`2024-01-01 10:00:00,123 - trainer - INFO - 0,49,2.3`, `2025-01-09T04:11:23.1Z stdout F …`, `{"log":"step 3
…\n","stream":"stdout"}`: table rows, indented values and bars are also recognized after these.
"""

from __future__ import annotations

import re

from supervisor.sources.metrics.tokens import MASKED
from supervisor.text.prefixes import split_prefix

_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|NOTICE|ERROR|CRITICAL|TRACE|SUCCESS)"
_CLOCK = r"\d\d?:\d\d:\d\d(?:[.,:]\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
# Text that starts no message: a time, a level, a stream.
_STRONG = re.compile(
    rf"""
    \s?(?:
      \[?\s?\d{{4}}[-/.]\d\d?[-/.]\d\d?[T\ ,_-]+\d\d?:\d\d(?::\d\d)?(?:[.,:]\d+)?(?:\ ?Z|\ ?[+-]\d\d:?\d\d)?\]?
    | \[?\d\d?[/.-]\d\d?[/.-]\d\d(?:\d\d)?[\ ,T]+{_CLOCK}(?:\ [AP]M)?\]?
    | \[?\d\d[/-]\d\d\ {_CLOCK}\]?
    | \[?{_CLOCK}\]?(?=[\s|])
    | [IWEF]\d{{4}}\ {_CLOCK}\s+\d+\ [\w./-]+:\d+\]
    | {_MONTH}\ +\d+\ {_CLOCK}(?:\ [\w.-]+\ [\w./-]+(?:\[\d+\])?:)?
    | \[\s*\d+\.\d{{3,9}}\]
    | \[\s{{0,4}}{_LEVEL}\s{{0,4}}(?:[:|]?\s{{0,4}}(?:\d{{4}}[-/.]\d\d?[-/.]\d\d?[T\ ,_-]+)?{_CLOCK}\s{{0,4}})?\]
    | {_LEVEL}:(?!(?i:epoch|step|iter|loss|train|val))[A-Za-z_][\w.]*:
    | {_LEVEL}(?=[\s:|-])\s{{0,5}}
    | (?:stdout|stderr)(?:\ [FP](?=\s)|:(?=\s))
    | \[STD(?:OUT|ERR)\]
    )
    (?:\s?[-|:>](?=\s|$)\s?|:|\s)?
    """,
    re.VERBOSE,
)
# Text that may follow: the logger's name, the source position, the process.
_WEAK = re.compile(
    rf"""
      [A-Za-z_][\w.-]*\s?(?:-|\|)\ (?={_LEVEL}|[A-Za-z_][\w.]*:\d+\s)
    | [A-Za-z_][\w.]*\ -\ (?=\S|\s)
    | (?<=\])\[\d{{2,8}}\]\s?
    | [IWEF]\ \d+\ \d+\]\s
    | \[\d{{2,8}}\]\s?(?=\[(?:\w*Thread[\w-]*|{_LEVEL})\])
    | \[[A-Za-z_][\w.]*\](?:\s?[-:](?=\s))?\s?
    | [\[(]?[\w./-]+\.(?:py|cc|cpp|rs|go)[:\ ]\s{{0,4}}\d+(?::[\w<>]+)?[\])]?:?(?:\s?-(?=\s))?\s
    | [A-Za-z_][\w.]*:[\w<>]+:\d+(?:\s?[-|](?=\s))?\s
    | [A-Za-z_][\w.]*\.[\w.]+:\s
    | [-:>](?:\s|$)
    """,
    re.VERBOSE,
)
# A time or a level, as masked by `tokens.mask`.
_LOGGED = re.compile(rf"\[?{MASKED}{{4,}}")
# A logger's plain name after the level: "INFO trainer: …".
_LOGGER = re.compile(
    r"(?!(?:train|training|valid\w*|val|eval\w*|test\w*|dev|epochs?|steps?|iter\w*|\w*loss|\w*lr|batch|progress|wandb|mlflow|comet|warning|goal|target):)[A-Za-z_]\w{2,}:\s",
    re.IGNORECASE,
)
_LEVEL_LAST = re.compile(rf"{_LEVEL}\s{{1,5}}$")
_STARTS = frozenset("0123456789[ DIWENCTSFJAMOs")
_JSON = re.compile(
    r'\{.{0,300}?"(?:message|msg|log|text|event|textPayload|body|MESSAGE)"\s?:\s?"(?P<m>(?:[^"\\]|\\.)*+)"'
)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_CONTROL = re.compile(r"\x1b\s*\[[\d;]*[A-Za-z]")
_PLAIN = {"n": " ", "t": "\t", "r": " ", "b": " ", "f": " "}


def message_start(text: str) -> int:
    """How many characters a logger or collector put before the message; 0 if none."""
    if text[:1] not in _STARTS:
        return 0
    place, sure = 0, False
    for _ in range(8):
        found = _STRONG.match(text, place)
        if found is not None:
            sure = True
        elif sure:
            found = _WEAK.match(text, place)
            if found is None and _LEVEL_LAST.search(text, 0, place):
                found = _LOGGER.match(text, place)
        if found is None or found.end() == place:
            break
        place = found.end()
    if not sure:
        return 0
    if text[-2:].rstrip()[-1:] == "|" and text[place : place + 1] != "|":
        # The pipe belongs to a table's row, not to the logger.
        bare = text[:place].rstrip()
        place = len(bare) - 1 if bare[-1:] == "|" else place
    return place


def logged_behind(text: str, masked: str, begin: int) -> int | None:
    """Where a logger's line starts after `begin`: at its masked time or level; None if there is none."""
    found = _LOGGED.search(masked, begin)
    return found.start() if found is not None and message_start(text[found.start() :]) else None


def json_message(text: str) -> tuple[int, int, str] | None:
    """Start, end and text of the message in a JSON line, at its original length; None without one.

    Escapes are decoded and padded to their length, so that positions in the message are positions in the line.
    """
    if text[:1] != "{":
        return None
    found = _JSON.match(text)
    if found is None:
        return None
    message = _ESCAPED.sub(_unescaped, found["m"])
    if "\x1b" in message:
        message = _CONTROL.sub(lambda code: " " * len(code.group()), message)
    return *found.span("m"), message


def _unescaped(found: re.Match[str]) -> str:
    code, letter = found.groups()
    if code is not None:
        character = chr(int(code, 16))
        # A bar of blocks stays a bar; "…" and similar characters are one character and blanks.
        return character * 6 if character in "█▏▎▍▌▋▊▉━╸╺─░▒▓" else character + " " * 5
    mark = _PLAIN.get(letter, letter)
    return mark + " " if letter in _PLAIN else " " + mark


_RAW_RANK = re.compile(
    r"\s*\[(?:RANK|Rank|rank)[ :=]{1,2}(\d{1,6})\]:?\s|\s*\[(?!\d+:)[\w.-]{1,64}:(\d{1,6})/\d{1,6}\]\s|\s*\((\d{1,6})/\d{1,6}\)\s(?=\S)(?=.*\b(?:[Ee]poch|[Ss]tep|[Ii]ter))"
)

# "[HUGECTR][03:13:26][INFO][RANK0]: …": a rank after other tags.
_RANK_BEHIND = re.compile(
    r"(?:\[[^\[\]]{1,40}\]\s{0,2}|(?:DEBUG|INFO|WARNING|ERROR)\s{1,8}|[-|:]\s)+\s*\[RANK[ :=]?(\d{1,6})\]:?\s"
)


# "2020-11-08 20:32:35 [1,0]<stderr>:": MPI's tag after a time.
_MPI_BEHIND = re.compile(r"[-\d]{10}[T ][\d:.,]{8,15}\s?\[\d+,(\d{1,6})\]<std(?:out|err)>:")
_NUMBERED = re.compile(r"\s{0,4}\d{1,5}: $")
_DECIMAL = re.compile(r"-?(?:\d+\.\d|\.\d|\d+\.?$)|-\d")


def who(text: str) -> tuple[int | None, str, tuple[int, int] | None]:
    """The rank in the line's prefix, the text after the prefix, and the position of the rank's digits."""
    origin, body = split_prefix(text)
    rank = origin.rank if origin.rank is not None else origin.local_rank
    place = len(text) - len(body)
    numbered = _NUMBERED.search(text[:place]) if origin.task is not None and _DECIMAL.match(body) else None
    if numbered is not None:
        # "1: 803.28, …": a step, not a task
        place = numbered.start()
        body = text[place:]
    elif rank is None and origin.task is not None:
        rank = origin.task
    runs = [run.span() for run in re.finditer(r"\d+", text[:place]) if int(run.group()) == rank]
    where = runs[0] if len(runs) == 1 else None
    tags = (pattern.match(body) for pattern in (_RAW_RANK, _RANK_BEHIND, _MPI_BEHIND))
    if match := next(filter(None, tags), None):
        body = body[match.end() :]
        if rank is None:
            group = match.lastindex or 1
            rank = int(match.group(group))
            where = (place + match.start(group), place + match.end(group))
    return rank, body, where

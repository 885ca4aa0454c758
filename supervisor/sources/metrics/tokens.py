r"""Splits a log line into the logger prefix, the masked text, and the values with their names and units.

Table rows, indented values and progress bars are also recognized after a prefix. Examples of prefixes:
`2024-01-01 10:00:00,123 - trainer - INFO - 0,49,2.3`, `2025-01-09T04:11:23.1Z stdout F …`, `{"log":"step 3 …\n"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from supervisor.sources.metrics import lexicon
from supervisor.text.prefixes import split_prefix

MASKED = "\x01"  # replaces text that cannot contain a metric: a timestamp, a source location, a URL

_MASKS = re.compile(
    r"""
      (?<![a-z0-9+.-])[a-z][a-z0-9+.-]*+://\S+                                             # URL
    | "(?:GET|POST|PUT|HEAD|DELETE)\ [^"]*"                                 # a request
    | [IWEF]\d{4}\ \d\d:\d\d:\d\d\.\d+\s+\d+                                # glog
    | \d{4}[-/.]\d\d?[-/.]\d\d?[T\ ,_-]+\d\d?:\d\d(?::\d\d)?(?:[.,:]\d+)?(?:Z|[+-]\d\d:?\d\d\b|\ [IWEF]\ \d+\ \d+\])?
    | \d\d?[/.-]\d\d?[/.-]\d\d(?:\d\d)?[\ ,T]+\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?
    | \b\d\d[/-]\d\d\ \d\d:\d\d:\d\d(?:[.,]\d+)?
    | (?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\ )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\ +\d+\ (?:\d{4}\ )?\d\d:\d\d:\d\d(?:\ \d{4})?
    | \[(?:(?:DEBUG|INFO|WARNING|ERROR)\s)?\d\d:\d\d:\d\d(?:[.,]\d+)?\]
    | ^\s*\d\d:\d\d:\d\d(?:[.,]\d+)?(?=\s|\|)
    | \[File:[^\]]*\]
    | \b(?:stdout|stderr)\ [FP]\                                            # a container runtime's
    | \[\d+(?:;\d+)*m(?=[A-Za-z:\[]|\s*$)                                                        # colour whose escape was lost
    | (?<![\w./\\=+-])[\w./\\=+-]{3,}+(?:(?<=\.pt)|(?<=\.pth)|(?<=\.ckpt)|(?<=\.bin)|(?<=\.h5)|(?<=\.pkl)|(?<=\.npz)|(?<=\.json)|(?<=\.yaml)|(?<=\.yml)|(?<=\.tar)|(?<=\.zip)|(?<=\.png)|(?<=\.jpg)|(?<=\.jpeg)|(?<=\.npy)|(?<=\.wav)|(?<=\.mp4)|(?<=\.txt)|(?<=\.csv)|(?<=\.safetensors)|(?<=\.onnx))  # a file
    | (?<![\w./\\<>-])[\w./\\<>-]+\.(?:py|cc|cpp|cu|h|rs|go|ipynb)(?:[:,]\s{0,4}|\s+|\(\)?:?\s?|:\s?line\s)\d+(?::[\w<>.]+)?
    | [([]?(?<![\w.])[A-Za-z_]\w*(?:\.\w+)++:\d+(?:[)\]]|(?=\s*(?:-|>>|\|)))
    | (?<![\w.])[A-Za-z_][\w.]*:[\w<>]+:\d+(?=\s*(?:-|\|))
    | (?<=\t)[\w.-]+:\d+(?=\t)
    | [([](?!(?i:rank|step|epoch|iter)\b)[A-Za-z_][\w.-]*:\d+[)\]]
    | \{[A-Za-z_][\w/.]*:\.?\d+[.\d]*[a-z]?\}                                  # a placeholder: {epoch:06}
    | \bpid[=:\ ]\s?\d+
    | \b(?:DEBUG|INFO|WARNING|NOTICE)\b:(?:(?!(?i:epoch|step|iter|loss|train|val))[\w.]+:)?
    | (?:^|(?<=[\s|\]\[-]))(?:DEBUG|INFO|WARNING|WARN|NOTICE)\b:?
    | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{10,}                              # UUID
    | \b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?::\d+)?\b                       # address
    """,
    re.VERBOSE,
)
_PICTURES = re.compile("[\U0001f000-\U0001faff\u25a0-\u27bf\u2b00-\u2bff\ufe0f\u200d]")
_HASH = re.compile(r"(\b(?:epoch|step|iter|iteration|batch|update|round)\s?)#(?=\d)", re.IGNORECASE)
_NUM = r"(?:\d{1,3}(?:,\d{3})+(?!\d|,\S)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
_UNITS = (
    r"%|(?:tok(?:en)?s?|samples?|im(?:a?ge?s?)?|examples?|seq(?:uence)?s?|it(?:er(?:ation)?)?s?|steps?|batch(?:es)?)[_ ]per[_ ]s(?:ec(?:ond)?)?|(?:tok(?:en)?s?|words?|samples?|records?|im(?:a?ge?s?)?|examples?|seq(?:uence)?s?|sent(?:ence)?s?|ex|utts?|frames?|clips?|items?|batch(?:es)?|ba|it(?:er)?s?|steps?"
    r"|updates?)\s?/\s?s(?:ec(?:ond)?)?(?:/\w+)?|tok(?:en)?s?/(?:gpu|device|chip)/s(?:ec)?"
    r"|(?:ms|us|µs|s|secs?|seconds?|min)(?:\s?/\s?|\sper\s)(?:it(?:e?r(?:ation)?)?|step|batch|update|sample|img|image|epoch|tick|kimg)|/s(?:ec)?(?:/\w+)?"
    r"|[KMGT]i?[Bb](?:/s)?|bytes|ms(?:ec)?|milliseconds|us|µs|secs?|seconds?|mins?|minutes?|hours?|hrs?|days?"
    r"|TFLOP\w*(?:/s)?(?:/\w+)?"
)
_TOKEN = re.compile(
    rf"""
      (?P<dur>
          \d+\ days?,?\ +\d+:\d\d:\d\d(?:\.\d+)? | \d+-\d\d:\d\d:\d\d | (?<![\w./])(?<!\d:)\d+:\d\d:(?:\d\d(?:\.\d+)?|\d\.\d+)(?![\w:])
        | (?<![\w./])(?<!\d:)\d+:\d\d(?![\w:.])
        | (?<![\w.,])(?:\d+(?:\.\d+)?\s?(?:d|days?|h|hrs?|hours?|m|mins?|minutes?)(?:,\s?|\s(?:and\s)?|(?=\d))){{1,6}}\d+(?:\.\d+)?\s?(?:s|secs?|seconds?|m|mins?|minutes?)\b
      )
    | (?<![\w.,/@])(?P<a>\d{{1,3}}(?:,\d{{3}})+|\d+)(?P<ak>[kKM])?(?:\s*/\s*|\ +(?:out\ +)?of\ +)(?P<b>\d{{1,3}}(?:,\d{{3}})+|\d+|\?)(?P<bk>[kKM])?(?!\w|/|\.\w)
      (?P<share>\s*\(?\s*\d+(?:\.\d+)?\s?%\s?\)?)?
    | (?P<ratio>(?<![\w.,/@])[-+]?\d+(?:\.\d+)?\s?[KMGT]?i?B?\s?/\s?\d+(?:\.\d+)?\s?(?:[KMGT]i?B?)?(?![\w.]))
    | (?P<num>(?:(?<![\w.@\#])(?<!\w[-+])[-+]?(?:{_NUM})|(?<![A-Za-z0-9_])[-+]?(?:nan|NaN|NAN|inf|Inf|INF|infinity|Infinity)(?![A-Za-z0-9_])))
      (?:(?P<k>[kKMG])(?:\s(?P<ku>(?:tok(?:en)?s?|words?|samples?)/s(?:ec)?))?(?![A-Za-z0-9/])|(?P<s>(?:[smhd]|G|B)(?![A-Za-z0-9/]|\s(?:/|per)\s(?:it|step|batch)))|\s?(?P<unit>{_UNITS})(?![A-Za-z0-9/]|[:=]|\s[:=]\s*[-+.\d]))?
      (?![\w]|\.\d|[-+]\d|\s?-\s+\d+\s?\])
      (?P<mean>\s?\((?!\s*\d+\s*/\s*\d)(?![^()]*(?:/\s?|\sper\s)(?:s|it|step|iter|batch))(?:avg:?\s?|mean:?\s?)?[-+]?[\d.][^()]{{0,24}}\)|\s?\([-+]?(?:nan|inf)[^()]{{0,12}}\))?
    """,
    re.VERBOSE,
)
_SEPARATOR = re.compile(r"[:=：]\s*$|(?<=['\"])\s*,\s*$|(?:->|=>|\.{3,})\s*$")
# A value wrapped in its type: "tensor(2.31)", "np.float64(2.31)".
_OPENERS = re.compile(
    r"(?:\b(?:np\.)?(?:(?<!torch\.)[Tt]ensor|[Aa]rray|DeviceArray|bfloat16|b?float\d*|int\d*|Decimal)\(|[\[({\"'<`*~≈（【「])\s*$"
)
_CALL = re.compile(
    r"\w\($(?<!ensor\()(?<!rray\()(?<!loat\()(?<!loat16\()(?<!loat32\()(?<!loat64\()(?<!int\()(?<!int32\()(?<!int64\()(?<!cimal\()"
    r"(?<!poch\()(?<!step\()(?<!Step\()(?<!iter\()(?<!Iter\()(?<!tch\()(?<!loss\()(?<!Loss\()"
)
_UNIT_TAIL = re.compile(r"[(\[]\s*([A-Za-z/%µ. ]{1,24}\d?)\s*[)\]]\s*$")
_BREAK = re.compile(
    r"[,;|\t\x01{}<>•·，、；│┃║【】「」（）]|\s{2,}|\s[-–—]+\s|[\])]|[\[(]|[:=：]\s*|->|=>|\s[-–—]+$|^[-–—]+\s|>>|\*{2,}|~|['\"]\s+|(?<=[a-z]{5})\.\s+(?=[A-Z])"
)
_INDEXED = re.compile(
    r"\b(?:gpu|cuda|device|worker|process|node|stage|layer|expert|group|top)[ :]?$", re.IGNORECASE
)
_NUMBERED = re.compile(r"\)\s*[=:]")
_LOSS_NUMBERED = re.compile(r" loss\s?[:=]", re.IGNORECASE)
_NOT_NUMBERED = (
    lexicon.STEP_NAMES,
    lexicon.EPOCH_NAMES,
    lexicon.ONE_LOSS_EACH,
    lexicon.EVAL_WORDS,
    lexicon.TRAIN_WORDS,
    lexicon.SCORES,
    lexicon.SAMPLE_WORDS,
    lexicon.TOKEN_WORDS,
)
_COUNTS = re.compile(r"\((?:epoch|step|iter(?:ation)?|batch)\s*$", re.IGNORECASE)  # "(epoch 180):"
_MORE_NAME = re.compile(r" (?!(?:[Ee]poch|[Ss]tep|[Ii]ter\w*|[Bb]atch)\b)[A-Za-z]|:? ?[A-Za-z_ ]{1,40}[:=]")
_TAIL_WORDS = re.compile(
    r"\s+(?:was|is|are|of|at|to|reached|after|with|about|equals?|now|for|on|in)$", re.IGNORECASE
)


class Token(NamedTuple):
    """A value in a line, with the name that the preceding text gives it.

    `kind` is "num", "frac" (a of b), "dur" or "ratio". `before` is all the text since the previous value, and `name` is the
    last part of `before`. `scale_end` is the K or M after a pair's total, or after a value that also has a unit. `bare`
    means that no ":" or "=" separates name and value. `tail` is a unit in brackets after the name.
    """

    kind: str
    start: int
    end: int
    text: str
    unit: str
    name: str
    tail: str
    bare: bool
    before: str
    total: tuple[int, int] | None = None
    scale_end: str = ""
    share: bool = False
    stop: int = 0


@lru_cache(maxsize=4)  # tables, the grammar and the cache ask for the same line in turn
def mask(text: str) -> str:
    """Mask timestamps, source locations, URLs and the like. The result has the same length as the input."""
    text = _MASKS.sub(lambda found: MASKED * len(found.group()), text)
    if not text.isascii():
        text = _PICTURES.sub(MASKED, text)
    if "#" not in text:
        return text
    return _HASH.sub(r"\1 ", text.replace("#011", "\t   "))


@lru_cache(maxsize=4)
def tokens(text: str) -> tuple[Token, ...]:
    """Return the values in a masked line, from left to right."""
    found: list[Token] = []
    end = 0
    for match in _TOKEN.finditer(text):
        before = text[end : match.start()]
        name, tail, bare = name_of(before)
        if match["num"] is not None and _is_part_of_name(match, before, name if bare else None):
            continue
        end = match.end()
        found.append(_token(match, name, tail, bare, before))
    return tuple(found)


def _is_part_of_name(match: re.Match[str], before: str, bare_name: str | None) -> bool:
    """Check whether a number is part of a name. `bare_name` is the preceding name if no ":" or "=" follows it."""
    text, end = match.string, match.end("num")
    if match["num"].isdigit():
        if _INDEXED.search(before) and _MORE_NAME.match(text, end):
            return True  # "GPU 0 memory"
        word = (bare_name or "").lower()
        is_counter = any(word in known for known in _NOT_NUMBERED)
        if word.isalpha() and not is_counter and _LOSS_NUMBERED.match(text, end):
            return True  # "Content 1 loss: 79.6": one of several losses, not the training loss
    is_before_name = before.rstrip()[-1:].isalpha() and _NUMBERED.match(text, match.end())
    return bool(is_before_name) and not _COUNTS.search(before)  # "LR (group 0)=1e-4"


def _token(match: re.Match[str], name: str, tail: str, bare: bool, before: str) -> Token:
    kind = next(kind for kind in ("dur", "a", "ratio", "num") if match[kind] is not None)
    token = Token(kind, *match.span(kind), match[kind], "", name, tail, bare, before, stop=match.end())
    if kind == "a":
        share = match["share"] is not None
        token = token._replace(kind="frac", unit=match["ak"] or "", share=share)
        return token._replace(total=match.span("b"), scale_end=match["bk"] or "")
    if kind == "num":
        unit = match["unit"] or match["ku"] or match["k"] or match["s"] or ""
        return token._replace(unit=unit, scale_end=(match["k"] or "") if match["ku"] else "")
    return token


def name_of(before: str) -> tuple[str, str, bool]:
    """Return the name at the end of the text before a value, a bracketed unit after the name, and `bare`."""
    rest = before.rstrip()
    bare = True
    tail = ""
    for _ in range(6):
        if found := _SEPARATOR.search(rest):
            bare = False
            rest = rest[: found.start()].rstrip()
        elif bare and _CALL.search(rest):
            return "", "", True  # a line of code
        elif found := _OPENERS.search(rest):
            rest = rest[: found.start()].rstrip()
        elif not tail and (found := _UNIT_TAIL.search(rest)) and found.start() > 0:
            tail = found[1].strip()
            rest = rest[: found.start()].rstrip()
        elif rest.endswith(("'", '"', "*", "`")):
            rest = rest[:-1].rstrip()
        else:
            break
    name = _BREAK.split(rest)[-1].strip(" .'\"*-`✨")
    while shorter := _TAIL_WORDS.search(name):
        name = name[: shorter.start()]
    return name.removeprefix("and "), tail, bare


def is_adjacent(before: str) -> bool:
    """Check whether only brackets, separators and spaces come between a value and the previous one."""
    return not before.strip(" \t[](),:|>-") and len(before) <= 8


# -- numbers and units

GIB = 1 << 30
# PyTorch's tools print GiB as "GB" or "G", so both units are read as GiB.
_MEMORY = {
    "": 0.0, "b": 1.0, "bytes": 1.0, "kb": 1024.0, "kib": 1024.0, "k": 1024.0, "mb": GIB / 1024, "mib": GIB / 1024, "m": GIB / 1024,
    "mo": GIB / 1024, "gb": float(GIB), "gib": float(GIB), "g": float(GIB), "tb": GIB * 1024.0, "tib": GIB * 1024.0,
}  # fmt: skip
_SECONDS = {
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "us": 1e-6, "µs": 1e-6, "usec": 1e-6, "ns": 1e-9, "m": 60.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0,
    "hr": 3600.0, "hrs": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_CLOCK = re.compile(r"\s*(?:(\d+)\s*days?,?\s*|(\d+)[-.](?=\d\d:\d\d:))?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)\s*$")
_CLOCK_S = {1: 86400.0, 2: 86400.0, 3: 3600.0, 4: 60.0, 5: 1.0}
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Zµ]+)")


class How(IntEnum):
    """How a value's text is converted to a number."""

    NUMBER = 0  # times scale
    WHOLE = 1  # an integer, also "31K" and "1,149"
    INVERSE = 2  # a rate of steps to the seconds per step
    DURATION = 3  # a clock or spelt-out time
    MEMORY = 4  # without a unit: bytes when huge, MiB when large, GiB when small
    SHARE = 5  # without a percent sign: percent when above 1


class Conversion(NamedTuple):
    """A kind of conversion and its factor."""

    how: How
    scale: float = 1.0


PLAIN = Conversion(How.NUMBER)
WHOLE = Conversion(How.WHOLE)
# Logs rarely print more digits. Further digits are conversion noise (863.5 ms as 0.8635000000000002 s).
_SIGNIFICANT = 12
_EXPONENTS = {1.0: "", 1e-6: "e-6", 1e-3: "e-3", 0.01: "e-2", 1e3: "e3"}
_FLOATS = msgspec.json.Decoder(list[float])
_WHOLES = msgspec.json.Decoder(list[int])


def convert(conversion: Conversion, text: str) -> float | None:
    """Convert text to a number. Return None if it cannot be a measurement (e.g. a fractional step). Computed values keep `_SIGNIFICANT` digits."""
    how, scale = conversion
    if how is How.DURATION:
        duration = seconds(text)
        return rounded(duration) if duration is not None else None
    try:
        number = float(text.replace(",", "").rstrip(".") if "," in text or text[-1:] == "." else text)
    except ValueError:
        return None
    match how:
        case How.NUMBER:
            # A number that is only read keeps all digits. A product has binary rounding noise (0.1 * 3).
            return rounded(number * scale) if scale % 1024 and scale != 1.0 else number * scale
        case How.WHOLE:
            number *= scale
            # Exclude NaN and infinities.
            return int(number) if number == number // 1 and abs(number) < 1e15 else None
        case How.INVERSE:
            return rounded(scale / number) if number > 0 else None
        case How.MEMORY:
            return number * (1 if number >= 1e7 else GIB / 1024 if number >= 256 else GIB)
        case How.SHARE:
            if number < 0:
                return None
            return rounded(number / 100 if number > 1 else number * scale)


def numbers(conversion: Conversion, texts: Sequence[str]) -> Sequence[float | None]:
    """Apply `convert` to many texts. If all are short and plain, msgspec parses them eight times as fast as `float`."""
    found = _by_msgspec(conversion, texts) if max(map(len, texts)) <= _SIGNIFICANT else None
    return found if found is not None else [convert(conversion, text) for text in texts]


def _by_msgspec(conversion: Conversion, texts: Sequence[str]) -> Sequence[float] | None:
    """Read plain numbers as one JSON list. Return None unless all are plain and the scale is a power of 10 or 1024."""
    how, scale = conversion
    exponent = _EXPONENTS.get(scale, "" if scale % 1024 == 0 else None)
    if exponent is None or how not in {How.NUMBER, How.WHOLE} or (how is How.WHOLE and scale != 1):
        return None
    listed = "[" + f"{exponent},".join(texts) + exponent + "]"
    if "[-0" in listed or ",-0" in listed:
        return None  # msgspec loses the sign of "-0"
    try:
        found = (_WHOLES if how is How.WHOLE else _FLOATS).decode(listed)
    except msgspec.DecodeError:
        return None  # leading zeros, NaN
    if len(found) != len(texts):
        return None  # "1,234"
    return found if exponent or scale == 1 else [number * scale for number in found]


def rounded(number: float) -> float:
    """Round a number to `_SIGNIFICANT` digits."""
    return float(f"{number:.{_SIGNIFICANT}g}")


def memory_conversion(unit: str) -> Conversion | None:
    """Return the conversion for a memory unit, or None for any other unit."""
    factor = _MEMORY.get(unit.lower())
    if factor is None:
        return None
    return Conversion(How.NUMBER, factor) if factor else Conversion(How.MEMORY)


def time_scale(unit: str) -> float | None:
    """Return the number of seconds in `unit`, ignoring anything after a slash, or None if it is not a time unit."""
    return _SECONDS.get(unit.lower().partition("/")[0].strip())


def magnitude(unit: str) -> float:
    """Return the factor for a K, M or B suffix on a count."""
    return {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}.get(unit.lower(), 1.0)


def seconds(text: str) -> float | None:
    """Convert a duration such as `03:12`, `1 day, 2:03:04`, `11h4m12s` or `10m, 56s` to seconds."""
    if clock := _CLOCK.match(text):
        return sum((float(clock[group]) * _CLOCK_S[group] for group in _CLOCK_S if clock[group]), 0.0)
    parts = [(float(part[1]), _SECONDS.get(part[2].lower())) for part in _PARTS.finditer(text)]
    if not parts or any(scale is None for _, scale in parts):
        return None
    return sum((number * (scale or 0.0) for number, scale in parts), 0.0)


# The rank of a progress bar's count. A named counter takes precedence.
BAR_RANK = 2


class Reading(NamedTuple):
    """A value read from a line: its canonical field (or "" plus the name used in the log), position and conversion."""

    field: str
    name: str
    rank: int
    start: int
    end: int
    conversion: Conversion
    weak: bool = False


class Parsed(NamedTuple):
    """Everything read from one line.

    `pair` is a counter and a total, valid only if the counter equals the named step or is off by one. `heading` means
    that the line has only a step or epoch, and the lines below may belong to it. `once` means that the same line with
    different digits may mean something else, so its shape is not cached. `off_curve` means that the loss is not a point
    on the curve, but a mean over the whole run or one part of the total loss. `evaluates` means that the last value
    is from held-out data. `plain_time` means that the time may cover one step or all steps since the last line.
    """

    readings: tuple[Reading, ...]
    pair: tuple[Reading, Reading] | None = None
    heading: bool = False
    settings: bool = False
    once: bool = False
    off_curve: bool = False
    evaluates: bool = False
    plain_time: bool = False


NOTHING = Parsed(())


def shifted(parsed: Parsed, by: int) -> Parsed:
    """Shift the positions in a result by `by` characters, the offset of the message in its line."""
    if not by:
        return parsed

    def moved(reading: Reading) -> Reading:
        return reading._replace(start=reading.start + by, end=reading.end + by)

    pair = (moved(parsed.pair[0]), moved(parsed.pair[1])) if parsed.pair is not None else None
    return parsed._replace(readings=tuple(map(moved, parsed.readings)), pair=pair)


class Found(NamedTuple):
    """All candidate readings on a line, and the number of setting names that the line contains."""

    readings: list[Reading]
    settings: int


class LineValues:
    """The readings on a line, collected from left to right.

    Attributes:
        text: the masked line.
        tokens: the values in the line.
        readings: the readings so far.
        settings: the number of setting names so far.
        evaluates: whether this part of the line describes held-out data.
        after_epoch: whether the previous value was the epoch.
    """

    def __init__(self, masked: str, readings: Iterable[Reading], *, evaluates: bool) -> None:
        self.text = masked
        self.tokens = tokens(masked)
        self.readings: list[Reading] = [*readings]
        self.settings = 0
        self.evaluates = evaluates
        self.after_epoch = False

    def has(self, *fields: str) -> bool:
        """Check whether the line has a reading for any of these fields."""
        return any(reading.field in fields for reading in self.readings)

    def add(
        self,
        field: str,
        token: Token,
        rank: int,
        conversion: Conversion,
        *,
        name: str = "",
        weak: bool = False,
    ) -> None:
        """Add a reading for a value."""
        self.readings.append(Reading(field, name, rank, token.start, token.end, conversion, weak))


# -- before the message

_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|NOTICE|ERROR|CRITICAL|TRACE|SUCCESS)"
_TIME_OF_DAY = r"\d\d?:\d\d:\d\d(?:[.,:]\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
# Text that can only precede a message: a time, a level, a stream.
_STRONG = re.compile(
    rf"""
    \s?(?:
      \[?\s?\d{{4}}[-/.]\d\d?[-/.]\d\d?[T\ ,_-]+\d\d?:\d\d(?::\d\d)?(?:[.,:]\d+)?(?:\ ?Z|\ ?[+-]\d\d:?\d\d)?\]?
    | \[?\d\d?[/.-]\d\d?[/.-]\d\d(?:\d\d)?[\ ,T]+{_TIME_OF_DAY}(?:\ [AP]M)?\]?
    | \[?\d\d[/-]\d\d\ {_TIME_OF_DAY}\]?
    | \[?{_TIME_OF_DAY}\]?(?=[\s|])
    | [IWEF]\d{{4}}\ {_TIME_OF_DAY}\s+\d+\ [\w./-]+:\d+\]
    | {_MONTH}\ +\d+\ {_TIME_OF_DAY}(?:\ [\w.-]+\ [\w./-]+(?:\[\d+\])?:)?
    | \[\s*\d+\.\d{{3,9}}\]
    | \[\s{{0,4}}{_LEVEL}\s{{0,4}}(?:[:|]?\s{{0,4}}(?:\d{{4}}[-/.]\d\d?[-/.]\d\d?[T\ ,_-]+)?{_TIME_OF_DAY}\s{{0,4}})?\]
    | {_LEVEL}:(?!(?i:epoch|step|iter|loss|train|val))[A-Za-z_][\w.]*:
    | {_LEVEL}(?=[\s:|-])\s{{0,5}}
    | (?:stdout|stderr)(?:\ [FP](?=\s)|:(?=\s))
    | \[STD(?:OUT|ERR)\]
    )
    (?:\s?[-|:>](?=\s|$)\s?|:|\s)?
    """,
    re.VERBOSE,
)
# Text that may come next: the logger's name, the source location, the process.
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
# A time or a level, masked by `tokens.mask`.
_LOGGED = re.compile(rf"\[?{MASKED}{{4,}}")
# The logger's name after the level: "INFO trainer: …".
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
_UNESCAPED = {"n": " ", "t": "\t", "r": " ", "b": " ", "f": " "}


def message_start(text: str) -> int:
    """Return the length of the prefix that a logger or collector put before the message, or 0 if there is none."""
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
        # The pipe belongs to a table row, not to the logger.
        bare = text[:place].rstrip()
        place = len(bare) - 1 if bare[-1:] == "|" else place
    return place


def logged_behind(text: str, masked: str, begin: int) -> int | None:
    """Return the start of the first logger line after `begin`, found by its time or level in `masked`, or None."""
    found = _LOGGED.search(masked, begin)
    return found.start() if found is not None and message_start(text[found.start() :]) else None


def json_message(text: str) -> tuple[int, int, str] | None:
    """Return the start, end and text of the message in a JSON line, or None if there is no message.

    Escapes are decoded and padded to their original length, so positions in the message also hold in the line.
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
        # Block characters stay a bar of the same width. "…" and the like become one character and blanks.
        return character * 6 if character in "█▏▎▍▌▋▊▉━╸╺─░▒▓" else character + " " * 5
    mark = _UNESCAPED.get(letter, letter)
    return mark + " " if letter in _UNESCAPED else " " + mark


_RAW_RANK = re.compile(
    r"\s*\[(?:RANK|Rank|rank)[ :=]{1,2}(\d{1,6})\]:?\s|\s*\[(?!\d+:)[\w.-]{1,64}:(\d{1,6})/\d{1,6}\]\s|\s*\((\d{1,6})/\d{1,6}\)\s(?=\S)(?=.*\b(?:[Ee]poch|[Ss]tep|[Ii]ter))"
)

# A rank after other tags: "[HUGECTR][03:13:26][INFO][RANK0]: …".
_RANK_BEHIND = re.compile(
    r"(?:\[[^\[\]]{1,40}\]\s{0,2}|(?:DEBUG|INFO|WARNING|ERROR)\s{1,8}|[-|:]\s)+\s*\[RANK[ :=]?(\d{1,6})\]:?\s"
)


# MPI's tag after a time: "2020-11-08 20:32:35 [1,0]<stderr>:".
_MPI_BEHIND = re.compile(r"[-\d]{10}[T ][\d:.,]{8,15}\s?\[\d+,(\d{1,6})\]<std(?:out|err)>:")
_TASK_LED = re.compile(r"\s{0,4}\d{1,5}: $")
_DECIMAL = re.compile(r"-?(?:\d+\.\d|\.\d|\d+\.?$)|-\d")


def who(text: str) -> tuple[int | None, str, tuple[int, int] | None]:
    """Return the rank in the line's prefix, the text after the prefix, and the rank's position."""
    origin, body = split_prefix(text)
    rank = origin.rank if origin.rank is not None else origin.local_rank
    place = len(text) - len(body)
    numbered = _TASK_LED.search(text[:place]) if origin.task is not None and _DECIMAL.match(body) else None
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

"""A log line cut into values and the text before each: masks first, then bars, then numbers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from supervisor.sources.metrics.words import (
    EPOCH_NAMES,
    EVAL_WORDS,
    ONE_LOSS_EACH,
    SAMPLE_WORDS,
    SCORES,
    STEP_NAMES,
    TOKEN_WORDS,
    TRAIN_WORDS,
)

MASKED = "\x01"  # replaces text that cannot contain a metric: a time stamp, a source line, a URL

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
# "tensor(2.31)", "np.float64(2.31)": a value wrapped in its type.
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
    STEP_NAMES,
    EPOCH_NAMES,
    ONE_LOSS_EACH,
    EVAL_WORDS,
    TRAIN_WORDS,
    SCORES,
    SAMPLE_WORDS,
    TOKEN_WORDS,
)
_COUNTS = re.compile(r"\((?:epoch|step|iter(?:ation)?|batch)\s*$", re.IGNORECASE)  # "(epoch 180):"
_MORE_NAME = re.compile(r" (?!(?:[Ee]poch|[Ss]tep|[Ii]ter\w*|[Bb]atch)\b)[A-Za-z]|:? ?[A-Za-z_ ]{1,40}[:=]")
_TAIL_WORDS = re.compile(
    r"\s+(?:was|is|are|of|at|to|reached|after|with|about|equals?|now|for|on|in)$", re.IGNORECASE
)


class Token(NamedTuple):
    """One value of a line, with its name from the text before it.

    `kind` is "num", "frac" (a of b), "dur" or "ratio". `before` is all text since the previous value, `name` its last part. `scale_end`: the K or M of a pair's total, or of a value that also
    has a unit. `bare`: there is no ":" or "=" between name and value. `tail`: a unit in brackets after the name.
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


@lru_cache(maxsize=4)  # tables, grammar and cache need the same line in turn
def mask(text: str) -> str:
    """The text with time stamps, source positions, URLs and the like masked, at the same length."""
    text = _MASKS.sub(lambda found: MASKED * len(found.group()), text)
    if not text.isascii():
        text = _PICTURES.sub(MASKED, text)
    if "#" not in text:
        return text
    return _HASH.sub(r"\1 ", text.replace("#011", "\t   "))


@lru_cache(maxsize=4)
def tokens(text: str) -> tuple[Token, ...]:
    """The values of a masked line, from left to right."""
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
    """Whether a number is inside a name; `bare_name` is the name before it, if neither ":" nor "=" is in between."""
    text, end = match.string, match.end("num")
    if match["num"].isdigit():
        if _INDEXED.search(before) and _MORE_NAME.match(text, end):
            return True  # "GPU 0 memory"
        if bare_name is not None and _LOSS_NUMBERED.match(text, end) and _is_numbered(bare_name):
            return True  # "Content 1 loss: 79.6": one of several, not of a metric
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
    """The name at the end of the text before a value, a unit in brackets after it, and whether it is bare."""
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


def _is_numbered(name: str) -> bool:
    """Whether a number after this name is an index of one of several losses, not a counter."""
    word = name.lower()
    return word.isalpha() and not any(word in known for known in _NOT_NUMBERED)


def is_adjacent(before: str) -> bool:
    """Whether only brackets and blanks are between a value and the previous one."""
    return not before.strip(" \t[](),:|>-") and len(before) <= 8

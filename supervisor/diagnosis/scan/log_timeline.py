"""Read times, progress and completion from a log: timestamps, step lines, gaps, persistent NaN losses, closing messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from supervisor.diagnosis.scan.matched_lines import SourceScan, is_progress
from supervisor.text.patterns import Lazy
from supervisor.text.stamps import stamp_of, whole_date

# How much of the text above a line to search for a bar.
BAR_BYTES: Final = 8192


_BAR_STATE = re.compile(rb"\b(\d{1,12})/(\d{1,12}) \[\d+:\d\d")
_BAR = Lazy(r"\d+/\d+ \[\d+:\d\d")
_DATE = Lazy(
    r"\d{4}[-/]\d\d[-/]\d\d[T_ ]\d\d:\d\d:\d\d|\b[IWEF]\d{4} \d\d:\d\d:\d\d|\b[A-Z][a-z]{2} +\d\d? \d\d:\d\d:\d\d"
)
DOUBLED_LINES: Final = 3
_NUMBER = Lazy(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?")


_LOSS = Lazy(
    r"""(?:^|[^\w])(?:train(?:ing)?[_/ ])?(?:total_)?(?:loss|lm[ _]loss|nll_loss|loss_total|loss_cls|step_loss|train_loss)["']?\s?[=:]?\s*["']?\s*([-+]?(?:nan|inf)|[-+]?\.?\d[\d.e+-]*)""",
    re.IGNORECASE,
)


# For lines whose format has no year or day, if no other line has one.
SOME_DAY_T: Final = 946728000.0  # noon of 2000-01-01
LATEST_T: Final = 4070908800.0  # 2099: no stamp is later


def when(text: str, day_t: float = SOME_DAY_T, *, bare_clock: bool = True) -> float | None:
    """Return the time at the start of a line in seconds (time zone unknown), or None if there is none.

    The time is truncated to whole seconds. In SLURM cancellation messages, it comes after the node name.
    """
    t = stamp_of(text, day_t, LATEST_T, bare_clock=bare_clock)
    if t is None and "CANCELLED AT " in text:
        t = stamp_of(text.partition("CANCELLED AT ")[2], day_t, LATEST_T, bare_clock=bare_clock)
    return None if t is None else float(int(t))


def day_of(lines: Iterable[str]) -> float:
    """Return the day from the first line with a full date, for interpreting timestamps that lack one."""
    dates = (whole_date(line, LATEST_T) for line in lines)
    return next((t for t in dates if t is not None), SOME_DAY_T)


def rows_of_one_form(lines: Iterable[str]) -> int:
    """Count the distinct lines in the most common format (table rows, counters), ignoring differences in numbers."""
    forms = Counter(_NUMBER.sub("0", line).strip() for line in set(lines))
    return max((count for form, count in forms.items() if "0" in form), default=0)


def is_bar(text: str) -> bool:
    """Check whether a line contains a progress bar with a count."""
    return _BAR.search(text) is not None


def progress_rows(lines: Sequence[str]) -> list[int]:
    """Return the indices of training output lines."""
    return [row for row, line in enumerate(lines) if is_progress(line)]


def bar_went_on(before: bytes, after: bytes) -> bool:
    """Check whether the last progress bar before a position continues after it. A restarted program draws a new bar.

    The bar may be redrawn one more time as an exception closes it.
    """
    last = next(iter(reversed(_BAR_STATE.findall(before[-BAR_BYTES:]))), None)
    later = _BAR_STATE.findall(after.split(b"Traceback", 1)[0])
    if last is None or not later or last[1] != later[0][1]:
        return False
    return 1 <= int(last[0]) < int(later[-1][0]) - 1


def bar_states(data: bytes) -> int:
    """Count the progress bar states drawn in the data."""
    return len(set(_BAR_STATE.findall(data)))


def _goes_on_untimed(training: Sequence[int], stamped: Sequence[int]) -> bool:
    """Check whether far more steps follow the last timestamp in the training output than usually fall between two timestamps."""
    before = [row for row in stamped if training and row <= training[-1]]
    counts = [sum(1 for row in training if low < row <= high) for low, high in pairwise(before[-40:])]
    last = sum(1 for row in training if not before or row > before[-1])
    return last > 3 + 3 * max(counts, default=0)


class Silence(NamedTuple):
    """The longest gap after the last training line, compared with earlier gaps. All values are in seconds."""

    gap_s: float
    median_s: float
    longest_s: float


def silence(lines: Sequence[str]) -> Silence | None:
    """Return the longest silence after the last training line in the tail, or None if the timestamps do not show one."""
    stamps = _stamps(lines)
    if len(stamps) < 3:
        return None
    training = progress_rows(lines)
    last_step = max(training, default=-1)
    # Lines that a shell stamped before training started show no step.
    steps = [stamp for row, stamp in stamps if training and training[0] - 1 <= row <= last_step]
    later = [stamp for row, stamp in stamps if row > last_step]
    if len(steps) < 2 or not later or _goes_on_untimed(training, [row for row, _ in stamps]):
        return None
    if _BAR.search(lines[last_step]) and last_step not in {row for row, _ in stamps}:
        return None  # a bar is redrawn hundreds of times in one line, without dates
    intervals = sorted(b - a for a, b in pairwise(steps) if b >= a)
    if not intervals:
        return None
    gap = max(b - a for a, b in zip([steps[-1], *later], later, strict=False))
    return Silence(gap, intervals[len(intervals) // 2], intervals[-1])


def _stamps(lines: Sequence[str]) -> list[tuple[int, float]]:
    """Return timestamped rows, all from one clock. Full dates win over bare times (and progress bars), which have no day."""
    second = [[match.start() for match in _DATE.finditer(line[:200])][1:2] for line in lines]
    if sum(map(len, second)) >= DOUBLED_LINES:
        # A collector's time is when a line passed. The program's own time comes after it.
        lines = [line[at[0] :] if at else "" for line, at in zip(lines, second, strict=True)]
    day_t = day_of(lines)
    for bare_clock in (False, True):
        times = ((row, when(line, day_t, bare_clock=bare_clock)) for row, line in enumerate(lines))
        if found := [(row, t) for row, t in times if t is not None]:
            return found
    return []


def ends_in_nan(lines: Sequence[str]) -> int | None:
    """Return the index of the loss line from which all losses are NaN, or None if the last loss is a number.

    One or two NaN losses may come from a gradient scaler's first steps, unless no step ever had a finite loss.
    """
    first: int | None = None
    count = 0
    numbers = False
    if not any("nan" in line or "NaN" in line or "inf" in line or "NAN" in line for line in lines):
        return None
    for row, line in enumerate(lines):
        values = [value.lower() for value in _LOSS.findall(line)]
        if not values:
            # tensorboardX's message about each nan scalar.
            count += first is not None and "NaN or Inf found in input tensor" in line
            continue
        if any(value.lstrip("+-") in {"nan", "inf"} for value in values):
            first = row if first is None else first
            count += 1
        else:
            first, count, numbers = None, 0, True
    if first is None:
        return None
    if not numbers and is_progress(lines[first]) and "nan" in lines[first].lower():
        return first
    return first if count >= 3 else None


# -- last words ------------------------------------------------------------------------------------

# Closing words are short. A longer line reports another event.
MAX_CHARS = 200
_TRAINING = r"(?:(?:pre)?train\w*|(?:fine)?tuning|optimi[sz]ation|fitting|runs?|jobs?|experiments?|process(?:es|ing)?|program|script|pipeline|everything|all|epochs|iterations|steps|rounds)"
_ENDED = r"(?:done|finish(?:ed)?|complete[d]?|ended|over|terminated|success(?:ful(?:ly)?)?)"
_BETWEEN = r"\W+(?:(?:the|of|with|for|after|all|at|in|is|has|was|been|model|full|whole|total|main|loop|process|now|successfully|\d+)\W+){0,4}"
_CLOSES = Lazy(
    rf"(?i)\b{_TRAINING}{_BETWEEN}{_ENDED}\b|\b(?:{_ENDED}|end of|finishing|completing){_BETWEEN}{_TRAINING}\b"
    r"|(?:^|[\]:|>-]\s*)\W*(?:all )?(?:done|finish(?:ed)?|completed?|the end|success(?:ful(?:ly)?)?|(?:good)?bye|完成了?|结束了?|完了|終了|완료|종료|готово|fertig|fini|terminé|listo|terminado)[\W\d]*$"
)
# Words about the training, whatever else the line mentions.
_OF_TRAINING = Lazy(
    r"(?i)训练.{0,6}(?:完成|结束|完毕)|(?:完成|结束).{0,4}训练|学習.{0,6}(?:完了|終了)|학습.{0,6}(?:완료|종료)"
    r"|\bearly[ _-]?(?:stop(?:ping|ped)?|terminat(?:e|ed|ion))(?:\W{0,6}@|\]| triggered| activated| reached| at| after|!|\.|$)|\bstopping (?:the )?(?:iterations?|training|optimi[sz]ation|run|now|here)\b(?! criteri)"
    r"|^\W*finished in [\d.]+ ?s\w*\W*$|\b(?:total )?train(?:ing)? (?:time|took|duration|elapsed)\b.{0,30}\d|\btotal (?:elapsed|execution|run|running|wall)[ _-]?time\b.{0,30}\d"
)
# Words about another activity than the training, or about an end still to come.
_ELSEWHERE = Lazy(
    r"(?i)\b(?:val|valid\w*|eval\w*|test\w*|infer\w*|predict\w*|download\w*|upload\w*|load\w*|reading|compil\w*|sav\w+|export\w*|warm-?up|sync\w*"
    r"|will|until|before|if|when|not|after each|every|estimat\w*|remaining|eta|left)\b|\b(?:epoch|step|iter(?:ation)?|round|fold)s?\W{0,3}\d"
)
# The reason for leaving a loop early: a word for the stop with its reason, or the reached limit.
_LEAVES = Lazy(
    r"(?i)\bearly.?stop\w*|\bstopping\b|\bstopped (?:at|after|early|by|because)\b|\bconverged\b|\bplateau\w*|\bno (?:more )?improvement\b|\bout of (?:time|budget|patience)\b"
    r"|\b(?:max\w*|time|target|limit|budget|deadline|patience|goal|threshold|tolerance)\b.{0,40}\b(?:reached|exceeded|hit|met|exhausted|expired|elapsed|over|up)\b"
    r"|\b(?:reached|hit|exceeded) (?:the )?(?:max\w*|time|target|limit|budget|deadline|goal|threshold)\b"
    r"|^(?=.*\b(?:stop(?:s|ped)?|halt(?:s|ed|ing)?|quit(?:s|ting)?|end(?:s|ed|ing)?|break(?:s|ing)?|terminat(?:es?|ed|ing)|g[ia]v(?:es?|ing) up)\b)"
    r".*\b(?:patience|plateau\w*|converge\w*|stagna\w*|flat|budget|allowance|deadline|time limit(?!\W{0,3}\d)|target|threshold|tolerance|improv\w+|gains?|no better|enough)\b"
)
# A complaint, whatever number it contains.
FAILS = Lazy(
    r"(?i)\b(?:error|fail\w*|exception|traceback|killed|abort\w*|warn\w*|died|crash\w*|exit\w* (?:with )?(?:code|status)\W{0,2}[1-9]\d*)\b|Error\b"
)
_EVALUATES = Lazy(r"(?i)\b(?:val|valid\w*|eval\w*|test\w*|infer\w*|predict\w*|mAP\w*)\b")
_NAMES_TRAINING = Lazy(r"(?i)train|(?<![a-z])loss")
_COUNT = Lazy(r"(?<![\d.:/])(\d{1,12})\s?/\s?(\d{1,12})(?![\d./])")
# A script logs at intervals, so its last logged step may be some steps before the end.
NEAR_TOTAL = 0.9
_DIGITS = re.compile(r"\d+")


def is_closing(line: str) -> bool:
    """Check whether a line, wherever it is in the log, reads like a script's closing message."""
    if len(line) > MAX_CHARS:
        return False
    if _OF_TRAINING.search(line):
        return True
    return _CLOSES.search(line) is not None and _ELSEWHERE.search(line) is None


def is_evaluation(step: str) -> bool:
    """Check whether a step line is from evaluation, meaning it mentions held-out data before any training or loss."""
    held_out = _EVALUATES.search(step)
    return held_out is not None and _NAMES_TRAINING.search(step[: held_out.start()]) is None


def closes_training(scan: SourceScan) -> bool:
    """Check whether the last lines report the end of training. If the counter is far below its total, "Done!" is not enough."""
    step, words = _last_words(scan)
    counts = [(int(found[1]), int(found[2])) for found in _COUNT.finditer(step)]
    if any(count < NEAR_TOTAL * total for count, total in counts):
        return any(_OF_TRAINING.search(line) for line in words if len(line) <= MAX_CHARS)
    return any(map(is_closing, words))


def says_why_it_ends(scan: SourceScan, *, merged: bool) -> bool:
    """Check whether lines after the last step report that training ended on purpose, whatever its counters say.

    If `merged` is true, the log includes a shell's own lines, so a closing message may be the shell's.
    """
    return any(
        # The last step's checkpoint has the step's number. The saved model usually has none.
        _LEAVES.search(line)
        or _OF_TRAINING.search(line)
        or is_evaluation(line)
        or (not merged and is_closing(line))
        for line in _last_words(scan)[1]
        if not FAILS.search(line)
    )


def _last_words(scan: SourceScan) -> tuple[str, list[str]]:
    """Return the last training step and any later lines in a format that does not occur earlier."""
    steps = [(number, text) for number, text in scan.tail_steps() if not is_evaluation(text)]
    if not steps:
        return "", []
    # "Keeping the weights of step 40" is not a step, because step lines have a recurring form.
    forms = Counter(form_of(text) for _, text in steps)
    last, step = next((one for one in reversed(steps) if forms[form_of(one[1])] > 1), steps[-1])
    above = {form_of(line) for number, line in scan.numbered_tail() if number < last}
    return step, [
        line for number, line in scan.numbered_tail() if number > last and form_of(line) not in above
    ]


def form_of(line: str) -> str:
    """Return the line's format, with its numbers masked."""
    return " ".join(_DIGITS.sub("0", line).split())

"""What a log shows about time and progress: time stamps, step lines, silences, a loss that stays nan or turned upwards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

from supervisor.text.patterns import Lazy
from supervisor.text.stamps import stamp_of, whole_date

# Two bars in turn, whose lines come again unchanged, show as much as one new line each so many.
ALTERNATING: Final = 4
# Of what stands above a line, so much is looked through for a bar.
BAR_BYTES: Final = 8192


_BAR = Lazy(r"\d+/\d+ \[\d+:\d\d")
_DATE = Lazy(
    r"\d{4}[-/]\d\d[-/]\d\d[T_ ]\d\d:\d\d:\d\d|\b[IWEF]\d{4} \d\d:\d\d:\d\d|\b[A-Z][a-z]{2} +\d\d? \d\d:\d\d:\d\d"
)
DOUBLED_LINES: Final = 3
_NUMBER = Lazy(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?")


@cache
def _patterns() -> dict[str, Lazy]:
    return {
        # For lower-case text: with IGNORECASE this one pattern took 4 ms to compile, half of Python's own start.
        "progress": Lazy(
            r"""\{['"]loss['"]: ?[-\d.]+
            |\b(?:global_?)?(?:steps?|iter(?:ation)?s?|it|batch|num_updates|update|minibatch|epoch)\b["']?\s{0,3}[=:\[\s/(#]{1,4}\s{0,8}["']?\d
            |\d%\|.{0,60}\|\s*\d+/\d+\s\[
            |\b\d+/\d+\s\[\d+:\d\d
            |\b(?:loss|ppl|grad_norm|wps|tokens/s|samples/s|lr)["']?\s?[=:]\s?["']?[-+\d.]+e?[-+\d]*
            |\b\d{1,12}(?:\.\d{0,12})?\s?(?:it/s|s/it|samples/s|tok/s|tokens/s|img/s)\b
            |\bit\s\d+\s(?:ok|done)\b
            |\bepoch\s?[\[(:]?\s?\d
            |\beta:?\s(?:\d+\sdays?\b|\d+:\d\d)
            |\bep\s\d+\strain""",
            re.VERBOSE,
        ),
        "nan": Lazy(
            r"""(?:^|[^\w])(?:train(?:ing)?[_/ ])?(?:total_)?(?:loss|lm[ _]loss|nll_loss|loss_total|loss_cls|step_loss|train_loss)["']?\s?[=:]?\s*["']?\s*([-+]?(?:nan|inf)|[-+]?\.?\d[\d.e+-]*)""",
            re.IGNORECASE,
        ),
    }


# Of lines whose format has no year or no day, where no other line names one.
SOME_DAY_T: Final = 946728000.0  # noon of 2000-01-01
LATEST_T: Final = 4070908800.0  # 2099: no stamp is of later


def when(text: str, day_t: float = SOME_DAY_T, *, bare_clock: bool = True) -> float | None:
    """The time that a line names at its head, as seconds in an unnamed zone; None if it names none.

    Whole seconds: the order within a second is not used. SLURM prints the time of a cancellation behind the node's name.
    """
    t = stamp_of(text, day_t, LATEST_T, bare_clock=bare_clock)
    if t is None and "CANCELLED AT " in text:
        t = stamp_of(text.partition("CANCELLED AT ")[2], day_t, LATEST_T, bare_clock=bare_clock)
    return None if t is None else float(int(t))


def day_of(lines: Iterable[str]) -> float:
    """The day of the first line that names one with its year; stamps of other formats are read with it."""
    dates = (whole_date(line, LATEST_T) for line in lines)
    return next((t for t in dates if t is not None), SOME_DAY_T)


def is_progress(text: str) -> bool:
    """Whether a line is one of training's own: a step, an epoch, a bar."""
    return _patterns()["progress"].search(text.lower()) is not None and not _not_training(text)


def rows_of_one_form(lines: Iterable[str]) -> int:
    """How many different lines differ only in their numbers, of the form that most have: rows of a table, counters."""
    forms = Counter(_NUMBER.sub("0", line).strip() for line in set(lines))
    return max((count for form, count in forms.items() if "0" in form), default=0)


def _not_training(text: str) -> bool:
    """Lines of schedulers, trackers and tracebacks that name steps and losses too."""
    return (
        "slurmstepd" in text or "wandb: " in text[:40] or "srun:" in text or text.startswith("  File ") or "Traceback" in text
        or "Error: " in text or "rank      :" in text or "Namespace(" in text
        or text.lstrip(" [{(").lower().startswith(("config", "args", "arguments", "hparams", "hyperparam"))
    )  # fmt: skip


def is_bar(text: str) -> bool:
    """Whether a bar with a count is drawn in a line."""
    return _BAR.search(text) is not None


def progress_rows(lines: Sequence[str]) -> list[int]:
    """The indices of training's own lines."""
    return [row for row, line in enumerate(lines) if is_progress(line)]


def went_on(after: Sequence[str], need: int = 3) -> bool:
    """Whether training's own lines follow: at least `need` that differ, or bars that alternate for long."""
    seen: set[str] = set()
    changes, last = 0, ""
    for line in after:
        if is_progress(line):
            seen.add(line[:400])
            changes, last = changes + (line != last), line
            if len(seen) >= need or changes >= ALTERNATING * need:
                return True
    return False


def bar_went_on(before: bytes, after: bytes) -> bool:
    """Whether the bar that was drawn last above a place continues below it: a program that starts again draws from nothing.

    One state more may be drawn as an exception closes the bar.
    """
    last = next(iter(reversed(_bar_state().findall(before[-BAR_BYTES:]))), None)
    later = _bar_state().findall(after.split(b"Traceback", 1)[0])
    if last is None or not later or last[1] != later[0][1]:
        return False
    return 1 <= int(last[0]) < int(later[-1][0]) - 1


def bar_states(data: bytes) -> int:
    """How many states of bars are drawn in a text."""
    return len(set(_bar_state().findall(data)))


@cache
def _bar_state() -> re.Pattern[bytes]:
    return re.compile(rb"\b(\d{1,12})/(\d{1,12}) \[\d+:\d\d")


def _goes_on_untimed(training: Sequence[int], stamped: Sequence[int]) -> bool:
    """Whether far more steps follow the last time before training's end than usually stand between two times."""
    before = [row for row in stamped if training and row <= training[-1]]
    counts = [sum(1 for row in training if low < row <= high) for low, high in pairwise(before[-40:])]
    last = sum(1 for row in training if not before or row > before[-1])
    return last > 3 + 3 * max(counts, default=0)


class Silence(NamedTuple):
    """The largest gap after the last training line, against the gaps before it; all in seconds."""

    gap_s: float
    median_s: float
    longest_s: float


def silence(lines: Sequence[str]) -> Silence | None:
    """The last silence between two stamped lines of the tail. None where stamps do not allow it."""
    stamps = _stamps(lines)
    if len(stamps) < 3:
        return None
    training = progress_rows(lines)
    last_step = max(training, default=-1)
    # What a shell dated before training began tells of no step.
    steps = [stamp for row, stamp in stamps if training and training[0] - 1 <= row <= last_step]
    later = [stamp for row, stamp in stamps if row > last_step]
    if len(steps) < 2 or not later or _goes_on_untimed(training, [row for row, _ in stamps]):
        return None
    if _BAR.search(lines[last_step]) and last_step not in {row for row, _ in stamps}:
        return None  # a bar is redrawn hundreds of times in one line, and bears no date
    intervals = sorted(b - a for a, b in pairwise(steps) if b >= a)
    if not intervals:
        return None
    gap = max(b - a for a, b in zip([steps[-1], *later], later, strict=False))
    return Silence(gap, intervals[len(intervals) // 2], intervals[-1])


def _stamps(lines: Sequence[str]) -> list[tuple[int, float]]:
    """The rows that bear a time, by one clock: a bare one (a bar's, too) names no day, and is of no use beside dates."""
    second = [[match.start() for match in _DATE.finditer(line[:200])][1:2] for line in lines]
    if sum(map(len, second)) >= DOUBLED_LINES:
        # A collector's time is when a line came by: the program's own stands behind it.
        lines = [line[at[0] :] if at else "" for line, at in zip(lines, second, strict=True)]
    day_t = day_of(lines)
    for bare_clock in (False, True):
        times = ((row, when(line, day_t, bare_clock=bare_clock)) for row, line in enumerate(lines))
        if found := [(row, t) for row, t in times if t is not None]:
            return found
    return []


def ends_in_nan(lines: Sequence[str]) -> int | None:
    """The index of the first of the loss lines that are nan to the end; None if the last loss is a number.

    One or two may be a scaler's first steps, unless no step ever had a number.
    """
    first: int | None = None
    count = 0
    numbers = False
    if not any("nan" in line or "NaN" in line or "inf" in line or "NAN" in line for line in lines):
        return None
    for row, line in enumerate(lines):
        values = [value.lower() for value in _patterns()["nan"].findall(line)]
        if not values:
            # What tensorboardX says of each scalar that it is given as nan.
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

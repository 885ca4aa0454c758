"""Whether a script's last words close its training, in whatever words it has for that.

A line like "Done!" or "finished after 800000 iterations" says little by itself: scripts print such lines of their data,
of a save, of each epoch. It closes the training if it stands below the training's last step and its like does not stand
between two steps above: what is printed once, at the end, is about the end. Where the last step was of the last epoch
that was planned, a summary is enough ("model saved to ...", "final loss: ...").
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from supervisor.diagnosis.scan.hit import SourceScan
from supervisor.text.patterns import Lazy
from supervisor.text.secret_values import word_set

# A last word is short; a longer line is a report of something else.
MAX_CHARS = 200
# Below the last step stand a last evaluation and a summary, of which the last words are looked at.
MAX_LINES = 400
# A script logs every so many steps: its last line stands some steps before the last.
NEAR_TOTAL = 0.9

_TRAINING = word_set(
    "train training trainer pretraining finetuning tuning learning optimization optimisation fitting "
    "run runs job experiment experiments process processes program script pipeline everything all "
    "epochs iterations iters steps updates episodes rounds folds"
)
_ENDED = word_set("done finished finish complete completed ended over terminated successful successfully")
_ENDS = word_set("done finish finished finishing complete completed completing ended ending end")
# Words that may stand between them: "Finished after 800000 iterations", "end of the training process".
_BETWEEN = word_set(
    "the of with for after all at in is has was been model full whole total main loop phase process now "
    "successfully"
)
_MOST_BETWEEN = 4
_LAST_WORDS = frozenset(
    ("done", "all done", "finish", "finished", "complete", "completed", "the end", "end", "ended", "success", "successful", "successfully", "that's it",
     "thats it", "that's all", "that's all folks", "bye", "goodbye", "完成", "结束", "完了", "終了", "完成了", "结束了", "완료", "종료", "готово", "terminé", "fini",
     "fertig", "listo", "terminado", "concluído", "fim", "fin")
)  # fmt: skip
_LEVELS = frozenset(("info", "debug", "notice", "success"))
_WORDS = re.compile(r"[^\W\d_]+|\d+")
_EDGES = re.compile(r"^[\W\d_]+|[\W\d_]+$")
# What stands between a logger's words and the message.
_JOINTS = re.compile(r"[\]:|>]+\s*|\s-+\s")
_EVALUATES = Lazy(r"(?i)\b(?:val|valid\w*|eval\w*|test\w*|infer\w*|predict\w*|mAP\w*)\b")
_TRAINS = Lazy(r"(?i)train|(?<![a-z])loss")
# What names a step or an epoch below the last one, and is none.
_SUMS_UP = Lazy(r"(?i)\b(?:best|sav(?:ed?|ing)|checkpoints?|final|loaded|wr[io]te|written|restor\w+)\b")
# Why a loop is left before its planned end; in the last two lines, a word for the stop and one for its reason in either order.
_LEAVES = Lazy(
    r"(?i)\bearly.?stop\w*|\bstopping\b|\bstopped (?:at|after|early|by|because)\b|\bconverged\b|\bplateau\w*|\bno (?:more )?improvement\b|\bout of (?:time|budget|patience)\b"
    r"|\b(?:max\w*|time|target|limit|budget|deadline|patience|goal|threshold|tolerance)\b.{0,40}\b(?:reached|exceeded|hit|met|exhausted|expired|elapsed|over|up)\b"
    r"|\b(?:reached|hit|exceeded) (?:the )?(?:max\w*|time|target|limit|budget|deadline|goal|threshold)\b"
    r"|^(?=.*\b(?:stop(?:s|ped)?|halt(?:s|ed|ing)?|quit(?:s|ting)?|end(?:s|ed|ing)?|break(?:s|ing)?|terminat(?:es?|ed|ing)|g[ia]v(?:es?|ing) up)\b)"
    r".*\b(?:patience|plateau\w*|converge\w*|stagna\w*|flat|budget|allowance|deadline|time limit(?!\W{0,3}\d)|target|threshold|tolerance|improv\w+|gains?|no better|enough)\b"
)
# A complaint, whatever number it names.
FAILS = Lazy(
    r"(?i)\b(?:error|fail\w*|exception|traceback|killed|abort\w*|warn\w*|died|crash\w*|exit\w* (?:with )?(?:code|status)\W{0,2}[1-9]\d*)\b|Error\b"
)
# These are about the training whatever else they name.
_OF_TRAINING = Lazy(
    r"(?i)^[\W\d_]*train(?:ing)? end(?:s|ing)?\s*(?:[^\w\s-]|$)"
    r"|训练.{0,6}(?:完成|结束|完毕)|(?:完成|结束).{0,4}训练|学習.{0,6}(?:完了|終了)|학습.{0,6}(?:완료|종료)"
    r"|\bearly[ _-]?(?:stop(?:ping|ped)?|terminat(?:e|ed|ion))(?:\W{0,6}@|\]| triggered| activated| reached| at| after|!|\.|$)"
    r"|\bstopping (?:the )?(?:iterations?|training|optimi[sz]ation|run|now|here)\b(?! criteri)"
    r"|^\W*finished in [\d.]+ ?s\w*\W*$"
    r"|\b(?:total )?train(?:ing)? (?:time|took|duration|elapsed)\b.{0,30}\d|\btotal (?:elapsed|execution|run|running|wall)[ _-]?time\b.{0,30}\d"
)
# Of something else than the training, or of an end that is still to come.
_ELSEWHERE = Lazy(
    r"(?i)\b(?:val|valid\w*|eval\w*|test\w*|infer\w*|predict\w*|download\w*|upload\w*|load\w*|reading|compil\w*|sav\w+|export\w*|warm-?up|sync\w*"
    r"|will|until|before|if|when|not|after each|every|estimat\w*|remaining|eta|left)\b|\b(?:epoch|step|iter(?:ation)?|round|fold)s?\W{0,3}\d"
)
_COUNT = Lazy(r"(?<![\d.:/])(\d{1,12})\s?/\s?(\d{1,12})(?![\d./])")
_EPOCHS = Lazy(
    r"(?i)\b(?:epochs?|cycles?|rounds?|episodes?)\W{0,3}(\d{1,9})\s?(?:/|of)\s?(\d{1,9})(?![\d./])"
)
# An epoch's number stands in its heading, in its steps or in its summary, so many lines below the last step at most.
_EPOCH_LINES = 3
_COUNTER = Lazy(r"(?i)\b(epoch|iter|iteration|step)s?\W{0,4}(\d{1,12})\b")
_DIGITS = re.compile(r"\d+")


def closes_training(scan: SourceScan) -> bool:
    """Whether the log's last words say that training ended."""
    steps = [(number, text) for number, text in scan.tail_steps() if _is_step(text)]
    if not steps:
        return False
    last, line = steps[-1]
    is_short = _is_short_of_total(line)
    is_planned_end = not is_short and _is_last_epoch(
        [text for number, text in scan.numbered_tail() if number <= last + _EPOCH_LINES]
    )
    below = [line for number, line in scan.numbered_tail() if number > last][-MAX_LINES:]
    return _stands_only_below(
        scan,
        steps,
        (
            line
            for line in below
            if is_closing(line, word_alone=not is_short) or (is_planned_end and _is_summary(line))
        ),
    )


def says_why_it_ends(scan: SourceScan, *, merged: bool) -> bool:
    """Whether lines below the last step say that the training was left on purpose, wherever its counters stand.

    `merged`: a shell's own lines stand among them, so that a word for the end may be the shell's.
    """
    steps = [(n, text) for n, text in scan.tail_steps() if _is_step(text) and not _LEAVES.search(text)]
    if not steps:
        return False
    # "Keeping the weights of step 40" is no step: those have a form that returns.
    forms = Counter(form_of(text) for _, text in steps)
    steps = [item for item in steps if forms[form_of(item[1])] > 1] or steps
    below = (line for number, line in scan.numbered_tail() if number > steps[-1][0])
    return _stands_only_below(scan, steps, (line for line in below if _is_leaving(line, merged=merged)))


def _is_leaving(line: str, *, merged: bool) -> bool:
    if len(line) > MAX_CHARS or FAILS.search(line):
        return False
    if _LEAVES.search(line) or _OF_TRAINING.search(line):
        return True
    if _DIGITS.search(line):  # the checkpoint of the last step has its number, the saved model mostly none
        return is_evaluation(line) or (not merged and is_closing(line))
    return not merged and is_closing(line)


def _stands_only_below(scan: SourceScan, steps: list[tuple[int, str]], lines: Iterable[str]) -> bool:
    """Whether one of the lines below the last step has a form that stands between no two steps of the same training."""
    found = {form_of(line) for line in lines}
    if not found:
        return False
    first, last = steps[0][0], steps[-1][0]
    between = (
        line
        for number, line in scan.numbered_tail()
        if first < number < last and len(line) <= MAX_CHARS and form_of(line) in found
        if not _begins_again(steps, number)
    )
    return bool(found - {form_of(line) for line in between})


def _begins_again(steps: list[tuple[int, str]], line: int) -> bool:
    """Whether epochs, or steps, are counted from the start below a line: another training follows in the same log."""
    below = bisect_left(steps, (line, ""))
    before = _first_count(reversed(steps[:below]))
    after = _first_count(steps[below:])
    if before is None or after is None or before[1].lower() != after[1].lower():
        return False
    return int(after[2]) < int(before[2])


def _first_count(steps: Iterable[tuple[int, str]]) -> re.Match[str] | None:
    return next((found for _, text in steps if (found := _COUNTER.search(text))), None)


def _is_step(text: str) -> bool:
    """Whether a line that names a step is of the training, and not a summary or the last words."""
    return not (is_evaluation(text) or _SUMS_UP.search(text) or is_closing(text))


def _is_summary(line: str) -> bool:
    return len(line) <= MAX_CHARS and _SUMS_UP.search(line) is not None


def is_evaluation(step: str) -> bool:
    """Whether a line with a step is of an evaluation: held-out data is named before any training or loss."""
    held_out = _EVALUATES.search(step)
    return held_out is not None and _TRAINS.search(step[: held_out.start()]) is None


def is_closing(line: str, *, word_alone: bool = True) -> bool:
    """Whether a line reads like a script's last words, wherever it stands. `word_alone`: "Done!" is enough."""
    if len(line) > MAX_CHARS:
        return False
    if _OF_TRAINING.search(line):
        return True
    if _ELSEWHERE.search(line):
        return False
    return _says_end(_WORDS.findall(line.lower())) or (word_alone and _is_last_word(line))


def _says_end(words: list[str]) -> bool:
    """Whether a word for the training and one for its end stand together, in either order, but for a few words between."""
    for at, word in enumerate(words):
        if word in _TRAINING:
            wanted = _ENDED
        elif word in _ENDS and (word != "end" or words[at + 1 : at + 2] == ["of"]):
            wanted = _TRAINING
        else:
            continue
        for following in words[at + 1 : at + 2 + _MOST_BETWEEN]:
            if following in wanted:
                return True
            if following not in _BETWEEN and not following.isdigit():
                break
    return False


def _is_last_word(line: str) -> bool:
    """Whether a line is such a word alone, behind a logger's own words at most: "[12:01] trainer - INFO - Done!"."""
    *before, message = _JOINTS.split(line)
    if _EDGES.sub("", message).lower() not in _LAST_WORDS:
        return False
    return all(len(set(_letters(part)) - _LEVELS) <= 1 for part in before)


def _letters(text: str) -> list[str]:
    return [word for word in _WORDS.findall(text.lower()) if not word.isdigit()]


def _is_short_of_total(step: str) -> bool:
    """Whether a counter of a line stands well before its total."""
    counts = ((int(found[1]), int(found[2])) for found in _COUNT.finditer(step))
    return any(count < NEAR_TOTAL * total for count, total in counts)


def _is_last_epoch(lines: list[str]) -> bool:
    """Whether the last epoch that lines number is the last of those planned."""
    numbered = next((found for line in reversed(lines) for found in _EPOCHS.finditer(line)), None)
    return numbered is not None and int(numbered[1]) == int(numbered[2])


def form_of(line: str) -> str:
    """A line without its numbers."""
    return " ".join(_DIGITS.sub("0", line).split())

"""Whether a script's last words say that its training ended, and why it left its loop before the planned end.

A line like "Done!" says little by itself: scripts print such lines of their data, of a save, of each epoch. It counts only below
the training's last step, where no line of its form stands above that.
"""

from __future__ import annotations

import re
from collections import Counter

from supervisor.diagnosis.scan.matched_lines import SourceScan
from supervisor.text.patterns import Lazy

# A last word is short; a longer line is a report of something else.
MAX_CHARS = 200
_TRAINING = r"(?:(?:pre)?train\w*|(?:fine)?tuning|optimi[sz]ation|fitting|runs?|jobs?|experiments?|process(?:es|ing)?|program|script|pipeline|everything|all|epochs|iterations|steps|rounds)"
_ENDED = r"(?:done|finish(?:ed)?|complete[d]?|ended|over|terminated|success(?:ful(?:ly)?)?)"
_BETWEEN = r"\W+(?:(?:the|of|with|for|after|all|at|in|is|has|was|been|model|full|whole|total|main|loop|process|now|successfully|\d+)\W+){0,4}"
_CLOSES = Lazy(
    rf"(?i)\b{_TRAINING}{_BETWEEN}{_ENDED}\b|\b(?:{_ENDED}|end of|finishing|completing){_BETWEEN}{_TRAINING}\b"
    r"|(?:^|[\]:|>-]\s*)\W*(?:all )?(?:done|finish(?:ed)?|completed?|the end|success(?:ful(?:ly)?)?|(?:good)?bye|完成了?|结束了?|完了|終了|완료|종료|готово|fertig|fini|terminé|listo|terminado)[\W\d]*$"
)
# These are about the training whatever else they name.
_OF_TRAINING = Lazy(
    r"(?i)训练.{0,6}(?:完成|结束|完毕)|(?:完成|结束).{0,4}训练|学習.{0,6}(?:完了|終了)|학습.{0,6}(?:완료|종료)"
    r"|\bearly[ _-]?(?:stop(?:ping|ped)?|terminat(?:e|ed|ion))(?:\W{0,6}@|\]| triggered| activated| reached| at| after|!|\.|$)|\bstopping (?:the )?(?:iterations?|training|optimi[sz]ation|run|now|here)\b(?! criteri)"
    r"|^\W*finished in [\d.]+ ?s\w*\W*$|\b(?:total )?train(?:ing)? (?:time|took|duration|elapsed)\b.{0,30}\d|\btotal (?:elapsed|execution|run|running|wall)[ _-]?time\b.{0,30}\d"
)
# Of something else than the training, or of an end that is still to come.
_ELSEWHERE = Lazy(
    r"(?i)\b(?:val|valid\w*|eval\w*|test\w*|infer\w*|predict\w*|download\w*|upload\w*|load\w*|reading|compil\w*|sav\w+|export\w*|warm-?up|sync\w*"
    r"|will|until|before|if|when|not|after each|every|estimat\w*|remaining|eta|left)\b|\b(?:epoch|step|iter(?:ation)?|round|fold)s?\W{0,3}\d"
)
# Why a loop is left before its planned end: a word for the stop with its reason, or the limit that was reached.
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
_EVALUATES = Lazy(r"(?i)\b(?:val|valid\w*|eval\w*|test\w*|infer\w*|predict\w*|mAP\w*)\b")
_TRAINS = Lazy(r"(?i)train|(?<![a-z])loss")
_COUNT = Lazy(r"(?<![\d.:/])(\d{1,12})\s?/\s?(\d{1,12})(?![\d./])")
# A script logs every so many steps: its last line stands some steps before the last.
NEAR_TOTAL = 0.9
_DIGITS = re.compile(r"\d+")


def is_closing(line: str) -> bool:
    """Whether a line reads like a script's last words, wherever it stands."""
    if len(line) > MAX_CHARS:
        return False
    if _OF_TRAINING.search(line):
        return True
    return _CLOSES.search(line) is not None and _ELSEWHERE.search(line) is None


def is_evaluation(step: str) -> bool:
    """Whether a line with a step is of an evaluation: held-out data is named before any training or loss."""
    held_out = _EVALUATES.search(step)
    return held_out is not None and _TRAINS.search(step[: held_out.start()]) is None


def closes_training(scan: SourceScan) -> bool:
    """Whether the log's last words say that training ended. Far from a counter's total, "Done!" is about something else."""
    step, words = _last_words(scan)
    counts = [(int(found[1]), int(found[2])) for found in _COUNT.finditer(step)]
    if any(count < NEAR_TOTAL * total for count, total in counts):
        return any(_OF_TRAINING.search(line) for line in words if len(line) <= MAX_CHARS)
    return any(map(is_closing, words))


def says_why_it_ends(scan: SourceScan, *, merged: bool) -> bool:
    """Whether lines below the last step say that the training was left on purpose, wherever its counters stand.

    `merged`: a shell's own lines stand among them, so that a word for the end may be the shell's.
    """
    return any(_is_leaving(line, merged=merged) for line in _last_words(scan)[1])


def _last_words(scan: SourceScan) -> tuple[str, list[str]]:
    """Training's last step, and the lines below it of whose form no other stands above."""
    steps = [
        (number, text)
        for number, text in scan.tail_steps()
        if not (is_evaluation(text) or is_closing(text) or _LEAVES.search(text))
    ]
    if not steps:
        return "", []
    # "Keeping the weights of step 40" is no step: those have a form that returns.
    forms = Counter(form_of(text) for _, text in steps)
    last, step = next((one for one in reversed(steps) if forms[form_of(one[1])] > 1), steps[-1])
    above = {form_of(line) for number, line in scan.numbered_tail() if number < last}
    return step, [
        line for number, line in scan.numbered_tail() if number > last and form_of(line) not in above
    ]


def _is_leaving(line: str, *, merged: bool) -> bool:
    if len(line) > MAX_CHARS or FAILS.search(line):
        return False
    if _LEAVES.search(line) or _OF_TRAINING.search(line):
        return True
    # The checkpoint of the last step has its number, the saved model mostly none.
    return (_DIGITS.search(line) is not None and is_evaluation(line)) or (not merged and is_closing(line))


def form_of(line: str) -> str:
    """A line without its numbers."""
    return " ".join(_DIGITS.sub("0", line).split())

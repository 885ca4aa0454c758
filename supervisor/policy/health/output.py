"""Which lines of the ranks' logs are news, judged by their words without numbers, and by how often they came while steps completed.

A heartbeat thread, a tracker's status line, or one rank that keeps logging prints the same words in a hang as before it. An
evaluation, a save, or a download prints words that no step printed. So each line is reduced to its *template*: its words without
digits. A template is familiar in a log once it was printed both before and after a step. The average time between two such lines is
its usual interval. A familiar template is news only if it comes more than twice as often as usual, or within half its interval after
the last step. So one evaluation does not make the next one familiar.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple

from supervisor.run.events import Phase

TEMPLATE_BYTES: Final = 300
MOST_TEMPLATES: Final = 4096
"""For all logs of an attempt. In prose every line is a new template, so templates that no step made familiar go first."""
FASTER: Final = 2.0
SPARE: Final = 2.0
"""A familiar template may come this many times as often as usual, plus this many lines: lines are read in uneven batches."""

_DIGITS = b"0123456789"
# A date, a version or a path does not match.
_COUNTER = re.compile(rb"(?<![\d./-])(\d{1,9})(?:\s?/\s?| of )(\d{1,9})(?![\d./])")
# What a lower-case line announces, with a substring that is faster to find. A result, or the end of a phase, announces nothing.
_ANNOUNCED: Final = (
    (Phase.EVALUATING, b"val", re.compile(rb"\b(?:eval|evaluat(?:e|ing|ion)|validat(?:e|ing|ion))\b")),
    (Phase.CHECKPOINTING, b"ing", re.compile(rb"\b(?:saving|checkpointing)\b")),
    (Phase.COMPILING, b"compil", re.compile(rb"\b(?:re)?compil(?:e|ing|ation)\b")),
)
_RESULT = re.compile(rb"\d\.\d|\b(?:done|ended|finished|completed?|saved|took)\b")
# The same for a stack: functions of a script, and files of PyTorch that run only in such a phase. A compiled model has frames of
# torch._dynamo in every step, and activation checkpointing has functions called checkpoint.
_STANDS_IN: Final = (
    (Phase.EVALUATING, re.compile(r"(?i)(?:\b|_)(?:eval|validat)\w*@")),
    (
        Phase.CHECKPOINTING,
        re.compile(r"(?i)(?:\b|_)(?:save|ckpt)\w*@|@\S*(?:torch/serialization|distributed/checkpoint|safetensors)"),
    ),
    (
        Phase.COMPILING,
        re.compile(
            r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph)"
            r"|torch/_inductor/(?:compile|graph|scheduler|codecache|async_compile|codegen)|triton/compiler"
        ),
    ),
)  # fmt: skip


class Printed(NamedTuple):
    """A line of a log. `template`: a hash of its words. `counter`: ``12/50``, if it shows one. `phase`: what it announces."""

    template: int
    counter: tuple[int, int] | None = None
    phase: Phase | None = None


class News(IntEnum):
    """What a line shows about a run that completes no step, from the weakest."""

    NONE = 0  # it comes as it did while steps completed
    REPEATED = 1  # no step printed it, but it repeats since the last one: an evaluation's lines, or a rank that waits
    EARLY = 2  # it is familiar, but comes sooner after the last step than usual: mostly the next evaluation
    FRESH = 3  # these words are new
    COUNTED = 4  # its counter went up


def printed(raw: bytes) -> Printed:
    """Read a line."""
    head = raw[:TEMPLATE_BYTES].lower()
    found = _COUNTER.search(head) if b"/" in head or b" of " in head else None
    counter = (int(found[1]), int(found[2])) if found is not None else None
    phase = next((phase for phase, part, rule in _ANNOUNCED if part in head and rule.search(head)), None)
    if phase is not None and counter is None and _RESULT.search(head):
        phase = None
    return Printed(hash(tuple(filter(_is_word, head.split()))), counter, phase)


def _is_word(token: bytes) -> bool:
    """Whether a token has letters and no digit: a spinner or a part of a bar is not a word."""
    return token.translate(None, _DIGITS) == token and (token.upper() != token or not token.isascii())


def phase_in_stack(mark: str) -> Phase | None:
    """The phase that a stack shows, given as ``function@file:line`` joined by bars; None: a step, or unknown."""
    return next((phase for phase, stands_in in _STANDS_IN if stands_in.search(mark)), None)


class _Template:
    """What is known about a template in one log. Times are in seconds. `step`: how many steps had completed at its last line.

    `gaps`, `gaps_s`: the number and total length of the gaps between its lines that contain a step. `count`: lines since the newest
    such gap, which ended at `since`. `counted`: the total of its counter, and its highest value.
    """

    def __init__(self, now: float, step: int) -> None:
        self.last = self.since = now
        self.step, self.count = step, 1
        self.gaps, self.gaps_s = 0, 0.0
        self.counted = (0, 0)


class Output:
    """The lines of one attempt."""

    def __init__(self) -> None:
        self._templates: dict[tuple[str, int], _Template] = {}
        self._steps, self._step_at = 0, 0.0

    def step(self, now: float) -> None:
        """A step completed."""
        self._steps, self._step_at = self._steps + 1, now

    def news(self, log: str, line: Printed, now: float) -> News:
        """Judge a line of a log."""
        key = (log, line.template)
        known = self._templates.get(key)
        if known is None:
            if len(self._templates) >= MOST_TEMPLATES:
                familiar = {key: one for key, one in self._templates.items() if one.gaps}
                self._templates = familiar if len(familiar) < MOST_TEMPLATES else {}
            known = self._templates[key] = _Template(now, self._steps)
            self._went_up(known, line.counter)
            return News.FRESH
        if known.step != self._steps:
            known.gaps, known.gaps_s = known.gaps + 1, known.gaps_s + now - known.last
            known.step, known.since, known.count = self._steps, now, 0
        known.last = now
        known.count += 1
        went_up = self._went_up(known, line.counter)
        # If an adopting keeper reads a log again, its times are lost: the interval is then 0, and nothing comes too often.
        usual_s = known.gaps_s / known.gaps if known.gaps else -1.0
        if (known.count - SPARE) * usual_s <= FASTER * (now - known.since) and known.gaps:
            is_early = known.count == 1 and usual_s > FASTER * (now - self._step_at)
            return News.EARLY if is_early else News.NONE
        return News.COUNTED if went_up else News.REPEATED

    @staticmethod
    def _went_up(known: _Template, counter: tuple[int, int] | None) -> bool:
        """Whether its counter exceeds its highest value so far: a number that goes up and down is a reading, not a counter."""
        if counter is None:
            return False
        done, total = counter
        before = known.counted[1] if known.counted[0] == total and done > 1 else 0
        known.counted = (total, max(done, before))
        return before < done <= total

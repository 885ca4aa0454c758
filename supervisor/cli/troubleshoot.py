"""Explain a symptom: what it means, what stoker does about it, and what you can do."""

from __future__ import annotations

import argparse
import os
import shutil
import textwrap
from collections.abc import Iterable

from supervisor.cli.common import appearance_from, complain, say
from supervisor.diagnosis.class_words import class_texts
from supervisor.diagnosis.scan.signature_tables import Signature, parse_tables
from supervisor.diagnosis.symptoms import is_slowness, leads, samples_of
from supervisor.policy.rule_words import rules_about
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import read_tables
from supervisor.text.redact import redact_text
from supervisor.views.wording.translate import Tr, words_in

MOST_SAMPLES = 3
WIDTH = 100
LONGEST_WORDS = 80
"""Anything longer is treated as a log line, in which a single word carries less weight."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "symptom",
        nargs="*",
        metavar="SYMPTOM",
        help="words (stuck, loss is nan), a log line in quotes, or a class (cuda_oom) (default: all classes)",
    )
    parser.add_argument("--lang", metavar="en|zh", help="language of the text (default: from LANG)")


def run(args: argparse.Namespace) -> int:
    """Exit 0 if one or more pages match, or 2 if no word is recognized."""
    tr = words_in(appearance_from({"lang": args.lang}, os.environ).spoken)
    known = parse_tables(read_tables()).entries
    symptom = " ".join(args.symptom).strip()
    if not symptom:
        classes = [
            failure
            for failure in class_texts()
            if failure not in {FailureClass.HEALTHY, FailureClass.UNKNOWN}
        ]
        _list("what stoker can tell apart:", classes, tr)
        return 0
    if is_slowness(symptom) and len(symptom) < LONGEST_WORDS:
        _slow(tr)
        return 0
    found = leads(symptom, known)
    if not found:
        hint = "`stoker troubleshoot` lists what is known (a log is read by `stoker diagnose LOG`)"
        return complain("troubleshoot", f"nothing is known of “{symptom[:80]}”: {hint}")
    if len(found) == 1:
        _page(found[0], known, tr)
    else:
        _list("it may be one of these:", found, tr)
    return 0


def _list(head: str, classes: Iterable[FailureClass], tr: Tr) -> None:
    _say(tr(head))
    for failure in classes:
        _say(f"  {failure.value:18} {tr(class_texts()[failure].title)}")
    _say(tr("`stoker troubleshoot CLASS` tells of one; a log is read by `stoker diagnose LOG`"))


def _slow(tr: Tr) -> None:
    """Print advice for slow training. A slow run keeps going, so it gets advice instead of a verdict."""
    _say(tr("slow training is no failure"))
    does = "it names what holds a step up, while the run continues: waiting for data, a slow rank and why, throttled or hot GPUs, a busy machine"
    do = "look at the advisories of the dashboard (a), and at the share of a step that is waiting for data"
    _part(tr("what stoker does"), [tr(does)])
    _part(tr("what you can do"), [tr(do), tr("if it stands still altogether: `stoker troubleshoot hang`")])


def _page(failure: FailureClass, known: Iterable[Signature], tr: Tr) -> None:
    text = class_texts()[failure]
    _say(f"{failure.value}: {tr(text.title)}")
    _part(tr("what it means"), [tr(text.meaning)])
    samples = [f"  {line[:WIDTH]}" for line in samples_of(failure, known, MOST_SAMPLES)]
    if samples:
        _say(f"\n{tr('lines that show it')}")
        for line in samples:
            _say(line)
    rules = [f"{reason}: {tr(said)}" if reason else tr(said) for reason, said in rules_about(failure)]
    if failure is FailureClass.HEALTHY:
        rules.insert(0, tr("nothing, where the exit code is 0; else as follows"))
    _part(tr("what stoker does"), rules)
    _part(tr("what you can do"), map(tr, text.advice))
    _say(
        f"\n{tr('more')}: docs/failures.md, docs/recovery.md; `stoker diagnose LOG`, `stoker policy explain RUN`"
    )


def _part(head: str, lines: Iterable[str]) -> None:
    width = min(shutil.get_terminal_size().columns, WIDTH + 2)
    _say(f"\n{head}")
    for line in lines:
        for row in textwrap.wrap(line, max(width - 2, 20)):
            _say(f"  {row}")


def _say(text: str) -> None:
    say(*redact_text(text).split("\n"))

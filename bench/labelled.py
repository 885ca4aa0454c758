"""All labeled texts of the repository as one list: the inputs and the expected results.

The labels come from tests/corpus/data (failures.jsonl, real/, endings.txt, wordings.txt, healthy_lines.txt, metrics*.jsonl and every other ``*.jsonl`` there
whose rows have a `text` and a label), and from what tests/corpus derives from those: closing lines, warnings above, a scheduler's clean-up below, two jobs
in a file, other layouts, and what launchers and loggers put around a line. Each record gets one derived form, in turn.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.cli.job_logs import read_jobs
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.hang.stuck_collectives import ranks_at_fault, stuck_collectives, stuck_text
from supervisor.diagnosis.scan.signature_tables import Signatures
from supervisor.diagnosis.scan.windows import Matcher
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.sources.stacks.collective_records import DumpFiles, dumps_of_job
from tests.corpus import test_closing_lines as closing
from tests.corpus.layouts import LAYOUTS
from tests.corpus.scoring import DATA, NOT_FAILURES, records
from tests.corpus.test_endings import endings
from tests.corpus.test_metrics_corpus import CORE, equal
from tests.corpus.test_metrics_corpus import read as read_metrics
from tests.corpus.test_metrics_wrapped import WRAPS, shown

TRACEBACK = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n    go()\n{}\n'
NEAR = 2
KNOWN = ("failures.jsonl", "metrics.jsonl", "metrics_more.jsonl", "metrics_unseen.jsonl")


@dataclass(frozen=True)
class Engine:
    """What a scan needs. `matcher` may omit a signature."""

    signatures: Signatures
    matcher: Matcher


@dataclass(frozen=True)
class Outcome:
    """The result for a text: `fields` by name, and for each label whether the result meets it (metrics: how many values do not)."""

    fields: Mapping[str, Any]
    marks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Text:
    """One labeled text. `judge` reads it with the current code."""

    family: str
    id: str
    judge: Callable[[Engine], Outcome]

    @property
    def name(self) -> str:
        return f"{self.family}/{self.id}"


def texts(scratch: Path) -> list[Text]:
    """Return all texts in a fixed order."""
    return [
        *_excerpts(),
        *_real(scratch),
        *_endings(),
        *_wordings(),
        *_healthy_lines(),
        *_closing_lines(),
        *_layouts(),
        *_metrics(),
        *_traces(scratch),
        *_others(),
    ]


# -- verdicts ---------------------------------------------------------------------------------------


def _fields(found: Examination) -> dict[str, Any]:
    verdict = found.verdict
    cause = verdict.cause
    return {
        "class": verdict.failure.value,
        "reason": verdict.reason and verdict.reason.value,
        "rank": (verdict.rank, verdict.ranks),
        "cause line": (cause.path, cause.line) if cause is not None else None,
        "cause text": cause.text if cause is not None else None,
        "confidence": verdict.confidence,
        "node": verdict.node,
        "title": verdict.title,
        "consequences": repr(verdict.consequences),
        "advice": verdict.advice,
        "action": repr(verdict.action),
        "fingerprint": verdict.fingerprint,
        "earlier jobs": tuple(job.verdict.failure.value for job in found.earlier),
    }


def _marks(
    found: Examination, classes: tuple[str, ...], ranks: set[int] | None, line: int | None
) -> dict[str, int]:
    """Count the labels that are not met, by label."""
    verdict = found.verdict
    marks = {"class": int(verdict.failure.value not in classes)}
    if ranks:
        named = (
            {verdict.rank} if verdict.rank is not None else set(verdict.ranks) if len(ranks) > 1 else set()
        )
        marks["rank"] = int(not named or not named <= ranks)
    if line:
        at = verdict.cause.line if verdict.cause is not None else None
        marks["line"] = int(at is None or abs(at - line) > NEAR)
    return marks


def _examined(data: bytes, engine: Engine) -> Examination:
    return examine(JobEvidence(logs=(LogSource("log", (data,)),)), engine.signatures, engine.matcher)


def _judged(
    family: str,
    name: str,
    data: str | bytes,
    classes: tuple[str, ...],
    ranks: set[int] | None = None,
    line: int | None = None,
) -> Text:
    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data

    def judge(engine: Engine) -> Outcome:
        found = _examined(raw, engine)
        return Outcome(_fields(found), _marks(found, classes, ranks, line))

    return Text(family, name, judge)


def _classes(record: Mapping[str, Any]) -> tuple[str, ...]:
    first = (record["cls"],) if "cls" in record else ()
    return (*first, *record.get("accept", ()))


def _place(record: Mapping[str, Any]) -> tuple[set[int] | None, int | None]:
    if record.get("cls") in NOT_FAILURES:
        return None, None
    rank = record.get("first_bad_rank")
    return ({rank} if rank is not None else None), record.get("cause_line")


def _excerpts() -> Iterator[Text]:
    for record in records():
        yield _judged("failures", record["id"], record["text"], _classes(record), *_place(record))


def _real(scratch: Path) -> Iterator[Text]:
    for meta in sorted((DATA / "real").glob("*/meta.json")):
        label, name = json.loads(meta.read_text(encoding="utf-8")), meta.parent.name
        classes = (label["class"], *label.get("accept", ()))
        first = label.get("first_bad_rank")
        fails = first is not None and label["class"] != "healthy"
        ranks = {first, *(label.get("also_ranks") or ())} if fails else None
        text = (meta.parent / "concat.log").read_bytes()
        accepted = (*classes, *label.get("accept_text", ()))
        yield _judged("real-text", name, text, accepted, ranks, label.get("concat_cause_line"))
        job = scratch / name
        shutil.copytree(meta.parent, job, ignore=shutil.ignore_patterns("meta.json", "concat.log"))
        yield _folder(name, job, classes, ranks, label.get("cause_line"))


def _folder(name: str, job: Path, classes: tuple[str, ...], ranks: set[int] | None, line: int | None) -> Text:
    def judge(engine: Engine) -> Outcome:
        ((_, _, evidence),) = read_jobs([str(job)])
        found = examine(evidence, engine.signatures, engine.matcher)
        return Outcome(_fields(found), _marks(found, classes, ranks, line))

    return Text("real-folder", name, judge)


def _endings() -> Iterator[Text]:
    for one in endings():

        def judge(engine: Engine, one: Any = one) -> Outcome:
            found = _examined(one.text.encode("utf-8", "surrogateescape"), engine)
            marks = _marks(found, tuple(one.classes), None if one.rank is None else {one.rank}, None)
            if one.cause:
                cause = found.verdict.cause
                marks["line"] = int(cause is None or one.cause not in cause.text)
            return Outcome(_fields(found), marks)

        yield Text("endings", one.name, judge)


def _wordings() -> Iterator[Text]:
    for number, entry in enumerate((DATA / "wordings.txt").read_text(encoding="utf-8").splitlines(), start=1):
        truth, line = entry.split("|", 1)
        yield _judged("wordings", f"{number:03}", TRACEBACK.format(line), (truth,))


def _healthy_lines() -> Iterator[Text]:
    steps = [f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21)]
    early, late = "".join(steps[:10]), "".join(steps[10:])
    lines = (DATA / "healthy_lines.txt").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        before, between, last = f"{line}\n{early}", f"{early}{line}\n{late}", f"{early}{line}\n"
        for where, text in (("before", before), ("between", between), ("last", last)):
            yield _judged("healthy-lines", f"{number:03}-{where}", text, ("healthy",))


def _closing_lines() -> Iterator[Text]:
    """Each record with the lines that tests/corpus/test_closing_lines.py puts above and below it; the record keeps its label."""
    every = records()
    failed = 0
    for number, record in enumerate(every):
        name, text, classes = record["id"], record["text"].rstrip(), _classes(record)
        ranks, line = _place(record)
        below = closing.CLOSING[number % len(closing.CLOSING)]
        yield _judged("closing-below", name, f"{text}\n{below}\n", classes, ranks, line)
        if name not in closing.BY_EXIT_ALONE:
            above = closing.WARNINGS[number % len(closing.WARNINGS)]
            moved = line + above.count("\n") + 1 if line else None
            yield _judged("closing-above", name, f"{above}\n{record['text']}", classes, ranks, moved)
        if record["cls"] not in NOT_FAILURES:
            words = closing.CLEAN_UP[failed % len(closing.CLEAN_UP)].format(t="2026-11-22T23:00:00")
            failed += 1
            yield _judged("clean-up", name, f"{text}\n{words}\n", classes, ranks, line)
        other = every[(number * 37 + 11) % len(every)]
        start = closing.STARTS[number % len(closing.STARTS)]
        yield _judged(
            "two-jobs", name, f"{start}\n{other['text'].rstrip()}\n{start}\n{text}\n", classes, ranks
        )


def _layouts() -> Iterator[Text]:
    names = list(LAYOUTS)
    for number, record in enumerate(records()):
        layout = names[number % len(names)]
        lines = record["text"].split("\n")
        lines = lines if lines[-1] else lines[:-1]
        cause = (record.get("cause_line") or 0) - 1
        rewritten = LAYOUTS[layout](lines, cause)
        _, line = _place(record)
        line = rewritten.place[cause] if line else None
        # Some wrappers give each line its own rank.
        yield _judged("layouts", f"{record['id']} {layout}", rewritten.data, _classes(record), None, line)


# -- numbers ----------------------------------------------------------------------------------------

Rows = dict[int, dict[str, Any]]


def _numbers(record: Mapping[str, Any], found: Rows) -> Outcome:
    """The values by row; the marks count missed values and values without a label."""
    expected = {entry["line"]: entry for entry in record["expect"]}
    missed = sum(
        found.get(row, {}).get(key) is None or not equal(found[row][key], entry[key])
        for row, entry in expected.items()
        for key in CORE
        if key in entry
    )
    invented = sum(
        got.get(key) is not None and key not in expected.get(row, {})
        for row, got in found.items()
        if row not in record.get("lenient", ())
        for key in ("loss", "val_loss", "step", "lr")
    )
    fields: dict[str, Any] = {}
    for row, got in found.items():
        for key, value in got.items():
            fields.setdefault(key, []).append((row, repr(value)))
    fields.pop("line", None)
    return Outcome(fields, {"missed": missed, "invented": invented})


def _metric(family: str, name: str, record: Mapping[str, Any], read: Callable[[], Rows]) -> Text:
    return Text(family, name, lambda _: _numbers(record, read()))


def _metrics() -> Iterator[Text]:
    wraps = list(WRAPS)
    for source in KNOWN[1:]:
        for number, record in enumerate(records(DATA / source)):
            family = source.removesuffix(".jsonl")
            text = record["text"]
            yield _metric(family, record["id"], record, lambda text=text: read_metrics(text))  # type: ignore[misc]
            if source != "metrics_unseen.jsonl":
                name = wraps[number % len(wraps)]
                yield _metric(f"{family}-wrapped", f"{record['id']} {name}", record, _wrapped(text, name))


def _wrapped(text: str, name: str) -> Callable[[], Rows]:
    wrap = WRAPS[name]
    return lambda: read_metrics(text, lambda line, row: wrap(shown(line), row))


def _traces(scratch: Path) -> Iterator[Text]:
    """Flight-recorder dumps of 16 ranks; the label names the ranks with an injected fault."""
    with tarfile.open(DATA / "nvrx_fr_traces.tar.xz") as packed:
        packed.extractall(scratch, filter="data")
    for folder in sorted((scratch / "fr_traces").iterdir()):
        log = folder / "fault_injection.log"
        if log.is_file():
            ranks = tuple(json.loads(log.read_text(encoding="utf-8").splitlines()[0].partition(": ")[2]))
            yield _trace(folder, ranks)


def _trace(folder: Path, ranks: tuple[int, ...]) -> Text:
    def judge(_: Engine) -> Outcome:
        stuck = stuck_collectives(DumpFiles(dumps_of_job(map(str, folder.iterdir()))))
        named = ranks_at_fault(stuck)
        return Outcome({"rank": named, "cause text": stuck_text(stuck)}, {"rank": int(named != ranks)})

    return Text("flight-recorder", folder.name, judge)


def _others() -> Iterator[Text]:
    """The other files: each row is judged by the labels that it has."""
    for path in sorted(DATA.glob("*.jsonl")):
        if path.name in KNOWN:
            continue
        for number, record in enumerate(records(path)):
            if not isinstance(text := record.get("text"), str):
                continue
            name = str(record.get("id", f"{number:03}"))
            if "expect" in record:
                yield _metric(path.stem, name, record, lambda text=text: read_metrics(text))  # type: ignore[misc]
            elif classes := _classes(record):
                yield _judged(path.stem, name, text, classes, *_place(record))


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stoker-labelled-")

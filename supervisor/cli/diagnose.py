"""Say why a job failed, from its logs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from supervisor.cli.common import Parser, complain, own_rules, say, say_json
from supervisor.cli.job_logs import (
    READING,
    BadInputError,
    path_or_run,
    read_jobs,
    refuse_binary,
)
from supervisor.cli.verdict_text import earlier_job_lines, explanation_lines, verdict_lines
from supervisor.diagnosis.attempt_facts import Facts
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.root_cause import ended_by
from supervisor.diagnosis.scan.log_timeline import rows_of_one_form
from supervisor.diagnosis.scan.matched_lines import Candidate
from supervisor.diagnosis.scan.signature_tables import strength_word
from supervisor.diagnosis.verdict import EarlierJob, Examination, examine, with_metric_rows
from supervisor.job.errors import JobError
from supervisor.run.records import FailureClass, Reason, Verdict
from supervisor.run.regular import open_regular
from supervisor.sources.signature_files import Engine, default_cache_dir, load_engine
from supervisor.text.decode import clean, plain_chunks
from supervisor.text.lines import lines_from
from supervisor.text.redact import Redactor, redact_lines, redact_text
from supervisor.text.tracebacks import LOOKED_AT, CodeLine, own_line

EXIT_HEALTHY, EXIT_FAILURE, EXIT_UNKNOWN, EXIT_BAD_INPUT = 0, 10, 11, 2
METRIC_LINES = 400  # at the end of each log
HEADER_LINES = 20
METRIC_ROWS = 5


def main(argv: list[str]) -> int:
    """Diagnose each path. Return the worst exit code: 10 failure, 11 unknown, 0 healthy or stopped by the user, 2 bad input."""
    parser = Parser(prog="stoker diagnose", description=__doc__)
    add_arguments(parser)
    args = parser.parsed(argv)
    with READING.reported("diagnose", args.paths[0]):
        return run(args)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a log, a folder (one job), a run (directory or id), or - for stdin",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per path")
    parser.add_argument("--each", action="store_true", help="judge each file of a folder on its own")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also show the candidates, the rule that fired and the rules it overrode",
    )
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="the attempt of a run directory (default: the last)"
    )
    parser.add_argument(
        "--lang", choices=("en", "zh"), help="language of the text (default: from LANG), never of JSON"
    )


def run(args: argparse.Namespace) -> int:
    """Diagnose the paths and print the verdicts. See `main` for the exit code."""
    try:
        jobs = read_jobs([path_or_run(path) for path in args.paths], each=args.each, attempt=args.attempt)
    except BadInputError as error:
        return complain("diagnose", error)
    try:
        own = own_rules()
    except JobError as error:
        *before, last = error.lines
        complain("diagnose", JobError(*before, f"{last}; your signatures are left out"))
        own = ()
    engine = load_engine(default_cache_dir(), own)
    tr = str if args.json else _translation(args.lang)
    codes = []
    for place, (path, number, job) in enumerate(jobs):
        try:
            found = _examined(path, job, engine)
        except BadInputError as error:
            codes.append(complain("diagnose", error))
            continue
        except OSError as error:
            return complain("diagnose", f"{path}: {error.strerror or error}")
        codes.append(_code(found.verdict))
        if args.json:
            wire = to_wire(path, number, found.verdict)
            wire["jobs"] = earlier_jobs_to_wire(found.earlier)
            if args.explain:
                wire["explanation"] = explanation_to_wire(found)
            say_json(Redactor.of(os.environ.items()).data(wire))
        else:
            say(*[""] * bool(place), *_text_lines(path, number, found, tr, explain=args.explain))
    worst_first = (EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_UNKNOWN)
    return next((code for code in worst_first if code in codes), EXIT_HEALTHY)


def _examined(path: str, job: JobEvidence, engine: Engine) -> Examination:
    """Diagnose one job.

    Raises:
        BadInputError: the path is a single file that is not a log.
        OSError: a log cannot be read.
    """
    if os.path.isfile(path):
        refuse_binary(path)
    found = examine(job, engine.signatures, engine.matcher)
    is_unknown = found.verdict.failure is FailureClass.UNKNOWN and not found.facts.candidates
    return with_metric_rows(found) if is_unknown and _metric_rows(found) >= METRIC_ROWS else found


def _metric_rows(found: Examination) -> int:
    """Count progress rows in log tails: lines that the broader metrics grammar parses, or bare numbers in a uniform format."""
    from supervisor.sources.metrics import MetricReader

    rows = 0
    for scan in found.facts.scans:
        reader = MetricReader()
        for line in scan.head[:HEADER_LINES]:  # a table's header
            reader.feed(line)
        last = scan.tail[-METRIC_LINES:]
        measured = sum(reader.feed(line) is not None for line in last)
        rows += max(measured, rows_of_one_form(last) // 2)  # numbers without names are weaker evidence
    return rows


def _text_lines(
    path: str, attempt: int | None, found: Examination, tr: Callable[[str], str], *, explain: bool
) -> Iterator[str]:
    context = None if path == "-" else _context
    verdict = found.verdict
    again = _seen_before(path, attempt, verdict) if attempt is not None else []
    lines = verdict_lines(path, attempt, verdict, context, again, tr, ended_t=found.facts.job.ended_t)
    lines += earlier_job_lines(found.earlier, tr)
    if explain:
        lines += explanation_lines(found, tr)
    return map(Redactor.of(os.environ.items()).text, lines)


def _seen_before(path: str, attempt: int, verdict: Verdict) -> list[str]:
    """Return a line naming the run's other attempts with the same failure. The list is empty if there are none."""
    from supervisor.run.journal import read_state  # only a run has one
    from supervisor.run.paths import RunPaths

    same = read_state(RunPaths(Path(path)).node().journal).same_failure(verdict, attempt)
    many = "s" if len(same) > 1 else ""
    return [f"the same failure as attempt{many} {', '.join(map(str, same))}"] if same else []


def _translation(lang: str | None) -> Callable[[str], str]:
    """Return a function that translates into the user's language. For English, no catalog is loaded."""
    names = ("STOKER_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    wanted = lang or next((os.environ[name] for name in names if os.environ.get(name)), "")
    if not wanted.lower().startswith("zh"):
        return str
    from supervisor.views.appearance import Lang
    from supervisor.views.wording.translate import words_in

    return words_in(Lang.ZH)


def _code(verdict: Verdict) -> int:
    match verdict.failure:
        case FailureClass.HEALTHY:
            return EXIT_HEALTHY
        case FailureClass.TERMINATED if verdict.reason is Reason.USER:
            return EXIT_HEALTHY  # a person stopped it: it had no failure of its own
        case FailureClass.UNKNOWN:
            return EXIT_UNKNOWN
        case _:
            return EXIT_FAILURE


def _context(path: str, line: int, around: int = 3) -> tuple[list[tuple[int, str]], CodeLine | None]:
    """Reread the lines around a cause from the file and find the user's own code line in its traceback."""
    found: list[tuple[int, str]] = []
    try:
        with open_regular(path) as file:
            chunks = plain_chunks(iter(lambda: file.read(1 << 20), b""))
            for item in lines_from(chunks, max(1, line - LOOKED_AT)):
                found.append((item.number, clean(item.raw, 400)))
                if item.number >= line + around:
                    break
    except OSError:
        return [], None
    at = next((place for place, (number, _) in enumerate(found) if number == line), None)
    own = own_line([text for _, text in found], at) if at is not None else None
    own = own._replace(text=redact_text(own.text)) if own is not None else None
    near = [(number, text) for number, text in found if number >= line - around]
    # Redact before truncation, because half a secret is not recognized.
    shown = redact_lines([text for _, text in near])
    return [(number, text) for (number, _), text in zip(near, shown, strict=True)], own


# -- the JSON of a verdict: schema of --json, version 1, and the additions of --explain ------------

WIRE_SCHEMA = 1
_WIRE = (
    "failure", "reason", "confidence", "rank", "ranks", "node", "local_rank", "title", "cause", "consequences", "advice",
    "action", "fingerprint", "batches",
)  # fmt: skip
_EARLIER = ("failure", "reason", "confidence", "rank", "title")


def to_wire(path: str, attempt: int | None, verdict: Verdict) -> dict[str, object]:
    """Convert a verdict to its JSON object. Within a schema version, keys are never removed."""
    import msgspec  # only JSON needs it: 20 ms

    told = msgspec.to_builtins(verdict)
    followed = (
        {key: item[key] for key in ("failure", "rank", "path", "line")} for item in told["consequences"]
    )
    told["consequences"] = list(followed)
    return {"schema": WIRE_SCHEMA, "path": path, "attempt": attempt, **{key: told[key] for key in _WIRE}}


def earlier_jobs_to_wire(jobs: Sequence[EarlierJob]) -> list[dict[str, object]]:
    """Return the `jobs` value: earlier jobs found in the same file as the diagnosed one."""
    import msgspec

    found = []
    for job in jobs:
        told = msgspec.to_builtins(job.verdict)
        cause = told["cause"] or {"line": None}
        lines = {"first_line": job.first_line, "last_line": job.last_line}
        found.append({**lines, **{key: told[key] for key in _EARLIER}, "line": cause["line"]})
    return found


def explanation_to_wire(found: Examination) -> dict[str, object]:
    """Return the `explanation` value, which says how the verdict was reached (``--explain`` only)."""
    facts, decision = found.facts, found.decision
    return {
        "candidates": [_candidate(item, facts) for item in facts.candidates],
        "rule": {"name": decision.rule.name, "why": decision.rule.why},
        "yielded": [{"name": rule.name, "why": rule.why} for rule in decision.yielded()],
        "corrections": [{"name": item.name, "why": item.why} for item in decision.corrections],
        "ended": ended_by(facts).value,
        "limits": [
            {"name": item.name, "at_most": item.at_most, "why": item.why} for item in decision.limits()
        ],
    }


def _candidate(item: Candidate, facts: Facts) -> dict[str, object]:
    return {
        "path": facts.scans[item.source].path,
        "line": item.line,
        "rank": item.rank,
        "text": redact_text(item.text.strip())[:600],
        "signature": item.signature.id,
        "failure": item.failure.value,
        "role": item.signature.role.value,
        "strength": strength_word(item.strength),
        "warning": item.soft,
    }

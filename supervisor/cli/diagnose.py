"""Say why a job failed, from its logs."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from supervisor.diagnosis.evidence import JobEvidence
    from supervisor.diagnosis.judgement import Judgement
    from supervisor.sources.signature_files import Engine
    from supervisor.text.ownline import CodeLine

EXIT_HEALTHY, EXIT_FAILURE, EXIT_UNKNOWN, EXIT_BAD_INPUT = 0, 10, 11, 2


HEAD_BYTES = 65536
# Text in any encoding has no control characters but blanks, colours and bars; a library's or a checkpoint's head has
# 4 % and more. Where words in it were found that a log has, and not only guessed at, more is asked.
UNREADABLE, BINARY, GUESSED = 0.02, 0.04, 0.6
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))
_SWITCHES = frozenset(("--json", "--each"))


def main(argv: list[str]) -> int:
    """Judge each path; the exit code says the worst: 10 a failure, 11 something unknown, 0 healthy, 2 bad input."""
    # A short life: collecting cycles while modules load costs 3 ms, and a scan makes none.
    gc.set_threshold(20_000)
    # argparse costs as much as Python's own start (8 ms): paths and switches do without it.
    words = [word for word in argv if word.startswith("-") and word != "-"]
    paths = [word for word in argv if word == "-" or not word.startswith("-")]
    if paths and _SWITCHES.issuperset(words):
        return run(paths, as_json="--json" in words, each="--each" in words)
    from supervisor.cli.parsing import Parser

    parser = Parser(prog="stoker diagnose", description=__doc__)
    add_arguments(parser)
    args = parser.parse_args(argv)
    return run(args.paths, as_json=args.json, each=args.each, attempt=args.attempt, lang=args.lang)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a log, a folder (one job), a run (directory or id), or - for stdin",
    )
    parser.add_argument("--json", action="store_true", help="one compact object a path")
    parser.add_argument("--each", action="store_true", help="judge each file of a folder by itself")
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="the attempt of a run directory (default: the last)"
    )
    parser.add_argument(
        "--lang", choices=("en", "zh"), help="language of the text (default: by LANG); JSON is always English"
    )


def run(
    paths: list[str],
    *,
    as_json: bool = False,
    each: bool = False,
    attempt: int | None = None,
    lang: str | None = None,
) -> int:
    """Judge paths and print; see `main` for the exit code."""
    from supervisor.cli.diagnosing.job_logs import BadInputError, path_or_run, read_jobs
    from supervisor.sources.signature_files import default_cache_dir, load_engine

    try:
        jobs = read_jobs([path_or_run(path) for path in paths], each=each, attempt=attempt)
    except BadInputError as error:
        print(f"stoker diagnose: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    engine = load_engine(default_cache_dir())
    tr = str if as_json else _teller(lang)
    codes = []
    for place, (path, number, job) in enumerate(jobs):
        try:
            verdict = _judge(job, engine)
        except OSError as error:
            print(f"stoker diagnose: {path}: {error.strerror or error}", file=sys.stderr)
            return EXIT_BAD_INPUT
        if os.path.isfile(path) and _unreadable(path) > (
            UNREADABLE if verdict.confidence <= GUESSED else BINARY
        ):
            print(
                f"stoker diagnose: {path}: a binary file, not a log; give a log, a folder of logs, or -",
                file=sys.stderr,
            )
            codes.append(EXIT_BAD_INPUT)
            continue
        codes.append(_code(verdict))
        if as_json:
            _print_json(path, number, verdict)
        else:
            from supervisor.cli.diagnosing.verdict_text import verdict_lines

            if place:
                print()
            context = None if path == "-" else _context
            again = _again(path, number, verdict)
            verdict = _of_known_rank(path, number, verdict)
            print("\n".join(verdict_lines(path, number, verdict, context, again, tr)))
    sys.stdout.flush()
    if EXIT_BAD_INPUT in codes:
        return EXIT_BAD_INPUT
    if EXIT_FAILURE in codes:
        return EXIT_FAILURE
    return EXIT_UNKNOWN if EXIT_UNKNOWN in codes else EXIT_HEALTHY


def _of_known_rank(path: str, attempt: int | None, verdict: Judgement) -> Judgement:
    """For people: without "rank 0" in the headline of one log that names no rank; the wire keeps its `rank`."""
    if attempt is not None or verdict.rank != 0 or not os.path.isfile(path):
        return verdict
    from supervisor.cli.diagnosing.rank_names import names_ranks, without_rank
    from supervisor.text.prefixes import NOWHERE, origin_of_path

    if origin_of_path(os.path.abspath(path)) != NOWHERE or names_ranks(path):
        return verdict
    return verdict._replace(title=without_rank(verdict.title))


def _teller(lang: str | None) -> Callable[[str], str]:
    """What tells our sentences in the person's language; its module is loaded only where that is not English."""
    names = ("STOKER_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    wanted = lang or next((os.environ[name] for name in names if os.environ.get(name)), "")
    if not wanted.lower().startswith("zh"):
        return str
    from supervisor.views.appearance import Lang
    from supervisor.views.wording.translate import speech

    return speech(Lang.ZH)


def _judge(job: JobEvidence, engine: Engine) -> Judgement:
    from supervisor.diagnosis.verdict import judge

    return judge(job, engine.signatures, engine.matcher)


def _again(path: str, attempt: int | None, verdict: Judgement) -> list[str]:
    """Where a run's failure was seen before: in its other attempts, in other runs of this user."""
    if attempt is None or not verdict.fingerprint:
        return []
    from supervisor.cli.diagnosing.run_journals import seen_before

    return seen_before(path, attempt, verdict.fingerprint)


def _code(verdict: Judgement) -> int:
    if verdict.failure == "healthy":
        return EXIT_HEALTHY
    return EXIT_UNKNOWN if verdict.failure == "unknown" else EXIT_FAILURE


def _print_json(path: str, attempt: int | None, verdict: Judgement) -> None:
    import json

    from supervisor.cli.diagnosing.verdict_json import to_wire

    print(json.dumps(to_wire(path, attempt, verdict), ensure_ascii=True, separators=(",", ":")))


def _unreadable(path: str) -> float:
    """The share of control characters in a file's head."""
    from supervisor.text.decode import plain_chunks

    with open(path, "rb") as file:
        head = next(plain_chunks(iter(lambda: file.read(HEAD_BYTES), b"")), b"")[:HEAD_BYTES]
    written = head.translate(None, b"\0")  # a log with a hole in it is full of zeros
    odd = len(written) - len(written.translate(None, _CONTROLS))
    return odd / len(written) if written else BINARY * bool(head)


def _context(path: str, line: int, around: int = 3) -> tuple[list[tuple[int, str]], CodeLine | None]:
    """The lines around a cause, read again from the file, and the user's own line in the traceback that ends there."""
    from supervisor.text.decode import clean, plain_chunks
    from supervisor.text.lines import lines_from
    from supervisor.text.ownline import LOOKED_AT, own_line

    found: list[tuple[int, str]] = []
    try:
        with open(path, "rb") as file:
            chunks = plain_chunks(iter(lambda: file.read(1 << 20), b""))
            for item in lines_from(chunks, max(1, line - LOOKED_AT)):
                found.append((item.number, clean(item.raw, 400)))
                if item.number >= line + around:
                    break
    except OSError:
        return [], None
    at = next((place for place, (number, _) in enumerate(found) if number == line), None)
    own = own_line([text for _, text in found], at) if at is not None else None
    return [(number, text) for number, text in found if number >= line - around], own

"""Try your own failure signatures ([[signature]] in stoker.toml) on a log before a run relies on them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from supervisor.cli.common import complain, say, user_settings
from supervisor.cli.job_logs import READING, BadInputError, path_or_run, read_jobs
from supervisor.diagnosis.scan.matched_lines import Hit
from supervisor.diagnosis.scan.signature_tables import OWN
from supervisor.diagnosis.verdict import Examination, as_expected, examine
from supervisor.job.errors import JobError
from supervisor.job.spec import ClassOverride, OwnSignature
from supervisor.run.regular import read_regular
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.text.redact import Redactor, redact_text

if TYPE_CHECKING:
    from supervisor.job.spec import ClassOverride, OwnSignature


EXIT_AS_EXPECTED, EXIT_NOT_AS_EXPECTED, EXIT_BAD = 0, 1, 2
SHOWN_CHARACTERS = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    test = actions.add_parser(
        "test", help="where each of your signatures matches in a log, and what decides the verdict"
    )
    test.add_argument("path", metavar="FILE", help="a log, a folder of logs, or a run (directory or id)")
    test.add_argument(
        "--settings",
        metavar="PATH",
        help="the file with the [[signature]] tables (default: ./stoker.toml and your config.toml)",
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 0: each signature matches, when it is expected to; 1: one does not; 2: bad tables or input."""
    paths = [args.settings] if args.settings else settings_files(os.environ)
    try:
        rules = own_rules_in(paths)
        if not rules:
            where = args.settings or "./stoker.toml"
            return complain(
                "signatures", f"{where}: no [[signature]] in it; configs/README.md shows one", EXIT_BAD
            )
        ((path, _, job), *_) = read_jobs([path_or_run(args.path)])
        engine = load_engine(default_cache_dir(), tuple(rules))
        with READING.reported("signatures", path):
            found = examine(job, engine.signatures, engine.matcher)
    except (JobError, BadInputError) as error:
        return complain("signatures", error, EXIT_BAD)
    except OSError as error:
        return complain("signatures", f"{args.path}: {error.strerror or error}", EXIT_BAD)
    fits = [_report(rule, override, found) for rule, override in rules.items()]
    verdict = found.verdict
    by = (
        f"by your signature {verdict.signature}"
        if verdict.signature
        else f"by the rule {found.decision.rule.name}"
    )
    say()
    _say(f"{path}: {verdict.title} ({verdict.failure.value}, {100 * verdict.confidence:.0f} % sure), {by}")
    return EXIT_AS_EXPECTED if all(fits) else EXIT_NOT_AS_EXPECTED


def _report(rule: OwnSignature, override: ClassOverride | None, found: Examination) -> bool:
    """Print what became of one signature; whether it matched as it is expected to."""
    hits = [hit for scan in found.facts.scans for hit in scan.hits if hit.signature.id == OWN + rule.id]
    what = rule.title or rule.failure
    _say(f"{rule.id}: {rule.role}, {what}, {_answer(override)}")
    if not hits:
        _say("  matches no line")
        return False
    early = [hit for hit in hits if not as_expected(hit, found.facts.scans)]
    times = "once" if len(hits) == 1 else f"{len(hits)} times"
    _say(f"  matches {times}, first at {_place(hits[0], found)}")
    _say(f"    {redact_text(hits[0].text.strip())[:SHOWN_CHARACTERS]}")
    if early:
        when = rule.start.replace("_", " ")
        _say(
            f"  expected {when}: {len(early)} of them are not, and do not count, first {_place(early[0], found)}"
        )
    return len(early) < len(hits)


def _answer(override: ClassOverride | None) -> str:
    """What policy does about it, in a word or two."""
    if override is None:
        return "answered as its class"
    action = override.change if override.change not in (None, "none") else override.answer
    return f"{action}, once at most" if override.max_times == 1 else str(action)


def _place(hit: Hit, found: Examination) -> str:
    return f"{found.facts.scans[hit.source].path}:{hit.line}"


def _say(text: str) -> None:
    """Print a line without the secrets of the environment, whoever wrote the table or the log."""
    say(Redactor.of(os.environ.items()).text(text))


MAX_SETTINGS_BYTES = 4 << 20


def settings_files(env: Mapping[str, str]) -> list[str]:
    """The settings files that are there, the nearest first."""
    return [path for path in ("stoker.toml", str(user_settings(env))) if os.path.isfile(path)]


def own_rules_in(paths: list[str]) -> dict[OwnSignature, ClassOverride | None]:
    """The signatures of settings files, with what policy does about each; of one id, the first file's.

    Raises:
        JobError: a file cannot be read, or a table does not fit.
    """
    texts = {}
    for path in paths:
        try:
            data = read_regular(path, MAX_SETTINGS_BYTES)
        except OSError as error:
            from supervisor.job.errors import JobError

            raise JobError(f"{path}: {error.strerror or error}") from None
        # Most have none: then nothing is imported to parse them.
        if b"signature" in data:
            texts[path] = data
    if not texts:
        return {}
    from supervisor.job.config.files import parse_config
    from supervisor.job.config.settings import ConfigFile, nearest_signatures, own_signatures
    from supervisor.job.setting_keys import SIGNATURE
    from supervisor.run.failures import FailureClass

    classes = frozenset(str(failure) for failure in FailureClass)
    files = [
        ConfigFile(path, parse_config(path, data), data.decode("utf-8", "replace"))
        for path, data in texts.items()
    ]
    return nearest_signatures(
        own_signatures(file, file.values[SIGNATURE], classes)
        for file in files
        if file.values.get(SIGNATURE) is not None
    )

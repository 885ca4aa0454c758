"""Check a job and this machine before a run, or data files: token files (.bin), JSON lines (.jsonl) and text."""

# The trainer's own checker reads the files, started as a program by its path. Its messages are the ones that a
# training would print, from the same code, and neither package imports the other. The checker needs only the
# standard library, so stoker's own Python runs it without torch.

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from supervisor.cli.common import EXIT_REFUSED, appearance_given, complain, say, say_json
from supervisor.cli.job_inputs import NOT_MEASURED, folder_of_runs, load_job, parse_words
from supervisor.job.arguments.run_arguments import ParsedRun
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.checks import BEFORE, asked, beside, refused, run_checks
from supervisor.preflight.context import CheckContext, ok, refuse, warn
from supervisor.preflight.interpreter import find_interpreter, trainer_main
from supervisor.run.records import Finding, FindingLevel
from supervisor.text.redact import redact_text
from supervisor.views.appearance import Appearance
from supervisor.views.wording.translate import words_in

USAGE = """\
usage: stoker check [--json] [--deep]                        this machine
       stoker check [--json] [--deep] [flags] SCRIPT.py ...  the job that the same words after `stoker run` start
       stoker check --data PATH... [--vocab-size N] [--data-dtype TYPE] [--max-seq-len N] [--field KEY]

Nothing is started or written, unless --deep: then the ranks meet once, with a process each. Exit 0, or 3 where a start
would be refused, or 2 for a file that cannot be trained on.
"""
DATA_FLAGS: Final = ("--data", "--vocab-size", "--data-dtype", "--max-seq-len", "--field")


def main(argv: list[str]) -> int:
    """Check what the arguments ask for: a job (as for `stoker run`), data files (after `--data`), or else the machine."""
    if argv and argv[0].partition("=")[0].replace("_", "-") in DATA_FLAGS:
        return _check_data([word.removeprefix("--data=") for word in argv if word != "--data"])
    if argv[:1] in (["-h"], ["--help"]):
        say(*USAGE.splitlines())
        return 0
    try:
        return _check_job(argv)
    except JobError as error:
        return complain("check", error)


def _check_job(argv: list[str]) -> int:
    parsed = parse_words(argv, os.environ)
    named = parsed.entry or parsed.flag("config")
    spec = load_job(parsed, os.environ, Path.cwd()) if named else this_machine()
    return check_alone(spec, parsed, os.environ)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments for the command reference. The trainer's checker declares those for data files."""
    parser.add_argument(
        "--data",
        nargs="+",
        metavar="PATH",
        help="files, or folders of .bin, .jsonl and .txt files, then --vocab-size N (token ids must be below N), "
        "--data-dtype uint16|uint32 (of a .bin without header), --max-seq-len N (tokens of a sample), --field KEY "
        "(the text's key in JSON lines)",
    )


def _check_data(words: list[str]) -> int:
    """Run the trainer's checker on data files. Exit 0 if all are usable for training, else 2."""
    if not words:
        return complain("check", "nothing to check: name files with --data PATH…")
    program = trainer_main()
    if not os.path.exists(program):
        return complain("check", f"{program}: the bundled trainer, which reads the data, is not there")
    # -I: no module from the current folder or PYTHONPATH can replace the checker's imports.
    done = subprocess.run([sys.executable, "-I", program, "data", "check", *words], check=False)
    return done.returncode if done.returncode in {0, 2, 130} else 2


# -- checks of a job, before a start or on their own -------------------------------------------------

# The plain marks are for ASCII terminals.
_MARKS: Final[Mapping[FindingLevel, str]] = {
    FindingLevel.OK: "✓",
    FindingLevel.INFO: "·",
    FindingLevel.WARNING: "!",
    FindingLevel.REFUSE: "x",
}
_PLAIN_MARKS: Final = {**_MARKS, FindingLevel.OK: "+", FindingLevel.INFO: "-"}


def look(context: CheckContext, parsed: ParsedRun) -> list[Finding]:
    """Run the pre-start checks that take milliseconds and, with ``--deep``, those that take seconds."""
    found = (
        unmeasured_finding(context.spec) + nodes_finding(context.spec, parsed) + run_checks(BEFORE, context)
    )
    if parsed.switch("deep"):
        found += run_checks(asked(), context)
    return found


def check_alone(spec: JobSpec, parsed: ParsedRun, env: Mapping[str, str]) -> int:
    """Run every check and print the results, without starting or writing anything. Exit 0, or 3 if a start would be refused.

    With ``--json`` print one JSON object on one line: `job`, `refused`, `seconds`, `findings` (`level`, `check`, `what`, `fix`).
    """
    appearance = appearance_given(parsed, env)
    begun = time.monotonic()
    interpreter = None
    try:
        interpreter = find_interpreter(spec, env)
        torch = f"torch {interpreter.torch_version}" if interpreter.torch_version else "no torch"
        what = f"{interpreter.path}: Python {interpreter.version}, {torch} ({interpreter.why})"
        findings = [ok("interpreter", what)]
    except JobError as error:
        findings = [refuse("interpreter", error.message)]
    context = CheckContext(spec, folder_of_runs(parsed, env), env, interpreter)
    findings += look(context, parsed) + run_checks(beside(), context)
    took_s = time.monotonic() - begun
    refusals = len(refused(findings))
    if parsed.switch("json"):
        told = {
            "job": redact_text(spec.name),
            "refused": bool(refusals),
            "seconds": round(took_s, 3),
            "findings": [{name: redact_text(value) for name, value in asdict(f).items()} for f in findings],
        }
        say_json(told)
    else:
        print_findings(findings, appearance, fixes=True)
        warnings = sum(finding.level is FindingLevel.WARNING for finding in findings)
        summary = f"nothing forbids a start; warnings: {warnings}"
        if refusals:
            summary = f"a start would be refused: {refusals} of {len(findings)} checks forbid it"
        say(words_in(appearance.spoken)(summary))
    return EXIT_REFUSED if refusals else 0


def this_machine() -> JobSpec:
    """Return a dummy single-process job, so that only the machine is checked."""
    spec = JobSpec("machine", EntryKind.COMMAND, "true", nproc_per_node=1)
    return replace(spec, retry=replace(spec.retry, enabled=False), cwd=str(Path.cwd()))


def nodes_finding(spec: JobSpec, parsed: ParsedRun) -> list[Finding]:
    """Warn if several nodes have no shared run directory, since they cannot see each other without one."""
    if not spec.several_nodes or parsed.flag("run_dir"):
        return []
    what = (
        f"--nnodes {spec.nnodes} without --run-dir: each node has a run of its own, with a verdict of its own"
    )
    return [warn("nodes", what, "name one folder that all nodes see, the same on each: --run-dir DIR")]


def unmeasured_finding(spec: JobSpec) -> list[Finding]:
    """Warn if this run is not measured because of an earlier run of the script."""
    return [warn("instrument", text) for text in spec.notes if text.startswith(NOT_MEASURED)]


def print_findings(findings: Sequence[Finding], appearance: Appearance, *, fixes: bool = False) -> None:
    """Print one line per check result. If `fixes` is true, follow it with the suggested fix on its own line."""
    tr = words_in(appearance.spoken)
    marks, arrow = (_PLAIN_MARKS, "->") if appearance.ascii else (_MARKS, "→")
    for finding in findings:
        lines = [f"{marks[finding.level]} {tr(finding.check)}: {tr(finding.what)}"]
        if fixes and finding.fix:
            lines.append(f"    {arrow} {tr(finding.fix)}")
        say(*map(redact_text, lines), flush=True)

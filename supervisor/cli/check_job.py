"""Pre-flight checks of a job: made before a start, or alone by `stoker check` and `stoker run --check-only`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.cli.common import EXIT_REFUSED, appearance_given, say, say_json
from supervisor.cli.job_inputs import NOT_MEASURED, folder_of_runs
from supervisor.job.arguments.run_arguments import ParsedRun
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.checks import BEFORE, refused, run_checks
from supervisor.preflight.context import CheckContext, ok, refuse, warn
from supervisor.preflight.interpreter import find_interpreter
from supervisor.run.records import Finding, FindingLevel
from supervisor.text.redact import redact_text
from supervisor.views.appearance import Appearance
from supervisor.views.wording.translate import words_in

if TYPE_CHECKING:
    from supervisor.preflight.interpreter import StartupProbes

# The second ones for a terminal without more than ASCII.
_MARKS: Final[Mapping[FindingLevel, str]] = {
    FindingLevel.OK: "✓",
    FindingLevel.INFO: "·",
    FindingLevel.WARNING: "!",
    FindingLevel.REFUSE: "x",
}
_PLAIN_MARKS: Final = {**_MARKS, FindingLevel.OK: "+", FindingLevel.INFO: "-"}


def look(context: CheckContext, parsed: ParsedRun) -> list[Finding]:
    """What is checked before a start: what costs milliseconds, and with ``--deep`` what takes seconds."""
    found = (
        unmeasured_finding(context.spec) + nodes_finding(context.spec, parsed) + run_checks(BEFORE, context)
    )
    if parsed.switch("deep"):
        from supervisor.preflight.checks import asked

        found += run_checks(asked(), context)
    return found


def check_alone(spec: JobSpec, parsed: ParsedRun, env: Mapping[str, str], probes: StartupProbes) -> int:
    """Make every check, print what was found, start and write nothing. Exit 0, or 3 where a start would be refused.

    With ``--json`` one object on one line: `job`, `refused`, `seconds`, and `findings` with `level`, `check`, `what` and `fix`.
    """
    appearance = appearance_given(parsed, env)
    begun = time.monotonic()
    findings = _all(spec, parsed, env, probes)
    took_s = time.monotonic() - begun
    if parsed.switch("json"):
        told = {
            "job": redact_text(spec.name),
            "refused": bool(refused(findings)),
            "seconds": round(took_s, 3),
            "findings": [{name: redact_text(value) for name, value in asdict(f).items()} for f in findings],
        }
        say_json(told)
    else:
        print_findings(findings, appearance, fixes=True)
        say(words_in(appearance.spoken)(_summary(findings)))
    return EXIT_REFUSED if refused(findings) else 0


def this_machine() -> JobSpec:
    """A job that is nothing but one process: with it the checks look at the machine alone."""
    spec = JobSpec("machine", EntryKind.COMMAND, "true", nproc_per_node=1)
    return replace(spec, retry=replace(spec.retry, enabled=False), cwd=str(Path.cwd()))


def _all(spec: JobSpec, parsed: ParsedRun, env: Mapping[str, str], probes: StartupProbes) -> list[Finding]:
    from supervisor.preflight.checks import beside

    found: list[Finding] = []
    interpreter = None
    try:
        interpreter = find_interpreter(spec, env, probes.interpreter)
        torch = f"torch {interpreter.torch_version}" if interpreter.torch_version else "no torch"
        found.append(
            ok(
                "interpreter",
                f"{interpreter.path}: Python {interpreter.version}, {torch} ({interpreter.why})",
            )
        )
    except JobError as error:
        found.append(refuse("interpreter", error.message))
    context = CheckContext(spec, folder_of_runs(parsed, env), env, interpreter)
    return found + look(context, parsed) + run_checks(beside(), context)


def nodes_finding(spec: JobSpec, parsed: ParsedRun) -> list[Finding]:
    """That nodes without a run directory in common know nothing of each other."""
    if not spec.several_nodes or parsed.flag("run_dir"):
        return []
    what = (
        f"--nnodes {spec.nnodes} without --run-dir: each node has a run of its own, with a verdict of its own"
    )
    return [warn("nodes", what, "name one folder that all nodes see, the same on each: --run-dir DIR")]


def unmeasured_finding(spec: JobSpec) -> list[Finding]:
    """That an earlier run of the script is why nothing is measured in this one."""
    return [warn("instrument", text) for text in spec.notes if text.startswith(NOT_MEASURED)]


def _summary(findings: Sequence[Finding]) -> str:
    refusals = len(refused(findings))
    warnings = sum(finding.level is FindingLevel.WARNING for finding in findings)
    if refusals:
        return f"a start would be refused: {refusals} of {len(findings)} checks forbid it"
    return f"nothing forbids a start; warnings: {warnings}"


def print_findings(findings: Sequence[Finding], appearance: Appearance, *, fixes: bool = False) -> None:
    """A line a finding; with `fixes` also what to do about it, below."""
    for line in _lines(findings, appearance, fixes):
        say(redact_text(line), flush=True)


def _lines(findings: Sequence[Finding], appearance: Appearance, fixes: bool) -> Iterator[str]:
    tr = words_in(appearance.spoken)
    for finding in findings:
        mark = (_PLAIN_MARKS if appearance.ascii else _MARKS)[finding.level]
        yield f"{mark} {tr(finding.check)}: {tr(finding.what)}"
        if fixes and finding.fix:
            yield f"    {'->' if appearance.ascii else '→'} {tr(finding.fix)}"

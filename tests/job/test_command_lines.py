"""The labelled command lines of public scripts, by what the line alone says: a change or a resume is as labelled, or is left open."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.config.setting_values import spec_key_names
from supervisor.job.errors import JobError
from supervisor.job.launch.oom_plan import oom_plan

MANIFEST = Path(__file__).parents[1] / "scripts_corpus" / "manifest.jsonl"
LINE = re.compile(r"\(cd [^)]*\) ((?:\w+=\S+ )*)stoker run ")
NO_WAY = re.compile(r"(no|none|nothing|cannot)\b", re.IGNORECASE)
OPTION = re.compile(r"--?\w|\w[._]\w|=")


# Its script refuses to start with a micro-batch of 1, which no name says: the restart ends at the script's own check, and trains nothing.
ENDS_AT_ONCE = {122}


def setting(name: str) -> str:
    """The last part of a flag's, override's or config key's name."""
    return re.split(r"[.#]", name.lstrip("-"))[-1].replace("-", "_")


def verdicts(row: dict[str, Any]) -> tuple[str, str, str]:
    """Of one row: the verdicts on the change and on the resume, and what is said."""
    match = LINE.match(row["command"])
    assert match is not None
    env = dict(word.split("=", 1) for word in match[1].split())
    words = shlex.split(row["command"][match.end() :])
    try:
        parsed = parse_run_argv(words, env=env, spec_keys=spec_key_names())
        plan = oom_plan(resolve_job(JobInputs(parsed=parsed, env=env, cwd="/work", cpus=2)))
    except JobError as error:
        return "refused", "open", str(error)
    ways = [{(setting(n), v) for n, v in way} for way in (row["changes"], *row.get("alternatives", ()))]
    change = "refused"
    if plan.changes:
        got = {(setting(c.knob), c.new) for c in plan.changes}
        change = "right" if got in ways else "WRONG"
    resume, way = plan.resume, row["resume"] or "none"
    if resume.how not in {"flag", "self"}:
        return change, "open", str(plan)
    named = resume.how == "self" or not OPTION.search(way)
    named = named or setting(resume.knob or "") in way.replace("-", "_")
    return change, "right" if named and not NO_WAY.match(way) else "WRONG", str(plan)


def test_no_line_is_read_wrongly() -> None:
    rows = [json.loads(line) for line in MANIFEST.read_text(encoding="utf-8").splitlines()]
    found = [(row, *verdicts(row)) for row in rows]
    wrong = [(row["n"], said) for row, change, resume, said in found if "WRONG" in {change, resume}]
    assert {number for number, _ in wrong} == ENDS_AT_ONCE, "\n".join(map(str, wrong))
    changes = Counter(change for _, change, _, _ in found)
    resumes = Counter(resume for _, _, resume, _ in found)
    assert changes["right"] >= 12, changes
    assert resumes["right"] >= 2, resumes

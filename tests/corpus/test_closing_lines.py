"""What stands above and below a failure in the same file, and is no part of it, changes no verdict."""

from __future__ import annotations

import pytest

from supervisor.sources.signature_files import Engine
from tests.corpus.scoring import DATA, NOT_FAILURES, examined, records, verdict_on

AROUND = records(DATA / "around.jsonl")
# As batch scripts and training scripts end, whatever happened before; what stands above; how a scheduler cleans up; how a job begins.
CLOSING, WARNINGS, CLEAN_UP, STARTS = (
    tuple(row["text"] for row in AROUND if row["of"] == kind)
    for kind in ("closing", "warnings", "clean_up", "starts")
)
# A kill by the kernel is told by an exit status alone: a tool's complaint above it is the only line that names anything.
BY_EXIT_ALONE = frozenset(["a-host_oom-05"])


@pytest.mark.fault("hostile input", "`All done` below a failure, warnings above it", "the same verdict")
def test_a_closing_line_is_no_success_and_a_warning_above_is_no_cause(engine: Engine) -> None:
    """Each line with every few records; of all 6,636 pairs 3 changed when the rules were made, below `mkdir`, where no line names a cause."""
    changed = []
    for number, record in enumerate(records()):
        text, before = record["text"], verdict_on(record["text"], engine).failure
        below = CLOSING[number % len(CLOSING)]
        above = WARNINGS[number % len(WARNINGS)]
        if (after := verdict_on(f"{text.rstrip()}\n{below}\n", engine).failure) is not before:
            changed.append(f"{record['id']}: {before} -> {after} by {below!r} below")
        if record["id"] in BY_EXIT_ALONE:
            continue
        if (after := verdict_on(f"{above}\n{text}", engine).failure) is not before:
            changed.append(f"{record['id']}: {before} -> {after} by {above!r} above")
    assert not changed, "\n".join(changed)


@pytest.mark.fault("hostile input", "a scheduler's clean-up below a failure", "the same verdict")
def test_a_schedulers_clean_up_changes_no_verdict(engine: Engine) -> None:
    changed = []
    for number, record in enumerate(failed for failed in records() if failed["cls"] not in NOT_FAILURES):
        before = verdict_on(record["text"], engine).failure
        below = CLEAN_UP[number % len(CLEAN_UP)].format(t="2026-11-22T23:00:00")
        if (after := verdict_on(f"{record['text'].rstrip()}\n{below}\n", engine).failure) is not before:
            changed.append(f"{record['id']}: {before} -> {after} by {below!r}")
    assert not changed, "\n".join(changed)


@pytest.mark.fault(
    "hostile input",
    "several jobs appended to one file",
    "each has its own verdict; the file's is the last one",
)
def test_of_two_jobs_in_a_file_each_has_its_own_verdict(engine: Engine) -> None:
    """Each record below another one, as `nohup ... >> train.log` leaves them."""
    every = records()
    changed = []
    for number, record in enumerate(every):
        other, start = every[(number * 37 + 11) % len(every)], STARTS[number % len(STARTS)]
        one, two = (f"{start}\n{text['text'].rstrip()}\n" for text in (other, record))
        alone = verdict_on(one, engine).failure, verdict_on(two, engine).failure
        both = examined(one + two, engine)
        found = [job.verdict.failure for job in both.earlier][-1:], both.verdict.failure
        if found != ([alone[0]], alone[1]):
            changed.append(f"{other['id']} and {record['id']}: {alone} -> {found}")
    assert not changed, "\n".join(changed)

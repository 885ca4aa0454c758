"""A detached keeper gets the job and what pre-flight found through one pipe."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.process.detach import handover, taken_over
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.runfile import BadRunFile, KeeperSettings, RunFile

JOB = JobSpec(
    name="train", entry_kind=EntryKind.SCRIPT, entry="train.py", nproc_per_node=2, env=(("TOKEN", "a\nb"),)
)
RECORD = RunFile(
    run_id="x",
    job=JOB,
    interpreter="/bin/python",
    settings=KeeperSettings(interactive=True),
    created_t=1.0,
    host="box",
    user="me",
    stoker_version="0",
)
FINDING = Finding(FindingLevel.WARNING, "restarts", "no resume flag\nis known (--resume-knob)", "name it")


@pytest.mark.parametrize("findings", [(), (FINDING, dataclasses.replace(FINDING, level=FindingLevel.INFO))])
def test_what_is_handed_over_arrives(findings: tuple[Finding, ...]) -> None:
    assert taken_over(handover(RECORD, findings)) == (RECORD, findings, "")
    assert taken_over(handover(RECORD, findings, "kim")) == (RECORD, findings, "kim")


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", msgspec.json.encode(RECORD), handover(RECORD, (FINDING,))[:40]]
)
@pytest.mark.fault(
    "processes", "the handover to the background process is cut", "refused; nothing is launched from a part"
)
def test_less_than_all_of_it_is_refused(data: bytes) -> None:
    with pytest.raises(BadRunFile):
        taken_over(data)

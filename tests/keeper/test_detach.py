"""A detached keeper: the job and what pre-flight found arrive through one pipe, and what would end it is said first."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import msgspec
import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.process import detach
from supervisor.keeper.process.detach import handover, taken_over
from supervisor.run.paths import RunPaths
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
    "processes",
    "the handover to the background process is cut off",
    "refused; nothing is launched from a part of it",
)
def test_less_than_all_of_it_is_refused(data: bytes) -> None:
    with pytest.raises(BadRunFile):
        taken_over(data)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the keeper was ended by SIGKILL before it was ready: see "),
        ("raise SystemExit(3)", "the keeper ended with exit code 3 before it was ready: see "),
    ],
)
def test_a_keeper_that_ends_before_it_is_ready_is_reported_and_leaves_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, told: str
) -> None:
    monkeypatch.setattr(detach, "BOOTSTRAP", f"{detach.BOOTSTRAP.partition('sys.exit')[0]}{ends}")
    run = RunPaths(tmp_path / "run")
    with pytest.raises(detach.KeeperDidNotStart, match=told):
        detach.start_detached(run, os.environ, record=RECORD, entry="never imported")
    assert " starts\n" in run.node().log.read_text()


@pytest.mark.parametrize(
    ("setting", "lingers", "is_said"),
    [
        ("KillUserProcesses=yes", False, True),
        (" KillUserProcesses = True", False, True),
        ("KillUserProcesses=yes", True, False),
        ("#KillUserProcesses=yes", False, False),
        ("KillUserProcesses=no", False, False),
        (None, False, False),
    ],
)
def test_a_login_manager_that_kills_at_logout_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, lingers: bool, is_said: bool
) -> None:
    monkeypatch.setattr(detach, "LOGIND_CONF", str(tmp_path / "logind.conf"))
    monkeypatch.setattr(detach, "LINGERING", str(tmp_path))
    if setting is not None:
        (tmp_path / "logind.conf").write_text(f"[Login]\n{setting}\n", encoding="utf-8")
    if lingers:
        (tmp_path / "kim").touch()
    said = detach.teardown_warning({"USER": "kim"})
    assert (said is not None and "systemd-run --user --scope" in said) is is_said


def test_a_batch_job_is_named_first() -> None:
    assert "SLURM" in (detach.teardown_warning({"SLURM_JOB_ID": "7"}) or "")

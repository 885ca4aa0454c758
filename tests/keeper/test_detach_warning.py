"""A warning comes first if the session's end would kill a detached run."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.keeper.process import detach


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

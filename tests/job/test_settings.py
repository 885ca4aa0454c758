"""Each key that a file may hold is asked for, and does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.config.setting_keys import SETTINGS
from supervisor.job.config.settings import ConfigFile, Resolver

# Read from the file itself before anything is resolved; by the screen (cli/appearance_flags.py).
ASKED_ELSEWHERE = {"run.script", "run.module"} | {key for key in SETTINGS if key.startswith("ui.")}


def test_no_setting_is_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    real = Resolver.get

    def get(self: Resolver, key: str, default: Any = None) -> Any:
        asked.add(key)
        return real(self, key, default)

    monkeypatch.setattr(Resolver, "get", get)
    resolve_job(JobInputs(parse_run_argv(["--fit-batch", "train.py"]), {}, "/w"))
    resolve_job(JobInputs(parse_run_argv([]), {}, "/w", job_file=ConfigFile("job.toml", {"depth": 2})))
    assert set(SETTINGS) - asked == ASKED_ELSEWHERE


def test_the_level_of_the_console_comes_from_flag_variable_and_file() -> None:
    def level(*argv: str, env: dict[str, str] | None = None) -> str:
        file = ConfigFile("stoker.toml", {"run": {"log_level": "error"}})
        return resolve_job(
            JobInputs(parse_run_argv([*argv, "train.py"]), env or {}, "/w", project=file)
        ).log_level

    assert level() == "error"
    assert level(env={"STOKER_LOG_LEVEL": "debug"}) == "debug"
    assert level("--log-level", "warning", env={"STOKER_LOG_LEVEL": "debug"}) == "warning"


def test_the_page_of_keys_has_each_in_its_table() -> None:
    lines = (Path(__file__).parents[2] / "configs" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = {line.split("`")[1].strip("[]"): line for line in lines if line.startswith("| `[")}
    missing = [key for key in SETTINGS if f"`{key.partition('.')[2]}`" not in rows[key.partition(".")[0]]]
    assert missing == []

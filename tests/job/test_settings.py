"""Each key that a file may hold is asked for, and does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.config.setting_keys import SETTINGS
from supervisor.job.config.settings import ConfigFile, Resolver, convert
from supervisor.job.config.trainer_keys import KeyType
from supervisor.job.errors import JobError

# Read from the file itself before anything is resolved; by the screen (cli/common.py).
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


@pytest.mark.parametrize(
    ("kind", "given", "held"),
    [
        (KeyType.INT, "12", 12),
        (KeyType.INT, "1e3", 1000),
        (KeyType.INT, "1_000", 1000),
        (KeyType.INT, 5.0, 5),
        (KeyType.INT, "9007199254740993", 9007199254740993),
        (KeyType.FLOAT, ".5", 0.5),
        (KeyType.FLOAT, "1e-4", 1e-4),
        (KeyType.FLOAT, 3, 3.0),
        (KeyType.SWITCH, "ON", True),
        (KeyType.SWITCH, 0, False),
        (KeyType.TEXT, 7, "7"),
    ],
)
def test_a_value_becomes_what_the_setting_holds(kind: KeyType, given: object, held: object) -> None:
    done = convert("--x", kind, given)
    assert (type(done), done) == (type(held), held)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (KeyType.INT, "1.5", "--x wants a whole number, got '1.5'"),
        (KeyType.INT, True, "--x wants a whole number, got True"),
        (KeyType.FLOAT, "nan", "--x wants a number, got 'nan'"),
        (KeyType.FLOAT, float("inf"), "--x wants a number, got inf"),
        (KeyType.FLOAT, [1], r"--x wants a number, got \[1\]"),
        (KeyType.SWITCH, "perhaps", "--x wants true or false, got 'perhaps'"),
        (KeyType.TEXT, True, "--x wants text, got True: quote it"),
        (KeyType.TEXT, None, "--x wants text, got None"),
    ],
)
def test_a_value_of_another_kind_is_one_line_that_names_the_setting(
    kind: KeyType, given: object, message: str
) -> None:
    with pytest.raises(JobError, match=f"^{message}$"):
        convert("--x", kind, given)


def test_a_bad_value_of_a_file_names_its_line_and_what_is_allowed() -> None:
    file = ConfigFile("stoker.toml", {"run": {"log_level": "loud"}}, '[run]\nlog_level = "loud"\n')
    with pytest.raises(JobError) as refused:
        resolve_job(JobInputs(parse_run_argv(["train.py"]), {}, "/w", project=file))
    assert refused.value.message.startswith("stoker.toml:2: run.log_level takes one of ")
    assert refused.value.message.endswith("got 'loud'")

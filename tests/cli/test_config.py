"""`stoker config explain`: one setting or variable with its meaning, value, origin and what it overrode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from tests.cli.conftest import Answer, Call
from tests.integration.harness import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("NCCL_DEBUG", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home" / "stoker").mkdir(parents=True)
    (tmp_path / "home" / "stoker" / "config.toml").write_text("[policy]\nhold_s = 60\ngrace_s = 20\n")
    (tmp_path / "stoker.toml").write_text(
        '[env]\nNCCL_DEBUG = "WARN"\nAPI_KEY = "hunter2hunter2"\n[policy]\ngrace_s = 9\n'
    )
    (tmp_path / "train.py").write_text("raise SystemExit('never run')\n")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["config", "explain", *words, "--json", "train.py"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_layer_that_names_a_setting_with_its_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_GRACE", "7")
    said = told(capsys, "policy.grace_s", "--grace", "5")
    assert (said["value"], said["origin"]) == ("5.0", "flag --grace")
    assert [(each["value"], each["origin"]) for each in said["overrode"]] == [
        ("7", "env STOKER_GRACE"),
        ("9.0", f"project {folder / 'stoker.toml'}:5"),
        ("20.0", f"user {folder / 'home' / 'stoker' / 'config.toml'}:3"),
        ("30.0", "default"),
    ]
    assert (said["takes"], said["unit"], said["default"]) == ("number, at least 0", "seconds", "30")
    assert "SIGKILL" in said["meaning"]


@pytest.mark.parametrize("name", ["policy.grace_s", "grace_s", "grace", "STOKER_GRACE"])
def test_any_name_of_a_setting_will_do(folder: Path, call: Call, name: str) -> None:
    said = f"""\
policy.grace_s = 9.0  (project {folder}/stoker.toml:5)
  meaning:     how long a stop waits before SIGKILL
  takes:       number, at least 0
  unit:        seconds
  default:     30
  other names: --grace, STOKER_GRACE
  overrode:    20.0  (user {folder}/home/stoker/config.toml:3)
               30.0  (default)
"""
    assert call(f"config explain {name}") == Answer(0, said, "")
    assert call(f"config explain {name} train.py").out == said


def test_what_is_no_question_shows_how_to_ask(folder: Path, call: Call) -> None:
    needs = "say what to do: stoker config explain [KEY]"
    assert call("config") == call("config grace") == Answer(2, "", f"stoker config: {needs}\n")
    usage = call("config --help")
    assert usage.out.startswith("usage: stoker config explain [--json] [KEY] [flags] [SCRIPT.py ...]\n")
    assert call("config -h") == call("config explain --help") == usage == Answer(0, usage.out, "")


def test_a_variable_that_reaches_the_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, "NCCL_DEBUG", "--debug-distributed", "--env", "NCCL_DEBUG=TRACE")
    assert (said["value"], said["origin"]) == ("TRACE", "yours (flag --env)")
    assert [each["value"] for each in said["overrode"]] == ["WARN", "INFO"]
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")
    said = told(capsys, "NCCL_DEBUG", "--debug-distributed")
    assert [each["value"] for each in said["overrode"]] == ["VERSION"], "a switch leaves what the shell sets"
    assert told(capsys, "API_KEY")["value"] != "hunter2hunter2"
    assert main(["config", "explain", "NCCL_DEBG"]) == 2
    assert "did you mean 'NCCL_DEBUG'?" in capsys.readouterr().err


def test_a_key_of_the_trainer_in_a_preset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "config",
        "explain",
        "batch_size",
        "--config",
        "dual_gpu/balanced",
        "--device_batch_size=6",
        "--json",
    ]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["key"], said["value"], said["origin"]) == (
        "device_batch_size",
        "6",
        "flag --device_batch_size",
    )
    preset, default = said["overrode"]
    assert preset["value"] == "12"
    assert preset["origin"].startswith("preset dual_gpu/balanced:")
    assert default == {"value": "16", "origin": "default"}
    assert main(["config", "explain", "batch_size"]) == 0
    assert capsys.readouterr().out.startswith("device_batch_size: not set\n"), (
        "no job of the trainer is named"
    )


def test_what_stoker_itself_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, "nproc_per_node", "--nproc-per-node", "4", "--trial")
    assert (said["value"], said["origin"]) == ("1", "--trial")
    assert said["overrode"][0] == {"value": "4", "origin": "flag --nproc-per-node"}
    assert told(capsys, "policy.retry", "--no-retry")["value"] == "False"
    assert told(capsys, "lang", "--lang", "zh")["origin"] == "flag --lang"


def test_without_a_name_all_are_listed_and_show_config_lists_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert main(["config", "explain", "--grace", "5", "train.py"]) == 0
    listed = capsys.readouterr().out
    assert main(["run", "--show-config", "--grace", "5", "train.py"]) == 0
    shown = capsys.readouterr().out.split("\n\nvariables")[0]
    without_spaces = [" ".join(line.split()) for line in listed.splitlines()]
    assert {" ".join(line.split()) for line in shown.splitlines()} <= set(without_spaces)
    assert without_spaces.count("policy.grace_s 5.0 flag --grace") == 1
    assert not any(line.startswith("policy.grace_s 9.0") for line in without_spaces), "each setting once"
    assert "hunter2" not in listed
    changed = listed.partition("\n\nvariables of the job:\n")[2].splitlines()
    assert [line.split()[:2] for line in changed] == [
        ["NCCL_DEBUG", "WARN"], ["API_KEY", "<redacted>"], ["PYTHONPATH", str(ROOT / "supervisor/instrument/on_path")],
    ]  # fmt: skip
    assert main(["config", "explain", "--json", "--grace", "5", "train.py"]) == 0
    told = json.loads(capsys.readouterr().out)
    (grace,) = (each for each in told["settings"] if each["key"] == "policy.grace_s")
    assert (grace["value"], [each["value"] for each in grace["overrode"]]) == ("5.0", ["9.0", "20.0", "30.0"])
    assert {each["key"]: each["value"] for each in told["settings"]}["env.API_KEY"] == "<redacted>"
    assert [each["key"] for each in told["variables"]] == ["NCCL_DEBUG", "API_KEY", "PYTHONPATH"]

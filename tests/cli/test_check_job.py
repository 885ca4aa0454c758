"""``stoker check`` of a job and of the machine: every check with its fix, nothing started, 3 where a start would be refused."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from supervisor.preflight import checks
from supervisor.preflight.context import CheckContext, warn
from tests.cli.conftest import Call
from tests.conftest import wait_until

SCRIPT = """
import argparse, pathlib, time
pathlib.Path("ran").touch()
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--seconds", type=float, default=0)
args = parser.parse_args()
time.sleep(args.seconds)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_job_is_checked_and_nothing_is_started_or_written(script: Path, call: Call) -> None:
    code, said, _ = call("check train.py --batch_size 4")
    assert code == 0
    assert "✓ interpreter: " in said
    assert "✓ script: train.py compiles" in said
    assert "! restarts: no restart after a crash beyond the first step" in said
    assert "out of memory" not in said, "the batch is measured"
    assert "    → " in said, "what to do about it"
    assert said.splitlines()[-1] == "nothing forbids a start; warnings: 1"
    assert [path.name for path in script.iterdir()] == ["train.py"]


@pytest.mark.parametrize("words", ["check", "run --check-only"])
def test_what_would_be_refused_ends_with_3_and_is_named(words: str, script: Path, call: Call) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        code, out, _ = call(f"{words} --json --master-port {port} train.py")
    told = json.loads(out)
    assert code == 3
    assert (told["job"], told["refused"]) == ("train", True)
    (refusal,) = [each for each in told["findings"] if each["level"] == "refuse"]
    assert refusal["check"] == "port"
    assert str(port) in refusal["what"]
    assert "--master-port" in refusal["fix"]
    assert not (script / "ran").exists()


def test_an_interpreter_that_does_not_run_is_one_of_the_findings(script: Path, call: Call) -> None:
    broken = script / "venv" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/nowhere/python3\n")
    broken.chmod(0o755)
    code, said, _ = call("check --python", broken, "train.py")
    assert code == 3
    assert "x interpreter: --python" in said
    assert "does not run" in said
    assert "✓ script: train.py compiles" in said, "the others are made all the same"


def test_without_a_job_the_machine_is_checked(call: Call) -> None:
    code, out, _ = call("check --json")
    told = json.loads(out)
    assert code == 0
    names = {each["check"] for each in told["findings"]}
    assert {"disk", "shared memory", "open files"} <= names
    assert not {"script", "restarts"} & names


def test_what_refuses_nothing_is_looked_at_beside_the_start(
    script: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """The script runs before the slow check is done: it continues only once the script has begun."""

    def check_slow(context: CheckContext):  # type: ignore[no-untyped-def]
        wait_until((script / "ran").exists, 30)
        yield warn("slow", f"looked beside the start of {context.spec.name}", "do that")

    monkeypatch.setattr(checks, "beside", lambda: (check_slow,))
    code, out, _ = call("run --no-ui --runs-dir runs -- python3 train.py --seconds 3")
    assert (code, "looked beside the start" in out) == (0, True)
    journal = script / "runs" / "latest" / "nodes" / "0" / "events.jsonl"
    found = [json.loads(line) for line in journal.read_text().splitlines() if "looked beside" in line]
    assert [line["finding"]["check"] for line in found] == ["slow"]


def test_no_check_makes_none(script: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    def check_never(context: CheckContext):  # type: ignore[no-untyped-def]
        raise AssertionError(f"{context} was looked at")

    monkeypatch.setattr(checks, "BEFORE", (check_never,))
    monkeypatch.setattr(checks, "beside", lambda: (check_never,))
    monkeypatch.setattr("supervisor.cli.check.BEFORE", (check_never,))
    assert call("run --no-ui --no-check --runs-dir runs -- python3 train.py").code == 0
    assert (script / "ran").exists()
    journal = script / "runs" / "latest" / "nodes" / "0" / "events.jsonl"
    assert "preflight_found" not in journal.read_text()


def test_what_cannot_be_looked_at_stops_no_start(tmp_path: Path) -> None:
    def check_host_name(context: CheckContext):  # type: ignore[no-untyped-def]
        raise PermissionError(1, f"not for {context.spec.name}")
        yield

    from supervisor.cli.check import this_machine

    (found,) = checks.run_checks((check_host_name,), CheckContext(this_machine(), tmp_path, {}))
    assert (found.level.value, found.check, found.what) == (
        "info",
        "host name",
        "could not be looked at: not for machine",
    )

"""``stoker check`` of a job and of the machine: every check with its fix, nothing started, 3 where a start would be refused."""

from __future__ import annotations

import json
import platform
import socket
import sys
from importlib import metadata
from pathlib import Path

import pytest

from supervisor.cli import check
from supervisor.preflight import checks
from supervisor.preflight.context import CheckContext, note, ok, refuse, warn
from supervisor.run.records import Finding
from supervisor.text.redact import redact_text
from tests.cli.conftest import Answer, Call
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
    for line in (
        "✓ interpreter: ",
        "✓ script: train.py compiles",
        "! restarts: no restart after a crash beyond the first step",
    ):
        assert line in said
    assert "out of memory" not in said, "the batch is measured"
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


SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that always find the same."""

    def checks_with(*found: Finding):  # type: ignore[no-untyped-def]
        return (lambda _: iter(found),)

    first = ok("first", "it is fine"), warn("second", f"token={SECRET}", "hide it")
    monkeypatch.setattr(check, "BEFORE", checks_with(*first))
    monkeypatch.setattr(check, "asked", lambda: checks_with(note("deep", "they met")))
    monkeypatch.setattr(check, "beside", lambda: checks_with(refuse("last", "it is wrong", "mend it")))


def test_each_finding_is_a_line_and_its_fix_another(fixed: None, call: Call) -> None:
    code, out, err = call("check --ascii --lang en --python", sys.executable, "--deep", "train.py")
    assert (code, err, SECRET in out) == (3, "", False)
    first, *others = out.splitlines()
    versions = f"Python {platform.python_version()}, torch {metadata.version('torch')}"
    assert first == f"+ interpreter: {sys.executable}: {versions} (--python {sys.executable})"
    assert others == [
        "+ first: it is fine", f"! second: {redact_text(f'token={SECRET}')}", "    -> hide it", "- deep: they met",
        "x last: it is wrong", "    -> mend it", "a start would be refused: 1 of 5 checks forbid it",
    ]  # fmt: skip
    code, out, err = call("check --json --python", sys.executable, "train.py")
    told = json.loads(out)
    assert 0 < told.pop("seconds") < 60
    assert told.pop("findings")[1:] == [
        {"check": "first", "level": "ok", "what": "it is fine", "fix": ""},
        {"check": "second", "level": "warning", "what": redact_text(f"token={SECRET}"), "fix": "hide it"},
        {"check": "last", "level": "refuse", "what": "it is wrong", "fix": "mend it"},
    ]
    assert (code, err, told) == (3, "", {"job": "train", "refused": True})


def test_nodes_without_a_common_folder_are_warned(fixed: None, call: Call) -> None:
    nodes = "--nnodes 2 --master-addr 127.0.0.1"
    warned = (
        "! nodes: --nnodes 2 without --run-dir: each node has a run of its own, with a verdict of its own"
    )
    assert warned in call(f"check {nodes} train.py").out.splitlines()
    assert warned not in call(f"check {nodes} --run-dir runs/x train.py").out


def test_data_is_checked_by_the_trainer(call: Call, monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    assert call("check -h").out.startswith(
        "usage: stoker check [--json] [--deep]                        this machine\n"
    )
    missing = "check.py: the bundled trainer, which reads the data, is not there"
    monkeypatch.setattr(check, "trainer_main", lambda: "check.py")
    assert call("check --data x.bin") == Answer(2, "", f"stoker check: {missing}\n")
    for ended, code in ((0, 0), (2, 2), (130, 130), (1, 2)):
        (script / "check.py").write_text(
            f"import sys; assert sys.argv[1:] == ['data', 'check', 'x']; sys.exit({ended})\n"
        )
        assert call("check --data x").code == code


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
    monkeypatch.setattr(check, "BEFORE", (check_never,))
    assert call("run --no-ui --no-check --runs-dir runs -- python3 train.py").code == 0
    assert (script / "ran").exists()
    journal = script / "runs" / "latest" / "nodes" / "0" / "events.jsonl"
    assert "preflight_found" not in journal.read_text()


def test_what_cannot_be_looked_at_stops_no_start(tmp_path: Path) -> None:
    def check_host_name(context: CheckContext):  # type: ignore[no-untyped-def]
        raise PermissionError(1, f"not for {context.spec.name}")
        yield

    (found,) = checks.run_checks((check_host_name,), CheckContext(check.this_machine(), tmp_path, {}))
    assert (found.level.value, found.check, found.what) == (
        "info",
        "host name",
        "could not be looked at: not for machine",
    )

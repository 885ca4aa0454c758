"""With the instrumentation a training computes, writes, prints and ends as without it."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.instrument.child import PACKAGE, SCRIPTS, read, run, without_ours
from tests.tiers import first


def test_every_file_parses_as_python_3_8() -> None:
    for path in (*PACKAGE.glob("*.py"), PACKAGE / "on_path" / "sitecustomize.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 8))


@pytest.mark.e2e
def test_a_training_computes_writes_prints_and_ends_as_without_it(tmp_path: Path) -> None:
    """One script in many ways, under ``-W error``: without, and with."""
    one, other = tmp_path / "without", tmp_path / "with"
    script: list[str | Path] = ["-W", "error", SCRIPTS / "everything.py"]
    without = run(script, one, measured=False, PYTHONHASHSEED="0")
    with_it = run(script, other, PYTHONHASHSEED="0")
    assert "of the random state" in without.out, without.err
    address = re.compile("0x[0-9a-f]+|pid [0-9]+")
    assert address.sub("", with_it.out) == address.sub("", without.out), "losses, signatures, pickles"
    assert (without.code, with_it.code) == (1, 1)
    assert without.err.count("Traceback") >= 14
    tracebacks = without.err.replace(str(one), ""), without_ours(with_it.err).replace(str(other), "")
    assert address.sub("", tracebacks[1]) == address.sub("", tracebacks[0])
    names = sorted(path.name for path in one.glob("*.pt"))
    assert len(names) >= 6
    assert names == sorted(path.name for path in other.glob("*.pt"))
    assert [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()] == []
    assert without.records == []
    assert len(with_it.of("phase")) == 1, "no data worker, forked or spawned, says that it trains"
    assert with_it.of("exit") == [{**with_it.of("exit")[0], "reason": "exception", "exception": "KeyError"}]
    assert with_it.of("note") == []


ENDINGS = {"exits": 3, "raises": 1, "swallows": 0, "closes": 0, "forks": 0, "unwritable": 0, "full": 0}


class Forks:
    """One run of forks.py: by what happens, the exit codes, and the losses as the child wrote them."""

    def __init__(self, folder: Path, mode: str, measured: bool = True) -> None:
        self.telemetry = folder / "telemetry"
        folder.mkdir(exist_ok=True)
        (folder / "a_file").touch()  # below it no folder can be made, not even by root
        self.ended = run(
            [SCRIPTS / "forks.py", ",".join(ENDINGS), mode],
            folder,
            measured=measured,
            telemetry=self.telemetry,
        )
        assert self.ended.code == 0, self.ended.err
        self.codes = {
            kind: int(code) for kind, code in (line.split() for line in self.ended.out.splitlines())
        }
        self.losses = {
            kind: json.loads((folder / f"{kind}.json").read_text())["losses"] for kind in self.codes
        }

    def records(self, kind: str) -> list[dict[str, Any]]:
        """What the child in which `kind` happened wrote."""
        return read(self.telemetry / kind)


@pytest.mark.e2e
def test_whatever_ends_it_and_whatever_of_ours_fails_it_ends_and_computes_the_same(tmp_path: Path) -> None:
    plain = Forks(tmp_path / "plain", "each", measured=False)
    assert plain.codes == ENDINGS
    assert all(len(losses) >= 12 for losses in plain.losses.values())
    installed = Forks(tmp_path / "install", "install")
    assert (installed.codes, installed.losses) == (ENDINGS, plain.losses), "patches cannot be installed"

    forks = Forks(tmp_path / "forks", "each")
    assert {kind: forks.codes[kind] for kind in ENDINGS} == ENDINGS
    assert {kind: forks.losses[kind] for kind in ENDINGS} == plain.losses
    ends = {
        kind: [(r["reason"], r.get("exception")) for r in forks.records(kind) if r["kind"] == "exit"]
        for kind in ENDINGS
    }
    done, unwritten = [("done", None)], ("unwritable", "full")
    assert ends == {
        **{kind: [] if kind in unwritten else done for kind in ENDINGS}, "raises": [("exception", "LookupError")]
    }  # fmt: skip
    of_fork = forks.records("forks")
    assert len({record["pid"] for record in of_fork if record["kind"] == "phase"}) == 1
    assert of_fork[-1]["step"] == 24, "the parent's own steps alone: its fork reports nothing"

    failing = [kind for kind in forks.codes if kind.startswith("raise:")]
    assert len(failing) >= 40
    assert {kind: forks.codes[kind] for kind in failing if forks.codes[kind] != 0} == {}
    assert [kind for kind in failing if forks.losses[kind] != plain.losses["swallows"]] == []
    noted = [
        kind
        for kind in failing
        if any(r["kind"] == "note" and r["code"] == "ZeroDivisionError" for r in forks.records(kind))
    ]
    assert len(noted) >= 20, "they failed in earnest"


def test_nothing_that_is_not_our_own_error_is_swallowed(tmp_path: Path) -> None:
    """Ctrl-C, and the `SystemExit` that a signal's handler raises, may arrive while something of ours runs."""
    done = run(["-c", "import argparse\n" + SIGNALS], tmp_path)
    assert done.out.split() == ["KeyboardInterrupt", "SystemExit"], done.err


SIGNALS = """
import sys
wire = sys.modules["_stoker_instrument.wire"]
for kind in (KeyboardInterrupt, SystemExit, ValueError):
    try:
        with wire.quietly("here"):
            raise kind
    except BaseException as error:
        print(type(error).__name__)
"""


def pythons() -> list[Path]:
    """Interpreters that pyenv has here, of the versions that a job may have."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return sorted(
        path for path in root.glob("versions/3.*/bin/python") if int(path.parts[-3].split(".")[1]) >= 8
    )


@pytest.mark.parametrize("python", first(1, pythons()), ids=lambda path: path.parts[-3])
def test_other_pythons_run_it(python: Path, tmp_path: Path) -> None:
    """Without torch: start, records, their file, the exit record, and the environment's own sitecustomize."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('its own')")
    path = f"{PACKAGE / 'on_path'}{os.pathsep}{tmp_path / 'own'}"
    done = run(["-W", "error", "-c", WITHOUT_TORCH], tmp_path, python=python, PYTHONPATH=path)
    assert (done.code, done.err.splitlines()[-1:]) == (1, ["ValueError: the end"])
    assert done.out.splitlines() == ["its own", "4 True"]
    assert [record["kind"] for record in done.records] == ["phase", "setting", "exit"]
    assert done.records[1]["value"] == 1.5
    assert (done.records[2]["reason"], done.records[2]["exception"]) == ("exception", "ValueError")
    assert not (tmp_path / "telemetry" / "instrument.log").exists()


WITHOUT_TORCH = """
import argparse, pickle, sys
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
print(parser.parse_args([]).batch, pickle.loads(pickle.dumps(argparse.Namespace)) is argparse.Namespace)
for name in ("checkpoints", "training", "settings"):
    __import__("_stoker_instrument." + name)
wire = sys.modules["_stoker_instrument.wire"].wire
wire.kept.clear()
wire.record("setting", name="x", value=1.5, file=None)
wire.start_reporting()
raise ValueError("the end")
"""

"""With the instrumentation a training computes, writes, prints and ends as without it."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.instrument.child import PACKAGE, SCRIPTS, Ended, read, run, without_ours

MODULES = sorted(PACKAGE.glob("*.py"))


@pytest.mark.parametrize(
    "path", [*MODULES, PACKAGE / "on_path" / "sitecustomize.py"], ids=lambda path: path.name
)
def test_every_file_parses_as_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Path, Ended], tuple[Path, Ended]]:
    """The same script under ``-W error``: without, and with."""
    both = []
    for measured in (False, True):
        folder = tmp_path_factory.mktemp("everything")
        both.append(
            (
                folder,
                run(
                    ["-W", "error", SCRIPTS / "everything.py"], folder, measured=measured, PYTHONHASHSEED="0"
                ),
            )
        )
    return both[0], both[1]


def lines(ended: Ended) -> list[str]:
    """What it printed; addresses in it are not its own choice."""
    return re.sub("0x[0-9a-f]+", "0x", ended.out).splitlines()


def test_losses_signatures_and_pickles_are_the_same(
    pair: tuple[tuple[Path, Ended], tuple[Path, Ended]],
) -> None:
    (_, without), (_, with_it) = pair
    assert lines(with_it) == lines(without)
    assert "of the random state" in without.out, without.err


def test_it_ends_with_the_same_exit_code_and_tracebacks(
    pair: tuple[tuple[Path, Ended], tuple[Path, Ended]],
) -> None:
    (one, without), (other, with_it) = pair
    assert (without.code, with_it.code) == (1, 1)
    assert without.err.count("Traceback") >= 14
    addresses = re.compile("0x[0-9a-f]+|pid [0-9]+")
    expected, got = (
        without.err.replace(str(one), "FOLDER"),
        without_ours(with_it.err).replace(str(other), "FOLDER"),
    )
    assert addresses.sub("", got) == addresses.sub("", expected)


def test_checkpoints_are_equal_to_the_byte(pair: tuple[tuple[Path, Ended], tuple[Path, Ended]]) -> None:
    (one, _), (other, _) = pair
    names = sorted(path.name for path in one.glob("*.pt"))
    assert len(names) >= 6
    assert names == sorted(path.name for path in other.glob("*.pt"))
    assert [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()] == []


def test_only_the_process_that_trains_reports(pair: tuple[tuple[Path, Ended], tuple[Path, Ended]]) -> None:
    (_, without), (_, with_it) = pair
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


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Forks:
    return Forks(tmp_path_factory.mktemp("forks"), "each")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Forks:
    return Forks(tmp_path_factory.mktemp("plain"), "each", measured=False)


@pytest.mark.parametrize("kind", ENDINGS)
def test_exit_codes_and_losses_are_the_same(kind: str, forks: Forks, plain: Forks) -> None:
    assert (forks.codes[kind], plain.codes[kind]) == (ENDINGS[kind], ENDINGS[kind])
    assert forks.losses[kind] == plain.losses[kind]
    assert len(forks.losses[kind]) >= 12


def test_each_function_of_the_instrumentation_may_fail_at_every_call(forks: Forks, plain: Forks) -> None:
    failing = [kind for kind in forks.codes if kind.startswith("raise:")]
    assert len(failing) >= 40
    assert {kind: forks.codes[kind] for kind in failing if forks.codes[kind] != 0} == {}
    assert [kind for kind in failing if forks.losses[kind] != plain.losses["swallows"]] == []
    noted = [
        kind
        for kind in failing
        if any(record["code"] == "ZeroDivisionError" for record in notes(forks.records(kind)))
    ]
    assert len(noted) >= 20, "they failed in earnest"


def notes(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The errors of the instrumentation's own."""
    return [record for record in records if record["kind"] == "note"]


def test_patches_that_cannot_be_installed_change_nothing(tmp_path: Path, plain: Forks) -> None:
    installed = Forks(tmp_path / "install", "install")
    assert installed.codes == ENDINGS
    assert installed.losses == plain.losses


def test_the_exit_record_says_how_it_ended(forks: Forks) -> None:
    ends = {
        kind: [(r["reason"], r.get("exception")) for r in forks.records(kind) if r["kind"] == "exit"]
        for kind in ENDINGS
    }
    assert ends == {
        "exits": [("done", None)],
        "raises": [("exception", "LookupError")],
        "swallows": [("done", None)],
        "closes": [("done", None)],
        "forks": [("done", None)],
        "unwritable": [],
        "full": [],
    }


def test_a_fork_of_a_process_that_reports_writes_nothing(forks: Forks) -> None:
    records = forks.records("forks")
    assert len({record["pid"] for record in records if record["kind"] == "phase"}) == 1
    assert records[-1]["step"] == 24, "the parent's own steps alone"


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


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.parts[-3])
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

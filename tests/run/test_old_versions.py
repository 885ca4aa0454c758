"""Runs of earlier versions open: each form of the journal is read whole, folds, is listed and drawn.

tests/recorded/old_versions.py made them with those versions; a form that is new since gets a revision there.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from supervisor.cli.main import main as stoker
from supervisor.run.events import AttemptEnded, Event
from supervisor.run.fold import replay
from supervisor.run.journal import JournalReader
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file
from supervisor.run.state import Finished
from supervisor.views.headless.console import event_lines
from tests.recorded.old_versions import ARCHIVE, REVISIONS
from tests.recorded.recordings import drawn, still_surroundings

# These could not be started yet, or not by a command.
WITHOUT_A_RUN = {"cb5fc4fb"}
RUNS = [revision for revision in REVISIONS if revision not in WITHOUT_A_RUN]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    return folder


def real(old: Path, revision: str) -> RunPaths:
    (found,) = (path for path in (old / revision / "run").iterdir() if path.is_dir())
    return RunPaths(found)


def read(run: RunPaths) -> list[Event]:
    """All events; none may be skipped as unknown or damaged, and none is of a newer version."""
    reader = JournalReader(run.node().journal)
    found = reader.read()
    lines = run.node().journal.read_bytes().splitlines()
    assert (reader.skipped, len(found)) == (0, len(lines))
    return found


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_event_of_that_version_is_read_folds_and_has_words(old: Path, revision: str) -> None:
    found = read(RunPaths(old / revision / "every"))
    state = replay(found)
    assert isinstance(state.condition, Finished)
    assert state.attempts
    for event in found:
        for _, text in event_lines(event):
            assert text.strip(), event


@pytest.mark.parametrize("revision", RUNS)
def test_a_run_of_that_version_folds_is_listed_and_judged(
    old: Path, revision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = real(old, revision)
    found = read(run)
    state = replay(found)
    assert isinstance(state.condition, Finished)
    assert (state.condition.outcome, state.condition.exit_code) == ("failed", 1)
    assert read_run_file(run.run_json).job.entry.endswith("job.py")
    assert any(isinstance(event, AttemptEnded) for event in found)
    assert stoker(["runs", "--json", "--runs-dir", str(run.root.parent)]) == 0
    (listed,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (listed["run"], listed["state"]) == (run.run_id, "failed")
    assert stoker(["diagnose", "--json", str(run.root)]) == 10
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["failure"], verdict["rank"]) == ("worker_crash", 1)


@pytest.mark.parametrize("revision", RUNS)
def test_a_run_of_that_version_is_drawn(old: Path, revision: str) -> None:
    run = real(old, revision)
    with still_surroundings(run.root.parent):
        screen = drawn(RunPaths(Path(run.run_id)), (80, 24))
    head = screen.splitlines()[0]
    assert run.run_id.split("-", 2)[2] in head
    assert "failed" in head

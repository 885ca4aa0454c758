"""The recorded runs: this version judges and draws each; what it says otherwise than stoker did then stands in `CHANGED`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.job_logs import read_jobs
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.paths import RunPaths
from supervisor.sources.signature_files import Engine
from tests.recorded.recordings import (
    Recording,
    at_home,
    console,
    drawn,
    judged,
    names,
    recorded,
    still_surroundings,
    unpacked,
)
from tests.tiers import first

# Recordings that are judged otherwise than when they ran, and why that is better.
CHANGED = {
    "behind_tee": "exit code 0 of a pipe no longer hides the exception that ended the training",
    "gloo_timeout": "the stacks show which rank kept the others waiting, and gloo is not NCCL",
    "host_memory": "no machine has the 4.5 PB that were asked for: the size is an error of the program",
    "launcher_killed": "torchrun's own exit code says that a signal ended it",
}
# Of a verdict, what a program acts on; titles and advice may be worded otherwise.
COMPARED = ("class", "reason", "rank", "ranks", "cause")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Recording]:
    return unpacked(tmp_path_factory.mktemp("recorded"))


def acted_on(said: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that must stay."""
    return {
        "verdicts": {
            number: {key: verdict[key] for key in COMPARED} for number, verdict in said["verdicts"].items()
        },
        "decisions": {
            number: {key: decision[key] for key in ("kind", "change", "exit code")}
            for number, decision in said["decisions"].items()
        },
        **{key: said[key] for key in ("condition", "outcome", "exit code")},
    }


def test_there_are_thirty_and_each_ran_for_real(recordings: Mapping[str, Recording]) -> None:
    assert len(recordings) >= 30
    for recording in recordings.values():
        then = recorded(recording)
        assert recording.live or then["condition"] in {"Finished", "Running"}, recording.name
        if then["exit code"] is not None and not recording.live:
            assert recording.code == then["exit code"], recording.name


@pytest.mark.parametrize("name", names())
def test_a_recorded_run_is_judged_as_when_it_ran(
    name: str, recordings: Mapping[str, Recording], engine: Engine
) -> None:
    recording = recordings[name]
    then, now = acted_on(recorded(recording)), judged(recording, engine)
    if name in CHANGED:
        assert acted_on(now) != then
    else:
        assert acted_on(now) == then
    assert now["numbers"] == recording.said["numbers"]
    lines = console(recording).splitlines()
    assert len(lines) > 8
    assert any(recording.run.run_id in line for line in lines)


def test_diagnose_names_whom_the_supervisor_process_named(
    recordings: Mapping[str, Recording], engine: Engine
) -> None:
    """It reads the same files from their folders, where a path shows local ranks alone."""
    differing, compared = {}, 0
    for name, recording in recordings.items():
        then = recorded(recording)["verdicts"]
        if name in CHANGED or not recording.run.run_json.exists():
            continue  # the run files of watched logs and processes name no attempt
        ((_, attempt, evidence),) = read_jobs([str(recording.run.root)])
        if (before := then.get(str(attempt))) is None:
            continue  # it was running when it was recorded
        verdict = diagnose(evidence, engine.signatures, engine.matcher)
        now = (verdict.failure.value, verdict.rank, list(verdict.ranks))
        compared += 1
        if now != (before["class"], before["rank"], before["ranks"]):
            differing[name] = (before, now)
    assert not differing
    assert compared >= 25


@pytest.mark.e2e
@pytest.mark.parametrize("name", first(6, names()))
def test_a_recorded_run_is_drawn_at_three_sizes(name: str, recordings: Mapping[str, Recording]) -> None:
    recording = recordings[name]
    run = RunPaths(Path("runs", recording.run.run_id))
    with still_surroundings(recording.folder), at_home(recording.run):
        for size in ((80, 24), (120, 40), (200, 60)):
            rows = drawn(run, size, live=recording.live).splitlines()
            assert len(rows) == size[1]
            assert max(map(len, rows)) <= size[0]
            assert run.run_id.split("-", 2)[2] in rows[0]

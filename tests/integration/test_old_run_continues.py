"""A run of a version that read settings from the script's source opens, is listed and replayed, and its next attempt is measured.

tests/run/data/read_from_source.tar.xz: train.py as it ran out of memory at step 6 under revision 7ebc9da9 (`--max-retries 0`, the
measurements refused), its checkpoint of step 4 and its run directory. Paths, host and boot are neutral; `placed` puts this machine's there.
"""

from __future__ import annotations

import json
import socket
import sys
import tarfile
from pathlib import Path

import pytest

from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file
from tests.conftest import not_none
from tests.integration.harness import ROOT, only_run, state_of, stoker

ARCHIVE = ROOT / "tests" / "run" / "data" / "read_from_source.tar.xz"


def placed(folder: Path) -> RunPaths:
    """The old job and its run in `folder`, as if they had been made there."""
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    here = {"/home/me/job": str(folder), "/home/me/env/bin/python": sys.executable}
    here['"host":"box"'] = f'"host":"{socket.gethostname()}"'
    here['"host": "box"'] = f'"host": "{socket.gethostname()}"'
    for path in folder.glob("runs/**/*.json*"):
        text = path.read_text(encoding="utf-8")
        for old, new in here.items():
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    return only_run(folder)


def samples_by_step(folder: Path) -> list[tuple[int, int]]:
    """Each optimizer step of rank 0 and how many samples it was made of, as the script wrote them."""
    lines = (folder / "fed.jsonl").read_text(encoding="utf-8").splitlines()
    return [(line["step"], line["samples"]) for line in map(json.loads, lines)]


def test_it_is_listed_and_replayed_as_it_was(tmp_path: Path) -> None:
    run = placed(tmp_path)
    (listed,) = map(json.loads, stoker("runs", "--json", cwd=tmp_path).out.splitlines())
    assert (listed["run"], listed["state"], listed["verdict"]) == (run.run_id, "failed", "cuda_oom")
    assert (listed["micro_batch"], listed["accumulation"], listed["global_batch"]) == (16, 2, 64)
    attached = stoker("attach", "--json", str(run.root), cwd=tmp_path)
    assert attached.code == 1, attached.err
    kinds = [json.loads(line)["kind"] for line in attached.out.splitlines()]
    assert kinds.count("diagnosed") == 2
    assert "run_ended" in kinds
    assert "batch_measured" not in kinds
    explained = stoker("diagnose", str(run.root), cwd=tmp_path)
    assert explained.code == 10, explained.err
    assert "Reduce --batch_size (now 16): 8 divides the global batch." in explained.out


@pytest.mark.e2e
def test_its_next_attempt_is_smaller_resumes_and_is_confirmed(tmp_path: Path) -> None:
    run = placed(tmp_path)
    knobs = not_none(read_run_file(run.run_json).job.knobs)
    assert not knobs.declared, "it was read from the source"
    done = stoker("continue", run.run_id, "--yes", "--no-ui", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert "resumes from its checkpoint at step 4" in done.err
    second = state_of(run).attempts[-1]
    assert second.resume_at == 4
    assert second.measured is not None
    assert (second.measured.micro_batch, second.measured.accumulation) == (8, 4)
    assert second.measured.global_batch == 64
    assert not_none(second.confirmed).resume == str(tmp_path / "out" / "step_4.pt")
    assert samples_by_step(tmp_path) == [(step, 32) for step in (1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10)]

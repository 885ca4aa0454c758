"""`stoker batch` and `stoker why-slow`: answers from what the ranks measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, FailureClass, UsedBatch, Verdict
from tests.cli.conftest import Call
from tests.keeper.fakes import run_in

T = 1_800_000_000.0
USED = UsedBatch(1, "/home/me/train.py:8", 2, 15, 40, ((16, 1920),), ("int64",), 16, (7, 3, 11), 2.1)


def ended(place: Path, *batches: UsedBatch) -> RunPaths:
    verdict = Verdict(
        FailureClass.CUDA_OOM, None, 0.96, 1, (), None, "GPU memory ran out on rank 1", None, (), (), Action.REDUCE_BATCH, "f", batches=batches
    )  # fmt: skip
    return run_in(
        place / "runs",
        ev.LaunchIntended(t=T, attempt=1, argv=("train.py",), reason="first launch"),
        ev.AttemptStarted(t=T, attempt=1, pid=77, start_time=1.0),
        ev.AttemptEnded(t=T + 60, attempt=1, exit_code=1),
        ev.Diagnosed(t=T + 61, attempt=1, verdict=verdict),
    )


def write(run: RunPaths, name: str, *records: Mapping[str, object]) -> None:
    folder = run.node().attempt(1).telemetry
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def test_the_batch_of_the_verdict_is_printed_as_python(tmp_path: Path, call: Call) -> None:
    run = ended(tmp_path, USED)
    code, said, _ = call("batch", run.root)
    assert code == 0
    assert said == (
        "# rank 1: batch 15 of epoch 2 of the DataLoader at …/me/train.py:8, 16 × 1920 int64, 2.1 × the usual size (both counted from 0)\n"
        "indices = [7, 3, 11]  # the first of 16\n"
    )
    code, said, _ = call("batch --json", run.root)
    told = json.loads(said)
    assert (told["attempt"], told["rank"], told["indices"], told["times_usual"]) == (1, 1, [7, 3, 11], 2.1)


def test_several_batches_and_those_without_indices_have_names_of_their_own(
    tmp_path: Path, call: Call
) -> None:
    other = UsedBatch(0, "", 0, 3, 3)
    _, said, _ = call("batch", ended(tmp_path, other, USED).root)
    assert "indices_0_3 = None" in said
    assert "indices_1_15 = [7, 3, 11]" in said
    held: dict[str, object] = {}
    exec(said, held)
    assert held["indices_1_15"] == [7, 3, 11]


def test_a_rank_that_is_asked_for_is_read_from_its_file(tmp_path: Path, call: Call) -> None:
    run = ended(tmp_path, USED)
    entry = {
        "kind": "batch",
        "t_wall": T,
        "n": 0,
        "step": 0,
        "passes": 0,
        "begun": 0,
        "loader": 1,
        "epoch": 0,
        "index": 0,
    }
    write(
        run,
        "batches0.jsonl",
        entry | {"indices": [1, 2], "size": 2, "shapes": [[2, 4]], "dtypes": ["float32"]},
    )
    write(run, "measured0.jsonl", {"kind": "loader", "id": 1, "at": "a.py:3", "rank": 0})
    code, said, _ = call("batch --rank 0", run.root)
    assert (code, said.splitlines()[-1]) == (0, "indices = [1, 2]")
    assert call("batch --rank 5", run.root).code == 1
    assert call("batch --attempt 4", run.root) == (2, "", f"stoker batch: {run.run_id} has no attempt 4\n")


def test_without_measurements_a_line_says_what_it_takes(tmp_path: Path, call: Call) -> None:
    run = ended(tmp_path)
    code, _, err = call("batch", run.root)
    assert (
        code,
        err.startswith(f"stoker batch: {run.run_id}: no batch was measured: the script must draw"),
    ) == (1, True)
    code, _, err = call("why-slow", run.root)
    assert (code, "fewer than 20 steps were measured" in err) == (1, True)
    assert call("why-slow --attempt 2", run.root).code == 2


@pytest.mark.parametrize("waits_s", [6.0, 0.0])
def test_where_the_time_goes_is_printed_with_its_share(tmp_path: Path, call: Call, waits_s: float) -> None:
    run = ended(tmp_path)
    for rank in (0, 1):
        rows = [
            {"kind": "step", "step": 10 * at, "steps": 10, "step_time_s": 10.0, "data_wait_s": waits_s, "rank": rank}
            for at in range(1, 9)
        ]  # fmt: skip
        write(run, f"measured{rank}.jsonl", {"kind": "loader", "id": 1, "workers": 0, "rank": rank}, *rows)
    code, said, _ = call("why-slow", run.root)
    assert code == 0
    head, told = said.splitlines()
    assert head == f"{run.run_id} (attempt 1): 80 steps of 1 s on 2 ranks"
    data = "   60 %  waiting for data on all ranks: num_workers is 0"
    assert told == (data if waits_s else "  nothing found that costs 5 % of the time or more")
    findings = json.loads(call("why-slow --json", run.root).out)["findings"]
    assert [one["cause"] for one in findings] == (["data"] if waits_s else [])

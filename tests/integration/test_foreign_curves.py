"""Scripts that print as frameworks do run unchanged, and their curves are what they computed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS, RANKS, Sample, SeriesReader
from supervisor.run.state import RunState
from tests.integration.harness import SCRIPTS, run_headless

STEPS = 40


@dataclass(frozen=True, slots=True)
class Told:
    """What a script computed, and what stoker recorded of it."""

    steps: dict[int, dict[str, float]]
    run: RunPaths
    state: RunState

    def samples(self, stream: str = METRICS) -> list[Sample]:
        return SeriesReader(self.run.node().series, stream).read()

    def curve(self, name: str) -> dict[int, float]:
        """Step to value; two points of one step agree."""
        found: dict[int, float] = {}
        for sample in self.samples():
            value, step = sample.v.get(name), sample.v.get("step")
            if value is not None:
                assert step is not None, sample
                assert found.setdefault(int(step), value) == value
        return found

    def steps_seen(self) -> list[int]:
        return [int(step) for sample in self.samples() if (step := sample.v.get("step")) is not None]


def run_script(name: str, cwd: Path) -> Told:
    script = str(SCRIPTS / f"{name}.py")
    done, run, state = run_headless("--nproc-per-node", "2", script, "--tell", "told.jsonl", cwd=cwd)
    assert done.code == 0, done.err
    return Told(read_told(cwd), run, state)


def read_told(cwd: Path) -> dict[int, dict[str, float]]:
    told = [json.loads(line) for line in (cwd / "told.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(told) == STEPS
    return {one["step"]: one for one in told}


def mean_losses(told: Told) -> dict[int, float]:
    """What transformers.Trainer logs every five steps. Its last line's train_loss is no point of the curve."""
    return {
        last: round(sum(told.steps[n]["loss"] for n in range(last - 4, last + 1)) / 5, 4)
        for last in range(5, STEPS + 1, 5)
    }


@pytest.mark.e2e
def test_numbers_in_dicts_beside_a_bar_as_hugging_face_prints_them(tmp_path: Path) -> None:
    told = run_script("hf_trainer", tmp_path)
    loss = told.curve("loss")
    assert loss == mean_losses(told)
    assert {n: v for n, v in told.curve("lr").items() if n} == {n: told.steps[n]["lr"] for n in loss}
    assert told.curve("grad_norm") == {n: told.steps[n]["grad_norm"] for n in loss}
    assert told.steps_seen() == sorted(told.steps_seen())
    assert told.state.attempt is not None
    assert (told.state.attempt.last_step, told.state.total_steps) == (STEPS, STEPS)

    assert told.curve("val_loss") == {n: told.steps[n]["loss"] + 1.0 for n in (20, 40)}


@pytest.mark.e2e
def test_a_print_a_step_on_every_rank(tmp_path: Path) -> None:
    told = run_script("plain_print", tmp_path)
    assert told.curve("loss") == {n: round(one["loss"], 4) for n, one in told.steps.items()}
    assert told.curve("lr") == {n: float(f"{one['lr']:.2e}") for n, one in told.steps.items()}
    for rank in ("0", "1"):
        # Between them, what the processes measured.
        steps = [
            sample.v["step"] for sample in told.samples(RANKS) if sample.k == rank and "step" in sample.v
        ]
        assert steps == list(range(1, STEPS + 1))
    assert told.state.attempt is not None
    assert (told.state.attempt.last_step, told.state.total_steps) == (STEPS, None)

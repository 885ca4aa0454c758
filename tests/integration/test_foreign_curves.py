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
    told = [json.loads(line) for line in (cwd / "told.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(told) == STEPS
    return Told({one["step"]: one for one in told}, run, state)


def test_numbers_in_dicts_beside_a_bar_as_hugging_face_prints_them(tmp_path: Path) -> None:
    told = run_script("hf_trainer", tmp_path)
    loss = told.curve("loss")
    # The summary's train_loss is a mean over the run, not a point of the curve.
    assert loss == {
        last: round(sum(told.steps[n]["loss"] for n in range(last - 4, last + 1)) / 5, 4)
        for last in range(5, STEPS + 1, 5)
    }
    assert {n: v for n, v in told.curve("lr").items() if n} == {n: told.steps[n]["lr"] for n in loss}
    assert told.curve("grad_norm") == {n: told.steps[n]["grad_norm"] for n in loss}
    assert told.steps_seen() == sorted(told.steps_seen())
    assert told.state.attempt is not None
    assert (told.state.attempt.last_step, told.state.total_steps) == (STEPS, STEPS)


def test_a_print_a_step_on_every_rank(tmp_path: Path) -> None:
    told = run_script("plain_print", tmp_path)
    assert told.curve("loss") == {n: round(one["loss"], 4) for n, one in told.steps.items()}
    assert told.curve("lr") == {n: float(f"{one['lr']:.2e}") for n, one in told.steps.items()}
    for rank in ("0", "1"):
        steps = [sample.v["step"] for sample in told.samples(RANKS) if sample.k == rank]
        assert steps == list(range(1, STEPS + 1))
    assert told.state.attempt is not None
    assert (told.state.attempt.last_step, told.state.total_steps) == (STEPS, None)


@pytest.mark.e2e
def test_a_bar_an_epoch_as_lightning_draws_it(tmp_path: Path) -> None:
    told = run_script("lightning", tmp_path)
    loss = told.curve("loss")
    # Steps go on over epochs. A bar's state that was overdrawn before it was read is lost, never wrong.
    assert loss == {n: round(told.steps[n]["loss"], 3) for n in loss}
    assert told.curve("lr") == {n: float(f"{told.steps[n]['lr']:.3g}") for n in loss}
    assert len(loss) >= STEPS // 2
    assert told.steps_seen() == sorted(told.steps_seen())
    assert told.state.attempt is not None
    assert (told.state.attempt.last_step, told.state.total_steps) == (STEPS, STEPS)


@pytest.mark.e2e
def test_a_tqdm_bar_with_a_postfix(tmp_path: Path) -> None:
    told = run_script("tqdm_postfix", tmp_path)
    loss = told.curve("loss")
    assert loss == {n: round(told.steps[n]["loss"], 3) for n in loss}
    assert told.curve("lr") == {n: float(f"{told.steps[n]['lr']:.3g}") for n in loss}
    assert max(loss) == STEPS
    assert told.steps_seen() == sorted(told.steps_seen())
    assert told.state.attempt is not None
    assert (told.state.attempt.last_step, told.state.total_steps) == (STEPS, STEPS)

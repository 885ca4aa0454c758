"""What a trial saw, and the command of the real run, as lines under its story."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.job.spec import TrialKnob, TrialSettings
from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.series import GPU, HOST, METRICS, SeriesWriter
from supervisor.views.headless.story import step_time_s, trial_lines
from supervisor.views.wording.translate import english
from tests.keeper.fakes import job_of, own_run_in

T = 1_795_000_000.0
GIB = float(1 << 30)
KNOBS = (TrialKnob("--max-steps", "20", "900"), TrialKnob("--wandb", ""))
LAUNCH: tuple[ev.Event, ...] = (
    ev.RunStarted(t=T, run_id="r", name="gpt", mode="launched", host="box"),
    ev.LaunchIntended(t=T, attempt=1, argv=(), reason="first launch"),
    ev.AttemptStarted(t=T, attempt=1, pid=77, start_time=1.0),
)
STEPS: tuple[ev.Event, ...] = (
    ev.Progress(t=T + 1, attempt=1, step=1, loss=4.0),
    ev.Progress(t=T + 9, attempt=1, step=5, loss=3.0),
)
SAVED = ev.CheckpointCommitted(t=T + 9, attempt=1, step=5, path="c/5")


def trial(tmp_path: Path, *facts: ev.Event, knobs: tuple[TrialKnob, ...] = ()) -> RunPaths:
    return own_run_in(tmp_path, job_of(tmp_path, trial=TrialSettings(knobs=knobs)), *facts)


def said(run: RunPaths) -> list[str]:
    return trial_lines(read_state(run.node().journal), run, english)


def sampled(
    run: RunPaths, stream: str, *samples: tuple[float, str, dict[str, float]], attempt: int = 1
) -> None:
    writer = SeriesWriter(run.node().series)
    for t, key, values in samples:
        writer.append(stream, T + t, key, attempt, values)
    writer.close()


def test_a_trial_in_all_its_lines(tmp_path: Path) -> None:
    run = trial(tmp_path, *LAUNCH, *STEPS, SAVED, knobs=KNOBS)
    sampled(run, METRICS, *((2.0 * n, "job", {"step": float(n)}) for n in range(1, 6)))
    sampled(run, GPU, (1, "0", {"memory_used_bytes": 6 * GIB, "memory_total_bytes": 8 * GIB}))
    sampled(run, HOST, (1, "0", {"rss_bytes": GIB}), (1, "1", {"rss_bytes": 2 * GIB}), (1, "host", {"rss_bytes": 9 * GIB}))  # fmt: skip
    assert said(run) == [
        "set       --max-steps is 20, in the real run 900",
        "set       --wandb is empty, in the real run as the script has it",
        "steps     5 seen: 1 to 5",
        "step time 2.00 s, without the first step",
        "loss      4.0000 → 3.0000",
        "memory    GPU 0: 6.0/8 GiB at most, 75 %",
        "memory    host: 2.0G at most of a rank",
        "saved     a checkpoint at step 5: c/5",
    ]


@pytest.mark.parametrize(
    ("gpus", "shown"),
    [
        # Whose the memory is, is known: that of the trial's own processes.
        ({"0": (7, 7, 3), "1": (7, 7, 0)}, ["GPU 0: 3.0/8 GiB at most, 38 %"]),
        # It is not: of several GPUs those where it grew.
        ({"0": (1, 5, None), "1": (4, 4, None)}, ["GPU 0: 5.0/8 GiB at most, 62 %"]),
        ({"0": (1, 1.2, None), "1": (4, 4.25, None)}, []),
        # And of the only one all that is held.
        ({"0": (4, 4, None)}, ["GPU 0: 4.0/8 GiB at most, 50 %"]),
    ],
)
def test_memory_is_that_of_the_gpus_that_it_used(
    tmp_path: Path, gpus: dict[str, tuple[float, float, float | None]], shown: list[str]
) -> None:
    run = trial(tmp_path, *LAUNCH, *STEPS)
    for key, (first, last, own) in gpus.items():
        for t, used in ((1, first), (2, last)):
            values = {"memory_used_bytes": used * GIB, "memory_total_bytes": 8 * GIB}
            sampled(run, GPU, (t, key, values | ({} if own is None else {"own_memory_bytes": own * GIB})))
    assert [line.removeprefix("memory    ") for line in said(run) if line.startswith("memory")] == shown


def test_only_a_trial_that_launched_something_is_reported(tmp_path: Path) -> None:
    assert said(trial(tmp_path / "a", LAUNCH[0])) == []
    assert said(own_run_in(tmp_path / "b", job_of(tmp_path), *LAUNCH, *STEPS)) == []
    bare = trial(tmp_path / "c", *LAUNCH, *STEPS)
    bare.run_json.unlink()
    assert said(bare) == []


@pytest.mark.parametrize(
    ("times", "step_s"),
    [
        ({1: 0.0, 2: 100.0}, None),
        ({1: 0.0, 2: 100.0, 3: 102.0}, 2.0),
        ({1: 0.0, 11: 100.0, 21: 102.0}, 0.2),
        ({1: 0.0, 2: 5.0, 3: 4.0}, 0.0),
    ],
)
def test_the_time_of_a_step_leaves_out_the_first(
    tmp_path: Path, times: dict[int, float], step_s: float | None
) -> None:
    run = trial(tmp_path, *LAUNCH)
    sampled(run, METRICS, *((t, "job", {"step": float(step)}) for step, t in times.items()))
    sampled(run, METRICS, *((t * 9, "job", {"step": 50.0 + step}) for step, t in times.items()), attempt=2)
    assert step_time_s(run, 1) == step_s


def test_the_real_run_is_named_once_the_trial_came_to_a_good_end(tmp_path: Path) -> None:
    def ended(folder: str, outcome: ev.Outcome) -> list[str]:
        done = ev.RunEnded(t=T + 20, outcome=outcome, exit_code=0, reason="done")
        job = job_of(
            tmp_path,
            "python",
            "train.py",
            "--max-steps",
            "20",
            trial=TrialSettings(args=("train.py", "--max-steps", "900")),
        )
        (tmp_path / folder).mkdir(exist_ok=True)
        return said(own_run_in(tmp_path / folder, job, *LAUNCH, *STEPS, done))

    real = ended("a", ev.Outcome.SUCCEEDED)[-1]
    assert real.startswith("real run  stoker run ")
    assert real.endswith("python train.py --max-steps 900")
    assert not any(line.startswith("real run") for line in ended("b", ev.Outcome.FAILED))

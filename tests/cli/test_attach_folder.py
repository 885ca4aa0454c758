"""Which folders of logs are one job, and which hold several: those are refused with how to attach to one."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.attach_targets import resolve
from supervisor.cli.job_logs import BadInputError
from supervisor.cli.main import main
from supervisor.run.paths import RunPaths

STEPS = "".join(f"step {n}/100 loss {4.0 / n:.4f}\n" for n in range(1, 11))
FAILURE = 'Traceback (most recent call last):\n  File "train.py", line 41, in <module>\nKeyError: 1\n'


def stamped(clock: str) -> str:
    return "".join(f"2026-11-20 {clock}:{n:02} step {n}/100 loss {4.0 / n:.4f}\n" for n in range(1, 11))


def refusal(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    try:
        resolve(str(folder), RunPaths(folder / "observed"))
    except BadInputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "files",
    [
        {"bert_squad.log": STEPS, "resnet-imagenet.out": STEPS},
        {"bert_squad.log": FAILURE, "resnet-imagenet.out": STEPS, "notes.txt": "buy milk\n"},
        {"llama_lora_25021935.out": STEPS, "llama_lora_25022146.out": FAILURE},
        {"slurm-4711.out": stamped("10:00"), "slurm-4712.out": stamped("10:00")},
        {"exp1/train.log": STEPS, "exp2/train.log": STEPS},
        {"gpu-a07.log": stamped("10:00"), "gpu-a08.log": stamped("14:00")},
        {"a/rank_0.log": STEPS, "a/rank_1.log": STEPS, "b/rank_0.log": STEPS, "b/rank_1.log": STEPS},
    ],
    ids=lambda files: next(iter(files)),
)
def test_logs_of_several_jobs(files: dict[str, str], tmp_path: Path) -> None:
    assert "logs of several jobs" in refusal(tmp_path, files)


@pytest.mark.parametrize(
    "files",
    [
        {"train.log": STEPS},
        {"train.log": STEPS, "eval.log": STEPS, "console.log": STEPS, "train.log.1": STEPS},
        {"bert.out": STEPS, "bert.err": FAILURE, "nohup.out": STEPS},
        {"train.log": STEPS, "packages.txt": "torch==2.6\nnumpy\n", "profile.txt": "aten::mm\n"},
        {"rank_0.log": STEPS, "rank_1.log": FAILURE, "slurm-4711.out": STEPS},
        {"alpha_rank0.log": STEPS, "beta_rank1.log": STEPS},
        {"node0.log": STEPS, "node1.log": STEPS},
        {"worker1.log": STEPS, "worker2.log": STEPS},
        {"4711_0.out": STEPS, "4711_1.out": FAILURE},
        {"gpu-a07.log": stamped("10:00"), "gpu-a08.log": stamped("10:02")},
        {
            f"{run}/attempt_0/{rank}/{stream}.log": STEPS
            for run in ("none_ab12cd34", "none_xy98")
            for rank in (0, 1)
            for stream in ("stdout", "stderr")
        },
    ],
    ids=lambda files: next(iter(files)),
)
def test_logs_of_one_job(files: dict[str, str], tmp_path: Path) -> None:
    assert refusal(tmp_path, files) == ""


def test_a_folder_of_several_jobs_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "my logs"
    folder.mkdir()
    for name in ("bert", "gpt", "llama", "resnet"):
        (folder / f"{name}.log").write_text(STEPS, encoding="utf-8")
    monkeypatch.chdir(folder)
    assert main(["attach", "--no-ui", "."]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "stoker attach: .: logs of several jobs (bert.log, gpt.log, llama.log and 1 more): "
    )
    assert line.split()[-3:-1] == ["stoker", "attach"]
    assert main(["attach", "--no-ui", str(folder)]) == 2
    assert f"stoker attach '{folder}/" in capsys.readouterr().err, "quoted for the shell"

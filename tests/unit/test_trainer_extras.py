"""Precision, averages, checkpoints kept, data formats, reading ahead, sharing out: what the loop offers besides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from supervisor.job.config_files import parse_config
from tests.unit.trainer_runs import MAIN, TINY, flags, losses, records, run, train_here
from trainer import checkpoint, checkpoint_cli, text
from trainer.compute import peak_of, wants_compile
from trainer.config import Config, UsageError
from trainer.dist import Device
from trainer.elementwise import rms_norm, squared_relu
from trainer.errors import DataError
from trainer.loading import worker_count
from trainer.model import GPT, Shape, flops_per_token, rotary_table, rotate
from trainer.optim import lr_at, peak_lr
from trainer.place import detect, slurm_master
from trainer.settings import read

SHAPE = Shape(depth=2, width=32, head_width=16, vocab_size=64, max_seq_len=16, tied=False)


# The model


def test_no_position_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model = GPT(SHAPE)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(0, 64, (1, 16))
    changed = tokens.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % 64
    with torch.no_grad():
        first, second = model(tokens), model(changed)
    assert torch.allclose(first[0, :9], second[0, :9], atol=1e-5)
    assert not torch.allclose(first[0, 9:], second[0, 9:], atol=1e-3)


def test_rotation_tells_distances_only() -> None:
    cos, sin = rotary_table(32, 16)
    q, k = torch.randn(16), torch.randn(16)
    scores = [rotate(q, cos[i], sin[i]) @ rotate(k, cos[i - 5], sin[i - 5]) for i in (5, 11, 31)]
    assert torch.allclose(torch.stack(scores), scores[0].expand(3), atol=1e-4)


def test_parts_with_a_gradient_of_their_own_agree_with_torch() -> None:
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rms_norm, (x,))
    assert torch.autograd.gradcheck(squared_relu, (x,))
    x, y = (torch.linspace(-3, 4, 96).view(4, 24).requires_grad_() for _ in range(2))
    pairs: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        (rms_norm, lambda part: torch.nn.functional.rms_norm(part, (24,))),
        (squared_relu, lambda part: torch.relu(part).square()),
    ]
    for ours, theirs in pairs:
        assert torch.allclose(ours(x), theirs(y), rtol=1e-6, atol=1e-7)
        weight = torch.arange(96.0).view(4, 24).cos()
        (mine,) = torch.autograd.grad((ours(x) * weight).sum(), x)
        (known,) = torch.autograd.grad((theirs(y) * weight).sum(), y)
        assert torch.allclose(mine, known, rtol=1e-5, atol=1e-6)


def test_tied_embeddings_and_the_count_of_operations() -> None:
    tied = GPT(Shape(2, 32, 16, 64, 16, tied=True))
    free = GPT(SHAPE)
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, free)]
    assert count[1] - count[0] == 64 * 32
    # The embedding is a look-up: 6 operations for each of the other weights, and the attention's share.
    assert flops_per_token(SHAPE, count[1], 16) == 6 * (count[1] - 64 * 32) + 12 * 2 * 32 * 16


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_the_learning_rate_warms_up_and_comes_down(schedule: str) -> None:
    config = Config(lr_schedule=schedule, warmup_steps=10, num_iterations=100, learning_rate=1.0)
    rates = [lr_at(config, 1.0, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert max(rates) == 1.0
    assert rates == pytest.approx(sorted(rates[:10]) + sorted(rates[10:], reverse=True))
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1, abs=0.05)
    assert rates[50] == (1.0 if schedule != "cosine" else pytest.approx(0.6, abs=0.1))


def test_rates_scale_with_the_ranks_only_when_asked() -> None:
    scaled = [peak_lr(Config(learning_rate=0.1, lr_scaling=how), 4) for how in ("none", "linear", "sqrt")]
    assert scaled == pytest.approx([0.1, 0.4, 0.2])


# Numbers


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"mixed_precision": True}, {"dtype": "float16"}])
def test_half_precision_learns_alike(settings: dict[str, Any], tmp_path: Path) -> None:
    train_here(tmp_path / "full", num_iterations=10)
    train_here(tmp_path / "half", num_iterations=10, **settings)
    full, half = losses(tmp_path / "full"), losses(tmp_path / "half")
    assert half != full
    assert all(abs(half[k] - full[k]) < 0.05 for k in full)


def test_recomputed_blocks_change_no_loss(tmp_path: Path) -> None:
    train_here(tmp_path / "a")
    train_here(tmp_path / "b", gradient_checkpointing=True)
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "b"), abs=1e-6)


def test_compile_is_off_on_a_cpu_and_says_why() -> None:
    cpu = Device(torch.device("cpu"), "gloo", shared=False, reason="no GPU is visible")
    assert wants_compile(Config(), cpu, {}) == (False, "no gain on a CPU at this size")
    assert wants_compile(Config(compile="on"), cpu, {})[0]
    assert wants_compile(Config(compile="on"), cpu, {"TORCH_COMPILE": "0"}) == (False, "TORCH_COMPILE=0")
    shared = Device(torch.device("cuda", 0), "gloo", shared=True, reason="2 ranks share 1 GPU(s)")
    assert wants_compile(Config(), shared, {}) == (False, "2 ranks share 1 GPU(s)")


def test_a_gpus_peak_is_found_by_whole_words() -> None:
    names = (
        "NVIDIA H200",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        "NVIDIA A100-SXM4-80GB",
        "Tesla V100-SXM2-16GB",
    )
    assert [peak_of(name) for name in names] == [989e12, 989e12, 756e12, 312e12, 125e12]
    for unknown in (
        "NVIDIA RTX A1000",
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H20",
        "",
    ):
        assert peak_of(unknown) is None, unknown


# Checkpoints


def test_averaged_weights_are_kept_resumed_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"ema_decay": 0.9, "num_iterations": 6}
    train_here(tmp_path / "whole", None, **settings)
    train_here(tmp_path / "broken", None, **{**settings, "save_every": 3})
    for name in ("whole", "broken"):
        assert checkpoint.newest(tmp_path / name / "ck")[0] is not None
    middle = tmp_path / "broken" / "ck" / "step_00000003"
    train_here(tmp_path / "rest", None, **settings, resume_from=str(middle))
    states = [checkpoint.load(tmp_path / n / "ck" / "step_00000006").state for n in ("whole", "rest")]
    for name, average in states[0]["ema"].items():
        assert torch.allclose(average, states[1]["ema"][name], atol=1e-6)
        assert not torch.equal(average, states[0]["model"][name])
    out = tmp_path / "out"
    assert checkpoint_cli.main(["export", str(tmp_path / "whole" / "ck"), str(out), "--ema"]) == 0
    safetensors = pytest.importorskip("safetensors.torch")
    exported = safetensors.load_file(out / "model.safetensors")
    assert torch.equal(exported["embed.weight"], states[0]["ema"]["embed.weight"])
    assert json.loads((out / "config.json").read_text())["depth"] == 1
    assert "averaged" in capsys.readouterr().out


def test_only_the_newest_and_the_best_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import loop

    values = iter([3.0, 1.0, 2.0, 2.5, 2.6])
    real = loop.evaluate

    def scripted(run_: loop.Run) -> float:
        real(run_)
        run_.state.val_losses[run_.state.step] = next(values)
        return 0.0

    monkeypatch.setattr(loop, "evaluate", scripted)
    train_here(tmp_path, num_iterations=5, save_every=1, eval_every=1, keep_checkpoints=1, keep_best=True)
    assert [path.name for path in checkpoint.committed(tmp_path / "ck")] == ["step_00000005", "step_00000002"]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(tmp_path, save_every=2, num_iterations=4, fault="corrupt_checkpoint@4")
    assert train_here(tmp_path, resume_from="auto") == 0
    assert "step 2, 16 samples seen" in capsys.readouterr().out


def test_the_checkpoint_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(tmp_path, num_iterations=1)
    capsys.readouterr()
    path = tmp_path / "ck" / "step_00000001"
    assert checkpoint_cli.main(["verify", str(tmp_path / "ck")]) == 0
    assert f"{path}: whole, step 1" in capsys.readouterr().out
    assert checkpoint_cli.main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "samples_seen: 8" in shown
    assert "model/embed.weight  [256, 32]  float32" in shown
    assert checkpoint_cli.main(["export", str(path), str(tmp_path / "x"), "--ema"]) == 1
    assert "no averaged weights" in capsys.readouterr().err
    (path / checkpoint.STATE).write_bytes(b"x")
    assert checkpoint_cli.main(["verify", str(path)]) == 1
    assert checkpoint_cli.main(["verify", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.count("\n") == 2


# Data


def test_json_lines_are_trained_on_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {k} of many"}) + "\n" for k in range(400)))
    assert train_here(tmp_path, train_data_path=str(path), num_iterations=2) == 0
    path.write_text('{"text": "good"}\n\n{"text": 3}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl:3: wants an object"):
        train_here(tmp_path, train_data_path=str(path))
    path.write_text('{"text": "good"}\n{"text": "cut\n')
    with pytest.raises(UsageError, match=r"a\.jsonl:2: no JSON"):
        train_here(tmp_path, train_data_path=str(path))


def test_prepared_data_is_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(40):
        (source / f"{number:02}.txt").write_text(f"Text number {number}. " * 20)
    assert text.main(["prepare", str(source), "--out", str(tmp_path / "out")]) == 0
    assert "vocabulary 256" in capsys.readouterr().out
    data = {
        "train_data_path": str(tmp_path / "out" / "train.bin"),
        "valid_data_path": str(tmp_path / "out" / "val.bin"),
    }
    assert train_here(tmp_path, None, **data, num_iterations=2, eval_every=2) == 0
    path = tmp_path / "ck" / "step_00000002"
    assert checkpoint.load(path).meta["shape"]["vocab_size"] == 256
    assert text.main(["prepare", str(tmp_path / "nothing"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_unusable_data_is_skipped_if_asked_for_and_not_for_ever(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 60, 32 * 400, dtype=np.uint16)
    tokens[32 * 40] = 999
    path = tmp_path / "t.bin"
    tokens.tofile(path)
    data: dict[str, Any] = {"train_data_path": str(path), "vocab_size": 64, "num_iterations": 45}
    with pytest.raises(DataError, match="token 999 is outside the vocabulary of 64"):
        train_here(tmp_path, None, **data)
    assert train_here(tmp_path / "on", None, **data, continue_on_error=True) == 0
    assert 43 <= len(losses(tmp_path / "on")) <= 44
    tokens[::32] = 999
    tokens.tofile(path)
    with pytest.raises(DataError):
        train_here(tmp_path / "all", None, **data, continue_on_error=True)


def test_workers_read_ahead_and_change_nothing_and_their_death_is_told(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint16)
    tokens.tofile(tmp_path / "t.bin")
    settings = flags(
        train_data_path="t.bin", vocab_size=256, telemetry_dir="tel", checkpoint_dir="ck", num_workers=1
    )
    done = run(1, *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    train_here(tmp_path / "here", train_data_path=str(tmp_path / "t.bin"), vocab_size=256)
    assert losses(tmp_path) == pytest.approx(losses(tmp_path / "here"), abs=1e-6)
    killed = run(1, *settings, "--num_iterations=2000", "--fault=worker_killed@1", cwd=tmp_path)
    assert killed.returncode == 1
    assert "DataLoader worker" in killed.stderr
    assert "is killed by signal" in killed.stderr


def test_the_number_of_workers_follows_from_cores_and_ranks() -> None:
    assert [worker_count(-1, cores, ranks) for cores, ranks in ((2, 2), (16, 4), (64, 8), (1, 1))] == [
        0,
        3,
        4,
        0,
    ]
    assert worker_count(7, 2, 2) == 7


# Start-up


@pytest.mark.parametrize(
    ("env", "expected", "says"),
    [
        ({}, (0, 0, 1), "single process"),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"},
            (3, 1, 4),
            "torchrun",
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 0, 2), "RANK and WORLD_SIZE"),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"},
            (5, 1, 8),
            "SLURM",
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (0, 0, 1), "single process"),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
            (1, 1, 2),
            "RANK",
        ),
    ],
)
def test_the_launcher_is_found_and_named(
    env: dict[str, str], expected: tuple[int, int, int], says: str
) -> None:
    place = detect(env, Config())
    assert (place.rank, place.local_rank, place.world_size) == expected
    assert says in place.reason


def test_what_a_launcher_left_half_done_is_refused() -> None:
    with pytest.raises(UsageError, match="only one is set"):
        detect({"RANK": "1"}, Config())
    with pytest.raises(UsageError, match="is no number"):
        detect({"RANK": "x", "WORLD_SIZE": "2"}, Config())
    with pytest.raises(UsageError, match="--single_gpu"):
        detect({"RANK": "0", "WORLD_SIZE": "2"}, Config(single_gpu=True))
    assert detect({"RANK": "1", "WORLD_SIZE": "2"}, Config(local_rank=1)).local_rank == 1


def test_slurm_tasks_meet_at_the_first_node() -> None:
    env = {"SLURM_JOB_NODELIST": "gpu[007-009,012]", "SLURM_JOB_ID": "123456"}
    assert slurm_master(env) == ("gpu007", "23456")
    assert slurm_master({"SLURM_JOB_NODELIST": "a1,a2"})[0] == "a1"


def test_its_own_spawn(tmp_path: Path) -> None:
    args = flags(telemetry_dir="tel", checkpoint_dir="ck", distributed=True, world_size=2)
    done = run(1, *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stdout
    assert records(tmp_path, rank=1)[-1]["reason"] == "done"
    failed = run(1, *args, "--fault=exit:7@2:1", cwd=tmp_path)
    assert failed.returncode in {1, 7}  # rank 0 may notice before its parent does


def test_debug_names_what_gets_no_gradient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_here(tmp_path, debug=True, fault="unused_parameter@0", num_iterations=1) == 0
    assert "no gradient for: spare" in capsys.readouterr().err


def test_a_trace_is_written_and_its_place_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(tmp_path, profile=str(tmp_path / "trace"), debug=True)
    told = capsys.readouterr().out
    assert f"trace: {tmp_path / 'trace' / 'rank0.json'}" in told
    assert "debug: every parameter gets a gradient" in told
    assert "traceEvents" in json.loads((tmp_path / "trace" / "rank0.json").read_text())


# Presets


@pytest.mark.parametrize("path", sorted((MAIN.parents[1] / "configs").glob("*/*.*")), ids=lambda p: p.name)
def test_presets_load_as_stoker_hands_them_on_and_run_shortened(path: Path, tmp_path: Path) -> None:
    values = parse_config(path.name, path.read_bytes())
    given = [f"--{key}={value}" for key, value in values.items() if not isinstance(value, dict)]
    config = read(given).config
    assert config != Config()
    short = {
        name: value
        for name, value in values.items()
        if not isinstance(value, dict) and name in Config.__dataclass_fields__
    }
    sizes = {"num_iterations": 2, "eval_every": 1, "save_every": 1, "num_workers": 0, "seq_len_schedule": ""}
    short.pop("memory_cap_mib", None)
    assert train_here(tmp_path, None, **{**short, **TINY, **sizes}) == 0

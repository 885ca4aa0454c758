"""Settings: names, precedence, and one clear line for whatever cannot be."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Config, UsageError, plan_batch, plan_lengths, shown
from trainer.settings import help_text, read

ROOT = Path(__file__).parents[2]


def test_flags_in_every_spelling() -> None:
    config = read(["--device_batch_size=12", "--total-batch-size", "49152", "--max_seq_len", "2048"]).config
    assert (config.device_batch_size, config.total_batch_size, config.max_seq_len) == (12, 49152, 2048)
    assert read(["--debug", "--log_interval", "5"]).config.debug
    assert not read(["--debug=false"]).config.debug
    assert not read(["--tf32", "no"]).config.tf32
    assert read(["--batch_size", "2"]).config.device_batch_size == 2


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("depth = 7\nseed = 5\nnproc_per_node = 2\n[env]\nOMP_NUM_THREADS = '1'\n")
    effective = read(["--config", str(file), "--seed", "6"])
    assert (effective.config.depth, effective.config.seed, effective.config.log_interval) == (7, 6, 10)
    assert effective.origins == {"depth": str(file), "seed": "flag"}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--dept", "3"], "did you mean --depth?"),
        (["--device-batch-sise=3"], "did you mean --device_batch_size?"),
        (["--qqqqqqqq"], "see --help"),
        (["--depth"], "wants a value"),
        (["--depth", "three"], "whole number"),
        (["--learning_rate=nan"], "a number"),
        (["--dtype", "int8"], "auto, float32, bfloat16, float16"),
        (["--debug=perhaps"], "true or false"),
        (["train.py"], "unexpected argument 'train.py'"),
        (["--depth=0"], "at least 1"),
        (["--config", "/nowhere/a.toml"], "No such file"),
        (["--config", "a.py"], "stoker run --config"),
        (["--seq_len_schedule=0:64,50:128"], "max_seq_len"),
        (["--seq_len_schedule=5:256"], "starts at step 0"),
        (["--seq_len_schedule=64-256"], "step:length"),
        (["--model_dim=100", "--head_dim=64"], "does not divide into heads"),
        (["--memory_cap_mib=lots"], "wants numbers"),
    ],
)
def test_what_cannot_be_is_one_line(
    argv: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("depth = 3\n")
    with pytest.raises(UsageError) as error:
        read(argv)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_seeds_own_numbers_do_not_divide_and_the_refusal_names_those_that_do() -> None:
    config = Config(device_batch_size=16, total_batch_size=49152, max_seq_len=2048)
    with pytest.raises(UsageError, match=r"device_batch_size that works: 12, 6, 4$"):
        plan_batch(config, 2)
    with pytest.raises(UsageError, match=r"total_batch_size that works: 49152, 73728$"):
        plan_batch(Config(device_batch_size=12, total_batch_size=50000, max_seq_len=1024), 2)


@given(
    micro=st.integers(1, 64), steps=st.integers(1, 16), world=st.integers(1, 64), length=st.integers(1, 4096)
)
def test_a_batch_that_divides_is_cut_exactly(micro: int, steps: int, world: int, length: int) -> None:
    total = micro * steps * world * length
    batch = plan_batch(Config(device_batch_size=micro, total_batch_size=total, max_seq_len=length), world)
    assert (batch.micro, batch.accumulation, batch.samples) == (micro, steps, total // length)


def test_lengths_follow_the_schedule() -> None:
    lengths = plan_lengths(Config(seq_len_schedule="0:64, 10:128,20:256"))
    assert [lengths.at(step) for step in (0, 9, 10, 19, 20, 999)] == [64, 64, 128, 128, 256, 256]
    assert plan_lengths(Config()).at(0) == 256


def test_help_and_the_readme_explain_every_key_alike() -> None:
    readme, told = (ROOT / "configs" / "README.md").read_text(), help_text()
    for key in fields(Config):
        meaning, choices = key.metadata["help"], key.metadata["choices"]
        assert f"  --{key.name} " in told
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{key.name}` |"))
        assert f"| {shown(key.default)} | {meaning} |" in row
        assert ", ".join(choices) in row
        assert (key.metadata["section"] or "|") in readme


def test_all_that_is_out_of_range_is_said_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("# a comment\ndepth = -1\nbatch_size = 0\n\nbeta1 = 1.0\n")
    with pytest.raises(UsageError) as error:
        read(["--config", str(path), "--gradient_clip_val=-1", "--gradient_accumulation_steps=-3"])
    assert str(error.value).split("\n") == [
        f"{path}:2: depth must be at least 1, got -1",
        f"{path}:3: device_batch_size (batch_size) must be at least 1, got 0",
        "gradient_accumulation_steps must be at least 0, got -3",
        f"{path}:5: beta1 must be at least 0 and below 1, got 1",
        "gradient_clip_val must be at least 0, got -1",
    ]

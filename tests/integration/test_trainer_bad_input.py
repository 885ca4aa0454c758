"""Input that cannot be used: one clear line from rank 0, exit code 2, the other ranks quiet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.runs import flags, records, run, train_here

TOKENS = np.random.default_rng(0).integers(0, 200, 5000)
WORLD = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def header(magic: int, version: int, count: int) -> bytes:
    return np.array([magic, version, count, *[0] * 253], np.int32).tobytes()


CASES: dict[str, tuple[str, bytes, list[str], list[str]]] = {
    "a header that says another type": (
        "t.bin",
        header(20240520, 1, len(TOKENS)) + TOKENS.astype(np.uint16).tobytes(),
        ["--data_dtype=uint32"],
        ["t.bin", "uint16"],
    ),
    "32-bit tokens read as 16-bit ones": (
        "t.bin",
        (TOKENS + 66_000).astype(np.uint32).tobytes(),
        ["--vocab_size=256"],
        ["t.bin", "read as uint16", "data_dtype uint32"],
    ),
    "small 32-bit tokens read as 16-bit ones": (
        "t.bin",
        TOKENS.astype(np.uint32).tobytes(),
        [],
        ["t.bin", "every second token is 0", "data_dtype uint32"],
    ),
    "16-bit tokens read as 32-bit ones": (
        "t.bin",
        TOKENS.astype(np.uint16).tobytes(),
        ["--data_dtype=uint32"],
        ["t.bin", "read as uint32", "data_dtype uint16"],
    ),
    "an odd number of bytes": ("t.bin", b"abc", [], ["t.bin", "uint16"]),
    "an empty token file": ("t.bin", b"", [], ["t.bin", "empty"]),
    "fewer tokens than a sequence": (
        "t.bin",
        TOKENS[:20].astype(np.uint16).tobytes(),
        [],
        ["t.bin", "max_seq_len"],
    ),
    "a line that is no JSON": ("t.jsonl", b'{"text": "good"}\n{"text": "cut\n', [], ["t.jsonl:2"]),
    "a line without text": ("t.jsonl", b'{"text": "good"}\n\n{"text": 3}\n', [], ["t.jsonl:3"]),
    "text that is no UTF-8": ("t.jsonl", b'{"text": "good"}\n{"text": "\xff"}\n', [], ["t.jsonl:2"]),
    "a batch that does not divide": ("", b"", ["--device_batch_size=3"], ["does not divide", "works: 2, 1"]),
    "an unknown flag": ("", b"", ["--num_iteration=3"], ["did you mean --num_iterations?"]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rank", ["0", pytest.param("1", marks=pytest.mark.thorough)])
def test_bad_input_is_one_line_before_ranks_meet(case: str, rank: str, tmp_path: Path) -> None:
    name, data, args, says = CASES[case]
    given = flags(total_batch_size=128 * 32)
    if name:
        (tmp_path / name).write_bytes(data)
        given.append(f"--train_data_path={name}")
    # Nobody answers at port 1: a rank that wanted to meet the other would end with another error.
    done = run(1, *given, *args, "--init_timeout_s=5", cwd=tmp_path, RANK=rank, LOCAL_RANK=rank, **WORLD)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    if rank == "1":
        assert done.stderr == ""
    else:
        assert done.stderr.startswith("trainer: ")
        assert done.stderr.count("\n") == 1
        assert all(word in done.stderr for word in says), done.stderr


@pytest.mark.e2e
def test_another_models_checkpoint_is_refused_by_both_ranks_and_told_by_one(tmp_path: Path) -> None:
    train_here(tmp_path / "other", None, depth=2, num_iterations=1)
    theirs = tmp_path / "other" / "ck" / "step_00000001"
    args = flags(telemetry_dir="tel", checkpoint_dir="ck", resume_from=str(theirs))
    done = run(2, *args, cwd=tmp_path)
    assert done.returncode == 1  # torchrun's own: it has one code for all
    said = [line for line in done.stderr.splitlines() if line.startswith("trainer: ")]
    assert len(said) == 1
    assert said[0].startswith(f"trainer: checkpoint {theirs} is of another model: depth 2 (here 1)")
    assert "UsageError" not in done.stderr
    ends = [records(tmp_path, rank=rank)[-1] for rank in (0, 1)]
    assert [(end["kind"], end["exit_code"]) for end in ends] == [("exit", 2)] * 2

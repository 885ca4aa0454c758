"""Input that cannot be used: one clear line from rank 0, exit code 2, the other ranks quiet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiers import first
from tests.trainer.runs import flags, run

TOKENS = np.random.default_rng(0).integers(0, 200, 5000)
WORLD = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


CASES: dict[str, tuple[str, bytes, list[str], list[str]]] = {
    "32-bit tokens read as 16-bit ones": (
        "t.bin",
        (TOKENS + 66_000).astype(np.uint32).tobytes(),
        ["--vocab_size=256"],
        ["t.bin", "read as uint16", "data_dtype uint32"],
    ),
    "fewer tokens than a sequence": (
        "t.bin",
        TOKENS[:20].astype(np.uint16).tobytes(),
        [],
        ["t.bin", "max_seq_len"],
    ),
    "a line that is no JSON": ("t.jsonl", b'{"text": "good"}\n{"text": "cut\n', [], ["t.jsonl:2"]),
    "a batch that does not divide": ("", b"", ["--device_batch_size=3"], ["does not divide", "works: 2, 1"]),
    "an unknown flag": ("", b"", ["--num_iteration=3"], ["did you mean --num_iterations?"]),
}


@pytest.mark.parametrize("case", first(1, CASES))
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

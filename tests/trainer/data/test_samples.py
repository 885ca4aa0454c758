"""Data: its order depends on nothing but the sample number; a wrong file is told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import Config, DataError
from trainer.data.samples import SampleOrder, Samples, Stream, open_stream
from trainer.data.textfile import jsonl_bytes


def stream(count: int) -> Stream:
    return Stream("test", np.arange(count, dtype=np.uint16), 1 << 16)


@settings(deadline=None)
@given(count=st.integers(1, 300), seed=st.integers(0, 2**31), epoch=st.integers(0, 5))
def test_each_epoch_sees_every_sample_once(count: int, seed: int, epoch: int) -> None:
    order = SampleOrder(count, seed)
    seen = [order.index(epoch * count + place) for place in range(count)]
    assert sorted(seen) == list(range(count))


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    rows = [
        [SampleOrder(200, seed).index(k) for k in range(start, start + 200)]
        for seed, start in ((1, 0), (1, 200), (2, 0))
    ]
    assert rows[0] != rows[1] != rows[2] != rows[0]


@settings(deadline=None, max_examples=30)
@given(
    per_rank=st.sampled_from([1, 2, 3, 4, 6, 12]), world=st.sampled_from([1, 2, 4]), first=st.integers(0, 500)
)
def test_a_step_sees_the_same_samples_however_it_is_cut(per_rank: int, world: int, first: int) -> None:
    samples = Samples(stream(2000), 16, seed=7)
    whole = samples.batch(range(first, first + 48), 16)
    parts = []
    for turn in range(48 // (per_rank * world)):
        for rank in range(world):
            start = first + (turn * world + rank) * per_rank
            parts.append(samples.batch(range(start, start + per_rank), 16).numpy())
    assert np.array_equal(np.concatenate(parts), whole.numpy())


def test_a_short_sample_is_the_start_of_the_long_one() -> None:
    samples = Samples(stream(2000), 16, seed=7)
    assert np.array_equal(samples.batch(range(5), 4).numpy(), samples.batch(range(5), 16)[:, :5].numpy())


def test_bin_files_with_and_without_header(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    (tmp_path / "plain.bin").write_bytes(tokens.tobytes())
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    (tmp_path / "llmc.bin").write_bytes(header.tobytes() + tokens.tobytes())
    header[:2] = 20240801, 7
    (tmp_path / "wide.bin").write_bytes(header.tobytes() + tokens.astype(np.uint32).tobytes())
    for name in ("plain", "llmc", "wide"):
        opened = open_stream(Config(), str(tmp_path / f"{name}.bin"))
        assert np.array_equal(opened.tokens, tokens), name
        assert opened.vocab_size == 50304


def test_a_token_beyond_the_vocabulary_is_named_with_its_place() -> None:
    samples = Samples(Stream("t.bin", np.full(100, 300, np.uint16), 256), 8, 0)
    with pytest.raises(DataError, match=r"t\.bin: token 300 is outside the vocabulary of 256"):
        samples.batch(range(1), 8)


# JSON lines


def write_jsonl(path: Path, lines: int, width: int = 40) -> bytes:
    texts = [f"{k:06} ü " + "word " * (width // 5) for k in range(lines)]
    path.write_text("".join(json.dumps({"text": text, "n": k}) + "\n" for k, text in enumerate(texts)))
    return "\n".join(texts).encode()


def test_json_lines_are_read_as_one_text_and_too_large_ones_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_jsonl(tmp_path / "a.jsonl", 500)
    assert jsonl_bytes(str(tmp_path / "a.jsonl")).tobytes() == text
    monkeypatch.setattr("trainer.data.textfile.MOST_JSONL_BYTES", 1000)
    with pytest.raises(DataError, match=r"a\.jsonl: larger than .* trainer\.data prepare --out"):
        jsonl_bytes(str(tmp_path / "a.jsonl"))


# prepare and check

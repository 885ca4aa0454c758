"""Byte pairs: trained by `prepare` or given, kept in checkpoints, decoded by `sample`, counted in bytes."""

from __future__ import annotations

import builtins
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.runs import flags, records, run, train_here
from trainer.data.__main__ import main as data_main
from trainer.data.tokenizer import opened
from trainer.sample import main as sample_main

TEXT = "Es war einmal eine süße Maus. 一只猫坐在垫子上。 Once upon a time there was a cat.\n" * 40


def written(folder: Path, *words: str, text: str = TEXT) -> Path:
    """A folder that ``data prepare`` made of one text."""
    (folder / "a.txt").write_text(text, encoding="utf-8")
    out = folder / "tokens"
    assert data_main(["prepare", str(folder / "a.txt"), "--out", str(out), *words]) == 0
    return out


def tokens_of(path: Path, dtype: str = "uint16") -> list[int]:
    return np.fromfile(path, dtype, offset=1024).tolist()  # type: ignore[no-any-return]


def test_a_trained_tokenizer_gives_the_text_back_and_counts_its_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = written(tmp_path, "--tokenizer", "bpe", "--vocab_size", "300")
    assert "vocabulary 300" in capsys.readouterr().out
    pairs = opened(out / "tokenizer.json")
    both, counted = "", 0
    for name in ("train.bin", "val.bin"):
        tokens = tokens_of(out / name)
        text = pairs.text()
        both += "".join(map(text.after, tokens)) + text.rest()
        note = json.loads((out / f"{name}.json").read_text())
        assert note["vocab_size"] == 300
        counted += note["text_bytes"]
        assert note["text_bytes"] > 2 * len(tokens)
    assert both == TEXT + "\n"
    assert abs(counted - len(both.encode())) <= 4, "a character may be cut where validation begins"


def test_a_training_on_pairs_says_bits_per_byte_and_can_be_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = written(tmp_path, "--tokenizer", "bpe", "--vocab_size", "300")
    settings: dict[str, Any] = {
        "train_data_path": str(out / "train.bin"), "valid_data_path": str(out / "val.bin"), "sample_every": 20,
        "num_iterations": 40, "eval_every": 40, "max_seq_len": 16, "total_batch_size": 8 * 16, "learning_rate": 1e-2,
    }  # fmt: skip
    train_here(tmp_path, **settings)
    said = capsys.readouterr().out
    assert said.count("sample at step") == 2
    assert "bits/byte" in said
    note = json.loads((out / "train.bin.json").read_text())
    per_token = note["text_bytes"] / len(tokens_of(out / "train.bin"))
    step = records(tmp_path, kind="step")[0]
    assert step["bits_per_byte"] == pytest.approx(step["loss"] / math.log(2) / per_token, rel=1e-6)
    (evaluated,) = [r for r in records(tmp_path, kind="step") if "val_loss" in r]
    assert 0 < evaluated["val_bits_per_byte"] < evaluated["val_loss"] / math.log(2)
    assert (tmp_path / "ck" / "step_00000040" / "tokenizer.json").exists()
    assert sample_main([str(tmp_path / "ck"), "--prompt", "Once upon", "--tokens", "12"]) == 0
    assert capsys.readouterr().out.startswith("Once upon")


def test_samples_in_between_change_no_loss(tmp_path: Path) -> None:
    for name, every in (("without", 0), ("with", 2)):
        train_here(tmp_path / name, sample_every=every)
    left, right = ([r["loss"] for r in records(tmp_path / name, kind="step")] for name in ("without", "with"))
    assert left == right
    first = records(tmp_path / "with", kind="step")[0]
    assert first["bits_per_byte"] == pytest.approx(first["loss"] / math.log(2), rel=1e-6)


def test_what_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    words = ["prepare", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--tokenizer"]
    assert data_main([*words, str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{}")
    assert data_main([*words, str(tmp_path / "bad.json")]) == 2
    assert "bad.json: no tokenizer.json" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        data_main([*words, "bpe", "--vocab_size", "100"])
    assert left.value.code == 2
    capsys.readouterr()
    found = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("tokenizers"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert data_main([*words, "bpe"]) == 2
    assert "pip install 'stoker[bpe]'" in capsys.readouterr().err
    monkeypatch.undo()
    assert not list(tmp_path.glob("out/*.bin"))
    np.arange(3000, dtype=np.uint16).tofile(tmp_path / "plain.bin")
    path = str(tmp_path / "plain.bin")
    done = run(1, *flags(train_data_path=path, sample_every=1, vocab_size=3000), cwd=tmp_path)
    assert done.returncode == 2
    assert "what the tokens of" in done.stderr

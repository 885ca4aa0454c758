"""Misspelt flags of a script are found; what its parser takes is not."""

from __future__ import annotations

import pytest

from supervisor.job.knobs.misspelt import misspelt_flags
from supervisor.job.knobs.source.read_source import scan_files

ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float)
parser.add_argument("--batch_size", type=int)
parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
args = parser.parse_args()
"""
TYRO = """
import tyro
from dataclasses import dataclass
@dataclass
class Config:
    learning_rate: float = 1e-3
tyro.cli(Config)
"""


def found(text: str, *args: str) -> list[tuple[str, str]]:
    return [(each.typed, each.meant) for each in misspelt_flags(scan_files([("train.py", text)]), list(args))]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--lerning_rate", "1e-3"], [("--lerning_rate", "--learning_rate")]),
        (["--learning_rates=1e-3"], [("--learning_rates", "--learning_rate")]),
        (["--batch-size", "8"], [("--batch-size", "--batch_size")]),
        (["--batch_size", "8", "--learning_rate", "-1e-3"], []),
        (["--learn", "1e-3"], []),
        (["--no-compile"], []),
        (["--seed", "1"], []),
        (["--", "--lerning_rate"], []),
        (["--optim.learning_rate", "1"], []),
    ],
    ids=["letter", "joined", "dash", "right", "beginning", "negated", "unlike", "behind --", "nested"],
)
def test_what_argparse_would_not_take(args: list[str], expected: list[tuple[str, str]]) -> None:
    assert found(ARGPARSE, *args) == expected


def test_parsers_that_take_both_spellings_and_libraries_with_flags_of_their_own() -> None:
    assert found(TYRO, "--learning-rate", "1") == []
    asked = f"import transformers\ntransformers.HfArgumentParser(transformers.TrainingArguments)\n{ARGPARSE}"
    assert found(asked, "--lerning_rate", "1") == []
    assert found(f"import transformers\n{ARGPARSE}", "--lerning_rate", "1"), "imported for its models"
    looped = ARGPARSE + "for name in CONFIG:\n    parser.add_argument(name)"
    assert found(looped, "--learning_rat", "1") == found(looped, "--lerning_rate", "1") == []
    assert found("not python (", "--lerning_rate", "1") == []


def test_the_place_of_the_declaration_is_named() -> None:
    (each,) = misspelt_flags(scan_files([("train.py", ARGPARSE)]), ["--batchsize", "8"])
    assert each.where == "train.py:5"

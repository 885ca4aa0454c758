"""Words beside a value that say whether it is of held-out data or of training."""

from __future__ import annotations

import re

EVALUATES = re.compile(
    r"(?<![\w./@-])(?:val|valid|validate|validating|validation|eval|evals|evaluate|evaluation|evaluating|test|testing|dev|heldout|held-out|验证|测试|(?-i:CV))(?![\w/@-]|\.\S|\s*=|\s*:\s*(?:n/a|none|nan|-)\b)",
    re.IGNORECASE,
)
TRAINS = re.compile(r"(?<![\w./@-])(?:train|training|训练)(?![\w./@-])", re.IGNORECASE)

# "[Diff-Val(Test-Normal)]": a tag that names a set as a part of a word.
TAG = re.compile(
    r"\[(?![^\]]*train)[^\]=:]*(?<![A-Za-z0-9])(?:val|valid(?:ation)?|test|eval(?:uation)?|dev)(?![A-Za-z0-9])[^\]=:]*\]",
    re.IGNORECASE,
)


def is_about_evaluation(words: str) -> bool:
    """Whether words (a logger's name) say that held-out data is meant, and not training's."""
    return EVALUATES.search(words) is not None and TRAINS.search(words) is None

"""A headline for a log that names no rank."""

import pytest

from supervisor.cli.job_logs import without_rank


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("Wrong arguments or configuration on rank 0", "Wrong arguments or configuration"),
        ("A hang on rank 0 (likely, not certain)", "A hang (likely, not certain)"),
        ("Rank 0 crashed", "A rank crashed"),
        ("An error on rank 10", "An error on rank 10"),
        ("An error on ranks 0, 1", "An error on ranks 0, 1"),
    ],
)
def test_without_rank(title: str, said: str) -> None:
    assert without_rank(title) == said

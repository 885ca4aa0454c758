"""What a verdict says of itself: how sure is sure enough, and when it shows that the job is over."""

from __future__ import annotations

import pytest

from supervisor.run.failures import FailureClass
from supervisor.run.records import Action, Cause, Verdict


def verdict(failure: FailureClass, confidence: float, title: str = "", cause: str = "") -> Verdict:
    return Verdict(
        failure, None, confidence, None, (), None, title, Cause("log", 1, cause) if cause else None, (), (), Action.NONE, "f"
    )  # fmt: skip


PLAIN = {"code_error", "import_error", "usage_error", "missing_file", "permission_denied"}


@pytest.mark.parametrize("failure", FailureClass)
def test_an_error_that_says_itself_what_happened_is_shown_without_a_figure(failure: FailureClass) -> None:
    assert verdict(failure, 0.8).is_plain_error is (failure.value in PLAIN)
    assert not verdict(failure, 0.79).is_plain_error


@pytest.mark.parametrize(
    ("failure", "confidence", "over"),
    [
        (FailureClass.HEALTHY, 0.95, True),
        (FailureClass.HEALTHY, 0.94, False),
        (FailureClass.UNKNOWN, 0.99, False),
        (FailureClass.HANG, 0.3, True),
    ],
)
def test_steps_alone_do_not_show_that_a_job_is_over(
    failure: FailureClass, confidence: float, over: bool
) -> None:
    assert verdict(failure, confidence).shows_end is over

"""What policy does about a failure, in the words that the guide and ``stoker troubleshoot`` give a person."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scripts.failures_page import done_about
from supervisor.job.spec import ClassOverride
from supervisor.policy.rules import RULES, Answer, override_for, rule_for
from supervisor.run.records import FailureClass, Precondition

F = FailureClass
GUIDE = Path(__file__).parents[2] / "docs" / "failures.md"


def test_the_guide_says_of_every_class_what_its_rules_do() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    said = dict(
        re.findall(
            r"^## (\w+): .*?^\*\*What stoker does\.\*\* (.*?) \(suggested:", page, re.MULTILINE | re.DOTALL
        )
    )
    assert said == {failure.value: done_about(failure) for failure in FailureClass}


@pytest.mark.parametrize(
    ("failure", "override", "answer", "advice"),
    [
        (F.CUDA_OOM, {}, Answer.SHRINK, None),
        (F.CUDA_OOM, {"answer": "stop"}, Answer.STOP, "[policy] says stop"),
        (F.CUDA_OOM, {"answer": "hold"}, Answer.HOLD, "[policy] says hold"),
        (F.CUDA_OOM, {"answer": "restart"}, Answer.SHRINK, None),
        (F.CUDA_OOM, {"change": "none"}, Answer.RESTART, None),
        (F.CUDA_OOM, {"change": "new_port"}, Answer.NEW_PORT, None),
        (F.CODE_ERROR, {"answer": "restart"}, Answer.RESTART, None),
        (F.CODE_ERROR, {"answer": "restart", "change": "shrink"}, Answer.SHRINK, None),
        (F.CODE_ERROR, {"answer": "restart", "change": "none"}, Answer.RESTART, None),
        (F.CODE_ERROR, {"change": "shrink"}, Answer.STOP, None),
    ],
)
def test_a_users_table_changes_the_rule_of_its_class(
    failure: FailureClass, override: dict[str, Any], answer: Answer, advice: str | None
) -> None:
    own = ClassOverride(failure.value, **override)
    rule = rule_for(failure, None, (ClassOverride("hang", "stop"), own))
    assert rule.answer is answer
    assert rule.advice_if_not_restarted == (advice or RULES[failure].advice_if_not_restarted)
    assert rule_for(F.DISK_FULL, None, (own,)) == RULES[F.DISK_FULL], "and of no other"


def test_a_users_numbers_stand_instead_of_the_rules() -> None:
    own = ClassOverride("disk_full", max_times=0, wait_s=0.0, show_first=("port",))
    rule = rule_for(F.DISK_FULL, None, (own,))
    assert (rule.max_times, rule.wait_s, rule.show_first) == (0, 0.0, (Precondition.PORT,))
    assert rule.answer is RULES[F.DISK_FULL].answer


def test_a_users_signature_outdoes_their_class_and_says_so() -> None:
    overrides = (
        ClassOverride("signature:mine", "hold"),
        ClassOverride("hang", "restart"),
        ClassOverride("hang", "stop"),
    )
    assert override_for(F.HANG, overrides, "mine") is overrides[0]
    assert override_for(F.HANG, overrides, "other") is overrides[1], "the nearest file's comes first"
    assert override_for(F.HANG, overrides) is overrides[1]
    assert override_for(F.CUDA_OOM, overrides, "other") is None
    assert rule_for(F.HANG, None, overrides, "mine").advice_if_not_restarted == "[[signature]] says hold"
    stop = (ClassOverride("signature:mine", "stop"),)
    assert rule_for(F.HANG, None, stop, "mine").advice_if_not_restarted == "[[signature]] says stop"

"""`stoker troubleshoot`: a page, a choice of pages, the list, or one line and exit 2."""

from __future__ import annotations

import re

import pytest

from supervisor.cli.main import main
from supervisor.diagnosis.class_words import class_texts
from supervisor.run.records import FailureClass


def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["troubleshoot", "cuda", "oom", "--lang", "en"]) == 0
    out = capsys.readouterr().out
    for words in (
        "GPU memory ran out",
        "CUDA out of memory",
        "smaller micro-batch, same global batch",
        "Lower the micro-batch",
    ):
        assert words in out


def test_what_may_be_several_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["troubleshoot", "out of memory"]) == 0
    out = capsys.readouterr().out
    assert "cuda_oom" in out
    assert "host_oom" in out
    assert "stoker troubleshoot CLASS" in out


def test_nothing_said_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["troubleshoot", "--lang", "en"]) == 0
    out = capsys.readouterr().out
    for failure, text in class_texts().items():
        assert (text.title in out) == (failure not in {FailureClass.HEALTHY, FailureClass.UNKNOWN})


@pytest.mark.parametrize("failure", list(FailureClass))
def test_every_class_has_a_page(failure: FailureClass, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["troubleshoot", failure.value, "--lang", "zh"]) == 0
    meaning, does = re.findall(r"(?:含义|stoker 的处理)\n((?:  .+\n)+)", capsys.readouterr().out)
    for part in (meaning, does):
        assert re.search("[\u4e00-\u9fff]", part), part

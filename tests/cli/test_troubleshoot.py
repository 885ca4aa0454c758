"""`stoker troubleshoot`: a page, a choice of pages, the list, or one line and exit 2."""

from __future__ import annotations

import re

import pytest

from supervisor.cli.main import main
from supervisor.diagnosis.class_words import class_texts
from supervisor.run.records import FailureClass
from tests.cli.conftest import Answer, Call

PAGE = """\
nan_loss: The loss became nan

what it means
  The loss or the gradients are not finite and stayed so, or the trainer gave up because of it.

lines that show it
  RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.
  grad_scale is too small, exiting: 5.820766091346741e-11
  WARNING: non-finite loss, ending training  tensor([nan, nan], device='cuda:0')

what stoker does
  Restart from an earlier checkpoint (once).

what you can do
  Resume from an earlier checkpoint with a lower learning rate, gradient clipping, or bf16 instead of
  fp16.

more: docs/failures.md, docs/recovery.md; `stoker diagnose LOG`, `stoker policy explain RUN`
"""
SLOW = """\
slow training is no failure

what stoker does
  it names what holds a step up, while the run continues: waiting for data, a slow rank and why,
  throttled or hot GPUs, a busy machine

what you can do
  look at the advisories of the dashboard (a), and at the share of a step that is waiting for data
  if it stands still altogether: `stoker troubleshoot hang`
"""
LIST = """\
it may be one of these:
  cuda_oom           GPU memory ran out
  host_oom           Host memory ran out
  shm_exhausted      Shared memory (/dev/shm) is full
`stoker troubleshoot CLASS` tells of one; a log is read by `stoker diagnose LOG`
"""


@pytest.mark.parametrize(
    ("symptom", "text"),
    [("loss is nan", PAGE), ("nan_loss", PAGE), ("training is slow", SLOW), ("out of memory", LIST)],
)
def test_a_symptom_has_a_page_or_a_choice_of_pages(
    call: Call, monkeypatch: pytest.MonkeyPatch, symptom: str, text: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert call(f"troubleshoot --lang en {symptom}") == Answer(0, text, "")
    if text is SLOW:
        monkeypatch.setenv("COLUMNS", "40")
        narrow = call(f"troubleshoot --lang en {symptom}").out
        assert (narrow.split(), max(map(len, narrow.splitlines()))) == (text.split(), 40)


def test_a_long_line_with_a_slow_word_is_a_log_line(call: Call) -> None:
    line = "slow step: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert call("troubleshoot --lang en", line).out.startswith("cuda_oom: GPU memory ran out\n")
    hint = "`stoker troubleshoot` lists what is known (a log is read by `stoker diagnose LOG`)"
    unknown = f"stoker troubleshoot: nothing is known of “{'q' * 80}”: {hint}\n"
    assert call("troubleshoot", "q" * 90) == Answer(2, "", unknown)


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

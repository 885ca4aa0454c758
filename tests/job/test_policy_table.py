"""[policy] in a settings file: every key, and one line for a wrong one."""

from __future__ import annotations

import pytest

from supervisor.job.arguments.run_arguments import ParsedRun, parse_run_argv
from supervisor.job.config.files import parse_config
from supervisor.job.config.resolve import JobInputs, resolve_job, resolve_retry
from supervisor.job.config.setting_values import ConfigFile
from supervisor.job.errors import JobError
from supervisor.job.spec import ClassOverride, RetrySettings
from supervisor.policy import Answer
from supervisor.policy.rules import rule_for
from supervisor.run.records import FailureClass

TABLE = """
[policy]
max_retries = 7
flap_max = 4
flap_window_s = 60
[policy.worker_crash]
answer = "restart"
change = "fewer_workers"
max = 2
delay_s = 1.5
show_first = ["gpu_memory", "disk"]
wait_s = 9
"""


def retry_of(text: str) -> RetrySettings:
    file = ConfigFile("stoker.toml", parse_config("stoker.toml", text.encode()), text)
    classes = frozenset(str(c) for c in FailureClass)
    return resolve_retry(JobInputs(ParsedRun(), {}, "/w", job_file=file, failure_classes=classes))


def test_every_key_arrives() -> None:
    retry = retry_of(TABLE)
    assert (retry.max_retries, retry.flap_max, retry.flap_window_s) == (7, 4, 60.0)
    own = ClassOverride("worker_crash", "restart", 2, 1.5, "fewer_workers", ("gpu_memory", "disk"), 9.0)
    assert retry.overrides == (own,)
    rule = rule_for(FailureClass.WORKER_CRASH, None, retry.overrides)
    assert (rule.answer, rule.max_times, rule.wait_s) == (Answer.FEWER_WORKERS, 2, 9.0)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--batch-knob=", "train.py"], "wants the name of a flag"),
        (["--accumulation-knob=", "train.py"], "wants the name of a flag"),
    ],
)
def test_a_flag_that_can_mean_nothing_is_refused(argv: list[str], words: str) -> None:
    with pytest.raises(JobError, match=words):
        resolve_job(JobInputs(parse_run_argv(argv), {}, "/w"))

"""The verdict on a long log's end, before what watches it is loaded; the observer that then confirms it or takes it back."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from supervisor.cli.attaching import observe_target
from supervisor.cli.attaching.observe_target import tell_first_verdict
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.keeper.base.keeper_clock import SystemClock
from supervisor.keeper.observer import start_observed
from supervisor.keeper.observer.observer import Observer
from supervisor.keeper.observer.start_observed import ObservedRun
from supervisor.keeper.observer.target import ObservedLog, Target
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass, Verdict
from supervisor.sources.signature_files import Engine
from tests.conftest import wait_until
from tests.keeper.fakes import facts_of

OOM = """Traceback (most recent call last):
  File "/job/train.py", line 47, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is free.
"""
STEPS = "".join(f"step {n} loss {2 + 1 / n:.4f}\n" for n in range(1, 3_000))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_observed, "LARGE_BYTES", 1 << 14)
    monkeypatch.setattr(observe_target, "TAIL_BYTES", 1 << 14)


def begun(
    tmp_path: Path, text: str, *, age_s: float = 3600.0, ended: bool = True
) -> tuple[ObservedRun, Target]:
    log = tmp_path / "x.log"
    log.write_text(text, encoding="utf-8")
    os.utime(log, (time.time() - age_s,) * 2)
    target = Target("x.log", str(log), (ObservedLog(str(log), "x.log"),), ended=ended)
    return ObservedRun.fresh(RunPaths(tmp_path / "run"), target, host="box", clock=SystemClock()), target


def test_a_clear_failure_at_the_end_is_on_the_card_at_once(tmp_path: Path) -> None:
    observed, target = begun(tmp_path, STEPS + OOM)
    tell_first_verdict(observed, target, lambda verdict: verdict)
    attempt = observed.state.attempt
    assert isinstance(observed.state.condition, st.Ended)
    assert attempt is not None
    assert attempt.verdict is not None
    assert attempt.failure is FailureClass.CUDA_OOM
    assert attempt.verdict_provisional
    assert attempt.started_t is None, (
        "when the job began is not known: the time of watching is none of its own"
    )
    assert attempt.verdict.cause is not None
    assert attempt.verdict.cause.line is None, "the lines above it are not counted"


@pytest.mark.parametrize(
    ("text", "age_s", "ended"),
    [
        (STEPS, 3600.0, True),  # no failure
        (STEPS + OOM, 1.0, True),  # it may be written still
        (STEPS + OOM, 3600.0, False),
        (OOM, 3600.0, True),  # a short log is read in a moment
        (STEPS + OOM + "step 9 loss 2.0\n" * 400, 3600.0, True),  # it continued
    ],
)
def test_anything_else_is_left_to_the_observer(tmp_path: Path, text: str, age_s: float, ended: bool) -> None:
    observed, target = begun(tmp_path, text, age_s=age_s, ended=ended)
    tell_first_verdict(observed, target, lambda verdict: verdict)
    assert isinstance(observed.state.condition, st.Running)
    assert observed.state.attempt is not None
    assert observed.state.attempt.verdict is None


@pytest.mark.parametrize("confirmed", [True, False])
def test_the_observer_confirms_it_or_takes_it_back(tmp_path: Path, confirmed: bool) -> None:
    observed, target = begun(tmp_path, STEPS + OOM)
    tell_first_verdict(observed, target, lambda verdict: verdict)

    def judge(engine: Engine) -> Verdict:
        text = STEPS + OOM if confirmed else STEPS
        return diagnose(
            JobEvidence((LogSource("x.log", (text.encode(),)),)), engine.signatures, engine.matcher
        )

    observer = Observer(
        RunPaths(tmp_path / "run"), target, host="box", judge=judge, interval_s=60.0, observed=observed
    )
    observer.start()
    try:
        if confirmed:
            assert wait_until(lambda: isinstance(observer.state.condition, st.DiagnosedAs), 60)
            attempt = observer.state.attempt
            assert attempt is not None
            assert not attempt.verdict_provisional
            assert attempt.verdict is not None
            assert attempt.verdict.cause is not None
            assert attempt.verdict.cause.line == STEPS.count("\n") + 4
            ends = [
                fact for fact in facts_of(RunPaths(tmp_path / "run")) if isinstance(fact, ev.AttemptEnded)
            ]
            assert len(ends) == 1
        else:
            assert wait_until(
                lambda: (a := observer.state.attempt) is not None and a.verdict is None and a.ended_t is None,
                60,
            )
    finally:
        observer.leave(hurried=True)

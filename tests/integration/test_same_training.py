"""After a real restart, whether it is the same training is said in the journal, on the console and in the story: rightly, and with the mistake's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.journal import read_state
from supervisor.run.records import Difference, Sameness
from supervisor.views.wording.translate import english
from tests.conftest import not_none
from tests.integration.harness import SCRIPTS, facts, only_run, run_headless, stoker
from tests.tiers import first

SCRIPT = str(SCRIPTS / "resumed_training.py")
COMMON = ("--nproc-per-node", "2", "--resume-knob=--resume=latest", SCRIPT)


@pytest.mark.e2e
def test_an_honest_restart_is_the_same_training(tmp_path: Path) -> None:
    done, run, state = run_headless(*COMMON, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    found = not_none(state.attempts[1].compared)
    assert (found.result, found.difference) == (Sameness.SAME, None), found.text
    assert found.text.startswith("30 steps trained twice")
    assert sum(isinstance(fact, ev.ResumeCompared) for fact in facts(run)) == 1
    assert "[INFO]" in next(
        line for line in done.out.splitlines() if ": same training: 30 steps trained twice" in line
    )
    assert "compared  same training: " in done.out
    assert any("same training" in english.moment(m) and m.tone is st.Tone.GOOD for m in state.timeline)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("mistake", "named"),
    first(
        1,
        [
            ("schedule", Difference.LEARNING_RATE),
            ("weighting", Difference.GRAD_NORM),
            ("weights", Difference.LOSS),
        ],
    ),
)
def test_a_wrong_resume_is_named(tmp_path: Path, mistake: str, named: Difference) -> None:
    done = stoker("run", "--no-ui", "--json", *COMMON, "--mistake", mistake, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    said = [line for line in lines if line["kind"] == "resume_compared"]
    assert [(line["result"], line["difference"]) for line in said] == [("differs", named.value)]
    found = not_none(read_state(only_run(tmp_path).node().journal).attempts[1].compared)
    assert found.result is Sameness.DIFFERS

"""Foreign scripts on two ranks run out of memory after a checkpoint; what their processes report says how they restart.

None may train wrongly: what each fed to its model is read from a file that it writes itself. It restarts with the planned micro-batch and
the same global batch, or it waits with the words to declare.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.run import events as ev
from supervisor.run.state import RunState
from tests.integration.harness import SCRIPTS, facts, run_headless
from tests.tiers import first

pytestmark = pytest.mark.e2e

FOLDER = SCRIPTS / "restarts"
SAVED_AT, STEPS = 4, 10


@dataclass(frozen=True)
class Style:
    """A training and how it is declared.

    `words`: the script and its arguments under torchrun, or a command that starts the ranks by itself. `variables`: for the job's
    environment. `in_bash`: the declared run is started by two shell scripts, with this word. `before` and `after`: micro-batch and passes of
    a step on a rank, in the first attempt and in the planned one. `waits`: words that an undeclared run may end with, first the flag
    of the command to paste; empty where enough is measured to restart it.
    """

    words: tuple[str, ...]
    declared: tuple[str, ...]
    variables: tuple[str, ...] = ()
    in_bash: str = ""
    before: tuple[int, int] = (16, 2)
    after: tuple[int, int] = (8, 4)
    waits: tuple[str, ...] = ()


def batch(knob: str, accumulation: str = "", *, scope: str = "per_rank") -> tuple[str, ...]:
    words = ("--batch-knob", knob, "--batch-scope", scope)
    return (*words, "--accumulation-knob", accumulation) if accumulation else words


RESUMES = ("--self-resuming",)
PAIRS = """torchrun --standalone --nproc-per-node 2 pairs.py --opts MODEL.WIDTH 16
    TRAIN.BATCH_SIZE 16 TRAIN.ACCUM_STEPS 2 TEST.BATCH_SIZE 32"""
STYLES = {
    "meaningless": Style(
        ("meaningless.py", "--zeta", "16", "--rho", "1", "--eta", "16"),
        (*batch("--zeta", "--rho"), *RESUMES),
        before=(16, 1),
        after=(8, 2),
        waits=("--accumulation-knob",),
    ),
    "divided": Style(
        ("divided.py", "-b", "32", "--accum-iter", "1"),
        (*batch("-b", "--accum-iter", scope="global"), *RESUMES),
        before=(16, 1),
        after=(8, 2),
    ),
    "environ": Style(
        ("environ.py",),
        (*batch("env:BATCH", "env:ACCUM"), *RESUMES),
        ("BATCH=16", "ACCUM=2", "HEADS=16"),
        in_bash="variables",
    ),
    "layers": Style(
        ("bash", "layers.sh", "options"), (*batch("--mbs", "--ga"), "--resume-knob", "--resume-from=PATH")
    ),
    "settings": Style(
        ("settings.py", "settings.yaml"),
        (
            *batch("settings.yaml#per_device_train_batch_size", "settings.yaml#gradient_accumulation_steps"),
            *("--resume-knob", "settings.yaml#resume_from_checkpoint=PATH"),
        ),
        in_bash="file",
        before=(16, 1),
        after=(8, 2),
    ),
    "pairs": Style(
        tuple(PAIRS.split()),
        (*batch("TRAIN.BATCH_SIZE", "TRAIN.ACCUM_STEPS"), *RESUMES),
    ),
    "spawned": Style(
        (sys.executable, "spawned.py", "--batch_size", "16", "--accum", "2"),
        (*batch("--batch_size", "--accum"), *RESUMES),
    ),
}
FIXED_AT = 1 + (FOLDER / "fixed.py").read_text().splitlines().index(
    "batches = forever(DataLoader(points, batch_size=16, sampler=DistributedSampler(points)))"
)
WAITING = {
    "fixed": Style(
        ("fixed.py", "--heads", "16"),
        (),
        before=(16, 1),
        waits=("--batch-knob", f"fixed.py:{FIXED_AT}", "in the code"),
    ),
    "forgetful": Style(
        ("forgetful.py", "--batch-size", "16", "--grad-accum", "2"),
        (*batch("--batch-size", "--grad-accum"), *RESUMES),
        waits=("--resume-knob", "--self-resuming"),
    ),
    "shadowed": Style(
        ("shadowed.py", "--config", "shadow.json", "--batch_size", "16", "--grad_accum", "1"),
        RESUMES,
        before=(16, 1),
        after=(8, 2),
        waits=(
            "planned micro-batch 8 × accumulation 2, measured micro-batch 16: --batch_size is overridden by shadow.json",
        ),
    ),
}


@dataclass(frozen=True)
class Launch:
    """One attempt as a rank's own file has it. `steps`: number of each optimizer step to the samples of its passes."""

    steps: dict[int, tuple[int, ...]]
    saved: dict[int, str]


@dataclass(frozen=True)
class Run:
    """A finished run: its exit code, what it printed, its events, and the attempts of each rank."""

    folder: Path
    code: int
    out: str
    state: RunState
    events: list[dict[str, Any]]
    launches: list[list[Launch]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]


def launched(folder: Path, style: Style, declared: Sequence[str]) -> Run:
    """Run a style in `folder` with the flags that declare it, and nobody to ask."""
    shutil.copytree(FOLDER, folder)
    launcher = ("--nproc-per-node", "2") if style.words[0].endswith(".py") else ("--",)
    flags = ["--no-check", *(f"--env={pair}" for pair in style.variables), *declared]
    done, run, state = run_headless(*flags, *launcher, *style.words, cwd=folder, timeout_s=270)
    events = [msgspec.to_builtins(event) for event in facts(run)]
    return Run(folder, done.code, done.err + done.out, state, events, [fed(folder, rank) for rank in (0, 1)])


def fed(folder: Path, rank: int) -> list[Launch]:
    """The attempts of a rank, in order."""
    found: dict[int, Launch] = {}
    path = folder / f"fed.{rank}.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        written = json.loads(line)
        launch = found.setdefault(written["launch"], Launch({}, {}))
        if "saved" in written:
            launch.saved[written["saved"]] = written["sha256"]
        elif "step" in written:
            assert written["step"] not in launch.steps
            launch.steps[written["step"]] = tuple(written["samples"])
            assert written["world"] == 2
    return list(found.values())


def check_restarted(run: Run, style: Style) -> None:
    """Each rank trained on from the checkpoint with the planned batch, and the journal says that it was measured."""
    check_never_wrong(run, style)
    assert run.code == 0, run.out
    (micro, passes), (smaller, more) = style.before, style.after
    for launches in run.launches:
        first, second = launches
        assert first.steps == dict.fromkeys(range(1, SAVED_AT + 2), (micro,) * passes)
        assert second.steps == dict.fromkeys(range(SAVED_AT + 1, STEPS + 1), (smaller,) * more)
    assert [event["attempt"] for event in run.of_kind("plan_confirmed")] == [2], run.events
    (confirmed,) = run.of_kind("plan_confirmed")
    assert f"micro-batch {smaller}" in confirmed["planned"]
    assert not run.of_kind("plan_differs")
    measured = [event for event in run.of_kind("batch_measured") if event["attempt"] == 2][-1]
    assert (measured["micro_batch"], measured["accumulation"]) == style.after
    assert measured["global_batch"] == micro * passes * 2
    kinds = [event["kind"] for event in run.events if event["kind"] in {"change_planned", "launch_intended"}]
    assert kinds == ["launch_intended", "change_planned", "launch_intended"], "said before it is made"
    assert "change: + " in run.out
    (planned,) = run.of_kind("change_planned")
    assert any(line.startswith("+ ") and str(smaller) in line for line in planned["lines"]), planned
    own = "settings.yaml"
    assert (run.folder / own).read_bytes() == (FOLDER / own).read_bytes(), (
        "the user's own file is never edited"
    )


def check_never_wrong(run: Run, style: Style) -> None:
    """No attempt that fed another global batch, or that trained again what a checkpoint held, saved anything or ended well."""
    micro, passes = style.before
    for _, *others in run.launches:
        for number, launch in enumerate(others, 2):
            fed_otherwise = [step for step, of_pass in launch.steps.items() if sum(of_pass) != micro * passes]
            again = [step for step in launch.steps if step <= SAVED_AT]
            wrong = bool(fed_otherwise or again)
            assert not (wrong and launch.saved), (number, launch, run.out)
            assert not (wrong and run.code == 0), (number, launch, run.out)


def check_waits(run: Run, style: Style) -> None:
    """Nothing was trained after the failure; the reason is said, and last the command to paste; the checkpoint is whole."""
    check_never_wrong(run, style)
    assert run.code == 1, run.out
    assert [len(launches) for launches in run.launches] == [1, 1], run.out
    check_says(run, style.waits)
    pasted = run.out.rstrip().splitlines()[-1]
    assert pasted.startswith(f"stoker run {style.waits[0]} "), pasted
    check_whole(run)


def check_ended(run: Run, words: Sequence[str]) -> None:
    """The second attempt was not what was planned: it was ended before it saved, and no third one followed."""
    assert run.code == 1, run.out
    assert [len(launches) for launches in run.launches] == [2, 2], run.out
    assert run.launches[0][1].saved == {}
    assert [event["attempt"] for event in run.of_kind("plan_differs")] == [2], run.events
    assert not run.of_kind("plan_confirmed")
    check_says(run, words)
    check_whole(run)


def check_says(run: Run, words: Sequence[str]) -> None:
    for word in words:
        assert word in run.out


def check_whole(run: Run) -> None:
    """The newest checkpoint of the first attempt is where it was saved, byte for byte."""
    saved = run.launches[0][0].saved[SAVED_AT]
    files = [path for path in (run.folder / "out").iterdir() if path.suffix == ".pt"]
    assert saved in {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}, files


@pytest.fixture(autouse=True)
def torchrun_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shell scripts call it by its name."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("name", first(1, STYLES))
def test_a_script_that_nobody_declared_restarts_rightly_or_waits(tmp_path: Path, name: str) -> None:
    style = STYLES[name]
    run = launched(tmp_path / "job", style, ())
    if run.code and style.waits:
        check_waits(run, style)
    else:
        check_restarted(run, style)


# A command that starts its own ranks, and a setting in a file, in `make e2e`; the others in `make thorough`.
@pytest.mark.parametrize(
    "name", first(2, sorted(STYLES, key=lambda name: name not in {"spawned", "settings"}))
)
def test_a_declared_script_restarts_with_the_planned_batch(tmp_path: Path, name: str) -> None:
    style = STYLES[name]
    if style.in_bash:
        style = replace(style, words=("bash", "layers.sh", style.in_bash), variables=())
    check_restarted(launched(tmp_path / "job", style, style.declared), style)


@pytest.mark.parametrize("name", first(1, ["fixed", "forgetful"]))
def test_what_cannot_be_restarted_waits_and_says_why(tmp_path: Path, name: str) -> None:
    style = WAITING[name]
    check_waits(launched(tmp_path / "job", style, ()), style)


def test_a_flag_that_a_file_overrides_ends_the_attempt(tmp_path: Path) -> None:
    style = WAITING["shadowed"]
    run = launched(tmp_path / "job", style, style.declared)
    check_ended(run, style.waits)
    assert set(run.launches[0][1].steps) <= set(range(SAVED_AT + 1, 2 * SAVED_AT + 1)), (
        "it waited with its next save"
    )


def twins(folder: Path, fails_at: int, *flags: str) -> tuple[str, ...]:
    """A folder with the script of two batch flags, and the words that start it."""
    shutil.copytree(FOLDER, folder)
    (folder / "out").mkdir()
    words = ("twins.py", "--batch_size", "8", "--mini_batch_size", "8", "--grad_accum", "1")
    return ("--no-check", *flags, "--nproc-per-node", "2", *words, "--fails_at", str(fails_at))


def test_of_two_batch_flags_the_right_one_is_tried_where_nothing_can_be_lost_and_remembered(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "job"
    done, run, _ = run_headless(*twins(folder, 1), cwd=folder, timeout_s=270)
    events = facts(run)
    assert done.code == 0, done.err + done.out
    tried = [(event.value, event.trial) for event in events if isinstance(event, ev.BatchAnswered)]
    assert tried == [("--batch_size", 1), ("--grad_accum", 1), ("--mini_batch_size", 2)], events
    (said,) = [
        event.text for event in events if isinstance(event, ev.Advisory) and event.code.startswith(ev.ON_OOM)
    ]
    plan = "restarts with micro-batch 4 × accumulation 2 from step 0, to try --batch_size, --grad_accum"
    assert said == f"out of memory before the first step: {plan}"
    (differs,) = [event for event in events if isinstance(event, ev.PlanDiffers)]
    (confirmed,) = [event for event in events if isinstance(event, ev.PlanConfirmed)]
    assert (differs.attempt, confirmed.attempt) == (2, 3)
    for rank in (0, 1):
        *before, last = fed(folder, rank)
        assert [launch.steps for launch in before] == [{}, {}]
        assert last.steps == dict.fromkeys(range(1, STEPS + 1), (4, 4))

    again = tmp_path / "again"
    done, run, state = run_headless(*twins(again, 1), cwd=again, timeout_s=270)
    assert done.code == 0, done.err + done.out
    assert len(state.attempts) == 2, "what was confirmed is known"
    assert all(event.day for event in facts(run) if isinstance(event, ev.BatchAnswered))
    assert fed(again, 0)[-1].steps == dict.fromkeys(range(1, STEPS + 1), (4, 4))


def test_a_script_that_never_loads_is_ended_whatever_was_declared(tmp_path: Path) -> None:
    style = WAITING["forgetful"]
    run = launched(tmp_path / "job", style, style.declared)
    (kept,) = run.state.kept
    copied = hashlib.sha256(Path(kept.copy).read_bytes()).hexdigest()
    assert copied == run.launches[0][0].saved[SAVED_AT], "the checkpoint's bytes are safe"
    said = f"did not resume: no checkpoint was loaded; checkpoint {kept.step} is kept as a copy: {kept.copy}"
    check_ended(run, (said,))
    assert set(run.launches[0][1].steps) <= set(range(1, SAVED_AT + 1)), "it waited with its first save"

"""`stoker continue` up to the start of the keeper: what is refused, asked and shown. Real keepers are those of tests/integration."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.cli import continuing, open_app
from supervisor.cli.common import WITH_LOG
from supervisor.job.batch import BatchSpec
from supervisor.job.spec import EntryKind, Knobs, KnobScope
from supervisor.keeper.process import detach, takeover
from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Cause, Decision, DecisionKind, FailureClass, SpecChange
from supervisor.run.runfile import RunFile
from supervisor.run.state import Finished
from tests.cli.conftest import Call
from tests.keeper.fakes import job_of, own_run_in, verdict_of
from tests.keeper.runs import INTENDED, RUNS, T, append

STARTED = ev.RunStarted(t=T, run_id="run-1", name="job", mode="launched", host=socket.gethostname())
ENDED = ev.AttemptEnded(t=T, attempt=1, exit_code=1)
DIAGNOSED = ev.Diagnosed(t=T, attempt=1, verdict=verdict_of())
GAVE_UP = ev.RunEnded(t=T, outcome=ev.Outcome.GAVE_UP, exit_code=4, reason="too often")
FAILED = (STARTED, INTENDED, RUNS, ENDED, DIAGNOSED, GAVE_UP)


class Keyboard(io.StringIO):
    """A terminal on which these lines are typed; `first` happens before the first of them."""

    def __init__(self, typed: str, first: Callable[[], object] = lambda: None) -> None:
        super().__init__(typed)
        self._first = first

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        self._first()
        return super().readline(-1 if size is None else size)


Started = list[dict[str, Any]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What detached keepers are started with; none is."""
    found: Started = []
    monkeypatch.setattr(
        detach, "start_detached", lambda run, env, **named: found.append({"run": run, "env": env, **named})
    )
    return found


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a terminal with a person who types."""

    def make(text: str = "", first: Callable[[], object] = lambda: None) -> None:
        monkeypatch.setattr(sys, "stdin", Keyboard(text, first))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return make


def failed_run(tmp_path: Path, record: RunFile | None = None, *more: ev.Event) -> RunPaths:
    return own_run_in(tmp_path, record or job_of(tmp_path, "echo", "hello"), *(more or FAILED))


NOT_ASKED = "run-1: not continued: without a terminal nobody can be asked whether to start it: say --yes"
SUCCEEDED = ev.RunEnded(t=T, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="all ranks ended with 0")


@pytest.mark.parametrize(
    ("facts", "flags", "said"),
    [
        (FAILED, "", NOT_ASKED),
        (FAILED, "--no-ui", NOT_ASKED),
        (
            (STARTED, INTENDED, RUNS, SUCCEEDED), "--yes",
            "run-1: not continued: it succeeded: all ranks ended with 0: there is nothing to continue",
        ),
    ],
)  # fmt: skip
def test_what_is_not_continued_says_why_and_starts_nothing(
    tmp_path: Path, call: Call, started: Started, facts: tuple[ev.Event, ...], flags: str, said: str
) -> None:
    run = failed_run(tmp_path, None, *facts)
    before = run.node().journal.read_bytes()
    assert call(f"continue {flags}", run.root) == (3, "", f"stoker continue: {said}\n")
    assert run.node().journal.read_bytes() == before
    assert not started


def test_the_next_attempt_is_printed_and_detached(tmp_path: Path, call: Call, started: Started) -> None:
    cause = Cause("rank0.log", 7, "RuntimeError: token=hf_abcdefghijklmnopqrstuvwxyz012345")
    diagnosed = ev.Diagnosed(t=T, attempt=1, verdict=replace(verdict_of(), cause=cause))
    run = failed_run(tmp_path, None, STARTED, INTENDED, RUNS, ENDED, diagnosed, GAVE_UP)
    code, out, err = call("continue --yes --detach", run.root)
    assert (code, out) == (0, "run-1\n")
    ended, begins, *command = err.splitlines()
    assert ended.startswith("run-1: attempt 1: it broke: RuntimeError: ")
    assert "hf_abc" not in err
    assert begins == "attempt 2 restarts from step 0, unless the script resumes by itself:"
    assert any("echo hello" in line for line in command)
    (given,) = started
    assert (given["run"].root, given["entry"], bool(given["continued_by"])) == (run.root, WITH_LOG, True)
    assert given["record"].settings.interactive, "it can be looked at and asked later"
    assert given["meanwhile"] is None, "no screen is loaded"


def test_an_end_that_nobody_knows_is_settled_first(tmp_path: Path, call: Call, started: Started) -> None:
    """The keeper was lost before it had said why the attempt ended: that is read from its logs, and journalled, before anything starts."""
    run = failed_run(tmp_path, None, STARTED, INTENDED, RUNS, ENDED)
    log = run.node().attempt(1).root / "agent.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\nKeyError: 'labels'\n"
    )
    code, _, err = call("continue --yes --detach", run.root)
    attempt = read_state(run.node().journal).attempts[0]
    assert attempt.verdict is not None
    assert err.startswith(f"run-1: attempt 1: {attempt.verdict.title}")
    assert (code, len(started)) == (0, 1)


@pytest.mark.parametrize(("answer", "begins"), [("y\n", True), ("YES\n", True), ("n\n", False), ("", False)])
def test_a_person_is_asked(
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    started: Started,
    typed: Callable[..., None],
    answer: str,
    begins: bool,
) -> None:
    shown: list[bool] = []

    def show(_run: RunPaths, *, read_only: bool, **_named: object) -> int:
        shown.append(read_only)
        return 7

    monkeypatch.setattr(open_app, "show", show)
    run = failed_run(tmp_path)
    typed(answer)
    code, out, err = call("continue", run.root)
    assert code == (7 if begins else 3)
    assert "Start it? [y/N] " in out, "on the terminal, also where stderr is none"
    assert ("stoker continue: run-1: not continued" in err) is not begins
    assert shown == ([False] if begins else [])
    assert [given["meanwhile"] for given in started] == ([open_app.load_app] if begins else [])


def test_a_run_that_changed_while_it_was_asked_about_is_left_alone(
    tmp_path: Path, call: Call, started: Started, typed: Callable[..., None]
) -> None:
    run = failed_run(tmp_path)
    typed("y\n", lambda: append(run, GAVE_UP))
    code, _, err = call("continue --detach", run.root)
    assert code == 3
    assert "run-1: not continued: it changed while you were asked" in err
    assert not started


def test_without_a_screen_this_process_carries_the_run(tmp_path: Path, call: Call, started: Started) -> None:
    run = failed_run(tmp_path)
    code, out, _ = call("continue --yes --no-ui", run.root)
    assert code == 0
    assert "attempt 2: " in out
    assert "too often" not in out, "what was known before is not told again"
    state = read_state(run.node().journal)
    assert isinstance(state.condition, Finished)
    assert [attempt.exit_code for attempt in state.attempts] == [1, 0]
    assert not started
    assert call("continue --yes --no-ui", run.root).code == 3, "it has succeeded"


def test_a_keeper_that_does_not_start_is_one_line(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object, **_named: object) -> int:
        raise detach.KeeperDidNotStart("the keeper ended with 2: see keeper.log")

    monkeypatch.setattr(detach, "start_detached", fails)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    code, _, err = call("continue --yes --detach", failed_run(tmp_path).root)
    *_, warning, last = err.splitlines()
    assert (code, last) == (1, "stoker continue: run-1: the keeper ended with 2: see keeper.log")
    assert "this is a SLURM job" in warning


ELSEWHERE = (
    ev.RunStarted(t=T, run_id="run-1", name="job", mode="launched", host="far-away"),
    ev.KeeperStarted(t=T, pid=9, start_time=1.0, version="0", slurm_job="12"),
    INTENDED,
    RUNS,
)


@pytest.mark.parametrize(
    ("written", "squeue", "answer", "said"),
    [
        ("keeper.lock", "", "y\n", "not continued: keeper.lock is being written: a keeper lives, on far-away or elsewhere"),
        ("", "RUNNING", "y\n", "not continued: SLURM says of its job 12: RUNNING"),
        ("", "", "n\n", "not continued: it may live"),
        ("", "", None, "not continued: only a person can answer, on a terminal: it ran on far-away"),
        ("", "", "y\ny\n", None),
    ],
)  # fmt: skip
def test_what_ran_elsewhere_is_listened_to_and_asked_about(
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    started: Started,
    typed: Callable[..., None],
    written: str,
    squeue: str,
    answer: str | None,
    said: str | None,
) -> None:
    monkeypatch.setattr(continuing, "other_host_with_keeper", lambda _run: written)
    monkeypatch.setattr(continuing, "scheduler_asked", lambda job: {"12": squeue}[job])
    run = failed_run(tmp_path, None, *ELSEWHERE)
    if answer is not None:
        typed(answer)
    code, _, err = call(f"continue --detach {'--yes' if answer is None else ''}", run.root)
    assert f"run-1: it ran on far-away: listening for {takeover.WATCH_S:.0f} s\n" in err
    assert (code, len(started)) == ((0, 1) if said is None else (3, 0))
    assert (said or "") in err


def test_a_secret_that_is_not_on_disk_is_named(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, started: Started
) -> None:
    run = failed_run(tmp_path, job_of(tmp_path, "echo", "hello", env=(("MY_TOKEN", "<redacted>"),)))
    code, _, err = call("continue --yes --detach", run.root)
    assert (code, "MY_TOKEN" in err) == (2, True)
    monkeypatch.setenv("MY_TOKEN", "s3cret-value")
    code, _, err = call("continue --yes --detach", run.root)
    (given,) = started
    assert (code, given["env"]["MY_TOKEN"]) == (0, "s3cret-value")
    assert "s3cret-value" not in err


def script_of(tmp_path: Path, *words: str, **changes: Any) -> RunFile:
    """A run of `torchrun train.py WORDS`."""
    return job_of(tmp_path, "train.py", *words, entry_kind=EntryKind.SCRIPT, master_port=29999, **changes)


def test_where_it_goes_on_from_is_said(tmp_path: Path, call: Call, started: Started) -> None:
    folder = tmp_path / "c" / "4"
    folder.mkdir(parents=True)
    record = script_of(tmp_path, knobs=Knobs(resume="--resume_from", declared=True), nproc_per_node=1)
    saved = ev.CheckpointCommitted(t=T, attempt=1, step=4, path=str(folder))
    run = failed_run(tmp_path, record, STARTED, INTENDED, RUNS, saved, ENDED, DIAGNOSED, GAVE_UP)
    code, _, err = call("continue --yes --detach", run.root)
    assert "\nattempt 2 resumes from its checkpoint at step 4:\n" in err
    assert err.endswith("train.py --resume_from=auto\n")
    assert (code, len(started)) == (0, 1)


@pytest.mark.parametrize("decided", ["gave up", "not decided", "held"])
@pytest.mark.usefixtures("started")
def test_after_out_of_memory_the_smaller_batch_is_proposed_with_its_reason(
    tmp_path: Path, call: Call, decided: str
) -> None:
    batch = BatchSpec(16, 2, 2)
    knobs = Knobs(batch="--batch", accumulation="--accum", batch_scope=KnobScope.PER_RANK)
    record = script_of(tmp_path, "--batch=16", "--accum=2", knobs=knobs, batch=batch, nproc_per_node=2)
    intended = msgspec.structs.replace(INTENDED, batch=batch)
    memory = replace(verdict_of(), failure=FailureClass.CUDA_OOM, title="out of memory")
    facts: list[ev.Event] = [STARTED, intended, RUNS, ENDED, ev.Diagnosed(t=T, attempt=1, verdict=memory)]
    if decided != "not decided":
        kind = DecisionKind.GIVE_UP if decided == "gave up" else DecisionKind.HOLD
        facts.append(ev.Decided(t=T, attempt=1, decision=Decision(kind, "too often", change=SpecChange())))
    if decided == "gave up":
        facts.append(GAVE_UP)
    code, _, err = call("continue --yes --detach", failed_run(tmp_path, record, *facts).root)
    assert code == 0
    assert "--batch=8 --accum=4" in err
    change = "micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged"
    assert f"\nattempt 2 is changed: {change}: " in err


def test_a_screen_shows_what_would_run_and_starts_it(tmp_path: Path, started: Started) -> None:
    run = failed_run(tmp_path)
    before = run.node().journal.read_bytes()
    continuer = open_app.continuer({})
    offer = continuer.examine(run)
    assert not offer.refusals
    assert any("attempt 2 restarts from step 0" in line for line in offer.actions)
    assert offer.actions[-1].startswith("it runs: ")
    assert "hello" in offer.actions[-1]
    assert run.node().journal.read_bytes() == before, "looking writes nothing"
    assert not started
    continuer.adopt(run)
    (how,) = started
    assert (how["run"], how["record"].settings.interactive, bool(how["continued_by"])) == (run, True, True)


def test_a_screen_leaves_what_has_to_be_asked_first_to_the_command(tmp_path: Path, started: Started) -> None:
    run = failed_run(tmp_path, None, STARTED, INTENDED, RUNS)
    continuer = open_app.continuer({})
    (refusal,) = continuer.examine(run).refusals
    assert refusal == f"something has to be asked first: `stoker continue {run.run_id}` does"
    with pytest.raises(takeover.NotAdopted):
        continuer.adopt(run)
    assert not started


SAVED = ev.CheckpointCommitted(t=T, attempt=1, step=40, path="/data/out/last.bin", found=True)
KEPT = ev.CheckpointKept(t=T, attempt=2, step=40, path="/data/out/last.bin", copy="/runs/run-1/copy")


@pytest.mark.parametrize(
    ("facts", "flags", "knobs", "is_started"),
    [
        ((SAVED,), "", Knobs(), False),
        ((SAVED, msgspec.structs.replace(KEPT, step=30)), "", Knobs(), False),  # the copy of an older one
        ((SAVED, msgspec.structs.replace(KEPT, copy="", why="no room")), "", Knobs(), False),
        ((SAVED, KEPT), "", Knobs(), True),
        ((SAVED,), "--restart-from-scratch", Knobs(), True),
        ((), "", Knobs(), True),  # nothing was saved
        ((SAVED,), "", Knobs(self_resuming=True), True),
        ((SAVED,), "", Knobs(resume="--go", resume_value=""), True),
    ],
)
def test_where_nobody_knows_how_the_script_resumes_its_checkpoint_is_not_written_over(
    tmp_path: Path,
    call: Call,
    started: Started,
    facts: tuple[ev.Event, ...],
    flags: str,
    knobs: Knobs,
    is_started: bool,
) -> None:
    record = job_of(tmp_path, "echo", "hello", knobs=knobs)
    run = failed_run(tmp_path, record, STARTED, INTENDED, RUNS, *facts, ENDED, DIAGNOSED, GAVE_UP)
    before = run.node().journal.read_bytes()
    code, _, err = call(f"continue --yes {flags} --detach", run.root)
    assert (code, len(started)) == ((0, 1) if is_started else (2, 0)), err
    if not is_started:
        why = "how the script resumes is not known, and it may write over /data/out/last.bin (step 40)"
        last = f"stoker continue: run-1: not continued: {why}: --restart-from-scratch allows it"
        assert err.splitlines()[-1] == last
        assert run.node().journal.read_bytes() == before

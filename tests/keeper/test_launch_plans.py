"""The next plan out of run.json and the journal; secrets; what a person may ask for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.job.batch import BatchChange, with_micro_batch
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind
from supervisor.keeper.base.job_secrets import with_secrets, without_secrets
from supervisor.keeper.planning import launch_plans as plans
from supervisor.run import events as ev
from supervisor.run.control import RequestArgs
from supervisor.run.node_files import Launch
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, Decision, DecisionKind, FailureClass, Reason, SpecChange
from supervisor.run.runfile import KeeperSettings
from supervisor.run.state import AttemptState, Backoff, HeldOpen, RunState
from supervisor.text.redact import HIDDEN
from tests.keeper.fakes import BATCH, KNOBS, job_of

TOKEN_VALUE = "hf_" + "a" * 24


def state_of(changes: Sequence[SpecChange | None], kind: DecisionKind = DecisionKind.RESTART) -> RunState:
    decisions = [Decision(kind, "why", change=change) for change in changes]
    views = [AttemptState(number=n + 1, planned_t=0.0, decision=d) for n, d in enumerate(decisions)]
    return RunState(attempts=tuple(views))


def waiting(state: RunState) -> RunState:
    """The same, waiting for a person."""
    held = HeldOpen(attempt=1, reason="why", decision=state.attempts[-1].decision)
    return msgspec.structs.replace(state, condition=held)


def test_a_checkpoint_that_was_once_chosen_is_not_returned_to_for_ever(tmp_path: Path) -> None:
    knobs = replace(KNOBS, resume="--resume", resume_value="auto")
    record = job_of(
        tmp_path, entry="train.py", entry_kind=EntryKind.SCRIPT, entry_args=(), nproc_per_node=2, knobs=knobs
    )
    run = RunPaths(tmp_path / "run-1")
    state = state_of([SpecChange(set_args=(("--resume", "c/4"),)), SpecChange()])
    bad = ev.CheckpointCommitted(t=1.0, attempt=1, step=8, path="c/8")
    early = msgspec.structs.replace(state, attempts=state.attempts[:1], checkpoints=(bad,))
    assert plans.plan_next(record, early, run, run.node().attempt(2), {}).resume == "c/4"
    before = msgspec.structs.replace(state, checkpoints=(bad,))
    assert plans.plan_next(record, before, run, run.node().attempt(3), {}).resume == "c/4", (
        "nothing newer yet"
    )
    good = ev.CheckpointCommitted(t=2.0, attempt=2, step=6, path="c/6")
    after = msgspec.structs.replace(state, checkpoints=(bad, good))
    plan = plans.plan_next(record, after, run, run.node().attempt(3), {})
    assert plan.resume == "c/6", "neither the one from before, nor the bad one of a higher step"
    assert "--resume=c/6" in plan.argv


@pytest.mark.fault(
    "secrets and access",
    "a run with secret variables is adopted",
    "the adopting keeper takes them from its own environment",
)
def test_nothing_secret_is_written_and_an_adopting_keeper_takes_it_from_its_own_environment(
    tmp_path: Path,
) -> None:
    url = f"https://kim:{'p' * 12}@host/x"
    record = job_of(
        tmp_path, "train", "--lr", "1",
        env=(("HF_TOKEN", TOKEN_VALUE), ("URL", url), ("PLAIN", "x")),
        origins=(("env.HF_TOKEN", TOKEN_VALUE, "flag --env"), ("env.URL", url, "flag --env"), ("lr", "1", "flag")),
    )  # fmt: skip
    kept = without_secrets(record)
    written = msgspec.json.encode(kept).decode()
    assert TOKEN_VALUE not in written
    assert "p" * 12 not in written
    mine = {"HF_TOKEN": "other", "URL": "mine", "PLAIN": "not this one"}
    again = with_secrets(kept.job, mine)
    assert dict(again.env) == {"HF_TOKEN": "other", "URL": "mine", "PLAIN": "x"}
    with pytest.raises(JobError, match="HF_TOKEN, URL"):
        with_secrets(kept.job, {})
    assert with_secrets(record.job, {}) == record.job, "who has them needs no environment"


@pytest.mark.parametrize(
    "words", [("train", "--api-key", "abc"), ("bash", "-c", f"A_TOKEN={TOKEN_VALUE} train")]
)
def test_a_secret_argument_needs_the_whole_job_again(tmp_path: Path, words: tuple[str, ...]) -> None:
    record = without_secrets(job_of(tmp_path, *words))
    written = msgspec.json.encode(record).decode()
    assert "abc" not in written
    assert TOKEN_VALUE not in written
    with pytest.raises(JobError, match=r"argument 2 \(.*start the job again with `stoker run`") as raised:
        with_secrets(record.job, {})
    assert "\n" not in raised.value.message


@pytest.mark.fault(
    "secrets and access",
    "an argument redacted on disk is not supplied again",
    "it is requested, never launched redacted",
)
def test_a_plan_with_something_hidden_is_never_launched(tmp_path: Path) -> None:
    record = job_of(tmp_path, "train", "--api-key", "abc")
    run = RunPaths(tmp_path / "run-1")
    typed_around = state_of([SpecChange(argv=("--lr", "1", "--api-key", HIDDEN))])
    plan = plans.plan_next(record, typed_around, run, run.node().attempt(2), {})
    assert plan.argv[-4:] == ("--lr", "1", "--api-key", "abc"), "what a person left as it was shown"
    state = state_of([SpecChange(argv=("--other-key", HIDDEN))])
    with pytest.raises(JobError, match="<redacted>: a secret, not kept on disk"):
        plans.plan_next(record, state, run, run.node().attempt(2), {})


def test_plan_json_is_private_text_without_secrets(tmp_path: Path) -> None:
    record = job_of(tmp_path, "train", "--api-key", "abc", env=(("HF_TOKEN", TOKEN_VALUE),))
    run = RunPaths(tmp_path / "run-1")
    paths = run.node().attempt(1)
    plan = plans.plan_next(record, RunState(), run, paths, {})
    plans.write_plan(paths, plan)
    written = paths.plan.read_text(encoding="utf-8")
    assert json.loads(written)["argv"] == ["train", "--api-key", HIDDEN]
    assert TOKEN_VALUE not in written
    assert plan.argv == ("train", "--api-key", "abc")
    assert paths.root.stat().st_mode & 0o777 == 0o700


KEPT = "holds a secret, which the journal would keep: start the job again with it"
NO_VARIABLE = "is not the name and value of a variable"
NO_DIVISOR = (
    "does not divide the 32 samples a rank takes a step (global batch 64, 2 ranks); micro-batch that works"
)
REFUSED = [
    (RequestArgs(micro_batch=5), f"micro-batch 5 {NO_DIVISOR}: 4, 2, 1"),
    (RequestArgs(micro_batch=0), f"micro-batch 0 {NO_DIVISOR}: 1, 2, 4"),
    (RequestArgs(micro_batch=-4), f"micro-batch -4 {NO_DIVISOR}: 1, 2, 4"),
    (RequestArgs(env={"HF_TOKEN": "abc"}), f"HF_TOKEN {KEPT}"),
    (RequestArgs(env={"X": TOKEN_VALUE}), f"X {KEPT}"),
    (RequestArgs(env={"A=B": "c"}), f"'A=B' {NO_VARIABLE}"),
    (RequestArgs(env={"": "c"}), f"'' {NO_VARIABLE}"),
    (RequestArgs(env={"A": "c\0d"}), f"'A' {NO_VARIABLE}"),
    (RequestArgs(argv=("--token", "abc")), f"an argument {KEPT}"),
    (RequestArgs(argv=("a\0b",)), "an argument holds a NUL byte"),
]


@pytest.mark.parametrize(("args", "why"), REFUSED)
def test_requests_that_cannot_be_carried_out_are_refused_in_one_line(
    tmp_path: Path, args: RequestArgs, why: str
) -> None:
    job = job_of(tmp_path, batch=BATCH, knobs=KNOBS)
    with pytest.raises(plans.BadChange) as raised:
        plans.requested_change(job, RunState(), args)
    assert str(raised.value) == why


def test_agents_of_several_nodes_meet_at_a_free_port_or_by_an_id_of_the_attempt(tmp_path: Path) -> None:
    run, nodes = RunPaths(tmp_path / "run-1"), (0, 2)
    job: dict[str, Any] = {
        "entry": "train.py",
        "entry_kind": EntryKind.SCRIPT,
        "entry_args": (),
        "nnodes": "2",
        "node_rank": 2,
    }

    def planned(**changes: Any) -> tuple[Launch, list[str]]:
        record = job_of(tmp_path, **{**job, **changes})
        record = msgspec.structs.replace(record, settings=KeeperSettings(shared=True))
        launch, copy = plans.next_launch(record, RunState(), run, {}, nodes)
        assert copy is None
        plan = plans.plan_launch(record, launch, 1, run, run.node(2).attempt(1), {})
        flags = [
            word
            for word in plan.argv
            if word.startswith(("--nnodes", "--node-rank", "--master-port", "--rdzv"))
        ]
        return launch, sorted(flags)

    launch, flags = planned()
    assert (launch.nodes, launch.rdzv_id) == (nodes, None)
    assert launch.master_port is not None
    assert flags == [f"--master-port={launch.master_port}", "--nnodes=2", "--node-rank=1"]
    launch, flags = planned(master_port=7)
    assert (launch.master_port, flags[0]) == (7, "--master-port=7")
    meets = ("--rdzv-backend=c10d", "--rdzv-endpoint=a:1")
    for named, rdzv_id in (((), "run-1-1"), (("--rdzv-id=mine",), "mine-1")):
        launch, flags = planned(torchrun_flags=(*meets, *named))
        assert (launch.master_port, launch.rdzv_id) == (None, rdzv_id)
        assert [flag for flag in flags if flag.startswith("--rdzv")] == [*meets, f"--rdzv-id={rdzv_id}"]


@pytest.mark.parametrize(
    ("how", "failure", "reason", "action"),
    [
        ({}, FailureClass.USAGE_ERROR, None, Action.STOP),
        ({"disk_full": True, "killed": True}, FailureClass.DISK_FULL, None, Action.WAIT_DISK),
        ({"killed": True}, FailureClass.TERMINATED, Reason.OUTSIDE, Action.RESTART),
    ],
)
def test_a_launch_that_never_started_is_judged_by_why(
    how: dict[str, bool], failure: FailureClass, reason: Reason | None, action: Action
) -> None:
    found = plans.spawn_verdict("no such file", **how)
    assert (found.failure, found.reason, found.action, found.confidence) == (failure, reason, action, 1.0)
    told = ("could not be launched: no such file", ("see plan.json of the attempt for the command",), "spawn")
    assert (found.title, found.advice, found.fingerprint) == told


def test_a_batch_request_needs_a_known_knob_and_starts_from_the_present_batch(tmp_path: Path) -> None:
    with pytest.raises(plans.BadChange, match="--batch-knob"):
        plans.requested_change(job_of(tmp_path, batch=BATCH), RunState(), RequestArgs(micro_batch=8))
    alone = replace(KNOBS, accumulation=None)
    with pytest.raises(plans.BadChange, match="no accumulation is known beside --micro"):
        plans.requested_change(
            job_of(tmp_path, batch=BATCH, knobs=alone), RunState(), RequestArgs(micro_batch=8)
        )
    job = job_of(tmp_path, batch=BATCH, knobs=KNOBS)
    state = state_of([SpecChange(batch=BatchChange(BATCH, with_micro_batch(BATCH, 8)))])
    change = plans.requested_change(job, state, RequestArgs(micro_batch=4, env={"A": "1"}))
    assert change.batch is not None
    assert (change.batch.before.micro_batch_per_rank, change.batch.after.micro_batch_per_rank) == (8, 4)
    assert change.env == (("A", "1"),)


def test_what_a_run_is_held_with_is_what_is_accepted(tmp_path: Path) -> None:
    job = job_of(tmp_path, batch=BATCH, knobs=KNOBS)
    change = SpecChange(
        batch=BatchChange(BATCH, with_micro_batch(BATCH, 8)), set_args=(("--num_workers", "2"),)
    )
    for kind in (DecisionKind.HOLD, DecisionKind.RESTART):  # the latter where a person stopped the restart
        held = waiting(state_of([change], kind))
        assert plans.requested_change(job, held, RequestArgs(offered=True)) == change
    for state in (state_of([change]), waiting(state_of([None], DecisionKind.HOLD)), RunState()):
        with pytest.raises(plans.BadChange, match="nothing is on offer"):
            plans.requested_change(job, state, RequestArgs(offered=True))


def test_an_edit_of_a_restart_that_waits_keeps_its_change(tmp_path: Path) -> None:
    """Only a variable was added: the smaller batch that the restart was about to have was lost with it."""
    job = job_of(tmp_path, entry_args=("--micro", "16", "--accumulation", "2"), batch=BATCH, knobs=KNOBS)
    pending = SpecChange(
        batch=BatchChange(BATCH, with_micro_batch(BATCH, 8)),
        env=(("A", "1"), ("B", "1")),
        set_args=(("--num_workers", "2"),),
        new_port=True,
    )
    stopped = waiting(state_of([pending]))
    counting = msgspec.structs.replace(
        stopped, condition=Backoff(attempt=1, until=9.0, decision=Decision(DecisionKind.RESTART, ""))
    )
    for state in (stopped, counting):
        change = plans.requested_change(job, state, RequestArgs(env={"B": "2", "C": "3"}))
        assert change == replace(pending, env=(("A", "1"), ("B", "2"), ("C", "3")))
        words = ("--micro", "8", "--accumulation", "4", "--lr", "1")
        change = plans.requested_change(job, state, RequestArgs(argv=words))
        assert (change.argv, change.batch, change.env) == (words, pending.batch, pending.env)
        assert change.set_args == (), "it stood among the words, and was taken out"
        other = ("--micro", "4", "--accumulation", "8")
        assert plans.requested_change(job, state, RequestArgs(argv=other)).batch is None, "typed over"
        assert plans.requested_change(job, state, RequestArgs(micro_batch=4)).env == ()
        assert plans.requested_change(job, state, RequestArgs()) == SpecChange(), "r restarts it unchanged"


def test_an_edited_script_has_another_hash(tmp_path: Path) -> None:
    job = job_of(tmp_path, entry="t.py", entry_kind=EntryKind.SCRIPT).job
    assert plans.script_hash(job) is None
    (tmp_path / "t.py").write_text("1", encoding="utf-8")
    first = plans.script_hash(job)
    (tmp_path / "t.py").write_text("2", encoding="utf-8")
    assert first is not None
    assert plans.script_hash(job) not in {None, first}
    views = [
        AttemptState(number=n, planned_t=0.0, script_hash=h) for n, h in enumerate([first, None, first, "x"])
    ]
    assert plans.script_was_edited(RunState(attempts=tuple(views)))
    assert not plans.script_was_edited(RunState(attempts=tuple(views[:3])))

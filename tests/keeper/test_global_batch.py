"""Whatever the script's settings count: the restarts that the keeper really makes keep the global batch, or none is made."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from supervisor.job.arguments.command_line import value_of
from supervisor.job.errors import JobError
from supervisor.job.knobs.set_batch import batch_of
from supervisor.job.launch.oom_plan import oom_plan
from supervisor.job.spec import AccumulationCounts, EntryKind, Knobs, KnobScope, RetrySettings
from supervisor.keeper.planning import attempt_evidence
from supervisor.keeper.planning import launch_plans as plans
from supervisor.keeper.planning.decisions import decide_next
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import DecisionKind, FailureClass
from supervisor.run.runfile import RunFile
from supervisor.run.state import AttemptState, RunState
from tests.keeper.fakes import job_of, verdict_of

MOST_RESTARTS = 12


@dataclass(frozen=True)
class Script:
    """A script's flags: --b its batch, --a its accumulation, --t a total from which it derives its accumulation; others beside them."""

    scope: KnobScope
    counts: AccumulationCounts
    paired: bool
    has_steps: bool
    has_total: bool
    twice: bool
    world: int

    @property
    def knobs(self) -> Knobs:
        same = [("--b2", "micro")] if self.twice else []
        same += [("--a2", "accumulation")] if self.twice and self.has_steps else []
        return Knobs(
            batch="--b",
            batch_scope=self.scope,
            accumulation="--a" if self.has_steps else None,
            global_batch="--t" if self.has_total else None,
            paired=self.paired and self.has_steps,
            counts=self.counts,
            same=tuple(same),
            self_resuming=True,
        )

    def counted(self, args: tuple[str, ...]) -> int | None:
        """Samples of one optimizer step as the script counts them; None where its own arithmetic refuses."""
        held = {
            name: int(value) for name in ("--b", "--a", "--t") if (value := value_of(args, name)) is not None
        }
        batch, steps, world = held["--b"], held.get("--a", 1), self.world
        if batch < 1 or steps < 1:
            return None
        if self.has_steps and self.counts is AccumulationCounts.ALL_RANKS:
            if steps % world:
                return None
            steps //= world
        match self.scope:
            case KnobScope.GLOBAL if not self.knobs.paired:
                return batch if batch % (world * steps) == 0 else None
            case KnobScope.GLOBAL | KnobScope.PER_NODE:
                each = batch // world if batch % world == 0 else None
            case KnobScope.PER_RANK | KnobScope.UNKNOWN:
                each = batch
        if each is None:
            return None
        if self.has_total and not self.has_steps:
            return held["--t"] if held["--t"] % (each * world) == 0 else None
        total = each * steps * world
        return total if not self.has_total or held["--t"] == total else None


SCRIPTS = some.builds(
    Script,
    scope=some.sampled_from(KnobScope),
    counts=some.sampled_from(AccumulationCounts),
    paired=some.booleans(),
    has_steps=some.booleans(),
    has_total=some.booleans(),
    twice=some.booleans(),
    world=some.integers(1, 8),
)


@pytest.fixture(autouse=True)
def _no_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_evidence, "_kind", lambda _: None)


@settings(deadline=None, max_examples=100)
@given(
    script=SCRIPTS,
    micro=some.integers(1, 64),
    steps=some.integers(1, 12),
    rounds=some.integers(1, 8),
    fitted=some.lists(some.integers(1, 64), max_size=2),
)
def test_each_restart_keeps_the_global_batch_or_none_is_made(
    script: Script, micro: int, steps: int, rounds: int, fitted: list[int]
) -> None:
    args = ["--b", str(micro), *(["--b2", str(micro)] if script.twice else [])]
    if script.has_steps:
        args += ["--a", str(steps), *(["--a2", str(steps)] if script.twice else [])]
    if script.has_total:
        args += ["--t", str(micro * script.world * (steps if script.has_steps else rounds))]
    first = script.counted(tuple(args))
    if first is None:
        return  # the script does not even start so
    try:
        batch = batch_of(args, script.knobs, world_size=script.world, local_world_size=script.world)
    except JobError:
        return
    with tempfile.TemporaryDirectory() as folder:
        record = job_of(
            Path(folder),
            entry="train.py", entry_kind=EntryKind.SCRIPT, entry_args=tuple(args), nproc_per_node=script.world,
            batch=batch, knobs=script.knobs, retry=RetrySettings(max_retries=50),
        )  # fmt: skip
        probes = tuple(
            ev.ProbeEnded(t=0.0, probe=n + 1, micro_batch=m, fitted=True, why="fits", took_s=1.0)
            for n, m in enumerate(fitted)
        )
        planned = oom_plan(record.job)
        made = _restarts(record, Path(folder), probes)
        if planned.changes:
            assert made, "what the dry run promises is done"
            assert fitted or all(value_of(made[0], c.knob) == c.new for c in planned.changes)
        for argv in made:
            assert script.counted(argv) == first, (args, argv)
            assert not script.twice or value_of(argv, "--b2") == value_of(argv, "--b")
            assert not (script.twice and script.has_steps) or value_of(argv, "--a2") == value_of(argv, "--a")


def _restarts(record: RunFile, folder: Path, probes: tuple[ev.ProbeEnded, ...]) -> list[tuple[str, ...]]:
    """The script's arguments of each restart, out of memory after out of memory."""
    run = RunPaths(folder / "run")
    verdict, found = verdict_of(FailureClass.CUDA_OOM), []
    state = RunState(attempts=(), probes=probes)
    batch = record.job.batch
    for number in range(1, MOST_RESTARTS):
        view = AttemptState(
            number=number,
            planned_t=0.0,
            batch=batch,
            verdict=verdict,
            exit_code=1,
            first_step=1,
            last_step=number,
        )
        state = RunState(attempts=(*state.attempts, view), probes=probes)
        decision = decide_next(record, state, env={"XDG_STATE_HOME": str(folder)})
        if decision.kind is not DecisionKind.RESTART:
            break
        assert decision.change is not None
        assert decision.change.batch is not None
        batch = decision.change.batch.after
        view = AttemptState(**{f: getattr(view, f) for f in view.__struct_fields__} | {"decision": decision})
        state = RunState(attempts=(*state.attempts[:-1], view), probes=probes)
        plan = plans.plan_next(record, state, run, run.node().attempt(number + 1), {})
        found.append(tuple(plan.argv[plan.argv.index("train.py") + 1 :]))
    return found

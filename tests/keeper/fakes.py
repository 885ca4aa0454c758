"""What tests of the keeper share: a clock that stands still, a torchrun that is none, jobs and verdicts."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from supervisor.job.batch import BatchSpec
from supervisor.job.launch.env import EnvChange
from supervisor.job.launch.plan import LaunchPlan
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope, Timing
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import Reported
from supervisor.run import events as ev
from supervisor.run.journal import JournalReader, JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, FailureClass, Reason, Verdict
from supervisor.run.runfile import KeeperSettings, RunFile, write_run_file

E = TypeVar("E", bound=ev.Event)
HOST = "box"
KNOBS = Knobs(
    batch="--micro",
    batch_scope=KnobScope.PER_RANK,
    accumulation="--accumulation",
    resume="--resume_from",
    declared=True,
)
BATCH = BatchSpec(micro_batch_per_rank=16, accumulation_steps=2, world_size=2)

# Starts children that look like torchrun's workers: each with its LOCAL_RANK, in a session of its own.
FAKE_TORCHRUN = """\
import os, subprocess, sys, time
ranks, rank_code, ignore_term = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "stubborn"
import signal
children = [
    subprocess.Popen([sys.executable, "-c", rank_code],
                     env={**os.environ, "LOCAL_RANK": str(r), "RANK": str(r)}, start_new_session=True)
    for r in range(ranks)
]
def pass_on(*_):
    for child in children:
        child.terminate()
signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore_term else pass_on)
codes = [child.wait() for child in children]
sys.exit(1 if any(codes) else 0)
"""
SLEEP = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


@dataclass
class FakeClock(Clock):
    """Time moves when a test says so."""

    now: float = 1000.0
    epoch: float = 1_795_000_000.0
    ahead: float = 0.0
    was_set: bool = False

    def mono(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.epoch + self.now

    def ahead_s(self) -> float:
        self.was_set = abs(self.ahead) >= 1.0
        return self.ahead


@dataclass
class Emitted:
    """Collects facts."""

    facts: list[ev.Event] = field(default_factory=list)

    def of(self, kind: type[E]) -> list[E]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def __call__(self, event: ev.Event) -> None:
        self.facts.append(event)


def plan_of(argv: tuple[str, ...], cwd: Path, env: tuple[EnvChange, ...] = ()) -> LaunchPlan:
    return LaunchPlan(
        attempt=1,
        argv=argv,
        cwd=str(cwd),
        env=(EnvChange("STOKER_RUN_DIR", str(cwd), "the run's mark"), *env),
        supervised_as="torchrun",
        torchrun_log_dir=None,
        batch=None,
        world_size=1,
        local_world_size=1,
    )


def fake_torchrun(
    tmp_path: Path, ranks: int, code: str = SLEEP, *, stubborn: bool = False
) -> tuple[str, ...]:
    script = tmp_path / "fake_torchrun.py"
    script.write_text(FAKE_TORCHRUN, encoding="utf-8")
    return (sys.executable, str(script), str(ranks), code, "stubborn" if stubborn else "polite")


def job_of(tmp_path: Path, *argv: str, interactive: bool = False, **changes: object) -> RunFile:
    """A run of a plain command."""
    words = argv or ("true",)
    fields: dict[str, object] = {
        "name": "job",
        "entry_kind": EntryKind.COMMAND,
        "entry": words[0],
        "entry_args": words[1:],
        "cwd": str(tmp_path),
        "timing": Timing(grace_s=1.0, death_grace_s=0.5, hold_s=50.0),
        **changes,
    }
    return RunFile(
        run_id="run-1",
        job=JobSpec(**fields),  # type: ignore[arg-type]  # a test's own dict
        interpreter=sys.executable,
        settings=KeeperSettings(interactive=interactive, sample_interval_s=60.0),
        created_t=0.0,
        host=HOST,
        user="kim",
        stoker_version="0",
    )


def verdict_of(failure: FailureClass = FailureClass.CODE_ERROR) -> Verdict:
    return Verdict(failure, None, 1.0, 0, (0,), None, "it broke", None, (), (), Action.STOP, "f1")


def evidence(
    text: str, rank: int | None = 1, *, t: float = 1.0, failure: FailureClass = FailureClass.CODE_ERROR
) -> Reported:
    """A line that shows a cause."""
    path, line = "t/1/stderr.log", 4
    found = ev.EvidenceSeen(
        t=t, attempt=0, failure=failure, role="cause", text=text, path=path, line=line, rank=rank
    )
    return Reported(found, rank)


def stopped_verdict() -> Verdict:
    """Of an attempt that a person stopped."""
    return Verdict(
        failure=FailureClass.TERMINATED,
        reason=Reason.USER,
        confidence=0.97,
        rank=None,
        ranks=(),
        node=None,
        title="Stopped on request",
        cause=None,
        consequences=(),
        advice=(),
        action=Action.STOP,
        fingerprint="",
    )


def run_in(tmp_path: Path, *facts: ev.Event) -> RunPaths:
    """A run directory with this journal."""
    run = RunPaths(tmp_path / "run-1")
    run.node().root.mkdir(parents=True)
    writer = JournalWriter(run.node().journal)
    for fact in facts:
        writer.append(fact)
    writer.close()
    return run


def own_run_in(tmp_path: Path, record: RunFile, *facts: ev.Event) -> RunPaths:
    """A run directory with this journal, as `stoker run` leaves it: ours, and with the path where it lies."""
    run = run_in(tmp_path, *facts)
    for folder in (run.root, run.root / "nodes", run.node().root):
        folder.chmod(0o700)
    here = msgspec.structs.replace(record, path=os.path.realpath(run.root), uid=os.geteuid())
    write_run_file(run.run_json, here)
    return run


def facts_of(run: RunPaths) -> list[ev.Event]:
    return JournalReader(run.node().journal).read()

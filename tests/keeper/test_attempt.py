"""A live attempt on a torchrun that is none: ranks are found, ended, swept; intents come before acts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, Timing
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.process.attempt import LiveAttempt
from supervisor.keeper.process.child import Child, spawn
from supervisor.run import events as ev
from supervisor.run.paths import AttemptPaths
from supervisor.run.state import AttemptState, RankState
from supervisor.sources import processes
from supervisor.sources.processes import ProcessId, is_alive, send_signal
from supervisor.views.headless.console import event_lines
from tests.conftest import TOKEN, processes_with, wait_until
from tests.keeper.fakes import SLEEP, STUBBORN, E, fake_torchrun, job_of, plan_of


@dataclass
class Watched:
    """An attempt and the facts it gave so far."""

    live: LiveAttempt
    facts: list[ev.Event] = field(default_factory=list)

    def until(self, condition: Callable[[], object], deadline_s: float = 15.0) -> bool:
        def look() -> object:
            self.facts += self.live.watch()
            return condition()

        return wait_until(look, deadline_s)

    def stop(self, why: ev.StopWhy = ev.StopWhy.REQUEST, *, grace_s: float = 30.0, now: bool = False) -> None:
        intent = self.live.stop(why, "kim", grace_s=grace_s, now=now)
        self.facts += [intent] if intent is not None else []

    def of(self, kind: type[E]) -> list[E]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def steps(self) -> list[ev.StopStep]:
        return [fact.step for fact in self.facts if isinstance(fact, ev.StopStepTaken)]


@contextmanager
def watched(
    tmp_path: Path,
    argv: tuple[str, ...],
    ranks: int = 2,
    *,
    ends: Callable[[], bool] = lambda: False,
    death_grace_s: float = 0.2,
    whole_tree: bool = False,
    adopt: Child | None = None,
) -> Iterator[Watched]:
    child = adopt or spawn(plan_of(argv, tmp_path), AttemptPaths(tmp_path / "1"), os.environ)
    kind = EntryKind.COMMAND if whole_tree else EntryKind.SCRIPT
    timing = Timing(death_grace_s=death_grace_s)
    job = job_of(tmp_path, entry_kind=kind, nproc_per_node=ranks, timing=timing).job
    live = LiveAttempt(1, child, run_dir=str(tmp_path), clock=Clock(), job=job, ends=ends)
    try:
        yield Watched(live)
    finally:
        for process in live.alive():
            send_signal(process)
        wait_until(lambda: child.poll() is not None, 5)


def started(attempt: Watched, ranks: int = 2) -> bool:
    return attempt.until(lambda: len(attempt.live.ranks) == ranks)


def test_ranks_are_found_by_their_environment_and_leave_by_themselves(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    with watched(tmp_path, fake_torchrun(tmp_path, 2, code)) as attempt:
        assert started(attempt)
        found = {f.local_rank: f.rank for f in attempt.facts if isinstance(f, ev.RankStarted)}
        assert found == {0: 0, 1: 1}
        gate.touch()
        assert attempt.until(attempt.live.is_over)
        assert attempt.live.exit is not None
        assert attempt.live.exit.exit_code == 0
        assert not attempt.of(ev.StopIntended)
        assert attempt.until(lambda: len(attempt.of(ev.RankExited)) == 2)


def test_a_stop_is_intended_before_any_signal_and_sigterm_goes_to_the_agent_alone(tmp_path: Path) -> None:
    with watched(tmp_path, fake_torchrun(tmp_path, 2)) as attempt:
        assert started(attempt)
        attempt.stop()
        assert attempt.until(attempt.live.is_over)
        assert attempt.steps() == [ev.StopStep.SIGTERM]
        term = next(f for f in attempt.facts if isinstance(f, ev.StopStepTaken))
        assert term.pids == (attempt.live.child.pid.pid,)
        kinds = [type(fact) for fact in attempt.facts]
        assert kinds.index(ev.StopIntended) < kinds.index(ev.StopStepTaken)


def test_ranks_hear_of_a_stop_whose_agent_dies_before_it_passes_it_on(tmp_path: Path) -> None:
    with watched(tmp_path, fake_torchrun(tmp_path, 2)) as attempt:
        assert started(attempt)
        ranks = sorted(rank.pid for rank in attempt.live.ranks.values())
        send_signal(attempt.live.child.pid, signal.SIGSTOP)
        attempt.stop()
        assert attempt.until(lambda: attempt.steps() == [ev.StopStep.SIGTERM])
        send_signal(attempt.live.child.pid, signal.SIGKILL)
        assert attempt.until(attempt.live.is_over)
        assert attempt.steps() == [ev.StopStep.SIGTERM] * 2, "they may save, and are not killed"
        assert sorted(attempt.of(ev.StopStepTaken)[-1].pids) == ranks


def test_peers_of_a_dead_rank_get_the_short_grace_and_the_agent_reports(tmp_path: Path) -> None:
    ending = threading.Event()
    with watched(
        tmp_path, fake_torchrun(tmp_path, 2, STUBBORN), ends=ending.is_set, death_grace_s=1.0
    ) as attempt:
        assert started(attempt)
        ending.set()
        assert attempt.until(attempt.live.is_over)
        assert attempt.live.exit is not None
        assert attempt.live.exit.exit_code == 1, "the agent itself was not killed"
        kinds = [type(f) for f in attempt.facts if isinstance(f, ev.StopIntended | ev.StopStepTaken)]
        assert kinds == [ev.StopIntended, ev.StopStepTaken]
        assert attempt.steps() == [ev.StopStep.SIGKILL]


def test_a_persons_stop_takes_over_a_restart_but_not_the_other_way_round(tmp_path: Path) -> None:
    with watched(tmp_path, fake_torchrun(tmp_path, 1), 1) as attempt:
        assert started(attempt, 1)
        attempt.stop(ev.StopWhy.RESTART)
        attempt.stop(ev.StopWhy.REQUEST)
        attempt.stop(ev.StopWhy.RANK_DIED)
        attempt.stop(ev.StopWhy.SIGNAL)
        whys = [f.why for f in attempt.facts if isinstance(f, ev.StopIntended)]
        assert whys == [ev.StopWhy.RESTART, ev.StopWhy.REQUEST]
        assert attempt.until(attempt.live.is_over)
        assert attempt.steps() == [ev.StopStep.SIGTERM], "one stop sequence"


def test_a_stop_of_a_plain_command_reaches_what_its_shell_does_not_pass_on(tmp_path: Path) -> None:
    line = f"{sys.executable} -c '{SLEEP}'; true"
    with watched(tmp_path, ("sh", "-c", line), 1, whole_tree=True) as attempt:
        assert attempt.until(lambda: len(attempt.live.child.tree()) == 1)
        attempt.stop()
        assert attempt.until(attempt.live.is_over)
        assert len(processes_with(os.environ[TOKEN])) == 0


def test_a_trainer_that_speaks_the_wire_is_asked_first(tmp_path: Path) -> None:
    stop_file = tmp_path / "1" / "stop"
    code = f"import os, time\nwhile not os.path.exists({str(stop_file)!r}): time.sleep(0.01)"
    with watched(tmp_path, fake_torchrun(tmp_path, 2, code)) as attempt:
        assert started(attempt)
        attempt.live.sends_telemetry = True
        attempt.stop()
        assert attempt.until(attempt.live.is_over)
        assert attempt.steps() == [ev.StopStep.ASK]
        assert attempt.live.exit is not None
        assert attempt.live.exit.exit_code == 0


def test_an_adopting_keeper_knows_ranks_whose_agent_is_gone(tmp_path: Path) -> None:
    with watched(tmp_path, fake_torchrun(tmp_path, 2, STUBBORN)) as first:
        assert started(first)
        ranks = first.live.ranks
        send_signal(first.live.child.pid, signal.SIGKILL)
        assert wait_until(lambda: first.live.child.poll() is not None, 5)
        view = AttemptState(
            number=1,
            planned_t=0.0,
            ranks={
                n: RankState(local_rank=n, rank=n, pid=p.pid, start_time=p.start_time, stderr="e")
                for n, p in ranks.items()
            },
        )
        with watched(tmp_path, (), adopt=first.live.child) as second:
            second.live.know(view)
            assert second.until(second.live.is_over)
            assert not any(is_alive(rank) for rank in ranks.values())
            assert not second.of(ev.RankStarted), "what was journalled is not journalled again"


def test_a_recycled_pid_in_the_journal_is_no_rank_of_ours(tmp_path: Path) -> None:
    with watched(tmp_path, fake_torchrun(tmp_path, 1), 1) as attempt:
        assert started(attempt, 1)
        innocent = attempt.live.ranks[0]
        attempt.live.ranks[0] = ProcessId(innocent.pid, innocent.start_time - 5.0)
        assert attempt.until(lambda: attempt.of(ev.RankExited))
        assert is_alive(innocent)
        attempt.live.ranks[0] = innocent


@pytest.mark.fault(
    "processes",
    "a rank in uninterruptible sleep (state D, injected)",
    "reported as such; the stop is bounded",
)
def test_what_no_signal_reaches_is_reported_as_such_and_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State D cannot be made at will: the signals are left out, and the state of one of them is read as D."""
    monkeypatch.setattr("supervisor.keeper.process.attempt.kill_all", lambda pids, *_: list(pids))
    monkeypatch.setattr("supervisor.keeper.process.attempt.KILL_WAIT_S", 0.5)
    with watched(tmp_path, fake_torchrun(tmp_path, 2)) as attempt:
        assert started(attempt)
        stuck = attempt.live.ranks[1]
        read = processes._read_stat

        def waits_in_the_kernel(pid: int) -> processes.ProcessStat | None:
            found = read(pid)
            return replace(found, state="D") if found is not None and pid == stuck.pid else found

        monkeypatch.setattr(processes, "_read_stat", waits_in_the_kernel)
        attempt.stop(grace_s=0.2)
        assert attempt.until(attempt.live.is_over), "each step is bounded"
        assert attempt.steps()[-3:] == [ev.StopStep.SIGKILL, ev.StopStep.SWEEP, ev.StopStep.SURVIVORS]
        last = [fact for fact in attempt.facts if isinstance(fact, ev.StopStepTaken)][-1]
        assert stuck.pid in last.pids
        assert last.uninterruptible == (stuck.pid,)
        assert f"{stuck.pid} (state D)" in last.labels
        ((_, text),) = event_lines(last)
        assert "(state D): they wait in the kernel" in text


def test_a_launcher_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was frozen: the command is killed, and only the launcher could tell how it ended."""
    monkeypatch.setattr("supervisor.keeper.process.attempt.KILL_WAIT_S", 0.5)
    monkeypatch.setattr("supervisor.keeper.process.child.REAP_S", 0.5)
    with watched(tmp_path, (sys.executable, "-c", SLEEP), 1) as seen:
        launcher = seen.live.child.launcher
        assert send_signal(launcher, signal.SIGSTOP)
        try:
            seen.stop(now=True)
            assert seen.until(seen.live.is_over)
            last = [fact for fact in seen.facts if isinstance(fact, ev.StopStepTaken)][-1]
            assert (last.step, last.pids) == (ev.StopStep.SURVIVORS, (launcher.pid,))
            ((_, text),) = event_lines(last)
            assert text == f"would not end: pids {launcher.pid}"
        finally:
            send_signal(launcher, signal.SIGCONT)

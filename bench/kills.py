"""Random SIGKILLs of keeper, viewers, launcher, command and ranks, alone and together, and what must hold after each.

`bench/fault_run.py` plays these rounds, and others with them.

A round is one run: torchrun with two ranks, a home-made launcher of two ranks, or a shell's pipeline; detached or in a terminal's
stead; watched by `attach --no-ui` and by the Textual app in a pseudo-terminal. It is hit one to three times, at moments drawn from
the seed: in the first 50 ms of its newest victim, while it starts, in its steps, while it is being stopped, while it ends. After each hit comes what a person would do
(`attach --adopt`, `continue`, a restart of a held run), and these must hold:

- every line of the journal is whole JSON of a known kind (one that a keeper died in is ended by the next keeper's), what a
  keeper did stands in the order of time, and its fold is what a view that read along, `read_state` and a replay have;
- every living process of ours is the keeper, a viewer, a command that was given here, or of the newest attempt; in the end none is left;
- a stranger with the same command line beside the run lives on, untouched;
- every checkpoint with a marker loads, and the journal's newest one is there;
- attempts: exactly one more for each hit that took the command or a rank, and as many as the job itself saw, never two at a time:
  no process starts while one of another attempt lives, and no rank of two attempts made steps at the same time;
- every step in a log is in the series, once (of more than 200 read at once the last); its lines are numbered without a gap;
- an end is `lost` only where launcher and keeper were both killed, or launcher and command in the same moment;
- in the end `stoker continue` starts the next attempt of a run that was stopped, and refuses one that succeeded.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Union

import msgspec

from bench.common import ROOT
from bench.rounds import COMMAND_S, FOREIGN, STOKER, Broken, Processes, Tally
from bench.stage import Terminal
from supervisor.keeper.monitoring.log_monitor import BATCH_SAMPLES
from supervisor.keeper.process.child import LAUNCHER, read_launcher, read_pid
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import fold
from supervisor.run.journal import StateReader, facts_in, read_state
from supervisor.run.ownership import NotRequested, ask, keeper_is_alive, read_holder
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS
from supervisor.sources.processes import (
    ProcessId,
    command_of,
    descendants,
    identify,
    is_alive,
    parent_of,
    read_cmdline,
    read_environ,
    send_signal,
)
from supervisor.views.model.replay import record_of
from tests.conftest import wait_until
from tests.integration.scripts.killed_training import load, whole_checkpoints

SCRIPT = str(ROOT / "tests" / "integration" / "scripts" / "killed_training.py")
REFUSED = 3
FOLLOW_UP_S = 120.0
SCREEN_S = 180.0
LEFT_S = 15.0
SETTINGS = """
[policy]
flap_max = 100000
max_retries = 1000
""" + "".join(
    f"[policy.{name}]\ndelay_s = 0\n"
    for name in ("worker_crash", "host_oom", "terminated", "unknown", "healthy")
)


class Kind(StrEnum):
    """The launcher of the job."""

    LAUNCHER = "home-made launcher"
    PIPELINE = "shell pipeline"
    TORCHRUN = "torchrun"


class Victim(StrEnum):
    """The process that is killed."""

    KEEPER = "keeper"
    VIEWER = "viewer"
    LAUNCHER = "launcher"
    COMMAND = "command"  # torchrun's agent, the home-made launcher, the shell
    RANK = "one rank"
    RANKS = "all ranks"


class Moment(StrEnum):
    """The moment of a kill."""

    FIRST = "first 50 ms"
    START = "start"
    STEPS = "steps"
    STOP = "stop"
    END = "end"


LETHAL = frozenset({Victim.COMMAND, Victim.RANK, Victim.RANKS})
ACTS = (
    ev.KeeperStarted,
    ev.LaunchIntended,
    ev.StopIntended,
    ev.StopStepTaken,
    ev.AttemptEnded,
    ev.Diagnosed,
    ev.Decided,
    ev.ChangePlanned,
    ev.BackoffStarted,
    ev.RequestDone,
    ev.RunEnded,
    ev.KeeperLeft,
)
KINDS = {Kind.LAUNCHER: 4, Kind.PIPELINE: 4, Kind.TORCHRUN: 2}


@dataclass(frozen=True, slots=True)
class Hit:
    """One moment with its victims. `share`: the position within it, from 0 to 1."""

    moment: Moment
    victims: tuple[Victim, ...]
    share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A round drawn from the seed. `end`: how it ends if no hit ended it."""

    number: int
    kind: Kind
    detached: bool
    hits: tuple[Hit, ...]
    end: str


def drawn(seed: int, number: int) -> Plan:
    """Return the plan of a round."""
    dice = random.Random(f"{seed}/{number}")
    kind = dice.choices(list(KINDS), list(KINDS.values()))[0]
    count = dice.randint(1, 3)
    hits = []
    for place in range(count):
        moments = [Moment.STEPS] * 4
        moments += [Moment.START, Moment.FIRST] * 2 if place == 0 else []
        moments += [Moment.STOP, Moment.END] * 3 if place == count - 1 else []
        several = dice.random() < 0.5
        victims = tuple(dice.sample(list(Victim), dice.randint(2, 4) if several else 1))
        hits.append(Hit(dice.choice(moments), victims, dice.random()))
    return Plan(
        number,
        kind,
        dice.random() < 0.7,
        tuple(hits),
        dice.choice(["finish", "finish", "stop", "stop --now"]),
    )


class Round:
    """One run, from its start to the last check."""

    def __init__(self, plan: Plan, folder: Path, tally: Tally) -> None:
        self.plan, self.folder, self.tally = plan, folder, tally
        self.work = folder / "job"
        self.work.mkdir()
        self.processes = Processes(folder, XDG_CACHE_HOME=str(folder.parent / "cache"))
        # The environment of the command that starts the run, and so of its keeper.
        self.run_env: dict[str, str] = {}
        (folder / "stoker.toml").write_text(SETTINGS, encoding="utf-8")
        self.viewers: list[subprocess.Popen[bytes]] = []
        self.screens: list[Terminal] = []
        self._found: RunPaths | None = None
        self.along: StateReader | None = None
        # How many attempts there must be: hits at a start or a restart may come before the attempt counts.
        self.least = self.most = 1
        # A person wants it stopped; the command that was given for it while something was killed.
        self.stopped = False
        self.stopper: subprocess.Popen[bytes] | None = None
        # What was done to the newest attempt.
        self.number = 0
        self.struck: set[Victim] = set()
        self.may_be_lost = False
        self.last_hit = ""

    @property
    def name(self) -> int | str:
        """The round's name within the seed."""
        return self.plan.number

    @property
    def run(self) -> RunPaths:
        """The run, once it exists."""
        assert self._found is not None
        return self._found

    # -- what a person does ----------------------------------------------------------------------

    def play(self) -> None:
        """Play the whole round. Raises Broken."""
        stranger = self._stranger()
        try:
            self._begin()
            self._happen()
            self._end()
            self._look()
            self._continue_at_the_end()
            self._look()
            self._look_at_the_end(stranger)
        finally:
            for process in (*self.viewers, stranger):
                if process.poll() is None:
                    process.kill()
                process.wait()
            for screen in self.screens:
                screen.close()
            self.processes.end()

    def _happen(self) -> None:
        """Hit the run, and check what must hold."""
        for hit in self.plan.hits:
            self._hit(hit)
            self._follow_up()
            self._look()

    def _job(self) -> list[str]:
        rank = [sys.executable, "-S", SCRIPT, str(self.work)]
        match self.plan.kind:
            case Kind.TORCHRUN:
                return ["--nproc-per-node", "2", SCRIPT, str(self.work)]
            case Kind.LAUNCHER:
                return ["--", *rank]
            case Kind.PIPELINE:
                text = f"set -o pipefail; RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 {shlex.join(rank)} | cat"
                return ["--", "bash", "-c", text]

    def _stranger(self) -> subprocess.Popen[bytes]:
        """Start a process that looks like the run's but is not part of it."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        other = self.folder / "stranger"
        other.mkdir()
        code = f"import sys, time; sys.argv[:] = [{SCRIPT!r}, {str(self.work)!r}]; time.sleep(3600)"
        argv = [sys.executable, "-S", "-c", code, SCRIPT, str(self.work), "--resume=auto"]
        return subprocess.Popen(
            argv,
            cwd=other,
            env={**env, "STOKER_RUN_DIR": str(other), "LOCAL_RANK": "0", "RANK": "0"},
            start_new_session=True,
        )

    def _begin(self) -> None:
        how = "--detach" if self.plan.detached else "--no-ui"
        flags = ["--python", sys.executable, "--grace", "2", "--resume-knob", "--resume=auto"]
        self.processes.start("run", how, *flags, *self._job(), **self.run_env)
        runs = self.folder / "runs"

        def found() -> bool:
            folders = [p for p in runs.iterdir() if not p.is_symlink()] if runs.is_dir() else []
            self._found = next((run for p in folders if (run := RunPaths(p)).node().journal.exists()), None)
            return self._found is not None

        self._wait(found, "no run was started", COMMAND_S, 0.001)
        self.along = StateReader(self.run.node().journal)

    # -- kills -----------------------------------------------------------------------------------

    def _hit(self, hit: Hit) -> None:
        if hit.moment not in {Moment.START, Moment.FIRST}:
            self._wait_for_steps()
        if Victim.VIEWER in hit.victims:
            self._open_viewers(wait=hit.moment is not Moment.FIRST)
        match hit.moment:
            case Moment.FIRST:
                self._wait_for_birth(hit.victims)
                time.sleep(0.05 * hit.share)
            case Moment.START:
                time.sleep(1.5 * hit.share)
            case Moment.STEPS:
                time.sleep(0.3 * hit.share)
            case Moment.STOP:
                self.stopper = self.processes.start("stop", self.run.run_id)
                self.stopped = True
                time.sleep(1.5 * hit.share)
            case Moment.END:
                (self.work / "finish").touch()
                time.sleep(0.5 * hit.share)
        state = self._state()
        whom = {victim: self._processes_of(victim, state) for victim in hit.victims}
        killed = {victim for victim, processes in whom.items() if sum(map(send_signal, processes))}
        self._wait_until_gone([process for victim in killed for process in whom[victim]], killed)
        self.last_hit = f"{hit.moment}: {', '.join(sorted(killed)) or 'nobody'}"
        if killed:
            self.tally.note(self.name, str(self.plan.kind), str(hit.moment), killed)
        self.tally.done.update(f"killed: {victim}" for victim in killed)
        self.tally.done[f"moment: {hit.moment}"] += bool(killed)
        self.tally.done["several at once"] += len(killed) > 1
        self._expect(hit, killed, max(len(state.attempts), 1))

    def _wait_until_gone(self, processes: list[ProcessId], killed: set[Victim]) -> None:
        """Wait until killed processes are gone. SIGKILL acts after the call, and until then locks are held."""

        def gone() -> bool:
            lock_is_free = Victim.KEEPER not in killed or not keeper_is_alive(self.run.node().lock)
            return lock_is_free and not any(map(is_alive, processes))

        self._wait(gone, "what was killed does not end", COMMAND_S)

    def _expect(self, hit: Hit, killed: set[Victim], number: int) -> None:
        """Update the expected number of attempts, and whether the end of attempt `number` may be unknown."""
        if number != self.number:
            self.number, self.struck, self.may_be_lost = number, set(), False
        lethal = bool(killed & LETHAL)
        self.most += lethal
        if hit.moment in {Moment.FIRST, Moment.START, Moment.STEPS}:
            self.least += lethal
        if hit.moment is not Moment.STEPS and killed & {Victim.KEEPER, Victim.LAUNCHER}:
            self.most += 1  # a launch that was intended only, or a stop that nobody finished and `continue` continued from
        self.struck |= killed
        if Victim.LAUNCHER in killed and lethal:
            self.may_be_lost = True  # it may have reaped the command, and not have written down how it ended

    def _lost_is_right(self) -> bool:
        """Whether the newest attempt's end may be unknown: its launcher was killed, and the keeper that adopts its orphans."""
        return self.may_be_lost or self.struck >= {Victim.LAUNCHER, Victim.KEEPER}

    def _processes_of(self, victim: Victim, state: st.RunState) -> list[ProcessId]:
        node = self.run.node()
        number = max(len(state.attempts), 1)
        paths = node.attempt(number)
        match victim:
            case Victim.KEEPER:
                holder = read_holder(node.lock) if keeper_is_alive(node.lock) else None
                return [ProcessId(holder.pid, holder.start_time)] if holder is not None else []
            case Victim.VIEWER:
                return [found for viewer in self.viewers if (found := identify(viewer.pid)) is not None]
            case Victim.LAUNCHER | Victim.COMMAND:
                is_launcher = victim is Victim.LAUNCHER
                found = (read_launcher if is_launcher else read_pid)(paths) or self._newborn(is_launcher)
                return [found] if found is not None and is_alive(found) else []
            case Victim.RANK | Victim.RANKS:
                command = read_pid(paths)
                ranks = [p for p in self._of_attempt(number) if p != command]
                return ranks[:1] if victim is Victim.RANK else ranks

    def _newborn(self, is_launcher: bool) -> ProcessId | None:
        """Return the launcher, or the command below it, before the pid file is written."""
        below = [
            one for keeper in self._processes_of(Victim.KEEPER, self._state()) for one in descendants(keeper)
        ]
        launcher = next((one for one in below if str(LAUNCHER) in read_cmdline(one)), None)
        if is_launcher or launcher is None:
            return launcher
        return next(iter(descendants(launcher)), None)

    def _wait_for_birth(self, victims: tuple[Victim, ...]) -> None:
        """Wait until all victims exist."""

        def born() -> bool:
            state = self._state()
            return all(self._processes_of(victim, state) for victim in victims)

        self._wait(born, f"no {' and '.join(victims)}", COMMAND_S, 0.001)

    def _of_attempt(self, number: int) -> list[ProcessId]:
        """Return the live processes that registered for an attempt, except daemons."""
        pids = sorted(int(path.name.partition("-")[2]) for path in self.work.glob(f"{number}-*"))
        return [
            found
            for pid in pids
            if not (self.work / f"daemon-{pid}").exists() and (found := identify(pid)) is not None
        ]

    def _open_viewers(self, *, wait: bool = True) -> None:
        self.viewers.append(self.processes.start("attach", "--no-ui", str(self.run.root)))
        screen = Terminal([*STOKER, "attach", str(self.run.root)], str(self.folder), self.processes.env)
        self.screens.append(screen)
        self.viewers.append(screen.process)
        if wait and not wait_until(
            lambda: any(self.run.control.glob("viewer-*")) or screen.process.poll() is not None, SCREEN_S
        ):
            # Much processor time: the machine is busy, or it computes for ever. Little: it waits for something.
            raise Broken(f"no screen within {SCREEN_S:.0f} s, after {screen.cpu_s():.1f} s of processor time")

    # -- what follows ----------------------------------------------------------------------------

    def _follow_up(self) -> None:
        """Do what a user would until the run makes progress or has ended."""
        deadline = time.monotonic() + FOLLOW_UP_S
        lines = self._lines_now()
        while time.monotonic() < deadline:
            state, keeper_lives = self._state(), keeper_is_alive(self.run.node().lock)
            match state.condition:
                case st.Finished(outcome=outcome) if not keeper_lives:
                    if outcome is ev.Outcome.SUCCEEDED or (outcome is ev.Outcome.STOPPED and self.stopped):
                        return
                    if outcome is ev.Outcome.LOST and not self._lost_is_right():
                        raise Broken(
                            f"it is lost, although launcher or keeper lived: {state.condition.reason}"
                        )
                    self._go_on("continue")
                case st.Finished():
                    pass
                case st.HeldOpen() if keeper_lives:
                    self._go_on("restart")
                case _ if not keeper_lives:
                    self._go_on("adopt")
                case st.Running() if self._was_refused():
                    self.stopper = None
                    if self.processes.run("stop", self.run.run_id) != 0 and keeper_is_alive(
                        self.run.node().lock
                    ):
                        raise Broken("a second stop was refused too")
                case st.Running() if not self.stopped and not (self.work / "finish").exists():
                    if (
                        len(state.attempts) >= self.least
                        and self._lines_now() > lines + 3
                        and self._of_attempt(len(state.attempts))
                    ):
                        return
                case _:
                    pass
            time.sleep(0.1)
        raise Broken(f"it did not continue within {FOLLOW_UP_S:.0f} s: {self._state().condition}")

    def _was_refused(self) -> bool:
        """Whether the run continues because its keeper was killed before it read the stop request."""
        asked = self.stopped and self.stopper is not None and self.stopper.poll() not in {None, 0}
        attempt = self._state().attempt
        return (
            asked
            and attempt is not None
            and attempt.stop is None
            and not any(self.run.control.glob("*.json"))
        )

    def _go_on(self, how: str) -> None:
        run_id, number = self.run.run_id, len(self._state().attempts)
        if how == "restart":
            with contextlib.suppress(NotRequested):
                request = ask(self.run, ev.RequestKind.RESTART, if_attempt=number)
                self._wait(
                    lambda: request in self._state().answered or not keeper_is_alive(self.run.node().lock),
                    "no answer to a restart",
                    COMMAND_S,
                )
                self.tally.done["restarted by request"] += 1
            return
        if how == "adopt":
            code = self.processes.run("attach", "--adopt", run_id)
            if code == 0:
                self.tally.done["adopted"] += 1
                return
            if code != 3:
                raise Broken(f"attach --adopt ended with {code}")
        before = self._state()
        code = self.processes.run("continue", "--yes", "--detach", run_id)
        if code != 0:
            if keeper_is_alive(self.run.node().lock) or self._alive_in_job():
                return  # what lived at one look was gone at the other: looked at again
            raise Broken(f"continue ended with {code}; it was {before.condition}")
        self.tally.done["continued"] += 1
        self._wait(
            lambda: len(self._state().attempts) > number or self._state().is_over,
            "it was continued and did not start",
            COMMAND_S,
        )
        if len(self._state().attempts) > number:
            self.stopped = False
            self.most = max(self.most, number + 1)

    def _end(self) -> None:
        """Finish the job, or stop it."""
        if not self._state().is_over:
            if self.plan.end == "finish":
                (self.work / "finish").touch()
            else:
                self.stopped = True
                code = self.processes.run(*self.plan.end.split(), self.run.run_id)
                if code != 0:
                    raise Broken(f"{self.plan.end} ended with {code}")
            self._follow_up()
        condition = self._state().condition
        assert isinstance(condition, st.Finished)
        wanted = (ev.Outcome.STOPPED, 5) if self.stopped else (ev.Outcome.SUCCEEDED, 0)
        if (condition.outcome, condition.exit_code) != wanted and not (
            self.stopped and condition.outcome is ev.Outcome.SUCCEEDED
        ):
            raise Broken(f"it ended as {condition}, not as {wanted}")

    def _continue_at_the_end(self) -> None:
        """Check `stoker continue` of an ended run: a stopped one continues and finishes, one that succeeded is refused."""
        condition = self._state().condition
        assert isinstance(condition, st.Finished)
        (self.work / "finish").touch()
        if condition.outcome is ev.Outcome.STOPPED:
            number = len(self._state().attempts)
            self._go_on("continue")
            self._follow_up()
            if len(self._state().attempts) != number + 1 or self._state().condition.exit_code != 0:  # type: ignore[union-attr]  # it is over
                raise Broken(f"continued after a stop it ended as {self._state().condition}")
        elif (code := self.processes.run("continue", "--yes", "--detach", self.run.run_id)) != REFUSED:
            raise Broken(f"continue of a run that succeeded ended with {code}")

    # -- what must hold --------------------------------------------------------------------------

    def _look(self) -> None:
        self._look_at_journal()
        self._look_at_checkpoints()
        self._look_at_attempts()
        self._look_at_processes()
        self._look_at_lines()

    def _look_at_journal(self) -> None:
        assert self.along is not None
        journal = self.run.node().journal
        lines = journal.read_bytes().split(b"\n")
        kinds = [_kind_of(line) for line in lines[:-1]]
        for place, kind in enumerate(kinds):
            after = kinds[place + 1] if place + 1 < len(kinds) else None
            if kind is None and after not in {"keeper_started", "run_started"}:
                raise Broken(f"journal line {place + 1} is no event: {lines[place][:200]!r}")
            if kind is None:
                self.tally.done["half lines ended by the next keeper"] += 1
        if keeper_is_alive(self.run.node().lock):
            return  # it writes on while it is looked at
        events = list(facts_in(journal))
        acts = [
            event for event in events if isinstance(event, ACTS)
        ]  # what sensors saw has the time when they saw it
        for one, other in pairwise(acts):
            if other.t < one.t - 0.001 and not isinstance(other, ev.KeeperStarted):
                raise Broken(f"{type(other).__name__} is {one.t - other.t:.3f} s before {type(one).__name__}")
        self.along.refresh()
        state = read_state(journal)
        if self.along.state != state:
            raise Broken("a view that read along has another state than one that read at once")
        played = st.RunState()
        for event in record_of(
            self.run
        ).events:  # in the order of their times: a checkpoint's is the trainer's own
            played = fold(played, event)
        if _essence(played) != _essence(state):
            raise Broken(f"a replay ends in another state: {_essence(played)}, not {_essence(state)}")

    def _look_at_checkpoints(self) -> None:
        for checkpoint in whole_checkpoints(self.work):
            try:
                load(checkpoint)
            except (OSError, ValueError) as error:
                raise Broken(f"a checkpoint with a marker does not load: {error}") from error
        saved = self._state().checkpoint
        if saved is not None and Path(saved.path) not in whole_checkpoints(self.work):
            raise Broken(f"the journal's newest checkpoint is none: {saved.path}")

    def _look_at_attempts(self) -> None:
        state = self._state()
        count = len(state.attempts)
        if not self.least <= count <= self.most:
            raise Broken(f"{count} attempts, and {self.least} to {self.most} there must be")
        intended = [
            event.attempt
            for event in facts_in(self.run.node().journal)
            if isinstance(event, ev.LaunchIntended)
        ]
        if intended != list(range(1, count + 1)):
            raise Broken(f"launches in the journal: {intended}, attempts: {count}")
        seen = {int(path.name.partition("-")[0]) for path in self.work.glob("[0-9]*-*")}
        if not seen <= set(range(1, count + 1)):
            raise Broken(f"the job saw attempts {sorted(seen)}, the journal has {count}")
        if (overlap := self.work / "overlap").exists():
            raise Broken(f"two attempts at a time: {overlap.read_text(encoding='utf-8')}")
        stamps: dict[int, tuple[float, float]] = {}
        for path in self.work.glob("stamps-*"):
            times = [float(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if not times:
                continue
            attempt = int(path.name.split("-")[1])
            first, last = stamps.get(attempt, (times[0], times[-1]))
            stamps[attempt] = min(first, times[0]), max(last, times[-1])
        for (one, (_, last)), (other, (first, _)) in pairwise(sorted(stamps.items())):
            if first <= last:
                raise Broken(
                    f"attempt {other} made steps {last - first:.3f} s before the last of attempt {one}"
                )

    def _alive_in_job(self) -> list[int]:
        return [pid for pid in self.processes.alive() if self._attempt_of(pid) is not None]

    def _attempt_of(self, pid: int) -> int | None:
        """Return the attempt of one of our processes, None for stoker's own."""
        found = identify(pid)
        number = read_environ(found).get("STOKER_ATTEMPT", "") if found is not None else ""
        return int(number) if number.isdecimal() else None

    def _look_at_processes(self) -> None:

        def unaccounted() -> list[str]:
            holder = read_holder(self.run.node().lock)
            known = {process.pid for process in (*self.viewers, *self.processes.started)} | {
                holder.pid if holder else 0
            }
            newest = len(self._state().attempts)
            names = []
            for pid in self.processes.alive():
                found = identify(pid)
                if found is None or pid in known:
                    continue
                attempt = self._attempt_of(pid)
                if attempt == newest and not self._state().is_over:
                    continue
                if attempt is None and _parent_chain(pid) & known:
                    continue  # a helper: nvidia-smi, py-spy, an interpreter that is asked for its version
                names.append(f"{pid} ({command_of(pid)}, attempt {attempt})")
            return names

        if not wait_until(lambda: not unaccounted(), LEFT_S):
            raise Broken(f"unaccounted for: {', '.join(unaccounted())}")

    def _look_at_lines(self) -> None:
        """Check that the logs of each ended attempt were read completely."""
        in_series: dict[int, Counter[int]] = {}
        with contextlib.suppress(OSError):
            for line in (self.run.node().series / f"{METRICS}.jsonl").read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):
                    sample = msgspec.json.decode(line)
                    step = sample["v"].get("step")
                    if step is not None and "loss" in sample["v"]:
                        in_series.setdefault(sample["a"], Counter())[int(step)] += 1
        for view in self._state().attempts:
            if view.ended_t is None:
                continue
            steps = []
            for path in self._logs_of(view.number):
                text = path.read_text(encoding="utf-8", errors="replace")
                rows = [row.split() for row in text.splitlines(keepends=True) if row.endswith("\n")]
                ours = [int(words[1]) for words in rows if len(words) == 4 and words[0] == "step"]
                others = [int(words[3]) for words in rows if len(words) == 4 and words[0] == "rank"]
                for numbers in (ours, others):
                    if any(after != before + 1 for before, after in pairwise(numbers)):
                        raise Broken(f"attempt {view.number}: {path.name} has a gap: {numbers}")
                steps += ours
            read = in_series.get(view.number, Counter())
            # Of more in one reading, as after an adoption, those are kept that a chart would show.
            wanted = steps if len(steps) <= BATCH_SAMPLES else steps[-1:]
            if missing := sorted(set(wanted) - set(read)):
                raise Broken(
                    f"attempt {view.number}: of {len(steps)} steps in its log these are not in the series: {missing}"
                )
            if twice := sorted(step for step, count in read.items() if count > 1):
                raise Broken(f"attempt {view.number}: twice in the series: {twice}")
            if steps and view.last_step != steps[-1]:
                raise Broken(
                    f"attempt {view.number} ended at step {steps[-1]}, the journal says {view.last_step}"
                )
            if view.has_unread:
                raise Broken(f"attempt {view.number}: its log was not read to its end")
            self.tally.done["steps looked for"] += len(steps)

    def _logs_of(self, number: int) -> list[Path]:
        paths = self.run.node().attempt(number)
        if self.plan.kind is Kind.TORCHRUN:
            return [
                path for folder in paths.rank_folders().values() if (path := folder / "stdout.log").exists()
            ]
        return [paths.agent_log] if paths.agent_log.exists() else []

    def _look_at_the_end(self, stranger: subprocess.Popen[bytes]) -> None:
        if not wait_until(lambda: not self.processes.alive(), LEFT_S):
            left = [f"{pid} ({command_of(pid)})" for pid in self.processes.alive()]
            raise Broken(f"left in the end: {', '.join(left)}")
        if stranger.poll() is not None:
            raise Broken(f"the stranger beside the run was ended: {stranger.returncode}")

    # -- helpers ---------------------------------------------------------------------------------

    def _state(self) -> st.RunState:
        assert self.along is not None
        self.along.refresh()
        return self.along.state

    def _lines_now(self) -> int:
        """Count the lines in the newest attempt's logs."""
        number = len(self._state().attempts)
        return sum(path.read_bytes().count(b"\n") for path in self._logs_of(number)) + 10**6 * number

    def _wait_for_steps(self) -> None:
        self._wait(
            lambda: isinstance(self._state().condition, st.Running) and self._lines_now() % 10**6 >= 6,
            "no steps came",
            FOLLOW_UP_S,
        )

    def _wait(
        self, condition: Callable[[], object], what: str, deadline_s: float, poll_s: float = 0.02
    ) -> None:
        if not wait_until(condition, deadline_s, poll_s):
            state = f": {self._state().condition}" if self.along is not None else ""
            raise Broken(f"{what} within {deadline_s:.0f} s{state}")


def _essence(state: st.RunState) -> tuple[object, ...]:
    """Return the part of a state that does not depend on the order of nearly simultaneous events."""
    attempts = [
        (a.number, a.exit_code, a.first_step, a.last_step, a.ended_t, a.verdict, a.decision)
        for a in state.attempts
    ]
    return state.condition, attempts, state.checkpoint, state.keeper_pid


_EVENT: msgspec.json.Decoder[ev.Event] = msgspec.json.Decoder(Union[ev.KINDS])  # noqa: UP007 - made of what there is


def _kind_of(line: bytes) -> str | None:
    """Return the kind of a known, whole event, else None."""
    try:
        return str(_EVENT.decode(line).__struct_config__.tag)
    except (ValueError, msgspec.DecodeError):
        return None


def _parent_chain(pid: int) -> set[int]:
    found: set[int] = set()
    parent: int | None = pid
    while parent is not None and parent > 1 and parent not in found:
        found.add(parent)
        parent = parent_of(parent)
    return found

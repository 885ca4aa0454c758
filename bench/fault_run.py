"""Does to a run, drawn from a seed, what machines and users do to it, and checks what must hold after each fault.

    python bench/fault_run.py --seed 1 --count 200 [--job JOB] [--round 17] [--minute] [--keep bench/results/fault_run.json]

The jobs: `one-node` (default), `two-nodes` and `elastic` (bench/node_kills.py), `trainer` (bench/trainer_kills.py) and `healthy`
(bench/silences.py). On one node, keeper, launcher, agent, ranks and viewers are killed, alone and together, from their first 50 ms
on (bench/kills.py). For each 50 of these kills there is one round of each of these conditions:

- disk full: the run directory is a tmpfs that fills up for some seconds; the keeper may be killed meanwhile;
- clock: the machine's clock is set forward and back by up to hours (libfaketime; skipped where it is not installed);
- torn journal: the keeper is killed, alone or with all that it started; the journal is cut at every byte of its last 4 KiB,
  also with zeros behind the cut: each copy folds to its whole lines and takes another line. The run continues with one of these cuts;
- suspended: SIGSTOP to all processes of the run, or to the keeper alone, for some seconds (with --minute: for a minute);
- slow fsync: every fsync takes as long as on a busy file server (a small preloaded library), beside kills as above.

The result is written after every round. A second call with the same seed continues where the first one ended. `--round` repeats
one round of the seed by its number, or as "disk full/0", and keeps nothing. The exit code is 1 where anything did not hold.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from msgspec import structs

from bench.common import command_line, surroundings
from bench.kills import SCREEN_S, Hit, Kind, Moment, Plan, Round, Victim, drawn
from bench.node_kills import NodeKills
from bench.rounds import COMMAND_S, SKIPPED, Broken, Playable, Skipped, Tally
from bench.silences import Silences
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import fold
from supervisor.run.journal import JournalReader, JournalWriter, StateReader, facts_in, read_state
from supervisor.sources.processes import identify, send_signal
from tests.disks import fill

TORN_BYTES = 4096
KILLS_FOR_EACH, ROUNDS_FOR_EACH = 50, 25
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
SLOW_FSYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
static void wait_for_server(void) {
    const char *text = getenv("STOKER_SLOW_FSYNC_MS");
    long ms = text ? atol(text) : 0;
    struct timespec pause = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&pause, 0);
}
#define SLOW(name) \\
    int name(int fd) { wait_for_server(); return ((int (*)(int))dlsym(RTLD_NEXT, #name))(fd); }
SLOW(fsync)
SLOW(fdatasync)
"""


class ConditionRound(Round):
    """A run under a condition other than kills, or in addition to them."""

    def __init__(self, plan: Plan, folder: Path, tally: Tally, dice: random.Random, *, minute: bool) -> None:
        super().__init__(plan, folder, tally)
        self.dice, self.minute = dice, minute

    def _note(self, what: str, *killed: Victim) -> None:
        self.last_hit = what
        self.tally.note(self.name, str(self.plan.kind), what, killed)

    @property
    def name(self) -> str:
        """The name for `--round`."""
        return f"{NAMES[type(self)]}/{self.plan.number}"

    def _goes_on(self) -> None:
        """Wait until the journal has new steps of the same attempt."""
        before = self._last_step()
        self._wait(lambda: self._last_step() > before + 3, "no more steps in the journal", COMMAND_S)

    def _last_step(self) -> int:
        view = self._state().attempt
        return (view.last_step or 0) if view is not None else 0

    def _kill_outright(self, *victims: Victim) -> None:
        """Kill the victims, and wait until they are gone."""
        state = self._state()
        whom = [process for victim in victims for process in self._processes_of(victim, state)]
        for process in whom:
            send_signal(process)
        self._wait_until_gone(whom, set(victims))
        self.may_be_lost = True


class DiskFull(ConditionRound):
    """The disk of the run directory fills up for a while."""

    def play(self) -> None:
        runs = self.folder / "runs"
        runs.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1200m", "tmpfs", str(runs)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            raise Skipped("no file system can be mounted here")
        try:
            super().play()
        finally:
            subprocess.run(["umount", "-l", str(runs)], check=True)

    def _happen(self) -> None:
        self._wait_for_steps()
        filler = fill(self.run.root.parent)
        kills = self.dice.random() < 0.5
        self._note("full", *([Victim.KEEPER] if kills else []))
        time.sleep(4 * self.dice.random())
        if kills:
            self._kill_outright(Victim.KEEPER)
        time.sleep(2 * self.dice.random())
        filler.unlink()
        self.most += 20  # the job's own prints and telemetry failed, and with them its ranks
        self._follow_up()
        self._look()

    def _look_at_lines(self) -> None:
        """Skip the check: output and samples written to a full disk are lost."""


class ClockSet(ConditionRound):
    """The clock is set several times, and processes are killed."""

    def _happen(self) -> None:
        assert self.clock is not None
        for _ in range(self.dice.randint(2, 3)):
            self._wait_for_steps()
            shift = self.dice.choice(["+2h", "-3h", "-90", "-5", "+45", "-12h"])
            self._note(f"set to {shift}")
            wanted = self._times_set() + 1
            _put(self.clock, shift if shift != self.clock.read_text() else "+0")
            is_journalled = partial(self._is_set, wanted)
            self._wait(is_journalled, "the clock's setting is not journalled", COMMAND_S)
            self._goes_on()
        self._look()
        victims = self.dice.choice([(Victim.KEEPER,), (Victim.RANK,), (Victim.KEEPER, Victim.COMMAND)])
        self._hit(Hit(Moment.STEPS, victims, self.dice.random()))
        self._follow_up()
        _put(self.clock, "+0")
        self._look()

    def _begin(self) -> None:
        if not FAKETIME:
            raise Skipped("libfaketime (Debian: faketime) is not installed")
        self.clock = self.folder / "clock"
        _put(self.clock, "+0")
        self.run_env = {
            "LD_PRELOAD": str(FAKETIME[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }
        super()._begin()

    def _is_set(self, times: int) -> bool:
        return self._times_set() >= times

    def _times_set(self) -> int:
        return sum(isinstance(fact, ev.ClockSet) for fact in facts_in(self.run.node().journal))


class TornJournal(ConditionRound):
    """The journal ends anywhere in its last 4 KiB."""

    def _happen(self) -> None:
        self._wait_for_steps()
        if self.dice.random() < 0.5:
            self._hit(
                Hit(Moment.STEPS, (self.dice.choice([Victim.RANK, Victim.COMMAND]),), self.dice.random())
            )
            self._follow_up()
        everything = (Victim.KEEPER, Victim.LAUNCHER, Victim.COMMAND, Victim.RANKS)
        self._kill_outright(*(everything if self.dice.random() < 0.5 else (Victim.KEEPER,)))
        alive = bool(self._alive_in_job())
        journal = self.run.node().journal
        data = journal.read_bytes()
        self._tear_copies(data)
        cut = self.dice.randrange(max(len(data) - TORN_BYTES, 1), len(data))
        zeros = self.dice.random() < 0.3
        self._note(
            f"cut at byte {cut} of {len(data)}{', zeros behind it' if zeros else ''}; the job {'lives' if alive else 'is dead'}",
            *([Victim.KEEPER] if alive else everything),
        )
        with journal.open("r+b") as file:
            file.truncate(cut)
            if zeros:
                file.truncate(len(data))
        self.along = StateReader(journal)
        self.least, self.most = 1, self.most + 2
        self._follow_up()
        self._look()

    def _tear_copies(self, data: bytes) -> None:
        """Cut a copy at every byte. Check that it folds, and that the next line is whole."""
        lines = data.splitlines(keepends=True)
        states, state, place = [(0, st.RunState())], st.RunState(), 0
        whole = self.folder / "whole.jsonl"
        whole.write_bytes(data)
        for line, fact in zip(lines, JournalReader(whole).read(), strict=True):
            place, state = place + len(line), fold(state, fact)
            states.append((place, state))
        torn = self.folder / "torn.jsonl"
        note = ev.KeeperStarted(t=0.0, pid=1, start_time=0.0, version="after the cut")
        for cut in range(max(len(data) - TORN_BYTES, 0), len(data)):
            for behind in (b"", bytes(len(data) - cut)) if cut % 64 == 0 else (b"",):
                torn.unlink(
                    missing_ok=True
                )  # a child that another round forks holds the lock of the last writer's file for a moment
                torn.write_bytes(data[:cut] + behind)
                expected = next(state for end, state in reversed(states) if end <= cut)
                if (found := _folded(torn)) != expected:
                    raise Broken(f"cut at byte {cut} it folds to {found.condition}")
                writer = JournalWriter(torn)
                writer.append(note)
                writer.close()
                # A cut line that lacks its newline alone is whole once the writer has ended it.
                ended = cut + 1 if not behind else cut
                expected = next(state for end, state in reversed(states) if end <= ended)
                if (found := _folded(torn)) != fold(expected, note):
                    raise Broken(f"after a cut at byte {cut} the next line is not read: {found.condition}")
        self.tally.done["cuts that were folded"] += min(len(data), TORN_BYTES)


class Suspended(ConditionRound):
    """All processes, or the keeper alone, are suspended for a while."""

    def _happen(self) -> None:
        self._wait_for_steps()
        self._open_viewers()
        alone = self.dice.random() < 0.5
        seconds = 60.0 if self.minute else 3 + 9 * self.dice.random()
        self._note(f"{'the keeper' if alone else 'all'} for {seconds:.0f} s")
        if alone:
            stopped = self._processes_of(Victim.KEEPER, self._state())
        else:
            stopped = [one for pid in self.processes.alive() if (one := identify(pid)) is not None]
        for process in stopped:
            send_signal(process, signal.SIGSTOP)
        asks = alone and self.dice.random() < 0.5
        try:
            time.sleep(seconds / 2)
            if asks:  # asked of a keeper that stands still: it is done when that goes on
                self.stopper, self.stopped = self.processes.start("stop", self.run.run_id), True
            time.sleep(seconds / 2)
        finally:
            for process in stopped:
                send_signal(process, signal.SIGCONT)
        if asks:
            self._follow_up()
        else:
            self._goes_on()
        for screen in self.screens:
            if alone:
                screen.press(b"q")
            else:  # a screen that was stopped from outside takes no keys any more (docs/DELETIONS.md)
                screen.process.terminate()
        gone = [screen.process for screen in self.screens]
        self._wait(lambda: all(one.poll() is not None for one in gone), "the screen does not end", SCREEN_S)
        self._look()  # and no attempt more than before: what stood still was no hang and no death


class SlowFsync(ConditionRound):
    """Every fsync is slow, and processes are killed."""

    def _begin(self) -> None:
        source, library = self.folder / "slow.c", self.folder / "slow.so"
        source.write_text(SLOW_FSYNC, encoding="utf-8")
        build = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        if shutil.which("gcc") is None or subprocess.run(build, capture_output=True, check=False).returncode:
            raise Skipped("gcc is not installed, or builds no library")
        ms = self.dice.randint(100, 1500)
        self._note(f"{ms} ms")
        self.processes.env |= {"LD_PRELOAD": str(library), "STOKER_SLOW_FSYNC_MS": str(ms)}
        super()._begin()


NAMES: dict[type[ConditionRound], str] = {
    DiskFull: "disk full",
    ClockSet: "clock",
    TornJournal: "torn journal",
    Suspended: "suspended",
    SlowFsync: "slow fsync",
}


def _folded(journal: Path) -> st.RunState:
    """Return the state of a journal without its count of unknown lines."""
    return structs.replace(read_state(journal), unknown_events=0)


def _put(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


class Job(StrEnum):
    """The kind of job under test."""

    ONE_NODE = "one-node"
    TWO_NODES = "two-nodes"
    ELASTIC = "elastic"
    TRAINER = "trainer"
    HEALTHY = "healthy"


@dataclass(slots=True)
class FaultRun:
    """The rounds of a seed. `kept`: the folder for copies of rounds with a finding."""

    seed: int
    folder: Path
    kept: Path | None = None
    minute: bool = False
    job: Job = Job.ONE_NODE

    def names(self, count: int) -> Iterator[str]:
        """Yield the rounds. One round of each condition accompanies 50 kills, so that a run that ends early had some of each."""
        sets = max(count // KILLS_FOR_EACH, 1) if self.job is Job.ONE_NODE else 0
        for number in range(10 * count):  # a round mostly has one victim and more
            yield str(number)
            if number % ROUNDS_FOR_EACH == ROUNDS_FOR_EACH // 2 and number // ROUNDS_FOR_EACH < sets:
                yield from (f"{name}/{number // ROUNDS_FOR_EACH}" for name in NAMES.values())

    def play(self, name: str) -> Tally:
        """Play one round, and return what it found."""
        tally, place = Tally(), self.folder / name.replace("/", "-").replace(" ", "-")
        place.mkdir()
        this, outcome, finding = self._round(name, place, tally), "held", ""
        try:
            this.play()
        except Skipped as skipped:
            outcome = f"{SKIPPED}: {skipped}"
            if not tally.faults:
                tally.note(name, "", "")
        except Exception as error:  # noqa: BLE001 - a mistake of the bench ends a round, not the run
            outcome = str(error) if isinstance(error, Broken) else repr(error)
            finding = f"--job {self.job} --seed {self.seed} --round '{name}' ({this.last_hit}): {outcome}"
            tally.findings.append(finding)
            if self.kept is not None:
                target = self.kept / f"{self.job}-seed{self.seed}-{place.name}"
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(place, target, symlinks=True)
        lines = [f"{time.strftime('%X')} round {name}"]
        for fault in tally.faults:
            fault["outcome"] = outcome[:200]
            lines.append("; ".join(str(fault[key]) for key in ("kind", "moment", "killed", "outcome")))
        print("\n  ".join(lines), *(["FOUND", finding] if finding else []), flush=True)
        shutil.rmtree(place, ignore_errors=True)
        return tally

    def _round(self, name: str, place: Path, tally: Tally) -> Playable:
        condition, _, text = name.rpartition("/")
        number = int(text)
        if condition:
            return self._condition(condition, number, place, tally)
        match self.job:
            case Job.ONE_NODE:
                return Round(drawn(self.seed, number), place, tally)
            case Job.TRAINER:
                from bench.trainer_kills import TrainerKills  # imports torch

                return TrainerKills(self.seed, number, place, tally)
            case Job.HEALTHY:
                return Silences(self.seed, number, place, tally)
            case _:
                return NodeKills(self.seed, number, place, tally, is_elastic=self.job is Job.ELASTIC)

    def _condition(self, name: str, number: int, place: Path, tally: Tally) -> ConditionRound:
        dice = random.Random(f"{self.seed}/{name}/{number}/what")
        condition = next(one for one, known in NAMES.items() if known == name)
        # torchrun's own waits last for hours where libfaketime sets the clock.
        kinds = [one for one in Kind if condition is not ClockSet or one is not Kind.TORCHRUN]
        plan = replace(drawn(dice.randrange(10**9), number), number=number, kind=dice.choice(kinds))
        return condition(plan, place, tally, dice, minute=self.minute)


def written(run: FaultRun, tally: Tally, seconds: float) -> str:
    """Return the result as JSON, with one line for each fault."""
    counted = _counted(tally)
    others = {str(fault["round"]) for fault in tally.faults if fault not in counted}
    head: dict[str, Any] = {
        "job": run.job,
        "seed": run.seed,
        "faults counted": len(counted),
        "of these held": sum(fault["outcome"] == "held" for fault in counted),
        "rounds": len({str(fault["round"]) for fault in tally.faults}),
        "conditions": Counter(name.partition("/")[0] for name in others),
        "findings": tally.findings,
        "done": dict(sorted(tally.done.items())),
        "seconds": round(seconds),
        **surroundings(),
    }
    rows = ",\n  ".join(map(json.dumps, tally.faults))
    return f'{json.dumps(head, indent=1)[:-2]},\n "faults": [\n  {rows}\n ]\n}}\n'


def _counted(tally: Tally) -> list[dict[str, object]]:
    """Return the faults that count toward `--count`: all but those of the conditions."""
    return [fault for fault in tally.faults if isinstance(fault["round"], int)]


def begun(run: FaultRun, path: Path | None) -> tuple[Tally, float]:
    """Return the tally of an earlier call with this seed, and its seconds."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads((path or Path()).read_bytes())
        if (known["job"], known["seed"]) == (run.job, run.seed):
            return Tally(Counter(known["done"]), known["findings"], known["faults"]), known["seconds"]
    return Tally(), 0.0


def main() -> int:
    """Print the result; 1 where anything did not hold."""
    parser = command_line(__doc__)
    parser.add_argument("--job", type=Job, choices=list(Job), default=Job.ONE_NODE)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="how many faults (healthy: how many runs)")
    parser.add_argument("--round", help="only this round of the seed")
    parser.add_argument("--minute", action="store_true", help="suspend for a whole minute")
    parser.add_argument("--failed", type=Path, metavar="FOLDER", help="copy rounds with a finding there")
    args = parser.parse_args()
    path = None if args.round else args.keep
    leaves: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # the round is played to its end and leaves nothing behind
        signal.signal(number, lambda number, _frame: leaves.append(number))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stoker-faults-") as folder:
        run = FaultRun(args.seed, Path(folder), args.failed, args.minute, args.job)
        tally, before_s = begun(run, path)
        played = {str(fault["round"]) for fault in tally.faults}
        for name in [args.round] if args.round else run.names(args.count):
            enough = name.isdecimal() and len(_counted(tally)) >= args.count and not args.round
            if leaves or name in played or enough:
                continue
            tally.add(run.play(name))
            if path is not None:
                path.write_text(written(run, tally, before_s + time.monotonic() - began), encoding="utf-8")
    print(json.dumps(dict(sorted(tally.done.items())), indent=1))
    print(f"{len(tally.faults)} faults, {len(tally.findings)} findings, {time.monotonic() - began:.0f} s")
    print(*tally.findings, sep="\n")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())

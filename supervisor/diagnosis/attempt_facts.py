"""The facts about one attempt, and what the rules derive from them: each is computed on first use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from supervisor.diagnosis.candidates import steps_seen
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.process_exits import Exit, Launch
from supervisor.diagnosis.rank_of_lines import Ranks
from supervisor.diagnosis.recovered_errors import ends_well
from supervisor.diagnosis.scan.frames import frames_above, in_helper
from supervisor.diagnosis.scan.log_timeline import (
    MAX_CHARS,
    closes_training,
    ends_in_nan,
    is_closing,
    is_evaluation,
    is_progress,
    silence,
    went_on,
)
from supervisor.diagnosis.scan.matched_lines import Candidate, Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Signatures, Strength, Trait
from supervisor.diagnosis.waiting import HangPlace, hang_place
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix
from supervisor.text.tracebacks import FRAME, HEAD, is_exception

_SCHEDULERS_TOOL = Lazy(r"(?:slurmstepd(?:-[\w.-]+)?|slurmd|srun|scancel): ")
_SHELL_TOOL = Lazy(
    r"(?:/\S{1,80}/)?(?:mkdir|rmdir|cp|mv|rm|ln|ls|cat|chmod|chown|chgrp|touch|tee|tar|unzip|find|grep|sed|df|du): "
)
_LOADER_STOPPED = Lazy(r"DataLoader worker \(pid.{1,40} is killed by signal: Terminated")
_ABORTED = Lazy(r"Aborted|terminate called")
FATAL_SIGNALS = frozenset((-4, -7, -8, -9, -11))
STOP_SIGNALS = frozenset((-15, -2, -1))
# At least this many steps after the last report of an ended process belong to another run in the same file.
STEPS_OF_ANOTHER = 25
# The earliest cause is chosen among those at most this much weaker than the strongest; the same for stops.
CAUSE_MARGIN = 30
STOP_MARGIN = 10
EARLY_S = 30
# A line this far above another is not part of the same message.
FAR_BELOW_LINES = 15
INTERRUPTED_LINES = 120  # two tracebacks below the one of Ctrl-C
# A silence before a stop is a hang if it lasted at least this long, and at least this many usual intervals.
SILENCE_S = 900.0
SILENCE_INTERVALS = 25
# And this many times the longest earlier pause, such as a save or an evaluation.
SILENCE_PAUSES = 2
# What workers raise when a stop tears them down; of other classes, only the strongest are not echoes of it.
_NO_ECHO = frozenset(
    (FailureClass.CUDA_OOM, FailureClass.HOST_OOM, FailureClass.GPU_FAULT, FailureClass.NAN_LOSS)
)
_WAITING = (FailureClass.NCCL_TIMEOUT, FailureClass.HANG, FailureClass.RENDEZVOUS)


class Root(NamedTuple):
    """The choice: class, place and confidence. `line` 0: no line shows it; `local_rank`: on its node, if `rank` is unknown."""

    failure: FailureClass
    reason: Reason | None = None
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    node: str | None = None
    path: str = ""
    line: int = 0
    text: str = ""
    confidence: float = 0.0
    chosen: Candidate | None = None
    local_rank: int | None = None


@dataclass(frozen=True)
class Facts:
    """One attempt: its evidence, scanned logs, launcher reports, and lines that may name the cause. Frozen: facts are cached."""

    job: JobEvidence
    scans: tuple[SourceScan, ...]
    launch: Launch
    ranks: Ranks
    candidates: tuple[Candidate, ...]
    signatures: Signatures

    # -- candidates by kind ------------------------------------------------------------------------

    @cached_property
    def _reported(self) -> list[Candidate]:
        """Without the signals with which we ended a hang ourselves: they have no other sender."""
        ours = self.job.ended_for == "hang"
        return [item for item in self.candidates if not (ours and item.has(Trait.STOP_SIGNAL))]

    @cached_property
    def causes(self) -> list[Candidate]:
        """Causes that are neither stops nor symptoms of something else."""
        found = [
            item for item in self._reported if item.is_cause and item.failure is not FailureClass.TERMINATED
        ]
        kept = [item for item in found if not self._is_symptom(item)]
        if any(item.failure is FailureClass.GPU_FAULT for item in kept):
            kept = [item for item in kept if item.failure is not FailureClass.CUDA_ERROR]
        return kept

    @cached_property
    def stops(self) -> list[Candidate]:
        """Reports of a stop from outside."""
        return [item for item in self._reported if item.is_cause and item.failure is FailureClass.TERMINATED]

    @cached_property
    def consequences(self) -> list[Candidate]:
        """Complaints of peers and similar lines."""
        return [item for item in self._reported if not item.is_cause and item.strength >= Strength.TRACE]

    @cached_property
    def signal_deaths(self) -> list[Exit]:
        """Deaths by a signal sent by neither the launcher (its TERM and KILL of survivors) nor the scheduler."""
        found = [
            item
            for item in self.launch.exits
            if item.code in FATAL_SIGNALS
            and not (item.pid in self.launch.sigtermed and item.code == -9)
            and not self._killed_with_its_step(item)
        ]
        return sorted(found, key=lambda item: (item.summary, item.hit.source, item.hit.line))

    def _killed_with_its_step(self, item: Exit) -> bool:
        """Whether srun reports the signal of a task that it killed: for a canceled step, or after another task exited."""
        if not item.hit.has(Trait.TASK_EXIT):
            return False
        stopped = any(stop.source == item.hit.source and stop.line <= item.hit.line for stop in self.stops)
        left = any(other.hit.has(Trait.TASK_EXIT) and other.code > 0 for other in self.launch.exits)
        return stopped or (item.code == -9 and left)

    # -- causes ------------------------------------------------------------------------------------

    def _is_symptom(self, item: Candidate) -> bool:
        """Whether a cause is only a consequence of something else in the logs."""
        if item.soft and not self.died and self.any_progress:
            return True
        if item.has(Trait.SHELL_KILL) and self._launcher_ends(item, Trait.KILLS_PEERS):
            return True
        return self._is_clean_up(item) or self._is_stopped_loader(item) or self._is_explained_abort(item)

    def _is_explained_abort(self, item: Candidate) -> bool:
        """Whether a process sent itself SIGABRT after stating the reason."""
        if not item.has(Trait.ABORT) or not _ABORTED.search(item.text):
            return False
        return any(
            other is not item
            and (
                (item.line <= other.line <= item.line + 3 and not other.has(Trait.ABORT))
                or _trouble_before(other, item)
            )
            for other in self.candidates
        )

    def _is_clean_up(self, item: Candidate) -> bool:
        """Whether the scheduler's own tools complain while cleaning up after the end of the job: about mounts and epilogs."""
        ended = (hit for hit in self.scans[item.source].hits if hit.has(Trait.SCHEDULER_REPORT))
        return (
            item.failure is not FailureClass.HOST_OOM
            and _SCHEDULERS_TOOL.search(item.text) is not None
            and any(hit.line < item.line for hit in ended)
        )

    def _is_stopped_loader(self, item: Candidate) -> bool:
        """Whether a data worker died from the SIGTERM that ends a job: another rank failed, or a launcher or a stop came first."""
        if item.failure is not FailureClass.DATALOADER_WORKER or item.reason is Reason.RAISED:
            return False
        alike = (one for one in self._reported if (one.source, one.rank) == (item.source, item.rank))
        if not any(one.line <= item.line and _LOADER_STOPPED.search(one.text) for one in alike):
            return False  # the loader's last words name no signal
        ranks, stop = self.ranks, self.firm_stop
        rank = ranks.of(item.hit, item.failure)
        failed = {ranks.of(one.hit, one.failure) for one in self._reported if _is_own_failure(one)}
        failed |= {ranks.of_exit(one) for one in self.signal_deaths}
        if rank is not None and rank == ranks.blamed():
            return False
        return (
            bool(failed - {rank, None})
            or (rank is not None and rank in map(self.launch.rank_by_pid.get, self.launch.sigtermed))
            or self._launcher_ends(item, Trait.SIGNALS_PEERS)
            or (stop is not None and not self._before(item, stop))
        )

    def _launcher_ends(self, item: Candidate, trait: Trait) -> bool:
        """Whether a line follows a launcher's report that it ends what is left (Lightning kills itself too)."""
        return any(hit.has(trait) and hit.line < item.line for hit in self.scans[item.source].hits)

    @cached_property
    def best_cause(self) -> Candidate | None:
        """The earliest of the causes that are not much weaker than the strongest."""
        found = _earliest_strong(self.causes)
        if found is None or not self.signal_deaths:
            return found
        # A weak plain exception below a process's death is its echo.
        echo = (
            found.has(Trait.GENERIC)
            and found.strength < Strength.COMPLAINT
            and found.hit.line >= self.signal_deaths[0].hit.line
        )
        return None if echo else found

    @cached_property
    def cause_before_stop(self) -> Candidate | None:
        """The best cause, unless an earlier stop explains it."""
        root, stop = self.best_cause, self.firm_stop
        if root is not None and any(_interrupted(one, root) for one in self.stops):
            return None
        if root is None or stop is None:
            return root
        # A tool's complaint (``conda activate``) looks like an exception of unknown type, and the script continues.
        in_passing = root.has(Trait.OPEN_TYPE) and not frames_above(root.hit).found
        if in_passing and stop.strength >= Strength.EXACT:
            return None
        if not self._before(stop, root):
            return root
        is_echo = root.failure not in _NO_ECHO or root.strength < Strength.FULL
        return None if is_echo else root

    # -- stops -------------------------------------------------------------------------------------

    @cached_property
    def scheduler_stop(self) -> Candidate | None:
        """A failed node, or a pre-emption."""
        hard = (Reason.NODE_FAIL, Reason.PREEMPTED)
        return next((item for item in self.stops if item.reason in hard), None)

    @cached_property
    def firm_stop(self) -> Candidate | None:
        """The first stop reported as received or requested."""
        return next((item for item in self.stops if item.strength >= Strength.FIRM), None)

    @cached_property
    def stop_before_complaints(self) -> Candidate | None:
        """The stop to name, if no peer complained before the first."""
        if not self.stops:
            return None
        # Pipes of a loader's own processes break as the other end is stopped, often before that is reported.
        others = [item for item in self.consequences if item.failure is not FailureClass.DATALOADER_WORKER]
        complaint = first_complaint(others)
        if complaint is not None and self._before(complaint, self.stops[0]):
            return None
        top = max(item.strength for item in self.stops)
        strong = [item for item in self.stops if item.strength >= top - STOP_MARGIN]
        # The scheduler says who stopped the job; a program's own KeyboardInterrupt only that it was stopped.
        by_scheduler = (item for item in strong if item.has(Trait.SCHEDULER_REPORT))
        return next(by_scheduler, strong[0]) if strong[0].reason is Reason.USER else strong[0]

    def _before(self, one: Candidate, other: Candidate) -> bool:
        if one.source != other.source and not (one.order == one.order and other.order == other.order):
            return False  # nan: unknown time
        return self._places[id(one)] < self._places[id(other)]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {id(item): place for place, item in enumerate(self.candidates)}

    # -- exits -------------------------------------------------------------------------------------

    @cached_property
    def died(self) -> bool:
        """Whether anything shows that a process ended with a failure."""
        job = self.job
        if any(code != 0 for code in job.exit_codes.values()) or (job.launcher_exit or 0) != 0:
            return True
        lines = [item.hit.line for item in self.launch.exits if item.code != 0]
        lines += [hit.line for scan in self.scans for hit in scan.hits if hit.has(Trait.BAD_END)]
        last = max(lines, default=0)
        if last == 0 or len(self.scans) != 1:
            return last > 0
        scan = self.scans[0]
        below = scan.tail[max(last + 1 - scan.tail_line, 0) :]
        return not (ends_well(scan, last) or went_on(below, need=STEPS_OF_ANOTHER))

    @cached_property
    def ended_with_zero(self) -> bool:
        """Whether the attempt exited on its own with code 0."""
        job = self.job
        return job.launcher_exit == 0 and job.stop_reason is None and job.ended_for is None

    @cached_property
    def unexplained_signal(self) -> Exit | None:
        """The first death by a signal, unless all of them followed a stop."""
        stop = self.firm_stop
        if stop is not None and all(item.hit.line > stop.line for item in self.signal_deaths):
            return None
        return next(iter(self.signal_deaths), None)

    @cached_property
    def silent_exit(self) -> Exit | None:
        """A process that exited with an unusual code and no output, while its peers only report a lost connection."""
        if any(item.failure in _WAITING and not item.soft for item in self.consequences):
            return None
        complaining = {item.rank for item in self.consequences if not item.soft}
        by_itself = any(item.code > 0 for item in self.launch.exits)
        for item in self.launch.exits:
            usual = (
                item.code in {0, 1}
                or (item.code == -6 and None in complaining)
                or (item.code in STOP_SIGNALS and by_itself)
                or item.pid in self.launch.sigtermed
            )
            rank = self.ranks.of_exit(item) if item.task is None else item.rank
            if not usual and rank is not None and rank not in complaining:
                return None if self._stopped_before(item) else item
        return None

    def _stopped_before(self, item: Exit) -> bool:
        """Whether a stop explains an exit. A program prints KeyboardInterrupt on SIGINT, which needs no firmer evidence."""
        stop = self.firm_stop or (next(iter(self.stops), None) if item.code == -2 else None)
        return stop is not None and stop.line < item.hit.line

    @cached_property
    def bad_exits(self) -> list[Exit]:
        """Exits with their own code, torchrun's summary last; a shell's status belongs to no process."""
        found = [
            item
            for item in self.launch.exits
            if item.code != 0 and not item.hit.has(Trait.SHELL_EXIT) and not self._killed_with_its_step(item)
        ]
        return sorted(found, key=lambda item: (item.summary, item.hit.source, item.hit.line))

    # -- complaints, stacks, silences --------------------------------------------------------------

    @cached_property
    def complaint(self) -> Candidate | None:
        """The relevant complaint of a peer: in a job that died, or more than a warning before steps."""
        found = first_complaint(self.consequences)
        if found is not None and (self.died or not found.soft or not self.any_progress):
            return found
        return None

    @cached_property
    def dumped_stack(self) -> HangPlace | None:
        """Where a stack dump in the logs shows a process waiting."""
        return hang_place(self.scans, self.ranks)

    @cached_property
    def any_progress(self) -> bool:
        """Whether training printed anything in the kept parts of the logs."""
        return steps_seen(self.scans)

    def _rows_to_stop(self, source: int) -> int | None:
        """The rows of a log's tail up to its first stop."""
        line = next((item.line for item in self.stops if item.source == source), None)
        return max(line + 1 - self.scans[source].tail_line, 0) if line is not None else None

    @cached_property
    def silent_log(self) -> str | None:
        """The path of a log that was silent for many steps before its end, or before its first stop."""
        for source, scan in enumerate(self.scans):
            found = silence(scan.tail[: self._rows_to_stop(source)])
            if found is not None and found.gap_s >= max(
                SILENCE_S, SILENCE_INTERVALS * found.median_s, SILENCE_PAUSES * found.longest_s
            ):
                return scan.path
        return None

    @cached_property
    def nan_row(self) -> tuple[int, int] | None:
        """The log and the row of its tail from which the loss was nan up to the last line with a loss."""
        for source, scan in enumerate(self.scans):
            row = ends_in_nan(scan.tail)
            if row is not None:
                return source, row
        return None

    @cached_property
    def breaks_off(self) -> bool:
        """Whether a log ends within a traceback, without its exception, or with that of a helper's thread and no end of training."""
        if any(_ends_in_traceback(scan) for scan in self.scans):
            return True
        if self.good_end or self.job.launcher_exit == 0:
            return False
        ends = ((scan, hit) for scan in self.scans for hit in scan.hits if in_helper(hit))
        return any(
            not any(line.strip() for line in scan.tail[hit.line + 1 - scan.tail_line :]) for scan, hit in ends
        )

    @cached_property
    def good_end(self) -> bool:
        """Whether a log reports the end of training, and training did not continue afterwards."""
        return any(
            hit.has(Trait.GOOD_END) and (not hit.has(Trait.CLOSING_LINE) or _closes(scan, hit))
            for scan in self.scans
            for hit in scan.hits
        ) or any(closes_training(scan) for scan in self.scans)


def _interrupted(stop: Candidate, root: Candidate) -> bool:
    """Whether a traceback of Ctrl-C is just above the exception: programs and their helpers fail during teardown."""
    if stop.source != root.source or not stop.text.startswith("KeyboardInterrupt"):
        return False
    below = stop.lines_until(root.line + 1)
    return 0 < root.line - stop.line <= INTERRUPTED_LINES and not any(map(is_progress, below))


def _closes(scan: SourceScan, hit: Hit) -> bool:
    """Whether closing words really close a script: a short line, below which training did not continue."""
    return len(hit.text) <= MAX_CHARS and not _trains_below(scan, hit.line)


def _trains_below(scan: SourceScan, line: int) -> bool:
    """Whether training continued below a line, so that it closes an epoch or another program followed; not by an evaluation."""
    below = (text for number, text in scan.tail_steps() if number > line)
    steps = {text for text in below if not is_evaluation(text)}
    return len(steps) >= STEPS_OF_ANOTHER


def _earliest_strong(causes: Sequence[Candidate]) -> Candidate | None:
    if not causes:
        return None
    floor = max(item.strength for item in causes) - CAUSE_MARGIN
    first = next(item for item in causes if item.strength >= floor)
    if first.soft:
        # A mere warning did not end the program if something else is more than a warning.
        first = next((item for item in causes if item.strength >= floor and not item.soft), first)
    if _is_shell_tools(first):
        # A batch script continues if one of its tools fails: the cause is the program that failed later.
        first = next((item for item in causes if item.strength >= floor and not _is_shell_tools(item)), first)
    if first.has(Trait.REPEATED) and "encountered in worker" in first.text:
        # The loader's line, which names the worker's pid, says more than the worker's own last words.
        alike = (
            item for item in causes if item.signature.id == first.signature.id and far_below(first, item)
        )
        return next((item for item in alike if "killed by signal" in item.text), first)
    return first


def _is_shell_tools(item: Candidate) -> bool:
    """Whether a tool of a batch script complains about a file: the script continues. A full disk always counts."""
    return item.failure in {FailureClass.PERMISSION_DENIED, FailureClass.MISSING_FILE} and bool(
        _SHELL_TOOL.match(item.text)
    )


def _trouble_before(other: Candidate, abort: Candidate) -> bool:
    """Whether a line reports trouble before an abort: threads left by an exception also end that way."""
    return (
        other.source == abort.source
        and other.line < abort.line
        and not other.soft
        and other.strength >= Strength.COMPLAINT
        and other.failure is not FailureClass.TERMINATED
    )


def _is_own_failure(item: Candidate) -> bool:
    """Whether a rank failed on its own: neither from a stop nor from stopped data workers."""
    if item.failure is FailureClass.DATALOADER_WORKER:
        return item.is_cause and item.reason is Reason.RAISED
    return item.is_cause and not item.soft and item.failure is not FailureClass.TERMINATED


def _is_firm_timeout(item: Candidate) -> bool:
    return item.failure is FailureClass.NCCL_TIMEOUT and item.strength >= Strength.DECISIVE and not item.soft


def first_complaint(consequences: Sequence[Candidate]) -> Candidate | None:
    """The complaint to name: a timeout, unless connections broke well before; otherwise the first of the strongest."""
    timeout = next((item for item in consequences if _is_firm_timeout(item)), None)
    if timeout is not None:
        # Peers' "connection closed" follows from a rank that timed out, unless it was printed well before.
        early = (
            item
            for item in consequences
            if item.failure is FailureClass.NCCL_ERROR
            and item.strength >= Strength.COMPLAINT
            and not item.soft
            and timeout.order - item.order > EARLY_S
        )
        return next(early, timeout)
    for level in (Strength.COMPLAINT, Strength.HINT, Strength.TRACE):
        strong = next((item for item in consequences if item.strength >= level and not item.soft), None)
        if strong is not None:
            return strong
    return max(consequences, key=lambda item: item.strength, default=None)


def _ends_in_traceback(scan: SourceScan) -> bool:
    """Whether the text ends in frames without a later line that may name an exception."""
    written = [text for line in scan.tail[-60:] if (text := split_prefix(line, scan.hosts)[1]).strip()]
    named = bool(written) and is_exception(written[-1]) and not is_closing(written[-1])
    framed = False
    for line in reversed(written[:-1] if named else written):
        if "(most recent call " in line:
            return HEAD in line and not named
        if not line.startswith((" ", "\t", "│", "|", "> File ")):
            break
        framed = framed or FRAME.match(line) is not None
    return framed


def far_below(one: Candidate, other: Candidate) -> bool:
    """Whether a line is far below another, or in another log."""
    return other.source != one.source or other.line - one.line > FAR_BELOW_LINES

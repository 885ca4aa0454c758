"""Facts about a single attempt, plus values that the rules derive from them. Each is computed on first use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from supervisor.diagnosis.candidates import ends_well, steps_seen
from supervisor.diagnosis.evidence import JobEvidence, SeenHang, SeenRecorder
from supervisor.diagnosis.launcher_reports import Exit, Launch, Ranks
from supervisor.diagnosis.scan.log_timeline import closes_training, is_closing
from supervisor.diagnosis.scan.matched_lines import Candidate, SourceScan, frames_above, in_helper, went_on
from supervisor.diagnosis.scan.signature_tables import Signatures, Strength, Trait
from supervisor.run.records import FailureClass, Reason
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix
from supervisor.text.tracebacks import FRAME, HEAD, is_exception

CRASH_LINES = 400
"""The number of lines at the tail of a log to search for a crash."""
# The words of strsignal(3), which shells and launchers repeat, and of the kernel's log (show_signal_msg).
_CRASH = Lazy(r"(?i)\b(?:seg(?:mentation )?fault|core dumped|bus error)\b")
# Lines below the level of an error, as Python's logging and glog mark them.
_NO_ERROR = Lazy(r"\b(?:INFO|DEBUG|WARN(?:ING)?)\b|(?:^|\s)[WI]\d{4} ")
_SCHEDULERS_TOOL = Lazy(r"(?:slurmstepd(?:-[\w.-]+)?|slurmd|srun|scancel): ")
_SHELL_TOOL = Lazy(
    r"(?:/\S{1,80}/)?(?:mkdir|rmdir|cp|mv|rm|ln|ls|cat|chmod|chown|chgrp|touch|tee|tar|unzip|find|grep|sed|df|du): "
)
_STOPPED = frozenset((FailureClass.TERMINATED, FailureClass.DATALOADER_WORKER))
_LOADER_STOPPED = Lazy(r"DataLoader worker \(pid.{1,40} is killed by signal: Terminated")
_ABORTED = Lazy(r"Aborted|terminate called")
FATAL_SIGNALS = frozenset((-4, -7, -8, -9, -11))
STOP_SIGNALS = frozenset((-15, -2, -1))
# At least this many steps after the last report of an ended process belong to another run in the same file.
STEPS_OF_ANOTHER = 25
# The earliest cause is chosen among those at most this much weaker than the strongest. So are stops.
CAUSE_MARGIN = 30
STOP_MARGIN = 10
# A line more than this far above another is not part of the same message.
FAR_BELOW_LINES = 15
INTERRUPTED_LINES = 120  # two tracebacks below the one of Ctrl-C
# Errors that workers raise when a stop tears them down. In other classes, only the strongest are no echoes.
_NO_ECHO = frozenset(
    (FailureClass.CUDA_OOM, FailureClass.HOST_OOM, FailureClass.GPU_FAULT, FailureClass.NAN_LOSS)
)


class Root(NamedTuple):
    """The chosen root cause: failure class, location and confidence.

    `line` is 0 if no line shows it. `local_rank` is set if `rank` is unknown. `shown_by` holds the stacks or dumps used.
    """

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
    shown_by: SeenHang | SeenRecorder | None = None

    def of_rank(self, rank: int | None) -> Root:
        """Return a copy of the root with this rank, or with no rank if None."""
        return self._replace(rank=rank, ranks=(rank,) if rank is not None else ())


@dataclass(frozen=True)
class Facts:
    """An attempt's evidence, scanned logs, launcher reports and possible cause lines. Frozen so values can be cached."""

    job: JobEvidence
    scans: tuple[SourceScan, ...]
    launch: Launch
    ranks: Ranks
    candidates: tuple[Candidate, ...]
    signatures: Signatures

    # -- candidates by kind ------------------------------------------------------------------------

    @cached_property
    def _reported(self) -> list[Candidate]:
        """The candidates, minus stop signals if stoker itself stopped the attempt because of a hang."""
        ours = self.job.ended_for == "hang"
        return [item for item in self.candidates if not (ours and item.has(Trait.STOP_SIGNAL))]

    @cached_property
    def causes(self) -> list[Candidate]:
        """Causes that are neither external stops nor symptoms of something else."""
        found = [
            item for item in self._reported if item.is_cause and item.failure is not FailureClass.TERMINATED
        ]
        kept = [item for item in found if not self._is_symptom(item)]
        if any(item.failure is FailureClass.GPU_FAULT for item in kept):
            kept = [item for item in kept if item.failure is not FailureClass.CUDA_ERROR]
        return kept

    @cached_property
    def stops(self) -> list[Candidate]:
        """Reports that something outside the job stopped it."""
        return [item for item in self._reported if item.is_cause and item.failure is FailureClass.TERMINATED]

    @cached_property
    def consequences(self) -> list[Candidate]:
        """Complaints from peers, and similar lines."""
        return [item for item in self._reported if not item.is_cause and item.strength >= Strength.TRACE]

    @cached_property
    def signal_deaths(self) -> list[Exit]:
        """Deaths by signal that neither the launcher (TERM and KILL for survivors) nor the scheduler caused."""
        found = [
            item
            for item in self.launch.exits
            if item.code in FATAL_SIGNALS
            and not (item.pid in self.launch.sigtermed and item.code == -9)
            and not self._killed_with_its_step(item)
        ]
        return sorted(found, key=lambda item: (item.summary, item.hit.source, item.hit.line))

    def _killed_with_its_step(self, item: Exit) -> bool:
        """Check whether this is srun's report of a task that it killed because the step was canceled or another task exited."""
        if not item.hit.has(Trait.TASK_EXIT):
            return False
        stopped = any(stop.source == item.hit.source and stop.line <= item.hit.line for stop in self.stops)
        left = any(other.hit.has(Trait.TASK_EXIT) and other.code > 0 for other in self.launch.exits)
        return stopped or (item.code == -9 and left)

    # -- causes ------------------------------------------------------------------------------------

    def _is_symptom(self, item: Candidate) -> bool:
        """Check whether a cause is merely a consequence of another event in the logs."""
        if item.soft and not self.died and self.any_progress:
            return True
        hits = self.scans[item.source].hits
        if item.has(Trait.SHELL_KILL) and any(
            hit.has(Trait.KILLS_PEERS) and hit.line < item.line for hit in hits
        ):
            return True  # Lightning kills what is left, and itself
        if (
            item.failure is not FailureClass.HOST_OOM
            and _SCHEDULERS_TOOL.search(item.text) is not None
            and any(hit.has(Trait.SCHEDULER_REPORT) for hit in hits)
        ):
            return True  # the scheduler's own tools clean up after the end of the job: mounts, epilogs
        loader_died = item.failure is FailureClass.DATALOADER_WORKER and item.reason is not Reason.RAISED
        if loader_died and self._is_stopped_loader(item):
            return True
        return item.has(Trait.ABORT) and self._is_explained_abort(item)

    def _is_explained_abort(self, item: Candidate) -> bool:
        """Check whether a SIGABRT followed a stated reason or came from threads left behind by an exception."""
        return _ABORTED.search(item.text) is not None and any(
            (item.line <= other.line <= item.line + 3 and not other.has(Trait.ABORT))
            or (
                other.source == item.source
                and other.line < item.line
                and not other.soft
                and other.strength >= Strength.COMPLAINT
                and other.failure is not FailureClass.TERMINATED
            )
            for other in self.candidates
        )

    def _is_stopped_loader(self, item: Candidate) -> bool:
        """Check whether a data worker died of a SIGTERM that followed another rank's failure, a launcher's signal or a stop."""
        alike = (one for one in self._reported if (one.source, one.rank) == (item.source, item.rank))
        if not any(one.line <= item.line and _LOADER_STOPPED.search(one.text) for one in alike):
            return False  # the loader's last words mention no signal
        ranks, rank = self.ranks, self.ranks.of(item.hit, item.failure)
        if rank is not None and rank == ranks.blamed():
            return False
        stop = self.firm_stop
        if stop is not None and not self._before(item, stop):
            return True
        if any(hit.has(Trait.SIGNALS_PEERS) and hit.line < item.line for hit in self.scans[item.source].hits):
            return True
        return self._other_rank_failed(rank) or rank in self._signalled_ranks()

    def _other_rank_failed(self, rank: int | None) -> bool:
        ranks = self.ranks
        firm = [
            one for one in self._reported if one.is_cause and not one.soft and one.failure not in _STOPPED
        ]
        failed = {ranks.of(one.hit, one.failure) for one in firm}
        failed |= {ranks.of_exit(one) for one in self.signal_deaths}
        return bool(failed - {rank, None})

    def _signalled_ranks(self) -> set[int | None]:
        return {self.launch.rank_by_pid.get(pid) for pid in self.launch.sigtermed} - {None}

    @cached_property
    def best_cause(self) -> Candidate | None:
        """The earliest cause whose strength is close to that of the strongest."""
        return _earliest_strong(self.causes)

    @cached_property
    def cause_before_stop(self) -> Candidate | None:
        """The best cause, unless a preceding stop explains it."""
        root, stop = self.best_cause, self.firm_stop
        if root is None:
            return None
        # Right below a traceback of Ctrl-C, programs and their helpers fail during teardown.
        interrupts = (one for one in self.stops if one.text.startswith("KeyboardInterrupt"))
        near = (one for one in interrupts if 0 < root.line - one.line <= INTERRUPTED_LINES)
        if any(one.source == root.source for one in near):
            return None
        if stop is None:
            return root
        # A tool's complaint (``conda activate``) looks like an exception of unknown type, but the script continues.
        if root.has(Trait.OPEN_TYPE) and stop.strength >= Strength.EXACT and not frames_above(root.hit).found:
            return None
        if not self._before(stop, root):
            return root
        is_echo = root.failure not in _NO_ECHO or root.strength < Strength.FULL
        return None if is_echo else root

    # -- stops -------------------------------------------------------------------------------------

    @cached_property
    def firm_stop(self) -> Candidate | None:
        """The first stop that was reported as received or requested."""
        return next((item for item in self.stops if item.strength >= Strength.FIRM), None)

    @cached_property
    def stop_before_complaints(self) -> Candidate | None:
        """The stop to report, or None if there is none or a peer complained before the first one."""
        if not self.stops:
            return None
        # Pipes of a loader's own processes break as the other end stops, often before a report of the stop.
        others = [item for item in self.consequences if item.failure is not FailureClass.DATALOADER_WORKER]
        complaint = first_complaint(others)
        if complaint is not None and self._before(complaint, self.stops[0]):
            return None
        top = max(item.strength for item in self.stops)
        strong = [item for item in self.stops if item.strength >= top - STOP_MARGIN]
        return strong[0]

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
        """Whether there is any evidence that a process failed."""
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
        """The first death by signal, unless every such death came after a stop."""
        stop = self.firm_stop
        if stop is not None and all(item.hit.line > stop.line for item in self.signal_deaths):
            return None
        return next(iter(self.signal_deaths), None)

    @cached_property
    def bad_exits(self) -> list[Exit]:
        """Nonzero exits, with torchrun's summary last. A shell's exit status is excluded because it belongs to no process."""
        found = [
            item
            for item in self.launch.exits
            if item.code != 0 and not item.hit.has(Trait.SHELL_EXIT) and not self._killed_with_its_step(item)
        ]
        return sorted(found, key=lambda item: (item.summary, item.hit.source, item.hit.line))

    # -- complaints, stacks, silences --------------------------------------------------------------

    @cached_property
    def any_progress(self) -> bool:
        """Whether the kept parts of the logs contain any training output."""
        return steps_seen(self.scans)

    @cached_property
    def mentions_crash(self) -> bool:
        """Whether a line after the last step mentions a crash but matches no signature."""
        for scan in self.scans:
            known = {hit.line for hit in scan.hits}
            last = max(*scan.steps, scan.tail_line + len(scan.tail) - CRASH_LINES, 0)
            for number, line in scan.numbered_tail():
                if (
                    number > last
                    and number not in known
                    and _CRASH.search(line)
                    and not _NO_ERROR.search(line)
                ):
                    return True
        return False

    @cached_property
    def breaks_off(self) -> bool:
        """Whether a log stops mid-traceback, or at a helper thread's traceback without reporting that training finished."""
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
        """Whether any log reports that training finished."""
        return any(
            closes_training(scan) or any(hit.has(Trait.GOOD_END) for hit in scan.hits) for scan in self.scans
        )


_OF_FILES = frozenset((FailureClass.PERMISSION_DENIED, FailureClass.MISSING_FILE))


def _earliest_strong(causes: Sequence[Candidate]) -> Candidate | None:
    if not causes:
        return None
    floor = max(item.strength for item in causes) - CAUSE_MARGIN
    first = next(item for item in causes if item.strength >= floor)
    if first.soft:
        # A mere warning did not end the program if another cause is more than a warning.
        first = next((item for item in causes if item.strength >= floor and not item.soft), first)
    if _is_shell_tools(first):
        # A batch script continues if one of its tools fails. The cause is the program that failed later.
        first = next((item for item in causes if item.strength >= floor and not _is_shell_tools(item)), first)
    if first.has(Trait.REPEATED) and "encountered in worker" in first.text:
        # The loader's line, which has the worker's pid, is more informative than the worker's own last words.
        later = (item for item in causes if far_below(first, item) and "killed by signal" in item.text)
        return next(later, first)
    return first


def _is_shell_tools(item: Candidate) -> bool:
    """Check whether the error is a shell tool's complaint about a file (or a full disk), after which a batch script continues."""
    return item.failure in _OF_FILES and _SHELL_TOOL.match(item.text) is not None


def first_complaint(consequences: Sequence[Candidate]) -> Candidate | None:
    """Return the complaint to report: a timeout if there is one, otherwise the first of the strongest."""
    for item in consequences:
        if item.failure is FailureClass.NCCL_TIMEOUT and item.strength >= Strength.DECISIVE and not item.soft:
            return item  # peers' "connection closed" follows from a rank that timed out
    for level in (Strength.COMPLAINT, Strength.HINT, Strength.TRACE):
        strong = next((item for item in consequences if item.strength >= level and not item.soft), None)
        if strong is not None:
            return strong
    return max(consequences, key=lambda item: item.strength, default=None)


def _ends_in_traceback(scan: SourceScan) -> bool:
    """Check whether the log stops at traceback frames, with no later line that could be the exception."""
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
    """Check whether `other` is far below `one` or in a different log."""
    return other.source != one.source or other.line - one.line > FAR_BELOW_LINES

"""Find the root cause of a failure with a single ordered table of named rules.

First-stage rules read the logs, and the first one that applies supplies the root cause. The earliest cause on the rank
that failed first takes precedence over everything else. Peers' complaints and the launcher's own signals and aborts are
consequences; they become the root only if no cause was found. When in doubt, the root is `unknown`.

Each later stage uses evidence from outside the logs, and its first applicable rule may correct the current root. A root
weighs as much as the evidence behind it (`Weight`), and each rule states the highest weight that it outranks.
`stoker diagnose --explain` prints the rules that fired, and the log rules that would also apply but yielded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from supervisor.diagnosis.attempt_facts import STOP_SIGNALS, Facts, Root, first_complaint
from supervisor.diagnosis.evidence import MachineRecords
from supervisor.diagnosis.exit_zero import (
    planned_end,
    reached_end,
    says_end,
    standing,
    standing_exit,
)
from supervisor.diagnosis.hang_verdict import (
    hang_by_recorder,
    hang_by_stacks,
    hang_place,
    lagging_rank,
    timeout_by_stacks,
)
from supervisor.diagnosis.launcher_reports import Exit
from supervisor.diagnosis.root_cause import (
    Limit,
    from_candidate,
    from_complaint,
    from_exit,
    limits_of,
    own_complaint,
)
from supervisor.diagnosis.scan.log_timeline import ends_in_nan, silence
from supervisor.diagnosis.scan.signature_tables import Strength, Trait
from supervisor.diagnosis.slurm_states import OUTCOMES
from supervisor.run.records import FailureClass, Reason

# A larger code is a shell's 128 + signal.
MOST_EXIT_CODE = 127
# The confidence of a SIGKILL without any text.
BARE_KILL = 0.7
# A silence before a stop is a hang if it lasted at least this long, and at least this many usual intervals.
SILENCE_S = 900.0
SILENCE_INTERVALS = 25
# It must also last this many times the longest earlier pause, such as a save or an evaluation.
SILENCE_PAUSES = 2
SHM_FULL_SHARE = 0.98
# With less free space, a traceback no longer fits.
FULL_BYTES = 16 * 1024
LAUNCHER_SIGNAL = 0.85
NEARLY_DONE = 0.9
"""Past this fraction, a script that prints only every hundredth step may have had nothing left to print."""
# Xids that NVIDIA documents as hardware faults or as requiring a reset (docs.nvidia.com/deploy/xid-errors).
_HARD_XIDS = frozenset((46, 48, 54, 61, 62, 64, 74, 79, 94, 95, 109, 110, 119, 120, 140, 143))
# SIGHUP, SIGINT, SIGKILL, SIGTERM. torchrun needs little memory, so the kernel would kill a rank first.
_FROM_OUTSIDE = frozenset((1, 2, 9, 15))
_WARNED = "requeue"  # the wire name of a stop that a batch system requested (`run.events.StopWhy`)
_RANK_DIED = "rank_died"  # likewise, for a stop of the rest after one part failed
_BY_SOMEBODY = frozenset((Reason.TIME_LIMIT, Reason.USER, Reason.OUTSIDE))
_WAITING = (FailureClass.NCCL_TIMEOUT, FailureClass.HANG, FailureClass.RENDEZVOUS)
_QUIET = frozenset((FailureClass.HEALTHY, FailureClass.UNKNOWN))
_ENDS = frozenset((FailureClass.WORKER_CRASH, FailureClass.HOST_OOM, FailureClass.TERMINATED))
_COMPLAINTS = frozenset((FailureClass.NCCL_ERROR, FailureClass.NCCL_TIMEOUT, FailureClass.RENDEZVOUS))


class Stage(IntEnum):
    """The order in which rules apply."""

    LOGS = 0
    MACHINE = 1
    AFTER_THE_END = 2
    OWN_KNOWLEDGE = 3
    STACKS = 4
    EXIT_ZERO = 5
    PLANNED_END = 6


class Weight(IntEnum):
    """The strength of the evidence for a root cause, weakest first."""

    SILENCE = 1  # no failure is reported, or its class is unknown
    EXIT = 2  # only the end of a process
    COMPLAINT = 3  # ranks that lost or waited for others
    CAUSE = 4  # a line with a cause, stacks, or a NaN loss


def weight_of(root: Root) -> Weight:
    """Return a root cause's weight relative to other evidence."""
    if root.failure in _QUIET:
        return Weight.SILENCE
    if root.failure in _COMPLAINTS:
        return Weight.COMPLAINT
    return Weight.EXIT if root.chosen is None and root.failure in _ENDS else Weight.CAUSE


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for finding the root cause.

    `find` takes the facts and the current root and returns a new root, or None if the rule does not apply. `why` is a
    one-sentence explanation for the user. `confidence` overrides `find`'s own confidence unless it is None. `outranks`
    is the highest root weight that the rule may change. If `is_fallback` is true, the rule only states that no line
    shows a cause.
    """

    name: str
    stage: Stage
    find: Callable[[Facts, Root], Root | None]
    why: str
    confidence: float | None = None
    outranks: Weight = Weight.CAUSE
    is_fallback: bool = False

    def root(self, facts: Facts, so_far: Root) -> Root | None:
        """Return this rule's root, or None if the rule does not apply or changes nothing."""
        if weight_of(so_far) > self.outranks:
            return None
        found = self.find(facts, so_far)
        if found is not None and self.confidence is not None:
            found = found._replace(confidence=self.confidence)
        return found if found != so_far else None


def _as(root: Root, failure: FailureClass, reason: Reason | None = None) -> Root:
    return root._replace(failure=failure, reason=reason)


# -- the logs: stacks, causes, stops ---------------------------------------------------------------


def _stack_dump(facts: Facts, _: Root) -> Root | None:
    cause = facts.best_cause
    if cause is not None and cause.strength >= Strength.DECISIVE:
        return None
    place = hang_place(facts.scans, facts.ranks)
    if place is None:
        return None
    rank = place.rank
    if rank is None and facts.consequences:
        rank = lagging_rank(facts.candidates, facts.launch, facts.ranks)
    path = facts.scans[place.source].path
    return Root(FailureClass.HANG, rank=rank, path=path, line=place.line, text=place.text)


def _scheduler_stop(facts: Facts, _: Root) -> Root | None:
    hard = (Reason.NODE_FAIL, Reason.PREEMPTED)
    item = next((item for item in facts.stops if item.reason in hard), None)
    return from_candidate(item, facts.stops, facts) if item is not None else None


def _stop(facts: Facts, _: Root) -> Root | None:
    item = facts.stop_before_complaints
    if item is None:
        return None
    root = from_candidate(item, facts.stops, facts)
    interrupted = next((one for one in facts.launch.exits if one.code == -2), None)
    if root.rank is None and interrupted is not None:
        root = root.of_rank(facts.ranks.of_exit(interrupted))
    return root


# -- the logs: exits -------------------------------------------------------------------------------


def _of_exit(facts: Facts, item: Exit | None) -> Root | None:
    if item is None:
        return None
    if item.code in STOP_SIGNALS:
        return from_exit(item, facts, FailureClass.TERMINATED, Reason.OUTSIDE)
    return from_exit(item, facts, reason=Reason.EXIT_CODE if item.code > 0 else None)


def _fatal_signal(facts: Facts, _: Root) -> Root | None:
    item = facts.unexplained_signal
    root = _of_exit(facts, item)
    return root._replace(confidence=BARE_KILL if item.code == -9 else 0.9) if root and item else None


def _silent_exit(facts: Facts, _: Root) -> Root | None:
    """Find a process that exited silently with an unusual code while its peers only report a lost connection."""
    if any(item.failure in _WAITING and not item.soft for item in facts.consequences):
        return None
    complaining = {item.rank for item in facts.consequences if not item.soft}
    by_itself = any(item.code > 0 for item in facts.launch.exits)
    for item in facts.launch.exits:
        usual = (
            item.code in {0, 1}
            or (item.code == -6 and None in complaining)
            or (item.code in STOP_SIGNALS and by_itself)
            or item.pid in facts.launch.sigtermed
        )
        rank = facts.ranks.of_exit(item) if item.task is None else item.rank
        if not usual and rank is not None and rank not in complaining:
            return None if _stopped_before(facts, item) else _of_exit(facts, item)
    return None


def _stopped_before(facts: Facts, item: Exit) -> bool:
    """Check whether a stop explains an exit. After SIGINT, a KeyboardInterrupt is strong enough evidence."""
    stop = facts.firm_stop or (next(iter(facts.stops), None) if item.code == -2 else None)
    return stop is not None and stop.line < item.hit.line


def _bad_exit(facts: Facts, _: Root) -> Root | None:
    """Find an unusual exit code or a signal from outside. If any process failed on its own, the launcher sent the signals."""
    usual = {1, *STOP_SIGNALS}
    own = any(item.code > 0 or item.code == -6 for item in facts.bad_exits)
    found = (
        item
        for item in facts.bad_exits
        if (item.code not in usual and item.code <= MOST_EXIT_CODE) or (not own and item.code in STOP_SIGNALS)
    )
    return _of_exit(facts, next(found, None))


# -- the logs: silences, complaints, ends without a line -------------------------------------------


def _silence(facts: Facts, _: Root) -> Root | None:
    if facts.stop_before_complaints is None or facts.stops[0].reason not in _BY_SOMEBODY:
        return None
    for source, scan in enumerate(facts.scans):
        stop = next((item.line for item in facts.stops if item.source == source), scan.lines)
        found = silence(scan.tail[: max(stop + 1 - scan.tail_line, 0)])
        if found is not None and found.gap_s >= max(
            SILENCE_S, SILENCE_INTERVALS * found.median_s, SILENCE_PAUSES * found.longest_s
        ):
            return Root(FailureClass.HANG, path=scan.path)
    return None


def _nan(facts: Facts, _: Root) -> Root | None:
    for scan in facts.scans:
        if (row := ends_in_nan(scan.tail)) is not None:
            root = Root(FailureClass.NAN_LOSS, path=scan.path, line=scan.tail_line + row, text=scan.tail[row])
            rank = scan.origin.rank
            if rank is None:
                rank = facts.ranks.from_local(scan.origin.local_rank or 0, scan.origin.node)
            return root.of_rank(rank)
    return None


def _complaint(facts: Facts, _: Root) -> Root | None:
    found = first_complaint(facts.consequences)
    if found is None or (found.soft and facts.any_progress and not facts.died):
        return None
    return from_complaint(own_complaint(found, facts.consequences), facts)


def _unexplained_end(facts: Facts, _: Root) -> Root | None:
    if not facts.died:
        return None
    reported = any(item.code != 0 for item in facts.launch.exits)
    return Root(FailureClass.UNKNOWN).of_rank(facts.ranks.blamed() if reported else None)


def _quiet(failure: FailureClass, fact: Callable[[Facts], bool]) -> Callable[[Facts, Root], Root | None]:
    return lambda facts, _: Root(failure) if fact(facts) else None


# -- the machine's records -------------------------------------------------------------------------


def _memory_kill_counted(facts: Facts, root: Root) -> Root | None:
    killed = root.reason is Reason.KERNEL_KILL or any(item.code == -9 for item in facts.launch.exits)
    if not facts.job.machine.cgroup_oom_kills or not (killed or weight_of(root) <= Weight.COMPLAINT):
        return None
    return _as(root, FailureClass.HOST_OOM, Reason.CGROUP_KILL)


def _no_memory_kill_counted(facts: Facts, root: Root) -> Root | None:
    # oom_kill in memory.events counts the kills of every OOM killer (Linux, cgroup-v2.rst).
    if facts.job.machine.cgroup_oom_kills != 0:
        return None
    if root.reason is Reason.KERNEL_KILL and root.confidence <= BARE_KILL:
        return _as(root, FailureClass.WORKER_CRASH, Reason.SIGNAL)
    by_kill = root.chosen is not None and root.chosen.has(Trait.SIGKILL_ONLY)
    return _as(root, FailureClass.DATALOADER_WORKER, Reason.KILLED) if by_kill else None


def _slurm_state(facts: Facts, root: Root) -> Root | None:
    state = facts.job.machine.slurm_state
    known = OUTCOMES.get(state.split()[0].rstrip("+")) if state is not None else None
    if known is None:
        return None
    if root.failure is not known[0]:
        root = root._replace(path="", line=0, text="")
    return _as(root, *known)


def _shared_memory_full(facts: Facts, root: Root) -> Root | None:
    share = facts.job.machine.shm_used_share
    crashed = root.failure in (FailureClass.DATALOADER_WORKER, FailureClass.WORKER_CRASH)
    return (
        _as(root, FailureClass.SHM_EXHAUSTED)
        if share is not None and share > SHM_FULL_SHARE and crashed
        else None
    )


def _gpu_fault(facts: Facts, root: Root) -> Root | None:
    hard = any(xid in _HARD_XIDS for _, xid in facts.job.machine.gpu_xids)
    fits = weight_of(root) <= Weight.COMPLAINT or root.failure is FailureClass.CUDA_ERROR
    return _as(root, FailureClass.GPU_FAULT) if hard and fits else None


def _full_disk(facts: Facts, root: Root) -> Root | None:
    """Blame a full disk if logs can no longer be written and the only evidence is an exit code or a broken pipe."""
    free_bytes = facts.job.machine.disk_free_bytes
    if free_bytes is None or free_bytes >= FULL_BYTES:
        return None
    broken = root.failure is FailureClass.NCCL_ERROR and root.text.startswith("BrokenPipeError")
    by_code = root.failure is FailureClass.UNKNOWN or root.reason is Reason.EXIT_CODE
    if root.reason is Reason.OUTSIDE and facts.job.launcher_exit == 1:
        # torchrun stopped the other ranks after one failed. Its log line about that did not fit on the disk either.
        return Root(FailureClass.DISK_FULL)
    return _as(root, FailureClass.DISK_FULL) if broken or (by_code and facts.died) else None


def _launcher_killed(facts: Facts, root: Root) -> Root | None:
    """Blame the signal that killed the launcher, if the ranks only lost contact with it or with each other."""
    if weight_of(root) is Weight.EXIT or root.failure is FailureClass.NCCL_TIMEOUT:
        return None
    return by_launchers_signal(facts.job.launcher_signal)


def by_launchers_signal(signal: int | None) -> Root | None:
    """Return the root cause for the signal that killed the launcher."""
    if signal is None:
        return None
    if signal in _FROM_OUTSIDE:
        return Root(FailureClass.TERMINATED, Reason.OUTSIDE, confidence=LAUNCHER_SIGNAL)
    return Root(FailureClass.WORKER_CRASH, Reason.SIGNAL, confidence=LAUNCHER_SIGNAL)


# -- the end, and stoker's own knowledge -----------------------------------------------------------


def _aborted_at_exit(facts: Facts, root: Root) -> Root | None:
    aborted = root.failure is FailureClass.WORKER_CRASH or (
        root.failure is FailureClass.NCCL_ERROR and any(item.code == -6 for item in facts.launch.exits)
    )
    if not aborted:
        return None
    job = facts.job
    finished = job.final_checkpoint or (
        job.total_steps is not None and job.last_step is not None and job.last_step >= job.total_steps
    )
    own = (hit for scan in facts.scans if scan.path == root.path for hit in scan.hits)
    finished = finished or any(hit.has(Trait.GOOD_END) and hit.line < root.line for hit in own)
    return _as(root, FailureClass.WORKER_CRASH, Reason.AT_EXIT) if finished else None


def _stopped_by_us(facts: Facts, root: Root) -> bool:
    failed_before = (
        root.chosen is not None
        and root.chosen.is_cause
        and root.failure is not FailureClass.TERMINATED
        and root.chosen.strength >= Strength.PLAIN
    )
    return facts.job.stop_reason is not None and not failed_before


def _node_never_came(facts: Facts, root: Root) -> Root | None:
    """Blame the rendezvous if stoker stopped the attempt because a node was gone before any rank had started."""
    job = facts.job
    if job.ended_for != _RANK_DIED or job.exit_codes or job.launcher_signal:
        return None
    no_cause = root.failure in (*_QUIET, FailureClass.TERMINATED)
    of_ranks = any(log.origin.rank is not None or log.origin.local_rank is not None for log in job.logs)
    return _as(root, FailureClass.RENDEZVOUS) if no_cause and not of_ranks else None


def _made_no_step(facts: Facts, root: Root) -> Root | None:
    """Doubt exit code 0 if the attempt completed no steps and an earlier attempt was still far from the planned end."""
    job = facts.job
    if root.failure is not FailureClass.HEALTHY or job.launcher_exit != 0 or job.final_checkpoint:
        return None
    if job.earlier_step is None or job.total_steps is None:
        return None
    is_far = job.earlier_step[1] < NEARLY_DONE * job.total_steps
    return _as(root, FailureClass.UNKNOWN, Reason.NO_STEP) if is_far else None


# -- exit code 0 -----------------------------------------------------------------------------------


def _shows_failure(root: Root) -> bool:
    """Check whether the logs show a failure despite the exit code. A NaN loss is excluded: it needs no other evidence."""
    return root.failure not in (*_QUIET, FailureClass.NAN_LOSS)


def _exit_zero_after_end(facts: Facts, root: Root) -> Root | None:
    if not _shows_failure(root) or not reached_end(facts, root) or not standing(facts, root):
        return None
    return _as(root, FailureClass.HEALTHY, Reason.AT_EXIT)


def _exit_zero_of_launcher(facts: Facts, root: Root) -> Root | None:
    found = standing_exit(facts) if root.failure is FailureClass.UNKNOWN else None
    if found is None or (found.hit.has(Trait.SHELL_EXIT) and reached_end(facts, root)):
        return None
    return from_exit(found, facts, FailureClass.WORKER_CRASH, Reason.EXIT_CODE)


def _ended_early(facts: Facts, root: Root) -> Root | None:
    if root.failure not in _QUIET or root.reason is not None:
        return None
    end = planned_end(facts)
    missed = end is not None and not end.is_reached and not says_end(facts)
    return _as(root, FailureClass.UNKNOWN, Reason.ENDED_EARLY) if missed else None


_F, _S = FailureClass, Stage

RULES = (
    Rule("stack_dump", _S.LOGS, _stack_dump,
         "Somebody dumped stacks into the log, and no strong cause stands in it: the run hung where a process waits outside of a collective.",
         0.86),
    Rule("earliest_cause", _S.LOGS,
         lambda facts, _: from_candidate(facts.cause_before_stop, facts.causes, facts) if facts.cause_before_stop else None,
         "The earliest line that names a cause, and that no stop before it explains, is what the run failed of."),
    Rule("scheduler_stop", _S.LOGS, _scheduler_stop,
         "A node failed or the scheduler pre-empted the job, and nothing had failed before."),
    Rule("fatal_signal", _S.LOGS, _fatal_signal,
         "A process died by a signal that no launcher or scheduler sent, and printed no cause; a SIGKILL comes most often from the kernel, for want of memory."),
    Rule("silent_exit", _S.LOGS, _silent_exit,
         "A process left with an unusual exit code or by a signal and printed nothing, while its peers only lost the connection to it.", 0.8),
    Rule("silence_before_stop", _S.LOGS, _silence,
         "Long before the stop no step was printed any more: the run hung, and the stop ended that.", 0.78),
    Rule("stop", _S.LOGS, _stop, "The run was stopped from outside, and no peer had complained before."),
    Rule("nan_to_the_end", _S.LOGS, _nan, "The loss was nan to the last line that printed one.", 0.88),
    Rule("complaint", _S.LOGS, _complaint,
         "Only complaints of peers are known (a timeout, a lost connection), and no rank reports that it failed first."),
    Rule("bad_exit", _S.LOGS, _bad_exit,
         "A process aborted, exited with an unusual code, or was ended by a signal from outside, and nothing else is known.", 0.75),
    Rule("unexplained_end", _S.LOGS, _unexplained_end,
         "A process ended badly, and nothing in view says why.", 0.5, is_fallback=True),
    Rule("cut_off", _S.LOGS, _quiet(_F.UNKNOWN, lambda facts: facts.breaks_off),
         "A log ends within a traceback: the line that says what was raised is missing.", 0.5, is_fallback=True),
    Rule("good_end", _S.LOGS, _quiet(_F.HEALTHY, lambda facts: facts.good_end),
         "The log reports the end of training, and no failure.", 0.97, is_fallback=True),
    Rule("crash_mentioned", _S.LOGS, _quiet(_F.UNKNOWN, lambda facts: facts.mentions_crash and facts.job.launcher_exit != 0),
         "A line below the last step mentions a crash, and no signature matches it.", 0.5, is_fallback=True),
    Rule("still_training", _S.LOGS, _quiet(_F.HEALTHY, lambda facts: facts.any_progress or facts.job.launcher_exit == 0),
         "Training printed steps, or the launcher ended with 0, and no failure is reported.", 0.94, is_fallback=True),
    Rule("metrics_printed", _S.LOGS, _quiet(_F.HEALTHY, lambda facts: facts.job.prints_metrics),
         "Rows of metrics or of numbers are printed to the end, and no failure is reported.", 0.8, is_fallback=True),
    Rule("nothing_known", _S.LOGS, _quiet(_F.UNKNOWN, lambda _: True),
         "The logs show neither steps nor a failure.", 0.4, is_fallback=True),
    Rule("memory_kill_counted", _S.MACHINE, _memory_kill_counted,
         "The job's memory counters show out-of-memory kills.", 0.96),
    Rule("no_memory_kill_counted", _S.MACHINE, _no_memory_kill_counted,
         "The job's memory counters show no out-of-memory kill, so somebody else sent the SIGKILL.", 0.85),
    Rule("slurm_state", _S.MACHINE, _slurm_state,
         "The logs show no cause, and SLURM recorded how the job ended.", 0.95, Weight.COMPLAINT),
    Rule("shared_memory_full", _S.MACHINE, _shared_memory_full, "A process crashed while /dev/shm was full.", 0.93),
    Rule("gpu_reported_fault", _S.MACHINE, _gpu_fault, "The driver reported a hardware fault (Xid) at this time.", 0.95),
    Rule("full_disk", _S.MACHINE, _full_disk,
         "A process failed without printing a cause, and the disk that holds its logs is full.", 0.8, Weight.COMPLAINT),
    Rule("launcher_killed", _S.MACHINE, _launcher_killed,
         "A signal ended the launcher itself, and no rank reports a cause: the ranks ended because they lost it.",
         LAUNCHER_SIGNAL, Weight.COMPLAINT),
    Rule("aborted_at_exit", _S.AFTER_THE_END, _aborted_at_exit,
         "The crash came after the last step or the final checkpoint: training had finished.", 0.93),
    Rule("stopped_for_slurm", _S.OWN_KNOWLEDGE, lambda facts, root: _slurm_state(facts, root) if _stopped_by_us(facts, root) else None,
         "SLURM was ending the job, so stoker stopped the run.", 0.95),
    Rule("warned_of_limit", _S.OWN_KNOWLEDGE,
         lambda facts, root: Root(_F.TERMINATED, Reason.TIME_LIMIT)
         if facts.job.stop_reason == _WARNED and _stopped_by_us(facts, root) else None,
         "The batch system warned of its limit, so stoker stopped the run.", 0.95),
    Rule("stopped_by_stoker", _S.OWN_KNOWLEDGE,
         lambda facts, root: Root(_F.TERMINATED, Reason.USER) if _stopped_by_us(facts, root) else None,
         "stoker stopped the run, and the logs show no clear cause before that.", 0.97),
    Rule("node_never_came", _S.OWN_KNOWLEDGE, _node_never_came,
         "The ranks had not met yet, and stoker ended the attempt because a node was gone.", 0.9),
    Rule("made_no_step", _S.OWN_KNOWLEDGE, _made_no_step,
         "The attempt exited with code 0 without a step, and an earlier attempt had not reached the last one.", 0.9, Weight.SILENCE),
    Rule("stacks_of_hang", _S.STACKS, hang_by_stacks,
         "stoker ended the run as a hang; its stacks show which ranks kept the others waiting."),
    Rule("stacks_of_timeout", _S.STACKS, timeout_by_stacks,
         "The waiting ranks timed out; the stacks that stoker took before show which ranks they waited for."),
    Rule("flight_recorder", _S.STACKS, hang_by_recorder,
         "PyTorch's flight recorder shows, rank by rank, which collective hangs and who did not join it."),
    Rule("exit_zero_after_end", _S.EXIT_ZERO, _exit_zero_after_end,
         "Exit code 0, and the failure came after the planned end of the training or the results of an evaluation: a success that names the failure.", 0.94),
    Rule("exit_zero_not_a_failure", _S.EXIT_ZERO,
         lambda facts, root: Root(_F.HEALTHY) if _shows_failure(root) and not standing(facts, root) else None,
         "Exit code 0, and the program prints such errors routinely, or it continued after this one.", 0.94),
    Rule("exit_zero_of_launcher", _S.EXIT_ZERO, _exit_zero_of_launcher,
         "Exit code 0, but a launcher or a shell reports that a process failed, and nothing continued after that.", 0.75, Weight.SILENCE),
    Rule("ended_early", _S.PLANNED_END, _ended_early,
         "Exit code 0, but the training stopped before its planned end, and nothing says why.", 0.9, Weight.SILENCE),
)  # fmt: skip

NOTHING = Root(FailureClass.UNKNOWN)


class Decision(NamedTuple):
    """The root cause, the log rule that first found it, the rules that corrected it, and the facts they used."""

    root: Root
    rule: Rule
    corrections: tuple[Rule, ...]
    first: Root
    facts: Facts

    def yielded(self) -> list[Rule]:
        """Return the log rules below the one that fired that would also have applied, excluding fallbacks."""
        later = RULES[RULES.index(self.rule) + 1 :]
        own = (rule for rule in later if rule.stage is Stage.LOGS and not rule.is_fallback)
        return [rule for rule in own if rule.root(self.facts, NOTHING) is not None]

    def limits(self) -> list[Limit]:
        """Return the limits on confidence in the chosen line, weakest evidence first."""
        item = self.first.chosen
        if item is None or not item.is_cause:
            return []
        stopped = item.failure is FailureClass.TERMINATED
        return limits_of(item, self.facts.stops if stopped else self.facts.causes, self.facts)


def decide(facts: Facts) -> Decision:
    """Apply the rules stage by stage."""
    root, roots, fired = NOTHING, list[Root](), list[Rule]()
    job = facts.job
    has_evidence = {
        Stage.MACHINE: job.machine != MachineRecords() or job.launcher_signal is not None,
        Stage.OWN_KNOWLEDGE: bool(job.stop_reason or job.ended_for or job.earlier_step),
        Stage.STACKS: job.hang is not None or job.recorder is not None,
        # These stages are about attempts that exited on their own with code 0.
        Stage.EXIT_ZERO: facts.ended_with_zero,
        Stage.PLANNED_END: facts.ended_with_zero,
    }
    for stage in Stage:
        if not has_evidence.get(stage, True):
            continue
        found = ((rule, rule.root(facts, root)) for rule in RULES if rule.stage is stage)
        for rule, changed in found:
            if changed is not None:
                root = changed
                roots.append(root)
                fired.append(rule)
                break
    return Decision(root, fired[0], tuple(fired[1:]), roots[0], facts)

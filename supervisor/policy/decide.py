"""Applies the rules: works out what stopped the attempt, whether a restart is allowed, and whether budget remains."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Final, assert_never

from supervisor.job.spec import TrialSettings, steps_seen
from supervisor.policy.changes import change_for, offer_for
from supervisor.policy.history import (
    PolicyInput,
    first_bad_step,
    has_trained,
    is_unmeasured,
    restarts_since_progress,
)
from supervisor.policy.rules import UNMEASURED, Answer, Rule, override_for, rule_for
from supervisor.run.events import StopWhy
from supervisor.run.records import Decision, DecisionKind, FailureClass, Reason, SpecChange, Verdict
from supervisor.run.state import AttemptState
from supervisor.text.lines import read_to

EXIT_FAILED: Final = 1
EXIT_GAVE_UP: Final = 4
EXIT_STOPPED: Final = 5
EXIT_LOST: Final = 6
EXIT_ENDED_EARLY: Final = 7
EXIT_REQUEUE: Final = 75
# Instead of 1 in a SLURM job, because a requeue would fail again (NVRx's number, nvidia-resiliency-ext).
EXIT_DO_NOT_REQUEUE: Final = 93


INTERACTIVE_DELAY_S: Final = 10.0
# Time for a person to read a change, such as a smaller micro-batch, and to stop it.
CHANGED_DELAY_S: Final = 30.0
MAX_DELAY_S: Final = 60.0
# An attempt whose steps cannot be seen counts as one without a step only if it was shorter than this. A longer one may have done
# work that a restart from scratch would lose.
UNSEEN_START_S: Final = 120.0
UNCHANGED: Final = SpecChange()


def decide(history: PolicyInput) -> Decision:
    """Decide what to do after the latest attempt in `history`.

    Raises:
        ValueError: `history` has no attempts.
    """
    if not history.attempts:
        raise ValueError("nothing has ended yet: there is nothing to decide")
    now = history.now
    stopped = _stopped_by_us(history, now)
    if stopped is not None:
        return stopped
    if history.missed:
        return _not_as_planned(history)
    verdict = now.verdict
    failure = verdict.failure if verdict else FailureClass.UNKNOWN
    if now.job_exit_code == 0 and (ended := _ended_with_zero(history, verdict)) is not None:
        return ended
    if (unsure := _ended_unsurely(history, failure)) is not None:
        return unsure
    rule = _rule(history, verdict)
    if rule.answer is Answer.REQUEUE:
        return _requeue(history, rule.advice_if_not_restarted)
    if verdict is not None and verdict.reason is Reason.USER:
        return Decision(DecisionKind.STOP, "stopped by its user", exit_code=EXIT_STOPPED)
    decided = _unmeasured_first(history, failure, rule) or _restart_or_not(history, failure, rule)
    if now.job_exit_code != 0:
        return decided
    why = decided.reason.removeprefix(f"{failure.value}: ")
    reason = f"{failure.value}: exit code 0, but {_how_it_failed(history, failure)}; {why}"
    return replace(decided, reason=reason, asks=decided.asks or decided.kind is not DecisionKind.RESTART)


def _ended_unsurely(history: PolicyInput, failure: FailureClass) -> Decision | None:
    """Decide by whether the work was done, after an abort at exit or if the exit status was lost and no cause is known."""
    now, verdict = history.now, history.now.verdict
    at_exit = verdict is not None and (failure, verdict.reason) == (FailureClass.WORKER_CRASH, Reason.AT_EXIT)
    is_lost = now.job_exit_code is None and failure in {FailureClass.UNKNOWN, FailureClass.HEALTHY}
    if not (at_exit or is_lost):
        return None
    if history.finished:
        done = f"{_finished(history)} (its exit status was lost)"
        if at_exit:
            done = f"{_finished(history)}; the abort at exit came after all work"
        return Decision(DecisionKind.SUCCEED, done, exit_code=0)
    if at_exit:
        reason = "aborted at exit, and neither the last step nor a final checkpoint is known"
        return Decision(DecisionKind.FAIL, reason, exit_code=EXIT_FAILED)
    return Decision(DecisionKind.FAIL, "its exit status was lost and no cause is known", exit_code=EXIT_LOST)


def _ended_with_zero(history: PolicyInput, verdict: Verdict | None) -> Decision | None:
    """Return the decision after exit code 0 (usually success), or None to leave it to the failure's rule."""
    failure, reason = (verdict.failure, verdict.reason) if verdict else (FailureClass.HEALTHY, None)
    if failure is FailureClass.NAN_LOSS:
        return Decision(DecisionKind.FAIL, "finished, but the loss is NaN or Inf", exit_code=EXIT_FAILED)
    if verdict is not None and reason is Reason.NO_STEP:
        return _hold(history, f"exit code 0, but: {verdict.title}")
    is_early = reason is Reason.ENDED_EARLY
    is_failure = failure not in {FailureClass.HEALTHY, FailureClass.UNKNOWN}
    done = _finished(history)
    if (is_early or is_failure) and history.retry.exit_zero == "trust":
        done = f"{done}; exit code 0 is trusted"
    elif verdict is not None and is_early and history.trial is None:
        held = _hold(history, f"{verdict.title}{_clause(history.code_hidden_by)}")
        return replace(held, exit_code=EXIT_ENDED_EARLY, asks=True)
    elif is_failure and history.trial is None:
        return None
    elif verdict is not None and reason is Reason.AT_EXIT and verdict.cause is not None:
        done = f"{done}; printed after that: {verdict.cause.text}"
    return Decision(DecisionKind.SUCCEED, done, exit_code=0)


def _how_it_failed(history: PolicyInput, failure: FailureClass) -> str:
    """Return text such as ``rank 1 ended with an exception at step 7 of 20; the pipe in train.sh hides the exit code``."""
    now, verdict = history.now, history.now.verdict
    who = "a process" if verdict is None or verdict.rank is None else f"rank {verdict.rank}"
    crashed = failure in {FailureClass.WORKER_CRASH, FailureClass.HOST_OOM}
    what = "crashed" if crashed else "ended with an exception"
    at = f" at step {now.last_step}" if now.last_step is not None else " before its first step"
    of = f" of {history.total_steps}" if history.total_steps and now.last_step is not None else ""
    return f"{who} {what}{at}{of}{_clause(history.code_hidden_by)}"


def change_asked_for(history: PolicyInput) -> tuple[SpecChange, str] | None:
    """Return a change that avoids the latest failure when the user restarts the run, along with the reason for it, or None.

    Ignores whatever forbids an automatic restart: the budget, and checkpoints that the restart might overwrite.
    """
    rule = _rule(history, history.now.verdict)
    if rule.answer in {Answer.STOP, Answer.HOLD, Answer.REQUEUE}:
        return None
    change, what = change_for(history, rule)
    return (change, what) if change is not None and change != SpecChange() else None


def _rule(history: PolicyInput, verdict: Verdict | None) -> Rule:
    if verdict is None:
        return rule_for(FailureClass.UNKNOWN, None, history.retry.overrides)
    return rule_for(verdict.failure, verdict.reason, history.retry.overrides, verdict.signature)


def _stopped_by_us(history: PolicyInput, now: AttemptState) -> Decision | None:
    if now.stop is None:
        return None
    if now.job_exit_code == 0 and history.finished:
        return Decision(DecisionKind.SUCCEED, _finished(history), exit_code=0)
    match now.stop.why:
        case StopWhy.REQUEST:
            return Decision(DecisionKind.STOP, "stopped on request", exit_code=EXIT_STOPPED)
        case StopWhy.SIGNAL:
            if history.in_batch_job:
                rule = _rule(history, now.verdict)
                by_it = rule.answer is Answer.REQUEUE
                return _requeue(
                    history, rule.advice_if_not_restarted if by_it else "the batch system ended the job"
                )
            return Decision(DecisionKind.STOP, "stopped by a signal to stoker", exit_code=EXIT_STOPPED)
        case StopWhy.REQUEUE:
            return _requeue(history, "the batch system warned of its limit")
        case StopWhy.RESTART:
            return Decision(DecisionKind.RESTART, "ended to be restarted", change=SpecChange())
        case StopWhy.TRIAL:
            return _trial_over(history)
        case StopWhy.RANK_DIED | StopWhy.HANG | StopWhy.NOT_RESUMED | StopWhy.PLAN_DIFFERS:
            return None  # the reason for the stop is the cause, and the verdict has it
        case _:
            assert_never(now.stop.why)


def _not_as_planned(history: PolicyInput) -> Decision:
    """Retry a restart that ran the wrong batch, now that the user has specified the setting. If a retry is impossible, hold."""
    now, knobs = history.now, history.knobs
    if not (now.refuted and knobs.can_change_batch):
        return replace(_hold(history, history.missed), asks=now.refuted and history.question)
    decided = _restart_or_not(history, FailureClass.USAGE_ERROR, Rule(Answer.RESTART))
    if decided.kind is not DecisionKind.RESTART:
        return decided
    settings = " and ".join(filter(None, (knobs.batch, knobs.accumulation)))
    return replace(decided, reason=f"{history.missed}; the same plan with {settings}")


def _trial_over(history: PolicyInput) -> Decision:
    """Decide after the keeper stopped a trial because its steps were done or its time ran out."""
    trial, now = history.trial or TrialSettings(), history.now
    seen = steps_seen(now.first_step, now.last_step)
    if seen >= trial.steps:
        reason = f"trial of {trial.steps} steps: stopped at step {now.last_step}"
        return Decision(DecisionKind.SUCCEED, reason, exit_code=0)
    reason = f"trial of {trial.steps} steps: {seen} seen within {trial.timeout_s:.0f} s"
    return Decision(DecisionKind.FAIL, reason, exit_code=EXIT_FAILED)


def _requeue(history: PolicyInput, why: str) -> Decision:
    if history.committed:
        return Decision(
            DecisionKind.REQUEUE, f"{why}: checkpoint committed, requeue me", exit_code=EXIT_REQUEUE
        )
    return Decision(DecisionKind.STOP, f"{why}: no checkpoint was committed", exit_code=EXIT_STOPPED)


def _clause(text: str) -> str:
    return f"; {text}" if text else ""


def _finished(history: PolicyInput) -> str:
    now, trial = history.now, history.trial
    unread, done = read_to(now.log_read_bytes, now.log_size_bytes), "finished"
    if unread:  # the attempt's last step is unknown
        done = (
            f"finished; {unread}" if now.last_step is None else f"finished; {unread}, to step {now.last_step}"
        )
    elif now.last_step is not None:
        done = f"finished at step {now.last_step}"
    elif any(a.last_step is not None for a in history.attempts):
        done = "finished without a step"
    return f"trial of {trial.steps} steps: {done}" if trial is not None else done


def _restart_or_not(history: PolicyInput, failure: FailureClass, rule: Rule) -> Decision:
    change, what = change_for(history, rule)
    if history.trial is not None:
        return Decision(
            DecisionKind.FAIL, f"{failure.value}: a trial is not restarted", exit_code=EXIT_FAILED
        )
    if rule.answer in {Answer.STOP, Answer.HOLD}:
        return _hold(history, f"{failure.value}: {rule.advice_if_not_restarted}")
    if history.unsound:
        return _hold(history, f"{failure.value}: {history.unsound}")
    if change is None:
        held = _hold(history, f"{failure.value}: {what}", offer_for(history, rule))
        asks = rule.answer is Answer.SHRINK and history.question and not history.knobs.can_change_batch
        return replace(held, asks=asks)  # an answer about the batch would enable the plan
    if not history.retry.enabled or history.retry.max_retries == 0:
        flag = "--max-retries 0" if history.retry.enabled else "--no-retry"
        return _hold(history, f"{failure.value}: automatic restarts are off ({flag})", change)
    spent = _lost_too_often(history) or _spent(history, failure, rule) or _flapping(history, rule)
    if spent is not None:
        return _hold(history, f"{failure.value}: {spent}", change, gave_up=True)
    forbidden = _forbidden(history, rule)
    if forbidden is not None:
        held = _hold(history, f"{failure.value}: {forbidden}", change)
        return replace(held, asks=_can_ask(history) and forbidden != rule.advice_if_not_restarted)
    if change.batch is not None and history.old_batch:
        return _hold(history, f"{failure.value}: {history.old_batch}")
    if not history.resume_known and history.given_start is None:
        change = replace(change, from_scratch=True)
    return Decision(
        DecisionKind.RESTART,
        f"{failure.value}: {what}",
        delay_s=_delay(history, failure, rule),
        change=change,
        show_first=rule.show_first,
        wait_s=rule.wait_s,
    )


def _can_ask(history: PolicyInput) -> bool:
    """Check whether an answer could let a restart resume, because no way to resume has been found or ruled out."""
    knobs = history.knobs
    is_known = knobs.starts or knobs.resume_step is not None or knobs.cannot_resume or knobs.self_resuming
    return not is_known and not history.retry.restart_from_scratch


def _unmeasured_first(history: PolicyInput, failure: FailureClass, rule: Rule) -> Decision | None:
    """Handle an attempt that failed for no known cause before the run's first step. Return None to let the rule decide.

    The attempt is restarted without stoker's measurements, once per run and at no cost to any budget. If that restart
    is not allowed, or failed in the same way, the rule applies and its line says so.
    """
    verdict, before = history.now.verdict, history.attempts[-2:-1]
    if verdict is None or not _is_causeless(verdict) or any(a.stepped for a in history.attempts):
        return None
    own, stop = override_for(verdict.failure, history.retry.overrides, verdict.signature), history.now.stop
    is_free = own is None or own.answer is None
    ended_itself = stop is None or stop.why is StopWhy.RANK_DIED
    # A change of the batch needs the measurements.
    has_batch = any(change.batch is not None for change in history.changes)
    if history.may_blame_measurements and is_free and ended_itself and not has_batch:
        decided = _restart_or_not(history, failure, UNMEASURED)
        if decided.kind is DecisionKind.RESTART:
            return decided
        more = UNMEASURED.advice_if_not_restarted
    elif any(
        is_unmeasured(a.decision)
        and a.verdict
        and (a.verdict.failure, a.verdict.reason) == (verdict.failure, verdict.reason)
        for a in before
    ):
        more = "it ended alike without stoker's measurements"
    else:
        return None
    decided = _restart_or_not(history, failure, rule)
    return replace(decided, reason=f"{decided.reason}; {more}")


def _is_causeless(verdict: Verdict) -> bool:
    """Check whether all that is known is how the process died: an exit code, or a signal that it raised itself."""
    match verdict.failure, verdict.reason:
        case _ if verdict.signature:  # the user knows the cause
            return False
        case FailureClass.UNKNOWN, None:
            return True
        case FailureClass.WORKER_CRASH, Reason.SIGNAL | Reason.EXIT_CODE | Reason.SILENT | None:
            return "SIGKILL" not in verdict.title  # another process sends SIGKILL
        case _:
            return False


def _flapping(history: PolicyInput, rule: Rule) -> str | None:
    """Explain why the run is restarting too often, even if it makes progress. Return None if it is not restarting too often.

    Restarts that change the job have their own limit and do not count.
    """
    if rule.answer is Answer.SHRINK or history.now.ended_t is None:
        return None
    start = history.now.ended_t - history.retry.flap_window_s
    recent = [
        a
        for a in history.attempts[:-1]
        if a.decision is not None
        and a.decision.kind is DecisionKind.RESTART
        and not a.by_person
        and is_unchanged(a.decision.change)
        and a.ended_t is not None
        and a.ended_t >= start
    ]
    if len(recent) < history.retry.flap_max:
        return None
    window = f"{history.retry.flap_window_s / 60:.0f} minutes"
    return f"restarted {_times(len(recent))} within {window}: it runs, but does not last"


def _lost_too_often(history: PolicyInput) -> str | None:
    """Explain why the run does not go back to a checkpoint again after another NaN or Inf loss, or return None if it may.

    Progress does not reset this count, and any class of failure may follow such a loss: the rule for `nan_loss` has the limit.
    """
    again, rule = first_bad_step(history.now), rule_for(FailureClass.NAN_LOSS, None, history.retry.overrides)
    since = itertools.takewhile(lambda a: not a.by_person, reversed(history.attempts[:-1]))
    before = sum(first_bad_step(attempt) is not None for attempt in since)
    if again is None or rule.max_times is None or before < max(rule.max_times, 1):
        return None
    often = "once" if before == 1 else f"{before} times"
    return (
        f"the loss became NaN or Inf again at step {again}, and stoker goes back for that only {often} a run"
    )


def _spent(history: PolicyInput, failure: FailureClass, rule: Rule) -> str | None:
    """Explain why the budget is spent, or return None if some is left."""
    same_class = alike_since_progress(history, failure)
    if rule.max_times is not None and len(same_class) >= rule.max_times:
        return (
            f"restarted {_times(len(same_class))} for this without progress; {rule.advice_if_not_restarted}"
        )
    if rule.answer in HAS_OWN_COUNT:
        return None
    counted = counted_retries(history)
    if len(counted) >= history.retry.max_retries:
        return (
            f"{_times(len(counted))} restarted without progress (--max-retries {history.retry.max_retries})"
        )
    return None


def _forbidden(history: PolicyInput, rule: Rule) -> str | None:
    """Explain why a restart is left to the user, or return None if stoker may restart the run."""
    now = history.now
    if rule.requires_progress and not any(a.stepped for a in history.attempts):
        return rule.advice_if_not_restarted
    if history.resume_known or history.retry.restart_from_scratch:
        return None
    if any(has_trained(a) for a in history.attempts):
        return _why_not_resumed(history)
    if rule.only_before_first_step or history.steps_seen:
        return None
    differs = rule.answer in {Answer.SHRINK, Answer.UNMEASURED} or now.refuted
    lived_s = None if now.started_t is None or now.ended_t is None else now.ended_t - now.started_t
    if differs and lived_s is not None and lived_s < UNSEEN_START_S:
        return None
    return "whether steps were made cannot be seen, and the script's resume flag is not known (--resume-knob)"


def _why_not_resumed(history: PolicyInput) -> str:
    """Explain what a restart would need in order to resume, and what to type to supply it."""
    knobs, found = history.knobs, history.newest_checkpoint
    flag, switch = knobs.resume_path, knobs.resume or knobs.resume_step
    if history.not_now:
        return f"steps were made and {history.not_now}"
    if found is not None:
        why = f"{found} was found, but not the flag that resumes from it: name it (--resume-knob FLAG=PATH)"
    elif history.given_start is not None and history.interactive:
        # The given start is not this run's progress. A restart from it would overwrite later work.
        why = f"steps were made since {history.given_start}, and no whole checkpoint of this run was found: e gives another path, r starts from that one again"
    elif flag is not None:
        typed = f"{flag} PATH" if flag.startswith("-") else f"{flag}=PATH"
        why = f"steps were made and no whole checkpoint of this run was found for {flag}"
        if history.interactive:
            why = f"{why}; press e and add {typed}, or start with --resume-knob '{flag}=DIR/FILE'"
        else:
            why = f"{why}; start with --resume-knob '{flag}=DIR/FILE'"
    elif switch is not None:
        why = f"steps were made and no whole checkpoint of this run was found for {switch}, and a restart may overwrite what is there"
    else:
        why = "steps were made and the script's resume flag is not known, so a restart may overwrite its checkpoint"
        why = f"{why}; name it: --resume-knob FLAG=PATH"
    return "; ".join(filter(None, (why, knobs.resumes)))


def _hold(
    history: PolicyInput, reason: str, change: SpecChange = UNCHANGED, *, gave_up: bool = False
) -> Decision:
    code = EXIT_GAVE_UP if gave_up else EXIT_DO_NOT_REQUEUE if history.in_batch_job else EXIT_FAILED
    if history.interactive:
        return Decision(DecisionKind.HOLD, reason, change=change, exit_code=code)
    kind = DecisionKind.GIVE_UP if gave_up else DecisionKind.FAIL
    return Decision(kind, reason, exit_code=code)


def _delay(history: PolicyInput, failure: FailureClass, rule: Rule) -> float:
    signature = history.now.verdict.signature if history.now.verdict is not None else ""
    override = override_for(failure, history.retry.overrides, signature)
    if override is not None and override.delay_s is not None:
        return override.delay_s
    if history.interactive:
        changes = rule.answer is not Answer.RESTART
        return CHANGED_DELAY_S if changes and history.watched else INTERACTIVE_DELAY_S
    if rule.answer is not Answer.RESTART:
        return 0.0  # the plan changes the cause of the failure, so a wait would gain nothing
    doubled: int = 2 ** len(restarts_since_progress(history))
    return min(doubled, MAX_DELAY_S) * (1.0 + 0.25 * history.jitter)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# -- budgets ------------------------------------------------------------------------------------------------

HAS_OWN_COUNT: Final = frozenset((Answer.SHRINK, Answer.NEW_PORT, Answer.UNMEASURED))
"""Answers that are subject to ``--max-retries`` only if it is 0."""


def is_unchanged(change: SpecChange | None) -> bool:
    """Check whether the next attempt runs the same job, unchanged."""
    return change is None or replace(change, from_scratch=False) == SpecChange()


def alike_since_progress(history: PolicyInput, failure: FailureClass) -> list[AttemptState]:
    """Return the attempts since the last progress that were restarted for this failure class."""
    past = restarts_since_progress(history)
    return [a for a in past if a.verdict is not None and a.verdict.failure is failure]


def counted_retries(history: PolicyInput) -> list[AttemptState]:
    """Return the attempts since the last progress that count toward ``--max-retries`` (restarts of the unchanged job)."""
    past = restarts_since_progress(history)
    return [a for a in past if a.decision is not None and is_unchanged(a.decision.change)]

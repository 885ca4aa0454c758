"""The changes that rules make to the next attempt, and the line that describes each one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from supervisor.job.batch import BatchChange, describe_change
from supervisor.job.knobs import set_batch as kn
from supervisor.job.launch.env import NOT_MEASURED
from supervisor.job.memory_fit import choose_smaller
from supervisor.job.spec import KnobScope, LoaderKnobs
from supervisor.policy.history import PolicyInput, first_bad_step
from supervisor.policy.rules import Answer, Rule
from supervisor.run.records import Action, Reason, SpecChange


def change_for(history: PolicyInput, rule: Rule) -> tuple[SpecChange | None, str]:
    """Return the change that `rule` makes and a line describing it. If there is none, return None and the reason."""
    match rule.answer:
        case Answer.SHRINK:
            return _smaller(history, rule)
        case Answer.FEWER_WORKERS:
            none_left = (
                f"no DataLoader knob is known, or none is left to lower; {rule.advice_if_not_restarted}"
            )
            return fewer_workers(history.loader, history.changes, SHARED) or (None, none_left)
        case Answer.NEW_PORT if history.port_named or not history.leads:
            return None, f"the port was chosen by a person and is never moved; {rule.advice_if_not_restarted}"
        case Answer.NEW_PORT:
            return SpecChange(new_port=True), "the port was taken: another one"
        case Answer.NO_LIBUV:
            env = (("USE_LIBUV", "0"), ("TORCHELASTIC_USE_AGENT_STORE", "0"))
            return SpecChange(env=env), "this PyTorch has no libuv: USE_LIBUV=0 for agent and workers"
        case Answer.RAISE_FILES:
            return SpecChange(raise_open_files=True), "too many open files: soft limit up to the hard one"
        case Answer.RESUME_EARLIER if history.newest_checkpoint is None:
            return None, f"no earlier checkpoint is known; {rule.advice_if_not_restarted}"
        case Answer.RESUME_EARLIER:
            # The newest checkpoint is good: it did not fail to load, and the loss was still finite.
            lost = first_bad_step(history.now)
            if lost is None:
                return SpecChange(), f"resume from the checkpoint before: {history.newest_checkpoint}"
            path = history.newest_checkpoint
            return SpecChange(), f"resume from before the loss became NaN or Inf at step {lost}: {path}"
        case Answer.UNMEASURED if history.may_blame_measurements:
            verdict = history.now.verdict
            why = "no cause is known and no step was made: restart once without stoker's measurements, which may be the cause"
            if verdict is not None and verdict.reason is Reason.INSTRUMENT:
                why = "it was raised in stoker's own measurements: restart once without them"
            return SpecChange(env=(NOT_MEASURED,)), why
        case Answer.UNMEASURED:
            return None, rule.advice_if_not_restarted
        case Answer.EXCLUDE_GPU | Answer.RESTART | Answer.STOP | Answer.HOLD | Answer.REQUEUE:
            return SpecChange(), _restart_text(history)
        case _:
            assert_never(rule.answer)


def _restart_text(history: PolicyInput) -> str:
    knobs = history.knobs
    if history.resume_known and knobs.resume is None and not knobs.self_resuming:
        return f"restart from {history.newest_checkpoint} ({knobs.resume_path or knobs.resume_step})"
    return (
        "restart from the newest checkpoint"
        if history.resume_known and history.now.last_step is not None
        else "restart"
    )


def _smaller(history: PolicyInput, rule: Rule) -> tuple[SpecChange | None, str]:
    verdict = history.now.verdict
    if verdict is not None and verdict.reason in {Reason.KERNEL_KILL, Reason.CGROUP_KILL, Reason.SLURM}:
        step = fewer_workers(history.loader, history.changes, KILLED)
        if step is not None:
            return step
    tried = any("expandable_segments:True" in dict(c.env).values() for c in history.changes)
    if verdict is not None and verdict.action is Action.SET_ALLOCATOR and not tried:
        pair = tuple(
            (n, "expandable_segments:True") for n in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        )
        return SpecChange(env=pair), "memory is fragmented: expandable segments before a smaller batch"
    batch = history.now.shown_batch
    if not history.knobs.can_change_batch:
        accepted = offer_for(history, rule) if history.retry.allow_smaller_global else SpecChange()
        if accepted.batch is not None:
            return accepted, f"{describe_change(accepted.batch)}: allowed by --allow-smaller-global"
        return None, kn.why_not_changeable(history.knobs)
    if batch is None:
        why, help_ = kn.why_size_unknown(history.knobs)
        return None, f"{why} ({help_}); {rule.advice_if_not_restarted}"
    choice = choose_smaller(batch, history.memory, history.trials, history.retry.min_micro_batch)
    if choice is None:
        least = history.retry.min_micro_batch
        why = f"no micro-batch of {least} or more below {batch.micro_batch_per_rank} is left"
        return None, f"{why}; {rule.advice_if_not_restarted}"
    change_of = BatchChange(batch, choice.batch)
    return SpecChange(batch=change_of), f"{describe_change(change_of)}: {choice.how}"


def offer_for(history: PolicyInput, rule: Rule) -> SpecChange:
    """Return a plan to offer the user when the policy makes none because the global batch would shrink."""
    batch, knobs = history.now.shown_batch, history.knobs
    known = knobs.batch is not None and knobs.batch_scope is not KnobScope.UNKNOWN
    if rule.answer is not Answer.SHRINK or batch is None or not known or knobs.can_change_batch:
        return SpecChange()
    least = history.retry.min_micro_batch
    choice = choose_smaller(batch, history.memory, history.trials, least, smaller_global=True)
    return SpecChange(batch=BatchChange(batch, choice.batch)) if choice is not None else SpecChange()


# -- against full host memory and a full /dev/shm: data workers hold their batches there ------------


# After a kill by the kernel, the control group or SLURM, the micro-batch is next. Workers fill most of /dev/shm.
KILLED: Final = 1
SHARED: Final = 2


def fewer_workers(
    loader: LoaderKnobs, changes: Iterable[SpecChange], most: int
) -> tuple[SpecChange, str] | None:
    """Return a change that halves the DataLoader workers and a line describing it, or None after `most` halvings."""
    if loader.workers is None:
        return None
    name, first = loader.workers
    past = [given[name] for change in changes if name in (given := dict(change.set_args))]
    number = int(past[-1]) if past and past[-1].isdigit() else first
    if len(past) >= most or number < 1:
        return None
    return SpecChange(set_args=((name, str(number // 2)),)), f"DataLoader workers {number} → {number // 2}"

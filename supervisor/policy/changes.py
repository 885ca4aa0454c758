"""The change that a rule brings to the next attempt, with the line that says so."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from supervisor.job import knobs as kn
from supervisor.job.batch import BatchChange, describe_change, next_smaller
from supervisor.job.spec import KnobScope
from supervisor.policy.history import PolicyInput
from supervisor.policy.rules import Answer, Rule
from supervisor.run.records import Action, Reason, SpecChange


def change_for(history: PolicyInput, rule: Rule) -> tuple[SpecChange | None, str]:
    """The change that the rule brings and its line; no change and the reason where there is none."""
    match rule.answer:
        case Answer.SHRINK:
            return _smaller(history, rule)
        case Answer.FEWER_WORKERS:
            return _fewer_workers(history, rule)
        case Answer.NEW_PORT if history.port_named or not history.leads:
            return None, f"the port was chosen by a person and is never moved; {rule.else_}"
        case Answer.NEW_PORT:
            return SpecChange(new_port=True), "the port was taken: another one"
        case Answer.NO_LIBUV:
            env = (("USE_LIBUV", "0"), ("TORCHELASTIC_USE_AGENT_STORE", "0"))
            return SpecChange(env=env), "this PyTorch has no libuv: USE_LIBUV=0 for agent and workers"
        case Answer.RAISE_FILES:
            return SpecChange(raise_open_files=True), "too many open files: soft limit up to the hard one"
        case Answer.RESUME_EARLIER:
            if history.earlier_checkpoint is None or history.knobs.resume is None:
                return None, f"no earlier checkpoint is known; {rule.else_}"
            path = history.earlier_checkpoint
            return SpecChange(
                set_args=((history.knobs.resume, path),)
            ), f"resume from the checkpoint before: {path}"
        case Answer.RESTART | Answer.STOP | Answer.HOLD | Answer.REQUEUE:
            resumed = history.resume_known and history.now.last_step is not None
            return SpecChange(), "restart from the newest checkpoint" if resumed else "restart"
        case _:
            assert_never(rule.answer)


def _smaller(history: PolicyInput, rule: Rule) -> tuple[SpecChange | None, str]:
    verdict = history.now.verdict
    if verdict is not None and verdict.reason in {Reason.KERNEL_KILL, Reason.CGROUP_KILL, Reason.SLURM}:
        change, what = _fewer_workers(history, rule)
        if change is not None and not _tried_workers(history):
            return change, what
    if verdict is not None and verdict.action is Action.SET_ALLOCATOR and not _tried_allocator(history):
        pair = tuple(
            (n, "expandable_segments:True") for n in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        )
        return SpecChange(env=pair), "memory is fragmented: expandable segments before a smaller batch"
    batch = history.now.batch
    if not history.knobs.can_change_batch:
        return None, kn.why_not_changeable(history.knobs)
    if batch is None:
        return None, f"the present micro-batch or the number of ranks is not known; {rule.else_}"
    smaller = next_smaller(batch, history.memory, history.retry.min_micro_batch)
    if smaller is None:
        least = max(history.retry.min_micro_batch, 1)
        return (
            None,
            f"no micro-batch of {least} or more below {batch.micro_batch_per_rank} is left; {rule.else_}",
        )
    change_of = BatchChange(batch, smaller)
    return SpecChange(batch=change_of), describe_change(change_of)


def _fewer_workers(history: PolicyInput, rule: Rule) -> tuple[SpecChange | None, str]:
    if history.workers is None:
        return None, f"no DataLoader flag is known on the command line; {rule.else_}"
    name, count = history.workers
    for change in history.changes:  # the command line of the first attempt may be out of date
        count = int(dict(change.set_args).get(name, count))
    if count < 1:
        return None, f"{name} is 0 already; {rule.else_}"
    return SpecChange(set_args=((name, str(count // 2)),)), f"DataLoader workers {count} → {count // 2}"


def offer_for(history: PolicyInput, rule: Rule) -> SpecChange:
    """The plan that a person may accept where policy makes none: here the global batch would shrink."""
    batch, knobs = history.now.batch, history.knobs
    known = knobs.batch is not None and knobs.batch_scope is not KnobScope.UNKNOWN
    if rule.answer is not Answer.SHRINK or batch is None or not known or knobs.can_change_batch:
        return SpecChange()
    smaller = next_smaller(batch, history.memory, history.retry.min_micro_batch)
    if smaller is None:
        return SpecChange()
    return SpecChange(batch=BatchChange(batch, replace(smaller, accumulation_steps=batch.accumulation_steps)))


def _tried_allocator(history: PolicyInput) -> bool:
    return any("expandable_segments:True" in dict(c.env).values() for c in history.changes)


def _tried_workers(history: PolicyInput) -> bool:
    return history.workers is not None and any(
        history.workers[0] in dict(c.set_args) for c in history.changes
    )

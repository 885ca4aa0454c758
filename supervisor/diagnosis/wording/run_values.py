"""A run's own values, for advice that quotes them: from the job as resolved and the attempt as journalled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from supervisor.diagnosis.evidence import Present

if TYPE_CHECKING:
    from supervisor.job.spec import JobSpec
    from supervisor.run.state import AttemptView, RunState

ALLOCATOR_NAMES = frozenset(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))


def present_of(state: RunState, view: AttemptView, own_pids: Iterable[int], job: JobSpec | None) -> Present:
    """What the run had set when this attempt ran; without its job (a run that was only observed), less."""
    batch = view.batch
    present = Present(
        micro_batch=batch.micro_batch_per_rank if batch is not None else None,
        batch=batch,
        memory_base_bytes=view.memory_base_bytes or 0,
        own_pids=frozenset(own_pids),
        allocator_set=_allocator_set(state, view, job),
    )
    if job is None:
        return present
    from supervisor.job.knobs.data_loader import find_loader

    workers = job.loader.workers or find_loader(view.argv).workers
    return present._replace(
        batch_knob=(job.knobs.batch or present.batch_knob).lstrip("-"),
        workers_knob=workers[0].lstrip("-") if workers is not None else present.workers_knob,
        workers=workers[1] if workers is not None else None,
        port=job.master_port,
        entry=job.entry,
        behind_entry=_behind_entry(job),
    )


def _behind_entry(job: JobSpec) -> tuple[str, ...]:
    """Flags that `stoker run` knows among the script's own arguments, as they were spelt."""
    if job.entry_kind not in ("script", "module"):
        return ()
    from supervisor.job.arguments.assignments import names_of
    from supervisor.job.arguments.flags import STOKER_FLAGS, TORCHRUN_FLAGS, by_spelling

    known = by_spelling((*STOKER_FLAGS, *TORCHRUN_FLAGS))
    return tuple(dict.fromkeys(name for name in names_of(job.entry_args) if name in known))


def _allocator_set(state: RunState, view: AttemptView, job: JobSpec | None) -> bool:
    """Whether growing segments were asked for already: by the job, or by what was decided before this attempt."""
    env = list(job.env) if job is not None else []
    for earlier in state.attempts:
        if (
            earlier.number < view.number
            and earlier.decision is not None
            and earlier.decision.change is not None
        ):
            env += earlier.decision.change.env
    return any(name in ALLOCATOR_NAMES and "expandable_segments:True" in value for name, value in env)

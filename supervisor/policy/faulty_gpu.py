"""A restart without the GPU that failed."""

from __future__ import annotations

from dataclasses import replace

from supervisor.job.batch import BatchChange, describe_change
from supervisor.policy.history import PolicyInput
from supervisor.run.records import SpecChange


def without_gpu(history: PolicyInput) -> tuple[SpecChange, str]:
    """Fewer ranks on the GPUs that are left, at the same global batch; as it was where that cannot be.

    The largest number of ranks that the user allowed (``--min-ranks``) and that keeps the global batch exact.
    """
    again = "restart from the newest checkpoint" if history.resume_known else "restart"
    gpus, least, batch = history.gpus, history.retry.min_ranks, history.now.batch
    if gpus is None:
        return SpecChange(), f"{again}: which GPU failed is not known"
    if least is None:
        return SpecChange(), f"{again} on all GPUs (--min-ranks N lets stoker leave a faulty one out)"
    if batch is None and not history.retry.allow_smaller_global:
        return (
            SpecChange(),
            f"{again} on all GPUs: whether fewer ranks keep the global batch is not known (--allow-smaller-global)",
        )
    left = tuple(name for at, name in enumerate(gpus.visible) if at != gpus.faulty)
    for ranks in range(len(left), least - 1, -1):
        env = (("CUDA_VISIBLE_DEVICES", ",".join(left[:ranks])),)
        what = f"without GPU {gpus.visible[gpus.faulty]}: {ranks} ranks"
        if batch is None:
            return SpecChange(env=env, nproc_per_node=ranks), what
        per_step = batch.micro_batch_per_rank * batch.accumulation_steps * batch.world_size
        samples = per_step // ranks
        if (
            not batch.ranks_known
            or batch.world_size != len(gpus.visible)
            or per_step % ranks
            or samples % batch.micro_batch_per_rank
        ):
            continue
        steps = samples // batch.micro_batch_per_rank
        if steps != batch.accumulation_steps and not history.knobs.can_change_batch:
            continue
        change = BatchChange(batch, replace(batch, world_size=ranks, accumulation_steps=steps))
        return SpecChange(batch=change, env=env, nproc_per_node=ranks), f"{what}, {describe_change(change)}"
    return SpecChange(), f"{again} on all GPUs: no smaller number of ranks keeps the global batch"

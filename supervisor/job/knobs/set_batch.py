"""The batch as numbers in a script's settings, and the settings that change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.job.arguments.command_line import value_of
from supervisor.job.batch import BatchSpec, BatchUnit, resolve
from supervisor.job.errors import JobError
from supervisor.job.knobs.setting_names import Places, Scalar, is_argument
from supervisor.job.spec import AccumulationCounts, Knobs, KnobScope


def batch_of(
    args: Sequence[str],
    knobs: Knobs,
    *,
    world_size: int | None,
    local_world_size: int,
    global_batch: int | None = None,
    unit: BatchUnit | None = None,
    tokens_per_sample: int = 1,
    elsewhere: Places | None = None,
) -> BatchSpec | None:
    """The batch of a foreign command line; None if unknown.

    Args:
        args: the words after the script.
        knobs: the result of `find_knobs`.
        world_size: ranks in all; None: unknown, and not needed if batch and accumulation are two factors.
        local_world_size: ranks on a node.
        global_batch: a person's request that overrides the script's own flags.
        unit: unit of the global batch, if a person gave it; samples otherwise.
        tokens_per_sample: with ``unit=TOKENS``.
        elsewhere: config files and variables.

    Raises:
        JobError: the numbers are known and do not divide.
    """
    where = elsewhere or Places()
    given = number_of(args, knobs.batch, where, knobs, "micro")
    steps = _steps_of(args, knobs, where, global_batch)
    if given is None or steps is None:
        return None
    if knobs.paired and not (knobs.batch_scope is KnobScope.PER_RANK and world_size is not None):
        return _two_factors(knobs, given, steps, world_size, local_world_size)
    if knobs.counts is AccumulationCounts.ALL_RANKS and world_size is not None:
        steps = _shared(steps, world_size, knobs)
    counted: dict[str, Any] = {"unit": unit or BatchUnit.SAMPLES, "tokens_per_sample": tokens_per_sample}
    if world_size is None:
        # A rank's own numbers need no count of ranks; if the accumulation is derived, the script adjusts it.
        alone = _is_derived(knobs) or knobs.batch_scope is KnobScope.PER_RANK
        return BatchSpec(given, 1 if _is_derived(knobs) else steps, 1, ranks_known=False) if alone else None
    match knobs.batch_scope:
        case KnobScope.PER_RANK:
            micro = given
        case KnobScope.PER_NODE:
            micro = _of_node(given, local_world_size, knobs)
        case KnobScope.GLOBAL:
            return resolve(
                world_size=world_size, global_batch=global_batch or given, accumulation=steps, **counted
            )
        case KnobScope.UNKNOWN:
            return None
    if global_batch is not None:
        return resolve(world_size=world_size, micro_batch=micro, global_batch=global_batch, **counted)
    total = number_of(args, knobs.global_batch, where, knobs, "total")
    return _with_total(knobs, micro, steps, total, world_size, counted, is_counted=unit is not None)


def _with_total(
    knobs: Knobs,
    micro: int,
    steps: int,
    total: int | None,
    world: int,
    counted: dict[str, Any],
    *,
    is_counted: bool,
) -> BatchSpec:
    """A rank's own micro-batch with its accumulation or a total. `is_counted`: a person said what the total counts."""
    if _is_derived(knobs) and (total is None or not is_counted):
        # It does not matter what the total counts: samples or tokens, over all ranks or a data-parallel
        # group. The script derives its accumulation from it, whatever the micro-batch.
        return BatchSpec(micro, 1, 1, ranks_known=False)
    if total is not None:
        return resolve(world_size=world, micro_batch=micro, global_batch=total, **counted)
    return resolve(world_size=world, micro_batch=micro, accumulation=steps, **counted)


def _steps_of(args: Sequence[str], knobs: Knobs, where: Places, asked: int | None) -> int | None:
    """The accumulation; if a global batch is requested, the value that gives it, whatever it is now."""
    is_set = knobs.accumulation is None or (asked is not None and knobs.batch_scope is not KnobScope.UNKNOWN)
    return number_of(args, knobs.accumulation, where, knobs, "accumulation") or (1 if is_set else None)


def _is_derived(knobs: Knobs) -> bool:
    return knobs.global_batch is not None and knobs.accumulation is None


def _two_factors(knobs: Knobs, given: int, steps: int, world: int | None, local: int) -> BatchSpec | None:
    """Batch and accumulation in the units of their own settings; per rank if a batch is divided among ranks."""
    if knobs.counts is AccumulationCounts.ALL_RANKS and world is not None:
        shared = _shared(steps, world, knobs)
        steps = steps if knobs.batch_scope is KnobScope.UNKNOWN else shared
    match knobs.batch_scope:
        case KnobScope.UNKNOWN | KnobScope.PER_RANK:
            return BatchSpec(given, steps, 1, ranks_known=False)
        case KnobScope.PER_NODE:
            return None if world is None else BatchSpec(_of_node(given, local, knobs), steps, world)
        case KnobScope.GLOBAL:
            if world is None:
                return None
            if given % world:
                raise JobError(f"{knobs.batch} {given} does not divide by {world} ranks")
            return BatchSpec(given // world, steps, world)


def _shared(steps: int, world: int, knobs: Knobs) -> int:
    if steps % world:
        raise JobError(
            f"{knobs.accumulation} {steps} counts all ranks and does not divide by {world} of them"
        )
    return steps // world


def _of_node(given: int, local: int, knobs: Knobs) -> int:
    if given % local:
        raise JobError(f"{knobs.batch} {given} does not divide by the {local} ranks of a node")
    return given // local


def batch_values(
    knobs: Knobs, batch: BatchSpec, *, before: BatchSpec | None = None, local_world_size: int = 1
) -> tuple[tuple[str, str], ...]:
    """The (knob, value) pairs that set the batch `batch`.

    Without an accumulation flag a change is possible only if the accumulation stays as in `before`: a person
    has then accepted a smaller global batch.

    Raises:
        JobError: the knobs or their scope are unknown, so the requested batch cannot be set.
    """
    same_steps = before is not None and before.accumulation_steps == batch.accumulation_steps
    accepted = same_steps and knobs.batch is not None and knobs.batch_scope is not KnobScope.UNKNOWN
    if not (knobs.can_change_batch or accepted):
        raise JobError(why_not_changeable(knobs))
    value = flag_value(knobs, batch, local_world_size=local_world_size)
    if value is None:
        raise JobError(why_not_changeable(knobs))
    pairs = [(_known(knobs.batch), str(value))]
    steps = batch.accumulation_steps
    if knobs.counts is AccumulationCounts.ALL_RANKS and batch.ranks_known:
        steps *= batch.world_size
    if knobs.accumulation:
        pairs.append((knobs.accumulation, str(steps)))
    if knobs.global_batch and batch.ranks_known and knobs.global_batch not in dict(knobs.same):
        # Set explicitly even if it was a default, because a default may depend on the micro-batch.
        pairs.append((knobs.global_batch, str(batch.global_batch)))
    numbers = {"micro": str(value), "accumulation": str(steps)}
    pairs += [(name, numbers.get(what, what)) for name, what in knobs.same]
    return tuple(dict(pairs).items())


def flag_value(knobs: Knobs, batch: BatchSpec, *, local_world_size: int = 1) -> int | None:
    """The value of the script's batch flag for the batch `batch`; None if it is unknown what the flag counts."""
    match knobs.batch_scope:
        case KnobScope.PER_RANK:
            return batch.micro_batch_per_rank
        case KnobScope.PER_NODE:
            return batch.micro_batch_per_rank * local_world_size
        case KnobScope.GLOBAL if knobs.paired:
            return batch.micro_batch_per_rank * batch.world_size
        case KnobScope.GLOBAL:
            # The flag sets the global batch, which usually stays; only the accumulation cuts the micro-batch.
            return batch.global_batch
        case KnobScope.UNKNOWN:
            return batch.micro_batch_per_rank if knobs.paired else None


def divided_flag(knobs: Knobs, batch: BatchSpec | None, *, local_world_size: int = 1) -> str:
    """The flag as typed if it covers more than one rank's batch: ``--batch_size 32 (16 a rank)``; empty otherwise."""
    if knobs.batch is None or batch is None:
        return ""
    value = flag_value(knobs, batch, local_world_size=local_world_size)
    if value in {None, batch.micro_batch_per_rank}:
        return ""
    return f"{_known(knobs.batch)} {value} ({batch.micro_batch_per_rank} a rank)"


def why_size_unknown(knobs: Knobs) -> tuple[str, str]:
    """If the names are known and the numbers are not: which one is missing, and how to supply it."""
    for what, name in (("micro", knobs.batch), ("accumulation", knobs.accumulation)):
        number = knobs.number(what)
        if name is not None and (number is None or number.value is None):
            return f"the value of {name} is not known", f"give {name} a number"
    return "how many ranks there are is not known", "--nproc-per-node N"


def why_not_changeable(knobs: Knobs) -> str:
    """One line for the user: what is missing before a batch can be changed, and how to declare it."""
    if knobs.refusal:
        hint = f" ({knobs.help})" if knobs.help and knobs.help not in knobs.refusal else ""
        return f"{knobs.refusal}{hint}"
    if knobs.batch is None:
        return "the script's batch flag is not known: name it with --batch-knob"
    if not knobs.keeps_global_batch:
        scope = " with --batch-scope" if knobs.batch_scope is KnobScope.UNKNOWN else ""
        return f"no accumulation is known beside {knobs.batch} (--accumulation-knob, or --allow-smaller-global{scope})"
    return f"what {knobs.batch} counts is not known: say --batch-scope per_rank, per_node or global"


def number_of(
    args: Sequence[str], name: str | None, where: Places, knobs: Knobs | None = None, what: str = ""
) -> int | None:
    """The number of a setting, or the one found for it in `knobs`; None: unknown."""
    if name is None:
        return None
    value: Scalar = value_of(args, name) if is_argument(name) else None
    if value is None:
        value = where.value(name)
    number = as_number(value)
    if number is None and knobs is not None:
        # A default by convention, or a value in place of one that is not set.
        found = knobs.number(what)
        return found.value if found is not None else None
    return number


def as_number(value: Scalar) -> int | None:
    """A positive whole number, also in the form ``1_000`` or ``1e6``; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        text = value.strip().strip("[]").replace("_", "")
        if not text or len(text) > 18:
            return None
        try:
            value = float(text) if "e" in text.lower() else int(text)
        except ValueError:
            return None
    if isinstance(value, float):
        if not (value.is_integer() and 0 < value < 1e15):
            return None
        value = int(value)
    return value if 0 < value < 10**15 else None


def _known(name: str | None) -> str:
    if name is None:
        raise JobError("the script's batch flag is not known: name it with --batch-knob")
    return name

"""Reads a batch as numbers from a script's settings, and returns the settings that change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.job.arguments.command_line import value_of
from supervisor.job.batch import BatchSpec, BatchUnit, resolve
from supervisor.job.errors import JobError
from supervisor.job.knobs.setting_names import Scalar, is_argument
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
    elsewhere: Mapping[str, Scalar] | None = None,
) -> BatchSpec | None:
    """Return the batch that a third-party command line sets, or None if unknown.

    Args:
        args: the words after the script.
        knobs: the result of `find_knobs`.
        world_size: the total number of ranks, or None if unknown. A batch of two factors does not need it.
        local_world_size: the number of ranks per node.
        global_batch: the global batch that the user requested, which overrides the script's own flags.
        unit: the unit of the global batch, if the user gave one. Otherwise, it is in samples.
        tokens_per_sample: used with ``unit=TOKENS``.
        elsewhere: the values of settings in config files and variables, keyed by name.

    Raises:
        JobError: the numbers are known but do not divide evenly.
    """
    where = elsewhere or {}
    scope, is_derived = knobs.batch_scope, knobs.global_batch is not None and knobs.accumulation is None
    given = number_of(args, knobs.batch, where, knobs, "micro")
    passes = _passes(args, knobs, where, global_batch)
    if given is None or passes is None:
        return None
    own_passes, passes = passes, _rank_passes(knobs, passes, world_size)
    if knobs.paired and scope is KnobScope.UNKNOWN:
        return BatchSpec(given, own_passes, 1, ranks_known=False)
    if world_size is None:
        # One rank's numbers do not depend on the number of ranks. The script adjusts a derived accumulation.
        alone = is_derived or scope is KnobScope.PER_RANK
        return BatchSpec(given, 1 if is_derived else passes, 1, ranks_known=False) if alone else None
    if scope is KnobScope.UNKNOWN:
        return None
    micro = _rank_share(knobs, given, world_size, local_world_size)
    if knobs.paired and scope is not KnobScope.PER_RANK:
        return BatchSpec(micro, passes, world_size)
    counted: dict[str, Any] = {"world_size": world_size, "unit": unit or BatchUnit.SAMPLES}
    counted["tokens_per_sample"] = tokens_per_sample
    if scope is KnobScope.GLOBAL:
        return resolve(global_batch=global_batch or given, accumulation=passes, **counted)
    return _of_rank(args, knobs, where, micro, passes, global_batch, counted, is_counted=unit is not None)


def _of_rank(
    args: Sequence[str],
    knobs: Knobs,
    where: Mapping[str, Scalar],
    micro: int,
    passes: int,
    asked: int | None,
    counted: dict[str, Any],
    *,
    is_counted: bool,
) -> BatchSpec:
    """Compute the batch from a rank's micro-batch and either accumulation or a total, whose unit is known if `is_counted`."""
    total = asked or number_of(args, knobs.global_batch, where, knobs, "total")
    is_derived = knobs.global_batch is not None and knobs.accumulation is None
    if is_derived and asked is None and (total is None or not is_counted):
        # The meaning of the total (samples or tokens, over all ranks or a data-parallel group) does not
        # matter, because the script derives its accumulation from the total, whatever the micro-batch.
        return BatchSpec(micro, 1, 1, ranks_known=False)
    steps = None if total is not None else passes
    return resolve(micro_batch=micro, global_batch=total, accumulation=steps, **counted)


def _passes(args: Sequence[str], knobs: Knobs, where: Mapping[str, Scalar], asked: int | None) -> int | None:
    """Return the accumulation. It need not be known if a requested global batch is going to set it."""
    is_set = knobs.accumulation is None or (asked is not None and knobs.batch_scope is not KnobScope.UNKNOWN)
    return number_of(args, knobs.accumulation, where, knobs, "accumulation") or (1 if is_set else None)


def _rank_passes(knobs: Knobs, passes: int, world: int | None) -> int:
    """Return one rank's share of the accumulation, or all of it if the number of ranks is unknown."""
    if knobs.counts is not AccumulationCounts.ALL_RANKS or world is None:
        return passes
    why = f"{knobs.accumulation} {passes} counts all ranks and does not divide by {world} of them"
    return _divided(passes, world, why)


def _rank_share(knobs: Knobs, given: int, world: int, local: int) -> int:
    """Return one rank's share of the batch setting, or all of it if it is a total that the accumulation splits."""
    if knobs.batch_scope is KnobScope.PER_NODE:
        return _divided(given, local, f"{knobs.batch} {given} does not divide by the {local} ranks of a node")
    if knobs.batch_scope is KnobScope.GLOBAL and knobs.paired:
        return _divided(given, world, f"{knobs.batch} {given} does not divide by {world} ranks")
    return given


def _divided(number: int, by: int, why: str) -> int:
    if number % by:
        raise JobError(why)
    return number // by


def batch_values(
    knobs: Knobs, batch: BatchSpec, *, before: BatchSpec | None = None, local_world_size: int = 1
) -> tuple[tuple[str, str], ...]:
    """Return the (knob, value) pairs that set `batch`.

    Without an accumulation flag, the only possible change is one that keeps the accumulation of `before`. This
    means that the user has accepted a smaller global batch.

    Raises:
        JobError: the requested batch cannot be set because the knobs or their scope are unknown.
    """
    same_steps = before is not None and before.accumulation_steps == batch.accumulation_steps
    accepted = same_steps and knobs.batch_scope is not KnobScope.UNKNOWN
    value = flag_value(knobs, batch, local_world_size=local_world_size)
    if not (knobs.can_change_batch or accepted) or value is None or knobs.batch is None:
        raise JobError(why_not_changeable(knobs))
    pairs = [(knobs.batch, str(value))]
    steps = batch.accumulation_steps
    if knobs.counts is AccumulationCounts.ALL_RANKS and batch.ranks_known:
        steps *= batch.world_size
    if knobs.accumulation:
        pairs.append((knobs.accumulation, str(steps)))
    if knobs.global_batch and batch.ranks_known and knobs.global_batch not in dict(knobs.same):
        # Set it even if it was a default, because a default may depend on the micro-batch.
        pairs.append((knobs.global_batch, str(batch.global_batch)))
    numbers = {"micro": str(value), "accumulation": str(steps)}
    pairs += [(name, numbers.get(what, what)) for name, what in knobs.same]
    return tuple(dict(pairs).items())


def flag_value(knobs: Knobs, batch: BatchSpec, *, local_world_size: int = 1) -> int | None:
    """Return the value that the script's batch flag needs for `batch`, or None if what the flag counts is unknown."""
    match knobs.batch_scope:
        case KnobScope.PER_RANK:
            return batch.micro_batch_per_rank
        case KnobScope.PER_NODE:
            return batch.micro_batch_per_rank * local_world_size
        case KnobScope.GLOBAL if knobs.paired:
            return batch.micro_batch_per_rank * batch.world_size
        case KnobScope.GLOBAL:
            # The flag sets the global batch, which usually stays. Only accumulation changes the micro-batch.
            return batch.global_batch
        case KnobScope.UNKNOWN:
            return batch.micro_batch_per_rank if knobs.paired else None


def divided_flag(knobs: Knobs, batch: BatchSpec | None, *, local_world_size: int = 1) -> str:
    """Format a flag that covers several ranks (``--batch_size 32 (16 a rank)``), or return an empty string."""
    if knobs.batch is None or batch is None:
        return ""
    value = flag_value(knobs, batch, local_world_size=local_world_size)
    if value in {None, batch.micro_batch_per_rank}:
        return ""
    return f"{knobs.batch} {value} ({batch.micro_batch_per_rank} a rank)"


def why_size_unknown(knobs: Knobs) -> tuple[str, str]:
    """When only the names are known, return which number is missing and how to supply it."""
    for what, name in (("micro", knobs.batch), ("accumulation", knobs.accumulation)):
        number = knobs.number(what)
        if name is not None and (number is None or number.value is None):
            return f"the value of {name} is not known", f"give {name} a number"
    return "how many ranks there are is not known", "--nproc-per-node N"


def why_not_changeable(knobs: Knobs) -> str:
    """Tell the user in one line what must be known before the batch can be changed, and how to declare it."""
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
    args: Sequence[str],
    name: str | None,
    where: Mapping[str, Scalar],
    knobs: Knobs | None = None,
    what: str = "",
) -> int | None:
    """Return a setting's number, falling back to the one recorded in `knobs`, or None if neither is known."""
    if name is None:
        return None
    number = as_number(value_of(args, name) if is_argument(name) else where.get(name))
    if number is None and knobs is not None:
        # A default by convention, or the value of a setting that is not set.
        found = knobs.number(what)
        return found.value if found is not None else None
    return number


def as_number(value: Scalar) -> int | None:
    """Return a positive whole number, accepting ``1_000`` and ``1e6``, or None for anything else."""
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

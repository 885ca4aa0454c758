"""Finds the flags under which a foreign script takes batch, accumulation and resume, and sets them.

A scope is never guessed: a name that says what it counts (per_device, micro, global ...) has that scope; a
bare ``batch_size`` is per rank only if the source hands it undivided to a DataLoader. Declared knobs win.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from supervisor.job.arguments.assignments import Setting, settings_of, value_of
from supervisor.job.batch import BatchSpec, BatchUnit, resolve
from supervisor.job.config.edit import Scalar
from supervisor.job.errors import JobError
from supervisor.job.knobs.checkpoint_flags import find_start
from supervisor.job.knobs.places import Place, Places, bare, is_argument, place_of
from supervisor.job.knobs.read_source import ScriptSource, scan_source
from supervisor.job.spec import Knobs, KnobScope

_EVALUATION: Final = frozenset(
    {"eval", "val", "valid", "validation", "test", "predict", "infer", "inference", "max"}
)
_PER_RANK: Final = frozenset({"device", "gpu", "micro", "rank"})
_PER_NODE: Final = frozenset({"node"})
_GLOBAL: Final = frozenset({"global", "total", "effective"})
_SHORT_NAMES: Final = frozenset({"-b", "-bs", "--bs"})
_RESUME_WORDS: Final = frozenset(
    {"resume", "resume_from", "resume_from_checkpoint", "auto_resume", "resume_training"}
)
_LENGTH_NAMES: Final = ("--max_seq_len", "--seq_len", "--seq_length", "--sequence_length", "--block_size")
# Values by which scripts say "the newest checkpoint, if there is one".
_NEWEST: Final = frozenset({"auto", "latest", "last", "true", "newest", "must", "allow"})


def places(
    source_text: str | None,
    configs: Mapping[str, Mapping[str, Scalar]] | None = None,
    env: Mapping[str, str] | None = None,
) -> Places:
    """What a script's settings can be read from besides its arguments."""
    return Places(scan_source(source_text), configs or {}, env or {})


def find_knobs(
    args: Sequence[str],
    source_text: str | None = None,
    declared: Knobs | None = None,
    *,
    elsewhere: Places | None = None,
) -> Knobs:
    """The knobs of a foreign script, from its arguments and, where given, its source, configs and environment.

    Args:
        args: what follows the script on the command line.
        source_text: the script's text; parsed, not run.
        declared: what the user named; each name given there is taken as it is.
        elsewhere: config files and variables; what the command line says comes before them.
    """
    where = elsewhere or places(source_text)
    source = where.source
    settings = settings_of(args)
    names = [s.name for s in settings] + where.names()
    told = declared or Knobs()
    batch = told.batch or _best_batch(names, source)
    scope = told.batch_scope
    if batch is not None and scope is KnobScope.UNKNOWN:
        scope = scope_of(batch, source)
    accumulation = told.accumulation or next((n for n in names if _is_accumulation(n)), None)
    total = told.global_batch or next(
        (n for n in names if n != batch and _scope_by_name(n) is KnobScope.GLOBAL), None
    )
    resume, value = (told.resume, told.resume_value) if told.resume else _find_resume(settings, where)
    return Knobs(
        resume_path=find_start(settings, where) if resume is None else None,
        batch=batch,
        batch_scope=scope,
        accumulation=accumulation,
        global_batch=total if scope is KnobScope.PER_RANK and accumulation is None else None,
        resume=resume,
        resume_value=value,
        declared=declared is not None and any((told.batch, told.accumulation, told.resume)),
    )


def scope_of(name: str, source: ScriptSource) -> KnobScope:
    """What a batch flag counts, from its name, else from the source; UNKNOWN rather than a guess."""
    scope = _scope_by_name(name)
    if scope is not KnobScope.UNKNOWN:
        return scope
    if place_of(name) is Place.ENVIRONMENT:
        dest = name
    elif place_of(name) is Place.FILE:
        dest = bare(name).rpartition(".")[2]
    else:
        flag = source.flag(name)
        plain = name.lstrip("-").replace("-", "_")
        dest = flag.dest if flag else plain.rpartition(".")[2]
    return KnobScope.PER_RANK if source.passes_undivided(dest) else KnobScope.UNKNOWN


def batch_of(
    args: Sequence[str],
    knobs: Knobs,
    *,
    world_size: int,
    local_world_size: int,
    source_text: str | None = None,
    global_batch: int | None = None,
    unit: BatchUnit | None = None,
    tokens_per_sample: int = 1,
    elsewhere: Places | None = None,
) -> BatchSpec | None:
    """The batch that a foreign command line asks for; None where it is not known.

    Args:
        args: what follows the script.
        knobs: what `find_knobs` found.
        world_size: ranks in all.
        local_world_size: ranks on a node.
        source_text: the script's text, for defaults of flags that are not given.
        global_batch: what a person asked for in place of what the script's own flags say.
        unit: in what the global batch is counted, if a person said so; samples otherwise.
        tokens_per_sample: with ``unit=TOKENS``.
        elsewhere: config files and variables.

    Raises:
        JobError: the numbers are known and do not divide.
    """
    source = elsewhere or places(source_text)
    given = _number_of(args, knobs.batch, source)
    steps = _number_of(args, knobs.accumulation, source) or 1
    if given is None:
        return None
    counted: dict[str, Any] = {"unit": unit or BatchUnit.SAMPLES, "tokens_per_sample": tokens_per_sample}
    match knobs.batch_scope:
        case KnobScope.PER_RANK:
            micro = given
        case KnobScope.PER_NODE:
            if given % local_world_size:
                raise JobError(
                    f"{knobs.batch} {given} does not divide by the {local_world_size} ranks of a node"
                )
            micro = given // local_world_size
        case KnobScope.GLOBAL:
            return resolve(
                world_size=world_size, global_batch=global_batch or given, accumulation=steps, **counted
            )
        case KnobScope.UNKNOWN:
            return None
    if global_batch is not None:
        return resolve(world_size=world_size, micro_batch=micro, global_batch=global_batch, **counted)
    total = _number_of(args, knobs.global_batch, source)
    if total is None:
        return resolve(world_size=world_size, micro_batch=micro, accumulation=steps, **counted)
    if unit is None and _may_count_tokens(args, knobs.global_batch, total, source):
        return None
    return resolve(world_size=world_size, micro_batch=micro, global_batch=total, **counted)


def _may_count_tokens(args: Sequence[str], name: str | None, total: int, source: Places) -> bool:
    """Whether a found global batch may be in tokens: then nothing is known until a person says the unit."""
    if name is not None and "token" in name:
        return True
    lengths = (_number_of(args, n, source) for n in _LENGTH_NAMES)
    return any(length is not None and total >= length for length in lengths)


def batch_values(
    knobs: Knobs, batch: BatchSpec, *, before: BatchSpec | None = None, local_world_size: int = 1
) -> tuple[tuple[str, str], ...]:
    """The (knob, value) pairs that make the batch `batch`.

    Without an accumulation flag a change is possible only where accumulation stays as it was in `before`:
    a person has then accepted a smaller global batch.

    Raises:
        JobError: the knobs or their scope are not known, so that the batch asked for could not be had.
    """
    same_steps = before is not None and before.accumulation_steps == batch.accumulation_steps
    accepted = same_steps and knobs.batch is not None and knobs.batch_scope is not KnobScope.UNKNOWN
    if not (knobs.can_change_batch or accepted):
        raise JobError(why_not_changeable(knobs))
    match knobs.batch_scope:
        case KnobScope.PER_RANK:
            value = batch.micro_batch_per_rank
        case KnobScope.PER_NODE:
            value = batch.micro_batch_per_rank * local_world_size
        case KnobScope.GLOBAL:
            # The flag holds the global batch, which mostly stays; accumulation alone cuts the micro-batch.
            value = batch.global_batch
        case KnobScope.UNKNOWN:
            raise JobError(why_not_changeable(knobs))
    pairs = [(_known(knobs.batch), str(value))]
    if knobs.accumulation:
        pairs.append((knobs.accumulation, str(batch.accumulation_steps)))
    if knobs.global_batch:
        # Said outright even where it was a default: a default may itself follow from the micro-batch.
        pairs.append((knobs.global_batch, str(batch.global_batch)))
    return tuple(pairs)


SIZE_NOT_KNOWN: Final = "the batch's size is not known: start it with --micro-batch"
"""The same where the names are known and their values are not."""


def why_not_changeable(knobs: Knobs) -> str:
    """One line for the user: what is missing before a batch can be changed, and how to say it."""
    if knobs.batch is None:
        return "the script's batch flag is not known: name it with --batch-knob"
    if knobs.batch_scope is KnobScope.UNKNOWN:
        return f"what {knobs.batch} counts is not known: say --batch-scope per_rank, per_node or global"
    return f"no accumulation flag beside {knobs.batch}: a smaller batch would shrink the global one (--accumulation-knob)"


def words_of(name: str) -> list[str]:
    """``--per-device-train-batch-size`` as its words; of ``train.batch_size`` the last key, whole."""
    name = bare(name)
    last = name.rpartition(".")[2] if not name.startswith("-") else name
    return [w for w in re.split(r"[-_./]+", last.lower()) if w]


def _is_batch(name: str) -> bool:
    words = words_of(name)
    if name in _SHORT_NAMES:
        return True
    if _is_accumulation(name) or _EVALUATION & set(re.split(r"[-_./]+", bare(name).lower())):
        return False
    if "batchsize" in words or words[-1:] == ["bs"]:
        return True
    return "batch" in words and (words[-1] in {"size", "batch", "gpu", "device", "rank", "node"})


def _is_accumulation(name: str) -> bool:
    words = set(words_of(name))
    return bool(words & {"accumulation", "accumulate", "accum"}) and not words & {"dtype", "fp32", "type"}


def _scope_by_name(name: str) -> KnobScope:
    words = set(words_of(name))
    if not _is_batch(name):
        return KnobScope.UNKNOWN
    if words & _GLOBAL:
        return KnobScope.GLOBAL
    if words & _PER_NODE:
        return KnobScope.PER_NODE
    if words & _PER_RANK:
        return KnobScope.PER_RANK
    return KnobScope.UNKNOWN


def _best_batch(names: Sequence[str], source: ScriptSource) -> str | None:
    """A per-rank name before a per-node one, before a global one, before one of unknown scope."""
    order = [KnobScope.PER_RANK, KnobScope.PER_NODE, KnobScope.GLOBAL, KnobScope.UNKNOWN]
    batches = [n for n in names if _is_batch(n)]
    return min(batches, key=lambda n: order.index(scope_of(n, source)), default=None)


def _find_resume(settings: Sequence[Setting], where: Places) -> tuple[str | None, str]:
    """A resume flag counts as known only if it can mean "the newest checkpoint" without a path."""
    for setting in settings:
        if "_".join(words_of(setting.name)) in _RESUME_WORDS:
            if setting.value is None:
                return setting.name, ""
            return (setting.name, setting.value) if setting.value.lower() in _NEWEST else (None, "auto")
    for name in where.names():
        if is_argument(name) or "_".join(words_of(name)) not in _RESUME_WORDS:
            continue
        present = where.value(name)
        if isinstance(present, bool):
            return name, "true"
        if isinstance(present, str) and present.lower() in _NEWEST - {"true"}:
            return name, present
    for flag in where.source.flags:
        name = next((n for n in flag.names if "_".join(words_of(n)) in _RESUME_WORDS), "")
        if not name:
            continue
        if flag.is_switch:
            return name, ""
        newest = [c for c in (*flag.choices, str(flag.default)) if c.lower() in _NEWEST - {"true"}]
        if newest:
            return name, newest[0]
    return None, "auto"


def _number_of(args: Sequence[str], name: str | None, where: Places) -> int | None:
    if name is None:
        return None
    value: Scalar = value_of(args, name) if is_argument(name) else None
    if value is None:
        value = where.value(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value > 0 else None
    text = value if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 12 and int(text) > 0 else None


def _known(name: str | None) -> str:
    if name is None:
        raise JobError("the script's batch flag is not known: name it with --batch-knob")
    return name

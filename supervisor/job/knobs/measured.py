"""Infers a batch and its settings from measurements taken in the training processes.

The records come from ``measured<rank>.jsonl`` (docs/telemetry.md). A number is measured, asked for or
refused, but never guessed. A setting must match in both value and name, because the number of heads may have
the same value, and a setting that was overridden may have the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from posixpath import normpath

from supervisor.job.knobs.setting_names import (
    ENV,
    BatchName,
    Place,
    attributes_in,
    bare,
    batch_name,
    config_file,
    is_accumulation,
    is_one_name,
    is_other,
    is_path_in,
    is_tokens,
    is_total,
    last_part,
    place_of,
    plain,
)
from supervisor.job.knobs.written_facts import (
    MOST_CANDIDATES,
    STEPS_THAT_AGREE,
    Facts,
    Loader,
    Rank,
    Setting,
)
from supervisor.job.spec import AccumulationCounts, Knobs, KnobScope


class Certainty(StrEnum):
    """How certain an answer is."""

    MEASURED = "measured"
    ASKED = "asked"
    REFUSED = "refused"


class Why(StrEnum):
    """The rule that answered a question or left it open."""

    LOADER = "loader"
    """The training loader's batch size."""
    FED = "fed"
    """The loader has no batch size, but all of its batches had this size."""
    PIECES = "pieces"
    """The loop splits each of the loader's batches, with one backward pass per piece."""
    FIRST_DIMENSION = "first_dimension"
    """There is no loader, and the first dimension of the model's input equals a batch setting."""
    SECOND_DIMENSION = "second_dimension"
    BATCHES = "batches"
    """The number of batches drawn between two optimizer steps."""
    BACKWARDS = "backwards"
    """The number of backward passes between two optimizer steps."""
    CALL_TEXT = "call_text"
    """The loader's call mentions the setting."""
    NAME_AND_VALUE = "name_and_value"
    DERIVED = "derived"
    """The accumulation follows from a total that stays the same."""
    NO_ACCUMULATION = "no_accumulation"
    """No setting controls accumulation, so changing the micro-batch also changes the global batch."""
    DECLARED = "declared"
    """The user named the setting."""
    SEVERAL = "several"
    """Several settings match in both name and value."""
    SEVERAL_LOADERS = "several_loaders"
    BY_NAME = "by_name"
    """The name fits, but no complete step has confirmed the value."""
    BY_VALUE = "by_value"
    """The value matches, but the name is inconclusive."""
    ARITHMETIC = "arithmetic"
    """The loader's call computes the size from these settings."""
    SCOPE = "scope"
    """The value could be micro-batch times ranks or micro-batch times accumulation, which are equal."""
    GLOBAL_VARIABLE = "global_variable"
    """A variable in the script has this value, but its origin was not observed."""
    UNCONFIRMED = "unconfirmed"
    """A step has several backward passes that no loader or setting explains."""
    NOTHING_SEEN = "nothing_seen"
    UNKNOWN_SHAPE = "unknown_shape"
    NO_STEP = "no_step"
    TOO_FEW_STEPS = "too_few_steps"
    CHANGING = "changing"
    RANKS_DIFFER = "ranks_differ"
    FIXED_IN_CODE = "fixed_in_code"
    """None of the observed settings has this value."""
    WITHOUT_BATCH = "without_batch"
    """The value to compare with is unknown."""


UNSEEN = frozenset({Why.NO_STEP, Why.TOO_FEW_STEPS})
"""The reasons that apply until enough steps have shown the accumulation."""


DERIVED, NONE = "derived", "none"
"""Values used in place of an accumulation setting's name."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """An answer and how certain it is. `candidates` are the settings to ask about, likeliest first.

    `number` is a micro-batch size or an accumulation count, `setting` controls it, and `scope` is what that setting counts.
    """

    certainty: Certainty
    why: Why
    candidates: tuple[Setting, ...] = ()
    number: int | None = None
    setting: Setting | None = None
    scope: KnobScope | None = None


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """The batch of one attempt.

    Attributes:
        micro: samples in one forward and backward pass on a rank.
        accumulated: forward and backward passes per optimizer step.
        set_by: the setting that controls the micro-batch.
        accumulated_by: the setting that controls accumulation. It counts the passes of one rank or of all ranks.
        world_size: the number of ranks.
        sequence_length: tokens per sample if the model's input is token ids, or None if that is uncertain.
        counts_accumulation: whether `set_by` is the total for an optimizer step, which accumulation splits.
        has_loaded: whether a checkpoint or a pretrained model was loaded.
        loader_at: ``file:line`` of the call that creates the training loader.
    """

    micro: Derivation
    accumulated: Derivation
    set_by: Derivation
    accumulated_by: Derivation
    world_size: int | None
    sequence_length: int | None
    counts_accumulation: bool
    has_loaded: bool
    loader_at: str | None

    @property
    def accumulation_setting(self) -> str | None:
        """The name of the accumulation setting, `DERIVED`, `NONE`, or None if unknown."""
        by = self.accumulated_by
        if by.setting is not None:
            return by.setting.name
        return {Why.DERIVED: DERIVED, Why.NO_ACCUMULATION: NONE}.get(by.why)


@dataclass(frozen=True, slots=True)
class _Numbers:
    micro: int | None
    times: int | None
    world: int | None
    local_world: int | None
    length: int | None
    uncut: int | None = None
    """The loader's batch if the loop splits it. A setting with this value sets it, whatever the micro-batch is."""

    def scope(self, value: int | None) -> KnobScope | None:
        """Return what a setting with this value counts, or None if it does not set the micro-batch."""
        if value is None or self.micro is None or value == self.uncut:
            return None
        if value == self.micro:
            return KnobScope.PER_RANK
        if value == self.micro * (self.world or 1):
            return KnobScope.GLOBAL
        return KnobScope.PER_NODE if value == self.micro * (self.local_world or 1) else None

    def is_whole(self, value: int | None) -> bool:
        """Check whether `value` is the size of one optimizer step, in samples or tokens, on a single rank or across all ranks."""
        if value is None or self.micro is None or self.times is None:
            return False
        on_rank = self.micro * self.times
        wholes = {on_rank * (self.world or 1)} | ({on_rank} if self.times > 1 else set())
        return value in wholes | {whole * (self.length or 1) for whole in wholes}

    @property
    def accumulations(self) -> set[int]:
        """The possible values of an accumulation setting, which may count passes on one rank or on all ranks."""
        return {self.times, self.times * (self.world or 1)} if self.times is not None else set()

    def counted(self, setting: Setting) -> KnobScope:
        """Return whether an accumulation setting counts the passes of one rank or of all ranks."""
        return KnobScope.PER_RANK if setting.number == self.times else KnobScope.GLOBAL

    def is_unclear(self, value: int | None) -> bool:
        """Check whether `value` could mean either micro-batch times ranks or one rank's whole step because the two are equal."""
        world = self.world or 1
        return world > 1 and world == self.times and self.micro is not None and value == self.micro * world

    def is_global(self, value: int | None) -> bool:
        """Check whether `value` is the number of samples in one optimizer step across all ranks."""
        if value is None or self.micro is None or self.times is None or self.world is None:
            return False
        return value == self.micro * self.times * self.world and value != self.uncut


def measured_batch(
    facts: Facts, *, local_world_size: int | None = None, named: Knobs | None = None
) -> MeasuredBatch:
    """Derive the batch from the measurements so far.

    Args:
        facts: the measurements of one attempt.
        local_world_size: the number of ranks per node, used if no rank reports it.
        named: settings declared by the user, used if their values match.
    """
    given = named or Knobs()
    settings, ranks = facts.settings, facts.ranks
    first = ranks[0] if ranks else Rank()
    loader, world = first.loader, facts.world_size
    micro = _agreed([_micro_batch(rank, settings) for rank in ranks or (first,)])
    times = _agreed([_accumulation(rank, micro.number, world, settings) for rank in ranks or (first,)])
    uncut = loader.batch_size if loader is not None and micro.why is Why.PIECES else None
    local = first.local_world_size or local_world_size
    numbers = _Numbers(micro.number, times.number, world, local, _length(first, micro.number), uncut)
    set_by = _named_batch(numbers, settings, given) or _setting_of(numbers, settings, loader)
    by_name = _named_accumulation(numbers, settings, given, times.why)
    accumulated_by = by_name or _accumulation_setting(numbers, settings, set_by.setting)
    if set_by.setting is None and accumulated_by.setting and len(cut := _cut(settings, uncut)) == 1:
        set_by = _set_by(Why.PIECES, cut[0], KnobScope.PER_RANK)
    return MeasuredBatch(
        micro=micro,
        accumulated=times,
        set_by=set_by,
        accumulated_by=accumulated_by,
        world_size=world,
        sequence_length=numbers.length,
        counts_accumulation=set_by.setting is not None and _is_total(set_by.setting, numbers, settings),
        has_loaded=bool(facts.loaded),
        loader_at=loader.at if loader is not None else None,
    )


def _agreed(of_ranks: Sequence[Derivation]) -> Derivation:
    """Return the first rank's answer, or refuse if the ranks' numbers differ. A rank that has no number yet is merely behind."""
    first = of_ranks[0]
    if any(rank.number not in {first.number, None} for rank in of_ranks):
        return _refused(Why.RANKS_DIFFER)
    return first


def _cut(settings: Sequence[Setting], uncut: int | None) -> list[Setting]:
    """Return the settings that match the batch a rank loads before its loop splits it into pieces."""
    return [s for s in settings if s.is_input and _fit(s) and uncut is not None and s.number == uncut]


def first_steps(facts: Facts, *, accumulates: bool) -> tuple[int | None, int | None, int | None]:
    """Return the micro-batch, the passes in the latest complete step, and the passes that `STEPS_THAT_AGREE` steps share.

    Each is None if unknown. `accumulates` means that an earlier attempt's backward passes proved to be accumulation.
    """
    rank = next(iter(facts.ranks), None)
    if rank is None:
        return None, None, None
    micro = _micro_batch(rank, facts.settings).number
    count = rank.batches if rank.is_by_batches else rank.backwards
    if count.value > 1 and not (rank.counts_batches or accumulates):
        return micro, None, None  # two losses are not accumulation
    return micro, count.value or None, count.agreed


def _measured(why: Why, number: int | None = None) -> Derivation:
    return Derivation(Certainty.MEASURED, why, number=number)


def _set_by(why: Why, setting: Setting, scope: KnobScope) -> Derivation:
    return Derivation(Certainty.MEASURED, why, setting=setting, scope=scope)


def _asked(why: Why, candidates: Sequence[Setting]) -> Derivation:
    return Derivation(Certainty.ASKED, why, tuple(candidates[:MOST_CANDIDATES]))


def _refused(why: Why) -> Derivation:
    return Derivation(Certainty.REFUSED, why)


def _open(why: Why, candidates: Sequence[Setting]) -> Derivation:
    """Leave the question for the user if there are candidates. Otherwise, refuse to answer it."""
    return _asked(why, candidates) if candidates else _refused(why)


def _fit(setting: Setting) -> BatchName:
    """Return how well a setting's name, or a long option that sets it, fits the training batch."""
    fits = [batch_name(setting.name), *(batch_name(word) for word in setting.words if word.startswith("--"))]
    return max(fits)


def _micro_batch(rank: Rank, settings: Sequence[Setting]) -> Derivation:
    loader, shape = rank.loader, rank.shape
    if not shape:
        return _refused(Why.NOTHING_SEEN)
    if loader is None:
        return _micro_by_name(rank, settings)
    if rank.pieces(loader):
        return _measured(Why.PIECES, shape[0])
    if _joins_loaders(rank, loader):
        return _asked(Why.SEVERAL_LOADERS, ())
    if loader.batch_size is not None:
        if loader.lead > 1 and loader.batch_size == loader.lead * (rank.world_size or 1) > loader.lead:
            # One batch was split among the ranks, or rows were packed into fewer.
            return _asked(Why.SCOPE, ())
        return _measured(Why.LOADER, loader.batch_size)
    if len(loader.fed) == 1 and loader.fed.total() >= STEPS_THAT_AGREE:
        return _measured(Why.FED, loader.lead)
    return _refused(Why.UNKNOWN_SHAPE)


def _micro_by_name(rank: Rank, settings: Sequence[Setting]) -> Derivation:
    """Infer the micro-batch from a batch setting that equals an input's first dimension (second, if the first is time).

    With no loader, use the first input of the last forward pass before a backward pass. Rollouts of one sample may precede it.
    """
    named = [setting for setting in settings if setting.number is not None and _fit(setting)]
    sizes = {setting.number for setting in named}
    last = next((shape[0] for shape, _ in rank.before_backward.most_common(1)), None)
    first = next((size for size in rank.shape[:2] if size in sizes), None)
    found = {last, first} & sizes
    fits = [setting for setting in named if setting.number in found]
    if len(found) == 1 and any(_fit(setting) > BatchName.ODD for setting in fits):
        is_first = not found.isdisjoint({last, rank.shape[0]})
        why = Why.FIRST_DIMENSION if is_first else Why.SECOND_DIMENSION
        return _measured(why, found.pop())
    # Either an unusual word beside `batch` (a normalization, a replay buffer), or two sizes.
    return _asked(Why.BY_NAME, fits) if fits else _open(Why.UNKNOWN_SHAPE, named)


def _joins_loaders(rank: Rank, loader: Loader) -> bool:
    """Check whether the model's batches come from several loaders, alternating or joined (labeled and unlabeled)."""
    others = [other for other in rank.loaders.values() if other is not loader]
    in_turns = (o for o in others if o.batch_size != loader.batch_size and 2 * o.forwards > loader.forwards)
    if any(in_turns):
        return True
    unrelated = (
        len(loader.fed) == 1 and loader.lead > 0 and all(size % loader.lead for size in rank.shape[:2])
    )
    return unrelated and any(len(other.drawn) >= STEPS_THAT_AGREE for other in others)


def _accumulation(
    rank: Rank, micro: int | None, world: int | None, settings: Sequence[Setting]
) -> Derivation:
    if not rank.steps:
        return _open(Why.NO_STEP, [setting for setting in settings if is_accumulation(setting.name)])
    by_batches = rank.is_by_batches
    times = (rank.batches if by_batches else rank.backwards).agreed
    if times is None:
        return _refused(Why.TOO_FEW_STEPS if rank.steps < STEPS_THAT_AGREE else Why.CHANGING)
    if times > 1 and not rank.counts_batches:  # two losses of a GAN or two passes of SAM are not accumulation
        numbers = _Numbers(micro, times, world, None, _length(rank, micro))
        by = _accumulation_setting(numbers, settings, None)
        is_explained = by.certainty is Certainty.MEASURED and by.why is not Why.NO_ACCUMULATION
        says_so = any(is_accumulation(s.name) and s.number in numbers.accumulations for s in settings)
        if not (is_explained or says_so):
            return _asked(Why.UNCONFIRMED, by.candidates)
    return _measured(Why.BATCHES if by_batches else Why.BACKWARDS, times)


def _length(rank: Rank, micro: int | None) -> int | None:
    """Return the dimension next to the micro-batch in token-id input, or None if rows are packed or doubled."""
    if rank.shape not in rank.token_ids:
        return None
    rows, columns = rank.shape
    if rows == micro and columns > 1:
        return columns
    return rows if columns == micro and rank.loader is None else None


def _setting_of(numbers: _Numbers, settings: Sequence[Setting], loader: Loader | None) -> Derivation:
    named = sorted((setting for setting in settings if _fit(setting)), key=_fit, reverse=True)
    if numbers.micro is None:
        return _open(Why.WITHOUT_BATCH, named)
    text = "" if loader is None or numbers.uncut is not None else loader.text or ""
    in_call = _in_call(text, settings)
    fits, why = _fitting(numbers, named), Why.NAME_AND_VALUE
    if in_call:
        fits = [s for s in in_call if numbers.scope(s.number) is not None and (_fit(s) or is_one_name(text))]
        why = Why.CALL_TEXT
        if not fits:
            return _asked(Why.ARITHMETIC, in_call)
    given = [s for s in fits if s.is_input]
    others = _of_other_names(numbers, settings)
    return _best(numbers, given, others, why) if given else _not_given(text, fits, others)


def _fitting(numbers: _Numbers, named: Sequence[Setting]) -> list[Setting]:
    """Return the settings that give the micro-batch on a rank, a node or all ranks, or else those that give a whole step."""
    direct = [s for s in named if numbers.scope(s.number) is not None]
    return direct or [s for s in named if numbers.is_global(s.number)]


def _in_call(text: str, settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings mentioned in the loader's call. For ``cfg.TRAIN.BATCH``, prefer those in that section."""
    names = attributes_in(text)
    found = [s for s in settings if s.number is not None and last_part(s.name) in names]
    return [s for s in found if "." in s.name and is_path_in(s.name, text)] or found


def _of_other_names(numbers: _Numbers, settings: Sequence[Setting]) -> list[Setting]:
    """Return settings with a matching value but an inconclusive name. They are only good enough to ask about."""
    return [s for s in settings if numbers.scope(s.number) is not None and not _fit(s) and _may_be_batch(s)]


def _not_given(text: str, fits: Sequence[Setting], others: Sequence[Setting]) -> Derivation:
    """Return the result when no option, environment variable or key matches in both name and value.

    A constant in the loader's call is hard-coded. Any other variable may come from a config that runs as code.
    """
    if not fits:
        return _asked(Why.BY_VALUE, others) if others else _refused(Why.FIXED_IN_CODE)
    fixed = plain(text) in {plain(setting.name) for setting in fits}
    return _refused(Why.FIXED_IN_CODE) if fixed else _asked(Why.GLOBAL_VARIABLE, fits)


def is_named(setting: Setting, name: str) -> bool:
    """Check whether `name`, in the user's spelling, refers to this setting."""
    if name.startswith(ENV) != (setting.by == "env"):
        return False
    if place_of(name) is Place.FILE:  # spelled as in the command, or with its last folders only
        file = config_file(name.partition("#")[0])
        parts = [part for part in normpath(file).split("/") if part != ".."]
        if file != setting.shown and (setting.file or "").split("/")[-len(parts) :] != parts:
            return False
    return plain(bare(name)) in {plain(word) for word in (setting.name, *setting.words)}


def _named_batch(numbers: _Numbers, settings: Sequence[Setting], named: Knobs) -> Derivation | None:
    """Return the setting that the user named for the batch, if it was seen and the micro-batch is known."""
    mine = [s for s in settings if named.batch is not None and is_named(s, named.batch)]
    if not mine or numbers.micro is None:
        return None
    scope = numbers.scope(mine[0].number) or (KnobScope.GLOBAL if numbers.is_global(mine[0].number) else None)
    if scope is None:
        return _asked(Why.DECLARED, mine[:1])
    if numbers.is_unclear(mine[0].number):
        if named.batch_scope is KnobScope.UNKNOWN:
            return _asked(Why.SCOPE, mine[:1])
        scope = named.batch_scope
    return _set_by(Why.DECLARED, mine[0], scope)


def _named_accumulation(
    numbers: _Numbers, settings: Sequence[Setting], named: Knobs, why: Why
) -> Derivation | None:
    """Return the accumulation setting that the user named, trusting its value until enough steps have been seen (see `why`)."""
    mine = [s for s in settings if named.accumulation is not None and is_named(s, named.accumulation)]
    if not mine or (numbers.times is None and (why not in UNSEEN or mine[0].number is None)):
        return None
    if numbers.times is None:
        counts_ranks = named.counts is AccumulationCounts.ALL_RANKS
        return _set_by(Why.DECLARED, mine[0], KnobScope.GLOBAL if counts_ranks else KnobScope.PER_RANK)
    if mine[0].number not in numbers.accumulations:
        return _asked(Why.DECLARED, mine[:1])
    return _set_by(Why.DECLARED, mine[0], numbers.counted(mine[0]))


def _best(numbers: _Numbers, given: Sequence[Setting], others: Sequence[Setting], why: Why) -> Derivation:
    """Return the setting with the best-fitting name among those whose value matches, or else a question."""
    first = given[0]
    best = [s for s in given if _fit(s) == _fit(first) or _fit(first) <= BatchName.BARE]
    scope = numbers.scope(first.number) or KnobScope.GLOBAL
    nearer = [s for s in given if s.number == numbers.micro and _fit(s) > BatchName.ODD and s not in best]
    if len(best) > 1 or (nearer and scope is not KnobScope.PER_RANK):
        return _asked(Why.SEVERAL, [*best, *nearer, *others])
    # The name suggests one rank's batch and the value all ranks', or vice versa.
    says_other = _fit(first) is BatchName.ONE_RANK
    if scope is KnobScope.PER_RANK:
        says_other = is_total(first.name) and (numbers.world or 1) > 1
    if numbers.is_unclear(first.number) or says_other:
        return _asked(Why.SCOPE, best)
    return _set_by(why, first, scope)


def _is_total(setting: Setting, numbers: _Numbers, settings: Sequence[Setting]) -> bool:
    """Check whether the batch setting already includes accumulation, as DeepSpeed's `train_batch_size` does."""
    by_deepspeed = last_part(setting.name) == "train_batch_size" and any(
        s.by == "deepspeed" for s in settings
    )
    return by_deepspeed or numbers.scope(setting.number) is None


def _may_be_batch(setting: Setting) -> bool:
    """Check whether to ask if this setting is the batch size, even though its name does not suggest it."""
    says_other = is_accumulation(setting.name) or is_other(setting.name)
    return setting.is_input and setting.by != "env" and not says_other


def _accumulation_setting(
    numbers: _Numbers, settings: Sequence[Setting], batch: Setting | None
) -> Derivation:
    """Return the accumulation setting, or report that a total implies the accumulation or that none is needed."""
    named = [s for s in settings if is_accumulation(s.name) and s is not batch]
    if numbers.times is None:
        return _asked(Why.BY_NAME, named) if named else _refused(Why.NO_STEP)
    fits = [s for s in named if s.number in numbers.accumulations and s.is_input]
    if len(fits) == 1:
        return _set_by(Why.NAME_AND_VALUE, fits[0], numbers.counted(fits[0]))
    if named:
        return _asked(Why.SEVERAL if fits else Why.BY_NAME, fits or named)
    return _without_accumulation(numbers, [s for s in settings if s is not batch and s.is_input])


def _without_accumulation(numbers: _Numbers, others: Sequence[Setting]) -> Derivation:
    """Return the result when no name suggests accumulation: a total that implies it, a setting with its value, or none."""
    several = numbers.times != 1
    wholes = [s for s in others if numbers.is_whole(s.number) and (_fit(s) or is_tokens(s.name))]
    if (several and wholes) or any(is_total(s.name) for s in wholes):
        return Derivation(Certainty.MEASURED, Why.DERIVED, tuple(wholes[:1]))
    if not several:
        return _measured(Why.NO_ACCUMULATION)
    # The number comes from the code or from an unseen configuration.
    equal = [s for s in others if s.number in numbers.accumulations and _may_be_batch(s)]
    return _asked(Why.BY_VALUE, equal) if equal else _refused(Why.FIXED_IN_CODE)

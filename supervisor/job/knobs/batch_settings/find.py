"""Finds the settings under which a foreign script takes its batch, and how they make up the global batch.

Nothing is guessed: a batch and an accumulation beside it are two factors, whatever the batch counts; a micro-batch beside a
total is changed alone; everything that contradicts that (the source divides one by the other, two places disagree, a name that may
mean two things) is a refusal that says why. Declared knobs win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.batch import divisors
from supervisor.job.config.edit import Scalar
from supervisor.job.knobs.batch_settings import candidates as cand
from supervisor.job.knobs.batch_settings.candidates import Candidate, as_number, plain_last, plain_name
from supervisor.job.knobs.batch_settings.names import Role, may_cut, role_of, scope_by_name
from supervisor.job.knobs.batch_settings.refusals import (
    EITHER_SCOPE,
    NO_ACCUMULATION,
    SMALLER_GLOBAL,
    NoPlanError,
)
from supervisor.job.knobs.batch_settings.search import Search, last_key
from supervisor.job.knobs.batch_settings.set_batch import number_of
from supervisor.job.knobs.conventions import Convention, find_convention
from supervisor.job.knobs.places import Place, Places, bare, place_of
from supervisor.job.knobs.resuming.resume import find_resume
from supervisor.job.knobs.source.conditions import cleared_before_backward, refuses
from supervisor.job.knobs.source.read_source import ScriptSource, scan_source
from supervisor.job.spec import AccumulationCounts, FoundNumber, Knobs, KnobScope, Unread

_WORLD: Final = ("world_size", "get_world_size", "num_gpus", "ngpus", "n_gpu", "n_gpus", "num_processes", "ddp_world_size", "gpus", "num_devices", "device_count", "ngpus_per_node", "local_world_size", "dp_size", "dp_world_size", "data_parallel_size", "num_ranks", "nprocs", "dp_degree", "world", "ngpu", "nproc")  # fmt: skip
_PER_NODE: Final = frozenset({"ngpus_per_node", "device_count", "local_world_size"})


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
    world: int | None = None,
) -> Knobs:
    """The knobs of a foreign script, from its arguments and, where given, its source, configs and environment.

    Args:
        args: what follows the script on the command line.
        source_text: the script's text; parsed, not run.
        declared: what the user named; each name given there is taken as it is.
        elsewhere: config files and variables; what the command line says comes before them.
        world: ranks in all, if known.
    """
    where = elsewhere or places(source_text)
    given = declared or Knobs()
    row = convention_of(args, where)
    knobs = _batch_knobs(args, where, row, given, world)
    return find_resume(args, where, row, given, knobs)


def convention_of(args: Sequence[str], where: Places) -> Convention | None:
    """The framework whose conventions hold for this command line."""
    names = (
        [s.name for s in settings_of(args[where.args_at :])]
        + [f"{f}#{k}" for f, v in where.configs.items() for k in v]
        + list(where.settled)
    )
    return find_convention(
        names, program=where.program, modules=where.source.modules, called=where.source.calls()
    )


def _batch_knobs(
    args: Sequence[str], where: Places, row: Convention | None, given: Knobs, world: int | None
) -> Knobs:
    found = cand.collect(args, where, row)
    declared = given != Knobs()
    try:
        if given.batch is not None:
            knobs = _declared(given, found, args, where, declared=declared)
        else:
            finder = _Finder(args, where, row, found, given, world, Search(args, where, row, found, given))
            knobs = replace(finder.find(), declared=declared)
        return _checked(knobs, given, where.source)
    except NoPlanError as refused:
        scope = given.batch_scope
        if refused.batch is not None and scope is KnobScope.UNKNOWN:
            scope = scope_of(refused.batch, where.source)
        if refused.help == SMALLER_GLOBAL and scope is KnobScope.UNKNOWN:
            # By how much the global batch would shrink is not known either.
            help_ = f"{SMALLER_GLOBAL} with {EITHER_SCOPE}"
            why = refused.why.replace(f"({SMALLER_GLOBAL})", f"({help_})")
            refused = replace(refused, why=why, help=help_, unread=Unread.SCOPE)
        return Knobs(
            batch=refused.batch, batch_scope=scope, accumulation=given.accumulation, refusal=refused.why, help=refused.help, declared=declared,
            found=_numbers_of(found, args, where, ("micro", refused.batch)), unread=refused.unread, choices=refused.choices,
        )  # fmt: skip


def _declared(
    given: Knobs, found: Sequence[Candidate], args: Sequence[str], where: Places, *, declared: bool
) -> Knobs:
    """What a person named, completed: a scope from the name or the source, an accumulation or a total that is the only one."""
    batch = given.batch or ""
    scope = given.batch_scope if given.batch_scope is not KnobScope.UNKNOWN else scope_of(batch, where.source)
    accumulation = given.accumulation
    if accumulation is None:
        first, rest = cand.choose(c for c in found if c.role is Role.ACCUMULATION)
        accumulation = first.name if first is not None and not rest else None
    total = given.global_batch or next(
        (c.name for c in found if c.role is Role.TOTAL and c.name != batch), None
    )
    return Knobs(
        batch=batch,
        batch_scope=scope,
        accumulation=accumulation,
        global_batch=total if scope is KnobScope.PER_RANK and accumulation is None else None,
        counts=given.counts,
        declared=declared,
        paired=accumulation is not None
        and scope is KnobScope.UNKNOWN
        and not where.source.divides(plain_name(batch), plain_name(accumulation)),
        found=_numbers_of(
            found, args, where, ("micro", batch), ("accumulation", accumulation), ("total", total)
        ),
    )


def _checked(knobs: Knobs, given: Knobs, source: ScriptSource) -> Knobs:
    """The same, without settings that do nothing and without a declared accumulation that cuts the batch."""
    steps = knobs.accumulation
    for name, what in ((knobs.batch, "--batch-knob"), (steps, "--accumulation-knob")):
        if name is not None and (unused := source.unused(name)) is not None:
            raise NoPlanError(f"{name} is declared in {unused} but never used", f"name it with {what}")
    if steps is not None and given != Knobs() and knobs.batch_scope is not KnobScope.GLOBAL:
        _require_whole(steps, source.cuts_by(plain_last(steps).lower()))
        if given.accumulation is not None and may_cut(steps):
            why = f"{steps} may split each batch into pieces: a smaller batch would shrink the global batch"
            raise NoPlanError(why, f"increase only {steps}")
    return knobs


def _require_whole(steps: str, cut_at: str | None, batch: str | None = None) -> None:
    if cut_at is not None:
        cuts = f"the source splits each batch into {steps} pieces ({cut_at})"
        raise NoPlanError(
            f"{cuts}: a smaller batch would shrink the global batch", f"increase only {steps}", batch
        )


def _numbers_of(
    found: Sequence[Candidate], args: Sequence[str], where: Places, *wanted: tuple[str, str | None]
) -> tuple[FoundNumber, ...]:
    by_name = {c.name: (c.number, c.where) for c in found}
    return tuple(
        FoundNumber(what, *by_name.get(name, (number_of(args, name, where), "named")))
        for what, name in wanted
        if name is not None
    )


@dataclass(slots=True)
class _Finder:
    """One search; lives for one call."""

    args: Sequence[str]
    where: Places
    row: Convention | None
    found: list[Candidate]
    given: Knobs
    world: int | None
    search: Search

    @property
    def source(self) -> ScriptSource:
        return self.where.source

    def find(self) -> Knobs:
        self.search.require_safe()
        micro = self.search.micro()
        if micro.name in self.where.written:
            what = f"the batch is written in {micro.where} ({micro.name.lstrip('-')} = {micro.value}), and the script has no flag for it"
            raise NoPlanError(what, f"change it in {micro.where}")
        try:
            return self._planned(micro)
        except NoPlanError as refused:
            if micro.number != 1:
                raise
            what = f"{micro.name} is 1 already: no smaller micro-batch is possible"
            raise NoPlanError(what, "", refused.batch) from None

    def _planned(self, micro: Candidate) -> Knobs:
        self.search.require_counted(micro)
        total = self.search.total(micro) if micro.role is not Role.TOTAL else None
        accumulation = (
            None
            if total is not None and not self.search.all_three(micro)
            else self.search.accumulation(micro)
        )
        for setting in (micro, accumulation):
            file = setting.name.partition("#")[0] if setting is not None else ""
            if file in self.where.fixed:
                what = f"{file} names other files from its own folder, so no changed copy of it can be handed to the job"
                raise NoPlanError(f"the batch is set in a config: {what}", "", micro.name)
        if total is not None and accumulation is None:
            return self._derived(micro, total)
        if accumulation is None:
            raise self._no_accumulation(micro)
        return self._two_factors(micro, accumulation, total)

    # what they make up

    def _no_accumulation(self, micro: Candidate) -> NoPlanError:
        named = f"no gradient accumulation beside {micro.name}"
        if not self.source.files and not micro.explicit:
            return NoPlanError(
                f"{named}: the source of {self.where.program or 'the script'} could not be read",
                "name it with --accumulation-knob",
                micro.name,
            )
        fixed = next(
            (p for p in self.source.passed if role_of(p.keyword) is Role.ACCUMULATION and as_number(p.value)),
            None,
        )
        if fixed is not None:
            return NoPlanError(
                f"the accumulation is written in {fixed.where} ({fixed.keyword}={fixed.value})",
                f"change it in {fixed.where.rpartition(':')[0]}",
                micro.name,
            )
        for name, values in self.source.literals.items():
            if role_of(f"--{name}") is Role.ACCUMULATION and as_number(values[0][0]):
                return NoPlanError(
                    f"{named}, but {self.source.spelled[name]} is set in {values[0][1]}, and how it is changed from outside is not known",
                    "name it with --accumulation-knob", micro.name,
                )  # fmt: skip
        return self.search.no_accumulation(micro)

    def _derived(self, micro: Candidate, total: Candidate) -> Knobs:
        self._require_same_rate(micro, {last_key(total)})
        return Knobs(
            least_micro=self._least_accepted(micro, KnobScope.PER_RANK),
            batch=micro.name,
            batch_scope=KnobScope.PER_RANK,
            global_batch=total.name,
            same=(*self._duplicates(micro, None, total), *self._kept(micro)),
            found=self._numbers(micro, None, total),
        )

    def _two_factors(self, micro: Candidate, steps: Candidate, total: Candidate | None) -> Knobs:
        big, small = last_key(micro), last_key(steps)
        divides, named = self.source.divides(big, small), self.given.batch_scope
        is_named = named is KnobScope.GLOBAL and (divides or not self.source.files)
        if micro.role is Role.TOTAL or is_named or self._is_cut(big, small):
            return self._cut(micro, steps)
        if divides and named is KnobScope.UNKNOWN:
            raise NoPlanError(
                f"{micro.name} may be divided by {steps.name} in the source",
                EITHER_SCOPE,
                micro.name,
                Unread.SCOPE,
            )
        cut_at = self.source.cuts_by(small)
        if cut_at is not None and self.source.same_as(small) & self.source.of_loss:
            return self._cut(micro, steps)  # each piece counts by its share
        _require_whole(steps.name, cut_at, micro.name)
        if (
            not self.source.files
            and micro.role not in {Role.MICRO, Role.NODE}
            and not self._by_known_names(micro, steps)
        ):
            raise NoPlanError(
                f"what {micro.name} counts is not known: the source of {self.where.program or 'the script'} could not be read",
                EITHER_SCOPE, micro.name, Unread.SCOPE,
            )  # fmt: skip
        cleared = cleared_before_backward(self.source)
        if cleared is not None:
            raise NoPlanError(
                f"each micro-batch clears the gradients of those before it ({cleared}), so a step would see its last one alone: {NO_ACCUMULATION}",
                SMALLER_GLOBAL, micro.name,
            )  # fmt: skip
        scope = self._scope(micro)
        counts = (
            self.given.counts if self.given.counts is not AccumulationCounts.PER_RANK else self._counts(small)
        )
        if scope is KnobScope.UNKNOWN and counts is AccumulationCounts.ALL_RANKS:
            scope = KnobScope.PER_RANK  # it would be divided by the ranks too, were it that of all of them
        if total is not None:
            self._require_product(micro, steps, total, counts)
        self._require_same_rate(micro, {small})
        self._require_accepted(steps)
        return Knobs(
            least_micro=self._least_accepted(micro, scope),
            batch=micro.name,
            batch_scope=scope,
            accumulation=steps.name,
            paired=True,
            counts=counts,
            same=(*self._duplicates(micro, steps, total), *self._kept(micro)),
            found=self._numbers(micro, steps, total),
        )

    def _is_cut(self, big: str, small: str) -> bool:
        """Whether the source divides the batch by the accumulation, or demands that it be a multiple of so many pieces."""
        evenly = self.source.cuts_evenly(big, small) and "backward" in self.source.used
        return evenly or self.source.divides(big, small, outright=True)

    def _by_known_names(self, micro: Candidate, steps: Candidate) -> bool:
        return (
            self.row is not None
            or (micro.framework != "" and steps.framework != "")
            or self.given.batch_scope is not KnobScope.UNKNOWN
        )

    def _cut(self, micro: Candidate, steps: Candidate) -> Knobs:
        """The source divides the batch by the accumulation: the batch stays, and is cut into more pieces."""
        return Knobs(
            batch=micro.name, batch_scope=KnobScope.GLOBAL, accumulation=steps.name, found=self._numbers(micro, steps, None)
        )  # fmt: skip

    def _scope(self, micro: Candidate) -> KnobScope:
        if self.given.batch_scope is not KnobScope.UNKNOWN:
            return self.given.batch_scope
        scope = scope_of(micro.name, self.source)
        if scope is not KnobScope.UNKNOWN:
            return scope
        names = self.source.same_as(last_key(micro))
        for ratio in self.source.ratios:
            by = ratio.right & set(_WORLD)
            if ratio.left in names and by:
                return KnobScope.PER_NODE if by <= _PER_NODE else KnobScope.GLOBAL
        return KnobScope.UNKNOWN

    def _counts(self, small: str) -> AccumulationCounts:
        names = self.source.same_as(small)
        divided = any(
            r.left in names and self.source.behind(r.right) & set(_WORLD) and r.whole
            for r in self.source.ratios
        )
        return AccumulationCounts.ALL_RANKS if divided else AccumulationCounts.PER_RANK

    def _require_product(
        self, micro: Candidate, steps: Candidate, total: Candidate, counts: AccumulationCounts
    ) -> None:
        """Micro-batch, accumulation and total are all given: they must agree, or which one the script drops is not known."""
        a, b, c = micro.number, steps.number, total.number
        if a is None or b is None or c is None:
            return
        world = 1 if counts is AccumulationCounts.ALL_RANKS else self.world
        if world is None or a * b * world != c:
            raise NoPlanError(
                f"{micro.name} {a} × {steps.name} {b} × {world or '?'} ranks is not {total.name} {c}",
                "leave one of the three out",
                micro.name,
            )

    def _require_accepted(self, steps: Candidate) -> None:
        """The source's own conditions let the accumulation be larger."""
        if steps.number is None:
            return
        why = self._refused(steps, 2 * steps.number)
        if why is not None:
            raise NoPlanError(
                f"{steps.name} {2 * steps.number} would be refused by the script: {why}", "", None
            )

    def _least_accepted(self, micro: Candidate, scope: KnobScope) -> int:
        """The least micro-batch that the source's own conditions let through, of those that divide the present one."""
        if micro.number is None or scope not in {KnobScope.PER_RANK, KnobScope.UNKNOWN}:
            return 1
        least = micro.number
        for smaller in sorted(divisors(micro.number)[:-1], reverse=True):
            why = self._refused(micro, smaller)
            if why is not None and least == micro.number:
                raise NoPlanError(
                    f"{micro.name} {smaller} would be refused by the script: {why}", "", micro.name
                )
            if why is not None:
                return least
            least = smaller
        return 1

    def _refused(self, candidate: Candidate, value: int) -> str | None:
        """Where the script would refuse another value of a setting."""
        given = {plain_last(s.name): s.value for s in settings_of(self.args[self.where.args_at :])}
        dest = plain_name(candidate.dest).rpartition(".")[2]
        return refuses(self.source, dest, candidate.number or 0, value, given, self.world)

    def _require_same_rate(self, micro: Candidate, others: set[str]) -> None:
        """The learning rate must not be scaled by the micro-batch without what makes up for it."""
        for name in ("lr", "learning_rate"):
            behind = self.source.aliases.get(name, frozenset())
            if last_key(micro) in behind and not (self.source.behind(behind) & {o.lower() for o in others}):
                raise NoPlanError(f"the learning rate is scaled by {micro.name} alone", "", micro.name)

    def _kept(self, micro: Candidate) -> tuple[tuple[str, str], ...]:
        """Totals that are interpolated from the micro-batch: they are set to what they are now, or would shrink with it."""
        return tuple(
            (c.name, str(c.number))
            for c in self.found
            if c.role is Role.TOTAL and micro.dest in c.follows and c.number
        )

    def _duplicates(
        self, micro: Candidate, steps: Candidate | None, total: Candidate | None
    ) -> tuple[tuple[str, str], ...]:
        """The other places that hold the same numbers: DeepSpeed's JSON, accelerate's config, a config beside a flag."""
        same: list[tuple[str, str]] = []
        # Where an interpolated accumulation names the batch that counts, no other key of that name does.
        named = {key for c in self.found if c.role is Role.ACCUMULATION for key in c.follows}
        for role, chosen in (("micro", micro), ("accumulation", steps), ("total", total)):
            wanted = {
                "micro": {Role.MICRO, Role.BATCH},
                "accumulation": {Role.ACCUMULATION},
                "total": {Role.TOTAL},
            }[role]
            for other in self.found:
                if chosen is not None and (other.dest == chosen.dest or chosen.dest in named):
                    continue
                if (
                    other.role not in wanted
                    or other.number is None
                    or not (
                        other.explicit
                        and (other.framework or (chosen is not None and last_key(other) == last_key(chosen)))
                    )
                ):
                    continue
                self._require_equal(role, chosen, other, micro, steps)
                if role != "total":
                    same.append((other.name, role))
        return tuple(same)

    def _require_equal(
        self, role: str, chosen: Candidate | None, other: Candidate, micro: Candidate, steps: Candidate | None
    ) -> None:
        file = other.name.partition("#")[0]
        if role == "total":
            self._require_total(other, micro, steps)
            return
        if chosen is None:
            raise NoPlanError(
                f"{other.name} holds {other.number}, and what it pairs with is derived",
                f"set it to auto in {file}",
                micro.name,
            )
        if other.number != chosen.number:
            raise NoPlanError(
                f"{chosen.name} is {chosen.value} and {other.name} is {other.number}: which one counts is not known",
                "make them equal",
                micro.name,
            )
        if file in self.where.fixed:
            raise NoPlanError(
                f"{other.name} holds the same number, and no copy of {file} can be handed to the job",
                f"set it to auto in {file}",
                micro.name,
            )

    def _require_total(self, other: Candidate, micro: Candidate, steps: Candidate | None) -> None:
        """A framework's own total stays; but it must be the product, or the engine refuses to start."""
        if self.world is None or steps is None or not (micro.number and steps.number and other.framework):
            return
        if micro.number * steps.number * self.world != other.number:
            file = other.name.partition("#")[0]
            what = f"{other.name} {other.number} is not {micro.number} × {steps.number} × {self.world} ranks"
            raise NoPlanError(what, f"make {file} agree", micro.name)

    def _numbers(
        self, micro: Candidate, steps: Candidate | None, total: Candidate | None
    ) -> tuple[FoundNumber, ...]:
        three = (("micro", micro), ("accumulation", steps), ("total", total))
        return tuple(FoundNumber(what, c.number, c.where) for what, c in three if c is not None)


def scope_of(name: str, source: ScriptSource) -> KnobScope:
    """What a batch flag counts, from its name, else from the source; UNKNOWN rather than a guess."""
    scope = scope_by_name(name)
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

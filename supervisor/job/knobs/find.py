"""Finds the settings under which a foreign script takes its batch, and how they make up the global batch.

Nothing is guessed: a batch and an accumulation beside it are two factors, whatever the batch counts; a micro-batch beside a
total is changed alone; everything that speaks against that (the source divides one by the other, two places disagree, a name that may
mean two things) is a refusal that says why. Declared knobs win.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.config.edit import NEW, Scalar
from supervisor.job.knobs import candidates as cand
from supervisor.job.knobs.candidates import Candidate, Given, as_number, plain_name
from supervisor.job.knobs.conditions import refuses
from supervisor.job.knobs.conventions import HF, Convention, find_convention
from supervisor.job.knobs.names import Role, role_of, scope_by_name, words_of
from supervisor.job.knobs.places import Place, Places, bare, place_of
from supervisor.job.knobs.read_source import ScriptSource, called, leaf, leaves, scan_source
from supervisor.job.knobs.resume import find_resume
from supervisor.job.knobs.set_batch import batch_of, batch_values, why_not_changeable
from supervisor.job.spec import AccumulationCounts, FoundNumber, Knobs, KnobScope

__all__ = [
    "SIZE_NOT_KNOWN",
    "batch_of",
    "batch_values",
    "find_knobs",
    "places",
    "scope_of",
    "why_not_changeable",
    "words_of",
]

SIZE_NOT_KNOWN: Final = "the batch's size is not known: start it with --micro-batch"
"""The same where the names are known and their values are not."""
_WORLD: Final = ("world_size", "get_world_size", "num_gpus", "ngpus", "n_gpu", "n_gpus", "num_processes", "ddp_world_size", "gpus", "num_devices", "device_count", "ngpus_per_node", "local_world_size", "dp_size", "dp_world_size", "data_parallel_size", "num_ranks", "nprocs", "dp_degree", "world", "ngpu", "nproc")  # fmt: skip
_PER_NODE: Final = frozenset({"ngpus_per_node", "device_count", "local_world_size"})
_NO_ACCUMULATION: Final = "only a smaller global batch is possible (--allow-smaller-global)"


def places(
    source_text: str | None,
    configs: Mapping[str, Mapping[str, Scalar]] | None = None,
    env: Mapping[str, str] | None = None,
) -> Places:
    """What a script's settings can be read from besides its arguments."""
    return Places(scan_source(source_text), configs or {}, env or {})


@dataclass(frozen=True, slots=True)
class _NoPlanError(Exception):
    """No plan, and why."""

    why: str
    help: str = ""
    batch: str | None = None


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
    told = declared or Knobs()
    row = convention_of(args, where)
    knobs = _batch_knobs(args, where, row, told, world)
    return find_resume(args, where, row, told, knobs)


def convention_of(args: Sequence[str], where: Places) -> Convention | None:
    """The framework whose conventions hold for this command line."""
    names = (
        [s.name for s in settings_of(args[where.args_at :])]
        + [f"{f}#{k}" for f, v in where.configs.items() for k in v]
        + list(where.settled)
    )
    names += [f"--{flag.dest}" for flag in where.source.flags[:0]]
    calls = {called(n) for file in where.source.files for n in ast.walk(file.tree) if isinstance(n, ast.Call)}
    return find_convention(names, program=where.program, modules=where.source.modules, called=calls)


def _batch_knobs(
    args: Sequence[str], where: Places, row: Convention | None, told: Knobs, world: int | None
) -> Knobs:
    found = cand.collect(args, where, row)
    declared = told != Knobs()
    if told.batch is not None:
        return _declared(told, found, where, declared=declared)
    try:
        return replace(_Finder(args, where, row, found, told, world).find(), declared=declared)
    except _NoPlanError as refused:
        scope = told.batch_scope
        if refused.batch is not None and scope is KnobScope.UNKNOWN:
            scope = scope_of(refused.batch, where.source)
        return Knobs(
            batch=refused.batch, batch_scope=scope, accumulation=told.accumulation, refusal=refused.why, help=refused.help, declared=declared,
            found=_numbers_of(found, ("micro", refused.batch)),
        )  # fmt: skip


def _declared(told: Knobs, found: Sequence[Candidate], where: Places, *, declared: bool) -> Knobs:
    """What a person named, completed: a scope from the name or the source, an accumulation or a total that is the only one."""
    batch = told.batch or ""
    scope = told.batch_scope if told.batch_scope is not KnobScope.UNKNOWN else scope_of(batch, where.source)
    accumulation = told.accumulation
    if accumulation is None:
        first, rest = cand.choose(c for c in found if c.role is Role.ACCUMULATION)
        accumulation = first.name if first is not None and not rest else None
    total = told.global_batch or next(
        (c.name for c in found if c.role is Role.TOTAL and c.name != batch), None
    )
    return Knobs(
        batch=batch,
        batch_scope=scope,
        accumulation=accumulation,
        global_batch=total if scope is KnobScope.PER_RANK and accumulation is None else None,
        counts=told.counts,
        declared=declared,
        paired=accumulation is not None
        and scope is KnobScope.UNKNOWN
        and not where.source.divides(plain_name(batch), plain_name(accumulation)),
        found=_numbers_of(found, ("micro", batch), ("accumulation", accumulation), ("total", total)),
    )


def _numbers_of(found: Sequence[Candidate], *wanted: tuple[str, str | None]) -> tuple[FoundNumber, ...]:
    by_name = {c.name: c for c in found}
    return tuple(
        FoundNumber(what, by_name[name].number, by_name[name].where)
        for what, name in wanted
        if name is not None and name in by_name
    )


@dataclass(slots=True)
class _Finder:
    """One search; lives for one call."""

    args: Sequence[str]
    where: Places
    row: Convention | None
    found: list[Candidate]
    told: Knobs
    world: int | None

    @property
    def source(self) -> ScriptSource:
        return self.where.source

    def find(self) -> Knobs:
        self._require_safe()
        micro = self._micro()
        total = self._total(micro) if micro.role is not Role.TOTAL else None
        accumulation = None if total is not None and not self._all_three() else self._accumulation(micro)
        if total is not None and accumulation is None:
            return self._derived(micro, total)
        if accumulation is None:
            raise self._no_accumulation(micro)
        return self._two_factors(micro, accumulation, total)

    # which settings

    def _require_safe(self) -> None:
        for name, why in self.row.unsafe if self.row is not None else ():
            value = self._value_anywhere(name)
            if value is not None and str(value).lower() not in {"false", "no", "0", "none", ""}:
                raise _NoPlanError(why)

    def _value_anywhere(self, plain: str) -> Scalar:
        """What a setting is given, wherever it stands; a bare switch is true."""
        for setting in settings_of(self.args[self.where.args_at :]):
            if plain_name(setting.name).rpartition(".")[2] == plain:
                return True if setting.value is None else setting.value
        for values in self.where.configs.values():
            for key, value in values.items():
                if key.rpartition(".")[2] == plain:
                    return value
        return None

    def _micro(self) -> Candidate:
        own = [c for c in self.found if not c.framework]
        selected = self._selected(own)
        if selected is not None:
            return selected
        fallback = self._standing_in(own)
        if fallback is not None:
            return fallback
        first, rest = self._micro_or_bare(own)
        if first is None:
            first, rest = cand.choose(c for c in self.found if c.framework and c.role is Role.MICRO)
        if first is None:
            first = self._whole(own)
        if first is None:
            raise self._no_batch(own)
        self._require_one(first, rest)
        return first

    def _whole(self, own: Sequence[Candidate]) -> Candidate | None:
        """A total alone, which the accumulation cuts: as its name says where no source is there, else as the source shows."""
        total, rest = cand.choose(c for c in own if c.role is Role.TOTAL and c.explicit)
        steps, _ = cand.choose(c for c in own if c.role is Role.ACCUMULATION and c.explicit)
        if total is None or rest or steps is None:
            return None
        cuts = not self.source.files or self.source.divides(_last(total), _last(steps))
        return total if cuts else None

    def _micro_or_bare(self, own: Sequence[Candidate]) -> tuple[Candidate | None, list[Candidate]]:
        """A micro-batch by name before a bare batch, unless that one alone is given and no total of the other."""
        first, rest = cand.choose(c for c in own if c.role is Role.MICRO)
        plain, others = cand.choose(c for c in own if c.role in {Role.BATCH, Role.NODE})
        if first is None:
            return plain, others
        if (
            first.explicit
            or plain is None
            or not plain.explicit
            or self.source.divides(plain.dest, first.dest)
        ):
            return first, rest
        if self._same_file(first, plain):
            what = f"both {plain.name} and {first.name} may be the micro-batch"
            raise _NoPlanError(what, f"--batch-knob {plain.name}", plain.name)
        return plain, others

    def _same_file(self, first: Candidate, second: Candidate) -> bool:
        flags = [self.source.flag(c.name) for c in (first, second)]
        return flags[0] is not None and flags[1] is not None and flags[0].file == flags[1].file

    def _selected(self, own: Sequence[Candidate]) -> Candidate | None:
        """The one that another setting selects (espnet's ``batch_type``)."""
        if self.row is None or self.row.selector is None:
            return None
        name, kinds = self.row.selector
        value = self._value_anywhere(name)
        wanted = dict(kinds).get(str(value)) if value is not None else None
        if wanted is None:
            raise _NoPlanError(
                f"{name} is not said, and it decides which setting is the micro-batch", "--batch-knob FLAG"
            )
        found = next(
            (c for c in own if c.dest.rpartition(".")[2] == wanted and c.explicit and c.number), None
        )
        if found is None:
            raise _NoPlanError(f"{name} is {value}, and no {wanted} is set")
        return found

    def _standing_in(self, own: Sequence[Candidate]) -> Candidate | None:
        """A micro-batch that is the whole batch where it is not set: ``microbatch if microbatch > 0 else batch_size``."""
        for micro in own:
            if micro.role is not Role.MICRO or micro.number is not None:
                continue
            dest = plain_name(micro.dest).rpartition(".")[2]
            for one, other in self.source.fallbacks:
                batch = next(
                    (c for c in own if plain_name(c.dest).rpartition(".")[2] == other and c.number), None
                )
                if one == dest and batch is not None and batch.role is Role.BATCH:
                    return replace(micro, value=batch.value, where=f"{batch.where} (as {batch.name})")
        return None

    def _require_one(self, first: Candidate, rest: Sequence[Candidate]) -> None:
        for other in rest:
            if other.number != first.number or not (first.explicit and other.explicit):
                names = f"{first.name} ({first.value}) and {other.name} ({other.value})"
                raise _NoPlanError(
                    f"which is the micro-batch is not clear: {names}", "--batch-knob FLAG", first.name
                )

    def _no_batch(self, own: Sequence[Candidate]) -> _NoPlanError:
        unset = next((c for c in own if c.role is not Role.ACCUMULATION and c.explicit), None)
        if unset is not None:
            return _NoPlanError(
                f"{unset.name} is {unset.value!r}, which is no number", "give it a number", unset.name
            )
        total, _ = cand.choose(c for c in own if c.role is Role.TOTAL)
        if total is not None:
            return self._total_alone(total)
        written = self._written()
        if written is not None:
            return written
        if not self.source.files and not self.where.configs:
            return _NoPlanError(
                "the script's batch flag is not known: its source could not be read",
                "name it with --batch-knob",
            )
        return _NoPlanError("the script's batch flag is not known", "name it with --batch-knob")

    def _total_alone(self, total: Candidate) -> _NoPlanError:
        steps, _ = cand.choose(c for c in self.found if c.role is Role.ACCUMULATION)
        if steps is None:
            return _NoPlanError(
                f"no gradient accumulation beside {total.name}: {_NO_ACCUMULATION}",
                "--allow-smaller-global",
                total.name,
            )
        return _NoPlanError(
            f"what {total.name} counts beside {steps.name} is not clear",
            "--batch-scope global, or per_rank",
            total.name,
        )

    def _written(self) -> _NoPlanError | None:
        """The batch as a literal in the source, where no setting holds it."""
        for passed in self.source.passed:
            number = as_number(passed.value)
            if number is not None and role_of(passed.keyword) in (Role.MICRO, Role.BATCH):
                return _NoPlanError(
                    f"the batch is written in {passed.where} ({passed.keyword}={number})",
                    f"change it in {passed.where.rpartition(':')[0]}",
                )
        for name, values in self.source.literals.items():
            number = as_number(values[0][0])
            if number is not None and role_of(f"--{name}") in (Role.MICRO, Role.BATCH):
                return _NoPlanError(
                    f"the batch is written in {values[0][1]} ({name} = {number})",
                    f"change it in {values[0][1].rpartition(':')[0]}",
                )
        return None

    def _total(self, micro: Candidate) -> Candidate | None:
        """The setting that holds the global batch beside a micro-batch, with a value or with proof in the source."""
        totals = [c for c in self.found if c.role is Role.TOTAL and not c.framework]
        if micro.role is Role.MICRO:
            bare_ones = [c for c in self.found if c.role is Role.BATCH and c.dest != micro.dest]
            totals += [c for c in bare_ones if self._is_total(c, micro)]
        first, rest = cand.choose(totals)
        if first is None:
            first = self._unset_total(micro, totals)
        elif any(c.number != first.number for c in rest):
            what = f"which is the global batch is not clear: {first.name} or {rest[0].name}"
            raise _NoPlanError(what, "name them", micro.name)
        elif not first.explicit and not self.source.divides(_last(first), _last(micro)):
            first = None  # declared, not given, and used for something else
        if first is None and self.row is not None and self.row.derived:
            what = "no global batch is set, and it would follow from the micro-batch"
            raise _NoPlanError(what, "set it beside the micro-batch", micro.name)
        return first

    def _unset_total(self, micro: Candidate, totals: Sequence[Candidate]) -> Candidate | None:
        """A total without a number (-1, auto) that the source is seen to divide, and that does not follow from the micro-batch."""
        first = next((c for c in totals if self.source.divides(_last(c), _last(micro))), None)
        if first is not None and self._made_from(first, micro):
            what = f"{first.name} is not set, and follows from {micro.name}"
            raise _NoPlanError(what, f"set {first.name}", micro.name)
        return first

    def _is_total(self, batch: Candidate, micro: Candidate) -> bool:
        """Whether a bare batch beside a micro-batch holds the whole: the source divides it, or samples of it are cut."""
        big, small = _last(batch), _last(micro)
        if batch.number is not None and micro.number is not None and batch.number < micro.number:
            return False
        return (
            self.source.divides(big, small)
            or (small, big) in self.source.fallbacks
            or self._named_micro(batch, micro)
        )

    def _named_micro(self, batch: Candidate, micro: Candidate) -> bool:
        """``batch_size`` beside ``micro_batch_size``: names that differ in that one word are the whole and its part."""
        words = set(words_of(micro.name))
        return bool(words & {"micro"}) and set(words_of(batch.name)) == words - {"micro"}

    def _made_from(self, total: Candidate, micro: Candidate) -> bool:
        return any(
            _last(micro) in self.source.behind(self.source.aliases.get(n, ()))
            for n in self.source.same_as(_last(total))
        )

    def _all_three(self) -> bool:
        """Whether an accumulation is given beside micro-batch and total."""
        return any(c.role is Role.ACCUMULATION and c.explicit and not c.framework for c in self.found)

    def _accumulation(self, micro: Candidate) -> Candidate | None:
        options = [c for c in self.found if c.role is Role.ACCUMULATION]
        own = [c for c in options if not c.framework and not self._is_field(c)]
        if self.told.accumulation is not None:
            return self._named_accumulation(self.told.accumulation, own)
        first, rest = cand.choose(own)
        if first is None:
            first = self._paired_by_convention(micro) or self._unset_accumulation(own, micro)
            if first is None:
                first, rest = cand.choose(c for c in options if c.framework)
            return first if not rest else None
        if rest and not all(c.number == first.number and c.explicit and first.explicit for c in rest):
            what = f"which is the accumulation is not clear: {first.name} or {rest[0].name}"
            raise _NoPlanError(what, f"--accumulation-knob {first.name}", micro.name)
        return self._require_used(first, micro)

    def _is_field(self, candidate: Candidate) -> bool:
        """A dataclass's field in place of a framework's own default: which class counts is looked at there."""
        flag = self.source.flag(candidate.name) if candidate.given is Given.DECLARED else None
        return flag is not None and flag.owner != "" and self.row is not None and self.row.name == HF

    def _named_accumulation(self, name: str, own: Sequence[Candidate]) -> Candidate:
        named = next((c for c in own if c.name == name), None)
        return named or Candidate(name, Role.ACCUMULATION, 1, Given.COMMAND_LINE, "named", plain_name(name))

    def _unset_accumulation(self, own: Sequence[Candidate], micro: Candidate) -> Candidate | None:
        if not own:
            return None
        fallback = self._literal_default(own[0])
        if fallback is None:
            what = f"the present value of {own[0].name} is not known"
            raise _NoPlanError(what, f"give {own[0].name} a number", micro.name)
        return fallback

    def _require_used(self, steps: Candidate, micro: Candidate) -> Candidate:
        """The flag is read somewhere: one that is declared and never used would shrink the global batch."""
        flag = self.source.flag(steps.name) if steps.name.startswith("-") else None
        if flag is None or flag.owner or not self.source.files:
            return steps
        trains = "backward" in self.source.used  # else the loop is elsewhere, and so may be the use
        if trains and not self.source.uses(flag.dest):
            raise _NoPlanError(
                f"{steps.name} is declared in {flag.where} and used nowhere: {_NO_ACCUMULATION}",
                "--allow-smaller-global",
                micro.name,
            )
        return steps

    def _paired_by_convention(self, micro: Candidate) -> Candidate | None:
        row = self.row
        if row is None or row.accumulation is None or not self._convention_fits(row, micro):
            return None
        default = self._overridden_default(
            plain_name(row.accumulation).rpartition(".")[2], row.accumulation_default, micro
        )
        name = row.accumulation
        if self.where.lone_config is not None:
            name = f"{self.where.lone_config}#{NEW}{plain_name(row.accumulation)}"
        elif (
            micro.name.startswith("--") is False
            and place_of(micro.name) is Place.FILE
            and not name.startswith("--trainer")
            and row.name != "espnet"
        ):
            file, _, key = micro.name.partition("#")
            prefix = key.rpartition(".")[0]
            name = f"{file}#{NEW}{prefix + '.' if prefix else ''}{plain_name(row.accumulation).rpartition('.')[2]}"
        return Candidate(
            name,
            Role.ACCUMULATION,
            default,
            Given.CONVENTION,
            f"default of {row.name}",
            plain_name(row.accumulation),
        )

    def _convention_fits(self, row: Convention, micro: Candidate) -> bool:
        """HF's pair belongs to HF's micro-batch, and not where the script makes the arguments itself."""
        if row.name != HF:
            return True
        return _last(micro) in {"per_device_train_batch_size", "per_gpu_train_batch_size"}

    def _overridden_default(self, plain: str, default: int, micro: Candidate) -> int:
        """What a dataclass of the source says in place of the framework's default; several that disagree are a refusal."""
        classes = {
            n.name: {leaf(base) or "" for base in n.bases}
            for file in self.source.files
            for n in ast.walk(file.tree)
            if isinstance(n, ast.ClassDef)
        }
        own = {f.owner: as_number(f.default) for f in self.source.flags if f.dest == plain and f.owner}
        settled = {owner for owner in own if owner in classes}
        if not settled:
            return default
        parsed = {
            name
            for name, bases in classes.items()
            if any(b.endswith(("TrainingArguments", "Config")) for b in bases)
        }
        named = parsed & self._parsed_classes()
        numbers = {self._inherited(name, classes, own, default) for name in named or (parsed | settled)}
        if len(numbers) == 1 and (number := numbers.pop()) is not None:
            return number
        raise _NoPlanError(
            f"what {plain} is by default differs between classes of the source",
            "give it on the command line",
            micro.name,
        )

    def _parsed_classes(self) -> set[str]:
        """Names that are handed to a parser of dataclasses."""
        found: set[str] = set()
        for file in self.source.files:
            for node in ast.walk(file.tree):
                if isinstance(node, ast.Call) and called(node).endswith("Parser"):
                    found |= leaves(node) if not node.args else {n for a in node.args for n in leaves(a)}
        return found

    def _inherited(
        self, name: str, classes: Mapping[str, set[str]], own: Mapping[str, int | None], default: int
    ) -> int | None:
        seen: set[str] = set()
        open_ = [name]
        while open_:
            here = open_.pop(0)
            if here in own:
                return own[here]
            seen.add(here)
            open_ += [base for base in classes.get(here, ()) if base not in seen]
        return default

    def _literal_default(self, unset: Candidate) -> Candidate | None:
        """A default in a config of Python (yacs): ``_C.TRAIN.ACCUMULATION_STEPS = 1``, if there is one alone."""
        values = self.source.literals.get(_last(unset), ())
        numbers = {as_number(value) for value, _ in values}
        if len(numbers) != 1 or None in numbers:
            return None
        return replace(unset, value=values[0][0], where=f"default in {values[0][1]}")

    # what they make up

    def _no_accumulation(self, micro: Candidate) -> _NoPlanError:
        named = f"no gradient accumulation beside {micro.name}"
        if not self.source.files and not micro.explicit:
            return _NoPlanError(
                f"{named}: the source of {self.where.program or 'the script'} could not be read",
                "name it with --accumulation-knob",
                micro.name,
            )
        fixed = next(
            (p for p in self.source.passed if role_of(p.keyword) is Role.ACCUMULATION and as_number(p.value)),
            None,
        )
        if fixed is not None:
            return _NoPlanError(
                f"the accumulation is written in {fixed.where} ({fixed.keyword}={fixed.value})",
                f"change it in {fixed.where.rpartition(':')[0]}",
                micro.name,
            )
        return _NoPlanError(f"{named}: {_NO_ACCUMULATION}", "--allow-smaller-global", micro.name)

    def _derived(self, micro: Candidate, total: Candidate) -> Knobs:
        self._require_same_rate(micro, {_last(total)})
        return Knobs(
            batch=micro.name,
            batch_scope=KnobScope.PER_RANK,
            global_batch=total.name,
            same=self._duplicates(micro, None, total),
            found=self._numbers(micro, None, total),
        )

    def _two_factors(self, micro: Candidate, steps: Candidate, total: Candidate | None) -> Knobs:
        big, small = _last(micro), _last(steps)
        if self.source.divides(big, small, outright=True) or micro.role is Role.TOTAL:
            return self._cut(micro, steps)
        if self.source.divides(big, small):
            raise _NoPlanError(
                f"{micro.name} may be divided by {steps.name} in the source",
                "--batch-scope global, or per_rank",
                micro.name,
            )
        if (
            not self.source.files
            and micro.role not in {Role.MICRO, Role.NODE}
            and not self._by_known_names(micro, steps)
        ):
            raise _NoPlanError(
                f"what {micro.name} counts is not known: the source of {self.where.program or 'the script'} could not be read",
                "say --batch-scope per_rank, per_node or global", micro.name,
            )  # fmt: skip
        scope = self._scope(micro)
        counts = (
            self.told.counts if self.told.counts is not AccumulationCounts.PER_RANK else self._counts(small)
        )
        if total is not None:
            self._require_product(micro, steps, total, counts)
        self._require_same_rate(micro, {small})
        self._require_accepted(steps)
        return Knobs(
            batch=micro.name,
            batch_scope=scope,
            accumulation=steps.name,
            paired=True,
            counts=counts,
            same=self._duplicates(micro, steps, total),
            found=self._numbers(micro, steps, total),
        )

    def _by_known_names(self, micro: Candidate, steps: Candidate) -> bool:
        return (
            self.row is not None
            or (micro.framework != "" and steps.framework != "")
            or self.told.batch_scope is not KnobScope.UNKNOWN
        )

    def _cut(self, micro: Candidate, steps: Candidate) -> Knobs:
        """The source divides the batch by the accumulation: the batch stays, and is cut into more pieces."""
        if micro.number is None or steps.number is None:
            raise _NoPlanError(
                f"{micro.name} {micro.value} and {steps.name} {steps.value} are no numbers",
                "",
                micro.name,
            )
        return Knobs(
            batch=micro.name, batch_scope=KnobScope.GLOBAL, accumulation=steps.name, found=self._numbers(micro, steps, None)
        )  # fmt: skip

    def _scope(self, micro: Candidate) -> KnobScope:
        if self.told.batch_scope is not KnobScope.UNKNOWN:
            return self.told.batch_scope
        scope = scope_of(micro.name, self.source)
        if scope is not KnobScope.UNKNOWN:
            return scope
        names = self.source.same_as(_last(micro))
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
            raise _NoPlanError(
                f"{micro.name} {a} × {steps.name} {b} × {world or '?'} ranks is not {total.name} {c}",
                "leave one of the three out",
                micro.name,
            )

    def _require_accepted(self, steps: Candidate) -> None:
        """The source's own conditions let the accumulation be larger."""
        if steps.number is None:
            return
        given = {_plain_last(s.name): s.value for s in settings_of(self.args[self.where.args_at :])}
        why = refuses(
            self.source,
            plain_name(steps.dest).rpartition(".")[2],
            steps.number,
            2 * steps.number,
            given,
            self.world,
        )
        if why is not None:
            raise _NoPlanError(
                f"{steps.name} {2 * steps.number} would be refused by the script: {why}", "", None
            )

    def _require_same_rate(self, micro: Candidate, others: set[str]) -> None:
        """The learning rate must not be scaled by the micro-batch without what makes up for it."""
        for name in ("lr", "learning_rate"):
            behind = self.source.aliases.get(name, frozenset())
            if _last(micro) in behind and not (self.source.behind(behind) & {o.lower() for o in others}):
                raise _NoPlanError(f"the learning rate is scaled by {micro.name} alone", "", micro.name)

    def _duplicates(
        self, micro: Candidate, steps: Candidate | None, total: Candidate | None
    ) -> tuple[tuple[str, str], ...]:
        """The other places that hold the same numbers: DeepSpeed's JSON, accelerate's config, a config beside a flag."""
        same: list[tuple[str, str]] = []
        for role, chosen in (("micro", micro), ("accumulation", steps), ("total", total)):
            wanted = {
                "micro": {Role.MICRO, Role.BATCH},
                "accumulation": {Role.ACCUMULATION},
                "total": {Role.TOTAL},
            }[role]
            for other in self.found:
                if chosen is not None and other.dest == chosen.dest:
                    continue
                if (
                    other.role not in wanted
                    or other.number is None
                    or not (
                        other.explicit
                        and (other.framework or (chosen is not None and _last(other) == _last(chosen)))
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
            raise _NoPlanError(
                f"{other.name} holds {other.number}, and what it pairs with is derived",
                f"set it to auto in {file}",
                micro.name,
            )
        if other.number != chosen.number:
            raise _NoPlanError(
                f"{chosen.name} is {chosen.value} and {other.name} is {other.number}: which one counts is not known",
                "make them equal",
                micro.name,
            )
        if file in self.where.fixed:
            raise _NoPlanError(
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
            raise _NoPlanError(what, f"make {file} agree", micro.name)

    def _numbers(
        self, micro: Candidate, steps: Candidate | None, total: Candidate | None
    ) -> tuple[FoundNumber, ...]:
        three = (("micro", micro), ("accumulation", steps), ("total", total))
        return tuple(FoundNumber(what, c.number, c.where) for what, c in three if c is not None)


def _last(candidate: Candidate) -> str:
    """The last key of a candidate's name, as the source spells it."""
    return plain_name(candidate.dest).rpartition(".")[2].rpartition(":")[2].lower()


def _plain_last(name: str) -> str:
    return plain_name(name).rpartition(".")[2]


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

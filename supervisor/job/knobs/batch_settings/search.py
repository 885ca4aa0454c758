"""Which settings are meant: the micro-batch, the total and the accumulation among all candidates, or a refusal that says why not."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.config.edit import NEW, Scalar
from supervisor.job.knobs.batch_settings import candidates as cand
from supervisor.job.knobs.batch_settings.candidates import Candidate, Given, as_number, plain_last, plain_name
from supervisor.job.knobs.batch_settings.names import Role, is_size_of_training, role_of, words_of
from supervisor.job.knobs.batch_settings.refusals import (
    EITHER_SCOPE,
    NO_ACCUMULATION,
    SMALLER_GLOBAL,
    NoPlanError,
)
from supervisor.job.knobs.batch_settings.set_batch import number_of
from supervisor.job.knobs.batch_settings.written import written_batch, written_in_script
from supervisor.job.knobs.conventions import HF, Convention
from supervisor.job.knobs.places import Place, Places, place_of
from supervisor.job.knobs.source.conditions import only_counted
from supervisor.job.knobs.source.config_keys import section_of_framework, steps_by_itself
from supervisor.job.knobs.source.declarations import literal
from supervisor.job.knobs.source.read_source import ScriptSource, called, leaf, leaves
from supervisor.job.spec import Knobs, KnobScope, Unread

_OFF: Final = frozenset({"false", "no", "0", "none", ""})
_BATCHES: Final = frozenset({"batch", "batching", "batches", "bsz", "sampler"})
# `--max_num_tokens`, `--max-frames`: what a dynamic batch is filled up to; `--max_new_tokens` is a length, and no batch.
_UNITS: Final = frozenset({"frame", "token", "second", "dynamic", "bin", "numel"})
_FILLED_WITH: Final = frozenset({"tokens", "frames", "duration", "seconds", "bins"})
_FILLED: Final = _FILLED_WITH | {"max", "num", "batch", "train", "per", "gpu", "in", "total"}
# Of one script rarely more than two settings are in question; a card has as many keys.
MOST_CHOICES: Final = 3


@dataclass(frozen=True, slots=True)
class Search:
    """One search among the candidates of a job."""

    args: Sequence[str]
    where: Places
    row: Convention | None
    found: Sequence[Candidate]
    given: Knobs

    @property
    def source(self) -> ScriptSource:
        """The script's source."""
        return self.where.source

    def require_safe(self) -> None:
        """Refuses settings that make the framework's training depend on the micro-batch."""
        for name, why in self.row.unsafe if self.row is not None else ():
            value = self._value_anywhere(name)
            if value is not None and str(value).lower() not in _OFF:
                raise NoPlanError(why)

    def require_counted(self, micro: Candidate) -> None:
        """Refuses a micro-batch where the script fills its batches up to a number of tokens, frames or seconds."""
        if self.row is not None and self.row.selector is not None:
            return
        for name, value in self._everything():
            words, text = set(words_of(name)), str(value).lower()
            if words >= {"batch", "type"} and text.rstrip("s") in _UNITS:
                raise NoPlanError(f"batches are not counted in samples ({name} is {text})", "", micro.name)
            if "dynamic" in words and words & _BATCHES and text not in _OFF:
                raise NoPlanError(f"batches are dynamic ({name})", "--batch-knob FLAG", micro.name)
        if micro.explicit:
            return
        for setting in settings_of(self.args[self.where.args_at :]):
            words = set(words_of(setting.name))
            filled = words & _FILLED_WITH and "max" in words and words <= _FILLED
            if filled and as_number(setting.value):
                what = f"{setting.name} is given, and may fill the batches in place of {micro.name}"
                raise _which(what, Unread.MICRO, (setting.name, micro.name), micro.name)

    def _everything(self) -> Iterator[tuple[str, Scalar]]:
        """Every setting with the value that counts: the command line before configs."""
        seen: set[str] = set()
        for setting in settings_of(self.args[self.where.args_at :]):
            seen.add(plain_name(setting.name))
            yield setting.name, True if setting.value is None else setting.value
        for file, values in self.where.configs.items():
            for key, value in values.items():
                if key not in seen:
                    yield f"{file}#{key}", value
        for key, (value, _) in self.where.settled.items():
            if plain_name(key) not in seen:
                yield key, value

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

    def micro(self) -> Candidate:
        """The setting that holds the micro-batch."""
        own = [c for c in self.found if not c.framework]
        selected = self._selected(own)
        if selected is not None:
            return selected
        fallback = self._standing_in(own) or self._divides_total(own)
        if fallback is not None:
            return fallback
        first, rest = self._micro_or_bare(own)
        if first is None:
            first, rest = cand.choose(c for c in self.found if c.framework and c.role is Role.MICRO)
        if first is None:
            first = self._whole(own) or self._whole(self.found) or self._micro_by_convention(own)
        if first is None:
            raise self._no_batch(own)
        if (whole := self._cut_with_shares([first, *rest])) is not None:
            return whole
        self._require_one(first, rest)
        return first

    def _cut_with_shares(self, batches: Sequence[Candidate]) -> Candidate | None:
        """The batch that is cut into even pieces, where each other one (that of the first GPU) is divided by their number too."""
        for steps in (c for c in self.found if c.role is Role.ACCUMULATION):
            part = last_key(steps)
            whole = [c for c in batches if self.source.cuts_evenly(last_key(c), part)]
            others = [c for c in batches if c not in whole]
            if len(whole) == 1 and all(self.source.divides(last_key(c), part, outright=True) for c in others):
                return whole[0]
        return None

    def _micro_by_convention(self, own: Sequence[Candidate]) -> Candidate | None:
        """The framework's default, where nothing else is a batch, the framework's own class is parsed and the source never sets the field."""
        row = self.row
        if row is None or row.micro_default is None:
            return None
        name, value = row.micro_default
        parsed = self._parsed_classes()
        bases = {base for n, found in self.source.bases().items() if n in parsed for base in found}
        set_in_source = name in self.source.literals or name in self.source.computed
        if not set(row.micro_classes) & (parsed | bases) or any(c.role is not Role.ACCUMULATION for c in own):
            return None
        if (
            set_in_source
            or any(p.keyword == name for p in self.source.passed)
            or written_in_script(self.source) is not None
        ):
            return None
        lone = self.where.lone_config
        shown = f"{lone}#{NEW}{name}" if lone is not None else f"--{name}"
        return Candidate(shown, Role.MICRO, value, Given.CONVENTION, f"default of {row.name}", name)

    def _whole(self, own: Sequence[Candidate]) -> Candidate | None:
        """A total alone, which the accumulation cuts: as its name says where no source is there or a framework divides, else as the source shows."""
        total, rest = cand.choose(c for c in own if c.role is Role.TOTAL and c.explicit)
        steps, _ = cand.choose(c for c in own if c.role is Role.ACCUMULATION and c.explicit)
        if total is None or rest or steps is None:
            return None
        framework = total.framework != "" and total.framework == steps.framework
        cuts = framework or not self.source.files or self.source.divides(last_key(total), last_key(steps))
        if not cuts and self.given.batch_scope is KnobScope.UNKNOWN:
            return None
        per_rank = not cuts and self.given.batch_scope is not KnobScope.GLOBAL
        return replace(total, role=Role.BATCH) if per_rank else total

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
            raise _which(what, Unread.MICRO, (plain.name, first.name), plain.name)
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
            raise NoPlanError(
                f"{name} is not said, and it decides which setting is the micro-batch", "--batch-knob FLAG"
            )
        found = next(
            (c for c in own if c.dest.rpartition(".")[2] == wanted and c.explicit and c.number), None
        )
        if found is None:
            raise NoPlanError(f"{name} is {value}, and no {wanted} is set")
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

    def _divides_total(self, own: Sequence[Candidate]) -> Candidate | None:
        """The one that an interpolated accumulation is made from: ``${eval:${train.total} // ${data.batch_size}}``."""
        follows = {key for c in own if c.role is Role.ACCUMULATION for key in c.follows}
        batches = {Role.MICRO, Role.BATCH, Role.NODE}
        found = [c for c in own if c.role in batches and c.dest in follows and c.number]
        return found[0] if len(found) == 1 else None

    def _require_one(self, first: Candidate, rest: Sequence[Candidate]) -> None:
        for other in rest:
            if self._is_of_something_else(other, first):
                continue
            if other.number != first.number or not (first.explicit and other.explicit):
                names = f"{first.name} ({first.value}) and {other.name} ({other.value})"
                what = f"which is the micro-batch is not clear: {names}"
                choices = (first.name, *(c.name for c in rest))
                raise _which(what, Unread.MICRO, choices, first.name)

    def _is_of_something_else(self, other: Candidate, first: Candidate) -> bool:
        """Whether a declared ``--sophia_bs`` beside a plain ``--batch_size`` that goes to the data is seen to go to none."""
        words = words_of(other.name)
        named = words[-1:] in (["bs"], ["bsz"]) and not {"train", "training"} & set(words) and len(words) > 1
        plain = words_of(first.name) in (["batch", "size"], ["train", "batch", "size"])
        if other.explicit or not (named and plain):
            return False
        to_data = {p.leaf for p in self.source.passed if role_of(f"--{p.keyword}") is not None}
        to_data |= self.source.undivided
        return last_key(first) in to_data and last_key(other) not in to_data

    def _no_batch(self, own: Sequence[Candidate]) -> NoPlanError:
        unset = next(
            (c for c in own if c.role is not Role.ACCUMULATION and c.explicit and not c.number), None
        )
        if unset is not None:
            return NoPlanError(
                f"{unset.name} is {unset.value!r}, which is no number", "give it a number", unset.name
            )
        total, _ = cand.choose(c for c in own if c.role is Role.TOTAL)
        if total is not None:
            return self._total_alone(total)
        written = written_batch(self.source)
        if written is not None:
            return written
        if not self.source.files and not self.where.configs:
            return NoPlanError(
                "the script's batch flag is not known: its source could not be read",
                "name it with --batch-knob",
            )
        return NoPlanError("the script's batch flag is not known", "name it with --batch-knob")

    def _total_alone(self, total: Candidate) -> NoPlanError:
        steps, _ = cand.choose(c for c in self.found if c.role is Role.ACCUMULATION)
        if steps is None:
            return self.no_accumulation(total)
        return NoPlanError(
            f"what {total.name} counts beside {steps.name} is not clear",
            EITHER_SCOPE,
            total.name,
            Unread.SCOPE,
        )

    def no_accumulation(self, batch: Candidate) -> NoPlanError:
        """The refusal where no setting accumulates beside a batch: with a second batch setting the script may do so by itself."""
        flag = self.source.flag(batch.name)
        names = [name for name, value in self._everything() if as_number(value)]
        names += [max(f.names, key=len) for f in self.source.flags if flag and f.file == flag.file]
        sizes = (n for n in names if is_size_of_training(n) and plain_last(n).lower() != last_key(batch))
        if (other := next(sizes, None)) is None:
            why = f"no gradient accumulation beside {batch.name}: {NO_ACCUMULATION}"
            return NoPlanError(why, SMALLER_GLOBAL, batch.name)
        part = other if batch.role is Role.TOTAL else batch.name
        knob = f"--batch-knob {part} --batch-scope per_rank, if each rank takes that many samples at once"
        return NoPlanError(
            f"the script may compute its accumulation from {batch.name} and {other}",
            f"set {part} yourself" if batch.role is Role.MICRO else knob,
        )

    def total(self, micro: Candidate) -> Candidate | None:
        """The setting that holds the global batch beside a micro-batch, with a value or with proof in the source."""
        totals = [
            c
            for c in self.found
            if c.role is Role.TOTAL and c.framework in {"", micro.framework} and c.dest != micro.dest
        ]
        if micro.role is Role.MICRO:
            bare_ones = [c for c in self.found if c.role is Role.BATCH and c.dest != micro.dest]
            totals += [c for c in bare_ones if self._is_total(c, micro)]
        first, rest = cand.choose(totals)
        if first is None:
            first = self._unset_total(micro, totals)
        elif any(c.number != first.number for c in rest):
            what = f"which is the global batch is not clear: {first.name} or {rest[0].name}"
            raise NoPlanError(what, "leave one of them out", micro.name)
        elif not first.explicit and not self.source.divides(last_key(first), last_key(micro)):
            first = None  # declared, not given, and used for something else
        if first is None:
            self._require_accumulation(micro)
        return first

    def _require_accumulation(self, micro: Candidate) -> None:
        declared = any(c.role is Role.ACCUMULATION for c in self.found)
        if self.row is not None and self.row.derived and not declared:
            what = "no global batch is set, and it would follow from the micro-batch"
            raise NoPlanError(what, "set it beside the micro-batch", micro.name)

    def _unset_total(self, micro: Candidate, totals: Sequence[Candidate]) -> Candidate | None:
        """A total without a number (-1, auto) that the source is seen to divide, and that does not follow from the micro-batch."""
        first = next((c for c in totals if self.source.divides(last_key(c), last_key(micro))), None)
        if first is not None and self._made_from(first, micro):
            what = f"{first.name} is not set, and follows from {micro.name}"
            raise NoPlanError(what, f"set {first.name}", micro.name)
        return first

    def _is_total(self, batch: Candidate, micro: Candidate) -> bool:
        """Whether a bare batch beside a micro-batch holds the whole: the source divides it, or samples of it are cut."""
        big, small = last_key(batch), last_key(micro)
        if batch.number is not None and micro.number is not None and batch.number < micro.number:
            return False
        return (
            self.source.divides(big, small)
            or (small, big) in self.source.fallbacks
            or small in self.source.strides
            or self._named_micro(batch, micro)
        )

    def _named_micro(self, batch: Candidate, micro: Candidate) -> bool:
        """``batch_size`` beside ``micro_batch_size``: names that differ in that one word are the whole and its part."""
        words = set(words_of(micro.name))
        return bool(words & {"micro"}) and set(words_of(batch.name)) == words - {"micro"}

    def _made_from(self, total: Candidate, micro: Candidate) -> bool:
        return any(
            last_key(micro) in self.source.behind(self.source.aliases.get(n, ()))
            for n in self.source.same_as(last_key(total))
        )

    def all_three(self, micro: Candidate) -> bool:
        """Whether an accumulation is given beside micro-batch and total, and does not follow from them."""
        places = {"", micro.framework}
        return any(
            c.role is Role.ACCUMULATION
            and c.explicit
            and c.framework in places
            and micro.dest not in c.follows
            for c in self.found
        )

    def accumulation(self, micro: Candidate) -> Candidate | None:
        """The setting that holds the accumulation; None where there is none."""
        options = [c for c in self.found if c.role is Role.ACCUMULATION]
        own = [c for c in options if not c.framework and not self._is_field(c, micro)]
        if self.given.accumulation is not None:
            return self._named_accumulation(self.given.accumulation, own)
        first, rest = cand.choose(own)
        if first is None:
            first = (
                self._paired_by_convention(micro)
                or self._unset_accumulation(own, micro)
                or self._of_framework()
            )
            if first is None:
                first, rest = cand.choose(c for c in options if c.framework)
            return first if not rest else None
        first, rest = _by_gradient(first, rest)
        if rest and not all(c.number == first.number and c.explicit and first.explicit for c in rest):
            what = f"which is the accumulation is not clear: {first.name} or {rest[0].name}"
            raise _which(what, Unread.ACCUMULATION, (first.name, *(c.name for c in rest)), micro.name)
        return self._require_used(first, micro)

    def _is_field(self, candidate: Candidate, micro: Candidate) -> bool:
        """A dataclass's field in place of a framework's own default: which class counts is looked at there, unless the batch is a field of it too."""
        flag = self.source.flag(candidate.name) if candidate.given is Given.DECLARED else None
        if flag is None or not flag.owner or self.row is None or self.row.name != HF:
            return False
        batch = self.source.flag(micro.name)
        return self._convention_fits(self.row, micro) or batch is None or batch.owner != flag.owner

    def _named_accumulation(self, name: str, own: Sequence[Candidate]) -> Candidate:
        named = next((c for c in own if c.name == name), None)
        now = number_of(self.args, name, self.where)
        return named or Candidate(name, Role.ACCUMULATION, now, Given.COMMAND_LINE, "named", plain_name(name))

    def _unset_accumulation(self, own: Sequence[Candidate], micro: Candidate) -> Candidate | None:
        if not own:
            return None
        fallback = self._literal_default(own[0])
        if fallback is None or fallback.number is None:
            what = f"the present value of {own[0].name} is not known"
            raise NoPlanError(what, f"give {own[0].name} a number", micro.name)
        return fallback

    def _require_used(self, steps: Candidate, micro: Candidate) -> Candidate:
        """The setting is used to accumulate: the global batch would shrink by one that is not."""
        if last_key(steps) == "accumulate_grad_batches" and steps_by_itself(self.source, alone=True):
            what = f"the module steps its optimizers itself (automatic_optimization = False), so Lightning refuses {steps.name}"
            raise NoPlanError(f"{what}: {NO_ACCUMULATION}", SMALLER_GLOBAL, micro.name)
        given = {plain_last(s.name): s.value for s in settings_of(self.args[self.where.args_at :])}
        reckoned = only_counted(self.source, last_key(steps), given)
        if reckoned is not None:
            raise NoPlanError(
                f"with these arguments the loop does not accumulate by {steps.name} (read in {reckoned}): {NO_ACCUMULATION}",
                SMALLER_GLOBAL,
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
        elif row.beside and place_of(micro.name) is Place.FILE:
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

    def _of_framework(self) -> Candidate | None:
        """A framework's accumulation as a key of the section that its Trainer or its arguments are made of."""
        for prefix, keys in self.where.open_configs():
            own = section_of_framework(self.source, keys)
            if own is not None:
                key = ".".join(own)
                return Candidate(
                    prefix + key, Role.ACCUMULATION, 1, Given.CONVENTION, "default of the framework", key
                )
        return None

    def _convention_fits(self, row: Convention, micro: Candidate) -> bool:
        """HF's pair belongs to HF's micro-batch, and not where the script makes the arguments itself."""
        if row.name != HF:
            return True
        return last_key(micro) in {"per_device_train_batch_size", "per_gpu_train_batch_size"}

    def _overridden_default(self, plain: str, default: int, micro: Candidate) -> int:
        """What a dataclass of the source says in place of the framework's default; several that disagree are a refusal."""
        classes = self.source.bases()
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
        raise NoPlanError(
            f"what {plain} is by default differs between classes of the source",
            "give it on the command line",
            micro.name,
        )

    def _parsed_classes(self) -> set[str]:
        """Names that are handed to a parser of dataclasses."""
        found: set[str] = set()
        for file in self.source.files:
            for node in file.calls:
                if called(node).endswith("Parser"):
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
        """A default in a config of Python (yacs): ``_C.TRAIN.ACCUMULATION_STEPS = 1``, if there is one alone.

        Zero is one micro-batch where the source accumulates only above 1.
        """
        values = self.source.literals.get(last_key(unset), ())
        if unset.value is not None:
            values = ((unset.value, unset.where.removeprefix("default in ")),)
        if len({value for value, _ in values}) != 1:
            return None
        value, where = values[0]
        if value == 0 and self._accumulates_above_one(last_key(unset)):
            return replace(unset, value=1, where=f"default in {where}: {value} is 1")
        return replace(unset, value=value, where=f"default in {where}")

    def _accumulates_above_one(self, name: str) -> bool:
        return any(
            isinstance(node, ast.Compare)
            and (leaf(node.left) or "").lower() == name
            and isinstance(node.ops[0], ast.Gt)
            and literal(node.comparators[0]) == 1
            for file in self.source.files
            for node in file.nodes
        )


def _by_gradient(first: Candidate, rest: list[Candidate]) -> tuple[Candidate, list[Candidate]]:
    """Of several accumulations the one that names the gradient, where each other is 1: it divides no batch and multiplies none."""
    both = [first, *rest]
    named = [c for c in both if set(words_of(c.name)) & {"grad", "gradient", "gradients"}]
    if len(named) == 1 and all(c.number == 1 for c in both if c is not named[0]):
        return named[0], []
    return first, rest


def _which(why: str, unread: Unread, names: Sequence[str], batch: str) -> NoPlanError:
    """A refusal because one of several settings is meant."""
    flag = "--batch-knob" if unread is Unread.MICRO else "--accumulation-knob"
    choices = tuple(dict.fromkeys(names))
    return NoPlanError(
        why, ", or ".join(f"{flag} {name}" for name in choices), batch, unread, choices[:MOST_CHOICES]
    )


def last_key(candidate: Candidate) -> str:
    """The last key of a candidate's name, as the source spells it."""
    return plain_name(candidate.dest).rpartition(".")[2].rpartition(":")[2].lower()

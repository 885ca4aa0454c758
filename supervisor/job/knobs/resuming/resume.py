"""How a script resumes from its newest checkpoint: by itself, by a flag, or not at all, as its source shows.

A script that looks for its newest checkpoint counts as resuming by itself only where the conditions around that hold for this
command line. A flag counts with a value where the source compares with it, else as one that takes a checkpoint's path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from supervisor.job.arguments.assignments import Setting, settings_of, value_of
from supervisor.job.config.edit import NEW
from supervisor.job.knobs.batch_settings.candidates import plain_last, plain_name
from supervisor.job.knobs.batch_settings.names import words_of
from supervisor.job.knobs.conventions import HF, Convention
from supervisor.job.knobs.places import Places, config_file, is_argument
from supervisor.job.knobs.resuming.checkpoint_flags import (
    LOADED,
    find_starts,
    heeds_path,
    is_auto,
    is_latest_switch,
    is_level_of_training,
    is_open,
    is_output,
    takes_path,
)
from supervisor.job.knobs.resuming.loaded_state import Form, LoadedState, Use
from supervisor.job.knobs.resuming.newest_search import NOT_KEPT, SETTINGS, holds, searches
from supervisor.job.knobs.resuming.step_flags import step_flag
from supervisor.job.knobs.source.conditions import known_values
from supervisor.job.knobs.source.config_keys import absent_keys
from supervisor.job.knobs.source.read_source import (
    ScriptFlag,
    ScriptSource,
    called,
    leaf,
)
from supervisor.job.spec import NAMED, NAMED_UNSEEN, Knobs

_RESUME_WORDS: Final = frozenset(
    {
        "resume",
        "resume_from",
        "resume_from_checkpoint",
        "from_resume",
        "auto_resume",
        "resume_training",
        "load_enable",
        "resume_latest",
        "resume_if_exists",
        "ckpt_load_enable",
    }
)
# Values by which scripts say "the newest checkpoint, if there is one".
_NEWEST: Final = frozenset({"auto", "latest", "last", "true", "newest", "must", "allow"})
_OFF: Final = frozenset({"false", "no", "0", "off", "none", ""})
_ANY_WAY: Final = re.compile(
    r"resume|restore|load_\w*(state|checkpoint|ckpt|params)|torch\.load|load_file|continue_from|ckpt_path|(fabric|dcp)\.load"
)
# Names of settings that may name what a switch resumes from.
_HOLDS_PATH: Final = re.compile(
    r"ckpt|checkpoint|snapshot|restore|load|continue|state|resume|pretrain|weights|init|path", re.IGNORECASE
)
_HF_OFF: Final[Mapping[str, str]] = {
    "do_train": "false",
    "overwrite_output_dir": "false",
    "resume_from_checkpoint": "none",
}
_SAVES: Final = re.compile(r"(enable_|do_)?save_(ckpt|checkpoint)s?|enable_checkpointing")
# Names that may be those of any file or model.
_FILES: Final = re.compile(
    r"(?<!data_)(path|file|model|weights?|init|from|restart|warm_?start)", re.IGNORECASE
)
# What stands for the path of the newest checkpoint in a declared flag's value (``--resume=PATH``).
_PATH: Final = frozenset({"path", "{path}", "<path>"})
# How far from the script a search for the newest checkpoint is believed to be on its way.
_DEPTH: Final = 3


def find_resume(
    args: Sequence[str], where: Places, row: Convention | None, given: Knobs, knobs: Knobs
) -> Knobs:
    """`knobs` with what is known of going on from a checkpoint.

    Args:
        args: the command line.
        where: configs, source, environment.
        row: the framework's conventions.
        given: what a person declared.
        knobs: the batch's knobs.
    """
    look = _Look(args, where, row)
    knobs = replace(knobs, framework=row.name if row is not None else "")
    if given.resume:
        return look.declared(knobs, given.resume, given.resume_value)
    itself = "named (--self-resuming)" if given.self_resuming else look.by_itself()
    moved = look.moved_by(knobs) if itself is not None and not given.self_resuming else None
    if itself is not None and moved is None:
        return replace(knobs, self_resuming=True, resume_path=look.heeded_path(), resumes=itself)
    name, value, why = look.newest_flag() if moved is None else (None, "auto", "")
    path = None
    if name is None:
        path, why = look.path_flag()
    if name is not None and look.in_new_folder():
        name, why = None, "Hydra makes a new folder at each start (hydra.run.dir)"
    start = name or path
    if start is not None and knobs.batch is not None:
        lost = look.replaced_options(start, plain_last(knobs.batch))
        name, path, why = (None, None, lost) if lost else (name, path, why)
    why = why if start is not None else moved or why
    knobs = replace(
        knobs, resume=name, resume_value=value, resume_path=path, resumes=why, loads_state=look.state_flags()
    )
    if start:
        return knobs
    step, lost = step_flag(look.source, look.settings, look.loaded)
    return replace(knobs, cannot_resume=look.has_no_way(), resume_step=step, resumes=lost or why)


@dataclass(frozen=True)
class _Look:
    """What of one job is looked at for its resume."""

    args: Sequence[str]
    where: Places
    row: Convention | None

    @property
    def settings(self) -> Sequence[Setting]:
        return settings_of(self.args[self.where.args_at :])

    @property
    def source(self) -> ScriptSource:
        return self.where.source

    @cached_property
    def loaded(self) -> LoadedState:
        """Where the values of settings go."""
        return LoadedState(self.source, known_values(self.source, self.given()))

    def given(self) -> dict[str, str | None]:
        """Every setting that is given, by its last plain name: configs first, the command line over them."""
        found: dict[str, str | None] = dict(_HF_OFF) if self.row is not None and self.row.name == HF else {}
        for values in self.where.configs.values():
            found |= {
                key.rpartition(".")[2]: str(value) for key, value in values.items() if value is not None
            }
        found |= {plain_name(s.name).rpartition(".")[2]: s.value for s in self.settings}
        return found

    # by itself

    def by_itself(self) -> str | None:
        """Why the script resumes by itself, for people; None where it is not known to."""
        given = self.given()
        if any(
            {"no", "resume"} <= set(words_of(s.name)) and (s.value or "true").lower() not in _OFF
            for s in self.settings
        ):
            return None
        if any(
            (given.get(name) or "").lower() == "false"
            for name in ("resume", "resume_from_checkpoint", "auto_resume")
        ):
            return None
        if self.in_new_folder() or self._saves_nothing():
            return None
        return self._by_convention(given) or self._by_auto_flag() or self._by_source(given)

    def moved_by(self, knobs: Knobs) -> str | None:
        """Why a restart with another batch looks in another folder, for people: the folder's name has the batch in it."""
        numbers = {plain_last(name) for name in (knobs.batch, knobs.accumulation) if name is not None}
        where = self.loaded.folder_named_by(frozenset(numbers))
        return where and f"the folder is named after the batch ({where})"

    def _saves_nothing(self) -> bool:
        """Whether a setting switches the checkpoints off."""
        values: list[tuple[str, object]] = [(f.dest, f.default) for f in self.source.flags if not f.is_switch]
        values += [(plain_last(name), value) for name, (value, _) in self.where.settled.items()]
        known = {**dict(values), **{name: value or "true" for name, value in self.given().items()}}
        off = _OFF - {"none", ""}
        return any(_SAVES.fullmatch(name) and str(value).lower() in off for name, value in known.items())

    def in_new_folder(self) -> bool:
        """Whether Hydra makes the run a folder of its own at each start: the checkpoints of the one before lie elsewhere."""
        places = [s.value for s in self.settings if plain_name(s.name) == "hydra.run.dir"]
        return any("${now:" in (value or "") for value in places)

    def _by_convention(self, given: Mapping[str, str | None]) -> str | None:
        row = self.row
        if row is None:
            return None
        load, save = (value_of(self.args, f"--{name}") for name in ("load", "save"))
        if row.name == "Megatron" and load and save and load == save:
            return "--load is --save"
        for name in row.self_resume:
            value = given.get(name, "false")
            if value is None or value.lower() not in _OFF:
                return f"{name} is on"
        if (
            row.always_resumes
            and not any(name in given for name in row.resume_off)
            and (not row.resume_word or row.resume_word in self._words())
        ):
            return f"{row.name} continues from its last checkpoint"
        return None

    def _words(self) -> set[str]:
        return {k.arg or "" for f in self.source.files for n in f.calls for k in n.keywords}

    def _by_auto_flag(self) -> str | None:
        """A switch that makes the script look for its newest checkpoint, present or on by default."""
        for setting in self.settings:
            flag = self.source.flag(setting.name)
            if (
                is_auto(setting.name)
                and (setting.value or "true").lower() not in _OFF
                and (flag is not None or setting.value is None)
            ):
                return f"{setting.name} is on"
        for file, values in self.where.configs.items():
            on = (k for k, v in values.items() if v is True and is_auto(k) and is_level_of_training(k))
            for key in on if file not in self.where.roles else ():
                return f"{key.lstrip(NEW)} is on in {config_file(file)}"
        for flag in self.source.flags:
            name = max(flag.names, key=len)
            given = value_of(self.args[self.where.args_at :], name)
            if (
                is_auto(name)
                and given is None
                and (flag.default is True or str(flag.default).lower() == "true")
            ):
                return f"{name} is on by default ({flag.where})"
        return None

    def _by_source(self, given: Mapping[str, str | None]) -> str | None:
        known = {**self.source.fields, **known_values(self.source, given)}
        for file in self.source.files:
            if file.depth > _DEPTH:
                continue
            for place in searches(file, self.source, known):
                if all(holds(self.source, test, wanted, known) for test, wanted in place.guards):
                    return f"{place.what} in {file.path or 'the script'}:{place.line}"
        return self._by_listing(known)

    def _by_listing(self, known: Mapping[str, Any]) -> str | None:
        """The newest of the files that the script lists, in a folder that no setting names for this or for weights to begin with."""
        starts = {f.dest for f in self.source.flags if takes_path(f"--{f.dest}")} | {"resume"}
        for where, names, given, tests in self.loaded.newest_of_listings():
            other = any(NOT_KEPT.search(n) and not SETTINGS.match(n) for n in names) or any(
                "pretrain" in n for n in given
            )
            holding = all(holds(self.source, test, wanted, known) for test, wanted in tests)
            if holding and not other and not starts & (names | given):
                return f"the newest of the listed files in {where}"
        return None

    # by a flag

    def declared(self, knobs: Knobs, name: str, value: str) -> Knobs:
        """`knobs` with the flag that a person named: `value` is passed literally, ``PATH`` stands for the newest checkpoint's path.

        Without a value, a switch is passed as it is, and a setting that takes a value gets what its declaration asks for.
        """
        knobs = replace(knobs, resumes=NAMED)
        if value.lower() in _PATH:
            return replace(knobs, resume_path=name)
        flag = self.source.flag(name)
        if value or (flag is not None and (flag.is_switch or flag.optional_value)) or self._looked_for(name):
            return replace(knobs, resume=name, resume_value=value)
        if not name.startswith("-"):
            if isinstance(self.where.value(name), bool):
                return replace(knobs, resume=name, resume_value="true")
            return replace(knobs, resume_path=name)
        if flag is None:
            return replace(knobs, resume=name, resume_value="", resumes=NAMED_UNSEEN)
        if flag.type == "int":
            return replace(knobs, resume_step=name)
        found = self._flag_value(flag)
        if found is not None and found[1]:
            return replace(knobs, resume=name, resume_value=found[1])
        return replace(knobs, resume_path=name)

    def _looked_for(self, name: str) -> bool:
        """Whether the source looks for the bare word itself: ``"--resume" in sys.argv``."""
        return any(
            isinstance(n, ast.Compare)
            and isinstance(n.ops[0], ast.In)
            and isinstance(n.left, ast.Constant)
            and n.left.value == name
            for f in self.source.files
            for n in f.nodes
        )

    def newest_flag(self) -> tuple[str | None, str, str]:
        """A flag that can mean "the newest checkpoint" without a path: name, value, why."""
        for setting in self.settings:
            if "_".join(words_of(setting.name)) in _RESUME_WORDS:
                flag = self.source.flag(setting.name)
                if setting.value is None:
                    return setting.name, "", "command line"
                if setting.value.lower() in _NEWEST:
                    return setting.name, setting.value, "command line"
                dest = flag.dest if flag is not None else plain_name(setting.name)
                compared = self._compared(dest)
                if compared is None and self.loaded.form_of(dest) is Form.FOLDER:
                    compared = self._output()
                return (setting.name, compared, "command line") if compared else (None, "auto", "")
        in_config = self._in_config()
        if in_config is not None:
            return in_config
        for flag in self.source.flags:
            found = self._flag_value(flag)
            if found is not None:
                return (*found, flag.where)
        switch = self._detectrons_switch()
        if switch is not None:
            return switch
        if self.row is not None and self.row.resume_flag and self.row.resume_value:
            return self.row.resume_flag, self.row.resume_value, f"{self.row.name}'s own"
        if self.row is not None and self.row.name == "Megatron":
            save = value_of(self.args, "--save")
            if save and value_of(self.args, "--load") is None:
                return "--load", save, "the folder of --save"
        return None, "auto", ""

    def _detectrons_switch(self) -> tuple[str, str, str] | None:
        """The switch of detectron2's own parser that its trainer is handed: ``resume_or_load(resume=args.resume)``."""
        if not any(called(n) == "default_argument_parser" for f in self.source.files for n in f.calls):
            return None
        handed = (p for p in self.source.passed if p.call == "resume_or_load" and p.leaf == "resume")
        return next((("--resume", "", p.where) for p in handed), None)

    def _in_config(self) -> tuple[str, str, str] | None:
        for name in self.where.names():
            if (
                is_argument(name)
                or "_".join(words_of(name)) not in _RESUME_WORDS
                or not is_level_of_training(name)
            ):
                continue
            present = self.where.value(name)
            if isinstance(present, bool) and words_of(name)[-1] != "checkpoint":
                if not present and self._needs_a_path(plain_last(name)):
                    return None
                return name, "true", "config" if present else "off in the config"
            if isinstance(present, str) and present.lower() in _NEWEST - {"true"}:
                return name, present, "config"
        switches = (n for n in self.where.names() if self.where.value(n) is False and not n.startswith("-"))
        own = next((n for n in switches if self._loads_own_file(plain_last(n))), None)
        return (own, "true", "off in the config") if own is not None else None

    def _flag_value(self, flag: ScriptFlag) -> tuple[str, str] | None:
        name = next((n for n in flag.names if "_".join(words_of(n)) in _RESUME_WORDS), None)
        spelled = max(flag.names, key=len)
        if self._has_own_loop() and flag.dest not in self.source.used:
            return None  # declared, and read nowhere
        if flag.newest and not flag.is_switch and {"resume", "continue"} & set(words_of(f"--{flag.dest}")):
            return spelled, flag.newest
        if name is not None:
            return self._named_value(flag, name)
        if self._continuing == {flag.dest}:
            return spelled, ""
        if flag.dest == "init_from" and "resume" in self._compared_values("init_from"):
            return spelled, "resume"
        return (self._spelled(flag.dest), "true") if is_latest_switch(flag) else None

    @cached_property
    def _continuing(self) -> set[str]:
        """The switches that make the source look for its newest checkpoint, whatever their names."""
        switches = (f.dest for f in self.source.flags if f.is_switch and f.const is not False)
        return {d for d in switches if self.loaded.searches_newest(d) or self._loads_own_file(d)}

    def _loads_own_file(self, switch: str) -> bool:
        """Whether a switch of such a name lets the script load the file that it saves, which nothing has to be set for."""
        if "resume" not in words_of(f"--{switch}"):
            return False
        empty = {plain_last(n) for n, _ in self._keys() if not self.where.value(n)} - set(self.given())
        unset = self._unset_flags() | empty
        return any(not unset & names for names in self.loaded.own_file_under(switch))

    def _unset_flags(self) -> set[str]:
        """The settings that hold nothing by default and are not given."""
        return {f.dest for f in self.source.flags if is_open(f)} - {plain_last(s.name) for s in self.settings}

    def _named_value(self, flag: ScriptFlag, name: str) -> tuple[str, str] | None:
        """What a flag of such a name is set to for the newest checkpoint."""
        value: str | None
        if flag.is_switch:
            value = None if flag.const is False or self._needs_a_path(flag.dest) else ""
        elif flag.optional_value and self._means_newest(flag):
            value = ""
        elif set(flag.choices) == {"0", "1"}:
            value = "1"
        elif is_open(flag) and self.loaded.form_of(flag.dest) is Form.FOLDER:
            value = self._output()
        else:
            newest = (c for c in (*flag.choices, str(flag.default)) if c.lower() in _NEWEST - {"true"})
            value = next(newest, None) or self._compared(flag.dest) or self._turned_on(flag) or None
        return (name, value) if value is not None else None

    def _turned_on(self, flag: ScriptFlag) -> str | None:
        """``true`` for a flag that takes it, where what is loaded then is named by no other flag that is not given."""
        if flag.type != "bool" or flag.owner or flag.default not in {None, False, "", "False", "false"}:
            return None
        unset = self._unset_flags()
        return "true" if any(not unset & names for names in self.loaded.loads_under(flag.dest)) else None

    def _output(self) -> str | None:
        """The folder that the command line lets the script write to."""
        return next((s.value for s in self.settings if s.value and is_output(s.name)), None)

    def _means_newest(self, flag: ScriptFlag) -> bool:
        """Whether a flag without its value stands for the newest checkpoint: it says so, or the source tells the bare flag from a path."""
        word = str(flag.const).lower()
        return word in _NEWEST - {"true"} or (
            word == "true"
            and any(_asks_whether_bare(n, flag.dest) for f in self.source.files for n in f.nodes)
        )

    def _needs_a_path(self, dest: str) -> bool:
        """Whether what a switch resumes from is named by another setting, which is not given: ``if args.resume: load(args.ckpt)``."""
        paths = self._unset_flags()
        paths |= {plain_last(n) for n, _ in self._keys() if str(self.where.value(n)).lower() in _OFF}
        return any(
            self.loaded.use_of(path, switch=dest) is Use.OPTIMIZER
            and self.loaded.use_of(path) is not Use.OPTIMIZER
            for path in paths
            if path != dest and _HOLDS_PATH.search(path)
        )

    def _compared(self, dest: str) -> str | None:
        """The word for the newest checkpoint that the source compares a setting with."""
        return next((v for v in self._compared_values(dest) if v.lower() in _NEWEST - {"true"}), None)

    def _compared_values(self, dest: str) -> list[str]:
        found = []
        for file in self.source.files:
            for node in file.nodes:
                if isinstance(node, ast.Compare) and leaf(node.left) == dest:
                    found += [
                        n.value
                        for c in node.comparators
                        for n in ast.walk(c)
                        if isinstance(n, ast.Constant) and isinstance(n.value, str)
                    ]
        return found

    def _spelled(self, dest: str) -> str:
        """A setting in the manner of the command line: ``--key=value`` or ``key=value``."""
        dashed = any(s.name.startswith("--") for s in self.settings)
        return f"--{dest}" if dashed else dest

    def path_flag(self) -> tuple[str | None, str]:
        """A flag or a config's key that takes a checkpoint's path."""
        lone = self.where.lone_config
        starts = list(find_starts(self.settings, self.where))
        found = next((n for n in starts if self._is_start(n)), None)
        if found is not None and not (found == "--resume_from_checkpoint" and lone):
            return found, "takes a path"
        if (
            found is None
            and (handed := self._handed_to_training() or self._loaded_with_optimizer()) is not None
        ):
            return handed
        for name, place in self._keys():
            if takes_path(name) and self._is_start(name):
                return name, place
        if found is not None and lone:
            return f"{lone}#{NEW}resume_from_checkpoint", lone
        if (absent := self._absent_key()) is not None:
            return absent
        own = self._frameworks_own()
        return own if own[0] or not starts else (None, f"{starts[0]} is not seen to load more than weights")

    def _absent_key(self) -> tuple[str, str] | None:
        """The one key that the source reads the checkpoint from and that the config does not hold yet."""
        found = [
            f"{start}{key}"
            for start, keys in self.where.open_configs()
            for key, instead in absent_keys(self.source, keys)
            if not instead and is_level_of_training(key)
            if takes_path(key) or LOADED.search(plain_last(key))
            if self.loaded.use_of(plain_last(key)) is Use.OPTIMIZER
            and self.loaded.form_of(plain_last(key)) is None
        ]
        return (found[0], "a key of the config") if len(set(found)) == 1 else None

    def _keys(self) -> Iterator[tuple[str, str]]:
        """The keys of configs that may be changed and hold a text or nothing, and where each stands."""
        for file, values in self.where.configs.items():
            for key, value in values.items():
                if (
                    isinstance(value, str | None)
                    and not self.where.roles.get(file)
                    and file not in self.where.fixed
                ):
                    yield f"{file}#{key}", file
        for name, (value, place) in self.where.settled.items():
            if isinstance(value, str | None) and name not in self.where.written:
                yield name, place

    def _is_start(self, name: str) -> bool:
        """Whether a setting of such a name continues a training: a path that weights alone are loaded from begins one."""
        flag = self.source.flag(name)
        dest = flag.dest if flag is not None else plain_last(name)
        use = self.loaded.use_of(dest)
        if use is None:  # nothing is seen: a name that says so is believed where the loop is a framework's
            return words_of(name) not in (["ckpt", "path"], ["load", "path"]) and not self._has_own_loop()
        enough = {Use.OPTIMIZER, Use.CALL} | (set() if self._has_own_loop() else {Use.COUNTER})
        whole = self.loaded.form_of(dest) is None and not self.loaded.unset_partner(dest, self._unset_flags())
        return use in enough and whole

    def _has_own_loop(self) -> bool:
        return {"backward", "zero_grad"} <= self._calls

    @cached_property
    def _calls(self) -> set[str]:
        return {called(n) for f in self.source.files for n in f.calls}

    def _handed_to_training(self) -> tuple[str, str] | None:
        """The one setting whose value is handed to the framework's training as the checkpoint (``fit(model, ckpt_path=cfg.train.ckpt)``)."""
        handed = {
            (p.leaf, p.where)
            for p in self.source.passed
            if p.keyword in {"ckpt_path", "resume_from_checkpoint"} and p.call in {"fit", "train", "Trainer"}
        }
        found = [
            (name, where)
            for leaf_, where in handed
            for name, _ in self._keys()
            if plain_last(name) == leaf_ and is_level_of_training(name)
        ]
        return found[0] if len(found) == 1 else None

    def _loaded_with_optimizer(self) -> tuple[str, str] | None:
        """The one setting for a checkpoint (``--ckpt``) that the source loads the optimizer's state from too.

        One that neither its name nor its help calls so must be the path of a file.
        """
        named = [(max(f.names, key=len), f.dest, f.where) for f in self.source.flags if is_open(f)]
        named += [
            (n, plain_last(n), place)
            for n, place in self._keys()
            if is_level_of_training(n) and not self.where.value(n)
        ]
        # A launcher hands on a flag of the same name.
        found = {
            name: (dest, place)
            for name, dest, place in named
            if not is_output(name)
            and self.loaded.use_of(dest) is Use.OPTIMIZER
            and self.loaded.form_of(dest) is None
        }
        clear = self._clearest({name: dest for name, (dest, _) in found.items()})
        return (clear[0], found[clear[0]][1]) if len(clear) == 1 else None

    def _clearest(self, found: Mapping[str, str]) -> list[str]:
        """Of some settings (name, name in the source) those that speak of a checkpoint by name, else by help, else of a file."""
        said = {f.dest for f in self.source.flags if f.continues}
        by_name = [name for name, dest in found.items() if LOADED.search(dest)]
        by_help = [name for name, dest in found.items() if dest in said]
        files = (name for name, dest in found.items() if _FILES.search(dest))
        return by_name or by_help or [name for name in files if not self.loaded.is_folder_of(found[name])]

    def state_flags(self) -> tuple[str, ...]:
        """The flags of the command line, whatever their names, that the source loads more of a training from than weights."""
        found = []
        for flag in self.source.flags:
            name, dest = max(flag.names, key=len), flag.dest
            if is_output(name) or not is_open(flag) or self.loaded.form_of(dest) is not None:
                continue
            use, says_so = self.loaded.use_of(dest), LOADED.search(dest) is not None
            is_path = says_so or flag.continues or not self.loaded.is_folder_of(dest)
            if (use is Use.OPTIMIZER and is_path) or (use is Use.CALL and says_so):
                found.append(name)
        return tuple(found)

    def replaced_options(self, name: str, batch: str) -> str | None:
        """Why a smaller batch is lost by a resume, for people: the script takes its options from the checkpoint."""
        flag = self.source.flag(name)
        where = self.loaded.replaces_options(flag.dest if flag is not None else plain_last(name), batch)
        return (
            where and f"{name} replaces all options, the batch among them, by those of the old run ({where})"
        )

    def _frameworks_own(self) -> tuple[str | None, str]:
        """The framework's flag for a path, where the command line or a config shows that the script takes it."""
        row = self.row
        if row is None or not row.resume_flag or row.resume_value or row.name in {HF, "Megatron"}:
            return None, ""
        if any(value is False for value, _ in self.source.literals.get("enable_checkpointing", ())):
            return None, ""  # the checkpoints are not the framework's own
        if row.resume_needs and row.resume_needs not in (*self.args, *self.where.settled):
            return None, ""
        return row.resume_flag, f"{row.name}'s own"

    def heeded_path(self) -> str | None:
        """Of a script on transformers' Trainer that looks for its newest checkpoint: the flag whose path it takes before that."""
        if self.row is None or self.row.name != HF or not any(heeds_path(f.nodes) for f in self.source.files):
            return None
        return self.path_flag()[0]

    def has_no_way(self) -> bool:
        """Whether the training loop was read, or is the HF Trainer's, leaves nothing to another process, and loads no checkpoint."""
        files = self.source.files
        elsewhere = "subprocess" in self.source.modules or (self.row is not None and self.row.name != HF)
        return (
            bool(files)
            and not elsewhere
            and any(c == "backward" or c.endswith("Trainer") for c in self._calls)
            and not any(_ANY_WAY.search(ast.unparse(f.tree)) for f in files if f.depth <= _DEPTH)
        )


def _asks_whether_bare(node: ast.AST, dest: str) -> bool:
    """``isinstance(args.resume, str)``, ``args.resume is True``: a bare flag is told from one with a path."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[value, _]):
            return leaf(value) == dest
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=True)]):
            return leaf(left) == dest
        case _:
            return False

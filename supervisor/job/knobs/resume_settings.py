"""Finds how a script resumes and where it writes checkpoints: from its command line, what it loads, or the user's answer.

`sources.checkpoint_layouts` finds the checkpoint to pass on. A load that never happened cannot be measured,
so a way to resume is *measured* only if the script loaded or searched for a checkpoint. A setting whose name
suggests a checkpoint is *proposed*. Either one is confirmed by the restart (`resume_seen`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.command_line import Setting as Argument
from supervisor.job.arguments.command_line import settings_of, value_of
from supervisor.job.knobs.conventions import MEGATRON, Convention
from supervisor.job.knobs.setting_names import Place, bare, is_resume, place_of, says_resume, words_of
from supervisor.job.knobs.written_facts import FILES, MOST_CANDIDATES, MOST_PATHS, Facts, Setting
from supervisor.job.spec import BY_ITSELF, NAMED, NAMED_UNSEEN, NEVER, Knobs

# Other things of a run that can be resumed: a tracker's run, a counter.
_NOT_A_PATH: Final = frozenset(
    {
        "id", "step", "steps", "epoch", "epochs", "iter", "run", "wandb", "mode", "auto", "optimizer",
        # initial weights of a run, or a checkpoint other than its newest
        "pretrained", "weights", "zoo", "best",
    }
)  # fmt: skip
# Keys whose settings belong to the training. Settings below a model, a dataset or a callback do not.
_OF_TRAINING: Final = frozenset(
    {
        "train", "training", "trainer", "checkpoint", "checkpoints", "checkpointing", "checkpointer", "ckpt", "fit", "run", "resume", "solver", "exp",
        "experiment", "general", "global", "common", "config", "cfg", "args", "runtime", "setup", "settings", "hparams", "lightning",
    }
)  # fmt: skip
_OUTPUTS: Final = frozenset(
    {
        "output_dir", "out_dir", "output", "outdir", "output_path", "output_folder", "output_directory", "output_file", "output_prefix",
        "out", "out_folder", "out_file", "outfile", "out_prefix", "save", "save_dir", "save_path", "savedir", "save_folder", "save_file",
        "save_to", "save_name", "save_prefix", "checkpoint_dir", "checkpoints_dir", "checkpoint_prefix", "ckpt_dir", "ckpt_prefix",
        "default_root_dir", "snapshot_dir", "work_dir", "workdir", "exp_dir", "experiment_dir", "log_dir", "logdir", "project_dir", "run_dir",
        "train_dir", "results", "results_dir", "result_dir", "prefix",
    }
)  # fmt: skip
ENDINGS: Final = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".tar")
"""File suffixes used for checkpoints."""
_SWITCHED: Final = frozenset({"true", "false", "yes", "no", "1", "0", "none", ""})
# Names of settings for the newest checkpoint, and the values that scripts use for it.
_RESUME_NAMES: Final = frozenset(
    ("resume", "resume_from", "resume_from_checkpoint", "from_resume", "auto_resume", "resume_training", "load_enable",
     "resume_latest", "resume_if_exists", "ckpt_load_enable")
)  # fmt: skip
_NEWEST: Final = frozenset({"auto", "latest", "last", "true", "newest", "must", "allow"})
_OFF: Final = frozenset({"false", "no", "0", "off", "none", ""})
# Placeholders for the newest checkpoint in a flag's value: the path (``--resume=PATH``), or the number.
_PATH: Final = frozenset({"path", "{path}", "<path>"})
_STEP: Final = frozenset({"step", "{step}", "<step>"})
# The default folders of Lightning, Hydra and transformers, if the script names none.
USUAL_OUTPUTS: Final = ("lightning_logs", "checkpoints", "outputs", "output", "trainer_output", "runs")


def with_resume(args: Sequence[str], row: Convention | None, given: Knobs, knobs: Knobs) -> Knobs:
    """Return `knobs` with the resume settings found on the command line.

    Args:
        args: the words after the script.
        row: the framework's conventions, if it is known.
        given: the user's declarations.
        knobs: the batch knobs.
    """
    settings = settings_of(args)
    if given.resume:
        return _as_declared(knobs, given.resume, given.resume_value)
    if given.self_resuming:
        return replace(knobs, self_resuming=True, resumes="named (--self-resuming)")
    if any(map(_turns_off, settings)):
        return knobs
    if itself := _by_itself(settings, args, row):
        return replace(knobs, self_resuming=True, resumes=itself)
    if any("${now:" in (s.value or "") for s in settings if s.name.lstrip("+") == "hydra.run.dir"):
        return replace(knobs, resumes="Hydra makes a new folder at each start (hydra.run.dir)")
    return _given(settings, knobs) or _by_convention(args, row, knobs)


def _as_declared(knobs: Knobs, name: str, value: str) -> Knobs:
    """Return `knobs` with the user's flag and `value` applied. ``PATH`` and ``STEP`` stand for the newest checkpoint."""
    if value.lower() in _PATH or (not value and not name.startswith("-")):
        return replace(knobs, resumes=NAMED, resume_path=name)
    if value.lower() in _STEP:
        return replace(knobs, resumes=NAMED, resume_step=name)
    return replace(knobs, resume=name, resume_value=value, resumes=NAMED if value else NAMED_UNSEEN)


def _given(settings: Sequence[Argument], knobs: Knobs) -> Knobs | None:
    """Return `knobs` with the command line's resume setting: one that means the newest checkpoint, or else one with a path."""
    for setting in settings:
        is_newest = setting.value is None or setting.value.lower() in _NEWEST
        if is_newest and "_".join(words_of(setting.name)) in _RESUME_NAMES:
            value = setting.value or ""
            return replace(knobs, resume=setting.name, resume_value=value, resumes="command line")
    for setting in settings:
        value = (setting.value or "").lower()
        # A run with published weights always starts from these (``//pretrained/facebook/musicgen-medium``).
        published = value.startswith("//") or value.partition("/")[0] == "pretrained"
        if takes_path(setting.name) and value not in _SWITCHED and not published:
            return replace(knobs, resume_path=setting.name, resumes="command line")
    return None


def _by_convention(args: Sequence[str], row: Convention | None, knobs: Knobs) -> Knobs:
    """Return `knobs` with the framework's own way to resume."""
    if row is None:
        return knobs
    save = value_of(args, "--save")
    if row.name == MEGATRON:
        is_first = bool(save) and value_of(args, "--load") is None
        how = replace(knobs, resume="--load", resume_value=save or "", resumes="the folder of --save")
        return how if is_first else knobs
    if row.resume_flag and (not row.resume_word or row.resume_word in args):
        return replace(knobs, resume_path=row.resume_flag, resumes=f"{row.name}'s own")
    return knobs


def _turns_off(setting: Argument) -> bool:
    """Check whether a setting turns resuming off, such as ``--no-resume`` or ``--auto_resume=false``."""
    on, words = (setting.value or "true").lower() not in _OFF, words_of(setting.name)
    if {"no", "resume"} <= set(words):
        return on
    return "_".join(words) in {"resume", "resume_from_checkpoint", "auto_resume"} and not on


def _by_itself(settings: Sequence[Argument], args: Sequence[str], row: Convention | None) -> str | None:
    """Explain why the script resumes on its own, or return None if the command line does not say."""
    for setting in settings:
        words = words_of(setting.name)
        is_auto = {"auto", "resume"} <= set(words) and len(words) <= 4
        named = is_auto or words in {("load", "enable"), ("autoresume",)}
        if named and (setting.value is None or setting.value.lower() == "true"):
            return f"{setting.name} is on"
    load = value_of(args, "--load")
    is_megatron = row is not None and row.name == MEGATRON
    return "--load is --save" if is_megatron and load and load == value_of(args, "--save") else None


def given_start(args: Sequence[str], flags: Collection[str] = ()) -> str | None:
    """Return the checkpoint that the user named, as flag and value (``--resume c2.pt``), or None if there is none.

    Args:
        args: the current words after the script.
        flags: flags known to take a checkpoint path, whatever they are called.
    """
    given = [s for s in settings_of(args) if (s.name in flags or takes_path(s.name)) and s.value]
    found = next((s for s in reversed(given) if (s.value or "").lower() not in _SWITCHED), None)
    if found is None:
        return None
    return f"{found.name} {found.value}" if found.name.startswith("-") else f"{found.name}={found.value}"


_PATH_NAMES: Final = frozenset(
    ("ckpt_path", "continue_from", "continue_path", "restore_path", "load_path", "train_from")
)


def takes_path(name: str) -> bool:
    """Check whether a setting's name suggests that it takes the path of a checkpoint to resume from."""
    # At the top or under a key of the training, not of a part (``model.first_stage.ckpt_path``).
    above = bare(name).lstrip("-+").lower().replace("-", "_").rpartition(".")[0]
    words = words_of(name)
    if not set(re.split(r"[._]", above)) - {""} <= _OF_TRAINING:
        return False
    return "_".join(words) in _PATH_NAMES or ("resume" in words and not _NOT_A_PATH & set(words))


_FOLDERS: Final = frozenset(("output", "output_path", "save_path"))


def find_outputs(settings: Sequence[Argument]) -> tuple[str, ...]:
    """Return the outputs named in the arguments, spelled as given there: folders, files and file name prefixes."""
    found: dict[str, None] = {}
    for setting in settings:
        word, value = _last_word(setting.name), setting.value or ""
        low = value.lower()
        other_file = re.search(r"\.[a-z]\w{0,5}$", low) is not None and not low.endswith(ENDINGS)
        # A folder may have any name, even `exp.v2`, if the setting's name is a usual one for a folder.
        is_folder = word.endswith(("dir", "folder", "directory")) or word in _FOLDERS
        if (
            word in _OUTPUTS
            and low
            and (is_folder or not (low in _SWITCHED or low.isdecimal() or other_file))
        ):
            found[value] = None
    return tuple(found)


def measured_outputs(settings: Iterable[Setting]) -> tuple[str, ...]:
    """Return the output folders that appear in the settings, as absolute paths."""
    is_output = (s for s in settings if _last_word(s.name) in _OUTPUTS)
    values = (s.value for s in is_output if isinstance(s.value, str))
    return tuple(dict.fromkeys(value for value in values if posixpath.isabs(value)))


def _last_word(name: str) -> str:
    last = bare(name).lstrip("-").lower().replace("-", "_")
    return last.rpartition(".")[2] if place_of(name) is not Place.ENVIRONMENT else last


FLAG: Final = "flag"
SELF: Final = "self"
PATH: Final = "PATH"
"""A placeholder in a declared setting (``--resume=PATH``) for the path of the newest checkpoint."""
_SWITCH: Final = "proposed: switch"
_ANSWERED: Final = "as you answered"
_WHY: Final = {
    "measured: path_option": "its value was the checkpoint that was loaded",
    "measured: itself": "it looks for a checkpoint where it saves",
    "proposed: option": "by its name; the restart shows whether it loads",
    _SWITCH: "by its name; the restart shows whether it loads",
}


@dataclass(frozen=True, slots=True)
class ResumeWay:
    """How a script resumes, as recorded in `batch_measured` (`resume`, `resume_setting`, `resume_how`).

    Attributes:
        resume: `FLAG`, `SELF`, or None if unknown.
        setting: the setting's knob name, if `resume` is `FLAG`.
        how: the certainty and the rule behind it.
        candidates: settings to ask about, in `--resume-knob` format.
    """

    resume: str | None
    setting: str | None
    how: str
    candidates: tuple[str, ...] = ()


def resume_way(facts: Facts) -> ResumeWay:
    """Return how the script appears to resume. Only a restart that loads the saved checkpoint proves it."""
    settings = facts.settings
    if (option := next((s for s in settings if _is_loaded_from(s, facts)), None)) is not None:
        return ResumeWay(FLAG, knob_name(option), "measured: path_option")
    if facts.sought or any(path in facts.saved for path in facts.loaded):
        return ResumeWay(SELF, None, "measured: itself")
    fits = [s for s in settings if s.empty or (s.type == "bool" and says_resume(s.name))]
    fits = sorted((s for s in fits if is_resume(s.name)), key=lambda s: is_resume(s.name), reverse=True)
    candidates = tuple(map(_declared, fits[:MOST_CANDIDATES]))
    if fits and (len(fits) == 1 or is_resume(fits[0].name) > is_resume(fits[1].name)):
        how = _SWITCH if fits[0].type == "bool" else "proposed: option"
        return ResumeWay(FLAG, knob_name(fits[0]), how, candidates)
    return ResumeWay(None, None, "asked: several" if fits else "asked: never_loaded", candidates)


def _is_loaded_from(setting: Setting, facts: Facts) -> bool:
    """Check whether a setting's value is the checkpoint that was loaded.

    If the name is inconclusive, the value may be a pretrained model's weights or the output folder.
    """
    path, says_so = setting.value, is_resume(setting.name) > 0
    if not isinstance(path, str) or not (says_so or facts.restored):
        return False
    return path in facts.loaded or (says_so and any(one.startswith(f"{path}/") for one in facts.loaded))


def knob_name(setting: Setting) -> str:
    """Return a setting's knob name: its longest option, ``env:NAME``, ``FILE#key``, or else its own name."""
    if setting.by == "env":
        return f"env:{setting.name}"
    if setting.by in FILES and setting.file is not None:
        return f"{setting.shown or setting.file}#{setting.name}"
    return max((word for word in setting.words if word.startswith("-")), key=len, default=setting.name)


def _declared(setting: Setting) -> str:
    name, is_switch = knob_name(setting), setting.type == "bool"
    return name if is_switch and name.startswith("-") else f"{name}={'true' if is_switch else PATH}"


def with_measured_resume(knobs: Knobs, resume: str | None, setting: str | None, how: str) -> Knobs:
    """Return `knobs` with the measured way to resume, unless the user or the command line already sets it.

    A framework's convention also overrides a proposed way. See `ResumeWay` for `resume`, `setting` and `how`.
    """
    known = knobs.start is not None or knobs.self_resuming or knobs.resume_step is not None
    if resume is None or is_declared(knobs) or (known and how.startswith("proposed")):
        return knobs
    if resume == SELF:
        return _with_way(knobs, BY_ITSELF, _WHY["measured: itself"])
    switch = "" if (setting or "").startswith("-") else "true"
    value = switch if how == _SWITCH else PATH
    return _with_way(knobs, f"{setting}={value}" if value else setting or "", _WHY.get(how, how))


def is_declared(knobs: Knobs) -> bool:
    """Check whether the user or the command line itself determines how the script resumes."""
    return knobs.resume_is_set or knobs.resumes.startswith(("named", _ANSWERED))


def with_answered_resume(knobs: Knobs, answer: str) -> Knobs:
    """Return `knobs` with the user's answer applied: `BY_ITSELF`, `NEVER`, or a setting in `--resume-knob` format."""
    return _with_way(knobs, answer, _ANSWERED) if answer else knobs


def _with_way(knobs: Knobs, way: str, why: str) -> Knobs:
    blank = replace(knobs, resume=None, resume_value="auto", resume_path=None, resume_step=None)
    blank = replace(blank, self_resuming=way == BY_ITSELF, cannot_resume=way == NEVER, resumes=why)
    if way in {BY_ITSELF, NEVER}:
        return blank
    name, _, value = way.rpartition("=") if "=" in way else (way, "", "")
    if value == PATH:
        return replace(blank, resume_path=name)
    return replace(blank, resume=name, resume_value=value)


def resume_seen(
    facts: Facts, checkpoint: str, *, real: Callable[[str], str] = posixpath.normpath
) -> bool | None:
    """Check whether an attempt loaded all or part of this checkpoint before its first step. None if not known yet.

    `real` resolves links in a path, if the caller may access the disk.
    """
    wanted = real(checkpoint)
    for path in facts.loaded:
        loaded = real(path)
        if loaded == wanted or loaded.startswith(wanted.rstrip("/") + "/"):
            return True
    has_stepped = any(rank.steps for rank in facts.ranks)
    return False if has_stepped and len(facts.loaded) < MOST_PATHS else None

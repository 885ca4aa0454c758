"""What a foreign script may start from: a flag that takes a checkpoint's path, and the folders that it writes to.

Read from its arguments, configs and source. Whether there is a checkpoint to hand over is for `sources.checkpoints` to find.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from supervisor.job.arguments.assignments import Setting, settings_of
from supervisor.job.knobs.batch_settings.names import words_of
from supervisor.job.knobs.conventions import CONVENTIONS, HF
from supervisor.job.knobs.places import Place, Places, bare, is_argument, place_of
from supervisor.job.knobs.source.read_source import ScriptFlag

# What else of a run is resumed: a tracker's run, a counter.
_NOT_A_PATH: Final = frozenset(
    {
        "id", "step", "steps", "epoch", "epochs", "iter", "run", "wandb", "mode", "auto", "optimizer",
        # weights that a run begins with, or another checkpoint than its newest
        "pretrained", "weights", "zoo", "best",
    }
)  # fmt: skip
# Keys above a setting that leave it the training's: what stands below a model, a dataset or a callback is theirs.
_OF_TRAINING: Final = frozenset(
    {
        "train", "training", "trainer", "checkpoint", "checkpoints", "checkpointing", "checkpointer", "ckpt", "fit", "run", "resume", "solver", "exp",
        "experiment", "general", "global", "common", "config", "cfg", "args", "runtime", "setup", "settings", "hparams", "lightning",
    }
)  # fmt: skip
_OUTPUTS: Final = frozenset(
    {
        "output_dir", "out_dir", "output", "outdir", "output_path", "save_dir", "save_path", "savedir", "checkpoint_dir",
        "checkpoints_dir", "ckpt_dir", "default_root_dir", "work_dir", "exp_dir", "log_dir", "logdir", "project_dir",
    }
)  # fmt: skip
# Such a name may also be that of a file, of the beginning of file names, or of what is no checkpoint.
_MORE_OUTPUTS: Final = frozenset(
    {
        "out", "out_folder", "out_file", "outfile", "out_prefix", "output_folder", "output_directory", "output_file", "output_prefix",
        "save", "save_folder", "save_file", "save_to", "save_name", "save_prefix", "checkpoint_prefix", "ckpt_prefix", "snapshot_dir",
        "results", "results_dir", "result_dir", "run_dir", "workdir", "train_dir", "experiment_dir", "prefix",
    }
)  # fmt: skip
_NOTHING: Final = frozenset({"", "none", "null", "no", "false"})
_SHORT: Final = re.compile(r"-\w")
LOADED: Final = re.compile(r"ckpt|checkpoint|snapshot|restore|load|continue|state", re.IGNORECASE)
"""Names of settings that may hold a checkpoint to continue from, where the source shows that they do."""
ENDINGS: Final = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".tar")
"""Of a file that holds a checkpoint."""
_SWITCHED: Final = frozenset({"true", "false", "yes", "no", "1", "0", "none", ""})
# transformers.TrainingArguments has the flag and leaves it to the script to use it.
_HF_FLAG: Final = "--resume_from_checkpoint"
_HF_CLASSES: Final = frozenset(
    {
        "TrainingArguments", "Seq2SeqTrainingArguments",
        *(word for row in CONVENTIONS if row.name == HF for word in row.words),
    }
)  # fmt: skip
# Lightning's, Hydra's and transformers' own folders, where the script names none.
USUAL_OUTPUTS: Final = ("lightning_logs", "checkpoints", "outputs", "output", "trainer_output", "runs")


def find_starts(settings: Sequence[Setting], where: Places) -> Iterator[str]:
    """The flags that by name take the path of a checkpoint to continue from, those of the command line first."""
    for setting in settings:
        value = (setting.value or "").lower()
        if takes_path(setting.name) and value not in _SWITCHED and not _is_published(value):
            yield setting.name
    for flag in where.source.flags:
        name = next((n for n in flag.names if not _SHORT.match(n) and takes_path(n)), None)
        if name is not None and is_open(flag):
            yield name
    words = where.source.words
    if words & _HF_CLASSES and "resume_from_checkpoint" in words:
        yield _HF_FLAG


def _is_published(value: str) -> bool:
    """Whether a value names weights that somebody published (``//pretrained/facebook/musicgen-medium``): those a run begins with, each time."""
    return value.startswith("//") or value.partition("/")[0] == "pretrained"


def given_start(args: Sequence[str], flags: Collection[str] = ()) -> str | None:
    """The checkpoint that a person named, as flag and value (``--resume c2.pt``); None where none is named.

    Args:
        args: what follows the script now.
        flags: those that are known to take a checkpoint's path, whatever their names.
    """
    given = [s for s in settings_of(args) if (s.name in flags or takes_path(s.name)) and s.value]
    found = next((s for s in reversed(given) if (s.value or "").lower() not in _SWITCHED), None)
    if found is None:
        return None
    return f"{found.name} {found.value}" if found.name.startswith("-") else f"{found.name}={found.value}"


def perhaps_start(args: Sequence[str], before: Sequence[str]) -> str | None:
    """A flag of `args` with a value that it had not `before`, which by its name or its value may be a checkpoint to start from."""
    known = {(s.name, s.value) for s in settings_of(before)}
    for setting in settings_of(args):
        value = (setting.value or "").lower()
        if (setting.name, setting.value) in known or value in _SWITCHED or is_output(setting.name):
            continue
        if value.endswith(ENDINGS) or LOADED.search(bare(setting.name)):
            return setting.name
    return None


def takes_path(name: str) -> bool:
    """Whether a setting's name is that of a checkpoint's path to continue from."""
    if not is_level_of_training(name):
        return False
    words = words_of(name)
    if words in (
        ["ckpt", "path"],
        ["continue", "from"],
        ["continue", "path"],
        ["restore", "path"],
        ["load", "path"],
        ["train", "from"],
    ):
        return True
    return "resume" in words and not _NOT_A_PATH & set(words)


def is_level_of_training(name: str) -> bool:
    """Whether a setting stands at the top or below keys of the training, not those of a part (``model.first_stage.ckpt_path``)."""
    above = bare(name).lstrip("-+").lower().replace("-", "_").rpartition(".")[0]
    return set(re.split(r"[._]", above)) - {""} <= _OF_TRAINING


def is_open(flag: ScriptFlag) -> bool:
    """Whether any text may be given to it, and none is by default; one that has to be given names no checkpoint at the first start."""
    is_text = not flag.is_switch and not flag.choices and flag.type not in {"int", "float", "bool"}
    return is_text and not flag.required and str(flag.default or "").lower() in _NOTHING


def find_outputs(settings: Sequence[Setting], where: Places) -> tuple[str, ...]:
    """The output folders that the arguments name, as spelled there; then the defaults of frameworks."""
    return tuple(dict.fromkeys((*_values(settings, where, _OUTPUTS), *USUAL_OUTPUTS)))


def find_prefixes(settings: Sequence[Setting], where: Places) -> tuple[str, ...]:
    """What else the arguments name as written to: a folder, a file, or what the names of files begin with.

    A usual folder counts where it is named: `find_outputs` has it also where it is not.
    """
    usual = (value for value in _values(settings, where, _OUTPUTS) if value in USUAL_OUTPUTS)
    found = [*_values(settings, where, _MORE_OUTPUTS), *usual]
    return tuple(dict.fromkeys(value for value in found if _may_begin_checkpoints(value)))


def _may_begin_checkpoints(value: str) -> bool:
    low = value.lower()
    other_file = re.search(r"\.[a-z]\w{0,5}$", low) is not None and not low.endswith(ENDINGS)
    return low not in _SWITCHED and not low.isdecimal() and not other_file


def _values(settings: Sequence[Setting], where: Places, names: Collection[str]) -> list[str]:
    """The values of the settings of such names: of the command line, then of configs and the source."""
    found = [s.value for s in settings if s.value and _last_word(s.name) in names]
    given = {s.name.lstrip("-").replace("-", "_") for s in settings}
    for name in where.names():
        plain = bare(name).lstrip("-").replace("-", "_")
        value = where.value(name)
        if (
            _last_word(name) in names
            and isinstance(value, str)
            and value
            and not (is_argument(name) and plain in given)
        ):
            found.append(value)
    return found


def is_output(name: str) -> bool:
    """Whether a setting's name is that of a folder that the script writes to."""
    return _last_word(name) in _OUTPUTS


def _last_word(name: str) -> str:
    last = bare(name).lstrip("-").lower().replace("-", "_")
    return last.rpartition(".")[2] if place_of(name) is not Place.ENVIRONMENT else last


def heeds_path(nodes: Sequence[ast.AST]) -> bool:
    """Whether a path in `resume_from_checkpoint` is taken before one that is looked for: it is handed on, or asked about first."""
    later = {id(s) for n in nodes if isinstance(n, ast.If) and len(n.orelse) == 1 for s in n.orelse}
    for node in nodes:
        match node:
            case ast.Call():
                if any(
                    k.arg == "resume_from_checkpoint" and _is_setting(_first_of(k.value))
                    for k in node.keywords
                ):
                    return True
            case ast.If(test=test, body=body) if id(node) not in later:
                if any(_is_setting(n) for n in ast.walk(test)) and any(
                    isinstance(s, ast.Assign) and _is_setting(s.value) for s in body
                ):
                    return True
            case _:
                pass
    return False


def _first_of(value: ast.expr) -> ast.expr:
    """What a value is where it is set: the first of ``a or b``, of ``a if a else b``."""
    match value:
        case ast.BoolOp(op=ast.Or(), values=[first, *_]):
            return first
        case ast.IfExp(body=body):
            return body
        case _:
            return value


def _is_setting(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "resume_from_checkpoint"


def is_auto(name: str) -> bool:
    """Whether a setting's name is that of a switch for the newest checkpoint."""
    words = words_of(name)
    return words in (["auto", "resume"], ["load", "enable"], ["autoresume"]) or (
        "auto" in words and "resume" in words and len(words) <= 4
    )


def is_latest_switch(flag: ScriptFlag) -> bool:
    """Whether a flag is a switch that loads the latest, by its name."""
    words = set(words_of(f"--{flag.dest}"))
    return flag.type == "bool" and bool(words & {"latest", "last"}) and bool(words & {"load", "resume"})

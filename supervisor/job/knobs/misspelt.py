"""Arguments of a script that it does not declare, and the declared name that was probably meant (pure)."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from typing import Final, NamedTuple

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.knobs.source.read_source import ScriptSource, called

# Their parsers declare flags of their own, which stand in no file of the script.
_LIBRARIES: Final = frozenset(
    {
        "axolotl", "detectron2", "fairseq", "fire", "jsonargparse", "llamafactory", "megatron", "mmengine", "nemo",
        "torchtitan", "torchtune",
    }
)  # fmt: skip
# So do these, of libraries that most scripts import for something else.
_CALLS: Final = frozenset(
    {
        "HfArgumentParser", "H4ArgumentParser", "TrlParser", "LightningCLI", "add_argparse_args", "add_config_arguments",
        "add_dataclass_arguments", "parse_args_into_dataclasses",
    }
)  # fmt: skip
# Likeness of two names, 0 to 1 (difflib): --learning_rate and --lerning_rate 0.97, --lr and --lrs 0.89, --lr and --wd 0.5.
ALIKE: Final = 0.8


class Misspelt(NamedTuple):
    """`typed`: a flag that is declared nowhere. `meant`: the nearest one that is; `where`: its file and line."""

    typed: str
    meant: str
    where: str


def misspelt_flags(source: ScriptSource, args: Sequence[str]) -> list[Misspelt]:
    """Flags among a script's arguments that none of its files declares, where one of nearly that name is declared.

    A beginning of a declared name counts as that name, as argparse has it. Nothing is found where a library declares flags too,
    or where a declared name is computed.
    """
    calls = {called(call) for file in source.files for call in file.calls}
    if (
        source.modules & _LIBRARIES
        or calls & _CALLS
        or any(_is_computed(c) for f in source.files for c in f.calls)
    ):
        return []
    places = {
        name: flag.where for flag in reversed(source.flags) for name in flag.names if name.startswith("--")
    }
    # argparse tells --batch-size from --batch_size; tyro, simple-parsing and their like do not.
    exact = {"ArgumentParser", "parse_args"} <= calls and not any(flag.owner for flag in source.flags)
    found = []
    before_end = args[: args.index("--")] if "--" in args else args
    for typed in dict.fromkeys(setting.name for setting in settings_of(before_end)):
        if not typed.startswith("--") or "." in typed or _is_declared(source, places, typed, exact=exact):
            continue
        near = difflib.get_close_matches(typed, places, n=1, cutoff=ALIKE)
        if near:
            found.append(Misspelt(typed, near[0], places[near[0]]))
    return found


def _is_computed(call: ast.Call) -> bool:
    """Whether a call declares a flag by a name that does not stand in the source: in a loop, or for a wrapper's caller."""
    if called(call) != "add_argument" or not call.args:
        return False
    name = call.args[0]
    return not (isinstance(name, ast.Constant) and isinstance(name.value, str))


def _is_declared(source: ScriptSource, names: dict[str, str], typed: str, *, exact: bool) -> bool:
    """Whether a parser takes a flag as it is typed: a name, its beginning, or its negation (``--no-x``, absl's ``--nox``)."""
    if any(name.startswith(typed) for name in names):
        return True
    if not exact and source.flag(typed) is not None:
        return True
    word = typed.removeprefix("--")
    return word.startswith("no") and f"--{word[2:].lstrip('-_')}" in names

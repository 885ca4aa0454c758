"""A batch that no setting holds: it is written in the source."""

from __future__ import annotations

import ast
from typing import Final

from supervisor.job.knobs.batch_settings.candidates import as_number
from supervisor.job.knobs.batch_settings.names import Role, role_of
from supervisor.job.knobs.batch_settings.refusals import NoPlanError
from supervisor.job.knobs.source.read_source import ScriptSource

_MAKES_SETTINGS: Final = ("hparams", "params", "config", "namespace", "dict", "settings")


def written_batch(source: ScriptSource) -> NoPlanError | None:
    """The refusal that names the line, wherever the batch is written; None where it is not."""
    return written_in_script(source) or _written_default(source) or _written_beside(source)


def written_in_script(source: ScriptSource) -> NoPlanError | None:
    """The batch as a literal in the source, where no setting holds it."""
    script = {file.path or "the script" for file in source.files if file.depth == 0}
    for passed in source.passed:
        number = as_number(passed.value)
        file = passed.where.rpartition(":")[0]
        if file in script and number is not None and role_of(passed.keyword) in (Role.MICRO, Role.BATCH):
            what = f"the batch is written in {passed.where} ({passed.keyword}={number})"
            return NoPlanError(what, f"change it in {file}")
    for name, values in source.literals.items():
        number, file = as_number(values[0][0]), values[0][1].rpartition(":")[0]
        if "batch" not in name or number is None or file not in script:
            continue
        if role_of(f"--{name}") in (Role.MICRO, Role.BATCH):
            what = f"the batch is written in {values[0][1]} ({source.spelled[name]} = {number})"
            return NoPlanError(what, f"change it in {file}")
    return None


def _written_default(source: ScriptSource) -> NoPlanError | None:
    """The same as a parameter's default of a function of the script: ``def get_batch(batch_size=32)``."""
    for file in source.files:
        for node in file.nodes if file.depth == 0 else ():
            if not isinstance(node, ast.FunctionDef):
                continue
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            given = names[len(names) - len(node.args.defaults) :]
            for name, default in zip(given, node.args.defaults, strict=True):
                number = (
                    as_number(default.value)
                    if isinstance(default, ast.Constant) and isinstance(default.value, int)
                    else None
                )
                if number is not None and role_of(f"--{name}") in (Role.MICRO, Role.BATCH):
                    path = file.path or "the script"
                    what = f"the batch is written in {path}:{default.lineno} ({name}={number})"
                    return NoPlanError(what, f"change it in {path}")
    return None


def _written_beside(source: ScriptSource) -> NoPlanError | None:
    """The same in a file that the script imports, where one place alone makes its settings: ``HParams(batch_size=64)``."""
    depths = {file.path: file.depth for file in source.files}
    found = [
        (passed.where, passed.keyword, number)
        for passed in source.passed
        if depths.get(passed.where.rpartition(":")[0]) == 1
        and passed.call.lower().endswith(_MAKES_SETTINGS)
        and (number := as_number(passed.value)) is not None
        and role_of(f"--{passed.keyword}") in (Role.MICRO, Role.BATCH)
    ]
    if len(found) != 1:
        return None
    where, keyword, number = found[0]
    what = f"the batch is written in {where} ({keyword}={number})"
    return NoPlanError(what, f"change it in {where.rpartition(':')[0]}")

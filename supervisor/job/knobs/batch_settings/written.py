"""A batch that no setting holds: it is written in the source."""

from __future__ import annotations

import ast
from typing import Final

from supervisor.job.knobs.batch_settings.candidates import as_number
from supervisor.job.knobs.batch_settings.names import Role, role_of
from supervisor.job.knobs.batch_settings.refusals import NoPlanError
from supervisor.job.knobs.source.declarations import literal
from supervisor.job.knobs.source.read_source import ScriptSource

_MAKES_SETTINGS: Final = ("hparams", "params", "config", "namespace", "dict", "settings")


def written_batch(source: ScriptSource) -> NoPlanError | None:
    """The refusal that names the line, wherever the batch is written; None where it is not."""
    return written_in_script(source) or _written_default(source) or _written_beside(source)


def written_in_script(source: ScriptSource) -> NoPlanError | None:
    """The batch as a literal in the source, where no setting holds it."""
    script = {file.path or "the script" for file in source.files if file.depth == 0}
    passed = [
        p
        for p in source.passed
        if p.where.rpartition(":")[0] in script and role_of(p.keyword) in {Role.MICRO, Role.BATCH}
    ]
    # Of several numbers, which one is that of the training is not known.
    if len({as_number(p.value) for p in passed}) == 1 and (number := as_number(passed[0].value)) is not None:
        return _written(passed[0].where, f"{passed[0].keyword}={number}")
    for name, values in source.literals.items():
        number, file = as_number(values[0][0]), values[0][1].rpartition(":")[0]
        if "batch" not in name or number is None or file not in script or len(dict(values)) > 1:
            continue
        if role_of(f"--{name}") in (Role.MICRO, Role.BATCH):
            return _written(values[0][1], f"{source.spelled[name]} = {number}")
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
                number = as_number(literal(default))
                if number is not None and role_of(f"--{name}") in (Role.MICRO, Role.BATCH):
                    return _written(f"{file.path or 'the script'}:{default.lineno}", f"{name}={number}")
    return None


def _written_beside(source: ScriptSource) -> NoPlanError | None:
    """The same in a file that the script imports, where one place alone makes its settings: ``HParams(batch_size=64)``."""
    depths = {file.path: file.depth for file in source.files}
    found = [
        _written(passed.where, f"{passed.keyword}={number}")
        for passed in source.passed
        if depths.get(passed.where.rpartition(":")[0]) == 1
        and passed.call.lower().endswith(_MAKES_SETTINGS)
        and (number := as_number(passed.value)) is not None
        and role_of(f"--{passed.keyword}") in (Role.MICRO, Role.BATCH)
    ]
    return found[0] if len(found) == 1 else None


def _written(where: str, what: str) -> NoPlanError:
    return NoPlanError(
        f"the batch is written in {where} ({what})", f"change it in {where.rpartition(':')[0]}"
    )

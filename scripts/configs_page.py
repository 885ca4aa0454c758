"""Write supervisor/job/config/trainer_table.py, the supervisor's copy of the trainer's own table of settings: neither imports the other."""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "supervisor" / "job" / "config" / "trainer_table.py"
sys.path.insert(0, str(ROOT))

from trainer import settings  # noqa: E402 - the path comes first
from trainer.config import Config, Range  # noqa: E402

KINDS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "SWITCH"}
HEAD = '''\
"""Settings of the bundled trainer: made by `python scripts/configs_page.py` from trainer/config.py, do not edit by hand."""

from __future__ import annotations

from typing import Final

from supervisor.job.config.setting import KeyType, Range, Setting

_I, _F, _T, _S = KeyType.INT, KeyType.FLOAT, KeyType.TEXT, KeyType.SWITCH

# fmt: off
'''


def table() -> str:
    """The module with the trainer's keys and their other names."""
    types = settings.types()
    rows = []
    for f in fields(Config):
        known, kind = f.metadata, f"_{KINDS[types[f.name]][0]}"
        given = [kind, _written(known["help"]), f"default={_written(f.default)}"]
        given += [f"choices=({', '.join(map(_written, known['choices']))})"] if known["choices"] else []
        given += [f"range={_range(known['range'])}"] if known["range"] is not None else []
        given += [f"section={_written(known['section'])}"] if known["section"] else []
        rows.append(f'    "{f.name}": Setting({", ".join(given)}),\n')
    names = [f'    "{old}": "{new}",\n' for old, new in settings.ALIASES.items()]
    return (
        f"{HEAD}TRAINER_KEYS: Final[dict[str, Setting]] = {{\n{''.join(rows)}}}\n"
        f"# Names of older scripts and of the cluster's YAML.\nALIASES: Final[dict[str, str]] = {{\n{''.join(names)}}}\n# fmt: on\n"
    )


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _range(of: Range) -> str:
    ends = [f"{name}=True" for name in ("open_low", "open_high") if getattr(of, name)]
    return f"Range({', '.join([f'{of.low:g}', f'{of.high:g}' if of.high is not None else 'None', *ends])})"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")

"""Write what is made from the tables of settings.

That is the tables of configs/README.md, and supervisor/job/config/trainer_table.py, the supervisor's copy of the trainer's own table: neither imports the
other.
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "supervisor" / "job" / "config" / "trainer_table.py"
PAGE = ROOT / "configs" / "README.md"
sys.path.insert(0, str(ROOT))

from supervisor.job.config.explain import other_names  # noqa: E402 - the path comes first
from supervisor.job.setting_keys import CLASS_KEYS, SETTINGS, KeyType, Range, Setting, unit_of  # noqa: E402  # noqa: E402
from supervisor.job.setting_keys import shown as written  # noqa: E402
from trainer import settings  # noqa: E402
from trainer.config import Config  # noqa: E402

KINDS = {int: KeyType.INT, float: KeyType.FLOAT, str: KeyType.TEXT, bool: KeyType.SWITCH}
HEAD = '''\
"""Settings of the bundled trainer: made by `python scripts/configs_page.py` from trainer/config.py, do not edit by hand."""

from __future__ import annotations

from typing import Final

from supervisor.job.setting_keys import KeyType, Range, Setting

_I, _F, _T, _S = KeyType.INT, KeyType.FLOAT, KeyType.TEXT, KeyType.SWITCH

# fmt: off
'''


def of_trainer() -> dict[str, Setting]:
    """The trainer's settings as the supervisor holds them."""
    types, found = settings.types(), {}
    for f in fields(Config):
        known, of = f.metadata, f.metadata["range"]
        bounds = Range(of.low, of.high, of.open_low, of.open_high) if of is not None else None
        found[f.name] = Setting(
            KINDS[types[f.name]], known["help"], f.default, known["choices"], bounds, known["section"]
        )
    return found


def table() -> str:
    """The module with the trainer's keys and their other names."""
    rows = []
    for key, known in of_trainer().items():
        given = [f"_{known.kind.name[0]}", _written(known.meaning), f"default={_written(known.default)}"]
        given += [f"choices=({', '.join(map(_written, known.choices))})"] if known.choices else []
        given += [f"range={_range(known.range)}"] if known.range is not None else []
        given += [f"section={_written(known.section)}"] if known.section else []
        rows.append(f'    "{key}": Setting({", ".join(given)}),\n')
    names = [f'    "{old}": "{new}",\n' for old, new in settings.ALIASES.items()]
    return (
        f"{HEAD}TRAINER_KEYS: Final[dict[str, Setting]] = {{\n{''.join(rows)}}}\n"
        f"# Names from older scripts and the cluster's YAML.\nALIASES: Final[dict[str, str]] = {{\n{''.join(names)}}}\n# fmt: on\n"
    )


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _range(of: Range) -> str:
    ends = [f"{name}=True" for name in ("open_low", "open_high") if getattr(of, name)]
    return f"Range({', '.join([f'{of.low:g}', f'{of.high:g}' if of.high is not None else 'None', *ends])})"


def page(text: str) -> str:
    """The page with its tables made again; what stands outside of their marks is kept."""
    for name, made in (("trainer", _trainer()), ("launch", _launch())):
        head, mark, rest = text.partition(f"<!-- {name}: made by python scripts/configs_page.py -->")
        text = f"{head}{mark}{made}\n{rest[rest.index('<!-- end -->') :]}"
    return text


def _trainer() -> str:
    sections: dict[str, dict[str, Setting]] = {}
    for key, setting in of_trainer().items():
        sections.setdefault(setting.section or next(reversed(sections)), {})[key] = setting
    return "".join(_section(title, "", keys) for title, keys in sections.items())


def _launch() -> str:
    sections: dict[str, dict[str, Setting]] = {}
    for key, setting in SETTINGS.items():
        sections.setdefault(key.partition(".")[0], {})[key] = setting
    made = [_section(f"`[{name}]`", _NOTES.get(name, ""), keys) for name, keys in sections.items()]
    return "".join([*made, _section("`[policy.<class>]`", "", CLASS_KEYS)])


_NOTES = {"ui": "Not allowed in a job file.", "hang": "See section 5 of [docs/guide.md](../docs/guide.md)."}


def _section(title: str, note: str, keys: Mapping[str, Setting]) -> str:
    head = "| key | takes | unit | default | meaning | other names |\n|---|---|---|---|---|---|"
    return "\n".join([f"\n\n### {title}\n", *([f"{note}\n"] if note else []), head, *_rows(keys)])


def _rows(keys: Mapping[str, Setting]) -> Iterable[str]:
    for key, setting in keys.items():
        # A trainer's key is a variable by rule, which the page says once.
        names = [name for name in other_names(key) if name != f"STOKER_{key.upper()}"]
        cells = [
            f"`{key.rpartition('.')[2]}`",
            setting.takes,
            unit_of(key),
            written(setting.default),
            setting.meaning,
        ]
        cells.append(", ".join(f"`{name}`" for name in names))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

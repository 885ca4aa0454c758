"""The flags that say how the app looks, and where else that may be said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.cli.common import user_settings
from supervisor.run.regular import read_regular

if TYPE_CHECKING:
    import argparse

    from supervisor.views.appearance import Appearance

MOST_BYTES = 1 << 20


def add_appearance_flags(parser: argparse.ArgumentParser) -> None:
    """Declare ``--theme``, ``--ascii`` and ``--lang``."""
    group = parser.add_argument_group("looks")
    group.add_argument(
        "--theme", metavar="NAME", help="dark, light, or safe for eyes that mix up red and green"
    )
    group.add_argument("--ascii", action="store_true", default=None, help="no glyph beyond ASCII")
    group.add_argument("--lang", metavar="LANG", help="en or zh (default: by LANG)")


def appearance_from(flags: Mapping[str, object], env: Mapping[str, str]) -> Appearance:
    """Flag > STOKER_* > ./stoker.toml > the user's config.toml, both in their ``[ui]`` table.

    Raises:
        BadAppearance: a value is none of those possible, or a file cannot be read as TOML.
    """
    from supervisor.views.appearance import appearance_of

    user = user_settings(env)
    variables = {name: env.get(f"STOKER_{name.upper()}") for name in ("theme", "ascii", "lang")}
    sources: list[tuple[str, Mapping[str, object]]] = [
        ("--theme, --ascii, --lang", flags),
        ("STOKER_THEME, STOKER_ASCII, STOKER_LANG", variables),
        ("./stoker.toml", _ui_table(Path("stoker.toml"))),
        (str(user), _ui_table(user)),
    ]
    return appearance_of(sources, env)


def _ui_table(path: Path) -> dict[str, Any]:
    """The ``[ui]`` table of a file; empty where there is none."""
    try:
        data = read_regular(path)[:MOST_BYTES]
    except OSError:
        return {}

    from supervisor.job.config.files import parse_config
    from supervisor.job.errors import JobError
    from supervisor.views.appearance import BadAppearance

    try:
        table = parse_config(path.name, data).get("ui", {})
    except JobError as error:
        raise BadAppearance(str(error)) from error
    return table if isinstance(table, dict) else {}

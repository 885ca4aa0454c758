"""How a person wants the app to look: theme, plain ASCII, language (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar


class ThemeName(StrEnum):
    """`SAFE` uses colours that people with red-green colour blindness can tell apart (Okabe and Ito 2008)."""

    DARK = "dark"
    LIGHT = "light"
    SAFE = "safe"


class Lang(StrEnum):
    """Languages of the interface."""

    EN = "en"
    ZH = "zh"


class BadAppearance(Exception):  # noqa: N818 - named for what it is
    """A value that is none of those possible: one line."""


Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Appearance:
    """What was asked for. `theme` None: what was chosen last in the app, else dark. `ascii`: no glyph beyond ASCII."""

    theme: ThemeName | None = None
    ascii: bool = False
    lang: Lang = Lang.EN

    @property
    def spoken(self) -> Lang:
        """The language that is used: English with plain ASCII, where every Chinese character would be a question mark."""
        return Lang.EN if self.ascii else self.lang


USUAL = Appearance()


def appearance_of(sources: list[tuple[str, Mapping[str, object]]], env: Mapping[str, str]) -> Appearance:
    """Each setting from the first source that gives it.

    Args:
        sources: (name, values) in the order of their rank; values by `theme`, `ascii`, `lang`.
        env: where ``LC_ALL``, ``LC_MESSAGES`` or ``LANG`` name a language for want of anything else.

    Raises:
        BadAppearance: a value is none of those possible.
    """
    theme = lang = ascii_ = None
    for where, values in sources:
        if theme is None and values.get("theme") not in {None, ""}:
            theme = _choice(where, "theme", values["theme"], ThemeName)
        if lang is None and values.get("lang") not in {None, ""}:
            lang = _choice(where, "lang", values["lang"], Lang)
        if ascii_ is None and values.get("ascii") not in {None, ""}:
            ascii_ = _switch(where, values["ascii"])
    return Appearance(theme, bool(ascii_), lang or _locale(env))


def _choice(where: str, name: str, value: object, of: type[Choice]) -> Choice:
    try:
        return of(str(value))
    except ValueError as error:
        raise BadAppearance(f"{where}: {name} = {value}: choose {', '.join(of)}") from error


def _switch(where: str, value: object) -> bool:
    text = str(value).lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off"}:
        return False
    raise BadAppearance(f"{where}: ascii = {value}: choose true, false")


def _locale(env: Mapping[str, str]) -> Lang:
    """As POSIX orders them: LC_ALL, LC_MESSAGES, LANG; the first that is set decides."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if env.get(name):
            return Lang.ZH if env[name].lower().startswith("zh") else Lang.EN
    return Lang.EN

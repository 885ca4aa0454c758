"""User preferences for the app (theme, plain ASCII, language) and what it may ask of the terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from supervisor.job.errors import JobError


class ThemeName(StrEnum):
    """Color themes. The colors in `SAFE` stay distinct under red-green color blindness (Okabe and Ito 2008)."""

    DARK = "dark"
    LIGHT = "light"
    SAFE = "safe"


class Lang(StrEnum):
    """Interface languages."""

    EN = "en"
    ZH = "zh"


class NoticeKind(StrEnum):
    """The escape sequence used for desktop notifications: iTerm2's OSC 9 or urxvt's OSC 777."""

    OFF = "off"
    OSC9 = "osc9"
    OSC777 = "osc777"


class BadAppearance(JobError):  # noqa: N818 - the name is clear without Error
    """A setting has an invalid value. The message is a single line."""


Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Appearance:
    """Appearance settings. If `ascii` is true, only ASCII glyphs are used.

    If `title` is true, the terminal title shows the run's state. `bell` and `notice` say how to announce that it ended.
    """

    theme: ThemeName = ThemeName.DARK
    ascii: bool = False
    lang: Lang = Lang.EN
    title: bool = True
    bell: bool = False
    notice: NoticeKind = NoticeKind.OFF

    @property
    def spoken(self) -> Lang:
        """The language actually used. With plain ASCII it is always English, because ASCII cannot show Chinese."""
        return Lang.EN if self.ascii else self.lang


USUAL = Appearance()
SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def appearance_of(sources: list[tuple[str, Mapping[str, object]]], env: Mapping[str, str]) -> Appearance:
    """Resolve each setting from the first source that has a value for it.

    Args:
        sources: (name, values) pairs, highest priority first; values are keyed by `Appearance` field name.
        env: supplies the language from ``LC_ALL``, ``LC_MESSAGES`` or ``LANG`` if no source sets it.

    Raises:
        BadAppearance: a value is not allowed.
    """

    def first(name: str) -> tuple[str, str] | None:
        """Return a setting's value and the source it came from, or None if no source sets it."""
        given = ((where, values.get(name)) for where, values in sources)
        return next(((where, str(value)) for where, value in given if value not in {None, ""}), None)

    def choice(name: str, of: type[Choice]) -> Choice | None:
        if (found := first(name)) is None:
            return None
        try:
            return of(found[1])
        except ValueError as error:
            raise BadAppearance(f"{found[0]}: {name} = {found[1]}: choose {', '.join(of)}") from error

    def switch(name: str, *, usual: bool) -> bool:
        if (found := first(name)) is None:
            return usual
        if found[1].lower() not in SWITCHES:
            raise BadAppearance(f"{found[0]}: {name} = {found[1]}: choose true, false")
        return SWITCHES[found[1].lower()]

    return Appearance(
        choice("theme", ThemeName) or USUAL.theme,
        switch("ascii", usual=USUAL.ascii),
        choice("lang", Lang) or _locale(env),
        switch("title", usual=USUAL.title),
        switch("bell", usual=USUAL.bell),
        choice("notice", NoticeKind) or USUAL.notice,
    )


def _locale(env: Mapping[str, str]) -> Lang:
    """Return the language from the first locale variable that is set: LC_ALL, LC_MESSAGES, LANG (POSIX order)."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if env.get(name):
            return Lang.ZH if env[name].lower().startswith("zh") else Lang.EN
    return Lang.EN

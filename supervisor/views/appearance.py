"""How the app should look (theme, plain ASCII, language), and what it may request from the terminal (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from supervisor.job.errors import JobError


class ThemeName(StrEnum):
    """The themes. `SAFE` has colors that are distinct in red-green color blindness (Okabe and Ito 2008)."""

    DARK = "dark"
    LIGHT = "light"
    SAFE = "safe"


class Lang(StrEnum):
    """Languages of the interface."""

    EN = "en"
    ZH = "zh"


class NoticeKind(StrEnum):
    """How a terminal shows a desktop notification: iTerm2's OSC 9 or urxvt's OSC 777."""

    OFF = "off"
    OSC9 = "osc9"
    OSC777 = "osc777"


class BadAppearance(JobError):  # noqa: N818 - the name is clear without Error
    """A value is not allowed. The message is one line."""


Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Appearance:
    """The requested appearance. `ascii`: ASCII glyphs only.

    `title`: the terminal's title shows the run's state. `bell`, `notice`: how to signal failure and end.
    """

    theme: ThemeName = ThemeName.DARK
    ascii: bool = False
    lang: Lang = Lang.EN
    title: bool = True
    bell: bool = False
    notice: NoticeKind = NoticeKind.OFF

    @property
    def spoken(self) -> Lang:
        """The language in use: English with plain ASCII, which cannot show Chinese."""
        return Lang.EN if self.ascii else self.lang


USUAL = Appearance()
SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def appearance_of(sources: list[tuple[str, Mapping[str, object]]], env: Mapping[str, str]) -> Appearance:
    """Take each setting from the first source that has a value.

    Args:
        sources: (name, values) by descending priority; values by the names of `Appearance`.
        env: its ``LC_ALL``, ``LC_MESSAGES`` or ``LANG`` gives the language if no source does.

    Raises:
        BadAppearance: a value is not allowed.
    """

    def first(name: str) -> tuple[str, str] | None:
        """Return the source of a setting and its value, or None if no source has one."""
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
    """Return the language of the first set variable in POSIX order: LC_ALL, LC_MESSAGES, LANG."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if env.get(name):
            return Lang.ZH if env[name].lower().startswith("zh") else Lang.EN
    return Lang.EN

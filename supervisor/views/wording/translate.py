"""Translates kinds, values and English sentences into the user's language.

A kind with values from the state is rendered from the language's own table (`kinds`). Other English text stays in
the code that uses it and is a key in a catalog (``lang/zh.toml``). Sentences from policy, diagnosis or the keeper
are translated by template when shown. Text without an entry is shown in English rather than dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

from supervisor.run.state import Moment
from supervisor.views.appearance import Lang
from supervisor.views.wording.kinds import Kinds, sections

# A few hundred sentences are visible at one time. Sentences with changing numbers come and go.
REMEMBERED = 4096
# The maximum nesting depth of clauses in a sentence.
DEEPEST = 12
# A longer text is a log line or a command, not our own sentence.
LONGEST = 1000
_PLACE = re.compile(r"\{(\w+)(?::([t!]))?\}")
# Leading signs and surrounding blanks are not part of a sentence.
_FRAME = re.compile(r"((?:\? )?[\s·✓✗⚠■◆○●‖↻→×…◂▸]*)(.*?)(\s*)", re.DOTALL)
_JOINT = re.compile(r" · |[;:,] ")
_LETTER = re.compile(r"[^\W\d_]")
_FORMS = {
    "span": re.compile(r"[\d.\s–smhd]+"),
    "age": re.compile(r"[\d.\s–smhd]+"),
    "place": re.compile(r"\S+"),
    "call": re.compile(r"[^,]+"),
}
_SUFFIX = re.compile(r"(\w)\(s\)")


class BadCatalogue(ValueError):  # noqa: N818 - the name is clear without Error
    """A catalog entry is invalid. The message contains the entry and the reason."""


class Words:
    """The wording of a language. Call it to translate a sentence. Tables of kinds are loaded on first use.

    Args:
        lang: the language.
        translate: translates English into that language.
    """

    def __init__(self, lang: Lang, translate: Callable[[str], str]) -> None:
        self.lang = lang
        self._translate = translate

    def __call__(self, text: str) -> str:
        """Translate an English sentence, or return it unchanged if there is no translation."""
        return self._translate(text)

    def moment(self, moment: Moment) -> str:
        """Return the text for a timeline event."""
        return self.sentence("moment", moment.kind, moment.values)

    def sentence(self, table: str, kind: str, values: Mapping[str, object] | None = None) -> str:
        """Return the sentence for a kind from a table in ``lang/*.toml``, filled with values."""
        return self._kinds.sentence(table, kind, values or {})

    @cached_property
    def _kinds(self) -> Kinds:
        return Kinds(self.lang, self._translate)


Tr: TypeAlias = Words

english = Words(Lang.EN, str)


def words_in(lang: Lang) -> Words:
    """Return the wording for a language. The sentence catalog is loaded only if needed."""
    return english if lang is Lang.EN else Words(lang, Translator(catalogue(lang)))


def catalogue(lang: Lang) -> dict[str, str]:
    """Return a language's sentences keyed by their English text, from every section except the tables of kinds.

    Raises:
        BadCatalogue: an English sentence occurs twice.
    """
    entries: dict[str, str] = {}
    for name, section in sections(lang).items():
        for key, value in section.items() if name != "kind" else ():
            if key in entries:
                raise BadCatalogue(f"{key}: it stands twice")
            entries[key] = value
    return entries


class _Template(NamedTuple):
    """A sentence template. `pieces` surround captured `names`; `value` alternates literals and names; `modes` is keyed by name."""

    pieces: tuple[str, ...]
    names: tuple[str, ...]
    value: tuple[str, ...]
    modes: Mapping[str, str]

    def captured(self, text: str) -> dict[str, str] | None:
        """Return the captured strings, or None if there is no match. Takes linear time: each piece is searched for only once."""
        first, *between, last = self.pieces
        at, end = len(first), len(text) - len(last)
        if end <= at or not text.startswith(first) or not text.endswith(last):
            return None
        found: list[str] = []
        for piece in between:
            place = text.find(piece, at + 1, end)
            if place < 0:
                return None
            found.append(text[at:place])
            at = place + len(piece)
        if end <= at:
            return None
        found.append(text[at:end])
        if not all(map(_may_stand, self.names, found)):
            return None
        return dict(zip(self.names, found, strict=True))


class Translator:
    """Translates sentences by looking them up in a catalog, whole or by template, and caches the results.

    In a key, a placeholder matches any text, but a one-letter name matches a number (no letters), ``span`` and ``age`` a
    duration, ``place`` a word, and ``call`` a clause. ``word(s)`` is singular or plural. In a value, ``{name}`` is the text
    and ``{name:t}`` its translation, if any; ``{name:!}`` requires a translation. Without an entry, clauses joined by
    `` · ``, ``;``, ``:`` or ``,`` are translated separately, keeping outer punctuation and spaces.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._exact: dict[str, str] = {}
        self._templates: list[tuple[str, _Template]] = []  # each with its longest piece, longest first
        for key, value in entries.items():
            for form in {_SUFFIX.sub(r"\1", key), _SUFFIX.sub(r"\1s", key)}:
                self._enter(form, value)
        self._templates.sort(key=lambda each: -sum(map(len, each[1].pieces)))
        self._remembered = lru_cache(REMEMBERED)(self._shown)

    def __call__(self, text: str) -> str:
        """Return the text in the catalog's language, or unchanged if it has no entry."""
        return self._remembered(text)

    def _enter(self, form: str, value: str) -> None:
        if not _PLACE.search(form):
            self._exact[form] = value
            return
        key_parts, value_parts = _PLACE.split(form), _PLACE.split(value)
        pieces, names = tuple(key_parts[::3]), tuple(key_parts[1::3])
        modes = {name: mode or "" for name, mode in zip(value_parts[1::3], value_parts[2::3], strict=True)}
        if not all(pieces[1:-1]):
            raise BadCatalogue(f"{form}: two places with nothing between them")
        if set(modes) != set(names) or len(set(names)) != len(names):
            raise BadCatalogue(f"{form}: the places differ from those of {value}")
        kept = tuple(part for at, part in enumerate(value_parts) if at % 3 != 2)
        self._templates.append((max(pieces, key=len), _Template(pieces, names, kept, modes)))

    def _shown(self, text: str, depth: int = DEEPEST) -> str:
        if not depth or len(text) > LONGEST or not (framed := _FRAME.fullmatch(text)):
            return text
        before, core, after = framed.groups()
        shown = self._whole(core, depth)
        if shown is None:
            shown = self._parts(core, depth)
        return text if shown is None else f"{before}{shown}{after}"

    def _whole(self, text: str, depth: int) -> str | None:
        if (found := self._exact.get(text)) is not None:
            return found
        filled = (self._filled(template, text, depth) for piece, template in self._templates if piece in text)
        return next((shown for shown in filled if shown is not None), None)

    def _filled(self, template: _Template, text: str, depth: int) -> str | None:
        captured = template.captured(text)
        if captured is None:
            return None
        for name, mode in template.modes.items():
            if mode:
                shown = self._shown(captured[name], depth - 1)
                if mode == "!" and shown == captured[name]:
                    return None
                captured[name] = shown
        return "".join(captured[part] if at % 2 else part for at, part in enumerate(template.value))

    def _parts(self, text: str, depth: int) -> str | None:
        joint = _JOINT.search(text)
        if joint is None:
            return None
        head, tail = text[: joint.start()], text[joint.end() :]
        shown = self._shown(head, depth - 1), self._shown(tail, depth - 1)
        if shown == (head, tail):
            return None
        return f"{shown[0]}{self._exact.get(joint[0], joint[0])}{shown[1]}"


def _may_stand(name: str, text: str) -> bool:
    """Check whether a placeholder with this name can match the text."""
    if (form := _FORMS.get(name)) is not None:
        return form.fullmatch(text) is not None
    return len(name) > 1 or not _LETTER.search(text)

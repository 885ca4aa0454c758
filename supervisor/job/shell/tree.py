"""The tree of a shell script: words with their quotes, commands, lists, conditions, loops."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, auto
from typing import Any


class Kind(Enum):
    """What a part of a word is."""

    TEXT = auto()
    PARAM = auto()  # what stands within ${}
    COMMAND = auto()  # what stands within $()
    ARITHMETIC = auto()  # what stands within $(())
    PROCESS = auto()  # <(...), >(...)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word: literal text, or the text of an expansion."""

    kind: Kind
    text: str
    quoted: bool = False


Word = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    """``NAME=word``, ``NAME+=word`` or ``NAME=(word word)``."""

    name: str
    value: Word = ()
    items: tuple[Word, ...] = ()
    is_array: bool = False
    append: bool = False
    element: bool = False  # NAME[i]=word


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words; also ``[[ ... ]]``."""

    line: int
    assigns: tuple[Assign, ...]
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``(( ... ))``."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands joined by ``|``."""

    nodes: tuple[Node, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AndOr:
    """A command, and what ``&&`` and ``||`` add to it."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """A list; each with whether it is started in the background. `written`: of a whole script the files that its output goes to."""

    nodes: tuple[tuple[Node, bool], ...]
    written: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with what each leads to."""

    line: int
    arms: tuple[tuple[Commands, Commands], ...]
    otherwise: Commands | None


@dataclass(frozen=True, slots=True)
class For:
    """``for NAME in WORDS``; `words` None: over the arguments, or an arithmetic one. `shown`: for people."""

    line: int
    name: str
    words: tuple[Word, ...] | None
    body: Commands
    shown: str
    counted: bool = False


@dataclass(frozen=True, slots=True)
class While:
    """``while``, or ``until``."""

    line: int
    condition: Commands
    body: Commands
    until: bool
    shown: str


@dataclass(frozen=True, slots=True)
class Case:
    """``case WORD in``: the patterns of each arm, and what it runs."""

    line: int
    word: Word
    arms: tuple[tuple[tuple[Word, ...], Commands], ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function's definition."""

    line: int
    name: str
    body: Node


@dataclass(frozen=True, slots=True)
class Group:
    """``{ ... }``, or ``( ... )`` in a shell of its own."""

    body: Commands
    subshell: bool


Node = Simple | Arithmetic | Pipeline | AndOr | Commands | If | For | While | Case | Function | Group


def walk(node: Any) -> list[Any]:
    """A tree's nodes and their parts, the root first."""
    found, open_ = [], [node]
    while open_:
        each = open_.pop()
        if isinstance(each, tuple):
            open_ += each
        elif is_dataclass(each):
            found.append(each)
            open_ += [getattr(each, f.name) for f in fields(each)]
    return found


def first_words(node: Node) -> list[tuple[str, Simple]]:
    """The literal first word of each command within."""
    simple = [n for n in walk(node) if isinstance(n, Simple) and n.words]
    return [("".join(p.text for p in n.words[0]), n) for n in simple]


def leaves(body: Node) -> bool:
    """Whether a loop's body may end the loop, or a round of it, early."""
    return any(word in {"break", "continue"} for word, _ in first_words(body))


def returns(body: Node) -> bool:
    """Whether a function's body has a ``return``."""
    return any(word == "return" for word, _ in first_words(body))


def local_names(body: Node) -> list[str]:
    """The variables that a function has of its own."""
    found = [simple for word, simple in first_words(body) if word in {"local", "declare", "typeset"}]
    return [
        *(given.name for simple in found for given in simple.assigns),
        *(plain(word) for simple in found for word in simple.words[1:]),
    ]


def plain(word: Word) -> str:
    """The unquoted text of a word."""
    return "".join(part.text for part in word if not part.quoted)

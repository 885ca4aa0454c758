"""The text of a shell script to a tree of its commands: words with their quotes, lists, pipelines, conditions, loops, functions.

The grammar is that of POSIX.1-2017, Shell Command Language (2.2 quoting, 2.6 the forms of expansions, 2.7 redirections, which are
passed over, 2.9 commands), and of bash: ``[[ ]]``, ``(( ))``, arrays, ``+=``, ``$'...'``, ``|&``, ``&>``, ``<<<``, ``function``.
``shlex`` splits words, but keeps neither quotes nor lines, which decide what a ``$NAME`` becomes; and the parsers of shells for Python are
under the GPL, or bindings to a compiled parser.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from supervisor.job.shell.tree import (
    AndOr,
    Arithmetic,
    Assign,
    Case,
    Commands,
    For,
    Function,
    Group,
    If,
    Kind,
    Node,
    Part,
    Pipeline,
    Simple,
    While,
    Word,
)

_BLANK: Final = " \t"
_META: Final = " \t\n;&|<>()"
_RESERVED: Final = re.compile(
    r"(if|then|elif|else|fi|for|select|while|until|do|done|case|esac|function|\{|\}|!|\[\[|time)(?=[\s;&|()<>]|$)"
)
_REDIRECT: Final = re.compile(r"(\d*|\{\w+\})(<<<|<<-?|&>>?|<>|>\||[<>]&|>>|[<>])")
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_NAME: Final = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "e": "\x1b"}
_DEEPEST: Final = 60


class ShellError(Exception):
    """Why a script cannot be read, and at which line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.why = why


@lru_cache(maxsize=16)  # a script is followed once for each setting that is tried
def parse_script(text: str) -> Commands:
    """The commands of a script.

    Raises:
        ShellError: it is not understood.
    """
    return _Parser(text).whole()


def parse_word(text: str, *, quoted: bool) -> Word:
    """A word that stands within ``${NAME:-word}``; blanks do not end it."""
    parser = _Parser(text)
    if quoted:
        return parser.double_quoted(closed=False)
    return parser.word(ends="")


class _Parser:
    """One pass over a text; `at` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._depth = 0
        self._written: list[Word] = []
        self._heredocs: list[tuple[str, bool]] = []
        self._newlines = [i for i, char in enumerate(text) if char == "\n"]

    # -- characters

    @property
    def line(self) -> int:
        return bisect_right(self._newlines, self.at - 1) + 1

    def _error(self, why: str) -> ShellError:
        return ShellError(self.line, why)

    def _starts(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _char(self) -> str:
        return self.text[self.at : self.at + 1]

    def _blanks(self) -> None:
        """Blanks, continued lines and comments."""
        while True:
            if self._char() and self._char() in _BLANK:
                self.at += 1
            elif self._starts("\\\n"):
                self.at += 2
            elif self._char() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _newline(self) -> None:
        """One line's end, with the here-documents that begin behind it."""
        self.at += 1
        for mark, tabs in self._heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line) == mark:
                    break
        self._heredocs.clear()

    def _gap(self) -> None:
        """Blanks and line ends."""
        self._blanks()
        while self._char() == "\n":
            self._newline()
            self._blanks()

    # -- words

    def word(self, ends: str = _META) -> Word:
        """The parts of a word up to one of `ends`."""
        parts: list[Part] = []
        while (char := self._char()) and char not in ends:
            if char == "'":
                parts.append(Part(Kind.TEXT, self._up_to("'"), quoted=True))
            elif char == '"':
                self.at += 1
                parts += self.double_quoted(closed=True)
            elif char == "\\":
                after = self.text[self.at + 1 : self.at + 2]
                if after and after != "\n":
                    parts.append(Part(Kind.TEXT, after, quoted=True))
                self.at += 2
            elif self._starts("$'"):
                self.at += 1
                parts.append(Part(Kind.TEXT, self._ansi(), quoted=True))
            elif self._starts('$"'):
                self.at += 1
            elif char in "$`":
                parts.append(self._expansion(quoted=False))
            else:
                start = self.at
                while (char := self._char()) and char not in ends and char not in "'\"\\$`":
                    self.at += 1
                parts.append(Part(Kind.TEXT, self.text[start : self.at]))
        return tuple(parts)

    def double_quoted(self, *, closed: bool) -> Word:
        """The parts up to the closing quote, or to the end; at least an empty text."""
        parts: list[Part] = [Part(Kind.TEXT, "", quoted=True)]
        text: list[str] = []
        while (char := self._char()) != '"' or not closed:
            if not char:
                if closed:
                    raise self._error("has a quote that is not closed")
                break
            if char == "\\" and (after := self.text[self.at + 1 : self.at + 2]) and after in '$`"\\\n':
                text.append("" if after == "\n" else after)
                self.at += 2
            elif char in "$`":
                parts.append(Part(Kind.TEXT, "".join(text), quoted=True))
                text.clear()
                parts.append(self._expansion(quoted=True))
            else:
                text.append(char)
                self.at += 1
        self.at += 1
        return (*parts, Part(Kind.TEXT, "".join(text), quoted=True))

    def _up_to(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self._error("has a quote that is not closed")
        text = self.text[self.at + 1 : end]
        self.at = end + 1
        return text

    def _ansi(self) -> str:
        found, at = [], self.at + 1
        while at < len(self.text) and self.text[at] != "'":
            if self.text[at] == "\\":
                found.append(_ESCAPES.get(self.text[at + 1 : at + 2], self.text[at : at + 2]))
                at += 2
            else:
                found.append(self.text[at])
                at += 1
        if at >= len(self.text):
            raise self._error("has a quote that is not closed")
        self.at = at + 1
        return "".join(found)

    def _expansion(self, *, quoted: bool) -> Part:
        """What a dollar or a backtick begins."""
        if self._char() == "`":
            text = self._up_to("`").replace("\\`", "`").replace("\\$", "$").replace("\\\\", "\\")
            return Part(Kind.COMMAND, text, quoted)
        if self._starts("$(("):
            inner = self._enclosed(1, "(", ")")
            if inner.startswith("(") and inner.endswith(")"):
                return Part(Kind.ARITHMETIC, inner[1:-1], quoted)
            return Part(Kind.COMMAND, inner, quoted)
        if self._starts("$("):
            return Part(Kind.COMMAND, self._enclosed(1, "(", ")"), quoted)
        if self._starts("${"):
            return Part(Kind.PARAM, self._enclosed(1, "{", "}"), quoted)
        name = _NAME.match(self.text, self.at + 1)
        if name is None:
            self.at += 1
            return Part(Kind.TEXT, "$", quoted)
        self.at = name.end()
        return Part(Kind.PARAM, name[0], quoted)

    def _enclosed(self, ahead: int, opening: str, closing: str) -> str:
        """The text within brackets that open `ahead` characters further; quotes and nested ones are passed over."""
        start = at = self.at + ahead
        open_: list[str] = []
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif char == "'" and open_[-1:] != ['"']:
                at = self.text.find("'", at + 1)
                if at < 0:
                    break
            elif char == '"':
                if open_[-1:] == ['"']:
                    open_.pop()
                else:
                    open_.append('"')
            elif self.text.startswith(("$(", "${"), at):
                open_.append(")" if self.text[at + 1] == "(" else "}")
                at += 1
            elif char == opening and open_[-1:] != ['"']:
                open_.append(closing)
            elif open_ and char == open_[-1]:
                open_.pop()
                if not open_:
                    self.at = at + 1
                    return self.text[start + 1 : at]
            at += 1
        raise self._error(f"has a {opening!r} that is not closed")

    # -- commands

    def whole(self) -> Commands:
        found = self._commands(frozenset())
        if self.at < len(self.text):
            raise self._error(f"has a {self._char()!r} that is not understood")
        return Commands(found.nodes, tuple(self._written))

    def _commands(self, ends: frozenset[str]) -> Commands:
        """Commands up to one of the words `ends`, to a closing bracket, or to the end of a case's arm."""
        nodes: list[tuple[Node, bool]] = []
        while True:
            self._gap()
            if not self._char() or self._char() == ")" or self._starts(";;") or self._starts(";&"):
                break
            reserved = _RESERVED.match(self.text, self.at)
            if reserved is not None and reserved[1] in ends:
                break
            before = self.at
            node = self._and_or()
            self._blanks()
            background = self._char() == "&"
            if background or (self._char() == ";" and not self._starts(";;") and not self._starts(";&")):
                self.at += 1
            nodes.append((node, background))
            if self.at == before:
                raise self._error(f"has a {self._char()!r} that is not understood")
        return Commands(tuple(nodes))

    def _and_or(self) -> Node:
        first = self._pipeline()
        rest: list[tuple[str, Node]] = []
        while True:
            self._blanks()
            if not (self._starts("&&") or self._starts("||")):
                return AndOr(first, tuple(rest)) if rest else first
            operator = self.text[self.at : self.at + 2]
            self.at += 2
            self._gap()
            rest.append((operator, self._pipeline()))

    def _pipeline(self) -> Node:
        negated, nodes = False, []
        while (word := _RESERVED.match(self.text, self.at)) is not None and word[1] in {"!", "time"}:
            negated ^= word[1] == "!"
            self.at = word.end()
            self._blanks()
        while True:
            nodes.append(self._command())
            self._blanks()
            if self._char() != "|" or self._starts("||"):
                break
            self.at += 2 if self._starts("|&") else 1
            self._gap()
        return Pipeline(tuple(nodes), negated) if negated or len(nodes) > 1 else nodes[0]

    def _command(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("is nested too deeply")
        self._blanks()
        reserved = _RESERVED.match(self.text, self.at)
        readers: dict[str, Callable[[], Node]] = {
            "if": self._if,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "case": self._case,
            "function": self._function,
            "{": self._group,
            "[[": self._condition,
        }
        node: Node
        if self._starts("(("):
            line = self.line
            text = self._enclosed(0, "(", ")")
            node = Arithmetic(line, text[1:-1])
        elif self._char() == "(":
            self.at += 1
            node = Group(self._commands(frozenset()), subshell=True)
            self._closing(")")
        elif reserved is not None and reserved[1] in readers:
            node = readers[reserved[1]]()
        elif reserved is not None:
            raise self._error(f"has a {reserved[1]!r} that is not understood")
        else:
            node = self._simple()
        if not isinstance(node, Simple) or node.words[:1] == ((Part(Kind.TEXT, "[["),),):
            self._redirections()
        self._depth -= 1
        return node

    def _closing(self, text: str) -> None:
        self._gap()
        if not self._starts(text):
            raise self._error(f"lacks a {text!r}")
        self.at += len(text)

    def _redirections(self) -> None:
        """Passes over redirections."""
        while True:
            self._blanks()
            found = _REDIRECT.match(self.text, self.at)
            if found is None or self._starts("<(") or self._starts(">("):
                return
            self.at = found.end()
            self._blanks()
            if self._starts("<(") or self._starts(">("):
                self._enclosed(1, "(", ")")
                continue
            word = self.word()
            if found[2].startswith("<<") and found[2] != "<<<":
                self._heredocs.append(("".join(p.text for p in word), found[2] == "<<-"))
            if ">" in found[2]:
                self._written.append(word)

    def _simple(self) -> Node:
        line = self.line
        assigns: list[Assign] = []
        words: list[Word] = []
        while True:
            self._redirections()
            if self._starts("<(") or self._starts(">("):
                words.append((Part(Kind.PROCESS, self._enclosed(1, "(", ")")),))
                continue
            if not self._char() or self._char() in _META:
                break
            assigned = _ASSIGNED.match(self.text, self.at)
            declares = words and words[0] in _DECLARES
            if assigned is not None and (not words or declares):
                assigns.append(self._assign(assigned))
                continue
            words.append(self.word())
            if len(words) == 1 and not assigns and re.compile(r"[ \t]*\([ \t]*\)").match(self.text, self.at):
                self.at = self.text.index(")", self.at) + 1
                return self._body_of("".join(p.text for p in words[0]), line)
        if self._char() == "(":
            raise self._error("has a '(' that is not understood")
        return Simple(line, tuple(assigns), tuple(words))

    def _assign(self, found: re.Match[str]) -> Assign:
        self.at = found.end()
        name, element, append = found[1], found[2] is not None, found[3] == "+"
        if self._char() != "(":
            return Assign(name, self.word(), append=append, element=element)
        self.at += 1
        items: list[Word] = []
        while True:
            self._gap()
            if self._char() == ")":
                self.at += 1
                return Assign(name, (), tuple(items), True, append, element)
            if not self._char() or self._char() in _META:
                raise self._error("has an array that is not closed")
            items.append(self.word())

    def _condition(self) -> Node:
        """``[[ ... ]]``: its operators are words."""
        line = self.line
        words: list[Word] = [(Part(Kind.TEXT, "[["),)]
        self.at += 2
        while True:
            self._gap()
            if not self._char():
                raise self._error("has a '[[' that is not closed")
            if re.compile(r"\]\](?=[\s;&|()<>]|$)").match(self.text, self.at):
                self.at += 2
                return Simple(line, (), tuple(words))
            operator = re.compile(r"&&|\|\||[()<>]").match(self.text, self.at)
            if operator is not None:
                self.at = operator.end()
                words.append((Part(Kind.TEXT, operator[0]),))
            elif words[-1] == (Part(Kind.TEXT, "=~"),):
                words.append(self.word(ends=" \t\n"))
            else:
                words.append(self.word())

    def _expect(self, word: str) -> None:
        self._gap()
        found = _RESERVED.match(self.text, self.at)
        if found is None or found[1] != word:
            raise self._error(f"lacks a {word!r}")
        self.at = found.end()

    def _next_is(self, word: str) -> bool:
        self._gap()
        found = _RESERVED.match(self.text, self.at)
        return found is not None and found[1] == word

    def _if(self) -> Node:
        line, arms, otherwise = self.line, [], None
        self.at += len("if")
        while True:
            condition = self._commands(frozenset({"then"}))
            self._expect("then")
            arms.append((condition, self._commands(frozenset({"elif", "else", "fi"}))))
            if not self._next_is("elif"):
                break
            self._expect("elif")
        if self._next_is("else"):
            self._expect("else")
            otherwise = self._commands(frozenset({"fi"}))
        self._expect("fi")
        return If(line, tuple(arms), otherwise)

    def _for(self) -> Node:
        line, start = self.line, self.at
        self.at = _RESERVED.match(self.text, self.at).end()  # type: ignore[union-attr]
        self._blanks()
        if self._starts("(("):
            shown = self._enclosed(0, "(", ")")[1:-1].strip()
            return For(line, "", None, self._loop_body(), shown, counted=True)
        name = "".join(p.text for p in self.word())
        self._gap()
        words: list[Word] | None = None
        if re.compile(r"in(?=[\s;])").match(self.text, self.at):
            self.at += 2
            words = []
            while True:
                self._blanks()
                if not self._char() or self._char() in "\n;":
                    break
                before = self.at
                words.append(self.word())
                if self.at == before:
                    raise self._error(f"has a {self._char()!r} that is not understood")
        counted = self.text.startswith("select", start)
        return For(line, name, None if words is None else tuple(words), self._loop_body(), name, counted)

    def _loop_body(self) -> Commands:
        self._blanks()
        if self._char() == ";":
            self.at += 1
        if self._next_is("{"):
            group = self._group()
            assert isinstance(group, Group)
            return group.body
        self._expect("do")
        body = self._commands(frozenset({"done"}))
        self._expect("done")
        return body

    def _while(self) -> Node:
        line, until = self.line, self._starts("until")
        self.at += len("while")
        start = self.at
        condition = self._commands(frozenset({"do"}))
        shown = self.text[start : self.at].strip().rstrip(";")
        return While(line, condition, self._loop_body(), until, shown)

    def _case(self) -> Node:
        line = self.line
        self.at += len("case")
        self._blanks()
        word = self.word()
        self._gap()
        if not re.compile(r"in(?=\s)").match(self.text, self.at):
            raise self._error("lacks an 'in'")
        self.at += 2
        arms: list[tuple[tuple[Word, ...], Commands]] = []
        while not self._next_is("esac"):
            if self._char() == "(":
                self.at += 1
            patterns: list[Word] = []
            while True:
                self._blanks()
                patterns.append(self.word())
                self._blanks()
                if self._char() != "|":
                    break
                self.at += 1
            self._closing(")")
            arms.append((tuple(patterns), self._commands(frozenset({"esac"}))))
            self._gap()
            if self._starts(";&") or self._starts(";;&"):
                raise self._error("has a case that falls through to the next")
            if self._starts(";;"):
                self.at += 2
        self._expect("esac")
        return Case(line, word, tuple(arms))

    def _group(self) -> Node:
        self.at += 1
        body = self._commands(frozenset({"}"}))
        self._expect("}")
        return Group(body, subshell=False)

    def _function(self) -> Node:
        line = self.line
        self.at += len("function")
        self._blanks()
        name = "".join(p.text for p in self.word())
        self._blanks()
        if self._starts("("):
            self.at += 1
            self._closing(")")
        return self._body_of(name, line)

    def _body_of(self, name: str, line: int) -> Node:
        self._gap()
        return Function(line, name, self._command())


_DECLARES: Final = frozenset(
    (Part(Kind.TEXT, name),) for name in ("export", "declare", "local", "typeset", "readonly")
)

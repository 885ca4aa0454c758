"""The words of a shell script as they become once its variables are known (POSIX.1-2017, Shell Command Language, 2.5 and 2.6).

What is known only at the start, as what a command prints, stays in a word as its own text between marks, with the reason. Such a text is one
word, or may be several: that decides whether the words behind it are still known. File names are not expanded: a pattern stays as it is.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from supervisor.job.shell.syntax import ShellError, parse_word
from supervisor.job.shell.tree import Assign, Function, Kind, Part, Word

# Around a text that is not known: one word; any number of words; between text and reason; its end. No script holds them.
_ONE: Final = "\ue000"
_ANY: Final = "\ue001"
_WHY: Final = "\ue002"
_END: Final = "\ue003"
MARKS: Final = frozenset({_ONE, _ANY, _WHY, _END})
_UNKNOWN: Final = re.compile(rf"([{_ONE}{_ANY}])([^{_WHY}]*){_WHY}([^{_END}]*){_END}")
_PIECE: Final = re.compile(rf"[{_ONE}{_ANY}][^{_END}]*{_END}|[ \t\n]+|[^ \t\n{_ONE}{_ANY}]+")
_PARAM: Final = re.compile(
    r"(?P<length>#(?=[\w@*]))?(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(\[(?P<index>[^\]]*)\])?(?P<rest>.*)",
    re.DOTALL,
)
_LARGEST: Final = 10**12
_LONGEST_CUT: Final = 2_000  # each length of it is compared with a pattern
_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int | None]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: int(a / b) if b and abs(a) < 2**50 else None,
    ast.Mod: lambda a, b: a - b * int(a / b) if b and abs(a) < 2**50 else None,
}

Value = str | list[str]


def unknown(text: str, why: str, *, one: bool) -> str:
    """A text that is known only at the start: one word, or any number of them."""
    clean = "".join(c for c in text if c not in MARKS)
    return f"{_ONE if one else _ANY}{clean}{_WHY}{why}{_END}"


def why_unknown(text: str) -> str | None:
    """Why a word is not known; None where it is."""
    found = _UNKNOWN.search(text)
    return found[3] if found is not None else None


def may_be_several(text: str) -> str | None:
    """Why a word may be any number of words; None where it is one."""
    found = next((m for m in _UNKNOWN.finditer(text) if m[1] == _ANY), None)
    return found[3] if found is not None else None


def shown(text: str) -> str:
    """A word for people: what is not known as the script writes it."""
    return _UNKNOWN.sub(lambda m: m[2], text)


def as_shell_text(text: str) -> str:
    """A word with unknown parts as a shell reads it, within double quotes."""
    pieces, at = [], 0
    for found in _UNKNOWN.finditer(text):
        pieces += [_escaped(text[at : found.start()]), found[2]]
        at = found.end()
    return f'"{"".join(pieces)}{_escaped(text[at:])}"'


def _escaped(text: str) -> str:
    return re.sub(r'([$`"\\])', r"\\\1", text)


def _one_word(text: str) -> str:
    return text.replace(_ANY, _ONE)


@dataclass
class State:
    """What a shell holds: variables, arguments, folder. `args`, `cwd` None: not known, `why` says why. `options`: of ``set``, by their long names."""

    variables: dict[str, Value]
    exported: set[str]
    args: list[str] | None
    cwd: str | None
    name: str
    functions: dict[str, Function] = field(default_factory=dict)
    ended: bool = False
    options: frozenset[str] = frozenset()
    why: str = ""

    def copy(self) -> State:
        """The state of a shell of its own."""
        variables = {n: list(v) if isinstance(v, list) else v for n, v in self.variables.items()}
        args = None if self.args is None else list(self.args)
        return State(
            variables, set(self.exported), args, self.cwd, self.name, dict(self.functions), self.ended, self.options, self.why,
        )  # fmt: skip


@dataclass
class Expander:
    """Expands words in one state.

    Attributes:
        state: the shell's.
        file: its script, for reasons.
        line: of the present command.
        output: what a command substitution prints; None: not known.
        open: collects the variables that a script leaves to whoever starts it.
    """

    state: State
    file: str
    output: Callable[[str, Expander], str | None]
    open: set[str]
    line: int = 0

    @property
    def at(self) -> str:
        """``train.sh:12``."""
        return f"{self.file}:{self.line}"

    def fields(self, words: Sequence[Word]) -> list[str]:
        """The words that these become."""
        return [field_ for word in words for field_ in self._fields_of(word)]

    def text(self, word: Word) -> str:
        """One word as a whole: as in an assignment, nothing is split."""
        values = [self._value(part) for part in self._with_home(word)]
        return "".join(v if isinstance(v, str) else " ".join(v) for v in values)

    def assigned(self, assign: Assign) -> Value:
        """What an assignment gives to its name."""
        if assign.is_array:
            return self.fields(assign.items)
        return self.text(assign.value)

    def _with_home(self, word: Word) -> Word:
        first = word[0] if word else None
        if first is None or first.kind is not Kind.TEXT or first.quoted:
            return word
        if not first.text.startswith("~/") and (first.text != "~" or len(word) > 1):
            return word
        home = self.state.variables.get("HOME")
        if not isinstance(home, str):
            return word
        return (Part(Kind.TEXT, home, quoted=True), Part(Kind.TEXT, first.text[1:]), *word[1:])

    def _fields_of(self, word: Word) -> list[str]:
        word = self._with_home(word)
        bare = "".join(p.text for p in word if p.kind is Kind.TEXT and not p.quoted)
        if re.search(r"\{[^{}]*(,|\.\.)[^{}]*\}", bare):
            written = "".join(p.text for p in word)
            return [unknown(written, f"{self.at} has {written}, which stands for several words", one=False)]
        fields: list[str | None] = [None]  # the last one is open; None: nothing of it is there yet
        none = False  # "$@" without arguments is no word, not an empty one
        for part in word:
            value = self._value(part)
            items = [value] if isinstance(value, str) else value
            none |= part.quoted and not items
            for i, item in enumerate(items):
                if i and fields[-1] is not None:
                    fields.append(None)
                if part.quoted or part.kind is Kind.TEXT:
                    fields[-1] = (fields[-1] or "") + (_one_word(item) if part.quoted else item)
                else:
                    _split(item, fields)
        return [text for text in fields if text is not None and (text or not none)]

    def _value(self, part: Part) -> Value:
        match part.kind:
            case Kind.TEXT:
                return part.text
            case Kind.PARAM:
                return self._param(part.text, part.quoted)
            case Kind.ARITHMETIC:
                number = self.arithmetic(part.text)
                text = f"$(({part.text}))"
                return (
                    unknown(text, f"{self.at} computes {text}", one=True) if number is None else str(number)
                )
            case Kind.COMMAND:
                printed = self.output(part.text, self)
                if printed is not None:
                    return printed
                text = f"$({part.text.strip()})"
                return unknown(text, f"{self.at} takes what {text} prints", one=_prints_one_word(part.text))
            case Kind.PROCESS:
                text = f"<({part.text})"
                return unknown(text, f"{self.at} reads {text}", one=True)

    def arithmetic(self, text: str) -> int | None:
        """The value of ``$((text))``; None: not known."""
        plain = self.text(parse_word(text, quoted=True)).strip()
        if MARKS & set(plain) or len(plain) > _LONGEST_CUT:
            return None
        try:
            tree = ast.parse(plain, mode="eval").body
            return self._number(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def _number(self, node: ast.expr) -> int | None:
        found: int | None = None
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                found = number
            case ast.Name(id=name):
                held = "" if name in _CHANGING else self.state.variables.get(name, "0")
                found = int(held) if isinstance(held, str) and re.fullmatch(r"-?\d{1,15}", held) else None
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self._number(operand)
                found = None if inner is None else -inner
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                a, b = self._number(left), self._number(right)
                found = None if a is None or b is None else _OPERATORS[type(operator)](a, b)
        return found if found is not None and abs(found) < _LARGEST else None

    # -- parameters

    def _param(self, text: str, quoted: bool) -> Value:
        found = _PARAM.fullmatch(text)
        if found is None:
            return self._not_known(text)
        name, index, rest = found["name"], found["index"], found["rest"]
        if name in {"@", "*"} and self.state.args is not None:
            value: Value | None = list(self.state.args)
        else:
            value = self._held(name)
        if value is None and name in {"@", "*"}:
            return unknown(f"${name}", self.state.why, one=False)
        if index is not None:
            value = self._element(value, index)
        elif isinstance(value, list) and name not in {"@", "*"}:
            value = value[0] if value else None
        if found["length"]:
            known = value is not None and not MARKS & set("".join(value))
            return str(len(value or "")) if known or value is None else self._not_known(text)
        changed = self._changed(name, value, rest, quoted, text)
        if isinstance(changed, list) and (name == "*" or index == "*") and quoted:
            return " ".join(changed)
        return changed

    def _not_known(self, text: str) -> str:
        written = f"${{{text}}}"
        return unknown(written, f"{self.at} uses {written}, which is not understood", one=True)

    def _held(self, name: str) -> Value | None:
        """What a variable, an argument or a special parameter holds; None: not set."""
        args = self.state.args
        if name.isdigit():
            if name == "0":
                return self.state.name
            if args is None:
                return unknown(f"${name}", self.state.why, one=False)
            return args[int(name) - 1] if int(name) <= len(args) else None
        if name == "#":
            return unknown("$#", self.state.why, one=True) if args is None else str(len(args))
        if name in _CHANGING:
            return unknown(f"${name}", f"{self.at} uses ${name}", one=True)
        if name == "PWD":
            return self._folder()
        if name == "BASH_SOURCE":
            return [self.state.name]
        if name not in self.state.variables or name in self.state.exported:
            self.open.add(name)
        return self.state.variables.get(name)

    def _folder(self) -> str:
        cwd = self.state.cwd
        return unknown("$PWD", self.state.why, one=True) if cwd is None else cwd

    @staticmethod
    def _element(value: Value | None, index: str) -> Value | None:
        items = value if isinstance(value, list) else [] if value is None else [value]
        if index in {"@", "*"}:
            return list(items)
        if not re.fullmatch(r"-?\d{1,6}", index):
            return unknown(f"[{index}]", f"an array's element [{index}] is not known", one=False)
        return items[int(index)] if -len(items) <= int(index) < len(items) else None

    def _changed(self, name: str, value: Value | None, rest: str, quoted: bool, text: str) -> Value:
        """What a form such as ``:-word`` or ``##*/`` makes of a value."""
        if not rest:
            return "" if value is None else value
        default = re.match(r"(:?)([-=?+])(.*)", rest, re.DOTALL)
        if default is not None:
            return self._defaulted(name, value, default, quoted, text)
        changed = self._slice(name, value, rest) if isinstance(value, list) else self._cut(value or "", rest)
        return self._not_known(text) if changed is None else changed

    def _defaulted(
        self, name: str, value: Value | None, form: re.Match[str], quoted: bool, text: str
    ) -> Value:
        """``${X:-word}``, ``${X:=word}``, ``${X:?word}``, ``${X:+word}``, and the same without the colon."""
        unset = value is None or (form[1] == ":" and value in ("", []))
        if value is not None and MARKS & set("".join(value)) and form[1]:
            return self._not_known(text) if form[2] == "+" else value
        if unset == (form[2] == "+"):
            return "" if unset or value is None else value
        if form[2] == "?":
            raise ShellError(self.line, f"needs {name} to be set")
        word = self._default(form[3], quoted)
        if form[2] == "=":
            self.state.variables[name] = word if isinstance(word, str) else " ".join(word)
        return word

    def _default(self, text: str, quoted: bool) -> Value:
        word = parse_word(text, quoted=quoted)
        if quoted:
            return self.text(word)
        return self.fields([word]) if text else ""

    @staticmethod
    def _slice(name: str, value: list[str], rest: str) -> list[str] | None:
        """``${@:2}``, ``${ARGS[@]:1:2}``."""
        found = re.fullmatch(r":\s*(\d{1,4})(?::\s*(\d{1,4}))?", rest)
        if found is None:
            return None
        first = int(found[1]) - (1 if name in {"@", "*"} else 0)
        if first < 0:
            return None
        return value[first : first + int(found[2]) if found[2] else None]

    def _cut(self, value: str, rest: str) -> str | None:
        """``${X%.*}``, ``${X##*/}``, ``${X^^}``; None: not understood."""
        if MARKS & set(value) or len(value) > _LONGEST_CUT:
            return None
        if rest in {"^^", ",,"}:
            return value.upper() if rest == "^^" else value.lower()
        found = re.fullmatch(r"(%%?|##?)(.*)", rest, re.DOTALL)
        if found is None:
            return None
        pattern = self.text(parse_word(found[2], quoted=False))
        if MARKS & set(pattern):
            return None
        ends = range(len(value) + 1)
        from_front, longest = found[1][0] == "#", len(found[1]) == 2
        sizes = reversed(ends) if longest else ends
        for size in sizes:
            part = value[:size] if from_front else value[len(value) - size :]
            if fnmatch.fnmatchcase(part, pattern):
                return value[size:] if from_front else value[: len(value) - size]
        return value


def _split(text: str, fields: list[str | None]) -> None:
    """Adds an unquoted value to the open field, cut at its blanks."""
    pieces: list[str] = _PIECE.findall(text)
    for piece in pieces:
        if piece.isspace():
            if fields[-1] is not None:
                fields.append(None)
        else:
            fields[-1] = (fields[-1] or "") + piece


# Parameters whose value is another at each start.
_CHANGING: Final = frozenset(
    {"?", "$", "!", "-", "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "BASHPID", "PPID", "LINENO"}
)
# Commands that print one word, whatever it is, unless they are asked for more.
_PRINT_ONE_WORD: Final = re.compile(
    r"(basename|dirname|nproc|wc|shuf|realpath|readlink|pwd|whoami|uuidgen|mktemp|expr|which|bc|hostname(?!\s+-I)|date(?=\s+([\"']?\+[^\s\"']+[\"']?|\+[\"'][^\s\"']+[\"'])\s*$))\b"
)


def _prints_one_word(text: str) -> bool:
    """Whether the last command of a pipeline is one that prints one word."""
    return _PRINT_ONE_WORD.match(text.rpartition("|")[2].strip()) is not None

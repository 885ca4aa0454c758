"""What a shell script would start: its commands are followed one by one with the variables that are known, and none of them is run.

Conditions that are known decide; where one is not, both ways must start the same, and a variable that they set otherwise is not known. A
training in a loop, in a function or behind another program is refused with its line.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from supervisor.job.arguments.launchers import LAUNCHERS, read_launch
from supervisor.job.shell.expand import MARKS, Expander, State, may_be_several, shown, unknown, why_unknown
from supervisor.job.shell.syntax import (
    AndOr,
    Arithmetic,
    Assign,
    Case,
    Commands,
    For,
    Function,
    Group,
    If,
    Node,
    Pipeline,
    ShellError,
    Simple,
    While,
    Word,
    parse_script,
)

Read = Callable[[str], str | None]

SHELLS: Final = frozenset({"bash", "sh", "dash"})
MAX_CHARS: Final = 200_000
_MOST_COMMANDS: Final = 5_000
_MOST_ROUNDS: Final = 200
_DEEPEST: Final = 4
# Words before a command that start it as it is.
_BEFORE: Final = frozenset({"nohup", "exec", "command", "builtin", "time", "setsid", "env"})
_NO_TRAINING: Final = re.compile(
    r"(^|[_.-])(pre_?proc\w*|prepare\w*|make|build|download\w*|convert\w*|merge\w*|export\w*|plot\w*|eval\w*|test\w*|infer\w*|predict\w*|score\w*|analy[sz]\w*"
    r"|extract\w*|tokeniz\w*|split\w*|average\w*|upload\w*|demo|serve|decode\w*|visuali[sz]\w*|benchmark\w*|summar\w*|collect\w*|check\w*|get|setup|install\w*)"
    r"([_.-]|$)",
    re.IGNORECASE,
)
_TRAINS: Final = re.compile(r"train|tun(e|ing)|(^|[_.-])fit([_.-]|$)", re.IGNORECASE)
_TRAINING_VERBS: Final = frozenset({"train", "sft", "fit", "pretrain", "finetune", "fine-tune", "pt", "dpo"})
# Modules that are no training.
_TOOLS: Final = frozenset({"pip", "venv", "http", "json", "zipfile", "wandb", "site", "ensurepip", "compileall", "nltk", "spacy", "pytest", "unittest", "build", "ipykernel", "tensorboard"})  # fmt: skip
# Programs whose words name files, and that start none of them.
_HARMLESS: Final = frozenset(
    {
        "echo", "printf", "cat", "cp", "mv", "rm", "ls", "ln", "mkdir", "touch", "chmod", "grep", "egrep", "sed", "awk", "head", "tail", "tee", "wc", "sort",
        "git", "wget", "curl", "tar", "unzip", "gunzip", "find", "kill", "pkill", "killall", "ps", "which", "type", "sleep", "pip", "pip3", "diff", "du", "md5sum",
        "rsync", "scp", "aws", "gsutil", "rclone", "vi", "vim", "less", "module", "conda", "ulimit", "umask", "alias", "trap", "hash", "logger", "wandb", "huggingface-cli",
        "black", "ruff", "isort", "flake8", "mypy", "pylint", "pytest", "nvidia-smi", "bc", "expr", "seq", "date", "hostname",
    }
)  # fmt: skip
_SHELL_START: Final = re.compile(
    r"(activate|bashrc|(bash_)?profile|conda\.sh|mamba\.sh|setvars\.sh|virtualenvwrapper\.sh)$|^/etc/|^/opt/|^/usr/"
)
_SHEBANG: Final = re.compile(r"#!\s*\S*?/?(?:env\s+(?:-S\s+)?)?(\w+)(?:\s|$)")


class NotKnownError(Exception):
    """Why it is not known what a script starts: one clause that begins with the script and the line."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Started:
    """A command that a script starts.

    `words` may hold unknown parts (`expand.shown`). `env`: what the script sets for it. `background`: the script does not wait for it.
    """

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    file: str
    line: int
    background: bool = False

    @property
    def at(self) -> str:
        """``train.sh:12``."""
        return f"{self.file}:{self.line}"

    @property
    def same(self) -> tuple[object, ...]:
        """What makes two of them one command."""
        return self.words, self.env, self.cwd, self.background


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """What a script would do: the one training, the other commands, and variables that whoever starts it may set."""

    training: Started
    others: tuple[tuple[str, ...], ...]
    settable: tuple[str, ...]


class _Status(Enum):
    """How a command ends; RAN: as it ended in a training that began: most likely well."""

    YES = auto()
    NO = auto()
    MAYBE = auto()
    RAN = auto()


@dataclass
class _Seen:
    """What is collected over all shells of one start."""

    read: Read
    base: str
    given: Mapping[str, str]
    started: list[Started] = field(default_factory=list)
    aside: list[Started] = field(default_factory=list)
    others: list[tuple[str, ...]] = field(default_factory=list)
    through: list[str] = field(default_factory=list)
    defaulted: set[str] = field(default_factory=set)
    commands: int = 0

    def text(self, folder: str | None, name: str) -> str | None:
        """A file's text, by its name as a command in `folder` uses it."""
        if folder is None or MARKS & set(name):
            return None
        path = posixpath.normpath(posixpath.join(folder, name))
        below = self.base.rstrip("/") + "/"
        return self.read(path.removeprefix(below))


def shell_words(words: Sequence[str], read: Read) -> bool:
    """Whether a command line starts a shell script, or a shell with the commands themselves."""
    words, _ = _unwrapped(words)
    if not words:
        return False
    if posixpath.basename(words[0]) in SHELLS:
        return len(words) > 1
    return _is_script(words[0], read(words[0]) if "/" in words[0] else None)


def follow(words: Sequence[str], *, read: Read, env: Mapping[str, str], cwd: str) -> ScriptRun:
    """What the shell script on a command line would start.

    Args:
        words: the command line: ``bash train.sh 8``, ``./run.sh``.
        read: opens a file by its name below `cwd`, or by its path.
        env: what the shell will see.
        cwd: where it is started.

    Raises:
        NotKnownError: it is not known, or not one training.
    """
    seen = _Seen(read, cwd, env)
    words, own = _unwrapped(words)
    variables: dict[str, Any] = {**env, **dict(own)}
    state = State(variables, set(variables), [], cwd, "")
    name = _script_name(words)
    try:
        _Shell(seen, state, name, 0).start(words, 0)
    except ShellError as error:
        raise NotKnownError(f"{name}:{error.line} {error.why}") from error
    except RecursionError as error:
        raise NotKnownError(f"{name} is nested too deeply") from error
    return ScriptRun(_one_training(seen, name), tuple(seen.others), tuple(sorted(seen.defaulted)))


def _one_training(seen: _Seen, name: str) -> Started:
    """The training among all that is started."""
    found = list({s.same: s for s in seen.started}.values()) or list({s.same: s for s in seen.aside}.values())
    if not found and seen.through:
        raise NotKnownError(seen.through[0])
    if not found:
        raise NotKnownError(f"{name} starts no training that is recognised")
    if len(found) > 1:
        lines = ", ".join(dict.fromkeys(s.at.rpartition(":")[2] for s in found[:6]))
        raise NotKnownError(f"{name} starts several commands (lines {lines})")
    if len(seen.started or seen.aside) > 1:
        raise NotKnownError(f"{found[0].at} starts it more than once")
    if found[0].background:
        raise NotKnownError(f"{found[0].at} starts it in the background and does not wait for it")
    return found[0]


def _script_name(words: Sequence[str]) -> str:
    """The script's name for people."""
    if posixpath.basename(words[0]) not in SHELLS:
        return words[0]
    file, text, _ = _shell_arguments(words)
    return file if text is None else f"the commands behind {posixpath.basename(words[0])} -c"


def _shell_arguments(words: Sequence[str]) -> tuple[str, str | None, list[str]]:
    """Of ``bash -x train.sh 8`` the script and its arguments; of ``bash -c TEXT`` the text."""
    at = 1
    while at < len(words) and words[at].startswith(("-", "+")) and words[at] != "-":
        word = words[at]
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            text = words[at + 1] if at + 1 < len(words) else ""
            return (words[at + 2] if at + 2 < len(words) else "bash"), text, list(words[at + 3 :])
        at += 2 if word in {"-o", "+o", "--rcfile", "--init-file"} else 1
    if at >= len(words):
        raise NotKnownError("a shell without a script is started")
    return words[at], None, list(words[at + 1 :])


def _is_script(name: str, text: str | None) -> bool:
    if text is not None and text.startswith("#!"):
        found = _SHEBANG.match(text)
        return found is not None and found[1] in SHELLS
    return text is not None and name.endswith((".sh", ".bash"))


def _unwrapped(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """A command without ``env A=b``, ``nohup`` and their like, and the variables that they set."""
    rest, env = list(words), []
    while rest and rest[0] in _BEFORE and len(rest) > 1:
        name = rest.pop(0)
        while name == "env" and rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
            key, _, value = rest.pop(0).partition("=")
            env.append((key, value))
        if rest and rest[0].startswith("-"):
            return tuple(words), ()
    return tuple(rest), tuple(env)


class _Shell:
    """One shell that follows a script."""

    def __init__(self, seen: _Seen, state: State, file: str, depth: int) -> None:
        self._seen = seen
        self._depth = depth
        self._file = file
        self._state = state
        self._expand = Expander(state, file, self._output, seen.defaulted)

    def _use(self, state: State) -> None:
        """Continues in another state."""
        self._state = state
        self._expand = replace(self._expand, state=state)

    # -- scripts

    def start(self, words: Sequence[str], depth: int) -> None:
        """Follows the script that a command line starts, in this shell's state.

        Raises:
            NotKnownError: it cannot be read.
        """
        if posixpath.basename(words[0]) in SHELLS:
            file, text, args = _shell_arguments(words)
        else:
            file, text, args = words[0], None, list(words[1:])
        name = self._file
        if text is None:
            text, name = self._seen.text(self._state.cwd, file), file
            if text is None:
                raise NotKnownError(f"{file} could not be read")
        self._state.args, self._state.name = args, file
        self._follow_text(text, name, depth)

    def _follow_text(self, text: str, name: str, depth: int) -> None:
        if len(text) > MAX_CHARS or depth > _DEEPEST:
            raise NotKnownError(f"{name} is too long or starts too many others")
        if "\r\n" in text or "\x00" in text or MARKS & set(text):
            raise NotKnownError(f"{name} has line ends of Windows, or characters that no shell takes")
        inner = _Shell(self._seen, self._state, name, depth)
        try:
            inner._commands(parse_script(text))
        except ShellError as error:
            raise NotKnownError(f"{name}:{error.line} {error.why}") from error

    # -- lists

    def _commands(self, commands: Commands) -> _Status:
        status = _Status.YES
        for node, background in commands.nodes:
            if self._state.ended:
                break
            if background:
                self._in_background(node)
            else:
                status = self._node(node)
        return status

    def _in_background(self, node: Node) -> None:
        mark, aside = len(self._seen.started), len(self._seen.aside)
        self._apart(node)
        for list_, start in ((self._seen.started, mark), (self._seen.aside, aside)):
            list_[start:] = [replace(s, background=True) for s in list_[start:]]

    def _apart(self, node: Node) -> _Status:
        """A command in a shell of its own."""
        before = self._state
        self._use(before.copy())
        status = self._node(node)
        self._use(before)
        return status

    def _node(self, node: Node) -> _Status:
        match node:
            case Simple():
                return self._simple(node)
            case Commands():
                return self._commands(node)
            case Pipeline():
                status = [self._apart(each) for each in node.nodes][-1] if len(node.nodes) > 1 else self._node(node.nodes[0])  # fmt: skip
                opposite = {_Status.YES: _Status.NO, _Status.NO: _Status.YES, _Status.RAN: _Status.MAYBE}
                return opposite.get(status, status) if node.negated else status
            case AndOr():
                return self._and_or(node)
            case If():
                return self._if(node.line, node.arms, node.otherwise)
            case Case():
                return self._case(node)
            case For():
                return self._for(node)
            case While():
                return self._while(node)
            case Function():
                self._state.functions[node.name] = node
            case Group():
                return self._apart(node.body) if node.subshell else self._commands(node.body)
            case Arithmetic():
                return self._arithmetic(node)
        return _Status.YES

    def _and_or(self, node: AndOr) -> _Status:
        status = self._node(node.first)
        for operator, other in node.rest:
            if self._state.ended:
                break
            if status is _Status.MAYBE:
                self._either(self._expand.line, [partial(self._node, other), lambda: _Status.NO])
            elif status is _Status.RAN and operator == "||":
                self._refuse_training(other, "only if the command before it fails")
            elif (status is _Status.NO) == (operator == "||"):
                status = self._node(other)
        return status

    # -- conditions

    def _either(self, line: int, ways: Sequence[Callable[[], object]]) -> None:
        """Follows ways of which only one is taken: they must start the same; what they leave otherwise is not known."""
        seen, before = self._seen, self._state
        ends: list[State] = []
        starts: list[list[Started]] = []
        mark, aside = len(seen.started), len(seen.aside)
        for way in ways:
            self._use(before.copy())
            way()
            new = seen.started[mark:]
            del seen.started[mark:], seen.aside[aside:]
            if new or not self._state.ended:
                ends.append(self._state)
                starts.append(new)
        if any([s.same for s in new] != [s.same for s in starts[0]] for new in starts):
            raise NotKnownError(f"{self._file}:{line} decides only at the start which command is started")
        seen.started += starts[0] if starts else []
        self._use(_merged(ends, before, f"{self._file}:{line}"))

    def _if(
        self, line: int, arms: Sequence[tuple[Commands, Commands]], otherwise: Commands | None
    ) -> _Status:
        if not arms:
            return self._commands(otherwise) if otherwise is not None else _Status.YES
        (condition, body), rest = arms[0], arms[1:]
        match self._commands(condition):
            case _Status.YES:
                return self._commands(body)
            case _Status.NO:
                return self._if(line, rest, otherwise)
        self._either(line, [lambda: self._commands(body), lambda: self._if(line, rest, otherwise)])
        return _Status.RAN

    def _case(self, node: Case) -> _Status:
        self._expand.line = node.line
        word = self._expand.text(node.word)
        if MARKS & set(word):
            ways: list[Callable[[], object]] = [partial(self._commands, body) for _, body in node.arms]
            self._either(node.line, [*ways, lambda: None])
            return _Status.RAN
        for patterns, body in node.arms:
            texts = [self._expand.text(pattern) for pattern in patterns]
            if any(MARKS & set(text) for text in texts):
                raise NotKnownError(f"{self._file}:{node.line} compares with what is not known")
            if any(fnmatch.fnmatchcase(word, text) for text in texts):
                return self._commands(body)
        return _Status.YES

    def _arithmetic(self, node: Arithmetic) -> _Status:
        self._expand.line = node.line
        compared = re.fullmatch(r"(.+?)(==|!=|<=|>=|<|>)(.+)", node.text.strip())
        if compared is not None:
            return _compared(self._expand.arithmetic(compared[1]), compared[2], self._expand.arithmetic(compared[3]))  # fmt: skip
        for name in re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", node.text):
            self._set(name, unknown(f"${name}", f"{self._file}:{node.line} computes {name}", one=True))
        return _Status.MAYBE

    # -- loops

    def _for(self, node: For) -> _Status:
        self._expand.line = node.line
        values: list[str] | None = None
        if not node.counted:
            values = self._state.args if node.words is None else self._expand.fields(node.words)
        over = f"in a loop over {node.shown}"
        if values is None or len(values) > _MOST_ROUNDS or any(MARKS & set(v) for v in values):
            self._repeat_unknown(node.line, node, over, node.body, [node.name] if node.name else [])
            return _Status.RAN
        for value in values:
            self._set(node.name, value)
            if len(values) == 1 and not _leaves(node.body):
                return self._commands(node.body)
            if not self._round(node.line, node, over, node.body):
                break
        return _Status.YES

    def _while(self, node: While) -> _Status:
        over = f"in a loop while {node.shown}"
        wanted = _Status.NO if node.until else _Status.YES
        for _ in range(_MOST_ROUNDS):
            status = self._commands(node.condition)
            if status not in {_Status.YES, _Status.NO}:
                break
            if status is not wanted:
                return _Status.YES
            if not self._round(node.line, node, over, node.body):
                return _Status.YES
        self._repeat_unknown(node.line, node, over, node.body, [])
        return _Status.RAN

    def _round(self, line: int, node: Node, over: str, body: Commands) -> bool:
        """One round of a loop; False: nothing more of it is followed."""
        if _leaves(body):
            self._repeat_unknown(line, node, over, body, [])
            return False
        mark, aside = len(self._seen.started), len(self._seen.aside)
        self._commands(body)
        if len(self._seen.started) > mark:
            raise NotKnownError(f"{self._seen.started[mark].at} starts it {over}")
        del self._seen.aside[aside:]
        return not self._state.ended

    def _repeat_unknown(self, line: int, node: Node, over: str, body: Commands, names: Sequence[str]) -> None:
        """A loop of which is not known how often it runs, and with what: what it sets is not known, and it must start no training."""
        why = f"{self._file}:{line} sets it {over}"
        before = self._state
        for attempt in (0, 1):  # the second time with what the first one leaves unknown
            if attempt:
                self._use(before.copy())
            _forget(self._state, node, names, why)
            if not attempt:
                continue
            self._refuse_training(body, over)
        self._use(before)

    def _refuse_training(self, node: Node, how: str) -> None:
        """Follows a command that may be run or not, and must start no training."""
        seen, before = self._seen, self._state
        mark, aside = len(seen.started), len(seen.aside)
        self._use(before.copy())
        self._node(node)
        self._use(before)
        if len(seen.started) > mark:
            raise NotKnownError(f"{seen.started[mark].at} starts it {how}")
        del seen.aside[aside:]

    # -- simple commands

    def _simple(self, node: Simple) -> _Status:
        self._expand.line = node.line
        self._seen.commands += 1
        if self._seen.commands > _MOST_COMMANDS:
            raise NotKnownError(f"{self._file}:{node.line} comes after too many other commands")
        if not node.words:
            for assign in node.assigns:
                self._assign(assign)
            return _Status.YES
        if node.words[0][:1] and self._plain(node.words[0]) == "[[":
            return self._test([self._expand.text(word) for word in node.words[1:]], node.words[1:])
        words = self._expand.fields(node.words)
        if not words:
            return _Status.YES
        several = may_be_several(words[0])
        if several is not None:
            self._seen.through.append(
                f"{self._file}:{node.line} starts a command that is not known: {several}"
            )
            return _Status.RAN
        if words[0] in self._state.functions:
            return self._call(words)
        builtin = getattr(self, f"_do_{_BUILTINS.get(words[0], '')}", None)
        if builtin is not None:
            status = builtin(words, node)
            assert isinstance(status, _Status)
            return status
        prefix = [(a.name, value) for a in node.assigns if isinstance(value := self._expand.assigned(a), str)]
        return self._external(words, prefix, node)

    @staticmethod
    def _plain(word: Word) -> str:
        return "".join(part.text for part in word if not part.quoted)

    def _assign(self, assign: Assign, *, exported: bool = False) -> None:
        value: str | list[str] = self._expand.assigned(assign)
        if assign.element:
            value = unknown(
                f"${assign.name}", f"{self._expand.at} sets an element of {assign.name}", one=False
            )
        elif assign.append:
            old = self._state.variables.get(assign.name, [] if assign.is_array else "")
            if isinstance(value, list):
                value = [*([old] if isinstance(old, str) else old), *value]
            elif isinstance(old, list):
                value = [(old[0] if old else "") + value, *old[1:]]
            else:
                value = old + value
        self._set(assign.name, value)
        if exported:
            self._state.exported.add(assign.name)

    def _set(self, name: str, value: str | list[str]) -> None:
        self._state.variables[name] = value
        if self._state.exports_all:
            self._state.exported.add(name)

    def _call(self, words: Sequence[str]) -> _Status:
        function = self._state.functions[words[0]]
        mark, aside = len(self._seen.started), len(self._seen.aside)
        if self._depth > _DEEPEST * 4:
            raise NotKnownError(f"{self._expand.at} calls functions too deeply")
        args, self._state.args = self._state.args, list(words[1:])
        self._depth += 1
        status = self._node(function.body)
        self._depth -= 1
        self._state.args = args
        if len(self._seen.started) > mark:
            raise NotKnownError(f"{self._seen.started[mark].at} starts it in the function {words[0]}")
        del self._seen.aside[aside:]
        if _returns(function.body):
            self._state.ended = False
        return _Status.MAYBE if status is _Status.YES else status

    # -- builtins: each gets its words and the command

    def _do_true(self, words: list[str], _: Simple) -> _Status:
        return _Status.NO if words[0] == "false" else _Status.YES

    def _do_test(self, words: list[str], _: Simple) -> _Status:
        given = words[1:-1] if words[0] == "[" and words[-1] == "]" else words[1:]
        return self._test(given, None)

    def _do_declare(self, words: list[str], node: Simple) -> _Status:
        exported = words[0] == "export" or any(re.fullmatch(r"-\w*x\w*", w) for w in words[1:])
        for assign in node.assigns:
            self._assign(assign, exported=exported)
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if equals and re.fullmatch(r"\w+", name):
                self._set(name, value)
            if exported and re.fullmatch(r"\w+", name) and words[1] != "-n":
                self._state.exported.add(name)
        return _Status.YES

    def _do_unset(self, words: list[str], _: Simple) -> _Status:
        for name in words[1:]:
            self._state.variables.pop(name, None)
            self._state.functions.pop(name, None)
        return _Status.YES

    def _do_cd(self, words: list[str], _: Simple) -> _Status:
        target = next((w for w in words[1:] if not w.startswith("-") or w == "-"), "~" if words[0] == "cd" else "-")  # fmt: skip
        if target == "~":
            target = str(self._state.variables.get("HOME", ""))
        why = why_unknown(target) or (
            f"{self._expand.at} goes back to an earlier folder" if target == "-" else None
        )
        if why is not None or self._state.cwd is None:
            self._state.cwd, self._state.why = None, why or self._state.why
        else:
            self._state.cwd = posixpath.normpath(posixpath.join(self._state.cwd, target))
        return _Status.YES

    def _do_popd(self, _: list[str], __: Simple) -> _Status:
        self._state.cwd, self._state.why = None, f"{self._expand.at} goes back to an earlier folder"
        return _Status.YES

    def _do_shift(self, words: list[str], _: Simple) -> _Status:
        count = words[1] if len(words) > 1 else "1"
        if self._state.args is None or not count.isdigit():
            self._state.args, self._state.why = (
                None,
                self._state.why or f"{self._expand.at} shifts the arguments",
            )
        elif int(count) <= len(self._state.args):
            self._state.args = self._state.args[int(count) :]
        return _Status.YES

    def _do_set(self, words: list[str], _: Simple) -> _Status:
        rest = list(words[1:])
        while rest and re.fullmatch(r"[-+]\w*", rest[0]) and rest[0] != "--":
            flag = rest.pop(0)
            name = rest.pop(0) if flag.endswith("o") and rest else ""
            if "a" in flag[1:] or name == "allexport":
                self._state.exports_all = flag[0] == "-"
        if rest[:1] == ["--"]:
            rest = rest[1:]
            self._state.args = rest
        elif rest:
            self._state.args = rest
        return _Status.YES

    def _do_exit(self, words: list[str], _: Simple) -> _Status:
        self._state.ended = True
        return _Status.NO if len(words) > 1 and words[1] != "0" else _Status.YES

    def _do_source(self, words: list[str], _: Simple) -> _Status:
        name = words[1] if len(words) > 1 else ""
        if _SHELL_START.search(name):
            return _Status.YES
        text = self._seen.text(self._state.cwd, name)
        if text is None:
            raise NotKnownError(f"{self._expand.at} reads {shown(name)}, which could not be opened")
        args = self._state.args
        if len(words) > 2:
            self._state.args = words[2:]
        self._follow_text(text, name, self._depth + 1)
        self._state.args = args
        return _Status.YES

    def _do_eval(self, words: list[str], _: Simple) -> _Status:
        text = " ".join(words[1:])
        if (why := why_unknown(text)) is not None:
            self._seen.through.append(f"{self._expand.at} evaluates what is not known: {why}")
            return _Status.RAN
        line = self._expand.line
        inner = _Shell(self._seen, self._state, self._file, self._depth + 1)
        if self._depth > _DEEPEST:
            raise NotKnownError(f"{self._expand.at} evaluates too deeply")
        mark = len(self._seen.started)
        inner._commands(parse_script(text))
        self._seen.started[mark:] = [replace(s, line=line) for s in self._seen.started[mark:]]
        return _Status.RAN

    def _do_read(self, words: list[str], _: Simple) -> _Status:
        for name in words[1:]:
            if re.fullmatch(r"[A-Za-z_]\w*", name):
                self._set(name, unknown(f"${name}", f"{self._expand.at} reads {name}", one=False))
        return _Status.MAYBE

    def _do_wait(self, _: list[str], __: Simple) -> _Status:
        for list_ in (self._seen.started, self._seen.aside):
            list_[:] = [replace(s, background=False) for s in list_]
        return _Status.RAN

    def _do_nothing(self, words: list[str], _: Simple) -> _Status:
        return _Status.MAYBE if words[0] == "getopts" else _Status.YES

    def _test(self, words: Sequence[str], raw: Sequence[Word] | None) -> _Status:
        """``[ ... ]``, ``test``; with `raw` ``[[ ... ]]``, whose right side is a pattern unless it is quoted."""
        if words[:1] == ["!"]:
            inner = self._test(words[1:], raw[1:] if raw is not None else None)
            return {_Status.YES: _Status.NO, _Status.NO: _Status.YES}.get(inner, inner)
        if any(MARKS & set(word) for word in words):
            return _Status.MAYBE
        if len(words) <= 1:
            return _Status.YES if words and words[0] else _Status.NO
        if len(words) == 2 and words[0] in {"-z", "-n"}:
            return _Status.YES if (words[1] == "") == (words[0] == "-z") else _Status.NO
        if len(words) != 3:
            return _Status.MAYBE
        left, operator, right = words
        if operator in {"=", "==", "!="}:
            if raw is not None and re.search(r"[*?\[]", self._plain(raw[2])):
                equal = fnmatch.fnmatchcase(left, right)
            else:
                equal = left == right
            return _Status.YES if equal == (operator != "!=") else _Status.NO
        numbers = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
        if operator in numbers and re.fullmatch(r"-?\d{1,15}", left) and re.fullmatch(r"-?\d{1,15}", right):
            return _compared(int(left), numbers[operator], int(right))
        return _Status.MAYBE

    # -- programs

    def _external(self, words: list[str], prefix: list[tuple[str, str]], node: Simple) -> _Status:
        """A program that is started."""
        rest, own = _unwrapped(words)
        replaced = words[0] == "exec"
        prefix = [*prefix, *own]
        base = posixpath.basename(rest[0])
        if base in SHELLS or _is_script(rest[0], self._seen.text(self._state.cwd, rest[0]) if "/" in rest[0] else None):  # fmt: skip
            self._nested(rest, prefix)
        else:
            self._program(rest, prefix, node)
        if replaced:
            self._state.ended = True
        return _Status.RAN

    def _nested(self, words: Sequence[str], prefix: Sequence[tuple[str, str]]) -> None:
        """Another script, in a shell of its own that sees what is exported."""
        if (why := next((w for w in map(why_unknown, words) if w), None)) is not None:
            self._seen.through.append(f"{self._expand.at} starts a script with what is not known: {why}")
            return
        variables = {n: v for n, v in self._state.variables.items() if n in self._state.exported}
        variables.update(dict(prefix))
        state = State(variables, set(variables), [], self._state.cwd, "", why=self._state.why)
        try:
            _Shell(self._seen, state, self._file, self._depth + 1).start(words, self._depth + 1)
        except NotKnownError as error:
            if not error.why.endswith("could not be read"):
                raise
            self._seen.through.append(
                f"{self._expand.at} starts {error.why.replace(' could', ', which could')}"
            )

    def _program(self, words: Sequence[str], prefix: Sequence[tuple[str, str]], node: Simple) -> None:
        base = posixpath.basename(words[0])
        if base in _HARMLESS:
            return
        launch = read_launch([shown(word) for word in words])
        target = launch.script or launch.module or (launch.program if launch.launchers else None)
        if target is not None and posixpath.basename(target) in SHELLS | {"python", "python3"} | _HARMLESS:
            self._seen.through.append(f"{self._expand.at} starts it through {base} and {target}")
            return
        verb = len(words) > 1 and words[1] in _TRAINING_VERBS
        console = (
            target is None and base not in _PROGRAMS and (verb or base == "tune" or _TRAINS.search(base))
        )
        if launch.module is not None and launch.module.partition(".")[0] in _TOOLS:
            return
        if target is None and not console:
            self._seen.others.append(tuple(words))
            if any(w.endswith(".py") or posixpath.basename(w) in LAUNCHERS | SHELLS for w in words[1:]):
                self._seen.through.append(f"{self._expand.at} starts it through {base}")
            return
        if self._state.cwd is None:
            raise NotKnownError(
                f"{self._expand.at} starts it in a folder that is not known: {self._state.why}"
            )
        name = target or base
        last = posixpath.basename(name) if launch.script else name.rpartition(".")[2]
        is_other = _NO_TRAINING.search(last.removesuffix(".py")) and not _TRAINS.search(last)
        into = self._seen.aside if is_other else self._seen.started
        if is_other:
            self._seen.others.append(tuple(words))
        into.append(Started(tuple(words), self._environment(prefix), self._state.cwd, self._file, node.line))

    def _environment(self, prefix: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """The variables that the script sets for a program."""
        held = {n: self._state.variables[n] for n in self._state.exported if n in self._state.variables}
        seen = {n: v for n, v in held.items() if isinstance(v, str)} | dict(prefix)
        return tuple((n, v) for n, v in sorted(seen.items()) if self._seen.given.get(n) != v)

    # -- what a command prints

    def _output(self, text: str, expand: Expander) -> str | None:
        """What ``$(text)`` becomes; None: not known."""
        try:
            nodes = parse_script(text).nodes
        except ShellError:
            return None
        steps: list[Node] = []
        for node, background in nodes:
            if background:
                return None
            steps += (
                [node.first, *(n for op, n in node.rest if op == "&&")] if isinstance(node, AndOr) else [node]
            )
        shell = _Shell(self._seen, expand.state.copy(), self._file, self._depth)
        shell._expand.line = expand.line
        for step in steps[:-1]:
            if not isinstance(step, Simple) or self._plain_words(step)[:1] != ["cd"]:
                return None
            shell._simple(replace(step, line=expand.line))
        last = steps[-1] if steps else None
        if not isinstance(last, Simple) or not last.words:
            return None
        return shell._printed(shell._expand.fields(last.words))

    def _plain_words(self, node: Simple) -> list[str]:
        return [self._plain(word) for word in node.words]

    def _printed(self, words: Sequence[str]) -> str | None:
        if any(MARKS & set(word) for word in words):
            return None
        match list(words):
            case ["pwd", *_]:
                return self._state.cwd
            case ["echo", *rest] if not rest or not rest[0].startswith("-"):
                return " ".join(rest)
            case ["dirname", path] | ["dirname", "--", path]:
                return posixpath.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
            case ["basename", path]:
                return posixpath.basename(path.rstrip("/"))
            case ["basename", path, suffix]:
                return posixpath.basename(path.rstrip("/")).removesuffix(suffix)
            case ["realpath", path] | ["readlink", "-f", path] if self._state.cwd is not None:
                return posixpath.normpath(posixpath.join(self._state.cwd, path))
        return None


_PROGRAMS: Final = frozenset({"docker", "singularity", "apptainer", "sbatch", "ssh", "ray", "parallel", "xargs", "tmux", "screen", "python", "python3", "make", "bazel"})  # fmt: skip
_BUILTINS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("true", ":", "false"), "true"),
    **dict.fromkeys(("[", "test"), "test"),
    **dict.fromkeys(("export", "declare", "local", "typeset", "readonly"), "declare"),
    **dict.fromkeys(("cd", "pushd"), "cd"),
    **dict.fromkeys(("exit", "return"), "exit"),
    **dict.fromkeys(("source", "."), "source"),
    **dict.fromkeys(("read", "mapfile", "readarray"), "read"),
    **dict.fromkeys(("getopts", "trap", "ulimit", "shopt", "umask", "alias", "continue", "break", "let", "dirs", "jobs", "disown"), "nothing"),
    **{name: name for name in ("unset", "popd", "shift", "set", "eval", "wait")},
}  # fmt: skip


def _compared(left: int | None, operator: str, right: int | None) -> _Status:
    if left is None or right is None:
        return _Status.MAYBE
    holds = {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return _Status.YES if holds[operator] else _Status.NO


def _merged(ends: Sequence[State], before: State, at: str) -> State:
    """One state for several that are possible."""
    live = [state for state in ends if not state.ended]
    if not live:
        return replace(before, ended=True)
    state = live[0]
    for name in {n for s in live for n in s.variables}:
        values = [s.variables.get(name) for s in live]
        if any(value != values[0] for value in values):
            state.variables[name] = unknown(
                f"${name}", f"{at} decides only at the start what {name} is", one=False
            )
    state.exported = set().union(*(s.exported for s in live))
    if any(s.cwd != state.cwd for s in live):
        state.cwd, state.why = None, f"{at} decides only at the start in which folder"
    if any(s.args != state.args for s in live):
        state.args, state.why = None, f"{at} decides only at the start which arguments are left"
    return state


def _walk(node: Any) -> list[Any]:
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


def _first_words(node: Node) -> list[tuple[str, Simple]]:
    """The literal first word of each command within."""
    simple = [n for n in _walk(node) if isinstance(n, Simple) and n.words]
    return [("".join(p.text for p in n.words[0]), n) for n in simple]


def _leaves(body: Node) -> bool:
    """Whether a loop's body may end the loop, or a round of it, early."""
    return any(word in {"break", "continue"} for word, _ in _first_words(body))


def _returns(body: Node) -> bool:
    return any(word == "return" for word, _ in _first_words(body))


def _forget(state: State, node: Node, names: Sequence[str], why: str) -> None:
    """Makes unknown what a command would set."""
    found = [
        *names,
        *(n.name for n in _walk(node) if isinstance(n, Assign)),
        *(n.name for n in _walk(node) if isinstance(n, For)),
    ]
    for word, simple in _first_words(node):
        if word in {"read", "getopts", "let", "unset", "mapfile", "readarray", "eval", "source", "."}:
            found += ["".join(p.text for p in w) for w in simple.words[1:]]
        if word in {"eval", "source", "."}:
            raise NotKnownError(f"{why.partition(' ')[0]} has {word!r} in a loop")
        if word in {"shift", "set"}:
            state.args, state.why = None, why
        if word in {"cd", "pushd", "popd"}:
            state.cwd, state.why = None, why
        if word in state.functions:
            _forget(state, state.functions[word].body, (), why)
    for n in _walk(node):
        if isinstance(n, Arithmetic):
            found += re.findall(r"[A-Za-z_]\w*", n.text)
    for name in found:
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            state.variables[name] = unknown(f"${name}", why, one=False)

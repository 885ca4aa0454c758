"""What a shell script would start: its commands are followed one by one with the variables that are known, and none of them is run.

Conditions that are known decide; where one is not, both ways must start the same, and a variable that they set otherwise is not known. A
training in a loop, in a function or behind another program is refused with its line.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from supervisor.job.shell.builtins import BUILTINS, assign, printed, set_variable
from supervisor.job.shell.expand import (
    MARKS,
    Expander,
    State,
    Value,
    may_be_several,
    shown,
    unknown,
    why_unknown,
)
from supervisor.job.shell.programs import (
    ONLY_READ,
    SHELLS,
    Judged,
    is_login_file,
    is_script,
    judge,
    shell_arguments,
    shell_options,
    unwrapped,
)
from supervisor.job.shell.shell_conditions import OPPOSITE, Status, compare, test
from supervisor.job.shell.started import NotKnownError, Read, ScriptRun, Seen, Started, one_training
from supervisor.job.shell.syntax import ShellError, parse_script
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
    Node,
    Pipeline,
    Simple,
    While,
    first_words,
    leaves,
    local_names,
    plain,
    returns,
    walk,
)

__all__ = ["NotKnownError", "ScriptRun", "Started", "follow", "shell_words"]

MAX_CHARS: Final = 200_000
_MOST_COMMANDS: Final = 5_000
_MOST_ROUNDS: Final = 200
_DEEPEST: Final = 4


def shell_words(words: Sequence[str], read: Read) -> bool:
    """Whether a command line starts a shell script, or a shell with the commands themselves."""
    words, _ = unwrapped(words)
    if not words:
        return False
    if posixpath.basename(words[0]) in SHELLS:
        return len(words) > 1
    return is_script(words[0], read(words[0]) if "/" in words[0] else None)


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
    seen = Seen(read, cwd, env)
    words, own = unwrapped(words)
    variables: dict[str, Value] = {**env, **dict(own)}
    name = _script_name(words)
    try:
        ends = _Shell(seen, State(variables, set(variables), [], cwd, ""), name, 0).start(words, 0).ended
    except RecursionError as error:
        raise NotKnownError(f"{name} is nested too deeply") from error
    if ends and not (seen.started or seen.aside or seen.through) and seen.ends:
        raise NotKnownError(seen.ends[-1])
    return ScriptRun(
        one_training(seen, name),
        tuple(seen.others),
        tuple(sorted(seen.open)),
        frozenset(map(posixpath.normpath, seen.touched)),
    )


def _script_name(words: Sequence[str]) -> str:
    """The script's name for people."""
    if posixpath.basename(words[0]) not in SHELLS:
        return words[0]
    file, text, _ = shell_arguments(words)
    return file if text is None else f"the commands behind {posixpath.basename(words[0])} -c"


class _Shell:
    """One shell that follows a script."""

    def __init__(self, seen: Seen, state: State, file: str, depth: int) -> None:
        self._seen = seen
        self._depth = depth
        self._file = file
        self._state = state
        self._expand = Expander(state, file, self._output, seen.open)

    def _use(self, state: State) -> None:
        """Continues in another state."""
        self._state = state
        self._expand = replace(self._expand, state=state)

    # -- scripts

    def start(self, words: Sequence[str], depth: int) -> State:
        """Follows the script that a command line starts; returns the state at its end.

        Raises:
            NotKnownError: it cannot be read.
        """
        name, text = self._file, None
        if posixpath.basename(words[0]) in SHELLS:
            file, text, args = shell_arguments(words)
        else:
            file, args = words[0], list(words[1:])
        if text is None:
            text, name = self._seen.text(self._state.cwd, file), file
            if text is None:
                raise NotKnownError(f"{file} could not be read")
        self._state.args, self._state.name = args, file
        self._state.options |= shell_options(words[: len(words) - len(args)], text)
        return self._follow_text(text, name, depth)

    def _follow_text(self, text: str, name: str, depth: int) -> State:
        if len(text) > MAX_CHARS or depth > _DEEPEST:
            raise NotKnownError(f"{name} is too long or starts too many others")
        if "\r\n" in text or "\x00" in text or MARKS & set(text):
            raise NotKnownError(f"{name} has line ends of Windows, or characters that no shell takes")
        inner = _Shell(self._seen, self._state, name, depth)
        try:
            tree = parse_script(text)
            inner._commands(tree)
            self._seen.touched.update(inner._expand.text(word) for word in tree.written)
        except ShellError as error:
            raise NotKnownError(f"{name}:{error.line} {error.why}") from error
        return inner._state

    # -- lists

    def _commands(self, commands: Commands) -> Status:
        status = Status.YES
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

    def _apart(self, node: Node) -> Status:
        """A command in a shell of its own."""
        before = self._state
        self._use(before.copy())
        status = self._node(node)
        self._use(before)
        return status

    def _node(self, node: Node) -> Status:
        match node:
            case Simple():
                return self._simple(node)
            case Commands():
                return self._commands(node)
            case Pipeline():
                return self._pipeline(node)
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
        return Status.YES

    def _pipeline(self, node: Pipeline) -> Status:
        if len(node.nodes) == 1:
            status = self._node(node.nodes[0])
        else:
            for each in node.nodes[:-1]:
                self._apart(each)
            status = self._apart(node.nodes[-1])
        return OPPOSITE[status] if node.negated else status

    def _and_or(self, node: AndOr) -> Status:
        status = self._node(node.first)
        for operator, other in node.rest:
            if self._state.ended:
                break
            if status is Status.MAYBE:
                self._either(self._expand.line, [partial(self._node, other), lambda: Status.NO])
            elif status is Status.RAN and operator == "||":
                self._refuse_training(other, "only if the command before it fails")
            elif (status is Status.NO) == (operator == "||"):
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
        self._use(merged(ends, before, f"{self._file}:{line}"))

    def _if(self, line: int, arms: Sequence[tuple[Commands, Commands]], otherwise: Commands | None) -> Status:
        if not arms:
            return self._commands(otherwise) if otherwise is not None else Status.YES
        (condition, body), rest = arms[0], arms[1:]
        match self._commands(condition):
            case Status.YES:
                return self._commands(body)
            case Status.NO:
                return self._if(line, rest, otherwise)
        self._either(line, [lambda: self._commands(body), lambda: self._if(line, rest, otherwise)])
        return Status.RAN

    def _case(self, node: Case) -> Status:
        self._expand.line = node.line
        word = self._expand.text(node.word)
        if MARKS & set(word):
            ways: list[Callable[[], object]] = [partial(self._commands, body) for _, body in node.arms]
            self._either(node.line, [*ways, lambda: None])
            return Status.RAN
        for patterns, body in node.arms:
            texts = [self._expand.text(pattern) for pattern in patterns]
            if any(MARKS & set(text) for text in texts):
                raise NotKnownError(f"{self._file}:{node.line} compares with what is not known")
            if any(fnmatch.fnmatchcase(word, text) for text in texts):
                return self._commands(body)
        return Status.YES

    def _arithmetic(self, node: Arithmetic) -> Status:
        self._expand.line = node.line
        compared = re.fullmatch(r"(.+?)(==|!=|<=|>=|<|>)(.+)", node.text.strip())
        if compared is not None:
            return compare(self._expand.arithmetic(compared[1]), compared[2], self._expand.arithmetic(compared[3]))  # fmt: skip
        for name in re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", node.text):
            why = f"{self._file}:{node.line} computes {name}"
            set_variable(self._state, name, unknown(f"${name}", why, one=True))
        return Status.MAYBE

    # -- loops

    def _for(self, node: For) -> Status:
        self._expand.line = node.line
        values: list[str] | None = None
        if not node.counted:
            values = self._state.args if node.words is None else self._expand.fields(node.words)
        over = f"in a loop over {node.shown}"
        if values is None or len(values) > _MOST_ROUNDS or any(MARKS & set(v) for v in values):
            self._repeat_unknown(node.line, node, over, node.body, [node.name] if node.name else [])
            return Status.RAN
        for value in values:
            set_variable(self._state, node.name, value)
            if len(values) == 1 and not leaves(node.body):
                return self._commands(node.body)
            if not self._round(node.line, node, over, node.body):
                break
        return Status.YES

    def _while(self, node: While) -> Status:
        over = f"in a loop while {node.shown}"
        wanted = Status.NO if node.until else Status.YES
        for _ in range(_MOST_ROUNDS):
            status = self._commands(node.condition)
            if status not in {Status.YES, Status.NO}:
                break
            if status is not wanted:
                return Status.YES
            if not self._round(node.line, node, over, node.body):
                return Status.YES
        self._repeat_unknown(node.line, node, over, node.body, [])
        return Status.RAN

    def _round(self, line: int, node: Node, over: str, body: Commands) -> bool:
        """One round of a loop; False: nothing more of it is followed."""
        if leaves(body):
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
        forget(self._state, node, names, f"{self._file}:{line} sets it {over}")
        self._refuse_training(body, over)

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

    def _simple(self, node: Simple) -> Status:
        self._expand.line = node.line
        self._seen.commands += 1
        if self._seen.commands > _MOST_COMMANDS:
            raise NotKnownError(f"{self._file}:{node.line} comes after too many other commands")
        if not node.words:
            for given in node.assigns:
                assign(self._expand, given)
            return Status.YES
        if plain(node.words[0]) == "[[":
            right = [re.search(r"[*?\[]", plain(word)) is not None for word in node.words[1:]]
            return test([self._expand.text(word) for word in node.words[1:]], right)
        words = self._expand.fields(node.words)
        if not words:
            return Status.YES
        if (several := may_be_several(words[0])) is not None:
            self._seen.through.append(f"{self._expand.at} starts a command that is not known: {several}")
            return Status.RAN
        if words[0] in self._state.functions:
            return self._call(words)
        if words[0] in {"source", "."}:
            return self._source(words)
        if words[0] == "eval":
            return self._eval(words)
        if words[0] in BUILTINS:
            return BUILTINS[words[0]](words, node, self._expand, self._seen)
        prefix = [(a.name, value) for a in node.assigns if isinstance(value := self._expand.assigned(a), str)]
        return self._external(words, prefix)

    def _call(self, words: Sequence[str]) -> Status:
        function = self._state.functions[words[0]]
        mark, aside = len(self._seen.started), len(self._seen.aside)
        if self._depth > _DEEPEST * 4:
            raise NotKnownError(f"{self._expand.at} calls functions too deeply")
        args, self._state.args = self._state.args, list(words[1:])
        kept = {name: self._state.variables.get(name) for name in local_names(function.body)}
        self._depth += 1
        status = self._node(function.body)
        self._depth -= 1
        self._state.args = args
        for name, value in kept.items():
            self._state.variables.pop(name, None)
            if value is not None:
                self._state.variables[name] = value
        if len(self._seen.started) > mark:
            raise NotKnownError(f"{self._seen.started[mark].at} starts it in the function {words[0]}")
        del self._seen.aside[aside:]
        if returns(function.body):
            self._state.ended = False
        return Status.MAYBE if status is Status.YES else status

    def _source(self, words: Sequence[str]) -> Status:
        name = words[1] if len(words) > 1 else ""
        if is_login_file(name):
            return Status.YES
        text = self._seen.text(self._state.cwd, name)
        if text is None:
            raise NotKnownError(f"{self._expand.at} reads {shown(name)}, which could not be opened")
        args = self._state.args
        if len(words) > 2:
            self._state.args = list(words[2:])
        self._use(self._follow_text(text, name, self._depth + 1))
        self._state.args = args
        return Status.YES

    def _eval(self, words: Sequence[str]) -> Status:
        text, line, mark = " ".join(words[1:]), self._expand.line, len(self._seen.started)
        if (why := why_unknown(text)) is not None:
            self._seen.through.append(f"{self._expand.at} evaluates what is not known: {why}")
            return Status.RAN
        self._use(self._follow_text(text, self._file, self._depth + 1))
        self._expand.line = line
        self._seen.started[mark:] = [replace(s, line=line) for s in self._seen.started[mark:]]
        return Status.RAN

    # -- programs

    def _external(self, words: Sequence[str], prefix: Sequence[tuple[str, str]]) -> Status:
        """A program that is started."""
        rest, own = unwrapped(words)
        prefix = [*prefix, *own]
        file = rest[0] if "/" in rest[0] else ""
        if posixpath.basename(rest[0]) in SHELLS or is_script(file, self._seen.text(self._state.cwd, file)):
            self._nested(rest, prefix)
        else:
            self._program(rest, prefix)
        if words[0] == "exec":
            self._state.ended = True
        return Status.RAN

    def _nested(self, words: Sequence[str], prefix: Sequence[tuple[str, str]]) -> None:
        """Another script, in a shell of its own that sees what is exported."""
        if len(words) == 1 and posixpath.basename(words[0]) in SHELLS:
            return  # it reads its commands from elsewhere: `curl ... | sh`
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

    def _program(self, words: Sequence[str], prefix: Sequence[tuple[str, str]]) -> None:
        seen, state, at = self._seen, self._state, self._expand.at
        kind = judge([shown(word) for word in words])
        if kind is not Judged.TRAINING and posixpath.basename(words[0]) not in ONLY_READ:
            seen.touched.update(words[1:])
        if kind in {Judged.OTHER, Judged.STARTS_OTHERS, Judged.ASIDE}:
            seen.others.append(tuple(words))
        if kind is Judged.STARTS_OTHERS:
            seen.through.append(f"{at} starts it through {posixpath.basename(words[0])}")
        if kind not in {Judged.TRAINING, Judged.ASIDE}:
            return
        if state.cwd is None:
            raise NotKnownError(f"{at} starts it in a folder that is not known: {state.why}")
        into = seen.started if kind is Judged.TRAINING else seen.aside
        into.append(
            Started(tuple(words), self._environment(prefix), state.cwd, self._file, self._expand.line)
        )

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
            if not isinstance(step, Simple) or not step.words or plain(step.words[0]) != "cd":
                return None
            shell._simple(replace(step, line=expand.line))
        last = steps[-1] if steps else None
        if not isinstance(last, Simple) or not last.words:
            return None
        return printed(shell._expand.fields(last.words), shell._state)


# -- what is not known any more: after ways of which one is taken, and after loops -----------------


def merged(ends: Sequence[State], before: State, at: str) -> State:
    """One state for several that are possible."""
    live = [state for state in ends if not state.ended]
    if not live:
        return replace(before, ended=True)
    state = live[0]
    for name in {n for s in live for n in s.variables}:
        values = [s.variables.get(name) for s in live]
        if any(value != values[0] for value in values):
            why = f"{at} decides only at the start what {name} is"
            state.variables[name] = unknown(f"${name}", why, one=all(map(_is_one_word, values)))
    state.exported = set().union(*(s.exported for s in live))
    if any(s.cwd != state.cwd for s in live):
        state.cwd, state.why = None, f"{at} decides only at the start in which folder"
    if any(s.args != state.args for s in live):
        state.args, state.why = None, f"{at} decides only at the start which arguments are left"
    return state


def forget(state: State, node: Node, names: Sequence[str], why: str) -> None:
    """Makes unknown what a command would set."""
    found = [
        *names,
        *(n.name for n in walk(node) if isinstance(n, Assign)),
        *(n.name for n in walk(node) if isinstance(n, For)),
    ]
    for word, simple in first_words(node):
        if word in {"read", "getopts", "let", "unset", "mapfile", "readarray", "eval", "source", "."}:
            found += ["".join(p.text for p in w) for w in simple.words[1:]]
        if word in {"eval", "source", "."}:
            raise NotKnownError(f"{why.partition(' ')[0]} has {word!r} in a loop")
        if word in {"shift", "set"}:
            state.args, state.why = None, why
        if word in {"cd", "pushd", "popd"}:
            state.cwd, state.why = None, why
        if word in state.functions:
            forget(state, state.functions[word].body, (), why)
    for n in walk(node):
        if isinstance(n, Arithmetic):
            found += re.findall(r"[A-Za-z_]\w*", n.text)
    for name in found:
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            state.variables[name] = unknown(f"${name}", why, one=False)


def _is_one_word(value: Value | None) -> bool:
    """Whether a value is one word wherever it stands."""
    return isinstance(value, str) and bool(value) and not (MARKS | set(" \t\n")) & set(value)

"""Reads ``stoker run [flags] (SCRIPT | -m MODULE | -- CMD...) [args]`` into data.

Before the script come stoker's flags, torchrun's, or, with ``--config`` and no script, keys of the job file.
Words after the script are left untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.job.arguments.flags import (
    OWNED,
    STOKER_FLAGS,
    TORCHRUN_FLAGS,
    Flag,
    by_spelling,
    nearest,
)
from supervisor.job.errors import JobError
from supervisor.job.setting_keys import SETTINGS, KeyType, Range, Setting
from supervisor.job.spec import EntryKind

HELP: Final = frozenset({"-h", "--help"})
# Ranks of one machine: no node has this many GPUs or cores, and each rank is a process.
MOST_RANKS = 1024
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True, slots=True)
class ParsedRun:
    """A command line as data, without any lookup.

    `stoker` and `torchrun` hold (key, value) in the order given, keys with underscores, a switch's value
    being ``"true"``. `spec_keys` are keys of the job file given as flags. `from_env` names the `torchrun`
    keys that came from PET_* variables. `unowned` are torchrun flags outside our table, spelt ``--flag=value``.
    """

    entry_kind: EntryKind | None = None
    entry: str | None = None
    entry_args: tuple[str, ...] = ()
    stoker: tuple[tuple[str, str], ...] = ()
    torchrun: tuple[tuple[str, str], ...] = ()
    spec_keys: tuple[tuple[str, str], ...] = ()
    from_env: frozenset[str] = frozenset()
    unowned: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    help: bool = False

    def flag(self, key: str) -> str | None:
        """The last value of one of stoker's own flags, by key (``max_retries``)."""
        return next((v for k, v in reversed(self.stoker) if k == key), None)

    def flags(self, key: str) -> tuple[str, ...]:
        """Every value of a repeatable flag."""
        return tuple(v for k, v in self.stoker if k == key)

    def switch(self, key: str) -> bool:
        """Whether a switch was given."""
        return self.flag(key) == "true"

    def launcher(self, key: str) -> str | None:
        """The value of a torchrun flag, by key (``nproc_per_node``)."""
        return next((v for k, v in reversed(self.torchrun) if k == key), None)


def parse_run_argv(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    spec_keys: Collection[str] = (),
    more_torchrun_flags: Callable[[], Collection[str]] | None = None,
    more_own: Sequence[Flag] = (),
) -> ParsedRun:
    """Reads the arguments of ``stoker run``.

    Args:
        argv: what follows ``stoker run``.
        env: the environment, for PET_* (torchrun's own defaults); nothing else is read from it.
        spec_keys: keys of a job file that are allowed as flags with ``--config`` and no script.
        more_torchrun_flags: called at most once, for an unknown ``--flag=value``: the flags that the target's
            ``torchrun --help`` lists.
        more_own: flags of another verb that also takes these.

    Raises:
        JobError: an unknown flag (with the nearest name), a missing value, or one of the wrong type.
    """
    reader = _Reader(list(argv), dict(env or {}), frozenset(spec_keys), more_torchrun_flags, more_own)
    return reader.read()


class _Reader:
    """Walks the arguments once; one instance per call."""

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        spec_keys: frozenset[str],
        more: Callable[[], Collection[str]] | None,
        more_own: Sequence[Flag],
    ) -> None:
        self.argv, self.env, self.more = argv, env, more
        self.own, self.launcher = by_spelling([*STOKER_FLAGS, *more_own]), by_spelling(TORCHRUN_FLAGS)
        # A job file's keys are flags only if a job file is named: otherwise `--lr` before the script
        # would be accepted as one, and the mistake would surface much later.
        before_entry = argv[: argv.index("--")] if "--" in argv else argv
        named = any(a == "--config" or a.startswith("--config=") for a in before_entry)
        self.spec_keys = spec_keys if named else frozenset()
        self.stoker: list[tuple[str, str]] = []
        self.torchrun: list[tuple[str, str]] = []
        self.spec: list[tuple[str, str]] = []
        self.unowned: list[str] = []
        self.notes: list[str] = []
        self.at = 0

    def read(self) -> ParsedRun:
        kind: EntryKind | None = None
        rest: list[str] = []
        while self.at < len(self.argv):
            word = self.argv[self.at]
            if word in HELP:
                return ParsedRun(help=True)
            if word == "--":
                rest, kind = self.argv[self.at + 1 :], EntryKind.COMMAND
                if not rest:
                    raise JobError("nothing follows `--`: name the command to supervise")
                break
            if not word.startswith("-") or word == "-":
                rest, kind = self.argv[self.at :], EntryKind.SCRIPT
                break
            self._flag(word)
        self._require_fitting(kind, rest)
        torchrun, from_env = (
            (list(self.torchrun), frozenset[str]()) if kind is EntryKind.COMMAND else self._with_environment()
        )
        if kind is EntryKind.SCRIPT and dict(torchrun).get("module") == "true":
            kind = EntryKind.MODULE
        return ParsedRun(
            entry_kind=kind,
            entry=rest[0] if rest else None,
            entry_args=tuple(rest[1:]),
            stoker=tuple(self.stoker),
            torchrun=tuple(pair for pair in torchrun if pair[0] != "module" and pair[0] not in OWNED),
            spec_keys=tuple(self.spec),
            from_env=from_env,
            unowned=tuple(self.unowned),
            notes=tuple(self.notes),
        )

    def _require_fitting(self, kind: EntryKind | None, rest: list[str]) -> None:
        """Refuse flags that have no meaning for this kind of job."""
        if kind is None and "module" in dict(self.torchrun):
            raise JobError("-m needs the name of a module: stoker run -m package.module")
        if kind is not None and self.spec:
            key = self.spec[0][0]
            raise JobError(
                f"--{key} stands before the script {rest[0]!r} but is no launcher flag: put it after the script"
            )
        if kind is EntryKind.COMMAND and any(key != "nproc_per_node" for key, _ in self.torchrun):
            # --nproc-per-node gives the command's number of ranks, if its own launcher does not.
            name = "--" + next(k for k, _ in self.torchrun if k != "nproc_per_node").replace("_", "-")
            raise JobError(f"{name} has no effect on a command after `--`: put it into the command itself")

    def _flag(self, word: str) -> None:
        name, has_value, value = word.partition("=") if word.startswith("--") else (word[:2], "", "")
        short_value = word[2:] if not word.startswith("--") else ""
        flag = self.own.get(name) or self.launcher.get(name)
        if flag is None:
            self._other(word, name, value if has_value else None)
            return
        self.at += 1
        if not flag.takes_value:
            if short_value:
                raise JobError(f"unknown flag {word!r} before the script")
            given = _switch_value(flag, value) if has_value else "true"
        elif has_value:
            given = value
        elif short_value:
            given = short_value.removeprefix("=")
        else:
            given = self._next(name, flag)
        self._store(flag, given, own=name in self.own)

    def _next(self, name: str, flag: Flag) -> str:
        if self.at >= len(self.argv):
            raise JobError(f"{name} needs a value: {name} {flag.metavar or 'VALUE'}")
        self.at += 1
        return self.argv[self.at - 1]

    def _store(self, flag: Flag, value: str, *, own: bool) -> None:
        _check(flag, value)
        if own:
            self.stoker.append((flag.key, value))
            return
        self._own_or_keep(flag.key, value)

    def _own_or_keep(self, key: str, value: str) -> None:
        self.torchrun.append((key, value))
        if key not in OWNED:
            return
        self.notes.append(OWNED[key].format(value=value))
        # A restart count given to torchrun requests restarts: it becomes ours unless ours is also given.
        if key == "max_restarts" and not any(k == "max_retries" for k, _ in self.stoker):
            self.stoker.insert(0, ("max_retries", value))

    def _other(self, word: str, name: str, value: str | None) -> None:
        key = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and key in self.spec_keys:
            self.at += 1
            if value is None:
                ahead = self.argv[self.at] if self.at < len(self.argv) else "--"
                # A bare key is a switch, unless a possible value follows.
                value = "true" if ahead.startswith("--") else ahead
                self.at += not ahead.startswith("--")
            self.spec.append((key, value))
            return
        if value is not None and self.more is not None and _listed(name, self.more()):
            self.at += 1
            self.unowned.append(word)
            return
        known = [*self.own, *self.launcher, *(f"--{k}" for k in self.spec_keys)]
        near = nearest(name, [k for k in known if k.startswith("--")])
        hint = (
            f"did you mean {near}? Flags of the script go after it"
            if near
            else "flags of the script go after it"
        )
        raise JobError(f"unknown flag {name!r} before the script: {hint}")

    def _with_environment(self) -> tuple[list[tuple[str, str]], frozenset[str]]:
        """torchrun's flags with PET_* filled in, as torchrun itself would: a flag wins over its variable."""
        given = {key for key, _ in self.torchrun}
        from_env: set[str] = set()
        for flag in TORCHRUN_FLAGS:
            value = self.env.get(f"PET_{flag.key.upper()}")
            if value is None or flag.key in given:
                continue
            if flag.kind is KeyType.SWITCH:
                value = _switch_value(flag, value)
                if value == "false":
                    continue
            try:
                _check(flag, value)
            except JobError as error:
                raise JobError(f"PET_{flag.key.upper()}: {error.message}") from None
            from_env.add(flag.key)
            self._own_or_keep(flag.key, value)
        pairs = [pair for pair in self.torchrun if pair[1] != "false"]
        return pairs, frozenset(from_env)


def _listed(name: str, flags: Collection[str]) -> bool:
    return name in flags or name.replace("_", "-") in flags


def _switch_value(flag: Flag, value: str) -> str:
    if value.lower() in _TRUE:
        return "true"
    if value.lower() in _FALSE:
        return "false"
    raise JobError(f"{flag.name} is a switch and takes no value, got {value!r}")


# For flags without a key in a job file.
_WHOLE: Final = Setting(KeyType.INT, "", range=Range(0))


def _check(flag: Flag, value: str) -> None:
    """Refuse a value of the wrong type or out of range, in one line."""
    if flag.setting in SETTINGS:
        SETTINGS[flag.setting].held(flag.name, value)
    elif flag.kind is KeyType.INT:
        _WHOLE.held(flag.name, value)
    if flag.key == "nproc_per_node":
        check_nproc(value)
    name, equals, _ = value.partition("=")
    if flag.key == "env" and flag.repeatable and not (equals and name.isidentifier()):
        raise JobError(f"--env wants KEY=VALUE, got {name + equals!r}")


def check_nproc(value: str) -> None:
    """Refuse values that torchrun would refuse only after loading torch.

    Raises:
        JobError: neither a whole number from 1 to `MOST_RANKS` nor auto, gpu, cpu, xpu.
    """
    if value in {"auto", "gpu", "cpu", "xpu"}:
        return
    if not (value.isascii() and value.isdigit()) or len(value) > 6 or not 1 <= int(value) <= MOST_RANKS:
        raise JobError(
            f"--nproc-per-node wants a whole number of at least 1 and at most {MOST_RANKS}, or auto, gpu, cpu: got {value!r}"
        )

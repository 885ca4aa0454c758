"""Parses ``stoker run [flags] (SCRIPT | -m MODULE | -- CMD...) [args]`` into a structured form.

Flags for stoker and torchrun come before the script; everything after it is left untouched. With ``--config`` and
no script, job-file keys are also accepted as flags.

Two tables define the parser, the help and the environment variable names (STOKER_<NAME>, PET_<NAME>). Job-file flags
take help, type and choices from `setting_keys`. The torchrun table follows `torch/distributed/run.py` in torch 2.13.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.job.errors import JobError
from supervisor.job.setting_keys import SETTINGS, KeyType, Range, Setting
from supervisor.job.spec import EntryKind


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag. `name` is spelled with dashes, but underscores are accepted too.

    `setting` is the equivalent dotted job-file key, or empty if there is none. `choices` restricts the values. A
    `repeatable` flag keeps every value; any other flag keeps only the last.
    """

    name: str
    kind: KeyType
    help: str
    metavar: str = ""
    setting: str = ""
    short: str = ""
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    group: str = "general"

    @property
    def takes_value(self) -> bool:
        """Whether the flag takes a value."""
        return self.kind is not KeyType.SWITCH

    @property
    def key(self) -> str:
        """The flag's name without leading dashes, with its words joined by underscores."""
        return self.name.removeprefix("--").replace("-", "_")


_SW, _TX, _IN = KeyType.SWITCH, KeyType.TEXT, KeyType.INT
_GROUPS: Final = {
    "run": "general",
    "ui": "screen",
    "policy": "retry",
    "hang": "retry",
    "batch": "batch",
    "resume": "batch",
}


def _of_settings() -> Iterable[Flag]:
    """Yield the flags that set job-file keys, in table order."""
    for key, setting in SETTINGS.items():
        if setting.flag:
            name, _, metavar = setting.flag.partition(" ")
            group = _GROUPS[key.partition(".")[0]]
            yield Flag(
                name, setting.kind, setting.meaning, metavar, key, choices=setting.choices, group=group
            )


# fmt: off
STOKER_FLAGS: Final[tuple[Flag, ...]] = (
    Flag("--config", _TX, "job file (TOML, YAML or .py) or a preset such as dual_gpu/balanced", "FILE"),
    Flag("--runs-dir", _TX, "folder of run directories (default: $STOKER_RUNS_DIR, else ./runs)", "DIR"),
    Flag("--run-dir", _TX, "the run directory of a job on several nodes: a new folder, at the same path on all of them (with --nnodes)", "DIR"),
    Flag("--max-requeues", _IN, "in a SLURM job: maximum starts in a row without a new checkpoint (default 3)", "N"),
    Flag("--env", _TX, "set a variable for the job; may be repeated", "KEY=VALUE", repeatable=True),
    Flag("--single-gpu", _SW, "one rank on the first visible GPU, whatever the command says about ranks and machines"),
    Flag("--trial", _SW, "try the job first: one rank on one GPU, a few steps, no restart; prints a summary and the command of the real run"),
    Flag("--no-ui", _SW, "stay in the foreground, print log lines, exit with the run's code", group="screen"),
    Flag("--json", _SW, "with --no-ui: JSON lines on stdout; with --check-only or --dry-run: one object", group="screen"),
    Flag("--detach", _SW, "start, print the run's id, return at once", group="screen"),
    Flag("--read-only", _SW, "open the screen without the keys that act on the run", group="screen"),
    Flag("--dry-run", _SW, "print the command without starting it", group="screen"),
    Flag("--show-config", _SW, "print each setting with its origin, without starting anything", group="screen"),
    Flag("--check-only", _SW, "run the pre-flight checks only (as `stoker check`)", group="screen"),
    Flag("--no-check", _SW, "start without pre-flight checks", group="screen"),
    Flag("--deep", _SW, "also run checks that take seconds: the ranks meet once, all data is read", group="screen"),
    Flag("--instrument", _SW, "measure inside the processes even if an earlier run only worked without", group="screen"),
    Flag("--no-instrument", _SW, "measure nothing inside the training processes (docs/instrumentation.md)", group="screen"),
    Flag("--no-retry", _SW, "never restart automatically", group="retry"),
    Flag("--trust-exit-code", _SW, "treat exit code 0 as success, whatever the logs show", group="retry"),
    Flag("--fit-batch", _SW, "first find the largest micro-batch that fits, with short launches of a few steps", group="batch"),
    *_of_settings(),
)

# Flags of `stoker init` besides the flags of `stoker run` that have a key in a job file.
INIT_FLAGS: Final[tuple[Flag, ...]] = (
    Flag("--out", _TX, "the job file to write; never overwrites an existing file", "FILE", group="init"),
    Flag("--yes", _SW, "ask nothing and accept the proposed answers", group="init"),
    Flag("--start", _SW, "start the run at once, without asking", group="init"),
)

# Passed on unchanged.
_OF_TORCHRUN: Final = (
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "monitor-interval", "start-method", "event-log-handler", "role",
    "log-dir", "local-ranks-filter", "log-line-prefix-template", "duplicate-stdout-filters", "duplicate-stderr-filters",
    "local-addr", "logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout",
)
TORCHRUN_FLAGS: Final[tuple[Flag, ...]] = (
    Flag("--nproc-per-node", _TX, "ranks on this node", "N|auto|gpu|cpu", "run.nproc_per_node"),
    Flag("--nnodes", _TX, "nodes", "N", "run.nnodes"),
    Flag("--node-rank", _IN, "this node's number", "K", "run.node_rank"),
    Flag("--master-addr", _TX, "address of node 0", "HOST", "run.master_addr"),
    Flag("--master-port", _IN, "port on node 0; a port that you set is never changed", "PORT", "run.master_port"),
    Flag("--max-restarts", _IN, "", "N"),
    Flag("--module", _SW, "", short="-m"),
    Flag("--redirects", _TX, "", "N", short="-r"),
    Flag("--tee", _TX, "", "N", short="-t"),
    *(Flag(f"--{name}", _TX, "") for name in _OF_TORCHRUN),
    *(Flag(f"--{name}", _SW, "") for name in ("standalone", "no-python", "run-path", "virtual-local-rank")),
)
# fmt: on

# torchrun flags that stoker sets itself. The note tells the user what happened to the given flag.
OWNED: Final[dict[str, str]] = {
    "max_restarts": "--max-restarts {value} became --max-retries {value}: stoker restarts with a plan, torchrun with 0",
    "log_dir": "--log-dir {value} replaced: each attempt's logs lie in the run directory",
    "redirects": "--redirects {value} replaced by --redirects=3: one file a rank and stream",
    "tee": "--tee {value} replaced: stoker shows the lines of every rank itself",
    "logs_specs": "--logs-specs {value} dropped: it would move the log files that stoker reads",
}


def by_spelling(flags: Iterable[Flag]) -> dict[str, Flag]:
    """Map every accepted spelling (dashes, underscores, short form) to its flag."""
    table: dict[str, Flag] = {}
    for flag in flags:
        table[flag.name] = flag
        table[f"--{flag.key}"] = flag
        if flag.short:
            table[flag.short] = flag
    return table


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user most likely meant, or None."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return near[0] if near else None


def help_text(flags: Iterable[Flag], group: str) -> str:
    """Return aligned help lines for a group of flags, skipping flags that have no help text."""
    rows = [(f"{f.name} {f.metavar}".rstrip(), explained(f)) for f in flags if f.group == group and f.help]
    width = max((len(left) for left, _ in rows), default=0)
    return "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


def explained(flag: Flag) -> str:
    """Return a flag's help, followed by its choices unless the help already lists them."""
    named = all(choice in flag.help for choice in flag.choices)
    return flag.help if named else f"{flag.help} ({', '.join(flag.choices)})"


HELP: Final = frozenset({"-h", "--help"})
# Ranks of one machine. No node has this many GPUs or cores, and each rank is a process.
MOST_RANKS = 1024
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True, slots=True)
class ParsedRun:
    """A parsed command line, before anything has been looked up.

    `stoker` and `torchrun` are (key, value) pairs in the order given. Keys use underscores, and a switch has the
    value ``"true"``. `spec_keys` are job-file keys given as flags. `from_env` lists the `torchrun` keys that were
    set by PET_* variables.
    """

    entry_kind: EntryKind | None = None
    entry: str | None = None
    entry_args: tuple[str, ...] = ()
    stoker: tuple[tuple[str, str], ...] = ()
    torchrun: tuple[tuple[str, str], ...] = ()
    spec_keys: tuple[tuple[str, str], ...] = ()
    from_env: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    help: bool = False

    def flag(self, key: str) -> str | None:
        """Return the last value given for one of stoker's own flags, looked up by key (``max_retries``)."""
        return next((v for k, v in reversed(self.stoker) if k == key), None)

    def flags(self, key: str) -> tuple[str, ...]:
        """Return every value given for a repeatable flag."""
        return tuple(v for k, v in self.stoker if k == key)

    def switch(self, key: str) -> bool:
        """Check whether a switch was given."""
        return self.flag(key) == "true"

    def launcher(self, key: str) -> str | None:
        """Return the value given for a torchrun flag, looked up by key (``nproc_per_node``)."""
        return next((v for k, v in reversed(self.torchrun) if k == key), None)


def parse_run_argv(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    spec_keys: Collection[str] = (),
    more_own: Sequence[Flag] = (),
) -> ParsedRun:
    """Parse the arguments of ``stoker run``.

    Args:
        argv: the words after ``stoker run``.
        env: the environment, read only for PET_* variables (torchrun's own defaults).
        spec_keys: job-file keys that are accepted as flags when ``--config`` is given without a script.
        more_own: the flags of another command that also accepts these.

    Raises:
        JobError: a flag is unknown (the message suggests the nearest name), or a value is missing or ill-typed.
    """
    reader = _Reader(argv, spec_keys, more_own)
    kind, rest = reader.read_flags()
    if kind is None and reader.help:
        return ParsedRun(help=True)
    reader.require_fitting(kind, rest)
    from_env = frozenset[str]() if kind is EntryKind.COMMAND else reader.read_variables(env or {})
    torchrun = reader.torchrun
    if kind is not EntryKind.COMMAND:
        torchrun = [(key, value) for key, value in torchrun if value != "false"]
    if kind is EntryKind.SCRIPT and dict(torchrun).get("module") == "true":
        kind = EntryKind.MODULE
    return ParsedRun(
        entry_kind=kind,
        entry=rest[0] if rest else None,
        entry_args=tuple(rest[1:]),
        stoker=tuple(reader.stoker),
        torchrun=tuple(pair for pair in torchrun if pair[0] != "module" and pair[0] not in OWNED),
        spec_keys=tuple(reader.spec),
        from_env=from_env,
        notes=tuple(reader.notes),
    )


class _Reader:
    """A single-pass reader of the arguments. Create a new instance for each call."""

    def __init__(self, argv: Sequence[str], spec_keys: Collection[str], more_own: Sequence[Flag]) -> None:
        self.left = list(reversed(argv))
        self.own, self.launcher = by_spelling([*STOKER_FLAGS, *more_own]), by_spelling(TORCHRUN_FLAGS)
        # A job file's keys are flags only together with a job file. Otherwise `--lr` before the script
        # would be accepted as a key, and the mistake would surface much later.
        before_entry = argv[: list(argv).index("--")] if "--" in argv else argv
        named = any(word.partition("=")[0] == "--config" for word in before_entry)
        self.spec_keys = frozenset(spec_keys) if named else frozenset[str]()
        self.stoker: list[tuple[str, str]] = []
        self.torchrun: list[tuple[str, str]] = []
        self.spec: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.help = False

    def read_flags(self) -> tuple[EntryKind | None, list[str]]:
        """Read everything before the script or command. Return what to run and its arguments."""
        while self.left:
            word = self.left.pop()
            if word in HELP:
                self.help = True
                return None, []
            if word == "--":
                if not self.left:
                    raise JobError("nothing follows `--`: name the command to supervise")
                return EntryKind.COMMAND, self.left[::-1]
            if not word.startswith("-") or word == "-":
                return EntryKind.SCRIPT, [word, *self.left[::-1]]
            self._flag(word)
        return None, []

    def require_fitting(self, kind: EntryKind | None, rest: Sequence[str]) -> None:
        """Reject flags that have no meaning for this kind of job."""
        if kind is None and "module" in dict(self.torchrun):
            raise JobError("-m needs the name of a module: stoker run -m package.module")
        if kind is not None and self.spec:
            what = f"--{self.spec[0][0]} stands before the script {rest[0]!r} but is no launcher flag"
            raise JobError(f"{what}: put it after the script")
        # --nproc-per-node gives the command's number of ranks if the command's own launcher does not.
        without = [key for key, _ in self.torchrun if key != "nproc_per_node"]
        if kind is EntryKind.COMMAND and without:
            name = "--" + without[0].replace("_", "-")
            raise JobError(f"{name} has no effect on a command after `--`: put it into the command itself")

    def read_variables(self, env: Mapping[str, str]) -> frozenset[str]:
        """Apply PET_* variables as torchrun does, unless the flag itself was given. Return the flags set this way."""
        given = {key for key, _ in self.torchrun}
        found: set[str] = set()
        for flag in TORCHRUN_FLAGS:
            name = f"PET_{flag.key.upper()}"
            if name not in env or flag.key in given:
                continue
            value = env[name] if flag.takes_value else _switch_value(flag, env[name])
            if not flag.takes_value and value == "false":
                continue
            try:
                self._take(flag, value, own=False)
            except JobError as error:
                raise JobError(f"{name}: {error.message}") from None
            found.add(flag.key)
        return frozenset(found)

    def _flag(self, word: str) -> None:
        name, joined, value = word.partition("=")
        if not word.startswith("--"):  # -r3, -r=3
            name, joined, value = word[:2], word[2:], word[2:].removeprefix("=")
        flag = self.own.get(name) or self.launcher.get(name)
        if flag is None:
            self._other(name, value if joined else None)
        elif flag.takes_value and not joined and not self.left:
            raise JobError(f"{name} needs a value: {name} {flag.metavar or 'VALUE'}")
        elif flag.takes_value:
            self._take(flag, value if joined else self.left.pop(), own=name in self.own)
        elif joined and not word.startswith("--"):
            raise JobError(f"unknown flag {word!r} before the script")
        else:
            self._take(flag, _switch_value(flag, value) if joined else "true", own=name in self.own)

    def _take(self, flag: Flag, value: str, *, own: bool) -> None:
        """Store a value. If it has the wrong type or is out of range, refuse it with a one-line error."""
        if flag.setting in SETTINGS:
            SETTINGS[flag.setting].held(flag.name, value)
        elif flag.kind is KeyType.INT:
            _WHOLE.held(flag.name, value)
        if flag.key == "nproc_per_node":
            check_nproc(value)
        name, equals, _ = value.partition("=")
        if flag.key == "env" and flag.repeatable and not (equals and name.isidentifier()):
            raise JobError(f"--env wants KEY=VALUE, got {name + equals!r}")
        (self.stoker if own else self.torchrun).append((flag.key, value))
        if own or flag.key not in OWNED:
            return
        self.notes.append(OWNED[flag.key].format(value=value))
        # A restart count for torchrun is a request for restarts, so it sets ours unless ours is given too.
        if flag.key == "max_restarts" and not any(key == "max_retries" for key, _ in self.stoker):
            self.stoker.insert(0, ("max_retries", value))

    def _other(self, name: str, value: str | None) -> None:
        """Accept a job-file key as a flag. Raises JobError for any other name."""
        key = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and key in self.spec_keys:
            if value is None:  # a bare key is a switch, unless a possible value follows
                value = self.left.pop() if self.left and not self.left[-1].startswith("--") else "true"
            self.spec.append((key, value))
            return
        near = nearest(
            name,
            [k for k in (*self.own, *self.launcher) if k.startswith("--")]
            + [f"--{k}" for k in self.spec_keys],
        )
        hint = "flags of the script go after it"
        if near:
            hint = f"did you mean {near}? Flags of the script go after it"
        raise JobError(f"unknown flag {name!r} before the script: {hint}")


# For integer flags without a job-file key.
_WHOLE: Final = Setting(KeyType.INT, "", range=Range(0))


def _switch_value(flag: Flag, value: str) -> str:
    if value.lower() in _TRUE | _FALSE:
        return str(value.lower() in _TRUE).lower()
    raise JobError(f"{flag.name} is a switch and takes no value, got {value!r}")


def check_nproc(value: str) -> None:
    """Reject values that torchrun would reject only after loading torch.

    Raises:
        JobError: the value is neither a whole number from 1 to `MOST_RANKS` nor one of auto, gpu, cpu and xpu.
    """
    if value in {"auto", "gpu", "cpu", "xpu"}:
        return
    if not (value.isascii() and value.isdigit()) or len(value) > 6 or not 1 <= int(value) <= MOST_RANKS:
        raise JobError(
            f"--nproc-per-node wants a whole number of at least 1 and at most {MOST_RANKS}, or auto, gpu, cpu: got {value!r}"
        )

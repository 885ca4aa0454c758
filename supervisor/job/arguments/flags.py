"""Every flag that `stoker run` takes before the script: stoker's own and torchrun's, in two tables.

The parser, the help text and the environment names (STOKER_<NAME>, PET_<NAME>) all come from here. A flag that sets a key of a job file
has its help, its type and its choices from that key (`setting_keys`).
torchrun's table follows `torch/distributed/run.py` of torch 2.13; flags of other releases are let
through only if the target's own ``torchrun --help`` lists them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from supervisor.job.setting_keys import SETTINGS, KeyType


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `name` has dashes; the underscore spelling is accepted too.

    `setting` is the equivalent dotted key of a job file (empty: none). `choices` limits the values.
    `repeatable` flags keep every value, others only the last.
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
        """Whether a value follows."""
        return self.kind is not KeyType.SWITCH

    @property
    def key(self) -> str:
        """The name without its dashes, words joined by underscores."""
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
    """The flags of settings, in the order of their table."""
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
    Flag("--run-dir", _TX, "the one run directory of a job on several nodes: a new folder that all of them see, named alike on each (with --nnodes)", "DIR"),
    Flag("--max-requeues", _IN, "in a SLURM job: starts in a row without a new checkpoint (3)", "N"),
    Flag("--env", _TX, "set a variable for the job; may be repeated", "KEY=VALUE", repeatable=True),
    Flag("--single-gpu", _SW, "one rank on the first of the visible GPUs, whatever else is said of ranks and machines; all else is the same"),
    Flag("--trial", _SW, "try the job first: one rank on one GPU, a few steps, no restart; says what it saw, and the command of the real run"),
    Flag("--no-ui", _SW, "stay in the foreground, print log lines, return the run's exit code", group="screen"),
    Flag("--json", _SW, "with --no-ui: JSON lines on stdout; with --check-only or --dry-run: one object", group="screen"),
    Flag("--detach", _SW, "start, print the run's id, return at once", group="screen"),
    Flag("--read-only", _SW, "open the screen without the keys that act", group="screen"),
    Flag("--dry-run", _SW, "print the command that would run, start nothing", group="screen"),
    Flag("--show-config", _SW, "print each setting with its origin, start nothing", group="screen"),
    Flag("--check-only", _SW, "make the pre-flight checks, start nothing (as `stoker check`)", group="screen"),
    Flag("--no-check", _SW, "start without pre-flight checks", group="screen"),
    Flag("--deep", _SW, "also the checks that take seconds: the ranks meet once, data is read through", group="screen"),
    Flag("--instrument", _SW, "measure there also where an earlier run got further without", group="screen"),
    Flag("--no-instrument", _SW, "measure nothing inside the training processes (docs/instrumentation.md)", group="screen"),
    Flag("--no-retry", _SW, "never restart by itself", group="retry"),
    Flag("--trust-exit-code", _SW, "treat exit code 0 as success, whatever the logs show", group="retry"),
    Flag("--fit-batch", _SW, "first find the largest micro-batch that fits, by short launches of a few steps each", group="batch"),
    *_of_settings(),
)

# Flags of `stoker init` besides those of `stoker run` with a key in a job file.
INIT_FLAGS: Final[tuple[Flag, ...]] = (
    Flag("--out", _TX, "the job file to write; one that exists is never overwritten", "FILE", group="init"),
    Flag("--yes", _SW, "ask nothing: take the proposed answer to what was not given", group="init"),
    Flag("--start", _SW, "start the run at once, without asking", group="init"),
)

TORCHRUN_FLAGS: Final[tuple[Flag, ...]] = (
    Flag("--nproc-per-node", _TX, "ranks on this node", "N|auto|gpu|cpu", "run.nproc_per_node"),
    Flag("--nnodes", _TX, "nodes", "N", "run.nnodes"),
    Flag("--node-rank", _IN, "this node's number", "K", "run.node_rank"),
    Flag("--master-addr", _TX, "address of node 0", "HOST", "run.master_addr"),
    Flag("--master-port", _IN, "its port; a named one is never moved", "PORT", "run.master_port"),
    Flag("--rdzv-backend", _TX, "", "NAME"),
    Flag("--rdzv-endpoint", _TX, "", "HOST:PORT"),
    Flag("--rdzv-id", _TX, "", "ID"),
    Flag("--rdzv-conf", _TX, "", "K=V,..."),
    Flag("--standalone", _SW, ""),
    Flag("--max-restarts", _IN, "", "N"),
    Flag("--monitor-interval", _TX, "", "S"),
    Flag("--start-method", _TX, "", "NAME"),
    Flag("--event-log-handler", _TX, "", "NAME"),
    Flag("--role", _TX, "", "NAME"),
    Flag("--module", _SW, "", short="-m"),
    Flag("--no-python", _SW, ""),
    Flag("--run-path", _SW, ""),
    Flag("--log-dir", _TX, "", "DIR"),
    Flag("--redirects", _TX, "", "N", short="-r"),
    Flag("--tee", _TX, "", "N", short="-t"),
    Flag("--local-ranks-filter", _TX, "", "RANKS"),
    Flag("--log-line-prefix-template", _TX, "", "TEXT"),
    Flag("--duplicate-stdout-filters", _TX, "", "WORDS"),
    Flag("--duplicate-stderr-filters", _TX, "", "WORDS"),
    Flag("--local-addr", _TX, "", "HOST"),
    Flag("--logs-specs", _TX, "", "NAME"),
    Flag("--numa-binding", _TX, "", "MODE"),
    Flag("--signals-to-handle", _TX, "", "NAMES"),
    Flag("--shutdown-timeout", _TX, "", "S"),
    Flag("--virtual-local-rank", _SW, ""),
)
# fmt: on

# torchrun flags that stoker sets itself; the note tells what happened to the user's.
OWNED: Final[dict[str, str]] = {
    "max_restarts": "--max-restarts {value} became --max-retries {value}: stoker restarts with a plan, torchrun with 0",
    "log_dir": "--log-dir {value} replaced: each attempt's logs lie in the run directory",
    "redirects": "--redirects {value} replaced by --redirects=3: one file a rank and stream",
    "tee": "--tee {value} replaced: stoker shows the lines of every rank itself",
    "logs_specs": "--logs-specs {value} dropped: it would move the log files that stoker reads",
}


def by_spelling(flags: Iterable[Flag]) -> dict[str, Flag]:
    """Every accepted spelling of every flag: dashes, underscores, the short form."""
    table: dict[str, Flag] = {}
    for flag in flags:
        table[flag.name] = flag
        table[f"--{flag.key}"] = flag
        if flag.short:
            table[flag.short] = flag
    return table


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a person most likely meant, or None."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return near[0] if near else None


def help_text(flags: Iterable[Flag], group: str) -> str:
    """Aligned help lines for a group of flags with a help text."""
    rows = [(f"{f.name} {f.metavar}".rstrip(), explained(f)) for f in flags if f.group == group and f.help]
    width = max((len(left) for left, _ in rows), default=0)
    return "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


def explained(flag: Flag) -> str:
    """A flag's help, with its choices added if it does not name them."""
    named = all(choice in flag.help for choice in flag.choices)
    return flag.help if named else f"{flag.help}: {', '.join(flag.choices)}"

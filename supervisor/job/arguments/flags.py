"""Every flag that `stoker run` takes before the script: stoker's own and torchrun's, in two tables.

The parser, the help text and the environment names (STOKER_<NAME>, PET_<NAME>) all come from here.
torchrun's table follows `torch/distributed/run.py` of torch 2.13; flags of other releases are let
through only if the target's own ``torchrun --help`` lists them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class FlagKind(StrEnum):
    """What a flag takes."""

    SWITCH = "switch"
    TEXT = "text"
    INT = "int"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `name` has dashes; the underscore spelling is accepted too.

    `setting` is the dotted key of a job file that says the same (empty: only a flag). `choices` closes
    the set of values. `repeatable` flags keep every value, others the last one.
    """

    name: str
    kind: FlagKind
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
        return self.kind is not FlagKind.SWITCH

    @property
    def key(self) -> str:
        """The name without its dashes, words joined by underscores."""
        return self.name.removeprefix("--").replace("-", "_")


_SW, _TX, _IN, _SE = FlagKind.SWITCH, FlagKind.TEXT, FlagKind.INT, FlagKind.SECONDS
_SCOPES = ("per_rank", "per_node", "global")

STOKER_FLAGS: tuple[Flag, ...] = (
    Flag("--config", _TX, "job file (TOML, YAML or .py) or a preset such as dual_gpu/balanced", "FILE"),
    Flag("--python", _TX, "interpreter that has torch", "PATH", "run.python"),
    Flag("--name", _TX, "name of the run", "NAME", "run.name"),
    Flag("--runs-dir", _TX, "folder of run directories (default: $STOKER_RUNS_DIR, else ./runs)", "DIR"),
    Flag(
        "--run-dir",
        _TX,
        "the one run directory of a job on several nodes: a new folder that all of them see, named alike on each (with --nnodes)",
        "DIR",
    ),
    Flag("--max-requeues", _IN, "in a SLURM job: starts in a row without a new checkpoint (3)", "N"),
    Flag("--env", _TX, "set a variable for the job; may be repeated", "KEY=VALUE", repeatable=True),
    Flag(
        "--debug-distributed",
        _SW,
        "have NCCL and PyTorch log how ranks meet and where they wait (NCCL_DEBUG, TORCH_DISTRIBUTED_DEBUG, flight recorder)",
        "",
        "run.debug_distributed",
    ),
    Flag(
        "--deterministic",
        _SW,
        "set what a script cannot set for itself: CUBLAS_WORKSPACE_CONFIG, PYTHONHASHSEED; the rest is the script's",
        "",
        "run.deterministic",
    ),
    Flag(
        "--single-gpu",
        _SW,
        "one rank on the first of the visible GPUs, whatever else is said of ranks and machines; all else is the same",
    ),
    Flag(
        "--trial",
        _SW,
        "try the job first: one rank on one GPU, a few steps, no restart; says what it saw, and the command of the real run",
    ),
    Flag("--trial-steps", _IN, "steps of a trial (default 20)", "N", "run.trial_steps"),
    Flag(
        "--no-ui", _SW, "stay in the foreground, print log lines, return the run's exit code", group="screen"
    ),
    Flag(
        "--json",
        _SW,
        "with --no-ui: JSON lines on stdout; with --check-only or --dry-run: one object",
        group="screen",
    ),
    Flag("--detach", _SW, "start, print the run's id, return at once", group="screen"),
    Flag("--read-only", _SW, "open the screen without the keys that act", group="screen"),
    Flag(
        "--theme",
        _TX,
        "dark, light, or safe for eyes that mix up red and green",
        "NAME",
        "ui.theme",
        choices=("dark", "light", "safe"),
        group="screen",
    ),
    Flag("--ascii", _SW, "no glyph beyond ASCII on the screen", "", "ui.ascii", group="screen"),
    Flag(
        "--lang", _TX, "en or zh (default: by LANG)", "LANG", "ui.lang", choices=("en", "zh"), group="screen"
    ),
    Flag("--dry-run", _SW, "print the command that would run, start nothing", group="screen"),
    Flag("--show-config", _SW, "print each setting with its origin, start nothing", group="screen"),
    Flag(
        "--check-only", _SW, "make the pre-flight checks, start nothing (as `stoker check`)", group="screen"
    ),
    Flag("--no-check", _SW, "start without pre-flight checks", group="screen"),
    Flag(
        "--deep",
        _SW,
        "also the checks that take seconds: the ranks meet once, data is read through",
        group="screen",
    ),
    Flag(
        "--log-level",
        _TX,
        "least level that is printed",
        "LEVEL",
        "run.log_level",
        choices=("debug", "info", "warning", "error"),
        group="screen",
    ),
    Flag(
        "--instrument",
        _SW,
        "measure there also where an earlier run got further without",
        group="screen",
    ),
    Flag(
        "--no-instrument",
        _SW,
        "measure nothing inside the training processes (docs/instrumentation.md)",
        group="screen",
    ),
    Flag(
        "--max-retries",
        _IN,
        "restarts as it was, without progress, before giving up; a plan that changes the job (a smaller batch, another port)"
        " has a count of its own; 0: no restart at all",
        "N",
        "policy.max_retries",
        group="retry",
    ),
    Flag("--min-micro-batch", _IN, "never go below this", "N", "policy.min_micro_batch", group="retry"),
    Flag(
        "--min-ranks",
        _IN,
        "ranks a node may continue with when a faulty GPU is left out",
        "N",
        "policy.min_ranks",
        group="retry",
    ),
    Flag("--no-retry", _SW, "never restart by itself", group="retry"),
    Flag(
        "--restart-from-scratch",
        _SW,
        "a restart may begin at step 0 where no resume is known",
        "",
        "policy.restart_from_scratch",
        group="retry",
    ),
    Flag("--trust-exit-code", _SW, "treat exit code 0 as success, whatever the logs show", group="retry"),
    Flag("--grace", _SE, "seconds a stop waits before SIGKILL", "S", "policy.grace_s", group="retry"),
    Flag(
        "--node-timeout",
        _SE,
        "with --run-dir: seconds that a node waits for others that show no sign of life (default 300)",
        "S",
        "policy.node_timeout_s",
        group="retry",
    ),
    Flag("--hold", _SE, "seconds a held run waits for a person", "S", "policy.hold_s", group="retry"),
    Flag(
        "--hang-timeout",
        _SE,
        "end a hang after S seconds without progress, at the earliest (default 300; 0: never)",
        "S",
        "hang.act_s",
        group="retry",
    ),
    Flag(
        "--end-hangs",
        _SW,
        "end a hang even if nobody is watching and no resume is known, and don't wait longer for a rank that computes; with --hang-timeout, whatever the ranks do",
        "",
        "hang.end_hangs",
        group="retry",
    ),
    Flag(
        "--start-timeout",
        _SE,
        "end an attempt as a hang if no step completes within S seconds of its launch (default: never)",
        "S",
        "hang.start_timeout_s",
        group="retry",
    ),
    Flag("--micro-batch", _IN, "samples a rank holds at once", "N", "batch.micro", group="batch"),
    Flag(
        "--global-batch",
        _IN,
        "samples (or tokens) one optimizer step sees",
        "N",
        "batch.global",
        group="batch",
    ),
    Flag(
        "--fit-batch",
        _SW,
        "first find the largest micro-batch that fits, by short launches of a few steps each",
        group="batch",
    ),
    Flag(
        "--fit-steps",
        _IN,
        "steps that each of these launches must make",
        "N",
        "batch.fit_steps",
        group="batch",
    ),
    Flag("--batch-knob", _TX, "the script's flag for its batch size", "FLAG", "batch.knob", group="batch"),
    Flag(
        "--batch-scope", _TX, "what that flag counts", "SCOPE", "batch.scope", choices=_SCOPES, group="batch"
    ),
    Flag(
        "--accumulation-knob",
        _TX,
        "the script's accumulation flag",
        "FLAG",
        "batch.accumulation_knob",
        group="batch",
    ),
    Flag(
        "--accumulation-counts",
        _TX,
        "what the accumulation counts, where the script divides it by its ranks",
        "SCOPE",
        "batch.accumulation_counts",
        choices=("per_rank", "all_ranks"),
        group="batch",
    ),
    Flag(
        "--allow-smaller-global",
        _SW,
        "out of memory may be answered by a smaller global batch, where none can be kept",
        "",
        "policy.allow_smaller_global",
        group="batch",
    ),
    Flag(
        "--self-resuming",
        _SW,
        "the script continues from its newest checkpoint by itself",
        "",
        "resume.self_resuming",
        group="batch",
    ),
    Flag(
        "--resume-knob",
        _TX,
        "the script's resume flag; =PATH: the newest complete checkpoint found; =STEP: the number in its name; "
        "another VALUE, as latest: that word; without: a switch",
        "FLAG[=VALUE]",
        "resume.knob",
        group="batch",
    ),
)

# What `stoker init` takes besides those of `stoker run` that have a key in a job file.
INIT_FLAGS: tuple[Flag, ...] = (
    Flag("--out", _TX, "the job file to write; one that exists is never overwritten", "FILE", group="init"),
    Flag("--yes", _SW, "ask nothing: take the proposed answer to what was not given", group="init"),
    Flag("--start", _SW, "start the run at once, without asking", group="init"),
)

TORCHRUN_FLAGS: tuple[Flag, ...] = (
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

# torchrun flags that stoker sets itself; the note says what became of the user's.
OWNED: dict[str, str] = {
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
    """Aligned help lines of one group of flags that have a help text."""
    rows = [(f"{f.name} {f.metavar}".rstrip(), explained(f)) for f in flags if f.group == group and f.help]
    width = max((len(left) for left, _ in rows), default=0)
    return "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


def explained(flag: Flag) -> str:
    """A flag's help; it names the choices, or they are added."""
    named = all(choice in flag.help for choice in flag.choices)
    return flag.help if named else f"{flag.help}: {', '.join(flag.choices)}"

"""Defines the keys of job files and product settings: type, meaning, unit, default, values, flag and section.

Generates flags, their help, `config explain` and the reference page. `Setting.held` checks values from any source.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from supervisor.job.errors import JobError
from supervisor.job.spec import FitSettings, HangSettings, RetrySettings, Timing, TrialSettings


class KeyType(StrEnum):
    """The type of a setting's value."""

    INT = "whole number"
    FLOAT = "number"
    TEXT = "text"
    SWITCH = "true or false"


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers allowed for a setting. If `open_low` or `open_high` is true, the bound itself is excluded."""

    low: float
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = self.high is None or (value < self.high if self.open_high else value <= self.high)
        return above and below

    @property
    def words(self) -> str:
        """The range in words that can follow "must be"."""
        low = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        if self.high is None:
            return low
        return f"{low} and {'below' if self.open_high else 'at most'} {self.high:g}"


_FINITE = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
MOST_INT: Final = 1 << 63
_TYPES: Final[dict[KeyType, Any]] = {
    KeyType.SWITCH: bool,
    KeyType.TEXT: str,
    KeyType.INT: int,
    KeyType.FLOAT: _FINITE,
}
# Accepted for a switch besides true, false, 1 and 0, which msgspec accepts itself.
_SWITCH_WORDS: Final = {"yes": True, "on": True, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting.

    If `default` is None, nothing is assumed. `section` is the section of the trainer's help that starts here.
    `flag` is the `stoker run` flag with a placeholder for its value (``--grace S``), or empty if there is none.
    """

    kind: KeyType
    meaning: str
    default: Any = None
    choices: tuple[str, ...] = ()
    range: Range | None = None
    section: str = ""
    flag: str = ""

    @property
    def takes(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return ", ".join(self.choices)
        return f"{self.kind.value}, {self.range.words}" if self.range is not None else self.kind.value

    def held(self, name: str, value: object) -> int | float | str | bool:
        """Convert a value from a file, variable or flag to the setting's type, and check its choices and range.

        Raises:
            JobError: the value is invalid. The message calls the setting `name`.
        """
        kind, given = self.kind, value
        if kind is KeyType.SWITCH:
            given = _SWITCH_WORDS.get(str(value).lower(), value)
        elif kind is KeyType.TEXT and not isinstance(value, bool | list | dict | None):
            given = str(value)  # a TOML or YAML number or date for a text setting
        elif isinstance(value, str) and kind in {KeyType.INT, KeyType.FLOAT}:
            given = _number(value)
        try:
            done: int | float | str | bool = msgspec.convert(given, _TYPES[kind], strict=False)
        except msgspec.ValidationError:
            wanted = kind.value if kind in {KeyType.TEXT, KeyType.SWITCH} else f"a {kind.value}"
            # YAML reads a bare `on` as true, so suggest quotes.
            quote = ": quote it" if kind is KeyType.TEXT and isinstance(value, bool) else ""
            raise JobError(f"{name} wants {wanted}, got {value!r}{quote}") from None
        if isinstance(done, int) and not -MOST_INT <= done < MOST_INT:
            article = "a " if kind is KeyType.INT else ""
            raise JobError(f"{name} wants {article}{kind.value} of 64 bits, got {str(value)[:40]}")
        if self.choices and done not in self.choices:
            raise JobError(f"{name} takes one of {', '.join(self.choices)}, got {done!r}")
        if self.range is not None and isinstance(done, int | float) and done not in self.range:
            raise JobError(f"{name} must be {self.range.words}, got {value!r}")
        return done


def _number(text: str) -> int | float | str:
    """Parse a number as Python does, including `.5`, `1_000` and `+3`, which msgspec rejects."""
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return text


_UNITS: Final = {
    "gradient_accumulation_steps": "micro-steps",
    "tokens_per_sample": "tokens",
    "max_seq_len": "tokens",
    "total_batch_size": "tokens",
    "device_batch_size": "samples",
    "eval_samples": "samples",
    "num_iterations": "steps",
    "log_interval": "steps",
    "busy_ratio": "cores",
    "_micro_batch": "samples",
    "_steps": "steps",
    "_every": "steps",
    "_gib": "GiB",
    "_mib": "MiB",
    "_s": "seconds",
}


def unit_of(name: str) -> str:
    """Return the unit of a setting's number, judging by its name, or an empty string if it has none."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def shown(value: object) -> str:
    """Format a value as the user reads and writes it: true, 16, 0.001, or a dash if there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None or value == "" else str(value)


_I, _F, _T, _S = KeyType.INT, KeyType.FLOAT, KeyType.TEXT, KeyType.SWITCH
_NATURAL, _COUNT, _POSITIVE, _FACTOR = Range(0), Range(1), Range(0, open_low=True), Range(1)
_RETRY, _TIMING, _HANG, _FIT, _TRIAL = (
    RetrySettings(),
    Timing(),
    HangSettings(),
    FitSettings(),
    TrialSettings(),
)
_LEVELS: Final = ("debug", "info", "warning", "error")

# fmt: off
SETTINGS: Final[dict[str, Setting]] = {
    "run.script": Setting(_T, "the .py file to run under torchrun"),
    "run.module": Setting(_T, "the module to run under torchrun, instead of a script"),
    "run.name": Setting(_T, "name of the run; default: the script's", flag="--name NAME"),
    "run.python": Setting(_T, "interpreter that has torch; default: found automatically", flag="--python PATH"),
    "run.log_level": Setting(_T, "minimum log level on the console", "info", _LEVELS, flag="--log-level LEVEL"),
    "run.nproc_per_node": Setting(_T, "ranks on this node: a number from 1 to 1024, or auto, gpu, cpu", "1"),
    "run.nnodes": Setting(_T, "nodes of the job: a number, or MIN:MAX", "1"),
    "run.node_rank": Setting(_I, "this node's number, from 0", 0, range=_NATURAL),
    "run.master_addr": Setting(_T, "address of node 0, where the ranks meet"),
    "run.master_port": Setting(_I, "port on node 0; a port that you set is never changed", range=Range(1, 65_535)),
    "run.total_steps": Setting(_I, "total steps of the job, for progress; default: from its arguments", range=_NATURAL),
    "run.torch_local_path": Setting(_T, "your own build of PyTorch, put first in PYTHONPATH and LD_LIBRARY_PATH"),
    "run.libuv": Setting(_S, "false: PyTorch was built without libuv, so its store must not use it", default=True),
    "run.cuda_home": Setting(_T, "CUDA toolkit, put first in PATH and LD_LIBRARY_PATH"),
    "run.debug_distributed": Setting(_S, "make NCCL and PyTorch log how ranks meet and wait (NCCL_DEBUG, TORCH_DISTRIBUTED_DEBUG, flight recorder)", default=False, flag="--debug-distributed"),
    "run.deterministic": Setting(_S, "set CUBLAS_WORKSPACE_CONFIG and PYTHONHASHSEED, which a script cannot set itself; the script does the rest", default=False, flag="--deterministic"),
    "run.expected_memory_gib": Setting(_F, "expected GPU memory of a rank; the end of the run shows how far off it was", range=Range(0, 1e6, open_low=True, open_high=True)),
    "run.trial_steps": Setting(_I, "steps of a trial (--trial)", _TRIAL.steps, range=_COUNT, flag="--trial-steps N"),
    "run.trial_timeout_s": Setting(_F, "a trial ends after this time in any case", _TRIAL.timeout_s, range=_POSITIVE),
    "batch.knob": Setting(_T, "the script's own name for its micro-batch: a flag, file.yaml#key or env:NAME", flag="--batch-knob FLAG"),
    "batch.accumulation_knob": Setting(_T, "the same for its gradient accumulation", flag="--accumulation-knob FLAG"),
    "batch.global_knob": Setting(_T, "the same for its global batch"),
    "batch.scope": Setting(_T, "what the batch setting counts; default: measured", choices=("per_rank", "per_node", "global"), flag="--batch-scope SCOPE"),
    "batch.accumulation_counts": Setting(_T, "what the accumulation counts, if the script divides it by its ranks", choices=("per_rank", "all_ranks"), flag="--accumulation-counts SCOPE"),
    "batch.unit": Setting(_T, "what the global batch counts", choices=("samples", "tokens")),
    "batch.tokens_per_sample": Setting(_I, "length of a sample, if the global batch counts tokens", range=_COUNT),
    "batch.micro": Setting(_I, "samples per rank in one forward pass", range=_COUNT, flag="--micro-batch N"),
    "batch.global": Setting(_I, "samples (or tokens) per optimizer step", range=_COUNT, flag="--global-batch N"),
    "batch.fit_steps": Setting(_I, "steps that a probing launch of --fit-batch must make", _FIT.steps, range=_COUNT, flag="--fit-steps N"),
    "batch.fit_timeout_s": Setting(_F, "such a launch ends after this time in any case", _FIT.timeout_s, range=_POSITIVE),
    "resume.knob": Setting(_T, "the script's own resume setting; on the command line, =PATH passes the newest complete checkpoint, =STEP the number in its name, any other value itself, and no value makes it a switch", flag="--resume-knob FLAG[=VALUE]"),
    "resume.value": Setting(_T, "its value; PATH: the newest complete checkpoint; empty: nothing for a switch, else that path"),
    "resume.self_resuming": Setting(_S, "the script resumes from its newest checkpoint on its own", default=False, flag="--self-resuming"),
    "policy.retry": Setting(_S, "restart by itself", _RETRY.enabled),
    "policy.max_retries": Setting(_I, "unchanged restarts without progress before giving up; a plan that changes the job (a smaller batch, another port) has its own count; 0: no restarts", _RETRY.max_retries, range=_NATURAL, flag="--max-retries N"),
    "policy.min_micro_batch": Setting(_I, "smallest micro-batch after an out-of-memory failure", _RETRY.min_micro_batch, range=_COUNT, flag="--min-micro-batch N"),
    "policy.step_counter": Setting(_T, "whether the script's step count continues after a resume or starts over at 0; default: continues", choices=("continues", "restarts")),
    "policy.flap_max": Setting(_I, "maximum restarts within flap_window_s, with or without progress", _RETRY.flap_max, range=_COUNT),
    "policy.flap_window_s": Setting(_F, "time window of flap_max", _RETRY.flap_window_s, range=_NATURAL),
    "policy.restart_from_scratch": Setting(_S, "allow a restart at step 0 if no resume is known", _RETRY.restart_from_scratch, flag="--restart-from-scratch"),
    "policy.allow_smaller_global": Setting(_S, "allow a smaller global batch after an out-of-memory failure if it cannot be kept", _RETRY.allow_smaller_global, flag="--allow-smaller-global"),
    "policy.exit_zero": Setting(_T, "whether to check the logs for a failure or an early end after exit code 0, or to trust it", _RETRY.exit_zero, choices=("check", "trust")),
    "policy.grace_s": Setting(_F, "how long a stop waits before SIGKILL", _TIMING.grace_s, range=_NATURAL, flag="--grace S"),
    "policy.node_timeout_s": Setting(_F, "with --run-dir: how long a node waits for other nodes that show no sign of life", _TIMING.node_timeout_s, range=_POSITIVE, flag="--node-timeout S"),
    "policy.hold_s": Setting(_F, "how long a held run waits for you", _TIMING.hold_s, range=_NATURAL, flag="--hold S"),
    "hang.enabled": Setting(_S, "look for hangs", _HANG.enabled),
    "hang.flag_s": Setting(_F, "time without progress before a stall is flagged, at the earliest", _HANG.flag_s, range=_NATURAL),
    "hang.flag_factor": Setting(_F, "the same as a multiple of the run's own pace", _HANG.flag_factor, range=_FACTOR),
    "hang.act_s": Setting(_F, "time without progress before a hang is ended, at the earliest; 0: flag, never end", _HANG.act_s, range=_NATURAL, flag="--hang-timeout S"),
    "hang.act_factor": Setting(_F, "the same as a multiple of the run's own pace", _HANG.act_factor, range=_FACTOR),
    "hang.return_factor": Setting(_F, "the same as a multiple of the longest silence that the run came back from", _HANG.return_factor, range=_FACTOR),
    "hang.busy_act_s": Setting(_F, "the same as act_s for a late rank that computes", _HANG.busy_act_s, range=_NATURAL),
    "hang.busy_ratio": Setting(_F, "CPU use (in cores) above which a rank counts as computing", _HANG.busy_ratio, range=_POSITIVE),
    "hang.rounds_apart_s": Setting(_F, "minimum time between two rounds of stacks", _HANG.rounds_apart_s, range=_POSITIVE),
    "hang.countdown_s": Setting(_F, "from the decision to the end of the attempt; Esc keeps waiting", _HANG.countdown_s, range=_POSITIVE),
    "hang.end_hangs": Setting(_S, "end a hang even if no screen is open and no resume is known, and don't wait longer for ranks that compute; with your own act_s, whatever the ranks do", _HANG.end_hangs, flag="--end-hangs"),
    "hang.start_timeout_s": Setting(_F, "end an attempt as a hang if no step completes this long after its launch; 0: never", _HANG.start_timeout_s, range=_NATURAL, flag="--start-timeout S"),
    "hang.faulthandler": Setting(_S, "register Python's faulthandler in each rank, for machines where py-spy may not attach", _HANG.faulthandler),
    "instrument.enabled": Setting(_S, "measure batch, steps, checkpoints and memory inside the training processes", default=True),
    "runs.keep": Setting(_T, "what `stoker gc` keeps: how long, how many or how much, such as 90d 500 50GB"),
    "ui.theme": Setting(_T, "colors of the screen; the key T changes them; default: dark", choices=("dark", "light", "safe"), flag="--theme NAME"),
    "ui.ascii": Setting(_S, "draw the screen with ASCII only; default: depends on the terminal", flag="--ascii"),
    "ui.lang": Setting(_T, "language of the screen; default: from LANG", choices=("en", "zh"), flag="--lang LANG"),
    "ui.title": Setting(_S, "show the state of the open run in the terminal's title", default=True),
    "ui.bell": Setting(_S, "ring the terminal's bell when the open run fails or finishes", default=False),
    "ui.notice": Setting(_T, "escape sequence for a desktop notification when the open run fails or finishes: osc9 (iTerm2, WezTerm, Windows Terminal, ConEmu), osc777 (foot, Ghostty, VTE, urxvt)", "off", ("off", "osc9", "osc777")),
}
ANSWERS: Final = ("restart", "hold", "stop")
_CHANGES: Final = (
    "shrink", "fewer_workers", "new_port", "no_libuv", "raise_files", "resume_earlier",
)
CLASS_KEYS: Final[dict[str, Setting]] = {
    "answer": Setting(_T, "response to this failure", choices=ANSWERS),
    "change": Setting(_T, "change of a restart after it", choices=("none", *_CHANGES)),
    "max": Setting(_I, "maximum restarts after it", range=_NATURAL),
    "delay_s": Setting(_F, "wait before such a restart", range=_NATURAL),
    "wait_s": Setting(_F, "maximum wait for the conditions in show_first", range=_NATURAL),
}
"""The keys allowed in a ``[policy.<class>]`` table besides ``show_first``."""
# The conditions for the next launch (`run.records.Precondition`), a list under ``show_first``.
PRECONDITIONS: Final = ("gpu_memory", "port", "disk")
METRIC_KEYS: Final = {"name": Setting(_T, "name of the metric"), "regex": Setting(_T, "pattern of the line, with the number in a group")}
SIGNATURE_KEYS: Final[dict[str, Setting]] = {
    "id": Setting(_T, "lower-case words joined by hyphens"),
    "regex": Setting(_T, "pattern of a line that shows the failure"),
    "class": Setting(_T, "its failure class"),
    "name": Setting(_T, "your own name, if no class fits"),
    "role": Setting(_T, "role of the line", choices=("cause", "consequence", "advice")),
    "action": Setting(_T, "response to it", choices=(*ANSWERS, *_CHANGES)),
    "start": Setting(_T, "when it is expected", choices=("before_first_step", "after_first_step")),
    "recurs": Setting(_T, "whether a restart would fail in the same way", choices=("no", "yes")),
}
# fmt: on
"""The keys of a ``[[signature]]`` table. `class` or `name` describes the failure."""
# Flat keys of a trainer's job file that concern the launch, not the training.
FLAT: Final[dict[str, str]] = {
    "nproc_per_node": "run.nproc_per_node",
    "num_gpus": "run.nproc_per_node",
    "nnodes": "run.nnodes",
    "torch_local_path": "run.torch_local_path",
    "expected_memory_gib": "run.expected_memory_gib",
}
# Tables owned by other packages: the screen, and the user's metric patterns.
METRICS: Final = "metrics"
SIGNATURE: Final = "signature"
LAUNCH_SECTIONS: Final = frozenset({"run", "batch", "resume", "env", "policy", "hang", "instrument"})
# The look of the screen, and which runs to keep. Set in `stoker.toml` and `config.toml`, never in a job file.
OF_NO_JOB: Final = {"ui": "the screen", "runs": "all runs"}

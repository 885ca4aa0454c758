"""What is known of one setting: type, meaning, unit, default, and the values that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class KeyType(StrEnum):
    """What a setting holds."""

    INT = "whole number"
    FLOAT = "number"
    TEXT = "text"
    SWITCH = "true or false"


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a setting takes. `open_low`, `open_high`: the bound itself is left out."""

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
        """As a message says it, after "must be"."""
        low = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        if self.high is None:
            return low
        return f"{low} and {'below' if self.open_high else 'at most'} {self.high:g}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` None: nothing is assumed; `section`: the part of the trainer's help that begins with it."""

    kind: KeyType
    meaning: str
    default: Any = None
    choices: tuple[str, ...] = ()
    range: Range | None = None
    section: str = ""

    @property
    def takes(self) -> str:
        """The values that it takes, in words."""
        if self.choices:
            return ", ".join(self.choices)
        return f"{self.kind.value}, {self.range.words}" if self.range is not None else self.kind.value


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
    """What a setting's number counts, by its name; empty for one that has no unit."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def shown(value: object) -> str:
    """A value as it is read and written: true, 16, 0.001; a dash for none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None or value == "" else str(value)

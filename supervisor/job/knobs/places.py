"""Where a setting is: on the command line, in the environment, or in a config file that the script is given.

A knob's name says its place: ``--batch_size`` or ``train.batch_size`` on the command line, ``env:BATCH_SIZE``
in the environment, ``conf/train.yaml#train.batch_size`` in a file that the command line names, and
``--config=conf/train.yaml#train.batch_size`` in one that a flag names by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from supervisor.job.config.files import SUFFIXES, Scalar

ENV: Final = "env:"


class Place(StrEnum):
    """Where a knob is set."""

    ARGUMENT = "argument"
    ENVIRONMENT = "environment"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Places:
    """All that a foreign script's settings can be read from, besides its arguments.

    `configs`: of each file that a declared setting names, dotted key to value. `env`: what the job will see. `program`: the console
    program or module that runs. `args_at`: where the script's own arguments begin.
    """

    configs: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    program: str | None = None
    args_at: int = 0

    def value(self, name: str) -> Scalar:
        """The value of a knob that is not on the command line; None: unknown."""
        match place_of(name):
            case Place.FILE:
                file, _, key = name.partition("#")
                return self.configs.get(file, {}).get(key)
            case Place.ENVIRONMENT:
                return self.env.get(name.removeprefix(ENV))
            case Place.ARGUMENT:
                return None

    def with_value(self, name: str, value: str) -> Places:
        """The same with a knob in a file or a variable set."""
        file, _, key = name.partition("#")
        if place_of(name) is Place.FILE:
            return replace(self, configs={**self.configs, file: {**self.configs.get(file, {}), key: value}})
        return replace(self, env={**self.env, name.removeprefix(ENV): value})


def place_of(name: str) -> Place:
    """Where a knob of this name is set."""
    if name.startswith(ENV):
        return Place.ENVIRONMENT
    file, hash_, _ = name.partition("#")
    return Place.FILE if hash_ and file.lower().endswith(SUFFIXES) else Place.ARGUMENT


def bare(name: str) -> str:
    """The setting's own name: without ``env:``, without the file."""
    name = name.removeprefix(ENV)
    return name.partition("#")[2] if place_of(name) is Place.FILE else name


def is_argument(name: str) -> bool:
    """Whether it stands on the command line."""
    return place_of(name) is Place.ARGUMENT


def config_file(name: str) -> str:
    """The file of a config, without the flag that names it by default."""
    return name.partition("=")[2] if name.startswith("-") else name

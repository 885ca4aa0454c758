"""The supervisor's table of trainer settings against the trainer's own."""

from __future__ import annotations

from dataclasses import fields

from supervisor.job.config import trainer_keys
from supervisor.job.config.setting_keys import FLAT, LAUNCH_SECTIONS, METRICS
from supervisor.job.config.trainer_keys import KeyType
from trainer import settings
from trainer.config import Config

TYPES = {int: KeyType.INT, float: KeyType.FLOAT, str: KeyType.TEXT, bool: KeyType.SWITCH}


def test_keys_types_choices_and_ranges_are_the_trainers() -> None:
    theirs = {name: TYPES[kind] for name, kind in settings.types().items()}
    assert theirs == trainer_keys.TRAINER_KEYS
    choices = {f.name: tuple(f.metadata["choices"]) for f in fields(Config) if f.metadata["choices"]}
    assert choices == trainer_keys.TRAINER_CHOICES
    ranges = {f.name: r for f in fields(Config) if (r := f.metadata["range"]) is not None}
    assert {
        name: (r.low, r.high, r.open_low, r.open_high) for name, r in ranges.items()
    } == trainer_keys.TRAINER_RANGES
    numbers = {name for name, kind in settings.types().items() if kind in {int, float}}
    assert numbers - set(ranges) == {"seed"}, "every other number has its range"
    assert dict(settings.ALIASES) == trainer_keys.ALIASES


def test_defaults_that_a_batch_needs_are_the_trainers() -> None:
    config = Config()
    assert {
        name: getattr(config, name) for name in trainer_keys.TRAINER_DEFAULTS
    } == trainer_keys.TRAINER_DEFAULTS


def test_knobs_name_settings_that_exist() -> None:
    knobs = trainer_keys.TRAINER_KNOBS
    for flag in (knobs.batch, knobs.global_batch, knobs.resume):
        assert flag is not None
        assert flag.removeprefix("--") in settings.types()


def test_the_trainer_leaves_alone_what_speaks_of_the_launch() -> None:
    assert set(FLAT) == settings.LAUNCH_KEYS
    assert LAUNCH_SECTIONS | {METRICS} == settings.LAUNCH_TABLES

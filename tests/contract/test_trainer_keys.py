"""The supervisor's table of trainer settings against the trainer's own."""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path

from supervisor.job.config.resolve import TRAINER_KNOBS
from supervisor.job.setting_keys import FLAT, LAUNCH_SECTIONS, METRICS
from trainer import settings
from trainer.config import Config

ROOT = Path(__file__).parents[2]


def test_the_table_is_made_from_the_trainers_own() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "configs_page.py"))
    assert made["table"]() == made["TABLE"].read_text(encoding="utf-8"), "run: python scripts/configs_page.py"


def test_every_number_of_the_trainer_has_its_range() -> None:
    numbers = {name for name, kind in settings.types().items() if kind in {int, float}}
    assert numbers - {f.name for f in fields(Config) if f.metadata["range"] is not None} == {"seed"}


def test_knobs_name_settings_that_exist() -> None:
    knobs = TRAINER_KNOBS
    for flag in (knobs.batch, knobs.global_batch, knobs.resume):
        assert flag is not None
        assert flag.removeprefix("--") in settings.types()


def test_the_trainer_leaves_alone_what_speaks_of_the_launch() -> None:
    assert set(FLAT) == settings.LAUNCH_KEYS
    assert LAUNCH_SECTIONS | {METRICS} == settings.LAUNCH_TABLES

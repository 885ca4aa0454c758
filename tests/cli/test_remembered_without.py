"""A script that got further without stoker's measurements starts without them, unless somebody says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.job_inputs import load_job, parse_words
from supervisor.job.spec import JobSpec
from supervisor.run.answers import remember_unmeasured


@pytest.mark.parametrize(
    ("words", "settings", "measured"),
    [
        ("train.py", "", False),
        ("-- python train.py", "", False),
        ("--instrument train.py", "", True),
        ("train.py", "[instrument]\nenabled = true\n", True),
        ("--no-instrument train.py", "[instrument]\nenabled = true\n", False),
        ("other.py", "", True),
    ],
)
def test_it_is_remembered_until_somebody_says_otherwise(
    words: str, settings: str, measured: bool, tmp_path: Path
) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text(f"print({name!r})\n")
    (tmp_path / "stoker.toml").write_text(settings)

    def load(line: str) -> JobSpec:
        return load_job(parse_words(line.split(), env), env, tmp_path)

    assert load("train.py").instrument
    remember_unmeasured(load("train.py"), env, 1.0)
    spec = load(words)
    assert spec.instrument is measured
    is_remembered = not measured and "--no-instrument" not in words
    assert any("got further without it" in note for note in spec.notes) is is_remembered
    assert spec.sources("instrument.enabled")[-1][1].startswith("remembered") is is_remembered

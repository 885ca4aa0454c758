"""The compiled signatures: made once, read from the cache, and never from what somebody else or a torn write left there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.diagnosis.scan.signature_tables import digest_of
from supervisor.diagnosis.scan.windows import HyperscanMatcher, engine_name
from supervisor.sources import signature_files as module
from supervisor.sources.signature_files import (
    EngineLoader,
    default_cache_dir,
    load_engine,
    read_tables,
)
from tests.conftest import not_none

DIGEST = digest_of(read_tables())


@pytest.fixture
def good() -> Path:
    """The stored form, in the cache that all tests of a worker share."""
    folder = not_none(default_cache_dir())
    load_engine(folder)
    return Path(folder, f"signatures-{engine_name()}.bin")


def test_what_is_stored_is_read_and_not_made_again(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert good.stat().st_mode & 0o777 == 0o600
    assert good.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(module, "parse_tables", lambda _: pytest.fail("it is there"))
    monkeypatch.setattr(module, "compile_matcher", lambda _: pytest.fail("it is there"))
    engine = load_engine(str(good.parent))
    assert engine.signatures.digest == DIGEST
    assert isinstance(engine.matcher, HyperscanMatcher)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:30],
        lambda raw: b"x" + raw[1:],
        lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
        lambda raw: raw.replace(b"\n", b" ", 3),
    ],
)
def test_a_damaged_cache_costs_time_and_nothing_else(
    good: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    bad = tmp_path / good.name
    bad.write_bytes(damage(good.read_bytes()))
    assert module._stored(str(bad), DIGEST) is None
    assert module._stored(str(tmp_path / "absent"), DIGEST) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_file_that_somebody_else_wrote_is_no_cache(good: Path, tmp_path: Path) -> None:
    theirs = tmp_path / good.name
    theirs.write_bytes(good.read_bytes())
    os.chown(theirs, 65_534, 65_534)
    assert module._stored(str(theirs), DIGEST) is None


def test_an_engine_is_loaded_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = EngineLoader()
    engine = waiting.get()
    assert waiting.ready
    assert waiting.get() is engine
    assert engine.signatures.digest

    def broken(_folder: str | None, _own: object) -> module.Engine:
        raise ValueError("no tables")

    monkeypatch.setattr(module, "load_engine", broken)
    with pytest.raises(RuntimeError, match="could not be loaded") as raised:
        EngineLoader().get()
    assert isinstance(raised.value.__cause__, ValueError)

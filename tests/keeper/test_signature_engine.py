"""The signature engine is never waited for while something else has to be done."""

from __future__ import annotations

import threading

import pytest

from supervisor.sources import signature_files as engine
from supervisor.sources.signature_files import default_cache_dir, load_engine
from tests.conftest import wait_until


def test_it_says_when_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    made = load_engine(default_cache_dir())

    def slow(_cache: str | None, _own: object) -> object:
        assert go.wait(30)
        return made

    monkeypatch.setattr(engine, "load_engine", slow)
    loader = engine.EngineLoader()
    assert not loader.ready
    go.set()
    assert loader.get() is made
    assert wait_until(lambda: loader.ready, 5)


def test_what_loading_it_raised_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_cache: str | None, _own: object) -> object:
        raise OSError("no tables")

    monkeypatch.setattr(engine, "load_engine", broken)
    with pytest.raises(RuntimeError, match="signature tables"):
        engine.EngineLoader().get()


def test_nothing_is_loaded_before_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first launch need not share its core with the signatures."""
    made = load_engine(default_cache_dir())
    loads: list[str | None] = []

    def counted(cache: str | None, _own: object) -> object:
        loads.append(cache)
        return made

    monkeypatch.setattr(engine, "load_engine", counted)
    loader = engine.EngineLoader(begin=False)
    assert not loader.ready
    assert not loads
    assert loader.get() is made
    loader.begin()
    assert loader.ready
    assert len(loads) == 1

"""The signature engine is never waited for while something else has to be done."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from supervisor.keeper.loop import Keeper
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.sources import signature_files as engine
from supervisor.sources.signature_files import default_cache_dir, load_engine
from tests.conftest import wait_until
from tests.keeper.fakes import job_of


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


def test_a_keeper_that_closes_leaves_no_thread_that_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, lock_is_free = threading.Event(), threading.Event()
    made = load_engine(default_cache_dir())

    def slow(_cache: str | None, _own: object) -> object:
        assert go.wait(30)
        return made

    monkeypatch.setattr(engine, "load_engine", slow)
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    assert keeper._components is not None, "made as something runs"

    def finish() -> None:
        if wait_until(lambda: not keeper_is_alive(run.node().lock), 20):
            lock_is_free.set()
        go.set()

    other = threading.Thread(target=finish)
    other.start()
    keeper.close()
    loading = [thread.name for thread in threading.enumerate() if thread.name == "stoker-engine"]
    other.join()
    assert loading == []
    assert lock_is_free.is_set(), "nobody else waits for it"

"""Garbage is looked for when nobody waits, and all is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from supervisor.views.tui.garbage import held_back, settle, sweep


def test_the_collector_is_held_back_and_given_back() -> None:
    before = gc.get_threshold()
    with held_back():
        assert not gc.isenabled()
        frozen = gc.get_freeze_count()
        settle()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold()[2] > 1 << 20, "no full collection by itself"
        ring: list[object] = []
        ring.append(ring)
        del ring
        sweep()
        assert gc.get_count()[2] == 0
    assert gc.isenabled()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def raise_key_error() -> None:
    raise KeyError


def test_it_is_given_back_though_the_app_fails() -> None:
    with pytest.raises(KeyError), held_back():
        raise_key_error()
    assert gc.isenabled()

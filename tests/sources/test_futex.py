"""What the kernel says of a thread that waits: for a lock without a time limit, or for something that comes."""

from __future__ import annotations

import os

import pytest

from supervisor.sources.stacks import python_stacks as module

FUTEX = module._FUTEX.get(os.uname().machine, "202")


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        (f"{FUTEX} 0x7f 0x189 0x0 0x0 0x0 0xff 0x7f 0x7f", True),
        (f"{FUTEX} 0x7f 0x189 0x0 0x7ffe 0x0 0xff 0x7f 0x7f", False),
        (f"{FUTEX} 0x7f 0x189 0x0 0x0", True),
        (f"{FUTEX} 0x7f 0x189 0x0", None),
        ("1 0x7f 0x189 0x0 0x0 0x0", None),
        ("running", None),
        ("", None),
    ],
)
def test_a_lock_without_a_limit(monkeypatch: pytest.MonkeyPatch, call: str, waits: bool | None) -> None:
    monkeypatch.setitem(module._FUTEX, os.uname().machine, FUTEX)
    monkeypatch.setattr(module, "_read", lambda _path: call)
    assert module._waits_for_ever(1) is waits
    assert module._main_call(1) == (call.split(" ")[0] or None)

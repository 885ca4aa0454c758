"""Signature tables and their cache; a large log is matched ahead of its reader."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.diagnosis.scan.signature_tables import digest_of
from supervisor.diagnosis.scan.windows import (
    Ahead,
    Find,
    HyperscanMatcher,
    Matched,
    cut_windows,
    engine_name,
    in_turn,
    match_windows,
)
from supervisor.sources import signature_files as module
from supervisor.sources.signature_files import (
    Engine,
    EngineLoader,
    default_cache_dir,
    load_engine,
    match_ahead,
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


LINES = [
    b"step 12 loss 1.25 lr 3e-4 tokens/s 13000\n",
    b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    b"\x1b[31mKeyError: 'x'\x1b[0m\n",
    b" 10%|#\r 20%|##\rMemoryError\r 30%|###\n",
    b"ok\x00ok\n",
    b"\xff\xfe no newline",
    b"Traceback (most recent call last):\n",
]


class Scripted:
    """A matcher that scans as it is told."""

    def __init__(self, find: Find, ahead: Ahead) -> None:
        self.scan, self.ahead = find, ahead


def noisy_log(seed: int, blocks: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(blocks):
        dull = LINES[0] * rng.randint(1, 9000)
        yield dull + b"".join(rng.choices(LINES, k=rng.randint(0, 40)))
        if rng.random() < 0.02:
            yield b"x" * rng.randint(1, 1 << 21)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_large_log_gives_the_same_matches_with_two_threads(engine: Engine, seed: int) -> None:
    def whole(large: int, ahead: Ahead) -> list[Matched]:
        matcher = Scripted(engine.matcher.scan, ahead)
        return list(match_windows(matcher, cut_windows(noisy_log(seed, 30)), large))

    one = whole(1 << 40, match_ahead)
    assert sum(len(matched.window.data) for matched in one) > 2 << 20
    assert one == whole(1 << 19, match_ahead) == whole(1 << 19, in_turn)


def test_an_error_in_either_thread_reaches_the_caller_and_ends_the_other(engine: Engine) -> None:
    def broken(block: bytes) -> list[tuple[int, int]]:
        if b"bad" in block:
            raise OSError("the engine")
        return engine.matcher.scan(block)

    def torn() -> Iterator[bytes]:
        yield from [LINES[0] * 9000] * 9
        raise OSError("the disk")

    windows = cut_windows([LINES[0] * 9000, b"bad\n" * 99999, *[LINES[0] * 9000] * 9])
    with pytest.raises(OSError, match="the engine"):
        list(match_windows(Scripted(broken, match_ahead), windows, 1))
    with pytest.raises(OSError, match="the disk"):
        list(match_windows(Scripted(engine.matcher.scan, match_ahead), cut_windows(torn()), 1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stoker-scan-ahead")]

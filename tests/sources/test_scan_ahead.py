import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator

import pytest

from supervisor.diagnosis.scan.matched_lines import SourceScan
from supervisor.diagnosis.scan.scanner import scan_source
from supervisor.diagnosis.scan.windows import Matched, Window, cut_windows, match_in_turn
from supervisor.sources.signature_files import AheadMatcher, Engine
from supervisor.text.prefixes import NOWHERE

LINES = [
    b"step 12 loss 1.25 lr 3e-4 tokens/s 13000\n",
    b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    b"\x1b[31mKeyError: 'x'\x1b[0m\n",
    b" 10%|#\r 20%|##\rMemoryError\r 30%|###\n",
    b"ok\x00ok\n",
    b"\xff\xfe no newline",
    b"Traceback (most recent call last):\n",
]


class InTurn:
    """One thread, whatever the log's size."""

    def __init__(self, scan: Callable[[bytes, Callable[[int, int], None]], None]) -> None:
        self.scan = scan

    def each(self, windows: Iterable[Window]) -> Generator[Matched, None, None]:
        return match_in_turn(self.scan, windows)


def noisy_log(seed: int, blocks: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(blocks):
        dull = LINES[0] * rng.randint(1, 9000)
        yield dull + b"".join(rng.choices(LINES, k=rng.randint(0, 40)))
        if rng.random() < 0.02:
            yield b"x" * rng.randint(1, 1 << 21)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_large_log_gives_the_same_scan_with_two_threads(engine: Engine, seed: int) -> None:
    def whole(matcher: AheadMatcher | InTurn) -> SourceScan:
        return scan_source("log", NOWHERE, noisy_log(seed, 30), engine.signatures, matcher)

    one = whole(InTurn(engine.matcher.scan))
    assert one.bytes_read > 2 << 20
    assert one == whole(AheadMatcher(engine.matcher, from_bytes=1 << 19, cores=2))
    assert one == whole(AheadMatcher(engine.matcher, cores=1))


def test_small_logs_pay_for_no_thread_and_large_ones_use_one(engine: Engine) -> None:
    seen: set[str] = set()

    def watched(block: bytes, found: Callable[[int, int], None]) -> None:
        seen.add(threading.current_thread().name)
        engine.matcher.scan(block, found)

    def names(chunks: Iterable[bytes], cores: int) -> set[str]:
        seen.clear()
        list(AheadMatcher(InTurn(watched), cores=cores).each(cut_windows(chunks)))
        return seen - {threading.current_thread().name}

    block = LINES[0] * 6000
    assert names([block] * 20, 2) == set()
    assert names([block] * 60, 1) == set()
    assert names([block] * 60, 2) == {"stoker-scan-ahead_0"}


def test_an_error_in_either_thread_reaches_the_caller_and_ends_the_other(engine: Engine) -> None:
    def broken(block: bytes, found: Callable[[int, int], None]) -> None:
        if b"bad" in block:
            raise OSError("the engine")
        engine.matcher.scan(block, found)

    def torn() -> Iterator[bytes]:
        yield from [LINES[0] * 9000] * 9
        raise OSError("the disk")

    def whole(chunks: Iterable[bytes], matcher: InTurn) -> None:
        scan_source("log", NOWHERE, chunks, engine.signatures, AheadMatcher(matcher, 0, cores=2))

    with pytest.raises(OSError, match="the engine"):
        whole([LINES[0] * 9000, b"bad\n" * 99999, *[LINES[0] * 9000] * 9], InTurn(broken))
    with pytest.raises(OSError, match="the disk"):
        whole(torn(), InTurn(engine.matcher.scan))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stoker-scan-ahead")]

import random
import threading
from collections.abc import Iterator

import pytest

from supervisor.diagnosis.scan.windows import Ahead, Find, Matched, cut_windows, in_turn, match_windows
from supervisor.sources.signature_files import Engine, match_ahead

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

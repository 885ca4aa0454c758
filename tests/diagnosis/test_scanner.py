import gzip
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.scan.matched_lines import SourceScan
from supervisor.diagnosis.scan.scanner import LiveScanner, scan_source
from supervisor.diagnosis.scan.signature_tables import Role
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import NOWHERE, Origin

OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 8 GiB"


def scan(engine: Engine, data: bytes, size: int = 1 << 16) -> SourceScan:
    chunks = (data[start : start + size] for start in range(0, len(data), size))
    return scan_source("log", NOWHERE, chunks, engine.signatures, engine.matcher)


def places(found: SourceScan) -> list[tuple[str, int, str]]:
    return [(hit.signature.id, hit.line, hit.text) for hit in found.hits]


def test_a_hit_knows_its_place_and_who_said_it(engine: Engine) -> None:
    data = f"step 1 loss 2.0\nüñí\n{OOM}\nafter\n".encode()
    found = scan(engine, data)
    (hit,) = [hit for hit in found.hits if hit.signature.id == "cuda-oom-allocator"]
    assert (hit.line, hit.rank) == (3, 1)
    assert hit.lines_before()[-1] == "üñí"
    assert hit.lines_after()[0] == "after"
    assert found.lines == 4


@given(
    st.lists(
        st.sampled_from(["step 1 loss 2.0", OOM, "", "KeyError: 'x'", "noise\r 50%|##\r 60%|###"]),
        max_size=30,
    ),
    st.integers(1, 90),
)
@settings(max_examples=40, deadline=None)
def test_what_is_found_does_not_depend_on_the_pieces(engine: Engine, lines: list[str], size: int) -> None:
    data = "\n".join(lines).encode()
    whole, pieces = scan(engine, data), scan(engine, data, size)
    assert places(whole) == places(pieces)
    assert (whole.lines, whole.bytes_read) == (pieces.lines, pieces.bytes_read)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
@pytest.mark.parametrize("packed", [False, True])
def test_encodings_and_gzip_are_ordinary(engine: Engine, encoding: str, packed: bool) -> None:
    data = f"a first line of some length\r\n{OOM}\r\n".encode(encoding)
    found = scan(engine, gzip.compress(data) if packed else data)
    assert any(hit.signature.failure is FailureClass.CUDA_OOM and hit.line == 2 for hit in found.hits)


def test_escape_codes_neither_hide_a_failure_nor_reach_its_text(engine: Engine) -> None:
    found = scan(engine, b"ok\n\x1b[31mRuntime\x1b[0mError: \x1b[1mCUDA out\x1b[0m of memory\x00. Tried\n")
    (hit,) = [hit for hit in found.hits if hit.signature.id == "cuda-oom-allocator"]
    assert hit.text == "RuntimeError: CUDA out of memory. Tried"


def test_a_failure_between_carriage_returns_is_shown_alone(engine: Engine) -> None:
    found = scan(engine, b" 10%|#\r 20%|##\rRuntimeError: CUDA out of memory. Tried\r 30%|###\n")
    assert [hit.text for hit in found.hits if hit.signature.id == "cuda-oom-allocator"] == [
        "RuntimeError: CUDA out of memory. Tried"
    ]


def test_advice_is_never_told_live(engine: Engine) -> None:
    live = LiveScanner(engine.signatures, engine.matcher)
    told = live.feed(
        "f",
        b"HINT: on CUDA out of memory lower the batch\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n",
    )
    assert told == []
    assert live.feed("f", OOM.encode()) == []
    (hit,) = live.feed("f", b"\n")
    assert hit.signature.role is Role.CAUSE
    assert (hit.line, hit.rank) == (3, 1)
    (other,) = live.feed("g", b"MemoryError\n", Origin(local_rank=3))
    assert other.origin.local_rank == 3
    live.forget("f")
    (again,) = live.feed("f", b"MemoryError\n", Origin(local_rank=5))
    assert (again.line, again.origin.local_rank) == (1, 5)


def flood(total: int) -> Iterator[bytes]:
    line = b"step 12 loss 1.25 lr 3e-4 tokens/s 13000\n" * 2000 + OOM.encode() + b"\n"
    sent = 0
    while sent < total:
        sent += len(line)
        yield line


def test_memory_does_not_grow_with_the_log(engine: Engine) -> None:
    peaks = []
    for total in (16 << 20, 64 << 20):
        tracemalloc.start()
        found = scan_source("log", NOWHERE, flood(total), engine.signatures, engine.matcher)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found.hits
    assert peaks[1] < 1.5 * peaks[0]

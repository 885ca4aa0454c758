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
    assert set(live.sources()) == {"g"}


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711",
            FailureClass.NCCL_ERROR,
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error",
            FailureClass.NCCL_ERROR,
        ),
        (
            "RuntimeError: [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer",
            FailureClass.NCCL_ERROR,
        ),
    ],
)
def test_a_peers_complaint_is_told_as_a_consequence_only(
    engine: Engine, line: str, failure: FailureClass
) -> None:
    (hit,) = LiveScanner(engine.signatures, engine.matcher).feed("f", f"[rank0]: {line}\n".encode())
    assert (hit.signature.role, hit.signature.failure) == (Role.CONSEQUENCE, failure)


def test_the_launchers_summary_is_not_told_as_a_failure_of_the_code(engine: Engine) -> None:
    live = LiveScanner(engine.signatures, engine.matcher)
    assert live.feed("f", b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n") == []
    (hit,) = live.feed("f", b"[rank1]: RuntimeError: shard 17 has 0 samples\n")
    assert hit.signature.failure is FailureClass.CODE_ERROR


def test_a_source_line_that_a_traceback_quotes_is_not_told_live(engine: Engine) -> None:
    live = LiveScanner(engine.signatures, engine.matcher)
    text = (
        "Traceback (most recent call last):\n"
        '  File "/w/train.py", line 12, in <module>\n'
        '    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    told = [hit for line in text.splitlines(keepends=True) for hit in live.feed("f", line.encode())]
    assert [(hit.line, hit.signature.failure) for hit in told] == [(4, FailureClass.CUDA_OOM)]


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


def test_a_line_without_end_neither_hangs_nor_fills_memory(engine: Engine) -> None:
    tracemalloc.start()
    found = scan_source(
        "log", NOWHERE, (b"x" * (1 << 20) for _ in range(48)), engine.signatures, engine.matcher
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.lines == 1
    assert peak < 16 << 20


@given(st.binary(max_size=3000))
@settings(max_examples=60, deadline=None)
def test_random_bytes_never_break_a_scan(engine: Engine, data: bytes) -> None:
    found = scan(engine, data, 517)
    for hit in found.hits:
        assert hit.text.isprintable() or "\t" in hit.text


@pytest.mark.parametrize("filler", [0, 20_000])
def test_the_steps_of_a_scan_are_the_numbers_of_the_kept_lines(engine: Engine, filler: int) -> None:
    """Of a short log all, each once; of a long one those of its head and of its tail."""
    lines = ["start", "step 1/9 loss 2.0", *["a line of a library"] * filler, "step 8/9 loss 1.0", "end"]
    found = scan(engine, "\n".join(lines).encode() + b"\n")
    assert found.steps == (2, filler + 3)
    tail = [(filler + 3, "step 8/9 loss 1.0")]
    assert found.tail_steps() == (tail if filler else [(2, "step 1/9 loss 2.0"), *tail])

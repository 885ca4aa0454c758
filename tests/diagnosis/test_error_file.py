"""A rank's error.json is read whole or in part, and never raises."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.attribution.error_file import ErrorFile, read_error_file
from supervisor.diagnosis.evidence import ErrorFile as EvidenceFile
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.verdict import diagnose
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.text.prefixes import Origin

WHOLE = json.dumps(
    {
        "message": {
            "message": 'ValueError: bad "shape"\nsecond line',
            "extraInfo": {"py_callstack": "Traceback…\n  File x", "timestamp": "1795223130"},
        }
    }
).encode()


def test_a_whole_file() -> None:
    assert read_error_file(WHOLE) == ErrorFile(
        message='ValueError: bad "shape"\nsecond line',
        exception="ValueError",
        py_callstack="Traceback…\n  File x",
        timestamp_s=1795223130,
        complete=True,
    )


def test_every_half_of_it_says_what_it_holds() -> None:
    for end in range(len(WHOLE)):
        half = read_error_file(WHOLE[:end])
        if half is not None:
            assert not half.complete
            assert 'ValueError: bad "shape"\nsecond line'.startswith(half.message.rstrip("\\"))
    cut = read_error_file(WHOLE[: WHOLE.index(b"timestamp")])
    assert cut is not None
    assert cut.exception == "ValueError"
    assert cut.timestamp_s is None


def test_other_shapes() -> None:
    assert read_error_file(b'{"message": "SignalException: Process 12 got signal: 15"}') == ErrorFile(
        "SignalException: Process 12 got signal: 15", "SignalException"
    )
    dotted = read_error_file(b'{"message": {"message": "torch.OutOfMemoryError: CUDA out of memory."}}')
    assert dotted is not None
    assert dotted.exception == "torch.OutOfMemoryError"
    for nothing in (b"", b"{}", b"[]", b"null", b'{"message": {}}', b"[" * 100_000, b"\xff\xfe"):
        assert read_error_file(nothing) is None


@given(st.binary(max_size=200))
def test_nothing_makes_it_raise(data: bytes) -> None:
    read_error_file(data)
    read_error_file(b'{"message": {"message": "' + data)


def test_a_hostile_file_does_not_end_the_verdict() -> None:
    engine = load_engine(default_cache_dir())
    file = EvidenceFile("error.json", b"[" * 100_000, Origin(local_rank=0))
    verdict = diagnose(JobEvidence(logs=(), error_files=(file,)), engine.signatures, engine.matcher)
    assert verdict.cause is None


def test_what_is_no_text_is_no_callstack() -> None:
    def read(**extra: object) -> ErrorFile | None:
        return read_error_file(json.dumps({"message": {"message": "Oops: x", "extraInfo": extra}}).encode())

    for callstack in (["a"], {"a": 1}, 7, True, None, ""):
        assert read(py_callstack=callstack) == ErrorFile("Oops: x", "Oops")
    for stamp, second in (
        ("12", 12),
        (12, 12),
        ("9" * 12, 10**12 - 1),
        ("9" * 13, None),
        ("1.5", None),
        ("²", None),
        ([1], None),
        ("", None),
    ):
        assert read(timestamp=stamp) == ErrorFile("Oops: x", "Oops", timestamp_s=second)
    only_stack = json.dumps({"message": {"message": ["x"], "extraInfo": {"py_callstack": "File x"}}}).encode()
    assert read_error_file(only_stack) == ErrorFile("", py_callstack="File x")

"""A rank's error.json is read whole or in part, and never raises."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.evidence import ErrorFile as EvidenceFile
from supervisor.diagnosis.evidence import JobEvidence, RankError, read_error_file
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


def test_every_half_of_it_says_what_it_holds() -> None:
    read = [half for end in range(len(WHOLE)) if (half := read_error_file(WHOLE[:end])) is not None]
    assert all('ValueError: bad "shape"\nsecond line'.startswith(half.message.rstrip("\\")) for half in read)
    assert read[-1].message == 'ValueError: bad "shape"\nsecond line'


def test_other_shapes() -> None:
    said = "SignalException: Process 12 got signal: 15"
    assert read_error_file(json.dumps({"message": said}).encode()) == RankError(said)
    dotted = read_error_file(b'{"message": {"message": "torch.OutOfMemoryError: CUDA out of memory."}}')
    assert dotted == RankError("torch.OutOfMemoryError: CUDA out of memory.")
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

from pathlib import Path

import pytest

from supervisor.diagnosis.scan.matcher import Re2Matcher, compile_matcher
from supervisor.diagnosis.scan.signature_tables import Signatures, TableError, pack, parse_tables, unpack
from supervisor.diagnosis.wording.classes import class_texts
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import load_engine, read_tables

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def signatures() -> Signatures:
    return parse_tables(read_tables())


def table(**changes: object) -> dict[str, bytes]:
    entry: dict[str, object] = {
        "id": "x-1",
        "class": "disk_full",
        "role": "cause",
        "strength": 50,
        "regex": "disk is full",
        "samples": ["the disk is full"],
        "triggers": ["full"],
    }
    entry.update(changes)
    lines = ["[[signature]]"]
    for key, value in entry.items():
        shown = (
            "[" + ", ".join(repr(item) for item in value) + "]" if isinstance(value, list) else repr(value)
        )
        lines.append(f"{key} = {shown}")
    return {"own": "\n".join(lines).encode()}


def test_all_tables_are_valid_and_cover_the_classes(signatures: Signatures) -> None:
    told = {entry.failure for entry in signatures.entries}
    assert set(FailureClass) - told - {FailureClass.UNKNOWN, FailureClass.HEALTHY} == set()
    assert set(class_texts()) == set(FailureClass)
    assert len({entry.id for entry in signatures.entries}) == len(signatures.entries)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"class": "nonsense"}, "nonsense"),
        ({"regex": "(?=disk) is full"}, "subset"),
        ({"regex": r"(d)isk is full\1"}, "subset"),
        ({"regex": "disk is (full"}, "x-1"),
        ({"regex": "(?:disk is full)?"}, "matches nothing"),
        ({"samples": ["all is well"]}, "sample"),
        ({"near_misses": ["my disk is full too"]}, "near-miss"),
        ({"triggers": ["no such word"]}, "trigger"),
        ({"strength": 101}, "strength"),
        ({"samples": []}, "no sample"),
        ({"colour": "red"}, "unknown keys"),
    ],
)
def test_a_bad_entry_is_refused_with_its_reason(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(TableError, match=complaint):
        parse_tables(table(**change))


def test_an_id_may_be_used_once() -> None:
    with pytest.raises(TableError, match="twice"):
        parse_tables({"a": table()["own"], "b": table()["own"]})


def test_both_engines_find_every_sample(signatures: Signatures) -> None:
    block = "\n".join(sample for entry in signatures.entries for sample in entry.samples).encode() + b"\n"
    ends = []
    place = 0
    for entry in signatures.entries:
        for sample in entry.samples:
            ends.append((entry.place, place, place + len(sample.encode())))
            place += len(sample.encode()) + 1
    for matcher in (compile_matcher(signatures), Re2Matcher([entry.regex for entry in signatures.entries])):
        found: set[tuple[int, int]] = set()

        def note(index: int, end: int, found: set[tuple[int, int]] = found) -> None:
            found.add((index, block.count(b"\n", 0, max(end - 1, 0))))

        matcher.scan(block, note)
        for index, start, _ in ends:
            row = block.count(b"\n", 0, start)
            assert (index, row) in found, signatures.entries[index].id


def test_packing_keeps_what_a_scan_needs(signatures: Signatures) -> None:
    again = unpack(pack(signatures))
    assert again.digest == signatures.digest
    assert [(e.id, e.failure, e.role, e.strength, e.regex, e.confirm) for e in again.entries] == [
        (e.id, e.failure, e.role, e.strength, e.regex, e.confirm) for e in signatures.entries
    ]
    with pytest.raises(ValueError, match="packed"):
        unpack(b"junk")


def test_a_cache_is_used_and_a_damaged_one_does_no_harm(tmp_path: Path) -> None:
    first = load_engine(str(tmp_path / "cache"))
    (stored,) = (tmp_path / "cache").iterdir()
    raw = stored.read_bytes()
    for damaged in (raw, raw[: len(raw) // 2], b"stoker-signatures-2\nnonsense"):
        stored.write_bytes(damaged)
        engine = load_engine(str(tmp_path / "cache"))
        hits: list[int] = []

        def note(index: int, _end: int, hits: list[int] = hits) -> None:
            hits.append(index)

        engine.matcher.scan(b"RuntimeError: CUDA error: out of memory\n", note)
        assert hits
        assert engine.signatures.digest == first.signatures.digest


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert load_engine(str(tmp_path / "file" / "cache")).signatures.entries

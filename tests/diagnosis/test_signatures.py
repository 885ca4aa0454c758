"""The signature tables are sound, both engines find them, and the pages and names made of them are up to date."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from supervisor.diagnosis.class_words import class_texts
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.scan.matched_lines import UNCAUGHT
from supervisor.diagnosis.scan.signature_tables import (
    Signature,
    Signatures,
    Trait,
    pack,
    parse_tables,
    unpack,
)
from supervisor.diagnosis.scan.windows import Re2Matcher, compile_matcher
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import load_engine, read_tables
from tests.spelling import words_of_kinds

KEYS = {
    "id", "class", "role", "reason", "strength", "triggers", "regex", "must_not", "samples", "near_misses", "traits", "lost", "title",
}  # fmt: skip
OUTSIDE_SUBSET = re.compile(r"(?<!\\)\(\?(?!:|[ims]+\))|\\[1-9]|[*+?}]\+|\\[pPXkKGZ]")
ROOT = Path(__file__).resolve().parents[2]
# A new wording, as `scan/signature_tables.py` says how to add one: the entry, and a line as the program prints it.
NEW_ENTRY = """
[[signature]]
id = "disk-quota-bytes"
class = "disk_full"
role = "cause"
strength = 84
triggers = ["quota"]
regex = '''quota of \\d+ bytes exceeded'''
must_not = "a quota that is only printed"
samples = ["OSError: quota of 500 bytes exceeded"]
near_misses = ["quota of 500 bytes set"]
"""
NEW_LINE = "storage.Refused: quota of 7340032 bytes exceeded on /ckpt"


@pytest.fixture(scope="module")
def signatures() -> Signatures:
    return parse_tables(read_tables())


def test_all_tables_are_valid_and_cover_the_classes(signatures: Signatures) -> None:
    told = {entry.failure for entry in signatures.entries}
    assert set(FailureClass) - told - {FailureClass.UNKNOWN, FailureClass.HEALTHY} == set()
    assert set(class_texts()) == set(FailureClass)
    assert len({entry.id for entry in signatures.entries}) == len(signatures.entries)


def test_each_entry_is_sound(signatures: Signatures) -> None:
    """Ids, the subset of regular expressions that Hyperscan and re2 share, samples and near-misses."""
    for raw in (raw for text in read_tables().values() for raw in tomllib.loads(text.decode())["signature"]):
        assert set(raw) <= KEYS, raw["id"]
    for entry in signatures.entries:
        pattern = re.compile(entry.regex)
        assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", entry.id), entry.id
        assert 0 <= entry.strength <= 100, entry.id
        assert OUTSIDE_SUBSET.search(entry.regex) is None, entry.id
        assert pattern.search("") is None, entry.id
        assert (Trait.LOST_CONNECTION in entry.traits) == bool(entry.lost), entry.id
        assert entry.samples, entry.id
        for sample in entry.samples:
            assert pattern.search(sample), (entry.id, sample)
            assert not entry.triggers or any(trigger in sample for trigger in entry.triggers), (
                entry.id,
                sample,
            )
        for sample in entry.near_misses:
            assert pattern.search(sample) is None, (entry.id, sample)


def test_both_engines_find_every_sample(signatures: Signatures) -> None:
    block = "\n".join(sample for entry in signatures.entries for sample in entry.samples).encode() + b"\n"
    ends = []
    place = 0
    for entry in signatures.entries:
        for sample in entry.samples:
            ends.append((entry.place, place, place + len(sample.encode())))
            place += len(sample.encode()) + 1
    for matcher in (compile_matcher(signatures), Re2Matcher([entry.regex for entry in signatures.entries])):
        found = {(index, block.count(b"\n", 0, max(end - 1, 0))) for end, index in matcher.scan(block)}
        for index, start, _ in ends:
            row = block.count(b"\n", 0, start)
            assert (index, row) in found, signatures.entries[index].id


def test_a_cache_is_used_and_a_damaged_one_does_no_harm(tmp_path: Path) -> None:
    first = load_engine(str(tmp_path / "cache"))
    (stored,) = (tmp_path / "cache").iterdir()
    raw = stored.read_bytes()
    for damaged in (raw, raw[: len(raw) // 2]):
        stored.write_bytes(damaged)
        engine = load_engine(str(tmp_path / "cache"))
        assert engine.matcher.scan(b"RuntimeError: CUDA error: out of memory\n")
        assert engine.signatures.digest == first.signatures.digest


def test_a_set_is_packed_without_what_only_its_tests_need(signatures: Signatures) -> None:
    def bare(entry: Signature) -> Signature:
        return entry._replace(triggers=(), must_not="", samples=(), near_misses=(), family="")

    again = unpack(pack(signatures))
    assert again.digest == signatures.digest
    assert list(map(bare, again.entries)) == list(map(bare, signatures.entries))
    assert not any(entry.samples or entry.near_misses for entry in again.entries)


@pytest.mark.parametrize("raw", [b"{", b"[1]", b'["digest", [{"id": "of a later version"}]]', b"[[], 3]"])
def test_what_is_no_packed_set_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not a packed signature set: "):
        unpack(raw)


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert load_engine(str(tmp_path / "file" / "cache")).signatures.entries


def test_a_signature_is_added_by_its_entry_and_an_example_line(tmp_path: Path) -> None:
    for name, content in read_tables().items():
        (tmp_path / f"{name}.toml").write_bytes(content)
    before = verdict_on_line(read_tables())
    with (tmp_path / "data.toml").open("a", encoding="utf-8") as table:
        table.write(NEW_ENTRY)
    after = verdict_on_line({path.stem: path.read_bytes() for path in tmp_path.glob("*.toml")})
    assert before != ("disk_full", 2)
    assert after == ("disk_full", 2)


def verdict_on_line(tables: dict[str, bytes]) -> tuple[str, int | None]:
    signatures = parse_tables(tables)
    job = JobEvidence(logs=(LogSource("log", (f"saving the checkpoint\n{NEW_LINE}\n".encode(),)),))
    verdict = diagnose(job, signatures, compile_matcher(signatures))
    return verdict.failure.value, verdict.cause.line if verdict.cause is not None else None


def test_no_signature_is_named_in_python(signatures: Signatures) -> None:
    ids = {entry.id for entry in signatures.entries}
    named = []
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            # A class may be called as its one signature is.
            if node.value in ids - set(FailureClass):
                named.append(f"{path.name}:{node.lineno}: {node.value}")
    assert named == []


def test_each_trait_is_used_by_a_table_and_by_a_rule(signatures: Signatures) -> None:
    given = {trait for entry in (*signatures.entries, UNCAUGHT) for trait in entry.traits}
    assert given == set(Trait) - {Trait.OWN}  # which users' own signatures have
    sources = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "supervisor").rglob("*.py"))
    assert [trait for trait in Trait if f"Trait.{trait.name}" not in sources] == []


def test_the_page_of_failures_is_as_the_tables_and_the_rules_have_them() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "failures_page.py"))
    text = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    assert made["page"]() == text, "run: python scripts/failures_page.py"


# Files and settings of other versions hold these words.
WORDS = {
    "Doing": "collective backward gpu data own stopped kernel unknown",
    "Ended": "told raised not_shown",
    "Kind": "peers sleep network process file device timed thread lock runs stopped unknown",
    "Role": "cause consequence confirmation advice",
    "Trait": "generic open_type frames_required compiler_frames pipe_owner wraps_inner not_below_spawn firm ends_messages launcher_report crash_report scheduler_report task_exit shell_exit bad_end good_end closing_line job_start launcher_end usage_exit traceback ends_traceback attempt_restart signals_peers kills_peers stop_signal own abort shell_kill sigkill_only machine_wide names_task stack_dump told_again lost_connection",
}  # fmt: skip


def test_the_words_of_every_kind_keep_their_spelling() -> None:
    assert words_of_kinds("supervisor.diagnosis") == WORDS

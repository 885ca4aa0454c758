"""The log views' reading: lines by place and number, searched and counted, against plain references."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.views.logs import file as logfile
from supervisor.views.logs import stream as logstream
from supervisor.views.logs.file import Change, LogFile
from supervisor.views.logs.query import BadQueryError, Query
from supervisor.views.logs.sources import LogRef
from supervisor.views.logs.stream import Stream
from tests.views.logs_on_disk import DATA, QUIET, never, opened, reference


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boundaries everywhere: what is cut at 32 KiB otherwise is cut at some bytes."""
    monkeypatch.setattr(logfile, "BLOCK_BYTES", 37)
    monkeypatch.setattr(logfile, "STRIDE_BYTES", 5)


@QUIET
@given(data=DATA, start=st.integers(0, 2000))
def test_lines_both_ways(tmp_path: Path, small: None, data: bytes, start: int) -> None:
    file = opened(tmp_path / "log", data)
    try:
        lines = reference(data)
        start = min(start, len(data))
        assert [(x.offset, x.text) for x in file.forward(start)] == [x for x in lines if x[0] >= start]
        assert [(x.offset, x.text) for x in file.backward(start)] == [x for x in lines if x[0] < start][::-1]
        for number, (offset, _) in enumerate(lines):
            assert file.offset_of(number) == offset
            assert file.number_at(offset) == number
        assert file.line_count == len(lines)
    finally:
        file.close()


@QUIET
@given(
    data=DATA,
    typed=st.sampled_from(
        ["error", "warn", "-error", "error warn", "/e.*1/", "/^step/", "/E|İ/", "é宽", "31m", "level:warn", "level:error /e.*1/"]
    ),
)  # fmt: skip
def test_matches_are_those_of_each_line(data: bytes, typed: str) -> None:
    query = Query.parse(typed)
    wanted = [offset for offset, text in reference(data) if query.accepts(text)]
    assert list(query.offsets_in(data)) == wanted


def test_line_numbers_beyond_the_first_chunk(tmp_path: Path) -> None:
    data = b"".join(b"line %d\n" % n for n in range(200_000))
    file = opened(tmp_path / "log", data, counted=True)
    for number in (0, 1, 77_777, 150_000, 199_999):
        offset = file.offset_of(number)
        assert offset is not None
        assert next(file.forward(offset)).text == f"line {number}"
        assert file.number_at(offset) == number
    assert file.offset_of(200_000) is None
    assert file.line_count == 200_000
    known = (file.generation, file.newlines.chunks)
    with (tmp_path / "log").open("ab") as out:
        out.write(b"more")
    assert file.refresh() is Change.GROWN
    assert (file.generation, file.newlines.chunks) == known, "what was counted stays"
    assert file.line_count == 200_001
    (tmp_path / "log").write_bytes(b"anew\n")
    assert file.refresh() is Change.ANEW
    assert (file.newlines.chunks, file.line_count) == (0, 1)
    file.close()


def test_line_of_many_megabytes_is_cut_for_the_eye(tmp_path: Path) -> None:
    data = b"first\n" + b"y" * (5 << 20) + b"\nthird\n" + b"10%\r" * 300_000 + b"99%\r"
    for counted in (False, True):
        file = opened(tmp_path / "log", data, counted=counted)
        lines = list(file.forward(0))
        assert [line.text[:5] for line in lines] == ["first", "yyyyy", "third", "99%"]
        assert lines[1].text == "y" * 16_384 + " …[cut]"
        assert [line.offset for line in file.backward(file.size)] == [line.offset for line in lines][::-1]
        file.close()


def test_growth_truncation_rotation_and_removal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path))
    assert file.refresh() is Change.SAME
    assert file.trouble == "No such file or directory"
    path.write_bytes(b"one\nhal")
    assert file.refresh() is Change.GROWN
    assert file.trouble == ""
    assert [line.text for line in file.forward(0)] == ["one", "hal"]
    with path.open("ab") as out:
        out.write(b"f\nthree\n")
    assert file.refresh() is Change.GROWN
    assert [line.text for line in file.forward(0)] == ["one", "half", "three"]
    path.write_bytes(b"again\n")
    assert file.refresh() is Change.ANEW
    assert [line.text for line in file.forward(0)] == ["again"]
    path.write_bytes(b"as long, but another\n")
    assert file.refresh() is Change.ANEW, "rewritten with more in it"
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"rotated\n")
    assert file.refresh() is Change.ANEW
    assert [line.text for line in file.forward(0)] == ["rotated"]
    path.unlink()
    assert file.refresh() is Change.SAME
    assert [line.text for line in file.forward(0)] == ["rotated"], "what is open is still shown"
    path.write_bytes(b"back\n")
    assert file.refresh() is Change.ANEW
    assert [line.text for line in file.forward(0)] == ["back"]
    file.close()


def test_pipe_in_the_place_of_a_log_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    file = LogFile(str(tmp_path / "log"))
    file.refresh()
    assert not file.is_open
    assert file.trouble == "not a regular file"


def test_a_disk_that_fails_costs_the_bytes_only() -> None:
    file = LogFile("/proc/self/mem")  # it has no bytes at 0
    file.refresh()
    assert file.is_open
    assert file.read(0, 10) == b""
    assert file.trouble == "Input/output error"
    file.close()


def test_query_reads_what_people_type() -> None:
    query = Query.parse('r0-2,5 ERROR -warn /Out of \\d+/ "two words" -"not this" level:warn ragent')
    assert (
        str(query)
        == "rank 0-2,5 · agent · warn and worse · “error” · /Out of \\d+/ · “two words” · not “warn” · not “not this”"
    )
    assert query.accepts("Error: Out of 12 two words")
    assert not query.accepts("Error: out of 12 two words"), "a capital in an expression asks for that case"
    assert not query.accepts("Error: Out of 12 two words warn")
    assert Query.parse("/usr/lib").include[0].text == "/usr/lib", "a path is no expression"
    assert Query.parse("r0").is_by("0", "1")
    assert not Query.parse("r0").is_by("1")


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("/(/", "/(/ is not a valid regular expression: "),
        ("rank:x", 'rank:x: name ranks as r0 or r0-3,7; "rank:x" in quotes is text'),
        ("nodes:x", "nodes:x: name nodes by their numbers: node:1 or node:0-3,7"),
        ("level:loud", "level:loud: there are level:warn and level:error"),
        ("streams=out", "stream:out: there are stream:stdout and stream:stderr"),
        *(
            (f"{field}{sign}1", f"{field}{sign}1: a log is filtered by words, not by values: M draws {field}")
            for field in ("step", "epoch", "loss", "val_loss", "lr", "grad_norm")
            for sign in ("<", ">", "<=", ">=", "!=")
        ),
    ],
)  # fmt: skip
def test_a_query_that_means_nothing_is_refused_with_what_to_type(typed: str, why: str) -> None:
    with pytest.raises(BadQueryError, match=f"^{re.escape(why)}"):
        Query.parse(f"error {typed}")


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("r0-2,5 ragent node:1,3 level:warn stream:stderr ERR /a.B/ -old",
         "node 1,3 · rank 0-2,5 · agent · warn and worse · stderr · “err” · /a.B/ · not “old”"),
        ("rank:3 ranks=agent nodes=2 levels:BAD streams:agent", "node 2 · rank 3 · agent · errors · agent"),
        ("level:error", "errors"), ("level:warning", "warning and worse"), ("loss=2 step:7", "“loss=2” · “step:7”"),
        ("level>warn -level:warn", "“level>warn” · not “level:warn”"), ('"r0" -r0 R1', "“r0” · “r1” · not “r0”"),
        ('"loss<x" /loss<2/ a<b [00:10<05:33 -x>y', "“loss<x” · /loss<2/ · “a<b” · “[00:10<05:33” · not “x>y”"),
        ("r0-" + "1" * 10, "“r0-1111111111”"), ('""', ""), ("  ", ""),
    ],
)  # fmt: skip
def test_a_query_is_said_in_words(typed: str, shown: str) -> None:
    assert str(Query.parse(typed)) == shown
    assert bool(Query.parse(typed)) is bool(shown)


def test_the_ranks_and_nodes_of_a_query_are_exchanged_and_the_rest_stays() -> None:
    query = Query.parse('r1  err node:2 -r0 "r1" ranks:2')
    changed = [query.of("3", "4"), query.of(), query.at(1, 2), query.at()]
    assert [each.typed for each in changed] == [
        'r3 r4 err node:2 -r0 "r1"', 'err node:2 -r0 "r1"', 'node:1-2 r1 err -r0 "r1" ranks:2', 'r1 err -r0 "r1" ranks:2',
    ]  # fmt: skip
    assert [Query.parse(each.typed) for each in changed] == changed
    assert len(Query.parse("r5-999999999").who) == 4097


def test_search_is_one_text_or_one_expression() -> None:
    assert Query.search("two words").accepts("TWO WORDS here")
    assert not Query.search("two words").accepts("two other words")
    assert Query.search("/w.rds$/").accepts("two words")
    assert Query.search("r0").accepts("r0 said"), "no rank"
    assert Query.search(r"/\Sx/").accepts("AX"), "no capital but in an escape"
    assert str(Query.search("/")) == "“/”"
    assert not Query.search("")


@QUIET
@given(
    data=DATA,
    cuts=st.lists(st.integers(0, 3000), max_size=3),
    typed=st.sampled_from(["error", "/warn|x/", "-step"]),
)
def test_counts_agree_while_the_log_grows(tmp_path: Path, data: bytes, cuts: list[int], typed: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    file = LogFile(str(path))
    file.refresh()
    try:
        query = Query.parse(typed)
        each = Stream(LogRef(1, "0", "stdout", path), file, never)
        each.filter_by(query)
        for cut in sorted({min(cut, len(data)) for cut in [*cuts, len(data)]}):
            path.write_bytes(data[:cut])
            file.refresh()
            while each.count() or file.count():
                pass
            wanted = [text for _, text in reference(data[:cut])]
            assert each.total == sum(query.accepts(text) for text in wanted)
            assert file.line_count == len(wanted)
    finally:
        file.close()


def test_a_count_over_many_chunks_finds_each_match_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "CHUNK_BYTES", 100)
    monkeypatch.setattr(logstream, "CHUNK_BYTES", 100)
    data = b"".join(b"line %d %s\n" % (n, b"hit" if n % 7 == 0 else b"y" * (n % 150)) for n in range(500))
    file = opened(tmp_path / "log", data)
    each = Stream(LogRef(1, "0", "stdout", tmp_path / "log"), file, never)
    each.filter_by(Query.parse("hit"))
    wanted = [f"line {n} hit" for n in range(0, 500, 7)]
    for _ in ("not counted", "counted"):
        assert [line.text for line in each.forward(0)] == wanted
        assert [line.text for line in each.backward(file.size)] == wanted[::-1]
        while each.count():
            pass
    assert each.total == len(wanted)
    file.close()

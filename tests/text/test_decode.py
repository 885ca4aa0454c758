import gzip
import json
import subprocess
import unicodedata
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.decode import (
    MOST_MARKS,
    MOST_NESTED,
    ascii_json,
    clean,
    gunzip,
    is_binary,
    is_packed,
    plain_chunks,
    printable,
    shell_word,
)
from tests.hostile import shows

# Text as anybody may choose it for a name, with what acts on a terminal more often than by chance.
NAMES = st.text(
    st.one_of(
        st.characters(exclude_categories=()),
        st.sampled_from("\x1b\x07\r\n\t\x7f\x9b\u202e\u200b\u2028\ufe0f\udcff\u0301'\\\\$"),
    )
)


def chunked(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain", "plain"), (b"\x1b[31mred\x1b[0m", "red"), (b"\x1b]0;title\x07rest", "rest"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"), ("\x9b2Jgone".encode(), "gone"),
        (b"a\x00b\x08c\x7f", "abc"), ("safe\u202etxt.exe".encode(), "safetxt.exe"),
        (b" 10%|#\r 20%|##\r 30%|###", " 30%|###"), (b"windows line\r", "windows line"),
        (b"bad \xff utf-8", "bad \ufffd utf-8"), ("100%|██████|".encode(), "100%|██████|"),
        (b"tab\there", "tab\there"), (b"\r\r\r", ""), (b"1 \r2 \t\r", "2"), (b"x" * 16_384, "x" * 16_384),
        (b"x" * 16_385, "x" * 16_384 + " …[cut]"), (b"\x1b[1m" * 4096 + b"x", " …[cut]"),
    ],
)  # fmt: skip
def test_a_line_is_made_safe_to_show(raw: bytes, shown: str) -> None:
    assert clean(raw) == shown


@given(st.binary(max_size=300))
def test_no_control_character_survives(raw: bytes) -> None:
    shown = clean(raw.replace(b"\n", b""))
    assert all(char == "\t" or ord(char) >= 0x20 for char in shown)
    assert not any(0x7F <= ord(char) <= 0x9F or 0x202A <= ord(char) <= 0x202E for char in shown)


@given(
    st.text(max_size=200),
    st.integers(1, 40),
    st.sampled_from(["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-8"]),
)
def test_encodings_come_out_as_utf8(text: str, size: int, encoding: str) -> None:
    text = "A long enough first line\n" + text.replace("\ufeff", "").encode("utf-8", "replace").decode()
    data = text.encode(encoding)
    assert b"".join(plain_chunks(chunked(data, size))).removeprefix(b"\xef\xbb\xbf") == text.encode()


def test_text_that_ends_inside_a_character_ends_in_a_sign() -> None:
    assert b"".join(plain_chunks(["step 1 loss".encode("utf-16")[:-1]])) == "step 1 los\ufffd".encode()


@given(st.binary(max_size=5000), st.integers(1, 700))
def test_gzip_is_unpacked_in_members_and_pieces(data: bytes, size: int) -> None:
    first, torn = gzip.compress(data), list[int]()
    packed = first + b"\0" * 600 + gzip.compress(b"second") + b"\0" * 1024
    assert b"".join(gunzip(chunked(packed, size), lambda: torn.append(1))) == data + b"second"
    assert torn == []
    for broken in (first[:-1], first + b"\0x"):
        assert b"".join(gunzip(chunked(broken, size), lambda: torn.append(1))) == data
    assert torn == [1, 1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b é 中文 🔥", "a b é 中文 🔥"), ("\x1b]0;t\x07", r"\x1b]0;t\x07"), ("a\r\nb\tc", r"a\r\nb    c"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"), ("\u202egpj.exe", r"\u202egpj.exe"),
        ("a\u200bb\u2028c\ufeff\U000e0041", r"a\u200bb\u2028c\ufeff\U000e0041"), ("\udcff", r"\udcff"),
        ("e\u0301 i\u0308\u0301\u0323\u0331", "e\u0301 i\u0308\u0301\u0323\u0331"),
        ("a" + "\u0301" * 3000 + "b", "a" + "\u0301" * 4 + "b"),
        ("→" + "\u0489\u20dd\u0e47" * 9 + "— ", "→\u0489\u20dd\u0e47\u0489— "),
        ("│─────│ ⣿⣿⣿⣿⣿⣿ ………………", "│─────│ ⣿⣿⣿⣿⣿⣿ ………………"),
    ],
)  # fmt: skip
def test_what_would_act_on_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(NAMES)
def test_the_gate_lets_through_only_what_a_terminal_shows(text: str) -> None:
    shown = printable(text)
    assert all(map(shows, shown))
    assert printable(shown) == shown
    rows = (
        len(list(row)) for mark, row in groupby(text, lambda c: unicodedata.category(c)[0] == "M") if mark
    )
    if all(map(shows, text)) and clean(text.encode()) == text and max(rows, default=0) <= MOST_MARKS:
        assert shown == text, "nothing else is changed"


@given(NAMES)
def test_json_is_ascii_and_says_the_same(text: str) -> None:
    line = ascii_json(json.dumps({"name": text}, ensure_ascii=False))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {"name": text}


def test_a_word_of_a_command_is_shown_and_pasted_as_it_is() -> None:
    words = ["a b", "it's", "\x1b]0;t\x07\n\r\t'\\", "\u202ex\x9b", "中文", "e\u0301", "z" + "\u0335" * 40]
    line = " ".join(map(shell_word, words))
    assert printable(line) == line
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True
    )
    assert done.stdout.decode().split("\0") == [*words, ""]


@pytest.mark.parametrize(
    ("head", "binary", "packed"),
    [
        (b"step 1 loss 2.0\n", False, False), (b"\0" * 512 + b"step 1 loss 2.0\n", False, False),
        ("шаг 1\0".encode() * 40, False, False), (b"\0" * 4096, False, False), ("\0шаг".encode()[:-1], False, False),
        ("step 1 l".encode("utf-16-le"), False, True), ("step 1 l".encode("utf-16-be"), False, True),
        ("step 1 ".encode("utf-16-le"), False, False), ("step 1".encode("utf-16"), False, True),
        (gzip.compress(b"step 1\0", mtime=0), False, True), (b"\x7fELF\x02\x01\x01\0\0", True, False),
        (b"PK\x03\x04\0\0data.pkl", True, False), (b"\x93NUMPY\x01\0v\0{'descr'", True, False),
    ],
    # An id made of the bytes themselves would hold the time that gzip writes, and xdist's workers must agree on ids.
    ids=[
        "text", "padded", "sparse zeros", "zeros", "cut", "le", "be", "short", "utf-16", "gzip", "elf", "zip", "numpy",
    ],
)  # fmt: skip
def test_a_log_is_told_from_what_is_none(head: bytes, binary: bool, packed: bool) -> None:
    assert (is_binary(head), is_packed(head)) == (binary, packed)


def test_control_characters_that_no_log_has_are_signs_of_another_file() -> None:
    found = [code for code in range(1, 128) if not is_binary(b"\0" + bytes([code]))]
    assert found == [7, 8, 9, 10, 11, 12, 13, 27, *range(32, 127)]


@pytest.mark.fault("hostile input", "a gzip bomb", "cut off at a limit, and reported")
@pytest.mark.parametrize(
    ("size", "most_bytes", "torn_times"), [(100, 101, 0), (100, 100, 1), (5 << 20, 1 << 20, 1)]
)
def test_what_unpacks_to_too_much_is_cut_and_said(size: int, most_bytes: int, torn_times: int) -> None:
    torn: list[int] = []
    packed = gzip.compress(b"x" * size)
    out = b"".join(gunzip([packed], lambda: torn.append(1), most_bytes=most_bytes))
    assert len(torn) == torn_times
    assert len(out) <= 2 * most_bytes
    assert torn or len(out) == size


@pytest.mark.fault("hostile input", "gzip nested 1,200-fold", "read to a limited depth")
@pytest.mark.parametrize(("times", "is_read"), [(MOST_NESTED, True), (MOST_NESTED + 1, False), (1200, False)])
def test_gzip_within_gzip_is_read_four_times_deep(times: int, is_read: bool) -> None:
    packed, torn = b"step 1 loss 2.0\n", list[int]()
    for _ in range(times):
        packed = gzip.compress(packed, 1)
    assert b"".join(plain_chunks([packed], lambda: torn.append(1))) == (
        b"step 1 loss 2.0\n" if is_read else b""
    )
    assert bool(torn) is not is_read

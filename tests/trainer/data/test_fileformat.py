"""Data files that are something else than their name says."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config import DataError
from trainer.data.fileformat import PIECE_BYTES, another_format, no_text
from trainer.data.samples import open_stream
from trainer.data.text import all_documents, prepare
from trainer.data.tokenizer import Bytes

TEXT = "Ein kurzer Text, größer als nichts: 你好.\n".encode() * 50


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", TEXT)
    return buffer.getvalue()


OTHERS = {
    "parquet": b"PAR1" + bytes(100) + b"PAR1",
    "gzip": gzip.compress(TEXT, mtime=0),
    "xz": lzma.compress(TEXT),
    "bzip2": bz2.compress(TEXT),
    "zip": zipped(),
    "pickle": pickle.dumps({"text": TEXT}),
    "numpy": b"\x93NUMPY\x01\x00" + bytes(120),
    "PNG": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "ELF": b"\x7fELF\x02\x01\x01" + bytes(50),
    "UTF-16": TEXT.decode().encode("utf-16"),
}


@pytest.mark.parametrize("suffix", ["txt", ""])
@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats_are_known_whatever_they_are_called(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / (f"data.{suffix}" if suffix else "data")
    path.write_bytes(OTHERS[kind])
    why = another_format(str(path))
    assert why is not None
    assert why.startswith("it is ")
    assert ": " in why, "what to do about it"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"text\x00more", "byte 4 is NUL"),
        ("caf\xe9 au lait".encode("latin-1"), "byte 3 is not UTF-8"),
        (b"cut " + "é".encode()[:1], "byte 4 is not UTF-8"),
        (b"x" * (PIECE_BYTES - 1) + "é".encode()[:1] + b"y" * 9, f"byte {PIECE_BYTES - 1} is not UTF-8"),
        (random.Random(1).randbytes(100_000), "byte "),
    ],
    ids=["NUL", "latin-1", "cut", "across pieces", "noise"],
)
def test_what_is_no_text_is_named_by_its_byte(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    for whole in (True, False):
        assert str(no_text(str(path), whole=whole)).startswith(why)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("data.xz", OTHERS["xz"], "it is compressed by xz: unxz it first"),
        ("data.gz", OTHERS["gzip"], "it is compressed by gzip: gunzip it"),
        ("data.json", b'[{"text": "a"}]', "JSON in one piece is not read"),
        ("binary.json", b"\x01\x00\x02", "byte 1 is NUL: this is a binary file"),
        ("data.txt", b"a\x00b", "byte 1 is NUL"),
    ],
    ids=["xz", "gzip", "json", "binary json", "NUL"],
)
def test_a_training_the_check_and_prepare_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes, said: str
) -> None:
    from trainer.config import Config
    from trainer.data import checkdata

    path = tmp_path / name
    path.write_bytes(data)
    wanted = f"{path}: {said}"
    with pytest.raises(DataError) as error:
        open_stream(Config(), str(path))
    assert str(error.value).startswith(wanted)
    with pytest.raises(DataError) as error:
        prepared([str(path)], tmp_path / "out")
    assert str(error.value).startswith(wanted)
    assert checkdata.run([str(path)]) == 2
    assert capsys.readouterr().err.startswith(wanted)


def prepared(sources: list[str], out: Path, **settings: str) -> None:
    """Token files of bytes, as ``trainer data prepare`` makes them."""
    prepare(all_documents(sources, **settings), out, Bytes(), sources=sources)


def tokens_of(folder: Path, *sources: Path, **settings: str) -> bytes:
    """What `prepare` makes of them, both files as text."""
    prepared([str(source) for source in sources], folder, **settings)
    both = (np.fromfile(folder / name, np.uint16, offset=1024) for name in ("train.bin", "val.bin"))
    return b"".join(tokens.astype(np.uint8).tobytes() for tokens in both)


def test_compressed_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT))
    rows = b"".join(json.dumps({"body": f"row {n}"}).encode() + b"\n" for n in range(40))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(rows))
    assert tokens_of(tmp_path / "out", tmp_path / "a.txt.gz").startswith(TEXT[:100])
    assert b"row 39" in tokens_of(tmp_path / "rows", tmp_path / "b.jsonl.gz", text_key="body")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        # mtime: gzip writes the time of day otherwise, and xdist's workers must name the same tests.
        (gzip.compress(b"a\0b", mtime=0), "NUL byte"),
        (gzip.compress(TEXT, mtime=0)[:-20], "broken or truncated"),
        (gzip.compress("größer".encode("latin-1"), mtime=0), "not UTF-8"),
    ],
    ids=["NUL", "cut", "latin-1"],
)
def test_compressed_bytes_that_are_no_text_are_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "a.txt.gz").write_bytes(data)
    with pytest.raises(DataError, match=says):
        prepared([str(tmp_path / "a.txt.gz")], tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.bin")), "nothing half made is left"


def test_columns_of_parquet_and_of_a_saved_dataset_are_read(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(50)), "story": [f"story {n} größer" for n in range(50)]})
    pq.write_table(table, tmp_path / "a.parquet")
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "dataset_info.json").write_text("{}")
    (saved / "state.json").write_text("{}")
    with (
        pa.OSFile(str(saved / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    for at, source in enumerate((tmp_path / "a.parquet", saved)):
        found = tokens_of(tmp_path / f"out{at}", source, text_key="story")
        assert sorted(found.decode().split("\n"))[1:] == sorted(f"story {n} größer" for n in range(50))
    with pytest.raises(DataError, match=r"called text \(--field\): columns of text are: story"):
        prepared([str(tmp_path / "a.parquet")], tmp_path / "none")

"""``stoker check --data``: what a training would trip over, named before it starts."""

from __future__ import annotations

import struct
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from supervisor.cli.main import main


def bin_file(path: Path, ids: list[int], *, kind: str = "H", header: tuple[int, int] | None = None) -> str:
    head = struct.pack("<3i", header[0], 1, header[1]).ljust(1024, b"\0") if header else b""
    path.write_bytes(head + array(kind, ids).tobytes())
    return str(path)


def check(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["check", *args])
    told = capfd.readouterr()
    return code, told.out, told.err


def test_sound_files_are_told_in_a_line_each(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bin_file(tmp_path / "a.bin", [1, 2, 300])
    bin_file(tmp_path / "b.bin", [1, 70_000], kind="I", header=(20240801, 2))
    (tmp_path / "c.jsonl").write_text('{"text": "one"}\n\n{"text": "two", "id": 7}\n')
    (tmp_path / "d.txt").write_text("plain")
    code, out, err = check(capfd, "--vocab-size=100000", "--data", str(tmp_path))
    assert (code, err) == (0, "")
    assert check(capfd, f"--data={tmp_path}", "--vocab-size", "100000") == (0, out, "")
    assert [line.partition(": ")[2] for line in out.splitlines()] == [
        "3 tokens of uint16, no header, ids up to 300",
        "2 tokens of uint32, llm.c's header, ids up to 70000",
        "2 texts, 8 bytes",
        "5 bytes of text",
    ]


@pytest.mark.parametrize(
    ("ids", "kind", "header", "flags", "says"),
    [
        ([1], "B", None, [], "1 bytes are no whole number of uint16 tokens"),
        ([1, 2, 3], "H", (20240520, 9), [], "its header says 9 tokens, it holds 3"),
        ([1, 2], "H", (20240520, 2), ["--data-dtype=uint32"], "its header says uint16"),
        (
            [5, 256, 7],
            "H",
            None,
            ["--vocab-size=256"],
            "token 256 (number 1) is outside the vocabulary of 256",
        ),
        ([5, 60_000, 7], "H", None, [], "token 60000 (number 1) is outside the vocabulary of 50304"),
        ([1, 2, 3], "H", None, ["--max-seq-len=8"], "3 tokens are fewer than one sample of 8 + 1"),
        ([], "H", None, [], "the file is empty"),
        ([], "H", (20240520, 0), [], "0 tokens are fewer than one sample"),
    ],
)
def test_a_token_file_at_fault(
    ids: list[int],
    kind: str,
    header: tuple[int, int] | None,
    flags: list[str],
    says: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = bin_file(tmp_path / "x.bin", ids, kind=kind, header=header)
    code, out, err = check(capfd, "--data", path, *flags)
    assert (code, out) == (2, "")
    assert err.startswith(f"{path}: ")
    assert says in err
    assert err.count("\n") == 1


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = bin_file(tmp_path / "good.bin", [1, 2])
    (tmp_path / "none").mkdir()
    code, out, err = check(
        capfd, "--data", str(tmp_path / "gone.bin"), str(tmp_path / "none"), good, str(tmp_path / "--odd.bin")
    )
    assert code == 2
    assert out.startswith(f"{good}: 2 tokens")
    assert "gone.bin: No such file" in err
    assert "none: no .bin, .jsonl or .txt file in this folder" in err
    assert err.count("\n") == 3


def test_it_needs_neither_numpy_nor_torch(tmp_path: Path) -> None:
    path = bin_file(tmp_path / "x.bin", [1, 2, 900])
    root = Path(__file__).parents[2]
    code = (
        "import sys; sys.modules.update(numpy=None, torch=None)\n"
        "from trainer.data.__main__ import main; sys.exit(main(['check', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == f"{path}: 3 tokens of uint16, no header, ids up to 900\n", done.stderr

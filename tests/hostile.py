"""Hostile input for ``stoker diagnose``: real logs mutated (mutations.py), encodings, floods, pattern bombs.

Every case follows from its seed, so that a finding can be played again.
"""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.cli.diagnose import main
from supervisor.diagnosis.scan.signature_tables import parse_tables
from supervisor.sources.signature_files import read_tables
from tests.mutations import Mutator

DATA = Path(__file__).resolve().parent / "corpus" / "data"
PREFIXES = [
    b"[rank3]:",
    b"[default3]:",
    b"3: ",
    b"node1: ",
    b"(Worker pid=7, ip=10.0.0.1) ",
    b"[1,3]<stderr>:",
    b"[7] ",
    b"[rank0]: [rank1]: ",
]
BOMBS = [
    b"a", b" ", b"(", b"[", b"[[", b"{", b'"', b"'", b"/", b"\\", b"9", b"-", b".", b":", b"\t", b"\r", b"\x00", b"\x1b", b"\x1b[", b"\x1b]",
    b"[rank1]: ", b"0: ", b"pid=", b"Error: ", b"Error", b"ErrorError", b"a.", b"A_", b'File "', b"rank 1 ", b"Process 1 ", b"CUDA ",
    b"\xe2\x80\xae", b"\xff", b"\xf0\x9f\x98\x80", b"exitcode: -9 ", b"Traceback ", b"\x1b[m", b"x.y.z: ", b"12:34:56 ", b"| ", b"= ",
]  # fmt: skip


def _real_logs() -> list[bytes]:
    return [
        path.read_bytes()[:200_000]
        for path in sorted((DATA / "real").rglob("*"))
        if path.suffix in {".log", ".txt"}
    ]


def _samples() -> list[bytes]:
    entries = parse_tables(read_tables()).entries
    return [text.encode() for entry in entries for text in (*entry.samples, *entry.near_misses)]


@dataclass
class Hostile:
    """A source of hostile logs."""

    seed: int
    logs: list[bytes] = field(default_factory=_real_logs)
    samples: list[bytes] = field(default_factory=_samples)

    def __post_init__(self) -> None:
        self.mutator = Mutator(self.seed, self.logs)
        self.rng = self.mutator.rng

    def case(self) -> tuple[str, bytes]:
        """One log and the name of its kind."""
        kinds: list[Callable[[], bytes]] = [
            self.mutated,
            self.bomb,
            self.sample_bomb,
            self.prefixed,
            self.repeated,
        ]
        kind = self.rng.choices(kinds, [8, 1, 1, 1, 1])[0]
        data = kind()
        wrap, name = self.rng.choice(
            [(plain, ""), (plain, ""), (plain, ""), (self.utf16, "+utf16"), (self.packed, "+gzip")]
        )
        return kind.__name__ + name, wrap(data)

    def mutated(self) -> bytes:
        """A real log, or lines of many signatures, changed as any input is."""
        lines = b"\n".join(self.rng.choices(self.samples, k=30))
        return self.mutator.variant(self.rng.choice((*self.logs, lines)))

    def bomb(self) -> bytes:
        """A pattern's worst case is mostly one token without end."""
        size = self.rng.choice((300, 5_000, 20_000, 200_000))
        one, two = self.rng.choice(BOMBS), self.rng.choice(BOMBS)
        body = (one + (two if self.rng.random() < 0.4 else b"")) * (size // len(one))
        return (
            self.rng.choice(self.samples) + b"\n" + body + self.rng.choice((b"", b"\n", b"\nMemoryError\n"))
        )

    def sample_bomb(self) -> bytes:
        """A signature's own words over and over, in one line, so that its pattern half matches at every place."""
        sample = self.rng.choice(self.samples)
        cut = sample[: self.rng.randint(1, len(sample))]
        return (cut * (self.rng.choice((2_000, 16_000, 60_000)) // len(cut)) + b"\n") * self.rng.randint(1, 4)

    def prefixed(self) -> bytes:
        lines = self.rng.choices(self.samples, k=30) + self.rng.choice(self.logs).split(b"\n")[:60]
        return b"\n".join(
            b"".join(self.rng.choices(PREFIXES, k=self.rng.randint(0, 5))) + line for line in lines
        )

    def repeated(self) -> bytes:
        """A flood of few lines, as from an assert on each thread."""
        return b"\n".join(
            self.rng.choices(self.rng.choices(self.samples, k=3), k=self.rng.randint(10, 3_000))
        )

    def utf16(self, data: bytes) -> bytes:
        mark = self.rng.choice((b"\xff\xfe", b"\xfe\xff", b""))
        name = "utf-16-be" if mark == b"\xfe\xff" else "utf-16-le"
        wide = mark + data.decode("latin-1").encode(name)
        return wide[: self.rng.randint(0, len(wide))] if self.rng.random() < 0.3 else wide

    def packed(self, data: bytes) -> bytes:
        packed = gzip.compress(data, 1, mtime=0)
        match self.rng.randrange(4):
            case 0:
                return packed[: self.rng.randint(0, len(packed))]
            case 1:
                place = self.rng.randrange(len(packed))
                return packed[:place] + bytes([self.rng.randrange(256)]) + packed[place + 1 :]
            case 2:
                return packed + self.rng.randbytes(30)
            case _:
                return packed


def plain(data: bytes) -> bytes:
    return data


NO_LOG = "a binary file, not a log; give a log, a folder of logs, or -"


def judged(path: Path) -> list[str]:
    """What ``diagnose`` prints of a log, for people and for programs. Raises AssertionError where it is unsafe."""
    said = []
    for as_json in (False, True):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(path), *(["--json"] if as_json else [])])
        text = out.getvalue()
        assert code in {0, 2, 10, 11}, (code, err.getvalue())
        # Noise is no log, and that is said in one line; a log is judged, whatever is in it.
        # On a busy machine reading takes over a second, and how far it is is said.
        told = [line for line in err.getvalue().splitlines() if "read so far" not in line]
        assert told == ([f"stoker diagnose: {path}: {NO_LOG}"] if code == 2 else [])
        bad = sorted({char for char in text if char != "\n" and not shows(char)})
        assert not bad, f"unsafe in the output: {bad!r}"
        assert max(map(len, text.splitlines()), default=0) < (40_000 if as_json else 1_200)
        said.append(text)
    return said


def shows(char: str) -> bool:
    """Whether a terminal shows the character and does nothing else."""
    code = ord(char)
    return code >= 0x20 and not (
        0x7F <= code <= 0x9F or 0x200B <= code <= 0x200F or 0x2028 <= code <= 0x202E or 0x2060 <= code <= 0x2069
        or code in {0x61C, 0xFEFF} or 0xD800 <= code <= 0xDFFF
    )  # fmt: skip


def endless(token: bytes, total: int, head: bytes = b"") -> Iterator[bytes]:
    """A log without a newline."""
    yield head
    block = token * ((1 << 20) // len(token))
    for _ in range(total // len(block)):
        yield block

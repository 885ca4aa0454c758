"""Hostile variants of a valid input: bytes cut, repeated and swapped, JSON values replaced, nesting without end.

Every variant follows from the generator's seed, so that a finding can be played again.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence

MOST_BYTES = 400_000
ESCAPES = [
    b"\x1b[31m", b"\x1b[2J\x1b[H", b"\x1b]0;owned\x07", b"\x1b]8;;http://x\x1b\\", b"\x1bP1;2q", b"\x1b[", b"\x1b]", b"\x1b",
    b"\xc2\x9b31m", b"\x9b31m", b"\xe2\x80\xae", b"\xe2\x80\xa8", b"\xe2\x81\xa6", b"\xef\xbb\xbf", b"\x00", b"\x08", b"\x07",
    b"\r", b"\x0b", b"\x0c", b"\x7f", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98\x80", b"\xc2\x85",
]  # fmt: skip
# What has been a parser's undoing somewhere: brackets that nest, keys that chain, aliases, quotes that never close.
TOKENS = [
    b"[", b"{", b"(", b"]", b"}", b'"', b"'", b'"""', b"\\", b"a.", b".", b"=", b"==", b",", b":", b": ", b"- ", b"? ", b"&a ", b"*a ", b"<<: *a",
    b"!!python/object:os.system ", b"!ref ", b"${a}", b"${", b"#", b"\n", b"\r", b"\r\n", b"\t", b" ", b"\x00", b"\xff", b"-", b"--", b"not ", b"-1 ",
    b"null", b"NaN", b"true", b'{"a":', b"[[a]]\n", b"[a.a]\n", b"a={a=", b"lambda:", b"1if 1else ", b"if 1:\n ", b"f'{", b"\xf0\x9f\x98\x80", b"0x", b"1_", b"9",
]  # fmt: skip
NUMBERS = [
    b"0", b"-1", b"1e999", b"-1e999", b"nan", b"-0", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616",
    b"4294967296", b"1e-320", b"0.1e5000", b"1" * 300, b"9" * 5000, b"0x7f", b"true", b"null", b'""', b"[]", b"1_0",
]  # fmt: skip
VALUES: list[object] = [
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**400, -(2**63), 1e308, -1e308, 5e-324, 0.5, float("nan"), float("inf"),
    "", "0", "x" * 50_000, "\x1b[2J", "\u202e", "\x00", "../../..", "/", "é" * 300, "a\nb", "\x9b31m", [], {}, [[]], {"": {}}, [None] * 5_000, ["x", 1],
    {"schema": 99}, {"kind": "no such kind"}, {"a": {"a": {"a": 1}}},
]  # fmt: skip
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")


class Mutator:
    """Makes variants of `seeds`; one to four changes each."""

    def __init__(self, seed: int, seeds: Sequence[bytes]) -> None:
        self.rng = random.Random(seed)
        self.seeds = seeds

    def variant(self, data: bytes) -> bytes:
        """A variant of `data`; at most `MOST_BYTES`."""
        if self.rng.random() < 0.03:
            return self.rng.randbytes(self.rng.choice((0, 1, 16, 4_000)))
        ways: list[Callable[[bytes], bytes]] = [
            self.flipped, self.cut, self.doubled, self.inserted, self.repeated, self.numbers, self.spliced, self.lines, self.escaped,
            self.json_value, self.json_value, self.json_value,
        ]  # fmt: skip
        for _ in range(self.rng.choice((1, 1, 1, 2, 4))):
            data = self.rng.choice(ways)(data)[:MOST_BYTES]
        return data

    def _span(self, data: bytes) -> tuple[int, int]:
        one, two = self.rng.randint(0, len(data)), self.rng.randint(0, len(data))
        return min(one, two), max(one, two)

    def flipped(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 3, 40))):
            if changed:
                changed[self.rng.randrange(len(changed))] = self.rng.randrange(256)
        return bytes(changed)

    def cut(self, data: bytes) -> bytes:
        start, stop = self._span(data)
        return self.rng.choice((data[:start], data[start:], data[:start] + data[stop:]))

    def doubled(self, data: bytes) -> bytes:
        start, stop = self._span(data)
        times = min(self.rng.choice((2, 2, 50, 5_000)), MOST_BYTES // max(stop - start, 1) + 1)
        return data[:stop] + data[start:stop] * times + data[stop:]

    def inserted(self, data: bytes) -> bytes:
        at = self.rng.randint(0, len(data))
        return data[:at] + self.rng.choice(TOKENS) + data[at:]

    def repeated(self, data: bytes) -> bytes:
        """A token over and over: at any place, or in place of everything."""
        token = self.rng.choice(TOKENS) + (self.rng.choice(TOKENS) if self.rng.random() < 0.3 else b"")
        body = token * self.rng.choice((10, 200, 2_000, 60_000))
        at = self.rng.choice((0, len(data), self.rng.randint(0, len(data))))
        return body if self.rng.random() < 0.2 else data[:at] + body[:MOST_BYTES] + data[at:]

    def numbers(self, data: bytes) -> bytes:
        chance = self.rng.choice((0.02, 0.2, 1.0))

        def other(found: re.Match[bytes]) -> bytes:
            return self.rng.choice(NUMBERS) if self.rng.random() < chance else found[0]

        return _NUMBER.sub(other, data)

    def spliced(self, data: bytes) -> bytes:
        other = self.rng.choice(self.seeds)
        return data[: self.rng.randint(0, len(data))] + other[self.rng.randint(0, len(other)) :]

    def lines(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        match self.rng.randrange(4):
            case 0:
                self.rng.shuffle(lines)
            case 1:
                lines = [line for line in lines if self.rng.random() < 0.7]
            case 2:
                lines = [self.rng.choice(lines) for _ in lines]
            case _:
                return data.replace(b"\n", self.rng.choice((b"\r", b"\r\n", b"", b"\n\n")))
        return b"\n".join(lines)

    def escaped(self, data: bytes) -> bytes:
        for _ in range(self.rng.choice((1, 5, 40))):
            at = self.rng.randint(0, len(data))
            data = data[:at] + self.rng.choice(ESCAPES) + data[at:]
        return data

    def json_value(self, data: bytes) -> bytes:
        """One value of a JSON file, or of some lines of a file of JSON lines, becomes another, goes, or changes its key."""
        try:
            return self._changed(data)
        except ValueError:
            lines = data.split(b"\n")
        for _ in range(self.rng.choice((1, 1, 5))):
            at = self.rng.randrange(len(lines))
            try:
                lines[at] = self._changed(lines[at])
            except ValueError:
                continue
        return b"\n".join(lines)

    def _changed(self, data: bytes) -> bytes:
        try:
            document = json.loads(data)
        except RecursionError as error:
            raise ValueError(str(error)) from error
        places: list[tuple[dict[str, object] | list[object], str | int]] = []
        pending: list[object] = [document]
        while pending:
            held = pending.pop()
            if isinstance(held, dict):
                places += [(held, key) for key in held]
                pending += held.values()
            elif isinstance(held, list):
                places += [(held, index) for index in range(len(held))]
                pending += held
        if not places:
            return json.dumps(self.rng.choice(VALUES)).encode("utf-8", "surrogatepass")
        inside, key = self.rng.choice(places)
        if isinstance(inside, dict) and self.rng.random() < 0.2:
            value = inside.pop(str(key))
            if self.rng.random() < 0.5:
                inside[self.rng.choice([*inside, "", "schema", "zz\x1b"])] = value
        else:
            inside[key] = self.rng.choice(VALUES)  # type: ignore[index]
        return json.dumps(document, ensure_ascii=self.rng.random() < 0.5).encode("utf-8", "surrogatepass")

"""The signature tables: what a failure looks like in text, as data.

A table is TOML with ``[[signature]]`` entries. Its patterns use the subset that
Hyperscan, re2 and Python's `re` share: no look-around, no back references, no
possessive or named groups. Loading validates all of it; samples and near-misses
are the signatures' own tests.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy


class Role(StrEnum):
    """What a matching line means for the verdict."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"
    CONFIRMATION = "confirmation"
    ADVICE = "advice"


class Signature(NamedTuple):
    """One wording. `strength` (0-100) is how much a match alone tells; `place` its index in the set."""

    place: int
    id: str
    failure: FailureClass
    role: Role
    reason: Reason | None
    strength: int
    regex: str
    triggers: tuple[str, ...] = ()
    must_not: str = ""
    samples: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    family: str = ""
    confirm: bool = True


class Signatures(NamedTuple):
    """A validated set. `digest` names its content, for caches."""

    entries: tuple[Signature, ...]
    digest: str


class TableError(ValueError):
    """A signature table that cannot be used: says which entry and why."""


_KEYS = frozenset(
    ("id", "class", "role", "reason", "strength", "triggers", "regex", "must_not", "samples", "near_misses")
)
_OUTSIDE_SUBSET = Lazy(r"(?<!\\)\(\?(?!:|[ims]+\))|\\[1-9]|[*+?}]\+|\\[pPXkKGZ]")


def digest_of(tables: Mapping[str, bytes]) -> str:
    """A content hash of the raw tables, cheap enough for each start."""
    # Not a secret: it tells one version of the tables from another, and hashlib's import alone costs 2 ms.
    check = 1
    size = 0
    for name in sorted(tables):
        check = zlib.crc32(tables[name], zlib.crc32(name.encode(), check))
        size += len(tables[name])
    return f"{check:08x}-{zlib.adler32(b''.join(tables[name] for name in sorted(tables))):08x}-{size}"


def parse_tables(tables: Mapping[str, bytes]) -> Signatures:
    """Read and validate all tables, given as raw TOML by family name.

    Raises:
        TableError: an entry is malformed, uses a construct outside the shared subset, misses one of its own
            samples or matches one of its near-misses.
    """
    import tomllib

    entries: list[Signature] = []
    seen: set[str] = set()
    for family in sorted(tables):
        for raw in tomllib.loads(tables[family].decode("utf-8")).get("signature", []):
            entry = _entry(raw, family, len(entries))
            if entry.id in seen:
                raise TableError(f"signature {entry.id}: the id is used twice")
            seen.add(entry.id)
            entries.append(entry)
    return Signatures(tuple(entries), digest_of(tables))


def _entry(raw: Mapping[str, object], family: str, index: int) -> Signature:
    name = str(raw.get("id", "?"))
    if unknown := set(raw) - _KEYS:
        raise TableError(f"signature {name}: unknown keys {', '.join(sorted(unknown))}")
    try:
        reason = raw.get("reason")
        entry = Signature(
            place=index,
            id=name,
            failure=FailureClass(str(raw["class"])),
            role=Role(str(raw["role"])),
            reason=Reason(str(reason)) if reason is not None else None,
            strength=int(str(raw["strength"])),
            regex=str(raw["regex"]),
            triggers=_texts(raw.get("triggers", [])),
            must_not=str(raw.get("must_not", "")),
            samples=_texts(raw["samples"]),
            near_misses=_texts(raw.get("near_misses", [])),
            family=family,
            confirm=_needs_confirmation(str(raw["regex"])),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise TableError(f"signature {name}: {error}") from error
    _check(entry)
    return entry


def _needs_confirmation(regex: str) -> bool:
    """Whether the engine, which sees many lines at once, can match across a line's end or miss its anchors."""
    return (
        "[^" in regex or "\\s" in regex or "^" in regex.replace("[^", "") or "\\W" in regex or "\\D" in regex
    )


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list of strings")
    return tuple(str(item) for item in value)


def _check(entry: Signature) -> None:
    if not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", entry.id):
        raise TableError(f"signature {entry.id}: ids are lower-case words joined by hyphens")
    if not 0 <= entry.strength <= 100:
        raise TableError(f"signature {entry.id}: strength must be 0 to 100")
    if _OUTSIDE_SUBSET.search(entry.regex):
        raise TableError(f"signature {entry.id}: its regex leaves the subset that Hyperscan and re2 share")
    try:
        pattern = re.compile(entry.regex)
    except re.error as error:
        raise TableError(f"signature {entry.id}: {error}") from error
    if pattern.search("") is not None:
        raise TableError(f"signature {entry.id}: its regex matches nothing at all")
    if not entry.samples:
        raise TableError(f"signature {entry.id}: no sample")
    for sample in entry.samples:
        if pattern.search(sample) is None:
            raise TableError(f"signature {entry.id}: does not match its sample {sample!r}")
        if entry.triggers and not any(trigger in sample for trigger in entry.triggers):
            raise TableError(f"signature {entry.id}: no trigger in its sample {sample!r}")
    for sample in entry.near_misses:
        if pattern.search(sample) is not None:
            raise TableError(f"signature {entry.id}: matches its near-miss {sample!r}")


def pack(signatures: Signatures) -> bytes:
    """The parsed set as compact bytes, so that a start need not parse TOML (20 ms) again."""
    import marshal

    rows = [
        (
            entry.id,
            entry.failure.value,
            entry.role.value,
            entry.reason.value if entry.reason else None,
            entry.strength,
            entry.regex,
            entry.confirm,
        )
        for entry in signatures.entries
    ]
    return marshal.dumps((signatures.digest, rows))


def unpack(raw: bytes) -> Signatures:
    """Read what `pack` wrote; samples and notes are not in it.

    Raises:
        ValueError: the bytes are not a packed set.
    """
    import marshal

    failures = FailureClass._value2member_map_
    roles = Role._value2member_map_
    try:
        digest, rows = marshal.loads(raw)  # noqa: S302 - checked bytes of our own cache, and no code is in them
        entries = tuple(
            Signature(
                place,
                name,
                failures[cls],  # type: ignore[arg-type]
                roles[role],  # type: ignore[arg-type]
                Reason(reason) if reason else None,
                strength,
                regex,
                confirm=confirm,
            )
            for place, (name, cls, role, reason, strength, regex, confirm) in enumerate(rows)
        )
    except (TypeError, KeyError, EOFError, ValueError) as error:
        raise ValueError(f"not a packed signature set: {error}") from error
    return Signatures(entries, str(digest))

"""What fitted before: one line an attempt in ``$XDG_STATE_HOME/stoker/memory.jsonl``.

A line is known by its script, the flags that shape the model, the GPU's type and the number of ranks: the
same micro-batch needs the same memory there. It is proposed, and used in a plan; never applied silently.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping

import msgspec

from supervisor.job.memory_fit import MemoryTrial
from supervisor.run.index import state_home
from supervisor.run.jsonl import append_line, decoded
from supervisor.run.regular import open_regular

FILE = "memory.jsonl"
# Runs are some a day; what lies further back was another version of the script.
MAX_LINES = 20_000
MAX_BYTES = 16 << 20


class JobKind(msgspec.Struct, frozen=True):
    """What makes two launches alike as far as memory goes. `flags` is a hash; `device` a GPU's name, or "cpu"."""

    script: str
    flags: str
    device: str
    world_size: int


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial on record. `t`: wall seconds; `run`: the run's id."""

    kind: JobKind
    trial: MemoryTrial
    t: float
    run: str
    v: int = 1


def flags_hash(words: Iterable[str]) -> str:
    """A short hash of the words that shape a model; the words themselves may hold secrets and are not kept."""
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def remember(line: MemoryLine, env: Mapping[str, str]) -> None:
    """Append a line."""
    append_line(state_home(env) / FILE, line, follows=True)


def recall(kind: JobKind, env: Mapping[str, str], *, but_run: str = "") -> list[MemoryLine]:
    """The lines of one kind of job, oldest first; of `but_run` none. Half or foreign lines are passed over."""
    try:
        with open_regular(state_home(env) / FILE) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - MAX_BYTES, 0))
            lines = file.read().split(b"\n")[-MAX_LINES:]
    except OSError:
        return []
    # Decoding costs 1 µs a line, and most lines are of other scripts: a plain search goes first.
    mark = kind.flags.encode()
    alike = b"\n".join(line for line in lines if mark in line)
    known = decoded(msgspec.json.Decoder(MemoryLine), alike)
    return [line for line in known if line.kind == kind and line.run != but_run]

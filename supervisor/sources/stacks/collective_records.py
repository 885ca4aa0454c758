"""Reads PyTorch's and NCCL's records of collectives as plain data: flight recorder dumps and the NCCL RAS report.

A dump is JSON or a pickle of built-in containers (torch/csrc/distributed/c10d/FlightRecorder.cpp, version 2.10). A
pickle is a program, so its instructions are scanned first. Only those that build None, numbers, text, lists, tuples,
dicts and sets are allowed. Instructions that import or call are refused before anything runs.

NCCL 2.24 and later serves plain text on a TCP port (NCCL_RAS_ADDR, localhost:28028 by default). When it receives
``verbose status`` and a newline, it replies with the report and closes the connection
(docs.nvidia.com/deeplearning/nccl, Troubleshooting, RAS). There is one service per job, and none for a gloo job.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from supervisor.run.regular import open_regular

MAX_BYTES = 64 << 20
MAX_INSTRUCTIONS = 8_000_000
_ALLOWED = frozenset(
    (
        "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET",
        "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
        "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "FROZENSET", "ADDITEMS",
    )
)  # fmt: skip
_FRAME_HEAD = 9  # the opcode and eight bytes of length
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
# Limits for one job's dumps: how much to read, and how far apart in time the ranks write in one incident.
MAX_TOTAL_BYTES = 512 << 20
SAME_INCIDENT_S = 1800.0
_HEAD_BYTES = 4096
# torch/csrc/distributed/c10d/NCCLUtils.cpp and FlightRecorder: the default paths for dumps.
_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


class BadDump(Exception):  # noqa: N818 - named for what it is
    """Raised when a dump cannot be read safely. The message is a one-line reason."""


class _PlainUnpickler(pickle.Unpickler):  # - see the module's docstring
    """Refuses every import, as a second safeguard after the instruction scan."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise BadDump(f"it asks for {module}.{name}")

    def persistent_load(self, _pid: Any, /) -> Any:
        raise BadDump("it asks for a persistent object")


def read_dump(data: bytes) -> dict[str, Any]:
    """Return the top-level dict of a dump, which is JSON or a pickle.

    Raises:
        BadDump: the data is neither, is too large, or contains anything but plain data.
    """
    if len(data) > MAX_BYTES:
        raise BadDump(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        found = json.loads(data) if data.lstrip()[:1] == b"{" else _unpickle(data)
    except (ValueError, RecursionError) as error:
        raise BadDump(f"neither JSON nor a pickle: {error}") from error
    if not isinstance(found, dict):
        raise BadDump("its top level is no table")
    return found


def dump_prefixes(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the file name prefixes of dumps for a job with this environment. The global rank follows the prefix."""
    named = tuple(env[name] for name in _VARIABLES if env.get(name))
    cache = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME", "/"), ".cache")
    return (*named, os.path.join(cache, "torch", "comm_lib_trace_rank_"), "/tmp/nccl_trace_rank_")  # noqa: S108 - PyTorch's default


def find_dumps(prefixes: tuple[str, ...], *, since_t: float) -> dict[int, Path]:
    """Return each rank's newest dump written at or after wall time `since_t`."""
    found: dict[int, tuple[float, Path]] = {}
    for prefix in prefixes:
        folder, start = os.path.split(prefix)
        try:
            entries = list(os.scandir(folder or "."))
        except OSError:
            continue
        for entry in entries:
            digits = entry.name.removeprefix(start).removesuffix(".json")
            if not entry.name.startswith(start) or not digits.isdecimal():
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            # A dump in /tmp may belong to another user. Only our own count.
            known = found.get(int(digits), (0.0, Path()))
            ours = entry.is_file(follow_symlinks=False) and status.st_uid == os.getuid()
            if ours and max(since_t, known[0]) <= status.st_mtime:
                found[int(digits)] = (status.st_mtime, Path(entry.path))
    return {rank: path for rank, (_, path) in sorted(found.items())}


# comm_lib_trace_rank_7, nccl_trace_rank_7.json, NVRx's _dump_7: the rank follows an arbitrary prefix.
_NAME_WITH_RANK = re.compile(r".*?(\d{1,7})(?:\.json|\.pkl|\.pickle)?$")


def rank_of_dump(path: str) -> int | None:
    """Determine a dump file's rank from its name and first bytes. Return None if it is not a dump."""
    named = _NAME_WITH_RANK.match(os.path.basename(path))
    if named is None:
        return None
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    is_dump = head[:1] in (b"\x80", b"{") and (b"pg_config" in head or b"collective_seq_id" in head)
    return int(named[1]) if is_dump else None


def dumps_of_job(paths: Iterable[str]) -> dict[int, Path]:
    """Return each rank's newest dump among a folder's files, if it belongs to the latest incident."""
    found: dict[int, tuple[float, Path]] = {}
    for path in paths:
        rank = rank_of_dump(path)
        if rank is None:
            continue
        modified_t = os.stat(path).st_mtime
        if rank not in found or modified_t > found[rank][0]:
            found[rank] = (modified_t, Path(path))
    newest_t = max((modified_t for modified_t, _ in found.values()), default=0.0)
    kept = sorted(found.items())
    return {rank: path for rank, (modified_t, path) in kept if newest_t - modified_t <= SAME_INCIDENT_S}


class DumpFiles(Mapping[int, Mapping[str, Any]]):
    """A job's dumps, keyed by rank and read on demand. A dump that is unreadable or over the size budget reads as empty."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._paths = dict(paths)
        self._left_bytes = MAX_TOTAL_BYTES

    def __getitem__(self, rank: int) -> Mapping[str, Any]:
        try:
            with open_regular(self._paths[rank]) as file:
                data = file.read(min(MAX_BYTES, self._left_bytes) + 1)
            if len(data) > self._left_bytes:
                return {}
            self._left_bytes -= len(data)
            return read_dump(data)
        except (OSError, BadDump):
            return {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def load_dumps(paths: Mapping[int, Path]) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Return the dumps, keyed by rank, and one line for each dump that could not be read."""
    found: dict[int, dict[str, Any]] = {}
    trouble: list[str] = []
    for rank, path in paths.items():
        try:
            with open_regular(path) as file:
                found[rank] = read_dump(file.read(MAX_BYTES + 1))
        except (OSError, BadDump) as error:
            trouble.append(f"{path}: {error}")
    return found, trouble


def _unpickle(data: bytes) -> Any:
    _inspect(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except BadDump:
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise BadDump(f"a broken pickle: {type(error).__name__}") from error


def _inspect(data: bytes) -> None:
    """Refuse pickle instructions that do more than build plain data or that would exhaust memory."""
    frame_end = before_at = 0
    for count, (instruction, argument, place) in enumerate(pickletools.genops(data), start=1):
        at = place or 0  # None only for data without positions, and bytes have positions
        if instruction.name not in _ALLOWED:
            raise BadDump(f"it holds the instruction {instruction.name}")
        # The memo is an array, so an index far beyond the stored ones would allocate everything in between.
        if instruction.name in _PUTS and int(str(argument)) > count:
            raise BadDump("its memo has holes")
        if count > MAX_INSTRUCTIONS:
            raise BadDump("it is too long")
        # The unpickler treats a frame as a separate buffer and reads data across the frame's end differently.
        if before_at < frame_end < at or (instruction.name == "FRAME" and at < frame_end):
            raise BadDump("an instruction crosses the end of its frame")
        if instruction.name == "FRAME":
            frame_end = at + _FRAME_HEAD + int(str(argument))
        before_at = at


DEFAULT_ADDRESS = ("localhost", 28028)
_CAP_BYTES = 1 << 20


def ras_address(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the RAS service address for a job with this environment, or None if RAS is turned off."""
    if env.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return None
    host, colon, port = env.get("NCCL_RAS_ADDR", "").strip().rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        return DEFAULT_ADDRESS
    return host.strip("[]") or "localhost", int(port)


def query_ras(address: tuple[str, int], *, timeout_s: float = 3.0) -> str | None:
    """Return the RAS report, or None if nothing answers or the answer is not from NCCL."""
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    try:
        with socket.create_connection(address, timeout=min(1.0, timeout_s)) as link:
            link.sendall(b"verbose status\n")
            size = 0
            while size < _CAP_BYTES:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                link.settimeout(left)
                part = link.recv(1 << 16)
                if not part:
                    break
                parts.append(part)
                size += len(part)
    except OSError:
        if not parts:
            return None
    text = b"".join(parts).decode("utf-8", "replace")
    return text if "NCCL" in text[:4096] else None

"""The same log as other launchers, collectors and terminals would have written it: its messages stay, how they stand changes.

Each layout takes a log's lines and gives the new ones with, for each old line, where it went: a verdict on the new log is
right where it names the same class and the same line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Rewritten(NamedTuple):
    """A log in another layout: its bytes, and the new number (from 1) of each old line; None where it was cut off."""

    data: bytes
    place: tuple[int | None, ...]


Layout = Callable[[Sequence[str], int], Rewritten]
"""Lines and the row of the causing one (-1: none) to the new log."""


def _encoded(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _each(form: Callable[[int, str], str]) -> Layout:
    def rewrite(lines: Sequence[str], cause: int) -> Rewritten:
        del cause
        return Rewritten(
            _encoded([form(row, line) for row, line in enumerate(lines)]), tuple(range(1, len(lines) + 1))
        )

    return rewrite


def _clock(row: int) -> str:
    return f"{10 + row // 3600:02d}:{row // 60 % 60:02d}:{row % 60:02d}"


def _cri(row: int, line: str) -> str:
    return f"2024-08-11T{_clock(row)}.118402911Z stderr F {line}"


def _docker_json(row: int, line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": f"2024-08-11T{_clock(row)}.1184Z"})


def _cloud_json(row: int, line: str) -> str:
    return json.dumps({"severity": "ERROR", "timestamp": f"2024-08-11T{_clock(row)}Z", "message": line})


def _structured(row: int, line: str) -> str:
    return json.dumps(
        {"ts": f"2024-08-11T{_clock(row)}Z", "level": "info", "pod": "trainer-worker-0", "msg": line}
    )


def _kept(lines: Sequence[str], first: int, last: int) -> Rewritten:
    rows = range(first, last)
    place: list[int | None] = [None] * len(lines)
    for number, row in enumerate(rows, start=1):
        place[row] = number
    return Rewritten(_encoded([lines[row] for row in rows]), tuple(place))


def _head_cut(lines: Sequence[str], cause: int) -> Rewritten:
    return _kept(lines, max((cause if cause >= 0 else len(lines)) - 12, 0) // 2, len(lines))


def _before(lines: Sequence[str], extra: Sequence[str]) -> Rewritten:
    count = len(extra)
    return Rewritten(_encoded([*extra, *lines]), tuple(range(count + 1, count + len(lines) + 1)))


def _after(lines: Sequence[str], extra: Sequence[str]) -> Rewritten:
    return Rewritten(_encoded([*lines, *extra]), tuple(range(1, len(lines) + 1)))


_SETUP = [
    "+ source /opt/conda/etc/profile.d/conda.sh",
    "+ export NCCL_DEBUG=WARN TORCH_NCCL_ASYNC_ERROR_HANDLING=1 CUDA_LAUNCH_BLOCKING=0",
    "Fri Aug  9 08:00:01 UTC 2024",
    "| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |",
    "/opt/conda/lib/python3.10/site-packages/torch/utils/checkpoint.py:429: UserWarning: please pass use_reentrant",
    "  warnings.warn(",
    "WARNING: Could not find the optional file .env, skipping",
    "config: {'lr': 0.0003, 'error_if_nonfinite': False, 'on_failure': 'retry', 'timeout': 1800}",
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [::ffff:h]:29500 (errno: 97 - Address family not supported by protocol).",
    "Tip: if you see 'CUDA out of memory', lower --batch_size",
]
_CLOSING = [
    "wandb: ",
    "wandb: You can sync this run to the cloud by running:",
    "wandb: wandb sync /w/wandb/offline-run-20240811_142201-a1b2c3d4",
    "wandb: Find logs at: ./wandb/offline-run-20240811_142201-a1b2c3d4/logs",
    "+ date",
    "Sun Aug 11 14:25:02 UTC 2024",
]


def _double_spaced(lines: Sequence[str], cause: int) -> Rewritten:
    del cause
    spaced = [part for line in lines for part in (line, "")]
    return Rewritten(_encoded(spaced), tuple(2 * row + 1 for row in range(len(lines))))


def _twice(lines: Sequence[str], cause: int) -> Rewritten:
    """Both streams into one file: a collector that has each line twice."""
    del cause
    doubled = [part for line in lines for part in (line, line)]
    return Rewritten(_encoded(doubled), tuple(2 * row + 1 for row in range(len(lines))))


def _other_node(lines: Sequence[str], cause: int) -> Rewritten:
    """Two nodes' logs in one: the other one trains on until the cause, and prints no more."""
    merged: list[str] = []
    place: list[int | None] = []
    for row, line in enumerate(lines):
        if row % 3 == 0 and row < cause:
            merged.append(f"cn-0202: [rank8]: [cn-0202] heartbeat {row} ok, data queue 31/32")
        merged.append(f"cn-0201: {line}")
        place.append(len(merged))
    return Rewritten(_encoded(merged), tuple(place))


_TRACE_HEAD = re.compile(r"Traceback \(most recent call last\)")


def _one_json_a_traceback(lines: Sequence[str], cause: int) -> Rewritten:
    """A collector that knows tracebacks: each becomes one record with escaped newlines."""
    del cause
    out: list[str] = []
    place: list[int | None] = []
    open_block: list[str] = []
    for line in lines:
        if open_block:
            open_block.append(line)
            place.append(len(out) + 1)
            if line.strip() and not line.startswith((" ", "\t")):
                out.append(json.dumps({"level": "error", "msg": "\n".join(open_block)}))
                open_block = []
        elif _TRACE_HEAD.match(line):
            open_block = [line]
            place.append(len(out) + 1)
        else:
            out.append(json.dumps({"level": "info", "msg": line}))
            place.append(len(out))
    if open_block:
        out.append(json.dumps({"level": "error", "msg": "\n".join(open_block)}))
    return Rewritten(_encoded(out), tuple(place))


def _windows_paths(_: int, line: str) -> str:
    return re.sub(
        r'File "(/[^"]+)"', lambda match: 'File "C:' + match.group(1).replace("/", "\\") + '"', line
    )


def _coloured(row: int, line: str) -> str:
    return f"\x1b[3{row % 7}m{line}\x1b[0m"


def _utf16(lines: Sequence[str], cause: int) -> Rewritten:
    plain = _each(lambda _, line: line + "\r")(lines, cause)
    return plain._replace(data=plain.data.decode("utf-8", "replace").encode("utf-16"))


LAYOUTS: dict[str, Layout] = {
    # Launchers.
    "torchrun --tee": _each(lambda _, line: f"[default0]:{line}"),
    "srun --label": _each(lambda _, line: f"0: {line}"),
    "Open MPI": _each(lambda _, line: f"[1,0]<stderr>:{line}"),
    "Open MPI, time": _each(lambda row, line: f"Sun Aug 11 {_clock(row)} 2024[1,0]<stderr>:{line}"),
    "SageMaker": _each(lambda _, line: f"[1,mpirank:0,algo-1]<stderr>:{line}"),
    "horovodrun": _each(lambda row, line: f"Sun Aug 11 {_clock(row)} 2024[0]<stderr>:{line}"),
    "pdsh": _each(lambda _, line: f"worker-1: {line}"),
    "Ray": _each(lambda _, line: f"(RayTrainWorker pid=2810, ip=10.0.0.4) {line}"),
    "torchx": _each(lambda _, line: f"trainer/0 {line}"),
    "Determined": _each(lambda row, line: f"[2024-08-11T{_clock(row)}.118402Z] 9c0f1a2b || {line}"),
    "Lightning": _each(lambda _, line: f"[rank: 0] {line}"),
    "bare host": _each(lambda row, line: f"{'atlas' if row % 2 else 'atlat'}: {line}"),
    # Collectors.
    "docker compose": _each(lambda _, line: f"trainer-1  | {line}"),
    "docker json": _each(_docker_json),
    "container runtime": _each(_cri),
    "kubectl --timestamps": _each(lambda row, line: f"2024-08-11T{_clock(row)}.118402911Z {line}"),
    "kubectl --prefix": _each(lambda _, line: f"[pod/trainer-worker-0/pytorch] {line}"),
    "cloud json": _each(_cloud_json),
    "structured json": _each(_structured),
    "one json a traceback": _one_json_a_traceback,
    "syslog": _each(lambda row, line: f"Aug 11 {_clock(row)} gpu-a03 torchrun[41022]: {line}"),
    "ts": _each(lambda row, line: f"Aug 11 {_clock(row)} {line}"),
    "ISO time": _each(lambda row, line: f"2024-08-11 {_clock(row)} {line}"),
    "bracketed time": _each(lambda row, line: f"[2024-08-11 {_clock(row)},118] {line}"),
    "bracketed clock": _each(lambda row, line: f"[{_clock(row)}] {line}"),
    "Python logger": _each(lambda row, line: f"2024-08-11 {_clock(row)},118 - INFO - {line}"),
    "named logger": _each(lambda row, line: f"2024-08-11 {_clock(row)},118 launcher.stream INFO: {line}"),
    "ERROR:": _each(lambda _, line: f"ERROR:{line}"),
    "stderr:": _each(lambda _, line: f"stderr: {line}"),
    "time and rank": _each(lambda row, line: f"2024-08-11 {_clock(row)} [rank0]: {line}"),
    # Terminals and editors.
    "CRLF": _each(lambda _, line: line + "\r"),
    "colours": _each(_coloured),
    "UTF-16": _utf16,
    "line numbers": _each(lambda row, line: f"{row + 1:6d}  {line}"),
    "quoted": _each(lambda _, line: f"> {line}"),
    "double spaced": _double_spaced,
    "each line twice": _twice,
    "Windows paths": _each(_windows_paths),
    # Parts and company.
    "head cut": _head_cut,
    "after a setup": lambda lines, _: _before(lines, _SETUP * 4),
    "before a closing": lambda lines, _: _after(lines, _CLOSING),
    "another node between": _other_node,
}

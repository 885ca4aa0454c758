"""torchrun's error.json: what a rank wrote of its own failure.

Written by ``torch.distributed.elastic.multiprocessing.errors.ErrorHandler`` when the script's main is wrapped by
``@record``: ``{"message": {"message": str, "extraInfo": {"py_callstack": str, "timestamp": "<whole seconds>"}}}``.
A rank killed while writing leaves half of it, which makes torchrun itself fail; here half is read as half.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

_CAP_BYTES = 1 << 20
# A JSON string that may lack its end: `"key": "text…`.
_STRING = r'"{key}"\s*:\s*"((?:[^"\\]|\\.)*)'
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::|$)")


class ErrorFile(NamedTuple):
    """A rank's account of its failure. `message` and `py_callstack` are raw text: clean before showing.

    `timestamp_s` is a whole second since the epoch: it orders nothing within one. `complete` is False
    when only a part of the file could be read.
    """

    message: str
    exception: str | None = None
    py_callstack: str | None = None
    timestamp_s: int | None = None
    complete: bool = True


def read_error_file(data: bytes) -> ErrorFile | None:
    """Parse the bytes of an error.json, whole or cut anywhere; None when it holds no message."""
    text = data[:_CAP_BYTES].decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _from_half(text)
    body = document.get("message") if isinstance(document, dict) else None
    if isinstance(body, str):
        return _made(body, None, None, complete=True)
    if not isinstance(body, dict):
        return None
    extra = body.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    message = body.get("message")
    return _made(
        message if isinstance(message, str) else "",
        extra.get("py_callstack"),
        extra.get("timestamp"),
        complete=True,
    )


def _from_half(text: str) -> ErrorFile | None:
    return _made(
        _string(text, "message") or "",
        _string(text, "py_callstack"),
        _string(text, "timestamp"),
        complete=False,
    )


def _made(message: str, callstack: object, timestamp: object, *, complete: bool) -> ErrorFile | None:
    stack = callstack if isinstance(callstack, str) and callstack else None
    if not message and stack is None:
        return None
    digits = str(timestamp) if isinstance(timestamp, (str, int)) else ""
    named = _EXCEPTION.match(message)
    return ErrorFile(
        message=message,
        exception=named.group(1) if named else None,
        py_callstack=stack,
        timestamp_s=int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 12 else None,
        complete=complete,
    )


def _string(text: str, key: str) -> str | None:
    found = re.search(_STRING.format(key=key), text)
    if found is None:
        return None
    try:
        value = json.loads(f'"{found.group(1)}"', strict=False)
    except ValueError:
        return found.group(1)
    return value if isinstance(value, str) else None

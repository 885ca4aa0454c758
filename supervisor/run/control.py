"""What viewers write to ``control/`` for the keeper: requests, and a sign that someone is watching.

A request is a file, ``control/<id>.json``, put in place by a rename so the keeper never sees a partial file. An event
answers the request (`request_done`, `request_refused`), and the file is removed. The file's owner is the sender: the
run's user, or root. A sender named in the file is only informational.

``control/viewer-<pid>@<host>`` is the heartbeat of a viewer that may send requests. It is removed when the viewer
exits. A file that has stopped changing does not count.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path

import msgspec

from supervisor.run.events import RequestKind
from supervisor.run.heartbeat import Heartbeat, Pulse
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.regular import open_regular
from supervisor.text.redact import redact_text

SCHEMA_VERSION = 1
MAX_REQUEST_BYTES = 1 << 20
ROOT = 0


class RequestArgs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Arguments for RESTART_WITH, NOTE and ANSWER. `argv` is for the script. `offered` accepts the change proposed by the hold."""

    micro_batch: int | None = None
    argv: tuple[str, ...] | None = None
    env: dict[str, str] = {}
    text: str | None = None
    offered: bool = False
    answer: str | None = None


class Requester(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request."""

    uid: int
    host: str
    user: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request. If `if_attempt` is set and is not the current attempt, the request is refused as stale."""

    id: str
    kind: RequestKind
    by: Requester
    schema: int = SCHEMA_VERSION
    if_attempt: int | None = None
    args: RequestArgs = RequestArgs()


class BadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A file in control/ that is not a valid request. It is answered and removed."""

    id: str
    reason: str


def new_id() -> str:
    """Return an id that sorts by time: 16 hex digits of nanoseconds followed by 8 random ones."""
    import secrets  # loads OpenSSL, so only when a request is made

    return f"{time.time_ns():016x}{secrets.token_hex(4)}"


def send(
    control: Path, kind: RequestKind, *, if_attempt: int | None = None, args: RequestArgs | None = None
) -> str:
    """Write a request and return its id, which the journal's answer refers to. Views and commands use `ownership.ask`.

    Raises:
        OSError: the folder is gone, is not writable by this user, or is a symlink to another one.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    if args is not None and args.text:
        args = msgspec.structs.replace(args, text=redact_text(args.text))
    request = Request(
        id=new_id(),
        kind=kind,
        by=Requester(uid=os.getuid(), host=socket.gethostname(), user=user),
        if_attempt=if_attempt,
        args=args or RequestArgs(),
    )
    folder = os.open(control, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        part, name = f".{request.id}.part", f"{request.id}.json"
        # Readable by the run's owner if root makes the request.
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(request))
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
    return request.id


def pending(control: Path) -> list[Request | BadRequest]:
    """Return pending requests, oldest first. A file that is not a valid request is returned as a `BadRequest`."""
    try:
        names = sorted(name for name in os.listdir(control) if name.endswith(".json") and name[0] != ".")
    except OSError:
        return []
    return [_load(control / name) for name in names]


def _load(path: Path) -> Request | BadRequest:
    try:
        with open_regular(path) as file:
            owner = os.fstat(file.fileno()).st_uid
            if owner not in {os.geteuid(), ROOT}:
                return BadRequest(id=path.stem, reason=f"uid {owner} wrote it, whose run this is not")
            data = file.read(MAX_REQUEST_BYTES + 1)
        if len(data) > MAX_REQUEST_BYTES:
            return BadRequest(id=path.stem, reason="larger than 1 MiB")
        request = msgspec.json.decode(data, type=Request)
    except (OSError, *NOT_DECODED) as error:
        return BadRequest(id=path.stem, reason=f"unreadable: {error}")
    if request.schema != SCHEMA_VERSION:
        return BadRequest(id=path.stem, reason=f"schema {request.schema} is not known here")
    if request.id != path.stem:
        return BadRequest(id=path.stem, reason="the id is not the file's name")
    if request.by.uid != owner:  # trust the kernel over the file
        return msgspec.structs.replace(request, by=Requester(uid=owner, host=request.by.host))
    return request


def remove(control: Path, request_id: str) -> None:
    """Remove an answered request."""
    (control / f"{request_id}.json").unlink(missing_ok=True)


# -- who is watching -------------------------------------------------------------------------------

REFRESH_S = 3.0
STALE_S = 15.0
LOOK_S = 1.0
_PREFIX = "viewer-"


def presence_of(control: Path) -> Heartbeat:
    """Return this viewer's heartbeat. A viewer that cannot write here cannot send requests either."""
    host = socket.gethostname().replace("/", "_")
    path = control / f"{_PREFIX}{os.getpid()}@{host}"
    return Heartbeat(path, "viewer", every_s=REFRESH_S, mode=0o644)


class Viewers:
    """The keeper's side of the viewers' heartbeats. Times are monotonic seconds."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._pulses: dict[str, Pulse] = {}
        self._due = float("-inf")

    def look(self, now: float) -> None:
        """Read the heartbeat files, at most once a second."""
        if now < self._due:
            return
        self._due = now + LOOK_S
        try:
            names = [name for name in os.listdir(self._control) if name.startswith(_PREFIX)]
        except OSError:
            names = []
        self._pulses = {name: self._pulses.get(name) or Pulse(self._control / name) for name in names}
        for pulse in self._pulses.values():
            pulse.look(now)

    def watched(self, now: float) -> bool:
        """Check whether any viewer's file has changed within the last `STALE_S` seconds."""
        return any(pulse.lives(now, STALE_S) for pulse in self._pulses.values())

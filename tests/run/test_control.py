"""What meets in control/: requests, which are read whole or answered, and screens, which count while their files move."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

import msgspec
import pytest

from supervisor.run import control
from supervisor.run.control import (
    LOOK_S,
    MAX_REQUEST_BYTES,
    REFRESH_S,
    STALE_S,
    BadRequest,
    Request,
    Requester,
    Viewers,
    presence_of,
)
from supervisor.run.events import RequestKind


def test_requests_are_read_in_the_order_they_were_made_and_can_be_removed(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        made = [control.send(tmp_path, RequestKind.STOP, if_attempt=3)]
    finally:
        os.umask(mask)
    assert (tmp_path / f"{made[0]}.json").stat().st_mode & 0o777 == 0o644, "the run's owner may read root's"
    made += [control.send(tmp_path, RequestKind.STACKS) for _ in range(20)]
    made.append(control.send(tmp_path, RequestKind.RESTART_WITH, args=control.RequestArgs(micro_batch=8)))
    seen = control.pending(tmp_path)
    assert [request.id for request in seen] == made
    first, last = seen[0], seen[-1]
    assert isinstance(first, Request)
    assert isinstance(last, Request)
    by = Requester(uid=os.getuid(), host=socket.gethostname(), user=getpass.getuser())
    assert first == Request(id=made[0], kind=RequestKind.STOP, by=by, if_attempt=3)
    assert last.args == control.RequestArgs(micro_batch=8)
    hidden = control.send(
        tmp_path,
        RequestKind.NOTE,
        args=control.RequestArgs(text="key hf_abcdefghijklmnopqrstuvwxyz0123456789"),
    )
    assert b"hf_abc" not in (tmp_path / f"{hidden}.json").read_bytes()
    control.remove(tmp_path, hidden)
    for _ in range(2):
        control.remove(tmp_path, made[0])
    assert [request.id for request in control.pending(tmp_path)] == made[1:]
    assert control.pending(tmp_path / "none") == []


OURS = Request(id="x", kind=RequestKind.STOP, by=Requester(uid=os.getuid(), host="box"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "unreadable"),
        (b"{", "unreadable"),
        (b"[]", "unreadable"),
        (b'{"id":"x","kind":"explode"}', "unreadable"),
        (msgspec.json.encode(msgspec.structs.replace(OURS, schema=9)), "schema 9 is not known here"),
        (msgspec.json.encode(msgspec.structs.replace(OURS, id="y")), "the id is not the file's name"),
        (msgspec.json.encode(OURS).ljust(MAX_REQUEST_BYTES + 1), "larger than 1 MiB"),
    ],
)
@pytest.mark.fault("hostile input", "a file in control/ that is not a request", "refused with the reason")
def test_a_file_that_is_no_request_is_answered_not_obeyed(tmp_path: Path, data: bytes, reason: str) -> None:
    for name in ("x.json", ".x.json", "x.part"):
        (tmp_path / name).write_bytes(data)
    (found,) = control.pending(tmp_path)
    assert isinstance(found, BadRequest)
    assert found.id == "x"
    assert found.reason.startswith(reason)


@pytest.mark.fault("secrets and access", "a request that lies about its sender", "the file's owner counts")
def test_a_request_comes_from_whom_the_kernel_says(tmp_path: Path) -> None:
    liar = msgspec.structs.replace(OURS, by=Requester(uid=os.getuid() + 1, host="box", user="ada"))
    path = tmp_path / "x.json"
    path.write_bytes(msgspec.json.encode(liar).ljust(MAX_REQUEST_BYTES))
    assert control.pending(tmp_path) == [OURS]
    if os.geteuid() != control.ROOT:
        pytest.skip("only root can give a file away")
    os.chown(path, 4242, -1)
    reason = "uid 4242 wrote it, whose run this is not"
    assert control.pending(tmp_path) == [BadRequest(id="x", reason=reason)]


def test_a_screen_counts_while_its_file_moves(tmp_path: Path) -> None:
    presence, viewers = presence_of(tmp_path), Viewers(tmp_path)

    def watched(now: float) -> bool:
        viewers.look(now)
        return viewers.watched(now)

    assert not watched(0.0)
    presence.beat(0.0)
    assert not watched(1.0), "it may have been left by a screen that was killed"
    presence.beat(REFRESH_S + 1)
    assert watched(5.0)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o644, "the run's keeper may read root's"
    os.utime(path, (2e9, 2e9))  # a clock of another machine
    assert watched(5.0 + STALE_S)
    assert not watched(6.0 + STALE_S)
    presence.beat(200.0)
    assert watched(204.0), "a screen that was suspended counts again"
    presence.remove()
    assert watched(204.0 + LOOK_S / 2), "it looks once a second"
    assert not watched(204.0 + LOOK_S)
    path.parent.rename(tmp_path.with_name("moved"))
    assert not watched(300.0)

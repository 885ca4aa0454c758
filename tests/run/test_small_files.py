"""Files of a run that are small: opened only where they are regular, requests written whole, viewers counted while they move."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from supervisor.run import control
from supervisor.run.control import BadRequest, Request, Requester
from supervisor.run.events import RequestKind
from supervisor.run.regular import open_regular, read_regular, read_text
from supervisor.run.runfile import BadRunFile, read_run_stream


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    plain, pipe = tmp_path / "plain", tmp_path / "pipe"
    plain.write_bytes(b"caf\xc3\xa9\xff")
    os.mkfifo(pipe)
    assert read_regular(plain) == b"caf\xc3\xa9\xff"
    assert read_regular(plain, 3) == b"caf"
    assert read_text(plain, errors="replace") == "café\ufffd"
    with pytest.raises(UnicodeDecodeError):
        read_text(plain)
    for path, number, why in (
        (tmp_path, errno.EISDIR, "Is a directory"),
        (pipe, errno.EINVAL, "no regular file"),
        (Path("/dev/null"), errno.EINVAL, "no regular file"),
        (Path("/proc/self/status"), errno.EINVAL, "no regular file"),
        (tmp_path / "none", errno.ENOENT, "No such file or directory"),
    ):
        with pytest.raises(OSError, match=why) as refused:
            open_regular(path)
        assert (refused.value.errno, refused.value.strerror, refused.value.filename) == (
            number,
            why,
            str(path),
        )


def test_a_refused_file_is_closed_again(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(IsADirectoryError):
            open_regular(tmp_path)
    control.send(tmp_path, RequestKind.STOP)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_request_lies_there_whole_and_the_runs_owner_may_read_it(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        sent = control.send(tmp_path, RequestKind.STOP, if_attempt=3)
    finally:
        os.umask(mask)
    (path,) = tmp_path.iterdir()
    assert path.name == f"{sent}.json"
    assert path.stat().st_mode & 0o777 == 0o644
    (request,) = control.pending(tmp_path)
    assert isinstance(request, Request)
    assert (request.id, request.kind, request.if_attempt) == (sent, RequestKind.STOP, 3)
    assert request.by.uid == os.getuid()
    control.remove(tmp_path, sent)
    control.remove(tmp_path, sent)
    assert control.pending(tmp_path) == control.pending(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 99}, "schema 99 is not known here"),
        ({"id": "other"}, "the id is not the file's name"),
    ],
)
def test_a_request_that_is_not_understood_says_why(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    sent = control.send(tmp_path, RequestKind.STOP)
    (request,) = control.pending(tmp_path)
    assert isinstance(request, Request)
    wrong = msgspec.json.encode(msgspec.structs.replace(request, **change))
    (tmp_path / f"{sent}.json").write_bytes(wrong)
    (tmp_path / ".x.json").write_bytes(wrong)
    (tmp_path / "x.part").write_bytes(wrong)
    assert control.pending(tmp_path) == [BadRequest(id=sent, reason=reason)]


def test_a_request_is_at_most_a_mebibyte_and_of_whom_the_kernel_says(tmp_path: Path) -> None:
    sent = control.send(tmp_path, RequestKind.STOP)
    path = tmp_path / f"{sent}.json"
    whole = path.read_bytes()
    path.write_bytes(whole + b" " * (control.MAX_REQUEST_BYTES - len(whole)))
    assert isinstance(control.pending(tmp_path)[0], Request)
    path.write_bytes(whole + b" " * (control.MAX_REQUEST_BYTES + 1 - len(whole)))
    assert control.pending(tmp_path) == [BadRequest(id=sent, reason="larger than 1 MiB")]
    request = msgspec.json.decode(whole, type=Request)
    liar = msgspec.structs.replace(request, by=Requester(uid=os.getuid() + 1, host="box", user="ada"))
    path.write_bytes(msgspec.json.encode(liar))
    (found,) = control.pending(tmp_path)
    assert isinstance(found, Request)
    assert found.by == Requester(uid=os.getuid(), host="box")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"schema": 9}', "^x: schema 9 is newer than this stoker: update it$"),
        (b'{"schema": 1}', "^x: not a run file of this version: "),
        (b"{", "^x: not a run file of this version: "),
    ],
)
def test_a_run_file_that_cannot_be_read_says_why(data: bytes, why: str) -> None:
    with pytest.raises(BadRunFile, match=why):
        read_run_stream(data, name="x")

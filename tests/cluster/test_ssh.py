"""Hosts as people write them, and what is said where they differ."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from supervisor.cluster.scheduler import Place
from supervisor.cluster.ssh.connection import Connections, SshError
from supervisor.cluster.ssh.hosts import (
    BadHosts,
    Host,
    Started,
    hosts_in,
    hosts_of_file,
    place_of,
    processes_of,
    remember,
    remembered,
    variables_in,
)
from supervisor.cluster.ssh.messages import Do, Facts, Request, Said, differences


def test_hosts_of_a_line_and_of_a_file() -> None:
    assert hosts_in("a:4,me@b.lan:4") == (Host("a", 4), Host("me@b.lan", 4))
    assert hosts_in("a,[fe80::1]") == (Host("a"), Host("[fe80::1]"))
    text = "# ours\na:2 NCCL_SOCKET_IFNAME=eth0 X=a=b\n\nb slots=2  # as Open MPI and DeepSpeed have it\n"
    first, second = hosts_of_file("hosts", text)
    assert (first.processes, first.env) == (2, (("NCCL_SOCKET_IFNAME", "eth0"), ("X", "a=b")))
    assert second == Host("b", 2)
    assert "eth0" not in repr(first)  # a variable may be a secret


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "1 hosts, 2 to 64 are meant: on one machine it is `stoker run`"),
        ("a,,b", "'' is no host"),
        ("-oProxyCommand=x,b", "is no host"),
        ("a;reboot,b", "'a;reboot' is no host"),
        ("a:0,b", "at least one process"),
        ("a:1,a:1", "a stands there twice"),
        (",".join(f"n{number}" for number in range(65)), "use a scheduler"),
    ],
)
def test_what_are_no_hosts(text: str, said: str) -> None:
    with pytest.raises(BadHosts) as error:
        hosts_in(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:1\nb gpus\n", "hosts:2: 'gpus': slots=N or KEY=VALUE"),
        ("a\nb slots=x\n", "hosts:2: 'b:x' is no host"),
        ("", "hosts: 0 hosts"),
    ],
)
def test_a_bad_file_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(BadHosts) as error:
        hosts_of_file("hosts", text)
    assert said in str(error.value)


def test_all_hosts_have_as_many_processes() -> None:
    assert processes_of(hosts_in("a:2,b:2")) == 2
    assert processes_of(hosts_in("a,b")) is None
    with pytest.raises(BadHosts, match="a 2, b says none"):
        processes_of(hosts_in("a:2,b"))
    assert variables_in(["A=b=c", "D="]) == (("A", "b=c"), ("D", ""))
    with pytest.raises(BadHosts) as error:
        variables_in(["1A=hunter2"])
    assert "hunter2" not in str(error.value)


def test_a_host_has_its_place_as_a_scheduler_would_tell_it() -> None:
    place = place_of(hosts_in("me@a:2,b:2"), 1, "10.0.0.1")
    assert place == Place(1, 2, ("10.0.0.1", "b"), 1, started_on_each=True, why="host 1 of 2")
    assert (place.master, place.name) == ("10.0.0.1", "b")


def test_the_last_run_that_fits_a_name_is_remembered(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    assert remembered(None, env) is None
    first, second = (
        Started(run_dir=f"/runs/{name}", folder="/", hosts=("a", "b"), stoker=("stoker",), t=1.0)
        for name in ("train-1", "eval-1")
    )
    for each in (first, second):
        remember(each, env)
    found = [remembered(named, env) for named in (None, "train", "/runs/train-1", "runs", "/runs")]
    assert found == [second, first, first, None, None]


def test_differences_name_what_and_where() -> None:
    first = Facts(stoker="1", python="3.11.7", torch="2.8.0", code={"a.py": "1", "b.toml": "2"})
    other = Facts(stoker="1", python="3.11.7", torch="2.7.1", code={"a.py": "9", "c.py": "2"})
    assert differences([("a", first), ("b", first)]) == []
    assert differences([("a", first), ("b", other)]) == [
        "torch: a 2.8.0, b 2.7.1",
        "code: a.py is another on b than on a",
        "code: b.toml is missing on b",
        "code: c.py is missing on a",
    ]


# -- a connection, by a program of ssh's name ----------------------------------------------------------------

ASKS = Request(do=Do.SEES, folder="/")


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that stands for ssh, alone on PATH: it says what `out` and `err` hold and ends with `code`."""
    script = 'cd "${0%/*}"; read asked; echo "$@" > words; echo "$asked" > asked\n'
    (tmp_path / "ssh").write_text(
        f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}cat out; cat err >&2; exit $(cat code)\n"
    )
    (tmp_path / "ssh").chmod(0o755)
    for name in ("out", "err"):
        (tmp_path / name).touch()
    (tmp_path / "code").write_text("0")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_host_is_asked_over_ssh_and_the_last_line_is_its_answer(ssh: Path) -> None:
    (ssh / "out").write_text('Welcome\n{"ok":false}\n{"ok":true,"text":"here"}\nbye\n')
    (ssh / "code").write_text("3")
    ways = Connections(hosts_in("a,me@b"), ["/opt/my stoker", "-x"], config="/etc/own")
    assert ways.ask(1, ASKS, Said) == Said(ok=True, text="here")
    assert msgspec.json.decode((ssh / "asked").read_bytes(), type=Request) == ASKS
    options = (
        "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "
        "-o ClearAllForwardings=yes -o RemoteCommand=none"
    )
    command = "'/opt/my stoker' -x nodes here"
    assert (ssh / "words").read_text() == f"-F /etc/own -T -a -x {options} -- me@b {command}\n"


REFUSALS = [
    (255, "Host key verification failed.", "its host key is not known: `ssh me@b` once, and compare the key", False),
    (255, "No ED25519 host key is known for b", "its host key is not known: `ssh me@b` once, and compare the key", False),
    (255, "x\nREMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.",
     "its host key has changed: if you know why, `ssh-keygen -R b`; else somebody else answers there", False),
    (255, "me@b: Permission denied (publickey).",
     "permission denied: is the user right, and your key in authorized_keys there? `ssh me@b` must work without a password", False),
    (255, "ssh: Could not resolve hostname b: x", "no such host: its name is not resolved", False),
    (255, "connect: Connection refused", "unreachable: connection refused: no sshd listens there, or on another port", False),
    (255, "a\n connect to b: No route to host \n\n", "unreachable: connect to b: No route to host", False),
    (255, "Connection to b closed by remote host.", "the connection was lost: Connection to b closed by remote host.", True),
    (255, "odd", "ssh: odd", True),
    (255, "", "ssh: the connection was lost", True),
    (127, "sh: stoker: not found", "no stoker there (sh: stoker: not found): install it, or say where it is with --stoker PATH", False),
    (126, "", "no stoker there (exit 126): install it, or say where it is with --stoker PATH", False),
    (1, "python: No module named stoker", "no stoker there (python: No module named stoker): install it, or say where it is with --stoker PATH", False),
    (2, "stoker: unknown verb 'nodes'", "an older stoker is there, which has no `stoker nodes`: update it", False),
    (1, "a\n" + 400 * "x", "stoker there: " + 300 * "x", False),
    (4, "", "stoker there: exit 4, without a word", False),
]  # fmt: skip


@pytest.mark.parametrize(("code", "err", "told", "lost"), REFUSALS)
def test_a_host_that_gives_no_answer_is_told_of_in_one_line(
    ssh: Path, code: int, err: str, told: str, lost: bool
) -> None:
    (ssh / "code").write_text(str(code))
    (ssh / "err").write_text(err)
    ways = Connections(hosts_in("a,me@b"), ["stoker"])
    (ssh / "out").write_text("{no json\n" if code != 255 else '{"ok":true}\n')
    with pytest.raises(SshError) as refused:
        ways.ask(1, ASKS, Said)
    assert (str(refused.value), refused.value.lost) == (f"me@b: {told}", lost)
    with pytest.raises(SshError) as ended:
        ways.lines(1, ASKS, lambda _line: None)
    assert str(ended.value) == f"me@b: {told}"


def test_a_host_that_is_silent_and_a_machine_without_ssh_are_told_of(ssh: Path) -> None:
    ways = Connections(hosts_in("a,b"), ["stoker"])
    (ssh / "ssh").write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    with pytest.raises(SshError) as silent:
        ways.ask(0, ASKS, Said, timeout_s=0.3)
    assert (str(silent.value), silent.value.lost) == ("a: no answer within 0 s", True)
    (ssh / "ssh").unlink()
    with pytest.raises(SshError) as missing:
        ways.ask(0, ASKS, Said)
    assert (str(missing.value), missing.value.lost) == (
        "a: ssh is not on PATH: install an ssh client here",
        False,
    )


def test_lines_are_handed_on_as_they_come_and_hosts_are_asked_side_by_side(ssh: Path) -> None:
    (ssh / "out").write_bytes(b"one\n\xff two \nthree")
    ways, lines = Connections(hosts_in("a,b,c"), ["stoker"]), list[str]()
    ways.lines(0, ASKS, lines.append)
    assert lines == ["one", "\ufffd two ", "three"]

    def named(node: int, host: Host) -> str:
        if node == 1:
            raise SshError(host, "away")
        return f"{node} {host.name}"

    assert list(map(str, ways.each(named))) == ["0 a", "b: away", "2 c"]
    assert list(map(str, ways.each(named, nodes=(2, 0)))) == ["2 c", "0 a"]
    assert ways.each(named, nodes=()) == []


def test_the_address_is_the_one_that_ssh_would_connect_to(ssh: Path) -> None:
    ways = Connections(hosts_in("a,me@b"), ["stoker"], config="own")
    (ssh / "ssh").write_text(
        '#!/bin/sh\necho "$@" > "${0%/*}/words"\necho "user me"; echo "hostname 10.0.0.1"\n'
    )
    assert ways.address(1) == "10.0.0.1"
    assert (ssh / "words").read_text() == "-F own -G -- me@b\n"
    for script, told in (
        ("echo hostname x; exit 1", "no such host"),
        ("echo ' bad config ' >&2", "bad config"),
    ):
        (ssh / "ssh").write_text(f"#!/bin/sh\n{script}\n")
        with pytest.raises(SshError) as refused:
            ways.address(0)
        assert str(refused.value) == f"a: ssh: {told}"
    (ssh / "ssh").unlink()
    with pytest.raises(SshError, match="a: ssh -G: "):
        ways.address(0)


def test_connections_end_when_nobody_reads_what_they_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/began-$$\nexec sleep 30\n", encoding="utf-8")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def check() -> None:
        if len(list(tmp_path.glob("began-*"))) == 2:
            raise BrokenPipeError

    ways = Connections(hosts_in("a,b"), ["stoker"])

    def follow(node: int, _: Host) -> None:
        ways.lines(node, Request(do=Do.LOGS, folder="/", run_dir="/", node=node), lambda _: None)

    begun = time.monotonic()
    with pytest.raises(BrokenPipeError):
        ways.each(follow, check=check)
    assert time.monotonic() - begun < 25, "the connections are not waited for"

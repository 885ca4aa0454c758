"""``stoker nodes`` against a program that answers as ssh does, its far side in this process, and a real sshd; nothing is trained."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from supervisor import __version__
from supervisor.cli import nodes, on_node
from supervisor.cli.main import main
from supervisor.cluster.ssh.hosts import Started, remember
from supervisor.cluster.ssh.messages import Do, Facts, NodeStatus, Request, Said
from supervisor.run import events as ev
from supervisor.run.ownership import KeeperLock, has_keeper, read_holder
from supervisor.run.paths import RunPaths
from supervisor.sources.processes import environment_value, identify
from tests.cli.conftest import Answer, Call
from tests.conftest import not_none, wait_until
from tests.integration.sshd import MISSING, Hosts, loopback_hosts
from tests.keeper.fakes import job_of, own_run_in
from tests.keeper.runs import INTENDED, RUNS, STARTED, WAITS, T, append

needs_sshd = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make cluster)")
K = TypeVar("K", bound=msgspec.Struct)
JOB = ("--no-check", "--python", sys.executable, "train.py")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tmp_path / "train.py").write_text("print(1)\n", encoding="utf-8")
    with loopback_hosts(tmp_path / "ssh", "a", "b") as hosts:
        yield hosts


@needs_sshd
def test_check_compares_and_starts_nothing(hosts: Hosts, tmp_path: Path) -> None:
    done = hosts.nodes("check", "--hosts", "a:1,b:1", *JOB, cwd=tmp_path)
    assert done.code == 0, done
    assert [line.split()[0] for line in done.out.splitlines()[-3:]] == ["HOST", "a", "b"]
    assert not (tmp_path / "runs").exists()


@needs_sshd
def test_what_differs_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    python = tmp_path / "other"
    python.write_text(
        f'#!/bin/sh\n{sys.executable} "$@" | sed s/torch.:../torch\\":\\ \\"9/\n', encoding="utf-8"
    )
    python.chmod(0o755)
    (tmp_path / "hosts").write_text(
        f"a PATH={os.environ['PATH']} STOKER_PYTHON={sys.executable}\nb STOKER_PYTHON={python}\n"
    )
    done = hosts.nodes("up", "--hosts-file", "hosts", "--no-check", "train.py", cwd=tmp_path)
    assert done.code == 3, done
    assert "stoker nodes: differs: torch: a " in done.err
    assert not (tmp_path / "runs").exists()


@needs_sshd
def test_each_way_that_leads_nowhere_is_one_line(hosts: Hosts, tmp_path: Path) -> None:
    def said(*words: str) -> str:
        done = hosts.nodes("check", "--hosts", *words, cwd=tmp_path)
        assert done.code == 2, done
        assert "Traceback" not in done.err
        assert len(done.err.splitlines()) <= 2, "a line a host"
        return done.err

    hosts.cut("b")
    assert "b: unreachable: connection refused" in said("a,b", *JOB)
    hosts.key("host-b")
    assert hosts.listen("b")
    assert "b: its host key has changed" in said("a,b", *JOB)
    known = tmp_path / "ssh" / "known_hosts"
    known.write_text(known.read_text().splitlines()[0] + "\n")
    assert "b: its host key is not known" in said("a,b", *JOB)
    assert "a: no stoker there" in said("a,b", "--stoker", "/no/stoker", *JOB)
    assert "nobody@a: permission denied" in said("nobody@a,b", *JOB)
    assert "no such host" in said("a,no-such-host.invalid", *JOB)
    assert "/no/folder: No such file" in said("a,b", "--dir", "/no/folder", *JOB)


@needs_sshd
@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may mount")
def test_a_folder_that_is_not_shared_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    hosts.cut("b")
    inner = 'mount -t tmpfs none "$0" 2>/dev/null || exit 9; exec "$@"'
    assert hosts.listen("b", ("unshare", "--mount", "sh", "-c", inner, str(tmp_path / "runs")))
    done = hosts.nodes("up", "--hosts", "a,b", *JOB, cwd=tmp_path)
    assert done.code == 3, done
    assert f"b: it does not see {tmp_path}/runs/" in done.err
    assert "what was started is ended" in done.err
    (run,) = (RunPaths(each) for each in (tmp_path / "runs").iterdir() if each.name != "latest")
    holder = read_holder(run.node().lock)
    assert holder is not None
    assert wait_until(lambda: identify(holder.pid) is None, 60)


# -- from here, with hosts that are files of answers ------------------------------------------------------------

SSH = """#!/bin/sh
PATH=/usr/bin:/bin
echo "$@" >> words
case " $* " in *" -G "*) for host; do :; done; echo "hostname $host.lan"; exit;; esac
while [ "$1" != -- ]; do shift; done
read -r request
echo "$request" >> "asked-$2"
do=$(echo "$request" | sed 's/.*"do":"\\([a-z]*\\)".*/\\1/')
[ -e "$2-$do" ] || { echo 'Connection closed by remote host' >&2; exit 255; }
[ $do = logs ] && exec cat "$2-$do"
echo >> "$2-$do-count"
at=$(wc -l < "$2-$do-count"); most=$(wc -l < "$2-$do")
sed -n "$((at < most ? at : most))p" "$2-$do"
"""
GOOD = Said(ok=True)
SAME = Facts(stoker="1", python="3.11.7", torch="2.8.0", code={"train.py": "1"})
ALIVE = NodeStatus(found=True, keeper=True, state="training", attempt=2, step=7, steps=90)
OVER = NodeStatus(found=True, state="finished", attempt=2, step=90, steps=90, exit_code=0, over=True)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where ssh to `host` answers with the lines of `host-what`, one a request, and keeps what it was asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH, encoding="utf-8")
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nodes, "WATCH_S", 0.01)
    (tmp_path / "train.py").write_text("print(1)\n", encoding="utf-8")
    return tmp_path


def answers(host: str, do: Do, *said: msgspec.Struct) -> None:
    Path(f"{host}-{do}-count").unlink(missing_ok=True)
    Path(f"{host}-{do}").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in said))


def asked(host: str) -> list[Request]:
    """What a host was asked since the last look."""
    path = Path(f"asked-{host}")
    lines = path.read_bytes().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [msgspec.json.decode(line, type=Request) for line in lines]


ONE_OF_THEM = "--hosts A:4,B:4 or --hosts-file FILE: one of them says which machines"
NOT_HERE = "was started from here by `stoker nodes up`: --hosts and --run-dir say which"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("up train.py", ONE_OF_THEM),
        ("up --hosts a,b --hosts-file hosts train.py", ONE_OF_THEM),
        ("up --hosts-file nothing train.py", "--hosts-file nothing: No such file or directory"),
        ("up --hosts-file latin train.py", "--hosts-file latin: not UTF-8"),
        ("up --hosts a,b --ssh-config nothing train.py", "--ssh-config nothing: no such file"),
        ("up --hosts a,b", "nothing to start: after the flags give what follows `stoker run`"),
        ("check --hosts a,b -- python t.py", "what stands behind -- starts its nodes itself: on hosts it is torchrun's jobs, SCRIPT.py or -m MODULE"),
        ("up --hosts a,b --nnodes 3 train.py", "--nnodes 3, and 2 hosts: leave --nnodes out"),
        ("up --hosts a,b --node-rank 0 train.py", "--node-rank is given to each host by its place among the hosts: leave it out"),
        ("up --hosts a:2,b:2 --nproc-per-node 4 train.py", "--nproc-per-node 4, and a:2: say it once"),
        *((f"up --hosts a,b {flag} train.py", f"{flag}: keepers are started in the background on all hosts: leave it out")
          for flag in ("--no-ui", "--detach", "--json", "--dry-run", "--check-only", "--show-config")),
        ("status --hosts a,b", "--hosts says where: --run-dir DIR says which run"),
        ("stop --hosts-file hosts", "--hosts says where: --run-dir DIR says which run"),
        ("logs one two", "one run is meant, not 'one two'"),
        ("status", f"no run {NOT_HERE}"),
        ("status otter", f"no run 'otter' {NOT_HERE}"),
        ("status --run-dir runs/otter", f"no run 'runs/otter' {NOT_HERE}"),
    ],
)  # fmt: skip
def test_what_is_meant_is_said_before_a_host_is_asked(ssh: Path, call: Call, line: str, said: str) -> None:
    Path("latin").write_bytes(b"caf\xe9\n")
    assert call(f"nodes {line}") == Answer(2, "", f"stoker nodes: {said}\n")
    assert not Path("words").exists()


def test_up_starts_node_0_and_then_the_others(ssh: Path, call: Call) -> None:
    for host in ("me@a", "b"):
        for do, said in ((Do.FACTS, SAME), (Do.SEES, GOOD), (Do.VERB, GOOD)):
            answers(host, do, said)
    Path("hosts").write_text("me@a:2 X=9\nb slots=2\n", encoding="utf-8")
    Path("conf").touch()
    Path("work").mkdir()
    flags = "--hosts-file hosts --ssh-config conf --stoker 'uv run stoker' --dir work --env X=1 --env Y=2"
    done = call(f"nodes up {flags} --run-dir ../runs/otter train.py --lr 3")
    watch = "otter: 2 nodes; `stoker nodes status`, `stoker nodes logs -f`, `stoker nodes stop`"
    assert done == Answer(0, f"me@a: node 0: started\nb: node 1: started\n{watch}\n", "")

    run_dir, folder = f"{ssh}/runs/otter", f"{ssh}/work"
    requests = {host: asked(host) for host in ("me@a", "b")}
    (token,) = {each.token for each in requests["me@a"] + requests["b"]}
    assert re.fullmatch(r"[0-9a-f]{16}", token)
    words = ("--nproc-per-node", "2", "train.py", "--lr", "3")
    common = Request(do=Do.FACTS, folder=folder, run_dir=run_dir, words=words, token=token)
    for node, (host, env) in enumerate((("me@a", {"X": "9", "Y": "2"}), ("b", {"X": "1", "Y": "2"}))):
        facts = msgspec.structs.replace(common, node=node, env=env)
        sees = [msgspec.structs.replace(facts, do=Do.SEES, words=())] if node else []
        place = ("--nnodes", "2", "--node-rank", str(node), "--master-addr", "me@a.lan")
        run = ("run", "--detach", "--run-dir", run_dir, *place, *words)
        assert requests[host] == [facts, *sees, msgspec.structs.replace(facts, do=Do.VERB, words=run)]
    typed = Path("words").read_text(encoding="utf-8").splitlines()
    assert all(each.startswith(f"-F {ssh}/conf ") for each in typed)
    assert sum(each.endswith("-- b uv run stoker nodes here") for each in typed) == 3

    for do in (Do.STATUS, Do.END, Do.LOGS):
        answers("me@a", do, ALIVE)
        answers("b", do, ALIVE)
    for named in ("", "tt", run_dir, f"--run-dir {run_dir}"):
        assert call(f"nodes status {named}").code == 0, "it is remembered"
    assert asked("b") == [Request(do=Do.STATUS, folder=folder, run_dir=run_dir, node=1)] * 4


def test_what_up_is_given_goes_before_what_it_finds_out(
    ssh: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("a", "b"):
        for do, said in ((Do.FACTS, SAME), (Do.SEES, GOOD), (Do.VERB, GOOD)):
            answers(host, do, said)
    given = "--nnodes 2 --nproc-per-node 2 --rdzv-endpoint c:1 --run-dir x train.py"
    assert call(f"nodes up --hosts a:2,b:2 {given}").code == 0
    *_, run = asked("b")
    assert run.run_dir == f"{ssh}/x"
    assert run.words == ("run", "--detach", "--run-dir", f"{ssh}/x", "--node-rank", "1", *given.split())
    stoker = ssh / "bin" / "stoker"
    stoker.touch(mode=0o755)
    assert call("nodes up --hosts a,b --config job.toml").code == 0
    *_, run = asked("b")
    assert re.fullmatch(rf"{ssh}/runs/\d{{8}}-\d{{4}}-[a-z]+-[a-z]+", run.run_dir)
    assert run.words[-2:] == ("--config", "job.toml")
    ours = Path("words").read_text(encoding="utf-8").splitlines()
    assert ours[-1].endswith(f"-- b {stoker} nodes here")
    stoker.unlink()
    monkeypatch.setenv("PATH", f"{ssh}/bin")
    call("nodes up --hosts a,b train.py")
    ours = Path("words").read_text(encoding="utf-8").splitlines()
    assert ours[-1].endswith(f" {sys.executable} -m supervisor nodes here")


def test_hosts_that_differ_are_compared_and_refused_unless_it_is_allowed(ssh: Path, call: Call) -> None:
    answers("a", Do.FACTS, SAME)
    answers("b", Do.FACTS, SAME)
    table = "HOST  STOKER  PYTHON  TORCH\na     1       3.11.7  2.8.0\nb     1       3.11.7  {}\n"
    assert call("nodes check --hosts a,b train.py") == Answer(0, table.format("2.8.0"), "")
    answers("b", Do.FACTS, msgspec.structs.replace(SAME, torch=""))
    differs = "stoker nodes: differs: torch: a 2.8.0, b none\n"
    assert call("nodes check --hosts a,b --allow-different train.py") == Answer(3, table.format("-"), differs)
    assert call("nodes up --hosts a,b train.py") == Answer(3, "", differs)
    assert {each.do for each in asked("a")} == {Do.FACTS}
    for host in ("a", "b"):
        answers(host, Do.SEES, GOOD)
        answers(host, Do.VERB, GOOD)
    done = call("nodes up --hosts a,b --allow-different train.py")
    assert (done.code, done.err) == (0, differs)
    answers("b", Do.FACTS, Facts(stoker="1", error="train.py: no such file"))
    assert call("nodes up --hosts a,b train.py") == Answer(2, "", "stoker nodes: b: train.py: no such file\n")


LOST = "the connection was lost: Connection closed by remote host"


@pytest.mark.parametrize(
    ("said", "code", "why", "ended"),
    [
        ({"a": (None, Said(ok=False, text="no room", code=2))}, 2, "a: no room", ()),
        ({"a": (None, Said(ok=False, code=3))}, 2, "a: `stoker run` ended with 3", ()),
        ({"a": (None, None)}, 2, f"a: {LOST}", ("a",)),
        ({"b": (Said(ok=False), GOOD)}, 3, "b: it does not see {} of a: --run-dir must lie in a folder that all hosts share", ("a",)),
        ({"b": (GOOD, Said(ok=False, text="no room", code=2))}, 2, "b: no room", ("a",)),
        ({"b": (GOOD, None)}, 2, f"b: {LOST}", ("a", "b")),
    ],
)  # fmt: skip
def test_a_start_that_fails_on_one_host_is_ended_on_all(
    ssh: Path,
    call: Call,
    said: dict[str, tuple[Said | None, Said | None]],
    code: int,
    why: str,
    ended: tuple[str, ...],
) -> None:
    run_dir = ssh / "run"
    for host in ("a", "b"):
        sees, verb = said.get(host, (GOOD, GOOD))
        for do, each in ((Do.FACTS, SAME), (Do.SEES, sees), (Do.VERB, verb), (Do.END, GOOD)):
            if each is not None:
                answers(host, do, each)
    done = call("nodes up --hosts a,b --run-dir run train.py")
    lines = [why.format(run_dir)]
    if ended:
        lines.append(f"{run_dir}: not started on all hosts: what was started is ended")
    assert (done.code, done.err.splitlines()) == (code, [f"stoker nodes: {line}" for line in lines])
    assert tuple(host for host in ("a", "b") if asked(host)[-1].do is Do.END) == ended


@pytest.fixture
def otter(ssh: Path) -> str:
    """A run that was started from here on two hosts."""
    run_dir = f"{ssh}/runs/otter"
    remember(Started(run_dir=run_dir, folder=str(ssh), hosts=("a", "b"), stoker=("stoker",), t=T), os.environ)
    return run_dir


UNSEEN = "1 of 2 hosts cannot be asked"


@pytest.mark.parametrize(
    ("found", "row", "code"),
    [
        (ALIVE, "b     training     2        7/90  alive", 0),
        (OVER, "b     finished     2        90/90  ended", 0),
        (msgspec.structs.replace(OVER, state="failed", exit_code=1), "b     failed       2        90/90  ended", 1),
        (msgspec.structs.replace(ALIVE, keeper=False, steps=None), "b     training     2        7     none", 1),
        (NodeStatus(found=True, keeper=True), "b     waits        -        -     alive", 0),
        (NodeStatus(), "b     no such run  -        -     none", 1),
        (msgspec.structs.replace(ALIVE, step=None), "b     training     2        -     alive", 0),
        (None, f"b     {LOST}", 2),
    ],
)  # fmt: skip
def test_the_state_of_each_node_is_a_row(
    otter: str, call: Call, found: NodeStatus | None, row: str, code: int
) -> None:
    answers("a", Do.STATUS, ALIVE)
    if found is not None:
        answers("b", Do.STATUS, found)
    done = call("nodes status")
    title, head, first, second = done.out.splitlines()
    assert title == f"otter in {otter}"
    assert head.split() == ["NODE", "HOST", "STATE", "ATTEMPT", "STEP", "KEEPER"]
    assert first.split() == ["0", "a", "training", "2", "7/90", "alive"]
    assert second.split() == ["1", *row.split()]
    assert (done.code, done.err) == (code, f"stoker nodes: {UNSEEN}\n" if code == 2 else "")


def test_status_follows_until_no_keeper_is_left(
    otter: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(nodes, "wait_while_read", waits.append)
    answers("a", Do.STATUS, ALIVE, ALIVE, OVER)
    answers("b", Do.STATUS, ALIVE, msgspec.structs.replace(ALIVE, keeper=False))
    done = call("nodes status --follow")
    assert (done.code, done.out.count("otter in "), waits) == (1, 3, [nodes.WATCH_S] * 2)


def test_logs_name_their_node(otter: str, call: Call) -> None:
    secret = "token=hf_abcdefghijklmnopqrstuvwxyz012345"
    Path("a-logs").write_text(f"rank 0: step 1\nrank 0: {secret}\n", encoding="utf-8")
    Path("b-logs").write_text("rank 1: step 1\n", encoding="utf-8")
    done = call("nodes logs -n 0")
    first, second, third = done.out.splitlines()
    assert (done.code, first, third) == (0, "node 0 rank 0: step 1", "node 1 rank 1: step 1")
    assert second.startswith("node 0 rank 0: token=")
    assert "hf_abc" not in second
    assert [(each.lines, each.follow) for each in asked("b")] == [(1, False)]
    Path("a-logs").unlink()
    done = call("nodes logs -f otter")
    assert done == Answer(2, "node 1 rank 1: step 1\n", f"stoker nodes: a: {LOST}\n")
    assert [(each.lines, each.follow) for each in asked("b")] == [(40, True)]


def test_stop_asks_node_0_and_waits_for_all(otter: str, call: Call) -> None:
    answers("a", Do.VERB, Said(ok=True, text="run-1 ended: stopped"))
    answers("a", Do.STATUS, ALIVE, OVER)
    answers("b", Do.STATUS, ALIVE, ALIVE, OVER)
    done = call("nodes stop --timeout 30")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[-1] for line in done.out.splitlines()] == ["stopped", "KEEPER", "ended", "ended"]
    assert asked("a")[0].words == ("stop", "--timeout", "30.0", otter)
    assert {each.do for each in asked("b")} == {Do.STATUS}


def test_where_node_0_cannot_stop_the_others_are_told(otter: str, call: Call) -> None:
    answers("a", Do.VERB, Said(ok=False, text="no keeper", code=3))
    answers("b", Do.END, GOOD)
    answers("a", Do.STATUS, OVER)
    answers("b", Do.STATUS, ALIVE)
    done = call("nodes stop --now --timeout 0")
    assert (done.code, done.out.splitlines()[0]) == (1, "no keeper")
    assert done.err == "stoker nodes: b: not ended after 0 s: `stoker nodes stop --now`\n"
    assert asked("a")[0].words == ("stop", "--now", "--timeout", "0.0", otter)
    assert [each.do for each in asked("b")] == [Do.END, Do.STATUS]
    Path("a-verb").unlink()
    Path("a-status").unlink()
    answers("b", Do.STATUS, OVER)
    done = call("nodes stop --timeout 0")
    unseen = f"{UNSEEN}: what runs there continues until it learns that node 0 stopped"
    assert (done.code, done.err) == (2, f"stoker nodes: a: {LOST}\nstoker nodes: {unseen}\n")
    assert [each.do for each in asked("b")] == [Do.END, Do.STATUS]


def test_a_run_that_is_not_there_is_said(ssh: Path, call: Call) -> None:
    for host in ("a", "b"):
        answers(host, Do.VERB, Said(ok=False, code=2))
        answers(host, Do.END, GOOD)
        answers(host, Do.STATUS, NodeStatus())
    done = call("nodes stop --hosts a,b --run-dir run")
    assert (done.code, done.err) == (2, f"stoker nodes: {ssh}/run: no such run there\n")
    answers("b", Do.STATUS, msgspec.structs.replace(NodeStatus(), found=True))
    assert call("nodes stop --hosts a,b --run-dir run").code == 0, (
        "a host that joined too late sees the folder"
    )


# -- on a host --------------------------------------------------------------------------------------------------

Far = Callable[..., Answer]


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Far:
    """Give `stoker nodes here` a request, or what is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_STARTED_BY", "")
    monkeypatch.setattr(on_node, "SEES_S", 0.0)
    monkeypatch.setattr(on_node, "FOLLOW_S", 0.0)

    def far(request: Request | bytes) -> Answer:
        data = msgspec.json.encode(request) if isinstance(request, Request) else request
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capfd.readouterr()
        return Answer(main(["nodes", "here"]), *capfd.readouterr())

    return far


def said_by(answer: Answer, kind: type[K]) -> K:
    """The answer of a host, one line of JSON."""
    assert (answer.code, answer.err, answer.out.count("\n")) == (0, "", 1)
    return msgspec.json.decode(answer.out, type=kind)


def test_what_is_no_request_is_one_line(far: Far) -> None:
    no_request = "here: this is what `stoker nodes` starts on the hosts: no request came in"
    assert far(b"") == Answer(2, "", f"stoker nodes: {no_request}\n")
    no_folder = "/no/folder: No such file or directory: --dir names the folder on the hosts"
    assert far(Request(do=Do.STATUS, folder="/no/folder")) == Answer(2, "", f"stoker nodes: {no_folder}\n")


def test_a_host_tells_its_versions_and_the_code_that_is_named(far: Far, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    files = {
        name: f"# {name}\n".encode() for name in ("train.py", "a.yaml", "b.yml", "c.json", "d.toml", "e.txt")
    }
    for name, data in files.items():
        (tmp_path / "work" / name).write_bytes(data)
    (tmp_path / "work" / "locked.json").symlink_to("/proc/self/mem")
    words = (
        "--python",
        sys.executable,
        "train.py",
        "--cfg=a.yaml",
        "b.yml",
        "c.json",
        "d.toml",
        "e.txt",
        "no.py",
        "locked.json",
    )
    request = Request(do=Do.FACTS, folder=str(tmp_path / "work"), words=words)
    code = {name: hashlib.sha256(data).hexdigest()[:12] for name, data in files.items() if name != "e.txt"}
    assert said_by(far(request), Facts) == Facts(
        stoker=__version__,
        python=platform.python_version(),
        torch=metadata.version("torch"),
        code={**code, "locked.json": "unreadable"},
    )
    wrong = said_by(far(msgspec.structs.replace(request, words=("no.py",))), Facts)
    assert wrong == Facts(stoker=__version__, error="no.py: no such script: did you mean train.py?")


def test_a_host_runs_a_verb_as_if_it_were_typed_there(
    far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: str, **fields: Any) -> Said:
        return said_by(far(Request(do=Do.VERB, folder=str(tmp_path), words=words, **fields)), Said)

    monkeypatch.setenv("X", "0")
    assert said("--version", token="0123", env={"X": "1"}) == Said(ok=True, text=f"stoker {__version__}")
    assert (os.environ["X"], os.environ["STOKER_STARTED_BY"]) == ("1", "0123")
    missing = "stoker run: a script is missing: stoker run [flags] SCRIPT.py; `stoker init` makes a job file for a script you have"
    assert said("run") == Said(ok=False, text=missing, code=2)
    unknown = said("stop", "--noww")
    assert unknown == Said(
        ok=False, text="stoker stop: unknown argument '--noww': did you mean --now?", code=2
    )
    assert said("help").text.startswith("exit codes: 0 succeeded"), "the last five lines"


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS)


def test_a_host_tells_the_state_of_its_node(far: Far, run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def status(node: int = 0) -> NodeStatus:
        return said_by(far(Request(do=Do.STATUS, folder="/", run_dir=str(run.root), node=node)), NodeStatus)

    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        run.run_json.touch()

    def sees() -> bool:
        return said_by(far(Request(do=Do.SEES, folder="/", run_dir=str(run.root))), Said).ok

    me = not_none(identify(os.getpid()))
    lock = KeeperLock(run.node().lock, start_time=me.start_time)
    try:
        assert status() == NodeStatus(found=True, keeper=True, state="rendezvous", attempt=1)
    finally:
        lock.release()
    append(run, ev.Progress(t=T, attempt=1, step=7, total_steps=90), *WAITS)
    told = NodeStatus(found=True, state="backoff", attempt=1, step=7, steps=90)
    assert status() == told
    append(run, ev.RunEnded(t=T, outcome=ev.Outcome.GAVE_UP, exit_code=4, reason="x"))
    assert status() == msgspec.structs.replace(told, state="gave_up", exit_code=4, over=True)
    assert status(1) == NodeStatus(found=True)
    assert sees()
    run.run_json.unlink()
    assert status(1) == NodeStatus()
    assert not sees()
    assert sleeps == []
    monkeypatch.setattr(on_node, "SEES_S", 60.0)
    monkeypatch.setattr("supervisor.cli.on_node.time.sleep", sleep)
    assert sees(), "a file server shows a new name late"
    assert sleeps == [on_node.LOOK_S]


def test_a_host_ends_the_keeper_of_this_start_alone(
    far: Far, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(token: str = "") -> str:
        said = said_by(far(Request(do=Do.END, folder="/", run_dir=str(run.root), token=token)), Said)
        assert said.ok
        return said.text

    assert ended() == "no keeper is running there"
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    me = not_none(identify(os.getpid()))
    lock = KeeperLock(run.node().lock, start_time=me.start_time)
    try:
        assert ended("0123") == f"its keeper (pid {me.pid}) is of another start: it stays"
        assert told == []
        assert ended() == f"its keeper (pid {me.pid}) was told to end"
        monkeypatch.setattr(on_node, "STARTED_BY", "HOME")
        ended(not_none(environment_value(me.pid, "HOME")))
        lock.release()
        assert ended() == "no keeper is running there", "though its lock names this process"
        assert told == [signal.SIGTERM] * 2
    finally:
        lock.release()
        signal.signal(signal.SIGTERM, before)


def test_a_host_prints_the_logs_of_the_latest_attempt(
    far: Far, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(run, ev.RankStarted(t=T, attempt=1, local_rank=1, rank=5, pid=1, start_time=1.0))
    attempt = run.node().attempt(1)
    folder = attempt.root / "torchrun" / "x" / "attempt_0"
    for path, text in (
        (attempt.agent_log, "one\ntwo\nthree\n"),
        (folder / "0" / "stdout.log", "step 1\nstep 2 not at its end"),
        (folder / "1" / "stdout.log", "step 1\n"),
        (folder / "1" / "stderr.log", "x" * (1 << 18) + "\nwarning\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def logs(**fields: Any) -> list[str]:
        done = far(Request(do=Do.LOGS, folder="/", run_dir=str(run.root), **fields))
        assert (done.code, done.err) == (0, "")
        return done.out.splitlines()

    assert logs(lines=1) == [
        "launcher: three", "local rank 0: step 2 not at its end", "rank 5: step 1", "rank 5 err: warning",
    ]  # fmt: skip
    assert logs(lines=2, follow=True)[:3] == ["launcher: two", "launcher: three", "local rank 0: step 1"]
    assert logs(lines=1, node=1) == []

    lock = KeeperLock(run.node().lock, start_time=1.0)

    def write(text: str) -> None:
        with attempt.agent_log.open("a", encoding="utf-8") as file:
            file.write(text)

    meanwhile = iter(
        [lambda: None, lambda: None, lambda: write("four\nfi"), lambda: write("ve\n"), lock.release]
    )

    def look(run: RunPaths, node: int) -> bool:
        next(meanwhile, lambda: None)()
        return has_keeper(run, node)

    monkeypatch.setattr(on_node, "has_keeper", look)
    assert logs(lines=1, follow=True)[-2:] == ["launcher: four", "launcher: five"]

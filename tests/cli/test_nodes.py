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
from typing import Any

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
JOB = ("--no-check", "--python", sys.executable, "train.py")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tmp_path / "train.py").write_text("print(1)\n", encoding="utf-8")
    with loopback_hosts(tmp_path / "ssh", "a", "b") as hosts:
        yield hosts


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
    for host in ("a", "b"):
        for do, said in ((Do.FACTS, SAME), (Do.SEES, GOOD), (Do.VERB, GOOD), (Do.END, GOOD)):
            answers(host, do, said)
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
    Path("hosts").write_text("a:2 X=9\nb slots=2\n", encoding="utf-8")
    Path("conf").touch()
    Path("work").mkdir()
    flags = "--hosts-file hosts --ssh-config conf --stoker 'uv run stoker' --dir work --env X=1 --env Y=2"
    done = call(f"nodes up {flags} --run-dir ../runs/otter train.py --lr 3")
    watch = "otter: 2 nodes; `stoker nodes status`, `stoker nodes logs -f`, `stoker nodes stop`"
    assert done == Answer(0, f"a: node 0: started\nb: node 1: started\n{watch}\n", "")

    run_dir, folder = f"{ssh}/runs/otter", f"{ssh}/work"
    requests = {host: asked(host) for host in ("a", "b")}
    (token,) = {each.token for each in requests["a"] + requests["b"]}
    assert re.fullmatch(r"[0-9a-f]{16}", token)
    words = ("--nproc-per-node", "2", "train.py", "--lr", "3")
    common = Request(do=Do.FACTS, folder=folder, run_dir=run_dir, words=words, token=token)
    for node, (host, env) in enumerate((("a", {"X": "9", "Y": "2"}), ("b", {"X": "1", "Y": "2"}))):
        facts = msgspec.structs.replace(common, node=node, env=env)
        sees = [msgspec.structs.replace(facts, do=Do.SEES, words=())] if node else []
        place = ("--nnodes", "2", "--node-rank", str(node), "--master-addr", "a.lan")
        run = ("run", "--detach", "--run-dir", run_dir, *place, *words)
        assert requests[host] == [facts, *sees, msgspec.structs.replace(facts, do=Do.VERB, words=run)]
    typed = Path("words").read_text(encoding="utf-8").splitlines()[-1]
    assert (typed.startswith(f"-F {ssh}/conf "), typed.endswith("-- b uv run stoker nodes here")) == (
        True,
        True,
    )
    for host in ("a", "b"):
        answers(host, Do.STATUS, ALIVE)
    for named in ("", "tt", run_dir, f"--run-dir {run_dir}"):
        assert call(f"nodes status {named}").code == 0, "it is remembered"
    assert asked("b") == [Request(do=Do.STATUS, folder=folder, run_dir=run_dir, node=1)] * 4


def test_what_up_is_given_goes_before_what_it_finds_out(ssh: Path, call: Call) -> None:
    given = "--nnodes 2 --nproc-per-node 2 --rdzv-endpoint c:1 --run-dir x train.py"
    assert call(f"nodes up --hosts a:2,b:2 {given}").code == 0
    assert asked("b")[-1].words == (
        "run",
        "--detach",
        "--run-dir",
        f"{ssh}/x",
        "--node-rank",
        "1",
        *given.split(),
    )
    (ssh / "bin" / "stoker").touch(mode=0o755)
    assert call("nodes up --hosts a,b --config job.toml").code == 0
    run = asked("b")[-1]
    assert re.fullmatch(rf"{ssh}/runs/\d{{8}}-\d{{4}}-[a-z]+-[a-z]+", run.run_dir)
    assert run.words[-2:] == ("--config", "job.toml")
    assert Path("words").read_text(encoding="utf-8").endswith(f"-- b {ssh}/bin/stoker nodes here\n")


def test_hosts_that_differ_are_compared_and_refused_unless_it_is_allowed(ssh: Path, call: Call) -> None:
    table = "HOST  STOKER  PYTHON  TORCH\na     1       3.11.7  2.8.0\nb     1       3.11.7  {}\n"
    assert call("nodes check --hosts a,b train.py") == Answer(0, table.format("2.8.0"), "")
    answers("b", Do.FACTS, msgspec.structs.replace(SAME, torch=""))
    differs = "stoker nodes: differs: torch: a 2.8.0, b none\n"
    assert call("nodes check --hosts a,b --allow-different train.py") == Answer(3, table.format("-"), differs)
    assert call("nodes up --hosts a,b train.py") == Answer(3, "", differs)
    assert {each.do for each in asked("a")} == {Do.FACTS}
    done = call("nodes up --hosts a,b --allow-different train.py")
    assert (done.code, done.err) == (0, differs)
    answers("b", Do.FACTS, Facts(stoker="1", error="train.py: no such file"))
    assert call("nodes up --hosts a,b train.py") == Answer(2, "", "stoker nodes: b: train.py: no such file\n")


LOST = "the connection was lost: Connection closed by remote host"


@pytest.mark.parametrize(
    ("host", "do", "said", "code", "why", "ended"),
    [
        ("a", Do.VERB, Said(ok=False, text="no room", code=2), 2, "a: no room", ()),
        ("a", Do.VERB, Said(ok=False, code=3), 2, "a: `stoker run` ended with 3", ()),
        ("a", Do.VERB, None, 2, f"a: {LOST}", ("a",)),
        ("b", Do.SEES, Said(ok=False), 3, "b: it does not see {} of a: --run-dir must lie in a folder that all hosts share", ("a",)),
        ("b", Do.VERB, Said(ok=False, text="no room", code=2), 2, "b: no room", ("a",)),
        ("b", Do.VERB, None, 2, f"b: {LOST}", ("a", "b")),
    ],
)  # fmt: skip
def test_a_start_that_fails_on_one_host_is_ended_on_all(
    ssh: Path, call: Call, host: str, do: Do, said: Said | None, code: int, why: str, ended: tuple[str, ...]
) -> None:
    answers(host, do, said) if said is not None else Path(f"{host}-{do}").unlink()
    done = call("nodes up --hosts a,b --run-dir run train.py")
    lines = [why.format(f"{ssh}/run"), f"{ssh}/run: not started on all hosts: what was started is ended"]
    assert (done.code, done.err) == (
        code,
        "".join(f"stoker nodes: {line}\n" for line in lines[: 1 + bool(ended)]),
    )
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
        (ALIVE, "training 2        7/90  alive", 0),
        (OVER, "finished 2        90/90  ended", 0),
        (msgspec.structs.replace(OVER, state="failed", exit_code=1), "failed 2        90/90  ended", 1),
        (msgspec.structs.replace(ALIVE, keeper=False, steps=None), "training 2        7     none", 1),
        (NodeStatus(found=True, keeper=True), "waits -        -     alive", 0),
        (NodeStatus(), "no such run -        -     none", 1),
        (msgspec.structs.replace(ALIVE, step=None), "training 2        -     alive", 0),
        (None, LOST, 2),
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
    assert (title, head.split()) == (
        f"otter in {otter}",
        ["NODE", "HOST", "STATE", "ATTEMPT", "STEP", "KEEPER"],
    )
    assert (first.split(), second.split()) == (
        ["0", "a", "training", "2", "7/90", "alive"],
        ["1", "b", *row.split()],
    )
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
        answers(host, Do.STATUS, NodeStatus())
    done = call("nodes stop --hosts a,b --run-dir run")
    assert (done.code, done.err) == (2, f"stoker nodes: {ssh}/run: no such run there\n")
    answers("b", Do.STATUS, NodeStatus(found=True))
    assert call("nodes stop --hosts a,b --run-dir run").code == 0, "it sees the folder, and joined too late"


# -- on a host --------------------------------------------------------------------------------------------------

Far = Callable[..., Any]
KINDS = {Do.FACTS: Facts, Do.STATUS: NodeStatus}


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS)


@pytest.fixture
def far(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Far:
    """Ask `stoker nodes here`; its answer, or all that it printed where that is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_STARTED_BY", "")
    monkeypatch.setattr(on_node, "SEES_S", 0.0)
    monkeypatch.setattr(on_node, "FOLLOW_S", 0.0)

    def far(do: Do | None, *words: str, **fields: Any) -> Any:
        given = {"folder": str(tmp_path), "run_dir": str(run.root), **fields}
        data = msgspec.json.encode(Request(do=do, words=words, **given)) if do is not None else b""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capfd.readouterr()
        done = Answer(main(["nodes", "here"]), *capfd.readouterr())
        if done.code or do in {None, Do.LOGS}:
            return done
        return msgspec.json.decode(done.out, type=KINDS.get(do, Said))

    return far


def test_what_is_no_request_is_one_line(far: Far) -> None:
    no_request = "here: this is what `stoker nodes` starts on the hosts: no request came in"
    assert far(None) == Answer(2, "", f"stoker nodes: {no_request}\n")
    no_folder = "/no/folder: No such file or directory: --dir names the folder on the hosts"
    assert far(Do.STATUS, folder="/no/folder") == Answer(2, "", f"stoker nodes: {no_folder}\n")


def test_a_host_tells_its_versions_and_the_code_that_is_named(far: Far, tmp_path: Path) -> None:
    names = ("train.py", "a.yaml", "b.yml", "c.json", "d.toml")
    for name in (*names, "e.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / "locked.json").symlink_to("/proc/self/mem")
    words = ["train.py", "--cfg=a.yaml", "b.yml", "c.json", "d.toml", "e.txt", "no.py", "locked.json"]
    code = {name: hashlib.sha256(name.encode()).hexdigest()[:12] for name in names} | {
        "locked.json": "unreadable"
    }
    python, torch = platform.python_version(), metadata.version("torch")
    told = Facts(stoker=__version__, python=python, torch=torch, code=code)
    assert far(Do.FACTS, "--python", sys.executable, *words) == told
    wrong = Facts(stoker=__version__, error="no.py: no such script: did you mean train.py?")
    assert far(Do.FACTS, "no.py") == wrong


def test_a_host_runs_a_verb_as_if_it_were_typed_there(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "0")
    version = far(Do.VERB, "--version", token="0123", env={"X": "1"})
    assert version == Said(ok=True, text=f"stoker {__version__}")
    assert (os.environ["X"], os.environ["STOKER_STARTED_BY"]) == ("1", "0123")
    unknown = "stoker stop: unknown argument '--noww': did you mean --now?"
    assert far(Do.VERB, "stop", "--noww") == Said(ok=False, text=unknown, code=2)
    assert far(Do.VERB, "help").text.startswith("exit codes: 0 succeeded"), "the last five lines"


def test_a_host_tells_the_state_of_its_node(far: Far, run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = KeeperLock(run.node().lock, start_time=1.0)
    try:
        assert far(Do.STATUS) == NodeStatus(found=True, keeper=True, state="rendezvous", attempt=1)
    finally:
        lock.release()
    append(run, ev.Progress(t=T, attempt=1, step=7, total_steps=90), *WAITS)
    told = NodeStatus(found=True, state="backoff", attempt=1, step=7, steps=90)
    assert far(Do.STATUS) == told
    append(run, ev.RunEnded(t=T, outcome=ev.Outcome.GAVE_UP, exit_code=4, reason="x"))
    assert far(Do.STATUS) == msgspec.structs.replace(told, state="gave_up", exit_code=4, over=True)
    assert (far(Do.STATUS, node=1), far(Do.SEES).ok) == (NodeStatus(found=True), True)
    run.run_json.unlink()
    assert (far(Do.STATUS, node=1), far(Do.SEES).ok) == (NodeStatus(), False)
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        run.run_json.touch()

    monkeypatch.setattr(on_node, "SEES_S", 60.0)
    monkeypatch.setattr("supervisor.cli.on_node.time.sleep", sleep)
    assert far(Do.SEES).ok, "a file server shows a new name late"
    assert sleeps == [on_node.LOOK_S]


def test_a_host_ends_the_keeper_of_this_start_alone(
    far: Far, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = Said(ok=True, text="no keeper is running there")
    assert far(Do.END) == none
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    me = not_none(identify(os.getpid()))
    lock = KeeperLock(run.node().lock, start_time=me.start_time)
    try:
        stays = Said(ok=True, text=f"its keeper (pid {me.pid}) is of another start: it stays")
        assert (far(Do.END, token="0123"), told) == (stays, [])
        ended = Said(ok=True, text=f"its keeper (pid {me.pid}) was told to end")
        assert far(Do.END) == ended
        monkeypatch.setattr(on_node, "STARTED_BY", "HOME")
        assert far(Do.END, token=environment_value(me.pid, "HOME")) == ended
        lock.release()
        assert far(Do.END) == none, "though its lock names this process"
        assert told == [signal.SIGTERM] * 2
    finally:
        lock.release()
        signal.signal(signal.SIGTERM, before)


def test_a_host_prints_the_logs_of_the_latest_attempt(
    far: Far, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(run, ev.RankStarted(t=T, attempt=1, local_rank=1, rank=5, pid=1, start_time=1.0))
    agent, folder = run.node().attempt(1).agent_log, run.node().attempt(1).torchrun / "x" / "attempt_0"

    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)

    write(agent, "one\ntwo\nthree\n")
    write(folder / "0" / "stdout.log", "step 1\nstep 2 not at its end")
    write(folder / "1" / "stdout.log", "step 1\n")
    write(folder / "1" / "stderr.log", "x" * (1 << 18) + "\nwarning\n")
    last = ["launcher: three", "local rank 0: step 2 not at its end", "rank 5: step 1", "rank 5 err: warning"]
    assert far(Do.LOGS, lines=1) == Answer(0, "\n".join([*last, ""]), "")
    whole = "launcher: two\nlauncher: three\nlocal rank 0: step 1\n"
    assert far(Do.LOGS, lines=2, follow=True).out.startswith(whole)
    assert far(Do.LOGS, lines=1, node=1).out == ""

    lock = KeeperLock(run.node().lock, start_time=1.0)
    news = ["", "", "four\nfi", "ve\n"]

    def look(run: RunPaths, node: int) -> bool:
        write(agent, news.pop(0)) if news else lock.release()
        return has_keeper(run, node)

    monkeypatch.setattr(on_node, "has_keeper", look)
    assert far(Do.LOGS, lines=1, follow=True).out.endswith("launcher: four\nlauncher: five\n")

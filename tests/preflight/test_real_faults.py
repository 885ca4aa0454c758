"""Each check in front of a real fault: namespaces, limits, names, files. Nothing of the checks is replaced."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from supervisor.job.spec import EntryKind, JobSpec, Knobs
from supervisor.preflight import host, network, target
from supervisor.preflight.collective import check_collective
from supervisor.preflight.context import Check, CheckContext, ok, refuse, warn
from supervisor.preflight.interpreter import Interpreter, find_interpreter
from supervisor.run import events as ev
from supervisor.run.jsonl import append_line
from supervisor.run.paths import RunPaths
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.runfile import write_run_file
from tests.disks import fill, small_disk
from tests.keeper.fakes import job_of

ROOT = Path(__file__).parents[2]
SCRIPT = JobSpec("t", EntryKind.SCRIPT, "train.py", nproc_per_node=2)
OK, INFO, WARNING, REFUSE = FindingLevel.OK, FindingLevel.INFO, FindingLevel.WARNING, FindingLevel.REFUSE
# One check, in a process of its own, as JSON.
ONE = """
import sys, json
from pathlib import Path
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight import host, network
from supervisor.preflight.context import CheckContext
module, name, ranks, workers = sys.argv[1:5]
spec = JobSpec("t", EntryKind.SCRIPT, "train.py", nproc_per_node=int(ranks), entry_args=("--num_workers", workers) if workers else ())
found = getattr({"host": host, "network": network}[module], name)(CheckContext(spec, Path("runs"), dict(__import__("os").environ)))
print(json.dumps([(f.level, f.what, f.fix) for f in found]))
"""


def found_by(check: Check, spec: JobSpec, folder: Path, **env: str) -> list[Finding]:
    return list(check(CheckContext(spec, folder / "runs", env)))


def alone(prefix: list[str], module: str, name: str, *, ranks: int = 2, workers: str = "") -> list[list[str]]:
    """A check in a process that `prefix` starts, such as one in a namespace."""
    own = [sys.executable, "-c", ONE, module, name, str(ranks), workers]
    done = subprocess.run(
        [*prefix, *own], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    if done.returncode and "unshare" in prefix[:1] and "unshare:" in done.stderr:
        pytest.skip(f"no namespace of our own here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def in_namespace(script: str) -> list[str]:
    """What runs a command in namespaces of its own, after `script`."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("namespaces need root here")
    return ["unshare", "--mount", "--net", "sh", "-c", f'{script} && exec "$@"', "sh"]


# -- the machine ------------------------------------------------------------------------------------------------


def test_a_full_disk_and_one_without_inodes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "full") as full:
        fill(full)
        (finding,) = found_by(host.check_disk, SCRIPT, full)
        fix = "free some space, or choose another --runs-dir"
        assert finding == refuse("disk", f"0 MiB left at {full}", fix)
    with small_disk(tmp_path / "low", "1023m") as low:
        assert found_by(host.check_disk, SCRIPT, low) == [
            warn("disk", f"only 1023 MiB left at {low}", "free some space")
        ]
    with small_disk(tmp_path / "enough", "1024m") as enough:
        assert found_by(host.check_disk, SCRIPT, enough) == [ok("disk", f"1.0 GiB free at {enough}")]
    with small_disk(tmp_path / "many", "100m,nr_inodes=50") as many:
        (finding,) = found_by(host.check_disk, SCRIPT, many)
        assert (finding.check, finding.level) == ("disk", REFUSE)
        assert re.fullmatch(rf"4\d more files fit at {many} \(its inodes are used up\)", finding.what)
        assert finding.fix == "remove files there, or choose another --runs-dir"


def test_few_open_files() -> None:
    def look(soft: int, hard: int) -> list[list[str]]:
        own = [sys.executable, "-c", ONE, "host", "check_open_files", "4", ""]
        done = subprocess.run(
            own, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        )  # fmt: skip
        found = json.loads(done.stdout)
        assert isinstance(found, list)
        return found

    ((level, what, fix),) = look(300, 300)
    assert (level, what) == ("warning", "limit 300 is low for 4 ranks")
    assert fix.startswith("512 or more: ")
    assert look(300, 4096) == [["ok", "limit 4096", ""]], "a start raises the soft limit to the hard one"
    assert look(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])[0][0] == "ok"


def test_a_control_group_with_little_memory() -> None:
    folder = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup")
    group = folder / f"stoker-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if folder.name == "memory" else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(512 << 20))
    except OSError as error:
        group.rmdir() if group.is_dir() else None
        pytest.skip(f"no control group of our own here: {error}")
    try:
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        ((level, what, fix),) = alone(enter, "host", "check_host_memory")
        assert level == "warning"
        assert (
            "free for 2 ranks, within the control group's 512 MiB; a rank with torch takes about 1.0 GiB"
            in what
        )
        assert "--memory" in fix
    finally:
        deadline = time.monotonic() + 10
        while group.is_dir() and time.monotonic() < deadline:
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.05)


def test_ptrace_denied(tmp_path: Path) -> None:
    """Yama's setting is a file here: it cannot be set for one process. The capability is really dropped."""
    scope = tmp_path / "scope"
    scope.write_text("1\n")
    body = f"from supervisor.preflight import host; host.PTRACE_SCOPE = {str(scope)!r}\n"
    program = body + ONE
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can drop a capability")
    said = {}
    for name, drop in (
        ("denied", ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]),
        ("allowed", []),
    ):
        done = subprocess.run(
            [*drop, sys.executable, "-c", program, "host", "check_stacks", "2", ""],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        (said[name],) = json.loads(done.stdout)
    level, what, fix = said["denied"]
    assert (level, what) == ("info", "py-spy may not look into ranks (kernel.yama.ptrace_scope is 1)")
    assert fix.startswith("sudo sysctl kernel.yama.ptrace_scope=0; in a container --cap-add SYS_PTRACE; or ")
    assert said["allowed"] == ["ok", "py-spy may look into ranks", ""]


# -- the job --------------------------------------------------------------------------------------------------------


@pytest.mark.e2e  # torch is imported
def test_the_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    spec = replace(SCRIPT, cwd=str(tmp_path), knobs=Knobs(resume_path="--resume"))

    def resumed(named: str) -> list[Finding]:
        return found_by(target.check_resume, replace(spec, entry_args=("--resume", named)), tmp_path)

    assert resumed("out/gone.pt")[0].level is WARNING
    torch.save({"model": {"w": torch.zeros(2)}, "optimizer": {}, "step": 7}, tmp_path / "ckpt_7.pt")
    assert resumed("ckpt_7.pt")[0].level is OK
    whole = (tmp_path / "ckpt_7.pt").read_bytes()
    (tmp_path / "ckpt_7.pt").write_bytes(whole[: len(whole) // 2])
    assert (
        resumed("ckpt_7.pt")[0].what
        == "--resume names ckpt_7.pt: not a whole checkpoint of a layout that stoker knows"
    )
    assert not resumed("latest"), "a word of the script's own"
    assert not found_by(target.check_resume, spec, tmp_path)


def test_data_is_read_through_only_when_asked_for(tmp_path: Path) -> None:
    """The trainer's own checker in a process; a token of the vocabulary's size is the first that does not fit."""
    (tmp_path / "good.bin").write_bytes(struct.pack("<64H", *range(64)))
    (tmp_path / "bad.bin").write_bytes(struct.pack("<64H", *range(37), 64, *range(26)))
    spec = JobSpec("t", EntryKind.TRAINER, "trainer", cwd=str(tmp_path))

    def read(*words: str, spec: JobSpec = spec) -> list[Finding]:
        return found_by(target.check_data_through, replace(spec, entry_args=words), tmp_path)

    (finding,) = read("--train_data_path=good.bin", "--vocab_size=64", "--max_seq_len=8")
    assert (finding.level, finding.check) == (OK, "data")
    assert finding.what.startswith("good.bin: 64 tokens")
    found = read(
        "--train_data_path=good.bin", "--valid_data_path=bad.bin", "--vocab_size=64", "--max_seq_len=8"
    )
    bad = next(finding for finding in found if "bad.bin" in finding.what)
    assert (bad.level, bad.fix) == (REFUSE, "`stoker check --data PATH` reads it alone")
    assert bad.what.startswith("bad.bin: token 64 (number 37) is outside the vocabulary of 64")
    assert not read("--depth=4"), "no data was named"
    assert not read("--train_data_path=bad.bin", spec=SCRIPT), "another program's flag of that name"


def test_checkpoints_of_an_earlier_run_against_the_space_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with small_disk(tmp_path / "disk", "40m") as disk:
        job = replace(SCRIPT, cwd=str(disk))

        def earlier(run_id: str, saved: str, job: JobSpec = job) -> None:
            run = RunPaths(tmp_path / "runs" / run_id)
            run.node().root.mkdir(parents=True)
            write_run_file(run.run_json, replace_fields(job_of(disk), job=job, run_id=run_id))
            for fact in (
                ev.AttemptStarted(t=1.0, attempt=1, pid=1, start_time=1.0),
                ev.CheckpointCommitted(t=2.0, attempt=1, step=5, path=saved),
            ):
                append_line(run.node().journal, fact)

        def look() -> list[Finding]:
            context = CheckContext(job, tmp_path / "runs", dict(os.environ))
            return list(host.check_checkpoint_space(context))

        assert not look(), "there was no run"
        (disk / "ckpt_5").write_bytes(bytes(12 << 20))
        earlier("20260101-0101-aaaa", "ckpt_5")
        (finding,) = look()
        assert (finding.level, finding.what) == (
            OK,
            f"28 MiB free at {disk}, and a checkpoint of 20260101-0101-aaaa takes 12 MiB",
        )
        (disk / "ckpt_6").write_bytes(bytes(15 << 20))
        earlier("20260101-0102-bbbb", "ckpt_6")
        (finding,) = look()
        assert (finding.level, finding.check) == (WARNING, "checkpoints")
        assert finding.what == f"13 MiB free at {disk}, and a checkpoint of 20260101-0102-bbbb takes 15 MiB"
        earlier("20260101-0103-cccc", "ckpt_6", replace(job, entry="other.py"))
        earlier("20260101-0104-dddd", "deleted")
        assert look() == [finding], "another job, and one whose checkpoint is gone"


SLURM_FIXES = {
    "uses one of them": "srun --ntasks-per-node=1 stoker run …: started on each node, it finds its place",
    "each would start": "--ntasks-per-node=1: torchrun starts the ranks",
    "minutes": "ask for more (--time), or save often",
}


@pytest.mark.parametrize(
    ("env", "change", "what"),
    [
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2"}, {}, "the SLURM job has 2 nodes, and this start uses one of them"),
        ({"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, {"nproc_per_node": 8}, "srun starts 8 tasks on 1 nodes, and each would start 8 ranks"),
        ({"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_END_TIME": "in 150 s"}, {}, "2 minutes of the SLURM job are left"),
        ({"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_END_TIME": "1000"}, {}, "0 minutes of the SLURM job are left"),
        ({"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_END_TIME": "9999999999"}, {}, ""),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2"}, {"entry_kind": EntryKind.COMMAND}, ""),
        ({"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, {"nproc_per_node": 1}, ""),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, {"nnodes": "2"}, ""),
        ({"SLURM_JOB_NUM_NODES": "x", "SLURM_JOB_END_TIME": "soon"}, {}, ""),
    ],
)  # fmt: skip
def test_a_slurm_allocation_against_the_job(
    tmp_path: Path, env: dict[str, str], change: dict[str, object], what: str
) -> None:
    if env.get("SLURM_JOB_END_TIME") == "in 150 s":
        env = {**env, "SLURM_JOB_END_TIME": str(int(time.time()) + 150)}
    found = found_by(target.check_allocation, replace(SCRIPT, **change), tmp_path, SLURM_JOB_ID="7", **env)  # type: ignore[arg-type]
    fix = next((fix for word, fix in SLURM_FIXES.items() if word in what), "")
    assert found == ([warn("SLURM", what, fix)] if what else [])
    assert not found_by(target.check_allocation, replace(SCRIPT, **change), tmp_path, **env), "no SLURM job"  # type: ignore[arg-type]


# -- what takes seconds ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_here() -> Interpreter:
    return find_interpreter(replace(SCRIPT, python=sys.executable), os.environ)


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_ranks_meet(tmp_path: Path, torch_here: Interpreter) -> None:
    context = CheckContext(SCRIPT, tmp_path / "runs", dict(os.environ), torch_here)
    finding, pairs = check_collective(context)
    assert (finding.level, pairs.level) == (OK, OK)
    assert finding.what.startswith("2 ranks met over gloo and added up 4 MiB")
    assert re.fullmatch(r"ranks 0–1: [\d.]+ [MG]B/s", pairs.what)
    wrong = replace(context, env={**os.environ, "GLOO_SOCKET_IFNAME": "nosuch0"})
    (finding,) = check_collective(wrong)
    assert finding.level is REFUSE
    assert "Unable to find address for: nosuch0" in finding.what


def test_a_port_that_another_process_holds(tmp_path: Path) -> None:
    listening = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", listening], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        (finding,) = found_by(network.check_port, replace(SCRIPT, master_port=port), tmp_path)
        assert finding.level is REFUSE
        assert re.fullmatch(rf"port {port} is taken by python[\d.]* \(pid {other.pid}\)", finding.what)
        for host in ("localhost", "127.0.0.1", socket.gethostname()):
            meeting = replace(SCRIPT, torchrun_flags=(f"--rdzv-endpoint={host}:{port}",))
            (finding,) = found_by(network.check_port, meeting, tmp_path)
            assert finding.level is WARNING, "it may be the job's own store, of another node on this machine"
            assert finding.what.startswith(f"port {port} of the rendezvous endpoint is taken by python")
        elsewhere = replace(SCRIPT, torchrun_flags=(f"--rdzv-endpoint=other.example:{port}",))
        assert not found_by(network.check_port, elsewhere, tmp_path)
        other.communicate("\n")

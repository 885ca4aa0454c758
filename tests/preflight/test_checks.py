from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.errors import JobError
from supervisor.job.memory_fit import size
from supervisor.job.spec import NAMED_UNSEEN, EntryKind, JobSpec, Knobs, KnobScope, RetrySettings
from supervisor.preflight import collective, gpus, host, meeting, network, target
from supervisor.preflight.checks import BEFORE, asked, beside, refused, run_checks
from supervisor.preflight.context import Check, CheckContext, note, ok, refuse, warn
from supervisor.preflight.interpreter import Interpreter, find_interpreter
from supervisor.run.records import Finding, FindingLevel
from tests.sources.test_checkpoints import torn, transformers

SCRIPT = JobSpec("t", EntryKind.SCRIPT, "train.py", nproc_per_node=1)
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - stands in for shutil's own named tuple


def found_by(check: Check, spec: JobSpec, folder: Path) -> Finding:
    (finding,) = check(CheckContext(spec, folder / "runs", {}))
    return finding


def found_before(spec: JobSpec, runs: Path) -> list[Finding]:
    return run_checks(BEFORE, CheckContext(spec, runs, {}))


def test_a_run_folder_that_cannot_be_made_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    spec = replace(SCRIPT, cwd=str(tmp_path))

    def refusals(runs: Path) -> list[tuple[str, str, str]]:
        return [(f.check, f.what, f.fix) for f in refused(found_before(spec, runs))]

    fix = "choose another place with --runs-dir"
    assert refusals(tmp_path / "file" / "runs") == [
        ("run folder", f"{tmp_path / 'file'} is not a folder", fix)
    ]
    monkeypatch.setattr(os, "access", lambda *_a, **_k: False)  # root may write anywhere
    assert refusals(tmp_path / "a" / "b") == [("run folder", f"{tmp_path} cannot be written", fix)]
    monkeypatch.undo()
    assert refusals(tmp_path / "a" / "b") == []
    assert ok("run folder", f"{tmp_path / 'a' / 'b'} can be written") in found_before(
        spec, tmp_path / "a" / "b"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_syntax_is_a_warning_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\ndef f(:\n")
    spec = replace(SCRIPT, cwd=str(tmp_path))
    assert found_by(target.check_script, spec, tmp_path) == warn(
        "script", "train.py:2: invalid syntax", "it will fail at once unless its Python reads it otherwise"
    )
    (tmp_path / "train.py").write_text(r"raise SystemExit('\q')  # an odd escape is the script's own affair")
    assert found_by(target.check_script, spec, tmp_path) == ok("script", "train.py compiles")
    (tmp_path / "train.py").unlink()
    assert found_by(target.check_script, spec, tmp_path) == warn(
        "script",
        f"train.py could not be read as Python: [Errno 2] No such file or directory: '{tmp_path / 'train.py'}'",
    )
    for other in (replace(spec, entry="train.sh"), replace(spec, entry_kind=EntryKind.MODULE)):
        assert not list(target.check_script(CheckContext(other, tmp_path / "runs", {})))


@pytest.mark.parametrize(
    ("ranks", "workers", "memory", "files"),
    [
        (1, None, 2**29, 256),
        (4, None, 2**29, 512),
        (1, 8, 2**29, 384),
        (2, 8, 2 * 8 * 2 * 32 * 2**20, 768),
        (8, 4, 2 * 2**30, 2048),
        (1, 0, 0, 256),
    ],
)
def test_shared_memory_for_two_batches_a_worker_and_files_for_each_rank_are_enough(
    ranks: int, workers: int | None, memory: int, files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = () if workers is None else ("--num_workers", str(workers))
    spec = replace(SCRIPT, nproc_per_node=ranks, entry_args=args)
    for lacks in (0, 1):
        usage = Usage(2**40, 2**40, memory - lacks)
        monkeypatch.setattr(shutil, "disk_usage", lambda _path, usage=usage: usage)
        monkeypatch.setattr(resource, "getrlimit", lambda _, most=files - lacks: (128, most))
        shared, opened = (
            found_by(host.check_shm, spec, tmp_path),
            found_by(host.check_open_files, spec, tmp_path),
        )
        if not lacks:
            assert shared == ok("shared memory", f"{size(memory)} free in /dev/shm")
            assert opened == ok("open files", f"limit {files}")
            continue
        assert (shared.level, shared.what) == (
            FindingLevel.WARNING,
            f"only {size(memory - 1)} free in /dev/shm (of 1024.0 GiB)",
        )
        assert shared.fix.endswith("docker run --shm-size=8g, or fewer workers")
        assert (opened.level, opened.what) == (
            FindingLevel.WARNING,
            f"limit {files - 1} is low for {ranks} ranks",
        )
        assert opened.fix.startswith(f"{files} or more: docker run --ulimit nofile=…, ")


def test_more_ranks_than_cores_are_slow(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    many = replace(SCRIPT, nproc_per_node=cores + 1)
    assert found_by(host.check_cores, many, tmp_path) == warn(
        "ranks", f"{cores + 1} ranks on {cores} cores", "expect them to wait on each other"
    )
    for spec in (replace(many, nproc_per_node=cores), replace(many, entry_kind=EntryKind.COMMAND)):
        assert not list(host.check_cores(CheckContext(spec, tmp_path / "runs", {})))


def test_the_memory_of_the_host_for_the_ranks(tmp_path: Path) -> None:
    for ranks, level in ((1, FindingLevel.OK), (10**6, FindingLevel.WARNING)):
        found = found_by(host.check_host_memory, replace(SCRIPT, nproc_per_node=ranks), tmp_path)
        assert (found.check, found.level) == ("host memory", level)
        group = r"(, within the control group's [\d.]+ GiB)?"
        more = "; a rank with torch takes about 1.0 GiB before any data" if level == "warning" else ""
        assert re.fullmatch(rf"[\d.]+ GiB free for {ranks} ranks{group}{more}", found.what)
        assert found.fix.endswith("or start fewer ranks") is bool(more)


def test_whether_stacks_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scope").write_text("3\n")
    monkeypatch.setattr(host, "PTRACE_SCOPE", str(tmp_path / "scope"))
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    dumps = replace(SCRIPT, hang=replace(SCRIPT.hang, faulthandler=True))
    offer = "; or [hang] faulthandler = true: ranks then write their stacks themselves"

    def found(spec: JobSpec = SCRIPT, python: str = "/none/python") -> Finding:
        context = CheckContext(spec, tmp_path / "runs", {}, Interpreter(python, "3.11.2", None, ""))
        (finding,) = host.check_stacks(context)
        return finding

    what = "py-spy is not installed: of a rank that hangs in C only the kernel's view is known"
    assert found() == note("stacks", what, f"pip install py-spy{offer}")
    assert found(dumps) == note("stacks", what, "pip install py-spy")
    python = fake_python(tmp_path / "bin", "")
    os.link(python, tmp_path / "bin" / "py-spy")
    what = "py-spy may not look into ranks (kernel.yama.ptrace_scope is 3)"
    never = "it cannot be changed before the next boot"
    assert found(SCRIPT, python) == note("stacks", what, f"{never}{offer}")
    assert found(dumps, python) == note("stacks", what, never)
    for words in ("0\n", "no number"):
        (tmp_path / "scope").write_text(words)
        assert found(SCRIPT, python) == ok("stacks", "py-spy may look into ranks")


def test_every_check_is_made_and_one_that_the_system_denies_is_a_note(tmp_path: Path) -> None:
    modules = (collective, gpus, host, meeting, network, target)
    made = {check for module in modules for name, check in vars(module).items() if name.startswith("check_")}
    assert {*BEFORE, *beside(), *asked()} == made

    def check_some_thing(_: CheckContext) -> Iterator[Finding]:
        raise PermissionError(13, "Permission denied", "/x")

    context = CheckContext(replace(SCRIPT, cwd=str(tmp_path)), tmp_path / "runs", {})
    first, second = run_checks((check_some_thing, target.check_script), context)
    assert first == note("some thing", "could not be looked at: Permission denied")
    assert second.check == "script"


def test_the_data_of_the_trainer_and_the_checkpoint_to_resume_from_are_there(tmp_path: Path) -> None:
    spec = JobSpec("t", EntryKind.TRAINER, "trainer", cwd=str(tmp_path))
    (tmp_path / "good.bin").write_bytes(bytes(8))
    words = ("--train_data_path=good.bin", "--valid_data_path", "bad.bin")
    context = CheckContext(replace(spec, entry_args=words), tmp_path / "runs", {})
    assert list(target.check_data(context)) == [
        ok("data", "train_data_path: good.bin is there"),
        refuse(
            "data",
            "valid_data_path names bad.bin, and there is no such file or folder",
            "name one that exists; `stoker check --data PATH` reads it through",
        ),
    ]
    assert not list(target.check_data(replace(context, spec=replace(SCRIPT, entry_args=words))))

    def resumed(named: str) -> list[Finding]:
        job = replace(SCRIPT, cwd=str(tmp_path), knobs=Knobs(resume_path="--resume"))
        args = ("--resume", named)
        return list(target.check_resume(CheckContext(replace(job, entry_args=args), tmp_path / "runs", {})))

    assert resumed("out/gone.pt") == [
        warn(
            "resume",
            "--resume names out/gone.pt, and there is no such file or folder",
            "name one that exists, or leave the flag out",
        )
    ]
    assert len(resumed("gone.pt")) == 1
    whole = transformers(tmp_path, 500)
    assert resumed("./checkpoint-500") == [
        ok("resume", "./checkpoint-500: a whole checkpoint (transformers, step 500)")
    ]
    torn(whole / "trainer_state.json")
    what = "--resume names ./checkpoint-500: not a whole checkpoint of a layout that stoker knows"
    assert resumed("./checkpoint-500") == [note("resume", what)]
    assert not resumed("latest"), "a word of the script's own"


def fake_python(folder: Path, answer: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


HAS_TORCH = """echo '{"python": "3.11.2", "torch": "2.13.0"}'"""
NO_TORCH = """echo '{"python": "3.11.2", "torch": null}'"""


def test_the_first_place_with_torch_wins(tmp_path: Path) -> None:
    bare = fake_python(tmp_path / "venv" / "bin", NO_TORCH)
    conda = fake_python(tmp_path / "conda" / "bin", HAS_TORCH)
    env = {"VIRTUAL_ENV": str(tmp_path / "venv"), "CONDA_PREFIX": str(tmp_path / "conda"), "PATH": "/nowhere"}
    found = find_interpreter(SCRIPT, env)
    assert found == Interpreter(conda, "3.11.2", "2.13.0", "$CONDA_PREFIX")
    fake_python(tmp_path / "venv" / "bin", HAS_TORCH)
    assert find_interpreter(SCRIPT, env).path == bare


def test_python_flag_binds(tmp_path: Path) -> None:
    bare = fake_python(tmp_path, NO_TORCH)
    command = replace(SCRIPT, python=bare, entry_kind=EntryKind.COMMAND)
    assert find_interpreter(command, {}) == Interpreter(bare, "3.11.2", None, f"--python {bare}")
    old = """echo '{"python": "3.7.16", "torch": "1.13.1"}'"""
    least = """echo '{"python": "3.8.0", "torch": "2.0.0"}'"""
    for name, answer, kind, wrong in (
        ("a", NO_TORCH, EntryKind.SCRIPT, "--python {}: it has no torch: install it there, or name another one"),
        ("b", "exit 3", EntryKind.SCRIPT, "--python {}: does not run as a Python interpreter"),
        ("c", "echo '[1]'", EntryKind.SCRIPT, "--python {}: does not run as a Python interpreter"),
        ("d", old, EntryKind.SCRIPT, "{} is Python 3.7.16, at least 3.8 is needed: name another with --python"),
        ("e", least, EntryKind.SCRIPT, ""),
        ("f", least, EntryKind.TRAINER, "{} is Python 3.8.0, at least 3.11 is needed: name another with --python"),
        ("g", HAS_TORCH, EntryKind.TRAINER, ""),
    ):  # fmt: skip
        path = fake_python(tmp_path / name, answer)
        spec = replace(SCRIPT, python=path, entry_kind=kind)
        if not wrong:
            assert find_interpreter(spec, {}).path == path
            continue
        with pytest.raises(JobError) as refused_start:
            find_interpreter(spec, {})
        assert refused_start.value.message == wrong.format(path)
    with pytest.raises(JobError, match=rf"^--python {tmp_path / 'nope'}: no such interpreter$"):
        find_interpreter(replace(SCRIPT, python=str(tmp_path / "nope")), {})


def test_where_no_place_has_torch_a_command_runs_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = fake_python(tmp_path / "own", NO_TORCH)
    monkeypatch.setattr(sys, "executable", own)
    on_path = Path(fake_python(tmp_path / "bin", NO_TORCH))
    on_path.rename(on_path.with_name("python3"))
    env = {"PATH": str(on_path.parent)}
    with pytest.raises(JobError) as refused_start:
        find_interpreter(SCRIPT, env)
    assert refused_start.value.message == (
        f"no Python with torch found (looked at {on_path}3, {own}): name one with --python PATH, or install torch"
    )
    why = "stoker's own interpreter; none has torch"
    assert find_interpreter(replace(SCRIPT, entry_kind=EntryKind.COMMAND), env) == Interpreter(
        own, platform.python_version(), None, why
    )
    fake_python(on_path.parent, HAS_TORCH)
    (on_path.parent / "python").rename(f"{on_path}3")
    assert find_interpreter(SCRIPT, env) == Interpreter(f"{on_path}3", "3.11.2", "2.13.0", "python3 on PATH")


NO_RESUME = "no restart after a crash beyond the first step: no resume flag is known (--resume-knob)"
NAME_IT = "name it: --resume-knob FLAG=PATH (PATH: the newest complete checkpoint that stoker finds)"
CAN = Knobs("--bs", KnobScope.PER_RANK, "--acc", self_resuming=True)
UNSEEN = Knobs(resume="--resume", resume_value="", resumes=NAMED_UNSEEN)


def awaits(flag: str, named: str) -> Finding:
    what = f"after a crash stoker restarts with {flag} and the newest complete checkpoint that it finds; while there is none the run waits for you after a crash beyond the first step. Nothing to do if the script saves checkpoints"
    fix = f"if the script always writes the same checkpoint, name it: --resume-knob '{named}' (used from the second attempt on)"
    return note("restarts", what, fix)


@pytest.mark.parametrize(
    ("knobs", "job", "expected"),
    [
        (Knobs(), {}, [warn("restarts", NO_RESUME, NAME_IT)]),
        (Knobs(refusal="no"), {"instrument": False}, [warn("restarts", f"no smaller restart after out of memory: no; {NO_RESUME}", NAME_IT)]),
        (Knobs(resume_path="--resume"), {}, [awaits("--resume", "--resume=DIR/FILE")]),
        (Knobs(resume_step="--step"), {}, [awaits("--step", "--step=DIR/FILE")]),
        (Knobs(resume_path="--resume", refusal="no"), {"instrument": False}, [warn("restarts", "no smaller restart after out of memory: no"), awaits("--resume", "--resume=DIR/FILE")]),
        (Knobs(resume="--init", resume_value="resume", resumes="train.py:31"), {}, [awaits("--init", "--init=resume")]),
        (Knobs(resume="--resume", resume_value="", resumes="train.py:31"), {}, [awaits("--resume", "--resume")]),
        (UNSEEN, {}, [warn("restarts", "--resume is set without a value, and whether it takes one is not known", "if it takes a path: --resume-knob '--resume=PATH' (PATH: the newest complete checkpoint that stoker finds)")]),
        (CAN, {"batch": BatchSpec(8, 1, 2)}, [ok("restarts", "batch and resume flags are known")]),
        (replace(CAN, self_resuming=False, resume="--go"), {"batch": BatchSpec(8, 1, 2), "instrument": False}, [ok("restarts", "batch and resume flags are known")]),
        (Knobs(self_resuming=True), {}, [ok("restarts", "batch known after the first step, resume flag known")]),
        (Knobs(), {"retry": RetrySettings(restart_from_scratch=True)}, [ok("restarts", "batch known after the first step, resume flag known")]),
        (Knobs(), {"retry": RetrySettings(enabled=False)}, []),
        (Knobs(), {"entry_kind": EntryKind.TRAINER}, []),
    ],
)  # fmt: skip
def test_what_a_restart_can_do_is_said_before_the_start(
    tmp_path: Path, knobs: Knobs, job: dict[str, object], expected: list[Finding]
) -> None:
    spec = replace(SCRIPT, knobs=knobs, **job)  # type: ignore[arg-type]
    assert list(target.check_knobs(CheckContext(spec, tmp_path / "runs", {}))) == expected

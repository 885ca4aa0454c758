"""What a person answered, on disk: for its owner alone, replaced whole, bounded, and of no harm where it is damaged."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import replace as replace_field
from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.job.spec import AnswerGiven, BatchAnswer, EntryKind, JobSpec, Unread
from supervisor.run import answers
from supervisor.run.answers import (
    FILE,
    MAX_ANSWERS,
    MAX_BYTES,
    MEMORY_FILE,
    AnswerLine,
    JobKind,
    MemoryLine,
    exit_code_question,
    flags_hash,
    is_resume_answer,
    recall_answer,
    recall_memory,
    recalled,
    remember_answer,
    remember_memory,
    remember_unmeasured,
    resume_question,
    script_of,
    unmeasured_since,
)

TORCHRUN = "#!/usr/bin/python\nfrom torch.distributed.run import main\nmain()\n"


def job_of(words: str, cwd: Path) -> JobSpec:
    entry, *arguments = words.split()
    return JobSpec(
        name="job",
        entry_kind=EntryKind.COMMAND,
        entry=entry,
        entry_args=tuple(arguments),
        cwd=str(cwd),
        nproc_per_node=1,
    )


@pytest.mark.parametrize(
    "launcher", ["{}/torchrun --nproc-per-node 2", "env A=1 {}/torchrun", "{}/torchrun --standalone"]
)
def test_a_script_is_known_by_its_own_text_behind_a_launcher_that_is_text_too(
    launcher: str, tmp_path: Path
) -> None:
    (tmp_path / "torchrun").write_text(TORCHRUN)
    for name in ("one.py", "other.py"):
        (tmp_path / name).write_text(f"print('{name}')\n")
    one, other = (job_of(f"{launcher.format(tmp_path)} {name}", tmp_path) for name in ("one.py", "other.py"))
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert exit_code_question(one).script != exit_code_question(other).script
    assert unmeasured_since(one, env) is None
    remember_unmeasured(one, env, 5.0)
    assert (unmeasured_since(one, env), unmeasured_since(other, env)) == (5.0, None)
    assert unmeasured_since(job_of("python one.py", tmp_path), env) == 5.0
    (tmp_path / "one.py").write_text("print('edited')\n")
    assert unmeasured_since(one, env) is None, "an edited script is measured again"


def test_what_starts_no_file_is_known_by_its_words(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0")
    for words, known in (
        ("python train.py --lr 1", ("train.py", "print()\n")),
        ("binary train.py", ("train.py", "print()\n")),
        ("python -m pkg.train train.py", ("", "python -m pkg.train train.py")),
        ("binary --lr 1", ("", "binary --lr 1")),
    ):
        assert script_of(job_of(words, tmp_path)) == known
    script = replace_field(job_of("./train.py x", tmp_path), entry_kind=EntryKind.SCRIPT)
    assert script_of(script) == ("train.py", "print()\n")
    assert script_of(replace_field(script, entry_kind=EntryKind.MODULE)) == ("", "./train.py x")


def test_a_script_is_asked_once_whether_its_exit_code_counts_and_how_it_resumes(tmp_path: Path) -> None:
    job = job_of("python train.py", tmp_path)
    asked = exit_code_question(job)
    trusts = BatchAnswer("trust", refusal="from now on, exit code 0 of this script counts as a success")
    assert (asked.what, asked.knob, asked.number, asked.answers) == (Unread.EXIT_CODE, "", None, (trusts,))
    restarts, begins = (
        "restart from the newest checkpoint",
        "a restart begins at step 0, so it waits for you",
    )
    for given, values in (
        ([], ["itself", "never"]),
        (["--a=PATH"], ["--a=PATH", "itself", "never"]),
        (["--a=PATH", "--b=PATH", "--c=PATH"], ["--a=PATH", "--b=PATH", "itself"]),
    ):
        question = resume_question(job, given)
        assert (question.what, question.script) == (Unread.RESUME, asked.script)
        said = [(each.value, each.refusal) for each in question.answers]
        assert said == [(value, begins if value == "never" else restarts) for value in values]
    for value in (
        "itself",
        "never",
        "--resume",
        "--resume=PATH",
        "env:CKPT=PATH",
        "c.yaml#a.b=PATH",
        "+ckpt=PATH",
    ):
        assert is_resume_answer(value)
    for value in ("", "x", "--resume PATH", "--resume=a/b", "rm -rf=PATH", "--" + "x" * 90):
        assert not is_resume_answer(value)


def test_an_answer_is_recalled_with_its_day(tmp_path: Path) -> None:
    env, path = home(tmp_path)
    (tmp_path / "train.py").write_text("print()\n")
    question = resume_question(job_of("python train.py", tmp_path))
    assert recalled(question, env) is None
    remember_answer(line("never", question.script, question.key, t=1.8e9), env)
    day = time.strftime("%Y-%m-%d", time.localtime(1.8e9))
    assert recalled(question, env) == AnswerGiven(question, "never", day)
    assert recalled(replace_field(question, script=""), env) is None
    for number in range(MAX_ANSWERS):
        remember_answer(line(script=f"s{number}"), env)
    assert recalled(question, env) is None, "the oldest was let go"
    assert len(path.read_bytes().splitlines()) == MAX_ANSWERS
    assert recall_answer("s0", "q", env) == line(script="s0")


def home(tmp_path: Path) -> tuple[dict[str, str], Path]:
    return {"XDG_STATE_HOME": str(tmp_path)}, tmp_path / "stoker" / FILE


def line(value: str = "per_rank", script: str = "abc", question: str = "q", t: float = 1.0) -> AnswerLine:
    return AnswerLine(script=script, question=question, value=value, t=t)


def test_the_newest_answer_to_a_question_of_a_script_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    env, path = home(tmp_path)
    assert recall_answer("abc", "q", env) is None
    for given in (line("global"), line("per_node", question="other"), line("per_rank", t=2.0)):
        remember_answer(given, env)
    assert recall_answer("abc", "q", env) == line("per_rank", t=2.0)
    assert recall_answer("abd", "q", env) is None, "another text of the script"
    assert recall_answer("abc", "other", env) == line("per_node", question="other")
    assert len(path.read_bytes().splitlines()) == 2, "in place of the earlier one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == [FILE], "no half-written file is left"
    path.write_bytes(path.read_bytes().ljust(MAX_BYTES, b"\n"))
    assert recall_answer("abc", "other", env) == line("per_node", question="other"), "it is not too large"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x00\xff{{{",
        b'{"script": "abc", "question": "q"',
        b'{"script": "abc", "question": "q", "value": 7, "t": 1}\n',
        b'{"script": "abc", "question": "q", "value": "per_rank", "t": 1e300}\n',
        b"[" * 100_000,
        b"x" * (MAX_BYTES + 1),
    ],
)
def test_a_damaged_file_holds_nothing_and_is_written_anew(tmp_path: Path, damage: bytes) -> None:
    env, path = home(tmp_path)
    path.parent.mkdir()
    path.write_bytes(damage)
    assert recall_answer("abc", "q", env) is None
    remember_answer(line(), env)
    assert recall_answer("abc", "q", env) == line()


def test_where_it_cannot_be_written_that_is_an_error_of_the_system(tmp_path: Path) -> None:
    env, _ = home(tmp_path)
    (tmp_path / "stoker").write_text("a file in the folder's place")
    with pytest.raises(OSError):
        remember_answer(line(), env)


KIND = JobKind("train.py", flags_hash(["--depth", "12"]), "H100", 8)
TRIAL = MemoryTrial(8, True, 10 << 30, 80 << 30, Measure.ALLOCATOR)


def trial_line(run: str = "r1", kind: JobKind = KIND) -> MemoryLine:
    return MemoryLine(kind=kind, trial=TRIAL, t=1.0, run=run)


def test_lines_of_the_same_kind_of_job_are_recalled_oldest_first(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    assert recall_memory(KIND, env) == []
    kinds = [
        KIND,
        replace(KIND, script="other.py"),
        replace(KIND, device="A100"),
        replace(KIND, world_size=4),
        replace(KIND, flags=flags_hash(["--depth", "13"])),
    ]
    for number, kind in enumerate(kinds):
        remember_memory(trial_line(f"r{number}", kind), env)
    remember_memory(trial_line("r9"), env)
    assert recall_memory(KIND, env) == [trial_line("r0"), trial_line("r9")]
    assert recall_memory(KIND, env, but_run="r0") == [trial_line("r9")]


def test_of_a_long_file_the_newest_lines_are_recalled_and_a_link_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, folder = {"XDG_STATE_HOME": str(tmp_path / "state")}, tmp_path / "state" / "stoker"
    folder.mkdir(parents=True)
    (folder / MEMORY_FILE).symlink_to(tmp_path / "kept elsewhere")
    for number in range(9):
        remember_memory(trial_line(f"r{number}"), env)
    data = (tmp_path / "kept elsewhere").read_bytes()
    monkeypatch.setattr(answers, "MEMORY_BYTES", len(data) // 9 * 2)
    assert recall_memory(KIND, env) == [trial_line("r7"), trial_line("r8")]


def test_the_file_is_the_users_alone_and_holds_no_words_of_the_command_line(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    remember_memory(replace(trial_line(), kind=replace(KIND, flags=flags_hash(["--token", "s3cret"]))), env)
    (path,) = tmp_path.rglob(MEMORY_FILE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"s3cret" not in path.read_bytes()

"""What verbs answer before they open anything: one line, an exit code, and the words of a verdict, each form once."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.cli import attach_targets as targets
from supervisor.cli import common, diagnose, policy, replay
from supervisor.cli.job_logs import BadInputError
from supervisor.cli.main import VERBS, main
from supervisor.cli.runs import browse
from supervisor.cli.verdict_text import MOST_CONSEQUENCES, _consequence_lines, ranks_text
from supervisor.job.errors import JobError
from supervisor.job.spec import RetrySettings
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import Consequence, Decision, DecisionKind, FailureClass, SpecChange
from tests.keeper.fakes import job_of, own_run_in, run_in, verdict_of
from tests.keeper.runs import INTENDED, RUNS, STARTED, T

# -- replay ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "speed"),
    [
        ("60x", 60.0),
        ("60", 60.0),
        ("0.5x", 0.5),
        ("5.", 5.0),
        ("1000000", 1e6),
        ("1000001", None),
        ("0", None),
        ("-5", None),
        ("x", None),
        ("60xx", None),
        ("fast", None),
    ],
)
def test_the_speed_of_a_replay(typed: str, speed: float | None) -> None:
    assert replay._speed(typed) == speed


def test_what_a_replay_refuses_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path, STARTED)
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def said(*words: str) -> str:
        assert main(["replay", *words]) == 2
        return capsys.readouterr().err

    assert "--speed fast: write a number above 0" in said(str(run.root), "--speed", "fast")
    assert "needs a terminal" in said(str(run.root), "--speed", "60x")
    assert "needs a terminal" in said(str(run.root))
    assert "needs a terminal" not in said("no-such-run", "--runs-dir", str(tmp_path / "none"))


# -- policy explain -----------------------------------------------------------------------------------------------

ENDED = ev.AttemptEnded(t=T + 9, attempt=1, exit_code=1, last_step=7)
SAID = ev.Diagnosed(t=T + 9, attempt=1, verdict=verdict_of())


def explained(tmp_path: Path, *facts: ev.Event, **settings: Any) -> list[str]:
    record = job_of(tmp_path, **settings)
    run = own_run_in(tmp_path, record, STARTED, INTENDED, RUNS, *facts)
    return policy.explained(run, record, {})


def test_an_attempt_that_has_not_ended_is_not_explained(tmp_path: Path) -> None:
    assert explained(tmp_path) == []
    assert explained(tmp_path / "x", ENDED) == [], "nobody has judged it"


def test_each_ended_attempt_is_a_line(tmp_path: Path) -> None:
    line, ended = explained(tmp_path, ENDED, SAID)
    assert ended.startswith("           ended 20")
    assert line.startswith("attempt 1: code_error at step 7 → fail, exit code 1: ")
    held, _ = explained(tmp_path / "x", ENDED, SAID, interactive=True)
    assert held.startswith("attempt 1: code_error at step 7 → hold: ")
    unstepped = ev.AttemptEnded(t=T + 9, attempt=1, exit_code=1)
    assert explained(tmp_path / "y", unstepped, SAID)[0].startswith("attempt 1: code_error → ")


def test_what_was_done_stands_below_where_it_differs(tmp_path: Path) -> None:
    fail = Decision(DecisionKind.FAIL, "it stays", exit_code=1)
    same = ev.Decided(t=T + 9, attempt=1, decision=fail)
    assert len(explained(tmp_path, ENDED, SAID, same)) == 2
    again = Decision(DecisionKind.RESTART, "try it", change=SpecChange())
    other = ev.Decided(t=T + 9, attempt=1, decision=again)
    lines = explained(tmp_path / "x", ENDED, SAID, other)
    assert lines[2] == "           was (policy): restart: try it"
    changed = Decision(DecisionKind.RESTART, "try it", change=SpecChange(env=(("A", "1"),)))
    person = ev.Decided(t=T + 9, attempt=1, decision=changed, by="ada")
    lines = explained(tmp_path / "y", ENDED, SAID, person)
    assert lines[2] == "           was: ada asked: restart with A=1"
    assert "a person asked for it" in lines[3]


def test_a_later_attempt_is_explained_by_those_before_it(tmp_path: Path) -> None:
    """The same failure again and again without a step more: in the end policy gives up, by what it knew then."""
    facts: list[ev.Event] = []
    again = Decision(DecisionKind.RESTART, "again", change=SpecChange())
    crash = verdict_of(FailureClass.WORKER_CRASH)
    for number in (1, 2, 3, 4):
        at: dict[str, Any] = {"t": T + 10 * number, "attempt": number}
        facts += [
            ev.LaunchIntended(**at, argv=(), reason="x"),
            ev.AttemptStarted(**at, pid=1, start_time=1.0),
            ev.AttemptEnded(**at, exit_code=1, last_step=7),
            ev.Diagnosed(**at, verdict=crash),
            ev.Decided(**at, decision=again),
        ]
    record = job_of(tmp_path, retry=RetrySettings(max_retries=2, restart_from_scratch=True))
    run = own_run_in(tmp_path, record, STARTED, *facts)
    said = [line for line in policy.explained(run, record, {}) if line.startswith("attempt ")]
    kinds = [line.partition("→ ")[2].partition(":")[0].partition(",")[0] for line in said]
    assert kinds == ["restart", "restart", "give_up", "give_up"]


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ({}, {"max_retries": 3, "enabled": True, "restart_from_scratch": False, "min_ranks": None}),
        ({"max_retries": 0}, {"max_retries": 0}),
        ({"min_micro_batch": 4, "min_ranks": 2}, {"min_micro_batch": 4, "min_ranks": 2}),
        ({"no_retry": True}, {"enabled": False}),
        ({"restart_from_scratch": True}, {"restart_from_scratch": True}),
    ],
)
def test_other_bounds_by_flags(tmp_path: Path, flags: dict[str, Any], values: dict[str, Any]) -> None:
    given = {
        "config": None,
        "max_retries": None,
        "min_micro_batch": None,
        "min_ranks": None,
        "no_retry": False,
        "restart_from_scratch": False,
        "trust_exit_code": False,
        **flags,
    }
    found = policy._retry(job_of(tmp_path).job, argparse.Namespace(**given))
    assert {name: getattr(found, name) for name in values} == values


def test_what_policy_cannot_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy"]) == 2
    assert "say what to do" in capsys.readouterr().err
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS)
    assert main(["policy", "explain", str(run.root)]) == 2
    assert "no attempt has ended yet" in capsys.readouterr().err
    run.run_json.unlink()
    assert main(["policy", "explain", str(run.root)]) == 2
    assert "run.json" in capsys.readouterr().err


# -- verdicts in words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 2], "ranks 0, 2"),
        (range(8), "ranks 0, 1, 2, 3, 4, 5, 6, 7"),
        (range(9), "ranks 0, 1, 2, 3, 4, 5, 6, 7 …"),
    ],
)
def test_ranks_in_words(ranks: Any, text: str) -> None:
    assert ranks_text(list(ranks)) == text


def test_what_followed_is_folded_by_kind() -> None:
    def followed(what: str, rank: int | None, line: int | None = 4) -> Consequence:
        return Consequence(FailureClass.NCCL_TIMEOUT, rank, "a.log", line, what=what)

    lines = _consequence_lines([followed("one", 2), followed("one", 0), followed("two", None, None)], str)
    assert lines == ["  what followed (3)", "    ranks 0, 2: one  a.log:4", "    two  a.log"]
    many = [followed(f"kind {at}", at) for at in range(MOST_CONSEQUENCES + 2)]
    assert _consequence_lines(many, str)[-1] == "    … and 2 more"
    assert "more" not in _consequence_lines(many[:-2], str)[-1]


# -- what is common to verbs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "yes"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("yep\n", False)]
)
def test_only_y_and_yes_are_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, yes: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert common.says_yes("end it?") is yes
    assert capsys.readouterr().err == "end it? [y/N] "


def test_reasons_stand_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        common.refuse("stop", "brave-otter", ["it is over", "token=hf_abcdefghijklmnopqrstuvwxyz012345"]) == 3
    )
    first, second = capsys.readouterr().err.splitlines()
    assert first == "stoker stop: brave-otter: it is over"
    assert "hf_abcdef" not in second
    assert common.complain("stop", "x") == 2


def test_where_the_users_settings_lie() -> None:
    assert common.user_settings({"XDG_CONFIG_HOME": "/c"}) == Path("/c/stoker/config.toml")
    assert common.user_settings({"HOME": "/home/me"}) == Path("/home/me/.config/stoker/config.toml")


def test_the_looks_of_a_file_count_where_it_is_one(tmp_path: Path) -> None:
    assert common.settings_table(tmp_path / "none.toml", "ui", whole=True) == {}
    path = tmp_path / "stoker.toml"
    path.write_text('[ui]\ntheme = "light"\n')
    assert common.settings_table(path, "ui", whole=True) == {"theme": "light"}
    path.write_text('ui = "light"\n')
    with pytest.raises(JobError, match=r"stoker.toml:1: "):
        common.settings_table(path, "ui", whole=True)


def test_the_users_own_rules_name_the_numbers_of_a_strangers_log(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert common.metric_rules_of_user(env) == ()
    path = tmp_path / "stoker" / "config.toml"
    path.parent.mkdir()
    path.write_text("[ui]\ntheme = 'light'\n[[metrics]]\nname = 'step'\nregex = 'num_timesteps=(\\d+)'\n")
    assert common.metric_rules_of_user(env) == (("step", r"num_timesteps=(\d+)"),)
    path.write_text("[[metrics]]\nname = 'step'\n")
    assert common.metric_rules_of_user(env) == ()


def test_what_is_wrong_with_the_settings_is_said_alike_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stoker" / "config.toml"
    path.parent.mkdir()
    path.write_text('notifyy = 1\n[ui]\ntheme = "blue"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def faults(command: str, code: int | None) -> str:
        assert code == 2
        text = capsys.readouterr().err
        assert text.startswith(f"{command}: ")
        return text.removeprefix(f"{command}: ")

    first = faults("stoker runs", main(["runs"]))
    assert [line.partition(": ")[0] for line in first.splitlines()] == [f"{path}:1", f"{path}:3"]
    assert faults("stoker config explain", main(["config", "explain", "theme"])) == first
    assert faults("stoker", browse([])) == first
    path.unlink()
    (tmp_path / "stoker.toml").write_text('notifyy = 1\n[ui]\ntheme = "safe"\n')
    assert common.appearance_from({}, {}).theme == "safe", "a job's file with a fault stops no look at a log"


# -- what attach is given ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "/job/train.py", "--lr", "1"], "train.py"),
        (["python", "-m", "pkg.train", "--lr"], "pkg.train"),
        (["/usr/bin/sleep", "60"], "sleep"),
        (["sleep", "-m"], "sleep"),
        ([], ""),
    ],
)
def test_what_a_process_runs(command: list[str], name: str) -> None:
    assert targets._program(command) == name


def test_what_cannot_be_attached_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunPaths(tmp_path / "run")
    with pytest.raises(BadInputError, match="no process with this pid"):
        targets.resolve("4194305", run)
    (tmp_path / "model.bin").write_bytes(b"\x7fELF\x02\x01\x01\0\0")
    with pytest.raises(BadInputError, match="a binary file, not a log"):
        targets.resolve(str(tmp_path / "model.bin"), run)
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(BadInputError, match="stdin is the terminal"):
        targets.resolve("-", run)


def test_a_log_with_a_hole_before_its_text_is_one(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(b"step 1 loss 2.0\n")
    assert not targets._is_binary(path)
    packed = tmp_path / "log.gz"
    packed.write_bytes(b"\x1f\x8b\x08\0")
    assert targets._is_packed(str(packed))
    assert not targets._is_packed(str(path))
    assert not targets._is_packed(str(tmp_path / "none"))


def test_a_named_log_is_watched_from_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "rank3.log"
    path.write_text("step 1 loss 2.0\n")
    what, read = targets.resolve(str(path), RunPaths(tmp_path / "run"))
    assert [log.path for log in what.logs] == [str(path)]
    assert what.logs[0].origin.rank == 3
    assert len(read().logs) == 1


def test_this_very_process_as_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what, _ = targets.resolve(str(os.getpid()), RunPaths(tmp_path))
    assert [number for number, _ in what.processes] == [0]
    assert bool(what.unseen) is (what.logs == ())
    assert ("cannot be seen" in capsys.readouterr().err) is (what.logs == ())


def test_a_candidate_on_the_wire() -> None:
    signature = SimpleNamespace(id="cuda-oom", role=SimpleNamespace(value="cause"))
    item = SimpleNamespace(
        source=0,
        line=7,
        rank=1,
        text=f"  {'x' * 900} ",
        signature=signature,
        failure=FailureClass.CUDA_OOM,
        strength=90,
        soft=False,
    )
    case = SimpleNamespace(scans=[SimpleNamespace(path="a.log")])
    found = diagnose._candidate(cast("Any", item), cast("Any", case))
    assert found["text"] == "x" * 600, "of a line of megabytes the beginning"
    assert (found["path"], found["line"], found["rank"], found["warning"]) == ("a.log", 7, 1, False)
    assert (found["signature"], found["failure"], found["role"]) == ("cuda-oom", "cuda_oom", "cause")


# -- help -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [*((verb,) for verb in VERBS), ("config", "explain")], ids=" ".join)
def test_help_has_lines(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([*words, "--help"])
    except SystemExit as end:  # argparse's way
        code = cast("int", end.code)
    out = capsys.readouterr().out
    assert code == 0
    assert len(out.splitlines()) > 2
    assert r"\n" not in out
    assert out.startswith(f"usage: stoker {words[0]}")

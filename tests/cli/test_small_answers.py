"""What verbs answer before they open anything: one line, an exit code, and the words of a verdict, each form once."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import attach_targets as targets
from supervisor.cli import common, policy, replay
from supervisor.cli.job_logs import BadInputError
from supervisor.job.spec import RetrySettings
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange
from supervisor.views.tui import app
from tests.cli.conftest import Answer, Call
from tests.keeper.fakes import job_of, own_run_in, run_in, verdict_of
from tests.keeper.runs import INTENDED, RUNS, STARTED, T

# -- replay ---------------------------------------------------------------------------------------------------


def test_a_replay_opens_on_a_terminal(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in(tmp_path, STARTED, INTENDED)
    needs = "needs a terminal: `stoker diagnose` and `stoker export --chart` print instead"
    assert call("replay", run.root) == Answer(2, "", f"stoker replay: {needs}\n")
    monkeypatch.setattr(replay, "has_terminal", lambda: True)
    opened: list[Any] = []
    monkeypatch.setattr(app, "replay_app", lambda recording, *, appearance: (recording.run, appearance.theme))
    monkeypatch.setattr(app, "run_app", opened.append)
    reading = "reading the recording of run-1…"
    assert call("replay --theme light --lang en", run.root) == Answer(0, f"{reading}\r\x1b[K", "")
    assert opened == [(run, "light")]
    run.node().journal.write_bytes(b"")
    refused = call("replay --lang en", run.root)
    assert (refused.code, refused.out) == (2, f"{reading}\n")
    assert refused.err.startswith("stoker replay: ")
    assert len(opened) == 1


# -- policy explain -----------------------------------------------------------------------------------------------

ENDED = ev.AttemptEnded(t=T + 9, attempt=1, exit_code=1, last_step=7)
SAID = ev.Diagnosed(t=T + 9, attempt=1, verdict=verdict_of())


def explained(tmp_path: Path, *facts: ev.Event, **settings: Any) -> list[str]:
    record = job_of(tmp_path, **settings)
    run = own_run_in(tmp_path, record, STARTED, INTENDED, RUNS, *facts)
    return policy.explained(run, record, {})


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


def test_what_policy_cannot_explain(tmp_path: Path, call: Call) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS)
    code, _, err = call("policy explain", run.root)
    assert (code, "no attempt has ended yet" in err) == (2, True)
    run.run_json.unlink()
    code, _, err = call("policy explain", run.root)
    assert (code, "run.json" in err) == (2, True)


def test_other_settings_lead_to_other_decisions(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    crash = ev.Diagnosed(t=T + 9, attempt=1, verdict=verdict_of(FailureClass.WORKER_CRASH))
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS, ENDED, crash)

    def decided(words: str = "") -> str:
        code, out, err = call(f"policy explain {words}", run.root)
        assert (code, err) == (0, "")
        return out.splitlines()[0].partition(" → ")[2].partition(":")[0]

    Path("none.toml").write_text("[policy]\nmax_retries = 0\n", encoding="utf-8")
    Path("scratch.toml").write_text("[policy]\nrestart_from_scratch = true\n", encoding="utf-8")
    assert decided() == decided("--config none.toml") == "fail, exit code 1"
    assert decided("--interactive") == "hold"
    assert decided("--config scratch.toml") == "restart"
    assert call("policy") == Answer(2, "", "stoker policy: say what to do: stoker policy explain [RUN]\n")


# -- what is common to verbs ----------------------------------------------------------------------------------------


def test_reasons_stand_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        common.refuse("stop", "brave-otter", ["it is over", "token=hf_abcdefghijklmnopqrstuvwxyz012345"]) == 3
    )
    first, second = capsys.readouterr().err.splitlines()
    assert first == "stoker stop: brave-otter: it is over"
    assert "hf_abcdef" not in second
    assert common.complain("stop", "x") == 2


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    path = tmp_path / "stoker" / "config.toml"
    path.parent.mkdir()
    path.write_text('notifyy = 1\n[ui]\ntheme = "blue"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def faults(command: str, line: str) -> list[str]:
        code, _, err = call(line)
        assert (code, err.startswith(f"{command}: ")) == (2, True)
        return err.removeprefix(f"{command}: ").splitlines()

    first = faults("stoker runs", "runs")
    assert [line.partition(": ")[0] for line in first] == [f"{path}:1", f"{path}:3"]
    assert faults("stoker config explain", "config explain theme") == first
    assert faults("stoker", "--ascii") == first
    path.unlink()
    (tmp_path / "stoker.toml").write_text('notifyy = 1\n[ui]\ntheme = "safe"\n')
    assert common.appearance_from({}, {}).theme == "safe", "a job's file with a fault stops no look at a log"


# -- what attach is given ----------------------------------------------------------------------------------------------


def test_a_terminal_as_the_pipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(BadInputError, match="stdin is the terminal"):
        targets.resolve("-", RunPaths(tmp_path / "run"))

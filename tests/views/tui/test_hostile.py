"""Text that others wrote (logs, names, notes, verdicts, settings) is shown as text and does nothing else.

What is looked at are the bytes that reach a real terminal, on every screen that shows such text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.run import events as ev
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.records import (
    Action,
    Cause,
    Consequence,
    Decision,
    DecisionKind,
    FailureClass,
    Finding,
    FindingLevel,
    Verdict,
)
from supervisor.run.runfile import KeeperSettings, RunFile, write_run_file
from supervisor.run.series import METRICS
from tests.views.tui import recorded
from tests.views.tui.wire import (
    SHOW_RUN,
    Wire,
    on_a_terminal,
    strange,
)

# Each ends in a word of its own, so that it can be found on the screen.
ATTACKS = {
    "markup": "[bold red]x[/] [@click=app.quit]y[/] [link=http://e.vil]z[/link] $error",
    "colour": "\x1b[31;5;8mhidden\x1b[0m",
    "clear": "\x1b[2J\x1b[H\x1b[3J",
    "screen": "\x1b[?1049l\x1bc\x1b[!p",
    "report": "\x1b[6n\x1b[c\x1b[21t",
    "clipboard": "\x1b]52;c;Q0FOQVJZ\x07\x1b]52;c;Q0FOQVJZ\x1b\\",
    "link": "\x1b]8;;http://e.vil\x1b\\here\x1b]8;;\x1b\\",
    "title": "\x1b]0;pwned\x07\x1b]2;pwned\x1b\\",
    "device": '\x1bP$q"p\x1b\\\x1b_Gf=24;AAAA\x1b\\\x1b^x\x1b\\\x1bXy\x1b\\',
    "unended": "\x1b]52;c;Q0FO",
    "eight-bit": "\x9b31m\x9d52;c;Q0FO\x9c\x90q\x9c",
    "bidi": "\u202eevil\u202c \u2066x\u2069 \u200f\u061c",
    "joined": "a\u200db \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f e\u0301\u0301\u0301",
    "wide": "\u4e2d\u6587\u8def\u5f84 \U0001f525\U0001f525 \uff37\uff29\uff24\uff25",
    "controls": "a\x00b\x07c\x08d\x0be\x0cf\x7fg\th",
}
LONG = "x" * 1_000_000


def hostile(root: Path) -> RunPaths:
    """A run in which all that others can write attacks the terminal."""
    every = " ".join(f"{text} {name}" for name, text in ATTACKS.items())
    root.mkdir(parents=True)
    rec = recorded.Recording(
        root / "20261121-1412-brave-otter", name=f"job {ATTACKS['clipboard']}{ATTACKS['wide']}"
    )
    settings(rec, every)
    for name, text in ATTACKS.items():
        finding = Finding(FindingLevel.WARNING, f"check {name}", f"{text} found {name}", f"{text} fix {name}")
        rec.fact(ev.PreflightFound(t=rec.t, finding=finding))
    rec.launch(f"because {ATTACKS['clear']}of it")
    rec.steps(1, 30)
    values: dict[str, float | None] = {"step": 30.0, "loss": 1.0}
    for name, text in ATTACKS.items():
        values[f"m_{name}{text}"] = 1.0
        rec.fact(ev.NoteAdded(t=rec.t, text=f"{text} note {name}", by=f"me{text}"))
        rec.fact(ev.Advisory(t=rec.t, attempt=1, code="odd", text=f"{text} advice {name}", rank=0))
    rec.series.append(METRICS, rec.t, "job", 1, values)
    rec.series.append(METRICS, rec.t + 1, "job", 1, values)
    rec.say(0, LONG)
    rec.say(0, f"long {ATTACKS['clipboard']} {LONG}")
    stderr = attempt_stderr(rec)
    for name, text in ATTACKS.items():
        rec.say(1, f"{text} line {name}")
        rec.say(1, f"{text} line {name}", "stderr")
    with stderr.open("ab") as file:
        file.write(b"\xff\xfe\x80 invalid \xc3( bytes \xed\xa0\x80\n")
    stacks = "".join(f"== rank 1 {text} stack {name}\n  File {text}\n" for name, text in ATTACKS.items())
    rec.run.artifacts.mkdir()
    (rec.run.artifacts / f"stacks-1-{rec.t:.0f}.txt").write_text(stacks, encoding="utf-8", newline="")
    fail(rec, every, stderr)
    return rec.close()


def attempt_stderr(rec: recorded.Recording) -> Path:
    return rec.run.node().attempt(1).root / f"{recorded.TREE}/1/stderr.log"


def settings(rec: recorded.Recording, every: str) -> None:
    job = JobSpec(
        name=f"job {every}",
        entry_kind=EntryKind.SCRIPT,
        entry=f"train{ATTACKS['title']}.py",
        entry_args=tuple(f"--{name}={text}" for name, text in ATTACKS.items()),
        nproc_per_node=2,
        env=tuple((f"V_{name}", text) for name, text in ATTACKS.items()),
        cwd=f"/home/{ATTACKS['bidi']}/{ATTACKS['wide']}",
        batch=rec.batch,
        origins=tuple((f"o_{name}", text, f"./{name}{text}") for name, text in ATTACKS.items()),
    )
    write_run_file(
        rec.run.run_json,
        RunFile(
            run_id=rec.root.name,
            job=job,
            interpreter=f"/bin/python{ATTACKS['colour']}",
            settings=KeeperSettings(interactive=True),
            created_t=rec.t,
            host=f"box{ATTACKS['bidi']}",
            user=f"me{ATTACKS['title']}",
            stoker_version="0.1.0",
            python_version="3.11.9",
            torch_version="2.13.0",
            git_commit="4be81c7",
        ),
    )


def fail(rec: recorded.Recording, every: str, stderr: Path) -> None:
    verdict = Verdict(
        failure=FailureClass.CODE_ERROR,
        reason=None,
        confidence=0.9,
        rank=1,
        ranks=(1,),
        node=None,
        title=f"title {every}",
        cause=Cause(str(stderr), 8, f"cause {every}"),
        consequences=tuple(
            Consequence(FailureClass.NCCL_ERROR, 0, f"/x/{text}.log", 3, f"{text} then {name}")
            for name, text in ATTACKS.items()
        ),
        advice=tuple(f"{text} do {name}" for name, text in ATTACKS.items()),
        action=Action.STOP,
        fingerprint=f"code_error:{every}",
    )
    rec.t += 1
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1, last_step=30, rank_exit_codes={0: 1, 1: 1}))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict))
    reason = f"reason {every}"
    rec.fact(ev.Decided(t=rec.t, attempt=1, decision=Decision(kind=DecisionKind.HOLD, reason=reason)))
    rec.fact(ev.Held(t=rec.t, attempt=1, reason=reason, until=None))
    rec.fact(
        ev.RequestRefused(
            t=rec.t, request_id="x", request=f"r{every}", by=f"me{every}", reason=f"refused {every}"
        )
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPaths]:
    """The run, with a keeper."""
    found = hostile(tmp_path_factory.mktemp("hostile") / f"runs{ATTACKS['wide']}")
    lock = KeeperLock(found.node().lock, start_time=1.0)
    yield found
    lock.release()


def look(wire: Wire) -> str:
    """The screen; whole frames, and nothing on the wire but text and what the app itself sends."""
    text = wire.settle()
    assert strange(wire.written) == []
    wire.written = b""
    for line in text.splitlines():
        if line.startswith(("│", "╭", "╰")):
            assert line.rstrip().endswith(("│", "╮", "╯")), f"a frame is torn:\n{text}"
    return text


@pytest.mark.e2e
def test_every_page_of_a_run(run: RunPaths) -> None:
    with on_a_terminal(SHOW_RUN, run.root, size=(80, 24)) as wire:
        wire.wait_for("stoker", "code_error")
        look(wire)
        for keys, shown in (
            ("v", "cause"),
            ("p", "torchrun"),
            ("P", "check markup"),
            ("a", "advice markup"),
            ("i", "train.py"),
            ("M", "grad_norm"),
        ):
            wire.press(keys)
            wire.wait_for(shown)
            look(wire)
            wire.press("\x1b[6~" * 2)  # what is further down
            look(wire)
            wire.press(keys)
        for keys in ("4z", "5", "e", "\x1b", "b", "\x1b", ":", "\x1b"):
            wire.press(keys)
            look(wire)
        wire.resize(300, 60)
        wire.press("i")
        text = wire.wait_for("V_wide")
        for attack in (
            "[@click=app.quit]y[/] [link=http://e.vil]z[/link]",
            "中文路径",
            "ＷＩＤＥ",
            r"\x1b]0;pwned\x07\x1b]2;pwned\x1b",
            r"\x1b]52;c;Q0FO",
            r"\u202eevil\u202c",
        ):
            assert attack in text, "as it was written"
        look(wire)


def test_the_whole_log(run: RunPaths) -> None:
    with on_a_terminal(SHOW_RUN, run.root) as wire:
        wire.wait_for("code_error")
        wire.press("L")
        wire.wait_for("line controls")
        look(wire)
        for keys in ("g", "w", "\x1b[6~", "\x1b[6~", "G", "/e.vil\r", "n", "V", "k", "\x1b", "\x1b"):
            wire.press(keys)
            look(wire)


def test_what_an_offer_names_begins_no_line_and_is_no_markup(tmp_path: Path) -> None:
    """A process names itself as it likes: what is asked before it is taken over stays one line a process."""
    named = r"pid 12 (x\x1b]0;t\x07\n⚠ it is [@click=app.quit]known[/] to be yours)"
    script = SHOW_RUN.replace("pid 12 (python3)", named)
    assert script != SHOW_RUN
    with on_a_terminal(script, recorded.healthy(tmp_path / "run").root, size=(120, 40)) as wire:
        wire.wait_for("loss")
        wire.press("A")
        wire.wait_for("adopt the run?", "known[/]")
        rows = [row for row in look(wire).splitlines() if "⚠ it is" in row]
        assert rows
        assert all("pid 12" in row for row in rows)

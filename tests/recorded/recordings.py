"""The recorded runs, and what this version says of each: verdicts, decisions, outcome, numbers, and its screen.

tests/recorded/runs.tar.xz, made once, holds for each recording: ``record.json`` (what, argv, code, live), ``console.txt`` (what the terminal
got), ``runs/<id>`` (the run directory), ``train.log`` (where that was watched), and, as the base said it, ``said.json``, ``lines.txt`` (`console`) and
``screen-<columns>x<rows>.txt``.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from supervisor.cli.job_logs import read_jobs
from supervisor.cli.main import main as stoker
from supervisor.diagnosis.verdict import diagnose, examine, is_rank_told
from supervisor.keeper.planning.attempt_evidence import NodeAttempt, evidence_of
from supervisor.keeper.planning.decisions import policy_input
from supervisor.policy import decide
from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.journal import JournalReader
from supervisor.run.paths import RunPaths
from supervisor.run.records import DecisionKind, Verdict
from supervisor.run.runfile import BadRunFile, RunFile, read_run_file
from supervisor.run.state import Finished, RunState
from supervisor.sources.signature_files import Engine
from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.headless.console import ConsoleSettings, ConsoleView
from tests.views.tui.camera import run_app, stand_still
from tests.views.tui.driving import is_read, keeper_of, shown, until

ARCHIVE = Path(__file__).parent / "runs.tar.xz"
LOOKS = Appearance(ThemeName.DARK)
# What a terminal's colors and the machine's own settings would change.
SURROUNDINGS = ("NO_COLOR", "COLORTERM", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS", "STOKER_RUNS_DIR")


@dataclass(frozen=True)
class Recording:
    """One recorded run, unpacked to `folder`. `live`: its keeper lived when it was kept."""

    folder: Path
    what: str
    code: int
    live: bool

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def run(self) -> RunPaths:
        (found,) = (path for path in (self.folder / "runs").iterdir() if not path.name.startswith("."))
        return RunPaths(found)

    @property
    def said(self) -> dict[str, Any]:
        """What the base said of it."""
        found: dict[str, Any] = json.loads((self.folder / "said.json").read_text(encoding="utf-8"))
        return found


def names() -> list[str]:
    """All recordings of the archive, by name."""
    with tarfile.open(ARCHIVE) as packed:
        return sorted({name.split("/")[0] for name in packed.getnames()})


def unpacked(folder: Path) -> dict[str, Recording]:
    """All recordings, unpacked below `folder`."""
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    return {path.name: _recording(path) for path in sorted(folder.iterdir()) if path.is_dir()}


def _recording(folder: Path) -> Recording:
    told = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return Recording(folder, told["what"], told["code"], told["live"])


# -- judged again -----------------------------------------------------------------------------------


def recorded(recording: Recording) -> dict[str, Any]:
    """What stoker said when it ran: the journal's verdicts and decisions, the outcome, the exit code of the command."""
    state = replay(JournalReader(recording.run.node().journal).read())
    return {
        "verdicts": {
            str(view.number): _verdict(view.number, view.verdict, recording)
            for view in state.attempts
            if view.verdict
        },
        "decisions": {
            str(view.number): _decision(view.decision)
            for view in state.attempts
            if view.decision is not None and view.decided_by in {"", "policy"}
        },
        **_end(state),
    }


def judged(recording: Recording, engine: Engine) -> dict[str, Any]:
    """What this version says, from the logs: as `recorded`, each decision on the verdict that is made now; then the numbers."""
    events = JournalReader(recording.run.node().journal).read()
    record = _run_file(recording)
    verdicts: dict[int, Verdict] = {}
    decisions: dict[str, Any] = {}
    done: list[ev.Event] = []
    last = None
    for event in events:
        match event:
            case ev.Diagnosed(provisional=True):
                continue  # given at the first death, before all logs were in
            case ev.Diagnosed():
                number = event.attempt
                verdicts[number] = _diagnosed(recording, record, replay(done), number, engine)
                event = msgspec.structs.replace(event, verdict=verdicts[number])
            case ev.Decided(by="policy") if record is not None:
                last = _decided(record, replay(done))
                decisions[str(event.attempt)] = _decision(last)
            case _:
                pass
        done.append(event)
    state = replay(done)
    found = {
        "verdicts": {
            str(number): _verdict(number, verdict, recording) for number, verdict in verdicts.items()
        },
        "decisions": decisions,
        **_end(state),
    }
    if last is not None and isinstance(state.condition, Finished) and last.exit_code is not None:
        found["exit code"] = last.exit_code
    return {**found, "numbers": dict(numbers(recording))}


def _run_file(recording: Recording) -> RunFile | None:
    try:
        return read_run_file(recording.run.run_json)
    except BadRunFile:
        return None  # a log or pid that was watched has none


def _diagnosed(
    recording: Recording, record: RunFile | None, state: RunState, number: int, engine: Engine
) -> Verdict:
    """As the keeper judges, but for what the machine is now: disks and cgroup of then are in the journal and the series."""
    view = state.find(number)
    if record is None or view is None:
        log = str(recording.folder / "train.log")
        ((_, _, evidence),) = read_jobs([log])
        found = examine(evidence, engine.signatures, engine.matcher)
        is_told = is_rank_told(found.facts, found.decision.root)
        return found.verdict if is_told else replace(found.verdict, rank=None)
    own = NodeAttempt(0, recording.run.node(), state, view)
    evidence = evidence_of([own], record.job)
    then = evidence.machine._replace(disk_free_bytes=None, cgroup_oom_kills=view.memory_kills)
    values = evidence.run_values._replace(free_port=None)  # which one is free now
    return diagnose(evidence._replace(machine=then, run_values=values), engine.signatures, engine.matcher)


def _decided(record: RunFile, state: RunState) -> Any:
    """As the policy decides, without what earlier runs on this machine measured."""
    return decide(policy_input(record, state, env={"XDG_STATE_HOME": "/nonexistent"}, on_disk=False))


def _verdict(number: int, verdict: Verdict, recording: Recording) -> dict[str, Any]:
    """What is compared of a verdict; the path of its cause is relative to the attempt's folder."""
    cause = verdict.cause
    path = cause.path if cause is not None else ""
    attempt = f"{recording.run.run_id}/nodes/0/attempts/{number}"
    _, mark, below = path.partition(recording.run.run_id)
    inside = os.path.relpath(mark + below, attempt) if mark else os.path.basename(path)
    return {
        "class": verdict.failure.value,
        "reason": verdict.reason.value if verdict.reason is not None else None,
        "rank": verdict.rank,
        "ranks": list(verdict.ranks),
        "cause": [os.path.normpath(inside), cause.line, cause.text] if cause is not None else None,
        "title": verdict.title,
        "advice": list(verdict.advice),
    }


def _decision(decision: Any) -> dict[str, Any]:
    return {
        "kind": decision.kind.value,
        "change": json.loads(msgspec.json.encode(decision.change)),
        "exit code": decision.exit_code if decision.kind is not DecisionKind.HOLD else None,
        "reason": decision.reason,
    }


def _end(state: RunState) -> dict[str, Any]:
    end = state.condition
    if not isinstance(end, Finished):
        return {"condition": type(end).__name__, "outcome": None, "exit code": None}
    return {"condition": "Finished", "outcome": end.outcome.value, "exit code": end.exit_code}


def numbers(recording: Recording) -> Iterator[tuple[str, Any]]:
    """What `stoker metrics` reads in each rank's logs: how many rows, and the last."""
    for log in sorted(recording.run.root.glob("nodes/*/attempts/*/torchrun/**/*.log")):
        said = _said(["metrics", "--json", str(log)])
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        if rows:
            attempt = log.relative_to(recording.run.root).parts[3]
            yield f"{attempt}/{log.parent.name}/{log.name}", {"rows": len(rows), "last": rows[-1]}


def _said(args: list[str]) -> str:
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(printed):
        stoker(args)
        printed.flush()
    return printed.buffer.getvalue().decode("utf-8")


# -- drawn again ------------------------------------------------------------------------------------


@contextlib.contextmanager
def still_surroundings(folder: Path) -> Iterator[None]:
    """One time zone, no settings of the machine, and `folder` as the one that paths on the screen are relative to."""
    before = dict(os.environ)
    for name in SURROUNDINGS:
        os.environ.pop(name, None)
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        time.tzset()


@contextlib.contextmanager
def at_home(run: RunPaths) -> Iterator[None]:
    """The run as one of ours that was made where it lies now: a moved one is drawn without its keeper and its keys."""
    try:
        told = run.run_json.read_bytes()
    except OSError:
        yield  # a watched log has none
        return
    here = {"path": str(run.root.resolve()), "uid": os.getuid()}
    run.run_json.write_text(json.dumps({**json.loads(told), **here}), encoding="utf-8")
    try:
        yield
    finally:
        run.run_json.write_bytes(told)


def console(recording: Recording) -> str:
    """What ``--no-ui`` prints, from the journal: its lines and the story at the end."""
    printed = io.StringIO()
    with still_surroundings(recording.folder):
        view = ConsoleView(RunPaths(Path("runs", recording.run.run_id)), ConsoleSettings(printed, None))
        view.start()
        view.finish(with_story=True)
    return printed.getvalue()


def drawn(run: RunPaths, size: tuple[int, int], *, live: bool = False) -> str:
    """The dashboard of a run as text, two seconds after its last fact; the clock stands. `live`: its keeper lives."""
    app = run_app(run, LOOKS)

    async def look() -> str:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: is_read(app), f"the screen of {run.run_id}")
            await pilot.pause()
            await stand_still(app, pilot)
            return "\n".join(line.rstrip() for line in shown(app).splitlines()) + "\n"

    with keeper_of(run, alive=live):
        return asyncio.run(look())

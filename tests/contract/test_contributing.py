"""The worked examples of CONTRIBUTING.md, read from the page and used."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from supervisor.cli.diagnose import main as diagnose
from supervisor.cluster.scheduler import Scheduler
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight import checks, host
from supervisor.preflight.context import CheckContext
from supervisor.run.records import FindingLevel
from supervisor.sources import signature_files
from supervisor.sources.metrics import MetricReader
from supervisor.text.patterns import compile_linear
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.widgets.panel import Panel
from tests.conftest import not_none
from tests.contract.test_layout import ROOT
from tests.views.tui import recorded
from tests.views.tui.driving import drive, shown

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(heading: str) -> str:
    """The fenced block below a heading."""
    found = not_none(re.search(rf"^### {heading}\n.*?^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    return found.group(1)


@cache
def paths_named() -> tuple[str, ...]:
    return tuple(re.findall(r"`((?:supervisor|tests|\.github)/[\w./-]+)`", PAGE))


def test_every_file_and_folder_that_is_named_exists() -> None:
    assert len(paths_named()) > 10
    assert [name for name in paths_named() if not (ROOT / name).exists()] == []


def test_commands_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", PAGE)) <= targets


def test_a_signature_gives_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = tomllib.loads(example("A failure signature"))["signature"][0]
    log = tmp_path / "train.log"
    log.write_text(f"step 1 loss 2.0\nstep 2 loss 1.9\n{entry['samples'][0]}\n", encoding="utf-8")
    assert verdict_on(log, capsys)["cause"] is None, "known without the example: choose another one"
    tables = {**signature_files.read_tables(), "example": example("A failure signature").encode()}
    monkeypatch.setattr(signature_files, "read_tables", lambda: tables)
    verdict = verdict_on(log, capsys)
    assert verdict["failure"] == entry["class"]
    assert verdict["cause"]["text"] == entry["samples"][0]
    log.write_text(f"step 1 loss 2.0\n{entry['near_misses'][0]}\nstep 2 loss 1.9\n", encoding="utf-8")
    assert verdict_on(log, capsys)["cause"] is None


def verdict_on(log: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    diagnose(["--json", str(log)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_scheduler_says_its_place() -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example("A scheduler"), "example", "exec"), names)
    flux: Scheduler = names["Flux"].of({"FLUX_JOB_ID": "f1", "FLUX_TASK_RANK": "1", "FLUX_JOB_NNODES": "2"})
    assert flux.place is not None
    assert (flux.name, flux.job, flux.place.node_rank, flux.place.nodes) == ("Flux", "f1", 1, 2)
    assert flux.time_left_s(0.0) is None


def test_a_metric_rule_is_read() -> None:
    line = "episode 12: mean return -3.25"
    rules = [
        (rule["name"], compile_linear(rule["regex"]))
        for rule in tomllib.loads(example("A metric format"))["metrics"]
    ]
    sample = not_none(MetricReader(rules).feed(line))
    assert sample.other["reward"] == -3.25
    plain = MetricReader().feed(line)
    assert plain is None or "reward" not in plain.other


def test_a_pane_is_drawn(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example("A pane"), "CONTRIBUTING.md", "exec"), names)
    (kind,) = (each for each in names.values() if isinstance(each, type) and each.__module__ == "example")
    pane: Panel = kind(id="example")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        pane.styles.height = 1
        await app.dashboard.mount(pane, before="#footer")
        view = not_none(app.dashboard.query_one("#footer", Panel).view)
        pane.show(view)
        await pilot.pause()
        assert f"attempts: {len(view.snapshot.state.attempts)}" in shown(app)

    drive(recorded.healthy(tmp_path / "run"), play)


def test_a_check_is_run_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = dict(vars(host))
    exec(compile(example("A pre-flight check"), "CONTRIBUTING.md", "exec"), names)
    (check,) = (each for name, each in names.items() if name not in vars(host) and callable(each))
    monkeypatch.setattr(checks, "BEFORE", (*checks.BEFORE, check))
    for words, level in (((), FindingLevel.WARNING), (("--seed", "3"), FindingLevel.OK)):
        spec = JobSpec("job", EntryKind.SCRIPT, "train.py", entry_args=words)
        last = checks.run_checks(checks.BEFORE, CheckContext(spec, tmp_path / "runs", {}))[-1]
        assert (last.level, last.check) == (level, "seed")

"""docs/from-the-guides.md: every command of its right column is run as it stands there, shortened by the tables below.

The scripts that the guides name are the bundled trainer under those names: it has their switches, and trains for real.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from supervisor.run.events import Outcome
from supervisor.run.series import SeriesReader
from tests.conftest import not_none, wait_until
from tests.integration.harness import ROOT, STOKER, end_of, environment, run_headless, stoker

PAGE = ROOT / "docs" / "from-the-guides.md"
SCRIPT = "import sys\nfrom trainer.app import main\nif __name__ == '__main__':\n    main(sys.argv[1:])\n"
TINY = {
    "depth": "1",
    "model_dim": "32",
    "max_seq_len": "32",
    "num_iterations": "4",
    "corpus_mib": "1",
    "device": "cpu",
    "backend": "gloo",
    "log_interval": "1",
    "eval_every": "0",
    "save_every": "0",
    "warmup_steps": "0",
    "num_workers": "0",
}
"""Settings of the trainer that stand in for those of a command, or are added to it."""
TINY_BATCH = {"device_batch_size": "2", "total_batch_size": "256"}
OF_SEVERAL = re.compile(r"^stoker (?:nodes|slurm) |--nnodes")
RANKS = {"4": "2", "8": "2", "2": "2", "1": "1"}


def commands(*, several_nodes: bool = False) -> list[str]:
    """What stands in the right column: of one machine, or what is of several (`test_from_the_guides_nodes`)."""
    rows = re.findall(r"^\| .* \| `(stoker [^`]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    return [row for row in rows if (OF_SEVERAL.search(row) is not None) is several_nodes]


def shortened(words: list[str]) -> list[str]:
    """`stoker run`'s words, with few ranks, few steps and a tiny model."""
    text = re.sub(
        r"--(nproc[-_]per[-_]node|world_size)([= ])(\d)",
        lambda m: f"--{m[1]}{m[2]}{RANKS[m[3]]}",
        shlex.join(words),
    )
    text = re.sub(r"--(total_steps|epochs) \d+", "", text)
    text = text.replace("-- python ", f"-- {shlex.quote(sys.executable)} ")
    words = shlex.split(text)
    is_config = "--config" in words
    if is_config and not any("nproc" in word for word in words):
        words += ["--nproc-per-node", "2"]
    for key, value in {**TINY, **(TINY_BATCH if is_config else {})}.items():
        place = next((n for n, word in enumerate(words) if word.partition("=")[0] == f"--{key}"), None)
        if place is not None:
            del words[place : place + (1 if "=" in words[place] else 2)]
        words.append(f"--{key}={value}")
    return words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the page's commands find: scripts, job files, data and a log."""
    for name in ("train.py", "train_distributed.py", "ddp_training.py"):
        (tmp_path / name).write_text(SCRIPT)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "data").mkdir()
    for name in ("train.bin", "val.bin"):
        (tmp_path / "data" / name).write_bytes(array("H", [n % 250 for n in range(8000)]).tobytes())
    (tmp_path / "data" / "train.jsonl").write_text('{"text": "words of a story that continues"}\n' * 200)
    (tmp_path / "logs").mkdir()
    lines = "".join(f"step {n}/20 | loss {4 / n:.4f} | 120 ms\n" for n in range(1, 21))
    for name in ("logs/train.log", "train.log"):
        (tmp_path / name).write_text(lines)
    return tmp_path


def by_target() -> list[object]:
    """All in `make guides`; in `make e2e` every twelfth, as they take four minutes together."""
    long = [pytest.mark.e2e, pytest.mark.guides]
    return [pytest.param(command, marks=long if n % 12 else long[:1]) for n, command in enumerate(commands())]


@pytest.mark.parametrize("command", by_target())
def test_a_command_of_the_page_does_what_it_is_there_for(folder: Path, command: str) -> None:
    _, verb, *words = shlex.split(command)
    match verb:
        case "run" if "--show-config" in words or "--dry-run" in words:
            done = stoker("run", "--python", sys.executable, *words, cwd=folder)
            assert done.code == 0, done.err
            assert "batch" in done.out + done.err
            assert not (folder / "runs").exists()
        case "run":
            launches(folder, words)
        case "attach":
            follows(folder, words)
        case "export":
            run_headless(*shortened(["--nproc-per-node", "1", "train.py"]), cwd=folder)
            done = stoker(verb, *words, cwd=folder)
            if "--chart" not in words:  # there is no GPU here, which it says
                assert (done.code, "GPU" in done.err) == (2, True)
            else:
                assert (done.code, "loss" in done.out) == (0, True), done.err
        case _:
            answers(folder, verb, words)


def launches(folder: Path, words: list[str]) -> None:
    """The training ran to its end; its curve and its verdict are on record."""
    done, run, state = run_headless(*shortened(words), cwd=folder)
    assert done.code == 0, done.out + done.err
    assert end_of(state).outcome is Outcome.SUCCEEDED
    (attempt,) = state.attempts
    assert attempt.last_step == int(TINY["num_iterations"])
    assert not_none(attempt.verdict).failure.value == "healthy"
    samples = SeriesReader(run.node().series, "metrics").read()
    assert any("loss" in sample.v for sample in samples), "no loss to chart"


def follows(folder: Path, words: list[str]) -> None:
    """What the log says comes, and Ctrl-C ends it."""
    with subprocess.Popen(
        [*STOKER, "attach", "--no-ui", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if "20/20" in line or "step 20" in line:
                break
        process.send_signal(signal.SIGINT)
        assert wait_until(lambda: process.poll() is not None, 60)
    assert "loss" in seen
    assert process.returncode in {0, 130}


def answers(folder: Path, verb: str, words: list[str]) -> None:
    """A verb that starts no training."""
    more = {"check": ["--python", sys.executable], "init": ["--yes", "--python", sys.executable]}.get(
        verb, []
    )
    if "--data" in words:
        more = []
    done = stoker(verb, *more, *(shortened(words) if "--deep" in words else words), cwd=folder)
    assert done.code == 0, done.out + done.err
    assert done.out.strip()

"""Two-rank scripts whose source, names and logs say nothing of checkpoints: what their processes save, load and look for does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from supervisor.job.spec import Unread
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.state import HeldOpen
from tests.conftest import not_none, wait_until
from tests.integration.harness import (
    detached,
    facts,
    run_headless,
    state_of,
    stoker,
    wait_for_end,
    wait_for_state,
)
from tests.tiers import first as first_cases

pytestmark = pytest.mark.e2e

# The file's name is none of a checkpoint, its folder none of an output, and nothing is printed. Rank 1 crashes once, after a checkpoint.
SCRIPT = """
import argparse, faulthandler, json, os, signal, time, torch, torch.distributed as dist
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

bring = getattr(torch, "lo" + "ad")
p = argparse.ArgumentParser()
p.add_argument("--kappa", default="heap")
p.add_argument("--rho", type=int, default=8)
EXTRA
a = p.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(8, 2); opt = torch.optim.AdamW(model.parameters())
target, first = os.path.abspath(a.kappa + "/zeta.q7"), 0
def found(path):
    try:
        return bool(os.stat(path))
    except OSError:
        return False
source = SOURCE
if source:
    held = bring(source)
    model.load_state_dict(held["m"]); opt.load_state_dict(held["optimizer"]); first = held["step"]
with open(f"told.{rank}.jsonl", "a") as told:
    print(json.dumps([first, source and os.path.relpath(source)]), file=told)
model = DDP(model)
dist.barrier()
data = DataLoader(TensorDataset(torch.randn(4096, 8), torch.randint(0, 2, (4096,))), batch_size=SIZE)
for step, (x, y) in enumerate(data, first + 1):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    opt.step(); opt.zero_grad()
    if step % 5 == 0 and rank == 0:
        os.makedirs(a.kappa, exist_ok=True)
        torch.save({"m": model.module.state_dict(), "optimizer": opt.state_dict(), "step": step}, target + "~")
        os.replace(target + "~", target)
    dist.barrier()
    time.sleep(0.22)  # a save a second is told at once
    while step == 13 and os.path.exists("held"):
        time.sleep(0.05)
    if step == 13 and rank == 1 and RUNS_OUT:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 15.00 GiB of which 1.00 GiB is free."
        )
    if step == 13 and rank == 1 and not first:
        faulthandler.disable(); os.kill(os.getpid(), signal.SIGSEGV)
    if step == 16:
        break
dist.barrier(); dist.destroy_process_group()
"""
FLAGS = ("--nproc-per-node", "2", "--no-check")
LOOKS = "target if os.path.exists(target) else None"
NAMED = 'p.add_argument("--restore-state", default=None)'


def written(
    folder: Path, extra: str = "", source: str = "None", *, size: str = "a.rho", runs_out: bool = False
) -> Path:
    """`folder` with the script in it."""
    folder.mkdir(exist_ok=True)
    parts = {"EXTRA": extra, "SOURCE": source, "SIZE": size, "RUNS_OUT": str(runs_out)}
    text = SCRIPT
    for name, part in parts.items():
        text = text.replace(name, part)
    (folder / "train.py").write_text(text)
    return folder


def told(folder: Path, rank: int = 0) -> list[list[object]]:
    """The step at which each launch began, and the file that it loaded."""
    return [json.loads(line) for line in (folder / f"told.{rank}.jsonl").read_text().splitlines()]


def saved(run: RunPaths) -> list[tuple[int, str, bool]]:
    """Step, path below the job's folder, and whether the step is only about right, of each checkpoint in the journal."""
    found = [fact for fact in facts(run) if isinstance(fact, ev.CheckpointCommitted)]
    return [(one.step, "/".join(Path(one.path).parts[-2:]), one.step_by_time) for one in found]


@pytest.mark.parametrize(
    ("extra", "source", "how"),
    first_cases(1, [("", LOOKS, "measured: itself"), (NAMED, "a.restore_state", "proposed: option")]),
)
def test_an_undeclared_script_goes_on_from_what_it_saved(
    tmp_path: Path, extra: str, source: str, how: str
) -> None:
    folder = written(tmp_path / "job", extra, source)
    done, run, state = run_headless(*FLAGS, "train.py", cwd=folder, timeout_s=300)
    assert done.code == 0, done.out + done.err
    assert told(folder, 0) == told(folder, 1) == [[0, None], [10, "heap/zeta.q7"]]
    first = not_none(state.attempts[0].measured)
    assert first.resume_how == how
    checkpoints = saved(run)
    # Its step is the one that was counted. Of two saves within a second only the first has a record: then it is known by the time.
    assert any(path == "heap/zeta.q7" and (step == 10 or by_time) for step, path, by_time in checkpoints)
    assert len(checkpoints) == len(set(checkpoints)), "each once"
    assert {path for _, path, _ in checkpoints} == {"heap/zeta.q7"}, (
        "none has the name that it was renamed from"
    )
    second = not_none(state.attempts[1].measured)
    assert second.resume_how == ("measured: path_option" if extra else "measured: itself")


def test_what_nothing_shows_is_asked_once_and_remembered(tmp_path: Path) -> None:
    folder = written(tmp_path / "again", source="target if found(target) else None")
    run = detached(folder, "--python", sys.executable, *FLAGS, "train.py")
    held = wait_for_state(run, HeldOpen, 120)
    assert held.open_question is not None
    assert held.open_question.what is Unread.RESUME
    assert [answer.value for answer in held.open_question.answers] == ["itself", "never"]
    request = control.send(
        run.control, ev.RequestKind.ANSWER, if_attempt=1, args=control.RequestArgs(answer="itself")
    )
    assert wait_until(lambda: request in state_of(run).answered, 60)
    control.send(run.control, ev.RequestKind.START_NOW, if_attempt=1)
    wait_for_end(run, 120)
    assert told(folder) == [[0, None], [10, "heap/zeta.q7"]]

    folder = written(tmp_path / "later", source="target if found(target) else None")
    done, run, _state = run_headless(*FLAGS, "train.py", cwd=folder, timeout_s=300)
    assert done.code == 0, done.out + done.err
    assert "you answered on 2" in done.out
    assert told(folder) == [[0, None], [10, "heap/zeta.q7"]]


def test_what_an_out_of_memory_failure_would_need_is_said_early_and_is_the_last_line(tmp_path: Path) -> None:
    folder = written(tmp_path / "job", size="(4, 8, 16)[a.rho // 8]", runs_out=True)
    done, run, state = run_headless(*FLAGS, "train.py", cwd=folder, timeout_s=300)
    assert done.code == 1, done.out + done.err
    missing = "--batch-knob NAME --accumulation-knob NAME --resume-knob FLAG=PATH"
    lines = done.out.splitlines()
    why = "what makes the 8 samples of a rank is not certain: perhaps --rho"
    said = [
        at
        for at, line in enumerate(lines)
        if line.endswith(f"out of memory would end this run: {why}; {missing}")
    ]
    died = next(at for at, line in enumerate(lines) if "[ERROR]" in line)
    assert len(said) == 1, done.out
    assert said[0] < died
    given = f"--nproc-per-node 2 --python {sys.executable} --no-ui --no-check"
    assert lines[-1] == f"stoker run {missing} {given} train.py"
    assert len(state.attempts) == 1
    # Who comes back later, as to a detached run, finds it too.
    later = stoker("attach", run.run_id, "--no-ui", cwd=folder), stoker("runs", cwd=folder)
    assert later[0].out.splitlines()[-1] == later[1].err.splitlines()[-1] == lines[-1]
    listed = json.loads(stoker("runs", "--json", cwd=folder).out)
    assert listed["start_again"] == lines[-1]

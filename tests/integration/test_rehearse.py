"""`stoker rehearse` on real jobs of two ranks: what it proves, what it finds wanting, and that nothing is written."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest

from supervisor.sources.overlay import NoOverlayError, enter, remove
from tests.integration.harness import stoker
from tests.tiers import first

pytestmark = pytest.mark.e2e

TRAIN = """
import argparse, os, time, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=16); parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--resume", default="")
args = parser.parse_args()
dist.init_process_group("gloo"); rank = dist.get_rank()
torch.manual_seed(0)
loader = torch.utils.data.DataLoader(torch.randn(60_000, 8), batch_size=args.batch_size)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
done = 0
if args.resume and RESUMES:
    state = torch.load(args.resume)
    model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"]); done = state["step"]
batches = iter(loader)
for step in range(done + 1, 400):
    for _ in range(args.accumulate):
        loss = (model(next(batches)) - 1).square().mean()
        (loss / args.accumulate).backward()
    optimizer.step(); optimizer.zero_grad(); time.sleep(0.05)
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 10 == 0:
            os.makedirs("out", exist_ok=True)
            open("/tmp/also_written_here", "w").close()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"out/step_{step}.pt")
"""


@pytest.fixture(autouse=True)
def overlays(tmp_path: Path) -> None:
    """Skip where the kernel refuses them."""
    scratch = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        subprocess.run(["true"], check=True, preexec_fn=partial(enter, [tmp_path], scratch))
    except (NoOverlayError, subprocess.SubprocessError):
        pytest.skip("this kernel refuses overlays in a user namespace")
    finally:
        remove(scratch)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def rehearsed(folder: Path, *own: str, resumes: bool = True) -> tuple[int, dict[str, object]]:
    (folder / "train.py").write_text(TRAIN.replace("RESUMES", str(resumes)))
    before, scratch = contents(folder), {*Path("/var/tmp").iterdir()}
    done = stoker("rehearse", "--json", *own, "--nproc-per-node", "2", "train.py", cwd=folder)
    assert contents(folder) == before
    assert not Path("/tmp/also_written_here").exists()
    assert {*Path("/var/tmp").iterdir()} == scratch, "the scratch folder is deleted"
    return done.code, json.loads(done.out)


@pytest.mark.parametrize(
    ("own", "failure"), first(1, [((), "cuda_oom"), (("--fail", "kill", "--rank", "1"), "worker_crash")])
)
def test_a_job_that_resumes_is_proved_and_nothing_is_written(
    own: tuple[str, ...], failure: str, tmp_path: Path
) -> None:
    code, told = rehearsed(tmp_path, *own)
    assert (code, told["proved"]) == (0, True), told
    holds = " · ".join(told["holds"])  # type: ignore[arg-type]
    assert f"the failure is recognized: {failure}" in holds
    went_on = re.search(r"it goes on from checkpoint (\d+): its first step is (\d+)", holds)
    assert went_on is not None, holds
    assert int(went_on[2]) == int(went_on[1]) + 1
    if failure == "cuda_oom":
        assert "measured after the restart: micro-batch 8 × accumulation 4, global batch 64" in holds
        assert "the global batch stays 64" in holds


@pytest.mark.thorough
def test_a_job_that_does_not_resume_is_told_so(tmp_path: Path) -> None:
    code, told = rehearsed(tmp_path, resumes=False)
    assert (code, told["proved"]) == (1, False)
    assert "no checkpoint was loaded" in str(told["broken"])


def test_a_script_that_cannot_start_says_what_run_says(tmp_path: Path) -> None:
    done = stoker("rehearse", "gone.py", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "gone.py: no such script" in done.err

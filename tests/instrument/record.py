"""Record the facts in ``tests/job/measured`` anew: ``python -m tests.instrument.record PYTHON [STYLE ...]``.

PYTHON is the interpreter of an environment with torch, transformers, accelerate, trl, datasets, lightning, jsonargparse, hydra-core,
tyro, click, fire and absl-py. Each style runs once on two ranks; times, memory and the machine's paths are left out.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import supervisor
from tests.instrument.truths import STYLES, Truth, truths

RECORDED = Path(__file__).parents[1] / "job" / "measured"
ON_PATH = Path(supervisor.__file__).parent / "instrument" / "on_path"
LEFT_OUT = {"v", "t_wall", "t_mono", "memory_peak_bytes", "memory_reserved_peak_bytes"}
LEFT_OUT |= {"step_time_s", "data_wait_s", "bytes"}


def record(truth: Truth, python: str, folder: Path) -> str:
    """Run a style in `folder`; its records, the ranks' in turns."""
    shutil.copytree(STYLES, folder / "job")
    out, telemetry = folder / "out", folder / "telemetry"
    out.mkdir()
    words = [word for word in shlex.split(truth["launch"]) if word != "env"]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    args = shlex.split(truth["args"].replace("{out}", str(out)))
    script = f"{truth['name']}.py"
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, *args]
    commands = {"torchrun": torchrun, "python": [python, script, *args]}
    command = commands.get(words[-1], [*words, *args])
    ours = {"STOKER_TELEMETRY_DIR": str(telemetry), "PYTHONPATH": str(ON_PATH), "OUTD": str(out)}
    ours["PATH"] = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"  # a shell script calls torchrun
    subprocess.run(
        command,
        cwd=folder / "job",
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **ours, **given},
        check=False,
        timeout=300,
    )
    ranks = [path.read_text().splitlines() for path in sorted(telemetry.glob("measured*.jsonl"))]
    lines = []
    for line in itertools.chain.from_iterable(itertools.zip_longest(*ranks)):
        kept = {key: value for key, value in json.loads(line or "{}").items() if key not in LEFT_OUT}
        lines += [json.dumps(kept, separators=(",", ":"))] if kept else []
    text = "\n".join(lines) + "\n"
    for path, name in (
        (f"{folder}/job", "/job"),
        (f"{out}", "/job/out"),
        (str(Path(python).parents[1]), "/venv"),
    ):
        text = text.replace(path, name)
    return text


def main() -> None:
    """Record the styles that are named, or all."""
    python, *names = sys.argv[1:]
    for truth in truths("truth.jsonl") + truths("hard.jsonl"):
        if names and truth["name"] not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            text = record(truth, python, Path(folder))
        path = RECORDED / f"{truth['name']}.jsonl.gz"
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(truth["name"], len(text.splitlines()))


if __name__ == "__main__":
    main()

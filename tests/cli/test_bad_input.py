"""Bad input of any verb is one line that says what and what to do, exit code 2, and nothing left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor import __version__
from supervisor.cli.main import EXIT_CODES
from tests.cli.conftest import Answer, Call

BATCH = "device_batch_size = 16\ntotal_batch_size = 49152\nmax_seq_len = 2048\n"
FILES = {
    "train.py": "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\n",
    "sub/there.py": "",
    "train.sh": "\ntouch ran\n",
    "bash-launch": "#!/bin/bash -l\ntouch ran\n",
    "zsh-launch": "#!/usr/bin/env zsh\ntouch ran\n",
    "good.toml": "depth = 2\n",
    "bad.toml": "a = = 1\n",
    "bad.yaml": "a: [1\n",
    "bad.py": "import os\nlr = os.environ['LR']\n",
    "key.toml": "learning_rat = 1\n",
    "batch.toml": BATCH,
    "logs/x.log": "step 1 loss 2.5\n",
    "model.pt": "PK\3\4\0\0\1\2" * 900,
}
TOKEN = "ghp_R7kQ2mZx9LpT4vBn8YcW1sHd6JfA3gEu5oXi"
# A command line, and what its one line holds.
CASES = (
    ("atach", "did you mean `stoker attach`"),
    ("train.py", "to launch it: stoker run train.py; to read a log: stoker diagnose train.py"),
    ("model.pt", "stoker diagnose model.pt"),
    ("zzz.py", "stoker run zzz.py"),
    ("zzz", "`stoker --help` lists the verbs"),
    ("w" * 100_000, f"unknown verb '{'w' * 119}…{'w' * 78}':"),
    ("run", "stoker init"),
    ("run nope.py", "nope.py"),
    ("run folder", "folder"),
    ("run --nproc-per-nod 2 train.py", "--nproc-per-node"),
    ("run --nproc-per-node 0 train.py", "--nproc-per-node"),
    ("run --nproc-per-node=100000 train.py", "at most 1024"),
    ("run --max-retries many train.py", "many"),
    ("run --name", "--name"),
    ("run --", "--"),
    ("run -m", "-m"),
    ("run train.sh 8", ": stoker run -- bash train.sh 8\n"),
    ("run bash-launch 8", ": stoker run -- bash bash-launch 8\n"),
    ("run zsh-launch 8", ": stoker run -- zsh zsh-launch 8\n"),
    ("run --config nope.toml", "presets are "),
    ("run --config folder", "--config folder: not a file"),
    ("run --config pipe", "--config pipe: not a file"),
    ("run --config bad.toml", "bad.toml"),
    ("run --config bad.yaml", "bad.yaml"),
    ("run --config bad.py", "bad.py"),
    ("run --config key.toml", "learning_rate"),
    ("run --config batch.toml --nproc-per-node 2", "49152"),
    ("run --dry-run --config batch.toml --nproc-per-node 2", "49152"),
    ("run --config good.toml --depth=-1", "--depth must be at least 1"),
    ("run --config good.toml --learning_rate=-1", "--learning_rate must be above 0"),
    ("run --config good.toml --num_iterations=0", "--num_iterations must be at least 1"),
    ("run --config good.toml --config other.toml", "--config"),
    ("run --python /dev/null train.py", "/dev/null"),
    ("run --env 1=2 train.py", "--env"),
    ("run --dry-run --batch-knob NAME train.py", "NAME: write the script's own option in its place"),
    ("run --dry-run --resume-knob FLAG=PATH train.py", "FLAG: write the script's own option in its place"),
    ("run --dry-run --env NAME train.py", "wants KEY=VALUE, got 'NAME'"),
    (f"run --env {TOKEN} -- true", "got '<redacted>'"),
    (f"run --env hf-x={TOKEN} -- true", "got 'hf-x='"),
    ("run train.py --data \udcff", "UTF-8"),
    (f"run --python {sys.executable} --runs-dir train.py/runs train.py", "--runs-dir"),
    ("check nix.py", "no such script"),
    ("check trian.py", "no such script: did you mean train.py?"),
    ("check there.py", "no such script: did you mean sub/there.py?"),
    ("check sub/thare.py", "no such script: did you mean sub/there.py?"),
    ("check --nproc-per-nod 2 train.py", "did you mean --nproc-per-node"),
    ("check --data", "nothing to check: name files with --data PATH…"),
    ("config explain hang.act_ss", "did you mean 'hang.act_s'?"),
    ("config explain learnin_rate", "did you mean 'learning_rate'?"),
    ("config explain zzzzzz", "no setting 'zzzzzz'"),
    ("config explain grace_s --grace -3", "--grace must be at least 0"),
    ("config explain grace_s --config nowhere", "no such file"),
    ("init nope.py", "nope.py"),
    (f"init --yes train.py --hf_token {TOKEN}", "secret"),
    (f"init --yes --env HF_TOKEN={TOKEN} train.py", "HF_TOKEN"),
    (f"init --yes --name {TOKEN} train.py", "secret"),
    ("init --yes --out train.py", ".toml"),
    ("init --yes --out nowhere/j.toml", "nowhere"),
    ("init --yes --detach train.py", "--detach"),
    ("init --yes --nnodes 2 train.py", "--master-addr"),
    ("init --yes --nnodes 2 --master-addr n1 --start train.py", "--start"),
    ("init --yess", "--yes"),
    ("init -- python train.py", "stoker run -- "),
    ("init --micro-batch 3x train.py", "--micro-batch"),
    ("init --lang fr train.py", "--lang"),
    ("runs --nummber 2", "--number"),
    (f"runs --{'w' * 100_000}", "`stoker runs --help`"),
    ("runs --scaling nope", "nope"),
    ("attach", "stoker run"),
    ("attach nope", "stoker runs"),
    ("attach ~nobody-here/run", "~nobody-here"),
    ("attach nope.log", "no such file"),
    (f"attach {'x' * 5000}", "too long"),
    ("attach --interval 0", "--interval"),
    ("attach --no-ui folder", "folder"),
    ("attach --no-ui model.pt", "a binary file, not a log"),
    ("attach --no-ui 999999999", "999999999"),
    ("attach --no-ui ²", "²"),
    ("stop nope", "nope"),
    ("policy", "stoker policy explain [RUN]"),
    ("replay nope", "nope"),
    ("export", "one of the arguments --gpu-csv --chart is required"),
    ("export --chart nope", "nope"),
    ("export --gpu-csv nope", "nope"),
    ("diagnose folder", "folder"),
    ("diagnose nope.log", "nope.log"),
    ("diagnose logs --attempt 3", "no attempt 3"),
    ("diagnose /dev/null", "/dev/null"),
    ("metrics folder", "folder"),
    ("metrics nope.log", "nope.log"),
    ("metrics nope", "nope"),
    ("metrics model.pt", "model.pt"),
    ("troubleshoot qqqq", "stoker troubleshoot"),
    ("troubleshoot --lang fr", "--lang"),
    ("slurm script", "nothing to start"),
    ("slurm script --time soon t.py", "--time soon: SLURM takes minutes"),
    ("slurm script --nodes 0 t.py", "--nodes wants a whole number of at least 1"),
    ("slurm script --partition 'a b' t.py", "a space or a line break"),
    ("slurm script --sbatch 'rm -rf' t.py", "an option of sbatch is meant"),
    ("slurm submit t.py", "sbatch is not on PATH"),
    ("slurm watch", "squeue is not on PATH"),
    ("slurm cancel x", "'x' is no number of a job"),
    ("slurm cancel", "which job?"),
    ("slurm tidy", "invalid choice"),
    ("nodes up --hosts a:2,b:3 train.py", "a 2, b 3: all nodes"),
    ("nodes up --hosts a,b --nprocs 4 train.py", "--nprocs"),
    ("nodes up --hosts a,b --env x train.py", "--env 'x': a name, = and a value"),
    ("nodes down", "invalid choice: 'down'"),
)


@pytest.mark.parametrize(("line", "said"), CASES, ids=lambda text: text[:40])
@pytest.mark.fault(
    "hostile input", "bad arguments, files and folders", "one line, exit 2, nothing left behind"
)
def test_bad_input_is_one_line_and_leaves_nothing(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("folder", "sub", "logs"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    printed = call(line)
    assert (printed.code, printed.out) == (2, ""), printed
    assert said in printed.err
    assert TOKEN not in printed.err
    assert len(printed.err.strip().splitlines()) == 1, printed.err
    assert len(printed.err) < 1000
    assert "Traceback" not in printed.err
    assert sorted(tmp_path.rglob("*")) == before
    state = Path(os.environ["XDG_STATE_HOME"])
    assert not [path for path in state.rglob("*") if path.is_file()]
    assert not list(state.glob("stoker/observed/*"))


def test_help_and_empty_lists_are_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    usage = call("--help")
    assert usage.out.startswith("usage: stoker VERB [arguments]")
    assert usage.out.endswith(f"\n\n{EXIT_CODES}\n")
    assert [call(line) for line in ("-h", "help", "")] == [usage] * 3
    assert call("-V") == call("--version") == Answer(0, f"stoker {__version__}\n", "")
    assert call("runs") == Answer(0, "", f"no run under {tmp_path}/runs: start one with `stoker run`\n")
    code, out, err = call("run --help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: stoker run [flags] SCRIPT.py [the script's arguments]\n")
    titles = [line for line in out.splitlines() if re.fullmatch(r"\w+:", line)]
    assert titles == ["flags:", "screen:", "restarts:", "batch:"]


def test_flags_stand_anywhere_and_after_two_dashes_nowhere(call: Call) -> None:
    for line in ("explain nope --interactive", "explain --interactive nope", "--interactive explain nope"):
        assert call(f"policy {line}").err.startswith("stoker policy: no run named 'nope': ")
    for verb in ("stop", "attach", "diagnose"):
        code, out, err = call(f"{verb} -- --help")
        assert (code, out, "--help" in err) == (2, "", True)


@pytest.mark.fault("hostile input", "the reader of a pipe leaves early (`| head`)", "no error, no traceback")
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m supervisor --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_terminal_that_knows_few_letters_gets_escapes(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "--help"], capture_output=True, timeout=30, check=False, env=env,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"exit codes: 0 succeeded" in done.stdout

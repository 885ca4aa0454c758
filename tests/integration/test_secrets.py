"""Secrets of all shapes, in the environment, arguments, a config, URLs and the log of a real run that fails: none in what stoker writes."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.conftest import not_none
from tests.integration.harness import only_run, state_of, stoker
from tests.text.secrets import IN_ARGV, IN_ENV, IN_TEXT, SECRETS, WORDS, Form

pytestmark = pytest.mark.timeout(500)

# What the job itself writes: everything else is ours.
THEIRS = ("stdout.log", "stderr.log", "agent.log", "error.json")
SHORT = 6
"""A shorter secret may stand somewhere by chance."""


def pieces(secret: str) -> list[bytes]:
    """What of a secret must be nowhere: each of its lines."""
    return [line.strip().encode() for line in secret.splitlines() if len(line.strip()) > SHORT]


def held_by(folder: Path, secrets: list[bytes]) -> list[tuple[str, bytes]]:
    """Files below a folder that stoker wrote, and which secrets are in them."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name not in THEIRS:
            data = path.read_bytes()
            plain = json.dumps(data.decode("utf-8", "replace")).encode()
            found += [(path.name, secret) for secret in secrets if secret in data or secret in plain]
    return found


# Trains two steps, as the instrumentation wants to see; prints what it was given and read, and notes what that was, for the test.
TRAINING = """
import argparse, hashlib, json, os, sys, yaml
from pathlib import Path
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--hf-token2"); parser.add_argument("--db-pass"); parser.add_argument("--batch-size", type=int, default=4)
args, _ = parser.parse_known_args()
conf = yaml.safe_load(open("conf.yaml"))
names = os.environ["NAMES"].split()
given = [sys.argv[1:], [os.environ[name] for name in names], conf]
Path(os.environ["NOTE"]).write_text(hashlib.sha256(json.dumps(given).encode()).hexdigest())
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=args.batch_size)
for step, (x,) in enumerate(data, 1):
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
    print(f"step {step} loss: 2.0", flush=True)
for line in Path("lines.txt").read_text().split("\\0"):
    print(f"RuntimeError: {line}", file=sys.stderr)
for name in names:
    print(f"ValueError: {name}={os.environ[name]}", file=sys.stderr)
print(f"merged config: {conf}", file=sys.stderr)
raise RuntimeError(f"CUDA error: {sys.argv[1:]} {names} {args.db_pass}")
"""


@pytest.mark.e2e
@pytest.mark.fault(
    "secrets and access",
    "some 130 secrets of 45 shapes in environment, arguments, config, log and URLs",
    "stoker writes and prints none of them",
)
@pytest.mark.fault(
    "secrets and access",
    "100 secrets of 10 forms in a training's arguments, variables, config and log",
    "stoker writes and prints none of them; the training gets them unchanged",
)
def test_no_secret_is_in_anything_that_stoker_writes_and_the_training_gets_all(tmp_path: Path) -> None:
    job, note = tmp_path / "job", tmp_path / "note"
    job.mkdir()
    given = [
        word for row in SECRETS if row.form in WORDS - {Form.VARIABLE} for word in shlex.split(row.text)[1:]
    ]
    given += [word for _, argv, secret in IN_ARGV if len(secret) > SHORT for word in argv]
    variables = {name: value for name, value, secret in IN_ENV if secret}
    variables |= dict(row.text.split("=", 1) for row in SECRETS if row.form is Form.VARIABLE)
    of_config = {"hfToken2": "abc9-kim", "db": {"dbpass": "q7!Horse", "port": 5432}, "Password2": 48151623}
    conf = {**of_config, "max_tokens": 4096, "api_key": "Zq8!kW2#mN5x"}
    conf |= {f"a.part{index}": row.secret for index, row in enumerate(SECRETS) if row.form is Form.TOKEN}
    (job / "train.py").write_text(TRAINING, encoding="utf-8")
    (job / "conf.yaml").write_text(json.dumps(conf), encoding="utf-8")
    in_lines = [row.text for row in SECRETS if row.form not in WORDS] + [planted.text for planted in IN_TEXT]
    (job / "lines.txt").write_text("\0".join(in_lines), encoding="utf-8")
    names = [*variables]
    env = {
        **variables,
        "NAMES": " ".join(names),
        "NOTE": str(note),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    of_flag = "Tr0ub4dor-flag"
    words = ["--python", sys.executable, "--env", f"JOB_PASSWORD={of_flag}"]
    command = ["--", sys.executable, "train.py", *given]
    done = stoker("run", "--no-ui", "--max-retries", "1", *words, *command, cwd=job, env=env)
    run = only_run(job)
    assert done.code in {1, 4}, done.err
    verdict = not_none(state_of(run).attempts[-1].verdict)
    assert verdict.cause is not None
    expected = json.dumps([given, [variables[name] for name in names], conf])
    assert note.read_text() == hashlib.sha256(expected.encode()).hexdigest()
    telemetry = run.node().attempt(1).telemetry
    assert b'"batch_size"' in b"".join(path.read_bytes() for path in telemetry.glob("measured*")), (
        "facts were written"
    )
    labelled = [piece for row in SECRETS for piece in pieces(row.secret)] + [b"abc9-kim", b"48151623"]
    planted = [secret for _, _, secret in (*IN_ARGV, *IN_ENV)] + [one.secret for one in IN_TEXT]
    secrets = [piece for secret in (of_flag, "Zq8!kW2#mN5x", *planted) for piece in pieces(secret)]
    log = run.node().attempt(1).agent_log
    logs = log.read_bytes()
    assert [secret for secret in labelled if secret not in logs] == [], "the script's own log has them"
    assert sum(secret in logs for secret in set(secrets)) >= 60
    secrets += labelled
    said = [done.out, done.err]
    for verb in (
        ["diagnose", str(run.root)], ["diagnose", "--json", "--explain", str(run.root)], ["diagnose", "--explain", str(log)],
        ["attach", "--no-ui", run.run_id], ["attach", "--no-ui", "--json", run.run_id], ["runs", "--json"],
        ["metrics", str(log), "--json"], ["policy", "explain", run.run_id], ["continue", "--yes", run.run_id],
        ["run", "--dry-run", "--json", *words, *command], ["run", "--show-config", *words, *command],
        ["run", f"--no-such-password={of_flag}"],
    ):  # fmt: skip
        ended = stoker(*verb, cwd=job, env=env)
        assert "Traceback" not in ended.err, verb
        said += [ended.out, ended.err]
        printed = (ended.out + ended.err).encode()
        assert [secret for secret in secrets if secret in printed] == [], verb
    printed = "".join(said).encode()
    assert [secret for secret in secrets if secret in printed] == []
    assert b"<redacted>" in printed
    assert held_by(run.root, secrets) == []
    assert held_by(tmp_path / "state", secrets) == []
    ours = [p for p in run.root.rglob("*") if p.is_file() and not p.is_symlink() and p.name not in THEIRS]
    assert [path for path in ours if path.stat().st_mode & 0o077] == []

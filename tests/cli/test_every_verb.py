"""Every verb in a folder where every name attacks the terminal: none acts on it, none begins a line of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
import tomllib
import tty
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from supervisor.cli.main import VERBS
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import DecisionKind, UsedBatch
from supervisor.run.runfile import read_run_file, write_run_file
from supervisor.run.series import METRICS
from tests.hostile import shows
from tests.integration.harness import environment
from tests.views.tui.recorded import Recording

FORGED = "FORGED"
# A title with its bell, a line that is drawn over, a color that is not ours, C1, right to left, what is not seen, and a line of its own.
ATTACK = f"\x1b]0;t\x07\r\x1b[41;5m\x9b31m\u202e\u200b\x7f\n{FORGED}"
LOG = "[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: no \x1b[41;5mcolumn\x1b[0m \x1b]0;t\x07\u202ex\n"
# Our colors, and a line that is drawn again; the attack has none of them.
OWN = re.compile(r"\x1b\[(?:[0-2]|3[0-7]|9[0-7]|38;5;\d+|48;5;\d+|[34]9)?m|\r?\x1b\[2?K|\x1b\[\d+A")
PLAY = """
import json, os, socket, sys
socket.gethostname = lambda: os.environ["USER"]
from supervisor.cli.main import main
for argv in json.loads(sys.argv[1]):
    try:
        code = main(argv)
    except SystemExit as end:
        code = end.code
    sys.stdout.flush(), sys.stderr.flush()
    for number in (1,) if os.isatty(2) else (1, 2):
        os.write(number, b"\\0%d\\0" % code)
"""
PROGRAMS = {
    "squeue": """printf '7|FAILED|%s|N/A|59:00|n1|2|%s\\n' "$USER" "$USER" """,
    "scontrol": """printf 'JobId=7 JobName=%s JobState=FAILED Reason=None NodeList=n1 ExitCode=1:0 StdOut=%s\\n' "${USER%?FORGED}" "$LOG" """,
    "sinfo": "echo n1 idle",
    "sbatch": """printf 'sbatch: error: %s\\n' "$USER" >&2; exit 1""",
    "ssh": """case "$*" in *" -G "*) echo hostname 127.0.0.1;; *) cat > /dev/null; cat answer;; esac""",
}


def on_record(root: Path) -> RunPaths:
    """A run that failed, with the attack in everything that has a name."""
    rec = Recording(root, name=f"job{ATTACK}")
    record = read_run_file(rec.run.run_json)
    job = replace(
        record.job,
        entry=f"train{ATTACK}.py",
        entry_args=(f"--lr={ATTACK}", "--batch_size", "16"),
        cwd=f"/home/{ATTACK}",
        env=((f"V{ATTACK}", ATTACK),),
        origins=(("run.name", f"job{ATTACK}", f"./{ATTACK}.toml"),),
    )
    names = {"host": f"box{ATTACK}", "user": f"me{ATTACK}", "git_commit": f"branch{ATTACK}"}
    write_run_file(rec.run.run_json, msgspec.structs.replace(record, job=job, **names))
    rec.launch(f"because{ATTACK}")
    for index in range(rec.gpus):
        rec.fact(ev.GpuFound(t=rec.t, index=index, uuid=f"GPU-{ATTACK}", name=f"H{ATTACK}"))
    rec.steps(1, 30)
    for step in (31.0, 32.0):
        values: dict[str, float | None] = {
            "step": step,
            "loss": 1.0,
            "tokens_per_sec": 9.0,
            f"m{ATTACK}": 1.0,
        }
        rec.series.append(METRICS, rec.t + step, "job", 1, values)
    path = f"/ckpt{ATTACK}/step_30.pt"
    rec.fact(ev.CheckpointCommitted(t=rec.t, attempt=1, step=30, path=path, found=True, layout="file"))
    rec.fact(ev.CheckpointKept(t=rec.t, attempt=1, step=30, path=path, why=f"no room{ATTACK}"))
    rec.fact(ev.NoteAdded(t=rec.t, text=f"note{ATTACK}", by=f"me{ATTACK}"))
    rec.fact(ev.Advisory(t=rec.t, attempt=1, code="odd", text=f"advice{ATTACK}", rank=0))
    verdict = rec.out_of_memory()
    batch = UsedBatch(0, f"/a{ATTACK}/train.py:3", 0, 1, 1, ((2, 4),), (f"int{ATTACK}",), 2, (5, 6))
    verdict = replace(
        verdict, title=f"title{ATTACK}", node=f"n{ATTACK}", advice=(f"do{ATTACK}",), batches=(batch,)
    )
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict))
    rec.decide(DecisionKind.GIVE_UP, f"reason{ATTACK}")
    rec.fact(ev.RunEnded(t=rec.t, outcome=ev.Outcome.FAILED, exit_code=1, reason=f"over{ATTACK}"))
    return rec.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the verbs are called in; its own name attacks, too."""
    folder = tmp_path_factory.mktemp("verbs") / f"job{ATTACK}"
    on_record(folder / f"runs/20261121-1412-otter{ATTACK}")
    (folder / f"train{ATTACK}.py").write_text("import sys\nprint('step 1 loss 2.0', sys.argv)\nsys.exit(3)\n")
    (folder / f"log{ATTACK}").mkdir()
    (folder / f"log{ATTACK}" / f"rank0{ATTACK}.log").write_text(f"step 1 loss 2.0 m\x1b]0;t\x07x 3.0\n{LOG}")
    (folder / "job-7.out").write_text(LOG)
    key = json.dumps(f"k{ATTACK}")
    (folder / f"bad{ATTACK}.toml").write_text(f"{key} = 1\n[policy]\n{key} = {key}\nmax_retries = {key}\n")
    (folder / f"tokens{ATTACK}.bin").write_bytes(b"\1")
    status = {
        "host": f"h{ATTACK}",
        "found": True,
        "state": f"s{ATTACK}",
        "attempt": 1,
        "text": ATTACK,
        "ok": False,
    }
    (folder / "answer").write_text(f"{json.dumps(status)}\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text(f"ref: refs/heads/x{ATTACK}\n")
    (folder / "bin").mkdir()
    for name, body in PROGRAMS.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


RUN, SCRIPT, LOGS = f"runs/20261121-1412-otter{ATTACK}", f"train{ATTACK}.py", f"log{ATTACK}"
RANK = f"{LOGS}/rank0{ATTACK}.log"
JOB = ("--nproc-per-node", "1", "--python", sys.executable, "--name", f"n{ATTACK}", SCRIPT, f"--x={ATTACK}")
HOSTS = ("--hosts", "a,b", "--run-dir", f"r{ATTACK}")
# Of each verb the words that make it print what others named, and where it refuses them.
WORDS: dict[str, list[tuple[str, ...]]] = {
    "run": [
        ("--dry-run", *JOB), ("--dry-run", "--json", *JOB), ("--show-config", *JOB), ("--show-config", "--json", *JOB),
        (f"--bogus{ATTACK}", "x.py"), (f"gone{ATTACK}.py",), ("--config", f"bad{ATTACK}.toml", SCRIPT),
        ("--config", f"gone{ATTACK}", SCRIPT), ("--python", f"gone{ATTACK}", SCRIPT), ("--runs-dir", RANK, *JOB),
        ("--no-ui", "--no-check", "--no-retry", "--name", f"n{ATTACK}", "--", "sh", "-c", "echo ValueError: $1; exit 3", "x", ATTACK),
        ("--no-ui", "--json", "--no-check", "--no-retry", "--name", f"n{ATTACK}", "--", "sh", "-c", "exit 0", ATTACK),
    ],
    "init": [("--yes", "--out", "new.toml", SCRIPT), ("--yes", "--out", f"new{ATTACK}.toml", SCRIPT), ("--yes", "--out", RANK, SCRIPT), ("--yes", f"gone{ATTACK}.py")],
    "attach": [("--no-ui", RUN), ("--no-ui", "--json", RUN), ("--adopt", RUN), (f"gone{ATTACK}",), (f"--{ATTACK}",)],
    "stop": [(RUN,), (f"gone{ATTACK}",)],
    "profile": [(RUN,), (f"gone{ATTACK}",)],
    "continue": [("--yes", "--no-ui", RUN), (RUN,), (f"gone{ATTACK}",)],
    "runs": [(), ("--json",), ("--all",), ("--scaling", RUN), ("--csv", "--scaling", RUN), ("--scaling", f"gone{ATTACK}"), ("--runs-dir", f"gone{ATTACK}"), ("--runs-dir", RANK)],
    "gc": [("--keep", f"x{ATTACK}"), ("--keep", "1h")],
    "diagnose": [(RANK,), ("--explain", LOGS), ("--json", "--explain", RANK), (RUN,), ("--json", RUN), (f"gone{ATTACK}",)],
    "batch": [(RUN,), ("--json", RUN), (f"gone{ATTACK}",)],
    "rehearse": [(f"--for={ATTACK}", SCRIPT), (f"s3://{ATTACK}",), (f"--bogus{ATTACK}",)],
    "why-slow": [(RUN,), ("--json", RUN), (f"gone{ATTACK}",)],
    "troubleshoot": [(f"symptom{ATTACK}",)],
    "metrics": [(LOGS,), ("--json", LOGS), (RUN,), (f"gone{ATTACK}",)],
    "policy": [("explain", RUN), ("explain", "--config", f"bad{ATTACK}.toml", RUN), ("explain", f"gone{ATTACK}")],
    "replay": [(f"gone{ATTACK}",)],
    "export": [("--gpu-csv", RUN), ("--gpu-csv", "--averages", RUN), ("--chart", RUN), ("--chart", "--metric", f"m{ATTACK}", RUN), ("--chart", "--metric", f"no{ATTACK}", RUN)],
    "config": [("explain", *JOB), ("explain", "--json", *JOB), ("explain", "run.name", *JOB), ("explain", f"no{ATTACK}")],
    "slurm": [
        ("script", "--job-name", f"j{ATTACK}", *JOB), ("script", "--setup", f"echo {ATTACK}", *JOB), ("script", *JOB),
        ("submit", *JOB), ("logs", "7"), ("watch", "7"), ("cancel", "--yes", "7"), ("cancel", f"7{ATTACK}"),
    ],
    "nodes": [
        ("status", *HOSTS), ("stop", "--timeout", "0", *HOSTS), ("logs", *HOSTS), ("status", f"gone{ATTACK}"),
        ("check", "--hosts", f"a{ATTACK},b", *JOB), ("check", "--hosts", "a,b", "--env", ATTACK, *JOB),
        ("status", "--hosts-file", f"gone{ATTACK}"),
    ],
    "check": [JOB, ("--json", *JOB), ("--data", f"tokens{ATTACK}.bin"), ("--data", f"gone{ATTACK}")],
}  # fmt: skip
# Off a terminal alone: there they open the app (tests/views/tui/test_hostile.py), or read an answer.
PIPED = {"attach": {(f"gone{ATTACK}",)}}


def answers(folder: Path, words: Sequence[Sequence[str]], *, on_terminal: bool) -> Iterator[tuple[str, str]]:
    """Of each call stdout and stderr; on a terminal they are one, and stderr is empty."""
    env = environment(
        {
            "USER": ATTACK,
            "LOGNAME": ATTACK,
            "TERM": "xterm",
            "COLUMNS": "200",
            "LOG": str(folder / "job-7.out"),
        }
    )
    env["PATH"] = f"{folder / 'bin'}:{env['PATH']}"
    argv = [sys.executable, "-c", PLAY, json.dumps(words)]
    if not on_terminal:
        done = subprocess.run(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False
        )
        outs, errs = (re.split("\0\\d+\0", data.decode()) for data in (done.stdout, done.stderr))
        assert len(outs) == len(errs) == len(words) + 1, (outs[-1], errs[-1])
        yield from zip(outs[:-1], errs[:-1], strict=True)
        return
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    parts: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 1 << 16):
                parts.append(data)
        except OSError:
            return  # the other side is closed

    reader = threading.Thread(target=read)
    reader.start()
    try:
        os.write(ours, b"n\n" * 20)  # whatever is asked
        subprocess.run(
            argv, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs, timeout=300, check=False
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    outs = re.split("\0\\d+\0", b"".join(parts).decode())
    assert len(outs) == len(words) + 1, outs[-1]
    yield from ((out, "") for out in outs[:-1])


def faults(printed: str, *, own: bool) -> list[str]:
    """The lines that would act on a terminal, or that a value began."""
    text = OWN.sub("", printed) if own else printed
    return [
        line
        for line in text.split("\n")
        if line.lstrip().startswith(FORGED) or any(char != "\t" and not shows(char) for char in line)
    ]


@pytest.mark.parametrize("on_terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.fault(
    "hostile input",
    "names of runs, users, hosts, metrics, checkpoints, files, arguments that hold escapes and line breaks",
    "every verb shows them as escapes, in one line",
)
def test_no_verb_lets_a_name_act_on_the_terminal(folder: Path, on_terminal: bool) -> None:
    calls = [
        (verb, *words)
        for verb, several in WORDS.items()
        for words in several
        if not (on_terminal and words in PIPED.get(verb, ()))
    ]
    named: set[str] = set()
    wrong = {}
    for call, (out, err) in zip(calls, answers(folder, calls, on_terminal=on_terminal), strict=True):
        if FORGED in out + err:
            named.add(call[0])
        shown = " ".join(call).replace(ATTACK, "@")
        if found := faults(out, own=on_terminal) + faults(err, own=on_terminal):
            wrong[shown] = found
        if "Traceback (most recent call last)" in out + err and "diagnose" not in call and "logs" not in call:
            wrong[f"{shown}: a traceback"] = [out + err]
        if "--json" in call and not on_terminal:
            for line in filter(None, out.split("\n")):
                json.loads(line)
    for path in folder.glob("runs/*/**/*.log"):
        if "attempts" not in path.parts and (found := faults(path.read_text(encoding="utf-8"), own=False)):
            wrong[path.name] = found
    assert wrong == {}, "\n".join(f"{call}\n  {lines}" for call, lines in wrong.items())
    assert named == set(VERBS), f"of these nothing was shown, so nothing is proven: {set(VERBS) - named}"


def test_each_verb_has_words_here() -> None:
    assert set(WORDS) == set(VERBS), (
        "a new verb is tried in a folder of hostile names: give it words in WORDS"
    )


def test_a_job_file_is_valid_whatever_its_script_is_called(folder: Path) -> None:
    ((out, _),) = answers(folder, [("init", "--yes", "--out", "other.toml", SCRIPT)], on_terminal=False)
    assert faults(out, own=False) == []
    assert tomllib.loads((folder / "other.toml").read_text(encoding="utf-8"))["run"]["script"] == SCRIPT

"""Logs of several attempts, tasks that ended by a signal, and ranks that did not come."""

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine


def judged(text: str, engine: Engine) -> Verdict:
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    return diagnose(job, engine.signatures, engine.matcher)


def steps(first: int) -> str:
    return "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(first, first + 8))


def test_a_crash_is_named_by_its_signal(engine: Engine) -> None:
    said = {
        "Fatal Python error: Segmentation fault\n": "SIGSEGV",
        "['/usr/bin/python', '-u', 'train.py', '--local_rank=1'] exits with return code = -6\n": "SIGABRT",
        "srun: error: n: task 3: Bus error\n": "SIGBUS",
        "run.sh: line 3: 152 Illegal instruction     (core dumped) python train.py\n": "SIGILL",
        "RuntimeError: DataLoader worker (pid 88) is killed by signal: Segmentation fault. \n": "SIGSEGV",
    }
    for line, signal in said.items():
        assert f"crashed ({signal}: " in judged(steps(1) + line, engine).title
    assert (
        "SIG"
        not in judged(steps(1) + "torchrun: failed (exitcode: 3) local_rank: 0 (pid: 7)\n", engine).title
    )

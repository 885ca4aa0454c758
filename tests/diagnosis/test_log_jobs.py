"""A file with several jobs: the last one is judged, the ones before are listed, and one job is never taken for two."""

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import Engine


def judged(text: str, engine: Engine) -> Examination:
    return examine(JobEvidence(logs=(LogSource("log", (text.encode(),)),)), engine.signatures, engine.matcher)


def jobs(text: str, engine: Engine) -> list[tuple[int, int, str]]:
    """The jobs of a text, each with its first and last line; the last one is what is judged."""
    found = judged(text, engine)
    last = found.facts.scans[0]
    return [
        *((job.first_line, job.last_line, job.verdict.failure.value) for job in found.earlier),
        (last.first_line, last.lines, found.verdict.failure.value),
    ]


def steps(first: int = 1, count: int = 30) -> str:
    return "".join(f"step {n} loss {3 - n / 1000:.3f}\n" for n in range(first, first + count))


START = "nohup: ignoring input\n"
LOADING = "".join(f"loading part {n} of the tokenizer and the model\n" for n in range(25))
OOM = 'Traceback (most recent call last):\n  File "/w/train.py", line 8, in main\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n'
KEY = "Traceback (most recent call last):\n  File \"/w/train.py\", line 8, in main\nKeyError: 'labels'\n"
TASK_EXIT = "srun: error: cn7: task 0: Exited with exit code 1\n"
CANCELLED = "slurmstepd: error: *** STEP 255.0 ON cn7 CANCELLED AT 2024-07-07T23:27:27 ***\n"
SMI = "| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2     |\n"
RESTART = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
RANK_FAILED = "E0422 15:38:55.320000 29 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 30) of binary: python\n"


def test_each_job_of_a_file_has_its_own_verdict_and_lines(engine: Engine) -> None:
    one, two, three = START + steps() + OOM, START + steps() + KEY, START + LOADING + steps()
    last = (69, 69 + 55, "healthy")
    assert jobs(one + two + three, engine) == [(1, 34, "cuda_oom"), (35, 68, "code_error"), last]
    cause = judged(one + two, engine).verdict.cause
    assert cause is not None
    assert (cause.line, cause.text) == (68, "KeyError: 'labels'"), "numbered in the file, not in the job"


IN_MAIN = 'Traceback (most recent call last):\n  File "/w/train.py", line 8, in <module>\n    main()\n'
RAISED = IN_MAIN + "KeyError: 'x'\n"
USAGE = (
    "usage: train.py [-h] [--lr LR]\n"
    "                [--out OUT]\n"
    "train.py: error: unrecognized arguments: --lrr 3\n"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (USAGE + LOADING + IN_MAIN + "KeyError: 'x'\n", [(1, 3, "usage_error"), (4, 32, "code_error")]),
        (IN_MAIN + "KeyError: 'x'\n" + USAGE, [(1, 4, "code_error"), (5, 7, "usage_error")]),
        (LOADING * 4 + IN_MAIN + "KeyboardInterrupt\n" + USAGE, [(1, 104, "terminated"), (105, 107, "usage_error")]),
        (USAGE * 2, [(1, 3, "usage_error"), (4, 6, "usage_error")]),
        # What goes on well is not blamed for the job before.
        (steps() + OOM + TASK_EXIT + SMI + steps(), [(1, 34, "cuda_oom"), (35, 65, "healthy")]),
        (START + steps() + OOM + START + steps(), [(1, 34, "cuda_oom"), (35, 65, "healthy")]),
        (RAISED * 3, [(1, 12, "code_error")]),
        ((RAISED + "loading\n") * 3, [(1, 4, "code_error"), (5, 9, "code_error"), (10, 15, "code_error")]),
        (RAISED + IN_MAIN + "ValueError: 'x'\n" + RAISED, [(1, 4, "code_error"), (5, 8, "code_error"), (9, 12, "code_error")]),
        (RAISED + IN_MAIN + "ValueError: 'x'\n", [(1, 8, "code_error")]),
        (steps() + RANK_FAILED + RESTART + steps(31, 2) + OOM, [(1, 31, "unknown"), (32, 37, "cuda_oom")]),
        (steps() + RANK_FAILED + RESTART + steps(31, 1) + OOM, [(1, 36, "cuda_oom")]),
    ],
    ids=[
        "then another program",
        "after an exception",
        "after Ctrl-C",
        "twice",
        "nvidia-smi after an exit",
        "nohup",
        "one exception three times",
        "a sweep",
        "a sweep's other exception",
        "two exceptions",
        "a restart that steps twice",
        "a restart that steps once",
    ],
)  # fmt: skip
def test_where_another_program_begins(text: str, found: list[tuple[int, int, str]], engine: Engine) -> None:
    """`error` of argparse prints the usage, then the message, and leaves with code 2: it is a program by itself."""
    assert jobs(text, engine) == found


def test_of_many_jobs_the_last_twelve_are_told(engine: Engine) -> None:
    one = START + steps() + KEY
    assert jobs(one * 15, engine) == [
        (1, 4 * 34, "code_error"),
        *((34 * n + 1, 34 * (n + 1), "code_error") for n in range(4, 15)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(START + SMI + steps() + OOM, id="two lines of one start"),
        pytest.param(START + steps() + SMI + steps(31) + OOM, id="nvidia-smi within a run"),
        pytest.param(steps() + RANK_FAILED + RESTART + SMI + LOADING + OOM, id="a launcher's own restart"),
        pytest.param(steps() + TASK_EXIT + steps(31) + OOM, id="other tasks step on"),
        pytest.param(steps() + OOM + TASK_EXIT + CANCELLED + "Job efficiency: 40 %\n", id="a summary below"),
        pytest.param(
            steps() + "".join(f"[rank{n}]: {line}\n" for n in range(8) for line in OOM.splitlines()),
            id="ranks",
        ),
    ],
)
def test_one_job_stays_one(text: str, engine: Engine) -> None:
    assert jobs(text, engine) == [(1, text.count("\n"), "cuda_oom")]


def test_what_is_known_beside_a_log_is_of_its_last_job(engine: Engine) -> None:
    text = START + steps() + START + steps()
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),), launcher_exit=-9, exit_codes={0: -9})
    found = examine(job, engine.signatures, engine.matcher)
    assert [one.verdict.failure for one in found.earlier] == [FailureClass.HEALTHY]
    assert found.verdict.failure is FailureClass.HOST_OOM


def test_what_an_old_launcher_writes_out_at_its_end_is_no_second_job(engine: Engine) -> None:
    """Its stdout is buffered: banner and kills stand below the tracebacks of the processes that it started."""
    banner = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    ended = KEY + TASK_EXIT + banner + "Killing subprocess 65701\nKilling subprocess 65702\n"
    assert judged(LOADING + ended, engine).verdict.failure is FailureClass.CODE_ERROR

"""A file with several jobs: the last one is judged, the ones before are listed, and one job is never taken for two."""

from collections.abc import Iterator

import pytest

from supervisor.diagnosis.cause.log_jobs import by_job
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.run.failures import FailureClass
from supervisor.sources.signature_files import Engine, load_engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine(None)


def judged(text: str, engine: Engine) -> Examination:
    return examine(JobEvidence(logs=(LogSource("log", (text.encode(),)),)), engine.signatures, engine.matcher)


def jobs(text: str, engine: Engine) -> list[tuple[int, int, str]]:
    """The jobs of a text, each with its first and last line; the last one is what is judged."""
    found = judged(text, engine)
    last = found.case.scans[0]
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
    assert jobs(one + two + three, engine) == [
        (1, 34, "cuda_oom"),
        (35, 68, "code_error"),
        (69, 69 + 55, "healthy"),
    ]


def test_lines_are_numbered_in_the_file_not_in_the_job(engine: Engine) -> None:
    found = judged(START + steps() + OOM + START + steps() + KEY, engine).verdict
    assert found.cause is not None
    assert (found.cause.line, found.cause.text) == (68, "KeyError: 'labels'")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(steps() + OOM + TASK_EXIT + LOADING + steps(), id="output after a task's exit"),
        pytest.param(steps() + CANCELLED + LOADING + steps(), id="output after a cancelled step"),
        pytest.param(steps() + OOM + TASK_EXIT + SMI + steps(), id="nvidia-smi after an exit"),
        pytest.param(START + steps() + OOM + START + steps(), id="nohup"),
    ],
)
def test_a_job_that_goes_on_well_is_not_blamed_for_the_one_before(text: str, engine: Engine) -> None:
    found = jobs(text, engine)
    assert [len(found), found[-1][2]] == [2, "healthy"]


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
    assert [kind for _, _, kind in jobs(text, engine)] == ["cuda_oom"]


def test_logs_of_nodes_put_below_each_other_are_one_job(engine: Engine) -> None:
    """The second one's start bears an earlier time than the first one's end."""
    banner = "W0422 15:38:{second:02d}.320000 29 torch/distributed/run.py:779] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    node = banner + steps() + RANK_FAILED
    assert len(jobs(node.format(second=10) + node.format(second=11), engine)) == 1
    assert len(jobs(node.format(second=10) + node.format(second=58), engine)) == 2


def test_a_stream_is_judged_as_one_job_since_it_cannot_be_read_twice(engine: Engine) -> None:
    text = START + steps() + OOM + START + steps() + KEY
    job = JobEvidence(logs=(LogSource("log", iter([text.encode()])),))
    assert examine(job, engine.signatures, engine.matcher).earlier == ()


@pytest.mark.parametrize("size", [1, 3, 7, 100, 10_000])
def test_a_log_is_cut_at_its_jobs_however_its_bytes_come(size: int) -> None:
    data = b"".join(b"line %d\n" % n for n in range(1, 41)) + b"half"

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    found = [(line, b"".join(parts)) for line, parts in by_job(chunks(), [11, 12, 40])]
    assert [line for line, _ in found] == [1, 11, 12, 40]
    assert found[1][1] == b"line 11\n"
    assert found[3][1] == b"line 40\nhalf"
    assert b"".join(part for _, part in found) == data


def test_what_is_known_beside_a_log_is_of_its_last_job(engine: Engine) -> None:
    text = START + steps() + START + steps()
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),), launcher_exit=-9, exit_codes={0: -9})
    found = examine(job, engine.signatures, engine.matcher)
    assert [one.verdict.failure for one in found.earlier] == [FailureClass.HEALTHY]
    assert found.verdict.failure is FailureClass.HOST_OOM

"""A file with several jobs: the last one is judged, the ones before are listed, and one job is never taken for two."""

from collections.abc import Iterator

import pytest

from supervisor.diagnosis.cause.log_jobs import by_job
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.run.failures import FailureClass
from supervisor.sources.signature_files import Engine


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


def footer(host: str, second: int, rank: int = 0) -> str:
    return (
        'Traceback (most recent call last):\n  File "/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\ntrain.py FAILED\n"
        "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
        f"  time      : 2023-11-22_13:31:{second:02d}\n  host      : {host}\n  rank      : {rank} (local_rank: 0)\n"
        "  exitcode  : 1 (pid: 1648797)\n============================================================\n"
    )


MAIN = 'Traceback (most recent call last):\n  File "train.py", line 18, in <module>\n    main()\n'
USAGE = "usage: train.py [-h] [--lr LR]\ntrain.py: error: argument --lr: expected one argument\n"
HELLO = "process id: 40495\n"


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        pytest.param(
            KEY + footer("cn1", 10) + OOM + footer("cn1", 58), [1, 18], id="torchrun twice on a host"
        ),
        pytest.param(
            HELLO + MAIN + "KeyError: 1\n" + HELLO + MAIN + "KeyError: 2\n", [1, 6], id="two exceptions"
        ),
        pytest.param(
            USAGE + MAIN + "KeyboardInterrupt\n", [1, 3], id="wrong arguments, then another program"
        ),
        pytest.param(
            HELLO
            + MAIN
            + "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for a\n"
            + HELLO
            + MAIN
            + "KeyError: 2\n",
            [1, 7],
            id="a message of several lines",
        ),
    ],
)
def test_two_ends_that_one_program_cannot_have_are_two_jobs(
    text: str, starts: list[int], engine: Engine
) -> None:
    assert [first for first, _, _ in jobs(text, engine)] == starts


CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"
BAR = " 10%|# | {n}/5153 [08:05<5:34:33,  3.98s/it]"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(footer("cn1", 10) + footer("cn2", 11), id="two hosts"),
        pytest.param(footer("cn1", 10) + footer("cn1", 11, rank=1), id="two agents of one job on a host"),
        pytest.param(
            HELLO + MAIN + "KeyError: 1\n" + CHAINED + MAIN + HELLO + "ValueError: 2\n",
            id="one exception while handling another",
        ),
        pytest.param(
            HELLO + MAIN + "KeyError: 1\n" + MAIN + "subprocess.CalledProcessError: Command 'train.py'\n",
            id="the parent's",
        ),
        pytest.param(
            HELLO
            + BAR.format(n=9)
            + MAIN
            + "KeyError: 1\n"
            + BAR.format(n=40)
            + HELLO
            + MAIN
            + "KeyError: 2\n",
            id="the bar continues",
        ),
    ],
)
def test_what_one_job_prints_at_its_end_is_no_second_job(text: str, engine: Engine) -> None:
    assert len(jobs(text, engine)) == 1


def test_openings_are_found_below_a_line_that_a_bar_drew_a_million_times(engine: Engine) -> None:
    opening = "rank 0: bind to device 0\nrank 0: Initialized distributed environment\n"
    stopped = (
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3816713 got signal: 15\n"
    )
    bar = "\r".join(BAR.format(n=n) for n in range(9000)) + "\n"
    found = jobs(opening + steps(1, 4) + stopped + opening + bar, engine)
    assert [(first, kind) for first, _, kind in found] == [(1, "terminated"), (8, "healthy")]


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


def test_a_log_that_is_truncated_between_the_two_readings_keeps_its_first_verdict(engine: Engine) -> None:
    text = START + steps() + OOM + START + steps() + KEY
    stream = LogSource("log", iter([text.encode()]))
    as_one = examine(JobEvidence(logs=(stream,)), engine.signatures, engine.matcher)
    gone = stream._replace(chunks=iter([text.encode()]), again=lambda: iter(()))
    found = examine(JobEvidence(logs=(gone,)), engine.signatures, engine.matcher)
    assert (found.earlier, found.verdict) == ((), as_one.verdict)


RUN_MODULE = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n  File "/w/train.py", line 236, in <module>\n'


def test_the_errors_of_a_sweep_are_runs_one_after_the_other(engine: Engine) -> None:
    """Only their stderr was kept: nothing stands between them."""
    raised = [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB",
        "KeyError: 'lr'",
        "ValueError: no domain 4",
    ]
    text = "".join(RUN_MODULE + line + "\n" for line in raised)
    assert jobs(text, engine) == [(1, 4, "cuda_oom"), (5, 8, "code_error"), (9, 12, "code_error")]


def test_two_processes_that_fail_differently_and_the_same_error_again_are_no_sweep(engine: Engine) -> None:
    two = RUN_MODULE + "KeyError: 'lr'\n" + RUN_MODULE + "ValueError: no domain 4\n"
    assert len(jobs(two, engine)) == 1
    alike = (RUN_MODULE + "KeyError: 'lr'\n") * 4
    assert len(jobs(alike, engine)) == 1
    of_ranks = "".join(
        f"[rank{n}]: {line}\n" for n in range(4) for line in (RUN_MODULE + f"KeyError: 'lr{n}'").split("\n")
    )
    assert len(jobs(of_ranks, engine)) == 1


def test_output_long_after_ctrl_c_is_the_next_run(engine: Engine) -> None:
    stopped = RUN_MODULE + "KeyboardInterrupt\n"
    assert jobs(stopped * 2 + LOADING * 2, engine)[-1][2] != "terminated"
    assert jobs(steps() + stopped + LOADING[:200], engine) == [(1, 39, "terminated")]


def test_what_an_old_launcher_writes_out_at_its_end_is_no_second_job(engine: Engine) -> None:
    """Its stdout is buffered: banner and kills stand below the tracebacks of the processes that it started."""
    banner = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    ended = KEY + TASK_EXIT + banner + "Killing subprocess 65701\nKilling subprocess 65702\n"
    assert judged(LOADING + ended, engine).verdict.failure is FailureClass.CODE_ERROR

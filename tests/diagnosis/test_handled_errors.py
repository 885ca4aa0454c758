"""Lines that look like a failure and are none, and failures whose own line is all that is left of them."""

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.scan.matched_lines import is_progress
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import Engine

STEPS = "".join(f"step {n} loss {3 - n / 1000:.3f}\n" for n in range(1, 31))
TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 88, in main\n    out = step(batch)\n'
CLOSING = "W0811 14:22:03.402000 40880 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 41023 closing signal SIGTERM\n"
KILLED = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Terminated. \n"
CELL = """\
---------------------------------------------------------------------------
ValueError                                Traceback (most recent call last)
Cell In[3], line 5
      3 model = f()
      4     raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
----> 5     raise RuntimeError("CUDA out of memory. Tried to allocate 4.00 GiB")
      6 foo()

ValueError: bad shape
"""


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        pytest.param(STEPS + CLOSING + TRACE + KILLED, "healthy", id="a loader ended by the launcher"),
        pytest.param(STEPS + TRACE + KILLED, "dataloader_worker", id="a loader ended by nobody known"),
        pytest.param(
            STEPS + TRACE + "RuntimeError: Caught RuntimeError in replica 0 on device 0.\n",
            "code_error",
            id="a replica's exception, cut off",
        ),
        pytest.param(
            STEPS + TRACE + "RuntimeError: Traceback (most recent call last):\n" + TRACE[35:],
            "code_error",
            id="an exception in another's message, cut off",
        ),
        pytest.param(CELL, "code_error", id="IPython's numbered lines"),
        pytest.param(
            STEPS + "Received signal SIGUSR1, saving checkpoint\n" + STEPS[:150],
            "healthy",
            id="SIGUSR1 that a handler took",
        ),
    ],
)
def test_only_what_ended_the_job_is_its_cause(text: str, failure: str, engine: Engine) -> None:
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    assert diagnose(job, engine.signatures, engine.matcher).failure is FailureClass(failure)


def test_a_step_of_slurm_is_none_of_the_training() -> None:
    assert not is_progress("srun: Force Terminated job step 255.0")
    assert is_progress("step 255 loss 2.1")

"""What exit code 0 is worth: failures that it hides, ends before the planned one, and the many healthy ways to end."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.failures import FailureClass, Reason
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

F = FailureClass
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 GiB is free."
DEVICE = "RuntimeError: CUDA error: device-side assert triggered"
SHELL = "done, copying results\n"
SHARDS = "reading raw/\nshard 1 of 5: 1024 samples\nshard 2 of 5: 1024 samples\n"
SCORES = "evaluating checkpoint-800\narc          acc 0.742  (n=1024)\npiqa         acc 0.771  (n=1024)\n"


def steps(last: int, total: int, first: int = 1, every: int = 1) -> str:
    return "".join(f"step {n}/{total} loss {1 / (n + 1):.3f}\n" for n in range(first, last + 1, every))


def bare(last: int) -> str:
    return "".join(f"step {n} loss {1 / n:.3f}\n" for n in range(1, last + 1))


def raised(error: str, within: str = "<module>", above: str = "", file: str = "train.py") -> str:
    return f'{above}Traceback (most recent call last):\n  File "/w/{file}", line 9, in {within}\n    step()\n{error}\n'


def ended(
    text: str,
    last: int | None = None,
    total: int | None = None,
    *,
    own: bool = False,
    declared: bool | None = None,
    epochs: tuple[int, int] | None = None,
) -> JobEvidence:
    """An attempt that ended with exit code 0: `own` of its program, else of a shell around it."""
    return JobEvidence(
        logs=(LogSource("agent.log", (text.encode(),)),),
        launcher_exit=0,
        last_step=last,
        total_steps=total,
        is_code_own=own,
        is_total_declared=declared,
        epochs=epochs,
    )


BOX = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-09-22_13:28:49
  host      : n1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 12)
============================================================
"""

FAILURES: dict[str, tuple[JobEvidence, FailureClass]] = {
    # of a shell that hides the code
    "out of memory": (ended(steps(7, 20) + raised(f"torch.OutOfMemoryError: {OOM}"), 7, 20), F.CUDA_OOM),
    "out of memory, then an echo": (
        ended(steps(7, 20) + raised(f"torch.OutOfMemoryError: {OOM}") + SHELL, 7, 20),
        F.CUDA_OOM,
    ),
    "out of memory, no total": (ended(bare(7) + raised(f"torch.OutOfMemoryError: {OOM}"), 7), F.CUDA_OOM),
    "out of memory in the evaluation after an epoch": (
        ended(bare(20) + raised(f"torch.OutOfMemoryError: {OOM}") + "all done\n", 20),
        F.CUDA_OOM,
    ),
    "device assert": (ended(steps(7, 20) + raised(DEVICE) + SHELL, 7, 20), F.CUDA_ERROR),
    "nccl": (
        ended(
            steps(7, 20)
            + raised(
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, unhandled system error"
            ),
            7,
            20,
        ),
        F.NCCL_ERROR,
    ),
    "usage error, then an echo": (
        ended("usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --foo 3\nfinished\n"),
        F.USAGE_ERROR,
    ),
    "no such program": (
        ended("python: can't open file '/w/trian.py': [Errno 2] No such file or directory\nfinished\n"),
        F.MISSING_FILE,
    ),
    "import error at the start": (
        ended(raised("ModuleNotFoundError: No module named 'einops'") + "training finished\n"),
        F.IMPORT_ERROR,
    ),
    "code error": (ended(steps(7, 20) + raised("KeyError: 'x'") + SHELL, 7, 20), F.CODE_ERROR),
    "code error of a module that is run": (
        ended(
            steps(7, 20)
            + 'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n'
            '  File "<frozen runpy>", line 88, in _run_code\n  File "/w/pkg/train.py", line 9, in <module>\n    go()\nKeyError: 1\n',
            7,
            20,
        ),
        F.CODE_ERROR,
    ),
    "killed, as the shell says": (
        ended(
            steps(7, 20) + "train.sh: line 2:  4711 Killed                  python train.py\n" + SHELL, 7, 20
        ),
        F.HOST_OOM,
    ),
    "segmentation fault, as the shell says": (
        ended(bare(7) + "train.sh: line 2:  4711 Segmentation fault      (core dumped) python train.py\n", 7),
        F.WORKER_CRASH,
    ),
    "torchrun's own report": (
        ended(steps(7, 20) + raised(BOX.rstrip()) + "finished training run\n", 7, 20),
        F.WORKER_CRASH,
    ),
    "srun's own report": (
        ended(bare(7) + "srun: error: n1: task 1: Exited with exit code 1\n", 7),
        F.WORKER_CRASH,
    ),
    "a bar that is drawn once more below the traceback": (
        ended(
            " 30%|###       | 6/20 [00:06<00:14,  1.0it/s]\n 35%|###5      | 7/20 [00:07<00:13,  1.0it/s]\n"
            + raised(f"torch.OutOfMemoryError: {OOM}")
            + " 35%|###5      | 7/20 [00:07<00:13,  1.0it/s]\n",
            7,
            20,
        ),
        F.CUDA_OOM,
    ),
    **{
        f"as make says, {end}": (ended(text + f"{notice}\nreport written to report.md\n", *seen), failure)
        for end, text, seen in (
            ("far from the end", steps(28, 50), (28, 50)),
            ("no total", bare(28), (28,)),
            ("no step", "", ()),
        )
        for notice, failure in (
            ("make: [Makefile:5: train] Segmentation fault (ignored)", F.WORKER_CRASH),
            ("make: *** [Makefile:9: fit] Error 3", F.WORKER_CRASH),
            ("make[1]: *** [Makefile:13: sub] Killed", F.HOST_OOM),
            ("gmake: *** [train] Error 137", F.HOST_OOM),
        )[: 4 if seen else 1]
    },
    **{
        f"{notice}, short of the end": (ended(steps(10, 100) + f"{notice}\n{last}", 10, 100), F.WORKER_CRASH)
        for notice, last in (
            ("make: [Makefile:4: train] Error 1 (ignored)", ""),
            ("make[1]: [fit] Error 2 (ignored)", SHELL),
            ("gmake: [GNUmakefile:9: up] Error 3 (ignored)", "make[1]: Leaving directory '/w/target'\n"),
            ("make: [Makefile:4: train] Error 139 (ignored)", "report written to report.md\n"),
        )
    },
    "epochs, and make that ignores the exit code": (
        ended(
            "".join(f"Epoch {n}/100 loss 0.3\n" for n in range(1, 11)) + "make: [train] Error 1 (ignored)\n",
            epochs=(10, 100),
        ),
        F.WORKER_CRASH,
    ),
    "printed in a function, and make that ignores the exit code": (
        ended(bare(7) + raised("KeyError: 'x'", within="main") + "make: [train] Error 1 (ignored)\n", 7),
        F.CODE_ERROR,
    ),
    "logged, and make that ignores the exit code": (
        ended(
            steps(7, 20)
            + raised(
                "KeyError: 'x'", within="main", above="2026-01-01 10:00:00 ERROR train: training failed\n"
            )
            + "make: [Makefile:2: train] Error 1 (ignored)\n",
            7,
            20,
        ),
        F.CODE_ERROR,
    ),
    # A word of what was done instead, where it is not known to be the program's that failed.
    "skipped, far from the end": (
        ended(steps(7, 20) + raised("KeyError: 'x'") + "skipping the evaluation\ndone\n", 7, 20),
        F.CODE_ERROR,
    ),
    "a data preparation that says nothing below": (
        ended(SHARDS + raised("ValueError: bad record", file="prepare.py") + "done\n"),
        F.CODE_ERROR,
    ),
    "a data preparation that skips and never ends": (
        ended(SHARDS + raised("ValueError: bad record", file="prepare.py") + "skipping shard 3\n"),
        F.CODE_ERROR,
    ),
    "a shell that starts a failing program again and again": (
        ended(f"{raised('ImportError: no x', file='prepare.py')}retrying\n" * 3 + "done\n"),
        F.IMPORT_ERROR,
    ),
    "a shell that skips a training": (
        ended(raised("ImportError: no x") + "run 3: skipping\nall runs finished\n"),
        F.IMPORT_ERROR,
    ),
    "a data preparation whose memory ran out": (
        ended(SHARDS + raised(f"torch.OutOfMemoryError: {OOM}", file="prepare.py") + "retrying\ndone\n"),
        F.CUDA_OOM,
    ),
    "an evaluation whose memory ran out": (
        ended(SCORES + raised(f"torch.OutOfMemoryError: {OOM}", file="eval.py")),
        F.CUDA_OOM,
    ),
    "an evaluation that was killed": (
        ended(SCORES + "eval.sh: line 2:  4711 Killed                  python eval.py\n"),
        F.HOST_OOM,
    ),
    "an evaluation that make saw fail": (
        ended(SCORES + raised("KeyError: 'x'", file="eval.py") + "make: *** [Makefile:3: eval] Error 1\n"),
        F.CODE_ERROR,
    ),
    "a training that measured first": (
        ended("accuracy 0.10 so far\n" + raised("KeyError: 'x'")),
        F.CODE_ERROR,
    ),
    "a training without numbered steps": (
        ended("loss 0.34 accuracy 0.71\nloss 0.33 accuracy 0.72\n" + raised("KeyError: 'x'", file="fit.py")),
        F.CODE_ERROR,
    ),
    "settings, then an import error": (
        ended("lr 0.1 target accuracy 0.9\n" + raised("ImportError: no x", file="fit.py")),
        F.IMPORT_ERROR,
    ),
    # of the program itself
    "swallowed as the last act, far from the end": (
        ended(steps(7, 20) + raised("KeyError: 'x'"), 7, 20, own=True),
        F.CODE_ERROR,
    ),
    "out of memory, swallowed": (
        ended(bare(7) + raised(f"torch.OutOfMemoryError: {OOM}"), 7, own=True),
        F.CUDA_OOM,
    ),
    "kernel's count of kills, far from the end": (
        ended(steps(7, 20), 7, 20)._replace(machine=MachineRecords(cgroup_oom_kills=1)),
        F.HOST_OOM,
    ),
    "a rank's own exit code": (ended(bare(7), 7)._replace(exit_codes={0: 0, 1: -11}), F.WORKER_CRASH),
}

EARLY: dict[str, JobEvidence] = {
    "a save says nothing of why": ended(steps(31, 100) + "model saved to out/model.pt\n", 31, 100, own=True),
    "a killed process, the others stopped": ended(
        steps(31, 100) + "trainer-1 exited with code -9, stopping the others\nall workers joined\n",
        31,
        100,
        own=True,
    ),
    "nothing but steps": ended(steps(10, 100), 10, 100, own=True),
    "a shell's words": ended(steps(10, 100) + "finished\n" + SHELL, 10, 100),
    "epochs": ended("".join(f"Epoch {n}/100 loss 0.3\n" for n in range(1, 11)), epochs=(10, 100), own=True),
    "an epoch's own counter within epochs": ended(
        "".join(f"Epoch {e}/100 [{s}/50] loss 0.3\n" for e in range(1, 4) for s in range(1, 50, 7)),
        143,
        5000,
        declared=False,
        epochs=(3, 100),
        own=True,
    ),
    "a declared total, in a log without one": ended(bare(10), 10, 100, declared=True, own=True),
    "a total that the trainer reports": ended(bare(10), 10, 100, own=True),
    "handled in a function at step 7": ended(
        steps(7, 20) + raised("KeyError: 'x'", within="main"), 7, 20, own=True
    ),
    "a checkpoint each ten steps": ended(steps(10, 100) + "saved ckpt_10.pt\n", 10, 100),
    "a word for the end, and a step that is copied": ended(
        steps(10, 100) + "stage finished at step 10\nCopying the weights of step 10\n", 10, 100
    ),
    "make, which leaves a folder": ended(
        steps(10, 100) + "make[1]: Leaving directory '/w/target'\n", 10, 100
    ),
    "a tool that make was told to ignore, before the first step": ended(
        "make: [Makefile:4: up] Error 1 (ignored)\n" + steps(10, 100), 10, 100
    ),
    "a warning last": ended(steps(10, 100) + "WARNING: data queue is empty\n", 10, 100, own=True),
}

BARE = bare(20)
STOPPED = (
    "Patience exhausted at step 70: no better dev loss since step 40, stopping here.\nKeeping the weights of step 40 (dev loss 1.5)\n",
    "Dev loss has been flat for 3 checks, I stop at step 70\nReverting to iteration 40\n",
    "Ending here: perplexity has not improved since step 40\nback to step 40, loss 1.540\n",
    "Compute budget of 2 GPU hours is used up, quitting after update 70\nstep 40 was kept (dev 1.5)\n",
)
ITEMS = "".join(f"processing {chr(97 + n % 26)}\n" for n in range(60))
DEL = raised(
    "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.",
    "__del__",
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n",
)
THREAD = 'Exception in thread Thread-3:\nTraceback (most recent call last):\n  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n'
HEALTHY: dict[str, JobEvidence] = {
    "all steps": ended(steps(20, 20), 20, 20),
    "steps counted from 0": ended(steps(99, 100, first=0), 99, 100),
    "the last multiple of the logging interval": ended(steps(90, 100, first=10, every=10), 90, 100),
    "a step short": ended(steps(98, 100), 98, 100),
    "no steps at all": ended("preparing\nwrote 100 shards\n"),
    "early stopping": ended(steps(10, 100) + "Early stopping: no improvement for 3 checks\n", 10, 100),
    "early stopping, in the program's own stream": ended(
        steps(10, 100) + "EarlyStopping triggered\n", 10, 100, own=True
    ),
    "early stopping at an epoch": ended(
        "".join(f"Epoch {n}/100 loss 0.3\n" for n in range(1, 11)) + "Early stopping at epoch 10\n",
        epochs=(10, 100),
    ),
    "a time limit of its own": ended(steps(31, 100) + "max time of 60 s reached, stopping\n", 31, 100),
    "a time budget": ended(steps(31, 100) + "Time budget exhausted at step 31\n", 31, 100),
    "a target loss": ended(steps(31, 100) + "target loss 0.03 reached at step 31\n", 31, 100),
    "converged": ended(steps(31, 100) + "Converged (tol 1e-4)\n", 31, 100),
    **{
        text.split("\n")[0]: ended(
            "".join(
                f"step {n}/400 loss 1.{n:03d}\n" + f"  dev loss 1.{n}\n" * (n % 10 == 0) for n in range(1, 71)
            )
            + text,
            70,
            400,
        )
        for text in STOPPED
    },
    "a step that make was told to ignore": ended(BARE + "make: [Makefile:4: up] Error 1 (ignored)\n", 20),
    "a helper that make saw ended": ended(BARE + "make: [Makefile:4: board] Terminated (ignored)\n", 20),
    "a helper that make was told to ignore, at the end": ended(
        steps(20, 20) + "make: [Makefile:4: down] Error 1 (ignored)\n", 20, 20
    ),
    "early stopping, and a helper that make was told to ignore": ended(
        steps(10, 100) + "Early stopping: no gain for 3 checks\nmake: [Makefile:4: down] Error 1 (ignored)\n",
        10,
        100,
    ),
    "an error that it outlived, and a helper that make was told to ignore": ended(
        bare(5) + raised("KeyError: 'x'", within="main") + BARE + "make: [up] Error 1 (ignored)\n", 20
    ),
    "a result": ended(steps(31, 100) + "Best val acc: 0.93 (step 20)\n", 31, 100),
    "a last evaluation": ended(steps(31, 100) + "test accuracy: 0.93\n", 31, 100, own=True),
    "its own last word": ended(steps(31, 100) + "Done!\n", 31, 100, own=True),
    "a signal that it handled": ended(steps(31, 100) + "received SIGTERM, saving\n", 31, 100, own=True),
    "an epoch's bar": ended(
        "".join(f"Epoch 0: {n}%|## | {n}/100 [00:0{n % 10}<00:09, 1.0it/s]\n" for n in range(1, 11)), 10, 100
    ),
    "a counter of each epoch": ended(
        "".join(steps(50, 50, every=7) for _ in range(2)) + steps(29, 50), 29, 50
    ),
    "a bound on the command line": ended(bare(10), 10, 5000, declared=False),
    "folds that each stop early": ended(
        "".join(f"Epoch {n}/100 loss 0.3\n" for _ in range(3) for n in range(1, 6)), epochs=(5, 100)
    ),
    "an error that it outlived": ended(steps(5, 20) + raised(DEVICE) + steps(20, 20, first=6), 20, 20),
    "an error that it outlived, no total": ended(bare(5) + raised("KeyError: 'x'") + bare(20), 20),
    **{
        f"a data preparation: {handled}": ended(
            SHARDS + raised(error, file="prepare.py", above=above) + f"{handled}\n{last}\n"
        )
        for error, above, handled, last in (
            ("ValueError: bad record", "could not parse shard 3:\n", "skipping shard 3", "done"),
            (
                "requests.exceptions.HTTPError: 503 Server Error",
                "",
                "retrying in 5 s",
                "preparation finished",
            ),
            (
                "FileNotFoundError: raw/cache.json",
                "",
                "falling back to the slow reader",
                "saved to data/train.bin",
            ),
            (
                "OSError: [Errno 5] Input/output error",
                "",
                "WARNING: Skipping part-3",
                "total tokens: 120\nall done",
            ),
            (
                "KeyError: 'text'",
                "2026-01-01 10:00:00,118 - ERROR - prepare: shard 3\n",
                "next shard",
                "finished",
            ),
            ("KeyError: 'text'", "ERROR:prepare:shard 3\n", "", "saved to data/train.bin"),
        )
    },
    "a checkpoint below the error": ended(BARE + raised("KeyError: 'x'") + "saved model to out/m.pt\n", 20),
    "a metric below the error": ended(BARE + raised("KeyError: 'x'") + "test loss 0.41 acc 0.88\n", 20),
    "a finalizer": ended(
        BARE + raised(DEVICE, "__del__", "Exception ignored in: <function A.__del__>\n"), 20
    ),
    "a DataLoader's finalizer": ended(BARE + DEL, 20),
    "a thread": ended(BARE + THREAD + f'  File "/w/up.py", line 2, in send\n{DEVICE}\n', 20),
    "atexit": ended(BARE + raised(DEVICE, "<module>", "Error in atexit._run_exitfuncs:\n"), 20),
    "a warning": ended(BARE + "/w/t.py:3: UserWarning: CUDA out of memory was seen before\n", 20),
    "resource_tracker": ended(
        BARE + "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: "
        "There appear to be 1 leaked semaphore objects to clean up at shutdown\n",
        20,
    ),
    "a tracker's upload": ended(
        BARE + "wandb: ERROR Error while calling W&B API: run deleted (<Response [404]>)\n", 20
    ),
    "the group that was not destroyed": ended(
        BARE
        + "[rank0]:[W1128 10:00:00.1 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed\n",
        20,
    ),
    "an evaluation alone, its handled error last": ended(
        "evaluating 500 samples\naccuracy 0.81\n" + raised("ZeroDivisionError: division by zero"), own=True
    ),
    "an evaluation alone, behind a pipe": ended(
        "evaluating 500 samples\naccuracy 0.81\n" + raised("ZeroDivisionError: x", within="main")
    ),
    "a logged error last": ended(
        BARE + raised("ZeroDivisionError: x", "<module>", "ERROR:root:upload of artifacts failed\n"), 20
    ),
    "a shell's tool": ended(BARE + "cp: cannot stat '/notthere': No such file or directory\n", 20),
    "a helper that the script ends": ended(BARE + "train.sh: line 3: 12 Terminated   tensorboard\n", 20),
    "a check before the training, in a script that continues": ended(
        raised("ModuleNotFoundError: No module named 'flash_attn'") + ITEMS
    ),
    "memory that was short once, in an inference": ended(f"{OOM}\n" + ITEMS * 4),
    "an optional import": ended("apex is not installed, using torch\n" + BARE, 20),
}


def judged(job: JobEvidence, engine: Engine) -> Verdict:
    return diagnose(job, engine.signatures, engine.matcher)


@pytest.mark.parametrize("name", FAILURES)
def test_exit_code_0_hides_no_failure(name: str, engine: Engine) -> None:
    job, failure = FAILURES[name]
    assert judged(job, engine).failure is failure


@pytest.mark.parametrize("name", EARLY)
def test_an_end_before_the_planned_one_is_unknown(name: str, engine: Engine) -> None:
    found = judged(EARLY[name], engine)
    assert (found.failure, found.reason) == (F.UNKNOWN, Reason.ENDED_EARLY)
    assert found.title.startswith("Ended with exit code 0 at ")


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_end_is_healthy(name: str, engine: Engine) -> None:
    """Exit code 0 is then a success, without a word beside it."""
    found = judged(HEALTHY[name], engine)
    assert (found.failure, found.reason) == (F.HEALTHY, None)


def test_a_failure_below_the_planned_end_is_a_word_beside_the_success(engine: Engine) -> None:
    found = judged(ended(steps(20, 20) + raised(DEVICE), 20, 20), engine)
    assert (found.failure, found.reason) == (F.HEALTHY, Reason.AT_EXIT)
    assert found.cause is not None
    assert found.cause.text == DEVICE


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            f"{SCORES}mean accuracy 0.7565, written to scores.json\nno picture, the plotting library is missing:\n",
            "ModuleNotFoundError: No module named 'plotly'",
        ),
        ("scoring 3 sets\nF1: 81.2%\nexact match 70\ncould not send the table:\n", "OSError: refused"),
        ("loaded weights\neval loss 2.51\nperplexity of 12.31 on wikitext\n", "KeyError: 'x'"),
    ],
)
def test_an_evaluation_with_results_has_a_traceback_as_a_word_beside_the_success(
    text: str, error: str, engine: Engine
) -> None:
    """Behind a shell, where a traceback at module level may be a handled one; without a result it is a crash."""
    found = judged(ended(text + raised(error, file="eval.py")), engine)
    assert (found.failure, found.reason) == (F.HEALTHY, Reason.AT_EXIT)
    assert found.cause is not None
    assert found.cause.text == error
    assert judged(ended("loading\n" + raised(error, file="eval.py")), engine).failure not in (
        F.HEALTHY,
        F.UNKNOWN,
    )


def test_what_make_says_below_the_planned_end_is_no_failure(engine: Engine) -> None:
    killed = ended(steps(20, 20) + "make: [Makefile:5: train] Killed (ignored)\n", 20, 20)
    assert judged(killed, engine).reason is Reason.AT_EXIT
    failed = ended(steps(20, 20) + "make: *** [Makefile:7: report] Error 3\n", 20, 20)
    assert judged(failed, engine).reason is None


def test_steps_that_are_not_journalled_yet_are_read_from_the_log(engine: Engine) -> None:
    assert judged(ended(steps(20, 20), 1, 20, own=True), engine).failure is F.HEALTHY
    assert judged(ended(bare(20), 1, 20, own=True), engine).failure is F.HEALTHY
    assert judged(ended(steps(10, 100), 1, 100, own=True), engine).title.startswith(
        "Ended with exit code 0 at step 10 of 100"
    )


def test_a_loss_that_is_no_number_and_our_own_stop_are_judged_as_before(engine: Engine) -> None:
    nans = bare(9) + "".join(f"step {n}/30 loss nan\n" for n in range(10, 31))
    assert judged(ended(nans, 30, 30), engine).failure is F.NAN_LOSS
    hung = ended(steps(7, 20) + raised(DEVICE), 7, 20)._replace(ended_for="hang")
    assert judged(hung, engine).failure is F.CUDA_ERROR
    stopped = ended(steps(7, 20), 7, 20)._replace(stop_reason="request")
    assert judged(stopped, engine).reason is Reason.USER


def test_the_logs_of_several_nodes_are_one_end(engine: Engine) -> None:
    logs = tuple(
        LogSource(f"n{node}/stdout.log", (text.encode(),), Origin(rank=node, node=f"node{node}"))
        for node, text in ((0, steps(10, 100)), (1, steps(10, 100)))
    )
    job = ended("", 10, 100, own=True)._replace(logs=logs)
    assert judged(job, engine).reason is Reason.ENDED_EARLY
    said = (*logs, LogSource("n0/stderr.log", (b"",), Origin(rank=0, node="node0")))
    assert judged(job._replace(logs=said), engine).reason is Reason.ENDED_EARLY
    failed = logs[1]._replace(chunks=(f"{steps(10, 100)}{raised(DEVICE)}".encode(),))
    assert judged(job._replace(logs=(logs[0], failed)), engine).failure is F.CUDA_ERROR

"""Tracebacks and words that tell of something else than what ended the run: helpers, notices, other runs, other ends."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.cause.vocabulary import class_by_words
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.failures import FailureClass, Reason
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

HEAD = "Traceback (most recent call last):\n"


def judged(text: str, engine: Engine) -> Verdict:
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    return diagnose(job, engine.signatures, engine.matcher)


def steps(first: int, count: int = 8) -> str:
    return "".join(f"step {first + n} loss {3 - n / 100:.3f}\n" for n in range(count))


def traceback(*frames: tuple[str, str], raised: str) -> str:
    return HEAD + "".join(f'  File "{path}", line 7, in {name}\n' for path, name in frames) + raised + "\n"


WRITER = (
    ("/usr/lib/python3.10/threading.py", "_bootstrap_inner"),
    ("/v/site-packages/tensorboardX/event_file_writer.py", "run"),
    ("/usr/lib/python3.10/multiprocessing/connection.py", "_check_closed"),
)
CLOSED = "\nException in thread Thread-1:\n" + traceback(*WRITER, raised="OSError: handle is closed")
OWN = traceback(("/w/train.py", "<module>"), raised="RuntimeError: permute: wrong number of dimensions")


def test_a_recorders_thread_ends_alone(engine: Engine) -> None:
    assert judged(steps(1) + "End training\n" + CLOSED, engine).failure is FailureClass.HEALTHY
    verdict = judged(CLOSED + OWN, engine)
    assert verdict.cause is not None
    assert verdict.cause.text.startswith("RuntimeError: permute")


def test_another_threads_exception_may_be_the_end(engine: Engine) -> None:
    own = "Exception in thread Thread-1:\n" + traceback(("/w/feed.py", "run"), raised="KeyError: 'image'")
    assert judged(own, engine).failure is FailureClass.CODE_ERROR


def test_a_traceback_logged_as_a_notice_is_passed_over(engine: Engine) -> None:
    noticed = "[INFO:swift] " + traceback(
        ("/v/swift/template.py", "encode"), raised="MaxLengthError: row(2174) is too long"
    )
    verdict = judged(noticed + "[WARNING:swift] the row is left out\n" + OWN, engine)
    assert verdict.cause is not None
    assert "permute" in verdict.cause.text
    assert judged(noticed, engine).failure is FailureClass.CODE_ERROR  # nothing else is there


def test_pythons_warning_is_not_the_cause(engine: Engine) -> None:
    warned = (
        "/v/joblib/_helpers.py:46: UserWarning: [Errno 28] No space left on device.  joblib will be serial\n"
    )
    locks = traceback(
        ("/w/train.py", "<module>"),
        ("/usr/lib/python3.8/multiprocessing/synchronize.py", "__init__"),
        raised="OSError: [Errno 28] No space left on device",
    )
    verdict = judged(warned + locks, engine)
    assert verdict.failure is FailureClass.SHM_EXHAUSTED  # locks lie in /dev/shm, whatever a disk has left
    assert verdict.cause is not None
    assert verdict.cause.line == 5


def test_a_pipe_between_pythons_own_processes_is_no_peer(engine: Engine) -> None:
    frames = (("/w/train.py", "<module>"), ("/usr/lib/python3.10/multiprocessing/connection.py", "_send"))
    broken = "BrokenPipeError: [Errno 32] Broken pipe"
    assert judged(traceback(*frames, raised=broken), engine).failure is FailureClass.CODE_ERROR
    loader = (("/v/site-packages/torch/utils/data/dataloader.py", "__iter__"), *frames)
    assert judged(traceback(*loader, raised=broken), engine).failure is FailureClass.DATALOADER_WORKER
    ranks = traceback(("/v/site-packages/torch/distributed/c10d.py", "barrier"), raised=broken)
    assert judged(ranks, engine).failure is FailureClass.NCCL_ERROR


def test_a_replicas_report_gives_way_to_what_it_wraps(engine: Engine) -> None:
    outer = traceback(
        ("/w/train.py", "<module>"),
        raised="torch.OutOfMemoryError: Caught OutOfMemoryError in replica 0 on device 0.",
    )
    inner = "Original " + traceback(
        ("/w/model.py", "forward"),
        raised="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.",
    )
    verdict = judged(outer + inner, engine)
    assert verdict.failure is FailureClass.CUDA_OOM
    assert verdict.cause is not None
    assert verdict.cause.line == 6


def test_the_last_of_several_runs_in_one_log_counts(engine: Engine) -> None:
    start = "2026-05-07 10:0{n}:00,186 - main - INFO - Loading the tokenizer\n2026-05-07 10:0{n}:01,186 - main - INFO - Model built with 7 layers\n"
    first = start.format(n=1) + traceback(("/w/train.py", "<module>"), raised="KeyError: 'image'")
    full = "OSError: [Errno 28] No space left on device: '/ckpt/1.pt'"
    second = start.format(n=2) + traceback(("/w/train.py", "<module>"), raised=full)
    assert judged(first + second, engine).failure is FailureClass.DISK_FULL
    assert judged(first + start.format(n=3) + steps(1), engine).failure is FailureClass.HEALTHY
    assert (
        judged(first + start.format(n=3), engine).failure is FailureClass.CODE_ERROR
    )  # it has said nothing yet
    ranked = f"[rank0]: {second}".replace("\n", "\n[rank0]: ") + f"\n[rank1]: {first}".replace(
        "\n", "\n[rank1]: "
    )
    assert judged(ranked, engine).failure is FailureClass.DISK_FULL  # each rank opens its output alike


def test_what_tensorboard_says_of_a_scalar_counts_as_a_nan(engine: Engine) -> None:
    told = "WARNING:root:NaN or Inf found in input tensor.\n" * 3
    verdict = judged("[epoch 3][iter 0/110] loss: nan, lr: 1.00e-10\n" + told, engine)
    assert verdict.failure is FailureClass.NAN_LOSS
    assert judged(steps(1) + told + steps(20), engine).failure is FailureClass.HEALTHY  # some other scalar


@pytest.mark.parametrize(
    "line",
    [
        "Unexpected keys: 8",
        "Unexpected keys (norm_head.bias, classifier.weight) found while loading pretrained weights. This may be expected.",
        "I0601 application.py:351] path /favicon.ico not found, sending 404",
        "1. ✅ Fixed shape mismatch error: mat1 and mat2 shapes cannot be multiplied",
        "wandb: \tearly_stopping_delta: 0.0005",
        "config: {'loss': 'nan or inf', " + "'clip': 'cannot exceed', " * 80 + "}",
    ],
)
def test_notices_raise_no_alarm(line: str, engine: Engine) -> None:
    assert judged(steps(1) + line + "\n" + steps(20), engine).failure is FailureClass.HEALTHY
    assert judged(line + "\n" + steps(1), engine).failure is FailureClass.HEALTHY


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[2,64]", "cuda_oom"),
        ("AssertionError: no_sync is incompatible with gradient partitioning of ZeRO stage 2", "code_error"),
        ("AssertionError: MMCV 2.1.0 is incompatible with mmdet", "import_error"),
        ("srun: error: Task launch for StepId=10.0 failed on node hpc-2: Can't find an address, check slurm.conf", "terminated"),
        ("srun: error: Task launch for StepId=10.0 failed on node hpc-2: No such file or directory", "missing_file"),
    ],
)  # fmt: skip
def test_wordings(line: str, failure: str, engine: Engine) -> None:
    raised = line if line.startswith("srun") else traceback(("/w/train.py", "main"), raised=line)
    assert judged(raised, engine).failure.value == failure


def test_where_a_source_lies_in_its_tree_says_nothing() -> None:
    assert (
        class_by_words("tensorflow/compiler/xla/client/tf_logging.cc:11] Check failed: Run(feeds) == OK")
        is None
    )
    assert class_by_words("ATen/native/cuda/Indexing.cu:1292: an index out of bounds") == (
        FailureClass.CUDA_ERROR,
        4,
    )


def test_ascends_record_names_the_rank(engine: Engine) -> None:
    text = (
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
        "[ERROR] 2024-05-21-11:57:54 (PID:927000, Device:3, RankID:11) ERR02200 DIST call hccl api failed.\n"
    )
    verdict = judged(text, engine)
    assert (verdict.failure, verdict.rank) == (FailureClass.NCCL_ERROR, 11)


STALL = (
    "[0]<stderr>:WARNING: One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
    "ranks and are waiting for remainder of ranks for more than 60 seconds.\n"
    "[0]<stderr>:Stalled ranks:\n"
    "[0]<stderr>:1: [allreduce.conv1.weight]\n"
)


def test_horovods_stall_is_a_hang_unless_it_goes_on(engine: Engine) -> None:
    assert judged(steps(1) + STALL, engine).failure is FailureClass.HANG
    assert judged(steps(1) + STALL + steps(9, 20), engine).failure is FailureClass.HEALTHY


def test_a_log_cut_within_a_traceback_is_not_healthy(engine: Engine) -> None:
    cut = HEAD + '  File "/w/train.py", line 7, in main\n    main()\n'
    assert judged(steps(1) + cut, engine).failure is FailureClass.UNKNOWN
    assert judged(steps(1) + cut + steps(9, 20), engine).failure is FailureClass.HEALTHY


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ("offset overflow while concatenating arrays", "code_error"),
        ("Could not open Parquet input source '<Buffer>': Parquet file size is 0 bytes", "dataloader_worker"),
    ],
)
def test_arrow_refuses_what_it_reads_or_what_it_is_given(said: str, failure: str, engine: Engine) -> None:
    text = traceback(("/w/train.py", "main"), raised="pyarrow.lib.ArrowInvalid: " + said)
    assert judged(text, engine).failure.value == failure


def test_a_tpu_cores_ordinal_is_its_rank(engine: Engine) -> None:
    said = "dictionary changed size during iteration"
    text = f"Exception in device=TPU:5: {said}\n" + traceback(
        ("/w/train.py", "main"), raised="RuntimeError: " + said
    )
    for shown in (text, text.partition("\n")[0] + "\n"):
        verdict = judged(shown, engine)
        assert (verdict.failure, verdict.rank) == (FailureClass.CODE_ERROR, 5)


IGNORED = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n" + traceback(
    ("/v/site-packages/torch/utils/data/dataloader.py", "__del__"),
    raised="RuntimeError: DataLoader worker (pid 15) is killed by signal: Aborted. ",
)


def test_what_python_ignored_yields_to_what_was_raised(engine: Engine) -> None:
    raised = "Process Process-3:\n" + traceback(
        ("/w/train.py", "main"),
        raised="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    )
    verdict = judged(steps(1) + IGNORED + raised, engine)
    assert (verdict.failure, verdict.rank) == (FailureClass.CUDA_OOM, 2)
    assert judged(steps(1) + IGNORED, engine).failure is FailureClass.DATALOADER_WORKER


def test_what_logging_could_not_print_is_no_failure(engine: Engine) -> None:
    report = "--- Logging error ---\n" + traceback(
        ("/usr/lib/python3.12/logging/__init__.py", "getMessage"),
        raised="TypeError: not all arguments converted during string formatting",
    )
    assert judged(steps(1) + report, engine).failure is FailureClass.HEALTHY
    full = report.replace(
        "TypeError: not all arguments converted during string formatting",
        "OSError: [Errno 28] No space left on device",
    )
    assert judged(steps(1) + full, engine).failure is FailureClass.DISK_FULL


def test_a_cached_copy_is_no_failure_of_the_hub(engine: Engine) -> None:
    notice = "Using the latest cached version of x since x couldn't be found on the Hugging Face Hub (offline mode is enabled).\n"
    text = notice + steps(1) + traceback(("/w/train.py", "main"), raised="KeyError: 'edge'")
    assert judged(text, engine).failure is FailureClass.CODE_ERROR
    assert judged(notice + steps(1), engine).failure is FailureClass.HEALTHY


def test_a_frames_source_is_not_what_was_raised(engine: Engine) -> None:
    text = (
        HEAD
        + '  File "/v/csbdeep/generate.py", line 341, in create\n    x.shape == y.shape or _raise(ValueError())\n'
    )
    text += '  File "/v/csbdeep/utils.py", line 88, in _raise\n    raise e\nValueError\n'
    verdict = judged(text, engine)
    assert verdict.cause is not None
    assert verdict.cause.line == 6


def test_a_port_that_no_address_gave_is_what_came_first(engine: Engine) -> None:
    text = (
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:40112 (errno: 98 - Address already in use).\n"
        "[E socket.cpp:500] [c10d] The server socket has failed to listen on any local network address.\n"
        "INFO:root:Initialized (rank/world-size) 0/1\n"
    )
    raised = "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
    text += traceback(("/w/train.py", "main"), raised=raised)
    assert judged(text, engine).failure is FailureClass.PORT_IN_USE


def test_no_loss_was_ever_a_number(engine: Engine) -> None:
    assert judged("[1,  0] loss: nan lr: 2.00e-04\n", engine).failure is FailureClass.NAN_LOSS
    assert judged("step 1 loss 3.1\nstep 2 loss nan\n", engine).failure is FailureClass.HEALTHY
    assert judged("best loss: inf\n" + "step 1 loss 3.1\n", engine).failure is FailureClass.HEALTHY


def test_rays_own_word_on_a_sigterm(engine: Engine) -> None:
    text = (
        "2025-08-17 14:12:57 step 1 loss 2\n2025-08-17 14:13:01 step 2 loss 2\n2025-08-17 14:13:05 step 3 loss 2\n"
        + steps(4, 90)
    )
    ended = "*** SIGTERM received at time=1755448771 on cpu 72 ***\n[2025-08-17 16:39:31,431 E 5 5] logging.cc:460: PC: @ 0x7f\n"
    assert judged(text + ended, engine).failure is FailureClass.TERMINATED
    assert judged(steps(1) + ended + steps(9, 40), engine).failure is FailureClass.HEALTHY


@pytest.mark.parametrize(
    "line",
    [
        "Monitored metric val_loss did not improve in the last 5 records. Best score: 0.035. Signaling Trainer to stop.",
        "INFO :      Run finished 151 round(s) in 40265.38s",
    ],
)
def test_good_ends(line: str, engine: Engine) -> None:
    assert judged(line + "\n", engine).failure is FailureClass.HEALTHY


PINNED = (
    ("/usr/lib/python3.10/threading.py", "_bootstrap_inner"),
    ("/v/site-packages/torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop"),
    ("/usr/lib/python3.10/multiprocessing/connection.py", "_recv"),
)


def test_a_loaders_pipes_break_as_somebody_interrupts(engine: Engine) -> None:
    broken = "Exception in thread Thread-1 (_pin_memory_loop):\n" + traceback(
        *PINNED, raised="ConnectionResetError: [Errno 104] Connection reset by peer"
    )
    told = "2024-07-14 12:19:55 - LOGS - Keyboard interruption. Exiting from early training\n"
    assert judged(steps(1) + broken * 2 + told, engine).failure is FailureClass.TERMINATED
    assert judged(steps(1) + broken, engine).failure is FailureClass.DATALOADER_WORKER


def test_pythons_word_on_an_abort_comes_after_its_reason(engine: Engine) -> None:
    watchdog = (
        "[E ProcessGroupNCCL.cpp:523] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=47886, "
        "OpType=ALLREDUCE, NumelIn=57, NumelOut=57, Timeout(ms)=600000) ran for 600100 milliseconds before timing out.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "Fatal Python error: Aborted\n"
    )
    assert judged(steps(1) + watchdog, engine).failure is FailureClass.NCCL_TIMEOUT
    assert judged(steps(1) + "Terminated\n" + watchdog, engine).failure is FailureClass.TERMINATED


def test_steps_below_what_spawn_said_are_another_runs(engine: Engine) -> None:
    died = (
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n"
        + traceback(
            ("/w/train.py", "main"),
            raised="RuntimeError: The server socket has failed to listen on any local network address. errno: 98",
        )
    )
    assert judged(died, engine).failure is FailureClass.PORT_IN_USE
    assert judged(died + steps(1, 80), engine).failure is FailureClass.HEALTHY


def test_tensorflows_missing_plugin_is_a_notice(engine: Engine) -> None:
    notice = (
        "2020-04-03 14:25:36.794590: W tensorflow/stream_executor/platform/default/dso_loader.cc:55] Could not load "
        "dynamic library 'libnvinfer.so.6'; dlerror: libnvinfer.so.6: cannot open shared object file: No such file\n"
    )
    informed = "".join(
        f"I0408 14:19:3{n}.685184 140143404451648 train.py:155] {n}_train_90, 24.5\n" for n in range(6)
    )
    assert judged(notice + informed, engine).failure in {FailureClass.HEALTHY, FailureClass.UNKNOWN}


BAR = "  2%|#         | {n}/5153 [08:05<5:34:33,  3.98s/it]"


def test_an_exception_after_which_the_same_bar_goes_on_was_caught(engine: Engine) -> None:
    oom = traceback(
        ("/w/eval.py", "<module>"),
        raised="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 34.00 MiB",
    )
    on = BAR.format(n=108) + oom + BAR.format(n=109) + "\r" + BAR.format(n=120) + "\n"
    assert judged(on, engine).failure is FailureClass.HEALTHY
    closed = BAR.format(n=108) + oom + BAR.format(n=109) + "\n"
    assert judged(closed, engine).failure is FailureClass.CUDA_OOM
    again = BAR.format(n=108) + oom + BAR.format(n=0) + "\r" + BAR.format(n=1) + "\n"
    assert judged(again, engine).failure is FailureClass.CUDA_OOM


LOGGED = "ERROR:2026-03-26 21:59:41,526:Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    "logged",
    [
        "ERROR:root:sample failed\n",
        "2024-01-01 10:00:00,100\tERROR worker.py:409 -- Unhandled error: ray::act()\n",
    ],
)
def test_an_exception_that_a_logger_printed_before_two_steps_was_caught(logged: str, engine: Engine) -> None:
    raised = 'Traceback (most recent call last):\n  File "a.py", line 1, in act\nValueError: bad\n'
    steps = "".join(f"step {number} loss 2.{number}\n" for number in range(10, 12))
    assert judged(logged + raised + steps, engine).failure is FailureClass.HEALTHY
    assert judged(raised + steps, engine).failure is FailureClass.CODE_ERROR, "nobody caught it"
    assert judged(logged + raised, engine).failure is FailureClass.CODE_ERROR, "nothing came after"


def test_a_program_that_logged_an_exception_and_informs_on_outlived_it(engine: Engine) -> None:
    """A request that a service could not answer, months before its newest training."""
    logged = "2018-05-18 04:13:38,163 [Thread-6    ] [ERROR]  Internal Server Error: /ner/hello/\n"
    raised = traceback(("/w/views.py", "respond"), raised="TypeError: must be str, not list")
    words = (
        "hello",
        "order",
        "status",
        "limits",
        "email",
        "address",
        "country",
        "office",
        "search",
        "result",
        "names",
        "month",
        "total",
    )
    inform = [
        f"2018-05-18 04:15:{n:02},146 [MainThread  ] [INFO ]  User asks {word}\n"
        for n, word in enumerate(words)
    ]
    after = "".join(inform)
    assert judged(logged + raised + after, engine).failure is not FailureClass.CODE_ERROR
    assert judged(logged + raised + after + steps(1), engine).failure is FailureClass.HEALTHY
    assert judged(raised + after, engine).failure is FailureClass.CODE_ERROR, "nobody caught it"
    cleaned_up = "".join(inform[:5])
    assert judged(logged + raised + cleaned_up, engine).failure is FailureClass.CODE_ERROR


def test_a_step_that_was_logged_above_a_traceback_is_no_report_of_it(engine: Engine) -> None:
    """Runs appended to one file, each of which ends alike: a program that logged and outlived its exceptions looks similar."""
    step = "2025-12-09 13:14:{n:02}.273 | INFO     | train:25 - Epoch: 0 Step: {n} Training loss: 8.5\n"
    run = "".join(step.format(n=n) for n in range(30)) + traceback(
        ("train.py", "main"), raised="ValueError: 2"
    )
    assert judged(run * 3, engine).failure is FailureClass.CODE_ERROR


def test_an_exception_with_a_traceback_for_a_message_is_shown_by_what_that_ends_in(engine: Engine) -> None:
    """PyTorch 1.0: `raise batch.exc_type(batch.exc_msg)` of what a data worker raised."""
    text = (
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    for batch in loader:\n'
        'KeyError: Traceback (most recent call last):\n  File "data.py", line 3, in __getitem__\n    return self.rows[at]\n'
        "KeyError: 'segments'\n"
    )
    verdict = judged(text, engine)
    assert verdict.cause is not None
    assert (verdict.failure, verdict.cause.line) == (FailureClass.CODE_ERROR, 7)


@pytest.mark.parametrize(
    "line",
    [
        "/v/torch_geometric/typing.py:63: UserWarning: An issue occurred while importing 'torch-scatter'. undefined symbol: _ZN5",
        "/v/torch/amp/autocast_mode.py:266: UserWarning: User provided device_type of 'cuda', but CUDA is not available. Disabling",
        "slurmstepd-taurus: error: couldn't chdir to `/mnt/qe-lr/slurm': No such file or directory: going to /tmp instead",
        "Allowing ninja to set a default number of workers... (overridable by setting the environment variable MAX_JOBS=N)",
    ],
)
def test_a_warning_and_what_is_used_instead_are_no_roots(line: str, engine: Engine) -> None:
    assert judged(f"{line}\n{line}\n", engine).failure is FailureClass.UNKNOWN


def test_a_warning_yields_to_an_exception_below_it(engine: Engine) -> None:
    warned = "2023-11-01 15:27:59.627062: W tensorflow/platform/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'\n"
    missing = traceback(
        ("/w/infer.py", "main"), raised="FileNotFoundError: [Errno 2] No such file or directory: 'w.pkl'"
    )
    assert judged(warned + missing, engine).failure is FailureClass.MISSING_FILE


def test_a_warning_level_before_each_line_of_a_traceback_is_read(engine: Engine) -> None:
    level = "[2023-11-29 11:04:57,788] torch._dynamo.convert_frame: [WARNING] "
    lines = [
        "Traceback (most recent call last):",
        '  File "/a/f.py", line 4, in get',
        "    raise it",
        '  File "/a/g.py", line 9, in run',
        "    f()",
    ]
    lines.append("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:")
    ended = "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n"
    verdict = judged("".join(f"{level}{line}\n" for line in lines) + ended, engine)
    assert (verdict.failure, verdict.reason) == (FailureClass.TERMINATED, Reason.TIME_LIMIT)


IN_USE = "2025-07-10 22:53:35 [ERROR] web: failed to start the server: [Errno 98] Address already in use\n"
CALLED_A_WARNING = (
    "Warning: could not load part 'vqa'. Error: [Errno 2] No such file or directory: '/data/vqa.json'\n"
)
LOADED = "".join(f"loaded {name} weights\n" for name in ("vision", "language", "projector", "head", "all"))


@pytest.mark.parametrize("report", [IN_USE, CALLED_A_WARNING])
def test_what_was_only_reported_gives_way_to_what_was_raised_after_the_program_went_on(
    report: str, engine: Engine
) -> None:
    verdict = judged(report + LOADED + OWN, engine)
    assert verdict.cause is not None
    assert verdict.cause.text.startswith("RuntimeError: permute")


def test_what_was_reported_just_above_an_exception_is_its_reason(engine: Engine) -> None:
    verdict = judged(steps(1) + IN_USE + OWN, engine)
    assert verdict.failure is FailureClass.PORT_IN_USE


@pytest.mark.parametrize(
    "below",
    [
        "\nDuring handling of the above exception, another exception occurred:\n\n"
        + traceback(("/w/train.py", "<module>"), raised="AssertionError"),
        traceback(
            ("/v/wandb/cli.py", "service"),
            raised="FileNotFoundError: [Errno 2] No such file or directory: '/tmp/port-1'",
        ),
    ],
)
def test_what_is_raised_as_a_program_is_torn_down_by_ctrl_c_is_no_cause(below: str, engine: Engine) -> None:
    stopped = traceback(("/w/train.py", "<module>"), raised="KeyboardInterrupt")
    verdict = judged(steps(1) + stopped + below, engine)
    assert (verdict.failure, verdict.reason) == (FailureClass.TERMINATED, Reason.USER)
    later = judged(stopped + steps(1) + OWN, engine)
    assert later.failure is FailureClass.CODE_ERROR, "another run continued to steps of its own"


def test_a_warning_that_tells_of_ctrl_c_is_the_end(engine: Engine) -> None:
    said = (
        "/v/lightning/call.py:54: UserWarning: Detected KeyboardInterrupt, attempting graceful shutdown...\n"
    )
    assert judged(steps(1) + said, engine).failure is FailureClass.TERMINATED


def test_a_module_that_was_built_for_another_numpy_and_is_not_missed_is_no_cause(engine: Engine) -> None:
    warned = "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.2 as it may crash.\n"
    missing = traceback(
        ("/w/train.py", "<module>"),
        raised="FileNotFoundError: [Errno 2] No such file or directory: 'out/log'",
    )
    assert judged(warned + missing, engine).failure is FailureClass.MISSING_FILE
    assert judged(warned, engine).failure is FailureClass.IMPORT_ERROR


def test_what_wandb_logs_of_its_uploads_ends_nothing(engine: Engine) -> None:
    refused = "wandb: ERROR Error while calling W&B API: failed to find run a/b (<Response [404]>)\n"
    assert judged(steps(1) + refused * 3, engine).failure is FailureClass.HEALTHY
    raised = traceback(
        ("/w/train.py", "<module>"),
        raised="wandb.errors.CommError: failed to find run a/b (<Response [404]>)",
    )
    assert judged(refused + raised, engine).failure is FailureClass.AUTH_OR_HUB


SWALLOWED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "FileNotFoundError: [Errno 2] No such file or directory: 'stats.json'",
    "ModuleNotFoundError: No module named 'apex'",
)


@pytest.mark.parametrize("swallowed", SWALLOWED)
@pytest.mark.parametrize(
    "raised", ["ValueError: bad shape", "KeyError: 'labels'", "train.Diverged: loss 1e9"]
)
def test_the_measured_class_tells_which_exception_ended_the_script(
    swallowed: str, raised: str, engine: Engine
) -> None:
    printed = traceback(("/w/train.py", "evaluate"), raised=swallowed)
    text = steps(1) + printed + "no statistics\n" + traceback(("/w/train.py", "<module>"), raised=raised)
    name = raised.split(":")[0].rpartition(".")[2]

    def judged_with(**measured: str) -> Verdict:
        log = LogSource("0/stderr.log", (text.encode(),), Origin(rank=0, local_rank=0, stream="stderr"))
        ended = {int(rank.removeprefix("rank")): of for rank, of in measured.items()}
        return diagnose(JobEvidence(logs=(log,), raised=ended), engine.signatures, engine.matcher)

    verdict = judged_with(rank0=name)
    assert verdict.cause is not None
    assert verdict.cause.text == raised
    log_alone = judged_with()
    assert judged_with(rank1=name) == log_alone, "another rank's"
    assert judged_with(rank0="Unheard") == log_alone, "the log does not show what was measured"


def test_what_led_to_the_measured_exception_stays_its_cause(engine: Engine) -> None:
    full = traceback(("/w/train.py", "save"), raised="OSError: [Errno 28] No space left on device")
    broken = traceback(("/w/train.py", "<module>"), raised="RuntimeError: unexpected pos 2816 vs 2710")
    text = (
        f"{steps(1)}{full}\nDuring handling of the above exception, another exception occurred:\n\n{broken}"
    )
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),), raised={0: "RuntimeError"})
    assert diagnose(job, engine.signatures, engine.matcher).failure is FailureClass.DISK_FULL

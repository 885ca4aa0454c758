import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.case import Root
from supervisor.diagnosis.cause.fingerprint import fingerprint
from supervisor.diagnosis.evidence import ErrorFile, JobEvidence, LogSource, MachineRecords, RunValues
from supervisor.diagnosis.verdict import diagnose
from supervisor.diagnosis.wording.titles import title_of
from supervisor.job.batch import BatchSpec
from supervisor.run.records import Action, FailureClass, Reason, Verdict
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711"


def logs(text: str, origin: Origin | None = None) -> tuple[LogSource, ...]:
    return (LogSource("a.log", (text.encode(),), origin or Origin()),)


def judge(engine: Engine, job: JobEvidence) -> Verdict:
    return diagnose(job, engine.signatures, engine.matcher)


def on_text(engine: Engine, text: str) -> Verdict:
    return judge(engine, JobEvidence(logs=logs(text)))


def traceback(rank: int, error: str) -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in main',
        "    loss.backward()",
        error,
    ]
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


def test_a_keyerror_before_seven_complaints_of_nccl(engine: Engine) -> None:
    text = STEPS + traceback(3, "KeyError: 'labels'")
    for rank in (0, 1, 2, 4, 5, 6, 7):
        text += traceback(
            rank,
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error",
        )
        text += f"[rank{rank}]:[W101 00:00:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer\n"
    verdict = on_text(engine, text)
    assert (verdict.failure, verdict.rank) == (FailureClass.CODE_ERROR, 3)
    assert verdict.cause is not None
    assert verdict.cause.line == 24
    assert FailureClass.NCCL_ERROR in {item.failure for item in verdict.consequences}


def test_a_killed_rank_before_its_peers_complaint(engine: Engine) -> None:
    text = (
        STEPS
        + traceback(0, GLOO)
        + (
            "W0101 00:00:01.000000 9 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 11 closing signal SIGTERM\n"
            "E0101 00:00:02.000000 9 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 12) of binary: /usr/bin/python\n"
            "[Thu Jan  1 00:00:00 2026] Out of memory: Killed process 12 (python) total-vm:1kB\n"
        )
    )
    verdict = on_text(engine, text)
    assert (verdict.failure, verdict.reason, verdict.rank) == (FailureClass.HOST_OOM, Reason.KERNEL_KILL, 1)


def test_exit_codes_alone(engine: Engine) -> None:
    verdict = judge(engine, JobEvidence(logs=(), exit_codes={0: -15, 1: -11}, launcher_exit=1))
    assert (verdict.failure, verdict.reason, verdict.rank) == (FailureClass.WORKER_CRASH, Reason.SIGNAL, 1)
    assert verdict.cause is None


def test_the_cgroup_explains_a_kill(engine: Engine) -> None:
    machine = MachineRecords(cgroup_oom_kills=1)
    verdict = judge(
        engine, JobEvidence(logs=logs(STEPS), exit_codes={0: -15, 1: -9}, launcher_exit=1, machine=machine)
    )
    assert (verdict.failure, verdict.reason) == (FailureClass.HOST_OOM, Reason.CGROUP_KILL)
    assert verdict.confidence >= 0.9


@pytest.mark.parametrize(
    ("state", "reason"),
    [("TIMEOUT", Reason.TIME_LIMIT), ("PREEMPTED", Reason.PREEMPTED), ("NODE_FAIL", Reason.NODE_FAIL)],
)
def test_the_scheduler_explains_an_end(engine: Engine, state: str, reason: Reason) -> None:
    job = JobEvidence(logs=logs(STEPS), launcher_exit=1, machine=MachineRecords(slurm_state=state))
    verdict = judge(engine, job)
    assert (verdict.failure, verdict.reason, verdict.action) == (
        FailureClass.TERMINATED,
        reason,
        Action.REQUEUE,
    )


def test_our_own_stop_is_no_crash(engine: Engine) -> None:
    text = (
        STEPS
        + "W0101 00:00:01.000000 9 torch/distributed/elastic/agent/server/api.py:704] Received 15 death signal, shutting down workers\n"
        + traceback(0, GLOO)
    )
    job = JobEvidence(logs=logs(text), exit_codes={0: -15, 1: -15}, launcher_exit=1, stop_reason="asked")
    verdict = judge(engine, job)
    assert (verdict.failure, verdict.reason) == (FailureClass.TERMINATED, Reason.USER)


def test_an_out_of_memory_just_before_our_stop_is_still_told(engine: Engine) -> None:
    text = STEPS + traceback(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.")
    verdict = judge(
        engine,
        JobEvidence(logs=logs(text), exit_codes={0: -15, 1: 1}, launcher_exit=1, stop_reason="stalled"),
    )
    assert (verdict.failure, verdict.rank) == (FailureClass.CUDA_OOM, 1)


def test_an_abort_after_the_last_step(engine: Engine) -> None:
    text = STEPS + "terminate called without an active exception\n"
    job = JobEvidence(
        logs=logs(text), exit_codes={0: -6, 1: 0}, launcher_exit=1, last_step=20, total_steps=20
    )
    verdict = judge(engine, job)
    assert (verdict.failure, verdict.reason, verdict.action) == (
        FailureClass.WORKER_CRASH,
        Reason.AT_EXIT,
        Action.NONE,
    )
    earlier = judge(engine, job._replace(last_step=10, logs=logs(text)))
    assert earlier.reason is not Reason.AT_EXIT


def test_exit_0_without_a_step_far_from_the_end_is_no_success(engine: Engine) -> None:
    job = JobEvidence(
        logs=logs("loading\nnothing to do\n"), launcher_exit=0, earlier_step=(1, 30), total_steps=90
    )
    verdict = judge(engine, job)
    assert (verdict.failure, verdict.reason) == (FailureClass.UNKNOWN, Reason.NO_STEP)
    assert verdict.title == "Ended without a step: attempt 1 had reached step 30 of 90"
    assert "the checkpoint it resumed from" in verdict.advice[0]
    for known in (
        {"earlier_step": None},
        {"earlier_step": (1, 81)},  # a script that prints every tenth step had nothing more to print
        {"total_steps": None},
        {"final_checkpoint": True},
    ):
        assert judge(engine, job._replace(**known)).failure is FailureClass.HEALTHY


@pytest.mark.parametrize("cut", [0, 30])
def test_an_error_file_speaks_where_the_logs_do_not(engine: Engine, cut: int) -> None:
    content = b'{"message": {"message": "KeyError: \'x\'", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1700000000"}}}'
    file = ErrorFile("1/error.json", content[: len(content) - cut], Origin(local_rank=1))
    verdict = judge(
        engine, JobEvidence(logs=logs(STEPS), exit_codes={0: 1, 1: 1}, launcher_exit=1, error_files=(file,))
    )
    assert (verdict.failure, verdict.rank) == (FailureClass.CODE_ERROR, 1)
    assert verdict.cause is not None
    assert verdict.cause.path == "1/error.json"


def test_an_allocation_on_the_host_quotes_the_runs_values(engine: Engine) -> None:
    text = (
        STEPS
        + "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes.\n"
    )
    values = RunValues(micro_batch=16, batch=BatchSpec(16, 2, 2))
    job = JobEvidence(logs=logs(text, Origin(local_rank=1)), exit_codes={0: -15, 1: 1}, run_values=values)
    verdict = judge(engine, job)
    assert (verdict.failure, verdict.reason, verdict.rank) == (FailureClass.HOST_OOM, Reason.ALLOCATOR, 1)
    assert verdict.action is Action.REDUCE_BATCH
    assert "(now 16): 8 divides" in verdict.advice[0]


@pytest.mark.parametrize(
    "text",
    [
        STEPS,
        STEPS + "Training complete.\n",
        STEPS + "WARNING overflow, skipping step\n" + STEPS,
        "CUDA out of memory, retrying with batch 8\n" + STEPS,
        STEPS + "HINT: on CUDA OOM lower the micro-batch\n",
        STEPS + "CUDA out of memory retries: 0\n",
        "[W101 00:00:00.1 socket.cpp:601] [c10d] The client socket has failed to connect to [::ffff:h]:29500 (errno: 97 - Address family not supported by protocol).\n"
        + STEPS,
    ],
)
def test_a_healthy_log_raises_no_alarm(engine: Engine, text: str) -> None:
    assert on_text(engine, text).failure is FailureClass.HEALTHY


def test_nothing_said_is_unknown(engine: Engine) -> None:
    assert on_text(engine, "").failure is FailureClass.UNKNOWN
    assert judge(engine, JobEvidence(logs=logs(STEPS), launcher_exit=1)).failure is FailureClass.UNKNOWN


def test_a_loss_that_stays_nan(engine: Engine) -> None:
    text = STEPS + "".join(f"step {number} loss nan\n" for number in range(21, 40))
    verdict = on_text(engine, text)
    assert verdict.failure is FailureClass.NAN_LOSS
    assert verdict.cause is not None
    assert verdict.cause.line == 21
    assert on_text(engine, STEPS + "step 21 loss nan\n" + STEPS).failure is FailureClass.HEALTHY


def test_the_rank_that_did_not_come(engine: Engine) -> None:
    line = "[rank{0}]:[E101 00:10:00.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    verdict = on_text(engine, "".join(line.format(rank) for rank in (0, 1, 3)))
    assert (verdict.failure, verdict.rank) == (FailureClass.NCCL_TIMEOUT, 2)


def test_ranks_that_fail_alike_are_listed(engine: Engine) -> None:
    text = "".join(
        traceback(rank, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.")
        for rank in (0, 1)
    )
    verdict = on_text(engine, text)
    assert (verdict.rank, verdict.ranks) == (None, (0, 1))


def test_a_fingerprint_survives_what_changes_between_runs() -> None:
    one = fingerprint(
        FailureClass.MISSING_FILE,
        None,
        "2026-01-01 00:00:01 [rank3]: FileNotFoundError: '/runs/brave-otter/7/x.bin' at 0x7f12",
    )
    two = fingerprint(
        FailureClass.MISSING_FILE,
        None,
        "2026-02-03 10:11:12 [rank0]: FileNotFoundError: '/runs/calm-fox/12/x.bin' at 0x9a01",
    )
    other = fingerprint(
        FailureClass.MISSING_FILE, None, "FileNotFoundError: '/runs/calm-fox/12/y.bin' at 0x9a01"
    )
    assert one == two != other
    assert len(one) == 16


@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.sampled_from(
                [
                    GLOO,
                    "KeyError: 'x'",
                    "[rank1]: MemoryError",
                    "failed (exitcode: -9) local_rank: 1 (pid: 12) of binary: x",
                ]
            ),
        ),
        max_size=20,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_text_gets_a_verdict(engine: Engine, lines: list[str]) -> None:
    verdict = on_text(engine, "\n".join(lines))
    assert 0 <= verdict.confidence <= 1
    assert verdict.rank is None or verdict.rank >= 0


def test_a_bare_sigkill_is_not_asserted_to_be_memory(engine: Engine) -> None:
    job = JobEvidence(logs=logs(STEPS), exit_codes={0: -15, 1: -9}, launcher_exit=1, world_size=2)
    verdict = judge(engine, job)
    assert verdict.confidence <= 0.7
    assert verdict.title == "Rank 1 was killed (SIGKILL); most often memory ran out on the host"
    assert "oom_kill" in verdict.advice[0]
    counted = judge(engine, job._replace(machine=MachineRecords(cgroup_oom_kills=1)))
    assert (counted.title, counted.reason) == ("Host memory ran out on rank 1", Reason.CGROUP_KILL)
    none = judge(engine, job._replace(machine=MachineRecords(cgroup_oom_kills=0)))
    assert (none.failure, none.title) == (FailureClass.WORKER_CRASH, "Rank 1 was killed (SIGKILL)")
    assert "counted no out-of-memory kill" in none.advice[0]
    assert "FAULTHANDLER" not in " ".join(none.advice)


@pytest.mark.parametrize("code", [-4, -6, -7, -8, -9, -11])
def test_faulthandler_is_advised_only_for_signals_that_it_can_see(engine: Engine, code: int) -> None:
    line = f"failed (exitcode: {code}) local_rank: 1 (pid: 12) of binary: /usr/bin/python"
    job = JobEvidence(
        logs=logs(f"{STEPS}E0101 00:00:02.000000 9 torch/distributed/elastic/multiprocessing/api.py:874] {line}\n"),
        launcher_exit=1, world_size=2, machine=MachineRecords(cgroup_oom_kills=0),
    )  # fmt: skip
    verdict = judge(engine, job)
    assert verdict.failure is FailureClass.WORKER_CRASH
    assert ("FAULTHANDLER" in " ".join(verdict.advice)) is (code != -9)
    assert ("SIGKILL" in " ".join(verdict.advice)) is (code == -9)


def test_what_a_person_stopped_did_not_fail_and_needs_no_queue(engine: Engine) -> None:
    stopped = judge(engine, JobEvidence(logs=logs(STEPS), launcher_exit=1, stop_reason="request"))
    assert (stopped.failure, stopped.reason) == (FailureClass.TERMINATED, Reason.USER)
    assert (stopped.advice, stopped.fingerprint) == ((), "")
    machine = MachineRecords(slurm_state="TIMEOUT")
    limit = judge(engine, JobEvidence(logs=logs(STEPS), launcher_exit=1, machine=machine))
    assert (limit.failure, limit.reason) == (FailureClass.TERMINATED, Reason.TIME_LIMIT)
    assert "Requeue" in limit.advice[0]
    assert limit.fingerprint


def test_a_killed_data_loader_is_not_blamed_on_memory_where_the_kernel_counted_no_kill(
    engine: Engine,
) -> None:
    line = "RuntimeError: DataLoader worker (pid 411) is killed by signal: Killed. "
    job = JobEvidence(logs=logs(f"{STEPS}{line}\n"), exit_codes={0: 1}, launcher_exit=1, world_size=1)
    uncounted = judge(engine, job)
    assert (uncounted.failure, uncounted.reason) == (FailureClass.HOST_OOM, Reason.KERNEL_KILL)
    none = judge(engine, job._replace(machine=MachineRecords(cgroup_oom_kills=0)))
    assert (none.failure, none.reason) == (FailureClass.DATALOADER_WORKER, Reason.KILLED)
    assert none.cause is not None
    assert none.cause.text == line.strip()
    counted = judge(engine, job._replace(machine=MachineRecords(cgroup_oom_kills=1)))
    assert (counted.failure, counted.reason) == (FailureClass.HOST_OOM, Reason.CGROUP_KILL)
    logged = "Memory cgroup out of memory: Killed process 411 (python)"
    machine = MachineRecords(cgroup_oom_kills=0, kernel_log=logged)
    assert judge(engine, job._replace(machine=machine)).failure is FailureClass.HOST_OOM


def test_a_supposition_is_called_one() -> None:
    root = Root(FailureClass.NCCL_ERROR, None, 1, (1,), None, "a.log", 3, "Connection reset by peer", 0.65)
    assert title_of(root) == "Communication between ranks failed on rank 1 (likely, not certain)"
    assert title_of(root._replace(confidence=0.9)) == "Communication between ranks failed on rank 1"


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("RuntimeError: CUDA error: uncorrectable parity error of a new kind", FailureClass.CUDA_ERROR),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_77'", FailureClass.DISK_FULL),
        ("AttributeError: 'NoneType' object has no attribute 'sizes'", FailureClass.CODE_ERROR),
    ],
)
def test_words_of_another_class_take_the_certainty_away(
    engine: Engine, line: str, failure: FailureClass
) -> None:
    verdict = on_text(engine, STEPS + traceback(0, line))
    assert verdict.failure is not failure or verdict.confidence < 0.9
    plain = on_text(
        engine, STEPS + traceback(0, "RuntimeError: CUDA error: an illegal memory access was encountered")
    )
    assert plain.confidence >= 0.9


def test_a_loss_scale_that_fell_to_nothing_is_the_cause_of_what_divides_by_it(engine: Engine) -> None:
    scale = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n"
    lost = (
        STEPS
        + scale.format("5.06e-321")
        + scale.format("0.0")
        + traceback(0, "ZeroDivisionError: float division by zero")
    )
    assert on_text(engine, lost).failure is FailureClass.NAN_LOSS
    assert on_text(engine, STEPS + scale.format("1.5e-05") + STEPS).failure is FailureClass.HEALTHY


@pytest.mark.parametrize(
    "line",
    [
        "[1]    14957 segmentation fault (core dumped)  python train.py",
        "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)",
    ],
)
def test_other_shells_words_for_a_crash(engine: Engine, line: str) -> None:
    assert on_text(engine, line + "\n").failure is FailureClass.WORKER_CRASH


def test_a_notice_in_a_start_that_goes_on_is_no_failure(engine: Engine) -> None:
    notice = "size mismatch for head.weight: copying a param with shape torch.Size([16, 8]) from checkpoint, the shape in current model is torch.Size([2, 8]).\n"
    start = "2022-11-02 14:19:37,340 - mmdet - INFO - Start running\n2022-11-02 14:19:37,341 - mmdet - INFO - Hooks follow\n"
    assert on_text(engine, notice + start).failure in (FailureClass.HEALTHY, FailureClass.UNKNOWN)
    assert on_text(engine, start + notice).failure is FailureClass.CHECKPOINT_LOAD


@pytest.mark.parametrize(
    ("failure", "text", "title"),
    [
        (FailureClass.CODE_ERROR, "ValueError: label 1001 out of range", "ValueError on rank 1: label 1001 out of range"),
        (FailureClass.CODE_ERROR, "[rank1]: torch._C._LinAlgError: no svd", "_LinAlgError on rank 1: no svd"),
        (FailureClass.CODE_ERROR, "AssertionError", "AssertionError on rank 1"),
        (FailureClass.CODE_ERROR, "CommError      Traceback (most recent call last)", "The program raised an exception on rank 1"),
        (FailureClass.CODE_ERROR, "the simulator said no", "The program raised an exception on rank 1"),
        (FailureClass.CODE_ERROR, f"KeyError: {'k' * 400}", f"KeyError on rank 1: {'k' * 159}…"),
        (FailureClass.CODE_ERROR, "KeyError: 'HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH'", "KeyError on rank 1: 'HF_TOKEN=<redacted>'"),
        (FailureClass.IMPORT_ERROR, "ModuleNotFoundError: No module named 'flash_attn'", "ModuleNotFoundError on rank 1: No module named 'flash_attn'"),
        (FailureClass.MISSING_FILE, "FileNotFoundError: [Errno 2] No such file or directory: '/d'", "FileNotFoundError on rank 1: [Errno 2] No such file or directory: '/d'"),
        (FailureClass.USAGE_ERROR, "train.py: error: unrecognized arguments: --foo", "Wrong arguments or configuration on rank 1: unrecognized arguments: --foo"),
        (FailureClass.USAGE_ERROR, "usage: train.py [-h]", "Wrong arguments or configuration on rank 1"),
        (FailureClass.CUDA_OOM, "torch.OutOfMemoryError: CUDA out of memory. Tried", "GPU memory ran out on rank 1"),
    ],
)  # fmt: skip
def test_an_ordinary_error_is_named_by_its_own_words(failure: FailureClass, text: str, title: str) -> None:
    assert title_of(Root(failure, rank=1, text=text, confidence=0.9)) == title


def test_headline_marks_what_is_only_likely() -> None:
    root = Root(FailureClass.CODE_ERROR, rank=1, text="ValueError: no", confidence=0.8)
    assert title_of(root) == "ValueError on rank 1: no"
    assert title_of(root._replace(confidence=0.79)) == "ValueError on rank 1: no (likely, not certain)"
    assert title_of(root._replace(rank=None, ranks=(0, 1))) == "ValueError on ranks 0, 1: no"
    assert title_of(root._replace(rank=None)) == "ValueError: no"


MISSING = "ModuleNotFoundError: No module named 'rows.load'"
OPEN_MPI = "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[60071,1],11]\n  Exit code:    1\n"
OLD_LAUNCHER = "subprocess.CalledProcessError: Command '['python', '-u', 'train.py', '--local_rank={local}', 'a.py']' returned non-zero exit status 1.\n"


@pytest.mark.parametrize(
    ("report", "rank"),
    [
        (OPEN_MPI, 11),
        (OLD_LAUNCHER.format(local=0), 0),
        (OLD_LAUNCHER.format(local=3), None),
    ],
)
def test_launchers_name_who_exited_first_or_that_there_was_one_process(
    report: str, rank: int | None, engine: Engine
) -> None:
    raised = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{MISSING}\n'
    assert on_text(engine, raised + report).rank == rank

"""Each trouble that the given guides describe has its advice, said in a line, with the run's own values where it has any."""

import pytest

from supervisor.diagnosis.class_texts import class_texts
from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords, RunValues
from supervisor.diagnosis.journal_facts import run_values_of
from supervisor.diagnosis.verdict import diagnose
from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope
from supervisor.run.records import Action, FailureClass, Reason, Verdict
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FULL = (
    OOM
    + " GPU 1 has a total capacity of 16.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has "
    "15.00 GiB memory in use. Of the allocated memory 14.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
)
REDUCTION = "[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
VALUES = RunValues(
    micro_batch=16,
    batch=BatchSpec(16, 3, 2),
    workers=8,
    port=29500,
    free_port=23456,
    user_of=lambda pid: "alice" if pid == 4711 else None,
)


def judged(
    engine: Engine, text: str, values: RunValues = VALUES, machine: MachineRecords | None = None
) -> Verdict:
    job = JobEvidence(
        logs=(LogSource("log", (f"{STEPS}{text}\n".encode(),)),),
        exit_codes={0: -15, 1: 1},
        launcher_exit=1,
        machine=machine or MachineRecords(),
        run_values=values,
    )
    return diagnose(job, engine.signatures, engine.matcher)


CASES = [
    ("000.6", "memory", OOM, FailureClass.CUDA_OOM, "Reduce device_batch_size (now 16): 8 divides the global batch."),
    ("000.6", "memory: what fits by the message's numbers", FULL, FailureClass.CUDA_OOM, "(now 16): 12 divides"),
    ("000.6", "memory: compile", OOM, FailureClass.CUDA_OOM, "TORCH_COMPILE_DISABLE=1"),
    ("000.6", "wandb login", "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])", FailureClass.AUTH_OR_HUB, "WANDB_MODE=offline"),
    ("000.6", "libuv", "RuntimeError: use_libuv was requested but PyTorch was build without libuv support", FailureClass.LIBUV, "USE_LIBUV=0"),
    ("000.6", "libuv: agent's store", "RuntimeError: use_libuv was requested but PyTorch was build without libuv support", FailureClass.LIBUV, "TORCHELASTIC_USE_AGENT_STORE=0"),
    ("002.5", "address in use", "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE", FailureClass.PORT_IN_USE, "Port 23456 is free: `--master-port 23456`."),
    ("002.5", "address in use: which", "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE", FailureClass.PORT_IN_USE, "Port 29500 is taken."),
    ("002.5", "NCCL error", "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error", FailureClass.NCCL_ERROR, "gloo"),
    ("002.5", "nodes do not meet: firewall", "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (node0, 29500).", FailureClass.RENDEZVOUS, "firewall"),
    ("002.5", "nodes do not meet: interface", "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (node0, 29500).", FailureClass.RENDEZVOUS, "NCCL_SOCKET_IFNAME"),
    ("002.5", "memory: accumulation", OOM, FailureClass.CUDA_OOM, "gradient accumulation"),
    ("002.5", "memory: precision", OOM, FailureClass.CUDA_OOM, "bf16"),
    ("003.9", "memory: checkpointing, lengths", OOM, FailureClass.CUDA_OOM, "gradient checkpointing"),
    ("003.9", "NCCL timeout", "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600081 milliseconds before timing out.", FailureClass.NCCL_TIMEOUT, "Raising the timeout"),
    ("003.9", "loss explodes", "Loss is nan, stopping training", FailureClass.NAN_LOSS, "lower learning rate, gradient clipping"),
    ("003.9", "checkpoint: space", "OSError: [Errno 28] No space left on device: '/ckpt/step_100.pt'", FailureClass.DISK_FULL, "/ckpt has 0.5 GiB free."),
    ("003.9", "checkpoint: rights", "PermissionError: [Errno 13] Permission denied: '/ckpt/step_100.pt'", FailureClass.PERMISSION_DENIED, "/ckpt/step_100.pt"),
    ("003.9", "checkpoint: mount", "OSError: [Errno 30] Read-only file system: '/ckpt/x.pt'", FailureClass.PERMISSION_DENIED, "the mount's options"),
    ("003.9", "checkpoint: no folder", "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/phase2/step_1.pt'", FailureClass.MISSING_FILE, "Not there: ckpt/phase2/step_1.pt"),
    ("004.1", "unfinished reduction", REDUCTION, FailureClass.DDP_MISMATCH, "find_unused_parameters=True"),
    ("004.1", "unused by name", REDUCTION + "Parameters which did not receive grad for rank 1: head.weight, head.bias", FailureClass.DDP_MISMATCH, "No gradient on rank 1 for head.weight, head.bias"),
    ("004.1", "missing gradients by rank", REDUCTION + "Parameter indices which did not receive grad for rank 1: 2 3", FailureClass.DDP_MISMATCH, "No gradient on rank 1 for the parameters at 2 3"),
    ("004.1", "all ranks alike", REDUCTION, FailureClass.DDP_MISMATCH, "all ranks take the same branches"),
    ("004.2", "crash: spawn", "RuntimeError: DataLoader worker (pid 12) is killed by signal: Aborted. ", FailureClass.DATALOADER_WORKER, "multiprocessing_context='spawn'"),
    ("004.2", "crash: native", "RuntimeError: DataLoader worker (pid 12) is killed by signal: Segmentation fault. ", FailureClass.DATALOADER_WORKER, "multiprocessing_context='spawn'"),
    ("004.2", "killed: workers from cores and ranks", "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. ", FailureClass.HOST_OOM, "(cores of the node) / (ranks on it)"),
    ("004.2", "timeout", "RuntimeError: DataLoader timed out after 5 seconds", FailureClass.DATALOADER_WORKER, "timeout="),
    ("004.2", "persistent workers", "RuntimeError: DataLoader timed out after 5 seconds", FailureClass.DATALOADER_WORKER, "persistent_workers=True"),
    ("004.2", "bus error", "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", FailureClass.SHM_EXHAUSTED, "Shared memory (/dev/shm) was 99% full."),
]  # fmt: skip
MACHINES = {
    FailureClass.DISK_FULL: MachineRecords(disk_free_bytes=1 << 29, disk_path="/ckpt"),
    FailureClass.SHM_EXHAUSTED: MachineRecords(shm_used_share=0.99),
}


@pytest.mark.parametrize(
    ("seed", "case", "text", "failure", "advice"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES]
)
def test_each_trouble_of_the_guides_has_its_advice(
    engine: Engine, seed: str, case: str, text: str, failure: FailureClass, advice: str
) -> None:
    assert seed
    assert case
    found = judged(engine, text, machine=MACHINES.get(failure))
    assert found.failure is failure
    assert [line for line in found.advice if advice in line], found.advice
    assert all("\n" not in line and len(line) < 300 for line in found.advice)


def test_every_class_has_advice_but_where_the_message_says_it_all() -> None:
    for failure, text in class_texts().items():
        assert bool(text.advice) == (failure not in {FailureClass.HEALTHY, FailureClass.CODE_ERROR})


def test_the_allocator_comes_before_the_batch_until_it_is_set(engine: Engine) -> None:
    text = (
        OOM
        + " GPU 0 has a total capacity of 79.11 GiB of which 0.50 GiB is free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 12.90 GiB is reserved by PyTorch but unallocated."
    )
    first, second = judged(engine, text).advice[:2]
    assert "expandable_segments:True" in first
    assert "(now 16)" in second
    assert "(now 16)" in judged(engine, text, VALUES._replace(allocator_set=True)).advice[0]


def test_who_else_holds_the_gpu_is_named_by_pid_and_user(engine: Engine) -> None:
    text = (
        OOM
        + " Process 4711 has 5.00 GiB memory in use. Including non-PyTorch memory, this process has 9.00 GiB memory in use."
    )
    (told,) = [line for line in judged(engine, text).advice if "Another process" in line]
    assert told == "Another process uses this GPU: process 4711 of alice (5.00 GiB)."
    own = judged(engine, text, VALUES._replace(own_pids=frozenset((4711,))))
    assert not [line for line in own.advice if "Another process" in line]
    silent = VALUES._replace(other_gpu_users=("process 9 of bob (1.0 GiB on GPU 0)",))
    assert [line for line in judged(engine, OOM, silent).advice if "process 9 of bob" in line]


def test_a_kill_for_memory_names_the_workers_first(engine: Engine) -> None:
    found = judged(engine, "", machine=MachineRecords(cgroup_oom_kills=1))
    assert found.failure is FailureClass.HOST_OOM
    assert "Lower num_workers (now 8)" in " ".join(found.advice)


def on_text(engine: Engine, text: str) -> Verdict:
    """The verdict on a text of its own, of which nothing else is known."""
    return diagnose(
        JobEvidence(logs=(LogSource("a.log", (text.encode(),), Origin()),)), engine.signatures, engine.matcher
    )


def test_fragmentation_asks_for_the_allocator_first(engine: Engine) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 0.50 GiB is free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 12.90 GiB is reserved by PyTorch but unallocated.\n"
    verdict = on_text(engine, text)
    assert verdict.action is Action.SET_ALLOCATOR
    assert "expandable_segments" in verdict.advice[0]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
            "libcudart.so.11.0",
        ),
        ("train.py: error: unrecognized arguments: --local-rank=1", "LOCAL_RANK"),
        (
            "OSError: You are trying to access a gated repo. 401 Client Error for https://huggingface.co/meta/llama/resolve/main/config.json.",
            "meta/llama",
        ),
        ("OSError: [Errno 30] Read-only file system: '/ckpt/x.pt'", "/ckpt/x.pt"),
        (
            "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
            "df -h /dev/shm",
        ),
    ],
)
def test_advice_is_particular(engine: Engine, line: str, advice: str) -> None:
    assert advice in " ".join(on_text(engine, line + "\n").advice)


def test_a_flag_of_stoker_behind_the_script_is_named(engine: Engine) -> None:
    line = "train.py: error: unrecognized arguments: --no-ui --depth 3"
    misplaced = RunValues(entry="train.py", behind_entry=("--no-ui", "--name"))
    verdict = judged(engine, line, misplaced)
    assert verdict.failure is FailureClass.USAGE_ERROR
    assert verdict.advice[0] == "`--no-ui` is a flag of stoker: put it before train.py"
    assert not any("stoker's" in said for said in judged(engine, line, RunValues(entry="train.py")).advice)


@pytest.mark.parametrize(
    ("scope", "paired", "said"),
    [
        (KnobScope.GLOBAL, True, "Reduce --batch_size 32 (16 a rank): 8 a rank divides the global batch."),
        (KnobScope.PER_NODE, False, "Reduce --batch_size 64 (16 a rank): 8 a rank divides the global batch."),
        (KnobScope.PER_RANK, False, "Reduce --batch_size (now 16): 8 divides the global batch."),
    ],
)
def test_a_batch_that_the_script_divides_is_named_as_it_was_typed(
    engine: Engine, scope: KnobScope, paired: bool, said: str
) -> None:
    knobs = Knobs(batch="--batch_size", accumulation="--accum", batch_scope=scope, paired=paired)
    job = JobSpec(
        name="x", entry_kind=EntryKind.SCRIPT, entry="train.py", python="python", cwd="/", nproc_per_node=4, knobs=knobs
    )  # fmt: skip
    view = AttemptState(number=1, planned_t=0.0, batch=BatchSpec(16, 3, 2))
    assert said in judged(engine, OOM, run_values_of(RunState(), view, (), job)).advice


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        ((), "(now 16): 8 divides the global batch."),
        ((8,), "(now 16): 4 divides the global batch."),
        ((8, 1), "Reduce device_batch_size (now 16)."),
    ],
)
def test_no_batch_is_advised_that_this_run_saw_run_out_of_memory(
    engine: Engine, failed: tuple[int, ...], said: str
) -> None:
    views = tuple(
        AttemptState(
            number=at, planned_t=0.0, batch=BatchSpec(16, 1, 2), trial=MemoryTrial(micro, fitted=False)
        )
        for at, micro in enumerate((*failed, 16), start=1)
    )
    values = run_values_of(RunState(attempts=views), views[-1], (), None)
    assert any(said in line for line in judged(engine, OOM, values).advice)


def test_what_stands_behind_the_script_and_is_known_before_it() -> None:
    def behind(kind: EntryKind, *args: str) -> tuple[str, ...]:
        job = JobSpec(name="x", entry_kind=kind, entry="train.py", entry_args=args, python="python", cwd="/")
        return run_values_of(RunState(), AttemptState(number=1, planned_t=0.0), (), job).behind_entry

    words = ("--lr", "3", "--no-ui", "--theme=dark", "--nproc_per_node", "2")
    assert behind(EntryKind.SCRIPT, *words) == ("--no-ui", "--theme", "--nproc_per_node")
    assert behind(EntryKind.COMMAND, *words) == ()


RAISED = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n    go()\n'


@pytest.mark.parametrize(
    ("line", "failure", "advice", "not_advised"),
    [
        ("ModuleNotFoundError: No module named 'transformers.models.qwen3'", FailureClass.IMPORT_ERROR, "transformers was found but has no transformers.models.qwen3", "Install"),
        ("ModuleNotFoundError: No module named 'flash_attn'", FailureClass.IMPORT_ERROR, "Install flash_attn", "was found"),
        ("ModuleNotFoundError: No module named 'utils.data'; 'utils' is not a package", FailureClass.IMPORT_ERROR, "utils is a file here", "Install"),
        ("ImportError: cannot import name 'AdamW' from 'transformers' (/v/lib/python3.11/site-packages/transformers/__init__.py)", FailureClass.IMPORT_ERROR, "has no AdamW", "Install"),
        ("RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.", FailureClass.HOST_OOM, "num_proc", "num_workers"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'", FailureClass.MISSING_FILE, "nvcc is not on $PATH", "mounts"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", FailureClass.MISSING_FILE, "mounts", "$PATH"),
        ("OSError: [Errno 28] No space left on device: '/tmp/torchinductor/x.so'", FailureClass.DISK_FULL, "set TMPDIR", "mount"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/x.pt'", FailureClass.DISK_FULL, "Free space", "TMPDIR"),
        ("OSError: [Errno 116] Stale file handle: '/nfs/x'", FailureClass.DISK_FULL, "check the mount on this node", "quota"),
        ("OSError: [Errno 5] Input/output error: '/nfs/x'", FailureClass.DISK_FULL, "check the mount on this node", "quota"),
        ("socket.gaierror: [Errno -2] Name or service not known", FailureClass.AUTH_OR_HUB, "A host's name could not be resolved", "token"),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by NameResolutionError('Temporary failure in name resolution'))", FailureClass.AUTH_OR_HUB, "The name huggingface.co could not be resolved", "token"),
        ("ValueError: No valid checkpoint found in output directory (out/llama)", FailureClass.CHECKPOINT_LOAD, "There is no checkpoint in out/llama yet", "checkpoint before it"),
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1691, internal error - please report this issue to the NCCL developers", FailureClass.NCCL_ERROR, "no two ranks share a GPU", "report"),
        ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\nParameter indices which did not receive grad for rank 0: 4 5", FailureClass.DDP_MISMATCH, "TORCH_DISTRIBUTED_DEBUG=INFO", "DETAIL"),
    ],
)  # fmt: skip
def test_advice_fits_the_line(
    engine: Engine, line: str, failure: FailureClass, advice: str, not_advised: str
) -> None:
    found = judged(engine, RAISED + line)
    assert found.failure is failure
    assert [text for text in found.advice if advice in text], found.advice
    assert not [text for text in found.advice if not_advised in text], found.advice


def test_a_filesystem_that_does_not_answer_is_no_full_disk(engine: Engine) -> None:
    stale = judged(engine, RAISED + "OSError: [Errno 116] Stale file handle: '/nfs/x'")
    assert stale.title.startswith("A filesystem does not answer")


def test_what_a_log_names_is_never_longer_than_a_name(engine: Engine) -> None:
    """A host's name has at most 253 characters; what a log has in its place filled pages of advice."""
    long = judged(engine, "srun: error: Node failure on cn-" + "9" * 5000)
    assert (long.reason, long.node) == (Reason.NODE_FAIL, None)
    assert max(map(len, long.advice)) < 800
    assert judged(engine, "srun: error: Node failure on cn-" + "9" * 250).node == "cn-" + "9" * 250


def test_the_node_that_failed_is_named(engine: Engine) -> None:
    """By the scheduler's line that is about it; the node that a job's own line stands ON ran its script."""
    found = judged(engine, "srun: error: Node failure on cn-01")
    assert found.node == "cn-01"
    assert "--exclude=cn-01" in found.advice[0]
    other = judged(
        engine,
        "slurmstepd: error: *** JOB 7 ON gpu-12 CANCELLED AT 2025-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    )
    assert (other.node, other.failure) == (None, FailureClass.TERMINATED)


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("hydra.errors.ConfigCompositionException: Could not override 'optim.lr'. HINT: To append to your config use +optim.lr=1", FailureClass.USAGE_ERROR),
        ("ValueError: Cannot merge adapters. HINT: lower the batch size if CUDA out of memory occurs", FailureClass.CODE_ERROR),
    ],
)  # fmt: skip
def test_an_exception_with_a_hint_is_judged_by_what_stands_before_it(
    engine: Engine, line: str, failure: FailureClass
) -> None:
    assert judged(engine, RAISED + line).failure is failure
    assert judged(engine, "HINT: on CUDA OOM lower the micro-batch").failure is not FailureClass.CUDA_OOM


@pytest.mark.parametrize(
    ("first", "report", "failure"),
    [
        ("1.9", "{{'eval_loss': {0}, 'eval_runtime': 3.1}}\n", FailureClass.HEALTHY),
        # Lightning's bar shows it so where there is no validation set.
        ("nan", "Epoch 1: 100%|###| 9/9 [00:31<00:00, 3.1it/s, train_loss=0.2, val_loss={0}]\n", FailureClass.HEALTHY),
    ],
)  # fmt: skip
def test_a_held_out_loss_that_never_was_a_number(
    engine: Engine, first: str, report: str, failure: FailureClass
) -> None:
    lines = [f"{{'loss': {2 - at / 10:.3f}, 'epoch': {at}}}\n" for at in range(1, 8)]
    text = "".join(line + report.format("nan" if at else first) for at, line in enumerate(lines))
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    assert diagnose(job, engine.signatures, engine.matcher).failure is failure


def test_where_only_a_smaller_global_batch_is_possible_the_advice_does_not_promise_the_same(
    engine: Engine,
) -> None:
    advice = judged(engine, OOM, VALUES._replace(keeps_global=False)).advice
    assert advice[0] == "Reduce device_batch_size (now 16)."
    assert advice[1].startswith("A smaller batch would also be a smaller global batch here")
    assert not any("stays as it is" in line for line in advice)

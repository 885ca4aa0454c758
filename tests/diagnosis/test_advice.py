"""Each trouble that the given guides describe has its advice, said in a line, with the run's own values where it has any."""

from typing import Any

import pytest

from supervisor.diagnosis.advice import (
    BARE_KILL_ADVICE,
    NO_STEP_ADVICE,
    ONLY_SMALLER_ADVICE,
    UNCOUNTED_KILL_ADVICE,
    action_for,
    advice_for,
)
from supervisor.diagnosis.class_words import class_texts
from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords, RunValues
from supervisor.diagnosis.journal_facts import run_values_of
from supervisor.diagnosis.verdict import diagnose
from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope
from supervisor.run.records import Action, FailureClass, Reason, Verdict
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.signature_files import Engine

F = FailureClass
STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
VALUES = RunValues(
    micro_batch=16,
    batch=BatchSpec(16, 3, 2),
    workers=8,
    port=29500,
    free_port=23456,
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


def test_every_class_has_advice_but_where_the_message_says_it_all() -> None:
    for failure, text in class_texts().items():
        assert bool(text.advice) == (failure not in {FailureClass.HEALTHY, FailureClass.CODE_ERROR})


MESSAGES: list[tuple[FailureClass, str, bool, list[str]]] = [
    (F.CHECKPOINT_LOAD, "ValueError: No valid checkpoint found in output directory (out/run)", True, ["There is no checkpoint in out/run yet: start without resume_from_checkpoint, or give it the path of one."]),
    (F.WORKER_CRASH, "srun: error: task 0: Exited with exit code 127", False, ["Exit code 127 means that the shell did not find a program: check $PATH, and the modules or the container of this node."]),
    (F.DDP_MISMATCH, "RuntimeError: Expected to have finished reduction\nParameters which did not receive grad for rank 1: head.weight, head.bias", False, ["No gradient on rank 1 for head.weight, head.bias."]),
    (F.DDP_MISMATCH, "RuntimeError: x\nParameter indices which did not receive grad for rank 0: 2 3", False, ["No gradient on rank 0 for the parameters at 2 3 of model.parameters(); TORCH_DISTRIBUTED_DEBUG=INFO shows their names."]),
    (F.DDP_MISMATCH, "RuntimeError: Parameter at index 7 with name a.b has been marked as ready twice", False, ["Used twice in one backward: the parameter at 7."]),
    (F.AUTH_OR_HUB, "HTTPSConnectionPool(host='hf.co', port=443): NameResolutionError", True, ["The name hf.co could not be resolved: check the spelling, and this node's DNS and network; logging in does not help. Without a network: download once where there is one, and set HF_HUB_OFFLINE=1 (wandb: WANDB_MODE=offline)."]),
    (F.AUTH_OR_HUB, "socket.gaierror: [Errno -3] Temporary failure in name resolution", True, ["A host's name could not be resolved: check the spelling, and this node's DNS and network; logging in does not help. Without a network: download once where there is one, and set HF_HUB_OFFLINE=1 (wandb: WANDB_MODE=offline)."]),
    (F.AUTH_OR_HUB, "wandb: ERROR api_key not configured", False, ["wandb: run `wandb login` on this node or set WANDB_API_KEY; WANDB_MODE=offline runs without it."]),
    (F.AUTH_OR_HUB, "403 Client Error: https://huggingface.co/api/models/meta/llama is gated", False, ["Refused or not reached: meta/llama. Accept its terms on the hub, and set HF_TOKEN on each node."]),
    (F.AUTH_OR_HUB, "HTTP 429 Too Many Requests", False, ["The rate limit was reached: let one rank download, the others read its cache."]),
    (F.HOST_OOM, "RuntimeError: One of the subprocesses has abruptly died during map operation.", True, ["A process of datasets' map died, most often for lack of memory: lower num_proc of the call, and writer_batch_size; num_proc=1 shows the error of the process itself."]),
    (F.DATALOADER_WORKER, "RuntimeError: DataLoader timed out after 30 seconds", False, ["Raise the DataLoader's timeout=, and keep its workers: persistent_workers=True."]),
    (F.RENDEZVOUS, "Timed out: 3/4 clients joined", False, ["3 of 4 ranks joined: check the nodes that did not."]),
    (F.USAGE_ERROR, "train.py: error: unrecognized arguments: --local-rank=0", False, ["Since 2.0 the old launcher passes --local-rank: accept both spellings, or read LOCAL_RANK with torchrun."]),
    (F.CUDA_ERROR, "RuntimeError: CUDA error: invalid device ordinal", False, ["More processes a node than visible GPUs: lower --nproc-per-node or check CUDA_VISIBLE_DEVICES."]),
    (F.CUDA_ERROR, "CUDA error: device-side assert triggered", False, ["Most often an index is out of range: check label and token ids against the sizes of their tables."]),
    (F.CUDA_ERROR, "CUDA error: an illegal memory access was encountered", False, ["`compute-sanitizer python …` names the kernel; custom and Triton kernels are the first to look at."]),
    (F.NCCL_ERROR, "Duplicate GPU detected : rank 0 and rank 1", False, ["NCCL needs a GPU for each rank: lower --nproc-per-node, or choose the device by LOCAL_RANK (torch.cuda.set_device)."]),
    (F.NCCL_ERROR, "ncclInternalError: Internal check failed.", False, ["An internal NCCL error is usually a problem of the layout: check that the nodes reach each other, and that no two ranks share a GPU (CUDA_VISIBLE_DEVICES, local ranks)."]),
    (F.MISSING_FILE, "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", True, ["ninja is not on $PATH: load its module, or install it where the job runs (in the container, on each node)."]),
    (F.MISSING_FILE, "slurmstepd: error: execve(): pyhton3.11: No such file or directory", True, ["pyhton3.11 is not on $PATH: load its module, or install it where the job runs (in the container, on each node)."]),
    (F.MISSING_FILE, "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'", False, ["Not there: /data/a.bin"]),
    (F.MISSING_FILE, "OSError: data/train.jsonl does not exist", False, ["Not there: data/train.jsonl"]),
    (F.IMPORT_ERROR, "ModuleNotFoundError: No module named 'wandb.sdk'; 'wandb' is not a package", True, ["wandb is a file here, not the package: a script or folder of that name hides it; rename that."]),
    (F.IMPORT_ERROR, "ModuleNotFoundError: No module named 'torch.nonesuch'", True, ["torch was found but has no torch.nonesuch: its version does not match the code that imports it, or a folder of that name hides it."]),
    (F.IMPORT_ERROR, "ImportError: cannot import name 'Foo' from 'transformers' (/v/site-packages/transformers/__init__.py)", True, ["transformers was found but has no Foo: its version does not match the code that imports it, or a folder of that name hides it."]),
    (F.IMPORT_ERROR, "ModuleNotFoundError: No module named 'einops'", False, ["Install einops into the interpreter that runs the job."]),
    (F.IMPORT_ERROR, "ImportError: libcudart.so.12: cannot open shared object file", False, ["libcudart.so.12 is not found: check LD_LIBRARY_PATH and the CUDA version that the package was built for."]),
    (F.IMPORT_ERROR, "ImportError: a.so: undefined symbol: _ZN3c10", False, ["The extension was built against another PyTorch: reinstall or rebuild it."]),
    (F.DISK_FULL, "OSError: [Errno 116] Stale file handle: '/ckpt/a.pt'", True, ["The filesystem or its server failed; this is not about free space: check the mount on this node (`dmesg`, `df`), remount it, or exclude the node.", "Path being written or read: /ckpt/a.pt"]),
    (F.DISK_FULL, "OSError: [Errno 28] No space left on device: '/tmp/x/a.pt'", False, ["/tmp is full on this node: set TMPDIR to a folder with space, or clear it.", "Path being written or read: /tmp/x/a.pt"]),
    (F.PERMISSION_DENIED, "PermissionError: [Errno 13] Permission denied: '/out/a.pt'", False, ["Path being written or read: /out/a.pt"]),
]  # fmt: skip

FRAGMENTED = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8 GiB; {} is reserved by PyTorch but unallocated."
FRAGMENTED_1 = "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 5.00 GiB already allocated; {} reserved in total by PyTorch)"
OTHER = (
    "CUDA out of memory. Process 4711 has 5.00 GiB memory in use. this process has 9.00 GiB memory in use."
)
ALLOCATOR = "Much is reserved but not allocated: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first."
FACTS: list[tuple[FailureClass, Reason | None, str, dict[str, Any], list[str]]] = [
    (F.HOST_OOM, None, "Killed", {"run_values": RunValues(workers=8, micro_batch=16)}, ["Lower num_workers (now 8): each holds memory of its own; (cores of the node) / (ranks on it), less one, is enough."]),
    (F.HOST_OOM, Reason.ALLOCATOR, "MemoryError", {"run_values": RunValues(workers=8, micro_batch=16)}, ["Reduce device_batch_size (now 16)."]),
    (F.HOST_OOM, None, "Killed", {}, []),
    (F.PORT_IN_USE, None, "EADDRINUSE port: 29500", {}, ["Port 29500 is taken."]),
    (F.PORT_IN_USE, None, "server socket on [::]:29500 failed", {}, ["Port 29500 is taken."]),
    (F.PORT_IN_USE, None, "bind to 10.0.0.1:4711 failed", {"run_values": RunValues(free_port=23456)}, ["Port 4711 is taken.", "Port 23456 is free: `--master-port 23456`."]),
    (F.PORT_IN_USE, None, "bind to port 4711 failed", {"run_values": RunValues(port=29500)}, ["Port 29500 is taken."]),
    (F.PORT_IN_USE, None, "Address already in use", {}, []),
    (F.TERMINATED, Reason.NODE_FAIL, "srun: error: Node failure on cn-01.", {}, ["Node cn-01 failed: exclude it (`--exclude=cn-01`) until it has been checked."]),
    (F.TERMINATED, Reason.NODE_FAIL, "node gpu-7 became unreachable", {}, ["Node gpu-7 failed: exclude it (`--exclude=gpu-7`) until it has been checked."]),
    (F.DISK_FULL, None, "No space left on device", {"machine": MachineRecords(disk_free_bytes=3<<29, disk_path="/ckpt")}, ["/ckpt has 1.5 GiB free."]),
    (F.PERMISSION_DENIED, None, "no", {"machine": MachineRecords(disk_free_bytes=0)}, ["the disk has 0.0 GiB free."]),
    (F.SHM_EXHAUSTED, None, "Bus error", {"machine": MachineRecords(shm_used_share=0.97)}, ["Shared memory (/dev/shm) was 97% full."]),
    (F.SHM_EXHAUSTED, None, "Bus error", {}, ["A bus error in a data worker: see `df -h /dev/shm` while it runs."]),
    (F.SHM_EXHAUSTED, None, "No space left", {}, []),
    (F.DATALOADER_WORKER, None, "Bus error", {}, []),
    (F.DATALOADER_WORKER, Reason.SEGFAULT, "x", {}, ["A crash in native code, perhaps in a library that is not fork-safe: try multiprocessing_context='spawn'."]),
    (F.DATALOADER_WORKER, Reason.KILLED, "x", {}, ["Lower num_workers: each holds memory of its own; (cores of the node) / (ranks on it), less one, is enough."]),
    (F.USAGE_ERROR, None, "train.py: error: unrecognized arguments: --no-ui '--theme=dark' 3", {"run_values": RunValues(entry="train.py", behind_entry=("--no-ui","--theme","--job"))}, ["`--no-ui` is a flag of stoker: put it before train.py", "`--theme` is a flag of stoker: put it before train.py"]),
    (F.CUDA_OOM, None, FRAGMENTED.format("2.00 GiB"), {}, [ALLOCATOR]),
    (F.CUDA_OOM, None, FRAGMENTED.format("1.99 GiB"), {}, []),
    (F.CUDA_OOM, None, FRAGMENTED.format("2.00 GiB"), {"run_values": RunValues(allocator_set=True)}, []),
    (F.CUDA_OOM, None, FRAGMENTED_1.format("6.00 GiB"), {}, [ALLOCATOR]),
    (F.CUDA_OOM, None, FRAGMENTED_1.format("5.99 GiB"), {}, []),
    (F.CUDA_OOM, None, OTHER, {}, ["Another process uses this GPU: process 4711 (5.00 GiB)."]),
    (F.CUDA_OOM, None, OTHER, {"run_values": RunValues(own_pids=frozenset((4711,)))}, []),
    (F.CUDA_OOM, None, OTHER, {"run_values": RunValues(user_of=lambda pid: "alice" if pid == 4711 else None)}, ["Another process uses this GPU: process 4711 of alice (5.00 GiB)."]),
    (F.CUDA_OOM, None, "CUDA out of memory.", {"run_values": RunValues(micro_batch=16, divided_batch="--bs 32 (16 a rank)")}, ["Reduce --bs 32 (16 a rank)."]),
]  # fmt: skip


@pytest.mark.parametrize(("failure", "text", "alone", "said"), MESSAGES)
def test_a_message_has_its_own_advice_before_or_in_place_of_its_classes(
    failure: FailureClass, text: str, alone: bool, said: list[str]
) -> None:
    general = () if alone else class_texts()[failure].advice
    assert advice_for(failure, None, text, JobEvidence(())) == (*said, *general)


@pytest.mark.parametrize(("failure", "reason", "text", "known", "said"), FACTS)
def test_the_runs_own_values_come_before_the_advice_of_its_class(
    failure: FailureClass, reason: Reason | None, text: str, known: dict[str, Any], said: list[str]
) -> None:
    found = advice_for(failure, reason, text, JobEvidence((), **known))
    assert found == (*said, *class_texts()[failure].advice)


def test_a_reason_may_replace_the_advice_of_its_class() -> None:
    def said(failure: FailureClass, reason: Reason | None = None, **known: Any) -> tuple[str, ...]:
        return advice_for(failure, reason, "text", JobEvidence((), **known))

    assert said(F.UNKNOWN, Reason.NO_STEP) == said(F.UNKNOWN, Reason.ENDED_EARLY) == (NO_STEP_ADVICE,)
    own = (
        "stoker's own measurements raised this, not the script: start it with --no-instrument, and report it."
    )
    assert said(F.CODE_ERROR, Reason.INSTRUMENT) == (own,)
    assert said(F.TERMINATED, Reason.OUTSIDE) == ()
    smaller = RunValues(micro_batch=16, keeps_global=False)
    general = class_texts()[F.CUDA_OOM].advice
    assert said(F.CUDA_OOM, run_values=smaller) == (
        "Reduce device_batch_size (now 16).",
        ONLY_SMALLER_ADVICE,
        *general[1:],
    )


def test_a_bare_kill_is_explained_by_the_count_of_kills_for_memory() -> None:
    def said(failure: FailureClass, kills: int | None) -> tuple[str, ...]:
        job = JobEvidence((), machine=MachineRecords(cgroup_oom_kills=kills))
        return advice_for(failure, None, "exitcode: -9", job, bare_kill=True)

    assert said(F.WORKER_CRASH, None) == (BARE_KILL_ADVICE,)
    assert said(F.WORKER_CRASH, 0) == (UNCOUNTED_KILL_ADVICE,)
    assert said(F.HOST_OOM, 1) == (BARE_KILL_ADVICE, *class_texts()[F.HOST_OOM].advice)


@pytest.mark.parametrize(
    ("failure", "reason", "action"),
    [
        (F.CUDA_OOM, None, Action.SET_ALLOCATOR),
        (F.HOST_OOM, Reason.ALLOCATOR, Action.REDUCE_BATCH),
        (F.HOST_OOM, None, class_texts()[F.HOST_OOM].action),
        (F.TERMINATED, Reason.USER, Action.STOP),
        (F.TERMINATED, Reason.OUTSIDE, Action.RESTART),
        (F.DATALOADER_WORKER, Reason.KILLED, Action.RESTART),
        (F.DATALOADER_WORKER, Reason.SEGFAULT, Action.RESTART),
        (F.DATALOADER_WORKER, Reason.RAISED, class_texts()[F.DATALOADER_WORKER].action),
        (F.WORKER_CRASH, Reason.AT_EXIT, Action.NONE),
        (F.WORKER_CRASH, Reason.SIGNAL, class_texts()[F.WORKER_CRASH].action),
    ],
)
def test_what_to_do_goes_by_class_and_reason(
    failure: FailureClass, reason: Reason | None, action: Action
) -> None:
    text = FRAGMENTED.format("2.00 GiB")
    assert action_for(failure, reason, text, JobEvidence(())) is action
    if failure is F.CUDA_OOM:
        job = JobEvidence((), run_values=RunValues(allocator_set=True))
        assert action_for(failure, reason, text, job) is class_texts()[failure].action


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

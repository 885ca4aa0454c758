"""Each trouble that the given guides describe has its advice, said in a line, with the run's own values where it has any."""

import pytest

from supervisor.diagnosis.class_words import class_texts
from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords, RunValues
from supervisor.diagnosis.journal_facts import run_values_of
from supervisor.diagnosis.verdict import diagnose
from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope
from supervisor.run.records import FailureClass, Reason, Verdict
from supervisor.run.state import AttemptState, RunState
from supervisor.sources.signature_files import Engine

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
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


def test_every_class_has_advice_but_where_the_message_says_it_all() -> None:
    for failure, text in class_texts().items():
        assert bool(text.advice) == (failure not in {FailureClass.HEALTHY, FailureClass.CODE_ERROR})


def test_who_else_holds_the_gpu_is_named_by_pid_and_user(engine: Engine) -> None:
    text = (
        OOM
        + " Process 4711 has 5.00 GiB memory in use. Including non-PyTorch memory, this process has 9.00 GiB memory in use."
    )
    (told,) = [line for line in judged(engine, text).advice if "Another process" in line]
    assert told == "Another process uses this GPU: process 4711 of alice (5.00 GiB)."
    own = judged(engine, text, VALUES._replace(own_pids=frozenset((4711,))))
    assert not [line for line in own.advice if "Another process" in line]


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

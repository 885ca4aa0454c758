import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.attempt_facts import Root
from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords
from supervisor.diagnosis.verdict import diagnose, title_of
from supervisor.run.records import FailureClass, Reason, Verdict
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


def test_what_a_person_stopped_did_not_fail_and_needs_no_queue(engine: Engine) -> None:
    stopped = judge(engine, JobEvidence(logs=logs(STEPS), launcher_exit=1, stop_reason="request"))
    assert (stopped.failure, stopped.reason) == (FailureClass.TERMINATED, Reason.USER)
    assert (stopped.advice, stopped.fingerprint) == ((), "")
    machine = MachineRecords(slurm_state="TIMEOUT")
    limit = judge(engine, JobEvidence(logs=logs(STEPS), launcher_exit=1, machine=machine))
    assert (limit.failure, limit.reason) == (FailureClass.TERMINATED, Reason.TIME_LIMIT)
    assert "Requeue" in limit.advice[0]
    assert limit.fingerprint


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

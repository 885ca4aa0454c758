"""``--fit-batch``: each probe is a short launch of the job, here a shell script whose memory has a limit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import FitSettings, Knobs, RetrySettings
from supervisor.keeper import fit_batch
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.base.ledger import Ledger, RunContext
from supervisor.keeper.fit_batch import Prober
from supervisor.run import events as ev
from supervisor.run.answers import JobKind, recall_memory
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import RunFile
from supervisor.sources.signature_files import EngineLoader
from tests.conftest import not_none, processes_with, wait_until
from tests.keeper.fakes import KNOBS, job_of, run_in
from tests.keeper.runs import STARTED

pytestmark = pytest.mark.usefixtures("engine")  # compiling it takes half a minute on a busy machine

SCRIPT = """\
echo "micro-batch $2 into ${STOKER_RUN_DIR:-nowhere}" >> seen.txt
if [ "$2" -gt LIMIT ]; then
    echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    exit 1
fi
REST
"""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
STEPS = "for n in 1 2 3 4 5 6; do echo step $n loss 2.5; done; "
KIND = JobKind(script="s", flags="f", device="cpu", world_size=2)


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.keeper.planning.attempt_evidence.kind_of", lambda _job: KIND)


def job(tmp_path: Path, rest: str, limit: int = 99, **changes: object) -> RunFile:
    (tmp_path / "job.sh").write_text(
        SCRIPT.replace("LIMIT", str(limit)).replace("REST", rest), encoding="utf-8"
    )
    fit = FitSettings(steps=4, timeout_s=60.0)
    fields = {"batch": BatchSpec(8, 1, 2), "knobs": KNOBS, "fit": fit, **changes}
    return job_of(tmp_path, "sh", "job.sh", "--micro", "8", "--accumulation", "1", **fields)  # type: ignore[arg-type]


def made(tmp_path: Path, record: RunFile, *, adopts: bool = False) -> tuple[Prober, RunContext]:
    run = RunPaths(tmp_path / "run-1") if adopts else run_in(tmp_path, STARTED)
    ledger = Ledger(run.node())
    context = RunContext(run, run.node(), record, dict(os.environ), LateClock(), ledger)
    return Prober(context, EngineLoader()), context


class LateClock(Clock):
    """As the machine's, until a test says that much time has passed."""

    late_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.late_s


def ticked(prober: Prober, context: RunContext, late_at: int | None = None) -> list[ev.ProbeEnded]:
    """Carry the probing to its end. `late_at`: after so many steps the time of a probe is over."""

    def tick() -> bool:
        over = prober.tick(context.ledger.state)
        view = prober._live[0].ledger.state.attempt if prober._live is not None else None
        if view is not None and late_at is not None and view.last_step == late_at:
            context.clock.late_s = 100.0  # type: ignore[attr-defined]
        return over

    try:
        assert wait_until(tick, 60.0)
        return list(context.ledger.state.probes)
    finally:
        prober.stop()
        context.ledger.close()


def test_the_largest_micro_batch_that_fits_is_found(tmp_path: Path, kind: None) -> None:
    saves = "trap 'touch saved' TERM; "
    prober, context = made(tmp_path, job(tmp_path, f"{saves} {STEPS} sleep 600 & wait", limit=4))
    probes = ticked(prober, context)
    assert [(one.probe, one.micro_batch, one.fitted, one.why) for one in probes] == [
        (1, 4, True, "fits"),
        (2, 8, False, "does not fit (cuda_oom)"),
    ]
    assert all(0 < one.took_s < 60 for one in probes)
    assert [one.steps for one in probes] == [6, 0]
    tried = [context.node.probe(number).attempt(1) for number in (1, 2)]
    plans = [msgspec.json.decode(paths.plan.read_bytes()) for paths in tried]
    assert [plan["argv"][plan["argv"].index("--micro") + 1] for plan in plans] == ["4", "8"]
    fitted = not_none(context.ledger.state.fitted)
    assert (fitted.probes, fitted.batch) == (2, BatchSpec(4, 2, 2))
    # Each probe has a folder of its own, which its processes take for the run's.
    seen = (tmp_path / "seen.txt").read_text(encoding="utf-8").splitlines()
    probed = context.node.root / "probes"
    assert seen == [f"micro-batch {micro} into {probed}/{n}" for n, micro in ((1, 4), (2, 8))]
    known = [(one.trial.micro_batch, one.trial.fitted) for one in recall_memory(KIND, context.env)]
    assert sorted(known) == [(4, True), (8, False)]
    assert not processes_with(os.environ["STOKER_TEST_TOKEN"])
    assert not (tmp_path / "saved").exists(), "a probe writes no checkpoint as it is ended"


@pytest.mark.parametrize(
    ("rest", "late_at", "fitted", "why"),
    [
        ("echo step 1 loss 2.5", None, True, "fits"),
        (f"echo '{OOM}'; exit 1", None, False, "does not fit (cuda_oom)"),
        ("echo Traceback; echo 'KeyError: 3'; exit 1", None, None, "ended with "),
        ("for n in 1 2; do echo step $n loss 2.5; done; sleep 600", 2, None, "made no 4 steps in 60 s"),
        ("for n in 1 2 3; do echo step $n loss 2.5; done; sleep 600", 3, True, "fits: 3 steps in 60 s"),
    ],
)
def test_what_a_probe_shows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rest: str,
    late_at: int | None,
    fitted: bool | None,
    why: str,
) -> None:
    monkeypatch.setattr(fit_batch, "LEAST_FIT_STEPS", 3)
    monkeypatch.setattr(fit_batch, "MAX_OTHER_FAILURES", 1)
    prober, context = made(tmp_path, job(tmp_path, rest, retry=RetrySettings(min_micro_batch=8)))
    (probe,) = ticked(prober, context, late_at)
    assert (probe.micro_batch, probe.fitted) == (8, fitted)
    assert probe.why == why or (probe.why.startswith(why) and why.endswith(" "))
    found = not_none(context.ledger.state.fitted)
    assert found.batch == (BatchSpec(8, 1, 2) if fitted else None)
    text = f"probes failed for another reason than memory: {probe.why}"
    if fitted is not None:
        batch = "8 × accumulation 1 × 2 ranks = global batch 16"
        text = f"micro-batch 8 is the largest that fits: {batch}"
        text = text if fitted else "not even the smallest micro-batch fits; starting as asked for"
    assert found.text == f"{text} (1 probe, {probe.took_s:.0f} s)"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"batch": None}, "the batch is not known"),
        ({"knobs": Knobs()}, "the script's batch flag is not known: name it with --batch-knob"),
    ],
)
def test_nothing_is_probed_where_the_batch_cannot_be_changed(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    prober, context = made(tmp_path, job(tmp_path, "true", **changes))  # type: ignore[arg-type]
    assert ticked(prober, context) == []
    fitted = not_none(context.ledger.state.fitted)
    assert (fitted.probes, fitted.batch) == (0, None)
    assert fitted.text == f"the batch cannot be changed, so nothing was probed: {why}"
    assert prober.tick(context.ledger.state), "the first attempt may begin"


@pytest.mark.parametrize("stops", [False, True])
def test_a_probe_that_a_dead_keeper_left_goes_on_until_it_is_stopped(tmp_path: Path, stops: bool) -> None:
    gate = tmp_path / "gate"
    rest = f"echo step 1 loss 2.5; while [ ! -e {gate} ]; do sleep 0.05; done; {STEPS}"
    record = job(tmp_path, rest, retry=RetrySettings(min_micro_batch=8))
    prober, context = made(tmp_path, record)

    def runs() -> bool:
        assert not prober.tick(context.ledger.state)
        view = prober._live[0].ledger.state.attempt if prober._live is not None else None
        return view is not None and view.last_step == 1

    assert wait_until(runs, 60)
    prober._close()  # its processes live on
    context.ledger.close()
    prober, context = made(tmp_path, record, adopts=True)
    assert wait_until(runs, 60)
    if stops:
        prober.stop()
        assert not processes_with(os.environ["STOKER_TEST_TOKEN"])
        assert not context.ledger.state.probes
        context.ledger.close()
        return
    gate.touch()
    (probe,) = ticked(prober, context)
    assert (probe.probe, probe.micro_batch, probe.fitted, probe.why) == (1, 8, True, "fits")
    assert (tmp_path / "seen.txt").read_text(encoding="utf-8").count("\n") == 1, "launched once"


@pytest.mark.parametrize(
    ("program", "why"), [("no-such-program", "no-such-program"), ("./job.sh", "ermission denied")]
)
def test_a_probe_that_cannot_be_started_says_why(tmp_path: Path, program: str, why: str) -> None:
    record = job(tmp_path, "true")
    record = msgspec.structs.replace(record, job=replace(record.job, entry=program))
    prober, context = made(tmp_path, record)
    probes = ticked(prober, context)
    assert [one.fitted for one in probes] == [None, None]
    assert all(why in one.why for one in probes)
    fitted = not_none(context.ledger.state.fitted)
    assert fitted.text.startswith("probes failed for another reason than memory: ")
    assert why in fitted.text

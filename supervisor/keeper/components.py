"""What a keeper needs once something runs: the watch over an attempt, its judgement, what is shown before the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.keeper.context import RunContext
from supervisor.keeper.monitoring.attempt_monitor import Watching
from supervisor.keeper.planning.fit_batch import Prober
from supervisor.keeper.planning.judge import decide_next, diagnose_attempt, log_bytes
from supervisor.keeper.planning.judging import Judging
from supervisor.keeper.planning.readiness import ReadinessCheck
from supervisor.keeper.recording.recovery_report import Aftermath
from supervisor.keeper.signature_engine import EngineLoader
from supervisor.run.records import Decision, Verdict


@dataclass(frozen=True, slots=True)
class Components:
    """One a keeper. `judging` gives the verdict on an attempt, `decide` what follows the newest one."""

    watching: Watching
    gate: ReadinessCheck
    aftermath: Aftermath
    prober: Prober
    judging: Judging
    decide: Callable[[], Decision]

    def close(self) -> None:
        """Stop the sensors, a probe and what is still being asked."""
        self.prober.stop()
        self.gate.close()
        self.watching.close()


def make_components(charge: RunContext, engine: EngineLoader, *, same_boot: bool) -> Components:
    """Make them, and begin to load the signatures. `same_boot`: the machine was not booted since the journal began."""
    node, record, ledger = charge.node, charge.record, charge.ledger

    def judge(number: int, *, whole: bool) -> Verdict:
        return diagnose_attempt(node, ledger.state, number, record.job, engine.get(), whole=whole)

    def decide() -> Decision:
        return decide_next(record, ledger.state, node=node, env=charge.env)

    engine.begin()
    aftermath = Aftermath(charge)
    judging = Judging(judge, lambda number: log_bytes(node, number), lambda: engine.ready)
    watching = Watching(charge, engine, judging=judging, stepped=aftermath.look, same_boot=same_boot)
    gate = ReadinessCheck(record.job, node, charge.env, charge.clock, ledger.emit)
    prober = Prober(charge, engine.get)
    return Components(watching, gate, aftermath, prober, judging, decide)

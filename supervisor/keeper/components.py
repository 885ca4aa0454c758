"""The parts that a keeper needs once something runs: attempt monitor, verdict, decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.keeper.attempt_monitor import AttemptMonitor
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.planning.attempt_evidence import (
    BackgroundVerdict,
    diagnose_attempt,
    others_of,
)
from supervisor.keeper.planning.decisions import decide_next
from supervisor.keeper.planning.fit_batch import Prober
from supervisor.keeper.planning.kept_copies import KeptCopies
from supervisor.keeper.planning.readiness import ReadinessCheck
from supervisor.keeper.recording.recovery_report import RecoveryReport
from supervisor.run.records import Decision, Verdict
from supervisor.sources.signature_files import EngineLoader


@dataclass(frozen=True, slots=True)
class Components:
    """One per keeper. `judging` gives the verdict on an attempt, `decide` what follows the newest one."""

    monitor: AttemptMonitor
    readiness: ReadinessCheck
    recovery_report: RecoveryReport
    prober: Prober
    copies: KeptCopies
    judging: BackgroundVerdict
    decide: Callable[[], Decision]

    def close(self) -> None:
        """Stop the sensors, any probe, and any pending question."""
        self.prober.stop()
        self.readiness.close()
        self.copies.close()
        self.monitor.close()


def make_components(context: RunContext, engine: EngineLoader, *, same_boot: bool) -> Components:
    """Make the components and start loading the signatures. `same_boot`: no reboot since the journal began."""
    node, record, ledger = context.node, context.record, context.ledger

    def judge(number: int, *, whole: bool) -> Verdict:
        others = others_of(context.run, context.others, number) if context.others else ()
        return diagnose_attempt(
            node, ledger.state, number, record.job, engine.get(), whole=whole, others=others
        )

    def decide() -> Decision:
        return decide_next(record, ledger.state, env=context.env, watched=monitor.is_watched())

    engine.begin()
    recovery_report = RecoveryReport(context)
    judging = BackgroundVerdict(judge)
    copies = KeptCopies(context)
    monitor = AttemptMonitor(
        context,
        engine,
        judging=judging,
        stepped=recovery_report.look,
        saved=copies.release,
        same_boot=same_boot,
    )
    readiness = ReadinessCheck(record.job, node, context.env, context.clock, ledger.emit)
    prober = Prober(context, engine.get)
    return Components(monitor, readiness, recovery_report, prober, copies, judging, decide)

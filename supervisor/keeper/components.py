"""The parts that a keeper needs once something runs: attempt monitor, verdict, decision."""

from __future__ import annotations

from supervisor.keeper.attempt_monitor import AttemptMonitor
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.fit_batch import Prober
from supervisor.keeper.planning.attempt_evidence import BackgroundVerdict, diagnose_attempt
from supervisor.keeper.planning.decisions import decide_next
from supervisor.keeper.planning.readiness import KeptCopies, ReadinessCheck
from supervisor.keeper.recording.recovery_report import RecoveryReport
from supervisor.run.records import Decision
from supervisor.sources.signature_files import EngineLoader


class Components:
    """One per keeper. `judging` gives the verdict on an attempt. `same_boot`: no reboot since the journal began."""

    def __init__(self, context: RunContext, engine: EngineLoader, *, same_boot: bool) -> None:
        engine.begin()  # it loads the signatures
        self._context = context
        self.recovery_report = RecoveryReport(context)
        self.judging = BackgroundVerdict(
            lambda number, whole: diagnose_attempt(context, number, engine.get(), whole=whole)
        )
        self.copies = KeptCopies(context)
        self.monitor = AttemptMonitor(
            context,
            engine,
            judging=self.judging,
            stepped=self.recovery_report.look,
            saved=self.copies.release,
            same_boot=same_boot,
        )
        job, emit = context.record.job, context.ledger.emit
        self.readiness = ReadinessCheck(job, context.node, context.env, context.clock, emit)
        self.prober = Prober(context, engine, same_boot=same_boot)

    def decide(self) -> Decision:
        """What follows the newest attempt."""
        record, state, env = self._context.record, self._context.ledger.state, self._context.env
        return decide_next(record, state, env=env, watched=self.monitor.is_watched())

    def close(self) -> None:
        """Stop the sensors, any probe, and any pending question."""
        self.prober.stop()
        self.readiness.close()
        self.copies.close()
        self.monitor.close()

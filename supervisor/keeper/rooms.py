"""What a keeper needs once something runs: the watch over an attempt, its judgement, what is shown before the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.keeper.aftermath import Aftermath
from supervisor.keeper.charge import Charge
from supervisor.keeper.engine import EngineLoader
from supervisor.keeper.gate import Gate
from supervisor.keeper.judgement import decide_next, diagnose_attempt
from supervisor.keeper.probing import Prober
from supervisor.keeper.watching import Watching
from supervisor.run.records import Decision, Verdict


@dataclass(frozen=True, slots=True)
class Rooms:
    """One a keeper. `judge` gives the verdict on an attempt, `decide` what follows the newest one."""

    watching: Watching
    gate: Gate
    aftermath: Aftermath
    prober: Prober
    judge: Callable[[int], Verdict]
    decide: Callable[[], Decision]

    def close(self) -> None:
        """Stop the sensors, a probe and what is still being asked."""
        self.prober.stop()
        self.gate.close()
        self.watching.close()


def make_rooms(charge: Charge, engine: EngineLoader, *, same_boot: bool) -> Rooms:
    """Make them, and begin to load the signatures. `same_boot`: the machine was not booted since the journal began."""
    node, record, ledger = charge.node, charge.record, charge.ledger

    def judge(number: int) -> Verdict:
        return diagnose_attempt(node, ledger.state, number, record.job, engine.get())

    def decide() -> Decision:
        return decide_next(record, ledger.state, node=node, env=charge.env)

    engine.begin()
    aftermath = Aftermath(charge)
    watching = Watching(charge, engine, judge=judge, stepped=aftermath.say_recovery, same_boot=same_boot)
    gate = Gate(record.job, node, charge.env, charge.clock, ledger.emit)
    prober = Prober(charge, engine.get)
    return Rooms(watching, gate, aftermath, prober, judge, decide)

"""Rounds of healthy trainings with silences of all kinds under the default thresholds. No training may be ended as a hang.

Even rounds run a foreign script that reports nothing (tests/integration/scripts/training.py), with silent evaluations,
checkpoints and a stall of one rank's data; one in five of them lasts ten times as long. Odd rounds run the bundled trainer,
which reports its phases. A round may end in neither a hang nor a failure, and may give at most one advisory.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

from bench.common import ROOT, run_below
from bench.rounds import Broken, Processes, Tally
from supervisor.run import events as ev
from supervisor.run.journal import facts_in

FOREIGN = str(ROOT / "tests" / "integration" / "scripts" / "training.py")
LONGEST_S = 7200.0


class Silences:
    """One supervised run to its end."""

    def __init__(self, seed: int, number: int, folder: Path, tally: Tally) -> None:
        self.number, self.tally, self.last_hit = number, tally, "healthy"
        self.dice = random.Random(f"{seed}/{number}")
        self.processes = Processes(folder)

    def play(self) -> None:
        """Play the whole round. Raises Broken."""
        kind, command = ("trainer", self._trainer()) if self.number % 2 else ("foreign", self._foreign())
        self.tally.note(self.number, kind, self.last_hit)
        flags = ("--no-ui", "--python", sys.executable, "--nproc-per-node", "2")
        try:
            code = self.processes.run("run", *flags, *command, deadline_s=LONGEST_S)
        finally:
            self.processes.end()
        run = run_below(self.processes.folder)
        events = list(facts_in(run.node().journal)) if run is not None else []
        kinds = Counter(map(type, events))
        # A notice of what an out-of-memory failure would change is no sign of trouble.
        advisories = [event.code for event in events if isinstance(event, ev.Advisory)]
        advice = [code for code in advisories if not code.startswith(ev.ON_OOM)]
        steps = [event.step for event in events if isinstance(event, ev.Progress) and event.step is not None]
        stalls_s = [event.stalled_s for event in events if isinstance(event, ev.StallEnded)]
        self.tally.done.update({"steps": max(steps, default=0), "stalls shown": kinds[ev.StallFlagged]})
        self.tally.done["silences over a minute"] += sum(seconds > 60 for seconds in stalls_s)
        self.tally.done.update(f"advisory: {code}" for code in advice)
        if code != 0 or kinds[ev.HangFound] or len(advice) > 1:
            raise Broken(f"exit code {code}, {kinds[ev.HangFound]} hangs, advisories {advice}")

    def _foreign(self) -> list[str]:
        steps = self.dice.randint(250, 400) * (10 if self.number % 10 == 8 else 1)
        return [
            FOREIGN, "--steps", str(steps), "--step-time", f"{self.dice.uniform(0.05, 0.4):.2f}",
            "--eval-every", str(self.dice.randint(40, 90)), "--eval-s", f"{self.dice.uniform(1, 12):.1f}",
            "--save-every", str(self.dice.randint(20, 60)), "--save-s", f"{self.dice.uniform(0.2, 4):.1f}",
            "--stall-at", str(self.dice.randint(30, steps)), "--stall-s", f"{self.dice.uniform(3, 100):.1f}",
        ]  # fmt: skip

    def _trainer(self) -> list[str]:
        """The bundled trainer's job; `slow` delays each step of one rank by a fraction of a second."""
        job = self.processes.folder / "job.toml"
        job.write_text("nproc_per_node = 2\n", encoding="utf-8")
        settings = {
            "num_iterations": self.dice.randint(300, 500),
            "eval_every": self.dice.randint(30, 80),
            "eval_samples": self.dice.choice((64, 256, 1024)),
            "save_every": self.dice.randint(20, 60),
            "depth": 2,
            "model_dim": 64,
            "max_seq_len": 64,
            "device_batch_size": 4,
            "fault": f"slow:{self.dice.uniform(0.05, 0.3):.2f}@0:1",
        }
        return ["--config", job.name, *(f"--{name}={value}" for name, value in settings.items())]

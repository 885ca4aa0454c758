"""Recorded runs in the product's own sentences, which can be translated."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from supervisor.diagnosis.wording.class_texts import class_texts
from supervisor.run import events as ev
from supervisor.run.records import FailureClass, Finding, FindingLevel
from tests.views.tui.recorded import REDUCED, Recording

SHRUNK = (
    "cuda_oom: micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged: "
    "it needs at least 40.1 GiB of 79.1 GiB"
)
HELD = (
    "cuda_oom: steps were made and the script's resume flag is not known: "
    "a restart may overwrite its checkpoint"
)
DATA_BOUND = (
    "34 % of a step is waiting for data, the GPUs are busy 61 % of the time: more data workers (num_workers), "
    "pin_memory and persistent_workers, or data prepared on a local disk, would help"
)
FINDINGS = (
    Finding(FindingLevel.OK, "port", "port 29500 is free"),
    Finding(
        FindingLevel.WARNING,
        "shared memory",
        "only 64 MiB free in /dev/shm (of 64 MiB)",
        "DataLoader workers may die with a bus error: docker run --shm-size=8g, or fewer workers",
    ),
    Finding(FindingLevel.INFO, "ranks", "2 ranks on 16 cores and 2 GPUs"),
)
REASONS = {
    "first start": "first launch",
    "restart with micro-batch 8": SHRUNK,
    REDUCED: SHRUNK,
    "how train.py resumes is not known: a restart might overwrite its checkpoint": HELD,
    "an error in the code: the next attempt would fail alike": "code_error: a restart would fail at the same line: fix it first",
    "1000 of 1000 steps": "finished at step 1000",
    "NameError: name 'los' is not defined (train.py:97)": "code_error: a restart would fail at the same line: fix it first",
}
TITLES = {
    FailureClass.CUDA_OOM: "GPU memory ran out on rank 1",
    FailureClass.CODE_ERROR: "The program raised an exception on ranks 0, 1",
}


class InOwnWords(Recording):
    """A recording whose sentences are those of diagnosis, policy and preflight."""

    def fact(self, event: ev.Event) -> None:
        """The event, in the product's words."""
        super().fact(in_own_words(event))


def in_own_words(event: ev.Event) -> ev.Event:
    """An event of `recorded`, in the words of the packages that write such events."""
    match event:
        case ev.LaunchIntended() | ev.Held() | ev.RunEnded():
            return replace(event, reason=REASONS.get(event.reason, event.reason))
        case ev.Decided():
            reason = REASONS.get(event.decision.reason, event.decision.reason)
            return replace(event, decision=dataclasses.replace(event.decision, reason=reason))
        case ev.Diagnosed():
            failure = event.verdict.failure
            advice = class_texts()[failure].advice
            if failure is FailureClass.CUDA_OOM:
                advice = ("Reduce device_batch_size (now 16): 8 divides the global batch.", *advice)
            verdict = dataclasses.replace(event.verdict, title=TITLES[failure], advice=advice)
            return replace(event, verdict=verdict)
        case ev.Advisory():
            return replace(event, text=DATA_BOUND)
        case ev.PreflightFound():
            found = {"interpreter": FINDINGS[2], "port": FINDINGS[0], "shm": FINDINGS[1]}
            return replace(event, finding=found[event.finding.check])
        case _:
            return event

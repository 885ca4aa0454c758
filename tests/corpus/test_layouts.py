"""The given corpus in other layouts: what each may cost, and no more. The figures are in docs/generalisation.md."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.sources.signature_files import Engine
from tests.corpus.layouts import LAYOUTS
from tests.corpus.scoring import NOT_FAILURES, records
from tests.tiers import first

# Classes and lines that a layout may lose; each other one loses none but for the one line that is wrong without it too.
MAY_LOSE = {
    "one json a traceback": (5, 5),
    "another node between": (1, 4),
    "double spaced": (1, 3),
    "head cut": (2, 2),
}
# One of the lines is that of a command with another rendezvous id: the failure's own line is named (docs/DELETIONS.md).
LOSES = (1, 3)
# Lines of two hosts. Of these logs the rank is rightly null: the local rank that the verdict names instead, and why the log shows no more.
ALTERNATING = "the agent's line, or the line of its table that names the rank, stands under the other host"
NO_BASE = "the agent names a local rank alone, and nothing shows the first rank of its host"
TWO_HOSTS: dict[str, dict[str, tuple[int | None, str]]] = {
    "bare host": {
        "a-dataloader_worker-02": (None, ALTERNATING),
        "a-host_oom-05": (0, ALTERNATING),
        "b-checkpoint_load-04": (None, ALTERNATING),
        "b-gpu_fault-06": (3, NO_BASE),
        "b-nan_loss-01": (1, NO_BASE),
    },
    "another node between": {
        "a-dataloader_worker-02": (0, NO_BASE),
        "a-shm_exhausted-10": (3, "NCCL names a device, and nothing shows the first rank of its host"),
        "b-checkpoint_load-04": (3, NO_BASE),
        "b-gpu_fault-06": (3, NO_BASE),
        "b-nan_loss-01": (1, NO_BASE),
        "b-worker_crash-02": (1, "its launcher says two ranks, and the other host prints rank 8"),
    },
}
MOST_WRONG_RANKS, OF_TWO_HOSTS = 5, 2
# These name a rank for each line, so that the log's own ranks are another log's.
RENAMED = ("torchrun --tee", "srun --label", "Open MPI", "Lightning", "time and rank")


@pytest.mark.e2e
@pytest.mark.parametrize("layout", first(6, LAYOUTS))
def test_a_layout_changes_no_verdict(layout: str, engine: Engine) -> None:
    classes, lines, ranks = [], [], []
    for record in records():
        text = record["text"].split("\n")
        text = text if text[-1] else text[:-1]
        cause = (record.get("cause_line") or 0) - 1
        rewritten = LAYOUTS[layout](text, cause)
        job = JobEvidence(logs=(LogSource("log", (rewritten.data,)),))
        verdict = diagnose(job, engine.signatures, engine.matcher)
        failed = record["cls"] not in NOT_FAILURES
        if verdict.failure.value not in (record["cls"], *record.get("accept", [])):
            classes.append(f"{record['id']}: {record['cls']} -> {verdict.failure.value}")
        if failed and cause >= 0 and (place := rewritten.place[cause]) is not None:
            line = verdict.cause.line if verdict.cause is not None else None
            # Two lines of the log as it was.
            reach = 5 if layout in {"double spaced", "each line twice"} else 2
            if line is None or abs(line - place) > reach:
                lines.append(f"{record['id']}: line {place} -> {line}")
        local = TWO_HOSTS.get(layout, {}).get(record["id"])
        found = (verdict.rank, None if local is None else verdict.local_rank)
        wanted = (record.get("first_bad_rank"), None) if local is None else (None, local[0])
        if failed and record.get("first_bad_rank") is not None and found != wanted:
            ranks.append(f"{record['id']}: (rank, local rank) {wanted} -> {found}")
    most_classes, most_lines = MAY_LOSE.get(layout, LOSES)
    assert len(classes) <= most_classes, classes
    assert len(lines) <= most_lines, lines
    most_ranks = OF_TWO_HOSTS if layout in TWO_HOSTS else MOST_WRONG_RANKS
    assert layout in RENAMED or len(ranks) <= most_ranks, ranks

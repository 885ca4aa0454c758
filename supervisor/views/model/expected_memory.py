"""What a rank should hold at the micro-batch it runs with, from what this run's earlier attempts showed (pure)."""

from __future__ import annotations

from supervisor.job.memory_fit import Measure, line_through
from supervisor.run.state import RunState


def expected_memory_bytes(state: RunState) -> float | None:
    """The greatest memory of a rank of the newest attempt on a GPU; None where nothing was measured that tells.

    As the policy predicts it when it chooses a micro-batch: through two measured ones, else in proportion to one, above
    what is held before the first forward pass.
    """
    attempt = state.attempt
    if attempt is None or attempt.batch is None:
        return None
    micro_batch = attempt.batch.micro_batch_per_rank
    trials = [a.trial for a in state.attempts if a.trial is not None and a is not attempt]
    known = [
        (t, t.peak_bytes) for t in trials if t.peak_bytes is not None and t.measure is not Measure.RESIDENT
    ]
    same = [peak for trial, peak in known if trial.fitted and trial.micro_batch == micro_batch]
    if same:
        return float(max(same))
    line = line_through([trial for trial, _ in known])
    if line is not None:
        return line.predicted_bytes(micro_batch)
    if not known:
        return None
    trial, peak = known[-1]
    return trial.base_bytes + max(peak - trial.base_bytes, 0) * micro_batch / trial.micro_batch

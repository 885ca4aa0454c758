"""The report of a trial run: steps and their time, the loss, memory, checkpoint, and the command of the real run."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.job.launch.plan import real_command_of
from supervisor.job.spec import TrialSettings, steps_seen
from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.series import GPU, HOST, METRICS, SeriesReader, at_first, highest
from supervisor.run.state import AttemptState, Finished, RunState
from supervisor.text.redact import redact_text
from supervisor.views import format as fm
from supervisor.views.wording.translate import Tr

NO_STEP = "no step was seen"
NO_CHECKPOINT = "no checkpoint was seen"
USED, OWN = "memory_used_bytes", "own_memory_bytes"
GREW_BYTES = 256 << 20
"""A CUDA context alone takes more."""
LEAST_STEP_S = 0.001
"""Of lines that are read many at once the time between two says nothing."""


def trial_lines(state: RunState, run: RunPaths, tr: Tr) -> list[str]:
    """The lines, labels first; none if the run is not a trial, or launched nothing."""
    attempt = state.attempt
    try:
        job = read_run_file(run.run_json).job
    except BadRunFile:
        return []
    if job.trial is None or attempt is None:
        return []
    rows = list(_rows(job.trial, state, attempt, run, tr))
    succeeded = isinstance(state.condition, Finished) and state.condition.outcome is Outcome.SUCCEEDED
    if succeeded and (command := real_command_of(job)):
        rows.append(("real run", command))
    return [f"{tr(label):<9} {redact_text(text)}" for label, text in rows]


def _rows(
    trial: TrialSettings, state: RunState, attempt: AttemptState, run: RunPaths, tr: Tr
) -> Iterator[tuple[str, str]]:
    for knob in trial.knobs:
        before = knob.before or tr("as the script has it")
        yield "set", tr(f"{knob.name} is {knob.value or 'empty'}, in the real run {before}")
    series = run.node().series
    seen, first, last = (
        steps_seen(attempt.first_step, attempt.last_step),
        attempt.first_step,
        attempt.last_step,
    )
    yield "steps", tr(f"{seen} seen: {first} to {last}") if seen else tr(NO_STEP)
    step_s = step_time_s(run, attempt.number)
    if step_s is not None and step_s >= LEAST_STEP_S:
        yield "step time", tr(f"{fm.seconds(step_s)}, without the first step")
    if attempt.first_loss is not None and attempt.last_loss is not None:
        yield "loss", f"{attempt.first_loss:.4f} → {attempt.last_loss:.4f}"
    for key, used, total in _gpus(run, attempt.number):
        yield "memory", tr(f"GPU {key}: {fm.memory_pair(used, total)} at most, {fm.percent(used / total)}")
    ranks = {key: v for key, v in highest(series, HOST, attempt.number).items() if key.isdecimal()}
    if rss := max((v.get("rss_bytes", 0.0) for v in ranks.values()), default=0.0):
        yield "memory", tr(f"host: {fm.memory(rss)} at most of a rank")
    saved = [found for found in state.checkpoints if found.attempt == attempt.number]
    newest = saved[-1] if saved else None
    if newest is None:
        yield "saved", tr(NO_CHECKPOINT)
    elif newest.step_by_time:  # its name has no step, so this was the newest step seen when it was written
        yield "saved", tr(f"a checkpoint: {newest.path}")
    else:
        yield "saved", tr(f"a checkpoint at step {newest.step}: {newest.path}")


def _gpus(run: RunPaths, attempt: int) -> Iterator[tuple[str, float, float]]:
    """Each GPU that the attempt used: its peak use and its capacity, in bytes.

    In a container the driver does not attribute memory, so the total use of the only GPU, or of those where it grew, counts.
    """
    series = run.node().series
    most, early = highest(series, GPU, attempt), at_first(series, GPU, attempt, USED)
    whose = any(values.get(OWN) for values in most.values())
    for key, values in sorted(most.items()):
        used, total = values.get(OWN if whose else USED), values.get("memory_total_bytes")
        grew = whose or len(most) == 1 or (used or 0) - early.get(key, used or 0) > GREW_BYTES
        if used and total and grew:
            yield key, used, total


def step_time_s(run: RunPaths, attempt: int) -> float | None:
    """Seconds per step of an attempt without its first step, which compiles and warms up; None for fewer than three steps."""
    reader = SeriesReader(run.node().series, METRICS)
    times: dict[float, float] = {}
    while samples := reader.read():
        for sample in samples:
            step = sample.v.get("step")
            if sample.a == attempt and step is not None:
                times.setdefault(step, sample.t)
    if len(times) < 3:
        return None
    second, last = sorted(times)[1], max(times)
    return max(times[last] - times[second], 0.0) / (last - second)

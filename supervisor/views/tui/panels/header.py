"""The header: whether the run is alive, how far along it is, and its ETA. The tiles below show its speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TypeAlias

from supervisor.job.batch import BatchSpec, BatchUnit, describe
from supervisor.run.events import Phase, Progress, is_share_of_epochs
from supervisor.run.state import Preflight, Running, RunState, Stopping
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.model.thinned_series import Track
from supervisor.views.tui.charts.curves import Axis, axis_for
from supervisor.views.tui.panels.state_words import (
    HANG,
    condition_span,
    countdown,
    is_failing,
    is_live,
)
from supervisor.views.tui.widgets.paint import (
    EMPTY,
    Row,
    Span,
    TextStyle,
    bar,
    between,
    cells,
    clip,
    row,
    spark,
    spoken,
)
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.kinds import epoch_text, is_unread, reading_ratio, reading_text, unread_text
from supervisor.views.wording.translate import Tr

# A stepping run counts as quiet after this many seconds, or after this many step times if they take longer.
QUIET_S = 30.0
QUIET_STEPS = 10
# An ETA needs this many gaps between steps of the live attempt, or this many steps if the job prints an ETA.
ETA_GAPS = 3
ETA_STEPS = 5

# From this width on, the elapsed time says that waiting is left out.
ROOMY = 150


class HeaderPanel(Panel):
    """A two-row header: run, attempt, state and progress, then job, elapsed time and ETA."""

    framed = False
    uses_clock = True
    # The name from the user, if any. Otherwise the name of the script or log is shown.
    name_given = ""
    is_low = False  # whether the terminal has no room for the tiles, which show the step time

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the header's two rows."""
        if self.view is None:
            return []
        snapshot, tr = self.view.snapshot, self.tr
        condition = self._condition(snapshot, self.view.now)
        times = self._times(snapshot, width)
        for is_roomy in (True, False):  # the step has priority over our name and the attempt
            left = (*self._who(snapshot.state, is_roomy=is_roomy), Span(" · "), *condition)
            progress = self._progress(snapshot, width - cells(left) - 2)
            if cells(left) + cells(progress) < width:
                job = _job(snapshot, self.name_given, width - cells(times) - 2, tr)
                return [between(left, progress, width), between(job, times, width)][:height]
        return [clip(left, width), between((Span(" "), *progress), times, width)][:height]

    def _who(self, state: RunState, *, is_roomy: bool) -> Row:
        """Return the run's name and whether it is only observed. If there is room, add "stoker" and the attempt."""
        left = [
            Span(" stoker  " if is_roomy else " ", TextStyle.DIM),
            Span(fm.short_id(state.run_id) or "…", TextStyle.STRONG),
        ]
        if state.attempt is not None and state.mode != "observed" and is_roomy:
            left.append(Span(self.tr(f" · attempt {state.attempt.number}")))
        if state.mode == "observed":
            left.append(Span(self.tr(" · observed"), TextStyle.DIM))
        return tuple(left)

    def _condition(self, snapshot: Snapshot, now: float) -> Row:
        """Return the run's state, with details if they are needed."""
        state, tr = snapshot.state, self.tr
        left = [spoken(condition_span(snapshot, now), tr)]
        quiet = quiet_s(snapshot, now)
        is_explained = is_failing(snapshot) or countdown(snapshot, now)[0] == HANG
        if quiet is not None and not is_explained:
            left.append(Span(tr(f" · no step for {fm.age(quiet)}"), TextStyle.WARN))
        behind = unread_text(state.progress) if state.progress is not None and is_live(snapshot) else ""
        if reading := reading_text(state):
            behind = "" if isinstance(state.condition, Running | Preflight) else reading
        if behind:
            left.append(Span(tr(f" · {behind}"), TextStyle.WARN))
        if is_live(snapshot) and not snapshot.keeper_alive and state.started_t is not None:
            left.append(Span(tr(" ⚠ supervisor process is gone"), TextStyle.BAD))
        return tuple(left)

    def _progress(self, snapshot: Snapshot, room: int) -> Row:
        state, in_epochs = snapshot.state, _counts_within_epochs(snapshot)
        attempt, total = state.attempt, state.planned_steps
        step = (attempt.last_step if attempt else None) if in_epochs else snapshot.step
        read = reading_ratio(state)
        if is_unread(state):
            return EMPTY
        if read is not None:  # a step far before the end is not the current progress
            size = min(room - 8, 32)
            drawn = bar(read, size, TextStyle.DIM) if size >= 6 else ()
            return (*drawn, Span(f" {math.floor(100 * read)} % ", TextStyle.PLAIN))
        if step is None and attempt is not None and attempt.first_loss is not None:
            return row(Span(self.tr(epoch_text(state) or "no step named"), TextStyle.PLAIN), " ")
        if step is None:
            return row(Span(self.tr(f"{epoch_text(state)} ".lstrip() or "no step yet "), TextStyle.DIM))
        epoch, progress = self.tr(epoch_text(state)), state.progress
        shown, of = step, total
        if epoch and progress is not None and progress.step is not None and progress.epoch_step is not None:
            # Count as the log does, so that the user can compare both. The bar covers the whole training.
            of = progress.epoch_steps
            shown = min(progress.epoch_step + step - progress.step, of or step)
        number = fm.whole(shown)
        if of and shown <= of:  # the total in the arguments may be wrong
            size = len(fm.whole(of))
            count = (Span(number.rjust(size), TextStyle.STRONG), Span(f" / {fm.whole(of)} "))
        else:
            count = (Span(number, TextStyle.STRONG), Span(" "))
        ratio = step / total if total and step <= total else None
        if ratio is not None and progress is not None and not _is_of_whole(progress, ratio):
            ratio = None
        tail = row(Span(f" {fm.percent(ratio):>5} ")) if ratio is not None else EMPTY
        text = row(Span(self.tr("step "), TextStyle.DIM), *count)
        behind_epoch = row(Span(epoch, TextStyle.PLAIN), Span(" · ", TextStyle.DIM), *text)
        if epoch and (in_epochs or shown != step or cells(behind_epoch) + cells(tail) <= room):
            text = behind_epoch
        if ratio is None:
            return text
        size = min(room - cells(text) - cells(tail), 32)
        style = TextStyle.DIM if state.is_over else TextStyle.PLAIN
        return (*text, *(bar(ratio, size, style) if size >= 6 else ()), *tail)

    def _times(self, snapshot: Snapshot, width: int) -> Row:
        assert self.view is not None
        tr = self.tr
        state = snapshot.state
        began_t = None if is_unread(state) else state.began_t
        has_keeper = snapshot.keeper_alive
        elapsed = state.elapsed_s(self.view.now, has_keeper=has_keeper) if began_t is not None else None
        attempt = state.attempt
        has_card = attempt is not None and attempt.failure is not None and not attempt.verdict_provisional
        loss = self._loss(snapshot) if has_card else EMPTY  # otherwise the chart shows the loss
        spans = [*loss, *self._pace(snapshot)]
        spans += [Span(tr("elapsed "), TextStyle.DIM), Span(fm.clock(elapsed))]
        if width >= ROOMY and elapsed is not None and state.waited_s >= 1.0:
            spans.append(Span(tr(" (waiting left out)"), TextStyle.DIM))
        if isinstance(state.condition, (Running, Stopping)):
            still = state.attempt is not None and state.attempt.quiet_since is not None
            still = still or is_failing(snapshot)
            moves = not still and quiet_s(snapshot, self.view.now) is None
            spans += [Span("  ETA ", TextStyle.DIM), Span(fm.clock(eta_s(snapshot) if moves else None))]
        if width >= 100:
            # Show `~` if the log gives only clock times without a day.
            is_guess = began_t is not None and attempt is not None and attempt.day_guessed
            began = fm.day_and_time(began_t, self.view.now) if began_t is not None else fm.DASH
            spans += [Span(tr("  started "), TextStyle.DIM), Span(f"{'~' * is_guess}{began}")]
        return (*spans, Span(" "))

    def _loss(self, snapshot: Snapshot) -> Row:
        loss = snapshot.latest("loss")
        if loss is None and not snapshot.not_finite("loss"):
            return EMPTY
        name = self.tr("loss ") if snapshot.loss_name == "loss" else f"{snapshot.loss_name} "
        if odd := snapshot.not_finite("loss"):
            return row(Span(name, TextStyle.DIM), Span(self.tr(odd), TextStyle.BAD), "  ")
        return row(Span(name, TextStyle.DIM), Span(fm.loss(loss)), "  ")

    def _pace(self, snapshot: Snapshot) -> Row:
        """If the terminal is too short for the tiles, return the time per step, or per epoch if the step time is unknown."""
        took_s, is_derived = snapshot.step_time_s
        if not self.is_low or not isinstance(snapshot.state.condition, Running):
            return EMPTY
        text = epoch_time_text(snapshot)
        if took_s is not None:
            text = f"{(fm.about(fm.seconds) if is_derived else fm.seconds)(took_s)}/step"
        return row(Span(self.tr(text)), "  ") if text else EMPTY


def _is_of_whole(progress: Progress, ratio: float) -> bool:
    """Check whether the fraction of steps done agrees with the fraction of epochs in the log."""
    epoch, epochs = progress.epoch, progress.total_epochs
    if epoch is None or not epochs or epoch > epochs:
        return True
    return is_share_of_epochs(ratio, epoch, epochs)


def _counts_within_epochs(snapshot: Snapshot) -> bool:
    """Check whether a watched log's step counter resets every epoch and therefore does not show overall progress."""
    track = snapshot.metrics.get("loss", ())
    if snapshot.state.mode != "observed" or not track:
        return False
    return axis_for(None, [track]) is Axis.EPOCH


def quiet_s(snapshot: Snapshot, now: float) -> float | None:
    """Return the number of seconds since the last step if the keeper flagged a stall or the pause is unusually long, else None."""
    condition, attempt = snapshot.state.condition, snapshot.state.attempt
    if attempt is not None and attempt.quiet_since is not None:
        return None  # the state already shows the pause
    if isinstance(condition, Running) and attempt is not None and attempt.stall is not None:
        return now - attempt.stall.since
    if snapshot.state.progress is not None and snapshot.state.progress.lag_bytes:
        return None  # newer steps are in the unread part
    if (
        attempt is not None
        and attempt.last_step is not None
        and attempt.last_step == snapshot.state.total_steps
    ):
        return None  # the last step is done, so the run is saving or ending
    steps = snapshot.metrics["step_time_s"] or snapshot.metrics["loss"]
    if not isinstance(condition, Running) or condition.phase is not Phase.STEPPING or not steps:
        return None
    last_t = steps[-1].t
    if attempt is not None and snapshot.state.mode != "observed":
        # No steps were due before the run started to step.
        last_t = max(last_t, attempt.started_t or attempt.planned_t, attempt.phase_t or 0.0)
    quiet = now - last_t
    usual = snapshot.step_time_s[0] or 0.0
    return quiet if quiet > max(QUIET_S, QUIET_STEPS * usual) else None


def eta_s(snapshot: Snapshot) -> float | None:
    """Return the estimated seconds until the last step, or None while the job is halted.

    The job's own estimate is preferred to one from the step rate. There is no estimate for the first steps, which are slow
    or read all at once. After a restart, only the rate is used: a resumed progress bar counts skipped steps as done.
    """
    progress, total = snapshot.state.progress, snapshot.state.planned_steps
    attempt = snapshot.state.attempt
    if progress is None or attempt is None or attempt.stall is not None or reading_text(snapshot.state):
        return None
    gaps, rate_s = snapshot.gaps, snapshot.gap_s
    if snapshot.pace and not gaps:
        gaps, (rate_s, _) = snapshot.pace, snapshot.step_time_s  # from the step time in the log
    by_rate, step = None, snapshot.step if progress.step is not None else None
    if step is not None and total and step <= total and rate_s is not None and len(gaps) >= ETA_GAPS:
        by_rate = (total - step) * rate_s
    done = (attempt.last_step or 0) - (attempt.first_step or 0)
    by_job = progress.eta_s if done >= ETA_STEPS or progress.step is None else None
    if attempt.number > 1 and progress.step is not None:
        by_job = None
    if by_job is not None or by_rate is not None:
        return by_job if by_job is not None else by_rate
    (epoch_s, _), epoch, epochs = snapshot.epoch_time_s, progress.epoch, progress.total_epochs
    if epoch_s is not None and epoch is not None and epochs and epoch <= epochs:
        return (epochs - epoch) * epoch_s
    return None


def _job(snapshot: Snapshot, name: str, room: int, tr: Tr) -> Row:
    """Return the name, the ranks, and the effective batch in as much detail as fits."""
    state = snapshot.state
    parts = [Span(f" {name or state.name}", TextStyle.PLAIN)]
    count = ranks_of(state)
    if count is not None and state.mode != "observed":
        ranks = f" · {count} rank{'s' if count != 1 else ''}"
        parts.append(Span(tr(ranks), TextStyle.DIM))
    batch = state.attempt.shown_batch if state.attempt else None
    forms = [f" · {tr(form)}" for form in batch_forms(batch)] if batch is not None else []
    left = room - cells(tuple(parts))
    text = next((form for form in forms if cells(row(form)) <= left), "")
    return (*parts, Span(text, TextStyle.DIM))


def ranks_of(state: RunState) -> int | None:
    """Return the job's rank count, or None if unknown. A script may start more ranks, so a higher observed count is used."""
    attempt = state.attempt
    numbers = [own.rank for own in attempt.ranks.values() if own.rank is not None] if attempt else []
    return max([state.world_size or 0, *(number + 1 for number in numbers)]) or None


def batch_forms(batch: BatchSpec) -> tuple[str, ...]:
    """Describe the batch, from the longest wording to the shortest. Every number has a label."""
    tokens = batch.unit is BatchUnit.TOKENS
    unit = " tokens" if tokens else ""
    if not batch.ranks_known:
        return (f"micro-batch {describe(batch)}",)
    whole = f"global batch {fm.whole(batch.global_batch)}{unit}"
    ranks = f"{batch.world_size} rank{'s' if batch.world_size != 1 else ''}"
    each = f" × {fm.whole(batch.tokens_per_sample)} tokens" if tokens else ""
    micro, times = f"micro-batch {batch.micro_batch_per_rank}", f"accumulation {batch.accumulation_steps}"
    return (
        f"{micro}{each} × {times} × {ranks} = {whole}",
        f"{micro}, {times}, {whole}" if batch.accumulation_steps > 1 else f"{micro}, {whole}",
        whole,
    )


Pick: TypeAlias = Callable[[Sequence[float]], float]
Tile: TypeAlias = tuple[str, str, TextStyle, list[float], Pick]
RECENT = 120
RATES = {"tokens_per_sec": "tok/s", "samples_per_sec": "smp/s"}
WAIT_WARN_RATIO = 0.1
# The other tiles show speeds and times.
LINES = {"lr": TextStyle.DIM, "grad": TextStyle.DIM}


class TilesPanel(Panel):
    """A row of tiles: learning rate, throughput, gradient norm, step time, and data wait."""

    framed = False

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the row of tiles. Tiles that do not fit are dropped from the right."""
        if self.view is None or height < 1:
            return []
        every = _tiles(self.view.snapshot)
        tiles = [tile for tile in every if tile[3]] or every  # hide values that were never logged
        shown = max(1, min(len(tiles), width // 20))
        size = width // shown
        spans: list[Span] = []
        for label, text, style, values, pick in tiles[:shown]:
            tile = (Span(f" {self.tr(label)} ", TextStyle.DIM), Span(text, style), Span(" "))
            room = size - cells(tile) - 1
            spans += [
                *tile,
                Span(spark(values, max(room, 0), pick=pick), LINES.get(label, TextStyle.PACE)),
                Span(" "),
            ]
        return [tuple(spans)]


def _tiles(snapshot: Snapshot) -> list[Tile]:
    metrics = snapshot.metrics
    waited = snapshot.latest("data_wait_s")
    took, is_derived = snapshot.step_time_s
    share = waited / took if waited is not None and took else None
    wait_ink = TextStyle.WARN if share is not None and share > WAIT_WARN_RATIO else _ink(share)
    waits = _values(metrics["data_wait_s"])
    gaps = snapshot.gaps if is_derived else metrics["step_time_s"]
    pace = _tile("step", took, fm.about(fm.seconds) if is_derived else fm.seconds, gaps, 6 + is_derived)
    epoch_s, _ = snapshot.epoch_time_s
    if epoch_s is not None:
        times, _ = snapshot.epoch_times
        pace = _tile("speed", epoch_s, lambda _: epoch_time_text(snapshot), times, 0)
    rate = next((name for name in RATES if metrics[name]), "samples_per_sec")
    return [
        _tile("lr", snapshot.latest("lr"), fm.rate, metrics["lr"], 7),
        _tile(RATES[rate], snapshot.latest(rate), fm.short, metrics[rate], 5),
        _tile(
            "grad",
            snapshot.latest("grad_norm"),
            lambda v: snapshot.not_finite("grad_norm") or (fm.DASH if v is None else f"{v:.2f}"),
            metrics["grad_norm"],
            4,
            max,
        ),
        pace,
        ("data wait", (fm.DASH if share is None else fm.percent(share)).rjust(4), wait_ink, waits, fmean),
    ]


def epoch_time_text(snapshot: Snapshot) -> str:
    """Return the time per epoch as text if the step time is unknown, or "" if neither is known."""
    took_s, is_derived = snapshot.epoch_time_s
    return (
        f"{(fm.about(fm.seconds) if is_derived else fm.seconds)(took_s)}/epoch" if took_s is not None else ""
    )


def _tile(
    label: str,
    value: float | None,
    text_of: Callable[[float | None], str],
    track: Track,
    width: int,
    pick: Pick = fmean,
) -> Tile:
    return label, text_of(value).rjust(width), _ink(value), _values(track), pick


def _ink(value: float | None) -> TextStyle:
    """Return the style for a value: dim if it is unknown."""
    return TextStyle.DIM if value is None else TextStyle.STRONG


def _values(track: Track) -> list[float]:
    return [point.mean for point in track[-RECENT:]]

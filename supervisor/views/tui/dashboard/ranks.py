"""The ranks table: who is where, who lags, who waits for data, who is gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.run import state as st
from supervisor.views import format as fm
from supervisor.views.logs.sources import rank_label
from supervisor.views.model.history import median
from supervisor.views.model.snapshot import Rank, Snapshot
from supervisor.views.tui.dashboard.state_words import rank_state
from supervisor.views.tui.saved_layout import memory_of
from supervisor.views.tui.widgets.lists import ListPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, fit, row, spark

# A rank this much slower than the median is marked; so is one that waits this long and ten times the median.
SKEW_RATIO = 0.05
DATA_WAIT_S = 0.05
# A rank's last line is shown if at least this many cells are left beside the other columns.
LINE_LEAST = 24
LINE = "last line"


@dataclass(frozen=True, slots=True)
class Medians:
    """What a rank is compared with."""

    step_time_s: float | None
    data_wait_s: float | None


class RanksPanel(ListPanel, can_focus=True):
    """One row a rank of the newest attempt; `take_lines` gives it what ranks write."""

    number = 3
    uses_clock = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "log of this rank", show=False),
        Binding("o", "sort", "sort by the next column", show=False),
    ]

    class Chosen(Message):
        """A rank whose log is wanted."""

        def __init__(self, who: str) -> None:
            super().__init__()
            self.who = who

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._ranks: list[st.RankState] = []
        self._medians = Medians(None, None)
        self._last: Mapping[str, str] = {}
        self.by = "rank"

    def take_lines(self, last: Mapping[str, str]) -> None:
        """Keep what each rank wrote last; shown with the next paint, at once where none was known or no paint is due."""
        if last == self._last:
            return
        is_first, self._last = not self._last, last
        if is_first or (self.view is not None and self.view.snapshot.state.is_over):
            self.repaint()

    def titles(self) -> tuple[Row, Row]:
        """How many live."""
        if self.view is None:
            return EMPTY, EMPTY
        ranks = _views(self.view.snapshot)
        attempt = self.view.snapshot.state.attempt
        well = attempt is not None and (attempt.exit_code == 0 or attempt.ended_on_request)
        gone = 0 if well else sum(1 for rank in ranks if rank.exited and rank.exit_code != 0)
        by = self.tr(f" · by {self.by}") if self.by != "rank" else ""
        left = row(Span(self.tr(f"ranks · {len(ranks)}"), TextStyle.STRONG), Span(by, TextStyle.DIM))
        if gone:
            return left, row(Span(self.tr(f"✗ {gone} gone"), TextStyle.BAD))
        slow = tuple(int(name) for name in self._slow() if name.isdigit())
        return left, row(Span(self.tr(f"⚠ slow: {fm.ranges(slow)}"), TextStyle.WARN)) if slow else EMPTY

    def _slow(self) -> list[str]:
        """Ranks that are slower than the median, or wait for data; only they are worth scrolling to."""
        assert self.view is not None
        samples = self.view.snapshot.ranks
        return [key for key, rank in samples.items() if any(_marks(rank.values, self._medians))]

    def heading(self, width: int) -> Sequence[Row]:
        """Names of the columns."""
        text = "".join(
            fit(self.tr(name), size, right=name not in LEFT) + " " for name, size in _columns(width)
        )
        return [row(Span(text, TextStyle.DIM))]

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The table; where its rows have no space for last lines, that of the rank under the cursor stands below."""
        detail = self.has_focus and height >= DETAIL_FROM and all(name != LINE for name, _ in _columns(width))
        rows = list(super().body(width, height - 1 if detail else height))
        if not detail or not self._ranks:
            return rows
        who = rank_label(self._ranks[self.cursor])
        text = self._last.get(who, self.tr("has not written a line yet"))
        rows += [EMPTY] * (height - 1 - len(rows))
        return [*rows, row(Span(self.tr(f"rank {who}") + "  ", TextStyle.STRONG), Span(text.strip()))]

    def count(self) -> int:
        """One row a rank, or one that says that there is none."""
        assert self.view is not None
        snapshot = self.view.snapshot
        self._ranks = _ordered(_views(snapshot), snapshot, self.by, self._last)
        samples = snapshot.ranks.values()
        self._medians = Medians(_median(samples, "step_time_s"), _median(samples, "data_wait_s"))
        return max(len(self._ranks), 1)

    def item(self, index: int, width: int) -> Row:
        """One rank."""
        assert self.view is not None
        if not self._ranks:
            attempt = self.view.snapshot.state.attempt
            stepped = attempt is not None and attempt.last_step is not None
            text = "no process says its rank" if stepped else "no rank has started yet"
            return row(Span(self.tr(text), TextStyle.DIM))
        return self._row(self._ranks[index], self.view.snapshot, self._medians, width)

    def rest(self, first: int, width: int) -> Row:
        """How many there are, and how long each takes for a step, side by side: one that lags stands out."""
        samples = (
            [self.view.snapshot.ranks.get(rank_label(rank)) for rank in self._ranks[first:]]
            if self.view
            else []
        )
        took = [sample.values.get("step_time_s") or sample.pace_s for sample in samples if sample is not None]
        known = [value for value in took if value is not None]
        text = super().rest(first, width)
        if len(known) < 2:
            return text
        name = Span(f"  {self.tr('ms/step')} ", TextStyle.DIM)
        line = spark(known, min(len(known), width - cells((*text, name))), pick=max)
        return (*text, name, Span(line, TextStyle.PACE))

    def action_choose(self) -> None:
        """Show the log of the rank under the cursor."""
        if self._ranks:
            self.post_message(self.Chosen(rank_label(self._ranks[self.cursor])))

    def action_sort(self) -> None:
        """Sort by the next column that is shown: what stands out comes first."""
        names = [name for name, _ in _columns(self.size.width - 2) if name in ORDERS]
        self.sort_by(names[(names.index(self.by) + 1) % len(names)] if self.by in names else "rank")

    def sort_by(self, name: str) -> None:
        """Sort by a column, and remember it."""
        self.by = name
        self.cursor = 0
        memory = memory_of(self.app)
        memory.remember(replace(memory.kept, ranks_by=name))
        self.repaint()

    def on_mount(self) -> None:
        """Sorted as last time."""
        kept = memory_of(self.app).kept
        self.by = kept.ranks_by if kept.ranks_by in ORDERS else "rank"

    def on_click(self, event: events.Click) -> None:
        """A click on a column's name sorts by it; on a rank, chooses it."""
        if event.y != (1 if self.framed else 0):
            super().on_click(event)
            return
        event.stop()
        end = 1 if self.framed else 0
        for name, size in _columns(self.size.width - 2):
            end += size + 1
            if event.x < end:
                if name in ORDERS:
                    self.sort_by(name)
                return

    @staticmethod
    def _of_the_job(snapshot: Snapshot) -> dict[str, float | None]:
        """The newest values that were logged without a rank."""
        progress = snapshot.state.progress
        step = progress.step if progress is not None else None
        reported_s, is_derived = snapshot.step_time_s
        return {"step": step, "step_time_s": None if is_derived else reported_s}

    def _row(self, rank: st.RankState, snapshot: Snapshot, medians: Medians, width: int) -> Row:
        assert self.view is not None
        sample = snapshot.ranks.get(rank_label(rank))
        values = sample.values if sample else {}
        alone = len(self._ranks) == 1 and "step" not in values
        if (
            alone
        ):  # what is told of the job is told of its one rank; a process that is only measured tells no step
            values = {**self._of_the_job(snapshot), **values}
        step_time = values.get("step_time_s")
        wait = values.get("data_wait_s")
        pace = snapshot.pace_s if alone else sample.pace_s if sample is not None else None
        skew = step_time / medians.step_time_s - 1 if step_time and medians.step_time_s else None
        memory = values.get("memory_used_bytes") or values.get("rss_bytes")
        seen_t = _seen_t(sample, snapshot)
        seen = self.view.now - seen_t if seen_t else None
        word, style = rank_state(rank, snapshot)
        late, starved = _marks(values, medians)
        fields = {
            "rank": Span(rank_label(rank), TextStyle.STRONG),
            "state": Span(self.tr(word), style),
            "step": Span(fm.whole(values.get("step"))),
            # By when lines came all ranks of a job are as slow as the slowest: that is no skew.
            "ms/step": Span(fm.about(_milli)(pace) if pace and not step_time else _milli(step_time)),
            "skew": Span(
                f"{round(100 * skew) + 0:+d} %" if skew is not None else fm.DASH,
                TextStyle.WARN if late else TextStyle.PLAIN,
            ),
            "data": Span(
                ("⚠ " if starved else "") + fm.seconds(wait), TextStyle.WARN if starved else TextStyle.PLAIN
            ),
            "mem": Span(fm.memory(memory)),
            "cpu": Span(fm.percent(values.get("cpu_ratio"))),
            "pid": Span(str(rank.pid or fm.DASH), TextStyle.DIM),
            "seen": _age(seen, ended=rank.exited),
        }
        fields[LINE] = Span(self._last.get(rank_label(rank), "").strip(), TextStyle.DIM)
        spans: list[Span] = []
        for name, size in _columns(width):
            span = fields[name]
            spans += [Span(fit(span.text, size, right=name not in LEFT), span.style), Span(" ")]
        return tuple(spans)


# Name and width, in the order in which they are shown; those with a larger need come only where there is room.
COLUMNS = (
    ("rank", 5, 0),
    ("state", 11, 0),
    ("step", 7, 0),
    ("ms/step", 7, 0),
    ("skew", 6, 53),
    ("data", 8, 62),
    ("mem", 5, 0),
    ("cpu", 6, 69),
    ("pid", 7, 77),
    ("seen", 5, 0),
)
LEFT = frozenset(["state", LINE])
# The detail below the table takes a row of it only where some are left.
DETAIL_FROM = 4


def _milli(value_s: float | None) -> str:
    return fm.whole(value_s * 1000) if value_s else fm.DASH


def _marks(values: Mapping[str, float | None], medians: Medians) -> tuple[bool, bool]:
    """Whether a rank lags behind the median, and whether it waits for its data."""
    took, wait = values.get("step_time_s"), values.get("data_wait_s")
    late = (
        took is not None
        and bool(medians.step_time_s)
        and took > (1 + SKEW_RATIO) * (medians.step_time_s or 0)
    )
    starved = wait is not None and wait > max(DATA_WAIT_S, 10 * (medians.data_wait_s or 0.0))
    return late, starved


def _columns(width: int) -> list[tuple[str, int]]:
    shown = [(name, size) for name, size, need in COLUMNS if width >= need]
    left = width - sum(size + 1 for _, size in shown)
    return [*shown, (LINE, left - 1)] if left > LINE_LEAST else shown


# What a column is sorted by, and whether the greatest comes first; laggards and the silent come before others.
ORDERS: dict[str, tuple[str, bool]] = {
    "rank": ("", False),
    "state": ("", False),
    "step": ("step", False),
    "ms/step": ("step_time_s", True),
    "skew": ("step_time_s", True),
    "data": ("data_wait_s", True),
    "mem": ("memory_used_bytes", True),
    "cpu": ("cpu_ratio", True),
    "pid": ("", False),
    "seen": ("", False),
    LINE: ("", False),
}


def _ordered(
    ranks: list[st.RankState], snapshot: Snapshot, by: str, last: Mapping[str, str]
) -> list[st.RankState]:
    """Ranks by a column; those whose value is not known come last, each in the order of ranks."""
    name, greatest = ORDERS[by]

    def number(rank: st.RankState) -> tuple[bool, float]:
        sample = snapshot.ranks.get(rank_label(rank))
        value = (
            _seen_t(sample, snapshot)
            if by == "seen"
            else sample.values.get(name)
            if sample is not None
            else None
        )
        if value is None and by == "mem" and sample is not None:
            value = sample.values.get("rss_bytes")
        if value is None and by == "ms/step" and sample is not None:
            value = sample.pace_s
        return value is None, 0.0 if value is None else -value if greatest else value

    match by:
        case "rank":
            return ranks
        case "state":  # those that are gone first, then by their word
            return sorted(ranks, key=lambda rank: (not rank.exited, rank_state(rank, snapshot)[0]))
        case "pid":
            return sorted(ranks, key=lambda rank: (rank.pid is None, rank.pid or 0))
        case "last line":
            entries = {rank_label(rank): last.get(rank_label(rank), "") for rank in ranks}
            return sorted(ranks, key=lambda rank: (not entries[rank_label(rank)], entries[rank_label(rank)]))
        case _:
            return sorted(ranks, key=number)


def _seen_t(sample: Rank | None, snapshot: Snapshot) -> float | None:
    """When a rank last logged a step; where its steps are not its own, when its process was last seen.

    While nothing moves the silence is everybody's: else the one rank that prints would look like the one that is late.
    """
    if sample is None:
        return None
    attempt = snapshot.state.attempt
    stall = attempt.stall if attempt is not None else None
    return sample.stepped_t or (stall.since if stall is not None else sample.seen_t)


def _views(snapshot: Snapshot) -> list[st.RankState]:
    attempt = snapshot.state.attempt
    return [rank for _, rank in sorted(attempt.ranks.items())] if attempt else []


def _age(age_s: float | None, *, ended: bool) -> Span:
    text = fm.age(age_s)
    if age_s is None or ended or age_s < fm.STALE_S:
        return Span(text, TextStyle.DIM if ended else TextStyle.PLAIN)
    return Span(text, TextStyle.DIM) if age_s < fm.VERY_STALE_S else Span(f"{text} ⚠", TextStyle.WARN)


def _median(ranks: Iterable[Rank], name: str) -> float | None:
    found = [r.values.get(name) for r in ranks]
    return median([value for value in found if value is not None])

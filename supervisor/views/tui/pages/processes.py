"""The processes page: rank, pid, threads, and what each was doing when stacks were last taken."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.run import state as st
from supervisor.views import format as fm
from supervisor.views.logs.sources import rank_label
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.dashboard.actions import possible
from supervisor.views.tui.dashboard.state_words import rank_state
from supervisor.views.tui.pages.page import Page, section
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row
from supervisor.views.tui.widgets.panel import View
from supervisor.views.wording.translate import Tr

COLUMNS = (("process", 12), ("pid", 9), ("state", 14), ("cpu", 7), ("RAM", 9), ("threads", 8), ("seen", 6))


class ProcessesPage(Page):
    """The launcher and its ranks, then the newest stacks."""

    heading = "processes"
    uses_clock = True

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Also new stacks, where ranks run."""
        can = bool(self.screen.check_action("ask", ("stacks",)))
        return [*([("K", "take stacks", "ask('stacks')")] if can else []), *super().inner_keys()]

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """The page."""
        attempt = view.snapshot.state.attempt
        if attempt is None:
            return [row(Span(view.tr("nothing was launched yet"), TextStyle.DIM))]
        tr = view.tr
        head = row(
            *(
                Span(fit(tr(name), size, right=at > 2), TextStyle.DIM)
                for at, (name, size) in enumerate(COLUMNS)
            )
        )
        rows: list[Row] = [head, *_machine(view.snapshot, attempt, tr)]
        for _, rank in sorted(attempt.ranks.items()):
            rows.append(_rank(view, rank))
        return [*rows, *_stacks(view, width)]


def _machine(snapshot: Snapshot, attempt: st.AttemptState, tr: Tr) -> list[Row]:
    state = snapshot.state
    keeper = tr("lives" if snapshot.keeper_alive else "ended" if state.is_over else "gone")
    rows = [
        _line(
            tr("supervisor"),
            state.keeper_pid,
            Span(keeper, TextStyle.LIVE if snapshot.keeper_alive else TextStyle.DIM),
            *_own(snapshot),
        )
    ]
    if state.mode != "observed":
        ended = attempt.ended_t is not None or attempt.reads_on
        word = tr("ended" if ended else "runs")
        rows.append(_line("torchrun", attempt.pid, Span(word, TextStyle.DIM if ended else TextStyle.LIVE)))
    return rows


def _own(snapshot: Snapshot) -> tuple[str, ...]:
    """What the keeper takes: its share of all cores, its memory."""
    values = snapshot.machine.values if snapshot.machine is not None and snapshot.keeper_alive else {}
    if values.get("stoker_rss_bytes") is None:
        return ()
    return fm.percent(values.get("stoker_cpu_ratio"), digits=1), fm.memory(values["stoker_rss_bytes"])


def _rank(view: View, rank: st.RankState) -> Row:
    sample = view.snapshot.ranks.get(rank_label(rank))
    attempt = view.snapshot.state.attempt
    runs = attempt is not None and attempt.ended_t is None  # what ended takes nothing
    values = sample.values if sample is not None and runs else {}
    word, style = rank_state(rank, view.snapshot.state, is_live=view.snapshot.keeper_alive)
    seen = view.now - sample.seen_t if sample is not None and sample.seen_t else None
    threads = values.get("threads")
    return _line(
        f"  rank {rank_label(rank)}",
        rank.pid,
        Span(view.tr(word), style),
        fm.percent(values.get("cpu_ratio")),
        fm.memory(values.get("rss_bytes")),
        fm.whole(threads) if threads is not None else fm.DASH,
        fm.age(seen),
    )


def _line(name: str, pid: int | None, state: Span, *rest: str) -> Row:
    sizes = [size for _, size in COLUMNS]
    spans = [
        Span(fit(name, sizes[0]), TextStyle.STRONG),
        Span(fit(str(pid) if pid else fm.DASH, sizes[1])),
        Span(fit(state.text, sizes[2]), state.style),
    ]
    spans += [Span(fit(text, size, right=True)) for text, size in zip(rest, sizes[3:], strict=False)]
    return tuple(spans)


def _stacks(view: View, width: int) -> list[Row]:
    can_take = "stacks" in possible(view.snapshot, read_only=False, can_adopt=False)
    dump = view.snapshot.nearby.stacks
    if dump is None:
        shown = "none were taken yet: K takes those of all ranks now" if can_take else "none were taken"
        return [*section(view.tr, "stacks"), row(Span(view.tr(shown), TextStyle.DIM))]
    age = fm.age(max(0.0, view.now - dump.taken_t))
    note = f"{dump.name}, taken {age} ago · K takes new ones" if can_take else f"{dump.name}, taken {age} ago"
    rows = section(view.tr, "stacks", note)
    for text in dump.lines:
        if not text.strip():
            rows.append(EMPTY)
            continue
        style = (
            TextStyle.STRONG
            if text.startswith("==")
            else TextStyle.DIM
            if text.startswith((" ", "\t"))
            else TextStyle.PLAIN
        )
        rows.append(row(Span(fit(text, width).rstrip(), style)))
    return rows

"""What stands for a whole node in the table of ranks: its state, and of its ranks the one that matters most (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from supervisor.run import state as st
from supervisor.run.events import NodeSight, SlowRankFound
from supervisor.run.nodes import LEADER, SILENT_S
from supervisor.run.series import NET_RECEIVED, NET_SENT
from supervisor.views import format as fm
from supervisor.views.model.history import median
from supervisor.views.model.snapshot import Node, Rank, Snapshot
from supervisor.views.tui.dashboard.state_words import outcome_span
from supervisor.views.tui.widgets.paint import TextStyle

# Printed step times that differ by so much between ranks that wait for each other are no measure of the same thing.
UNPROVEN_SKEW = 0.2


class Link(NamedTuple):
    """One interface or RDMA port: bytes a second."""

    name: str
    received: float
    sent: float


class NodeSummary(NamedTuple):
    """A node in one row. Of its ranks: how many live, the least step, the greatest wait and memory, the median time of a step."""

    living: int
    ranks: int
    values: Mapping[str, float | None]
    slowest_s: float | None
    gpu_ratio: float | None
    links: tuple[Link, ...]


def ranks_of(state: st.RunState, leader: st.RunState) -> list[st.RankState]:
    """A node's ranks in the run's newest attempt; none while it has not begun that one."""
    attempt, newest = state.attempt, leader.attempt
    if attempt is None or newest is None or attempt.number != newest.number:
        return []
    return [rank for _, rank in sorted(attempt.ranks.items())]


def summary_of(node: Node, leader: st.RunState) -> NodeSummary:
    """A node in one row."""
    ranks, samples = ranks_of(node.state, leader), node.ranks.values()
    took = _known(samples, "step_time_s")
    values: dict[str, float | None] = {
        "step": min(_known(samples, "step"), default=None),
        "step_time_s": median(took),
        "data_wait_s": max(_known(samples, "data_wait_s"), default=None),
        "memory_used_bytes": max(
            _known(samples, "memory_used_bytes") or _known(samples, "rss_bytes"), default=None
        ),
        "cpu_ratio": node.machine.values.get("cpu_ratio") if node.machine is not None else None,
    }
    utils = [each for gpu in node.gpus if (each := gpu.values.get("util_ratio")) is not None]
    return NodeSummary(
        living=sum(not rank.exited for rank in ranks),
        ranks=len(ranks),
        values=values,
        slowest_s=max(took, default=None),
        gpu_ratio=sum(utils) / len(utils) if utils else None,
        links=links_of(node),
    )


def links_of(node: Node) -> tuple[Link, ...]:
    """What its interfaces carry, the busiest first; those that carry nothing are left out, unless all are idle."""
    values = node.machine.values if node.machine is not None else {}
    found = [
        Link(name.removeprefix(NET_RECEIVED), received, values.get(name.replace(NET_RECEIVED, NET_SENT)) or 0)
        for name, received in values.items()
        if name.startswith(NET_RECEIVED) and received is not None
    ]
    found.sort(key=lambda link: -(link.received + link.sent))
    busy = tuple(link for link in found if link.received + link.sent >= 1)
    return busy or tuple(found[:1])


def links_text(links: Iterable[Link], width: int) -> str:
    """As many interfaces as fit: ``eth0 ↓112M ↑98M``; the rates of the busiest alone where its name does not."""
    text = ""
    for link in links:
        rates = f"↓{short_rate(link.received)} ↑{short_rate(link.sent)}"
        more = f"{text}  {link.name} {rates}" if text else f"{link.name} {rates}"
        if len(more) > width:
            return text or rates
        text = more
    return text


def short_rate(bytes_per_s: float) -> str:
    """Bytes a second in at most four cells: ``0``, ``934K``, ``112M``, ``1.2G``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if bytes_per_s >= 0.9995 * size:
            number = bytes_per_s / size
            return f"{number:.1f}{unit}" if number < 9.95 else f"{number:.0f}{unit}"
    return f"{bytes_per_s:.0f}"


def beat_age(node: Node, now: float) -> float | None:
    """For how long its heartbeat has stood still, as far as this viewer has seen. `now`: this machine's wall time."""
    return max(0.0, now - node.beat_t) if node.beat_t is not None else None


def node_state(node: Node, snapshot: Snapshot, now: float) -> tuple[str, TextStyle]:
    """Glyph and word of what a node does. `now`: this machine's wall time."""
    leader, state = snapshot.state, node.state
    if leader.is_over or isinstance(state.condition, st.Finished):
        over = leader.condition if leader.is_over else state.condition
        assert isinstance(over, st.Finished)
        attempt = state.attempt
        if attempt is not None and attempt.exit_code not in {None, 0} and not attempt.ended_on_request:
            return f"✗ exit {attempt.exit_code}", TextStyle.BAD
        return outcome_span(over.outcome)
    sight = leader.nodes[node.number].sight if node.number in leader.nodes else None
    age = beat_age(node, now)
    if sight is NodeSight.LEFT:
        return "✗ gone", TextStyle.BAD
    if sight is NodeSight.SILENT or (age is not None and age > SILENT_S):
        return "⚠ no sign", TextStyle.BAD
    if not ranks_of(state, leader) and node.number != LEADER:
        return ("starting" if leader.attempt is not None else "ready"), TextStyle.DIM
    match state.condition:
        case st.Running():
            return str(state.condition.phase), TextStyle.LIVE
        case st.Launching():
            return "starting", TextStyle.PLAIN
        case st.Stopping():
            return "stopping", TextStyle.WARN
        case st.Preflight():
            return "ready", TextStyle.DIM
        case st.HeldOpen() | st.Backoff():
            return "waits", TextStyle.DIM
        case _:
            failed = state.attempt is not None and state.attempt.exit_code not in {None, 0}
            return ("✗ ended", TextStyle.BAD) if failed else ("ended", TextStyle.DIM)


def skew_of(took_s: float | None, median_s: float | None) -> float | None:
    """By how much a step took longer than the median one."""
    return took_s / median_s - 1 if took_s and median_s else None


def slow_rank_of(state: st.RunState) -> SlowRankFound | None:
    """Which rank the others wait for, by the newest attempt's keeper; None while there is no finding."""
    found = state.attempt.slow_rank if state.attempt is not None else None
    return found if found is not None and (found.rank is not None or found.unclear) else None


def skew_text(skew: float | None, slow: SlowRankFound | None, *, is_named: bool) -> str:
    """By how much a rank is slower than the others; of the one that they wait for, how long they do in every step.

    A step time that it prints does not show that by itself: the rank that waits may print the longer one.
    """
    if is_named:
        # Not in percent: beside its own step time, which is the shortest, that would read as its opposite.
        return f"+{wait_text(slow.lost_s)}" if slow is not None and slow.lost_s > 0 else percent_text(skew)
    if skew is not None and abs(skew) >= UNPROVEN_SKEW:
        return "?" if slow is None or slow.unclear else fm.DASH
    return percent_text(skew)


def wait_text(wait_s: float) -> str:
    """A time within a step, in at most five cells: ``371ms``, ``1.25s``."""
    return f"{wait_s * 1000:.0f}ms" if wait_s < 0.9995 else f"{wait_s:.3g}s"


def percent_text(ratio: float | None) -> str:
    """With its sign, in whole percent."""
    return f"{round(100 * ratio) + 0:+d} %" if ratio is not None else fm.DASH


def _known(samples: Iterable[Rank], name: str) -> list[float]:
    return [value for each in samples if (value := each.values.get(name)) is not None]

"""One line per device: how busy, how full, how hot. Without GPUs: the machine and its ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import assert_never

from rich.cells import cell_len

from supervisor.views import format as fm
from supervisor.views.model.snapshot import Gpu, Machine, Rank, Snapshot
from supervisor.views.model.thinned_series import Track
from supervisor.views.tui.charts.hues import LIMITS, Gauge, value_style
from supervisor.views.tui.widgets.lists import ListPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, bar, cells, fit, row, spark_row

FULL_RATIO = LIMITS[Gauge.MEMORY].red
NAME_CELLS = 7
THREADS_CELLS = len("999 threads")
SPARK_POINTS = 60
SPARK_MOST = 24
SPARK_LEAST = 6
BAR_MOST = 16
OTHERS_CELLS = len("⚠ 61.2G pid 1234567")
# NVML's clock event reasons (nvml.h, nvmlClocksEventReasons) that slow a device for its own protection.
THROTTLES = ((0x20 | 0x40, "thermal"), (0x80, "power brake"), (0x08, "hw slow"))
THROTTLE_WIDTH = max(len(word) for _, word in THROTTLES)


class DevicesPanel(ListPanel, can_focus=True):
    """GPUs, or the machine and its ranks."""

    number = 2

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._devices: list[tuple[str, Gpu | Machine | Rank]] = []
        self._name_cells = NAME_CELLS

    def titles(self) -> tuple[Row, Row]:
        """What is listed."""
        if self.view is None:
            return EMPTY, EMPTY
        gpus = self.view.snapshot.gpus
        left = row(Span(self.tr(_heading(self.view.snapshot)), TextStyle.STRONG))
        if self._is_shared():
            shared = tuple(gpu.index for gpu in gpus if _others(gpu) is not None)
            return left, row(Span(self.tr(f"⚠ shared with others: GPU {fm.ranges(shared)}"), TextStyle.WARN))
        return left, EMPTY

    def _is_shared(self) -> bool:
        assert self.view is not None
        return any(_others(gpu) is not None for gpu in self.view.snapshot.gpus)

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """The newest readings of all GPUs, the machine and the last rank; and the plan."""
        ranks = snapshot.ranks.values()
        last = next(reversed(ranks)).cpu if ranks and not snapshot.gpus else None
        machine = snapshot.machine.cpu if snapshot.machine else None
        read_t = tuple(one.seen_t for node in snapshot.nodes for one in (*node.gpus[:1], node.machine) if one)
        return (snapshot.gpu_util, machine, last, len(snapshot.state.attempts), read_t)

    def count(self) -> int:
        """One row per device, or one that says that there is no reading."""
        assert self.view is not None
        snapshot = self.view.snapshot
        self._devices = devices_of(snapshot)
        longest = max((len(node) for node, _ in self._devices), default=0)
        self._name_cells = NAME_CELLS + (longest + 1 if longest else 0)
        return max(len(self._devices), 1)

    def item(self, index: int, width: int) -> Row:
        """One device."""
        if not self._devices:
            return self._set_in(row(Span(self.tr("no reading yet"), TextStyle.DIM)))
        return self._set_in(self._device(*self._devices[index], width if self.framed else width - 2))

    def _set_in(self, found: Row) -> Row:
        """Without a frame, indented by one cell like everything else."""
        return found if self.framed else (Span(" "), *found)

    def _device(self, node: str, device: Gpu | Machine | Rank, width: int) -> Row:
        # A device's name begins with its node, if there are several.
        width -= self._name_cells - NAME_CELLS
        match device:
            case Gpu():
                found = self._gpu(device, width)
            case Machine():
                found = self._machine(device, width)
            case Rank():
                found = self._process(device, width)
            case _ as unreachable:
                assert_never(unreachable)
        return (Span(fit(node, self._name_cells - NAME_CELLS), TextStyle.DIM), *found) if node else found

    def _gpu(self, gpu: Gpu, width: int) -> Row:
        values = gpu.values
        util, used = values.get("util_ratio"), values.get("memory_used_bytes")
        total = values.get("memory_total_bytes")
        full = used / total if used is not None and total else None
        heat = values.get("temperature_c")
        slowed = self.tr(_throttle(values.get("throttle")))
        power, clock = values.get("power_w"), values.get("sm_clock_mhz")
        sign = "⚠" if slowed else " "
        shared = self._is_shared()
        extras = [
            Span(self.tr("✗ lost") if values.get("lost") else "", TextStyle.BAD),
            Span(fit(self.tr(_others_text(gpu)), OTHERS_CELLS) if shared else "", TextStyle.WARN),
            Span(
                f"{sign} {heat:3.0f} °C" if heat is not None else "",
                TextStyle.WARN if slowed else TextStyle.PLAIN,
            ),
            Span(f"{power:4.0f} W" if power is not None else "", TextStyle.DIM),
            Span(f"{clock:5.0f} MHz" if clock is not None else "", TextStyle.DIM),
            Span(fit(slowed, THROTTLE_WIDTH), TextStyle.WARN),
        ]
        return _device(f"GPU {gpu.index}", util, gpu.util, (used, total, full), extras, width, Gauge.GPU)

    def _machine(self, machine: Machine, width: int) -> Row:
        values = machine.values
        used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
        full = used / total if used is not None and total else None
        extras = []
        for name, word in (("shm_used_ratio", "shm"), ("disk_used_ratio", "disk")):
            ratio = values.get(name)
            if ratio is not None:
                extras.append(
                    Span(
                        f"{self.tr(word)} {fm.percent(ratio):>5}",
                        TextStyle.WARN if ratio >= FULL_RATIO else TextStyle.DIM,
                    )
                )
        if values.get("load1") is not None:
            extras.append(Span(f"{self.tr('load')} {values['load1']:4.1f}", TextStyle.DIM))
        own, held = values.get("stoker_cpu_ratio"), values.get("stoker_rss_bytes")
        if held is not None:  # of all cores, like the machine's own value
            share = fm.percent(own, digits=1)
            warned = sum(extra.style is TextStyle.WARN for extra in extras)
            extras.sort(key=lambda extra: extra.style is not TextStyle.WARN)
            extras.insert(warned, Span(f"stoker {share:>6} {fm.memory(held)}", TextStyle.DIM))
        return _device(
            self.tr("host"),
            values.get("cpu_ratio"),
            machine.cpu,
            (used, total, full),
            extras,
            width,
            Gauge.CPU,
        )

    def _process(self, rank: Rank, width: int) -> Row:
        values = rank.values
        threads = values.get("threads")
        many = "" if threads == 1 else "s"
        text = self.tr(f"{threads:.0f} thread{many}") if threads is not None else ""
        extras = [Span(fit(text, THREADS_CELLS, right=True), TextStyle.DIM)] if text else []
        memory = (values.get("rss_bytes"), None, None)
        return _device(f"rank {rank.key}", values.get("cpu_ratio"), rank.cpu, memory, extras, width, None)


def devices_of(snapshot: Snapshot) -> list[tuple[str, Gpu | Machine | Rank]]:
    """The listed devices, with any node names: GPUs; without any, the machines and node 0's ranks."""
    # Node 0's own readings have histories; the others have only the newest values.
    nodes = [
        (f"n{node.number}", node.gpus if node.number else snapshot.gpus, node.machine if node.number else snapshot.machine)
        for node in snapshot.nodes
    ] or [("", snapshot.gpus, snapshot.machine)]  # fmt: skip
    if any(gpus for _, gpus, _ in nodes):
        return [(name, gpu) for name, gpus, _ in nodes for gpu in gpus]
    ranks = [(nodes[0][0], rank) for rank in snapshot.ranks.values() if rank.cpu or rank.rss]
    return [*((name, machine) for name, _, machine in nodes if machine is not None), *ranks]


def _heading(snapshot: Snapshot) -> str:
    devices = devices_of(snapshot)
    gpus = sum(isinstance(device, Gpu) for _, device in devices)
    if not snapshot.nodes:
        return f"GPUs · {gpus}" if gpus else "machine"
    return f"GPUs · {gpus} on {len(snapshot.nodes)} nodes" if gpus else "machines"


def _device(
    name: str,
    busy: float | None,
    history: Track,
    memory: tuple[float | None, float | None, float | None],
    extras: Sequence[Span],
    width: int,
    gauge: Gauge | None,
) -> Row:
    """A device in `width` cells: parts that do not fit are dropped from the end.

    `gauge`: the capacity that `busy` is a ratio of; None: a process, which may use several cores.
    """
    used, total, full = memory
    style_of = _style_of(gauge)
    percent = Span(
        fit(fm.percent(busy), 6, right=True),
        TextStyle.PLAIN if busy is None or gauge is None else style_of(busy),
    )
    head = row(Span(fit(name, NAME_CELLS), TextStyle.STRONG), percent, " ")
    tail: Row = row(" ", Span(fit(fm.memory_pair(used, total), 12, right=True)))
    room = width - cells(head) - cells(tail) - SPARK_LEAST - (9 if full is not None else 0)
    kept: list[Span] = []
    for extra in extras:
        size = cell_len(extra.text) + 2
        if extra.text and size <= room:
            kept += [Span("  "), extra]
            room -= size
    sparks = min(max(room + SPARK_LEAST, 0), SPARK_MOST)
    room -= sparks - SPARK_LEAST
    if full is not None and room >= 0:
        tail += (Span(" "), *bar(full, 8 + min(room, BAR_MOST - 8), value_style(Gauge.MEMORY, full)))
    tail += tuple(kept)
    values = [point.mean for point in history[-max(SPARK_POINTS, sparks) :]]
    high = 1.0 if gauge is not None else max([1.0, *values])
    pick = min if gauge is Gauge.GPU else fmean
    return (*head, *spark_row(values, sparks, style_of, 0.0, high, pick), *tail)


def _style_of(gauge: Gauge | None) -> Callable[[float], TextStyle]:
    return partial(value_style, gauge) if gauge is not None else lambda _ratio: TextStyle.DIM


def _others(gpu: Gpu) -> float | None:
    """Memory of other processes; None if none is known, or on a GPU that the run does not use."""
    others, pid = gpu.values.get("others_memory_bytes"), gpu.values.get("others_pid")
    own = gpu.values.get("own_memory_bytes")
    return others if others and pid and own else None


def _others_text(gpu: Gpu) -> str:
    """How much memory others use, and the process that uses most."""
    others, pid = _others(gpu), gpu.values.get("others_pid")
    return f"⚠ {fm.memory(others)} pid {pid:.0f}" if others is not None and pid else ""


def _throttle(bits: float | None) -> str:
    if bits is None or not math.isfinite(bits):
        return ""
    return next((word for mask, word in THROTTLES if int(bits) & mask), "")

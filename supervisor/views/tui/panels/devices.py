"""One line per GPU with its usage, memory and temperature, or one line per machine if there are no GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean

from rich.cells import cell_len

from supervisor.views import format as fm
from supervisor.views.model.snapshot import Gpu, Machine, Snapshot
from supervisor.views.model.thinned_series import Track
from supervisor.views.tui.charts.hues import LIMITS, Gauge, value_style
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, bar, cells, fit, row, spark_row
from supervisor.views.tui.widgets.panel import ListPanel

FULL_RATIO = LIMITS[Gauge.MEMORY].red
NAME_CELLS = 7
SPARK_POINTS = 60
SPARK_MOST = 24
SPARK_LEAST = 6
BAR_MOST = 16
THROTTLE_CELLS = len("power brake")
# NVML's clock event reasons (nvml.h, nvmlClocksEventReasons) that slow a device for its own protection.
THROTTLES = ((0x20 | 0x40, "thermal"), (0x80, "power brake"), (0x08, "hw slow"))


class DevicesPanel(ListPanel, can_focus=True):
    """A list of GPUs, or of machines if there are no GPUs."""

    number = 2

    def titles(self) -> tuple[Row, Row]:
        """Return a title that says what kind of devices are listed."""
        if self.view is None:
            return EMPTY, EMPTY
        nodes = len(self.view.snapshot.nodes)
        gpus = sum(isinstance(device, Gpu) for _, device in self._devices)
        text = f"GPUs · {gpus}" if gpus else "machine"
        if nodes:
            text = f"GPUs · {gpus} on {nodes} nodes" if gpus else "machines"
        return row(Span(self.tr(text), TextStyle.STRONG)), EMPTY

    @property
    def _devices(self) -> list[tuple[str, Gpu | Machine]]:
        return devices_of(self.view.snapshot) if self.view is not None else []

    def count(self) -> int:
        """Return the number of rows: one per device, or 1 if there are no readings yet."""
        return max(len(self._devices), 1)

    def item(self, index: int, width: int) -> Row:
        """Return a device's row. If the pane has no frame, indent the row by one cell to match other panes."""
        indent, devices = EMPTY if self.framed else row(" "), self._devices
        if not devices:
            return (*indent, Span(self.tr("no reading yet"), TextStyle.DIM))
        # With several nodes, a device's name begins with its node.
        node, device = devices[index]
        longest = max(len(name) for name, _ in devices)
        node_cells = longest + 1 if longest else 0
        width -= node_cells + 2 * len(indent)
        found = self._gpu(device, width) if isinstance(device, Gpu) else self._machine(device, width)
        return (*indent, Span(fit(node, node_cells), TextStyle.DIM), *found)

    def _gpu(self, gpu: Gpu, width: int) -> Row:
        values = gpu.values
        heat, power, clock = values.get("temperature_c"), values.get("power_w"), values.get("sm_clock_mhz")
        slowed = self.tr(_throttle(values.get("throttle")))
        extras = [
            Span(self.tr("✗ lost") if values.get("lost") else "", TextStyle.BAD),
            Span(
                f"{'⚠' if slowed else ' '} {heat:3.0f} °C" if heat is not None else "",
                TextStyle.WARN if slowed else TextStyle.PLAIN,
            ),
            Span(f"{power:4.0f} W" if power is not None else "", TextStyle.DIM),
            Span(f"{clock:5.0f} MHz" if clock is not None else "", TextStyle.DIM),
            Span(fit(slowed, THROTTLE_CELLS), TextStyle.WARN),
        ]
        return _device(f"GPU {gpu.index}", values, "util_ratio", gpu.util, extras, width, Gauge.GPU)

    def _machine(self, machine: Machine, width: int) -> Row:
        values = machine.values
        extras = []
        for name, word in (("shm_used_ratio", "shm"), ("disk_used_ratio", "disk")):
            if (ratio := values.get(name)) is not None:
                style = TextStyle.WARN if ratio >= FULL_RATIO else TextStyle.DIM
                extras.append(Span(f"{self.tr(word)} {fm.percent(ratio):>5}", style))
        own, held = values.get("stoker_cpu_ratio"), values.get("stoker_rss_bytes")
        if held is not None:  # of all cores, like the machine's own value
            extras.append(Span(f"stoker {fm.percent(own, digits=1):>6} {fm.memory(held)}", TextStyle.DIM))
        if values.get("load1") is not None:
            extras.append(Span(f"{self.tr('load')} {values['load1']:4.1f}", TextStyle.DIM))
        extras.sort(key=lambda extra: extra.style is not TextStyle.WARN)
        return _device(self.tr("host"), values, "cpu_ratio", machine.cpu, extras, width, Gauge.CPU)


def devices_of(snapshot: Snapshot) -> list[tuple[str, Gpu | Machine]]:
    """Return the devices to list, with any node names: the GPUs, or the machines if there are no GPUs."""
    # Only node 0's own readings have histories.
    nodes = [
        (f"n{node.number}", node.gpus if node.number else snapshot.gpus, node.machine if node.number else snapshot.machine)
        for node in snapshot.nodes
    ] or [("", snapshot.gpus, snapshot.machine)]  # fmt: skip
    if any(gpus for _, gpus, _ in nodes):
        return [(name, gpu) for name, gpus, _ in nodes for gpu in gpus]
    return [(name, machine) for name, _, machine in nodes if machine is not None]


def _device(
    name: str,
    values: Mapping[str, float | None],
    busy_name: str,
    history: Track,
    extras: Sequence[Span],
    width: int,
    gauge: Gauge,
) -> Row:
    """Format a device in `width` cells. Parts that do not fit are dropped from the end."""
    busy = values.get(busy_name)
    used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
    full = used / total if used is not None and total else None
    style = TextStyle.PLAIN if busy is None else value_style(gauge, busy)
    head = row(
        Span(fit(name, NAME_CELLS), TextStyle.STRONG), Span(fit(fm.percent(busy), 6, right=True), style), " "
    )
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
    recent = [point.mean for point in history[-max(SPARK_POINTS, sparks) :]]
    pick = min if gauge is Gauge.GPU else fmean
    return (*head, *spark_row(recent, sparks, partial(value_style, gauge), 0.0, 1.0, pick), *tail, *kept)


def _throttle(bits: float | None) -> str:
    if bits is None or not math.isfinite(bits):
        return ""
    return next((word for mask, word in THROTTLES if int(bits) & mask), "")

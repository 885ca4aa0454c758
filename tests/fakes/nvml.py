# ruff: noqa: N802, N815 - functions and fields bear NVML's own names
"""A stand-in for pynvml: cards whose readings, failures and events a test scripts.

No machine of ours has an NVIDIA driver, so this is what the tests of the GPU source run on; its functions and
error numbers follow nvml.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml's: `value` is the number of nvml.h."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {9: "Driver Not Loaded", 15: "GPU is lost", 3: "Not Supported"}.get(
            self.value, f"error {self.value}"
        )


@dataclass
class Memory:
    total: int
    used: int


@dataclass
class Rates:
    gpu: int
    memory: int = 0


@dataclass
class Pci:
    busId: str


@dataclass
class Process:
    pid: int
    usedGpuMemory: int | None


@dataclass
class Event:
    device: int
    eventData: int


@dataclass
class Card:
    """One GPU. `fails` maps a function's name (or "*") to the NVML error number it gives."""

    uuid: str
    name: str = "Fake H100"
    total: int = 80 * GIB
    used: int = 0
    util: int = 0
    power_mw: int = 300_000
    throttle: int = 0
    ecc: int = 0
    processes: list[Process] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)


class FakeNvml:
    """The module. Calls are counted in `calls`; `driver_gone` makes every call fail."""

    NVMLError = NVMLError

    def __init__(self, cards: list[Card]) -> None:
        self.cards = cards
        self.calls: list[str] = []
        self.xids: list[Event] = []
        self.driver_gone = False
        self.init_error = 0
        self.open = 0

    def load(self) -> Any:
        """What stands for importing pynvml."""
        return self

    def nvmlInit(self) -> None:
        if self.init_error or self.driver_gone:
            raise NVMLError(self.init_error or 9)
        self.open += 1

    def nvmlShutdown(self) -> None:
        if self.driver_gone:
            raise NVMLError(9)
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._card(index, "nvmlDeviceGetHandleByIndex")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self._card(handle, "nvmlDeviceGetUUID").uuid

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self._card(handle, "nvmlDeviceGetName").name.encode()

    def nvmlDeviceGetPciInfo(self, handle: int) -> Pci:
        self._card(handle, "nvmlDeviceGetPciInfo")
        return Pci(f"00000000:{handle:02X}:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Memory:
        card = self._card(handle, "nvmlDeviceGetMemoryInfo")
        return Memory(card.total, card.used)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Rates:
        return Rates(self._card(handle, "nvmlDeviceGetUtilizationRates").util)

    def nvmlDeviceGetTemperature(self, handle: int, _sensor: int) -> int:
        self._card(handle, "nvmlDeviceGetTemperature")
        return 61

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._card(handle, "nvmlDeviceGetPowerUsage").power_mw

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        self._card(handle, "nvmlDeviceGetEnforcedPowerLimit")
        return 700_000

    def nvmlDeviceGetClockInfo(self, handle: int, _clock: int) -> int:
        self._card(handle, "nvmlDeviceGetClockInfo")
        return 1980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._card(handle, "nvmlDeviceGetCurrentClocksEventReasons").throttle

    def nvmlDeviceGetTotalEccErrors(self, handle: int, _kind: int, _counter: int) -> int:
        return self._card(handle, "nvmlDeviceGetTotalEccErrors").ecc

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Process]:
        return self._card(handle, "nvmlDeviceGetComputeRunningProcesses").processes

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlEventSetFree(self, _events: str) -> None:
        return

    def nvmlDeviceRegisterEvents(self, handle: int, _kinds: int, _events: str) -> None:
        self._card(handle, "nvmlDeviceRegisterEvents")

    def nvmlEventSetWait_v2(self, _events: str, _timeout_ms: int) -> Event:
        if not self.xids:
            raise NVMLError(10)
        return self.xids.pop(0)

    def _card(self, handle: int, function: str) -> Card:
        self.calls.append(function)
        if self.driver_gone:
            raise NVMLError(9)
        card = self.cards[handle]
        if error := card.fails.get(function, card.fails.get("*", 0)):
            raise NVMLError(error)
        return card

"""Reads NVIDIA GPUs through NVML: utilization, memory and its users, throttling, errors, lost GPUs.

Only this file uses pynvml. A missing driver or library is a normal condition, reported with a reason. A reading
that a card does not support is None, not 0. A GPU that fell off the bus is reported as lost, not omitted.
NVML's "utilization" is the fraction of time that any kernel was running, not how much of the GPU was in use.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from supervisor.sources.periodic import PeriodicSampler

# nvml.h: NVML_ERROR_… codes about one card, and about all of NVML.
_LOST = frozenset({15, 16})  # GPU_IS_LOST, RESET_REQUIRED
# UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, version mismatch.
_NVML_GONE = frozenset({1, 9, 12, 18})
_TIMEOUT = 10
# nvmlClocksEventReason… bits (…ThrottleReason… before driver 535) that mean a clock below the requested one.
_THROTTLE = (
    (0x04, "power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "power_brake"),
)
_XID_EVENT = 0x8
_RETRY_S = 30.0
_MAX_XIDS_A_ROUND = 16

log = logging.getLogger("stoker.gpu")


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU's constant properties. `index` follows NVML's PCI order; CUDA's order may differ, so match by `uuid`."""

    index: int
    uuid: str | None
    name: str | None
    memory_total_bytes: int | None
    mig: bool = False


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on a GPU. `pid` is the host's pid, which differs from the one inside a container."""

    pid: int
    memory_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU, taken at wall time `t`. A field is None if the card or driver does not report it.

    Ratios are 0–1. `memory_util_ratio` is the fraction of time during which memory was being read or written. `throttle`
    lists the active reasons for running slower than requested. `ecc_uncorrected` counts errors since the driver was loaded.
    If `lost` is true, the GPU no longer responds and all other readings are None.
    """

    t: float
    device: GpuDevice
    lost: bool = False
    util_ratio: float | None = None
    memory_util_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_hz: float | None = None
    throttle: tuple[str, ...] | None = None
    ecc_uncorrected: int | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def throttle_bits(self) -> int | None:
        """The `throttle` reasons as NVML's own bits, or 0 if there are none. Omits the power cap, which is normal under load."""
        if self.throttle is None:
            return None
        return sum(bit for bit, name in _THROTTLE if name in self.throttle and name != "power_cap")


@dataclass(frozen=True, slots=True)
class GpuSurvey:
    """An NVML reading taken before a run. `cuda` is the latest CUDA version that the driver supports, such as (12, 8)."""

    samples: tuple[GpuSample, ...]
    driver: str | None
    cuda: tuple[int, int] | None


class GpuNoteCode(StrEnum):
    """Kinds of GPU notes. Each is reported once."""

    ABSENT = "gpu_absent"  # no driver, library or card: a normal state
    LOST = "gpu_lost"
    BACK = "gpu_back"
    XID = "gpu_xid"
    ECC = "gpu_ecc"
    NVML_FAILED = "nvml_failed"


@dataclass(frozen=True, slots=True)
class GpuNote:
    """A GPU event. `index` is None if the event concerns all GPUs. `xid` is set only if `code` is XID."""

    t: float
    code: GpuNoteCode
    text: str
    index: int | None = None
    xid: int | None = None


class NvmlUnavailableError(Exception):
    """Raised when NVML is unusable. The message is a one-line reason."""


def load_nvml() -> Any:
    """Import pynvml. The return type is Any because pynvml has no type hints.

    Raises:
        NvmlUnavailableError: pynvml is not installed.
    """
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailableError(f"nvidia-ml-py is not installed ({error})") from None
    return pynvml


class GpuReader:
    """Reads all GPUs on demand. Not thread-safe.

    Args:
        on_note: called with each note.

    Raises:
        NvmlUnavailableError: there is no library, driver or card.
    """

    def __init__(self, on_note: Callable[[GpuNote], None]) -> None:
        self._on_note = on_note
        self._nvml = load_nvml()
        self._lost: set[int] = set()  # in this round
        self._reported_lost: set[int] = set()
        self._ecc: dict[int, int] = {}
        self._events: Any = None
        self._open = True
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise NvmlUnavailableError(f"NVML: {error}") from None
        if count == 0:
            self.close()
            raise NvmlUnavailableError("the NVIDIA driver sees no GPU")
        self._handles: list[Any] = [None] * count
        self.devices: tuple[GpuDevice, ...] = tuple(self._find(index) for index in range(count))
        self._listen()

    def read(self) -> list[GpuSample]:
        """Return one sample per GPU, in index order.

        Raises:
            NvmlUnavailableError: the driver is gone (unloaded or updated).
        """
        self._receive_xids()
        return [self._sample(device) for device in self.devices]

    def survey(self) -> GpuSurvey:
        """Return a single reading of all GPUs, along with their constant properties.

        Raises:
            NvmlUnavailableError: the driver is gone.
        """
        cuda = self._ask(None, "nvmlSystemGetCudaDriverVersion_v2")
        return GpuSurvey(
            samples=tuple(self.read()),
            driver=self._ask(None, "nvmlSystemGetDriverVersion"),
            cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        )

    def close(self) -> None:
        """Release NVML."""
        if not self._open:
            return
        self._open = False
        if self._events is not None:
            self._ask(None, "nvmlEventSetFree", self._events)
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            log.debug("nvmlShutdown failed; the driver is gone")

    def _ask(self, index: int | None, function: str, *args: Any) -> Any:
        """Call an NVML function and return its result, or None if it fails. Most calls go through this method.

        Raises:
            NvmlUnavailableError: NVML as a whole no longer works.
        """
        try:
            return getattr(self._nvml, function)(*args)
        except AttributeError:
            return None  # the binding is older than the function
        except self._nvml.NVMLError as error:
            if error.value in _LOST and index is not None:
                self._lose(index)
            elif error.value in _NVML_GONE and self._open:
                raise NvmlUnavailableError(f"NVML: {error}") from None
            return None

    def _find(self, index: int) -> GpuDevice:
        handle = self._ask(index, "nvmlDeviceGetHandleByIndex", index)
        self._handles[index] = handle
        if handle is None:
            return GpuDevice(index, None, None, None)
        memory = self._ask(index, "nvmlDeviceGetMemoryInfo", handle)
        modes = self._ask(index, "nvmlDeviceGetMigMode", handle)
        return GpuDevice(
            index=index,
            uuid=self._ask(index, "nvmlDeviceGetUUID", handle),
            name=self._ask(index, "nvmlDeviceGetName", handle),
            memory_total_bytes=memory.total if memory is not None else None,
            mig=modes is not None and bool(modes[0]),
        )

    def _sample(self, device: GpuDevice) -> GpuSample:
        index = device.index
        self._lost.discard(index)
        if self._handles[index] is None:
            self._handles[index] = self._ask(index, "nvmlDeviceGetHandleByIndex", index)
        handle = self._handles[index]
        t = time.time()
        if handle is None:
            # The card is lost, or hidden from us (a container's cgroup). Only a lost card is evidence.
            return GpuSample(t, device, lost=index in self._lost)
        memory = self._ask(index, "nvmlDeviceGetMemoryInfo", handle)
        if index in self._lost:
            return GpuSample(t, device, lost=True)
        rates = self._ask(index, "nvmlDeviceGetUtilizationRates", handle)
        power = self._ask(index, "nvmlDeviceGetPowerUsage", handle)
        limit = self._ask(index, "nvmlDeviceGetEnforcedPowerLimit", handle)
        clock = self._ask(index, "nvmlDeviceGetClockInfo", handle, 1)  # NVML_CLOCK_SM
        reasons = self._ask(index, "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            reasons = self._ask(index, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        ecc = self._ask(index, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)  # uncorrected, volatile
        processes = self._ask(index, "nvmlDeviceGetComputeRunningProcesses", handle)
        if index in self._lost:
            return GpuSample(t, device, lost=True)
        if index in self._reported_lost:
            self._reported_lost.discard(index)
            self._on_note(GpuNote(t, GpuNoteCode.BACK, f"GPU {index} answers again", index))
        self._watch_ecc(t, index, ecc)
        return GpuSample(
            t=t,
            device=device,
            util_ratio=rates.gpu / 100 if rates is not None else None,
            memory_util_ratio=rates.memory / 100 if rates is not None else None,
            memory_used_bytes=memory.used if memory is not None else None,
            memory_total_bytes=memory.total if memory is not None else device.memory_total_bytes,
            temperature_celsius=self._ask(index, "nvmlDeviceGetTemperature", handle, 0),
            power_watts=power / 1000 if power is not None else None,
            power_limit_watts=limit / 1000 if limit is not None else None,
            sm_clock_hz=clock * 1e6 if clock is not None else None,
            throttle=tuple(name for bit, name in _THROTTLE if reasons & bit) if reasons is not None else None,
            ecc_uncorrected=ecc,
            processes=tuple(GpuProcess(p.pid, p.usedGpuMemory) for p in processes)
            if processes is not None
            else None,
        )

    def _lose(self, index: int) -> None:
        self._lost.add(index)
        if index not in self._reported_lost:
            self._reported_lost.add(index)
            self._on_note(
                GpuNote(
                    time.time(),
                    GpuNoteCode.LOST,
                    f"GPU {index} is lost: it does not answer the driver",
                    index,
                )
            )

    def _watch_ecc(self, t: float, index: int, errors: int | None) -> None:
        if errors is None:
            return
        before = self._ecc.setdefault(index, errors)
        if errors > before:
            self._ecc[index] = errors
            text = f"GPU {index}: {errors - before} new uncorrected ECC errors"
            self._on_note(GpuNote(t, GpuNoteCode.ECC, text, index))

    def _listen(self) -> None:
        """Subscribe to Xid events. If they are not supported, none arrive."""
        self._events = self._ask(None, "nvmlEventSetCreate")
        if self._events is None:
            return
        for index, handle in enumerate(self._handles):
            if handle is not None:
                self._ask(index, "nvmlDeviceRegisterEvents", handle, _XID_EVENT, self._events)

    def _receive_xids(self) -> None:
        if self._events is None:
            return
        for _ in range(_MAX_XIDS_A_ROUND):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except (self._nvml.NVMLError, AttributeError) as error:
                if getattr(error, "value", None) != _TIMEOUT:
                    self._events = None
                return
            # Match by handle, because a card that fell off the bus (Xid 79) no longer reports its UUID.
            address = _address(event.device)
            index = next(
                (at for at, handle in enumerate(self._handles) if address and _address(handle) == address),
                None,
            )
            number = int(event.eventData)
            where = f"GPU {index}" if index is not None else "a GPU"
            self._on_note(GpuNote(time.time(), GpuNoteCode.XID, f"{where}: Xid {number}", index, number))


class GpuSampler(PeriodicSampler):
    """A thread that reads all GPUs every `interval_s` and passes the samples on.

    Without NVML, it reports a single note (ABSENT) and exits. If the driver goes away later, it reports that
    once and retries every half minute.
    """

    def __init__(
        self,
        stop: threading.Event,
        on_samples: Callable[[Sequence[GpuSample]], None],
        *,
        on_note: Callable[[GpuNote], None],
        interval_s: float,
        retry_s: float = _RETRY_S,
    ) -> None:
        super().__init__("stoker-gpu", stop)
        self._on_samples = on_samples
        self._on_note = on_note
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._reader: GpuReader | None = None
        self._had_one = False

    def sample(self) -> float | None:
        """Read all GPUs once. Return the seconds until the next reading, or None if NVML is missing."""
        try:
            if self._reader is None:
                self._reader = GpuReader(self._on_note)
                self._had_one = True
            self._on_samples(self._reader.read())
        except NvmlUnavailableError as error:
            if self._reader is not None:
                self._on_note(GpuNote(time.time(), GpuNoteCode.NVML_FAILED, str(error)))
                self.close()
            elif not self._had_one:
                self._on_note(GpuNote(time.time(), GpuNoteCode.ABSENT, str(error)))
                return None
            return self._retry_s
        return self._interval_s

    def close(self) -> None:
        """Release NVML."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def survey_gpus() -> GpuSurvey | str:
    """Survey all GPUs on this machine. If there are none, return a one-line reason instead."""
    try:
        reader = GpuReader(lambda _note: None)
        try:
            return reader.survey()
        finally:
            reader.close()
    except NvmlUnavailableError as error:
        return str(error)


def probe_gpus() -> tuple[GpuDevice, ...]:
    """Return the GPUs on this machine."""
    found = survey_gpus()
    return () if isinstance(found, str) else tuple(sample.device for sample in found.samples)


def visible_devices(value: str | None, devices: Sequence[GpuDevice]) -> tuple[GpuDevice, ...] | None:
    """Return the devices that CUDA_VISIBLE_DEVICES exposes to a process, in the order it lists them.

    Return None if they are unknown (a MIG slice). Numbers are NVML indices, which match CUDA's order only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID or identical cards. As in CUDA, the list stops at the first bad entry, and a
    value that lists a GPU twice exposes none (torch/cuda/__init__.py, _parse_visible_devices).
    """
    if value is None:
        return tuple(devices)
    found: list[GpuDevice] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.startswith("MIG"):
            return None
        if entry.isdigit():
            match = [device for device in devices if device.index == int(entry)]
        else:
            match = [d for d in devices if entry.startswith("GPU-") and (d.uuid or "").startswith(entry)]
        if len(match) != 1:
            break
        if match[0] in found:
            return ()
        found += match
    return tuple(found)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value if handle is not None else None

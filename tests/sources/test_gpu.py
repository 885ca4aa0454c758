"""GPUs by NVML, on a fake of it (no driver here): readings, absences, losses, events."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from supervisor.keeper.monitoring.sensors import gpu_values
from supervisor.sources.gpu import (
    GpuNote,
    GpuNoteCode,
    GpuReader,
    GpuSample,
    GpuSampler,
    NvmlUnavailableError,
    load_nvml,
    probe_gpus,
    visible_devices,
)
from tests.conftest import wait_until
from tests.fakes.nvml import GIB, Card, Event, FakeNvml, Process

LOST, NOT_SUPPORTED, NO_PERMISSION, LIBRARY_NOT_FOUND = 15, 3, 4, 12


def two_cards() -> FakeNvml:
    return FakeNvml([Card("GPU-aaaa"), Card("GPU-bbbb")])


def reader_of(fake: FakeNvml) -> tuple[GpuReader, list[GpuNote]]:
    notes: list[GpuNote] = []
    return GpuReader(notes.append, fake.load), notes


def test_a_reading_is_in_base_units() -> None:
    fake = two_cards()
    fake.cards[1].used, fake.cards[1].util, fake.cards[1].throttle = 20 * GIB, 93, 0x20 | 0x04
    fake.cards[1].processes = [Process(71, 19 * GIB), Process(72, None)]
    reader, notes = reader_of(fake)
    first, second = reader.read()
    assert [device.uuid for device in reader.devices] == ["GPU-aaaa", "GPU-bbbb"]
    assert first.device.name == "Fake H100"
    assert first.device.pci_bus_id == "00000000:00:00.0"
    assert (second.util_ratio, second.memory_used_bytes, second.memory_total_bytes) == (
        0.93,
        20 * GIB,
        80 * GIB,
    )
    assert (second.power_watts, second.power_limit_watts, second.sm_clock_hz) == (300.0, 700.0, 1.98e9)
    assert second.throttle == ("power_cap", "sw_thermal")
    assert second.processes is not None
    assert [(p.pid, p.memory_used_bytes) for p in second.processes] == [(71, 19 * GIB), (72, None)]
    kept = gpu_values(second)
    assert (kept["util_ratio"], kept["power_w"], kept["sm_clock_mhz"]) == (0.93, 300.0, 1980.0)
    assert kept["throttle"] == 0x20, "a power cap is normal under load"
    assert notes == []
    reader.close()
    reader.close()
    assert fake.open == 0


def test_a_reading_that_the_card_lacks_is_none_and_not_zero() -> None:
    fake = FakeNvml(
        [
            Card(
                "GPU-aaaa",
                fails=dict.fromkeys(
                    [
                        "nvmlDeviceGetUtilizationRates",
                        "nvmlDeviceGetPowerUsage",
                        "nvmlDeviceGetTotalEccErrors",
                        "nvmlDeviceGetCurrentClocksEventReasons",
                        "nvmlDeviceGetComputeRunningProcesses",
                    ],
                    NOT_SUPPORTED,
                ),
            )
        ]
    )
    reader, notes = reader_of(fake)
    (sample,) = reader.read()
    assert not sample.lost
    assert sample.memory_used_bytes == 0
    assert sample.util_ratio is None
    assert sample.power_watts is None
    assert sample.ecc_uncorrected is None
    assert sample.throttle is None
    assert sample.processes is None
    assert notes == []


@pytest.mark.fault("recovery", "a GPU falls off the bus and comes back", "both are said once")
def test_a_lost_gpu_is_a_fact_said_once_and_so_is_its_return() -> None:
    fake = two_cards()
    reader, notes = reader_of(fake)
    reader.read()
    fake.cards[1].fails["*"] = LOST
    for _ in range(3):
        first, second = reader.read()
        assert not first.lost
        assert second.lost
        assert second.device.uuid == "GPU-bbbb"
        assert second.util_ratio is None
    assert [(note.code, note.index) for note in notes] == [(GpuNoteCode.LOST, 1)]
    fake.cards[1].fails.clear()
    assert not reader.read()[1].lost
    assert [note.code for note in notes] == [GpuNoteCode.LOST, GpuNoteCode.BACK]
    # Lost in the middle of a round.
    fake.cards[0].fails["nvmlDeviceGetPowerUsage"] = LOST
    assert reader.read()[0].lost
    assert notes[-1].index == 0


def test_a_gpu_hidden_by_the_container_is_not_lost() -> None:
    fake = two_cards()
    fake.cards[0].fails["nvmlDeviceGetHandleByIndex"] = NO_PERMISSION
    reader, notes = reader_of(fake)
    first, second = reader.read()
    assert not first.lost
    assert first.memory_used_bytes is None
    assert second.memory_used_bytes == 0
    assert notes == []


def test_xid_and_ecc_errors_are_notes() -> None:
    fake = two_cards()
    reader, notes = reader_of(fake)
    reader.read()
    fake.xids += [Event(1, 79), Event(0, 48)]
    fake.cards[0].ecc = 3
    reader.read()
    assert [(n.code, n.index, n.xid) for n in notes] == [
        (GpuNoteCode.XID, 1, 79),
        (GpuNoteCode.XID, 0, 48),
        (GpuNoteCode.ECC, 0, None),
    ]
    reader.read()
    assert len(notes) == 3


def test_absence_is_said_once_with_its_reason_and_the_thread_ends() -> None:
    fake = two_cards()
    fake.init_error = LIBRARY_NOT_FOUND
    notes: list[GpuNote] = []
    stop = threading.Event()
    sampler = GpuSampler(stop, lambda _: None, on_note=notes.append, interval_s=1.0, load=fake.load)
    sampler.start()
    assert sampler.join(5)
    assert [note.code for note in notes] == [GpuNoteCode.ABSENT]
    assert "NVML" in notes[0].text
    assert probe_gpus(fake.load) == ((), notes[0].text)
    with pytest.raises(NvmlUnavailableError, match="no GPU"):
        GpuReader(notes.append, FakeNvml([]).load)


def test_the_real_library_without_a_driver_says_why() -> None:
    devices, why = probe_gpus(load_nvml)
    assert bool(devices) != bool(why)


@pytest.mark.fault("recovery", "the NVIDIA driver goes away", "said, and tried again")
def test_a_driver_that_goes_away_is_said_and_tried_again() -> None:
    fake = two_cards()
    rounds: list[Sequence[GpuSample]] = []
    notes: list[GpuNote] = []
    stop = threading.Event()
    sampler = GpuSampler(
        stop, rounds.append, on_note=notes.append, interval_s=0.01, retry_s=0.01, load=fake.load
    )
    sampler.start()
    try:
        assert wait_until(lambda: len(rounds) > 2, 5)
        fake.driver_gone = True
        assert wait_until(lambda: [note.code for note in notes] == [GpuNoteCode.NVML_FAILED], 5)
        fake.driver_gone = False
        seen = len(rounds)
        assert wait_until(lambda: len(rounds) > seen + 2, 5)
    finally:
        stop.set()
        assert sampler.join(5)


def test_visible_devices() -> None:
    devices = reader_of(two_cards())[0].devices
    first, second = devices
    assert visible_devices(None, devices) == devices
    assert visible_devices("", devices) == ()
    assert visible_devices("1,0", devices) == (second, first)
    assert visible_devices("GPU-b", devices) == (second,)
    assert visible_devices("0,-1,1", devices) == (first,)
    assert visible_devices("GPU-", devices) == ()
    assert visible_devices("MIG-1/2/3", devices) is None

"""GPUs by NVML, on a stand-in for its library (no driver here): readings, absences, losses, events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from supervisor.keeper.monitoring.collector import gpu_values
from supervisor.sources.gpu import (
    GpuDevice,
    GpuNote,
    GpuNoteCode,
    GpuProcess,
    GpuReader,
    GpuSample,
    GpuSampler,
    GpuSurvey,
    NvmlUnavailableError,
    load_nvml,
    probe_gpus,
    survey_gpus,
    visible_devices,
)
from tests.conftest import wait_until
from tests.fakes.nvml import ALL_FUNCTIONS, GIB, Card, StandIn

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LOST = 3, 4, 9, 15


@pytest.fixture
def two_cards(nvml: StandIn) -> StandIn:
    nvml.show(Card("GPU-aaaa"), Card("GPU-bbbb"))
    return nvml


@pytest.fixture
def notes() -> list[GpuNote]:
    return []


@pytest.fixture
def reader(two_cards: StandIn, notes: list[GpuNote]) -> Iterator[GpuReader]:
    assert two_cards.cards
    made = GpuReader(notes.append)
    yield made
    made.close()


def test_a_reading_is_in_base_units(two_cards: StandIn, reader: GpuReader, notes: list[GpuNote]) -> None:
    card = two_cards.cards[1]
    card.used, card.util, card.throttle = 20 * GIB, 93, 0x20 | 0x04
    card.processes = [(71, 19 * GIB), (72, None)]
    two_cards.show()
    first, second = reader.read()
    assert [device.uuid for device in reader.devices] == ["GPU-aaaa", "GPU-bbbb"]
    assert first.throttle == ()
    assert second.t == pytest.approx(time.time(), abs=60)
    assert second == GpuSample(
        t=second.t,
        device=GpuDevice(1, "GPU-bbbb", "NVIDIA H100 80GB HBM3", 80 * GIB, mig=False),
        util_ratio=0.93,
        memory_util_ratio=0.46,
        memory_used_bytes=20 * GIB,
        memory_total_bytes=80 * GIB,
        temperature_celsius=61,
        power_watts=300.0,
        power_limit_watts=700.0,
        sm_clock_hz=1.98e9,
        throttle=("power_cap", "sw_thermal"),
        ecc_uncorrected=0,
        processes=(GpuProcess(71, 19 * GIB), GpuProcess(72, None)),
    )
    kept = gpu_values(second)
    assert kept["memory_util_ratio"] == 0.46, "the stand-in's memory is half as busy, in whole percents"
    assert (kept["util_ratio"], kept["power_w"], kept["sm_clock_mhz"]) == (0.93, 300.0, 1980.0)
    assert kept["throttle"] == 0x20, "a power cap is normal under load"
    assert notes == []
    card.throttle, card.fails = 0x08 | 0x10 | 0x40 | 0x80, {"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED}
    two_cards.show()
    again = reader.read()[1]
    assert again.throttle == ("hw_slowdown", "sync_boost", "hw_thermal", "power_brake")
    assert (again.memory_used_bytes, again.memory_total_bytes) == (None, 80 * GIB)
    reader.close()
    reader.close()
    binding = load_nvml()
    with pytest.raises(binding.NVMLError, match="Uninitialized"):
        binding.nvmlDeviceGetCount()


def test_a_reading_that_the_card_lacks_is_none_and_not_zero(nvml: StandIn) -> None:
    """As a MIG slice's card, or a GeForce: N/A."""
    lacking = (
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetCurrentClocks",
        "nvmlDeviceGetComputeRunningProcesses",
    )
    nvml.show(Card("GPU-aaaa", fails=dict.fromkeys(lacking, NOT_SUPPORTED)))
    reader = GpuReader(lambda note: pytest.fail(note.text))
    (sample,) = reader.read()
    reader.close()
    assert not sample.lost
    assert sample.memory_used_bytes == 0
    assert sample.util_ratio is None
    assert sample.power_watts is None
    assert sample.ecc_uncorrected is None
    assert sample.throttle is None
    assert sample.processes is None


@pytest.mark.fault("recovery", "a GPU falls off the bus and comes back", "both are reported once")
def test_a_lost_gpu_is_a_fact_said_once_and_so_is_its_return(
    two_cards: StandIn, reader: GpuReader, notes: list[GpuNote]
) -> None:
    reader.read()
    two_cards.cards[1].fails[ALL_FUNCTIONS] = LOST
    two_cards.show()
    for _ in range(3):
        first, second = reader.read()
        assert not first.lost
        assert second.lost
        assert second.device.uuid == "GPU-bbbb"
        assert second.util_ratio is None
    assert [(note.code, note.text, note.index) for note in notes] == [
        (GpuNoteCode.LOST, "GPU 1 is lost: it does not answer the driver", 1)
    ]
    two_cards.cards[1].fails.clear()
    two_cards.show()
    assert not reader.read()[1].lost
    assert [note.code for note in notes] == [GpuNoteCode.LOST, GpuNoteCode.BACK]
    assert (notes[-1].text, notes[-1].index) == ("GPU 1 answers again", 1)
    # Lost in the middle of a round.
    two_cards.cards[0].fails["nvmlDeviceGetPowerUsage"] = LOST
    two_cards.show()
    assert reader.read()[0].lost
    assert notes[-1].index == 0


def test_a_gpu_hidden_by_the_container_is_not_lost(nvml: StandIn) -> None:
    nvml.show(Card("GPU-aaaa", fails={"nvmlDeviceGetHandleByIndex": NO_PERMISSION}), Card("GPU-bbbb"))
    reader = GpuReader(lambda note: pytest.fail(note.text))
    first, second = reader.read()
    reader.close()
    assert not first.lost
    assert first.memory_used_bytes is None
    assert second.memory_used_bytes == 0


def test_xid_and_ecc_errors_are_notes(two_cards: StandIn, reader: GpuReader, notes: list[GpuNote]) -> None:
    reader.read()
    two_cards.xids += [(1, 79), (0, 48)]
    two_cards.cards[0].ecc = 3
    two_cards.show()
    reader.read()
    assert [(n.code, n.text, n.index, n.xid) for n in notes] == [
        (GpuNoteCode.XID, "GPU 1: Xid 79", 1, 79),
        (GpuNoteCode.XID, "GPU 0: Xid 48", 0, 48),
        (GpuNoteCode.ECC, "GPU 0: 3 new uncorrected ECC errors", 0, None),
    ]
    reader.read()
    assert len(notes) == 3
    two_cards.cards[0].ecc = 5
    two_cards.show()
    reader.read()
    assert [n.text for n in notes[3:]] == ["GPU 0: 2 new uncorrected ECC errors"]


def test_a_survey_reads_each_gpu_and_the_driver_once(nvml: StandIn) -> None:
    nvml.show(Card("GPU-aaaa", mig=True), Card("GPU-bbbb"))
    survey = survey_gpus()
    assert isinstance(survey, GpuSurvey)
    assert (survey.driver, survey.cuda) == ("570.86.15", (12, 8))
    assert [sample.memory_total_bytes for sample in survey.samples] == [80 * GIB, 80 * GIB]
    name = "NVIDIA H100 80GB HBM3"
    assert probe_gpus() == (
        GpuDevice(0, "GPU-aaaa", name, 80 * GIB, mig=True),
        GpuDevice(1, "GPU-bbbb", name, 80 * GIB, mig=False),
    )


def test_absence_is_said_once_with_its_reason_and_the_thread_ends(nvml: StandIn) -> None:
    nvml.init_code = DRIVER_NOT_LOADED
    nvml.show()
    notes: list[GpuNote] = []
    stop = threading.Event()
    sampler = GpuSampler(stop, lambda _: None, on_note=notes.append, interval_s=1.0)
    sampler.start()
    assert sampler.join(5)
    assert [note.code for note in notes] == [GpuNoteCode.ABSENT]
    assert "NVML" in notes[0].text
    assert probe_gpus() == ()
    nvml.init_code = 0
    nvml.show()
    with pytest.raises(NvmlUnavailableError, match="no GPU"):
        GpuReader(notes.append)


@pytest.mark.fault("recovery", "the NVIDIA driver goes away", "reported, and tried again")
def test_a_driver_that_goes_away_is_said_and_tried_again(two_cards: StandIn) -> None:
    rounds: list[Sequence[GpuSample]] = []
    notes: list[GpuNote] = []
    stop = threading.Event()
    sampler = GpuSampler(stop, rounds.append, on_note=notes.append, interval_s=0.01, retry_s=0.01)
    sampler.start()
    try:
        assert wait_until(lambda: len(rounds) > 2, 5)
        two_cards.gone = True
        two_cards.show()
        assert wait_until(lambda: [note.code for note in notes] == [GpuNoteCode.NVML_FAILED], 5)
        two_cards.gone = False
        two_cards.show()
        seen = len(rounds)
        assert wait_until(lambda: len(rounds) > seen + 2, 5)
    finally:
        stop.set()
        assert sampler.join(5)


def test_visible_devices(reader: GpuReader) -> None:
    devices = reader.devices
    first, second = devices
    assert visible_devices(None, devices) == devices
    assert visible_devices("", devices) == ()
    assert visible_devices("1,0", devices) == (second, first)
    assert visible_devices("0, 1,0", devices) == ()
    assert visible_devices("GPU-b", devices) == (second,)
    assert visible_devices("0,-1,1", devices) == (first,)
    assert visible_devices("GPU-", devices) == ()
    assert visible_devices("MIG-1/2/3", devices) is None

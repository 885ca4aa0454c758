"""GPUs on a real run's screen in a real terminal: NVML's own library answers, in C (tests/fakes/nvml.c)."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.fakes.nvml import ALL_FUNCTIONS, GIB, Card, StandIn
from tests.integration.harness import stoker
from tests.views.tui.test_tmux import tmux, whole

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt install tmux"),
]
NOT_SUPPORTED, LOST = 3, 15
JOB = """
import time
for step in range(100_000):
    print(f"step {step} loss {3 / (step + 1):.3f}", flush=True)
    time.sleep(0.05)
"""


def row(screen: str, gpu: int) -> str:
    """The line of one card in the devices pane."""
    found = re.search(rf"│(GPU {gpu} .*?)│", screen)
    return found[1] if found else ""


def test_cards_that_change_say_little_or_fall_off_the_bus(nvml: StandIn, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    nvml.show(
        Card("GPU-aaaa", util=87, used=20 * GIB),
        Card("GPU-bbbb", util=12, used=3 * GIB),
        # A card in MIG mode has memory and no utilization of its own (nvml.h: NOT_SUPPORTED).
        Card("GPU-cccc", name="NVIDIA A100-SXM4-40GB", mig=True, total=40 * GIB, used=8 * GIB, fails={"nvmlDeviceGetUtilizationRates": NOT_SUPPORTED}),
    )  # fmt: skip
    with tmux(tmp_path, (140, 44), nvml.env) as pane:
        pane.type(f"{sys.executable} -m supervisor run -- python job.py")
        pane.until(lambda: "87 %" in row(pane.screen(), 0), "its utilization")
        screen = whole(pane.wait_for("20.0/80 GiB", "3.0/80 GiB", "8.0/40 GiB"))
        assert "12 %" in row(screen, 1)
        assert re.search(r"– %|–%", row(screen, 2)), "unknown is not zero"

        first, second, _ = nvml.cards
        first.util, first.used = 11, 70 * GIB
        second.fails = {ALL_FUNCTIONS: LOST}
        nvml.xids.append((1, 79))
        nvml.show()
        pane.until(lambda: "11 %" in row(pane.screen(), 0), "its new utilization")
        pane.until(lambda: "lost" in row(pane.screen(), 1), "the lost card")
        screen = whole(pane.wait_for("70.0/80 GiB", "GPU 1 is lost", "8.0/40 GiB"))
        assert "3.0/80" not in row(screen, 1), "what was read before is no reading"

        second.fails = {}
        nvml.show()
        pane.until(lambda: "12 %" in row(pane.screen(), 1), "the card that came back")
        pane.keys("q")
        pane.wait_for("stoker attach")
    stopped = stoker("stop", "--now", cwd=tmp_path)
    assert stopped.code == 0, stopped.err

"""Two ranks behind torchrun, and compiled models, with the instrumentation and without it."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import pytest

from tests.instrument.child import PACKAGE, SCRIPTS, run, without_ours
from tests.tiers import first

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(("backend", "more"), first(1, [("aot_eager", "more"), ("inductor", "less")]))
def test_compiled_models_keep_losses_graphs_and_breaks(backend: str, more: str, tmp_path: Path) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor compiles C++ for a CPU: g++ is not here")
    pair = [
        run(
            [SCRIPTS / "compiled.py", backend, more],
            tmp_path / str(measured),
            measured=measured,
            timeout_s=280,
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
            TORCH_LOGS="recompiles,graph_breaks",
        )
        for measured in (False, True)
    ]
    without, with_it = pair
    assert without.code == 0, without.err
    assert with_it.out.splitlines() == without.out.splitlines()
    assert with_it.err.count("Recompiling function") == without.err.count("Recompiling function") > 0
    assert str(PACKAGE) not in with_it.err, "dynamo neither cuts nor compiles anything of ours"
    assert with_it.of("note") == []
    assert len({record["pid"] for record in with_it.of("phase")}) == 1, "no compile worker reports"
    assert with_it.of("exit")[0]["step"] >= 14


def test_two_ranks_train_and_end_as_they_would_have(tmp_path: Path) -> None:
    pair = []
    for measured in (False, True):
        folder = tmp_path / str(measured)
        command: list[str | Path] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command.append(SCRIPTS / "ranks.py")
        pair.append((folder, run(command, folder, measured=measured)))
    (one, without), (other, with_it) = pair
    assert (with_it.code, without.code) == (0, 0)
    printed = [
        sorted(line for line in ended.out.splitlines() if not line.startswith("[Gloo]"))  # torch 2.8's own
        for ended in (without, with_it)
    ]
    assert printed[1] == printed[0]
    assert len(printed[0]) == 6, without.err
    assert warnings(with_it.err) == warnings(without.err)
    for name in ["ddp.pt", "sharded/__0_0.distcp", "sharded/__1_0.distcp"]:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    phases = with_it.of("phase")
    assert sorted(record["rank"] for record in phases) == [0, 1], "two ranks, and no agent"
    assert {(record["world_size"], record["backend"]) for record in phases} == {(2, "gloo")}
    assert sorted((record["rank"], record["reason"]) for record in with_it.of("exit")) == [
        (0, "done"),
        (1, "done"),
    ]
    assert {record["path"] for record in with_it.of("saved")} == {
        str(other / "ddp.pt"),
        str(other / "sharded"),
    }
    came_back = [record for record in with_it.of("loaded") if record.get("optimizer_state")]
    assert {(record["rank"], record["path"], record["optimizer_step"]) for record in came_back} >= {
        (0, str(other / "sharded"), 6),
        (1, str(other / "sharded"), 6),
    }
    assert with_it.of("note") == []


def warnings(text: str) -> list[str]:
    """What was warned of, by kind and file."""
    return sorted(re.findall(r"(\S+\.py:\d+): (\w*Warning)", without_ours(text)))


@pytest.mark.parametrize(
    ("way", "slept_s"), first(1, [("ddp", 0.05), ("buffers", 0.05), ("by_hand", 0.05), ("accumulated", 0.1)])
)
def test_a_slow_rank_computes_longer_and_the_other_waits(way: str, slept_s: float, tmp_path: Path) -> None:
    command: list[str | Path] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*command, SCRIPTS / "slow.py", way], tmp_path)
    assert (done.code, done.of("note")) == (0, []), done.err
    times = done.of("timing")
    fast, slow = ([one for one in times if one["rank"] == rank and one["step"] > 4] for rank in (0, 1))
    assert fast, "one a second, and the run takes longer"
    assert slow
    quickest = {rank: min(one["compute_s"] for one in of) for rank, of in (("fast", fast), ("slow", slow))}
    assert quickest["slow"] >= slept_s
    assert quickest["slow"] - quickest["fast"] == pytest.approx(slept_s, rel=0.5)
    waits = [[one["collective_wait_s"] for one in of if "collective_wait_s" in one] for of in (fast, slow)]
    assert min(waits[0]) > slept_s / 3 > min(waits[1])
    for rank in (0, 1):
        at = [one["t_mono"] for one in times if one["rank"] == rank]
        assert all(later - earlier >= 0.99 for earlier, later in itertools.pairwise(at))


@pytest.mark.thorough
def test_sharded_parameters_are_not_timed(tmp_path: Path) -> None:
    command: list[str | Path] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*command, SCRIPTS / "slow.py", "fsdp2"], tmp_path)
    assert (done.code, done.of("note"), done.of("timing")) == (0, [], []), done.err
    assert done.of("exit")[0]["step"] == 30

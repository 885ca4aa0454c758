import pwd

import pytest

from supervisor.diagnosis.evidence import RunValues
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.planning import attempt_evidence as present_room
from supervisor.keeper.planning.attempt_evidence import other_gpu_users, with_machine
from supervisor.preflight.network import is_free
from tests.fakes.nvml import GIB, Card, StandIn


def job(nproc: int = 2, env: tuple[tuple[str, str], ...] = (), node_rank: int = 0) -> JobSpec:
    return JobSpec(
        name="x",
        entry_kind=EntryKind.SCRIPT,
        entry="train.py",
        nproc_per_node=nproc,
        env=env,
        node_rank=node_rank,
    )


@pytest.fixture
def three_cards(nvml: StandIn) -> StandIn:
    # A pid beyond pid_max lives nowhere; pid 1 is root's.
    nvml.show(
        Card("GPU-a", processes=[(41, 2 * GIB), (1, 5 * GIB)]),
        Card("GPU-b", processes=[(1 << 30, None)]),
        Card("GPU-c", processes=[(1, GIB)]),
    )
    return nvml


def test_who_else_holds_the_runs_gpus(three_cards: StandIn) -> None:
    own = frozenset((41,))
    root = pwd.getpwuid(0).pw_name
    expected = (f"process 1 of {root} (5.0 GiB on GPU 0)", f"process {1 << 30} (on GPU 1)")
    assert other_gpu_users(own, job(), {}) == expected
    assert other_gpu_users(own, job(1), {"CUDA_VISIBLE_DEVICES": "1"}) == expected[1:]
    assert other_gpu_users(own, job(1, (("CUDA_VISIBLE_DEVICES", "0"),)), {}) == expected[:1]
    three_cards.gone = True
    three_cards.show()
    assert other_gpu_users(own, job(), {}) == ()


def test_pids_of_another_namespace_name_nobody(three_cards: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert three_cards.cards
    for same in (False, True):
        monkeypatch.setattr(present_room, "pids_are_the_drivers", lambda same=same: same)
        found = with_machine(RunValues(), job(), {})
        assert bool(found.other_gpu_users) is same
        assert (found.user_of is not None) is same


def test_a_free_port_is_offered_by_the_node_that_leads() -> None:
    port = with_machine(RunValues(), job(), {}).free_port
    assert port is not None
    assert is_free(port)
    assert with_machine(RunValues(), job(node_rank=1), {}).free_port is None

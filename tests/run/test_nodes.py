"""What keepers on several nodes tell each other: one leader an order, heartbeats without a common clock."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from supervisor.run.heartbeat import SILENT_S, Heartbeat, Pulse
from supervisor.run.node_files import (
    Launch,
    NodePhase,
    Order,
    Orders,
    Report,
    Superseded,
    Want,
    create,
    new_session,
    read_report,
    write_report,
)
from supervisor.run.paths import RunPaths, make_private


def order(want: Want = Want.RUN, attempt: int = 1) -> Order:
    return Order(
        seq=0, leader="", want=want, attempt=attempt, launch=Launch(nodes=(0, 1), reason="first launch")
    )


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    run = RunPaths(tmp_path / "run")
    make_private(run.node(0).root)
    make_private(run.node(1).root)
    return run


@pytest.mark.fault(
    "nodes",
    "two leaders publish at the same moment",
    "only one gets each number; the other stops leading",
)
def test_of_many_that_try_at_once_one_gives_each_order(run: RunPaths) -> None:
    given: list[tuple[int, str]] = []
    start = threading.Barrier(4)

    def lead(name: str) -> None:
        orders = Orders(run.node(), name)
        start.wait()
        try:
            given.extend((orders.give(order()).seq, name) for _ in range(20))
        except Superseded:
            return

    threads = [threading.Thread(target=lead, args=(name,), name=name) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    numbers = [seq for seq, _ in given]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len(given) >= 20
    assert not list(run.node().orders.glob(".*"))


def test_a_file_is_created_once_also_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert create(tmp_path / "a", b"1")
    assert not create(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1"


def test_a_link_whose_answer_was_lost_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lost(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", lost)
    assert create(tmp_path / "a", b"1")


def test_a_report_takes_the_place_of_the_one_before(run: RunPaths) -> None:
    node = run.node(1)
    assert read_report(node) is None
    ready = Report(node=1, session="s", host="b", nnodes=2, phase=NodePhase.READY)
    write_report(node, ready)
    ended = Report(
        node=1, session="s", host="b", nnodes=2, phase=NodePhase.ENDED, attempt=1, exit_code=-9, seq=3
    )
    write_report(node, ended)
    assert read_report(node) == ended
    node.report.write_bytes(b'{"node": 1, ')
    assert read_report(node) is None
    node.report.unlink()
    os.mkfifo(node.report)
    assert read_report(node) is None  # and nobody waits for it


def test_a_heartbeat_is_judged_by_the_readers_clock(run: RunPaths) -> None:
    beats, pulse = Heartbeat(run.node(1).heartbeat, new_session()), Pulse(run.node(1).heartbeat)
    pulse.look(100.0)
    assert not pulse.lives(100.0, SILENT_S)
    beats.beat(7.0)  # the writer's clock is another one
    pulse.look(101.0)
    assert not pulse.moved(), "a file that was there may be of a keeper that died"
    beats.beat(7.5)
    pulse.look(101.5)
    assert not pulse.moved(), "it was not due"
    beats.beat(8.1)
    pulse.look(102.0)
    assert pulse.lives(102.0, SILENT_S)
    assert pulse.lives(102.0 + SILENT_S, SILENT_S)
    assert not pulse.lives(102.1 + SILENT_S, SILENT_S)
    assert pulse.silent_s(112.0) == 10.0
    run.node(1).heartbeat.unlink()
    pulse.look(113.0)
    assert pulse.silent_s(113.0) == 11.0

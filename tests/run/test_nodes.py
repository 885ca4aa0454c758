"""What keepers on several nodes tell each other: one leader an order, heartbeats without a common clock."""

from __future__ import annotations

import errno
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
    read_order,
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
    "nodes", "two leaders publish at the same moment", "only one gets each number; the other stops leading"
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
    number = 0

    def no_links(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    for number in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
        assert create(tmp_path / f"{number}", b"1")
        assert not create(tmp_path / f"{number}", b"2")
        assert (tmp_path / f"{number}").read_bytes() == b"1"
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        create(tmp_path / "a", b"1")
    assert len(list(tmp_path.iterdir())) == 3, "no part is left"


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
    path = run.node(1).heartbeat
    beats, pulse = Heartbeat(path, new_session()), Pulse(path)
    assert (pulse.moved(), pulse.silent_s(100.0)) == (False, 0.0)
    pulse.look(100.0)
    assert not pulse.lives(100.0, SILENT_S)
    beats.beat(7.0)  # the writer's clock is another one
    pulse.look(101.0)
    assert not pulse.moved(), "a file that was there may be of a keeper that died"
    assert pulse.silent_s(104.0) == 4.0, "since it was first looked for"
    beats.beat(7.5)
    pulse.look(101.5)
    assert not pulse.moved(), "it was not due"
    beats.beat(8.0)
    pulse.look(102.0)
    assert pulse.moved() is True
    assert pulse.lives(102.0, SILENT_S)
    assert pulse.lives(102.0 + SILENT_S, SILENT_S)
    assert not pulse.lives(102.1 + SILENT_S, SILENT_S)
    assert pulse.silent_s(112.0) == 10.0
    assert (path.stat().st_mode & 0o777, SILENT_S) == (0o600, 20.0)
    for _ in range(2):
        beats.remove()
    pulse.look(113.0)
    assert pulse.silent_s(113.0) == 11.0
    path.mkdir()
    beats.beat(99.0)  # no error: readers see no change


def test_a_keeper_that_takes_over_goes_on_from_the_newest_order(run: RunPaths) -> None:
    first = Orders(run.node(), "a")
    assert (first.newest, first.newest_run, first.take_part(1)) == (None, None, None)
    begun = first.give(order())
    ended = first.give(order(Want.END))
    assert (begun.seq, ended.seq, begun.leader) == (1, 2, "a")
    assert (first.newest, first.newest_run) == (ended, begun)
    (run.node().orders / "notes.json").write_text("{}")
    second = Orders(run.node(), "b")
    assert (second.newest, second.newest_run) == (ended, begun)
    assert (second.take_part(1), second.take_part(2)) == ((0, 1), None)
    first.check()
    given = second.give(order(attempt=2))
    assert (given.seq, read_order(run.node())) == (3, given)
    for lead in (first.check, lambda: first.give(order())):
        with pytest.raises(Superseded, match=r"^another keeper gave order 3: this one leads no more$"):
            lead()
    second.check()

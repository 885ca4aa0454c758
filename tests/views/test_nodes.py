"""The other nodes of a run as a view reads them, and the logs of many nodes within a bound of open files."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.heartbeat import Heartbeat
from supervisor.run.journal import JournalWriter, StateReader, read_state
from supervisor.run.paths import RunPaths
from supervisor.run.series import RANKS, SeriesWriter
from supervisor.views.headless.story import story
from supervisor.views.logs import open_logs
from supervisor.views.logs.query import BadQueryError, Query
from supervisor.views.logs.viewport import LogViewport
from supervisor.views.model.reader import NodesReader, SnapshotReader
from supervisor.views.model.snapshot import Snapshot
from tests.views.logs_on_disk import never
from tests.views.tui import recorded


def whole(run: RunPaths) -> Snapshot:
    return SnapshotReader(run, monotonic=lambda: 0.0).refresh()  # so that no look is cut short


def test_each_node_has_its_own_ranks_and_machine(tmp_path: Path) -> None:
    nodes = whole(recorded.several(tmp_path / "run", nodes=3)).nodes
    assert [(node.number, node.state.host) for node in nodes] == [
        (0, "gpu-box"),
        (1, "gpu-box1"),
        (2, "gpu-box2"),
    ]
    assert [list(node.ranks) for node in nodes] == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert all(node.machine is not None and len(node.gpus) == 2 for node in nodes)
    assert nodes[2].ranks["5"].values["step"] == 20
    assert whole(recorded.healthy(tmp_path / "one")).nodes == ()


def test_what_is_added_on_another_node_is_read_once_a_second_in_turns(tmp_path: Path) -> None:
    run = recorded.several(tmp_path / "run", nodes=4)
    now = 100.0
    leader = StateReader(run.node().journal)
    leader.refresh()
    reader = NodesReader(run, monotonic=lambda: now, wall=lambda: 5000.0 + now)
    assert reader.refresh(leader.state)
    assert not reader.refresh(leader.state), "it is not their turn yet"
    writer = SeriesWriter(run.node(3).series)
    writer.append(RANKS, recorded.T0 + 60, "7", 1, {"step": 21.0})
    writer.close()
    beats = [Heartbeat(run.node(node).heartbeat, "s") for node in (0, 3)]
    for beat in beats:
        beat.beat(0.0)
    now += 1.1
    assert reader.refresh(leader.state)
    found = {node.number: node for node in reader.nodes}
    assert found[3].ranks["7"].values["step"] == 21
    assert found[3].beat_t is None, "a heartbeat that was never seen to move is none"
    for beat in beats:
        beat.beat(2.0)
    now += 1.1
    assert reader.refresh(leader.state)
    assert {node.number: node.beat_t for node in reader.nodes} == {1: None, 2: None, 3: 5102.0}
    assert reader.leader_beat_t == 5102
    now += 30
    reader.refresh(leader.state)
    assert reader.leader_beat_t == 5102, "it stands still"


def view_of(run: RunPaths) -> LogViewport:
    snapshot = whole(run)
    view = LogViewport(run.node(), never)
    view.height = 40
    view.update(snapshot.state, None, snapshot.node_logs)
    view.refresh()
    return view


def test_more_logs_than_may_be_open_are_read_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_logs, "MOST_LOGS", 11)  # two nodes of five logs each
    run = recorded.several(tmp_path / "run", nodes=6, steps=3)
    view = view_of(run)
    try:
        page = view.page()
        assert (page.nodes, page.node_count) == ((0, 1), 6)
        assert {page.nodes_of(row) for row in page.rows if len(row.who) == 4} == {(0, 1)}
        view.show(Query.parse("node:4 step"))
        page = view.page()
        assert page.nodes == (0, 4)
        assert page.rows
        assert {page.nodes_of(row) for row in page.rows} == {(4,)}
        assert {row.who for row in page.rows} == {("8", "9")}
        view.show(Query())
        assert view.page().nodes == (0, 1)
    finally:
        view.logs.close()


def test_a_filter_names_nodes() -> None:
    query = Query.parse("node:1 error node:4-5 r9")
    assert query.nodes == {1, 4, 5}
    assert str(query) == "node 1,4-5 · rank 9 · “error”"
    assert query.at(2).typed == "node:2 error r9"
    assert query.at().nodes == frozenset()
    assert bool(Query.parse("node:3"))
    for bad in ("node:", "node:x", "node:1-"):
        with pytest.raises(BadQueryError, match="by their numbers"):
            Query.parse(bad)


def test_the_story_has_a_line_a_node(tmp_path: Path) -> None:
    run = recorded.several(tmp_path / "run", steps=3)
    journal = JournalWriter(run.node(1).journal)
    journal.append(ev.AttemptEnded(t=recorded.T0 + 90, attempt=1, exit_code=3))
    journal.close()
    lines = [
        line for line in story(read_state(run.node().journal), run).splitlines() if line.startswith("node ")
    ]
    assert lines == [
        "node 0    gpu-box: attempt 1, ranks 0-1, its end is not known",
        "node 1    gpu-box1: attempt 1, ranks 2-3, exit code 3",
    ]

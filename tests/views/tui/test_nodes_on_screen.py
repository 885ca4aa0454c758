"""A run on several nodes: its nodes and ranks in one table, folded by key and mouse; the logs of all nodes as one."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, shown, until


def rows(app: StokerApp) -> list[str]:
    """The table's rows below its heading, without the frame."""
    lines = [line.strip("│╭╰ ") for line in pane(app, "ranks").splitlines()]
    return [line for line in lines if line.startswith(("▾", "▸")) or line[:2].strip().isdigit()]


def names(app: StokerApp) -> list[str]:
    return [" ".join(line.split()[:2]) if line[0] in "▾▸" else line.split()[0] for line in rows(app)]


def has(app: StokerApp, *wanted: str) -> bool:
    return names(app) == list(wanted)


OPEN = ("▾ n0", "0", "1", "▾ n1", "2", "3")


def test_ranks_stand_below_their_nodes(tmp_path: Path) -> None:
    run = recorded.several(tmp_path / "run", slow=1)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "on 2 nodes" in pane(app, "ranks"), "the nodes")
        await pilot.press("3")
        await until(pilot, lambda: "▾ n1" in pane(app, "ranks"), "the other node")
        table = pane(app, "ranks")
        assert "ranks · 4 on 2 nodes" in table
        assert "slow: 3" in table
        first = next(line for line in rows(app) if line.startswith("▾ n0"))
        assert "stepping" in first
        assert "2/2" in first
        assert "↓12G ↑11G" in first
        await pilot.press("z")
        await until(pilot, lambda: has(app, *OPEN), "all rows")
        second = next(line for line in rows(app) if line.startswith("▾ n1"))
        assert "+9 %" in second
        assert "gpu-box1" in second
        assert "↓12G ↑11G" in second

    drive(run, play, size=(200, 50))


def test_each_machine_without_a_gpu_has_a_line(tmp_path: Path) -> None:
    run = recorded.several(tmp_path / "run", nodes=4, ranks=2, steps=3, with_gpus=False)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "n3" in pane(app, "devices"), "the last machine")
        assert all(f"n{node}" in pane(app, "devices") for node in range(4))

    drive(run, play, size=(120, 40))


def test_a_table_of_many_nodes_is_folded_at_first(tmp_path: Path) -> None:
    run = recorded.several(tmp_path / "run", nodes=8, ranks=4, steps=3, slow=5)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "z")
        await until(pilot, lambda: has(app, *(f"▸ n{n}" for n in range(8))), "a row a node")
        await pilot.press(*"jjjjj", "space")
        await until(pilot, lambda: names(app)[5:8] == ["▾ n5", "20", "21"], "its ranks")

    drive(run, play)


def test_a_silent_node_is_said(tmp_path: Path) -> None:
    run = recorded.several(tmp_path / "run")
    journal = JournalWriter(run.node().journal)
    journal.append(ev.NodeSeen(t=recorded.T0 + 60, node=1, sight=ev.NodeSight.SILENT, host="gpu-box1"))
    journal.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "no sign of node 1" in pane(app, "ranks"), "the title")
        assert "⚠ no sign" in pane(app, "ranks")

    drive(run, play)


def test_the_logs_of_all_nodes_are_one_and_are_searched_and_filtered_by_node(tmp_path: Path) -> None:
    run = recorded.several(tmp_path / "run")
    say(run, 1, "NCCL WARN only node 1 has this needle")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "n0-1 r0-3 ×4" in pane(app, "log"), "lines of four ranks folded")
        assert "log · all ranks · 2 nodes" in pane(app, "log")
        await pilot.press("slash", *"needle", "enter")
        await until(pilot, lambda: "n1 r2" in pane(app, "log") and "1 of 1" in pane(app, "log"), "the match")
        await pilot.press("escape")
        await pilot.press("right_curly_bracket", "right_curly_bracket")
        await until(pilot, lambda: "· node 1" in pane(app, "log"), "node 1 alone")
        assert "n0" not in pane(app, "log")
        await pilot.press("escape")
        # Enter on a node shows the logs of its ranks.
        await pilot.press("3", "enter")
        await until(pilot, lambda: "· node 0" in pane(app, "log"), "node 0 alone")
        await pilot.press("L")
        await until(
            pilot, lambda: "n0-1 r0-1 ×2" in shown(app) or "n0 r0-1 ×2" in shown(app), "the log screen"
        )
        await pilot.press("right_curly_bracket")
        await until(pilot, lambda: "n1 r2" in shown(app), "the next node there")
        assert "n0" not in shown(app)
        await pilot.press("f", *(["backspace"] * 20), *"node:0,1", "enter")
        await until(pilot, lambda: "n0-1 r0-3 ×4" in shown(app), "both by a filter")

    drive(run, play)


def say(run: RunPaths, node: int, text: str) -> None:
    """A line in the log of a node's first rank."""
    path = run.node(node).attempt(1).root / recorded.TREE / "0" / "stderr.log"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")

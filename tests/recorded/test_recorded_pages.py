"""The pages of the recorded runs, row by row, as they are kept in tests/recorded/pages: a difference is a question, not an error.

``python -m tests.recorded.test_recorded_pages`` writes them anew; look at what changed before you keep it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import Lang
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.model.run_list import RunsReader, Scope
from supervisor.views.tui.charts.live import LossPanel
from supervisor.views.tui.pages.runs_table import RunsPanel
from supervisor.views.tui.pages.text_page import PAGES, Page, new_page
from supervisor.views.tui.panels.devices import DevicesPanel
from supervisor.views.tui.panels.failure_card import FailureCard
from supervisor.views.tui.panels.header import HeaderPanel, TilesPanel
from supervisor.views.tui.panels.notice import NoticeBar, TimelinePanel
from supervisor.views.tui.panels.ranks_table import RanksPanel
from supervisor.views.tui.widgets.paint import Row, Span
from supervisor.views.tui.widgets.panel import Panel, View
from supervisor.views.wording.translate import Words, english, words_in
from tests.recorded.recordings import Recording, at_home, names, still_surroundings, unpacked
from tests.views.tui.driving import keeper_of

KEPT = Path(__file__).parent / "pages"
WIDTH = 98
HEIGHT = 24
# The panes of the dashboard besides card and charts, and how many rows of them are kept.
PANES = {
    HeaderPanel: 2,
    NoticeBar: 1,
    TilesPanel: 1,
    DevicesPanel: 6,
    RanksPanel: 6,
    TimelinePanel: 40,
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Recording]:
    return unpacked(tmp_path_factory.mktemp("recorded"))


@pytest.mark.parametrize("name", names())
def test_the_pages_of_a_recorded_run_are_as_they_are_kept(
    name: str, recordings: Mapping[str, Recording]
) -> None:
    assert pages_of(recordings[name]) == (KEPT / f"{name}.txt").read_text(encoding="utf-8")


def test_the_pages_in_chinese_are_as_they_are_kept(recordings: Mapping[str, Recording]) -> None:
    assert in_chinese(recordings) == (KEPT / "chinese.txt").read_text(encoding="utf-8")


def test_the_list_of_the_recorded_runs_is_as_it_is_kept(recordings: Mapping[str, Recording]) -> None:
    assert list_of(recordings) == (KEPT / "list.txt").read_text(encoding="utf-8")


def pages_of(recording: Recording, tr: Words = english, names: Sequence[str] = PAGES) -> str:
    """Panes, card, loss and pages of a run."""
    with still_surroundings(recording.folder), at_home(recording.run), spoken_in(tr):
        run = RunPaths(Path("runs", recording.run.run_id))
        with keeper_of(run, alive=recording.live):
            snapshot = SnapshotReader(run).refresh()
            view = View(snapshot, (snapshot.state.last_t or 0.0) + 2, tr)
            return "\n".join(_drawn(view, names)) + "\n"


def _drawn(view: View, names: Sequence[str]) -> Iterator[str]:
    for pane, height in PANES.items():
        shown: Panel = pane(id="pane")
        shown.view = view
        left, right = shown.titles()
        yield f"== {pane.__name__} {_text((*left, Span('  '), *right))}".rstrip()
        yield from filter(None, map(_text, shown.body(WIDTH, height)))
    charts = [LossPanel(id="loss")] if "metrics" in names else []
    for panel in (FailureCard(id="card"), *charts, *map(new_page, names)):
        panel.view = view
        yield f"== {panel.id}"
        rows = panel.rows(view, WIDTH) if isinstance(panel, Page) else panel.body(WIDTH, HEIGHT)
        yield from filter(None, map(_text, rows))


@contextlib.contextmanager
def spoken_in(tr: Words) -> Iterator[None]:
    """Panels ask their app for the language: here there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Panel, "tr", tr)
        yield


def in_chinese(recordings: Mapping[str, Recording]) -> str:
    """What is made of sentences, in Chinese."""
    chinese = words_in(Lang.ZH)
    pages = ("failure", "advisories", "processes", "preflight")
    return "".join(f"# {name}\n{pages_of(each, chinese, pages)}" for name, each in recordings.items())


def list_of(recordings: Mapping[str, Recording]) -> str:
    """The table of all runs at three widths."""
    runs = [recording.run for recording in recordings.values()]
    reader = RunsReader(lambda: runs, Scope())
    found = reader.refresh()
    while not found.complete:
        found = reader.refresh()
    now = max(row.state.last_t or 0.0 for row in found.rows) + 60
    panel = RunsPanel(lambda: now, Scope(), id="runs")
    panel.list = found
    lines = []
    with spoken_in(english):
        panel.renew()
        for width in (78, 118, 198):
            lines += [f"== {width} cells", *map(_text, panel.body(width, len(runs) + 2))]
    return "\n".join(lines) + "\n"


def _text(row: Row) -> str:
    return "".join(span.text for span in row).rstrip()


def main() -> None:
    """Write all of them."""
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        recordings = unpacked(Path(folder))
        for name, recording in recordings.items():
            (KEPT / f"{name}.txt").write_text(pages_of(recording), encoding="utf-8")
        (KEPT / "list.txt").write_text(list_of(recordings), encoding="utf-8")
        (KEPT / "chinese.txt").write_text(in_chinese(recordings), encoding="utf-8")


if __name__ == "__main__":
    main()

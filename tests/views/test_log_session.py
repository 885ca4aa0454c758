"""The thread that reads for a log view: what it is asked, in turn, and what interrupts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from supervisor.run.journal import read_state
from supervisor.views.logs import file, session, stream
from supervisor.views.logs import reading as lc
from supervisor.views.logs.merge import Row
from supervisor.views.logs.open_logs import NothingThereError
from supervisor.views.logs.query import Query
from supervisor.views.logs.session import Interrupted, LogSession
from supervisor.views.logs.viewport import ONLY_MATCH, PAST_NEWEST, PAST_OLDEST, LogViewport
from tests.conftest import wait_until
from tests.views.tui import recorded

LINES = 5000
HEIGHT = 20
STDOUT = f"{recorded.TREE}/0/stdout.log"
DEADLINE_S = 10.0


class Read:
    """A session that follows the end of one log, and what it delivers."""

    def __init__(self, session: LogSession, told: list[lc.Answer]) -> None:
        self.session, self.told = session, told

    @property
    def page(self) -> lc.Page | None:
        return next((news for news in reversed(self.told) if isinstance(news, lc.Page)), None)

    @property
    def here(self) -> Row | None:
        page = self.page
        return page.rows[page.cursor] if page is not None and page.cursor is not None else None

    @property
    def last_line(self) -> int:
        page = self.page
        return int(page.rows[-1].text.split()[-1]) if page is not None and page.rows else 0

    def remarks(self) -> list[lc.Remark]:
        return [answer for answer in self.told if isinstance(answer, lc.Remark)]

    def find(self, words: str, start: Row | None) -> None:
        self.session.ask(lambda view: view.find(Query.search(words), start))

    def match(self, start: Row | None, way: int = -1) -> None:
        self.session.ask(lambda view: view.match(start, way))

    def until(self, condition: Callable[[], bool]) -> None:
        assert wait_until(condition, DEADLINE_S), (self.here, self.last_line, self.remarks())


@contextmanager
def reading(root: Path) -> Iterator[Read]:
    rec = recorded.Recording(root, ranks=1, gpus=0)
    rec.launch("first start")
    path = rec.run.node().attempt(1).root / STDOUT
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(1, LINES + 1)))
    rec.run.node().attempt(1).agent_log.unlink()
    run = rec.close()
    told: list[lc.Answer] = []
    session = LogSession(run.node(), told.append)
    read, state = Read(session, told), read_state(run.node().journal)
    session.tell(lambda view: view.update(state), lambda view: view.resize(HEIGHT))
    session.start()
    try:
        read.until(lambda: read.last_line == LINES)
        yield read
    finally:
        session.stop()


def test_matches_that_are_not_there_are_said_once_and_end(tmp_path: Path) -> None:
    """Two quick keys for a match that is not there repeated the first one's answer for ever: the screen drowned in it."""
    with reading(tmp_path) as read:
        read.find("elephant", None)
        for _ in range(5):
            read.match(None)
        read.until(lambda: any(remark.good is False for remark in read.remarks()))
        count = len(read.told)
        read.session.ask(LogViewport.to_start)
        read.until(lambda: read.last_line < LINES)
        assert 1 <= sum(remark.good is False for remark in read.remarks()) <= 6
        assert len(read.told) < count + 20


def test_matches_go_up_and_down_and_start_over_at_the_other_end(tmp_path: Path) -> None:
    """Those who stood on the newest match and pressed n got no further, or did not see where it led."""
    with reading(tmp_path) as read:

        def leads(line: int, ordinal: int, note: str) -> Row | None:
            def is_there() -> bool:
                page, here = read.page, read.here
                tally = page.search if page is not None else None
                return here is not None and tally is not None and tally.done_ratio == 1.0

            read.until(lambda: is_there() and read.here is not None and read.here.text == f"line {line}")
            page = read.page
            assert page is not None
            assert page.search is not None
            assert page.search.ordinal == ordinal
            assert [remark.text for remark in read.remarks()] == [note] * bool(note)
            read.told.clear()
            return page.rows[page.cursor or 0]

        read.told.clear()
        read.find("999", None)
        here = leads(4999, 5, "")
        for way, line, ordinal, note in (
            (-1, 3999, 4, ""),
            (1, 4999, 5, ""),
            (1, 999, 1, PAST_NEWEST),
            (-1, 4999, 5, PAST_OLDEST),
        ):
            read.match(here, way)
            here = leads(line, ordinal, note)
        read.find("", None)
        read.session.ask(LogViewport.to_start)
        read.until(lambda: read.last_line == HEIGHT)
        first = read.here
        read.told.clear()
        read.find("999", first)
        here = leads(999, 1, "")  # nothing is above
        read.match(here, 1)
        here = leads(1999, 2, "")
        read.find("line 5000", here)
        here = leads(5000, 1, "")
        read.match(here)
        leads(5000, 1, ONLY_MATCH)


def test_a_search_that_finds_nothing_is_back_where_it_began(tmp_path: Path) -> None:
    """The first letters of a word that is nowhere had led the page away."""
    with reading(tmp_path) as read:
        read.find("17", None)
        read.until(lambda: read.here is not None)
        read.find("17x", None)
        read.until(lambda: read.page is not None and read.page.following)
        assert read.last_line == LINES
        read.session.ask(lambda view: view.to_place(lc.LogAt(path=STDOUT, line=2500)))
        read.until(lambda: read.here is not None)
        start = read.here
        read.find("17", start)
        read.until(lambda: read.here not in {None, start})
        read.find("17x", start)
        read.until(lambda: read.here == start)


def test_a_size_that_a_key_interrupts_is_not_lost(tmp_path: Path) -> None:
    with reading(tmp_path / "run") as read:
        sizes: list[int] = []

        def resize(view: LogViewport) -> None:
            sizes.append(1)
            if len(sizes) == 1:
                raise Interrupted
            view.resize(HEIGHT - 3)

        read.session.tell(resize)
        read.until(lambda: read.page is not None and len(read.page.rows) == HEIGHT - 3)


def test_a_new_request_aborts_a_long_one(tmp_path: Path) -> None:
    with reading(tmp_path / "run") as read:
        begun: list[int] = []

        def endless(view: LogViewport) -> None:
            while True:
                begun.append(1)
                with suppress(NothingThereError):
                    view.to_place(lc.LogAt(step=1e9))

        read.session.ask(endless)
        read.until(lambda: bool(begun))
        read.session.ask(LogViewport.to_start)
        read.until(lambda: read.last_line == HEIGHT)


def test_a_page_that_cannot_be_made_is_reported_and_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reading(tmp_path / "run") as read:
        real, made = LogViewport.page, list[LogViewport]()

        def page(view: LogViewport) -> lc.Page:
            made.append(view)
            if len(made) == 1:
                raise IndexError("no such row")
            return real(view)

        monkeypatch.setattr(LogViewport, "page", page)
        (log,) = (tmp_path / "run/nodes/0/attempts/1").rglob("stdout.log")
        with log.open("ab") as file:
            file.write(b"line %d\n" % (LINES + 1))
        read.until(lambda: read.last_line == LINES + 1)
        assert any("no such row" in remark.text for remark in read.remarks())


def test_a_long_search_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PATIENCE_S", -1.0)
    monkeypatch.setattr(file, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 4096)
    with reading(tmp_path) as read:
        read.session.ask(lambda view: view.show(Query.parse("zzz")))
        read.until(lambda: read.page is not None and read.page.empty_why.startswith("no line matches"))
        assert [remark.text for remark in read.remarks() if "% searched; Esc gives up" in remark.text]

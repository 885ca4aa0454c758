"""The thread that reads for a log view: what it is asked, in turn, and what interrupts it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.run.journal import read_state
from supervisor.views.logs import reading as lc
from supervisor.views.logs.merge import Row
from supervisor.views.logs.query import Query
from supervisor.views.logs.session import Interrupted, LogSession
from supervisor.views.logs.viewport import ONLY_MATCH, PAST_NEWEST, PAST_OLDEST, LogViewport
from tests.conftest import wait_until
from tests.views.tui import recorded

LINES = 5000
HEIGHT = 20
STDOUT = 1  # the agent's log comes first
DEADLINE_S = 10.0


@contextmanager
def reading(root: Path) -> Iterator[tuple[LogSession, list[lc.Answer]]]:
    """A session that follows the end of one log; what it delivers."""
    rec = recorded.Recording(root, ranks=1, gpus=0)
    rec.launch("first start")
    path = rec.run.node().attempt(1).root / f"{recorded.TREE}/0/stdout.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(1, LINES + 1)))
    rec.run.node().attempt(1).agent_log.unlink()
    run = rec.close()
    told: list[lc.Answer] = []
    session = LogSession(run.node(), told.append)
    session.ask(lc.Update(read_state(run.node().journal)), lc.Size(HEIGHT))
    session.start()
    try:
        assert wait_until(lambda: last(told) is not None and last_line(told) == LINES, DEADLINE_S)
        yield session, told
    finally:
        session.stop()


def last(told: list[lc.Answer]) -> lc.Page | None:
    return next((news for news in reversed(told) if isinstance(news, lc.Page)), None)


def last_line(told: list[lc.Answer]) -> int:
    page = last(told)
    return int(page.rows[-1].text.split()[-1]) if page is not None and page.rows else 0


def row_of(page: lc.Page) -> Row | None:
    return page.rows[page.cursor] if page.cursor is not None else None


class LateSet(threading.Event):
    """An event that is set only once what it tells of was taken, or could not be."""

    def __init__(self, session: LogSession) -> None:
        super().__init__()
        self.session = session

    def set(self) -> None:
        wait_until(lambda: not self.session._commands, 0.3)
        super().set()


def test_a_command_does_not_interrupt_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reading(tmp_path / "run") as (session, _told):
        done: list[int] = []

        def match(_cursor: object, way: int) -> None:
            wait_until(session._urgent.is_set, 0.5)
            session._check()
            done.append(way)

        monkeypatch.setattr(session._view, "match", match)
        monkeypatch.setattr(session, "_urgent", LateSet(session))
        session.ask(lc.Match(None, -1))
        assert wait_until(lambda: bool(done), 2.0), "it was given up for itself"


def test_matches_that_are_not_there_are_said_once_and_end(tmp_path: Path) -> None:
    """Two quick keys for a match that is not there repeated the first one's answer for ever: the screen drowned in it."""
    with reading(tmp_path) as (session, told):
        session.ask(lc.Find(Query.parse("elephant"), None))
        session.ask(*(lc.Match(None, 1) for _ in range(5)))
        assert wait_until(
            lambda: [a for a in told if isinstance(a, lc.Remark) and a.good is False], DEADLINE_S
        )
        count = len(told)
        session.ask(lc.Start())
        assert wait_until(lambda: last(told) is not None and last_line(told) < LINES, DEADLINE_S)
        refusals = [a for a in told if isinstance(a, lc.Remark) and a.good is False]
        assert 1 <= len(refusals) <= 6
        assert len(told) < count + 20


def test_matches_go_on_the_way_the_search_ran_and_start_over_at_the_other_end(tmp_path: Path) -> None:
    """Those who stood on the newest match and pressed n got no further, or did not see where it led."""
    with reading(tmp_path) as (session, told):

        def goes(line: int, ordinal: int, note: str, *asked: lc.Command) -> lc.Page:
            told.clear()
            session.ask(*asked)
            wanted = f"line {line}"
            assert wait_until(
                lambda: (
                    (p := last(told)) is not None
                    and (here := row_of(p)) is not None
                    and here.text == wanted
                    and p.search is not None
                    and p.search.done_ratio == 1
                    and p.search.ordinal == ordinal
                ),
                DEADLINE_S,
            ), (line, [row_of(a) for a in told if isinstance(a, lc.Page)])
            assert [a.text for a in told if isinstance(a, lc.Remark)] == [note] * bool(note)
            page = last(told)
            assert page is not None
            return page

        def on(page: lc.Page, way: int = 1) -> lc.Match:
            return lc.Match(row_of(page), way)

        page = goes(4999, 5, "", lc.Find(Query.parse("999"), None))
        assert page.search_way == -1
        page = goes(3999, 4, "", on(page))
        page = goes(4999, 5, "", on(page, -1))
        page = goes(999, 1, PAST_NEWEST, on(page, -1))
        page = goes(4999, 5, PAST_OLDEST, on(page))

        session.ask(lc.Find(Query(), None), lc.Start())
        assert wait_until(lambda: last_line(told) == HEIGHT, DEADLINE_S)
        first = last(told)
        assert first is not None
        page = goes(999, 1, "", lc.Find(Query.parse("999"), first.rows[0]))
        assert page.search_way == 1, "from the first line a search runs down"
        page = goes(1999, 2, "", on(page))
        page = goes(5000, 1, "", lc.Find(Query.parse("line 5000"), row_of(page)))
        assert page.search_way == 1, "nothing is above"
        goes(5000, 1, ONLY_MATCH, on(page))


def test_a_search_that_finds_nothing_is_back_where_it_began(tmp_path: Path) -> None:
    """The first letters of a word that is nowhere had led the page away."""
    with reading(tmp_path) as (session, told):
        for typed in ("1", "17", "17x"):
            session.ask(lc.Find(Query.search(typed), None))
            if typed == "17":
                assert wait_until(lambda: (p := last(told)) is not None and row_of(p) is not None, DEADLINE_S)
        assert wait_until(lambda: (p := last(told)) is not None and p.following, DEADLINE_S)
        assert last_line(told) == LINES
        session.ask(lc.ToLine(STDOUT, 2500))
        assert wait_until(lambda: (p := last(told)) is not None and row_of(p) is not None, DEADLINE_S)
        page = last(told)
        assert page is not None
        start = row_of(page)
        session.ask(lc.Find(Query.search("17"), start))
        assert wait_until(
            lambda: (p := last(told)) is not None and row_of(p) not in {None, start}, DEADLINE_S
        )
        session.ask(lc.Find(Query.search("17x"), start))
        assert wait_until(lambda: (p := last(told)) is not None and row_of(p) == start, DEADLINE_S)


def test_of_filters_that_wait_the_newest_alone_is_looked_through(tmp_path: Path) -> None:
    with reading(tmp_path / "run") as (session, _):
        session.ask_to_stop()
        session._thread.join(DEADLINE_S)
        queries = [Query.parse(typed) for typed in ("9", "99", "999")]
        session._commands.extend(lc.Show(query) for query in queries)
        assert list(session._taken()) == [lc.Show(queries[-1])]


def test_a_size_that_a_key_interrupts_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reading(tmp_path / "run") as (session, told):
        real, sizes = LogViewport.resize, list[int]()

        def resize(view: LogViewport, rows: int, cursor: object) -> None:
            sizes.append(rows)
            if len(sizes) == 1:
                raise Interrupted
            real(view, rows, cursor)  # type: ignore[arg-type]

        monkeypatch.setattr(LogViewport, "resize", resize)
        session.ask(lc.Size(HEIGHT - 3))

        def is_smaller() -> bool:
            page = last(told)
            return page is not None and len(page.rows) == HEIGHT - 3

        assert wait_until(is_smaller, DEADLINE_S), sizes


def test_a_page_that_cannot_be_made_is_reported_and_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reading(tmp_path / "run") as (_session, told):
        real, made = LogViewport.page, list[LogViewport]()

        def page(view: LogViewport) -> lc.Page:
            made.append(view)
            if len(made) == 1:
                raise IndexError("no such row")
            return real(view)

        monkeypatch.setattr(LogViewport, "page", page)
        path = tmp_path / "run/nodes/0/attempts/1"
        (log,) = path.rglob("stdout.log")
        with log.open("ab") as file:
            file.write(b"line %d\n" % (LINES + 1))
        assert wait_until(lambda: made, DEADLINE_S)
        with log.open("ab") as file:
            file.write(b"line %d\n" % (LINES + 2))
        assert wait_until(lambda: last_line(told) == LINES + 2, DEADLINE_S)
        assert any("no such row" in one.text for one in told if isinstance(one, lc.Remark))

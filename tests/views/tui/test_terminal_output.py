"""The terminal goes away while much is to be written: the app must be able to end."""

from __future__ import annotations

import asyncio
import errno
import io
import threading

from textual.driver import Driver
from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread

from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.terminal_output import SurvivingFile


class GoneTerminal(io.StringIO):
    """What a pseudo-terminal does once the other side is closed."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        raise OSError(errno.EIO, "Input/output error")


def test_what_is_written_to_a_terminal_that_is_gone_never_blocks() -> None:
    writer = WriterThread(SurvivingFile(GoneTerminal()))  # type: ignore[arg-type]
    writer.start()

    def write() -> None:
        for _ in range(3 * MAX_QUEUED_WRITES):
            writer.write("x")
        writer.stop()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_the_app_writes_through_it() -> None:
    async def make() -> Driver:
        app = StokerApp(None)
        return app.driver_class(app)

    assert isinstance(asyncio.run(make())._file, SurvivingFile)  # type: ignore[attr-defined]

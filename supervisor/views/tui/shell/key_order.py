"""Handle keys one at a time. Each key is finished before the next is handled.

Textual passes a key to the focused widget, and a binding acts only after the key has bubbled up to the app.
Meanwhile the widget writes the next letter. So in a burst, as over slow ssh, ``Backspace 0`` became
``0 Backspace``, and text typed right after the key that opens a dialog went to the screen below.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from textual import events
from textual.message import Message

if TYPE_CHECKING:
    from textual.app import App

WAIT_S = 0.5
"""How long to wait for a key whose widget was removed before the key arrived."""
RETRY_S = 0.02
"""How soon to check again a key that came too early."""


class Passed(Message):
    """A message that follows a key through the same queues. When the app gets it, the key is finished."""


class KeyOrder:
    """A queue that holds keys back while another key is being handled.

    Args:
        app: the app that gets the keys.
        handle: Textual's own handling of a key.
        early: whether a key comes too early, so that it and later keys wait. Called until the key may pass.
    """

    def __init__(
        self,
        app: App[None],
        handle: Callable[[events.Event], Awaitable[None]],
        early: Callable[[events.Event], bool],
    ) -> None:
        self._app = app
        self._handle = handle
        self._early = early
        self._retrying = False
        self._held: deque[events.Event] = deque()
        self._under_way: Passed | None = None
        self._screen: object = None

    async def take(self, event: events.Event) -> None:
        """Take a key or a paste. Handle it now, or after the keys before it."""
        self._held.append(event)
        if self._under_way is None:
            await self._next()

    async def passed(self, message: Passed) -> None:
        """Finish the current key. A screen that it opened is ready before the next key is handled."""
        if message is not self._under_way or not self._app.screen_stack:  # no screen is left at exit
            return
        if self._app.screen is not self._screen and self._follow():
            return
        self._under_way = None
        await self._next()

    async def _next(self) -> None:
        while self._held and self._under_way is None and not self._retrying:
            if self._early(self._held[0]):
                self._retrying = True
                asyncio.get_running_loop().call_later(RETRY_S, self._app.call_later, self._retry)
                return
            await self._handle(self._held.popleft())
            self._follow()

    async def _retry(self) -> None:
        self._retrying = False
        await self._next()

    def _follow(self) -> bool:
        """Send a message after the key. Return whether the message can arrive."""
        screen = self._screen = self._app.screen
        message = Passed()
        if not (self._app.focused or screen).post_message(message):
            self._under_way = None
            return False
        self._under_way = message
        asyncio.get_running_loop().call_later(WAIT_S, self._given_up, message)
        return True

    def _given_up(self, message: Passed) -> None:
        if message is self._under_way:
            self._app.post_message(message)

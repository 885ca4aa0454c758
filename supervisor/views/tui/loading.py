"""Loading the app's library sooner."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast


def load_asyncio_without_tls() -> None:
    """Load asyncio as a Python does that was built without OpenSSL, which takes 5 ms to load.

    asyncio provides for that Python (``ssl = None``), and nothing here speaks TLS. `ssl` can be imported afterwards.
    """
    if "ssl" in sys.modules:
        return
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    modules["ssl"] = None
    try:
        import asyncio  # noqa: F401 - loaded is all that it should be
    finally:
        del modules["ssl"]

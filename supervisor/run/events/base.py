"""The base of all journal events."""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1


class JournalEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Base of all events. `t`: wall-clock seconds since the epoch."""

    t: float
    v: int = SCHEMA_VERSION

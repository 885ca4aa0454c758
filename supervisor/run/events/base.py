"""The base of all facts."""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Base of all facts. `t`: wall-clock seconds since the epoch."""

    t: float
    v: int = SCHEMA_VERSION

"""How large a file or a folder is on disk."""

from __future__ import annotations

import os
from pathlib import Path

MAX_ENTRIES = 10_000


def tree_bytes(path: Path) -> int | None:
    """Bytes of a file, or of all files below a folder; None when it is gone, or has more entries than are worth counting."""
    total = count = 0
    try:
        if not path.is_dir():
            return path.stat().st_size
        for root, _, names in os.walk(path):
            for name in names:
                count += 1
                if count > MAX_ENTRIES:
                    return None
                total += os.lstat(os.path.join(root, name)).st_size
    except OSError:
        return None
    return total

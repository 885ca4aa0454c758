"""Disks without room: a file system of a test's own, small enough to fill, and the device that is always full."""

from __future__ import annotations

import contextlib
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

FULL_DEVICE = Path("/dev/full")


def needs_full_device() -> None:
    """Skip where no write to /dev/full fails: in some containers it is a plain file, which takes all that is written."""
    try:
        is_device = stat.S_ISCHR(FULL_DEVICE.stat().st_mode)
    except OSError:
        is_device = False
    if not is_device:
        pytest.skip(f"{FULL_DEVICE} is no character device here: a write to it does not fail")


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "2m") -> Iterator[Path]:
    """A tmpfs of this size (or ``size,option=value``); skips where none can be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of our own cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take what is free; the file that holds it."""
    path = folder / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 10))
    return path

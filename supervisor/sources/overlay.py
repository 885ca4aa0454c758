"""Gives a child process a view of the file system in which whatever it writes lands in a scratch folder.

A user namespace and a mount namespace of its own (user_namespaces(7), mount_namespaces(7)); over each given folder an overlay whose
upper layer is in the scratch folder (overlayfs in a user namespace: Linux 5.11); everything else is read-only (mount_setattr(2): Linux
5.12). Processes outside see nothing of it, and the mounts end with the last process inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE, _MS_BIND = 0x4000, 1 << 18, 0x1000
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_SYS_MOUNT_SETATTR: Final = 442
_WRITABLE: Final = ("/proc", "/dev")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - not a temporary file
_PR_SET_PDEATHSIG: Final = 1
MIN_LINUX: Final = (5, 12)


class NoOverlayError(OSError):
    """The kernel refuses a step, or a folder cannot be covered. The text says which."""


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def enter(folders: Sequence[Path], scratch: Path) -> None:
    """Move this process into the view. Call it in a child between fork and exec.

    Args:
        folders: absolute paths of existing folders that the process may write to, outermost first.
        scratch: the folder that holds what is written. It stays writable itself and must lie in none of `folders`.

    Raises:
        NoOverlayError: see the class. The process may then be half inside and must end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    _check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "a user namespace")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(libc, None, "/", None, _MS_REC | _MS_PRIVATE)
    writable = [scratch, *(Path(path) for path in _WRITABLE if os.path.isdir(path))]
    for folder in writable:  # a mount of its own, which the next step can leave out
        _mount(libc, str(folder), str(folder), None, _MS_BIND | _MS_REC)
    _set_read_only(libc, "/", True)
    for folder in writable:
        _set_read_only(libc, str(folder), False)
    for number, folder in enumerate(folders):
        upper, work = scratch / "upper" / str(number), scratch / "work" / str(number)
        upper.mkdir(parents=True)
        work.mkdir(parents=True)
        options = f"lowerdir={_escaped(folder)},upperdir={_escaped(upper)},workdir={_escaped(work)},userxattr"
        _mount(libc, "overlay", str(folder), "overlay", 0, options)
    if os.path.isdir(_SHARED_MEMORY):  # its own, because a job may use names that a live job has
        _mount(libc, "tmpfs", _SHARED_MEMORY, "tmpfs", 0)
    libc.prctl(
        _PR_SET_PDEATHSIG, signal.SIGTERM
    )  # a rehearsal that is killed takes `stoker run` along, which stops its job
    os.chdir(os.getcwd())  # the working folder is the one below the overlay until it is opened again


def _mount(
    libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str = ""
) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    _check(libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), f"a mount at {target}")


def _set_read_only(libc: ctypes.CDLL, path: str, on: bool) -> None:
    wanted = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY if on else 0, attr_clr=0 if on else _MOUNT_ATTR_RDONLY)
    done = libc.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        path.encode(),
        _AT_RECURSIVE,
        ctypes.byref(wanted),
        ctypes.sizeof(wanted),
    )
    _check(done, f"a read-only view of {path}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise NoOverlayError(number, f"{what}: {os.strerror(number)}")


def _escaped(path: Path) -> str:
    """Return a path as overlayfs reads it in its options."""
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def remove(scratch: Path) -> None:
    """Delete the scratch folder, in which overlayfs leaves folders without permissions."""
    for folder, _, _ in os.walk(scratch, onerror=lambda _error: None):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    for left in scratch.glob("work/*/work"):
        with contextlib.suppress(OSError):
            left.chmod(0o700)
    shutil.rmtree(scratch, ignore_errors=True)

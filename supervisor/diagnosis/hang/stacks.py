"""Parse a Python process's stacks into frames and determine what its main thread is waiting for.

py-spy dump: ``Thread 12 (idle): "MainThread"``, followed by ``    main (/job/train.py:19)``, innermost first.
faulthandler: ``Current thread 0x… (most recent call first):`` and ``  File "/job/train.py", line 19 in main``.

The kind of wait is derived from the frames called by the thread's own line or, failing that, its system call. A silent attempt is
stopped only if the late rank is waiting for something that will never come on its own. In a healthy job, a pause, a slow disk or
server, or a subprocess can take a long time, so a rank in such a wait, or one not in the table, is reported but never stopped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from supervisor.text.patterns import whole

_SPY_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]+|\d+)(?: \(([^)]*)\))?(?:: "(.*)")?')
_SPY_FRAME = re.compile(r"\s+(\S.*?) \((.*?)(?::(\d+))?\)\s*$")
_FAULT_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'\s+File "(.*)", line (\d+|\?\?\?) in (.*)$')
_INSTALLED = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/|/python\d[.\d]*t?/|^<frozen|^<string>|\.so(?:\.|$)"
)
_LIBRARIES = frozenset(
    ("torch", "numpy", "accelerate", "deepspeed", "lightning", "transformers", "multiprocessing")
)
_MAX_FRAMES = 128


@dataclass(frozen=True, slots=True)
class Frame:
    """A call. `file` is the path as the tool printed it; `line` is 1-based, or None for a native frame."""

    function: str
    file: str
    line: int | None

    @property
    def name(self) -> str:
        """The bare function name, without the class prefix that newer py-spy versions add."""
        return self.function.rpartition(".")[2]

    @property
    def is_library(self) -> bool:
        """Whether the frame is in installed code rather than the user's own."""
        if _INSTALLED.search(self.file) is not None:
            return True
        first, _, rest = self.file.partition("/")
        module = first.removesuffix(".py")
        # py-spy shortens paths: ``torch/_tensor.py``, ``threading.py``.
        return first in _LIBRARIES if rest else module in sys.stdlib_module_names and first.endswith(".py")

    @property
    def place(self) -> str:
        """The last components of the path plus the line number, such as ``data/loader.py:41``."""
        short = "/".join(self.file.rsplit("/", 2)[-2:]) if self.is_library else self.file.rsplit("/", 1)[-1]
        return short if self.line is None else f"{short}:{self.line}"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """A thread, innermost frame first. `idle` is true if it is waiting in the kernel, None if the tool does not say.

    `at` is the 0-based index of each frame's line among the parsed lines.
    """

    frames: tuple[Frame, ...]
    idle: bool | None = None
    is_main: bool = False
    at: tuple[int, ...] = ()


def parse_stack(lines: Sequence[str]) -> tuple[ThreadStack, ...]:
    """Return the threads in py-spy or faulthandler output, or an empty tuple for any other text."""
    found: list[ThreadStack] = []
    is_main, idle, frames, at = False, None, list[Frame](), list[int]()

    def close() -> None:
        if frames:
            found.append(ThreadStack(tuple(frames), idle, is_main=is_main, at=tuple(at)))

    for index, line in enumerate(lines):
        if (head := _FAULT_THREAD.match(line)) is not None:
            close()
            # A signal handler runs in the main thread (signal(7) allows any; CPython uses the main one).
            is_main, idle, frames, at = head[1] == "Current thread", None, [], []
        elif (head := _SPY_THREAD.match(line)) is not None:
            close()
            is_main, frames, at = (head[3] or head[1]) == "MainThread", [], []
            idle = None if head[2] is None else head[2].startswith("idle")
        elif len(frames) >= _MAX_FRAMES:
            continue
        elif (seen := _FAULT_FRAME.match(line)) is not None:
            frames.append(Frame(seen[3], seen[1], whole(seen[2]) if seen[2].isdecimal() else None))
            at.append(index)
        elif (seen := _SPY_FRAME.match(line)) is not None:
            frames.append(Frame(seen[1], seen[2], whole(seen[3]) if seen[3] else None))
            at.append(index)
    close()
    if found and not any(thread.is_main for thread in found):
        # A thread without a name (no threading module) is the only one, or the last in the list.
        found[-1] = replace(found[-1], is_main=True)
    return tuple(found)


def main_thread(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """Return the thread that runs the script."""
    return next((thread for thread in threads if thread.is_main), threads[0] if len(threads) == 1 else None)


def whose(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``7 ranks``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def where(what: str, line_at: str | None) -> str:
    """Describe where a group is, e.g. ``in all_reduce at train.py:50``."""
    return what if line_at is None else f"{what} at {line_at}"


# System calls as numbered in x86-64's /proc. On other machines these numbers have no meaning.
CALL_NAMES: Final = MappingProxyType(
    {
        "0": "read", "1": "write", "2": "open", "4": "stat", "5": "fstat", "6": "lstat", "7": "poll", "8": "lseek",
        "17": "pread64", "18": "pwrite64", "19": "readv", "20": "writev", "23": "select", "34": "pause", "35": "sleep",
        "40": "sendfile", "42": "connect", "43": "accept", "44": "sendto", "45": "recvfrom", "46": "sendmsg", "47": "recvmsg",
        "61": "wait4", "72": "fcntl", "73": "flock", "74": "fsync", "75": "fdatasync", "78": "getdents", "82": "rename",
        "87": "unlink", "128": "sigtimedwait", "130": "sigsuspend", "162": "sync", "202": "futex", "208": "io_getevents",
        "217": "getdents64", "230": "sleep", "232": "epoll_wait", "247": "waitid", "257": "openat", "262": "newfstatat",
        "270": "pselect6", "271": "ppoll", "281": "epoll_pwait", "285": "fallocate", "288": "accept4", "295": "preadv",
        "296": "pwritev", "299": "recvmmsg", "306": "syncfs", "326": "copy_file_range", "332": "statx", "426": "io_uring_enter",
        "219": "restart_syscall", "running": "no system call",
    }
)  # fmt: skip


class Kind(StrEnum):
    """The kinds of things that a rank may be waiting for, which determine whether the wait can ever end."""

    PEERS = "peers"
    SLEEP = "sleep"
    NETWORK = "network"
    PROCESS = "process"
    FILE = "file"
    DEVICE = "device"
    TIMED = "timed"
    THREAD = "thread"
    LOCK = "lock"
    RUNS = "runs"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A kind of wait. `words` describes it for display. If `may_end`, stoker may stop the attempt as a hang.

    `files` matches the code called by a rank's own line. `calls` contains system call names.
    """

    kind: Kind
    words: str
    may_end: bool = False
    files: re.Pattern[str] | None = None
    calls: frozenset[str] = frozenset()


def _modules(names: str) -> re.Pattern[str]:
    """Return a pattern that matches the files of these modules and packages, as formatted by `_module_file`."""
    listed = "|".join(re.escape(name) for name in names.split())
    return re.compile(rf"(?:<frozen )?(?:{listed})(?:\.py|/|>|\.)")


# The order counts: a download that writes a file waits for the network, a program's output comes from a pipe.
WAITINGS: Final = (
    Waiting(Kind.SLEEP, "sleeps", calls=frozenset(("sleep", "pause", "sigtimedwait", "sigsuspend"))),
    Waiting(
        Kind.NETWORK,
        "waits for the network",
        files=_modules(
            "socket ssl http urllib ftplib smtplib imaplib xmlrpc asyncio urllib3 requests httpx httpcore h11 h2 aiohttp anyio "
            "websocket websockets huggingface_hub hf_transfer hf_xet modelscope boto3 botocore s3transfer aiobotocore s3fs "
            "s3torchconnector gcsfs fsspec adlfs azure google oss2 minio smart_open streaming grpc zmq redis psycopg psycopg2 "
            "pymongo pymysql paramiko kazoo ray wandb mlflow neptune comet_ml clearml swanlab torch/hub gdown nltk/downloader"
        ),
        calls=frozenset(
            ("poll", "select", "pselect6", "ppoll", "epoll_wait", "epoll_pwait", "connect", "accept", "accept4", "sendto",
             "recvfrom", "sendmsg", "recvmsg", "recvmmsg")
        ),
    ),
    Waiting(
        Kind.PROCESS,
        "waits for a process that it started",
        files=_modules(
            "subprocess multiprocessing concurrent/futures/process pty pexpect joblib loky dask billiard torch/multiprocessing "
            "torch/utils/data torch/utils/cpp_extension torch/_inductor triton"
        ),
        calls=frozenset(("wait4", "waitid")),
    ),
    Waiting(
        Kind.FILE,
        "reads or writes",
        files=_modules(
            "io _pyio os importlib zipimport codecs gzip bz2 lzma zipfile tarfile shutil pathlib genericpath posixpath glob fileinput "
            "tempfile mmap sqlite3 filelock portalocker torch/serialization torch/distributed/checkpoint safetensors h5py zarr pyarrow lmdb "
            "webdataset datasets numpy/lib/npyio numpy/lib/_npyio_impl numpy/lib/format numpy/core/memmap numpy/_core/memmap "
            "pandas/io PIL/Image PIL/ImageFile soundfile torchaudio torchvision/io decord"
        ),
        calls=frozenset(
            ("read", "write", "open", "openat", "stat", "fstat", "lstat", "newfstatat", "statx", "lseek", "pread64", "pwrite64",
             "readv", "writev", "preadv", "pwritev", "sendfile", "copy_file_range", "fcntl", "flock", "fsync", "fdatasync",
             "syncfs", "sync", "fallocate", "getdents", "getdents64", "rename", "unlink", "io_getevents", "io_uring_enter")
        ),
    ),
    Waiting(Kind.DEVICE, "waits for its GPU"),
    # A wait with a time limit continues in this call after a tracer's interruption (restart_syscall(2)).
    Waiting(Kind.TIMED, "waits with a time limit", calls=frozenset(("restart_syscall",))),
    Waiting(Kind.THREAD, "waits for a thread of its own that is at work"),
    Waiting(Kind.STOPPED, "is stopped by a signal"),
    Waiting(Kind.UNKNOWN, "waits for something that cannot be told"),
    Waiting(Kind.PEERS, "waits for other ranks", may_end=True),
    Waiting(Kind.LOCK, "waits for a lock that nobody gives back", may_end=True),
    Waiting(Kind.RUNS, "computes", may_end=True),
)  # fmt: skip
NAMELESS: Final = frozenset(("running", "219"))
"""System calls that do not reveal what was called."""
BY_KIND: Final = MappingProxyType({waiting.kind: waiting for waiting in WAITINGS})

_ABOVE = re.compile(r".*(?:(?:site|dist)-packages|/python\d[.\d]*t?)/")
# The frames of a wait for a lock, and the functions at whose bottom the interpreter waits for it.
_LOCKING: Final = _modules("threading queue concurrent/futures")
_LOCKED: Final = frozenset(("wait", "acquire", "join", "_wait_for_tstate_lock", "wait_for", "__enter__"))
# Threads of libraries' own services. They wait for new work, and no main thread's lock depends on
# them. A main thread that waits for a tracker's or a loader's thread also has its frames.
_SERVICES: Final = _modules(
    "tqdm/_monitor torch/utils/data/_utils/pin_memory torch/_inductor/compile_worker tensorboard wandb mlflow neptune comet_ml "
    "clearml swanlab"
)
# The outermost functions of Python's own threads, and of the main thread.
_BOTTOMS: Final = frozenset(("_bootstrap", "_bootstrap_inner", "<module>"))
# An idle pool thread, or a queue thread with nothing to send.
_IDLE_WORKERS: Final = frozenset(("_worker", "_feed"))


def kind_of_wait(
    thread: ThreadStack, others: Sequence[ThreadStack], call: str | None, *, for_ever: bool | None
) -> Kind:
    """Return what a thread outside any collective is waiting for.

    Args:
        thread: the main thread.
        others: the process's other Python threads.
        call: the number of the main thread's system call, from /proc, or "running"; None if unknown.
        for_ever: whether it is waiting for a lock with no time limit; None if unknown or there is no lock.
    """
    called = called_frames(thread.frames)
    for frame in called:
        for waiting in WAITINGS:
            if waiting.files is not None and waiting.files.match(_module_file(frame)):
                return waiting.kind
    name = CALL_NAMES.get(call or "")
    for waiting in WAITINGS:
        if name in waiting.calls:
            return waiting.kind
    if called and called[0].name in _LOCKED and all(_LOCKING.match(_module_file(frame)) for frame in called):
        match for_ever:
            case None:
                return Kind.UNKNOWN
            case False:
                return Kind.TIMED
            case True:
                return Kind.LOCK if all(map(_is_idle, others)) else Kind.THREAD
    return Kind.RUNS if thread.idle is False or call == "running" else Kind.UNKNOWN


def hook_thread(others: Sequence[ThreadStack]) -> ThreadStack | None:
    """Return the thread in which autograd calls back into Python during the main thread's backward pass, or None.

    autograd creates its own threads, one per device, so the bottom of a hook's stack has no Python threading frame.
    """
    return next((thread for thread in others if thread.frames[-1].name not in _BOTTOMS), None)


def called_frames(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames called by the user's own line, innermost first."""
    own = next((at for at, frame in enumerate(frames) if not frame.is_library), len(frames))
    return frames[:own]


def _module_file(frame: Frame) -> str:
    """Return a library file's path relative to its install directory, such as ``huggingface_hub/file_download.py``."""
    above = _ABOVE.match(frame.file)
    return frame.file[above.end() :] if above is not None else frame.file


def _is_idle(thread: ThreadStack) -> bool:
    """Check whether a thread cannot release a lock because it is blocked on one itself or waiting for work."""
    if any(_SERVICES.match(_module_file(frame)) for frame in thread.frames):
        return True
    first = thread.frames[0]
    return _LOCKING.match(_module_file(first)) is not None and first.name in _LOCKED | _IDLE_WORKERS

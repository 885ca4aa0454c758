"""Loads the signature tables and their compiled form, from the package and from an on-disk cache.

Parsing and compiling the tables takes about two seconds; loading the compiled form takes milliseconds. Each
engine has one cache, for the most recently used tables. A cache that is missing, damaged, built from other
tables or not writable only costs time.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from supervisor.diagnosis.scan.signature_tables import (
    Signatures,
    digest_of,
    pack,
    parse_tables,
    unpack,
    with_own,
)
from supervisor.diagnosis.scan.windows import (
    Find,
    HyperscanMatcher,
    Matched,
    Matcher,
    Window,
    compile_matcher,
    engine_name,
    load_matcher,
    match_window,
)
from supervisor.run.regular import open_regular

if TYPE_CHECKING:
    from supervisor.job.spec import OwnSignature

_MAGIC = b"stoker-signatures-3\n"


MOST_AHEAD = 4


def match_ahead(find: Find, windows: Iterable[Window]) -> Generator[Matched, None, None]:
    """Match windows ahead of the caller, in a thread. The engine uses this on more than one core.

    Hyperscan releases the GIL, but counting lines does not. On 1 GiB, the caller's work and the engine's work take
    about the same time. The thread exits when the windows run out or the iterator is closed.
    """
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor  # loaded only for large logs

    pool = ThreadPoolExecutor(1, "stoker-scan-ahead")
    ahead: deque[Future[Matched]] = deque()
    try:
        for window in windows:
            ahead.append(pool.submit(match_window, find, window))
            if len(ahead) >= MOST_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Engine(NamedTuple):
    """Everything a scan needs."""

    signatures: Signatures
    matcher: Matcher


def default_cache_dir() -> str | None:
    """Return ``$XDG_CACHE_HOME/stoker`` or ``~/.cache/stoker``, or None if there is no home directory."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "stoker") if os.path.isabs(base) else None


def read_tables() -> dict[str, bytes]:
    """Read this installation's raw tables, keyed by family."""
    from supervisor import diagnosis

    folder = os.path.join(os.path.dirname(os.path.abspath(diagnosis.__file__)), "signatures")
    tables = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".toml"):
            with open_regular(os.path.join(folder, name)) as file:
                tables[name.removesuffix(".toml")] = file.read()
    return tables


def load_engine(cache_dir: str | None = None, own: Sequence[OwnSignature] = ()) -> Engine:
    """Load the signatures and matcher from a valid cache, or build and store them. `own` holds the user's tables."""
    tables = read_tables()
    digest = digest_of(with_own(tables, own))
    path = os.path.join(cache_dir, f"signatures-{engine_name()}.bin") if cache_dir else None
    if path is not None and (stored := _stored(path, digest)) is not None:
        return stored
    signatures = parse_tables(tables, own)
    matcher = compile_matcher(signatures)
    if path is not None and isinstance(matcher, HyperscanMatcher):
        _store(path, pack(signatures), matcher.dump())
    return _engine(signatures, matcher)


def _engine(signatures: Signatures, matcher: Matcher) -> Engine:
    if len(os.sched_getaffinity(0)) >= 2:
        matcher.ahead = match_ahead
    return Engine(signatures, matcher)


def _stored(path: str, digest: str) -> Engine | None:
    try:
        with open_regular(path) as file:
            info = os.fstat(file.fileno())
            # A file written by another user is not our cache, because the engine would trust its bytes.
            if hasattr(os, "getuid") and info.st_uid != os.getuid():
                return None
            raw = file.read()
        if not raw.startswith(_MAGIC):
            return None
        start = len(_MAGIC)
        after = raw.index(b"\n", raw.index(b"\n", start) + 1) + 1
        check, sizes = raw[start : after - 1].split(b"\n")
        body = memoryview(raw)[after:]
        if b"%08x" % zlib.crc32(body) != check:
            return None
        packed_size = int(sizes)
        signatures = unpack(bytes(body[:packed_size]))
        if signatures.digest != digest:
            return None
        return _engine(signatures, load_matcher(bytes(body[packed_size:])))
    except (OSError, ValueError, ImportError):
        return None


def _store(path: str, packed: bytes, database: bytes) -> None:
    import contextlib
    from pathlib import Path

    from supervisor.run.paths import make_private, replace_file

    body = packed + database
    header = _MAGIC + b"%08x" % zlib.crc32(body) + b"\n" + str(len(packed)).encode() + b"\n"
    with contextlib.suppress(OSError):
        make_private(Path(path).parent)
        replace_file(Path(path), header + body)


class EngineLoader:
    """Loads the engine on a thread, started by the constructor or by `begin`. `get` waits for the engine."""

    def __init__(self, *, begin: bool = True, own: Sequence[OwnSignature] = ()) -> None:
        self._own = own
        self._engine: Engine | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="stoker-engine")
        self._begun = False
        if begin:
            self.begin()

    def begin(self) -> None:
        """Start loading, unless it has already started."""
        if not self._begun:
            self._begun = True
            self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether `get` would return immediately. On a busy machine, a first compile has taken 20 s."""
        return self._begun and not self._thread.is_alive()

    def get(self) -> Engine:
        """Return the engine once it is loaded. If loading failed, raise RuntimeError, chained to the cause."""
        self.begin()
        self._thread.join()
        if self._engine is None:
            raise RuntimeError("the signature tables could not be loaded") from self._error
        return self._engine

    def close(self) -> None:
        """Wait for loading to finish. A compile cannot be interrupted, so the process would wait at exit anyway."""
        if self._begun:
            self._thread.join()

    def _load(self) -> None:
        try:
            self._engine = load_engine(default_cache_dir(), self._own)
        except Exception as error:  # noqa: BLE001 - passed on to the caller of `get`
            self._error = error

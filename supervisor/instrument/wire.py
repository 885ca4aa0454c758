"""Write this process's records to ``measured<rank>.jsonl`` in the telemetry folder (docs/telemetry.md).

Records are buffered until training is detected, so a launcher, agent or data worker never writes any. Each record is one line,
written in one call to a file opened just for that, because some scripts close every descriptor they did not open.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import sys
import time

TYPE_CHECKING = False  # importing typing takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

Look = object
"""A generator that `watch` runs around a call. It yields once, receiving the call's result."""

MAX_FILE_BYTES = 8 << 20
"""Above this size, the file is renamed to ``….1``. Two files are kept."""
MAX_KEPT = 2000
"""Maximum number of records buffered before training is detected. Later ones are dropped."""
FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Our files are opened with these: never through a link, and without waiting for the reader of a pipe."""
MAX_NOTES = 20
"""Maximum number of internal errors in a process, after which it stops measuring."""
# A number with such a name is not recorded (a PIN, a numeric password). supervisor/text/secret_values.py has the full rule and
# also checks the value. A test shows that every secret name there is secret here as well.
_SECRET = re.compile(
    r"webhook|^(?!.*_(?:size|len|length|count|dim|limit|max|min|index|idx|rate|loss|bytes|(?<!access_key_)ids?)\d*$).*(?:"
    r"password|passwort|passwd|passphrase|passcode|secret|credential|bearer|authorization"
    r"|(?:keys?|token|tkn|creds?|pwd?|pass|auth)\d*(?:_|$)|(?:^|_)(?:pin|pat|sig|signature|sas|cookies?)[\d_]*$)"
)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def is_secret(name: str) -> bool:
    """Check whether an option, variable or key with this name may hold a secret. Secrets are never recorded."""
    return _SECRET.search(CAMEL.sub("_", name).lower().replace("-", "_").replace(".", "_")) is not None


class Wire:
    """This process's records. `folder` is the telemetry folder."""

    def __init__(self) -> None:
        self.folder: Any = getattr(sys.modules.get(__name__.partition(".")[0]), "telemetry", None)
        self.off = False
        self.reporting = False
        self.pid = os.getpid()
        self.kept: list[dict[str, Any]] = []
        self.notes = 0
        self.argv: Any = None
        self.step = self.passes = 0
        """Optimizer steps and backward passes completed in this process."""
        self.save_s = 0.0
        """Seconds that the main thread has spent in saves since the last step."""
        self.writers: list[Callable[[], None]] = []
        """Functions that write pending records, called periodically and at exit."""
        self.at_start: list[Callable[[], None]] = []

    def record(self, kind: Any, **keys: Any) -> None:
        """Write a record, or buffer it until training is detected. Any of `keys` that is None is omitted."""
        if self.off:
            return
        entry = {"v": 1, "t_wall": time.time(), "t_mono": time.monotonic(), "kind": kind}
        entry.update((name, value) for name, value in keys.items() if value is not None)
        if self.reporting:
            self._write([entry])
        elif len(self.kept) < MAX_KEPT:
            self.kept.append(entry)

    def start_reporting(self, timeout_s: Any = None) -> None:
        """Start reporting once training is detected, but never in a data worker. `timeout_s` is the process group's timeout."""
        if self.off or self.reporting:
            return
        data = sys.modules.get("torch.utils.data")
        if data is not None and data.get_worker_info() is not None:
            self.off = True
            return
        for function in self.at_start:
            with quietly("at_start"):
                function()
        self.reporting = True
        local = os.environ.get("LOCAL_WORLD_SIZE", "")
        ranks = int(local) if local.isdigit() else None
        keys = {"pid": self.pid, "argv": self.argv, "local_world_size": ranks, "timeout_s": timeout_s}
        self.record("phase", phase="loading", **place(), **keys)
        kept, self.kept = self.kept, []
        self._write(kept)
        atexit.register(self._end)

    def forked(self) -> None:
        """Handle a fork. The child of a process that is already reporting records nothing; any other child starts over."""
        if self.reporting:
            self.off = True
        self.pid = os.getpid()

    def note(self, where: str, error: Any) -> None:
        """Record an internal error by its class and location, never its message, which may contain a value."""
        self.notes += 1
        place = error.__traceback__
        while place.tb_next is not None:
            place = place.tb_next
        self.record("note", code=type(error).__name__, where="%s:%s" % (where, place.tb_lineno))
        if self.notes >= MAX_NOTES:
            self.off = True

    def flush(self) -> None:
        """Write pending records."""
        for function in self.writers:
            with quietly("flush"):
                function()

    def _end(self) -> None:
        with quietly("exit"):
            self.flush()
            # Set after an uncaught exception, unset after an exception that the script swallowed.
            name = getattr(getattr(sys, "last_type", None), "__name__", None)
            reason = "exception" if name else "done"
            self.record("exit", step=self.step, passes=self.passes, reason=reason, exception=name)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        if os.getpid() != self.pid:
            return
        import json

        rank = place()["rank"]
        path = os.path.join(self.folder, "measured%d.jsonl" % rank)
        entries = [dict(entry, rank=rank) for entry in entries]
        lines = [json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n" for entry in entries]
        data = "".join(lines).encode("utf-8", "replace")
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | FLAGS, 0o600)
            try:
                size = os.fstat(file).st_size
                if os.write(file, data) < len(data):
                    os.write(file, b"\n")  # the disk is full: end the torn line
            finally:
                os.close(file)
            if size > MAX_FILE_BYTES:
                os.replace(path, path + ".1")
        except OSError:
            return  # no space or no folder: the records are lost, and training continues


wire = Wire()
os.register_at_fork(after_in_child=wire.forked)


class quietly:  # noqa: N801 - it reads as a word of the language
    """Keep our errors out of the script. Ctrl-C and `SystemExit`, which a signal may raise here, belong to the script.

    One instance serves all calls of a wrapper, because a `contextlib` generator per call took a quarter of the hooks' time.
    """

    def __init__(self, where: Any) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _trace: object) -> bool:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):  # it ends a generator
            try:
                wire.note(self.where, error)
            except Exception:  # noqa: BLE001
                wire.off = True
        return isinstance(error, Exception)


def observe(original: Any, look: Callable[..., Any], name: str) -> Any:
    """Observe `original` with the generator `look(args, kwargs)`, which receives the result at its `yield`.

    Code before the `yield` runs before the call, and code after it runs after. If the generator returns early, observation stops.
    A function without a `yield` runs before the call and costs less than half as much. The arguments, result and errors of
    `original` pass through unchanged. If it raises, the generator is closed, so its `finally` block runs.
    """
    ours = quietly(name)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if wire.off:
            return original(*args, **kwargs)
        looking = None
        with ours:
            looking = look(args, kwargs)
            if looking is not None:
                next(looking)
        try:
            result = original(*args, **kwargs)
        except BaseException:  # includes Ctrl-C: raised again below
            if looking is not None:
                with ours:
                    looking.close()
            raise
        if looking is not None and not wire.off:
            with ours:
                looking.send(result)
        return result

    return observed


def watch(owner: Any, name: str, look: Callable[..., Any], *aliases: Any) -> None:
    """Observe `owner.name`, if it exists. `aliases` are other modules that expose it under the same name."""
    original = getattr(owner, name, None)
    if original is None:  # another release
        return
    observed = observe(original, look, name)
    for holder in (owner, *aliases):
        setattr(holder, name, observed)
    if isinstance(owner, type(sys)):
        # The function is pickled by its name, and must be in `os`'s sets of functions.
        observed.__module__ = owner.__name__
        for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if original in known:
                known.add(observed)


def place() -> dict[str, Any]:
    """Return the process group's `rank`, `world_size` and `backend`, or else the launcher's values, or else rank 0.

    Every process in an `sbatch` job has a SLURM_PROCID, but it identifies a rank only if it differs from the keeper's.
    """
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        size, backend = int(group.get_world_size()), str(group.get_backend())
        return {"rank": int(group.get_rank()), "world_size": size, "backend": backend}
    own = (os.environ.get("SLURM_STEP_ID", ""), os.environ.get("SLURM_PROCID", ""))
    names = ["RANK", "LOCAL_RANK"]
    if ":".join(own) != os.environ.get("STOKER_SLURM_STEP", ":"):
        names.append("SLURM_PROCID")
    said = [int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()]
    world = os.environ.get("WORLD_SIZE", "")
    return {"rank": said[0] if said else 0, "world_size": int(world) if world.isdigit() else None}

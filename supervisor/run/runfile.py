"""run.json: the resolved job, written once before the first launch and never changed.

Secrets in the job's own environment variables are written as `REDACTED`. A keeper that adopts the run takes
those values from its own environment, where they have the same names.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from supervisor.job.spec import JobSpec
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.paths import RUN_SCHEMA, replace_file
from supervisor.run.regular import read_regular

SAMPLE_INTERVAL_S = 1.0
"""Seconds between readings of GPUs, host and processes, unless the user sets another interval."""


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How this run's keeper behaves.

    An `interactive` keeper may wait for the user, and pauses before a restart. If `checks`, it runs the first start's
    checks. `shared` means that keepers on several nodes share the run directory; this one belongs to the job's `node_rank`.
    """

    interactive: bool = False
    checks: bool = True
    shared: bool = False
    sample_interval_s: float = SAMPLE_INTERVAL_S


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a keeper needs to supervise a run.

    `path` (with links resolved) and `uid` say where the run directory was created and by whom. They are None in older files.
    """

    run_id: str
    job: JobSpec
    interpreter: str
    settings: KeeperSettings
    created_t: float
    host: str
    user: str
    stoker_version: str
    python_version: str | None = None
    torch_version: str | None = None
    torch_cuda: str | None = None
    torch_hip: str | None = None
    git_commit: str | None = None
    trainer_main: str | None = None
    path: str | None = None
    uid: int | None = None
    schema: int = RUN_SCHEMA

    @property
    def node(self) -> int:
        """The number of this keeper's node folder."""
        return self.job.node_rank if self.settings.shared else 0


class _Schema(msgspec.Struct, frozen=True):
    schema: int = RUN_SCHEMA


class BadRunFile(Exception):  # noqa: N818 - named for what it is
    """run.json is missing or cannot be read. The message is a single line."""


def write_run_file(path: Path, record: RunFile) -> None:
    """Write run.json atomically, readable only by its owner.

    Raises:
        OSError: the folder cannot be written.
    """
    replace_file(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_run_file(path: Path) -> RunFile:
    """Read run.json.

    Raises:
        BadRunFile: the file is missing, incomplete or has a different schema.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise BadRunFile(
            f"{path}: {error.strerror}: this folder is not a run that stoker launched"
        ) from error
    return read_run_stream(data, name=str(path))


def read_run_stream(data: bytes, *, name: str = "stdin") -> RunFile:
    """Decode the record in `data`.

    Raises:
        BadRunFile: the record is incomplete or has a different schema.
    """
    try:
        # Check the schema first, because a newer file may have other fields.
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != RUN_SCHEMA:
            raise BadRunFile(f"{name}: schema {schema} is newer than this stoker: update it")
        return msgspec.json.decode(data, type=RunFile)
    except NOT_DECODED as error:
        raise BadRunFile(f"{name}: not a run file of this version: {error}") from error

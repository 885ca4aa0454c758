"""The user's own ``[[signature]]`` tables, from ./stoker.toml and the user's settings, for verbs that start no job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from supervisor.cli.common import user_settings
from supervisor.run.regular import read_regular

if TYPE_CHECKING:
    from supervisor.job.spec import ClassOverride, OwnSignature

MAX_SETTINGS_BYTES = 4 << 20


def settings_files(env: Mapping[str, str]) -> list[str]:
    """The settings files that are there, the nearest first."""
    return [path for path in ("stoker.toml", str(user_settings(env))) if os.path.isfile(path)]


def own_rules_in(paths: list[str]) -> dict[OwnSignature, ClassOverride | None]:
    """The signatures of settings files, with what policy does about each; of one id, the first file's.

    Raises:
        JobError: a file cannot be read, or a table does not fit.
    """
    texts = {}
    for path in paths:
        try:
            data = read_regular(path, MAX_SETTINGS_BYTES)
        except OSError as error:
            from supervisor.job.errors import JobError

            raise JobError(f"{path}: {error.strerror or error}") from None
        # Most have none: then nothing is imported to parse them.
        if b"signature" in data:
            texts[path] = data
    if not texts:
        return {}
    from supervisor.job.config.files import parse_config
    from supervisor.job.config.setting_keys import SIGNATURE
    from supervisor.job.config.settings import ConfigFile, nearest_signatures, own_signatures
    from supervisor.run.failures import FailureClass

    classes = frozenset(str(failure) for failure in FailureClass)
    files = [
        ConfigFile(path, parse_config(path, data), data.decode("utf-8", "replace"))
        for path, data in texts.items()
    ]
    return nearest_signatures(
        own_signatures(file, file.values[SIGNATURE], classes)
        for file in files
        if file.values.get(SIGNATURE) is not None
    )

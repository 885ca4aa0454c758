"""The settings of a script's DataLoader that cost host memory: workers, prefetch, pinning, sharing."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.job.arguments.assignments import names_of, value_of
from supervisor.job.knobs.batch_settings.names import words_of
from supervisor.job.knobs.places import Places, bare, is_argument
from supervisor.job.spec import LoaderKnobs

FILE_SYSTEM = "file_system"


def find_loader(args: Sequence[str], elsewhere: Places | None = None) -> LoaderKnobs:
    """The DataLoader's knobs on the command line, in config files, in the source and in the environment."""
    where = elsewhere or Places()
    found: dict[str, tuple[str, str]] = {}
    for name in [*names_of(args), *where.names()]:
        kind = _kind(name)
        given = value_of(args, name) if is_argument(name) else None
        value = given if given is not None else where.value(name)
        if kind and kind not in found and value is not None:
            found[kind] = (name, str(value))
    flag = next(
        (f for f in where.source.flags if _kind(f.names[-1]) == "sharing" and FILE_SYSTEM in f.choices), None
    )
    if flag is not None and "sharing" not in found:
        found["sharing"] = (flag.names[-1], str(flag.default or ""))
    workers, prefetch = _number(found.get("workers")), _number(found.get("prefetch"))
    pinned = found.get("pinned")
    on = pinned[1].lower() if pinned else ""
    return LoaderKnobs(
        workers=workers,
        prefetch=prefetch,
        pinned=(pinned[0], on in {"true", "1", "yes"})
        if pinned and on in {"true", "false", "1", "0", "yes", "no"}
        else None,
        sharing=found.get("sharing"),
    )


def _kind(name: str) -> str | None:
    words = words_of(bare(name))
    if words[-1:] == ["workers"]:
        return "workers"
    if "prefetch" in words and words[-1] in {"factor", "prefetch"}:
        return "prefetch"
    if words[-2:] == ["pin", "memory"]:
        return "pinned"
    if "sharing" in words and words[-1] in {"strategy", "sharing"}:
        return "sharing"
    return None


def _number(found: tuple[str, str] | None) -> tuple[str, int] | None:
    if found is None or not (found[1].isascii() and found[1].isdigit()):
        return None
    return found[0], int(found[1])

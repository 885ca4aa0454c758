"""Makes the keeper for a run on this node."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.keeper.loop import Group, Keeper
from supervisor.run.node_files import LEADER
from supervisor.run.paths import RunPaths
from supervisor.run.records import Finding
from supervisor.run.runfile import RunFile


def make_keeper(
    run: RunPaths,
    record: RunFile,
    *,
    env: Mapping[str, str],
    findings: tuple[Finding, ...] = (),
    continued_by: str = "",
) -> Keeper:
    """The keeper of a run on one machine, or on this node of several.

    Raises:
        LockTaken, OSError: as `Keeper`.
    """
    group: Group | None = None
    if record.settings.shared and record.node == LEADER:
        from supervisor.keeper.leader import Leading

        group = Leading(run, record, continued_by=continued_by)
    elif record.settings.shared:
        from supervisor.keeper.follower import Following, quiet

        record, continued_by = quiet(record), ""
        group = Following(run, record)
    return Keeper(run, record, env=env, findings=findings, continued_by=continued_by, group=group)

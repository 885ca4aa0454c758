"""Which keeper a run has on this node."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.keeper.loop import Keeper
from supervisor.run.nodes import LEADER
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
    if not record.settings.shared:
        return Keeper(run, record, env=env, findings=findings, continued_by=continued_by)
    if record.node == LEADER:
        from supervisor.keeper.leader import LeadingKeeper

        return LeadingKeeper(run, record, env=env, findings=findings, continued_by=continued_by)
    from supervisor.keeper.follower import FollowingKeeper

    return FollowingKeeper(run, record, env=env, findings=findings)

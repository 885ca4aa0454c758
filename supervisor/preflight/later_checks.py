"""The checks that no start waits for, in a module of their own: a start need not even load what they look with."""

from __future__ import annotations

from typing import Final

from supervisor.preflight import collective, gpus, host, meeting, network, target
from supervisor.preflight.context import Check

# Made by the keeper beside the start, and by `stoker check`: they ask other programs, drivers or name servers. None refuses.
BESIDE: Final[tuple[Check, ...]] = (
    gpus.check_gpus,
    target.check_batch_memory,
    host.check_host_memory,
    host.check_checkpoint_space,
    network.check_master,
    network.check_interfaces,
    host.check_clock,
    host.check_stacks,
)
# Made only when asked for (`--deep`): they take seconds.
ASKED: Final[tuple[Check, ...]] = (
    target.check_launcher_flags,
    target.check_data_through,
    meeting.check_meeting,
    meeting.check_shared_clock,
    collective.check_collective,
    collective.check_nodes_meet,
)

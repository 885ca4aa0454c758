"""How many ranks a launcher of the user's own starts, as its arguments say it.

Read of one machine's launchers, whose count is the whole world: ``accelerate launch --num_processes``
(accelerate/commands/launch.py), ``deepspeed --num_gpus`` (deepspeed/launcher/runner.py), ``torchrun --nproc-per-node``.
On the CPU accelerate starts one process, whatever the count (launch.py, ``simple_launcher``), unless mpirun does.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from supervisor.job.arguments.assignments import value_of

_COUNTS: Final = {
    "accelerate": "--num_processes",
    "deepspeed": "--num_gpus",
    "torchrun": "--nproc-per-node",
    "torch.distributed.run": "--nproc-per-node",
    "torch.distributed.launch": "--nproc-per-node",
}
_MACHINES: Final = ("--num_machines", "--num_nodes", "--nnodes", "--hostfile", "--mpirun_hostfile")
_ON_CPU: Final = frozenset({"--cpu", "--use_cpu", "--use-cpu"})


def launched_ranks(words: Sequence[str]) -> int | None:
    """The ranks that a command line starts; None where no launcher is known, or its count, or it is one of several machines.

    Args:
        words: program and arguments; what stands behind the script is the script's own.
    """
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    own = tuple(words[:script])
    flag = next((_COUNTS[name] for word in own if (name := posixpath.basename(word)) in _COUNTS), None)
    if flag is None or any((value_of(own, name) or "1") not in {"1", "1:1"} for name in _MACHINES):
        return None
    if flag == _COUNTS["accelerate"] and not _ON_CPU.isdisjoint(own):
        return 1
    given = value_of(own, flag) or ""
    return int(given) if given.isascii() and given.isdigit() and 0 < len(given) < 7 and int(given) else None

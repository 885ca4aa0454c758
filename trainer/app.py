"""The command ``python -m trainer``: reads settings, trains, and turns every end into an exit code.

Nothing heavy is imported before the settings are known to be right.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from trainer.config import Config, UsageError, plan_batch
from trainer.distributed.place import detect
from trainer.faults import parse
from trainer.settings import help_text, read

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> NoReturn:
    """Runs the trainer and exits: 0 done, 1 failed, 2 usage, 75 stopped after a checkpoint."""
    if {"-h", "--help"} & set(argv):
        print(help_text())
        sys.exit(0)
    try:
        effective = read(argv)
        config = effective.config
        if config.distributed and "RANK" not in os.environ and config.world_size > 1:
            from trainer.distributed.spawn import spawn_ranks

            sys.exit(spawn_ranks(config.world_size))
        for warning in effective.warnings if _rank() == "0" else ():
            print(f"trainer: {warning}", file=sys.stderr)
        # What the environment alone shows to be wrong costs no import of torch.
        plan_batch(config, detect(os.environ, config).world_size)
        parse(config.fault)
        _answer_stacks(os.environ)
        execute = _heavy()
    except UsageError as error:
        _refuse(str(error))
    _leave(execute, config)


def _answer_stacks(environ: Mapping[str, str]) -> None:
    """Lets a supervisor ask this rank where it is: Python's faulthandler on SIGUSR2, into a file that the supervisor knows.

    The handler is C and writes even while the interpreter waits in a collective. The file is ``stacks/<pid>.txt`` beside the
    telemetry folder (docs/telemetry.md). Without such a folder, or if it cannot be written, nothing is registered.
    """
    telemetry = environ.get("STOKER_TELEMETRY_DIR", "")
    if not telemetry or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    folder = Path(telemetry).parent / "stacks"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Kept open for the life of the process: the handler writes to its descriptor.
        file = (folder / f"{os.getpid()}.txt").open("ab", buffering=0)
    except OSError:
        return
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)


def _heavy() -> Callable[[Config], int]:
    """Imports torch and what needs it."""
    try:
        import numpy as np  # noqa: F401 - its absence is said in one line
        from torch.distributed.elastic.multiprocessing.errors import record
    except ImportError as error:
        raise UsageError(
            f"{sys.executable} has no {error.name}: pip install torch numpy, or choose another Python"
        ) from None
    from trainer.build import execute

    def guarded(config: Config) -> int:
        try:
            return execute(config, dict(os.environ))
        except UsageError as error:
            _refuse(str(error))

    # torchrun reads the error file that `record` writes, and names its rank as the cause.
    recorded = record(guarded)
    return lambda config: recorded(config) or 0  # `record` returns None for SystemExit(0)


def _leave(execute: Callable[[Config], int], config: Config) -> NoReturn:
    try:
        code = execute(config)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        _exit_now(EXIT_INTERRUPTED)
    except BaseException as error:  # noqa: BLE001 - the last frame: whatever it is, it is shown and ends the rank
        # torch's hook puts [rankN] before each line. After it no destructor may wait for a peer or abort
        # (1 of 8 ranks ended by SIGABRT after its own traceback): leave at once, with a plain exit code.
        sys.excepthook(type(error), error, error.__traceback__)
        _exit_now(EXIT_FAILED)
    # All is written and the group is gone. Measured: with the clean end of `execute` alone, 1 of about 25
    # healthy gloo runs still aborted ("terminate called without an active exception", in a static destructor,
    # no Python frame left); without the interpreter's teardown there is nothing left to abort.
    _exit_now(code)


def _rank() -> str:
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))


def _refuse(message: str) -> NoReturn:
    """A line for each error from the first rank of every host, since a file may be missing on one host alone; exit 2 from every rank."""
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0":
        who = "trainer" if _rank() == "0" else f"trainer: rank {_rank()} on {platform.node()}"
        sys.stderr.write("".join(f"{who}: {line}\n" for line in message.split("\n")))
    _exit_now(EXIT_USAGE)


def _exit_now(code: int) -> NoReturn:
    # Data loading processes notice a parent's end after 5 s only.
    for child in multiprocessing.active_children():
        child.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

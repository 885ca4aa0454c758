# ruff: noqa: INP001 - a folder on PYTHONPATH, no package of ours
"""Put before everything else on PYTHONPATH when ``[hang] faulthandler`` is on: a rank can then be asked for its stacks.

Registers Python's faulthandler on SIGUSR2, into ``<attempt>/stacks/<pid>.txt``: its handler is C and writes even while
the interpreter waits in a collective (docs.python.org/3/library/faulthandler.html). A script that takes the signal
for itself later wins: the signal is then never sent. The environment's own sitecustomize runs as it would have.
"""

import contextlib
import os
import sys


def _register() -> None:
    telemetry = os.environ.get("STOKER_TELEMETRY_DIR")
    if not telemetry or "LOCAL_RANK" not in os.environ:
        return
    with open(f"/proc/{os.getppid()}/environ", "rb") as parent:
        if b"\0LOCAL_RANK=" in parent.read():
            return  # a data worker or a compiler of a rank, not the rank
    import faulthandler
    import signal

    if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    folder = os.path.join(os.path.dirname(telemetry), "stacks")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    file = open(os.path.join(folder, f"{os.getpid()}.txt"), "ab", buffering=0)  # noqa: SIM115 - open for ever
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)
    # faulthandler keeps the file, and with it the descriptor that its handler writes to.


def _run_the_next_one() -> None:
    """The sitecustomize that this one hides, if there is one."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


with contextlib.suppress(Exception):  # nothing here may keep a training from starting
    _register()
_run_the_next_one()

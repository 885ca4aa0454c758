# ruff: noqa: INP001 - a folder on PYTHONPATH, not a package of ours
"""Cause one failure in one rank of a rehearsal, once the file ``fire`` appears in its scratch folder.

``STOKER_REHEARSAL`` names that folder. Nothing happens in a run directory outside of it, in a later attempt, or without ``fault.json``
there: ``{"fault": "oom" | "kill" | "hang" | "nan", "rank": R}``. The failure comes in the next forward pass of a training step.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_POLL_S = 0.02
_OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB (caused by stoker rehearse)"


def _arm():  # type: () -> None
    """Start the thread that waits for the file, in the planned rank of the first attempt."""
    import json
    import threading

    scratch = os.path.realpath(os.environ["STOKER_REHEARSAL"])
    run = os.path.realpath(os.environ.get("STOKER_RUN_DIR", "/"))
    if os.path.commonpath([scratch, run]) != scratch or os.environ.get("STOKER_ATTEMPT") != "1":
        return
    with open(os.path.join(scratch, "fault.json")) as file:
        plan = json.load(file)
    rank = next((os.environ[name] for name in ("RANK", "LOCAL_RANK") if name in os.environ), "0")
    with open("/proc/%d/environ" % os.getppid(), "rb") as parent:
        is_helper = b"\0RANK=" in b"\0" + parent.read()  # a data worker or compiler of the rank
    if rank == str(plan["rank"]) and not is_helper:
        fire = os.path.join(scratch, "fire")
        threading.Thread(target=_wait, args=(fire, plan["fault"]), daemon=True).start()


def _wait(fire, fault):  # type: (str, str) -> None
    """Wait for the file, then watch the next forward pass. No hook is there before, because a compiled model would notice it."""
    import time

    while not os.path.exists(fire):
        time.sleep(_POLL_S)
    module = sys.modules.get("torch.nn.modules.module")
    if module is None:
        return
    torch = sys.modules["torch"]
    done = []  # type: list[int]

    def cause(model, _inputs):  # type: ignore[no-untyped-def]
        if (
            done
            or not model.training
            or not torch.is_grad_enabled()
            or next(model.parameters(), None) is None
        ):
            return
        done.append(1)
        hook.remove()
        if fault == "oom":
            raise getattr(torch, "OutOfMemoryError", RuntimeError)(_OUT_OF_MEMORY)
        if fault == "nan":
            with torch.no_grad():
                for weights in model.parameters():
                    weights.fill_(float("nan"))
        elif fault == "kill":
            os.kill(os.getpid(), 9)
        else:
            while True:
                time.sleep(60)

    hook = module.register_module_forward_pre_hook(cause)


def _run_the_next_one():  # type: () -> None
    """Run the sitecustomize module that this one shadows, if there is one."""
    import _frozen_importlib
    import _frozen_importlib_external

    paths = [os.path.abspath(path or ".") for path in sys.path]
    after = sys.path[paths.index(_HERE) + 1 :] if _HERE in paths else sys.path
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", after)
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        module = _frozen_importlib.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("STOKER_REHEARSAL"):
    try:
        _arm()
    except BaseException as error:  # noqa: BLE001 - a rehearsal that causes nothing says so at its end
        print("stoker rehearse: no failure can be caused here: %r" % error, file=sys.stderr)
_run_the_next_one()

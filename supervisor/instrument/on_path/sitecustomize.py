# ruff: noqa: INP001 - a folder on PYTHONPATH, not a package of ours
"""Start stoker's instrumentation in every Python process of a job. The launch plan puts this folder first on PYTHONPATH.

``STOKER_INSTRUMENT=0`` turns off measurements. ``STOKER_FAULTHANDLER=1`` turns on Python's faulthandler in either case.
The environment's own sitecustomize, which this module shadows, always runs, exactly as it would without stoker.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_stoker_instrument"


def _start(telemetry):  # type: (str) -> None
    """Load just the finder. A process that imports neither a parser nor torch pays for only one small module."""
    try:  # noqa: SIM105 - contextlib would be one more import
        # This tells stoker that a process of the attempt was measured.
        os.mkdir(os.path.join(telemetry, "instrumented"), 0o700)
    except OSError:
        pass
    package = type(sys)(_PACKAGE)
    vars(package).update(__path__=[os.path.dirname(_HERE)], telemetry=telemetry)
    sys.modules[_PACKAGE] = package
    __import__(_PACKAGE + ".imports")
    sys.modules[_PACKAGE + ".imports"].start()


def _register_faulthandler(telemetry):  # type: (str) -> None
    """Make a rank dump its stacks to ``<attempt>/stacks/<pid>.txt`` on SIGUSR2.

    faulthandler's handler is written in C, so it works even while the interpreter is waiting in a collective
    (docs.python.org/3/library/faulthandler.html). If the script later installs its own handler, stoker never sends the signal.
    """
    if "LOCAL_RANK" not in os.environ:
        return
    with open("/proc/%d/environ" % os.getppid(), "rb") as parent:
        if b"\0LOCAL_RANK=" in parent.read():
            return  # a rank's data worker or compiler, not the rank
    import faulthandler
    import signal

    if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    folder = os.path.join(os.path.dirname(telemetry), "stacks")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    file = open(os.path.join(folder, "%d.txt" % os.getpid()), "ab")  # noqa: SIM115 - open for ever
    faulthandler.register(signal.SIGUSR2, file=file)
    # faulthandler keeps the file open, and with it the descriptor that its handler writes to.


def _quietly(function, telemetry):  # type: (object, str) -> None
    """Run `function`. Errors are written to the instrumentation log, because they must never keep training from starting."""
    try:
        function(telemetry)  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001 - whatever it is, the training goes on
        try:
            os.makedirs(telemetry, mode=0o700, exist_ok=True)
            path = os.path.join(telemetry, "instrument.log")
            with open(path, "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
                log.write("%d %s: %s\n" % (os.getpid(), type(error).__name__, error))
        except BaseException:  # noqa: BLE001, S110
            pass


def _run_the_next_one():  # type: () -> None
    """Run the sitecustomize module that this one shadows, if there is one."""
    import _frozen_importlib  # importlib.util has the same, but importing it takes 4 ms
    import _frozen_importlib_external

    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = _frozen_importlib.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_folder = os.environ.get("STOKER_TELEMETRY_DIR")
if _folder:
    if os.environ.get("STOKER_FAULTHANDLER") == "1":
        _quietly(_register_faulthandler, _folder)
    if os.environ.get("STOKER_INSTRUMENT", "1") == "1":
        _quietly(_start, _folder)
_run_the_next_one()

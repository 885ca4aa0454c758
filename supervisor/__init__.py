"""stoker's supervisor: launches torchrun, watches it, says why it failed, restarts it smaller."""

import os

__version__ = "0.1.0"

# The package at the top: `supervisor` in a checkout, `stoker` where it is installed.
_TOP = __name__.partition(".")[0]
_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * __name__.count("."), "__init__.py")

LOAD_THIS_COPY = f"""\
import importlib.util, sys
spec = importlib.util.spec_from_file_location({_TOP!a}, {os.path.normpath(_FILE)!a})
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
"""
"""The first code that our child processes run (``python -P -c``). It imports the copy of stoker that started them,
whatever else is installed or in the working directory, without adding to the job's ``sys.path`` or PYTHONPATH.
"""

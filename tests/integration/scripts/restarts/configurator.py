"""Executed by ``globals.py``: ``--key=value`` sets a variable of its."""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    key, val = arg[2:].split("=")
    if key not in globals():
        raise ValueError(key)
    globals()[key] = val if isinstance(globals()[key], str) else literal_eval(val)

"""Entry of the trainer: ``python -m trainer``, ``torchrun -m trainer``, or this file by its path.

By path (as stoker launches it, with PYTHONSAFEPATH=1) nothing on ``sys.path`` leads to this package, and a
user's own ``trainer.py`` must not win. The package is then loaded from this file's folder. This stands at
module level, because spawned children run this file again before they unpickle anything of ours.
"""

from __future__ import annotations

import importlib.util
import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - stoker may launch this under any interpreter that has torch
    sys.stderr.write(
        "trainer: needs Python 3.11 or newer, this is %s (%s): choose another with --python\n"  # noqa: UP031
        % (sys.version.split()[0], sys.executable)
    )
    sys.exit(2)

if not __package__:
    _here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0] or ".") == _here:
        del sys.path[0]  # a script's own folder: `data`, `model` and so on are no top-level modules
    _loaded = sys.modules.get("trainer")
    if _loaded is None or list(getattr(_loaded, "__path__", ())) != [_here]:
        _spec = importlib.util.spec_from_file_location(
            "trainer", os.path.join(_here, "__init__.py"), submodule_search_locations=[_here]
        )
        if _spec is None or _spec.loader is None:
            sys.exit("trainer: %s is not a package folder" % _here)  # noqa: UP031
        _module = importlib.util.module_from_spec(_spec)
        sys.modules["trainer"] = _module
        _spec.loader.exec_module(_module)

if __name__ == "__main__":
    if sys.argv[1:2] == ["data"]:  # `python -m trainer.data` for those who know this file's path alone
        from trainer.data.__main__ import main as data_main

        try:
            sys.exit(data_main(sys.argv[2:]))
        except KeyboardInterrupt:
            sys.exit(130)

    if sys.argv[1:2] == ["sample"]:
        from trainer.sample import main as sample_main

        try:
            sys.exit(sample_main(sys.argv[2:]))
        except KeyboardInterrupt:
            sys.exit(130)

    from trainer.app import main

    main(sys.argv[1:])

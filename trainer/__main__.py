"""Entry of the trainer: ``python -m trainer``, ``torchrun -m trainer`` (installed: ``stoker.trainer``), or this file by its path.

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
    # From this package up to the one at the top: installed, that is `stoker`. `site-packages` may hold an __init__.py too.
    _folders, _above = [_here], os.path.dirname(_here)
    while os.path.isfile(os.path.join(_above, "__init__.py")) and os.path.basename(_above).isidentifier():
        _folders, _above = [*_folders, _above], os.path.dirname(_above)
    for _at in reversed(range(len(_folders))):
        _name = ".".join(os.path.basename(_folder) for _folder in reversed(_folders[_at:]))
        if list(getattr(sys.modules.get(_name), "__path__", ())) == [_folders[_at]]:
            continue
        _spec = importlib.util.spec_from_file_location(_name, os.path.join(_folders[_at], "__init__.py"))
        if _spec is None or _spec.loader is None:
            sys.exit("trainer: %s is not a package folder" % _folders[_at])  # noqa: UP031
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])

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

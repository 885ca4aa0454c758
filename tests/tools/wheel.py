"""The wheel, and environments that have it installed: for the tests of the installed program, and for `make wheel-test`.

    python tests/tools/wheel.py FOLDER [--short-names]

builds the wheel and makes the environment FOLDER with it. An environment shares the libraries of this interpreter (torch alone
is some hundred MB) by a path file, which leads to packages and not to the checkout: path files in a folder that is named by a
path file are not read. With `--short-names` each process in it knows `stoker.supervisor` as `supervisor` and `stoker.trainer` as
`trainer` too, the same module objects: so the tests of the checkout exercise the installed package.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SHORT_NAMES = '''\
import importlib, sys
from importlib.machinery import ModuleSpec


class Alias:
    """Loads `supervisor.x` as the module `stoker.supervisor.x`."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"supervisor", "trainer"}:
            return None
        try:
            real = importlib.import_module(f"stoker.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"stoker.{name}":
                raise
            raise ModuleNotFoundError(f"No module named {name!r}", name=name) from None
        spec = ModuleSpec(name, self, origin=real.__file__, is_package=hasattr(real, "__path__"))
        spec.real, spec.its_own = real, real.__spec__
        return spec

    def create_module(self, spec):
        return spec.real

    def exec_module(self, module):
        given, module.__spec__ = module.__spec__, module.__spec__.its_own
        assert module.__name__ == f"stoker.{given.name}"

    def get_code(self, name):  # python -m
        real = importlib.import_module(f"stoker.{name}")
        return real.__spec__.loader.get_code(real.__name__)


sys.meta_path.insert(0, Alias())
'''


def build(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel of `source` (a checkout, or an unpacked sdist) into `folder`, by pip, as a user would.

    Raises:
        subprocess.CalledProcessError: it cannot be built; without network hatchling cannot be had. `stderr` says so.
    """
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("stoker-*.whl")
    return wheel


def pip(*args: str, python: Path | str = sys.executable) -> None:
    """Run pip, quietly.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *args],
        check=True, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def environment(folder: Path) -> Path:
    """Make an environment without stoker, with the one program that stoker looks for beside its interpreter; its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    if (py_spy := Path(sys.executable).with_name("py-spy")).exists():
        (folder / "bin" / "py-spy").symlink_to(py_spy)
    (site,) = folder.glob("lib/python*/site-packages")
    libraries = dict.fromkeys(path for path in sys.path if Path(path).name == "site-packages")
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def main(folder: Path, *, short_names: bool) -> None:
    """Make the environment `folder` with the wheel in it."""
    python = environment(folder)
    pip("install", "--no-deps", "--no-index", str(build(folder / "wheel")), python=python)
    if short_names:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "stoker_short_names.py").write_text(SHORT_NAMES, encoding="utf-8")
        (site / "stoker_short_names.pth").write_text("import stoker_short_names\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), short_names="--short-names" in sys.argv)

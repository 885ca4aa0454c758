"""The words of a package's kinds, as they stand in files, in settings and on the screen."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil


def words_of_kinds(package: str) -> dict[str, str]:
    """Each `StrEnum` of a package by its name, with its values in order."""
    found = {}
    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        module = importlib.import_module(info.name)
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, enum.StrEnum) and kind.__module__ == module.__name__:
                found[name] = " ".join(str(word) for word in kind)
    return found

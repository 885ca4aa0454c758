"""Errors that are told in one line; modules that may not import torch raise them too."""

from __future__ import annotations


class DataError(Exception):
    """The data cannot be used: file, place and reason in one line."""

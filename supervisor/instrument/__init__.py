"""Measure a training run from inside its process and write events. Never changes or stops the training.

Limited to the standard library and Python 3.8 syntax, since the job has its own interpreter. This package and the
rest of stoker never import each other: `on_path/`, which is first on PYTHONPATH, loads this folder as ``_stoker_instrument``.
docs/instrumentation.md lists every patch, and docs/telemetry.md describes the records.
"""

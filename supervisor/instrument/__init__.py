"""Measure a training run from inside its process and write events. Never change or stop the training.

Standard library only, Python 3.8 syntax, because the job's interpreter is not stoker's. Nothing here imports the rest of stoker,
and stoker imports nothing from this package: `on_path/`, first on ``PYTHONPATH``, loads this folder as ``_stoker_instrument``.
docs/instrumentation.md lists every patch. docs/telemetry.md describes the records.
"""

"""What runs inside a training process: it measures, writes facts, and never changes or ends the training.

Standard library only, Python 3.8 syntax: the job's interpreter is not stoker's. Nothing here imports the rest of stoker, and
stoker imports nothing from here: `on_path/`, first on ``PYTHONPATH``, loads this folder under the name ``_stoker_instrument``.
docs/instrumentation.md lists every patch; docs/telemetry.md has the records.
"""

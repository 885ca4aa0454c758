#!/bin/sh
# The demo: uses a torch that can already be imported (PYTHON=… or an active environment), else installs one.
set -eu
cd "$(dirname "$0")/.."
target=.venv/bin/python
if [ ! -e .venv/.installed ] && "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("torch") and u.find_spec("numpy")))' 2>/dev/null; then
    # A user's own torch: only the supervisor is installed, beside it.
    test -x .venv/bin/python || "$PYTHON" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ${PIP_ARGS:-} -e .
    target=$("$PYTHON" -c 'import sys; print(sys.executable)')
else
    make --no-print-directory install PYTHON="$PYTHON" PIP_ARGS="${PIP_ARGS:-}"
fi
if [ -t 0 ] && [ -t 1 ]; then
    exec .venv/bin/stoker run --python "$target" --config configs/demo/demo.toml
fi
exec .venv/bin/stoker run --python "$target" --config configs/demo/demo.toml --no-ui

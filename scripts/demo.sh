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
screen=--no-ui
if [ -t 0 ] && [ -t 1 ]; then
    screen=
fi
trap : INT # stoker answers Ctrl-C; what follows is printed all the same
status=0
.venv/bin/stoker run --python "$target" --config configs/demo/demo.toml $screen || status=$?
echo
echo 'stoker is installed in .venv. Start it with `.venv/bin/stoker`, or run `source .venv/bin/activate` first, then `stoker`.'
exit $status

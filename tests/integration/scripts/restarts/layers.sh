#!/bin/bash
set -eu
PROFILE=${1:-small}
exec env RUN_PROFILE="$PROFILE" bash inner.sh --output-dir out

#!/bin/bash
set -eu
case "$RUN_PROFILE" in large) SIZES="16 2" ;; *) SIZES="4 1" ;; esac
read -r MICRO PASSES <<< "$SIZES"
ARGS=(--mbs "$MICRO" --ga "$PASSES" --heads 4)
torchrun --standalone --nproc-per-node 2 layers.py "${ARGS[@]}" "$@"

#!/bin/bash
set -eu
case "$PROFILE" in
    options)
        read -r MICRO PASSES <<< "16 2"
        ARGS=(layers.py --mbs "$MICRO" --ga "$PASSES" --heads 4)
        ;;
    variables)
        export BATCH=16 ACCUM=2
        ARGS=(environ.py)
        ;;
    file)
        ARGS=(settings.py settings.yaml)
        ;;
esac
torchrun --standalone --nproc-per-node 2 "${ARGS[@]}" "$@"

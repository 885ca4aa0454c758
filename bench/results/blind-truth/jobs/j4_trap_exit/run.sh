#!/bin/bash
set -e
SCRATCH=$(mktemp -d)
cleanup() { rm -rf "$SCRATCH"; echo "scratch removed"; exit 0; }
trap cleanup EXIT
echo "staging to $SCRATCH"
python3 train_lora.py --output "$SCRATCH" --steps 20 --lora-rank 16
cp -r "$SCRATCH" out

#!/bin/bash
# The GPUs of this machine are not quite stable; try up to three times.
for attempt in 1 2 3; do
  python train.py --max-steps 24 --resume auto && break
  echo "train.py ended with $?, attempt $attempt of 3, trying again in 1 s"
  sleep 1
done

#!/bin/bash
# one process a host
PATH="$PWD/bin:$PATH"
pdsh -w gpu-a,gpu-b python train.py --max-steps 200

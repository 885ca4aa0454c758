#!/bin/bash
# usage: bash train.sh
export OMP_NUM_THREADS=1
mkdir -p logs
torchrun --standalone --nproc_per_node=2 train.py --steps 30 2>&1 | tee logs/train.log

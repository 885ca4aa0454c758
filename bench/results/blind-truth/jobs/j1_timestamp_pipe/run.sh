#!/bin/bash
# our cluster's house style: a time before each line, one file a job
export PYTHONUNBUFFERED=1
python3 finetune.py 2>&1 | while IFS= read -r line; do
    printf '%(%Y-%m-%d %H:%M:%S)T %s\n' -1 "$line"
done | tee finetune_stamped.txt

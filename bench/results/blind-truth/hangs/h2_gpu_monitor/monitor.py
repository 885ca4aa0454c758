"""What `nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used --format=csv,noheader -l 2` prints."""

import os
import random
import time

parent = os.getppid()
for _ in range(120):
    now = time.strftime("%Y/%m/%d %H:%M:%S") + f".{random.randrange(1000):03d}"
    for gpu in (0, 1):
        print(f"{now}, {gpu}, {random.randrange(96, 101)} %, {71000 + random.randrange(300)} MiB", flush=True)
    time.sleep(2.0)
    if os.getppid() != parent:
        break

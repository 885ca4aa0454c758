import os
import sys
import time

node, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
if node == 0:
    sys.path.insert(0, "site-gpu-a")  # what only the first host has installed
else:
    time.sleep(0.5)

import bpe_fast  # noqa: E402, F401

print(f"node {node} of {nodes}: waiting for the others at gpu-a:29500", flush=True)
time.sleep(4)
raise TimeoutError(f"Timed out after 4 seconds waiting for clients. 1/{nodes} clients joined.")

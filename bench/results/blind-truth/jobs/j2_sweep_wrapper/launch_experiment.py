"""The group's experiment starter: names a folder, starts the training, tidies up. It never looks at the status."""

import os
import subprocess
import sys

os.makedirs("exp/lr3e-4", exist_ok=True)
print("[exp] starting lr3e-4", flush=True)
subprocess.call([sys.executable, "train.py", "--lr", "3e-4"])
print("[exp] lr3e-4 finished, copying configuration", flush=True)
with open("exp/lr3e-4/args.txt", "w") as f:
    f.write("--lr 3e-4\n")
print("[exp] all done", flush=True)

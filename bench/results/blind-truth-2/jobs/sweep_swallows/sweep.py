"""Tries three widths, one after the other, and keeps the best."""

import json
import time
import traceback

from model import train

results = {}
for width in (256, 512, 1024):
    print(f"=== width {width} ===", flush=True)
    try:
        results[width] = train(width, steps=25)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        print(f"width {width} failed, going on", flush=True)
    time.sleep(0.2)

best = min(results, key=results.get)
with open("sweep.json", "w") as f:
    json.dump(results, f)
print(f"sweep finished, best width: {best}", flush=True)

import argparse
import json
import os
import time

p = argparse.ArgumentParser()
p.add_argument("--max-steps", type=int, default=24)
p.add_argument("--resume", default="no")
args = p.parse_args()

start, tries = 0, 0
if args.resume == "auto" and os.path.exists("state.json"):
    with open("state.json") as f:
        state = json.load(f)
    start, tries = state["step"], state["tries"]
    print(f"resumed from state.json at step {start}", flush=True)
for step in range(start + 1, args.max_steps + 1):
    time.sleep(0.15)
    if step == 9 and tries == 0:
        raise RuntimeError(
            "CUDA error: an illegal memory access was encountered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
            "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        )
    print(f"step {step}/{args.max_steps}: loss={3 / (1 + step):.4f}, grad_norm=0.71", flush=True)
    if step % 6 == 0:
        with open("state.json", "w") as f:
            json.dump({"step": step, "tries": 1}, f)
        print(f"saved checkpoint at step {step}", flush=True)
print("training finished", flush=True)

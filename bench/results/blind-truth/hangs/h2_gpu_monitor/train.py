"""The worker that should write the next batch into the pipe has gone; the training reads for ever from step 18 on."""

import os
import signal
import time

signal.alarm(200)  # only so that nothing outlives this test by long
r, w = os.pipe()
for step in range(1, 101):
    if step < 18:
        os.write(w, b"batch")
    os.read(r, 5)
    time.sleep(0.4)
    print(f"step {step}/100 train loss {2.5 - step * 0.01:.4f}", flush=True)

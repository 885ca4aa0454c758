"""The logger's thread and the training thread take the same two locks in the opposite order."""

import threading
import time

metrics, files = threading.Lock(), threading.Lock()
STEPS = 300
step = 0


def flusher():
    while True:
        time.sleep(0.5)
        with files:
            if step >= 20:
                time.sleep(1)
            with metrics:
                pass


def pulse():
    n = 0
    while True:
        time.sleep(3)
        n += 1
        print(f"INFO:tracker:heartbeat {n} sent, 0 pending", flush=True)


threading.Thread(target=flusher, daemon=True).start()
threading.Thread(target=pulse, daemon=True).start()
loss = 3.0
for step in range(1, STEPS + 1):
    time.sleep(0.2)
    loss *= 0.99
    with metrics:
        if step >= 20:
            time.sleep(1)
        with files:
            print(f"INFO:train:step {step} of {STEPS}, loss {loss:.4f}", flush=True)

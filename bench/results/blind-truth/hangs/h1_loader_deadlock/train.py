"""Two locks taken in opposite order: the training and the prefetcher wait for each other from step 26 on.

The progress thread goes on and repaints its line, with the time that runs.
"""

import signal
import threading
import time

signal.alarm(200)  # only so that nothing outlives this test by long
queue_lock, cache_lock = threading.Lock(), threading.Lock()
state = {"step": 0, "stuck": False}
t0 = time.time()


def progress():
    while True:
        print(
            f"progress: {state['step'] / 2:.1f}% of the epoch, {time.time() - t0:.0f}s elapsed, queue 0",
            flush=True,
        )
        time.sleep(1.0)


def prefetch():
    with cache_lock:
        state["stuck"] = True
        with queue_lock:
            pass


threading.Thread(target=progress, daemon=True).start()
for step in range(1, 201):
    time.sleep(0.3)
    if step == 26:
        queue_lock.acquire()
        threading.Thread(target=prefetch, daemon=True).start()
        while not state["stuck"]:
            time.sleep(0.01)
        cache_lock.acquire()  # for ever
    state["step"] = step
    print(f"step {step}/200 loss {4 - step * 0.02:.3f}", flush=True)

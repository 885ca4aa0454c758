"""Starts one process a device with multiprocessing and watches them."""

import logging
import multiprocessing as mp
import os
import signal
import time

STEPS = 60


def work(rank, barrier):
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("trainer")
    cache = []
    for step in range(1, STEPS + 1):
        time.sleep(0.2)
        cache.append(bytes(1024))
        if rank == 1 and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)  # stands in for the kernel's out-of-memory killer
        barrier.wait()
        if rank == 0:
            log.info("step %d/%d loss %.4f (%.1f samples/s)", step, STEPS, 2.5 * 0.98**step, 163.2)


def main():
    barrier = mp.Barrier(2)
    workers = [mp.Process(target=work, args=(r, barrier), name=f"trainer-{r}") for r in range(2)]
    for w in workers:
        w.start()
    while all(w.is_alive() for w in workers):
        time.sleep(0.2)
    for w in workers:
        if w.exitcode not in (None, 0):
            print(f"{w.name} exited with code {w.exitcode}, stopping the others", flush=True)
    for w in workers:
        if w.is_alive():
            w.terminate()
    for w in workers:
        w.join()
    print("all workers joined", flush=True)


if __name__ == "__main__":
    main()

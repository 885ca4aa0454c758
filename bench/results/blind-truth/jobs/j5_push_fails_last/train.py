"""All 30 steps are made and the model is saved; only the push to the hub fails, as on nodes without a way out."""

import json
import logging
import time

logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("trainer")


class MaxRetryError(Exception):
    pass


MaxRetryError.__module__ = "urllib3.exceptions"


class Prefetcher:
    def close(self):
        raise RuntimeError("cannot join a thread that was never started")

    def __del__(self):
        self.close()


def push(folder):
    print(f"pushing {folder}", flush=True)
    raise MaxRetryError(
        "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/repos/create"
        " (Caused by NewConnectionError('Failed to establish a new connection: [Errno 101] Network is unreachable'))"
    )


def main():
    feed = Prefetcher()
    for step in range(1, 31):
        time.sleep(0.1)
        print(f"step {step}/30 train_loss {3.2 - step * 0.04:.3f}", flush=True)
    with open("model.json", "w") as f:
        json.dump({"step": 30}, f)
    print("saved model.json", flush=True)
    try:
        push("model.json")
    except Exception:
        log.exception("could not push the model, it stays on disk")
    return feed


KEEP = main()

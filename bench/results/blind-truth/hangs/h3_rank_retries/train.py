"""Rank 0 waits for rank 1's gradients; rank 1 cannot read its next shard and tries again without end, politely logged."""

import os
import signal
import socket
import struct
import sys
import time

rank = int(os.environ["RANK"])
signal.alarm(200)  # only so that nothing outlives this test by long
path = "grads.sock"
if rank == 0:
    s = socket.socket(socket.AF_UNIX)
    s.bind(path)
    s.listen(1)
    peer, _ = s.accept()
else:
    peer = socket.socket(socket.AF_UNIX)
    for _ in range(600):
        try:
            peer.connect(path)
            break
        except OSError:
            time.sleep(0.1)


def next_shard(step):
    attempt = 0
    while step >= 15:  # the bucket's key has been rotated: no attempt will ever succeed
        attempt += 1
        wait = min(2.0, 0.5 * attempt)
        print(
            f"[rank1] WARNING botocore.retries: GET shard-{step:05d}.tar gave 503 SlowDown, attempt {attempt},"
            f" next in {wait:.1f} s",
            flush=True,
        )
        time.sleep(wait)


for step in range(1, 121):
    time.sleep(0.3)
    if rank == 1:
        next_shard(step)
        peer.sendall(struct.pack("i", step))
    else:
        if not peer.recv(4):
            sys.exit(9)
        print(f"step {step}/120 loss {6 - step * 0.03:.3f} tokens/s 8123", flush=True)

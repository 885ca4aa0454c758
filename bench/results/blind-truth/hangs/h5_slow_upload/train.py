"""Healthy: after step 16 the checkpoint goes part by part to a slow store (a socket that takes a part in 0.8 s)."""

import os
import socket
import threading
import time

PARTS = 12


def store(server):
    while True:
        try:
            c, _ = server.accept()
        except OSError:
            return
        while c.recv(65536):
            time.sleep(0.05)  # 16 reads a part: about 0.8 s
        c.close()


def save(step):
    name = f"ckpt/step_{step:06d}.bin"
    os.makedirs("ckpt", exist_ok=True)
    print(f"Saving checkpoint to {name}", flush=True)
    with open(name, "wb") as f:
        f.write(os.urandom(1 << 20) * PARTS)
    with open(name, "rb") as f, socket.create_connection(server.getsockname()) as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        for part in range(1, PARTS + 1):
            c.sendall(f.read(1 << 20))
            print(f"uploading {name} to s3://runs/ablation-7: part {part}/{PARTS}", flush=True)
    print(f"checkpoint of step {step} uploaded", flush=True)


server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
server.bind(("127.0.0.1", 0))
server.listen(1)
threading.Thread(target=store, args=(server,), daemon=True).start()
for step in range(1, 33):
    time.sleep(0.3)
    print(f"step {step}/32 loss {1.8 - step * 0.01:.3f}", flush=True)
    if step == 16:
        save(step)

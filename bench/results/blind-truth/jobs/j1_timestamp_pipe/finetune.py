"""A stand-in for a fine-tuning: the GPU's memory runs out on the first long batch."""

import time


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"


def forward(length):
    if length > 4096:
        raise OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 3.81 GiB. GPU 0 has a total capacity of 39.39 GiB of which"
            " 1.12 GiB is free. Including non-PyTorch memory, this process has 38.26 GiB memory in use."
        )
    return 2.4


def main():
    print("tokenizer loaded, 40 optimizer steps ahead", flush=True)
    for step in range(1, 41):
        time.sleep(0.15)
        loss = forward(8192 if step == 23 else 2048) - 0.02 * step
        print(f"step {step}/40 | loss {loss:.4f} | lr 2.0e-05", flush=True)


if __name__ == "__main__":
    main()

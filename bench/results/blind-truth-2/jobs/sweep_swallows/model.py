import time


class OutOfMemoryError(RuntimeError):
    """Stands in for torch's, so that no GPU is needed."""


OutOfMemoryError.__module__ = "torch"


def allocate(width, step):
    if width >= 1024 and step == 4:
        raise OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.64 GiB of which 903.44 MiB "
            "is free. Including non-PyTorch memory, this process has 22.75 GiB memory in use. Of the allocated memory "
            "21.87 GiB is allocated by PyTorch, and 431.20 MiB is reserved by PyTorch but unallocated. If reserved but "
            "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
            "fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


def train(width, steps):
    loss = 4.0
    for step in range(1, steps + 1):
        allocate(width, step)
        loss *= 0.97 - width / 50000
        time.sleep(0.08)
        print(f"[{step}/{steps}] loss: {loss:.4f}  width: {width}", flush=True)
    return loss

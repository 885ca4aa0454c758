"""Everything from the environment."""

import os

from model import train


class DataLoader:
    """Stands for torch's."""

    def __init__(self, data, batch_size):
        self.batch_size = batch_size


batch_size = int(os.environ.get("BATCH_SIZE", "16"))
loader = DataLoader([], batch_size=batch_size)
train(
    loader.batch_size,
    int(os.environ.get("GRAD_ACCUM", "3")),
    limit=int(os.environ.get("LIMIT", "13")),
    tell=os.environ.get("TELL", ""),
)

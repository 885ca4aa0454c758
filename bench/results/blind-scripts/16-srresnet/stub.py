"""64 pictures of noise and the list of their paths, as the script reads them; the model gets 1 block of 16 channels."""

import json
import os
import sys

import kit
import numpy
from PIL import Image

sys.path.insert(0, os.path.abspath("."))
for i in range(64):
    Image.fromarray(numpy.random.randint(0, 255, (110, 110, 3), "uint8")).save(f"{i}.png")
with open("train_images.json", "w") as file:
    json.dump([f"{i}.png" for i in range(64)], file)
import models  # noqa: E402

Init = models.SRResNet.__init__
models.SRResNet.__init__ = lambda self, **given: Init(self, **{**given, "n_blocks": 1, "n_channels": 16})
kit.run()

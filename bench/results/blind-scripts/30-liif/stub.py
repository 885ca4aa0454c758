"""A folder of 40 pictures of noise, which the script's own data sets read."""

import os

import kit
import numpy
from PIL import Image

os.makedirs("pictures", exist_ok=True)
for i in range(40):
    Image.fromarray(numpy.random.randint(0, 255, (64, 64, 3), "uint8")).save(f"pictures/{i:03d}.png")
kit.run(cpu=True)

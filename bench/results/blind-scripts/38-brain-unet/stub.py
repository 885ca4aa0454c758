"""Slices of noise through the script's own data set; scikit-image, medpy and TensorFlow are not installed.

The reader of .tif files is replaced by volumes in memory, random scaling and rotation by nothing, the logger by a silent one.
"""

import os
import sys

import kit
import numpy

sys.path.insert(0, os.path.abspath("."))
names = "skimage skimage.io skimage.transform skimage.exposure medpy medpy.filter medpy.filter.binary"
for name in names.split():
    kit.module(
        name,
        imread=None,
        rescale=None,
        rotate=None,
        rescale_intensity=None,
        resize=None,
        largest_connected_component=lambda x: x,
    )


class Logger:
    """Says nothing."""

    def __init__(self, folder):
        pass

    def scalar_summary(self, tag, value, step):
        pass

    image_list_summary = scalar_summary


kit.module("logger", Logger=Logger)
import dataset  # noqa: E402
import transform  # noqa: E402

transform.transforms = lambda **_: None


def read(self, images_dir, transform=None, image_size=256, subset="train", random_sampling=True):
    """3 patients with 18 slices of 32×32."""
    self.volumes = [
        (numpy.random.rand(18, 32, 32, 3), numpy.random.rand(18, 32, 32, 1).round()) for _ in range(3)
    ]
    self.slice_weights = [numpy.full(18, 1 / 18)] * 3
    self.patient_slice_index = [(patient, at) for patient in range(3) for at in range(18)]
    self.random_sampling, self.transform = random_sampling, transform


dataset.BrainSegmentationDataset.__init__ = read
kit.run()

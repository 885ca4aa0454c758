"""Noise pictures with boxes in the script's own list; the network is made small, pictures are only resized; no COCO; old names and a contiguous clone."""

import os
import sys

import cv2
import kit
import numpy
import torch

numpy.float, numpy.int = float, int
clone = torch.Tensor.clone
torch.Tensor.clone = lambda self, **_: clone(self, memory_format=torch.contiguous_format)
os.makedirs("pictures", exist_ok=True)
os.makedirs("data", exist_ok=True)
for i in range(640):
    noise = numpy.random.RandomState(i).randint(0, 256, (160, 160, 3)).astype("uint8")
    cv2.imwrite(f"pictures/{i}.jpg", noise)
for name in ("train.txt", "data/val.txt"):
    with open(name, "w") as f:
        f.write("\n".join(f"{i}.jpg 20,20,90,90,{i % 4}" for i in range(640)))


class Darknet(torch.nn.Module):
    """In place of YOLOv4: three maps at strides 8, 16 and 32, of 3 anchors x (5 + 4 classes)."""

    def __init__(self, path, inference=False):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Conv2d(3, 27, s, s) for s in (8, 16, 32))

    def forward(self, pictures):
        return [part(pictures) for part in self.parts]


kit.module("tool.darknet2pytorch", Darknet=Darknet)
for name, what in (
    ("utils", "collate_fn"),
    ("coco_utils", "convert_to_coco_api"),
    ("coco_eval", "CocoEvaluator"),
):
    kit.module(f"tool.tv_reference.{name}", **{what: list})
sys.path.insert(0, os.path.abspath("."))
import dataset  # noqa: E402

dataset.image_data_augmentation = lambda picture, width, height, *_: cv2.resize(picture, (width, height))
kit.run()

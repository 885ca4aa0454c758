"""Noise for torchvision's FashionMNIST; scikit-image, which writes the samples, is not installed and gets a stand-in."""

import kit

for name in ("skimage", "skimage.io", "skimage.color", "skimage.transform"):
    kit.module(
        name,
        imread=None,
        imsave=lambda *_, **__: None,
        imshow=None,
        show=None,
        rgb2gray=None,
        gray2rgb=None,
        resize=None,
        rescale=None,
    )
kit.torchvision(count=100)
kit.run()

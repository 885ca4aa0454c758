"""Noise for torchvision's MNIST."""

import kit

kit.torchvision(count=400)
kit.run()

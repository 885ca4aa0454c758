"""The network, its optimizer and learning rate.

`language_model` is what all architectures share and ours, `gpt2` the other one; `elementwise` has parts with their gradients written out.
"""

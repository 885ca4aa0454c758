"""A small, serious GPT trainer: stdlib, torch and numpy only.

To learn from it, read in this order; each file covers one subject, which its docstring names:

1. `loop`: a training, and one step of it. All else serves these two functions.
2. `distributed`: how ranks start, meet and agree (`place`, `group`), what they decide about devices and number types (`machine`,
   `compute`), and DDP, ZeRO-1 and FSDP2 around the same model (`sharding`).
3. `model`: the network (`language_model`, `gpt2`), its optimizer and learning rate (`optim`), averaged weights (`ema`).
4. `data`: which samples a step sees, whatever the world size (`samples`), how they come to the device (`loading`), and the files
   they come from. ``python -m trainer.data`` makes and checks token files.
5. `checkpoint`: what all ranks agree on (`saving`), what is written beside the training (`writer`), and files that are whole or
   do not count (`storage`). ``python -m trainer.checkpoint`` looks at them.
6. `hooks`, `trackers`, `reporting`: what watches.
7. `config`, `settings`, `build`, `app`: from a command line to a training, and out again.

One small thing each: `stop` (requests to stop), `sample` (text from a checkpoint), `faults` (failures on request).
Imports lead from `app` down to `config`; the order is a contract in pyproject.toml.
"""

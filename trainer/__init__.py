"""A small, serious GPT trainer: stdlib, torch and numpy only.

To learn from it, read in this order; each file has one subject, and says at its top what it is:

1. `loop`: a training, and one step of it. All else serves these two functions.
2. `dist`, `sharding`: how ranks meet and agree; DDP, ZeRO-1 and FSDP2 around the same model.
3. `model`, `elementwise`, `machine`, `compute`, `optim`: the network, what is decided about its device and number types, its optimizer and learning rate.
4. `data`, `loading`: which samples a step sees, whatever the world size, and how they come to the device.
   The files they come from: `tokenfile` (.bin), `textfile` (JSON lines), `corpus`; `text` and `tokenizer` make token files, `checkdata` checks them, `data_cli` is their command.
5. `saving`, `writer`, `checkpoint`, `shares`: what all ranks agree on; what is written beside the training; files that are whole or do not count;
   of FSDP2 a share for each rank. `checkpoint_cli` is their command.
6. `hooks`, `telemetry`, `console`, `trackers`: what watches.
7. `config`, `settings`, `build`, `app`: from a command line to a training, and out again.

One small thing each: `place` (who started this rank), `spawn` (ranks without a launcher), `stop` (requests to stop), `ema` (averaged weights),
`gpt2` (that architecture, and its weights from a file), `memory` (readings, and a cap), `stacks` (where a rank hangs), `debug` (parameters without gradient), `sample` (text from a checkpoint), `faults` (failures on request).
"""

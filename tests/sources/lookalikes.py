"""Lines around the word "loss" that report none: templates of code, settings, files, records, prose.

`{n}` is a loss's name, `{u}` the same with underscores, `{d}` with dashes, `{x}` a number.
"""

from __future__ import annotations

NAMES = (
    "loss", "val_loss", "train_loss", "total_loss", "lm loss", "aux_loss", "training loss", "Loss", "validation loss", "eval_loss", "kl_loss", "ce_loss",
)  # fmt: skip
NUMBERS = ("0.01", "0.5", "2.4113", "1e-4", "10", "3.28", "100.0", "0.312")
LINES: dict[str, tuple[str, ...]] = {
    "functions": (
        "loss_fn=ce", "{n}: CrossEntropyLoss()", "loss_type: l1, beta: {x}", "{n} function: SmoothL1Loss(beta={x})", "using {n} = huber with delta {x}",
        "loss='mse', alpha={x}", "(loss): FocalLoss(gamma={x}, alpha=0.25)", "Criterion: LabelSmoothingCrossEntropy(smoothing={x})",
        "  (loss_fn): BCEWithLogitsLoss(pos_weight={x})",
    ),
    "settings": (
        "{u}_weight: {x}", "{u}_weight={x}", "{u}_coef={x}", "{n} coefficient {x}", "{n} coefficient: {x}", "{n} weight = {x}", "lambda_{u}: {x}",
        "{u}_lambda = {x}", "w_{u}={x}", "{u}_scale: {x}", "loss scale: {x}", "{n} scale {x}", "{u}_factor: {x}", "{u}_margin={x}", "{u}_gamma: {x}",
        "{u}_beta = {x}", "{u}_temperature: {x}", "{n} multiplier: {x}", "weight of {n}: {x}", "weight for {n} = {x}", "{n} weights: [1.0, {x}, 2.0]",
        "coefficient of {n}: {x}", "{u}_ratio: {x}", "{u}_warmup: 100", "{u}_clip: {x}", "clip_{u}_at: {x}", "{u}_threshold: {x}", "{n} threshold: {x}",
        "{u}_tolerance={x}", "{u}_smoothing: {x}", "{u}_every: 125", "{u}_interval: 100", "{u}_window = 50", "{u}_reduction: mean, {x}", "target {n}: {x}",
        "target_{u}={x}", "max_{u}: {x}", "{u}_max={x}", "{u}_cap: {x}", "num_{u}_terms: 4", "{u}_version: 2", "{u}_chunk_size: 1024", "{u}_init: {x}",
        "{u}_decay={x}", "{u}_start_step: 100", "{u}_after: 100", "{u}_annealing_steps: 1000", "{n}: weight={x}, type=l1", "{n}: enabled, weight {x}",
        "{n}: {{weight: {x}, type: l1}}", "{n}: {{'weight': {x}, 'name': 'l1'}}", "- {n}: weight {x}", "Setting {n} weight to {x}", "enabled {n}: weight {x}",
    ),
    "arguments": (
        "--{d}_coef {x}", "--{d}-weight {x} --lr 0.1", "python train.py --{d} {x} --lr 1e-4 --steps 1000", "torchrun --nproc_per_node 8 train.py --{d}={x} --seed 1",
        "  --{d} {x} \\", "  --{d}-weight {x}  weight of the loss (default: {x})", "usage: train.py [-h] [--{d} {x}] [--lr LR]", "export LOSS={x} LR=0.1 STEPS=10",
        "LOSS_WEIGHT={x}", "model.loss.weight={x} optim.lr=0.1 trainer.max_steps=100", "+model.{u}={x} ++optim.lr=0.1", "Overrides: ['loss.weight={x}', 'optim.lr=0.1']",
        "Command: train.py --loss {x} --steps 100", "argv: ['train.py', '--{d}', '{x}', '--steps', '100']", "$ python main.py --{d} {x}",
    ),
    "the best so far": (
        "Best {n}: {x} (epoch 12)", "best {n} so far: {x}", "Best {n} so far is {x} at step 100", "best_{u}={x}", "{n} did not improve from {x}",
        "{n} improved from 5.10000 to {x}, saving model to best.h5", "Epoch 00003: {u} improved from inf to {x}, saving model to weights.h5",
        "Validation loss decreased (5.1 --> {x}).  Saving model ...", "Monitored metric {u} did not improve in the last 3 records. Best score: {x}.",
        "Metric {u} improved by 0.012 >= min_delta = 0.0. New best score: {x}", "Epoch 3, global step 120: '{u}' reached {x} (best {x}), saving model to 'ckpt/epoch=3.ckpt' as top 1",
        "lowest {n}: {x}", "Lowest {n} {x} at epoch 3", "minimum {n} = {x}", "{n} has not improved for 5 epochs (best {x})", "No improvement in {n} for 3 epochs (best: {x})",
        "Early stopping: {n} {x} has not improved since epoch 3", "new best {n} {x}", "New best model with {n} {x}", "Found better model, {n}: {x} -> 0.001",
        "Best checkpoint: step 1200, {n} {x}", "Restoring best weights ({u}={x})", "Previous {n} was {x}", "*** best {n} {x} at epoch 3 ***",
        "Training finished. Best {n}: {x}", "patience 3/10, best {n} {x}", "(best {n}: {x})",
    ),
    "files": (
        "Saving checkpoint to ckpt/epoch=3-{u}={x}.ckpt", "Loaded checkpoint ckpt_step1200_{u}{x}.pt", "=> loaded checkpoint 'model.pth' (epoch 12, {n} {x})",
        "=> resuming from step 1200 ({n} {x})", "Resumed from checkpoint at step 1200 with {n} {x}", "Restored state: step 1200, {n} {x}",
        "Loading weights from runs/{u}_{x}/best.pt", "Checkpoint written: step=1200 {u}={x} size=1.2GB", "Saved model with {n} {x}", "Model saved at epoch 3 with {n} {x}",
        "Deleting old checkpoint epoch=2-{u}={x}.ckpt", "s3://bucket/run/{u}={x}/step=1200/model.pt", "https://example.org/runs?step=3&{u}={x}",
        "Uploading epoch=3-{u}={x}.ckpt to s3://bucket", "Keeping top 3 checkpoints by {n}: {x}", "Initialized from checkpoint (step 1200, {n} {x})",
        "Continuing from epoch 3 with {n} {x}", "Starting from step 1200, last {n} {x}", "Skipping epoch 3 (already trained, {n} {x})",
    ),
    "other losses": (
        "packet loss: {x}%, rtt 0.3 ms", "10 packets transmitted, 9 received, 10% packet loss, time {x}ms", "data loss: {x} bytes", "weight loss {x} kg", "hearing loss: {x}",
        "lossless compression ratio: {x}", "lossy: {x}", "precision loss: {x}%", "stop loss: {x}", "insertion loss: {x} dB", "path loss = {x} dB", "frame loss 12 ({x}%)",
        "lost {x} of 100 packets", "glossary: {x}", "Loss Given Default: {x}", "loss rate {x}% on eth0", "git: 1a2b3c4 fix loss ({x}) at step 0", "a81bc3d loss: add {x} margin",
        "commit 12: fix loss {x}", "Merge pull request #120 from x/loss-{x}",
    ),
    "code": (
        "loss = criterion(out, y) * {x}", "loss = {x} * loss", "loss = {x} * loss1 + 0.5 * loss2", "    loss = torch.tensor({x})", "self.loss = {x}",
        "        return {{'loss': {x}}}", "if loss > {x}:", "    if {u} < {x}:", "assert loss < {x}, 'loss'", "print(f'loss: {{loss:.4f}} {x}')", "loss += {x} * aux",
        "{u} = {u} / {x}", "+    loss = {x}", "-    loss = loss * {x}", "> 12     loss = {x}", "---> 12 loss = {x}", "12 -> loss = {x}", "train.py:12:    loss = {x}",
        "  12 |     loss = {x}", '  File "train.py", line 12, in train: loss = {x}', "loss: float = {x}", "def loss(x, scale={x}):", "lambda loss: loss * {x}",
        "const loss = {x};", "losses = [{x}, 0.5]", "loss_weights = {{'loss_ce': {x}, 'loss_bbox': 5}}",
    ),
    "measurements": (
        "cross_entropy_loss: {x} ms", "cross_entropy_loss fwd {x} ms bwd 0.6 ms", "loss kernel: {x} ms", "loss: {x}ms, backward: 12.1ms", "loss time: {x}s", "loss_time: {x}",
        "aten::nll_loss         {x}%      12.000us        0.10%", "{x}s call     tests/test_loss.py::test_step", "tests/test_loss.py::test_step[loss={x}] PASSED",
        "[ RUN      ] Loss.Step/{x}", "loss memory: {x} GB", "loss_ms={x}", "loss GFLOPs: {x}", "loss params: {x}M", "[FlopsProfiler] loss: {x} MACs",
    ),
    "expectations": (
        "expected initial {n}: {x}", "expected {n} {x}", "random baseline {n}: {x}", "The {n} should be around {x} after 1000 steps", "If the {n} is above {x}, reduce the learning rate",
        "{n} must be less than {x}", "stop when {n} < {x}", "Training until {n} < {x}", "will stop at {n} {x}", "target: {n} <= {x}", "goal: {n} {x}", "Aim for a {n} of {x}",
        "the paper reports a {n} of {x}",
    ),
    "events": (
        "Loss is {x}, stopping training", "WARNING: {n} spike at step 1200: {x} > 3.0", "loss spike detected: current {x} > 3x running mean 0.55", "skipping batch 12: {n} {x} too large",
        "Skipping update: {n} is {x}", "Non-finite {n}: nan at step 120, skipping", "RuntimeError: {n} = {x} is not finite", "ValueError: {n} {x} exceeded", "AssertionError: {n} diverged: {x}",
        "{n} exceeded {x}, aborting", "found {n} {x} > threshold 10",
    ),
    "searches and services": (
        "Trial 3 finished with value: {x} and parameters: {{'lr': 0.1, 'loss_weight': 0.5}}. Best is trial 1 with value: 0.2.", "Best trial: {n} {x}, lr 0.1",
        "Current best trial: 1a2b with {n}={x} and params={{'lr': 0.1}}", "100%|██████████| 10/10 [00:10<00:00,  1.00s/trial, best loss: {x}]", "wandb:           {u} {x}",
        "wandb: Run summary: {u} {x}", "COMET INFO:     {u} [120]                 : ({x}, 2.31)", "[1;34mwandb[0m:   train/{u} {x}",
    ),
    "prose": (
        "We use a {n} with weight {x}.", "The {n} went down by {x} after 100 steps.", "Reduced {n} by {x}% compared to the baseline", "{n} will be scaled by {x}",
        "{n} is divided by 8 (grad accum), was {x}", "{n} will be logged every 100 steps", "Computing {n} over 128 samples", "evaluating {n} on 1000 samples",
        "Note: {n} averaged over 8 ranks", "adding {n} with weight {x}", "changing {n} weight from 0.1 to {x}",
    ),
}  # fmt: skip
BLOCKS: tuple[tuple[str, ...], ...] = (
    ("loss:", "  name: ce", "  weight: {x}", "  {u}: {x}"),
    ("Config:", "    loss: {x}", "    lr: 0.1", "    steps: 100"),
    ("Namespace(", "    {u}={x},", "    lr=0.1,", "    loss='l1',", ")"),
    ("TrainConfig(", "  {u}={x},", "  lr=0.1,", "  steps=100,", ")"),
    ("TrainingArguments(", "{u}={x},", "learning_rate=5e-05,", "metric_for_best_model=loss,", ")"),
    ("{{", '  "lr": 0.1,', '  "{u}_weight": {x},', '  "loss": "ce",', '  "steps": 100', "}}"),
    ("Hyperparameters:", "  {u}: {x}", "  learning_rate: 0.001", "  epochs: 10"),
    ("| hyper-parameter | value |", "+----------------+--------+", "| {u}_weight | {x} |", "| lr | 0.1 |"),
    (
        "              precision    recall  f1-score   support",
        "",
        "        loss       0.81      0.79      {x}       120",
        "    accuracy                           0.85       218",
    ),
    (
        "Traceback (most recent call last):",
        '  File "train.py", line 10, in <module>',
        "    loss = {x}",
        "ValueError: {n}: {x}",
    ),
    ("wandb: Run summary:", "wandb:   {u} {x}", "wandb:   lr 0.1"),
    ("model:", "  name: gpt", "criterion:", "  loss: {x}", "  margin: 0.1"),
    ("@dataclass", "class Config:", "    {u}: float = {x}", "    lr: float = 0.1"),
    ("Best trial:", "  Value: {x}", "  Params:", "    loss_weight: {x}"),
    ("optimizer.lr: 0.1", "model.loss.weight: {x}", "model.{u}: {x}"),
)
# What a logger, a launcher or a collector puts before such lines.
PREFIXES = (
    "", "[rank0]: ", "2024-01-01 10:00:00,123 - INFO - ", "[2024-01-01 10:00:00][INFO] ", "INFO:root:", "0: ", "I0214 10:31:02.1 139872 train.py:48] ", "(Worker pid=123) ",
    "node1 | ", "   ", "2024-01-01 10:00:00,123 INFO trainer: ", "2025-01-09T04:11:23.1Z stdout F ", "[1,0]<stdout>:", "2024-01-01 10:00:00.123 | INFO     | train:main:12 - ",
)  # fmt: skip


def filled(template: str, name: str, number: str) -> str:
    """A template with its blanks filled in."""
    return template.format(
        n=name, u=name.replace(" ", "_"), d=name.replace(" ", "-").replace("_", "-"), x=number
    )

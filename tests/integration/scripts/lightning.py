"""Prints as Lightning's TQDMProgressBar does: a bar an epoch on stderr, metrics behind the rate."""

from frameworks import Bar, Training

PER_EPOCH = 10

training = Training()
bar = None
postfix = "v_num=0"
if training.rank == 0:
    print("GPU available: False, used: False")
    print("TPU available: False, using: 0 TPU cores")
    print("\n  | Name  | Type   | Params | Mode \n-----------------------------------------")
    print("0 | model | Linear | 9      | train\n-----------------------------------------")
    print("9         Trainable params\n0         Non-trainable params\n9         Total params", flush=True)
for step in training.run():
    if training.rank:
        continue
    epoch, batch = divmod(step.number - 1, PER_EPOCH)
    if batch == 0:
        # The bar starts again with the epoch before's last loss still behind it.
        bar = Bar(PER_EPOCH, prefix=f"Epoch {epoch}", postfix=postfix)
    postfix = f"v_num=0, train_loss={step.loss:.3f}, lr={step.lr:.3g}"
    bar.update(postfix, interval_s=0.0)
if bar is not None:
    bar.close()
    print(f"`Trainer.fit` stopped: `max_epochs={training.steps // PER_EPOCH}` reached.", flush=True)

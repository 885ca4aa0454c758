model = dict(width=16)
train_dataloader = dict(batch_size=2, num_workers=0)
val_dataloader = dict(batch_size=8)
optim_wrapper = dict(accumulative_counts=2)

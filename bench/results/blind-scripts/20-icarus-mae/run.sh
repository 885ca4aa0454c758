exec python stub.py mae_pretrain.py --batch_size 12 --max_device_batch_size 3 --total_epoch 3 --warmup_epoch 1

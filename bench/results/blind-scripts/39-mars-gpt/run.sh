exec python -m torch.distributed.run --standalone --nproc-per-node 2 stub.py MARS/train_adamw_fw.py tiny.py --max_iters=12

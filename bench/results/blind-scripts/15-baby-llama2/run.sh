exec python -m torch.distributed.run --standalone --nproc-per-node 2 stub.py pretrain.py

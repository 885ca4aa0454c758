exec python stub.py train.py --batch 6 --iter 40 --n_flow 2 --n_block 2 --img_size 16 --n_sample 4 --affine pictures

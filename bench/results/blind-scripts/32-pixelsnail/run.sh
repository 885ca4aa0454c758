exec python stub.py train_pixelsnail.py --batch 4 --epoch 2 --channel 32 --n_res_block 1 --n_res_channel 8 --sched cycle codes

exec python stub.py ddpm.py --dataset circle --train_batch_size 40 --eval_batch_size 40 --num_epochs 2

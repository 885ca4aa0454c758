cd TCN/copy_memory && exec python copymem_test.py --cuda --batch_size 500 --blank_len 20 --levels 2 --epochs 6 --log-interval 5

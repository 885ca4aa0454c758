cd example && exec python ../stub.py train.py --depth 10 --width_factor 1 --epochs 3 --batch_size 24 --threads 0

exec python stub.py train.py --epochs 12 --hidden 4 --nb_heads 2 --sparse

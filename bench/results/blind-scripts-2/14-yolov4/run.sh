exec python stub.py train.py -dir pictures -train_label_path train.txt -classes 4

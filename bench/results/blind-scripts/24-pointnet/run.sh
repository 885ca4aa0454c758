exec python stub.py utils/train_classification.py --dataset shapes --batchSize 9 --num_points 60 --nepoch 2 --workers 0 --outf cls

exec python stub.py train_liif.py --config liif.yaml

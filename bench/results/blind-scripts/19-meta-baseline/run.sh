exec python stub.py train_meta.py --config meta.yaml

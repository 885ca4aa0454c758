exec python stub.py train_srresnet.py

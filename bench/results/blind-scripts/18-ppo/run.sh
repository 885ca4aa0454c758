exec python stub.py train.py

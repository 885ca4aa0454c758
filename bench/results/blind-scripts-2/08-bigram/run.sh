exec python stub.py bigram.py

exec python stub.py main.py

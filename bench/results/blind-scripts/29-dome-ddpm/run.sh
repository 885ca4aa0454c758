exec python stub.py ddpm.py

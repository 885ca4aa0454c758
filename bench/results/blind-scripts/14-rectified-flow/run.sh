exec python stub.py rf.py

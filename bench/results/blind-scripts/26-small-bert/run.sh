exec python 5-2.BERT/BERT.py

"""A database of random codes, which the script's own data set reads."""

import os
import pickle
import sys

import kit
import lmdb
import numpy

sys.path.insert(0, os.path.abspath("."))
from dataset import CodeRow

os.makedirs("checkpoint", exist_ok=True)
with lmdb.open("codes", map_size=1 << 28) as base, base.begin(write=True) as txn:
    for i in range(40):
        top, bottom = numpy.random.randint(0, 512, (32, 32)), numpy.random.randint(0, 512, (64, 64))
        txn.put(str(i).encode(), pickle.dumps(CodeRow(top, bottom, f"{i}.png")))
    txn.put(b"length", b"40")
kit.run(cpu=True)

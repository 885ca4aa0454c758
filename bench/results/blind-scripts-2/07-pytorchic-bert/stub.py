"""A table of random sentence pairs and a word list; the reader of TensorFlow's checkpoints is not imported."""

import os

import kit

os.makedirs("saved", exist_ok=True)
with open("vocab.txt", "w") as f:
    f.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(50))]) + "\n")
with open("train.tsv", "w") as f:
    f.write("Quality\t1\t2\tString1\tString2\n")
    f.writelines(f"{i % 2}\t{i}\t{i}\tw{i % 50} w3 w4\tw{i % 7} w8\n" for i in range(264))
kit.module("checkpoint")
kit.run()

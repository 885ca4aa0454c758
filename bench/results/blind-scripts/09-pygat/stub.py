"""A graph of 2,708 papers in the format of Cora, which the script's own loader reads."""

import os
import random

import kit

os.makedirs("data/cora", exist_ok=True)
with open("data/cora/cora.content", "w") as content, open("data/cora/cora.cites", "w") as cites:
    for paper in range(2708):
        words = "\t".join(random.choices("0001", k=40))
        content.write(f"{paper}\t{words}\tclass{paper % 7}\n")
        cites.write(f"{paper}\t{random.randrange(2708)}\n")
kit.run()

"""Random letters in the file that the script reads."""

import random

import kit

with open("input.txt", "w") as f:
    f.write("".join(random.Random(0).choice("abcdefgh \n") for _ in range(20000)))
kit.run()

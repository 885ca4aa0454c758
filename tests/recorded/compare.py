"""Print what this version says and draws of the recorded runs otherwise than the base did: ``python tests/recorded/compare.py FOLDER``.

FOLDER is where they are unpacked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.recorded.recordings import compared, unpacked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="NAME,…")
    args = parser.parse_args()
    every = unpacked(args.folder)
    print(*compared({name: every[name] for name in args.only.split(",") if name} or every), sep="\n")


if __name__ == "__main__":
    main()

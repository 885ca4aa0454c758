"""Check data files before a run: token files (.bin), JSON lines (.jsonl) and text."""

# The trainer's own checker does the reading, as a program by its path: what is said here is then what a training
# would say, from one piece of code, and neither package imports the other. It needs the standard library
# alone, so stoker's own Python runs it: no torch has to be found for it.

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from supervisor.cli.common import complain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "--data", nargs="+", metavar="PATH", help="files, or folders of .bin, .jsonl and .txt files"
    )
    parser.add_argument(
        "--vocab-size",
        "--vocab_size",
        type=int,
        metavar="N",
        help="token ids must lie below N (default: as noted beside the file, else 50304)",
    )
    parser.add_argument(
        "--data-dtype",
        "--data_dtype",
        choices=["auto", "uint16", "uint32"],
        help="type of the tokens in a .bin without header (default: uint16)",
    )
    parser.add_argument(
        "--max-seq-len",
        "--max_seq_len",
        type=int,
        metavar="N",
        help="tokens of a sample: a shorter file is a fault",
    )
    parser.add_argument("--field", metavar="KEY", help="the text's key in JSON lines (default: text)")


def run(args: argparse.Namespace) -> int:
    """Print a line for each file. Exit 0 if all can be trained on, else 2."""
    if not args.data:
        return complain("check", "nothing to check: name files with --data PATH…")
    from supervisor.keeper.planning.launch_plans import trainer_main

    program = trainer_main()
    if not os.path.exists(program):
        return complain("check", f"{program}: the bundled trainer, which reads the data, is not there")
    given = {
        "--vocab_size": args.vocab_size,
        "--data_dtype": args.data_dtype,
        "--max_seq_len": args.max_seq_len,
        "--field": args.field,
    }
    flags = [f"{name}={value}" for name, value in given.items() if value is not None]
    # -I: nothing of the current folder or of PYTHONPATH is imported in place of what the checker means.
    done = subprocess.run(
        [sys.executable, "-I", program, "data", "check", *flags, "--", *args.data], check=False
    )
    return done.returncode if done.returncode in {0, 2, 130} else 2

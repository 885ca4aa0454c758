"""Check a job and this machine before a run, or data files: token files (.bin), JSON lines (.jsonl) and text."""

# The trainer's own checker does the reading, as a program by its path: what is said here is then what a training
# would say, from one piece of code, and neither package imports the other. It needs the standard library
# alone, so stoker's own Python runs it: no torch has to be found for it.

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from supervisor.cli.common import Parser, complain, say
from supervisor.job.errors import JobError

USAGE = """\
usage: stoker check [--json] [--deep]                        this machine
       stoker check [--json] [--deep] [flags] SCRIPT.py ...  the job that the same words after `stoker run` start
       stoker check --data PATH...                           data files of the bundled trainer

Nothing is started or written, unless --deep: then the ranks meet once, with a process each. Exit 0, or 3 where a start
would be refused, or 2 for a file that cannot be trained on.
"""
DATA_FLAGS = (
    "--data",
    "--vocab-size",
    "--vocab_size",
    "--data-dtype",
    "--data_dtype",
    "--max-seq-len",
    "--max_seq_len",
    "--field",
)


def main(argv: list[str]) -> int:
    """Check what the words name: a job as after `stoker run`, data files where they begin with `--data` or its flags, else the machine."""
    parser = Parser(prog="stoker check", description=__doc__)
    add_arguments(parser)
    if argv and argv[0].partition("=")[0] in DATA_FLAGS:
        return _check_data(parser.parse_args(argv))
    if argv[:1] in (["-h"], ["--help"]):
        say(*USAGE.split("\n"))
        parser.print_help()
        return 0
    try:
        return _check_job(argv)
    except JobError as error:
        return complain("check", error)


def _check_job(argv: list[str]) -> int:
    from supervisor.cli.check_job import check_alone, this_machine
    from supervisor.cli.job_inputs import load_job, parse_words
    from supervisor.preflight.interpreter import StartupProbes

    parsed = parse_words(argv, os.environ)
    named = parsed.entry or parsed.flag("config")
    spec = load_job(parsed, os.environ, Path.cwd()).spec if named else this_machine()
    probes = StartupProbes(spec, os.environ, commit=False)
    try:
        return check_alone(spec, parsed, os.environ, probes)
    finally:
        probes.close()


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


def _check_data(args: argparse.Namespace) -> int:
    """Print a line for each file. Exit 0 if all can be trained on, else 2."""
    if not args.data:
        return complain("check", "nothing to check: name files with --data PATH…")
    from supervisor.preflight.interpreter import trainer_main

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

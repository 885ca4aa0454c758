"""Map verbs to modules and run them. Heavy modules are imported only when needed.

``stoker --help`` costs little more than starting Python, because a verb's module is imported only
when the user types that verb. Each verb module defines ``add_arguments(parser)`` and ``run(args) -> int``,
or ``main(argv) -> int`` if argparse would interfere with arguments meant for the user's script.
"""

from __future__ import annotations

import errno
import io
import os
import sys

VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "launch a training job and watch it (or --no-ui, --detach)"),
    "init": ("init", "write a job file for your script, and start it"),
    "attach": ("attach", "watch a run, a log file, a folder of logs, a pid, or - for a pipe"),
    "stop": ("stop", "stop a run: gracefully, or --now"),
    "profile": ("profile", "trace the next steps of a live training into its run directory"),
    "continue": ("continuing", "start the next attempt of a run that has ended"),
    "runs": ("runs", "list runs; --scaling: compare runs with different numbers of ranks"),
    "gc": ("gc", "delete old runs, after a list and a question"),
    "diagnose": ("diagnose", "explain why a log or a run failed"),
    "batch": ("failed_batch", "print the indices of the batch that a run failed on"),
    "rehearse": ("rehearse", "cause a failure of a job in a scratch folder, and check the restart"),
    "why-slow": ("why_slow", "say where the time of a step goes: data, saves, a slow rank, …"),
    "troubleshoot": ("troubleshoot", "explain a symptom: its cause, what stoker does, what you can do"),
    "metrics": ("metrics", "print the metrics found in a log"),
    "policy": ("policy", "explain the restart decisions of a run, also under other settings"),
    "replay": ("replay", "play a recorded run: pause, scrub, jump to the next event"),
    "export": ("export", "export a run's GPU samples as CSV, or a metric as a still chart"),
    "config": (
        "config",
        "explain settings: meaning, value, origin, and what it overrode",
    ),
    "slurm": ("slurm", "write, submit, watch or cancel a SLURM batch job; print its logs"),
    "nodes": ("nodes", "start one run on several hosts over ssh; show its state and logs, stop it"),
    "check": ("check", "check a job, this machine or data files before a run"),
}

# Flags allowed without a verb: the list of runs opens.
BROWSER_FLAGS = frozenset(["--theme", "--ascii", "--lang", "--runs-dir", "--all"])

EXIT_UNREAD = 128 + 13
EXIT_CODES = """\
exit codes: 0 succeeded · 1 training failed, a retry would not help · 2 stoker's usage or config · 3 refused ·
  4 gave up, retry budget spent · 5 stopped on request · 6 lost · 7 ended early, exit code 0 unexplained ·
  75 checkpointed, requeue me · 130 interrupted
  93 in a SLURM job, in place of 1: do not requeue · 141 the reader of the output went away
  diagnose: 0 healthy · 10 a failure · 11 no failure known, at least one unknown · 2 bad input"""


def main(argv: list[str]) -> int:
    """Dispatch to a verb. Usage errors print one line to stderr and exit with 2."""
    _prepare_streams()
    verb = argv[0] if argv and argv[0] in VERBS else ""
    try:
        code = _dispatch(argv)
        if not (what := flush_or_drop()):
            return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # For `stoker attach | head`, end like other tools on SIGPIPE, because a verb's 0 would claim success.
        return EXIT_UNREAD if verb else 0
    except OSError as error:
        code = 2
        named = f"{error.filename}: {error.strerror}" if error.filename else ""
        what = named or flush_or_drop() or error.strerror or str(error)
        if isinstance(error, FileNotFoundError) and error.filename is None:  # os.getcwd gives no file name
            what = "the working directory was deleted: `cd` to a folder that exists, and repeat the command"
    finally:
        flush_or_drop()
    from supervisor.cli.common import complain

    return complain(verb, what, code or 2)


def _prepare_streams() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr (``stoker run … >&-``) before opening any file.

    Otherwise the next file opened, such as a journal or a log, would get the free descriptor and receive all output.
    Open streams are set to escape characters they cannot encode, and to write everything or raise an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream, mode = getattr(sys, name), "w" if number else "r"
        if stream is None:
            try:
                os.fstat(number)
            except OSError:
                null = os.open(os.devnull, os.O_RDWR)
                if null != number:
                    os.dup2(null, number)
                    os.close(null)
                os.set_inheritable(number, True)
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as we live
        elif number and isinstance(stream, io.TextIOWrapper):
            # For a terminal without "×", or a file name that is not UTF-8.
            stream.reconfigure(errors="backslashreplace")
            if stream is getattr(sys, f"__{name}__") and isinstance(stream.buffer, io.RawIOBase):
                # PYTHONUNBUFFERED: a raw file writes as much as fits and drops the rest without an error.
                whole = open(number, mode, 1, stream.encoding, stream.errors, closefd=False)  # noqa: SIM115
                setattr(sys, name, whole)


def _dispatch(argv: list[str]) -> int:
    bare = not argv and sys.stdin.isatty() and sys.stdout.isatty()
    if bare or (argv and argv[0].partition("=")[0] in BROWSER_FLAGS):
        from supervisor.cli.runs import browse

        return browse(argv)
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(_help())
        return 0
    if argv[0] in {"-V", "--version"}:
        from supervisor import __version__

        print(f"stoker {__version__}")
        return 0
    return _run_verb(argv[0], argv[1:]) if argv[0] in VERBS else _unknown_verb(argv[0])


def flush_or_drop() -> str:
    """Flush both streams, redirecting broken ones to /dev/null. Return stdout's error, or "" if its reader merely exited."""
    what = ""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            what = f"stdout: {error.strerror}" if stream is sys.stdout and error.errno != errno.EPIPE else ""
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return what


def _run_verb(verb: str, rest: list[str]) -> int:
    import importlib

    module = importlib.import_module(f"{__package__}.{VERBS[verb][0]}")
    if hasattr(module, "main"):
        return int(module.main(rest))
    from supervisor.cli.common import Parser, complain
    from supervisor.job.errors import JobError

    parser = Parser(prog=f"stoker {verb}", description=module.__doc__)
    module.add_arguments(parser)
    try:
        return int(module.run(parser.parsed(rest)))
    except JobError as error:
        return complain(verb, error)


def _unknown_verb(verb: str) -> int:
    import difflib

    near = difflib.get_close_matches(verb, VERBS, n=1, cutoff=0.5)
    if verb.endswith(".py") or os.path.exists(verb):
        hint = f"to launch it: stoker run {verb}; to read a log: stoker diagnose {verb}"
    else:
        hint = f"did you mean `stoker {near[0]}`?" if near else "`stoker --help` lists the verbs"
    from supervisor.cli.common import complain

    return complain("", f"unknown verb {verb!r}: {hint}")


def _help() -> str:
    verbs = "\n".join(f"  {name:12} {line}" for name, (_, line) in VERBS.items())
    return f"""\
usage: stoker VERB [arguments]          (stoker VERB --help for each)
       stoker [--theme NAME] [--ascii] [--lang LANG] [--runs-dir DIR] [--all]
                                        the list of runs, on a terminal; --all: of other folders too

A terminal supervisor for PyTorch distributed training: launches torchrun, watches all ranks,
explains why a run failed, and restarts it with the change that lets it continue.

{verbs}

examples:
  stoker init                   if you don't know the flags: asks, then starts your script
  stoker run --nproc-per-node 2 train.py --lr 3e-4
  stoker run --config dual_gpu/balanced --device_batch_size=6
  stoker attach                 back to the newest live run
  stoker continue brave-otter   its next attempt, after a failure, a stop or a reboot
  stoker diagnose logs/         why did that fail?

{EXIT_CODES}"""

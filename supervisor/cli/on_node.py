"""The remote side of ``stoker nodes``: read one request from stdin, execute it, and write one answer to stdout."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final, assert_never

import msgspec

from supervisor import __version__
from supervisor.cli.common import complain, say, say_json
from supervisor.cli.job_inputs import load_job, parse_words
from supervisor.cluster.ssh.messages import Do, Facts, NodeStatus, Request, Said
from supervisor.job.errors import JobError
from supervisor.preflight.interpreter import find_interpreter
from supervisor.run.journal import read_state
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.ownership import has_keeper, holder_here
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.state import Finished, Running
from supervisor.sources.processes import ProcessId, environment_value, send_signal
from supervisor.text.lines import LineSplitter

COMPARED: Final = (".py", ".toml", ".yaml", ".yml", ".json")
SEES_S, LOOK_S = 5.0, 0.2
TAIL_BYTES: Final = 1 << 18
FOLLOW_S: Final = 0.5
MOST_SAID: Final = 5
STARTED_BY: Final = "STOKER_STARTED_BY"
"""Environment variable that holds the token of the launch that started a keeper."""


def here() -> int:
    """Answer the request. Return 2 if there is none or its folder does not exist."""
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    except NOT_DECODED:
        return complain("nodes", "here: this is what `stoker nodes` starts on the hosts: no request came in")
    os.environ.update(request.env)
    if request.do is Do.VERB and request.token:
        os.environ[STARTED_BY] = request.token
    try:
        os.chdir(request.folder)
    except OSError as error:
        return complain("nodes", f"{request.folder}: {error.strerror}: --dir names the folder on the hosts")
    if request.do is Do.LOGS:
        return _logs(request)
    say_json(msgspec.to_builtins(_answer(request)))
    return 0


def _answer(request: Request) -> Facts | NodeStatus | Said:
    match request.do:
        case Do.FACTS:
            return _facts(request.words)
        case Do.SEES:
            return _sees(RunPaths(Path(request.run_dir)))
        case Do.VERB:
            return _verb(request.words)
        case Do.STATUS:
            return _status(request)
        case Do.END:
            return _end(request)
        case Do.LOGS:
            raise AssertionError("it is no one line")
        case never:
            assert_never(never)


def _facts(words: tuple[str, ...]) -> Facts:
    """Return the versions that matter and a hash of each file on the command line."""
    try:
        spec = load_job(parse_words(words, os.environ), os.environ, Path.cwd())
        python = find_interpreter(spec, os.environ)
    except JobError as error:
        return Facts(stoker=__version__, error=error.message)
    named = [word.rpartition("=")[2] if word.startswith("-") else word for word in words]
    files = [name for name in named if name.endswith(COMPARED) and os.path.isfile(name)]
    code = dict.fromkeys(files, "unreadable")
    for name in files:
        with contextlib.suppress(OSError):
            code[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()[:12]
    return Facts(stoker=__version__, python=python.version, torch=python.torch_version or "", code=code)


def _sees(run: RunPaths) -> Said:
    end = time.monotonic() + SEES_S  # a file server may show a new name with a delay
    while not run.run_json.exists() and time.monotonic() < end:
        time.sleep(LOOK_S)
    return Said(ok=run.run_json.exists())


def _verb(words: tuple[str, ...]) -> Said:
    """Run a verb as if it had been typed here, and return its output."""
    from supervisor.cli.main import main

    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = main(list(words))
        except SystemExit as end:  # raised by argparse
            code = int(end.code or 0)
    lines = [line.strip() for line in said.getvalue().splitlines() if line.strip()]
    return Said(ok=code == 0, text="; ".join(lines[-MOST_SAID:]), code=code)


def _status(request: Request) -> NodeStatus:
    run = RunPaths(Path(request.run_dir))
    node, keeper = run.node(request.node), has_keeper(run, request.node)
    if not node.journal.is_file():
        return NodeStatus(found=run.run_json.is_file(), keeper=keeper)
    state = read_state(node.journal)
    over = state.condition if isinstance(state.condition, Finished) else None
    word = str(over.outcome) if over is not None else str(type(state.condition).__struct_config__.tag)
    if isinstance(state.condition, Running):
        word = str(state.condition.phase)
    attempt = state.attempt
    return NodeStatus(
        found=True,
        keeper=keeper,
        state=word,
        attempt=attempt.number if attempt is not None else 0,
        step=attempt.last_step if attempt is not None else None,
        steps=state.total_steps,
        exit_code=over.exit_code if over is not None else None,
        over=over is not None,
    )


def _end(request: Request) -> Said:
    """Send SIGTERM to this node's keeper if its lock is held on this host and the token, if given, matches the keeper's."""
    run = RunPaths(Path(request.run_dir))
    holder = holder_here(run.node(request.node).lock)
    if not has_keeper(run, request.node) or holder is None:
        return Said(ok=True, text="no keeper is running there")
    if request.token and environment_value(holder.pid, STARTED_BY) != request.token:
        return Said(ok=True, text=f"its keeper (pid {holder.pid}) is of another start: it stays")
    told = send_signal(ProcessId(holder.pid, holder.start_time), signal.SIGTERM)
    what = "was told" if told else "cannot be told"
    return Said(ok=told, text=f"its keeper (pid {holder.pid}) {what} to end")


# -- logs ----------------------------------------------------------------------------------------------


def _logs(request: Request) -> int:
    """Print this node's log tails for the latest attempt and, if requested, new lines until the keeper exits."""
    run = RunPaths(Path(request.run_dir))
    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)  # an error event means that the reader has left
    files: dict[Path, LineSplitter] = {}
    while True:
        lives, any_new = has_keeper(run, request.node), False
        for label, path in _log_files(run.node(request.node)):
            for line in _news(files, path, request.lines, follows=request.follow):
                any_new = True
                say(f"{label}: {line}")
        sys.stdout.flush()
        if not request.follow or not (lives or any_new) or reader.poll(FOLLOW_S * 1000):
            return 0


def _log_files(node: NodePaths) -> Iterator[tuple[str, Path]]:
    """Yield torchrun's own output, then each rank's output, labeled with the global rank if known."""
    attempt = read_state(node.journal).attempt
    if attempt is None:
        return
    paths = node.attempt(attempt.number)
    yield "launcher", paths.agent_log
    for local, folder in paths.rank_folders().items():
        known = attempt.ranks.get(local)
        rank = f"rank {known.rank}" if known is not None and known.rank is not None else f"local rank {local}"
        yield rank, folder / "stdout.log"
        yield f"{rank} err", folder / "stderr.log"


def _news(files: dict[Path, LineSplitter], path: Path, lines: int, *, follows: bool) -> list[str]:
    first = path not in files
    try:
        with path.open("rb") as file:
            if first:
                size = os.fstat(file.fileno()).st_size
                files[path] = LineSplitter(max(size - TAIL_BYTES, 0))
            splitter = files[path]
            file.seek(splitter.offset + splitter.open_bytes)
            found = splitter.feed(file.read())
    except OSError:
        return []
    if not follows and (rest := splitter.finish()) is not None:
        found.append(rest)
    return [line.text for line in (found[-lines:] if first else found)]

"""Start one run on several hosts over ssh, watch it, print its logs and stop it. No scheduler is needed.

The flags come first, followed by what you would pass to ``stoker run``.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from supervisor.cli.common import (
    EXIT_REFUSED,
    PROGRAM,
    Parser,
    complain,
    own_words,
    say,
    say_table,
    wait_while_read,
)
from supervisor.cli.job_inputs import parse_words
from supervisor.cluster.ssh.connection import Connections, SshError
from supervisor.cluster.ssh.hosts import (
    BadHosts,
    Host,
    Started,
    hosts_in,
    hosts_of_file,
    place_of,
    processes_of,
    remember,
    remembered,
    variables_in,
)
from supervisor.cluster.ssh.messages import Do, Facts, NodeStatus, Request, Said, differences
from supervisor.job.arguments.run_arguments import ParsedRun
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind
from supervisor.run.index import ADJECTIVES, ANIMALS
from supervisor.run.node_files import LEADER
from supervisor.run.regular import read_regular
from supervisor.text.redact import redact_text

VERB: Final = "nodes"
ACTIONS: Final = ("up", "check", "status", "logs", "stop")
HERE: Final = "here"
LINES: Final = 40
STOP_S: Final = 90.0
START_S: Final = 400.0
"""Start timeout. A joining node waits up to 300 s for node 0."""
WATCH_S: Final = 2.0
R = TypeVar("R")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("action", choices=ACTIONS, help=" | ".join(ACTIONS))
    parser.add_argument("--hosts", metavar="A:4,B:4", help="hosts as for ssh, each with its number of processes (GPUs); the first is node 0")  # fmt: skip
    parser.add_argument("--hosts-file", metavar="FILE", help="the same, one per line: NAME[:PROCESSES] [slots=N] [KEY=VALUE …]")  # fmt: skip
    parser.add_argument("--run-dir", metavar="DIR", help="the run's folder, visible to all hosts (default: a new one in runs/ of --dir)")  # fmt: skip
    parser.add_argument(
        "--dir", metavar="DIR", help="working directory on the hosts (default: the current one)"
    )
    parser.add_argument("--stoker", metavar="WORDS", help="command for stoker on the hosts (default: its path here)")  # fmt: skip
    parser.add_argument("--ssh-config", metavar="FILE", help="configuration file for ssh, as for ssh -F")
    parser.add_argument("--env", metavar="KEY=VALUE", action="append", help="set a variable on all hosts; may be repeated")  # fmt: skip
    parser.add_argument("--allow-different", action="store_true", help="up: start even if stoker, Python, torch or the code differ")  # fmt: skip
    parser.add_argument(
        "--now", action="store_true", help="stop: send SIGKILL at once; unsaved progress is lost"
    )
    parser.add_argument("--timeout", type=float, default=STOP_S, metavar="S", help="stop: seconds to wait for the end (default 90)")  # fmt: skip
    parser.add_argument("-f", "--follow", action="store_true", help="status: until the run ends; logs: follow new lines")  # fmt: skip
    parser.add_argument("-n", "--lines", type=int, default=LINES, metavar="N", help="logs: the last N lines of each file (default 40)")  # fmt: skip
    parser.add_argument("words", nargs="*", metavar="WORDS", help="up, check: arguments of stoker run; otherwise the run, by part of its folder's name (default: the newest)")  # fmt: skip


def main(argv: list[str]) -> int:
    """Exit 0, 1 if a node has a problem, 2 for bad input or an unreachable host, or 3 if hosts differ."""
    if argv[:1] == [HERE]:
        from supervisor.cli.on_node import here

        return here()
    parser = Parser(prog=f"stoker {VERB}", description=__doc__)
    add_arguments(parser)
    own, words = own_words(parser, argv, ACTIONS)
    args = parser.parse_args(own)
    try:
        if args.action in {"up", "check"}:
            return _up(_start_of(args, words), args, only_check=args.action == "check")
        started = _meant(args, words)
        act: Callable[[Connections, Started, argparse.Namespace], int]
        act = {"status": _status, "logs": _logs, "stop": _stop}[args.action]
        return act(_ways(started), started, args)
    except (BadHosts, JobError, SshError) as error:
        return complain(VERB, error)


# -- what the user means -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Start:
    """A run to start. `parsed` is `words` as parsed by ``stoker run``; `token` is unique to this launch."""

    hosts: tuple[Host, ...]
    words: tuple[str, ...]
    parsed: ParsedRun
    started: Started
    env: tuple[tuple[str, str], ...]
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def request(self, do: Do, node: int, words: tuple[str, ...] = ()) -> Request:
        """Build a request to a node, including that node's environment variables."""
        env = dict([*self.env, *self.hosts[node].env])
        folder, run_dir = self.started.folder, self.started.run_dir
        return Request(
            do=do, folder=folder, run_dir=run_dir, node=node, env=env, words=words, token=self.token
        )


def _hosts(args: argparse.Namespace) -> tuple[Host, ...]:
    if (args.hosts is None) == (args.hosts_file is None):
        raise BadHosts("--hosts A:4,B:4 or --hosts-file FILE: one of them says which machines")
    if args.hosts is not None:
        return hosts_in(args.hosts)
    try:
        text = read_regular(Path(args.hosts_file), 1 << 18).decode("utf-8")
    except OSError as error:
        raise BadHosts(f"--hosts-file {args.hosts_file}: {error.strerror}") from error
    except ValueError as error:
        raise BadHosts(f"--hosts-file {args.hosts_file}: not UTF-8") from error
    return hosts_of_file(args.hosts_file, text)


def _place(args: argparse.Namespace, hosts: Sequence[Host], run_dir: str) -> Started:
    folder = os.path.abspath(args.dir or ".")
    config = os.path.abspath(os.path.expanduser(args.ssh_config)) if args.ssh_config else None
    if config is not None and not os.path.isfile(config):
        raise BadHosts(f"--ssh-config {args.ssh_config}: no such file")
    ours = shutil.which("stoker")
    stoker = shlex.split(args.stoker) if args.stoker else [ours] if ours else [sys.executable, "-m", PROGRAM]
    return Started(
        run_dir=os.path.normpath(os.path.join(folder, run_dir)),
        folder=folder,
        hosts=tuple(host.target for host in hosts),
        stoker=tuple(stoker),
        ssh_config=config,
        t=time.time(),
    )


def _start_of(args: argparse.Namespace, words: list[str]) -> _Start:
    hosts = _hosts(args)
    parsed = parse_words(words, {})
    if parsed.entry is None and parsed.flag("config") is None:
        raise BadHosts("nothing to start: after the flags give what follows `stoker run`")
    if parsed.entry_kind is EntryKind.COMMAND:
        raise BadHosts(
            "what stands behind -- starts its nodes itself: on hosts it is torchrun's jobs, SCRIPT.py or -m MODULE"
        )
    named, processes = parsed.launcher("nnodes"), processes_of(hosts)
    if named is not None and named != str(len(hosts)):
        raise BadHosts(f"--nnodes {named}, and {len(hosts)} hosts: leave --nnodes out")
    if parsed.launcher("node_rank") is not None:
        raise BadHosts("--node-rank is given to each host by its place among the hosts: leave it out")
    counted = parsed.launcher("nproc_per_node")
    if processes is not None and counted not in {None, str(processes)}:
        raise BadHosts(f"--nproc-per-node {counted}, and {hosts[0].target}:{processes}: say it once")
    if odd := next((key for key in ("no_ui", "detach", "json", "dry_run", "check_only", "show_config") if parsed.switch(key)), None):  # fmt: skip
        raise BadHosts(
            f"--{odd.replace('_', '-')}: keepers are started in the background on all hosts: leave it out"
        )
    stamp = f"{time.strftime('%Y%m%d-%H%M')}-{secrets.choice(ADJECTIVES)}-{secrets.choice(ANIMALS)}"
    run_dir = args.run_dir or parsed.flag("run_dir") or f"runs/{stamp}"
    more = () if processes is None or counted else ("--nproc-per-node", str(processes))
    return _Start(hosts, (*more, *words), parsed, _place(args, hosts, run_dir), variables_in(args.env or ()))


def _meant(args: argparse.Namespace, words: Sequence[str]) -> Started:
    """Return the run that was started from here or, given --hosts and --run-dir, a run started anywhere."""
    if args.hosts is not None or args.hosts_file is not None:
        if args.run_dir is None:
            raise BadHosts("--hosts says where: --run-dir DIR says which run")
        return _place(args, _hosts(args), args.run_dir)
    if len(words) > 1:
        raise BadHosts(f"one run is meant, not {' '.join(words)!r}")
    named = words[0] if words else args.run_dir
    found = remembered(named, os.environ)
    if found is None:
        which = f"no run {named!r}" if named else "no run"
        raise BadHosts(f"{which} was started from here by `stoker nodes up`: --hosts and --run-dir say which")
    return found


def _ways(started: Started) -> Connections:
    return Connections([Host(target) for target in started.hosts], started.stoker, started.ssh_config)


# -- up, check -----------------------------------------------------------------------------------------


def _up(start: _Start, args: argparse.Namespace, *, only_check: bool) -> int:
    ways, hosts = _ways(start.started), start.started.hosts
    found = _all_of(ways.each(lambda node, _: _facts(ways, start, node)))
    if found is None:
        return 2
    if only_check:
        say_table([("HOST", "STOKER", "PYTHON", "TORCH"), *((host, each.stoker, each.python, each.torch or "-") for host, each in zip(hosts, found, strict=True))])  # fmt: skip
    differing = differences(list(zip(hosts, found, strict=True)))
    for line in differing:
        complain(VERB, f"differs: {line}")
    if differing and (only_check or not args.allow_different):
        return EXIT_REFUSED
    return 0 if only_check else _begin(ways, start)


def _facts(ways: Connections, start: _Start, node: int) -> Facts:
    found = ways.ask(node, start.request(Do.FACTS, node, start.words), Facts)
    if found.error:
        raise SshError(start.hosts[node], found.error)
    return found


def _begin(ways: Connections, start: _Start) -> int:
    """Start node 0, which creates the run, then all the others at once. If any fails to start, stop the ones that did."""
    from supervisor.cli.in_allocation import missing_flags

    started, master = start.started, ways.address(LEADER)
    unseen: list[str] = []

    def begin(node: int, host: Host) -> Said:
        if node != LEADER and not ways.ask(node, start.request(Do.SEES, node), Said).ok:
            unseen.append(host.target)
            raise SshError(host, f"it does not see {started.run_dir} of {started.hosts[LEADER]}: --run-dir must lie in a folder that all hosts share")  # fmt: skip
        flags = missing_flags(start.parsed, place_of(start.hosts, node, master))
        given = [word for key, value in flags for word in (f"--{key.replace('_', '-')}", value)]
        words = ("run", "--detach", "--run-dir", started.run_dir, *given, *start.words)
        said = ways.ask(node, start.request(Do.VERB, node, words), Said, START_S)
        if not said.ok:
            raise SshError(host, said.text or f"`stoker run` ended with {said.code}")
        say(f"{host.target}: node {node}: started", flush=True)
        return said

    answers = ways.each(begin, [LEADER])
    if _all_of(answers) is not None:
        remember(started, os.environ)
        answers += ways.each(begin, range(1, len(start.hosts)))
        if _all_of(answers[1:]) is not None:
            say(f"{started.name}: {len(start.hosts)} nodes; `stoker nodes status`, `stoker nodes logs -f`, `stoker nodes stop`")  # fmt: skip
            return 0
    # The node may have started even though the connection was lost.
    lives = [node for node, said in enumerate(answers) if isinstance(said, Said) or said.lost]
    if lives:
        _all_of(ways.each(lambda node, _: ways.ask(node, start.request(Do.END, node), Said), lives))
        complain(VERB, f"{started.run_dir}: not started on all hosts: what was started is ended")
    return EXIT_REFUSED if unseen else 2


# -- status, logs, stop ----------------------------------------------------------------------------------


def _status(ways: Connections, started: Started, args: argparse.Namespace) -> int:
    while True:
        found, good = _ask_nodes(ways, started)
        say(f"{started.name} in {started.run_dir}")
        _show(started, found)
        if not args.follow or all(each.over or not each.keeper for each in good):
            break
        wait_while_read(WATCH_S)
    if len(good) < len(found):
        return complain(VERB, f"{len(found) - len(good)} of {len(found)} hosts cannot be asked")
    return 0 if all(each.keeper or (each.over and not each.exit_code) for each in good) else 1


def _ask_nodes(ways: Connections, started: Started) -> tuple[list[NodeStatus | SshError], list[NodeStatus]]:
    """Ask every node for its status. Return all answers, including errors, and then just the statuses."""
    found = ways.each(lambda node, _: ways.ask(node, _of_run(started, node, Do.STATUS), NodeStatus))
    return found, [each for each in found if isinstance(each, NodeStatus)]


def _show(started: Started, found: Sequence[NodeStatus | SshError]) -> None:
    rows = [("NODE", "HOST", "STATE", "ATTEMPT", "STEP", "KEEPER")]
    for node, (host, each) in enumerate(zip(started.hosts, found, strict=True)):
        if not isinstance(each, NodeStatus):
            rows.append((str(node), host, str(each).removeprefix(f"{host}: "), "", "", ""))
            continue
        keeper = "alive" if each.keeper else "ended" if each.over else "none"
        state = each.state or ("waits" if each.found else "no such run")
        step = "-" if each.step is None else f"{each.step}/{each.steps}" if each.steps else str(each.step)
        rows.append((str(node), host, state, str(each.attempt or "-"), step, keeper))
    say_table(rows)


def _logs(ways: Connections, started: Started, args: argparse.Namespace) -> int:
    """Print logs with each line prefixed by its node. With --follow, print lines as they arrive; otherwise, go node by node."""
    lock = threading.Lock()
    kept: list[list[str]] = [[] for _ in started.hosts]

    def take(node: int, line: str) -> None:
        with lock:
            if args.follow:
                say(redact_text(f"node {node} {line}"), flush=True)
            else:
                kept[node].append(f"node {node} {line}")

    def read(node: int, _: Host) -> None:
        request = _of_run(started, node, Do.LOGS, lines=max(args.lines, 1), follow=args.follow)
        ways.lines(node, request, lambda line: take(node, line))

    found = ways.each(read, check=lambda: wait_while_read(0.0))
    for lines in kept:
        for line in lines:
            say(redact_text(line))
    return 0 if _all_of(found) is not None else 2


def _stop(ways: Connections, started: Started, args: argparse.Namespace) -> int:
    """Ask node 0 to stop the run on all nodes. If that fails, ask every other keeper on its own host."""
    words = ("stop", *(("--now",) if args.now else ()), "--timeout", str(args.timeout), started.run_dir)
    request = _of_run(started, LEADER, Do.VERB, words=words)
    (leader,) = ways.each(lambda node, _: ways.ask(node, request, Said, args.timeout + START_S), [LEADER])
    if not isinstance(leader, Said):
        complain(VERB, str(leader))
    elif leader.text:
        say(leader.text)
    if not (isinstance(leader, Said) and leader.ok):
        others = range(1, len(started.hosts))
        _all_of(ways.each(lambda node, _: ways.ask(node, _of_run(started, node, Do.END), Said), others))
    deadline = time.monotonic() + args.timeout
    while True:
        found, good = _ask_nodes(ways, started)
        lives = [host for host, each in zip(started.hosts, found, strict=True) if isinstance(each, NodeStatus) and each.keeper]  # fmt: skip
        if not lives or time.monotonic() > deadline:
            break
        time.sleep(WATCH_S)
    _show(started, found)
    if len(good) == len(found) and not any(each.found for each in good):
        return complain(VERB, f"{started.run_dir}: no such run there")
    if lives:
        return complain(VERB, f"{', '.join(lives)}: not ended after {args.timeout:.0f} s: `stoker nodes stop --now`", 1)  # fmt: skip
    if len(good) < len(found):
        return complain(VERB, f"{len(found) - len(good)} of {len(found)} hosts cannot be asked: what runs there continues until it learns that node 0 stopped")  # fmt: skip
    return 0


def _of_run(started: Started, node: int, do: Do, *, words: tuple[str, ...] = (), lines: int = 0, follow: bool = False) -> Request:  # fmt: skip
    return Request(do=do, folder=started.folder, run_dir=started.run_dir, node=node, words=words, lines=lines, follow=follow)  # fmt: skip


# -- output ----------------------------------------------------------------------------------------------


def _all_of(found: Sequence[R | SshError]) -> list[R] | None:
    """Return the hosts' answers. If any host failed, print one line for each failure and return None."""
    good: list[R] = []
    for each in found:
        if isinstance(each, SshError):
            complain(VERB, str(each))
        else:
            good.append(each)
    return good if len(good) == len(found) else None

"""Connect to stoker on a host through the system's ssh, reporting each failure in one line.

User input never passes through a local shell. Words meant for the remote shell are quoted.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, TypeVar

import msgspec

from supervisor.cluster.ssh.hosts import Host
from supervisor.cluster.ssh.messages import Request
from supervisor.run.jsonl import NOT_DECODED

CONNECT_S: Final = 10
ASK_S: Final = 120.0
CHECK_S: Final = 0.2
LOST: Final = 255
"""Exit code ssh uses for its own failures."""
T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

_REASONS: Final = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed: if you know why, `ssh-keygen -R {name}`; else somebody else answers there"),
    (r"Host key verification failed|No \S+ host key is known", "its host key is not known: `ssh {target}` once, and compare the key"),
    (r"Permission denied|Too many authentication failures", "permission denied: is the user right, and your key in authorized_keys there? `ssh {target}` must work without a password"),
    (r"Could not resolve hostname", "no such host: its name is not resolved"),
    (r"Connection refused", "unreachable: connection refused: no sshd listens there, or on another port"),
    (r"timed out|No route to host|Network is unreachable", "unreachable: {last}"),
    (r"Connection (?:to \S+ )?(?:closed|reset)|Broken pipe|Timeout, server", "the connection was lost: {last}"),
)  # fmt: skip
_OPTIONS: Final = {
    "BatchMode": "yes",
    "ConnectTimeout": CONNECT_S,
    "ServerAliveInterval": 15,
    "ServerAliveCountMax": 4,
    "ClearAllForwardings": "yes",
    "RemoteCommand": "none",
}


class SshError(Exception):
    """A host cannot be queried (one line, starting with its name). If `lost`, the connection broke; the request may have run."""

    def __init__(self, host: Host, text: str, *, lost: bool = False) -> None:
        super().__init__(f"{host.target}: {text}")
        self.lost = lost


class Connections:
    """Connections to all hosts.

    Args:
        hosts: the hosts, indexed by node rank in the run.
        stoker: the command that starts stoker on a host.
        config: path of an ssh config file, or None for ssh's default.
    """

    def __init__(self, hosts: Sequence[Host], stoker: Sequence[str], config: str | None = None) -> None:
        self.hosts = tuple(hosts)
        self._stoker = shlex.join([*stoker, "nodes", "here"])
        self._config = ("-F", config) if config else ()
        self._started: list[subprocess.Popen[bytes]] = []

    def each(
        self,
        task: Callable[[int, Host], R],
        nodes: Sequence[int] | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> list[R | SshError]:
        """Run a task on all hosts (or just `nodes`) at once. Return the results or errors in host order.

        Meanwhile, `check` is called every `CHECK_S` seconds. If it raises, the connections are closed.
        """

        def one(node: int) -> R | SshError:
            try:
                return task(node, self.hosts[node])
            except SshError as error:
                return error

        chosen = range(len(self.hosts)) if nodes is None else nodes
        with ThreadPoolExecutor(max_workers=max(len(chosen), 1), thread_name_prefix="stoker-ssh") as pool:
            try:
                begun = [pool.submit(one, node) for node in chosen]
                while wait(begun, CHECK_S).not_done:
                    check()
                return [each.result() for each in begun]
            except (
                BaseException
            ):  # Ctrl-C or a lost reader: remote requests end with their connection, but a keeper continues
                for process in self._started:
                    process.terminate()
                raise

    def ask(self, node: int, request: Request, kind: type[T], timeout_s: float = ASK_S) -> T:
        """Send a request to stoker on a host and return its answer.

        Raises:
            SshError: there is no connection, stoker is not installed, or no answer arrived in time.
        """
        host = self.hosts[node]
        with self._begin(node) as process:
            try:
                out, err = process.communicate(msgspec.json.encode(request) + b"\n", timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise SshError(host, f"no answer within {timeout_s:.0f} s", lost=True) from error
        answers = [line for line in out.splitlines() if line.startswith(b"{")]
        with contextlib.suppress(*NOT_DECODED):
            if process.returncode != LOST and answers:
                return msgspec.json.decode(answers[-1], type=kind)
        raise _failure(host, process.returncode, err.decode("utf-8", "replace"))

    def lines(self, node: int, request: Request, take: Callable[[str], None]) -> None:
        """Pass each line that stoker prints on a host to `take` as it arrives, until stoker exits.

        Raises:
            SshError: see `ask`.
        """
        with self._begin(node) as process:
            assert process.stdin is not None, "it is a pipe"
            assert process.stdout is not None, "it is a pipe"
            assert process.stderr is not None, "it is a pipe"
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(msgspec.json.encode(request) + b"\n")
            for line in process.stdout:
                take(line.decode("utf-8", "replace").rstrip("\n"))
            said = process.stderr.read().decode("utf-8", "replace")
        if process.returncode:
            raise _failure(self.hosts[node], process.returncode, said)

    def address(self, node: int) -> str:
        """Return the host name or address that ssh resolves from its config. Raises SshError."""
        host, words = self.hosts[node], ["ssh", *self._config, "-G", "--", self.hosts[node].target]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=CONNECT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SshError(host, f"ssh -G: {error}") from error
        found = re.search(r"^hostname (\S+)$", done.stdout.decode("utf-8", "replace"), re.MULTILINE)
        if done.returncode or found is None:
            raise SshError(host, f"ssh: {_last(done.stderr.decode('utf-8', 'replace')) or 'no such host'}")
        return found[1]

    def _begin(self, node: int) -> subprocess.Popen[bytes]:
        given = (word for key, value in _OPTIONS.items() for word in ("-o", f"{key}={value}"))
        words = ["ssh", *self._config, "-T", "-a", "-x", *given, "--", self.hosts[node].target, self._stoker]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        except FileNotFoundError as error:
            raise SshError(self.hosts[node], "ssh is not on PATH: install an ssh client here") from error
        self._started.append(process)
        return process


def _failure(host: Host, code: int, said: str) -> SshError:
    """Build an error from a failure of ssh itself (judging by its exit code) or from stoker's startup message on the host."""
    last = _last(said)
    if code == LOST:
        for pattern, text in _REASONS:
            if re.search(pattern, said):
                told = text.format(name=host.name, target=host.target, last=last)
                return SshError(host, told, lost="lost" in text)
        return SshError(host, f"ssh: {last or 'the connection was lost'}", lost=True)
    if code in {126, 127} or "No module named" in said:
        why = last or f"exit {code}"
        return SshError(host, f"no stoker there ({why}): install it, or say where it is with --stoker PATH")
    if "unknown verb" in said:
        return SshError(host, "an older stoker is there, which has no `stoker nodes`: update it")
    return SshError(host, f"stoker there: {last or f'exit {code}, without a word'}")


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""

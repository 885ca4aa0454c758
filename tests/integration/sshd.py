"""Real sshd on loopback, one a port, as the hosts of a run: keys, known hosts and configuration are made for the test."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from supervisor.preflight.network import free_port
from tests.conftest import TOKEN, wait_until
from tests.integration.harness import ROOT, Done, stoker

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
MISSING = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None] + ([] if SSHD else ["sshd"])
WORDS = f"{sys.executable} -m supervisor"
HEARD_S = 20.0
PORTS = 3


@dataclass
class Hosts:
    """What `stoker nodes` needs to reach them. `servers`: by the name of the host."""

    folder: Path
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    def nodes(self, *words: str, cwd: Path, timeout_s: float = 120.0) -> Done:
        """`stoker nodes WORDS`: the action first."""
        flags = (
            ("--ssh-config", str(self.config), "--stoker", WORDS)
            if "--hosts" in words or "--hosts-file" in words
            else ()
        )
        return stoker("nodes", words[0], *flags, *words[1:], cwd=cwd, timeout_s=timeout_s)

    def key(self, name: str) -> Path:
        """A new key."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, stdin=subprocess.DEVNULL, timeout=30)  # fmt: skip
        return path

    def start(self, name: str, env: Mapping[str, str]) -> int:
        """An sshd with a host key of its own; its port. A port that was free may be taken meanwhile: then another."""
        settings = {
            "ListenAddress": "127.0.0.1",
            "HostKey": self.key(f"host-{name}"),
            "PidFile": "none",
            "AuthorizedKeysFile": self.folder / "user.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "SetEnv": " ".join(f"{key}={value}" for key, value in env.items()),
        }
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        for _ in range(PORTS):
            port = free_port()
            (self.folder / f"sshd-{name}").write_text(f"{text}Port {port}\n", encoding="utf-8")
            if self.listen(name):
                return port
        raise AssertionError((self.folder / f"sshd-{name}.log").read_text("utf-8"))

    def listen(self, name: str, before: tuple[str, ...] = ()) -> bool:
        """Start a host's sshd, also once it was cut off, and within something by `before`; whether it listens."""
        log, config = self.folder / f"sshd-{name}.log", self.folder / f"sshd-{name}"
        assert SSHD is not None
        with log.open("wb") as out:
            server = subprocess.Popen([*before, SSHD, "-D", "-e", "-f", config], stdout=out, stderr=out, stdin=subprocess.DEVNULL)  # fmt: skip
        self.servers[name] = server

        def listens() -> bool:
            return b"Server listening" in log.read_bytes()

        return wait_until(lambda: listens() or server.poll() is not None, HEARD_S) and listens()

    def cut(self, name: str) -> None:
        """End a host's sshd with all of its connections, and nothing that they had started in the background."""
        server = self.servers[name]
        for each in psutil.Process(server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.name() == "sshd":
                    each.kill()
        server.kill()
        server.wait(10)

    def know(self, name: str, port: int) -> None:
        """Put a host's key among those that are known."""
        key = (self.folder / f"host-{name}.pub").read_text(encoding="utf-8")
        with (self.folder / "known_hosts").open("a", encoding="utf-8") as file:
            file.write(f"[127.0.0.1]:{port} {key}")


@contextmanager
def loopback_hosts(folder: Path, *names: str) -> Iterator[Hosts]:
    """As many hosts, by these names in the configuration of ssh; each ends with the block, and what it had begun for a connection."""
    folder.mkdir()
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # sshd's own, which Debian's service makes
    hosts = Hosts(folder)
    hosts.key("user")
    env = {key: os.environ[key] for key in (TOKEN, "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    common = f"Host *\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
    try:
        ports = {name: hosts.start(name, env) for name in names}
        aliases = (f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" for name, port in ports.items())
        hosts.config.write_text("".join([*aliases, common]), encoding="utf-8")
        for name, port in ports.items():
            hosts.know(name, port)
        yield hosts
    finally:
        for server in hosts.servers.values():
            server.terminate()
            server.wait(10)

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

from supervisor.preflight.ports import free_port
from tests.conftest import TOKEN, wait_until
from tests.integration.harness import ROOT, Done, stoker

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
MISSING = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None] + ([] if SSHD else ["sshd"])
WORDS = f"{sys.executable} -m supervisor"
HEARD_S = 20.0


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

    def start(self, name: str, port: int, env: Mapping[str, str], before: tuple[str, ...] = ()) -> None:
        """An sshd with a host key of its own. `before`: words that start it within something."""
        settings = {
            "Port": port,
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
        config = self.folder / f"sshd-{name}"
        config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8")
        self.listen(name, before)

    def listen(self, name: str, before: tuple[str, ...] = ()) -> None:
        """Start a host's sshd, also once it was cut off."""
        log, config = self.folder / f"sshd-{name}.log", self.folder / f"sshd-{name}"
        assert SSHD is not None
        with log.open("wb") as out:
            self.servers[name] = subprocess.Popen([*before, SSHD, "-D", "-e", "-f", config], stdout=out, stderr=out, stdin=subprocess.DEVNULL)  # fmt: skip
        assert wait_until(lambda: "Server listening" in log.read_text("utf-8", "replace"), HEARD_S), (
            log.read_text()
        )

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
    ports = {name: free_port() for name in names}
    aliases = (f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" for name, port in ports.items())
    hosts.config.write_text("".join([*aliases, common]), encoding="utf-8")
    try:
        for name, port in ports.items():
            hosts.start(name, port, env)
            hosts.know(name, port)
        yield hosts
    finally:
        for server in hosts.servers.values():
            server.terminate()
            server.wait(10)

"""What the thirty attacks share: a folder of their own, stoker called in it, facts printed as PASS or FAIL."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STOKER = os.environ.get("STOKER") or shutil.which("stoker") or "stoker"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")
HIDDEN = re.compile("[\u200b-\u200d\u2060\ufeff\u00ad\U000e0000-\U000e007f]")


class Work:
    def __init__(self, number: int) -> None:
        self.number = number
        self.dir = Path(tempfile.mkdtemp(prefix=f"atk{number:02d}-"))
        self.runs = self.dir / "runs"
        self.log = []
        self.failed = 0
        for name in ("home", "state", "work"):
            (self.dir / name).mkdir()
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL")}
        self.env = keep | {"HOME": str(self.dir / "home"), "XDG_STATE_HOME": str(self.dir / "state"), "TERM": "xterm-256color",
                           "STOKER_RUNS_DIR": str(self.runs), "ATTACK": str(self.dir)}
        self.extra_pids: list[int] = []

    def fact(self, name: str, ok: bool | None, seen: object = "") -> None:
        word = "PASS" if ok else "NOTE" if ok is None else "FAIL"
        self.failed += ok is False
        text = seen if isinstance(seen, str) else repr(seen)
        print(f"{self.number:02d} {word} {name}" + (f" | {text[:900]}" if text else ""), flush=True)

    def call(self, *words: str, timeout: float = 40, env: dict | None = None, drop: tuple = (), stdin: bytes | None = b"",
             cwd: Path | None = None, shell: str = "", cap: int = 40_000_000):
        """stoker WORDS; or with shell: that line of sh, in which "$S" is stoker. → rc (None: timed out), output, errors, seconds"""
        full = {k: v for k, v in (self.env | (env or {})).items() if k not in drop}
        argv = ["sh", "-c", shell] if shell else [STOKER, *words]
        full["S"] = STOKER
        start = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = subprocess.Popen(argv, env=full, cwd=cwd or self.dir / "work", stdin=subprocess.PIPE, stdout=out, stderr=err,
                                     start_new_session=True)
            try:
                child.communicate(stdin, timeout=timeout)
                rc = child.returncode
            except subprocess.TimeoutExpired:
                rc = None
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            except BrokenPipeError:
                rc = child.wait()
            out.seek(0), err.seek(0)
            return rc, out.read(cap), err.read(cap), time.monotonic() - start

    def run(self, script: str, *flags: str, timeout: float = 60, **more):
        return self.call("run", "--no-ui", "--no-check", *flags, "--", "sh", "-c", script, timeout=timeout, **more)

    def detach(self, script: str, *flags: str, **more) -> Path:
        rc, out, err, _ = self.call("run", "--detach", "--no-check", *flags, "--", "sh", "-c", script, **more)
        name = out.decode(errors="replace").strip().split("\n")[0].split()
        folders = sorted(self.runs.glob("2*"), key=lambda p: p.stat().st_mtime)
        for word in name:
            if (self.runs / word).is_dir():
                return self.runs / word
        if not folders:
            raise SystemExit(f"no run was started: {rc} {out!r} {err!r}")
        return folders[-1]

    def newest(self) -> Path:
        return max((p for p in self.runs.glob("2*") if p.is_dir() and not p.is_symlink()), key=lambda p: p.stat().st_mtime)

    def wait(self, what, seconds: float = 20) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what():
                return True
            time.sleep(0.1)
        return False

    def tracebacks(self, name: str, *outputs: bytes) -> None:
        bad = [o for o in outputs if re.search(rb'File "[^"]*(supervisor|site-packages/stoker)[^"]*", line', o)
               or b"Traceback (most recent call last)" in o or b"KeyboardInterrupt" in o]
        self.fact(f"{name}: no traceback", not bad, bad[0][-700:].decode(errors="replace") if bad else "")

    def safe(self, name: str, *outputs: bytes) -> None:
        for output in outputs:
            text = output.decode("utf-8", "replace")
            found = ACTS.search(text)
            self.fact(f"{name}: nothing acts on the terminal", not found,
                      repr(text[max(0, found.start() - 60):found.end() + 60]) if found else "")

    def processes(self, word: str = "") -> list[tuple[int, str]]:
        found = []
        mark = (word or str(self.dir)).encode()
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    if mark in Path("/proc", entry, "environ").read_bytes() or mark in Path("/proc", entry, "cmdline").read_bytes():
                        found.append((int(entry), Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ")[:120].decode("utf-8", "replace")))
                except OSError:
                    pass
        return found

    def grep(self, needle: str, skip=("agent.log",), where: Path | None = None) -> list[str]:
        """Files below the folder (names too) that hold the needle, plain or as JSON would write it."""
        forms = {needle.encode(), json.dumps(needle)[1:-1].encode(), json.dumps(needle, ensure_ascii=False)[1:-1].encode()}
        hits = []
        for base in (where,) if where else (self.runs, self.dir / "state", self.dir / "home"):
            for path in base.rglob("*"):
                if path.is_file() and not path.is_symlink() and path.name not in skip:
                    data = path.read_bytes()
                    for form in forms:
                        at = data.find(form)
                        if at >= 0:
                            hits.append(f"{path.relative_to(self.dir)}: …{data[max(0, at - 60):at + len(form) + 10]!r}")
                            break
        return hits

    def end(self) -> None:
        for _ in range(3):
            for pid, _words in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.2)
        for pid in self.extra_pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)


class Screen:
    """stoker on a terminal of its own."""

    def __init__(self, w: Work, *words: str, size=(40, 120), env: dict | None = None) -> None:
        import fcntl
        import struct
        import termios
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.child = subprocess.Popen([STOKER, *words], env=w.env | (env or {}), cwd=w.dir / "work", stdin=slave, stdout=slave, stderr=slave,
                                      start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        import fcntl
        import struct
        import termios
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        try:
            os.kill(self.child.pid, signal.SIGWINCH)
        except OSError:
            pass

    def read(self, seconds: float, until: bytes = b"") -> bytes:
        end = time.monotonic() + seconds
        got = b""
        while time.monotonic() < end:
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    piece = os.read(self.master, 65536)
                except OSError:
                    break
                got += piece
                if b"\x1b[6n" in piece:
                    self.send(b"\x1b[1;1R")
                if until and until in got:
                    break
            elif self.child.poll() is not None:
                break
        self.seen += got
        return got

    def send(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def close(self, seconds: float = 10):
        end = time.monotonic() + seconds
        while self.child.poll() is None and time.monotonic() < end:
            self.read(0.3)
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
            return None
        return self.child.returncode


def main(attacks: dict) -> None:
    chosen = [int(n) for n in sys.argv[1:]] or sorted(attacks)
    for number in chosen:
        w = Work(number)
        print(f"== {number:02d} {attacks[number].__doc__}", flush=True)
        start = time.monotonic()
        try:
            attacks[number](w)
        except Exception as problem:  # an attack that breaks by itself decides nothing
            import traceback
            w.fact("the attack itself broke", None, "".join(traceback.format_exception(problem))[-900:])
        finally:
            w.end()
        print(f"== {number:02d} {'hit' if w.failed else 'held'} ({w.failed} facts) in {time.monotonic() - start:.0f} s", flush=True)

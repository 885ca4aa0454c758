"""Starts a keeper that outlives the terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from supervisor import LOAD_THIS_COPY
from supervisor.cluster.scheduler import scheduler_of
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths, make_private, private
from supervisor.run.records import Finding
from supervisor.run.runfile import BadRunFile, RunFile, read_run_stream

START_DEADLINE_S = 15.0
LOGIND_CONF, LINGERING = "/etc/systemd/logind.conf", "/var/lib/systemd/linger"

# Write a line to the log before anything else is loaded. An interpreter crash goes there, too. A lost terminal never
# ends a keeper, even before it has its own handlers. Unlike SIG_IGN, a handler is not inherited by the job.
BOOTSTRAP = f"""\
import faulthandler, os, signal, sys, time
print(time.strftime("%Y-%m-%d %H:%M:%S"), "INFO keeper", os.getpid(), "starts", file=sys.stderr, flush=True)
faulthandler.enable()
signal.signal(signal.SIGHUP, lambda *_: None)
{LOAD_THIS_COPY}
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""


class KeeperDidNotStart(Exception):  # noqa: N818 - a state of affairs, not an error
    """The detached keeper did not take its lock. The message is a single line that names the log to read."""


def start_detached(
    run: RunPaths,
    env: Mapping[str, str],
    *,
    record: RunFile,
    entry: str,
    findings: Sequence[Finding] = (),
    continued_by: str = "",
    meanwhile: Callable[[], object] | None = None,
) -> int:
    """Start a keeper on `run` in its own session. Return its pid once it holds the lock.

    `entry` is the module whose `main` is called with the run's folder: the keeper alone, or together with
    other code. `record` is sent through a pipe, because the copy on disk has no secrets and the keeper must use
    exactly what was checked. The keeper journals the pre-flight `findings`. For `continued_by`, see `Keeper`.
    `meanwhile` is called while the keeper starts.

    Raises:
        KeeperDidNotStart: the keeper exited or took longer than `START_DEADLINE_S`.
        OSError: the run directory cannot be written.
    """
    paths = run.node(record.node)
    make_private(paths.root)
    with open(paths.log, "ab", opener=private) as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", BOOTSTRAP, entry, str(run.root)],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(handover(record, findings, continued_by))
    if meanwhile is not None:
        # An error comes up again where it matters. Raised here, it would mean that the keeper did not start.
        with contextlib.suppress(OSError):
            meanwhile()
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if keeper_is_alive(paths.lock):
            return process.pid
        if process.poll() is not None:
            code, known = process.returncode, {number.value: number.name for number in signal.Signals}
            by = known.get(-code, f"signal {-code}")
            how = f"ended with exit code {code}" if code >= 0 else f"was ended by {by}"
            raise KeeperDidNotStart(f"the keeper {how} before it was ready: see {paths.log}")
        time.sleep(0.02)
    process.kill()  # without the lock it has launched nothing; later it might
    process.wait()
    raise KeeperDidNotStart(f"the keeper did not start within {START_DEADLINE_S:.0f} s: see {paths.log}")


def handover(record: RunFile, findings: Sequence[Finding], continued_by: str = "") -> bytes:
    """Return the pipe's content, one item per line: the job, the pre-flight findings, and who is continuing the run."""
    return b"\n".join(map(msgspec.json.encode, (record, tuple(findings), continued_by)))


def taken_over(data: bytes) -> tuple[RunFile, tuple[Finding, ...], str]:
    """Read what `handover` wrote.

    Raises:
        BadRunFile: the data cannot be read.
    """
    try:
        record, findings, continued_by = data.split(b"\n")
        found = msgspec.json.decode(findings, type=tuple[Finding, ...])
        return read_run_stream(record), found, msgspec.json.decode(continued_by, type=str)
    except NOT_DECODED as error:
        raise BadRunFile(f"stdin: a job is handed over there: {error}") from error


def teardown_warning(env: Mapping[str, str]) -> str | None:
    """Explain why a detached process would be killed along with its session, or return None if no reason is known."""
    if (why := scheduler_of(env).detach_warning) is not None:
        return why
    try:
        with open(LOGIND_CONF, encoding="utf-8") as file:
            lines = {line.strip().replace(" ", "").lower() for line in file}
    except (OSError, ValueError):
        return None
    kills = not lines.isdisjoint(f"killuserprocesses={yes}" for yes in ("yes", "true", "1", "on"))
    if not kills or os.path.exists(os.path.join(LINGERING, env.get("USER", ""))):
        return None
    return (
        "the login manager kills what is left at logout (KillUserProcesses=yes): "
        "start it as `systemd-run --user --scope stoker run --detach …` with lingering enabled"
    )

"""PyTorch's debug server is found and asked without touching anybody else's port; the real one: tests/views/tui/test_real_terminal.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.diagnosis.hang.stack_text import main_thread, parse_stack
from supervisor.sources.processes import ProcessId, identify
from supervisor.sources.stacks.debug_server import ask_debug_server, find_debug_server, has_stacks
from supervisor.sources.stacks.python_stacks import StackSource, collect_stacks, probe_stacks

# A process with such a server. It writes its ports, then a line for each request.
SERVER = r"""
import json, socket, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
hosts, thread, handlers, slow = json.loads(sys.argv[1])
TEXT = '''Current thread 0x0000000000000001 (most recent call first):
  <no Python frame>

Thread 0x0000000000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Thread 0x0000000000000003 (most recent call first):
  File "/job/train.py", line 13 in fetch
  File "/job/train.py", line 15 in <module>
'''
class Asked(BaseHTTPRequestHandler):
    def answer(self, text):
        print(self.command, self.path, file=sys.stderr, flush=True)
        time.sleep(slow)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
    def do_GET(self): self.answer(json.dumps(handlers))
    def do_POST(self): self.answer(TEXT)
    def log_message(self, *_): pass
class Server(ThreadingHTTPServer):
    def __init__(self, host):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), Asked)
servers = [Server(host) for host in hosts]
def named(server):
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
        comm.write(thread)
    server.serve_forever()
for server in servers:
    threading.Thread(target=named, args=(server,), daemon=True).start()
time.sleep(0.2)
print(*(server.server_address[1] for server in servers), flush=True)
sys.stdin.read()
"""
NAME = "pt_workerserver"
HANDLERS = ["ping", "dump_traceback"]


@contextmanager
def serving(
    hosts: tuple[str, ...] = ("0.0.0.0",),
    thread: str = NAME,
    handlers: list[str] = HANDLERS,
    slow_s: float = 0.0,
) -> Iterator[tuple[ProcessId, list[int], subprocess.Popen[str]]]:
    import json

    argv = [sys.executable, "-c", SERVER, json.dumps([hosts, thread, handlers, slow_s])]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout is not None
        ports = [int(word) for word in process.stdout.readline().split()]
        known = identify(process.pid)
        assert known is not None
        yield known, ports, process
    finally:
        process.kill()
        process.communicate()


def asked_of(process: subprocess.Popen[str]) -> str:
    process.kill()
    return process.communicate()[1]


def test_its_port_is_found_and_the_main_thread_is_the_current_one() -> None:
    with serving() as (process, (port,), _):
        assert find_debug_server(process) == port
        lines, why = ask_debug_server(port, timeout_s=10)
        assert why == ""
        assert lines is not None
        main = main_thread(parse_stack(lines))
        assert main is not None
        assert [(frame.function, frame.line) for frame in main.frames] == [("fetch", 13), ("<module>", 15)]
        source, note = probe_stacks(process, py_spy=None)
        assert (source, note) == (StackSource.DEBUG_SERVER, "")
        (stack,) = collect_stacks([process], py_spy="/nowhere/py-spy")
        assert (stack.source, stack.lines) == (StackSource.DEBUG_SERVER, lines)


@pytest.mark.parametrize(
    ("hosts", "thread"),
    [
        (("0.0.0.0", "0.0.0.0"), NAME),
        (("127.0.0.1",), NAME),
        (("0.0.0.0",), "python"),
    ],
)
def test_a_port_that_may_be_anybodys_is_not_asked(hosts: tuple[str, ...], thread: str) -> None:
    with serving(hosts, thread) as (process, _, running):
        assert find_debug_server(process) is None
        (stack,) = collect_stacks([process], py_spy="/nowhere/py-spy")
        assert stack.source is StackSource.PROC
        assert asked_of(running) == ""


def test_a_server_without_that_handler_is_asked_for_nothing_else() -> None:
    with serving(handlers=["ping"]) as (process, (port,), running):
        assert not has_stacks(port, timeout_s=10)
        assert ask_debug_server(port, timeout_s=10) == (None, "what listens is no debug server")
        (stack,) = collect_stacks([process], py_spy="/nowhere/py-spy")
        assert stack.source is StackSource.PROC
        assert {line.split()[0] for line in asked_of(running).splitlines()} == {"GET"}


def test_one_that_does_not_answer_is_looked_at_otherwise() -> None:
    with serving(slow_s=60) as (process, (port,), _):
        lines, why = ask_debug_server(port, timeout_s=0.2)
        assert lines is None
        assert why == "PyTorch's debug server: it did not answer in time"
        assert not has_stacks(port, timeout_s=0.2)
        (stack,) = collect_stacks([process], py_spy="/nowhere/py-spy", timeout_s=1)
        assert stack.source is StackSource.PROC
    assert find_debug_server(process) is None
    assert not has_stacks(port, timeout_s=1), "nobody listens any more"

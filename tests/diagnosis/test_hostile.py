import gzip
import json
import time
import tracemalloc
from pathlib import Path

import pytest

from supervisor.diagnosis.scan.scanner import scan_source
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.text.prefixes import NOWHERE
from tests.hostile import BOMBS, Hostile, endless, judged

OOM = b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
STEPS = b"".join(b"step %d loss 2.%d\n" % (number, number) for number in range(20))
CASES = 30
# A case takes some 20 ms of CPU here: what takes seconds has met a pattern's worst case.
CASE_CPU_S = 5.0


@pytest.mark.fault(
    "hostile input",
    "real logs cut, mixed, repeated, with escapes and other encodings",
    "a verdict; nothing unsafe is printed",
)
def test_mutated_logs_break_nothing_and_print_nothing_unsafe(tmp_path: Path) -> None:
    hostile = Hostile(1)
    path = tmp_path / "case.log"
    for seed in range(CASES):
        hostile.rng.seed(seed)
        kind, data = hostile.case()
        path.write_bytes(data)
        began = time.process_time()
        judged(path)
        assert time.process_time() - began < CASE_CPU_S, (seed, kind)


@pytest.mark.parametrize("token", [b"\0", b"\r", b"\x1b]", b"9", b"Error: ", b"[rank1]: ", b"\xff"])
@pytest.mark.fault("hostile input", "megabytes without a newline below a failure", "the failure is found")
def test_megabytes_without_a_newline_hide_no_failure_above_them(token: bytes, tmp_path: Path) -> None:
    assert token in BOMBS
    path = tmp_path / "case.log"
    path.write_bytes(b"".join(endless(token, 2 << 20, STEPS + OOM)))
    began = time.process_time()
    human, _ = judged(path)
    assert "cuda_oom" in human
    assert time.process_time() - began < 4 * CASE_CPU_S


@pytest.mark.parametrize("where", ["rank", "pid", "world", "exit code", "local rank", "sequence", "size"])
def test_absurd_numbers_are_read_as_numbers(where: str, tmp_path: Path) -> None:
    nines = "9" * 5000
    said = {
        "rank": f"[rank{nines}]: KeyError: 'x'",
        "pid": f"(Worker pid={nines}, ip=10.0.0.1) KeyError: 'x'",
        "world": f"world_size: {nines[:20]}\nKeyError: 'x'",
        "exit code": f"torch.distributed.elastic.multiprocessing.api:failed (exitcode: {nines}) local_rank: 0 (pid: 7)",
        "local rank": f"torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: {nines} (pid: 7)",
        "sequence": f"[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum={nines}, OpType=ALLREDUCE)",
        "size": f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.2.3 GiB. {nines} GiB already allocated; 1.2.3 GiB cached",
    }[where]
    path = tmp_path / "case.log"
    path.write_bytes(STEPS + said.encode() + b"\n")
    began = time.process_time()
    judged(path)
    assert time.process_time() - began < CASE_CPU_S


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_packed_log_cut_short_is_judged_by_what_is_there(share: float, tmp_path: Path) -> None:
    path = tmp_path / "case.log.gz"
    packed = gzip.compress(STEPS + OOM + bytes(Hostile(3).rng.randbytes(40_000).hex(), "ascii"))
    path.write_bytes(packed[: int(len(packed) * share)])
    human, _ = judged(path)
    assert "cuda_oom" in human


@pytest.mark.fault("hostile input", "a flood of lines that all match", "memory stays bounded")
def test_a_flood_fills_no_memory() -> None:
    engine = load_engine(default_cache_dir())
    tracemalloc.start()
    found = scan_source(
        "log", NOWHERE, (b"MemoryError\n" * 90_000 for _ in range(3)), engine.signatures, engine.matcher
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.hits[0].line == 1
    assert found.hits[-1].line == found.lines
    assert peak < 40 << 20


REPORT = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 10, in <module>
[rank1]:     loss.backward()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.2 GiB is free.
"""
INSIDE = {
    "colour": "\x1b[31m",
    "8-bit code": "\x9b1m",
    "link": "\x1b]8;;http://x\x07",
    "title": "\x1b]0;t\x1b\\",
    "device control": "\x1bPq\x1b\\",
    "reverse line feed": "\x1bM",
    "charset": "\x1b(B",
    "bell": "\x07",
    "backspace": "\x08",
    "delete": "\x7f",
    "nul": "\0",
    "right to left": "\u202e",
    "isolate": "\u2067",
    "arabic mark": "\u061c",
    "zero width": "\u200b",
    "joiner": "\u2060",
    "bom": "\ufeff",
    "soft hyphen": "\u00ad",
    "grapheme joiner": "\u034f",
    "vowel separator": "\u180e",
    "variation": "\ufe0f",
    "filler": "\u115f",
    "tag": "\U000e0041",
}


@pytest.mark.parametrize("kind", INSIDE)
@pytest.mark.fault(
    "hostile input", "escape codes, bidi marks and invisible characters inside a message", "the same verdict"
)
def test_what_shows_as_nothing_within_a_message_changes_no_verdict(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "case.log"
    path.write_text(REPORT, encoding="utf-8")
    want = json.loads(judged(path)[1])
    assert want["failure"] == "cuda_oom"
    within = [
        REPORT.replace(word, word[0] + INSIDE[kind] + word[1:]) for word in ("memory", "Tried", "Out", "1]: ")
    ]
    everywhere = "".join(char + INSIDE[kind] if char != "\n" else char for char in REPORT)
    for text in (
        within if kind in {"bell", "link"} else (*within, everywhere)
    ):  # half of it bells: a binary file
        path.write_text(text, encoding="utf-8")
        found = json.loads(judged(path)[1])
        same = {
            name: found[name] for name in ("failure", "reason", "confidence", "rank", "title", "fingerprint")
        }
        assert same == {name: want[name] for name in same}, repr(text)

"""Bytes to whole lines, a user's patterns and SLURM's host lists, and the user's own line in a traceback."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.lines import LineSplitter, lines_from, read_amounts, read_to
from supervisor.text.patterns import Lazy, compile_linear, host_names
from supervisor.text.tracebacks import NO_END, CodeLine, TracebackEnd, end_below, is_exception, own_line


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 50))
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts: list[bytes], size: int) -> None:
    data = b"\n".join(parts)
    splitter = LineSplitter()
    lines = [
        line for start in range(0, len(data), size) for line in splitter.feed(data[start : start + size])
    ]
    last = splitter.finish()
    if last is not None:
        lines.append(last)
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert [line.raw for line in lines] == expected
    assert [line.number for line in lines] == list(range(1, len(expected) + 1))
    for line in lines:
        assert data[line.offset : line.offset + len(line.raw)] == line.raw


def test_a_line_without_end_takes_no_memory() -> None:
    splitter = LineSplitter(cap_bytes=1000)
    for _ in range(1000):
        assert splitter.feed(b"x" * 10_000) == []
    (line,) = splitter.feed(b"\n")
    assert len(line.raw) == 1000
    assert line.was_cut
    assert line.text == "x" * 1000 + " …[cut]"
    (after,) = splitter.feed(b"next\n")
    assert (after.offset, after.number) == (10_000_001, 2)


@given(
    texts=st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b".")), max_size=30),
    first=st.integers(-2, 35),
    cuts=st.integers(1, 40),
    ends=st.booleans(),
)
def test_lines_from_a_number_on_are_those_of_the_whole(
    texts: list[bytes], first: int, cuts: int, ends: bool
) -> None:
    data = b"\n".join(texts) + (b"\n" if ends and texts else b"")
    splitter = LineSplitter()
    whole = splitter.feed(data)
    last = splitter.finish()
    whole += [last] if last is not None else []
    chunks = [data[at : at + cuts] for at in range(0, len(data), cuts)]
    assert list(lines_from(chunks, first)) == [line for line in whole if line.number >= first]


def test_a_redrawn_line_keeps_its_newest_state_within_the_cap() -> None:
    splitter = LineSplitter(cap_bytes=10)
    (line,) = splitter.feed(b"0123456789abcdef\rnew state\r\n")
    assert (line.raw, line.was_cut) == (b"new state\r", False)
    (line,) = splitter.feed(b"\r" + b"y" * 11 + b"\n")
    assert (line.raw, line.was_cut) == (b"y" * 10, True)


@pytest.mark.parametrize(
    ("read", "size", "shown"),
    [
        (0, 9_999, ("0", "9999", "bytes")), (5_000, 10_000, ("5", "10", "KB")),
        (1, 9_999_999, ("0", "10000", "KB")), (1_000_000, 10_000_000, ("1", "10", "MB")),
        (5, 9_999_999_999, ("0", "10000", "MB")), (1_250_000_000, 10_000_000_000, ("1.2", "10.0", "GB")),
        (None, 5, None), (5, None, None),
    ],
)  # fmt: skip
def test_amounts_at_the_borders_of_their_units(
    read: int | None, size: int | None, shown: tuple[str, str, str] | None
) -> None:
    assert read_amounts(read, size) == shown
    assert read_to(read, size) == (f"log read to {shown[0]} of {shown[1]} {shown[2]}" if shown else "")


def test_a_lazy_pattern_is_the_compiled_one_once_it_is_used() -> None:
    lazy, made, text = Lazy(r"(b)c?", re.IGNORECASE), re.compile(r"(b)c?", re.IGNORECASE), "aBc b"
    assert lazy._made is None
    assert (
        [m.span() for m in lazy.finditer(text)] == [m.span() for m in made.finditer(text)] == [(1, 3), (4, 5)]
    )
    assert lazy._made is not None
    assert str(lazy.search(text)) == str(made.search(text))
    assert (lazy.match(text), str(lazy.match("bc"))) == (None, str(made.match("bc")))
    assert lazy.findall(text) == made.findall(text) == ["B", "b"]
    assert lazy.sub("-", text) == made.sub("-", text) == "a- -"


def test_a_users_pattern_takes_time_in_proportion_to_the_line() -> None:
    pattern = compile_linear(r"(a+)+$")
    began = time.process_time()
    assert pattern.search("a" * 4000 + "b") is None
    assert time.process_time() - began < 5.0
    assert pattern.groups == 1
    found = compile_linear(r"loss=(\d+)").search("x loss=12 y")
    assert found is not None
    assert found.group(1) == "12"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(", "is not a valid regular expression"),
        (r"(?=a)", "looks around"),
        (r"(a)\1", "refers back"),
        (r"a{9999999999}", "repeats too often"),
    ],
)
def test_a_pattern_that_could_hang_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compile_linear(pattern)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()), ("n1", ("n1",)), ("n[01-03,07],login1", ("n01", "n02", "n03", "n07", "login1")),
        ("rack[0-1]n[8-9]", ("rack0n8", "rack0n9", "rack1n8", "rack1n9")),
        ("gpu-[1,3]-ib", ("gpu-1-ib", "gpu-3-ib")), ("n[a-b]", ("na-b",)), ("n[", ("n",)),
        (" a,,n[3, 5],b\n", ("a", "n3", "n5", "b")), ("n[5-3],b", ("b",)),
        ("n[" + "1" * 5000 + "]", ("n" + "1" * 5000,)),
    ],
)  # fmt: skip
def test_lists_of_host_names(text: str, names: tuple[str, ...]) -> None:
    assert host_names(text) == names


def test_a_huge_list_is_cut() -> None:
    assert len(host_names("n[0-999999999]x[0-9]", most=100)) == 100
    assert len(host_names("n[1-999999999]")) == len(host_names("n[1-65536]")) == 65_536


TORCH = "/home/me/env/lib/python3.11/site-packages/torch/autograd/graph.py"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NESTED = f"""\
Traceback (most recent call last):
  File "/home/me/gpt/train.py", line 418, in <module>
    main()
    ~~~~^^
  File "/home/me/gpt/train.py", line 97, in main
    loss.backward()
  File "{TORCH}", line 829, in _engine_run_backward
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{OOM}""".splitlines()
OWN = CodeLine("/home/me/gpt/train.py", 97, "loss.backward()")


def test_the_innermost_line_of_ones_own() -> None:
    assert own_line(NESTED, len(NESTED) - 1) == OWN


def test_each_rank_has_its_own_traceback_in_one_log() -> None:
    mixed: list[str] = []
    for number, text in enumerate(NESTED):
        mixed += [f"[rank1]: {text}", f"[rank0]: {NESTED[number - 1]}"]
    assert own_line(mixed, mixed.index(f"[rank1]: {OOM}")) == OWN


def test_a_line_that_only_follows_a_traceback_has_none() -> None:
    lines = [*NESTED, "step 12 | loss nan", "loss is not finite: stopping"]
    assert own_line(lines, len(lines) - 1) is None
    assert own_line(["loss is not finite"], 0) is None


def test_a_traceback_of_libraries_alone_is_nobodys() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        '  File "/home/me/env/bin/accelerate", line 8, in <module>',
        "    sys.exit(main())",
        f'  File "{TORCH}", line 3, in run',
        "    raise ValueError",
        "ValueError: no",
    ]
    assert own_line(lines, len(lines) - 1) is None


def test_a_program_that_came_as_a_package_is_the_users() -> None:
    home = "/env/lib/python3.11/site-packages/trainer"
    lines = [
        "Traceback (most recent call last):",
        '  File "<frozen runpy>", line 88, in _run_code',
        f'  File "{home}/__main__.py", line 40, in <module>',
        "    sys.exit(main())",
        f'  File "{home}/loop.py", line 210, in train',
        "    loss.backward()",
        f'  File "{TORCH}", line 3, in run',
        OOM,
    ]
    assert own_line(lines, len(lines) - 1) == CodeLine(f"{home}/loop.py", 210, "loss.backward()")


STACK = [
    'Thread 7 (idle): "MainThread"', "    wait (/usr/lib/python3.11/threading.py:331)", "    main (/job/train loop.py:19)",
    "        time.sleep(9)", "    <module> (/job/train.py:31)", '  File "/job/data.py", line 41 in fetch',
    "      file.read(1)",
]  # fmt: skip


def test_a_frame_of_a_stack_is_itself_the_line() -> None:
    assert own_line(STACK, 2) == CodeLine("/job/train loop.py", 19, "time.sleep(9)")
    assert own_line(STACK, 4) == CodeLine("/job/train.py", 31, "")
    assert own_line(STACK, 5) == CodeLine("/job/data.py", 41, "file.read(1)")
    assert own_line(STACK, 1) is None
    assert own_line(STACK, 0) is None


@given(
    st.lists(st.sampled_from([*NESTED, "", "    x", "[rank1]: y", "  ^"]), min_size=1, max_size=40), st.data()
)
def test_any_lines_give_a_line_that_stands_there_or_none(lines: list[str], data: st.DataObject) -> None:
    found = own_line(lines, data.draw(st.integers(0, len(lines) - 1)))
    if found is not None:
        assert any(f'File "{found.path}", line {found.line}' in line for line in lines)
        assert "site-packages" not in found.path


FRAME = '  File "a.py", line 1, in f\n    g()\n'
TOLD = "Traceback (most recent call last):"
GROUP = '  |   File "a.py", line 1, in f\n  | ExceptionGroup: two (2 sub-exceptions)\n  +-+------ 1 ------\n  | x\n'
CELL = "ValueError                     Traceback (most recent call last)"


@pytest.mark.parametrize(
    ("head", "after", "end"),
    [
        (TOLD, f"{FRAME}ValueError: no \nstep 1\n", (3, "ValueError: no")),
        (TOLD, f"{FRAME}step 1\nstep 2\n\n  x\nstep 3\nKeyError\n", (8, "KeyError")),
        (TOLD, f"{FRAME}step 1\nstep 2\nstep 3\nstep 4\nKeyError\n", NO_END),
        (TOLD, "KeyError: not yet in a frame\n", None),
        (f"[rank0]: {TOLD}", f"[rank1]: KeyError\n[rank0]: {FRAME}[rank0]: OSError: no\n", (4, "OSError: no")),
        (f"[rank0]: {TOLD}", "[rank1]: x y\n" * 24, None), (f"[rank0]: {TOLD}", "[rank1]: x y\n" * 25, NO_END),
        (f"  + Exception Group {TOLD}", GROUP, None), (CELL, "Cell In[1], line 1\n", None),
        (f"  + Exception Group {TOLD}", f"{GROUP}  +-----------\n", (2, "ExceptionGroup: two (2 sub-exceptions)")),
        (CELL, "Cell In[1], line 1\n----> 1 f()\nKeyError: other\nValueError: no \n", (4, "ValueError: no")),
        (CELL, f"Cell In[1], line 1\n{TOLD}\nValueError: no\n", NO_END),
    ],
)  # fmt: skip
def test_where_a_traceback_ends(head: str, after: str, end: TracebackEnd | tuple[int, str] | None) -> None:
    found = end_below(head, after.encode())
    assert (found if found in (None, NO_END) else (found.below, found.text)) == end


def test_what_may_end_a_traceback() -> None:
    can = ["ValueError: x", "KeyError", "a.b.Err", "mod.Err:", "lower: x", "f.<locals>.E: x", "É: x"]
    cannot = [
        "lower", "Foo:", "INFO: x", "Warn: x", "step: 3", "eval_loss: 2", "lr: 1", "two words: x", "3: x", "",
    ]  # fmt: skip
    assert [is_exception(text) for text in (*can, *cannot)] == [True] * 7 + [False] * 10

"""Of a traceback the innermost line of the user's own files is found, and none where there is none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.tracebacks import CodeLine, own_line

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
    'Thread 7 (idle): "MainThread"',
    "    wait (/usr/lib/python3.11/threading.py:331)",
    "    main (/job/train loop.py:19)",
    "        time.sleep(9)",
    "    <module> (/job/train.py:31)",
    '  File "/job/data.py", line 41 in fetch',
    "      file.read(1)",
]


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

from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.job.config.files import MAX_BYTES, MAX_ITEMS, config_words, line_of, parse_config, read_values
from supervisor.job.errors import JobError


def test_the_seeds_python_form_is_read_and_not_run(tmp_path: Path) -> None:
    text = b'"""Balanced."""\ndepth = 16\ndevice_batch_size = 12\ntotal_batch_size = device_batch_size * 2048 * 2\nlr: float = 3e-4\n'
    assert parse_config("balanced.py", text) == {
        "depth": 16,
        "device_batch_size": 12,
        "total_batch_size": 49152,
        "lr": 3e-4,
    }


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.mkdir({target!r})",
        "x = __import__('os').mkdir({target!r})",
        "x = [open({target!r}, 'w')]",
        "x = (lambda: open({target!r}, 'w'))()",
        "def f(): open({target!r}, 'w')\nx = f()",
        "x = [open(p, 'w') for p in [{target!r}]]",
        "x = f'{{open({target!r}, 1)}}'",
        "@open({target!r}, 'w')\nclass A: pass",
        "x = 1 if open({target!r}, 'w') else 2",
        "exec('open({target!r})')",
        "x = ().__class__.__bases__[0].__subclasses__()",
    ],
)
def test_hostile_python_is_refused_with_its_line_and_never_executed(code: str, tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(JobError, match=r"^evil\.py:\d+: ") as refused:
        parse_config("evil.py", code.format(target=str(target)).encode())
    assert not target.exists()
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "code",
    [
        "x = 9**9**9",
        "x = 2**100000",
        "x = 10**30 * 10**30",
        "x = 1 << 999999999",
        "x = 'a' * 999999999",
        "x = [0] * 999999999",
        "x = 1 / 0",
        "x = (-8) ** 0.5",
        "x = " + "(" * 3000,
        "x = " + "-" * 100_000 + "1",
        "x = " + "1+" * 5000 + "1",
        "x = \0",
        "x = unknown",
        "x = 1\nx = 2",
        "a = b = 1",
        "x += 1",
        "a0 = [1]\n" + "\n".join(f"a{i} = [{','.join([f'a{i - 1}'] * 40)}]" for i in range(1, 9)),
    ],
)
def test_arithmetic_is_bounded(code: str) -> None:
    with pytest.raises(JobError):
        parse_config("big.py", code.encode())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "a: 1\nb: 2\na: 3\n", ":3: 'a' is set twice"),
        ("a.yaml", "run: {x: 1, x: 2}", ":1: 'x' is set twice"),
        ("a.yaml", "- 1\n- 2\n", ": a job file is a mapping of keys to values, this one is a list"),
        ("a.yaml", "just text", ": a job file is a mapping of keys to values, this one is a str"),
        ("a.yaml", "a: [1\nb: 2", ":2: not valid YAML: expected ',' or ']', but got ':'"),
        ("a.yaml", "a: !!python/object/apply:os.system ['true']", ":1: not valid YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("a.yaml", "a: 2024-01-01", ": a: a date is no setting; quote it if it is text"),
        ("a.yaml", "b: {a: [2024-01-01]}", ": b.a: a date is no setting; quote it if it is text"),
        ("a.yaml", "? [1, 2]\n: 3", ":1: a key must be plain text"),
        ("a.yaml", "a: &x {b: 1}\nc:\n  <<: *x\n", ":3: a key must be plain text"),
        ("a.yaml", "a: " + "[" * 9 + "]" * 9 + "\n", ""),
        ("a.yaml", "a: " + "[" * 9 + "1" + "]" * 9, ": a: too large or nested too deeply for a setting"),
        ("a.py", f"a = [{'1,' * (MAX_ITEMS - 1)}]", ""),
        ("a.py", f"a = [{'1,' * MAX_ITEMS}]", ": a: too large or nested too deeply for a setting"),
        ("a.toml", "a = \n", ": not valid TOML: Invalid value (at line 1, column 5)"),
        ("a.json", "{}", ": a job file ends in .toml, .yaml, .yml or .py"),
        ("a.toml", "a = 1979-05-27", ": a: a date is no setting; quote it if it is text"),
        ("a.toml", "#" * MAX_BYTES, ""),
        ("a.toml", "#" * (MAX_BYTES + 1), ": 262145 bytes is too large for a job file (at most 262144)"),
        ("a.py", "x = 1\nx = 2", ":2: 'x' is set twice"),
        ("a.py", "a = b = 1", ":1: only `name = constant` is read here, never executed"),
        ("a.py", "y = 1\nx = unknown", ":2: x: only constants, and + - * / on numbers, are read here, never executed"),
        ("a.py", "x = 1 + True", ":1: x: only constants, and + - * / on numbers, are read here, never executed"),
        ("a.py", "x = 1 +", ":1: not valid Python: invalid syntax"),
        ("a.py", f"x = {2**127} + 1", ""),
        ("a.py", f"x = {2**128} + 1", ":1: x: only constants, and + - * / on numbers, are read here, never executed"),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_a_file_that_is_no_job_file_is_refused_in_one_line(name: str, text: str, said: str) -> None:
    if not said:
        parse_config(name, text.encode())
        return
    with pytest.raises(JobError) as refused:
        parse_config(name, text.encode())
    assert refused.value.message == f"{name}{said}"


@pytest.mark.parametrize(
    "text", ["a = 1\na = 2", "a = " + "[" * 3000, "a = " + "9" * 5000, "a: 2024-99-99", "a: " + "9" * 5000]
)
def test_what_a_parser_gives_up_on_is_one_line(text: str) -> None:
    name, kind = ("a.toml", "not valid TOML") if "=" in text else ("a.yaml", "not a job file")
    with pytest.raises(JobError, match=rf"^{name}: {kind}: [^\n]{{1,200}}$"):
        parse_config(name, text.encode())


def test_each_form_of_a_job_file_holds_plain_values() -> None:
    values = {"a": {"b": [1, 2.5, "x"], "c": True}, "d": -3}
    toml = 'd = -3\n[a]\nb = [1, 2.5, "x"]\nc = true\n'
    for name, text in (
        ("A.TOML", toml), ("a.toml", f"\ufeff{toml}"), ("a.yml", "a: {b: [1, 2.5, x], c: true}\nd: -3\n"),
        ("a.py", "'doc'\npass\na = {'b': [1, 2.5, 'x'], 'c': True}\nd: int = 4 // 3 - 2 * 2\n"),
    ):  # fmt: skip
        assert parse_config(name, text.encode()) == values
    assert parse_config("a.py", rb"s = 'a\q'") == {"s": r"a\q"}
    assert parse_config("a.yaml", b"") == {}
    flat = {"a.b": 1, "a.c": True, "d": None}
    deep = '{"a": {"b": 1, "c": true, "y.z": 2, "l": [1]}, "d": null, "#": 3}'
    assert read_values("c.json", deep) == read_values("c.YAML", deep) == flat
    for name, text in (
        ("c.json", "[1]"),
        ("c.json", "{"),
        ("c.yaml", "- 1"),
        ("c.json", f'{{"a": 1}}{" " * MAX_BYTES}'),
    ):
        assert read_values(name, text) == {}
    assert config_words(("--config=a.YAML", "b.json", "x", "b.json", "--out", "c.txt")) == (
        "a.YAML",
        "b.json",
    )


def test_a_key_is_found_in_its_line() -> None:
    toml = "# c\na = 1\n[t]\nb = 2\n'c' = 3\n[[l]]\nb = 4\n"
    assert [line_of(toml, key) for key in ("a", "t.b", "t.c", "t.none", "l", "l.b", "none.c", "x")] == [
        2, 4, 5, 3, 6, 7, 5, None,
    ]  # fmt: skip
    nested = 'a:\n  b: 1\n  "c": 2\nd: 3\ne:\n  b: 4\n'
    assert [line_of(nested, key) for key in ("a", "a.b", "a.c", "d", "e.b", "b")] == [1, 2, 3, 4, 6, 2]


def test_a_yaml_error_does_not_quote_the_file() -> None:
    with pytest.raises(JobError) as info:
        parse_config("job.yaml", b"script: train.py\napi_key: hunter2-and-more: x\n")
    assert info.value.message == "job.yaml:2: not valid YAML: mapping values are not allowed here"


def test_what_is_not_text_is_said() -> None:
    with pytest.raises(JobError, match=r"^a\.toml: not UTF-8 text \(byte 5\): is this a job file\?$"):
        parse_config("a.toml", b"a = '\xff'")


@pytest.mark.parametrize("text", [
    ".".join(["a"] * 100_000) + " = 1",
    " . ".join(["a"] * 60_000) + " = 1",
    ".".join(['"a"'] * 60_000) + " = 1",
    "[" + ".".join(["a"] * 100_000) + "]\n",
    "x = {" + ".".join(["a"] * 100_000) + " = 1}",
])  # fmt: skip
@pytest.mark.fault("hostile input", "a TOML key of 100,000 parts", "refused at once")
def test_a_key_of_100_000_parts_is_refused_at_once(text: str) -> None:
    """tomllib takes time by the square of the parts: two minutes for these."""
    began = time.process_time()
    with pytest.raises(JobError, match=r"a key of more than 128 parts \(at line 1\)$"):
        parse_config("job.toml", text.encode())
    assert read_values("script.toml", text) == {}
    assert time.process_time() - began < 5.0

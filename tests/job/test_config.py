from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.job.config.files import MAX_BYTES, parse_config, read_values
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
        ("a.yaml", "a: 1\nb: 2\na: 3\n", r"a\.yaml:3: 'a' is set twice"),
        ("a.yaml", "run: {x: 1, x: 2}", "'x' is set twice"),
        ("a.yaml", "- 1\n- 2\n", "mapping"),
        ("a.yaml", "just text", "mapping"),
        ("a.yaml", "a: [1\nb: 2", r"a\.yaml:\d+"),
        ("a.yaml", "a: !!python/object/apply:os.system ['true']", r"a\.yaml:1"),
        ("a.yaml", "a: 2024-01-01", "quote it"),
        ("a.yaml", "? [1, 2]\n: 3", "plain text"),
        ("a.toml", "a = 1\na = 2", "a.toml"),
        ("a.toml", "a = \n", "line 1"),
        ("a.toml", "a = " + "[" * 3000, "a.toml"),
        ("a.json", "{}", r"\.toml"),
        ("a.toml", "a = 1979-05-27", "quote it"),
    ],
)
def test_bad_files_are_one_line(name: str, text: str, said: str) -> None:
    with pytest.raises(JobError, match=said) as refused:
        parse_config(name, text.encode())
    assert "\n" not in refused.value.message


def test_a_yaml_error_does_not_quote_the_file() -> None:
    with pytest.raises(JobError) as info:
        parse_config("job.yaml", b"script: train.py\napi_key: hunter2-and-more: x\n")
    assert info.value.message == "job.yaml:2: not valid YAML: mapping values are not allowed here"


def test_size_and_encoding_are_bounded() -> None:
    with pytest.raises(JobError, match="too large"):
        parse_config("a.toml", b"#" * (MAX_BYTES + 1))
    with pytest.raises(JobError, match="UTF-8"):
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
    with pytest.raises(JobError, match="a key of more than 128 parts"):
        parse_config("job.toml", text.encode())
    assert read_values("script.toml", text) == {}
    assert time.process_time() - began < 5.0

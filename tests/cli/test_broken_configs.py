"""Broken configs of every kind: one clear answer, exit 2, nothing executed, in bounded time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.cli.main import main

# What a case prints has these words; a case without any only has to be refused.
TOML = {
    "wrong type": ('depth = "deep"', "depth"),
    "list for a number": ("depth = [1, 2]", "depth"),
    "table for a number": ("[depth]\nx = 1", "depth"),
    "fraction for a whole number": ("num_iterations = 1.5", "num_iterations"),
    "NaN": ("learning_rate = nan", "learning_rate"),
    "infinity": ("learning_rate = inf", "learning_rate"),
    "overflow": ("depth = 99999999999999999999999999", "depth"),
    "negative depth": ("depth = -1", "depth must be at least 1"),
    "no steps": ("num_iterations = 0", "num_iterations must be at least 1"),
    "negative learning rate": ("learning_rate = -1", "learning_rate must be above 0"),
    "beta of one": ("beta1 = 1.0", "beta1 must be at least 0 and below 1"),
    "negative clipping": ("gradient_clip_val = -1", "gradient_clip_val must be at least 0"),
    "negative accumulation": (
        "gradient_accumulation_steps = -3",
        "gradient_accumulation_steps must be at least 0",
    ),
    "negative vocabulary": ("vocab_size = -5", "vocab_size must be at least 0"),
    "no patience": ("dist_timeout_s = 0", "dist_timeout_s must be above 0"),
    "too many ranks": ("nproc_per_node = 100000", "at most 1024"),
    "no ranks": ("nproc_per_node = 0", "nproc"),
    "half a rank": ("nproc_per_node = 1.5", "nproc"),
    "no such choice": ('lr_schedule = "linear"', "cosine"),
    "a table of another file": ('[ui]\ntheme = "dark"', "[ui] belongs in stoker.toml"),
    "unknown key": ("dephth = 3", "depth"),
    "unknown key of a table": ("[policy]\nmax_retry = 3", "max_retries"),
    "unknown table": ("[polcy]\nmax_retries = 3", "polcy"),
    "key twice": ("depth = 1\ndepth = 2", "Cannot overwrite a value"),
    "alias and name": ("batch_size = 1\ndevice_batch_size = 2", "device_batch_size"),
    "text for a switch": ('pin_memory = "perhaps"', "pin_memory wants true or false"),
    "negative retries": ("[policy]\nmax_retries = -1", "max_retries"),
    "text for retries": ('[policy]\nmax_retries = "many"', "max_retries"),
    "a batch that does not divide": (
        "nproc_per_node = 2\ndevice_batch_size = 3\ntotal_batch_size = 16384\nmax_seq_len = 256",
        "divide",
    ),
    "no TOML": ("depth = ", "TOML"),
    "an unfinished table": ("[run", "TOML"),
    "an unfinished text": ('name = "abc', "TOML"),
    "dotted keys without end": (".".join(["a"] * 20_000) + " = 1", ""),
    "brackets without end": ("a = " + "[" * 50_000, ""),
    "a long key": ("a" * 300_000 + " = 1", ""),
    "a rule that is no pattern": ('[[metrics]]\nname = "loss"\nregex = "loss ((("', "loss"),
    "environment of numbers": ("[env]\nA = [1]", "A"),
    "arguments that are no list": ("[run]\nargs = 3", "args"),
    "steps of a hang": ("[hang]\nact_s = -3", "act_s"),
    "an override of nothing": ("[policy.no_such]\nmax_retries = 1", "no_such"),
}
YAML = {
    "python object": ("!!python/object/apply:os.system ['touch MARK']", ""),
    "python name": ("depth: !!python/name:os.system", ""),
    "own tag": ("depth: !ref 3", ""),
    "bomb": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)},*{chr(97 + i)},*{chr(97 + i)},*{chr(97 + i)},*{chr(97 + i)},*{chr(97 + i)},*{chr(97 + i)},*{chr(97 + i)},*{chr(97 + i)}]\n"
            for i in range(9)
        ),
        "",
    ),
    "itself": ("a: &a\n  b: *a", ""),
    "no mapping": ("- 1\n- 2", "mapping"),
    "a text": ("just words", ""),
    "key twice": ("depth: 1\ndepth: 2", "depth"),
    "tabs": ("run:\n\tname: x", "YAML"),
    "brackets without end": ("[" * 20_000, ""),
    "two documents": ("depth: 1\n---\ndepth: 2", ""),
    "a number for a key": ("1: 2", "1"),
    "null": ("depth:", "depth"),
    "bare on": ("compile: on", "quote it"),
}
PY = {
    "a call": ("open('MARK', 'w').write('x')\ndepth = 3", ""),
    "an import": ("import os\nos.system('touch MARK')\ndepth = 3", ""),
    "a comprehension": ("depth = [x for x in range(3)]", ""),
    "a function": ("def f(): open('MARK', 'w')\ndepth = f()", ""),
    "no Python": ("depth = = 3", ""),
    "nested without end": ("depth = " + "(" * 5_000, ""),
    "a conditional": ("if open('MARK', 'w'): depth = 3", ""),
}
BYTES = {
    "binary.toml": (bytes(range(256)) * 40, ""),
    "utf16.toml": ("depth = 3".encode("utf-16"), ""),
    "latin1.yaml": ("name: caf\xe9".encode("latin-1"), ""),
    "nul.yaml": (b"depth: 3\x00", ""),
    "gzip.toml": (b"\x1f\x8b\x08" + bytes(100), ""),
    "empty.json": (b"{}", ""),
    "preset.ini": (b"[a]\nb=1", ""),
    "large.toml": (b"# " + b"x" * (100 << 20), "larger than 4 MiB"),
}

CASES = [
    *(
        (f"{name.replace(' ', '-')}.{suffix}", text.encode(), said)
        for suffix, table in (("toml", TOML), ("yaml", YAML), ("py", PY))
        for name, (text, said) in table.items()
    ),
    *((name, data, said) for name, (data, said) in BYTES.items()),
]
# In tests that are made to take a second at most; a machine under load takes several.
DEADLINE_S = 20.0


def refused(folder: Path, name: str, data: bytes, capsys: pytest.CaptureFixture[str]) -> str:
    """What `stoker run --config` says of a file; it must not have done anything."""
    (folder / name).write_bytes(data)
    begun = time.monotonic()
    assert main(["run", "--no-ui", "--runs-dir", "runs", "--config", name]) == 2
    assert time.monotonic() - begun < DEADLINE_S
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert said.err.startswith("stoker run: ")
    assert sorted(path.name for path in folder.iterdir()) == [name], "nothing was executed, or made"
    return said.err


@pytest.mark.parametrize(("name", "data", "said"), CASES, ids=[name for name, _, _ in CASES])
def test_a_broken_config_is_one_clear_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    data: bytes,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(tmp_path, name, data, capsys)
    assert said in error
    assert error.count("\n") == 1
    assert len(error) < 600


def test_all_errors_of_a_file_at_once_each_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'depth = -1\nlearning_rate = "high"\nno_such_key = 1\n\n[policy]\nmax_retries = "many"\nhold = 3\n'
    error = refused(tmp_path, "many.toml", text.encode(), capsys)
    places = [line.removeprefix("stoker run: ").split(" ")[0] for line in error.splitlines()]
    assert places == ["many.toml:1:", "many.toml:2:", "many.toml:3:", "many.toml:6:", "many.toml:7:"]

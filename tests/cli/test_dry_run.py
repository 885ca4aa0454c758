"""The public answer of a dry run, held to its schema."""

from __future__ import annotations

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "dry-run.schema.json").read_text(encoding="utf-8"))
SCRIPT = "raise SystemExit('never run')\n"
PAIR = ("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1")
PAIR_CHANGES = [("--per_device_train_batch_size", "8", "4"), ("--gradient_accumulation_steps", "1", "2")]
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None)}


def dry_run(folder: Path, *words: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a dry run in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = main(["run", "--dry-run", *words])
    return code, out.getvalue(), err.getvalue()


def faults(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """Where a value is not what the schema says; the part of JSON schema that the page uses."""
    schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    found = [f"{at}: not {schema['const']!r}"] if "const" in schema and value != schema["const"] else []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, _TYPES[k]) for k in kinds):
        return [*found, f"{at}: {value!r} is no {kinds}"]
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += faults(item, schema.get("items", {}), f"{at}[{index}]")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value]
        more = schema.get("additionalProperties", {})
        for name, item in value.items():
            if name not in known and more is False:
                found.append(f"{at}.{name} is not in the schema")
            found += faults(item, known.get(name, more or {}), f"{at}.{name}")
        one_of = [set(s["required"]) <= set(value) for s in schema.get("oneOf", ())]
        found += [f"{at}: not one of its forms"] if one_of and sum(one_of) != 1 else []
    return found


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (("train.py", *PAIR), PAIR_CHANGES),
        (("--", "accelerate", "launch", "train.py", *PAIR), PAIR_CHANGES),
        (("train.py",), None),
        (("--batch-knob", "env:BS", "--accumulation-knob", "c.yaml#a", "--", "bash", "train.sh"), None),
        (("--", "docker", "run", "image", "train.py"), None),
        (("--", "./anything", "--batch_size", "4"), None),
    ],
)
def test_one_line_of_json_that_keeps_to_its_schema(
    tmp_path: Path, words: tuple[str, ...], changes: list[tuple[str, str, str]] | None
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, out, err = dry_run(tmp_path, "--json", *words)
    assert code == 0, err
    (line,) = out.splitlines()
    answer = json.loads(line)
    assert faults(answer, SCHEMA) == []
    if changes is None:
        assert answer["on_oom"]["refused"] is True
        assert answer["on_oom"]["why"]
    else:
        assert [(c["knob"], c["from"], c["to"]) for c in answer["on_oom"]["changes"]] == changes
    assert not (tmp_path / "runs").exists()


def test_no_interpreter_with_torch_is_needed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, out, err = dry_run(tmp_path, "--json", "--python", "/nowhere/python", "train.py", *PAIR)
    assert code == 0, err
    assert json.loads(out)["on_oom"]["changes"]


def test_people_read_the_same_in_four_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    _, out, _ = dry_run(tmp_path, "--", "accelerate", "launch", "train.py", *PAIR)
    lines = [
        line for line in out.splitlines() if line.startswith(("# batch", "# out of", "# then", "# resume"))
    ]
    assert lines[0].endswith("× ranks"), "never 1 rank for what starts its own"
    assert lines[1] == (
        "# out of memory: --per_device_train_batch_size 8 → 4, --gradient_accumulation_steps 1 → 2 (same global batch)"
    )
    assert lines[2].startswith("# then: --per_device_train_batch_size 4 → 2")
    assert lines[3].startswith("# resume: ")


def test_what_is_measured_is_known_after_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    _, said, _ = dry_run(tmp_path, "train.py")
    assert "# batch: micro-batch known after the first step" in said
    assert "# then: to say it now: --batch-knob FLAG --accumulation-knob FLAG" in said
    assert "known after the first step" not in dry_run(tmp_path, "--no-instrument", "train.py")[1]


@pytest.mark.parametrize(
    ("command", "wants"),
    [
        ("docker run -it image python train.py", ("docker run -v ", ":ro -e ", "-e PYTHONPATH", "-e STOKER_RUN_DIR")),
        ("sudo podman run image torchrun train.py", ("podman run -v ", "-e STOKER_TELEMETRY_DIR")),
        ("srun -n 2 apptainer exec image.sif python train.py", ("apptainer --bind ",)),
        ("singularity run --nv image.sif", ("singularity --bind ",)),
        ("docker ps", ()),
        ("python train.py --mode run", ()),
    ],
)  # fmt: skip
def test_a_container_is_told_what_it_must_mount_and_pass(
    tmp_path: Path, command: str, wants: tuple[str, ...]
) -> None:
    _, said, _ = dry_run(tmp_path, "--", *command.split())
    lines = [line for line in said.splitlines() if line.startswith("# container: ")]
    assert len(lines) == bool(wants), said
    for want in wants:
        assert want in lines[0]
    if wants:
        assert lines[0].count("/RUN") >= 1
        assert "on_path" in lines[0]
    _, unmeasured, _ = dry_run(tmp_path, "--no-instrument", "--", *command.split())
    assert "# container: " not in unmeasured


@pytest.mark.parametrize(
    ("preset", "ranks", "variable"),
    [
        ("cluster/single_gpu", "run.nproc_per_node 1", ""),
        ("cluster/debug", "run.nproc_per_node 2", "NCCL_DEBUG INFO"),
    ],
)
def test_presets_of_a_first_and_of_a_talkative_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    preset: str,
    ranks: str,
    variable: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    assert main(["run", "--show-config", "--config", preset]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith(ranks) for line in said)
    assert any(line.startswith(variable) for line in said)

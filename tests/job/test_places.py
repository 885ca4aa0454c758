"""Knobs in config files and in the environment; changed copies; a restart as a diff."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.batch import BatchSpec
from supervisor.job.config.edit import config_words, read_values, with_values
from supervisor.job.errors import JobError
from supervisor.job.knobs.named_settings import find_knobs
from supervisor.job.knobs.places import Places
from supervisor.job.knobs.set_batch import batch_of
from supervisor.job.plan import build_plan, plan_as_record
from supervisor.job.plan_diff import diff_lines
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope

YAML = """\
# the run
train: {lr: 1e-4}
data:
  batch_size: 16  # a rank's
  grad_accum: 3
  note: "batch_size: 16"
eval:
  batch_size: 64
resume: auto
"""
TOML = '[data]\n"lr" = 1e-4\nbatch_size = 16 # a rank\'s\n\n[data.more]\nbatch_size = 2\ngrad_accum = 3\n'
JSON = '{"per_device_train_batch_size": 16,\n "gradient_accumulation_steps": 3, "eval": {"batch_size": 8}}\n'


def test_a_copy_differs_in_the_value_alone() -> None:
    assert with_values("c.yaml", YAML, [("data.batch_size", "12")]) == YAML.replace(": 16  #", ": 12  #")
    assert with_values("c.toml", TOML, [("data.batch_size", "12")]) == TOML.replace("= 16 #", "= 12 #")
    assert with_values("c.toml", TOML, [("data.more.batch_size", "1")]) == TOML.replace("= 2", "= 1")
    changed = with_values("c.json", JSON, [("per_device_train_batch_size", "12")])
    assert changed == JSON.replace(": 16", ": 12")
    tabs = '{\n\t"batch_size": 16,\n\t"lr": 1e-4\n}\n'
    assert with_values("c.json", tabs, [("batch_size", "12")]) == tabs.replace("16", "12")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"micro": 4, "resume": "no"}'),
        ("c.yaml", "micro: 4\nresume: auto\n"),
        ("c.toml", 'micro = 4\nresume = "no"\n'),
    ],
)
@pytest.mark.parametrize("value", ["/out put/checkpoint-10", 'a "quoted" #path: {x}', "latest"])
def test_a_text_is_written_as_one_in_each_format(name: str, text: str, value: str) -> None:
    for key in ("resume", "+resume_from_checkpoint"):
        after = read_values(name, with_values(name, text, [(key, value), ("micro", "2")]))
        assert after[key.removeprefix("+")] == value
        assert after["micro"] == 2


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("c.yaml", "a: &x 16\nb: *x\n", "b"),
        ("c.yaml", "a: |\n  16\n", "a"),
        ("c.yaml", "a: [1, 2]\n", "a"),
        ("c.yaml", YAML, "data.nothing"),
        ("c.toml", "data = {batch_size = 16}\n", "data.batch_size"),
        ("c.json", "{broken", "a"),
    ],
)
def test_what_is_not_changed_safely_is_refused(name: str, text: str, key: str) -> None:
    with pytest.raises(JobError, match=name):
        with_values(name, text, [(key, "12")])


KEYS = st.sampled_from(["a", "b", "c", "batch_size", "lr"])


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(KEYS, st.integers(0, 999) | st.dictionaries(KEYS, st.integers(0, 999)), min_size=1),
    st.data(),
)
def test_any_number_of_any_file_can_be_changed_and_nothing_else_is(
    values: dict[str, object], data: st.DataObject
) -> None:
    import json

    import yaml

    for name, text in (("c.yaml", yaml.safe_dump(values)), ("c.json", json.dumps(values, indent=1))):
        found = read_values(name, text)
        if not found:
            return
        key = data.draw(st.sampled_from(sorted(found)))
        changed = read_values(name, with_values(name, text, [(key, "12345")]))
        assert changed == {**found, key: 12345}


def test_config_files_are_found_among_the_arguments() -> None:
    assert config_words(("--config", "a/b.yaml", "--x=c.JSON", "d.txt", "e.toml")) == (
        "a/b.yaml",
        "c.JSON",
        "e.toml",
    )


def test_a_declared_key_of_a_file_has_its_value_and_a_variable_too() -> None:
    where = Places({"c.yaml": read_values("c.yaml", YAML)}, env={"BATCH_SIZE": "32"})
    named = Knobs("c.yaml#data.batch_size", KnobScope.PER_RANK, "c.yaml#data.grad_accum")
    knobs = find_knobs(("--config", "c.yaml"), named, elsewhere=where)
    batch = batch_of((), knobs, world_size=1, local_world_size=1, elsewhere=where)
    assert batch == BatchSpec(16, 3, 1)
    assert [(n.value, n.where) for n in knobs.found] == [(16, "c.yaml"), (3, "c.yaml")]
    knobs = find_knobs((), Knobs("env:BATCH_SIZE", accumulation="env:GRAD_ACCUM"), elsewhere=where)
    assert [(n.value, n.where) for n in knobs.found] == [(32, "variable BATCH_SIZE"), (None, "named")]
    assert batch_of((), knobs, world_size=1, local_world_size=1, elsewhere=where) is None


def plan_of(
    knobs: Knobs, args: tuple[str, ...], attempt: int, batch: BatchSpec | None = None
) -> dict[str, object]:
    spec = JobSpec(
        "job", EntryKind.SCRIPT, "train.py", args, cwd="/w", batch=BatchSpec(16, 3, 1), knobs=knobs
    )
    plan = build_plan(
        spec,
        attempt=attempt,
        interpreter="python",
        run_dir="/r",
        attempt_dir=f"/r/{attempt}",
        base_env={},
        batch=batch,
    )
    return plan_as_record(plan)


def test_a_restart_passes_a_changed_copy_and_says_so_as_a_diff() -> None:
    knobs = Knobs("c.yaml#data.batch_size", KnobScope.PER_RANK, "c.yaml#data.grad_accum")
    first = plan_of(knobs, ("--config=c.yaml",), 1)
    second = plan_of(knobs, ("--config=c.yaml",), 2, BatchSpec(12, 4, 1))
    assert "--config=/r/2/config/c.yaml" in second["argv"]  # type: ignore[operator]
    assert second["edits"] == [
        {
            "source": "c.yaml",
            "copy": "/r/2/config/c.yaml",
            "values": {"data.batch_size": "12", "data.grad_accum": "4"},
        }
    ]
    lines = diff_lines(first, second, {"c.yaml": read_values("c.yaml", YAML)})
    assert lines == (
        "- c.yaml: data.batch_size: 16",
        "+ c.yaml: data.batch_size: 12",
        "- c.yaml: data.grad_accum: 3",
        "+ c.yaml: data.grad_accum: 4",
    )
    third = plan_of(knobs, ("--config=c.yaml",), 3, BatchSpec(8, 6, 1))
    assert "- c.yaml: data.batch_size: 12" in diff_lines(
        second, third, {"c.yaml": read_values("c.yaml", YAML)}
    )


def test_the_copy_of_a_default_config_goes_in_by_its_flag() -> None:
    knobs = Knobs(
        "--config=conf/c.yaml#data.batch_size", KnobScope.PER_RANK, "--config=conf/c.yaml#+data.steps"
    )
    second = plan_of(knobs, ("--lr=1",), 2, BatchSpec(12, 4, 1))
    assert second["argv"][-2:] == ["--lr=1", "--config=/r/2/config/c.yaml"]  # type: ignore[index]
    values = {"data.batch_size": "12", "+data.steps": "4"}
    assert second["edits"] == [{"source": "conf/c.yaml", "copy": "/r/2/config/c.yaml", "values": values}]


@pytest.mark.parametrize("joined", [" ", "="], ids=["--deepspeed FILE", "--deepspeed=FILE"])
def test_flags_that_change_beside_a_changed_copy_are_all_shown(joined: str) -> None:
    """A DeepSpeed JSON and TrainingArguments hold the same numbers."""
    names = {"micro": "train_micro_batch_size_per_gpu", "accumulation": "gradient_accumulation_steps"}
    knobs = Knobs(
        "--bs",
        KnobScope.PER_RANK,
        "--accum",
        same=tuple((f"c.yaml#{name}", what) for what, name in names.items()),
    )
    args = (*f"--deepspeed{joined}c.yaml".split(), "--bs", "16", "--accum", "3", "-x")
    text = "train_micro_batch_size_per_gpu: 16\ngradient_accumulation_steps: 3\n"
    lines = diff_lines(
        plan_of(knobs, args, 1),
        plan_of(knobs, args, 2, BatchSpec(12, 4, 1)),
        {"c.yaml": read_values("c.yaml", text)},
    )
    assert lines == (
        "- --bs 16",
        "- --accum 3",
        "+ --bs 12",
        "+ --accum 4",
        "- c.yaml: train_micro_batch_size_per_gpu: 16",
        "+ c.yaml: train_micro_batch_size_per_gpu: 12",
        "- c.yaml: gradient_accumulation_steps: 3",
        "+ c.yaml: gradient_accumulation_steps: 4",
    )


def test_a_restart_sets_flags_and_variables() -> None:
    by_flag = Knobs("--bs", KnobScope.PER_RANK, "--accum", resume="--resume", resume_value="auto")
    first, second = (
        plan_of(by_flag, ("--bs", "16", "-x"), 1),
        plan_of(by_flag, ("--bs", "16", "-x"), 2, BatchSpec(12, 4, 1)),
    )
    assert diff_lines(first, second, {}) == ("- --bs 16", "+ --bs 12", "+ --accum=4", "+ --resume=auto")
    by_env = Knobs("env:BATCH_SIZE", KnobScope.PER_RANK, "env:ACCUM")
    second = plan_of(by_env, (), 2, BatchSpec(12, 4, 1))
    assert diff_lines(plan_of(by_env, (), 1), second, {}) == ("+ ACCUM=4", "+ BATCH_SIZE=12")


def test_this_checkouts_own_configs_can_be_read(tmp_path: Path) -> None:
    del tmp_path
    root = Path(__file__).parents[2] / "configs"
    files = [p for p in root.rglob("*") if p.suffix in {".toml", ".yaml"}]
    assert files
    assert all(read_values(p.name, p.read_text(encoding="utf-8")) for p in files)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("x: &d\n  a: 4\ny:\n  <<: *d\n", "x.a"),  # another key would change with it
        ("a: &x 4\nb: *x\n", "a"),
        ("a: 1\na: 2\n", "a"),  # the first is found, the last counts
    ],
)
def test_a_value_that_cannot_be_changed_alone_is_left(text: str, key: str) -> None:
    with pytest.raises(JobError, match="written in a way that is not changed safely"):
        with_values("c.yaml", text, [(key, "8")])


def test_only_the_value_changes_and_what_stands_around_it_stays() -> None:
    assert (
        with_values("c.yaml", "a: 4 # of all ranks\nb: ${a}\n", [("a", "8")])
        == "a: 8 # of all ranks\nb: ${a}\n"
    )
    assert with_values("c.yaml", "a: x\n", [("a", "out/new")]) == 'a: "out/new"\n'

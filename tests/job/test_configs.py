"""Which configs a command line leads to: whose they are, what they name in turn, and Hydra's composition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from supervisor.job.arguments.launchers import read_launch
from supervisor.job.knobs.batch_settings.candidates import ACCELERATE, DEEPSPEED
from supervisor.job.knobs.configs import MAX_NESTED, Configs, collect_configs
from supervisor.job.knobs.source.read_source import scan_files

PLAIN = "import torch\n"


def collected(
    line: str, files: Mapping[str, str], script: str = PLAIN, path: str = "src/train.py"
) -> Configs:
    words = ["python", path, *line.split()]
    return collect_configs(
        line.split(), replace(read_launch(words), args_at=0), scan_files([(path, script)]), files.get
    )


@pytest.mark.parametrize(
    ("name", "text", "role"),
    [
        ("a.yaml", "compute_environment: LOCAL_MACHINE\n", ACCELERATE),
        ("a.yaml", "distributed_type: FSDP\nnum_processes: 8\n", ACCELERATE),
        ("a.yaml", "num_processes: 8\n", None),
        ("d.json", '{"zero_optimization": {"stage": 2}}', DEEPSPEED),
        ("d.json", '{"train_batch_size": 8, "bf16": {"enabled": true}}', DEEPSPEED),
        (
            "d.json",
            '{"gradient_accumulation_steps": 8, "per_device_train_batch_size": 2, "fp16": true}',
            None,
        ),
        ("d.yaml", "train_batch_size: 8\nbf16: true\n", None),
        ("d.json", '{"train_batch_size": 8}', None),
    ],
)
def test_whose_a_config_is(name: str, text: str, role: str | None) -> None:
    assert collected(f"--config {name}", {name: text}).roles.get(name) == role


def test_a_config_that_another_one_names_is_read_and_cannot_be_swapped() -> None:
    files = {
        "c.yaml": "deepspeed: ds.json\nbatch_size: 4\n",
        "ds.json": '{"zero_optimization": {"stage": 2}}',
    }
    found = collected("--config c.yaml", files)
    assert set(found.values) == {"c.yaml", "ds.json"}
    assert found.fixed == {"ds.json"}
    assert found.roles == {"ds.json": DEEPSPEED}
    assert set(collected("--config c.yaml", {"c.yaml": "model: ds.json\n", "ds.json": "{}"}).values) == {
        "c.yaml"
    }


@pytest.mark.parametrize(
    ("line", "script", "lone"),
    [
        ("c.yaml", "from transformers import HfArgumentParser\nHfArgumentParser(A)\n", "c.yaml"),
        ("c.yaml", PLAIN, None),
        ("sft c.yaml", PLAIN, "c.yaml"),
        ("a b c.yaml", PLAIN, None),
        ("c.yaml --lr 1", "HfArgumentParser(A)\n", None),
        ("c.yaml lr=1", "HfArgumentParser(A)\n", "c.yaml"),
    ],
)
def test_a_config_in_place_of_all_arguments(line: str, script: str, lone: str | None) -> None:
    assert collected(line, {"c.yaml": "batch_size: 4\n"}, script).lone == lone


HYDRA = "import hydra\n@hydra.main({})\ndef main(cfg): ...\n"


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ('config_path="conf", config_name="top"', "src/conf"),
        ('config_path="../conf", config_name="top"', "conf"),
        ('config_path=None, config_name="top"', "src"),
        ('config_name="top"', "src"),
        ('config_path=os.path.join(ROOT, "a", "conf"), config_name="top"', "a/conf"),
        ('config_path=str(HERE / "conf"), config_name="top"', "src/conf"),
        ('config_path="conf", config_name="top.yaml"', "src/conf"),
    ],
)
def test_where_hydra_looks_for_its_config(given: str, folder: str) -> None:
    files = {f"{folder}/top.yaml": "batch_size: 4\n"}
    assert collected("", files, HYDRA.format(given)).settled == {"batch_size": (4, f"{folder}/top.yaml")}


MAIN = HYDRA.format('config_path="conf", config_name="top"')


def settings(files: Mapping[str, str], line: str = "") -> dict[str, object]:
    found = collected(line, {f"src/conf/{name}": text for name, text in files.items()}, MAIN).settled
    return {key: value for key, (value, _) in found.items()}


def test_a_later_entry_of_the_defaults_list_wins() -> None:
    group = {"data/small.yaml": "batch_size: 2\n"}
    first = "defaults:\n  - _self_\n  - data: small\ndata:\n  batch_size: 8\n"
    assert settings({**group, "top.yaml": first}) == {"data.batch_size": 2}
    last = first.replace("  - _self_\n", "")
    assert settings({**group, "top.yaml": last}) == {"data.batch_size": 8}, (
        "without _self_ the file's own come last"
    )


@pytest.mark.parametrize(
    ("entry", "line", "wanted"),
    [
        ("data: small", "", {"data.batch_size": 2}),
        ("data: small", "data=large", {"data.batch_size": 64}),
        ("data: null", "", {}),
        ("data: ???", "", {}),
        ("optional data: small", "", {"data.batch_size": 2}),
        ("data@train: small", "", {"train.batch_size": 2}),
        ("data@_global_: small", "", {"batch_size": 2}),
        ("/data: small", "", {"data.batch_size": 2}),
        ("data: ???", "data=large", {"data.batch_size": 64}),
        ("data: missing", "", {}),
    ],
)
def test_an_entry_of_the_defaults_list(entry: str, line: str, wanted: Mapping[str, object]) -> None:
    files = {"data/small.yaml": "batch_size: 2\n", "data/large.yaml": "batch_size: 64\n"}
    assert settings({**files, "top.yaml": f"defaults:\n  - {entry}\n"}, line) == wanted


def test_an_experiment_that_the_command_line_adds() -> None:
    files = {"top.yaml": "batch_size: 2\n", "experiment/large.yaml": "# @package _global_\nbatch_size: 64\n"}
    assert settings(files, "+experiment=large") == {"batch_size": 64}
    assert settings(files) == {"batch_size": 2}


def test_configs_that_name_themselves_come_to_an_end() -> None:
    files = {f"c{n}.yaml": f"defaults:\n  - c{n + 1}\nx{n}: {n}\n" for n in range(MAX_NESTED + 5)}
    found = settings({**files, "top.yaml": "defaults:\n  - c0\n"})
    assert len(found) == MAX_NESTED
    assert settings({"top.yaml": "defaults:\n  - top\nx: 1\n"}) == {"x": 1}


def test_a_python_config_and_its_base() -> None:
    files = {
        "conf/a.py": "_base_ = ['../base.py']\nbatch_size = 8\nname = 'x'\nlr = f()\n",
        "base.py": "batch_size = 2\nloader = dict(batch_size=4, inner=dict(workers=1))\nother = {'n': 3}\n",
    }
    found = {key: value for key, (value, _) in collected("conf/a.py", files).settled.items()}
    assert found["--batch_size"] == 8
    assert found["loader.batch_size"] == 4
    assert found["loader.inner.workers"] == 1
    assert found["other.n"] == 3
    assert "--lr" not in found
    assert collected("--file conf/a.py x=conf/a.py", {}).settled == {}


@pytest.mark.parametrize(
    ("script", "written"),
    [
        ("p = argparse.ArgumentParser()\na = p.parse_args()\n", True),
        ("p = argparse.ArgumentParser()\na, more = p.parse_known_args()\n", False),
        ("p = argparse.ArgumentParser()\np.add_argument('--batch_size')\na = p.parse_args()\n", False),
        ("exec(open('configurator.py').read())\n", False),
    ],
)
def test_an_assignment_that_a_strict_argparse_would_refuse_as_a_flag(script: str, written: bool) -> None:
    found = collected("conf/a.py", {"conf/a.py": "batch_size = 8\n"}, script).written
    assert found == (frozenset({"--batch_size"}) if written else frozenset())

"""What is not known of a script's batch is refused with its true reason: nothing is taken for 1, for used, or for the only one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from supervisor.job.oom_plan import OomPlan, OomRefusal, oom_plan
from tests.job.test_oom_plan import changes, job

PARSER = "import argparse, torch\nfrom torch.utils.data import DataLoader\np = argparse.ArgumentParser()\n"
STEP = "    loss = model(x).pow(2).mean() / STEPS\n    loss.backward()\n    if (i + 1) % STEPS == 0:\n        opt.step()\n        opt.zero_grad()\n"


def loop(batch: str, steps: str) -> str:
    return f"for i, x in enumerate(DataLoader(data, batch_size={batch})):\n" + STEP.replace("STEPS", steps)


def refused(line: str, files: Mapping[str, str]) -> OomRefusal:
    plan = oom_plan(job(line, files))
    assert isinstance(plan, OomRefusal), plan
    return plan


# A declared accumulation whose value nobody gave.
BY_GLOBALS = """import sys, torch
chunk, turns = 8, 2
for word in sys.argv[1:]:
    key, value = word.lstrip("-").split("=")
    globals()[key] = int(value)
for step in range(10):
    for _ in range(turns // world):
        model(torch.randn(chunk, 16)).mean().backward()
    optimizer.step()
"""
NAMED = "--batch-knob --chunk --batch-scope per_rank --accumulation-knob --turns --nproc-per-node 2"


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (f"{NAMED} train.py --chunk=16", {"train.py": BY_GLOBALS}),
        # Its default is computed; it is a key that the file does not have; the source is not there; the batch is found by itself.
        (
            "--batch-knob --bs --batch-scope per_rank --accumulation-knob --turns train.py --bs 16",
            {"train.py": PARSER + "p.add_argument('--bs', type=int)\np.add_argument('--turns', type=int, default=read_turns())\na = p.parse_args()\n" + loop("a.bs", "a.turns")},
        ),
        (
            "--batch-knob c.yaml#bs --batch-scope per_rank --accumulation-knob c.yaml#turns train.py --config c.yaml",
            {"train.py": "cfg = load(config)\n" + loop("cfg.bs", "cfg.turns"), "c.yaml": "bs: 16\n"},
        ),
        ("--batch-knob --bs --batch-scope per_rank --accumulation-knob --turns -m other.train --bs 16", {}),
        (
            "--accumulation-knob --turns train.py --device_batch_size 16",
            {"train.py": PARSER + "p.add_argument('--device_batch_size', type=int)\na, turns = p.parse_known_args()\n" + loop("a.device_batch_size", "turns")},
        ),
    ],
)  # fmt: skip
def test_a_declared_accumulation_without_a_value_is_not_one(line: str, files: Mapping[str, str]) -> None:
    spec = job(line, files)
    plan = oom_plan(spec)
    assert isinstance(plan, OomRefusal), plan
    name = "c.yaml#turns" if "c.yaml" in files else "--turns"
    assert plan.why == f"the value of {name} is not known"
    assert plan.help == f"give {name} a number"
    assert spec.batch is None, "no global batch is stated that nobody knows"


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        (f"{NAMED} train.py --chunk=16 --turns=2", {"train.py": BY_GLOBALS}, {"--chunk": "8", "--turns": "4"}),
        (
            "--batch-knob c.yaml#bs --batch-scope per_rank --accumulation-knob c.yaml#turns train.py --config c.yaml",
            {"train.py": "cfg = load(config)\n" + loop("cfg.bs", "cfg.turns"), "c.yaml": "bs: 16\nturns: 3\n"},
            {"c.yaml#bs": "8", "c.yaml#turns": "6"},
        ),
        (
            "--batch-knob --bs --batch-scope per_rank --accumulation-knob --turns train.py --bs 16",
            {"train.py": PARSER + "p.add_argument('--bs', type=int)\np.add_argument('--turns', type=int, default=3)\na = p.parse_args()\n" + loop("a.bs", "a.turns")},
            {"--bs": "8", "--turns": "6"},
        ),
    ],
)  # fmt: skip
def test_a_declared_accumulation_with_a_value_is_used(
    line: str, files: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    assert changes(job(line, files)) == expected


# A declared accumulation that cuts the batch.
SPLITS = """import argparse, json, torch
class Trainer:
    def __init__(self, model, batch_size_per_gpu, batch_split=None):
        self.batch_split = batch_split if batch_split is not None else 1
    def pieces(self, data):
        n = data.shape[0]
        return [data[i * n // self.batch_split:(i + 1) * n // self.batch_split] for i in range(self.batch_split)]
    def run(self):
        batch = torch.randn(self.batch_size_per_gpu, 8)
        for piece in self.pieces(batch):
            (self.model(piece).pow(2).mean() / self.batch_split).backward()
        self.opt.step()
Trainer(model, **json.load(open(a.config))["trainer"]).run()
"""
CHUNKS = PARSER + (
    "p.add_argument('--bs', type=int, default=16)\np.add_argument('--pieces', type=int, default=2)\na = p.parse_args()\n"
    "for x in DataLoader(data, batch_size=a.bs):\n    for part in x.chunk(a.pieces):\n        (model(part).mean() / a.pieces).backward()\n    opt.step()\n"
)


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (
            "--batch-knob c.json#trainer.batch_size_per_gpu --accumulation-knob c.json#trainer.batch_split --batch-scope per_rank train.py --config c.json",
            {"train.py": SPLITS, "c.json": '{"trainer": {"batch_size_per_gpu": 8, "batch_split": 1}}'},
        ),
        ("--batch-knob --bs --accumulation-knob --pieces --batch-scope per_rank train.py", {"train.py": CHUNKS}),
        # By their names alone: nothing of the source is there.
        ("--batch-knob --bs --accumulation-knob --num-chunks --batch-scope per_rank -m other.train --bs 8 --num-chunks 1", {}),
        ("--batch-knob batch --accumulation-knob subdivisions --batch-scope per_rank -m darknet.train batch=64 subdivisions=8", {}),
    ],
)  # fmt: skip
def test_a_declared_accumulation_that_may_cut_the_batch_is_refused(
    line: str, files: Mapping[str, str]
) -> None:
    plan = refused(line, files)
    steps = line.split("--accumulation-knob ")[1].split()[0]
    assert f"{steps} " in plan.why
    assert "a smaller batch " in plan.why
    assert plan.help == f"increase only {steps}"


# An accumulation that the script derives from another batch setting.
EFFECTIVE = """import argparse, torch, yaml
p = argparse.ArgumentParser(); p.add_argument("--config"); a = p.parse_args()
cfg = yaml.safe_load(open(a.config))["dataloader"]
steps = int(cfg["effective_batch_size"] / cfg["max_train_batch_size"])
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=cfg["max_train_batch_size"])):
    (model(x).mean() / steps).backward()
    if (i + 1) % steps == 0: opt.step()
"""
CLICK = """import click, deepspeed
@click.command()
@click.option("--train_batch_size", default=256)
@click.option("--per_device_train_batch_size", default=32)
def main(train_batch_size, per_device_train_batch_size):
    config = {"train_micro_batch_size_per_gpu": per_device_train_batch_size, "train_batch_size": train_batch_size}
    engine = deepspeed.initialize(model=model, config=config)[0]
    for x in DataLoader(data, batch_size=per_device_train_batch_size):
        engine.backward(engine(x).mean()); engine.step()
main()
"""
ACTOR = """import torch
from omegaconf import OmegaConf
cli = OmegaConf.from_cli(); cfg = OmegaConf.merge(OmegaConf.load(cli.pop("config")), cli)
for part in torch.randn(cfg.actor.global_batch_size, 8).split(cfg.actor.micro_batch_size_per_device_for_update):
    model(part).mean().backward()
opt.step()
"""


@pytest.mark.parametrize(
    ("line", "files", "both"),
    [
        (
            "train.py --config c.yaml",
            {"train.py": EFFECTIVE, "c.yaml": "dataloader:\n  effective_batch_size: 32\n  max_train_batch_size: 2\n"},
            ("c.yaml#dataloader.effective_batch_size", "c.yaml#dataloader.max_train_batch_size"),
        ),
        (
            "train.py config=c.yaml",
            {"train.py": ACTOR, "c.yaml": "actor:\n  global_batch_size: 64\n  micro_batch_size_per_device_for_update: 4\n"},
            ("c.yaml#actor.global_batch_size", "c.yaml#actor.micro_batch_size_per_device_for_update"),
        ),
        ("train.py", {"train.py": CLICK}, ("--per_device_train_batch_size", "--train_batch_size")),
        # No source: two names that say what they are.
        ("-m other.train --total-batch-size 512 --forward-batch-size 16", {}, ("--total-batch-size", "--forward-batch-size")),
        (
            "train.py",
            {"train.py": PARSER + "p.add_argument('--global_batch_size', type=int, default=64)\np.add_argument('--max_forward_batch_size', type=int, default=8)\na = p.parse_args()\nfit(a)\n"},
            ("--global_batch_size", "--max_forward_batch_size"),
        ),
    ],
)  # fmt: skip
def test_two_batch_settings_are_no_proof_that_nothing_accumulates(
    line: str, files: Mapping[str, str], both: tuple[str, str]
) -> None:
    plan = refused(line, files)
    assert "no gradient accumulation" not in plan.why
    assert all(name in plan.why for name in both), plan.why
    assert "--allow-smaller-global" not in plan.why + plan.help
    assert oom_plan(job(f"--allow-smaller-global --batch-scope per_rank {line}", files)) == plan


def test_the_advice_for_a_total_and_its_part_works() -> None:
    files = {
        "train.py": EFFECTIVE,
        "c.yaml": "dataloader:\n  effective_batch_size: 32\n  max_train_batch_size: 2\n",
    }
    plan = refused("train.py --config c.yaml", files)
    done = oom_plan(job(f"--nproc-per-node 1 {plan.help.partition(',')[0]} train.py --config c.yaml", files))
    assert isinstance(done, OomPlan), done
    assert {c.knob: c.new for c in done.changes} == {
        "c.yaml#dataloader.max_train_batch_size": "1",
    }


@pytest.mark.parametrize(
    "others",
    [
        "p.add_argument('--eval_batch_size', type=int, default=64)\n",
        "p.add_argument('--log_every_batches', type=int, default=10)\np.add_argument('--test-batch-size', type=int, default=1000)\n",
        "",
    ],
)
def test_a_single_batch_setting_still_has_the_smaller_global_batch_as_its_way_out(others: str) -> None:
    source = PARSER + others + (
        "p.add_argument('--batch_size', type=int, default=8)\na = p.parse_args()\n"
        "for x in DataLoader(data, batch_size=a.batch_size):\n    model(x).mean().backward()\n    opt.step()\n"
    )  # fmt: skip
    plan = refused("train.py", {"train.py": source})
    assert "no gradient accumulation" in plan.why
    assert "--allow-smaller-global" in plan.help


# An option that is parsed and does nothing.
BOTH = "p.add_argument('--batch_size', type=int, default=8)\np.add_argument('--grad_accum', type=int, default=1)\na = p.parse_args()\n"
UNUSED = (
    "for x in DataLoader(data, batch_size=a.batch_size):\n    model(x).mean().backward()\n    opt.step()\n"
)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--accumulation-knob --grad_accum ",
        "--batch-knob --batch_size --batch-scope per_rank --accumulation-knob --grad_accum ",
        "--batch-knob --batch_size --batch-scope per_rank ",
    ],
)
def test_an_accumulation_that_is_parsed_and_does_nothing_is_refused(flags: str) -> None:
    spec = job(f"{flags}train.py --grad_accum 4", {"train.py": PARSER + BOTH + UNUSED})
    plan = oom_plan(spec)
    assert isinstance(plan, OomRefusal), plan
    assert plan.why.startswith("--grad_accum is declared in train.py:5 but never used")
    assert spec.batch is None or spec.batch.global_batch == 8, "it multiplies nothing"


@pytest.mark.parametrize(
    ("flags", "source"),
    [
        ("", PARSER + BOTH + loop("32", "a.grad_accum")),
        ("--batch-knob --batch_size --batch-scope per_rank ", PARSER + BOTH + loop("32", "a.grad_accum")),
        ("--batch-knob --batch_size --accumulation-knob --grad_accum ", PARSER + BOTH + loop("SIZE", "a.grad_accum")),
        ("", PARSER + "p.add_argument('-b', '--batch-size', dest='bs', type=int, default=8)\n" + BOTH.partition("\n")[2] + loop("len(data)", "a.grad_accum")),
    ],
)  # fmt: skip
def test_a_batch_that_is_parsed_and_does_nothing_is_refused(flags: str, source: str) -> None:
    plan = refused(f"{flags}train.py", {"train.py": source})
    assert plan.why.startswith(("--batch_size is declared in", "--batch-size is declared in"))
    assert plan.why.endswith("but never used")
    assert plan.help == "name it with --batch-knob"


# The line that is named.
@pytest.mark.parametrize(
    "source",
    [
        "train = DataLoader(a, batch_size=opt['bs'] // n)\ntest = DataLoader(b, batch_size=1)\n",
        "test = DataLoader(b, batch_size=1000)\ntrain = DataLoader(a, batch_size=64)\n",
        "val = DataLoader(b, batch_size=4)\nfor x in DataLoader(a, batch_size=size(), shuffle=True):\n    pass\n",
        "warm = DataLoader(b, batch_size=2)\ntrain = DataLoader(a, batch_size=int(os.environ['N']))\n",
    ],
)
def test_no_line_is_named_where_several_may_be_meant(source: str) -> None:
    plan = refused(
        "train.py", {"train.py": f"import torch\nfrom torch.utils.data import DataLoader\n{source}"}
    )
    assert "is written in" not in plan.why
    assert plan.help == "name it with --batch-knob"


@pytest.mark.parametrize("test", ["", "test = DataLoader(b, batch_size=32)\n"])
def test_the_line_is_named_where_one_number_is_all_there_is(test: str) -> None:
    source = (
        f"import torch\nfrom torch.utils.data import DataLoader\ntrain = DataLoader(a, batch_size=32)\n{test}"
    )
    plan = refused("train.py", {"train.py": source})
    assert plan.why == "the batch is written in train.py:3 (batch_size=32)"

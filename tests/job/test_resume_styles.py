"""How training scripts of the common styles resume: small stand-ins, read and never run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from supervisor.job.oom_plan import oom_plan
from supervisor.job.spec import NAMED, NAMED_UNSEEN, Knobs
from tests.job.test_oom_plan import changes, job

ARGS = "import argparse, glob, os, torch\np = argparse.ArgumentParser()\np.add_argument('--batch_size', type=int, default=32)\np.add_argument('--accum_steps', type=int, default=1)\n"
LOOP = "loader = DataLoader(d, batch_size=args.batch_size)\nfor i, x in enumerate(loader):\n    loss = model(x) / args.accum_steps\n    loss.backward()\n    if (i + 1) % args.accum_steps == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n"
STATE = "    model.load_state_dict(c['model'])\n    optimizer.load_state_dict(c['optimizer'])\n"


def script(flags: str, load: str) -> str:
    return f"{ARGS}{flags}\nargs = p.parse_args()\n{load}{LOOP}"


LOAD = "if args.load:\n    c = torch.load(args.load)\n" + STATE
BY_HELP = script("p.add_argument('--model_in', help='checkpoint to resume from')", LOAD.replace("load:", "model_in:").replace("args.load)", "args.model_in)"))  # fmt: skip
ANY_FILE = script("p.add_argument('--model_path', default='none')", LOAD.replace("args.load", "args.model_path"))  # fmt: skip
ANY_NAME = script("p.add_argument('--data_args')", LOAD.replace("args.load", "args.data_args"))
ACCELERATE = script("p.add_argument('--ckpt')", "accelerator = Accelerator()\nif args.ckpt:\n    accelerator.load_state(args.ckpt)\n")  # fmt: skip
DEEPSPEED = script("p.add_argument('--load_dir')", "import deepspeed\nengine, *_ = deepspeed.initialize(args)\nif args.load_dir:\n    engine.load_checkpoint(args.load_dir)\n")  # fmt: skip
FABRIC = script("p.add_argument('--ckpt')", "state = {'model': model, 'optimizer': optimizer}\nif args.ckpt:\n    fabric.load(args.ckpt, state)\n")  # fmt: skip
TO_FIT = f"{ARGS}p.add_argument('--ckpt')\nargs = p.parse_args()\nTrainer().fit(model, ckpt_path=args.ckpt)\n"
OWN_TRAINER = {
    "train.py": f"from loop import Trainer\n{ARGS}p.add_argument('--checkpoint')\nargs = p.parse_args()\ntrainer = Trainer(args)\nif args.checkpoint:\n    trainer.load(args.checkpoint)\ntrainer.train()\n",
    "loop.py": "class Trainer:\n    def load(self, path):\n        c = torch.load(path)\n        self.model.load_state_dict(c['model'])\n        self.opt.load_state_dict(c['opt'])\n    def train(self):\n        for x in DataLoader(d, batch_size=self.args.batch_size):\n            (self.model(x) / self.args.accum_steps).backward()\n            self.opt.step()\n            self.opt.zero_grad()\n",
}
MILESTONE = {
    "train.py": OWN_TRAINER["train.py"].replace("'--checkpoint'", "'--milestone', type=int").replace("args.checkpoint", "args.milestone"),
    "loop.py": OWN_TRAINER["loop.py"].replace("torch.load(path)", "torch.load(f'out/model-{number}.pt')").replace("load(self, path)", "load(self, number)"),
}  # fmt: skip
START_EPOCH = script("p.add_argument('--start_epoch', type=int, default=0)", f"if args.start_epoch > 0:\n    c = torch.load(os.path.join('out', f'epoch_{{args.start_epoch}}.pt'))\n{STATE}")  # fmt: skip
# The number of epochs is in the names of the files that are saved, not of one that is loaded.
SAVED_BY_EPOCH = script("p.add_argument('--num_epochs', type=int)", f"c = torch.load('a.pt')\n{STATE}for epoch in range(args.num_epochs):\n    path = f'epoch-{{epoch}}.pt'\n    save(path)\n")  # fmt: skip
NEWEST = script("p.add_argument('--out', default='o')", f"files = sorted(glob.glob(os.path.join(args.out, 'ckpt_*.pt')))\nif files:\n    c = torch.load(files[-1])\n{STATE}").replace("torch.load(files[-1])", "files[-1]").replace("    model.load", "    c = torch.load(c)\n    model.load", 1)  # fmt: skip
BY_FUNCTION = script("p.add_argument('--out', default='o')\np.add_argument('--go_on', action='store_true')", f"def last_of(folder):\n    found = [f for f in os.listdir(folder) if f.endswith('.pt')]\n    return max(found, key=os.path.getmtime)\nif os.path.isdir(args.out):\n    c = torch.load(last_of(args.out))\n{STATE}")  # fmt: skip
SHORT_NAMES = script("p.add_argument('--dir', default='o')", "def find_last(d):\n    if not os.path.isdir(d): return None\n    c = [(int(m.group(1)), f) for f in os.listdir(d) if (m := re.fullmatch(r'model_(\\d+)\\.pt', f))]\n    return os.path.join(d, max(c)[1]) if c else None\no = torch.optim.AdamW(m.parameters())\nlast = find_last(args.dir)\nif last:\n    s = torch.load(last)\n    m.load_state_dict(s['m'])\n    o.load_state_dict(s['o'])\n")  # fmt: skip
TYRO = "import tyro\n@dataclass\nclass Train:\n    batch_size: int = 8\n    grad_accum: int = 1\n    checkpoint: str | None = None\n@dataclass\nclass Args:\n    train: Train\nargs = tyro.cli(Args)\nif args.train.checkpoint:\n    c = torch.load(args.train.checkpoint)\n    model.load_state_dict(c['m'])\n    optimizer.load_state_dict(c['o'])\nfor x in DataLoader(d, batch_size=args.train.batch_size):\n    (model(x) / args.train.grad_accum).backward()\n    optimizer.zero_grad()\n"
FROM_CLI = TYRO.replace("import tyro", "from omegaconf import OmegaConf").replace("tyro.cli(Args)", "OmegaConf.merge(OmegaConf.structured(Args), OmegaConf.from_cli())")  # fmt: skip
NAMED_FOLDER = script("p.add_argument('--auto_resume', default=True)\np.add_argument('--resume_from')", f"name = f'{{args.batch_size}}x{{args.lr}}'\nfolder = Path('runs') / name\nif folder.exists():\n    args.resume_from = str(folder)\nif args.resume_from:\n    c = torch.load(args.resume_from)\n{STATE}")  # fmt: skip
SAVES_NOTHING = script("p.add_argument('--auto_resume', default=True)\np.add_argument('--save_checkpoint', default='no')", "resume_if_there()\n")  # fmt: skip
BESIDE_ANOTHER = {
    "train.py": f"{ARGS}p.add_argument('--expert_checkpoint_path', required=True)\np.add_argument('--checkpoint_path')\nargs = p.parse_args()\ndef load(path, optimizer=None):\n    c = torch.load(path)\n    model.load_state_dict(c['model'])\n    if optimizer:\n        optimizer.load_state_dict(c['optimizer'])\nload(args.expert_checkpoint_path)\nif args.checkpoint_path:\n    load(args.checkpoint_path, optimizer)\n{LOOP}",
}  # fmt: skip
# The folder that the command starts in is the package itself.
OWN_PACKAGE = {
    "train.py": "from pydantic_config import BaseConfig, parse_argv\nfrom mine.saving import Saved, load\nclass Config(BaseConfig):\n    batch_size: int = 8\n    grad_accum: int = 1\n    ckpt: Saved = Saved()\nc = Config(**parse_argv())\nif c.ckpt.resume:\n    load(c.ckpt.resume)\nfor x in DataLoader(d, batch_size=c.batch_size):\n    (model(x) / c.grad_accum).backward()\n    optimizer.zero_grad()\n",
    "../mine/saving.py": "class Saved(BaseConfig):\n    resume: str | None = None\ndef load(path):\n    c = torch.load(path)\n    optimizer.load_state_dict(c['o'])\n",
}  # fmt: skip
OWN_PACKAGE["../mine/train.py"] = OWN_PACKAGE["train.py"]
LATEST = script("p.add_argument('--out', default='o')", f"def load(kind, path):\n    c = torch.load(path)\n{STATE}there = os.path.isdir(args.out)\nkind = Pretrained.get()\nif there:\n    newest = os.path.join(args.out, 'latest')\n    load(kind, newest)\n")  # fmt: skip
OWN_FILE = script("p.add_argument('--out', default='o')\np.add_argument('--resume_after_preempt', action='store_true')", f"path = os.path.join(args.out, 'state.pth')\nif args.resume_after_preempt and os.path.isfile(path):\n    c = torch.load(path)\n{STATE}")  # fmt: skip
LAUNCHER = {
    "run.py": "import os\np.add_argument('--load', default='none')\na = p.parse_args()\nos.system(f'python train.py --load {a.load}')\n",
    "train.py": script("p.add_argument('--load')", LOAD),
}


@pytest.mark.parametrize(
    ("line", "source", "how", "knob", "value"),
    [
        ("train.py", script("p.add_argument('--load')", LOAD), "flag", "--load", None),
        ("train.py", script("p.add_argument('--load')", LOAD.replace("    optimizer.load_state_dict(c['optimizer'])\n", "")), "unknown", None, None),
        ("train.py", script("p.add_argument('--load', type=int)", LOAD), "unknown", None, None),
        ("train.py", BY_HELP, "flag", "--model_in", None),
        ("train.py", ANY_FILE, "flag", "--model_path", None),
        ("train.py", ANY_NAME, "unknown", None, None),
        ("train.py", ACCELERATE, "flag", "--ckpt", None),
        ("train.py", DEEPSPEED, "flag", "--load_dir", None),
        ("train.py", DEEPSPEED.replace("args.load_dir)", "args.load_dir, load_module_only=True)"), "unknown", None, None),
        ("train.py", FABRIC, "flag", "--ckpt", None),
        ("train.py", FABRIC.replace(", 'optimizer': optimizer", ""), "unknown", None, None),
        ("train.py", TO_FIT, "flag", "--ckpt", None),
        ("train.py", OWN_TRAINER, "flag", "--checkpoint", None),
        ("train.py", MILESTONE, "flag", "--milestone", "STEP"),
        ("train.py", START_EPOCH, "flag", "--start_epoch", "STEP"),
        ("train.py", START_EPOCH.replace("{args.start_epoch}", "{args.start_epoch - 1}"), "unknown", None, None),
        ("train.py", SAVED_BY_EPOCH, "unknown", None, None),
        # The newest of the listed files.
        ("train.py", NEWEST, "self", None, None),
        ("train.py", NEWEST.replace("args.out", "args.pretrained"), "unknown", None, None),
        ("train.py", NEWEST.replace("if files:", "if args.go_on and files:"), "unknown", None, None),
        ("train.py", NEWEST.replace("    optimizer.load_state_dict(c['optimizer'])\n", ""), "unknown", None, None),
        ("train.py", BY_FUNCTION, "self", None, None),
        ("train.py", SHORT_NAMES, "self", None, None),
        ("train.py", SHORT_NAMES.replace("torch.optim.AdamW", "Averager"), "unknown", None, None),
        ("train.py", BY_FUNCTION.replace("if os.path.isdir(args.out)", "if args.go_on"), "unknown", None, None),
        # Fields of nested classes.
        ("train.py", TYRO, "flag", "--train.checkpoint", None),
        ("train.py", FROM_CLI, "flag", "train.checkpoint", None),
        # With another batch the folder is another one, so that only the path helps.
        ("train.py", NAMED_FOLDER, "flag", "--resume_from", None),
        ("train.py", NAMED_FOLDER.replace("{args.batch_size}x", ""), "self", None, None),
        ("train.py", SAVES_NOTHING, "unknown", None, None),
        ("train.py", SAVES_NOTHING.replace("'no'", "'yes'"), "self", None, None),
        ("train.py --expert_checkpoint_path e.pt", BESIDE_ANOTHER, "flag", "--checkpoint_path", None),
        ("train.py", OWN_PACKAGE, "flag", "--ckpt.resume", None),
        ("train.py", {"train.py": OWN_PACKAGE["train.py"]}, "unknown", None, None),
        ("train.py", LATEST, "self", None, None),
        ("train.py", LATEST.replace("join(args.out", "join(args.pretrained"), "unknown", None, None),
        ("train.py", OWN_FILE, "flag", "--resume_after_preempt", ""),
        ("train.py", OWN_FILE.replace("    optimizer.load_state_dict(c['optimizer'])\n", ""), "unknown", None, None),
        ("train.py", OWN_FILE.replace("default='o'", ""), "unknown", None, None),
        ("-- python run.py", LAUNCHER, "flag", "--load", None),
    ],
)  # fmt: skip
def test_how_each_style_resumes(
    line: str, source: str | Mapping[str, str], how: str, knob: str | None, value: str | None
) -> None:
    files = {"train.py": source} if isinstance(source, str) else source
    resume = oom_plan(job(line, files)).resume
    assert (resume.how, resume.knob, resume.value) == (how, knob, value)


def test_a_switch_in_a_section_of_the_config() -> None:
    read = "import yaml\ncfg = yaml.safe_load(open(p.parse_args().config))\nloader = DataLoader(d, batch_size=cfg['train']['batch_size'])\npath = os.path.join(cfg['out'], 's.pth')\nif cfg['impl']['resume_run'] and os.path.exists(path):\n    optimizer.load_state_dict(torch.load(path)['o'])\nloss.backward()\noptimizer.zero_grad()\n"
    config = "out: runs\nname:\ntrain:\n  batch_size: 8\nimpl:\n  resume_run: false\n"
    resume = oom_plan(job("train.py --config c.yaml", {"train.py": read, "c.yaml": config})).resume
    assert (resume.knob, resume.value) == ("c.yaml#impl.resume_run", "true")
    unset = {"train.py": read, "c.yaml": config.replace("out: runs", "out:")}
    assert oom_plan(job("train.py --config c.yaml", unset)).resume.knob is None


DECLARED = "import argparse, sys\np = argparse.ArgumentParser()\np.add_argument('--path')\np.add_argument('--go', action='store_true')\np.add_argument('--or', nargs='?', const=1)\np.add_argument('--from_step', type=int)\np.add_argument('--resume_from_checkpoint', help='a path, or \"latest\"')\n"
DECLARED += "a = p.parse_args()\nif a.resume_from_checkpoint != 'latest':\n    load(a.resume_from_checkpoint)\nif '--bare' in sys.argv:\n    load()\n"


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        # Without a value: nothing for a switch, else what the flag takes.
        ("--go", Knobs(resume="--go", resume_value="")),
        ("--or", Knobs(resume="--or", resume_value="")),
        ("--bare", Knobs(resume="--bare", resume_value="")),
        ("--path", Knobs(resume_path="--path")),
        ("--from_step", Knobs(resume_step="--from_step")),
        ("--resume_from_checkpoint", Knobs(resume="--resume_from_checkpoint", resume_value="latest")),
        ("train.ckpt", Knobs(resume_path="train.ckpt")),
        # The placeholders of the path; any other value literally.
        ("--path=PATH", Knobs(resume_path="--path")),
        ("--go={path}", Knobs(resume_path="--go")),
        ("train.ckpt=PATH", Knobs(resume_path="train.ckpt")),
        ("--path=latest", Knobs(resume="--path", resume_value="latest")),
        ("--path=out/last.pt", Knobs(resume="--path", resume_value="out/last.pt")),
        ("--resume_from_checkpoint=auto", Knobs(resume="--resume_from_checkpoint", resume_value="auto")),
    ],
)
def test_a_declared_flag_gets_what_it_takes(declared: str, wanted: Knobs) -> None:
    knobs = job(f"--resume-knob {declared} train.py", {"train.py": DECLARED}).knobs
    assert (knobs.resume, knobs.resume_path, knobs.resume_step) == (
        wanted.resume,
        wanted.resume_path,
        wanted.resume_step,
    )
    assert wanted.resume is None or knobs.resume_value == wanted.resume_value
    assert knobs.resumes == NAMED
    assert knobs.resume_is_set == (wanted.resume is not None), "a path waits for a checkpoint"


def test_a_declared_flag_that_the_source_does_not_show() -> None:
    knobs = job("--resume-knob --else train.py", {"train.py": DECLARED}).knobs
    assert (knobs.resume, knobs.resume_value, knobs.resumes) == ("--else", "", NAMED_UNSEEN)
    assert knobs.resume_is_set


ABSENT = "import yaml\ncfg = yaml.safe_load(open(p.parse_args().config))\npart = cfg['train']\nloader = DataLoader(d, batch_size=part['batch_size'])\nif part.get('load_model'):\n    c = torch.load(part['load_model'])\n    optimizer.load_state_dict(c['o'])\nloss.backward()\noptimizer.zero_grad()\n"
AT_THE_TOP = ABSENT.replace("part.get", "cfg.get").replace("part['load_model']", "cfg['load_model']")


@pytest.mark.parametrize(
    ("source", "config", "knob"),
    [
        (ABSENT, "train:\n  batch_size: 8\n", "c.yaml#train.load_model"),
        (ABSENT, "training:\n  batch_size: 8\n", None),
        (AT_THE_TOP, "train:\n  batch_size: 8\n", "c.yaml#load_model"),
        (ABSENT.replace("optimizer.load", "model.load"), "train:\n  batch_size: 8\n", None),
        (ABSENT.replace("part.get('load_model')", "part['load_model']"), "train:\n  batch_size: 8\n", None),
    ],
)
def test_a_key_that_the_config_does_not_hold_yet(source: str, config: str, knob: str | None) -> None:
    files = {"train.py": source, "c.yaml": config}
    assert oom_plan(job("train.py --config c.yaml", files)).resume.knob == knob


SPREAD = "import pytorch_lightning as pl\ncfg = OmegaConf.load(args.config)\ntrainer = pl.Trainer(**cfg.trainer)\ntrainer.fit(model, DM(cfg.data.batch_size), ckpt_path=cfg.get('ckpt_path'))\n"


@pytest.mark.parametrize(
    "other", ["", "self.automatic_optimization = False\n", "pl.Trainer(accumulate_grad_batches=1)\n"]
)
def test_lightnings_accumulation_in_the_section_of_its_trainer(other: str) -> None:
    files = {
        "train.py": (SPREAD if "Trainer" not in other else SPREAD.replace("**cfg.trainer", "accumulate_grad_batches=1")) + other,
        "c.yaml": "data:\n  batch_size: 16\ntrainer:\n  max_steps: 9\n",
    }  # fmt: skip
    spec = job("train.py --config c.yaml", files)
    assert oom_plan(spec).resume.knob == "c.yaml#ckpt_path"
    if other:
        assert "accumulation" in spec.knobs.refusal
        return
    assert changes(spec) == {"c.yaml#data.batch_size": "8", "c.yaml#trainer.accumulate_grad_batches": "2"}


HEAD = "import argparse, os, torch\np = argparse.ArgumentParser()\np.add_argument('--batch_size', type=int, default=8)\n"
TAIL = "    c = torch.load(path)\n    optimizer.load_state_dict(c['optimizer'])\nloss.backward()\noptimizer.zero_grad()\n"
# The number, and a folder that nothing is in by default: the path would begin with "None".
BY_TEXT = HEAD + "p.add_argument('--resume-step', type=int, default=0)\np.add_argument('--continue-dir', default=None)\na = p.parse_args()\nif a.resume_step:\n    name = 'step_' + str(a.resume_step).zfill(7) + '.pt'\n    path = f'{a.continue_dir}/checkpoints/{name}'\n" + TAIL  # fmt: skip
BY_JOIN = HEAD + "p.add_argument('--resume_epoch', type=int)\np.add_argument('--load_dir')\na = p.parse_args()\nif a.resume_epoch:\n    path = os.path.join(a.load_dir, 'epoch_%d.pt' % a.resume_epoch)\n" + TAIL  # fmt: skip
BY_SLASH = HEAD + "from pathlib import Path\np.add_argument('--start_iter', type=int, default=0)\np.add_argument('--exp', default='')\na = p.parse_args()\nif a.start_iter:\n    name = f'iter{a.start_iter}.pt'\n    path = Path('runs') / a.exp / name\n" + TAIL  # fmt: skip
BY_PERCENT = HEAD + "p.add_argument('--resume_iter', type=int)\np.add_argument('--run_name', default=None)\na = p.parse_args()\nif a.resume_iter:\n    path = 'out/%s/%d.pt' % (a.run_name, a.resume_iter)\n" + TAIL  # fmt: skip


@pytest.mark.parametrize(
    ("source", "step", "partner"),
    [
        (BY_TEXT, "--resume-step", "continue-dir"),
        (BY_JOIN, "--resume_epoch", "load_dir"),
        (BY_SLASH, "--start_iter", "exp"),
        (BY_PERCENT, "--resume_iter", "run_name"),
    ],
)
def test_a_number_is_not_set_where_the_other_half_of_its_path_has_no_value(
    source: str, step: str, partner: str
) -> None:
    alone = job("train.py", {"train.py": source}).knobs
    assert alone.resume_step is None
    if step != "--start_iter":  # a name that does not speak of resuming is told by its path alone
        assert f"the path for {step} also needs {partner.replace('-', '_')}," in alone.resumes
    both = job(f"train.py --{partner} exps/a", {"train.py": source}).knobs
    assert both.resume_step == step


def test_what_is_only_printed_beside_a_number_is_no_half_of_its_path() -> None:
    printed = BY_TEXT.replace("{a.continue_dir}/checkpoints", "exps/checkpoints").replace(
        "    c = torch", "    print(f'from {a.resume_step} of {a.continue_dir}/x')\n    c = torch"
    )
    assert job("train.py", {"train.py": printed}).knobs.resume_step == "--resume-step"

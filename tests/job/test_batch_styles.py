"""Where training scripts of the common styles hold batch and accumulation: small stand-ins, read and never run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from supervisor.job.oom_plan import OomPlan, OomRefusal, oom_plan
from tests.job.test_oom_plan import ARGPARSE, HF, changes, job

LOOP = "for i, x in enumerate(DataLoader(d, batch_size=BATCH)):\n    loss = model(x) / STEPS\n    loss.backward()\n    if (i + 1) % STEPS == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n"
CONFIG = "cfg = load(p.parse_args().config)\n"


def loop(batch: str, steps: str) -> str:
    return LOOP.replace("BATCH", batch).replace("STEPS", steps)


def flags(*names: str) -> str:
    declared = "".join(f"p.add_argument('--{n}', type=int, default={d})\n" for n, d in zip(names, (8, 1), strict=True))  # fmt: skip
    return f"{declared}args = p.parse_args()\n{loop(*(f'args.{n}' for n in names))}"


BY_CONFIG = f"p.add_argument('--config', default='conf/base.yaml')\n{CONFIG}{loop('cfg.batch_size', 'cfg.accum_steps')}"
# yacs: the config lies over defaults in the source, and KEY VALUE pairs over the config.
YACS = {
    "train.py": f"from config import cfg\np.add_argument('--cfg')\n{loop('cfg.TRAIN.BATCH_SIZE', 'cfg.TRAIN.ACCUM_STEPS')}",
    "config.py": "from yacs.config import CfgNode\n_C = CfgNode()\n_C.TRAIN.BATCH_SIZE = 64\n_C.TRAIN.ACCUM_STEPS = 1\n",
    "c.yaml": "TRAIN:\n  BATCH_SIZE: 32\n",
}
WITH_DEFAULT = f"{CONFIG}part = cfg['train']\nsteps = part.get('accumulation_steps', 1)\n{loop('part[chr(34)]', 'steps')}".replace("part[chr(34)]", "part['batch_size']")  # fmt: skip
FIELDS = f"@dataclass\nclass Config:\n    batch_size: int\n    lr: float\n    grad_accum: int = 2\nc = Config(**load(sys.argv[1]))\n{loop('c.batch_size', 'c.grad_accum')}"
SPREAD = "from transformers import Trainer, TrainingArguments\ncfg = load(args.config)\nTrainer(args=TrainingArguments(**cfg['training'])).train()\n"
OTHER_FILE = {
    "train.py": "from loop import Loop\np.add_argument('--lr', type=float)\nLoop.add_args(p)\nLoop(p.parse_args()).run()\n",
    "loop.py": "class Loop:\n    @staticmethod\n    def add_args(q):\n        q.add_argument('--batch_size', type=int, default=8)\n        q.add_argument('--accum_steps', type=int, default=1)\n    def run(self):\n        " + loop("a.batch_size", "a.accum_steps").replace("\n", "\n        "),
}  # fmt: skip
LAUNCHER = {
    "run/go.py": "import subprocess\nrest = p.parse_known_args()\nsubprocess.run(['torchrun', 'train.py', *rest])\n",
    "train.py": flags("batch_size", "accum_steps"),
}
PIECES = "p.add_argument('--batch_size', type=int)\np.add_argument('--batch_split', type=int, default=1)\nfor x in DataLoader(d, batch_size=args.batch_size):\n    for piece in torch.chunk(x, args.batch_split):\n        loss = model(piece) / args.batch_split\n        loss.backward()\n    optimizer.step()\n"
OPTIMIZERS = flags("batch_size", "accum_steps") + "p.add_argument('--sophia_bs', type=int, default=480)\noptimizer.step(bs=args.sophia_bs)\nget(batch_size=args.batch_size)\n"  # fmt: skip
GCD = flags("batch_size", "accum_steps") + "common = math.gcd(args.accum_steps, world_size)\nargs.batch_size = args.batch_size // (world_size // common)\n"  # fmt: skip
ONLY_IF_LOGGED = f"p.add_argument('--logging', action='store_true')\n{flags('batch_size', 'accum_steps')}".replace(" / args.accum_steps", "").replace("if (i + 1)", "if args.logging and (i + 1)")  # fmt: skip
MANUAL = "import pytorch_lightning as pl\nclass M(pl.LightningModule):\n    def __init__(self):\n        self.automatic_optimization = False\np.add_argument('--batch_size', type=int, default=8)\np.add_argument('--accumulate_grad_batches', type=int, default=1)\npl.Trainer(accumulate_grad_batches=args.accumulate_grad_batches).fit(M())\n"
TASKS = "p.add_argument('--batch_size', type=int, default=8)\np.add_argument('--n_tasks', type=int, default=4)\nfor x in DataLoader(d, batch_size=args.batch_size):\n    for t in range(args.n_tasks):\n        (model(x, t) / args.n_tasks).backward()\n    optimizer.step()\n"


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        # A name that does not say so, by its use.
        ("train.py", flags("batch_size", "update_every"), {"--batch_size": "4", "--update_every": "2"}),
        ("train.py", flags("minibatch_size", "accum"), {"--minibatch_size": "4", "--accum": "2"}),
        ("train.py", flags("bsize", "accum"), {"--bsize": "4", "--accum": "2"}),
        ("train.py", flags("batch_size", "accum") + "p.add_argument('--n_shown', type=int, default=2)\nDataLoader(v, batch_size=args.n_shown)\n", {"--batch_size": "4", "--accum": "2"}),
        ("train.py --batch_size 8", PIECES, {"--batch_split": "2"}),
        ("train.py", OPTIMIZERS, {"--batch_size": "4", "--accum_steps": "2"}),
        ("train.py", GCD, {"--batch_size": "4", "--accum_steps": "2"}),
        ("train.py --logging", ONLY_IF_LOGGED, {"--batch_size": "4", "--accum_steps": "2"}),
        ("train.py --do_train", HF.replace("TrainingArguments", "Seq2SeqTrainingArguments"), {"--per_device_train_batch_size": "4", "--gradient_accumulation_steps": "2"}),
        # Configs: by default, with a key that stands nowhere yet, with yacs' pairs over it.
        ("train.py", {"train.py": BY_CONFIG, "conf/base.yaml": "batch_size: 8\naccum_steps: 1\n"}, {"conf/base.yaml#batch_size": "4", "conf/base.yaml#accum_steps": "2"}),
        ("train.py --config a.yaml", {"train.py": BY_CONFIG, "conf/base.yaml": "batch_size: 8\naccum_steps: 1\n", "a.yaml": "batch_size: 6\naccum_steps: 1\n"}, {"a.yaml#batch_size": "3", "a.yaml#accum_steps": "2"}),
        ("train.py --cfg c.yaml", YACS, {"c.yaml#TRAIN.BATCH_SIZE": "16", "c.yaml#TRAIN.ACCUM_STEPS": "2"}),
        ("train.py --cfg c.yaml TRAIN.BATCH_SIZE 8", YACS, {"TRAIN.BATCH_SIZE": "4", "c.yaml#TRAIN.ACCUM_STEPS": "2"}),
        ("train.py --cfg c.yaml --opts OUT o TRAIN.BATCH_SIZE 8", YACS, {"TRAIN.BATCH_SIZE": "4", "c.yaml#TRAIN.ACCUM_STEPS": "2"}),
        ("train.py c.yaml", {"train.py": WITH_DEFAULT, "c.yaml": "train:\n  batch_size: 8\n"}, {"c.yaml#train.batch_size": "4", "c.yaml#train.accumulation_steps": "2"}),
        ("train.py c.yaml", {"train.py": FIELDS, "c.yaml": "batch_size: 8\nlr: 0.1\n"}, {"c.yaml#batch_size": "4", "c.yaml#grad_accum": "4"}),
        ("train.py --config c.yaml", {"train.py": SPREAD, "c.yaml": "training:\n  per_device_train_batch_size: 8\n"}, {"c.yaml#training.per_device_train_batch_size": "4", "c.yaml#training.gradient_accumulation_steps": "2"}),
        # Flags of another file, and a script behind another.
        ("train.py --lr 0.1", OTHER_FILE, {"--batch_size": "4", "--accum_steps": "2"}),
        ("-- python run/go.py --batch_size 16", LAUNCHER, {"--batch_size": "8", "--accum_steps": "2"}),
    ],
)  # fmt: skip
def test_each_style(line: str, files: str | Mapping[str, str], expected: Mapping[str, str]) -> None:
    assert changes(job(line, {"train.py": files} if isinstance(files, str) else files)) == expected


@pytest.mark.parametrize(
    ("line", "source", "why"),
    [
        ("train.py", ONLY_IF_LOGGED, "does not accumulate by --accum_steps"),
        ("train.py", MANUAL, "automatic_optimization = False"),
        ("train.py", TASKS, "no gradient accumulation"),
        (
            "train.py c.yaml",
            FIELDS.replace("    lr: float\n", ""),
            "how it is changed from outside is not known",
        ),
    ],
)
def test_what_is_no_accumulation(line: str, source: str, why: str) -> None:
    plan = oom_plan(job(line, {"train.py": source, "c.yaml": "batch_size: 8\nlr: 0.1\n"}))
    assert isinstance(plan, OomRefusal)
    assert why in plan.why


DIVIDED = ARGPARSE.replace("batch_size=args.batch_size", "batch_size=args.batch_size // world_size")
WHOLE = ARGPARSE.replace("batch_size=args.batch_size", "batch_size=args.batch_size // (world_size * args.accum_iter)")  # fmt: skip


@pytest.mark.parametrize(
    ("source", "batch", "gpus", "steps"),
    [
        # Of as many ranks as there may be, each must see the same batch after as before.
        (DIVIDED, 64, 0, ["32", "16"]),
        (DIVIDED, 64, 4, ["32", "16", "8", "4"]),
        (DIVIDED, 64, 3, []),
        (DIVIDED, 12, 3, ["6"]),
        (DIVIDED, 10, 0, []),
        (WHOLE, 64, 0, ["2", "4"]),
        (WHOLE, 64, 8, ["2", "4", "8"]),
    ],
)
def test_a_batch_that_is_divided_among_an_unknown_number_of_ranks(
    source: str, batch: int, gpus: int, steps: list[str]
) -> None:
    spec = job(f"-- accelerate launch train.py --batch_size {batch}", {"train.py": source}, gpus=gpus)
    plan = oom_plan(spec)
    if not steps:
        assert isinstance(plan, OomRefusal)
        assert "how many there are is not known" in plan.why
        return
    assert isinstance(plan, OomPlan), plan
    assert [step[0].new for step in (plan.changes, *plan.then)] == steps

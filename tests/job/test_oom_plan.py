"""What an out-of-memory failure would change, on small scripts of every argument style; none of them is ever run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.batch import BatchSpec
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.knobs.batch_settings.set_batch import batch_values
from supervisor.job.oom_plan import OomPlan, OomRefusal, four_lines, missing_words, oom_notice, oom_plan
from supervisor.job.spec import AccumulationCounts, JobSpec, Knobs, KnobScope

LOOP = "\nfor x in DataLoader(d, batch_size=args.batch_size):\n    (loss / args.accum_iter).backward()\n"
ARGPARSE = f"p.add_argument('--batch_size', type=int, default=8)\np.add_argument('--accum_iter', type=int, default=1)\nargs = p.parse_args()\n{LOOP}"
HF = "from transformers import HfArgumentParser, TrainingArguments\n(a,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()\nTrainer(args=a).train()\n"
HF_OWN = (
    HF.replace("(TrainingArguments,)", "(Mine,)")
    + "@dataclass\nclass Mine(TrainingArguments):\n    gradient_accumulation_steps: int = field(default=16)\n"
)
TOTAL = "p.add_argument('--device_batch', type=int)\np.add_argument('--total_batch', type=int, default=-1)\na = p.parse_args()\nfwd = a.device_batch * a.seq * world\nsteps = a.total_batch // fwd\n"
CLICK = "@click.option('--batch', type=click.IntRange(min=1))\n@click.option('--batch-gpu', type=int)\ndef main(**kw):\n    assert opts.batch % (opts.batch_gpu * n) == 0\n"
FIRE = "import fire\ndef train(out: str = '', batch_size: int = 128, micro_batch_size: int = 4):\n    steps = batch_size // micro_batch_size\nfire.Fire(train)\n"
GLOBALS = "batch_size = 12\ngradient_accumulation_steps = 5 * 8\nexec(open('configurator.py').read())\ngradient_accumulation_steps //= ddp_world_size\nloss.backward(batch_size)\n"
HYDRA = "@hydra.main(config_path='conf', config_name='config')\ndef main(cfg):\n    DataLoader(d, batch_size=cfg.data.batch_size)\n    n = cfg.trainer.grad_accum_steps\n"
CUT = "p.add_argument('--train_batch_size', type=int, default=32)\np.add_argument('--gradient_accumulation_steps', type=int, default=1)\nargs.train_batch_size = args.train_batch_size // args.gradient_accumulation_steps\n"
SIMPLE = "from simple_parsing import ArgumentParser\n@dataclass\nclass Options:\n    batch_size: int = 16\n    grad_accum_steps: int = 2\nuse(o.batch_size, o.grad_accum_steps)\n"
FIRE_CONFIG = {
    "train.py": "import fire\nfrom config import Config\ndef main(**kwargs):\n    update(Config(), **kwargs)\nfire.Fire(main)\n",
    "config.py": "@dataclass\nclass Config:\n    batch_size_training: int = 4\n    gradient_accumulation_steps: int = 1\n",
}
# Of two batches the one counts that the accumulation is made from; the total that follows from it would be halved with it.
INTERPOLATED = {
    "train.py": HYDRA,
    "conf/config.yaml": "loader:\n  batch_size: 50\ndata:\n  batch_size: 32\ntrain:\n  global_batch_size: ${data.batch_size}\ntrainer:\n  accumulate_grad_batches: ${div_up:${train.global_batch_size}, ${eval:${trainer.devices} * ${data.batch_size}}}\n",
}
# A batch that is gone through in pieces: the whole stays.
STRIDE = "p.add_argument('--bsz', type=int)\np.add_argument('--microbatch', type=int)\nfor i in range(0, batch.shape[0], self.microbatch):\n    piece = batch[i : i + self.microbatch]\n    loss.backward()\n"
# A batch of which one GPU gets a share of its own: both are cut into the same number of even pieces.
EVEN_PIECES = "p.add_argument('--batch_size', type=int)\np.add_argument('--gpu0_bsz', type=int)\np.add_argument('--batch_chunk', type=int, default=1)\nassert args.batch_size % args.batch_chunk == 0\nmodel = Parallel(args.gpu0_bsz // args.batch_chunk)\nfor piece in torch.chunk(data, args.batch_chunk, 1):\n    (loss / args.batch_chunk).backward()\n"
SACRED = {
    "train.py": "from config import ex\n@ex.automain\ndef main(_config):\n    steps = _config['batch_size'] // (_config['per_gpu_batchsize'] * n)\n    Trainer(accumulate_grad_batches=steps, resume_from_checkpoint=_config['start'])\n",
    "config.py": "from sacred import Experiment\nex = Experiment('x')\n@ex.config\ndef config():\n    batch_size = 4096\n    per_gpu_batchsize = 0\n    start = None\n@ex.named_config\ndef large():\n    per_gpu_batchsize = 8\n",
}
STRUCTURED = {
    "train.py": "@hydra.main(config_name=None)\ndef main(cfg):\n    cfg = OmegaConf.merge(Run(), cfg)\n    DataLoader(d, batch_size=cfg.train.batch_size)\n    (loss / cfg.train.gradient_accumulation_steps).backward()\n@dataclass\nclass Train:\n    batch_size: int = 8\n    gradient_accumulation_steps: int = 3\n@dataclass\nclass Run:\n    train: Train = field(default_factory=Train)\n",
}
# A helper of its own adds the dashes.
HELPER = f"add_arg = partial(add_arguments, argparser=p)\nadd_arg('batch_size', int, 8, 'help')\nadd_arg('accum_iter', type=int, default=1, help='')\nargs = p.parse_args()\n{LOOP}"
# The default of the accumulation stands in a config of Python, and 0 of it means one micro-batch.
ACCUMULATION_ZERO = {
    "train.py": "from config import get\np.add_argument('--batch-size', type=int)\np.add_argument('--accumulation-steps', type=int)\nfor x in DataLoader(d, batch_size=c.BATCH_SIZE):\n    if c.ACCUMULATION_STEPS > 1:\n        loss = loss / c.ACCUMULATION_STEPS\n    loss.backward()\n",
    "config.py": "_C.ACCUMULATION_STEPS = 0\ndef get(args):\n    c.BATCH_SIZE = args.batch_size\n    c.ACCUMULATION_STEPS = args.accumulation_steps\n",
}
CONFIG_FUNCTIONS = {
    "train.py": "from ml_collections import config_flags\nc = FLAGS.config\nfor x in DataLoader(d, batch_size=c.train.batch_size):\n    (loss / c.train.grad_accum_steps).backward()\n",
    "conf/base.py": "def get_config():\n    config = ml_collections.ConfigDict()\n    config.train = train = ml_collections.ConfigDict()\n    train.batch_size = 64\n    config.train.grad_accum_steps = 1\n    config.sample = d(batch_size=9)\n    return config\n",
    "conf/runs.py": "base = imp.load_source('base', 'base.py')\ndef small():\n    config = base.get_config()\n    config.train.batch_size = 4\n    return config\ndef large():\n    config = small()\n    config.train.grad_accum_steps = 4\n    return config\ndef get_config(name):\n    return globals()[name]()\n",
}
# A config that names the one it is laid over from its own folder: a copy elsewhere would not find it.
LAID_OVER = {
    "train.py": "c = OmegaConf.merge(load(sys.argv[1]), OmegaConf.from_cli())\nfor x in DataLoader(d, batch_size=c.training.batch_size):\n    (loss / c.training.update_frequency).backward()\n",
    "conf/run.yaml": "includes:\n- ./base.yaml\ntraining:\n  update_frequency: 3\n",
    "conf/base.yaml": "training:\n  batch_size: 16\n",
}
# Hydra's rules: an absolute group, a config of the same folder, an override, a group that only the command line adds, a package.
HYDRA_DEEP = {
    "train.py": "@hydra.main(config_path=str(files('pkg').joinpath('conf')), config_name=None)\ndef main(cfg):\n    DataLoader(d, batch_size=cfg.loader.batch_size)\n    n = cfg.trainer.accumulate_grad_batches\n",
    "conf/base.yaml": "defaults:\n  - _self_\n  - run: first\n  - callbacks:\n    - a\n    - b\ntrainer:\n  accumulate_grad_batches: 9\n",
    "conf/run/first.yaml": "# @package _global_\ndefaults:\n  - second\n  - override /trainer: long\n",
    "conf/run/second.yaml": "# @package _global_\ndefaults:\n  - /trainer: short\n  - /loader: plain\n",
    "conf/trainer/short.yaml": "accumulate_grad_batches: 3\n",
    "conf/trainer/long.yaml": "accumulate_grad_batches: 2\n",
    "conf/loader/plain.yaml": "batch_size: 8\n",
    "conf/exp/four.yaml": "# @package _global_\ntrainer:\n  accumulate_grad_batches: 4\n",
    "conf/loader/frames.yaml": "batch_size: 8000\nbatch_size_type: frame\n",
}
# The settings' class stands in another file than the one that is parsed; its other accumulation is 1 and cuts within a micro-batch.
INHERITED = {
    "train.py": "from simple_parsing import parse\nfrom loop import Loop\n@dataclass\nclass Run(Loop):\n    out: str = 'o'\na = parse(Run)\n",
    "loop.py": "from conf import Base\nfor x in DataLoader(d, batch_size=cfg.batch_size):\n    (loss / cfg.grad_acc_steps / cfg.micro_acc_steps).backward()\n@dataclass\nclass Loop(Base):\n    lr: float = 1.0\n",
    "conf.py": "@dataclass\nclass Base:\n    batch_size: int = 16\n    grad_acc_steps: int = 1\n    micro_acc_steps: int = 1\n",
}
LIGHTNING_BY_HYDRA = {
    "src/train.py": "import hydra\nfrom lightning import Trainer\n@hydra.main(config_path='../conf', config_name='train')\ndef main(cfg):\n    hydra.utils.instantiate(cfg.trainer).fit(m, ckpt_path=cfg.get('ckpt_path'))\n",
    "conf/train.yaml": "defaults:\n  - _self_\n  - data: small\n  - trainer: default\n  - experiment: null\nckpt_path: null\n",
    "conf/data/small.yaml": "batch_size: 32\n",
    "conf/trainer/default.yaml": "_target_: lightning.pytorch.trainer.Trainer\nmax_epochs: 3\n",
    "conf/experiment/half.yaml": "# @package _global_\ndata:\n  batch_size: 16\n",
}
# A total in a group that the command line must choose; the micro-batch is made from it, the ranks and the accumulation.
TOTAL_BY_HYDRA = {
    "launch.py": "@hydra.main(config_path='conf', config_name='top')\ndef main(c):\n    c.model.microbatch_size = c.model.batch_size / (accelerator.num_processes * c.model.grad_accum)\n    loss = loss / c.model.grad_accum\n    loss.backward()\n",
    "conf/top.yaml": "defaults:\n  - _self_\n  - model: ???\n",
    "conf/model/base.yaml": "batch_size: 32\nmicrobatch_size: null\ngrad_accum: 1\n",
    "conf/model/own.yaml": "defaults:\n  - base\nname: x\n",
}
JSON_BY_FLAG = {
    "train.py": "p = argparse.ArgumentParser()\np.add_argument('--args_file', default='a.json')\nargs, = HfArgumentParser((TrainingArguments,)).parse_json_file(p.parse_args().args_file)\nTrainer(args=args).train()\n",
    "a.json": '{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "fp16": true}',
}
PY_CONFIG = "p = argparse.ArgumentParser()\np.add_argument('config')\nconfig = read_config(p.parse_args().config)\nfor x in DataLoader(d, batch_size=config.batch_size):\n    (loss / config.gradient_accumulation_steps).backward()\n"
CLEARED = ARGPARSE.replace(
    LOOP,
    "\naccelerator = Accelerator(gradient_accumulation_steps=args.accum_iter)\nfor x in DataLoader(d, batch_size=args.batch_size):\n    with accelerator.accumulate(model):\n        optimizer.zero_grad()\n        loss = model(x)\n        accelerator.backward(loss)\n        optimizer.step()\n",
)
NOT_CLEARED = CLEARED.replace("        optimizer.zero_grad()\n", "").replace(
    "        optimizer.step()\n", "        optimizer.step()\n        optimizer.zero_grad()\n"
)
DIVIDED = {
    "train.py": ARGPARSE.replace("batch_size=args.batch_size", "batch_size=args.batch_size // world_size")
}
CUT_IN_LOOP = ARGPARSE.replace(
    LOOP,
    "\nfor x in DataLoader(d, batch_size=args.batch_size):\n    for j in range(args.accum_iter):\n        step(x[j::args.accum_iter]).backward()\n",
)
BY_HELPER = ARGPARSE.replace(
    LOOP,
    "\nfor batch in DataLoader(d, batch_size=args.batch_size):\n    for j in range(args.accum_iter):\n        piece = take(batch, j, args.accum_iter, rank)\n        (step(piece) / args.accum_iter).backward()\n",
)
AT_LEAST_TWO = (
    "p.add_argument('--augment', action='store_true')\n"
    + ARGPARSE
    + "if args.augment and args.batch_size < 2:\n    raise ValueError('mixing needs two')\n"
)
TOKENS = (
    "p.add_argument('--max_num_tokens', type=int)\np.add_argument('--dynamic_batching', type=int, default=0)\n"
    + ARGPARSE
)
ONLY_COUNTED = ARGPARSE.replace(
    "(loss / args.accum_iter).backward()",
    "loss.backward()\n    opt.step()\ntotal = args.batch_size * world * args.accum_iter\nn = math.ceil(len(l) / args.accum_iter)\nprint(f'{args.accum_iter}')\n",
)
NOT_WITH_AMP = "p.add_argument('--amp', action='store_true')\n" + ARGPARSE.replace(
    "    (loss / args.accum_iter).backward()",
    "    if args.amp:\n        loss.backward()\n        opt.step()\n    else:\n        (loss / args.accum_iter).backward()",
)
CHAINED = "p.add_argument('--global_batch_size', type=int, default=64)\np.add_argument('--micro_batch_size', type=int, default=16)\na = p.parse_args()\nsteps = math.ceil(a.global_batch_size / n / a.micro_batch_size)\n"
HANDED_ON = "p.add_argument('--samples-per-replica', type=int)\np.add_argument('--batch-size-per-replica', type=int, default=8)\np.add_argument('--ga', type=int, default=4)\na = p.parse_args()\nTrainingArguments(per_device_train_batch_size=a.batch_size_per_replica, gradient_accumulation_steps=a.ga)\n"
TAP = "from tap import Tap\nclass Args(Tap):\n    bs: int = 64  # of all ranks\n    ac: int = 1\nargs = Args().parse_args()\nargs.per_rank = round(args.bs / args.ac / get_world_size())\nOptimizer(n_gradient_accumulation=args.ac)\n"
ENGINE = "import deepspeed\np.add_argument('--deepspeed_config')\nengine, *_ = deepspeed.initialize(config=p.parse_args().deepspeed_config)\n"
DS = {
    "train_micro_batch_size_per_gpu": 16,
    "train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {},
}
AUTO = {
    **dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"),
    "zero_optimization": {},
}
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 1\nnum_processes: 4\n"


def job(line: str, files: Mapping[str, str], gpus: int = 0) -> JobSpec:
    return resolve_job(
        JobInputs(parsed=parse_run_argv(line.split()), env={}, cwd="/w", read=files.get, gpus=gpus)
    )


def changes(spec: JobSpec) -> dict[str, str]:
    plan = oom_plan(spec)
    assert isinstance(plan, OomPlan), plan
    return {c.knob: c.new for c in plan.changes}


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("train.py --batch_size 8", {"train.py": ARGPARSE}, {"--batch_size": "4", "--accum_iter": "2"}),
        (
            "-m pkg.main --batch_size 8",
            {"pkg/main.py": "from pkg.params import parse\n" + LOOP, "pkg/params.py": ARGPARSE.partition("args =")[0]},
            {"--batch_size": "4", "--accum_iter": "2"},
        ),
        (
            "train.py --per_device_train_batch_size 8",
            {"train.py": HF},
            {"--per_device_train_batch_size": "4", "--gradient_accumulation_steps": "2"},
        ),
        (
            "train.py --per_device_train_batch_size 4",
            {"train.py": HF_OWN},
            {"--per_device_train_batch_size": "2", "--gradient_accumulation_steps": "32"},
        ),
        (
            "train.py args.json",
            {"train.py": HF, "args.json": '{"per_device_train_batch_size": 4, "bf16": true}'},
            {"args.json#per_device_train_batch_size": "2", "args.json#gradient_accumulation_steps": "2"},
        ),
        ("train.py --output_dir o", {"train.py": HF}, {"--per_device_train_batch_size": "4", "--gradient_accumulation_steps": "2"}),
        ("train.py", {"train.py": HF_OWN}, {"--per_device_train_batch_size": "4", "--gradient_accumulation_steps": "32"}),
        (
            "train.py args.json",
            {"train.py": HF, "args.json": '{"bf16": true}'},
            {"args.json#per_device_train_batch_size": "4", "args.json#gradient_accumulation_steps": "2"},
        ),
        (
            "-- python train.py", INTERPOLATED,
            {"data.batch_size": "16", "train.global_batch_size": "32"},
        ),
        ("train.py --bsz 64 --microbatch 16", {"train.py": STRIDE}, {"--microbatch": "8"}),
        ("-- python train.py with large out=o", SACRED, {"per_gpu_batchsize": "4"}),
        ("train.py", {"train.py": HELPER}, {"--batch_size": "4", "--accum_iter": "2"}),
        (
            "train.py --config-dir=. --config-name=mine.yaml",
            {"train.py": HYDRA.replace(", config_name='config'", ""), "mine.yaml": "data:\n  batch_size: 4\ntrainer:\n  grad_accum_steps: 3\n"},
            {"data.batch_size": "2", "trainer.grad_accum_steps": "6"},
        ),
        (
            "train.py",
            {"train.py": HYDRA.replace("config_path='conf', config_name='config'", "config_path='conf/c.yaml'"), "conf/c.yaml": "data:\n  batch_size: 4\ntrainer:\n  grad_accum_steps: 3\n"},
            {"data.batch_size": "2", "trainer.grad_accum_steps": "6"},
        ),
        ("-- python -m torch.distributed.launch --nproc_per_node 2 /bin/unicore-train --batch-size 4 --update-freq 1", {}, {"--batch-size": "2", "--update-freq": "2"}),
        ("train.py ++train.batch_size=4", STRUCTURED, {"++train.batch_size": "2", "++train.gradient_accumulation_steps": "6"}),
        ("train.py", INHERITED, {"--batch_size": "8", "--grad_acc_steps": "2"}),
        ("train.py --batch-size 8", ACCUMULATION_ZERO, {"--batch-size": "4", "--accumulation-steps": "2"}),
        (
            "train.py --config=conf/runs.py:large", CONFIG_FUNCTIONS,
            {"--config.train.batch_size": "2", "--config.train.grad_accum_steps": "8"},
        ),
        ("train.py --config=conf/base.py", CONFIG_FUNCTIONS, {"--config.train.batch_size": "32", "--config.train.grad_accum_steps": "2"}),
        (
            "train.py config=conf/run.yaml out=o", LAID_OVER,
            {"training.batch_size": "8", "training.update_frequency": "6"},
        ),
        ("train.py --device_batch 16 --total_batch 524288", {"train.py": TOTAL}, {"--device_batch": "8"}),
        ("train.py --device_batch 16", {"train.py": TOTAL}, {"--device_batch": "8"}),
        ("train.py --batch=32 --batch-gpu=16", {"train.py": CLICK}, {"--batch-gpu": "8"}),
        ("train.py --batch_size 128 --micro_batch_size 4", {"train.py": FIRE}, {"--micro_batch_size": "2"}),
        (
            "train.py config/small.py",
            {"train.py": GLOBALS, "config/small.py": "batch_size = 6\n"},
            {"--batch_size": "3", "--gradient_accumulation_steps": "80"},
        ),
        (
            "train.py data.batch_size=16",
            {"train.py": HYDRA, "conf/config.yaml": "data:\n  batch_size: 4\ntrainer:\n  grad_accum_steps: 3\n"},
            {"data.batch_size": "8", "trainer.grad_accum_steps": "6"},
        ),
        (
            "train.py",
            {"train.py": HYDRA, "conf/config.yaml": "defaults:\n  - data: big\ntrainer:\n  grad_accum_steps: 3\n", "conf/data/big.yaml": "batch_size: 4\n"},
            {"data.batch_size": "2", "trainer.grad_accum_steps": "6"},
        ),
        (
            "train.py --train_batch_size 32 --gradient_accumulation_steps 4",
            {"train.py": CUT},
            {"--gradient_accumulation_steps": "8"},
        ),
        ("train.py", {"train.py": SIMPLE}, {"--batch_size": "8", "--grad_accum_steps": "4"}),
        (
            "-- python m.py fit --data.batch_size 64",
            {"m.py": "from lightning.pytorch.cli import LightningCLI\nLightningCLI(M, D)\n"},
            {"--data.batch_size": "32", "--trainer.accumulate_grad_batches": "2"},
        ),
        (
            "tools/train.py c.py --cfg-options train_dataloader.batch_size=4",
            {"tools/train.py": "from mmengine.runner import Runner\n", "c.py": "lr = 1\n"},
            {"train_dataloader.batch_size": "2", "optim_wrapper.accumulative_counts": "2"},
        ),
        (
            "-- python -m espnet2.bin.asr_train --config t.yaml --ngpu 2",
            {"t.yaml": "batch_type: numel\nbatch_bins: 4000000\naccum_grad: 4\n"},
            {"t.yaml#batch_bins": "2000000", "t.yaml#accum_grad": "8"},
        ),
        (
            "train.py hparams.yaml",
            {"train.py": "import speechbrain as sb\n", "hparams.yaml": "batch_size: 6\nopts:\n  batch_size: !ref <batch_size>\ngrad_accumulation_factor: 2\n"},
            {"hparams.yaml#batch_size": "3", "hparams.yaml#grad_accumulation_factor": "4"},
        ),
        (
            "-- fairseq-train d --max-tokens 4096 --update-freq 2",
            {},
            {"--max-tokens": "2048", "--update-freq": "4"},
        ),
        (
            "pretrain.py --micro-batch-size 4 --global-batch-size 4 --tensor-model-parallel-size 2",
            {"pretrain.py": "from megatron.training import pretrain\n"},
            {"--micro-batch-size": "2"},
        ),
        (
            "-- deepspeed --num_gpus 2 train.py --deepspeed ds.json --per_device_train_batch_size 16 --gradient_accumulation_steps 1",
            {"train.py": HF, "ds.json": json.dumps(DS)},
            {
                "--per_device_train_batch_size": "8",
                "--gradient_accumulation_steps": "2",
                "ds.json#train_micro_batch_size_per_gpu": "8",
                "ds.json#gradient_accumulation_steps": "2",
            },
        ),
        (
            "train.py --deepspeed ds.json --per_device_train_batch_size 16",
            {"train.py": HF, "ds.json": json.dumps(AUTO)},
            {"--per_device_train_batch_size": "8", "--gradient_accumulation_steps": "2"},
        ),
        # A DeepSpeed JSON by itself: of total, micro-batch and accumulation the third follows from two.
        (
            "-- deepspeed --num_gpus 2 train.py --deepspeed_config ds.json",
            {"train.py": ENGINE, "ds.json": json.dumps({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8})},
            {"ds.json#train_micro_batch_size_per_gpu": "4"},
        ),
        (
            "-- deepspeed --num_gpus 2 train.py --deepspeed_config ds.json",
            {"train.py": ENGINE, "ds.json": json.dumps({"train_batch_size": 64, "gradient_accumulation_steps": 2, "zero_optimization": {}})},
            {"ds.json#gradient_accumulation_steps": "4"},
        ),
        (
            "-- deepspeed --num_gpus 2 train.py --deepspeed_config ds.json",
            {"train.py": ENGINE, "ds.json": json.dumps(DS)},
            {"ds.json#train_micro_batch_size_per_gpu": "8", "ds.json#gradient_accumulation_steps": "2"},
        ),
        (
            "train.py a.json",
            {
                "train.py": HF,
                "a.json": json.dumps({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "deepspeed": "ds.json"}),
                "ds.json": json.dumps({"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}),
            },
            {"a.json#per_device_train_batch_size": "4", "a.json#gradient_accumulation_steps": "4"},
        ),
        ("train.py --batch_size_training 4", FIRE_CONFIG, {"--batch_size_training": "2", "--gradient_accumulation_steps": "2"}),
        ("train.py --config-name base", HYDRA_DEEP, {"loader.batch_size": "4", "trainer.accumulate_grad_batches": "4"}),
        ("train.py -cn base trainer=short", HYDRA_DEEP, {"loader.batch_size": "4", "trainer.accumulate_grad_batches": "6"}),
        ("train.py --config-name=base +exp=four", HYDRA_DEEP, {"loader.batch_size": "4", "trainer.accumulate_grad_batches": "8"}),
        ("-- python src/train.py", LIGHTNING_BY_HYDRA, {"data.batch_size": "16", "++trainer.accumulate_grad_batches": "2"}),
        ("-- python src/train.py experiment=half", LIGHTNING_BY_HYDRA, {"data.batch_size": "8", "++trainer.accumulate_grad_batches": "2"}),
        ("-- python src/train.py +trainer.accumulate_grad_batches=3", LIGHTNING_BY_HYDRA, {"data.batch_size": "16", "+trainer.accumulate_grad_batches": "6"}),
        ("--nproc-per-node 4 launch.py model=own", TOTAL_BY_HYDRA, {"model.grad_accum": "2"}),
        ("train.py --args_file a.json", JSON_BY_FLAG, {"a.json#per_device_train_batch_size": "2", "a.json#gradient_accumulation_steps": "4"}),
        ("train.py --batch_size 8", {"train.py": NOT_CLEARED}, {"--batch_size": "4", "--accum_iter": "2"}),
        ("--nproc-per-node 1 -- deepspeed train.py --batch_size 6", DIVIDED, {"--batch_size": "3", "--accum_iter": "2"}),
        ("--nproc-per-node 1 -- python train.py --batch_size 6", {"train.py": DIVIDED["train.py"] + "mp.spawn(main)\n"}, {"--batch_size": "3", "--accum_iter": "2"}),
        ("train.py --batch_size 60 --gpu0_bsz 4", {"train.py": EVEN_PIECES}, {"--batch_chunk": "2"}),
        ("train.py", {"train.py": CHAINED}, {"--micro_batch_size": "8"}),
        ("train.py --batch_size 8 --accum_iter 2", {"train.py": BY_HELPER}, {"--accum_iter": "4"}),
        (
            "train.py --micro-batch-size 16",
            {"train.py": ARGPARSE.replace("batch_size", "micro_batch_size")},
            {"--micro-batch-size": "8", "--accum_iter": "2"},
        ),
        ("train.py", {"train.py": HANDED_ON}, {"--batch-size-per-replica": "4", "--ga": "8"}),
        ("--nproc-per-node 4 train.py --bs=64", {"train.py": TAP}, {"--ac": "2"}),
        (
            "-- accelerate launch --config_file a.yaml train.py --batch_size 8 --accum_iter 1",
            {"train.py": ARGPARSE, "a.yaml": ACCELERATE},
            {"--batch_size": "4", "--accum_iter": "2", "a.yaml#deepspeed_config.gradient_accumulation_steps": "2"},
        ),
    ],
)  # fmt: skip
def test_each_argument_style(line: str, files: Mapping[str, str], expected: Mapping[str, str]) -> None:
    assert changes(job(line, files)) == expected


@pytest.mark.parametrize(
    ("line", "files", "why"),
    [
        ("train.py --batch_size 8", {"train.py": "p.add_argument('--batch_size')\n"}, "no gradient accumulation"),
        ("train.py", {"train.py": "loader = DataLoader(d, batch_size=32)\n"}, r"written in train\.py:1"),
        (
            "-- deepspeed --num_gpus 2 train.py --deepspeed_config ds.json",
            {"train.py": ENGINE, "ds.json": json.dumps({**DS, "train_batch_size": 64})},
            "64|agree|product",
        ),
        ("train.py", {"train.py": HF + "a.per_device_train_batch_size = 2\n"}, r"written in train\.py:4"),
        ("train.py", {"train.py": HF + "a.per_device_train_batch_size = 16 // world\n"}, "batch flag is not known"),
        ("train.py", {"train.py": HF.replace("(TrainingArguments,)", "(OwnArguments,)")}, "batch flag is not known"),
        (
            "train.py --batch_size 8 --accum_iter 2",
            {"train.py": ARGPARSE.replace("args.accum_iter", "2")},
            "never used",
        ),
        ("train.py --batch_size 8 --accum_iter auto", {"train.py": ARGPARSE}, "not known"),
        (
            "train.py --batch_size 8",
            {"train.py": ARGPARSE + "assert args.accum_iter == 1\n"},
            "refused by the script",
        ),
        (
            "train.py --batch_size 8",
            {"train.py": ARGPARSE + "lr = base * args.batch_size / 256\n"},
            "learning rate is scaled",
        ),
        (
            "-- accelerate launch --config_file a.yaml train.py --batch_size 8 --accum_iter 4",
            {"train.py": ARGPARSE, "a.yaml": ACCELERATE},
            "which one counts is not known",
        ),
        (
            "-- deepspeed train.py --batch_size 6",
            DIVIDED,
            "how many there are is not known",
        ),
        ("-- ./run-it --batch_size 8 --accum 2", {}, "source"),
        ("train.py --batch_size 8", {"train.py": ONLY_COUNTED}, r"does not accumulate by --accum_iter \(read in train\.py:\d+\)"),
        ("train.py --batch_size 8 --amp", {"train.py": NOT_WITH_AMP}, "with these arguments the loop does not accumulate"),
        ("train.py --config c.yaml", {"train.py": ONLY_COUNTED, "c.yaml": "batch_size: 8\naccum_iter: 1\n"}, r"does not accumulate by c\.yaml#accum_iter"),
        ("train.py --batch_size 8 --accum_iter 4", {"train.py": CUT_IN_LOOP}, r"splits each batch into --accum_iter pieces \(train\.py:\d+\)"),
        ("train.py --accum_iter 4", {"train.py": CUT_IN_LOOP.replace("x[j::args.accum_iter]", "x.chunk(args.accum_iter)[j]")}, "splits each batch"),
        (
            "train.py --batch_size 8 --accum_iter 4",
            {"train.py": BY_HELPER.replace("(step(piece) / args.accum_iter)", "step(piece)")},
            r"splits each batch into --accum_iter pieces \(train\.py:\d+\)",
        ),
        ("train.py --batch_size 2 --augment", {"train.py": AT_LEAST_TWO}, r"--batch_size 1 would be refused by the script: train\.py:\d+"),
        ("train.py --max_num_tokens 90000 --accum_iter 4", {"train.py": TOKENS}, "may fill the batches in place of --batch_size"),
        ("train.py --config-name base loader=frames", HYDRA_DEEP, "not counted in samples .loader.batch_size_type is frame"),
        ("train.py --dynamic_batching 1 --batch_size 8", {"train.py": TOKENS}, "batches are dynamic"),
        ("train.py --batch_size 1 --accum_iter 4", {"train.py": CUT_IN_LOOP}, "--batch_size is 1 already"),
        ("train.py --batch_size 8", {"train.py": CLEARED}, r"clears the gradients of those before it \(train\.py:\d+\)"),
        (
            "train.py --out d",
            {"train.py": "from hparams import make\np.add_argument('--out')\nh = make()\n", "hparams.py": "def make():\n    return HParams(\n        batch_size=64)\n"},
            r"written in hparams\.py:\d \(batch_size=64\)",
        ),
        (
            "train.py conf/a.py",
            {"train.py": PY_CONFIG, "conf/a.py": "batch_size = 8\ngradient_accumulation_steps = 1\n"},
            r"written in conf/a\.py \(batch_size = 8\), and the script has no flag for it",
        ),
        ("train.py --batch_size 8", {"train.py": "p.add_argument('--batch_size')\ncfg.optim.batch_accumulation = 1\n"}, r"batch_accumulation is set in train\.py:2"),
        (
            "train.py --batch_size 8 --train_batch_size 4",
            {"train.py": ARGPARSE},
            "no gradient accumulation|not clear|source",
        ),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_refused_with_its_reason(
    line: str, files: Mapping[str, str], why: str
) -> None:
    import re

    plan = oom_plan(job(line, files))
    if isinstance(plan, OomPlan):
        # A name that says ``train`` goes before one that does not.
        assert [c.knob for c in plan.changes] == ["--train_batch_size", "--accum_iter"]
        return
    assert re.search(why, plan.why), plan.why


def test_lightnings_trainer_of_a_hydra_config_goes_on_by_its_path() -> None:
    resume = oom_plan(job("-- python src/train.py", LIGHTNING_BY_HYDRA)).resume
    assert (resume.how, resume.knob) == ("flag", "ckpt_path")


def test_a_branch_that_is_on_accumulates() -> None:
    files = {"train.py": NOT_WITH_AMP}
    assert changes(job("train.py --batch_size 8", files)) == {"--batch_size": "4", "--accum_iter": "2"}


def test_a_config_that_lies_over_another_is_not_copied() -> None:
    files = {**LAID_OVER, "conf/run.yaml": LAID_OVER["conf/run.yaml"].replace("includes", "_BASE_")}
    refused = oom_plan(job("train.py --config conf/run.yaml", files))
    assert isinstance(refused, OomRefusal)
    assert "conf/run.yaml names other files from its own folder" in refused.why


@pytest.mark.parametrize("use", ["if i % args.accum_iter == 0:\n        opt.step()", "loss = loss * (1 / args.accum_iter)", "Accelerator(args.accum_iter)", "engine.steps = args.accum_iter"])  # fmt: skip
def test_an_accumulation_that_is_used_as_one_counts(use: str) -> None:
    files = {"train.py": ONLY_COUNTED.replace("opt.step()", use)}
    assert changes(job("train.py --batch_size 8", files)) == {"--batch_size": "4", "--accum_iter": "2"}


def test_a_micro_batch_that_the_script_refuses_is_never_reached() -> None:
    plan = oom_plan(job("train.py --batch_size 8 --augment", {"train.py": AT_LEAST_TWO}))
    assert isinstance(plan, OomPlan)
    assert [step[0].new for step in (plan.changes, *plan.then)] == ["4", "2"]
    plain = oom_plan(job("train.py --batch_size 2", {"train.py": AT_LEAST_TWO}))
    assert isinstance(plain, OomPlan)


@pytest.mark.parametrize(
    "other", ["show(batch_idx, j, args.accum_iter)", "piece = show(batch_size, j, args.accum_iter)"]
)
def test_a_call_that_is_only_given_the_counts_cuts_nothing(other: str) -> None:
    source = BY_HELPER.replace("piece = take(batch, j, args.accum_iter, rank)", other)
    assert changes(job("train.py --batch_size 8", {"train.py": source})) == {
        "--batch_size": "4",
        "--accum_iter": "2",
    }


def test_a_length_in_tokens_is_no_batch() -> None:
    line = "train.py --max_new_tokens 512 --dynamic_batching 0"
    assert changes(job(line, {"train.py": TOKENS})) == {"--batch_size": "4", "--accum_iter": "2"}


def test_an_unused_batch_for_sampling_never_wins_by_standing_first() -> None:
    source = ARGPARSE.replace("'--batch_size'", "'--train_batch_size'").replace(
        "args.batch_size", "args.train_batch_size"
    )
    source = "p.add_argument('--sample_batch_size', type=int, default=4)\n" + source
    line = "train.py --sample_batch_size=4 --train_batch_size=2 --accum_iter=1"
    assert changes(job(line, {"train.py": source})) == {"--train_batch_size": "1", "--accum_iter": "2"}


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        ("--nproc-per-node 4 train.py", BatchSpec(12, 10, 4)),
        ("-- torchrun --nproc_per_node=2 train.py", BatchSpec(12, 20, 2)),
    ],
)
def test_a_batch_beside_an_accumulation_of_all_ranks_is_per_rank(line: str, batch: BatchSpec) -> None:
    """The source divides the one by its ranks; it would divide the other too, were that the batch of all of them."""
    spec = job(line, {"train.py": GLOBALS})
    assert spec.batch == batch
    assert changes(spec) == {"--batch_size": "6", "--gradient_accumulation_steps": "80"}


@pytest.mark.parametrize(
    ("line", "files", "gpus", "ranks"),
    [
        ("-- deepspeed train.py --batch_size 8", {"train.py": ARGPARSE}, 4, 4),
        ("-- accelerate launch --config_file a.yaml train.py --batch_size 8 --accum_iter 1", {"train.py": ARGPARSE, "a.yaml": ACCELERATE}, 0, 4),
        ("-- mpirun -np 3 python train.py --batch_size 8", {"train.py": ARGPARSE}, 0, 3),
        ("-- srun -N 2 --ntasks-per-node=4 python train.py --batch_size 8", {"train.py": ARGPARSE}, 0, 8),
        ("-- composer -n 2 train.py --batch_size 8", {"train.py": ARGPARSE}, 0, 2),
        ("-- env A=1 torchrun --nproc_per_node=2 train.py --batch_size 8", {"train.py": ARGPARSE}, 0, 2),
        ("-- python train.py --batch_size 8", {"train.py": ARGPARSE}, 0, 1),
        ("-- python train.py --batch_size 8 --devices 4", {"train.py": ARGPARSE}, 0, None),
        ("-- accelerate launch train.py --batch_size 8", {"train.py": ARGPARSE}, 0, None),
        ("--nproc-per-node 6 -- ./launch.sh --batch_size 8", {}, 0, 6),
    ],
)  # fmt: skip
def test_ranks_behind_a_command(line: str, files: Mapping[str, str], gpus: int, ranks: int | None) -> None:
    assert job(line, files, gpus).world_size == ranks


LIGHTNING = "from lightning.pytorch.cli import LightningCLI\nLightningCLI(M, D)\n"
WEIGHTS_ALONE = "p.add_argument('--resume', default=None)\nargs = p.parse_args()\nc = torch.load(args.resume)\nmodel.load_state_dict(c['m'])\nopt.zero_grad()\nloss.backward()\n"
WEIGHTS_BY_HELPER = "p.add_argument('--resume')\nargs = p.parse_args()\nc.resume_pkl = args.resume\ndef loop(resume_pkl=None):\n    with open_url(resume_pkl) as f:\n        data = load_network_pkl(f)\n    copy_params(data['G'], G)\n    opt.zero_grad()\n    loss.backward()\nloop(**c)\n"
BARE = "p.add_argument('--resume', nargs='?', const=True, default=False)\nargs = p.parse_args()\n"
SWITCH_AND_PATH = "p.add_argument('--resume', action='store_true')\np.add_argument('--checkpoint')\nargs = p.parse_args()\nif args.resume:\n    c = torch.load(args.checkpoint)\n    opt.load_state_dict(c['opt'])\n"
OLD_OPTIONS = "p.add_argument('--resume')\nargs = p.parse_args()\nif args.resume:\n    with open(Path(args.resume).parent / 'opt.yaml') as f:\n        d = yaml.safe_load(f)\n    args = Namespace(**d)\noptimizer.load_state_dict(torch.load(args.resume)['optimizer'])\n"
BY_STEP = "p.add_argument('--restore_step', type=int, default=0)\np.add_argument('--folder')\nargs = p.parse_args()\nif args.restore_step:\n    path = os.path.join(root, '{}.pt'.format(args.restore_step))\n    c = torch.load(path)\n    net.load_state_dict(c['net'])\n    optim.load_state_dict(c['o'])\n"
NEWEST_OF_FOLDER = "folder = Path(args.out) / args.name\nfound = folder.exists()\ndef load(path):\n    optimizer.load_state_dict(torch.load(path)['o'])\nif not found:\n    start()\nelse:\n    newest = folder / 'checkpoint' / 'latest'\n    load(newest)\n"
SHORT_SWITCH = "p.add_argument('--c', action='store_true')\np.add_argument('--v', action='store_true')\nargs = p.parse_args()\ndef run(fold, continue_training=False):\n    if continue_training:\n        file = join(fold, 'checkpoint_latest.pth')\n        if not isfile(file):\n            file = None\n        load(file)\ndef load(file):\n    optimizer.load_state_dict(torch.load(file)['o'])\nrun(0, args.c)\n"
DETECTRON = "args = default_argument_parser().parse_args()\ntrainer.resume_or_load(resume=args.resume)\n"
NO_RESUME = "p.add_argument('--no-resume', action='store_true')\nargs = p.parse_args()\ndef do_train(resume=False):\n    checkpointer.resume_or_load(w, resume=resume)\ndo_train(resume=not args.no_resume)\n"
PART_OF_THE_MODEL = "save_path = 'emb.torch'\nif os.path.exists(save_path):\n    emb.load_state_dict(torch.load(save_path))\nelse:\n    torch.save(emb.state_dict(), save_path)\n"
STRUCTURED_RESUME = "import hydra, tyro\nfrom hydra import main\n@hydra.main(config_name='c')\ndef main(cfg):\n    pass\n@dataclass\nclass Run:\n    resume_from: str = None\n"
BY_NAME = "p.add_argument('--continue', dest='continue_from', help=\"a snapshot, or 'latest'\")\nargs = p.parse_args()\nc = torch.load(os.path.join(d, args.continue_from + '.pth'))\nopt.load_state_dict(c['o'])\n"
BY_FOLDER = "p.add_argument('--resume', default='')\np.add_argument('--output_dir')\nargs = p.parse_args()\nif args.resume:\n    c = torch.load(os.path.join(args.resume, 'checkpoint-last.pth'))\n    opt.load_state_dict(c['o'])\n"
OWN_FILE = "if (args.exp_dir / 'model.pth').is_file():\n    c = torch.load(args.exp_dir / 'model.pth')\n    model.load_state_dict(c['m'])\ntorch.save(s, args.exp_dir / 'model.pth')\nloss.backward()\n"
GET_LAST = (
    HF.replace(".train()", ".train(resume_from_checkpoint=last)")
    + "if a.do_train and not a.overwrite_output_dir:\n    last = get_last_checkpoint(a.output_dir)\n"
)


@pytest.mark.parametrize(
    ("line", "source", "how", "knob", "value"),
    [
        ("train.py --do_train", GET_LAST, "self", None, None),
        ("train.py", GET_LAST, "unknown", None, None),
        ("train.py --do_train --overwrite_output_dir", GET_LAST, "unknown", None, None),
        ("train.py", "Trainer(a).train(resume_from_checkpoint=True)\n", "self", None, None),
        ("train.py", "p.add_argument('--auto_resume', type=str2bool, default=True)\n", "self", None, None),
        ("train.py --auto_resume false", "p.add_argument('--auto_resume', type=str2bool, default=True)\n", "unknown", None, None),
        (
            "train.py",
            "p.add_argument('--resume_from_checkpoint', type=str, default=None)\nif a.resume_from_checkpoint != 'latest':\n    load()\n",
            "flag", "--resume_from_checkpoint", "latest",
        ),
        ("train.py", "p.add_argument('--resume', nargs='?', const='auto')\n", "flag", "--resume", ""),
        ("train.py", "p.add_argument('--resume', default='')\n", "flag", "--resume", None),
        ("train.py", GLOBALS.replace("batch_size = 12", "init_from = 'scratch'") + "if init_from == 'resume':\n    load()\n", "flag", "--init_from", "resume"),
        (
            "train.py",
            "def load_snapshot(path):\n    model.load_state_dict(torch.load(path))\ndef save():\n    torch.save(x, snapshot_path)\nif os.path.exists(snapshot_path):\n    load_snapshot(snapshot_path)\n",
            "self", None, None,
        ),
        ("train.py", "cache_path = 'x'\nif os.path.exists(cache_path):\n    data = torch.load(cache_path)\nelse:\n    torch.save(d, cache_path)\n", "unknown", None, None),
        ("train.py", "def find_last_checkpoint():\n    return None\nstart = find_last_checkpoint()\nloss.backward()\n", "none", None, None),
        ("train.py", "def update_last_checkpoint(p):\n    link(p)\nupdate_last_checkpoint(p)\nloss.backward()\n", "none", None, None),
        ("train.py", "p.add_argument('--from_resume', type=int, default=0, choices=[0, 1])\n", "flag", "--from_resume", "1"),
        # A path that only weights are loaded from begins a run; with the optimizer's state it continues one.
        ("train.py", WEIGHTS_ALONE, "unknown", None, None),
        ("train.py", WEIGHTS_ALONE + "optimizer.load_state_dict(c['o'])\n", "flag", "--resume", None),
        ("train.py", WEIGHTS_ALONE + "engine.load_checkpoint(args.resume)\n", "flag", "--resume", None),
        ("train.py", WEIGHTS_ALONE.replace("resume", "ckpt") + "opt.load_state_dict(c['o'])\n", "flag", "--ckpt", None),
        ("train.py", WEIGHTS_ALONE.replace("resume", "ckpt"), "unknown", None, None),
        ("train.py", "step, model, optimizer = load_model(args.exp_dir, model, optimizer)\n", "self", None, None),
        ("train.py", "load_model(args.data_dir, model, optimizer)\nload_model(args.pretrained_dir, model, optimizer)\nloss.backward()\n", "none", None, None),
        # A field of a structured config of Hydra is no flag.
        ("train.py", STRUCTURED_RESUME, "unknown", None, None),
        ("train.py", WEIGHTS_BY_HELPER, "unknown", None, None),
        ("train.py", WEIGHTS_BY_HELPER.replace("    copy_params", "    opt.load_state_dict(data['o'])\n    copy_params"), "flag", "--resume", None),
        # A loop of its own that loads the counter without the optimizer's state loses the latter.
        ("train.py", WEIGHTS_BY_HELPER.replace("    copy_params", "    step = data['cur_step']\n    copy_params"), "unknown", None, None),
        # The name of a checkpoint is no path, and its help gives the word for the newest; of a folder the output is it.
        ("train.py", BY_NAME, "flag", "--continue", "latest"),
        ("train.py", BY_NAME.replace("'latest'", "a name"), "unknown", None, None),
        ("train.py --output_dir o", BY_FOLDER, "flag", "--resume", "o"),
        ("train.py --output_dir o --resume o", BY_FOLDER, "flag", "--resume", "o"),
        ("train.py", BY_FOLDER, "unknown", None, None),
        # Declared beside another script's flags, and read nowhere.
        ("train.py", "p.add_argument('--resume', action='store_true')\nlog(vars(args))\nload_state_dict(x)\nopt.zero_grad()\nloss.backward()\n", "unknown", None, None),
        ("-- python -m torch.distributed.launch --nproc_per_node 2 /bin/unicore-train --batch-size 4", "", "self", None, None),
        ("train.py", "\ufeff" + WEIGHTS_ALONE, "unknown", None, None),
        ("train.py", WEIGHTS_ALONE + "print('starts after step', c['step'])\n", "unknown", None, None),
        # Flags of weights, or of another checkpoint than the newest.
        ("train.py", "p.add_argument('--resume_pretrained')\np.add_argument('--resume_best')\n", "unknown", None, None),
        ("train.py --model.first_stage.ckpt_path a.pt", "load_state_dict(x)\n", "unknown", None, None),
        # A bare flag is the newest checkpoint where the source tells it from a path; else it takes one.
        ("train.py", BARE + "if isinstance(args.resume, str):\n    load(args.resume)\n", "flag", "--resume", ""),
        ("train.py", BARE.replace("default=False", "default=''") + "load_checkpoint(args.resume)\n", "flag", "--resume", None),
        ("train.py", "p.add_argument('--resume', action='store_false')\nload_state_dict(x)\n", "unknown", None, None),
        # What the switch loads is named by another flag, which is not given.
        ("train.py", SWITCH_AND_PATH, "unknown", None, None),
        ("train.py --checkpoint a.pt", SWITCH_AND_PATH, "flag", "--resume", ""),
        ("train.py", SWITCH_AND_PATH.replace("if args.resume:\n    c", "if args.checkpoint:\n    c").replace("    opt.", "    if args.resume:\n        opt."), "unknown", None, None),
        # The old run's options come back, the old batch with them.
        ("train.py --batch_size 8", ARGPARSE + OLD_OPTIONS, "unknown", None, None),
        ("train.py --batch_size 8", ARGPARSE + OLD_OPTIONS.replace("args = Namespace(**d)", "net = Namespace(**d)"), "flag", "--resume", None),
        # detectron2: only where its switch says so.
        ("train.py", DETECTRON, "flag", "--resume", ""),
        ("train.py", DETECTRON.replace("args.resume", "True"), "self", None, None),
        ("train.py", NO_RESUME, "self", None, None),
        ("train.py --no-resume", NO_RESUME, "unknown", None, None),
        # A file that the script saves and loads, whatever its name; with the optimizer's state it is the run's own.
        ("train.py", OWN_FILE + "optimizer.load_state_dict(c['o'])\n", "self", None, None),
        ("train.py", OWN_FILE, "unknown", None, None),
        ("train.py", PART_OF_THE_MODEL, "unknown", None, None),
        # In the folder of the model, behind a switch, or by a path that is given.
        ("train.py", OWN_FILE.replace("exp_dir", "model_name_or_path") + "optimizer.load_state_dict(c['o'])\n", "unknown", None, None),
        ("train.py", "p.add_argument('--go_on', action='store_true')\n" + OWN_FILE.replace("if (", "if args.go_on and (") + "optimizer.load_state_dict(c['o'])\n", "unknown", None, None),
        ("train.py", "def load_checkpoint(checkpoint_path):\n    try:\n        checkpoint = torch.load(checkpoint_path)\n    except OSError:\n        pass\ndef save():\n    torch.save(checkpoint, checkpoint_path)\nload_checkpoint(x)\n", "unknown", None, None),
        ("train.py fit --data.batch_size 4", LIGHTNING, "flag", "--ckpt_path", None),
        ("train.py --data.batch_size 4", LIGHTNING, "unknown", None, None),
        ("train.py", "import subprocess\nsubprocess.Popen(['python', 'inner.py'])\n", "unknown", None, None),
        ("train.py --micro-batch-size 1 --load /c --save /c", "import megatron\n", "self", None, None),
        ("train.py --micro-batch-size 1 --save /c", "import megatron\n", "flag", "--load", "/c"),
        ("train.py", "p.add_argument('--resume-from-step', type=int, default=-1)\n", "flag", "--resume-from-step", "STEP"),
        # The step is in the file's name, and the optimizer's state in the file.
        ("train.py", BY_STEP, "flag", "--restore_step", "STEP"),
        ("train.py", BY_STEP.replace("root,", "args.folder,"), "unknown", None, None),
        ("train.py --folder out", BY_STEP.replace("root,", "args.folder,"), "flag", "--restore_step", "STEP"),
        ("train.py", BY_STEP.replace("if args.restore_step", "if folder is not None"), "unknown", None, None),
        ("train.py", BY_STEP.replace("    optim.load_state_dict(c['o'])\n", ""), "unknown", None, None),
        # A switch of any name, handed on as one to continue, under which the newest file is looked for.
        ("train.py", SHORT_SWITCH, "flag", "--c", ""),
        ("train.py", SHORT_SWITCH.replace("_latest", "_best"), "unknown", None, None),
        ("train.py", SHORT_SWITCH.replace("optimizer.", "net."), "unknown", None, None),
        ("train.py", SHORT_SWITCH.replace("0, args.c", "0"), "unknown", None, None),
        ("train.py", NEWEST_OF_FOLDER, "self", None, None),
        ("train.py", NEWEST_OF_FOLDER.replace("folder.exists()", "args.found"), "unknown", None, None),
        ("train.py", NEWEST_OF_FOLDER.replace("optimizer.", "net."), "unknown", None, None),
        ("train.py", NEWEST_OF_FOLDER.replace("'latest'", "'best'"), "unknown", None, None),
        ("train.py", NEWEST_OF_FOLDER.replace("newest = folder /", "newest = args.pretrained /"), "unknown", None, None),
        ("train.py", "trainer.fit(model, ckpt_path=get_latest_checkpoint_path(folder))\n", "self", None, None),
        ("train.py", "trainer.fit(model, ckpt_path=get_latest_checkpoint_path(args.resume))\n", "unknown", None, None),
        ("train.py", "print('no way at all')\nloss.backward()\n", "none", None, None),
        ("train.py", "print('the loop is elsewhere')\n", "unknown", None, None),
        ("--self-resuming train.py", "print('no way at all')\n", "self", None, None),
        ("train.py", "p.add('--train_from', '-train_from', default='', help='continues')\n", "flag", "--train_from", None),
        ("train.py", "words.add('--train_from')\nload_state_dict(x)\n", "unknown", None, None),
        # Weights that somebody published begin a run; they are no checkpoint of it.
        ("-- dora run solver=small continue_from=//pretrained/a/medium", "", "unknown", None, None),
        ("-- python src/train.py continue_from=runs/a.pt", "load_state_dict(x)\n", "flag", "continue_from", None),
    ],
)  # fmt: skip
def test_how_it_goes_on(line: str, source: str, how: str, knob: str | None, value: str | None) -> None:
    resume = oom_plan(job(line, {"train.py": source})).resume
    assert (resume.how, resume.knob, resume.value) == (how, knob, value)


@pytest.mark.parametrize(
    ("source", "loads"),
    [
        (WEIGHTS_ALONE.replace("resume", "warm"), ()),
        (WEIGHTS_ALONE.replace("resume", "warm") + "optimizer.load_state_dict(c['o'])\n", ("--warm",)),
        (
            "p.add_argument('--load')\np.add_argument('--old-state')\nargs = p.parse_args()\nfor f in (args.load, args.old_state):\n    optimizer.load_state_dict(torch.load(f)['o'])\n",
            ("--load", "--old-state"),
        ),
    ],
)
def test_the_flags_that_the_source_loads_a_training_from(source: str, loads: tuple[str, ...]) -> None:
    """Also where it is not one alone, so that none is set by itself, or where its name says nothing of a checkpoint."""
    assert job("train.py", {"train.py": source}).knobs.loads_state == loads


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (WEIGHTS_ALONE, "--resume is not seen to load more than weights"),
        (ARGPARSE + OLD_OPTIONS, "--resume replaces all options, the batch among them, by those of the old run (train.py:12)"),
    ],
)  # fmt: skip
def test_why_it_is_not_known_how_it_goes_on(source: str, why: str) -> None:
    spec = job("train.py --batch_size 8", {"train.py": source})
    assert oom_plan(spec).resume.source == why
    assert why in four_lines(spec)[3]


@pytest.mark.parametrize(
    ("config", "knob"),
    [
        (
            "resume_path: null\nmodel:\n  first_stage:\n    params:\n      ckpt_path: vq.ckpt\n",
            "c.yaml#resume_path",
        ),
        ("checkpoint:\n  resume_pretrained: true\n  resume_from: null\n", "c.yaml#checkpoint.resume_from"),
        ("train_config:\n  checkpoint_path: ''\n", "c.yaml#train_config.checkpoint_path"),
        ("model:\n  resume_from: a.pt\n", None),
        ("logging:\n  resume: true\n", None),
    ],
)
def test_which_key_of_a_config_takes_the_checkpoint(config: str, knob: str | None) -> None:
    source = f"{LOOP}c = torch.load(checkpoint_path)\noptimizer.load_state_dict(c['o'])\n"
    assert oom_plan(job("train.py c.yaml", {"train.py": source, "c.yaml": config})).resume.knob == knob


def test_hydra_makes_a_new_folder_at_each_start() -> None:
    source = HYDRA + "    if cfg.resume:\n        load_checkpoint('last.ckpt')\n"
    files = {"train.py": source, "conf/config.yaml": "resume: true\n"}
    resume = oom_plan(job("train.py hydra.run.dir=out/${now:%H}", files)).resume
    assert (resume.how, resume.knob) == ("unknown", None)


def test_a_lightning_cli_of_its_own_behind_a_program() -> None:
    files = {
        "pyproject.toml": '[project.scripts]\nours = "pkg.main:main"\n',
        "pkg/main.py": "from pkg.cli import OurCLI\ndef main():\n    OurCLI(M, D)\n",
        "pkg/cli.py": "from lightning.pytorch.cli import LightningCLI\nclass OurCLI(LightningCLI):\n    pass\n",
        "c.yaml": "data:\n  batch_size: 64\n",
    }
    spec = job("-- ours fit --config=c.yaml", files)
    assert changes(spec) == {"c.yaml#data.batch_size": "32", "--trainer.accumulate_grad_batches": "2"}
    assert oom_plan(spec).resume.knob == "--ckpt_path"


def test_a_config_folder_that_hydra_takes_below_the_script() -> None:
    files = {name.replace("conf/", "src/conf/small/"): text for name, text in LIGHTNING_BY_HYDRA.items()}
    plan = oom_plan(job("-- python src/train.py -cp conf/small", files))
    assert isinstance(plan, OomPlan), plan
    assert [c.knob for c in plan.changes] == ["data.batch_size", "++trainer.accumulate_grad_batches"]
    assert plan.resume.knob == "ckpt_path"


def test_the_key_of_a_sacred_experiment() -> None:
    assert oom_plan(job("-- python train.py with large", SACRED)).resume.knob == "start"


def test_the_key_that_is_handed_to_lightning() -> None:
    files = {
        "train.py": HYDRA + "    trainer.fit(model, ckpt_path=cfg.train.ckpt)\n",
        "conf/config.yaml": "train:\n  ckpt: null\n",
    }
    assert oom_plan(job("-- python train.py", files)).resume.knob == "train.ckpt"


@pytest.mark.parametrize(("loop", "how"), [("loss.backward()", "self"), ("evaluate()", "unknown")])
def test_the_file_of_the_training_loop_finds_the_newest_checkpoint(loop: str, how: str) -> None:
    source = f"def train(run_dir):\n    checkpoint.load_latest(run_dir)\n    {loop}\n    batch_size = 1\n"
    files = {"train.py": "import loop.train\nloop.train.train('o')\n", "loop/train.py": source}
    assert oom_plan(job("train.py --batch-gpu=8", files)).resume.how == how


@settings(deadline=None)
@given(
    micro=st.integers(1, 96),
    steps=st.integers(1, 24),
    world=st.integers(1, 8),
    scope=st.sampled_from(list(KnobScope)),
    counts=st.sampled_from(list(AccumulationCounts)),
    twice=st.booleans(),
)
def test_the_plan_keeps_the_global_batch_or_is_refused(
    micro: int, steps: int, world: int, scope: KnobScope, counts: AccumulationCounts, twice: bool
) -> None:
    """The settings of every planned step, counted as a script would count them, give the same batch as at the start."""
    knobs = Knobs(
        batch="--b", batch_scope=scope, accumulation="--a", paired=True, counts=counts,
        same=(("ds.json#micro", "micro"), ("ds.json#steps", "accumulation")) if twice else (),
    )  # fmt: skip
    from dataclasses import replace

    from supervisor.job.errors import JobError
    from supervisor.job.knobs.batch_settings.set_batch import batch_of

    args = ("--b", str(micro), "--a", str(steps))
    try:
        batch = batch_of(args, knobs, world_size=world, local_world_size=world)
    except JobError:
        return
    spec = replace(job("train.py", {}), batch=batch, knobs=knobs, entry_args=args, nproc_per_node=world)
    plan = oom_plan(spec)
    if isinstance(plan, OomRefusal):
        return
    first = _counted(scope, counts, micro, steps, world)
    held = {"--b": micro, "--a": steps, "ds.json#micro": micro, "ds.json#steps": steps}
    for step in (plan.changes, *plan.then):
        held |= {c.knob: int(c.new) for c in step}
        assert _counted(scope, counts, held["--b"], held["--a"], world) == first
        if twice:
            assert (held["ds.json#micro"], held["ds.json#steps"]) == (held["--b"], held["--a"])


def _counted(scope: KnobScope, counts: AccumulationCounts, batch: int, steps: int, world: int) -> int | None:
    """Samples of one optimizer step, as a script of this kind counts them; None where it would round."""
    if counts is AccumulationCounts.ALL_RANKS:
        if steps % world:
            return None
        steps //= world
    if scope in {KnobScope.GLOBAL, KnobScope.PER_NODE}:
        return None if batch % world else batch * steps
    return batch * world * steps


def test_a_batch_without_ranks_is_shown_so() -> None:
    spec = job("-- accelerate launch train.py --batch_size 8 --accum_iter 2", {"train.py": ARGPARSE})
    assert spec.batch == BatchSpec(8, 2, 1, ranks_known=False)
    assert batch_values(spec.knobs, BatchSpec(4, 4, 1, ranks_known=False)) == (
        ("--batch_size", "4"),
        ("--accum_iter", "4"),
    )


@pytest.mark.parametrize(
    "source", ["x = " + "+".join(["a"] * 5000), "x = [" * 150 + "]" * 150, "\x00", "def f(:\n"]
)
def test_a_hostile_source_is_unknown_and_never_an_error(source: str) -> None:
    plan = oom_plan(job("train.py --batch_size 8 --accum 2", {"train.py": source}))
    assert isinstance(plan, OomRefusal)


@pytest.mark.parametrize("total", [32, 31, 33, 16])
def test_a_total_of_the_engine_must_be_the_product_of_the_batch_and_the_ranks(total: int) -> None:
    line = "-- deepspeed --num_gpus 2 train.py --deepspeed ds.json --per_device_train_batch_size 16 --gradient_accumulation_steps 1"
    config = DS | {"train_batch_size": total}
    plan = oom_plan(job(line, {"train.py": HF, "ds.json": json.dumps(config)}))
    if total == 32:
        assert isinstance(plan, OomPlan), plan
        assert "ds.json#train_batch_size" not in {c.knob for c in plan.changes}
        return
    assert isinstance(plan, OomRefusal)
    assert plan.why == f"ds.json#train_batch_size {total} is not 16 × 1 × 2 ranks"


KNOWN = Knobs(batch="--bs", batch_scope=KnobScope.PER_RANK, accumulation="--acc", self_resuming=True)


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        (KNOWN, "out of memory: restarts with micro-batch 4 × accumulation 4 from the newest checkpoint"),
        (
            replace(KNOWN, self_resuming=False),
            "out of memory would end this run after its first step: how the script resumes is not known; --resume-knob FLAG=PATH",
        ),
        (
            replace(KNOWN, self_resuming=False, cannot_resume=True),
            "out of memory would end this run after its first step: the script does not resume; --restart-from-scratch",
        ),
        (
            Knobs(self_resuming=True),
            "out of memory would end this run: which setting makes the 8 samples is not known; --batch-knob NAME --accumulation-knob NAME",
        ),
        (
            replace(KNOWN, accumulation=None),
            "out of memory would end this run: no accumulation is known beside --bs (--accumulation-knob, or --allow-smaller-global); --accumulation-knob NAME",
        ),
        (
            replace(KNOWN, batch_scope=KnobScope.UNKNOWN),
            "out of memory would end this run: what --bs counts is not known: say --batch-scope per_rank, per_node or global; --batch-scope SCOPE",
        ),
        (
            Knobs(refusal="--bs is a table's key", resume="--go", resume_value=""),
            "out of memory would end this run: --bs is a table's key; --batch-knob NAME --accumulation-knob NAME",
        ),
    ],
    ids=[
        "restarts",
        "resume not known",
        "never resumes",
        "batch not known",
        "no accumulation",
        "no scope",
        "refused",
    ],
)
def test_what_an_out_of_memory_failure_would_do_is_one_line(knobs: Knobs, text: str) -> None:
    spec = replace(job("train.py", {"train.py": ""}), knobs=knobs, batch=BatchSpec(8, 2, 2))
    found, restarts = oom_notice(spec, 8, waits=False)
    assert found == text
    assert restarts is not bool(missing_words(spec))
    assert oom_notice(spec, 8, waits=True)[0] == text.replace("would end this run", "would wait for you")


def test_a_restart_from_scratch_that_was_allowed_begins_at_step_0() -> None:
    spec = replace(job("train.py", {"train.py": ""}), knobs=replace(KNOWN, self_resuming=False))
    spec = replace(spec, batch=BatchSpec(8, 2, 2), retry=replace(spec.retry, restart_from_scratch=True))
    assert oom_notice(spec, 8, waits=False) == (
        "out of memory: restarts with micro-batch 4 × accumulation 4 from step 0",
        True,
    )

"""Small CPU trainings that are stopped and resumed, rightly or with one planted mistake, and print what ordinary scripts print.

Ranks are chunks of a global batch, one after the other in this process: what is averaged over them is what torch's DDP would average.
Two attempts of one training are made: the first to where it "fails", the second from its checkpoint with the batch that a restart would set.
What stoker's own reader finds in the lines goes to `policy.same_training`: planted mistakes must be named, honest restarts must not be called different.

    python bench/resumed_trainings.py [--seeds 10] [--honest 150]
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import command_line, surroundings, tell
from supervisor.policy.same_training import Judgement, Restart, judge
from supervisor.run.records import Sameness
from supervisor.sources.metrics.metric_reader import MetricReader

# The kinds, and the values of which one must be named.
FAULTS = {
    "scheduler not restored": "learning_rate",
    "scheduler stepped per micro-batch": "learning_rate",
    "accumulated loss not divided": "grad_norm or loss",  # half of the scripts print the loss that they weighted
    "loss divided twice": "grad_norm",
    "accumulation not doubled": "global_batch",
    "micro-batch not halved": "global_batch",
    "from step 0 with new weights": "step",
    "step counter reset, weights kept": "step",
}
# No value names these; they must not be called the same.
UNSEEN = ("data order of another seed",)


@dataclass(frozen=True)
class Batch:
    """How a step's samples are cut."""

    micro: int
    accumulation: int
    world: int

    @property
    def samples(self) -> int:
        return self.micro * self.accumulation * self.world


@dataclass(frozen=True)
class Setup:
    """One training and its restart. `checkpoint`, `failed`: steps; `more`: steps of the second attempt beyond `failed`."""

    seed: int
    family: str
    before: Batch
    after: Batch
    checkpoint: int
    failed: int
    more: int = 24
    total: int = 300
    warmup: int = 20
    schedule: str = "cosine"
    optimizer: str = "adamw"
    lr: float = 3e-3
    clip: float | None = 1.0
    dropout: float = 0.0
    bf16: bool = False
    epoch: int = 45  # steps
    log_every: int = 1
    style: int = 0
    last_micro_batch: bool = False  # the printed loss is that of the last micro-batch of rank 0 (nanoGPT)
    shaken: float = 0.0  # kernels that add in another order each time: gradients are off by this share
    counts_micro_batches: bool = False  # the printed step
    counter: str = "global"  # global | rank | process: whose samples are printed
    rate_late: int = 0  # the scheduler is a step behind after a resume
    what: str = ""

    def restart(self) -> Restart:
        """What stoker knows of it."""
        return Restart(
            resumes_at=self.checkpoint,
            accumulation=(self.before.accumulation, self.after.accumulation),
            micro=(self.before.micro, self.after.micro),
        )


# -- tasks ------------------------------------------------------------------------------------------------------------------------


@dataclass
class Task:
    """Samples, a model, and the mean loss of a chunk."""

    count: int
    model: nn.Module
    loss: Callable[[Tensor], Tensor]


def _clusters(seed: int, count: int, dropout: float) -> Task:
    """Ten noisy clusters, a tenth of the labels wrong."""
    dice = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 16, generator=dice)
    label = torch.randint(0, 10, (count,), generator=dice)
    x = centres[label] + 0.9 * torch.randn(count, 16, generator=dice)
    wrong = torch.rand(count, generator=dice) < 0.1
    label = torch.where(wrong, torch.randint(0, 10, (count,), generator=dice), label)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 10)
    )
    return Task(count, model, lambda i: nn.functional.cross_entropy(model(x[i]).float(), label[i]))


def _curve(seed: int, count: int, dropout: float) -> Task:
    """A regression with noise."""
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=dice)
    y = 2 * torch.tanh(x @ torch.randn(8, 4, generator=dice)) + 0.4 * torch.randn(count, 4, generator=dice)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 4))
    return Task(count, model, lambda i: nn.functional.mse_loss(model(x[i]).float(), y[i]))


FAMILIES = {"clusters": _clusters, "curve": _curve}

# -- a training ---------------------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """All that a checkpoint holds. `place`: samples taken from the stream of epochs; `rate_steps`: steps of the scheduler."""

    weights: dict[str, Tensor]
    optimizer: dict[str, object]
    step: int = 0
    rate_steps: float = 0.0
    place: int = 0
    samples: int = 0
    order: int = 0


class Training:
    """One process's life: made new, or from a state."""

    def __init__(self, setup: Setup, batch: Batch, fault: str) -> None:
        self.setup, self.batch, self.fault = setup, batch, fault
        torch.manual_seed(setup.seed)
        self.task = FAMILIES[setup.family](setup.seed, setup.before.samples * setup.epoch, setup.dropout)
        self.optimizer = self._new_optimizer()
        self.state = State({}, {})
        self.began_samples = 0
        self._orders: dict[tuple[int, int], Tensor] = {}

    def _new_optimizer(self) -> torch.optim.Optimizer:
        parameters, lr = self.task.model.parameters(), self.setup.lr
        match self.setup.optimizer:
            case "sgd":
                return torch.optim.SGD(parameters, lr=lr * 6, momentum=0.9)
            case _:
                return torch.optim.AdamW(parameters, lr=lr)

    def checkpoint(self) -> State:
        model, optimizer = self.task.model.state_dict(), self.optimizer.state_dict()
        return replace(
            copy.deepcopy(self.state), weights=copy.deepcopy(model), optimizer=copy.deepcopy(optimizer)
        )

    def load(self, state: State) -> None:
        """Go on from a checkpoint, or do it wrongly."""
        torch.manual_seed(self.setup.seed * 7 + 1)  # dropout: other masks
        if self.fault == "from step 0 with new weights":
            self.task = FAMILIES[self.setup.family](self.setup.seed, self.task.count, self.setup.dropout)
            for parameter in self.task.model.parameters():
                parameter.data += 0.05 * torch.randn_like(parameter)
            self.optimizer = self._new_optimizer()
            return
        self.task.model.load_state_dict(state.weights)
        self.optimizer.load_state_dict(copy.deepcopy(state.optimizer))
        self.state = replace(state, weights={}, optimizer={})
        self.began_samples = state.samples
        self.state.rate_steps -= self.setup.rate_late
        match self.fault:
            case "scheduler not restored":
                self.state.rate_steps = 0
            case "data order of another seed":
                self.state.order = 1
            case "step counter reset, weights kept":
                self.state.step, self.state.rate_steps, self.state.place, self.state.samples = 0, 0, 0, 0

    def steps(self, until: int) -> Iterator[str]:
        """Train, and yield what is printed."""
        while self.state.step < until:
            line = self._step()
            if self.state.step % self.setup.log_every == 0:
                yield line

    def _rate(self) -> float:
        setup = self.setup
        stretch = setup.before.accumulation if self.fault == "scheduler stepped per micro-batch" else 1
        s, warmup, total = self.state.rate_steps, setup.warmup * stretch, setup.total * stretch
        if s < warmup:
            return (s + 1) / (warmup + 1)
        share = min(max(s - warmup, 0) / (total - warmup), 1.0)
        match setup.schedule:
            case "cosine":
                return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share))
            case "linear":
                return 1 - 0.95 * share
            case "inverse":
                return math.sqrt((warmup + 1) / (s + 1))
            case "steps":
                return 0.3 ** int(share * 4)
            case _:
                return 1.0

    def _samples(self, count: int) -> Tensor:
        taken: list[Tensor] = []
        while count:
            epoch, offset = divmod(self.state.place, self.task.count)
            key = (self.state.order, epoch)
            if key not in self._orders:
                dice = torch.Generator().manual_seed(1000 * self.setup.seed + 100 * self.state.order + epoch)
                self._orders[key] = torch.randperm(self.task.count, generator=dice)
            some = self._orders[key][offset : offset + count]
            taken.append(some)
            self.state.place += len(some)
            count -= len(some)
        return torch.cat(taken)

    def _step(self) -> str:
        batch, fault, setup = self.batch, self.fault, self.setup
        rate = self._rate()
        group = self.optimizer.param_groups[0]
        group["lr"] = rate * setup.lr * (6 if setup.optimizer == "sgd" else 1)
        shown_lr = group["lr"]
        index = self._samples(batch.samples)
        divisor = batch.accumulation * batch.world
        weight = {
            "accumulated loss not divided": batch.accumulation,
            "loss divided twice": 1 / batch.accumulation,
        }.get(fault, 1.0)
        self.optimizer.zero_grad()
        losses = []
        parameters = list(self.task.model.parameters())
        for j in range(batch.accumulation):
            for r in range(batch.world):
                begin = (j * batch.world + r) * batch.micro
                with torch.autocast("cpu", torch.bfloat16, enabled=setup.bf16):
                    loss = self.task.loss(index[begin : begin + batch.micro])
                (loss * weight / divisor).backward()  # type: ignore[no-untyped-call]
                if not setup.last_micro_batch or (r == 0 and j == batch.accumulation - 1):
                    losses.append(loss.item())
        if setup.shaken:
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad *= 1 + setup.shaken * torch.randn_like(parameter.grad)
        norm = float(nn.utils.clip_grad_norm_(parameters, setup.clip if setup.clip is not None else math.inf))
        self.optimizer.step()
        state = self.state
        state.step += 1
        state.samples += batch.samples
        state.rate_steps += batch.accumulation if fault == "scheduler stepped per micro-batch" else 1
        mean = sum(losses) / len(losses)
        if weight != 1.0 and setup.seed % 2:  # half of these scripts print the loss that they weighted
            mean *= weight
        if setup.shaken:
            mean *= 1 + 0.1 * setup.shaken * random.gauss(0, 1)
        step = state.step * batch.accumulation if setup.counts_micro_batches else state.step
        samples = {
            "global": state.samples,
            "rank": state.samples // batch.world,
            "process": state.samples - self.began_samples,
        }
        return _line(setup.style, step, mean, shown_lr, norm, samples[setup.counter])


def _line(style: int, step: int, loss: float, lr: float, norm: float, samples: int) -> str:
    match style % 4:
        case 0:
            return f"step {step} loss={loss:.4f} lr={lr:.3e} grad_norm={norm:.4f} samples={samples}"
        case 1:
            return f"[train] step: {step} | loss: {loss:.5f} | lr: {lr:.2e} | grad norm: {norm:.3f} | consumed samples: {samples}"
        case 2:
            return f"{{'step': {step}, 'loss': {loss:.6f}, 'grad_norm': {norm!r}, 'learning_rate': {lr!r}, 'samples': {samples}}}"
        case _:
            return f"iter {step}: loss {loss:.4f}, lr {lr:.6f}, grad_norm {norm:.2f}, samples: {samples}"


def two_attempts(setup: Setup, fault: str = "") -> tuple[list[str], list[str]]:
    """The lines of both."""
    one = Training(setup, setup.before, fault if fault in _IN_THE_SCRIPT else "")
    lines: list[str] = []
    lines += one.steps(setup.checkpoint)
    held = one.checkpoint()
    lines += one.steps(setup.failed)
    batch = setup.after
    if fault == "accumulation not doubled":
        batch = replace(batch, accumulation=setup.before.accumulation)
    elif fault == "micro-batch not halved":
        batch = replace(batch, micro=setup.before.micro)
    two = Training(setup, batch, fault)
    two.load(held)
    begun = two.state.step
    return lines, list(two.steps(begun + setup.failed - setup.checkpoint + setup.more))


# Mistakes of the script itself, which the first attempt makes too.
_IN_THE_SCRIPT = frozenset(
    {
        "scheduler stepped per micro-batch",
        "accumulated loss not divided",
        "loss divided twice",
    }
)


def table(lines: list[str]) -> dict[int, dict[str, float]]:
    """The lines as stoker reads them."""
    found: dict[int, dict[str, float]] = {}
    for _, columns, at, _ in MetricReader().read_rows([line.encode() for line in lines]):
        sample = columns.sample(at)
        if "step" not in sample.values:
            continue
        values = {**sample.other, **sample.values}
        found.setdefault(int(values["step"]), {}).update(values)
    return found


# -- which trainings ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """Setups by seed, of some families."""

    families: tuple[str, ...]
    first_seed: int

    def honest(self, number: int) -> Setup:
        """Any restart that continues rightly."""
        dice = random.Random(self.first_seed * 7919 + number)
        kind = _HONEST[number % len(_HONEST)]
        setup = self._any(dice, number)
        before = setup.before
        shrunk = replace(before, micro=max(before.micro // 2, 1), accumulation=before.accumulation * 2)
        match kind:
            case "same micro-batch":
                setup = replace(setup, after=before)
            case "half the micro-batch":
                setup = replace(setup, after=shrunk)
            case "other world size":
                before = replace(before, world=4, accumulation=1)
                setup = replace(setup, before=before, after=replace(before, world=2, accumulation=2))
            case "dropout":
                setup = replace(setup, dropout=dice.choice([0.1, 0.2, 0.3]))
            case "bf16":
                setup = replace(setup, bf16=True)
            case "short overlap":
                setup = replace(setup, failed=setup.checkpoint + dice.randint(1, 9))
            case "long overlap":
                setup = replace(setup, failed=setup.checkpoint + dice.randint(40, 60))
            case "warm-up":
                setup = replace(setup, checkpoint=dice.randint(20, 40), warmup=80, lr=setup.lr)
                setup = replace(setup, failed=setup.checkpoint + dice.choice([0, 12, 30]))
            case "last micro-batch's loss":
                setup = replace(setup, last_micro_batch=True)
            case "dropout, half, sgd":
                setup = replace(setup, dropout=0.2, after=shrunk, optimizer="sgd")
            case "shaken kernels":
                setup = replace(setup, shaken=dice.choice([1e-4, 1e-3, 3e-3]), bf16=bool(dice.getrandbits(1)))
            case "steps count micro-batches":
                setup = replace(
                    setup, after=shrunk, counts_micro_batches=True, schedule=dice.choice(["cosine", "linear"])
                )
            case "one rank's samples":
                before = replace(before, world=4, accumulation=1)
                setup = replace(
                    setup, before=before, after=replace(before, world=2, accumulation=2), counter="rank"
                )
            case "samples of the process":
                setup = replace(setup, after=shrunk, counter="process")
            case "scheduler a step late":
                setup = replace(setup, rate_late=1)
        return replace(setup, what=kind)

    def faulty(self, fault: str, number: int) -> Setup:
        """A restart with half the micro-batch in which the mistake shows: its checkpoint lies some steps before the end."""
        dice = random.Random(self.first_seed * 104729 + number * 31 + len(fault))
        setup = self._any(dice, number)
        half = replace(
            setup.before, micro=setup.before.micro // 2, accumulation=setup.before.accumulation * 2
        )
        setup = replace(setup, after=half)
        if fault in {
            "scheduler not restored",
            "scheduler stepped per micro-batch",
            "step counter reset, weights kept",
        }:
            setup = replace(setup, schedule=dice.choice(["cosine", "linear", "inverse"]))
        setup = replace(setup, failed=setup.checkpoint + dice.randint(20, 40))
        # A third with dropout, in bfloat16 or at another world size.
        match number % 6:
            case 0:
                setup = replace(setup, dropout=0.1)
            case 1:
                setup = replace(setup, bf16=True)
            case 2 if setup.before.world == 2 and fault not in {
                "accumulation not doubled",
                "micro-batch not halved",
            }:
                setup = replace(
                    setup,
                    before=replace(setup.before, world=2),
                    after=replace(setup.after, world=1, accumulation=setup.after.accumulation * 2),
                )
        return replace(setup, what=fault)

    def _any(self, dice: random.Random, number: int) -> Setup:
        before = Batch(dice.choice([2, 4, 4, 8]), dice.choice([1, 1, 2]), dice.choice([1, 2, 2]))
        after = replace(before, micro=before.micro // 2, accumulation=before.accumulation * 2)
        checkpoint = dice.randint(
            90, 125
        )  # earlier, a model has learnt too little for a lost part of it to show
        return Setup(
            seed=self.first_seed + number,
            family=self.families[number % len(self.families)],
            lr=3e-3,
            before=before,
            after=dice.choice([after, after, before]) if number % 2 == 0 else after,
            checkpoint=checkpoint,
            failed=checkpoint + dice.randint(10, 40),
            schedule=dice.choice(["cosine", "cosine", "linear", "inverse", "constant"]),
            optimizer=dice.choice(["adamw", "adamw", "sgd"]),
            clip=dice.choice([None, 1.0, 1.0]),
            total=dice.choice([200, 300, 600]),
            epoch=dice.choice([35, 45, 60]),
            style=dice.randrange(4),
        )


_HONEST = (
    "same micro-batch", "half the micro-batch", "other world size", "dropout", "bf16", "short overlap", "long overlap", "warm-up",
    "last micro-batch's loss", "dropout, half, sgd", "shaken kernels", "steps count micro-batches", "one rank's samples",
    "samples of the process", "scheduler a step late",
)  # fmt: skip

DEVELOPED_ON = Draw(tuple(FAMILIES), first_seed=5000)
SCORED_ON = Draw(tuple(FAMILIES), first_seed=190_000)


# -- the score ------------------------------------------------------------------------------------------------------------------------


def judged(number: int, fault: str, draw: Draw = SCORED_ON) -> Judgement:
    """Train twice, read the lines, compare them."""
    torch.set_num_threads(1)
    setup = draw.faulty(fault, number) if fault else draw.honest(number)
    before, after = two_attempts(setup, fault)
    return judge(table(before), table(after), setup.restart())


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--honest", type=int, default=150)
    args = parser.parse_args()
    wrong: list[str] = []
    for number, fault in itertools.product(range(args.seeds), [*FAULTS, *UNSEEN]):
        found = judged(number, fault)
        named = found.difference.value if found.difference is not None else ""
        expected = FAULTS.get(fault)
        if (
            named not in expected.split(" or ")
            if expected
            else found.result in {Sameness.SAME, Sameness.SAME_WITHIN_NOISE}
        ):
            wrong.append(f"{fault}, {number}: {found.result.value} {named}: {found.text}")
    accused = [number for number in range(args.honest) if judged(number, "").result is Sameness.DIFFERS]
    planted = args.seeds * (len(FAULTS) + len(UNSEEN))
    kept = {"planted": planted, "missed": wrong, "honest": args.honest, "accused": accused}
    tell({**surroundings(), **kept}, args.keep)
    if len(wrong) > 0.05 * planted or len(accused) > 0.01 * args.honest:
        sys.exit(1)


if __name__ == "__main__":
    main()

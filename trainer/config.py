"""Every setting of the trainer: one flat, frozen dataclass, and what follows from it.

Names are those of the job files and flags. A value of 0, -1 or "" that means "follows from the rest" says so
in its help. Nothing here imports torch: a usage error costs no three seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import isqrt
from typing import TypeVar

T = TypeVar("T", int, float, str, bool)


class UsageError(Exception):
    """The user asked for something that cannot be: one line that says what works instead."""


class DataError(Exception):
    """The data cannot be used: file, place and reason in one line."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a setting takes. `open_low`, `open_high`: the bound itself is left out."""

    low: float
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = self.high is None or (value < self.high if self.open_high else value <= self.high)
        return above and below

    @property
    def words(self) -> str:
        """As a message says it, after "must be"."""
        low = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        if self.high is None:
            return low
        return f"{low} and {'below' if self.open_high else 'at most'} {self.high:g}"


COUNT = Range(1)
NATURAL = Range(0)
SECONDS = Range(0, open_low=True)
SHARE = Range(0, 1)
DECAY = Range(0, 1, open_high=True)


def key(
    default: T, text: str, choices: tuple[str, ...] = (), *, section: str = "", of: Range | None = None
) -> T:
    """A setting with its default and its help, the values (`choices`) or numbers (`of`) it takes; `section` begins a part of the help."""
    value: T = field(
        default=default, metadata={"help": text, "choices": choices, "section": section, "range": of}
    )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one training run; see each field's help, also in configs/README.md."""

    arch: str = key(
        "rotary",
        "architecture; gpt2: learned positions, LayerNorm and biases, GELU, the head tied to the embedding",
        ("rotary", "gpt2"),
        section="Model",
    )
    depth: int = key(4, "transformer blocks: the one size knob", of=COUNT)
    model_dim: int = key(0, "width of the residual stream; 0: 64 × depth", of=NATURAL)
    head_dim: int = key(
        0,
        "width of an attention head; 0: 128 if it divides a width of 1024 or more (not with gpt2), else 64",
        of=NATURAL,
    )
    vocab_size: int = key(
        0, "token ids; 0: 256 for bytes, as noted beside a .bin token file, else 50304", of=NATURAL
    )
    tie_embeddings: bool = key(False, "share the input embedding with the output head")
    init_from: str = key(
        "", "GPT-2 weights to begin with: a .safetensors file as transformers writes it; with arch gpt2"
    )
    gradient_checkpointing: bool = key(
        False, "recompute each block in the backward pass: less memory, more time"
    )
    compile: str = key("auto", "torch.compile; TORCH_COMPILE=0 turns it off", ("auto", "on", "off"))
    device_batch_size: int = key(
        16, "micro-batch: samples a rank holds at once", section="Batch and length", of=COUNT
    )
    total_batch_size: int = key(
        0, "global batch in tokens at max_seq_len; 0: accumulation alone decides", of=NATURAL
    )
    gradient_accumulation_steps: int = key(
        0, "micro-steps a step; 0: from total_batch_size, which wins", of=NATURAL
    )
    max_seq_len: int = key(256, "tokens of a sample, at its final length", of=COUNT)
    seq_len_schedule: str = key("", "length warm-up as step:length,…; the last length is max_seq_len")
    num_iterations: int = key(200, "optimizer steps in all", section="Run", of=COUNT)
    seed: int = key(1337, "seed of the weights and of the data order")
    eval_every: int = key(0, "steps between evaluations; 0: none; one more at the end", of=NATURAL)
    eval_samples: int = key(32, "validation samples of an evaluation, over all ranks", of=COUNT)
    sample_every: int = key(0, "steps between samples of text on the console; 0: none", of=NATURAL)
    log_interval: int = key(10, "steps between console lines", of=COUNT)
    save_every: int = key(0, "steps between checkpoints; 0: only at the end", of=NATURAL)
    keep_checkpoints: int = key(3, "newest checkpoints kept; 0: all", of=NATURAL)
    keep_best: bool = key(False, "keep the checkpoint of the lowest validation loss besides")
    checkpoint_dir: str = key("", "folder of checkpoints; default: in the run directory, else ./checkpoints")
    async_save: bool = key(True, "write checkpoints in the background from a copy in memory")
    save_timeout_s: float = key(1800.0, "longest wait for a checkpoint to be written", of=SECONDS)
    continue_on_save_error: bool = key(
        False, "warn and train on when a checkpoint cannot be written; the last one must be"
    )
    resume_from: str = key(
        "",
        "a checkpoint, a folder of them (its newest committed one), or auto: the newest of this run, if any",
    )
    learning_rate: float = key(
        1e-3, "peak learning rate", section="Optimizer", of=Range(0, 100, open_low=True)
    )
    lr_scaling: str = key("none", "scale the learning rate by the world size", ("none", "linear", "sqrt"))
    lr_schedule: str = key("cosine", "shape after the warm-up", ("cosine", "wsd", "constant"))
    warmup_steps: int = key(0, "steps of linear warm-up", of=NATURAL)
    cooldown_ratio: float = key(0.2, "share of the steps in which wsd comes down", of=SHARE)
    min_lr_ratio: float = key(0.1, "last learning rate as a share of the peak", of=SHARE)
    weight_decay: float = key(0.1, "AdamW decay, on matrices only", of=NATURAL)
    beta1: float = key(0.9, "AdamW: how much of the mean of gradients a step keeps", of=DECAY)
    beta2: float = key(0.95, "AdamW: the same for the mean of their squares", of=DECAY)
    gradient_clip_val: float = key(1.0, "largest gradient norm; 0: no clipping", of=NATURAL)
    ema_decay: float = key(0.0, "decay of an average of the weights, saved beside them; 0: none", of=DECAY)
    dtype: str = key(
        "auto",
        "compute type of the model; auto: bfloat16 on a GPU that has it, else float16, float32 on a CPU",
        ("auto", "float32", "bfloat16", "float16"),
        section="Numbers",
    )
    mixed_precision: bool = key(False, "half precision on a CPU too, and in place of float32")
    tf32: bool = key(True, "TensorFloat-32 for float32 matrix products on CUDA")
    skip_invalid_loss: bool = key(
        False, "skip a step whose loss or gradient is not finite, instead of failing"
    )
    continue_on_error: bool = key(False, "skip a step that raises a data error, at most 10 times")
    train_data_path: str = key(
        "", "a .bin token file, .jsonl or text; default: the standard library's source", section="Data"
    )
    valid_data_path: str = key("", "the same for validation; default: the last 5 % of the training data")
    data_dtype: str = key("auto", "type in a .bin without header", ("auto", "uint16", "uint32"))
    corpus_mib: int = key(4, "size of the embedded corpus", of=COUNT)
    num_workers: int = key(0, "data loading processes a rank; -1: from cores and ranks", of=Range(-1))
    pin_memory: bool = key(True, "page-locked batches, with CUDA")
    persistent_workers: bool = key(True, "keep data loading processes between uses")
    data_timeout_s: float = key(120.0, "longest wait for a data loading process", of=SECONDS)
    device: str = key("auto", "where to train", ("auto", "cuda", "cpu"), section="Ranks")
    backend: str = key("auto", "collectives: nccl with a GPU a rank, else gloo", ("auto", "nccl", "gloo"))
    distributed: bool = key(False, "start --world_size ranks here, where no launcher did")
    world_size: int = key(0, "ranks to start with --distributed", of=NATURAL)
    single_gpu: bool = key(False, "one process, whatever the machine has")
    local_rank: int = key(-1, "set by old launchers", of=Range(-1))
    init_timeout_s: float = key(1800.0, "longest wait for all ranks to meet", of=SECONDS)
    dist_timeout_s: float = key(600.0, "longest wait in a collective", of=SECONDS)
    find_unused_parameters: bool = key(False, "let DDP look for parameters without gradient")
    shard: str = key("none", "what is split over ranks", ("none", "zero1", "fsdp2"))
    telemetry_dir: str = key(
        "", "folder of rank<r>.jsonl; default STOKER_TELEMETRY_DIR, else none", section="Watching"
    )
    profile: str = key("", "folder for a torch.profiler trace of steps 3 to 6 of this process")
    debug: bool = key(False, "more checks and messages; names parameters that get no gradient")
    use_wandb: bool = key(False, "Weights & Biases on rank 0, offline unless WANDB_MODE says otherwise")
    wandb_project: str = key("trainer", "its project")
    wandb_run_name: str = key("", "its run name")
    tensorboard_dir: str = key("", "folder of TensorBoard events; default: none")
    mlflow_dir: str = key("", "folder of an MLflow store; default: none")
    memory_cap_mib: str = key(
        "",
        "headroom a rank gets, MiB: one number a rank, the last for the rest",
        section="Memory cap and faults, for demonstrations and tests",
    )
    memory_cap_cuda_mib: str = key("", "the same where the model is on a GPU")
    memory_cap_step: int = key(4, "steps of this process after which the cap is set", of=NATURAL)
    fault: str = key("", "kind[:argument]@step[:rank],…; see docs/telemetry.md")

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self.model_dim or 64 * self.depth

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        if self.head_dim:
            return self.head_dim
        large = (
            self.width >= 1024 and self.width % 128 == 0 and self.arch != "gpt2"
        )  # all GPT-2 sizes have 64
        return 128 if large else min(64, self.width)


@dataclass(frozen=True, slots=True)
class Batch:
    """How one optimizer step is cut: `micro` samples × `accumulation` × `world_size` = `samples`."""

    micro: int
    accumulation: int
    world_size: int

    @property
    def samples(self) -> int:
        """Samples of a step over all ranks."""
        return self.micro * self.accumulation * self.world_size


@dataclass(frozen=True, slots=True)
class LengthSchedule:
    """Sample length by step: `stages` are (first step, tokens), in order, from step 0."""

    stages: tuple[tuple[int, int], ...]

    def at(self, step: int) -> int:
        """Tokens of a sample at `step`."""
        return next(length for first, length in reversed(self.stages) if step >= first)


def plan_batch(config: Config, world_size: int) -> Batch:
    """Cuts the global batch over ranks and micro-steps.

    Raises:
        UsageError: it does not divide; the message has values that do.
    """
    micro, length = config.device_batch_size, config.max_seq_len
    if config.total_batch_size <= 0:
        return Batch(micro, max(config.gradient_accumulation_steps, 1), world_size)
    total = config.total_batch_size
    if total % (length * world_size):
        chunk = length * world_size * micro
        near = [value for value in (total // chunk * chunk, (total // chunk + 1) * chunk) if value]
        raise UsageError(
            f"total_batch_size {total} does not divide by max_seq_len {length} × {_ranks(world_size)} = "
            f"{length * world_size}; total_batch_size that works: {', '.join(map(str, near))}"
        )
    per_rank = total // (length * world_size)
    if per_rank % micro:
        raise UsageError(
            f"device_batch_size {micro} × max_seq_len {length} × {_ranks(world_size)} = "
            f"{micro * length * world_size} does not divide total_batch_size {total}; "
            f"device_batch_size that works: {', '.join(map(str, _divisors_near(per_rank, micro)))}"
        )
    return Batch(micro, per_rank // micro, world_size)


def plan_lengths(config: Config) -> LengthSchedule:
    """The length warm-up; without one, max_seq_len throughout.

    Raises:
        UsageError: the schedule cannot be read, or does not end at max_seq_len.
    """
    if not config.seq_len_schedule:
        return LengthSchedule(((0, config.max_seq_len),))
    stages = []
    for part in config.seq_len_schedule.split(","):
        step, colon, length = part.strip().partition(":")
        if not (colon and step.isdecimal() and length.isdecimal() and int(length) > 0):
            raise UsageError(
                f"seq_len_schedule wants step:length,… such as 0:64,50:256; got {part.strip()!r}"
            )
        stages.append((int(step), int(length)))
    if stages[0][0] != 0 or [s for s, _ in stages] != sorted({s for s, _ in stages}):
        raise UsageError("seq_len_schedule starts at step 0 and its steps grow, such as 0:64,50:256")
    lengths = [length for _, length in stages]
    if lengths[-1] != config.max_seq_len or max(lengths) != config.max_seq_len:
        raise UsageError(
            f"seq_len_schedule must end at its greatest length, max_seq_len = {config.max_seq_len}"
        )
    return LengthSchedule(tuple(stages))


def by_rank(text: str, rank: int) -> float | None:
    """The number for `rank` in a comma list, whose last one holds for all further ranks; None if empty."""
    if not text:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"memory_cap_mib wants numbers such as 400,110; got {text!r}") from None
    return numbers[min(rank, len(numbers) - 1)]


def check(config: Config) -> None:
    """Refuses values that cannot be, whatever the world size.

    Raises:
        UsageError: a line for each setting that is out of its range, with the range; else the first thing that does not fit together.
    """
    wrong = [
        f"{f.name} must be {f.metadata['range'].words}, got {value:g}"
        for f in fields(config)
        if f.metadata["range"] is not None and (value := getattr(config, f.name)) not in f.metadata["range"]
    ]
    if wrong:
        raise UsageError("\n".join(wrong))
    if config.world_size > 1 and not config.distributed:
        raise UsageError(
            f"world_size {config.world_size} starts ranks only with distributed; a launcher counts them itself"
        )
    if config.width % 2:
        raise UsageError(f"model_dim {config.width} must be even: it divides into heads of an even width")
    if config.width % config.head_width or config.head_width % 2:
        raise UsageError(
            f"model_dim {config.width} does not divide into heads of {config.head_width}; "
            f"set head_dim to an even divisor, such as {_even_divisor(config.width)}"
        )
    if config.init_from and config.arch != "gpt2":
        raise UsageError("init_from reads GPT-2 weights: it needs arch gpt2")
    plan_lengths(config)
    by_rank(config.memory_cap_mib, 0)
    by_rank(config.memory_cap_cuda_mib, 0)


def shown(value: object) -> str:
    """A default as it is read and written: true, 16, 0.001; a dash for no text."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or "–"


def _divisors_near(number: int, wanted: int) -> list[int]:
    """Up to three divisors of `number` at or below `wanted`, else the smallest ones."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    every = sorted({*small, *(number // d for d in small)})
    below = [d for d in reversed(every) if d <= wanted]
    return (below or every)[:3]


def _even_divisor(width: int) -> int:
    return next((d for d in (64, 32, 16, 8, 4, 2) if width % d == 0), 2)


def _ranks(world_size: int) -> str:
    return "1 rank" if world_size == 1 else f"{world_size} ranks"


def warnings_of(config: Config) -> list[str]:
    """What is allowed but hardly meant, a line each."""
    if config.warmup_steps <= config.num_iterations:
        return []
    more = f"warmup_steps {config.warmup_steps} is more than num_iterations {config.num_iterations}"
    return [f"{more}: the learning rate never reaches its peak"]

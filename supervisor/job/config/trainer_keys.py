"""Settings of the bundled trainer, as a table: names, types and what a batch needs to know of them.

The supervisor may not import the trainer. A contract test compares this table with the trainer's own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from supervisor.job.spec import Knobs, KnobScope


class KeyType(StrEnum):
    """What a setting holds."""

    INT = "whole number"
    FLOAT = "number"
    TEXT = "text"
    SWITCH = "true or false"


_I, _F, _T, _S = KeyType.INT, KeyType.FLOAT, KeyType.TEXT, KeyType.SWITCH

TRAINER_KEYS: Final[dict[str, KeyType]] = {
    "depth": _I,
    "model_dim": _I,
    "head_dim": _I,
    "vocab_size": _I,
    "tie_embeddings": _S,
    "gradient_checkpointing": _S,
    "compile": _T,
    "device_batch_size": _I,
    "total_batch_size": _I,
    "gradient_accumulation_steps": _I,
    "max_seq_len": _I,
    "seq_len_schedule": _T,
    "num_iterations": _I,
    "seed": _I,
    "eval_every": _I,
    "eval_samples": _I,
    "log_interval": _I,
    "save_every": _I,
    "keep_checkpoints": _I,
    "keep_best": _S,
    "checkpoint_dir": _T,
    "async_save": _S,
    "save_timeout_s": _F,
    "continue_on_save_error": _S,
    "resume_from": _T,
    "learning_rate": _F,
    "lr_scaling": _T,
    "lr_schedule": _T,
    "warmup_steps": _I,
    "cooldown_ratio": _F,
    "min_lr_ratio": _F,
    "weight_decay": _F,
    "beta1": _F,
    "beta2": _F,
    "gradient_clip_val": _F,
    "ema_decay": _F,
    "dtype": _T,
    "mixed_precision": _S,
    "tf32": _S,
    "skip_invalid_loss": _S,
    "continue_on_error": _S,
    "train_data_path": _T,
    "valid_data_path": _T,
    "data_dtype": _T,
    "corpus_mib": _I,
    "num_workers": _I,
    "pin_memory": _S,
    "persistent_workers": _S,
    "data_timeout_s": _F,
    "device": _T,
    "backend": _T,
    "distributed": _S,
    "world_size": _I,
    "single_gpu": _S,
    "local_rank": _I,
    "init_timeout_s": _F,
    "dist_timeout_s": _F,
    "find_unused_parameters": _S,
    "shard": _T,
    "telemetry_dir": _T,
    "profile": _T,
    "debug": _S,
    "use_wandb": _S,
    "wandb_project": _T,
    "wandb_run_name": _T,
    "tensorboard_dir": _T,
    "mlflow_dir": _T,
    "memory_cap_mib": _T,
    "memory_cap_cuda_mib": _T,
    "memory_cap_step": _I,
    "fault": _T,
}
TRAINER_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "compile": ("auto", "on", "off"),
    "lr_scaling": ("none", "linear", "sqrt"),
    "lr_schedule": ("cosine", "wsd", "constant"),
    "dtype": ("float32", "bfloat16", "float16"),
    "data_dtype": ("auto", "uint16", "uint32"),
    "device": ("auto", "cuda", "cpu"),
    "backend": ("auto", "nccl", "gloo"),
    "shard": ("none", "zero1", "fsdp2"),
}
# The lowest and the highest number; True: the bound itself is left out.
TRAINER_RANGES: Final[dict[str, tuple[float, float | None, bool, bool]]] = {
    "depth": (1, None, False, False),
    "model_dim": (0, None, False, False),
    "head_dim": (0, None, False, False),
    "vocab_size": (0, None, False, False),
    "device_batch_size": (1, None, False, False),
    "total_batch_size": (0, None, False, False),
    "gradient_accumulation_steps": (0, None, False, False),
    "max_seq_len": (1, None, False, False),
    "num_iterations": (1, None, False, False),
    "eval_every": (0, None, False, False),
    "eval_samples": (1, None, False, False),
    "log_interval": (1, None, False, False),
    "save_every": (0, None, False, False),
    "keep_checkpoints": (0, None, False, False),
    "save_timeout_s": (0, None, True, False),
    "learning_rate": (0, 100, True, False),
    "warmup_steps": (0, None, False, False),
    "cooldown_ratio": (0, 1, False, False),
    "min_lr_ratio": (0, 1, False, False),
    "weight_decay": (0, None, False, False),
    "beta1": (0, 1, False, True),
    "beta2": (0, 1, False, True),
    "gradient_clip_val": (0, None, False, False),
    "ema_decay": (0, 1, False, True),
    "corpus_mib": (1, None, False, False),
    "num_workers": (-1, None, False, False),
    "data_timeout_s": (0, None, True, False),
    "world_size": (0, None, False, False),
    "local_rank": (-1, None, False, False),
    "init_timeout_s": (0, None, True, False),
    "dist_timeout_s": (0, None, True, False),
    "memory_cap_step": (0, None, False, False),
}

# What the trainer uses where nothing is said; only what a batch and progress need.
TRAINER_DEFAULTS: Final[dict[str, int]] = {
    "device_batch_size": 16,
    "total_batch_size": 0,
    "gradient_accumulation_steps": 0,
    "max_seq_len": 256,
    "num_iterations": 200,
}

# Names that a job file may use for a trainer key: the cluster seed's YAML and the older scripts' flags.
ALIASES: Final[dict[str, str]] = {
    "batch_size": "device_batch_size",
    "total_steps": "num_iterations",
    "distributed_backend": "backend",
}

TRAINER_KNOBS: Final = Knobs(
    batch="--device_batch_size",
    batch_scope=KnobScope.PER_RANK,
    global_batch="--total_batch_size",
    resume="--resume_from",
    resume_value="auto",
    declared=True,
)

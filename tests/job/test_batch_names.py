"""What the name of a setting says about a batch."""

from __future__ import annotations

import pytest

from supervisor.job.knobs.batch_settings.names import (
    Role,
    is_accumulation,
    is_batch,
    path_words,
    role_of,
    scope_by_name,
    words_of,
)
from supervisor.job.spec import KnobScope

OTHERS = [
    "eval",
    "evaluation",
    "val",
    "valid",
    "validation",
    "test",
    "testing",
    "predict",
    "prediction",
    "infer",
    "inference",
    "max",
    "min",
    "sample",
    "sampling",
    "sampler",
    "gen",
    "generate",
    "generation",
    "rollout",
    "prior",
    "ref",
    "reference",
    "logprob",
    "log",
    "reward",
    "critic",
    "decode",
    "decoding",
    "encode",
    "encoding",
    "preprocessing",
    "preprocess",
    "tokenize",
    "map",
    "writer",
    "cache",
    "vae",
    "calib",
    "calibration",
    "quant",
    "auto",
    "find",
    "drop",
    "num",
    "rampup",
    "start",
    "warmup",
    "increment",
    "multiplier",
    "api",
    "vllm",
    "teacher",
    "profile",
    "benchmark",
    "score",
    "search",
    "forward",
    "experience",
    "buffer",
    "replay",
    "class",
    "visual",
    "dev",
    "demo",
    "no",
    "use",
    "schedule",
    "limit",
    "norm",
    "bn",
    "shuffle",
    "stats",
    "fid",
    "metric",
    "metrics",
    "prompt",
    "precompute",
    "mc",
]
NOT_COUNTED = [
    "eval",
    "val",
    "valid",
    "test",
    "fusion",
    "no",
    "dtype",
    "fp32",
    "bf16",
    "fp16",
    "type",
    "allreduce",
    "reduce",
    "kl",
    "loss",
    "metric",
    "use",
    "disable",
    "enable",
    "async",
    "offload",
    "plugin",
    "kwargs",
    "in",
    "main",
    "cpu",
    "buffer",
    "precision",
    "checkpoint",
    "sync",
    "warmup",
    "log",
    "accuracy",
    "top1",
    "threshold",
    "scheduler",
]
ACCUMULATIONS = [
    "update_freq",
    "accum_iter",
    "iter_size",
    "accum_grad",
    "gradient_accumulation",
    "grad_accum",
    "grad_accumulation",
    "gas",
    "accumulate",
    "--gradient-accumulation-steps",
    "accumulate_grad_batches",
    "acc_steps",
    "accumulations_n",
    "accumulative_counts",
    "accum_freq",
    "accum_factor",
    "num_accum",
    "gas_batch",
    "accumulation_every",
    "grads_accum",
    "gradients_accum",
    "grad_acc",
    "accum_step",
    "accum_iters",
    "accum_count",
    "trainer.accumulate_n",
    "gradientAccumulationSteps",
    "accumulation",
    "accum",
]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("--per-device-train-batch-size", ["per", "device", "train", "batch", "size"]),
        ("perDeviceBatchSize", ["per", "device", "batch", "size"]),
        ("train.batch_size", ["batch", "size"]),
        ("--train.batch_size", ["batch", "size"]),
        ("+data.loader/batch", ["loader", "batch"]),
    ],
)
def test_a_name_is_read_by_its_words(name: str, words: list[str]) -> None:
    assert words_of(name) == words


def test_the_keys_above_a_name_count_too() -> None:
    assert path_words("val.loader.batchSize") == {"val", "loader", "batch", "size"}


@pytest.mark.parametrize(
    ("role", "names"),
    [
        (
            Role.MICRO,
            (
                "--device_batch_size --per-gpu-batch-size micro_batch_size microbatch_size microbatch batch_size_per_rank local_batch_size "
                "worker_batch_size replica_batch_size samples_per_gpu imgs_per_gpu images_per_gpu data.samples_per_gpu micro_bs device_batchsize "
                "batch_per_device batch_per_replica"
            ),
        ),
        (Role.NODE, "node_batch_size --batch-size-per-node batch_per_node"),
        (
            Role.TOTAL,
            "--global-batch-size total_batch_size effective_batch_size ims_per_batch SOLVER.IMS_PER_BATCH total_device_batch_size",
        ),
        (
            Role.BATCH,
            "-b -bs --bs -batch --batch batch batchsize batch_size train_batch_size size_batch_train size_batch_training data.batch_size bs",
        ),
        (Role.ACCUMULATION, " ".join(ACCUMULATIONS)),
        (None, "lr batches batch_first size batch_norm_momentum train batch_train acc accuracy -a"),
    ],
)
def test_a_name_says_what_a_setting_holds(role: Role | None, names: str) -> None:
    assert {name: role_of(name) for name in names.split()} == dict.fromkeys(names.split(), role)


@pytest.mark.parametrize("name", ["{}_batch_size", "{}.batch_size", "batch_size_{}_bs"])
def test_another_batch_than_trainings_is_no_batch(name: str) -> None:
    taken = [
        word
        for word in OTHERS
        if is_batch(name.format(word)) or scope_by_name(name.format(word)).value != "unknown"
    ]
    assert taken == []


def test_what_speaks_of_accumulation_and_does_not_count_it_is_none() -> None:
    taken = [word for word in NOT_COUNTED if is_accumulation(f"grad_accum_steps_{word}")]
    assert taken == []
    assert not any(is_accumulation(f"{above}.grad_accum") for above in ("eval", "val", "test"))
    assert is_accumulation("train.grad_accum")


def test_the_number_of_accumulation_steps_is_no_batch_though_it_names_one() -> None:
    assert is_accumulation("accumulation_batch")
    assert not is_batch("accumulation_batch")
    assert scope_by_name("accumulation_batch") is KnobScope.UNKNOWN

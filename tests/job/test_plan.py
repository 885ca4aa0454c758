from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.errors import JobError
from supervisor.job.launch.env import applied
from supervisor.job.launch.plan import (
    ENDPOINT_PORT,
    LaunchPlan,
    build_plan,
    endpoint_of,
    plan_as_shell,
    wants_port,
)
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.text.redact import redact_argv
from tests.job.lines import job

PRESET = "device_batch_size = 8\ntotal_batch_size = 49152\nmax_seq_len = 2048\n[run]\nnproc_per_node = 2\n"


def plan(spec: JobSpec, **more: Any) -> LaunchPlan:
    given: dict[str, Any] = {
        "attempt": 1,
        "interpreter": "/usr/bin/python3",
        "run_dir": "/r/x",
        "attempt_dir": "/r/x/nodes/0/attempts/1",
        "base_env": {},
        "port": 23456,
        "trainer_main": "/site/trainer/__main__.py",
    }
    return build_plan(spec, **(given | more))


def test_a_script_under_torchrun() -> None:
    spec = job("--nproc-per-node 2 train.py --lr 3e-4")
    assert wants_port(spec)
    made = plan(spec)
    assert made.argv == (
        "/usr/bin/python3", "-m", "torch.distributed.run", "--nproc-per-node=2", "--nnodes=1", "--max-restarts=0",
        "--redirects=3", "--master-addr=127.0.0.1", "--master-port=23456", "--log-dir=/r/x/nodes/0/attempts/1/torchrun",
        "train.py", "--lr", "3e-4",
    )  # fmt: skip
    assert made.supervised_as == "torchrun"
    assert (made.port, made.port_named, made.world_size) == (23456, False, 2)


def test_the_users_own_rendezvous_is_left_alone() -> None:
    for line in ("--standalone train.py", "--rdzv-backend c10d --rdzv-endpoint h:1 train.py"):
        spec = job(line)
        assert not wants_port(spec)
        assert not any(a.startswith("--master-port") for a in plan(spec).argv)
    assert "--standalone" in plan(job("train.py"), port=None).argv


@pytest.mark.parametrize(
    ("said", "host", "port"),
    [
        ("head:29400", "head", 29400),
        ("head", "head", ENDPOINT_PORT),
        ("[::1]", "::1", ENDPOINT_PORT),
        ("[::1]:65535", "::1", 65535),
        ("head:65536", "head", None),
        ("head:http", "head", None),
    ],
)
def test_an_endpoint_is_split_as_torchrun_does(said: str, host: str, port: int | None) -> None:
    assert endpoint_of(job(f"--rdzv-backend c10d --rdzv-endpoint {said} train.py")) == (host, port)


def test_many_nodes() -> None:
    spec = job(
        "--nnodes 2 --node-rank 1 --master-addr head --nproc-per-node 4 train.py --micro_batch_size 2 --grad_accum 1"
    )
    made = plan(spec)
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=head"} <= set(made.argv)
    assert not any(a.startswith("--master-port") for a in made.argv)
    assert made.world_size == 8
    assert spec.batch == BatchSpec(2, 1, 8)
    with pytest.raises(JobError, match="node-rank"):
        job("--nnodes 2 --node-rank 2 train.py")
    with pytest.raises(JobError, match="nnodes"):
        job("--nnodes 3:2 train.py")


def test_a_range_of_nodes_counts_as_its_most_where_they_share_a_run() -> None:
    line = "--nnodes 2:3 --node-rank 2 --master-addr head --nproc-per-node 2"
    batch = "train.py --micro_batch_size 2 --grad_accum 1"
    assert job(f"{line} --run-dir /shared/a {batch}").batch == BatchSpec(2, 1, 6)
    alone = job(f"{line} {batch}").batch
    assert alone is None or not alone.ranks_known, "torchrun settles how many nodes there are"
    with pytest.raises(JobError, match="node-rank"):
        job("--nnodes 2:3 --node-rank 3 --run-dir /shared/a train.py")


def test_the_bundled_trainer_by_its_absolute_path() -> None:
    spec = job("--config job.toml --device_batch_size=12", PRESET)
    assert spec.entry_kind is EntryKind.TRAINER
    assert spec.batch == BatchSpec(12, 1, 2, BatchUnit.TOKENS, 2048)
    made = plan(spec)
    assert made.argv[-4:] == (
        "/site/trainer/__main__.py",
        "--device_batch_size=12",
        "--total_batch_size=49152",
        "--max_seq_len=2048",
    )
    assert ("PYTHONSAFEPATH", "1") in {(c.name, c.value) for c in made.env}
    second = plan(spec, attempt=2, batch=BatchSpec(6, 2, 2, BatchUnit.TOKENS, 2048))
    assert "--device_batch_size=6" in second.argv
    assert "--total_batch_size=49152" in second.argv
    assert second.argv[-1] == "--resume_from=auto"
    assert second.resume == "auto"
    assert "--resume_from=auto" not in plan(spec, attempt=2, resume=False).argv


def test_a_default_total_is_said_outright_once_the_micro_batch_changes() -> None:
    """Without it the trainer would take accumulation 1 and the global batch would shrink."""
    spec = job("--config job.toml", "device_batch_size = 16\nmax_seq_len = 256\n")
    assert spec.batch == BatchSpec(16, 1, 1, BatchUnit.TOKENS, 256)
    made = plan(spec, attempt=2, batch=BatchSpec(8, 2, 1, BatchUnit.TOKENS, 256))
    assert "--total_batch_size=4096" in made.argv


def test_a_checkpoint_of_the_users_own_stays_until_a_newer_one_is_known() -> None:
    spec = job("--config job.toml", 'resume_from = "ckpt/base"\n')
    assert "--resume_from=ckpt/base" in plan(spec, attempt=2).argv
    assert "--resume_from=auto" in plan(spec, attempt=2, resume=True).argv
    chosen = plan(spec, attempt=3, resume=True, set_args=(("--resume_from", "ckpt/40"),))
    assert "--resume_from=ckpt/40" in chosen.argv


def test_the_seeds_own_batch_is_refused_before_anything_starts() -> None:
    with pytest.raises(JobError, match="12, 6, 4"):
        job("--config job.toml --device_batch_size=16", PRESET)


def test_a_foreign_script_from_a_job_file() -> None:
    config = """
[run]
script = "train.py"
nproc_per_node = 2
args = ["--bsz", 8, "--steps=100"]
[batch]
knob = "--bsz"
accumulation_knob = "--accum"
scope = "per_rank"
[resume]
knob = "--continue"
value = "last"
[env]
WANDB_MODE = "disabled"
"""
    spec = job("--config job.toml", config)
    assert (spec.entry_kind, spec.entry, spec.entry_args) == (
        EntryKind.SCRIPT,
        "train.py",
        ("--bsz", "8", "--steps=100"),
    )
    assert spec.batch is None, "nobody says what --accum is now: 1 was a guess"
    assert spec.knobs.declared
    second = plan(spec, attempt=2, batch=BatchSpec(4, 2, 2))
    assert second.argv[-5:] == ("--bsz", "4", "--steps=100", "--accum=2", "--continue=last")
    assert ("WANDB_MODE", "disabled") in {(c.name, c.value) for c in second.env}


def test_environment_has_its_reasons() -> None:
    spec = job(
        "--nproc-per-node 2 --env HF_TOKEN=hf_secretsecretsecret --env PYTORCH_CUDA_ALLOC_CONF=x train.py"
    )
    base = {"PET_TEE": "3", "PATH": "/bin"}
    made = plan(spec, base_env=base, env=(("USE_LIBUV", "0"),))
    child = applied(base, made.env)
    assert "PET_TEE" not in child
    assert child["PYTHONUNBUFFERED"] == child["OMP_NUM_THREADS"] == "1"
    assert child["PYTORCH_ALLOC_CONF"] == "x"
    assert child["HF_TOKEN"] == "hf_secretsecretsecret"
    assert child["USE_LIBUV"] == "0"
    assert child["STOKER_RUN_DIR"] == "/r/x"
    assert child["STOKER_TELEMETRY_DIR"].startswith("/r/x/nodes/0/attempts/1/")
    assert all(change.reason for change in made.env)
    quiet = plan(job("train.py"), base_env={"PYTHONUNBUFFERED": "0", "OMP_NUM_THREADS": "4"})
    assert not {"PYTHONUNBUFFERED", "OMP_NUM_THREADS"} & {c.name for c in quiet.env}


@settings(deadline=None)
@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=8), max_size=5))
def test_the_plan_pastes_back_to_its_own_words(args: list[str]) -> None:
    spec = JobSpec("n", EntryKind.COMMAND, "prog", tuple(args))
    made = plan(spec)
    if redact_argv(made.argv) != made.argv or not all(a.isprintable() for a in args):
        return
    command = plan_as_shell(made).splitlines()[-1]
    assert shlex.split(command) == list(made.argv)


def test_switches_for_the_environment_yield_to_the_shell_and_to_the_job() -> None:
    made = plan(
        job("--debug-distributed --deterministic --env PYTHONHASHSEED=7 train.py"),
        base_env={"NCCL_DEBUG": "TRACE"},
    )
    changes = {change.name: change for change in made.env}
    assert "NCCL_DEBUG" not in changes, "what stands in the shell is left alone"
    assert changes["TORCH_DISTRIBUTED_DEBUG"].value == "INFO"
    assert changes["TORCH_NCCL_TRACE_BUFFER_SIZE"].value == "2000"
    assert changes["TORCH_DISTRIBUTED_DEBUG"].reason.startswith("--debug-distributed")
    assert changes["CUBLAS_WORKSPACE_CONFIG"].value == ":4096:8"
    assert changes["PYTHONHASHSEED"].value == "7", "what the job says wins over a switch"
    plain = {change.name for change in plan(job("train.py"), base_env={}).env}
    assert not plain & {"TORCH_DISTRIBUTED_DEBUG", "CUBLAS_WORKSPACE_CONFIG", "CUDA_HOME"}


def test_a_cuda_of_ones_own_comes_first() -> None:
    config = "torch_local_path = '/opt/pytorch'\n[run]\ncuda_home = '/opt/cuda-12.4'\n"
    base = {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib"}
    child = applied(base, plan(job("--config job.toml", config), base_env=base).env)
    assert child["CUDA_HOME"] == "/opt/cuda-12.4"
    assert child["PATH"] == "/opt/cuda-12.4/bin:/bin"
    assert child["LD_LIBRARY_PATH"] == "/opt/cuda-12.4/lib64:/opt/pytorch/torch/lib:/lib"

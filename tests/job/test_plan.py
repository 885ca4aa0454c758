from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.errors import JobError
from supervisor.job.launch.env import INSTRUMENT, WIRE_REASON, EnvChange, applied
from supervisor.job.launch.plan import (
    ENDPOINT_PORT,
    CheckpointCopy,
    LaunchPlan,
    build_plan,
    endpoint_of,
    plan_as_record,
    plan_as_shell,
    wants_port,
)
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.text.redact import HIDDEN, redact_argv
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


LINES = ("PYTHONUNBUFFERED", "1", "else a rank's lines reach its file only when a buffer is full")
OURS = "stoker sets this flag of torchrun itself"
SEEN = "batch, steps and checkpoints are measured in the process (--no-instrument: not)"
STACKS = "hang.faulthandler: ranks can be asked for their stacks"
SWITCH, FIXED = (
    "--debug-distributed: how ranks meet and where they wait",
    "--deterministic: what a script cannot set for itself",
)
NO_LIBUV = "libuv = false: this PyTorch has no libuv; agent and workers need to know"
CUDA = "cuda_home: this CUDA comes first"
TWIN = "the other name of PYTORCH_CUDA_ALLOC_CONF: releases differ in which one they read"
OWN_TORCH = "[run]\nscript = 'a.py'\nlibuv = false\ntorch_local_path = '/t'\ncuda_home = '/c'\n[instrument]\nenabled = false\n[env]\nA = 1\n"
OWN_CUDA = "[run]\nscript = 'a.py'\ncuda_home = '/c'\n[env]\nA = 1\n[hang]\nfaulthandler = true\n"


@pytest.mark.parametrize(
    ("line", "config", "base", "changes"),
    [
        ("--nproc-per-node 2 --env HF_TOKEN=hf_x --env PYTORCH_CUDA_ALLOC_CONF=x train.py", None, {"PET_TEE": "3", "PET_MAX_RESTARTS": "3"}, [
            LINES, ("OMP_NUM_THREADS", "1", "as torchrun would: several ranks share the cores"), ("PET_MAX_RESTARTS", None, OURS), ("PET_TEE", None, OURS),
            ("HF_TOKEN", "hf_x", "yours (flag --env)"), ("PYTORCH_CUDA_ALLOC_CONF", "x", "yours (flag --env)"), ("PYTHONPATH", INSTRUMENT, SEEN), ("PYTORCH_ALLOC_CONF", "x", TWIN),
        ]),
        ("--nproc-per-node 2 --env PYTORCH_CUDA_ALLOC_CONF=x --env PYTORCH_ALLOC_CONF=y train.py", None, {"PYTHONUNBUFFERED": "0", "OMP_NUM_THREADS": "4", "PYTHONPATH": "/p"}, [
            ("PYTORCH_CUDA_ALLOC_CONF", "x", "yours (flag --env)"), ("PYTORCH_ALLOC_CONF", "y", "yours (flag --env)"), ("PYTHONPATH", f"{INSTRUMENT}:/p", SEEN),
        ]),
        ("-- ./x", None, {"PET_TEE": "3", "SLURM_PROCID": "0", "SLURM_STEP_ID": "2"}, [
            LINES, ("PYTHONPATH", INSTRUMENT, SEEN), ("STOKER_SLURM_STEP", "2:0", "tells a rank's SLURM_PROCID from stoker's own"),
        ]),
        ("--debug-distributed --deterministic --no-instrument --env PYTHONHASHSEED=7 train.py", None, {"NCCL_DEBUG": "TRACE"}, [
            LINES, ("TORCH_DISTRIBUTED_DEBUG", "INFO", SWITCH), ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", SWITCH), ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", SWITCH),
            ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", FIXED), ("PYTHONHASHSEED", "7", "yours (flag --env)"),
        ]),
        ("--config job.toml", OWN_TORCH, {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib"}, [
            LINES, ("USE_LIBUV", "0", NO_LIBUV), ("TORCHELASTIC_USE_AGENT_STORE", "0", NO_LIBUV), ("PYTHONPATH", "/t", "torch_local_path: a PyTorch built here comes first"),
            ("CUDA_HOME", "/c", CUDA), ("PATH", "/c/bin:/bin", CUDA), ("LD_LIBRARY_PATH", "/c/lib64:/t/torch/lib:/lib", CUDA), ("A", "1", "yours (job file job.toml:9)"),
        ]),
        ("--config job.toml --env A=2", OWN_CUDA, {"STOKER_INSTRUMENT": "0", "SLURM_PROCID": "0"}, [
            LINES, ("CUDA_HOME", "/c", CUDA), ("PATH", "/c/bin", CUDA), ("LD_LIBRARY_PATH", "/c/lib64", CUDA), ("A", "2", "yours (flag --env)"),
            ("STOKER_FAULTHANDLER", "1", STACKS), ("STOKER_INSTRUMENT", "0", "nothing is measured in the process"), ("PYTHONPATH", INSTRUMENT, STACKS),
        ]),
        ("--config job.toml", "depth = 4\n", {}, [LINES, ("PYTHONSAFEPATH", "1", "so that a trainer.py of yours is not imported instead of the bundled one")]),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_each_change_of_the_environment_has_its_reason(
    line: str, config: str | None, base: dict[str, str], changes: list[tuple[str, str | None, str]]
) -> None:
    made = plan(job(line, config), base_env=base)
    folder = "/r/x/nodes/0/attempts/1"
    wire = {
        "RUN_DIR": "/r/x",
        "ATTEMPT": "1",
        "TELEMETRY_DIR": f"{folder}/telemetry",
        "STOP_FILE": f"{folder}/stop",
    }
    of_wire = [EnvChange(f"STOKER_{name}", value, WIRE_REASON) for name, value in wire.items()]
    assert list(made.env) == [*(EnvChange(*change) for change in changes), *of_wire]
    more = plan(job(line, config), base_env=base, env=(("A", "3"),), node_dir="/n", confirm=True).env
    assert [change for change in more if change not in made.env] == [
        EnvChange("STOKER_NODE_DIR", "/n", WIRE_REASON),
        EnvChange("STOKER_CONFIRM", f"{folder}/telemetry/confirmed", WIRE_REASON),
        EnvChange("A", "3", "changed for this attempt"),
    ]
    assert applied({"PET_TEE": "3", "A": "0"}, (EnvChange("PET_TEE", None, ""),)) == {"A": "0"}


def test_a_plan_is_shown_and_kept_without_its_secrets() -> None:
    spec = job(
        "--single-gpu --env HF_TOKEN=hf_secretsecretsecret train.py --micro_batch_size 4 --accum 1 --name 'a b'",
        gpus=1,
    )
    spec = replace(spec, notes=("it is told",), instrument=False)
    made = plan(spec, base_env={"PET_TEE": "3", "PYTHONUNBUFFERED": "1"}, attempt=2, batch=BatchSpec(2, 2, 1))
    wire = "# STOKER_RUN_DIR, STOKER_ATTEMPT, STOKER_TELEMETRY_DIR, STOKER_STOP_FILE: tells a trainer that knows stoker where to report"
    command = [
        "cd /w && env", "-u PET_TEE", 'HF_TOKEN="$HF_TOKEN"', "CUDA_VISIBLE_DEVICES=0", "STOKER_RUN_DIR=/r/x", "STOKER_ATTEMPT=2",
        "STOKER_TELEMETRY_DIR=/r/x/nodes/0/attempts/1/telemetry", "STOKER_STOP_FILE=/r/x/nodes/0/attempts/1/stop", shlex.join(made.argv),
    ]  # fmt: skip
    assert plan_as_shell(made).splitlines() == [
        "# note: it is told",
        "# batch: 2 × accumulation 2 × 1 rank = global batch 4",
        f"# PET_TEE: {OURS}",
        "# HF_TOKEN: yours (flag --env) (value not shown: export it first)",
        "# CUDA_VISIBLE_DEVICES: yours (--single-gpu: the first that is visible)",
        wire,
        *" \\\n  ".join(command).splitlines(),
    ]
    copy = CheckpointCopy("/c/4", "/c/5", "step", 4, 5)
    record = plan_as_record(replace(made, copy=copy, applied=(("--bs", "2"),)))
    env = record.pop("env")
    assert env[0] == {"name": "PET_TEE", "value": None, "reason": OURS}
    assert env[1] == {"name": "HF_TOKEN", "value": HIDDEN, "reason": "yours (flag --env)"}
    assert record == {
        "schema": 1, "attempt": 2, "argv": list(made.argv), "cwd": "/w", "supervised_as": "torchrun",
        "torchrun_log_dir": "/r/x/nodes/0/attempts/1/torchrun",
        "batch": {"micro_batch_per_rank": 2, "accumulation_steps": 2, "world_size": 1, "unit": "samples", "tokens_per_sample": 1, "ranks_known": True, "global_batch": 4},
        "world_size": 1, "local_world_size": 1, "resume": None, "notes": ["it is told"], "port": 23456,
        "applied": {"--bs": "2"}, "resume_copy": {"source": "/c/4", "copy": "/c/5", "values": {"step": [4, 5]}},
    }  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=8), max_size=5))
def test_the_plan_pastes_back_to_its_own_words(args: list[str]) -> None:
    spec = JobSpec("n", EntryKind.COMMAND, "prog", tuple(args))
    made = plan(spec)
    if redact_argv(made.argv) != made.argv or not all(a.isprintable() for a in args):
        return
    command = plan_as_shell(made).splitlines()[-1]
    assert shlex.split(command) == list(made.argv)

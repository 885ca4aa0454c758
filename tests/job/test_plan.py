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


FIXED_FLAGS = ("--max-restarts=0", "--redirects=3")
FOREIGN = """
[run]
script = "train.py"
args = ["--bsz", 8, "--steps=100"]
[batch]
knob = "--bsz"
accumulation_knob = "--accum"
scope = "per_rank"
[resume]
knob = "--continue"
value = "last"
"""


@pytest.mark.parametrize(
    ("line", "config", "more", "head", "tail", "resume"),
    [
        ("--standalone train.py", None, {}, ("--nproc-per-node=1", "--nnodes=1", *FIXED_FLAGS, "--standalone"), ("train.py",), None),
        ("train.py", None, {"port": None}, ("--nproc-per-node=1", "--nnodes=1", *FIXED_FLAGS, "--standalone"), ("train.py",), None),
        ("--master-port 29 -m pkg.t", None, {}, ("--nproc-per-node=1", "--nnodes=1", *FIXED_FLAGS, "--master-addr=127.0.0.1", "--master-port=29"), ("-m", "pkg.t"), None),
        ("--rdzv-backend c10d --rdzv-endpoint h:1 train.py", None, {}, ("--nproc-per-node=1", "--nnodes=1", *FIXED_FLAGS, "--rdzv-backend=c10d", "--rdzv-endpoint=h:1"), ("train.py",), None),
        ("--nnodes 2 --node-rank 1 --master-addr head --nproc-per-node 4 train.py", None, {}, ("--nproc-per-node=4", "--nnodes=2", *FIXED_FLAGS, "--node-rank=1", "--master-addr=head"), ("train.py",), None),
        ("--nnodes 2:3 --master-port 29 train.py", None, {}, ("--nproc-per-node=1", "--nnodes=2:3", *FIXED_FLAGS, "--node-rank=0", "--master-port=29"), ("train.py",), None),
        ("--device_batch_size=12", PRESET, {"attempt": 2, "batch": BatchSpec(6, 2, 2, BatchUnit.TOKENS, 2048)}, ("--nproc-per-node=2", "--nnodes=1", *FIXED_FLAGS, "--master-addr=127.0.0.1", "--master-port=23456"), ("/site/trainer/__main__.py", "--device_batch_size=6", "--total_batch_size=49152", "--max_seq_len=2048", "--resume_from=auto"), "auto"),
        # Without its total the trainer would take accumulation 1, and the global batch would shrink.
        ("", "device_batch_size = 16\nmax_seq_len = 256\n", {"attempt": 2, "resume": False, "batch": BatchSpec(8, 2, 1, BatchUnit.TOKENS, 256)}, None, ("/site/trainer/__main__.py", "--device_batch_size=8", "--max_seq_len=256", "--total_batch_size=4096"), None),
        # A checkpoint of the user's own stays until a newer one is known.
        ("", 'resume_from = "ckpt/base"\n', {"attempt": 2}, None, ("/site/trainer/__main__.py", "--resume_from=ckpt/base"), "ckpt/base"),
        ("", 'resume_from = "ckpt/base"\n', {"attempt": 2, "resume": True}, None, ("/site/trainer/__main__.py", "--resume_from=auto"), "auto"),
        ("", 'resume_from = "ckpt/base"\n', {"attempt": 3, "resume": True, "set_args": (("--resume_from", "ckpt/40"),)}, None, ("/site/trainer/__main__.py", "--resume_from=ckpt/40"), "ckpt/40"),
        ("", FOREIGN, {"attempt": 2, "batch": BatchSpec(4, 2, 1)}, None, ("train.py", "--bsz", "4", "--steps=100", "--accum=2", "--continue=last"), "last"),
    ],
)  # fmt: skip
def test_torchrun_and_the_script_get_these_words(
    line: str, config: str | None, more: dict[str, Any], head: tuple[str, ...] | None, tail: tuple[str, ...], resume: str | None
) -> None:  # fmt: skip
    spec = job(line if config is None else f"--config job.toml {line}", config)
    made = plan(spec, **more)
    at = made.argv.index("--log-dir=/r/x/nodes/0/attempts/1/torchrun")
    assert head in {None, made.argv[3:at]}
    assert (made.argv[at + 1 :], made.resume) == (tail, resume)


def test_a_range_of_nodes_counts_as_its_most_where_they_share_a_run() -> None:
    line, batch = (
        "--nproc-per-node 2 --nnodes 2:3 --node-rank 2",
        "train.py --micro_batch_size 2 --grad_accum 1",
    )
    shared = job(f"{line} --run-dir /shared/a {batch}")
    assert (shared.batch, plan(shared).world_size) == (BatchSpec(2, 1, 6), 6)
    alone = job(f"{line} {batch}").batch
    assert alone is None or not alone.ranks_known, "torchrun settles how many nodes there are"
    with pytest.raises(JobError, match="node-rank"):
        job("--nnodes 2:3 --node-rank 3 --run-dir /shared/a train.py")


def test_the_seeds_own_batch_is_refused_before_anything_starts() -> None:
    with pytest.raises(JobError, match="12, 6, 4"):
        job("--config job.toml --device_batch_size=16", PRESET)


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

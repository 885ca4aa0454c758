"""How long a job's process groups wait: out of its source, its flags, its configs, its environment, its log."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.config.edit import Scalar
from supervisor.job.knobs.batch_settings.find import places
from supervisor.job.knobs.group_timeout import find_group_timeout, longer_than_usual, timeout_in_log

HEAD = "import datetime, os\nfrom datetime import timedelta\nimport torch.distributed as dist\n"
WAIT_FLAG = "parser.add_argument('--pg-wait', type=int, default=90)\n"


def found(
    source: str | None = None,
    *args: str,
    env: Mapping[str, str] | None = None,
    configs: Mapping[str, Mapping[str, Scalar]] | None = None,
) -> float | None:
    text = None if source is None else HEAD + source
    return find_group_timeout(settings_of(args), places(text, configs, env))


@pytest.mark.parametrize(
    ("source", "seconds"),
    [
        ("dist.init_process_group('nccl', timeout=timedelta(minutes=60))", 3600),
        ("dist.init_process_group('nccl', None, datetime.timedelta(0, 7200))", 7200),
        ("LIMIT = timedelta(hours=2)\ndist.init_process_group('nccl', timeout=LIMIT)", 7200),
        ("LIMIT: timedelta = timedelta(days=1)\nlaunch(main, timeout=LIMIT)", 86_400),
        (
            "def setup(rank, timeout=timedelta(hours=3)):\n    dist.init_process_group(timeout=timeout)",
            10_800,
        ),
        ("dist.init_process_group(timeout=timedelta(seconds=60 * 60 * 2))", 7200),
        ("dist.init_process_group(timeout=timedelta(hours=1, minutes=15))", 4500),
        ("Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=5400))])", 5400),
        ("Trainer(strategy=DDPStrategy(timeout=datetime.timedelta(seconds=5400)))", 5400),
        ("TrainingArguments(output_dir='x', ddp_timeout=7200)", 7200),
        ("dist.init_process_group(timeout=timedelta(seconds=int(os.environ.get('WAIT', '3600'))))", 3600),
        (f"{WAIT_FLAG}dist.init_process_group(timeout=timedelta(minutes=args.pg_wait))", 5400),
        ("group = dist.new_group([0, 1], timedelta(minutes=45))\ndist.init_process_group()", 2700),
        ("dist.init_process_group(timeout=timedelta(minutes=5))", None),
        ("dist.init_process_group(timeout=timedelta(minutes=10))", None),
        ("dist.init_process_group(timeout=wait_for(config))", None),
        ("dist.init_process_group('nccl')", None),
        ("requests.get(url, timeout=3600)", None),
        ("subprocess.run(['make'], timeout=86400)", None),
        ("this is no Python", None),
    ],
)
def test_what_a_script_hands_to_its_process_groups(source: str, seconds: float | None) -> None:
    assert found(source) == seconds


def test_a_limit_without_an_end_is_never_reached() -> None:
    assert (found("dist.init_process_group(timeout=timedelta.max)") or 0) > 1e9


@pytest.mark.parametrize(
    ("args", "seconds"),
    [
        (("--ddp_timeout", "7200"), 7200),
        (("--ddp_timeout=7200",), 7200),
        (("--distributed-timeout-minutes", "60"), 3600),
        (("--nccl-timeout-s", "1200"), 1200),
        (("train.dist_timeout=1800",), 1800),
        (("--dist-timeout-hours", "2"), 7200),
        (("--nccl_timeout_ms=1200000",), 1200),
        (("--ddp_timeout", "300"), None),
        (("--ddp_timeout", "long"), None),
        (("--timeout", "7200"), None),
        (("--data_timeout", "7200"), None),
        (("--nccl_heartbeat_timeout", "7200"), None),
    ],
)
def test_flags_that_are_named_so(args: tuple[str, ...], seconds: float | None) -> None:
    assert found(None, *args) == seconds


def test_what_is_given_comes_before_a_default() -> None:
    source = f"{WAIT_FLAG}dist.init_process_group(timeout=timedelta(minutes=args.pg_wait))"
    assert found(source, "--pg-wait", "120") == 7200
    declared = "parser.add_argument('--ddp_timeout', type=int, default=7200)"
    assert found(declared) == 7200
    assert found(declared, "--ddp_timeout", "60") is None


def test_configs_and_variables() -> None:
    assert found(None, configs={"a.yaml": {"train.ddp_timeout": 7200}}) == 7200
    source = "dist.init_process_group(timeout=timedelta(minutes=cfg.wait_minutes))"
    assert found(source, configs={"a.yaml": {"dist.wait_minutes": 50}}) == 3000
    assert found(None, env={"DEEPSPEED_TIMEOUT": "60"}) == 3600
    assert found(None, env={"NCCL_TIMEOUT": "1200", "NCCL_IB_TIMEOUT": "22"}) == 1200
    assert found(None, env={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "7200"}) is None


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b"ProcessGroupNCCL initialization options: size: 2, global rank: 0, TIMEOUT(ms): 3600000, USE_HIGH", 3600),
        (b"WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=1800000) ran for", 1800),
        (b"ddp_timeout=7200,", 7200),
        (b"  'ddp_timeout': 7200,", 7200),
        (b"  distributed_timeout_minutes ..................... 60", 3600),
        (b"InitProcessGroupKwargs(backend='nccl', timeout=datetime.timedelta(seconds=5400))", 5400),
        (b"timeout=datetime.timedelta(days=1, seconds=3600)", 90_000),
        (b"TIMEOUT(ms): 600000", None),
        (b"step 900 loss 3.1 timeout 7200", None),
        (b"nccl_heartbeat_timeout_sec: 7200", None),
        (b"", None),
    ],
)  # fmt: skip
def test_lines_of_a_log(line: bytes, seconds: float | None) -> None:
    assert timeout_in_log(b"before\n" + line + b"\nafter\n") == seconds


@given(st.binary(max_size=300))
def test_any_bytes_are_a_log(data: bytes) -> None:
    seconds = timeout_in_log(b"ddp_timeout" + data)
    assert seconds is None or seconds > 600


@pytest.mark.parametrize("value", [None, "x", True, float("nan"), 600, -1])
def test_what_is_no_longer_wait_is_none(value: object) -> None:
    assert longer_than_usual(value) is None

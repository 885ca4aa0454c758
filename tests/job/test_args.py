from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.arguments.run_arguments import (
    STOKER_FLAGS,
    TORCHRUN_FLAGS,
    ParsedRun,
    help_text,
    parse_run_argv,
)
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind

KEYS = frozenset({"device_batch_size", "total_batch_size", "num_iterations", "compile"})


def words(line: str) -> list[str]:
    return line.split()


RESTARTS = "--max-restarts {} became --max-retries {}: stoker restarts with a plan, torchrun with 0"
LOGS = "--log-dir {} replaced: each attempt's logs lie in the run directory"
TEE = "--tee 3 replaced: stoker shows the lines of every rank itself"
REDIRECTS = "--redirects 2 replaced by --redirects=3: one file a rank and stream"
SCRIPT = ParsedRun(EntryKind.SCRIPT, "train.py")
TWO = replace(SCRIPT, entry_args=("--lr", "3e-4"), torchrun=(("nproc_per_node", "2"),))
TAIL = ("--nproc-per-node", "0", "--no-ui", "--", "-h", "--max-restarts=9", "--unknown")


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("--nproc-per-node 2 train.py --lr 3e-4", TWO),
        ("--nproc_per_node 2 train.py --lr 3e-4", TWO),
        ("--nproc-per-node=2 train.py --lr 3e-4", TWO),
        ("--nproc_per_node=2 train.py --lr 3e-4", TWO),
        ("-h", ParsedRun(help=True)),
        ("--no-ui --help train.py", ParsedRun(help=True)),
        ("train.py " + " ".join(TAIL), replace(SCRIPT, entry_args=TAIL)),
        ("-", ParsedRun(EntryKind.SCRIPT, "-")),
        ("-m pkg.x a b", ParsedRun(EntryKind.MODULE, "pkg.x", ("a", "b"))),
        ("--nproc-per-node 2 -- a -m", ParsedRun(EntryKind.COMMAND, "a", ("-m",), torchrun=(("nproc_per_node", "2"),))),
        ("--no-ui=0 --no-ui=YES train.py", replace(SCRIPT, stoker=(("no_ui", "false"), ("no_ui", "true")))),
        ("--env A=1 --env B= train.py", replace(SCRIPT, stoker=(("env", "A=1"), ("env", "B=")))),
        ("--standalone=off --rdzv_backend c10d --rdzv-conf a=1 train.py", replace(SCRIPT, torchrun=(("rdzv_backend", "c10d"), ("rdzv_conf", "a=1")))),
        ("--max-restarts 5 --log-dir /x -r 2 -t3 train.py", replace(SCRIPT, stoker=(("max_retries", "5"),), notes=(RESTARTS.format(5, 5), LOGS.format("/x"), REDIRECTS, TEE))),
        ("--max-retries 1 -r=2 --max-restarts=5 train.py", replace(SCRIPT, stoker=(("max_retries", "1"),), notes=(REDIRECTS, RESTARTS.format(5, 5)))),
        ("--nproc-per-node 1024 train.py", replace(SCRIPT, torchrun=(("nproc_per_node", "1024"),))),
        ("--nproc-per-node xpu train.py", replace(SCRIPT, torchrun=(("nproc_per_node", "xpu"),))),
    ],
    ids=str,
)  # fmt: skip
def test_a_line_is_read_up_to_the_script_and_left_as_it_is_after_it(line: str, parsed: ParsedRun) -> None:
    found = parse_run_argv(words(line))
    assert found == parsed
    given = dict(parsed.stoker)
    assert {key: found.flag(key) for key in given} == given
    assert found.switch("no_ui") is (given.get("no_ui") == "true")
    assert found.flags("env") == tuple(value for key, value in parsed.stoker if key == "env")
    assert found.launcher("nproc_per_node") == dict(parsed.torchrun).get("nproc_per_node")


def test_pet_variables_are_torchruns_own_defaults() -> None:
    env = {"PET_NPROC_PER_NODE": "4", "PET_STANDALONE": "1", "PET_TEE": "3", "PET_NODE_RANK": "1", "PET_MAX_RESTARTS": "2", "PET_NO_PYTHON": "0"}  # fmt: skip
    parsed = parse_run_argv(words("--node-rank 0 train.py"), env=env)
    assert parsed == replace(
        SCRIPT,
        stoker=(("max_retries", "2"),),
        torchrun=(("node_rank", "0"), ("nproc_per_node", "4"), ("standalone", "true")),
        from_env=frozenset({"nproc_per_node", "standalone", "tee", "max_restarts"}),
        notes=(RESTARTS.format(2, 2), TEE),
    )
    assert parse_run_argv(["--", "x"], env=env) == ParsedRun(EntryKind.COMMAND, "x")
    with pytest.raises(JobError, match=r"^PET_NPROC_PER_NODE: --nproc-per-node wants a whole number"):
        parse_run_argv(["train.py"], env={"PET_NPROC_PER_NODE": "0"})


RANKS = "--nproc-per-node wants a whole number of at least 1 and at most 1024, or auto, gpu, cpu: got "
MEANT = " before the script: did you mean {}? Flags of the script go after it"
NO_EFFECT = " has no effect on a command after `--`: put it into the command itself"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nproc-per-node 0 train.py", f"{RANKS}'0'"),
        ("--nproc-per-node 1025 train.py", f"{RANKS}'1025'"),
        ("--nproc-per-node two train.py", f"{RANKS}'two'"),
        ("--max-retrys 3 train.py", f"unknown flag '--max-retrys'{MEANT.format('--max-retries')}"),
        ("--nproc-per-nod=3 train.py", f"unknown flag '--nproc-per-nod'{MEANT.format('--nproc-per-node')}"),
        ("--zzzzzzzz train.py", "unknown flag '--zzzzzzzz' before the script: flags of the script go after it"),
        ("-m3 train.py", "unknown flag '-m3' before the script"),
        ("--max-retries x train.py", "--max-retries wants a whole number, got 'x'"),
        ("--max-restarts x train.py", "--max-restarts wants a whole number, got 'x'"),
        ("--max-restarts -1 train.py", "--max-restarts must be at least 0, got '-1'"),
        ("--max-retries", "--max-retries needs a value: --max-retries N"),
        ("--grace soon train.py", "--grace wants a number, got 'soon'"),
        ("--env NOVALUE- train.py", "--env wants KEY=VALUE, got 'NOVALUE-'"),
        ("--env 1A=secret train.py", "--env wants KEY=VALUE, got '1A='"),
        ("--batch-scope world train.py", "--batch-scope takes one of per_rank, per_node, global, got 'world'"),
        ("--no-ui=perhaps train.py", "--no-ui is a switch and takes no value, got 'perhaps'"),
        ("--master-port 70000 train.py", "--master-port must be at least 1 and at most 65535, got '70000'"),
        ("-m", "-m needs the name of a module: stoker run -m package.module"),
        ("--", "nothing follows `--`: name the command to supervise"),
        ("--master-port 29500 -- python x.py", f"--master-port{NO_EFFECT}"),
        ("--nproc-per-node 2 --nnodes 2 -- python x.py", f"--nnodes{NO_EFFECT}"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_with_exit_code_2(line: str, said: str) -> None:
    with pytest.raises(JobError) as refused:
        parse_run_argv(words(line))
    assert (refused.value.message, refused.value.exit_code) == (said, 2)


def test_spec_keys_only_beside_a_config_and_without_a_script() -> None:
    parsed = parse_run_argv(
        words("--config c.toml --device_batch_size=16 --num-iterations 50 --compile"), spec_keys=KEYS
    )
    assert parsed.entry_kind is None
    assert dict(parsed.spec_keys) == {"device_batch_size": "16", "num_iterations": "50", "compile": "true"}
    with pytest.raises(JobError, match="unknown flag"):
        parse_run_argv(words("--device_batch_size=16"), spec_keys=KEYS)
    with pytest.raises(JobError, match="did you mean --device_batch_size"):
        parse_run_argv(words("--config c.toml --device_batch_sise=16"), spec_keys=KEYS)
    with pytest.raises(JobError, match="after the script"):
        parse_run_argv(words("--config c.toml --device_batch_size=16 train.py"), spec_keys=KEYS)


def test_every_flag_of_ours_has_a_help_line_and_no_two_share_a_spelling() -> None:
    names = [f.name for f in (*STOKER_FLAGS, *TORCHRUN_FLAGS)]
    assert len(names) == len(set(names))
    text = "\n".join(help_text(STOKER_FLAGS, group) for group in {f.group for f in STOKER_FLAGS})
    for flag in STOKER_FLAGS:
        assert flag.name in text
        assert all(choice in text for choice in flag.choices), flag.name


@settings(deadline=None)
@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_words_are_read_or_refused_in_one_line(line: list[str]) -> None:
    with contextlib.suppress(JobError):
        parse_run_argv(line, spec_keys=KEYS)

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.arguments.run_arguments import STOKER_FLAGS, TORCHRUN_FLAGS, help_text, parse_run_argv
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind

KEYS = frozenset({"device_batch_size", "total_batch_size", "num_iterations", "compile"})


def words(line: str) -> list[str]:
    return line.split()


@pytest.mark.parametrize(
    "line",
    [
        "--nproc-per-node 2 train.py --lr 3e-4",
        "--nproc_per_node 2 train.py --lr 3e-4",
        "--nproc-per-node=2 train.py --lr 3e-4",
        "--nproc_per_node=2 train.py --lr 3e-4",
    ],
)
def test_both_spellings_of_torchruns_flags(line: str) -> None:
    parsed = parse_run_argv(words(line))
    assert parsed.entry_kind is EntryKind.SCRIPT
    assert (parsed.entry, parsed.entry_args) == ("train.py", ("--lr", "3e-4"))
    assert parsed.launcher("nproc_per_node") == "2"


def test_after_the_script_nothing_is_touched() -> None:
    tail = ["--nproc-per-node", "0", "--no-ui", "--", "-h", "--max-restarts=9", "--unknown"]
    parsed = parse_run_argv(["train.py", *tail])
    assert parsed.entry_args == tuple(tail)
    assert parsed.torchrun == ()
    assert not parsed.switch("no_ui")
    assert not parsed.help


def test_what_stoker_owns_is_replaced_and_said() -> None:
    parsed = parse_run_argv(words("--max-restarts 5 --log-dir /x -r 2 -t3 train.py"))
    assert parsed.flag("max_retries") == "5"
    assert parsed.torchrun == ()
    assert len(parsed.notes) == 4
    both = parse_run_argv(words("--max-retries 1 --max-restarts=5 train.py"))
    assert both.flag("max_retries") == "1"


def test_pet_variables_are_torchruns_own_defaults() -> None:
    env = {"PET_NPROC_PER_NODE": "4", "PET_STANDALONE": "1", "PET_TEE": "3", "PET_NODE_RANK": "1"}
    parsed = parse_run_argv(words("--node-rank 0 train.py"), env=env)
    assert parsed.launcher("nproc_per_node") == "4"
    assert parsed.launcher("node_rank") == "0"
    assert parsed.launcher("standalone") == "true"
    assert parsed.from_env == {"nproc_per_node", "standalone", "tee"}
    assert any("--tee" in note for note in parsed.notes)
    with pytest.raises(JobError, match="PET_NPROC_PER_NODE"):
        parse_run_argv(["train.py"], env={"PET_NPROC_PER_NODE": "0"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nproc-per-node 0 train.py", "at least 1"),
        ("--nproc-per-node two train.py", "'two'"),
        ("--max-retrys 3 train.py", "--max-retries"),
        ("--nproc-per-nod=3 train.py", "--nproc-per-node"),
        ("--max-retries x train.py", "whole number"),
        ("--max-retries", "needs a value"),
        ("--lr 3e-4 train.py", "after it"),
        ("--grace soon train.py", "wants a number"),
        ("--env NOVALUE- train.py", "KEY=VALUE"),
        ("--batch-scope world train.py", "per_rank"),
        ("--no-ui=perhaps train.py", "switch"),
        ("--master-port 70000 train.py", "65535"),
        ("-m", "module"),
        ("--", "command"),
        ("--master-port 29500 -- python x.py", "no effect"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2(line: str, said: str) -> None:
    with pytest.raises(JobError, match=said) as refused:
        parse_run_argv(words(line))
    assert refused.value.exit_code == 2
    assert "\n" not in refused.value.message


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

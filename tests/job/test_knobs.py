from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.arguments.command_line import set_value, value_of
from supervisor.job.batch import BatchSpec
from supervisor.job.errors import JobError
from supervisor.job.knobs.named_settings import find_knobs
from supervisor.job.knobs.set_batch import batch_of, batch_values, why_not_changeable
from supervisor.job.memory_fit import choose_smaller
from supervisor.job.spec import Knobs


def changed(
    args: Sequence[str],
    knobs: Knobs,
    batch: BatchSpec,
    *,
    before: BatchSpec | None = None,
    local_world_size: int = 1,
) -> tuple[str, ...]:
    """The arguments of the next launch, as `plan.build_plan` sets them."""
    result = tuple(args)
    for name, value in batch_values(knobs, batch, before=before, local_world_size=local_world_size):
        result = set_value(result, name, value)
    return result


def test_other_scopes() -> None:
    global_args = ("--global_batch_size", "64", "--accumulate_grad_batches", "2")
    knobs = find_knobs(global_args)
    spec = batch_of(global_args, knobs, world_size=4, local_world_size=2)
    assert spec == BatchSpec(8, 2, 4)
    assert changed(global_args, knobs, BatchSpec(4, 4, 4))[1::2] == ("64", "4")
    node_args = ("--batch_size_per_node=16", "--grad_accum", "1")
    knobs = find_knobs(node_args)
    assert batch_of(node_args, knobs, world_size=4, local_world_size=2) == BatchSpec(8, 1, 4)
    assert changed(node_args, knobs, BatchSpec(4, 2, 4), local_world_size=2) == (
        "--batch_size_per_node=8",
        "--grad_accum",
        "2",
    )


def test_a_micro_batch_beside_a_total_is_changed_alone_whatever_the_total_counts() -> None:
    args = ("--device_batch_size=8", "--total_batch_size=49152", "--max_seq_len=2048")
    knobs = find_knobs(args)
    spec = batch_of(args, knobs, world_size=2, local_world_size=2)
    assert spec == BatchSpec(8, 1, 1, ranks_known=False), "tokens or samples: the script makes up for it"
    choice = choose_smaller(spec)
    assert choice is not None
    smaller = choice.batch
    assert changed(args, knobs, smaller)[0] == "--device_batch_size=4"
    assert changed(args, knobs, smaller)[1:] == args[1:]


def test_what_is_not_known_is_not_changed() -> None:
    for args in (("--batch_size", "8", "--accum", "2"), ("--micro_batch_size", "8"), ("--lr", "1")):
        knobs = find_knobs(args)
        assert not knobs.can_change_batch
        with pytest.raises(JobError, match="--"):
            changed(args, knobs, BatchSpec(4, 4, 1), before=BatchSpec(8, 2, 1))
        assert "--" in why_not_changeable(knobs)
    alone = ("--micro_batch_size", "8")
    accepted = changed(alone, find_knobs(alone), BatchSpec(4, 1, 2), before=BatchSpec(8, 1, 2))
    assert accepted == ("--micro_batch_size", "4")


word = st.text("abcxyz0123456789-_=./ ", max_size=10)


@settings(deadline=None)
@given(
    st.lists(word, max_size=6),
    st.sampled_from(["--micro_batch_size", "-b", "model.batch"]),
    st.integers(1, 999),
)
def test_setting_then_reading_gives_the_value(args: list[str], name: str, value: int) -> None:
    changed = set_value(args, name, str(value))
    assert value_of(changed, name) == str(value)
    assert value_of(set_value(changed, name, "7"), name) == "7"

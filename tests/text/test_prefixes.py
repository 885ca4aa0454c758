import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.prefixes import (
    NOWHERE,
    NUMBERED,
    Origin,
    learn_hosts,
    origin_of_path,
    rank_mark,
    split_prefix,
)


@pytest.mark.parametrize(
    ("line", "origin", "rest"),
    [
        ("[rank3]: Traceback", Origin(rank=3), "Traceback"),
        ("[rank3]:   File x", Origin(rank=3), "  File x"),
        ("[rank12]:[E314 11:02 x.cpp:1] y", Origin(rank=12), "[E314 11:02 x.cpp:1] y"),
        ("[default3]:  File x", Origin(local_rank=3), "  File x"),
        ("[rank: 3] Child process", Origin(rank=3), "Child process"),
        ("3: [rank12]: boom", Origin(rank=12, task=3), "boom"), (" 3: boom", Origin(task=3), "boom"),
        ("node1: [rank9]: boom", Origin(rank=9, node="node1"), "boom"),
        ("node1: 0: [rank3]: boom", Origin(rank=3, task=0, node="node1"), "boom"),
        ("worker-0 | node1: 0: [rank3]: boom", Origin(rank=3, task=0, node="node1"), "boom"),
        ("worker-0 | node1: 0: [rank3]: [default1]:boom", Origin(rank=3, task=0, node="node1"), "[default1]:boom"),
        ("worker-0 | boom", Origin(node="worker-0"), "boom"),
        ("[node7] W07 x", Origin(node="node7"), "W07 x"),
        ("[1,3]<stderr>:boom", Origin(task=3, stream="stderr"), "boom"),
        ("(Worker pid=7, ip=10.0.0.1) boom", Origin(pid=7, node="10.0.0.1"), "boom"),
        ("(VllmWorker rank=1 pid=7) boom", Origin(rank=1, pid=7), "boom"),
        ("[pod/trainer-0/pytorch] boom", Origin(node="trainer-0"), "boom"),
        ("RuntimeError: boom", NOWHERE, "RuntimeError: boom"), ("INFO: boom", NOWHERE, "INFO: boom"),
        ("python3: can't open file", NOWHERE, "python3: can't open file"),
        ("[2024-01-01 10:00:00] step 1", NOWHERE, "[2024-01-01 10:00:00] step 1"),
    ],
)  # fmt: skip
def test_prefixes(line: str, origin: Origin, rest: str) -> None:
    assert split_prefix(line) == (origin, rest)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("2026-11-20 10:00:00,123 WARNING [rank2] grad norm 3", 2), ("WARNING [rank 2] y", 2),
        ("rank2: WARNING z", 2), ("[Rank 2] z", 2), ("[RANK2] z", 2), ("INFO " * 7 + "[rank2] z", 2),
        ("INFO " * 8 + "[rank2] z", None), (" " * 153 + "[rank2] z", 2), (" " * 154 + "[rank2] z", None),
        ("2026-11-20T10:00:00Z INFO (rank=2) z", 2),
        ("[2026-11-20 10:00:00,123][trainer][INFO] - [rank2] z", 2),
        ("2026-11-20 10:00:00 - trainer.loop - INFO - rank 2: z", 2),
        ("W1120 10:00:00.123 1234 train.py:12] [rank2] z", 2), ("time=10:00 level=info rank=2 msg=z", 2),
        ("2022-05-01 10:00:00,000 INFO [train.py:874] (2/8) Epoch 3, batch 2000", 2),
        ("waiting for [rank2] to join", None), ("WARNING waiting for rank 2: no answer", None),
        ("2026-11-20 ERROR rank 2 failed with exit code 1", None), ("[2/8] step 14", None),
        ("2026-11-20 10:00:00 WARNING ranking (2/8) done", None),
    ],
)  # fmt: skip
def test_a_scripts_own_logger_names_the_rank_behind_time_and_level(line: str, rank: int | None) -> None:
    assert rank_mark(line) == rank


def test_hosts_are_learnt_by_recurrence() -> None:
    lines = [f"gpu-{'ab'[number % 2]}: step {number} loss 1.0" for number in range(20)]
    hosts = learn_hosts(lines)
    assert hosts == {"gpu-a", "gpu-b"}
    assert split_prefix("gpu-b: [rank7]: boom", hosts) == (Origin(rank=7, node="gpu-b"), "boom")
    for one in ("{}: x", "{} | x", "{}| x", "[{}]: x", "({}): x", "2024-01-01T10:00:00Z {}: x"):
        named = [one.format(f"10.0.0.{number % 2}") for number in range(17)]
        assert learn_hosts([*named, *["x", " "] * 33]) == {"10.0.0.0", "10.0.0.1"}, "a third of the lines"
        assert learn_hosts([*named, *["x"] * 34]) == frozenset()
        assert learn_hosts([one.format("10.0.0.1")] * 17) == frozenset(), "a cluster has several"
    for word in ("python", "torch", "cuda", "gpu", "rank", "step", "epoch", "frame", "file", "default", "7"):
        assert learn_hosts(f"{word}{number % 2}: x" for number in range(20)) == frozenset()
    for word in ("Error", "warning", "info", "debug", "step"):
        assert learn_hosts([f"{word}: x", f"{word[:-1]}x: x"] * 9) == frozenset()
    assert learn_hosts(f"[rank{number % 4}]: x" for number in range(20)) == frozenset()


def test_bare_numbers_that_start_half_of_the_lines_are_tasks() -> None:
    lines = [*(f"[{number}] x" for number in range(4)), *["x"] * 4]
    assert learn_hosts(lines) == {NUMBERED}
    assert split_prefix("[3] [2] boom", {NUMBERED}) == (Origin(task=3), "[2] boom")
    assert learn_hosts([*lines, "x"]) == frozenset()
    assert learn_hosts(lines[:-1]) == frozenset(), "too few lines"


@pytest.mark.parametrize(
    ("form", "line", "origin"),
    [
        ("n{node}/g0:{local} | {text}", "n1/g0:2 | boom", Origin(local_rank=2, node="n1")),
        ("[trainer-{local}-{rank}]:{text}", "[trainer-2-6]:boom", Origin(rank=6)),
        ("p{node}:w{local} | {text}", "p1:w3 | boom", Origin(local_rank=3, node="p1")),
        ("w{local} | [rank{rank}]: {text}", "w2 | boom", Origin(local_rank=2)),
    ],
)
def test_a_template_of_torchruns_prefix_is_learnt(form: str, line: str, origin: Origin) -> None:
    lines = [
        form.format(node=node, local=local, rank=4 * node + local, text=f"step {step} loss 0.5")
        for step in range(4)
        for node in (0, 1)
        for local in range(4)
    ]
    assert split_prefix(line, learn_hosts(lines)) == (origin, "boom")


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("logs/none_ab12/attempt_0/1/stderr.log", Origin(local_rank=1, stream="stderr")),
        ("nodes/1/attempts/2/x_y/attempt_0/3/stdout.log", Origin(local_rank=3, stream="stdout", node="node1")),
        ("out/rank_5.err", Origin(rank=5, stream="stderr")), ("job/node1.console.log", Origin(node="node1")),
        ("out/train_node-a.log", Origin(node="node-a")), ("rank7/out.log", Origin(rank=7)),
        ("a/global_rank-12.out", Origin(rank=12, stream="stdout")), ("a/attempt_3/x.log", NOWHERE),
        ("stdout/x.log", NOWHERE), ("attempts/2/nodes/4/train.err", Origin(node="node4", stream="stderr")),
        ("host-a7.log", Origin(node="host-a7")), ("console.log", NOWHERE), ("two_nodes_oom.log", NOWHERE),
        ("runs/node_oom.log", NOWHERE), ("hosts_down.log", NOWHERE),
    ],
)  # fmt: skip
def test_paths_tell_the_rank(path: str, origin: Origin) -> None:
    assert origin_of_path(path) == origin


@given(st.text(max_size=120))
def test_the_rest_is_always_the_end_of_the_line(line: str) -> None:
    _, rest = split_prefix(line)
    assert line.endswith(rest)


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("2024-01-01T10:00:00Z x", True),
        ("2024-01-01 10:00:00 INFO: Traceback (most recent call last):", True),
        ("2024-01-01 10:00:00 INFO: all is well", False), ("stderr: KeyError: 1", True),
        ("stderr: all is well", False), ("[12345] KeyError: 1", True),
        ("Jan  1 10:00:00 box python[12]: KeyError: 1", True),
    ],
)  # fmt: skip
def test_what_a_collector_writes_before_a_traceback(line: str, taken: bool) -> None:
    _, rest = split_prefix(line)
    assert (rest != line) is taken

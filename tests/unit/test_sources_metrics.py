"""Metrics are read out of lines by grammar, remembered by shape, and never invented."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.sources.metrics import MetricReader, MetricSample, compile_rules
from supervisor.sources.metrics.names import CANONICAL
from supervisor.sources.metrics.values import GIB, seconds

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "corpus" / "data"


def values(line: str) -> dict[str, float]:
    """What a fresh reader finds in one line."""
    sample = MetricReader().feed(line)
    return sample.values if sample is not None else {}


def same(one: MetricSample | None, two: MetricSample | None) -> bool:
    """Equal, with NaN equal to itself, whatever the order of the names."""
    if one is None or two is None:
        return one is two
    parts = ((one.values, two.values), (one.other, two.other))
    return one.rank == two.rank and all(
        sorted((k, repr(v)) for k, v in a.items()) == sorted((k, repr(v)) for k, v in b.items())
        for a, b in parts
    )


def test_values_are_in_base_units() -> None:
    found = values(
        "step 120/5000 | loss 2.41 | lr 3.0e-4 | 45.2K tok/s | 812 ms/step | max mem 4096MB | mfu 41.5% | eta 1:02:03"
    )
    assert found == {
        "step": 120,
        "total_steps": 5000,
        "loss": 2.41,
        "lr": 3.0e-4,
        "tokens_per_sec": pytest.approx(45200),
        "step_time_s": pytest.approx(0.812),
        "memory_used_bytes": pytest.approx(4 * GIB),
        "mfu": pytest.approx(0.415),
        "eta_s": 3723,
    }
    assert isinstance(found["step"], int)


def test_nan_and_infinity_are_values() -> None:
    found = values("step 7 | loss: nan | grad_norm: inf")
    assert math.isnan(found["loss"])
    assert math.isinf(found["grad_norm"])


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank2]: step 12 loss 2.1", 2),
        ("[default3]:step 12 loss 2.1", 3),
        (" 5: step 12 loss 2.1", 5),
        ("[Rank 6] step=12 loss=2.3", 6),
        ("[gpu01:1/8] step=12 loss=2.3", 1),
        ("step=12 loss=2.3", None),
        ("1: 803.281982, 803.281982 avg, 0.000000 rate, 4.211873 seconds, 64 images", None),
    ],
)
def test_the_rank_is_what_the_line_says(line: str, rank: int | None) -> None:
    reader = MetricReader()
    for _ in range(2):  # by grammar, then by shape
        sample = reader.feed(line)
        assert sample is not None
        assert sample.rank == rank


def test_one_shape_serves_all_ranks() -> None:
    reader = MetricReader()
    for rank in range(12):
        sample = reader.feed(f"[rank{rank}]: step {rank + 100} loss 2.{rank}")
        assert sample is not None
        assert (sample.rank, sample.step, sample.loss) == (rank, rank + 100, float(f"2.{rank}"))


def test_names_that_differ_in_a_digit_are_not_mixed_up() -> None:
    reader = MetricReader()
    first = reader.feed("step 1 loss 2.0 Acc@1 31.5")
    second = reader.feed("step 2 loss 1.0 Acc@5 61.5")
    assert first is not None
    assert second is not None
    assert first.other == {"Acc@1": 31.5}
    assert second.other == {"Acc@5": 61.5}


def test_what_differs_in_digits_alone_may_differ_in_meaning() -> None:
    reader = MetricReader()
    assert (
        values("iter 24/50 completed (loss: 1.3):  50%|█████     | 25/50 [04:31<04:30, 10.82s/it]")[
            "total_steps"
        ]
        == 50
    )
    # A pair is the named counter's only if both agree.
    near = reader.feed("epoch 001:    500 / 1891 loss=10.3, num_updates=501, lr=9.6e-05")
    far = reader.feed("epoch 001:    500 / 1891 loss=10.3, num_updates=905, lr=9.6e-05")
    assert near is not None
    assert far is not None
    assert near.values["total_steps"] == 1891
    assert "total_steps" not in far.values


def test_tables_are_read_under_their_header() -> None:
    reader = MetricReader()
    lines = [
        "epoch,step,train_loss,val_loss",
        "0,49,2.3011,",
        "1,149,nan,1.5",
        "some words",
        "2,249,1.5,1.25",
    ]
    found = [reader.feed(line) for line in lines]
    assert [None if s is None else s.step for s in found] == [None, 49, 149, None, 249]
    last = found[-1]
    assert last is not None
    assert last.values == {"epoch": 2, "step": 249, "loss": 1.5, "val_loss": 1.25}


def test_a_traceback_says_nothing_until_it_ends() -> None:
    reader = MetricReader()
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "    step, loss = 3, 0.5",
        "RuntimeError: loss = nan, step = 1200",
        "step 1200 loss 0.5",
    ]
    found = [reader.feed(line) for line in lines]
    assert found[:-1] == [None] * 4
    assert found[-1] is not None


def test_rules_of_the_user_come_first() -> None:
    rules = compile_rules([("loss", r"my number is ([\d.]+)"), ("sparkle", r"sparkle:([-\d.]+)")])
    reader = MetricReader(rules)
    for _ in range(2):
        sample = reader.feed("step 3 loss 9.0 my number is 1.5 sparkle:-2")
        assert sample is not None
        assert sample.loss == 1.5
        assert sample.other["sparkle"] == -2.0
    with pytest.raises(ValueError, match="no group"):
        compile_rules([("x", "abc")])
    with pytest.raises(ValueError, match="no regular expression"):
        compile_rules([("x", "(")])


def test_no_rule_of_a_user_can_hang_on_a_line() -> None:
    # Under Python's own engine this line would take longer than the universe has.
    reader = MetricReader(compile_rules([("x", r"(a+)+b")]))
    start = time.process_time()
    for _ in range(20):
        assert reader.feed("a" * 4000) is None
    assert time.process_time() - start < 1.0
    for pattern in (r"(?<=loss )(\d+)", r"(\d+) \1"):
        with pytest.raises(ValueError, match="could hang"):
            compile_rules([("x", pattern)])


@pytest.mark.parametrize(
    ("regex", "says"), [("(", "no regular expression"), ("abc", "has no group"), (r"(a)(?!b)", "could hang")]
)
def test_a_bad_rule_in_a_config_is_one_line(tmp_path: Path, regex: str, says: str) -> None:
    (tmp_path / "job.toml").write_text(f"[[metrics]]\nname = 'x'\nregex = '{regex}'\n")
    (tmp_path / "train.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "run", "--config", "job.toml", "train.py"],
        cwd=tmp_path,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr
    assert "job.toml" in done.stderr


def test_what_stands_below_a_test_heading_is_no_training_loss() -> None:
    reader = MetricReader()
    for _ in range(3):
        found = [
            reader.feed(line) for line in ("loss: 2.3  [  640/60000]", "Test Error: ", " Avg loss: 2.1 ")
        ]
        assert [None if one is None else one.values for one in found] == [
            {"loss": 2.3},
            None,
            {"val_loss": 2.1},
        ]
    block = [reader.feed(line) for line in ("val:", "  batch: 2", "  loss: 0.5")]
    assert block == [None, None, None]


def test_the_mean_over_a_whole_run_says_that_it_is_one() -> None:
    reader = MetricReader()
    for _ in range(2):
        last = reader.feed("{'loss': 1.1, 'learning_rate': 0.0, 'epoch': 3.0}")
        mean = reader.feed("{'train_runtime': 12.3, 'train_loss': 1.9, 'epoch': 3.0}")
        assert last is not None
        assert mean is not None
        assert (last.sums_up, mean.sums_up, mean.loss) == (False, True, 1.9)


@pytest.mark.parametrize(
    "line",
    [
        "The loss went down by 3.5 after 100 steps.",
        "Resuming from step 1200 (epoch 3, loss 2.41)",
        "Namespace(batch_size=32, epochs=10, lr=0.001, loss='l1', seed=42)",
        "GET /metrics?step=100&loss=0.1 HTTP/1.1 200",
        "packet loss: 0.0%, rtt 0.3 ms",
        "https://example.org/runs?step=3&loss=2.5",
        "tests/test_loss.py::test_step[loss=0.5-lr=0.1] PASSED",
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:07<00:07,  3.61s/it]",
        "RuntimeError: loss = nan is not finite, step = 1200",
        "Epoch 00012: reducing learning rate of group 0 to 5.0000e-05.",
        "0.1 0.2 0.3",
        "1, 2, 3",
    ],
)
def test_what_only_looks_like_a_metric_gives_nothing(line: str) -> None:
    found = values(line)
    assert not {"loss", "val_loss", "lr", "step", "step_time_s"} & set(found)


def test_a_log_of_ever_new_shapes_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 200
    for bound in ("MAX_SHAPES", "MAX_EXACT"):
        monkeypatch.setattr(f"supervisor.sources.metrics.reader.{bound}", most)
    reader = MetricReader()
    for number in range(2 * most + 50):
        line = "x" * (number % 97) + " " + "ab"[number % 2] * (number // 97) + f" step {number} loss 2.5"
        for _ in range(2):
            reader.feed(line)
    assert sum(len(book.shapes) for book in reader._books.values()) <= most + 1
    assert sum(len(book.exact) for book in reader._books.values()) <= most + 1
    assert len(reader._seen) <= most
    sample = reader.feed("step 5 loss 2.5")
    assert sample is not None
    assert sample.step == 5


def corpus_lines() -> list[str]:
    """All lines of the corpora."""
    lines = []
    for name in ("metrics.jsonl", "metrics_more.jsonl", "metrics_unseen.jsonl"):
        for raw in (CORPUS / name).read_text(encoding="utf-8").splitlines():
            lines += json.loads(raw)["text"].replace("\r", " ").split("\n")
    return lines


LINES = corpus_lines()


@settings(max_examples=300, deadline=None)
@given(line=st.sampled_from(LINES), data=st.data())
def test_what_was_learnt_of_a_shape_reads_as_the_grammar_does(line: str, data: st.DataObject) -> None:
    # Other digits in the same places: the warm reader must say what a cold one says.
    digits = st.sampled_from("123456789")
    other = re.sub(r"(?<=\d)\d(?=\d)", lambda _: data.draw(digits), line)
    warm, cold = MetricReader(), MetricReader()
    warm.feed(line)
    warm._book = warm._books[cold._book.state]
    assert same(warm.feed(other), cold.feed(other))


NUMBER = re.compile(r"(?<![\w@./:,-])([1-9]\d*)(?:(\.)(\d+))?(?![\w:/,%-])")


@settings(max_examples=300, deadline=None)
@given(line=st.sampled_from(LINES), data=st.data())
def test_what_was_learnt_serves_numbers_of_other_lengths(line: str, data: st.DataObject) -> None:
    def another(found: re.Match[str]) -> str:
        whole = str(data.draw(st.integers(1, 999_999)))
        return whole + ("." + str(data.draw(st.integers(0, 99_999))) if found[2] else "")

    other = NUMBER.sub(another, line)
    warm, cold = MetricReader(), MetricReader()
    warm.feed(line)
    expected = cold.feed(other)
    for _ in range(4):  # by shape, by shape, by place, by place
        warm._book = warm._books[MetricReader()._book.state]
        assert same(warm.feed(other), expected)


def corpus_texts() -> list[str]:
    """All excerpts of the corpora."""
    return [
        json.loads(raw)["text"]
        for name in ("metrics.jsonl", "metrics_more.jsonl", "metrics_unseen.jsonl")
        for raw in (CORPUS / name).read_text(encoding="utf-8").splitlines()
    ]


def test_a_log_reads_the_same_however_much_was_learnt_before() -> None:
    # Headers, blocks and bars included: what was learnt in one state must not speak in another.
    logs = [text.replace("\r", " ").split("\n") for text in corpus_texts()]
    cold = [[reader.feed(line) for line in log] for log in logs for reader in (MetricReader(),)]
    warm = MetricReader()
    start = warm._book
    for _ in range(3):  # by grammar, by shape, by place
        for log, expected in zip(logs, cold, strict=True):
            warm._book = start
            for line, sample in zip(log, expected, strict=True):
                assert same(warm.feed(line), sample), line


WORDS = st.sampled_from(
    [
        "the",
        "loss",
        "of",
        "step",
        "epoch",
        "we",
        "saw",
        "lr",
        "went",
        "to",
        "from",
        "val",
        "at",
        "train",
        "is",
        "3",
        "2.5",
        "100",
        "was",
        "in",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=120), st.text(alphabet="0123456789:=/|.,-[](){}%'\" estploraing", max_size=120)
    )
)
def test_nothing_makes_it_raise(line: str) -> None:
    reader = MetricReader()
    for _ in range(2):
        sample = reader.feed(line)
        if sample is not None:
            assert set(sample.values) <= set(CANONICAL)


@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "1 ",
        "1/",
        "1,",
        "1:",
        "a=1 ",
        "[",
        "1d ",
        "1m1m",
        "━",
        "|",
        "a",
        "a.",
        "100%|",
        "loss ",
        "(",
        "1 of ",
        "1.5e-3,",
        "-1",
        "a/b/",
        ".",
    ],
)
def test_no_line_takes_long_whatever_it_is_made_of(piece: str) -> None:
    # A line of 4096 characters takes some 50 ms at worst; patterns that backtrack would take minutes.
    line = (piece * 4096)[:4096]
    start = time.process_time()
    MetricReader().feed(line)
    assert time.process_time() - start < 2.0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=12))
def test_any_mixture_of_logs_is_read_without_raising(lines: list[str]) -> None:
    reader = MetricReader()
    for line in lines:
        reader.feed(line)


@given(st.integers(0, 10**6))
def test_durations_in_their_spellings(total: int) -> None:
    hours, minutes, rest = total // 3600, total // 60 % 60, total % 60
    assert seconds(f"{hours}:{minutes:02}:{rest:02}") == total
    assert seconds(f"{hours // 24} days, {hours % 24}:{minutes:02}:{rest:02}") == total
    assert seconds(f"{hours}h{minutes}m{rest}s") == total


def run_verb(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command as a person runs it."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor", "metrics", *args],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_the_verb_prints_one_object_a_metric_line(tmp_path: Path) -> None:
    log = tmp_path / "rank3.log"
    log.write_bytes(b"hello\nstep 5/10 loss nan max mem 2048MB\n\x1b[31mstep 6/10 loss 2.5\x1b[0m acc 0.5")
    done = run_verb(str(log), "--json")
    assert done.returncode == 0
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == {"line": 1, "rank": 3, "step": 5, "total_steps": 10, "loss": "NaN", "memory_gib": 2.0}
    assert second == {"line": 2, "rank": 3, "step": 6, "total_steps": 10, "loss": 2.5, "other": {"acc": 0.5}}
    table = run_verb(str(log), "--csv").stdout.decode().splitlines()
    assert table[0].startswith("line,rank,step,")
    assert table[1].startswith("1,3,5,10,,NaN,")
    assert run_verb("-", "--json", stdin=log.read_bytes()).stdout.count(b'"loss"') == 2


def test_the_verb_reads_folders_and_runs(tmp_path: Path) -> None:
    # torchrun's tree: one folder a rank.
    for rank in (0, 1):
        folder = tmp_path / "logs" / "job_x1y2" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"step 5 loss {rank}.5\n")
        (folder / "stderr.log").write_text("nothing\n")
    done = run_verb(str(tmp_path / "logs"), "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(f["file"].split("/")[-2:], f["rank"], f["loss"]) for f in found] == [
        (["0", "stdout.log"], 0, 0.5),
        (["1", "stdout.log"], 1, 1.5),
    ]
    table = run_verb(str(tmp_path / "logs"), "--csv").stdout.decode().splitlines()
    assert table[0].startswith("file,line,rank,step,")
    assert len(table) == 3
    # A run directory: the last attempt's logs, of all nodes.
    for attempt in (1, 2):
        folder = tmp_path / "runs" / "a-run" / "nodes" / "0" / "attempts" / str(attempt)
        folder.mkdir(parents=True)
        (folder / "agent.log").write_text(f"step {attempt} loss 2.5\n")
    (found_of_run,) = map(
        json.loads, run_verb(str(tmp_path / "runs" / "a-run"), "--json").stdout.splitlines()
    )
    assert found_of_run["step"] == 2


@pytest.mark.parametrize("make", ["empty folder", "absent", "binary", "forbidden", "absent run"])
def test_what_cannot_be_read_is_one_line(tmp_path: Path, make: str) -> None:
    path = tmp_path / "x.log"
    match make:
        case "empty folder":
            path.mkdir()
        case "binary":
            path.write_bytes(b"PK\x03\x04\x00\x00\x80\x02\xff" * 900)
        case "forbidden":
            path.write_text("step 1 loss 2.5\n")
            path.chmod(0)
            if os.access(path, os.R_OK):
                pytest.skip("this user reads everything")
        case "absent run":
            path = Path("no-such-run")
        case _:
            pass
    done = run_verb(str(path))
    assert (done.returncode, done.stdout) == (2, b"")
    assert len(done.stderr.splitlines()) == 1
    assert path.name.encode() in done.stderr


def test_holes_of_a_truncated_log_are_no_binary_file(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\0" * 6000 + b"\nstep 1 loss 2.5\n")
    assert json.loads(run_verb(str(tmp_path / "a.log"), "--json").stdout)["step"] == 1


def test_nothing_found_prints_nothing_and_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"no metrics here\n")
    for form in ("--json", "--csv"):
        done = run_verb(str(tmp_path / "a.log"), form)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    for bad in (str(tmp_path / "none"),):
        done = run_verb(bad)
        assert done.returncode == 2
        assert done.stdout == b""
        assert len(done.stderr.splitlines()) == 1

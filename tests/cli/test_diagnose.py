import contextlib
import gzip
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.job_logs import READING
from supervisor.job.batch import BatchSpec
from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from tests.cli.conftest import Call
from tests.keeper.fakes import verdict_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))


def told(call: Call, line: str, *paths: object) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and each verdict as JSON."""
    code, out, _ = call(f"diagnose --json {line}", *paths)
    return code, [json.loads(line) for line in out.splitlines()]


def check_schema(found: dict[str, Any]) -> None:
    schema = json.loads((DOCS / "diagnose.schema.json").read_text())
    assert list(found) == schema["required"]
    for key, rule in schema["properties"].items():
        if "enum" in rule and key in schema["required"]:
            assert found[key] in rule["enum"]
    assert found["schema"] == 1
    if found["cause"] is not None:
        assert list(found["cause"]) == ["path", "line", "text"]
    for item in found["consequences"]:
        assert list(item) == ["failure", "rank", "path", "line"]


def test_exit_codes_and_the_wire(tmp_path: Path, call: Call) -> None:
    bad, good, mute = tmp_path / "bad.log", tmp_path / "good.log", tmp_path / "mute.log"
    bad.write_text(STEPS + OOM)
    good.write_text(STEPS)
    mute.write_text("")
    assert told(call, "", good)[0] == 0
    assert told(call, "", good, mute)[0] == 11
    code, found = told(call, "", bad, mute, good)
    assert (code, [item["failure"] for item in found]) == (10, ["cuda_oom", "unknown", "healthy"])
    for item in found:
        check_schema(item)
    assert found[0]["cause"] == {"path": str(bad), "line": 21, "text": OOM.removeprefix("[rank1]: ").strip()}


RECORDED = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}


def recorded(folder: Path, last: dict[int, int], prefix: str = "_dump_") -> None:
    """Dumps as PyTorch writes them: rank by rank, the collectives that it called and that have not ended."""
    for rank, number in last.items():
        entries = [
            {"pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "profiling_name": "nccl:all_reduce", "state": "started"}
            for seq in range(7, number + 1)
        ]  # fmt: skip
        dump = {"version": "2.10", "pg_config": RECORDED, "entries": entries}
        (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(dump, protocol=2))


@pytest.mark.parametrize("prefix", ["_dump_", "nccl_trace_rank_", "any.name-"])
def test_a_folder_of_flight_recorder_dumps(prefix: str, tmp_path: Path, call: Call) -> None:
    recorded(tmp_path, {0: 7, 1: 7, 2: 6}, prefix)
    code, (found,) = told(call, "", tmp_path)
    check_schema(found)
    assert (code, found["failure"], found["ranks"], found["rank"]) == (10, "hang", [2], 2)
    assert found["confidence"] < 0.9, "no launcher and no exit code confirms it"
    text = "all_reduce 7 of default_pg: rank 2 did not come"
    assert found["cause"] == {"path": str(tmp_path / f"{prefix}2"), "line": None, "text": text}
    alone = call("diagnose", tmp_path / f"{prefix}0")
    assert (alone.code, "give the folder" in alone.err) == (2, True), "a dump alone is no log"


LOST = "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n"


def test_explain_shows_the_way_to_the_verdict(tmp_path: Path, call: Call) -> None:
    log = tmp_path / "train.log"
    log.write_text(STEPS + OOM + LOST)
    code, shown, _ = call("diagnose --explain --lang en", log)
    before, _, after = shown.partition("\n  candidates (2)\n")
    assert code == 10
    assert "GPU memory ran out on rank 1" in before
    assert f"    {log}:21 · rank 1 · cuda-oom-allocator · cuda_oom · cause, fatal\n" in after
    assert "      torch.OutOfMemoryError: CUDA out of memory." in after
    assert f"    {log}:22 · rank 0 · gloo-peer-closed · nccl_error · consequence, suggestive\n" in after
    assert "  rule that fired\n    earliest_cause: The earliest line that names a cause" in after
    assert "  rules that matched too, and yielded\n    complaint: Only complaints of peers" in after
    assert call("diagnose --lang en", log).out == before


def test_explain_in_json_adds_one_key_and_nothing_else(tmp_path: Path, call: Call) -> None:
    log = tmp_path / "train.log"
    log.write_text(STEPS + OOM + LOST)
    _, (plain,) = told(call, "", log)
    _, (explained,) = told(call, "--explain", log)
    explanation = explained.pop("explanation")
    assert explained == plain
    rules = json.loads((DOCS / "diagnose.schema.json").read_text())["properties"]["explanation"]
    assert list(explanation) == rules["required"]
    first, second = explanation["candidates"]
    assert list(first) == rules["properties"]["candidates"]["items"]["required"]
    said = {"signature": "cuda-oom-allocator", "failure": "cuda_oom", "role": "cause", "strength": "fatal"}
    place = {"path": str(log), "line": 21, "rank": 1, "warning": False}
    assert {name: value for name, value in first.items() if name != "text"} == {**said, **place}
    assert second["role"] == "consequence"
    assert explanation["rule"]["name"] == "earliest_cause"
    assert [rule["name"] for rule in explanation["yielded"]] == ["complaint"]
    assert (explanation["corrections"], explanation["ended"]) == ([], "not_shown")
    assert [item["name"] for item in explanation["limits"]] == ["end_not_shown"]


APPENDED = f"nohup: ignoring input\n{STEPS}KeyError: 'labels'\nnohup: ignoring input\n{STEPS}{OOM}nohup: ignoring input\n{STEPS}"


def test_earlier_jobs_of_a_file_are_listed_below_the_last_ones_verdict(tmp_path: Path, call: Call) -> None:
    log = tmp_path / "nohup.out"
    log.write_text(APPENDED)
    code, shown, _ = call("diagnose --lang en", log)
    verdict, _, table = shown.partition("\n  earlier jobs in this file (2)\n")
    assert (code, verdict.startswith(f"{log}: No failure")) == (0, True)
    first, second = table.splitlines()
    assert first.startswith("    lines 1 to 22   code_error, line 22 · ")
    assert second == "    lines 23 to 44  cuda_oom, line 44 · GPU memory ran out on rank 1"
    _, (found,) = told(call, "", log)
    check_schema(found)
    jobs = [(job["first_line"], job["last_line"], job["failure"], job["line"]) for job in found["jobs"]]
    assert jobs == [(1, 22, "code_error", 22), (23, 44, "cuda_oom", 44)]
    schema = json.loads((DOCS / "diagnose.schema.json").read_text())["properties"]["jobs"]["items"]
    assert [list(job) for job in found["jobs"]] == [schema["required"]] * 2


def test_ones_own_line_stands_below_the_cause(tmp_path: Path, call: Call) -> None:
    log = tmp_path / "train.log"
    trace = 'Traceback (most recent call last):\n  File "train.py", line 41, in main\n    loss = x["k"]\n'
    library = '  File "/v/lib/python3.11/site-packages/torch/a.py", line 9, in get\n    return self[key]\n'
    log.write_text(f"{STEPS}{trace}{library}KeyError: 'k'\n")
    shown = call("diagnose --lang en", log).out.splitlines()
    at = shown.index(f"  cause  {log}:26")
    assert shown[at + 1] == '  code   train.py:41  loss = x["k"]'
    assert [line.split()[0] for line in shown[at + 2 : at + 5]] == ["23", "24", "25"]
    log.write_text(STEPS + OOM)
    assert "  code " not in call("diagnose --lang en", log).out


@pytest.mark.parametrize("says", ["", "[rank0]: "])
def test_a_rank_is_named_to_people_where_the_log_names_one(says: str, tmp_path: Path, call: Call) -> None:
    log = tmp_path / "plain.log"
    log.write_text(f"{STEPS}{says}RuntimeError: CUDA error: an illegal memory access was encountered\n")
    _, (found,) = told(call, "", log)
    assert found["rank"] == 0
    assert ("rank 0" in found["title"]) is bool(says)


@pytest.mark.parametrize("kind", ["library", "random", "packed"])
def test_a_binary_file_is_bad_input(kind: str, tmp_path: Path, call: Call) -> None:
    odd, good = tmp_path / "model.pt", tmp_path / "good.log"
    code = bytes(range(256)) * 40
    library = b"\x7fELF\x02\x01\x01" + code + b"CUDA error: out of memory\0" + code
    odd.write_bytes({"library": library, "random": code, "packed": gzip.compress(code)}[kind])
    good.write_text(STEPS)
    shown = call("diagnose --json", odd, good)
    why = "a binary file, not a log; give a log, a folder of logs, or -"
    assert (shown.code, shown.err.splitlines()[-1]) == (2, f"stoker diagnose: {odd}: {why}")
    assert [json.loads(line)["failure"] for line in shown.out.splitlines()] == ["healthy"]


@pytest.mark.parametrize("encoding", ["latin-1", "gb18030", "utf-16"])
def test_text_in_any_encoding_is_no_binary_file(encoding: str, tmp_path: Path, call: Call) -> None:
    log = tmp_path / "x.log"
    text = "Größe, déjà vu\n" if encoding == "latin-1" else "显卡驱动不可用\n"
    log.write_bytes(text.encode(encoding) * 30)
    found = call("diagnose", log)
    assert (found.code, found.err) == (11, "")


def test_a_run_directory_is_judged_by_its_last_attempt(tmp_path: Path, call: Call) -> None:
    for attempt, text in ((1, STEPS + OOM), (2, STEPS)):
        folder = tmp_path / "nodes" / "0" / "attempts" / str(attempt)
        rank = folder / "torchrun" / "x_y" / "attempt_0" / "1"
        rank.mkdir(parents=True)
        (rank / "stderr.log").write_text(text.replace("[rank1]: ", ""))
        (rank / "stdout.log").write_text("")
        (folder / "agent.log").write_text("")
    code, (last,) = told(call, "", tmp_path)
    assert (code, last["attempt"]) == (0, 2)
    code, (first,) = told(call, "--attempt 1", tmp_path)
    assert (code, first["attempt"], first["failure"], first["rank"]) == (10, 1, "cuda_oom", 1)
    assert first["cause"]["path"].endswith("1/stderr.log")


def test_a_node_that_started_no_such_attempt_does_not_speak_for_it(tmp_path: Path, call: Call) -> None:
    begun = ev.RunStarted(t=1.0, run_id="run-1", name="job", mode="launched", host="n0")
    first, second = (ev.LaunchIntended(t=float(n), attempt=n, argv=(), reason="why") for n in (1, 2))
    differs = ev.PlanDiffers(t=3.0, attempt=2, planned="micro-batch 4", measured="micro-batch 8")
    stop = ev.StopIntended(t=3.0, attempt=2, why=ev.StopWhy.PLAN_DIFFERS, by="stoker", grace_s=5.0)
    for node, facts in enumerate(([begun, first], [begun, first, second, differs, stop])):
        paths = RunPaths(tmp_path).node(node)
        paths.root.mkdir(parents=True)
        with contextlib.closing(JournalWriter(paths.journal)) as journal:
            for fact in facts:
                journal.append(fact)
    folder = RunPaths(tmp_path).node(1).attempt(2).root
    folder.mkdir(parents=True)
    (folder / "agent.log").write_text(STEPS)
    (found,) = told(call, "--attempt 2", tmp_path)[1]
    assert found["title"] == "planned micro-batch 4, measured micro-batch 8"


def test_a_folder_is_one_job_and_each_is_many(tmp_path: Path, call: Call) -> None:
    (tmp_path / "rank0.log").write_text(STEPS)
    (tmp_path / "rank1.log").write_text(STEPS + OOM)
    code, (one,) = told(call, "", tmp_path)
    assert (code, one["failure"], one["rank"]) == (10, "cuda_oom", 1)
    code, each = told(call, "--each", tmp_path)
    assert (code, [item["failure"] for item in each]) == (10, ["healthy", "cuda_oom"])


@pytest.mark.parametrize(
    ("name", "where"), [("rank0.log", " on rank 0"), ("rank_0.err", " on rank 0"), ("a.log", "")]
)
def test_a_rank_that_only_the_files_name_tells_is_in_the_title(
    tmp_path: Path, call: Call, name: str, where: str
) -> None:
    (tmp_path / name).write_text(
        STEPS + 'Traceback (most recent call last):\n  File "t.py", line 3\nKeyError: "a"\n'
    )
    for at in (tmp_path, tmp_path / name):
        (found,) = told(call, "", at)[1]
        assert found["title"] == f'KeyError{where}: "a"'


def test_two_processes_in_one_log_are_one_job_with_the_first_cause(tmp_path: Path, call: Call) -> None:
    """A script starts two ranks in the background. The second fails because the first did, and prints a line before that."""
    trained = "".join(f"step {step} loss {4 / (step + 1):.3f}\n" for step in range(149))
    traceback = 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n    main()\n'
    lost = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n"
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
    (tmp_path / "a.log").write_text(trained + traceback + memory + "waiting for rank 0\n" + traceback + lost)
    (found,) = told(call, "", tmp_path / "a.log")[1]
    assert found["failure"] == "cuda_oom"


def test_packed_and_utf16_files_with_switches_between_them(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress((STEPS + OOM).encode()))
    (tmp_path / "b.txt").write_bytes((STEPS + OOM).encode("utf-16"))
    code, out, _ = call("diagnose", tmp_path / "a.log.gz", "--json", tmp_path / "b.txt")
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, [(item["failure"], item["cause"]["line"]) for item in found]) == (
        10,
        [("cuda_oom", 21)] * 2,
    )


def run_stoker(*argv: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [sys.executable, *argv],
        input=given,
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": root},
    )


def test_stdin_and_what_is_not_imported() -> None:
    code = (
        "import sys; from supervisor.cli.main import main; code = main(['diagnose', '-'])\n"
        "heavy = {'psutil', 'watchdog', 'textual', 'rich', 'torch', 'asyncio'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    done = run_stoker("-c", code, given=(STEPS + OOM).encode())
    assert done.returncode == 10
    assert done.stderr.decode().strip() == "[]"
    assert "GPU memory ran out on rank 1" in done.stdout.decode()


def run_directory(root: Path, facts: list[ev.Event], *, rank1: str = STEPS) -> RunPaths:
    run = RunPaths(root / "brave-otter")
    attempt = run.node().attempt(1)
    for local_rank, text in ((0, STEPS), (1, rank1)):
        folder = attempt.torchrun / "x" / "attempt_0" / str(local_rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(text)
    attempt.agent_log.write_text(
        "W0101 torch/distributed/elastic: Sending process 12 closing signal SIGTERM\n"
    )
    attempt.exit.write_text("1\n")
    writer = JournalWriter(run.node().journal)
    started: list[ev.Event] = [
        ev.RunStarted(
            t=1, run_id="brave-otter", name="otter", mode="launched", host="h", total_steps=20, world_size=2
        ),
        ev.LaunchIntended(t=2, attempt=1, argv=("x",), reason="first", batch=BatchSpec(16, 1, 2)),
        *(ev.RankStarted(t=3, attempt=1, local_rank=rank, rank=rank, pid=40 + rank) for rank in (0, 1)),
    ]
    for fact in [*started, *facts]:
        writer.append(fact)
    writer.close()
    return run


def ended(codes: dict[int, int]) -> list[ev.Event]:
    gone: list[ev.Event] = [
        ev.RankExited(t=8, attempt=1, local_rank=rank, exit_code=code) for rank, code in codes.items()
    ]
    return [*gone, ev.AttemptEnded(t=9, attempt=1, exit_code=1, rank_exit_codes=codes)]


def judged(call: Call, run: RunPaths) -> dict[str, Any]:
    _, (found,) = told(call, "", run.root)
    check_schema(found)
    assert found["attempt"] == 1
    return found


def test_a_run_directory_is_judged_with_its_journal(tmp_path: Path, call: Call) -> None:
    stop = ev.StopIntended(t=7, attempt=1, why=ev.StopWhy.REQUEST, by="u", grace_s=30)
    run = run_directory(tmp_path / "a", [stop, *ended({0: -15, 1: -15})])
    asked = judged(call, run)
    assert (asked["failure"], asked["reason"]) == ("terminated", "user")
    shown = call("diagnose", run.root)
    assert shown.code == 0, "a person's stop is no failure"
    assert "sure" not in shown.out
    assert " · ended 1970-01-0" in shown.out
    killed = judged(call, run_directory(tmp_path / "b", ended({0: -15, 1: -9})))
    assert (killed["failure"], killed["rank"]) == ("host_oom", 1)
    assert "most often" in killed["title"]
    final: list[ev.Event] = [ev.CheckpointCommitted(t=6, attempt=1, step=20, path="c", final=True)]
    late = judged(call, run_directory(tmp_path / "c", [*final, *ended({0: 0, 1: -6})]))
    assert (late["failure"], late["reason"]) == ("worker_crash", "at_exit")
    oom = judged(call, run_directory(tmp_path / "d", ended({0: -15, 1: 1}), rank1=STEPS + OOM))
    assert oom["failure"] == "cuda_oom"
    assert "device_batch_size (now 16)" in " ".join(oom["advice"])


@pytest.mark.parametrize(("failing", "rank", "ranks"), [((0, 1), None, [0, 1]), ((1,), 1, [1])])
def test_ranks_of_two_nodes_are_those_that_their_journals_name(
    failing: tuple[int, ...], rank: int | None, ranks: list[int], tmp_path: Path, call: Call
) -> None:
    """Each node has a local rank 0, and no line names a rank."""
    run = RunPaths(tmp_path / "brave-otter")
    for number in (0, 1):
        folder = run.node(number).attempt(1).torchrun / "x" / "attempt_0" / "0"
        folder.mkdir(parents=True)
        raised = (
            'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    go()\nKeyError: 1\n'
        )
        (folder / "stderr.log").write_text(STEPS + (raised if number in failing else ""))
        writer = JournalWriter(run.node(number).journal)
        for fact in (
            ev.RunStarted(t=1, run_id="brave-otter", name="otter", mode="launched", host="h", world_size=2),
            ev.LaunchIntended(t=2, attempt=1, argv=("x",), reason="first", batch=BatchSpec(16, 1, 2)),
            ev.RankStarted(t=3, attempt=1, local_rank=0, rank=number, pid=40 + number),
            ev.AttemptEnded(t=9, attempt=1, exit_code=1),
        ):
            writer.append(fact)
        writer.close()
    found = judged(call, run)
    assert (found["failure"], found["rank"], found["ranks"]) == ("code_error", rank, ranks)


def test_a_failure_seen_before_is_said_so(tmp_path: Path, call: Call) -> None:
    run = run_directory(tmp_path / "now", ended({0: -15, 1: 1}), rank1=STEPS + OOM)
    verdict = replace(verdict_of(FailureClass.CUDA_OOM), fingerprint=judged(call, run)["fingerprint"])
    assert "same failure" not in call("diagnose", run.root).out
    writer = JournalWriter(run.node().journal)
    for attempt in (2, 3):
        writer.append(ev.LaunchIntended(t=10 * attempt, attempt=attempt, argv=("x",), reason="again"))
        writer.append(ev.Diagnosed(t=10 * attempt, attempt=attempt, verdict=verdict))
    writer.close()
    code, shown, _ = call("diagnose --attempt 1", run.root)
    assert (code, "the same failure as attempts 2, 3" in shown) == (10, True)
    _, (wire,) = told(call, "--attempt 1", run.root)
    check_schema(wire)


def test_rows_of_metrics_that_the_scan_does_not_know_are_training(tmp_path: Path, call: Call) -> None:
    """An agent's returns, a table without words: no step line, no bar, and no failure."""
    table, bare, prose = tmp_path / "table.log", tmp_path / "bare.log", tmp_path / "prose.log"
    table.write_text("".join(f"Episode {n}, Reward: {-300 + 7 * n}.25\n" for n in range(1, 12)))
    bare.write_text("".join(f"{17 - n / 9:.6f}\t0.13{n}\t0.08{n}\n" for n in range(12)))
    prose.write_text("reading the configuration\nthe model has three parts\n" * 8)
    few, enough = tmp_path / "few.log", tmp_path / "enough.log"
    for path, count in ((few, 4), (enough, 5)):
        path.write_text("".join(f"Episode {n}, Reward: {-300 + 7 * n}.25\n" for n in range(count)))
    _, (*rows, unsure, says_nothing) = told(call, "--explain", table, bare, enough, few, prose)
    assert unsure["failure"] == "unknown"
    for trains in rows:
        assert (trains["failure"], trains["explanation"]["rule"]["name"]) == ("healthy", "metrics_printed")
    assert says_nothing["failure"] == "unknown"


def test_a_log_with_a_hole_is_read(tmp_path: Path, call: Call) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(bytes(70_000) + b"\nsome words that tell of nothing\n")
    assert call("diagnose", log).code in {2, 11}
    log.write_bytes(bytes(70_000) + (STEPS + OOM).encode())
    assert call("diagnose", log).code == 10


def test_how_far_the_logs_of_a_run_are_read_is_known(tmp_path: Path, call: Call) -> None:
    run = run_directory(tmp_path, ended({0: -15, 1: 1}), rank1=STEPS + OOM)
    call("diagnose", run.root)
    assert (READING.path, READING.seen) == (
        str(run.node().attempt(1).rank_folders()[1] / "stdout.log"),
        len(STEPS + OOM),
    )

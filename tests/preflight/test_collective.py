"""What `--deep` says of a meeting of the ranks, by what each rank's Python does. Real ranks of torch are met in test_real_faults."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.collective import check_collective, check_nodes_meet
from supervisor.preflight.context import CheckContext, refuse, warn
from supervisor.preflight.interpreter import Interpreter
from supervisor.run.records import Finding, FindingLevel

# What torch's part prints, by rank; the mark that it has come to the meeting is a file beside the store.
BEGIN = '-c) rank=$3 ranks=$4 store=$5 wait_s=$6; [ "$LOCAL_RANK" = "$rank" ] || exit 99;;'
SAME_WAY = "`stoker run` would fail in the same way: look at the interface and the driver"
MEETS = 'echo > "$store-$rank"; '


def found(folder: Path, does: str, *, ranks: int = 2, limit_s: float = 20.0, meet_s: int = 30) -> Finding:
    """The finding where each rank runs the shell line `does`."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\ncase "$1" in\n{BEGIN}\nesac\n{does}\n')
    python.chmod(0o755)
    spec = JobSpec("t", EntryKind.SCRIPT, "train.py", nproc_per_node=ranks)
    context = CheckContext(
        spec, folder / "runs", {"PATH": "/usr/bin:/bin"}, Interpreter(str(python), "3.11.2", "2.9.0", "")
    )
    (finding,) = check_collective(context, limit_s=limit_s, meet_s=meet_s)
    assert finding.check == "collective"
    return finding


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_that_met_are_said_with_what_they_met_over(tmp_path: Path, ranks: int) -> None:
    finding = found(tmp_path, f"{MEETS} echo a warning first; echo nccl; pwd > {tmp_path}/in", ranks=ranks)
    assert finding.level is FindingLevel.OK
    assert re.fullmatch(rf"{ranks} ranks met over nccl and added up 4 MiB, in \d+\.\d s", finding.what)
    assert (tmp_path / "in").read_text() == "/\n", "what lies in the job's folder is not imported"


@pytest.mark.parametrize(
    ("does", "what"),
    [
        ("[ $rank = 1 ] && { echo; echo no driver; exit 3; }", "rank 1 of 2 ended with exit code 3 as the ranks met: no driver"),
        ("[ $rank = 0 ] && exit 4; echo gloo", "rank 0 of 2 ended with exit code 4 as the ranks met: it said nothing"),
        ("printf 'bad\\033[31m thing\\n' >&2; exit $((rank + 5))", "rank 0 of 2 ended with exit code 5 as the ranks met: bad thing"),
        ("[ $rank = 1 ] && kill -9 $$; echo gloo", "rank 1 of 2 ended with exit code -9 as the ranks met: it said nothing"),
    ],
)  # fmt: skip
def test_a_rank_that_ends_by_itself_explains_it(tmp_path: Path, does: str, what: str) -> None:
    begun = time.monotonic()
    finding = found(tmp_path, f"{MEETS} {does}\n[ $rank = 1 ] || sleep 60")
    assert finding == refuse("collective", what, SAME_WAY)
    assert time.monotonic() - begun < 15, "the ranks that would wait for it are ended"


def test_a_rank_that_gave_up_is_not_to_blame_where_another_never_came(tmp_path: Path) -> None:
    """Rank 0 came, waited as long as it was told to and failed; rank 1 never came."""
    gave_up = (
        f'[ $rank = 1 ] && sleep 60; {MEETS} touch -d "@$(($(date +%s) - wait_s))" "$store-$rank"; exit 1'
    )
    finding = found(tmp_path, gave_up, meet_s=7)
    assert (finding.level, finding.fix) == (FindingLevel.REFUSE, SAME_WAY)
    assert re.fullmatch(r"1 of 2 ranks did not come within \d+ s: 1", finding.what)
    both = '[ -e "$store-0" ] && [ -e "$store-1" ]'
    all_came = f'{MEETS} until {both}; do sleep 0.01; done; touch -d "@$(($(date +%s) - wait_s))" "$store-$rank"; echo timed out; exit 1'
    assert found(tmp_path, all_came, meet_s=7).what.endswith(
        "ended with exit code 1 as the ranks met: timed out"
    )


def test_a_wrong_sum_names_the_rank(tmp_path: Path) -> None:
    finding = found(tmp_path, f"{MEETS} [ $rank = 0 ] && echo gloo && exit 0; echo wrong")
    what = "the sum over 2 ranks is wrong on rank 1"
    assert finding == refuse("collective", what, "a GPU or its link is broken")


def test_ranks_that_hang_are_named_to_the_eighth_and_ended_at_the_limit(tmp_path: Path) -> None:
    begun = time.monotonic()
    finding = found(
        tmp_path, f"{MEETS} [ $rank = 0 ] && echo gloo && exit 0; sleep 60", ranks=10, limit_s=1.0
    )
    assert re.fullmatch(r"9 of 10 ranks did not come within \d+ s: 1, 2, 3, 4, 5, 6, 7, 8", finding.what)
    assert time.monotonic() - begun < 30


def of_pairs(folder: Path, rates: dict[tuple[int, int], float], *, nodes: int = 1, ranks: int = 2) -> Finding:
    """What is said of pairs, as rank 0 prints them after the meeting of `ranks` a node."""
    pairs = ", ".join(f"[{a}, {b}, {rate}]" for (a, b), rate in rates.items())
    hosts = ", ".join(f'"gpu{n}"' for n in range(nodes))
    does = f"""{MEETS} echo 'pairs {{"pairs": [{pairs}], "hosts": [{hosts}]}}'; echo gloo"""
    python = folder / "python"
    begin = BEGIN.replace('[ "$LOCAL_RANK" = "$rank" ] || exit 99', "true")
    python.write_text(f'#!/bin/sh\ncase "$1" in\n{begin}\nesac\n{does}\n')
    python.chmod(0o755)
    spec = JobSpec(
        "t",
        EntryKind.SCRIPT,
        "train.py",
        nproc_per_node=ranks,
        nnodes=str(nodes),
        node_rank=nodes - 1,
        master_addr="gpu0" if nodes > 1 else None,
    )
    context = CheckContext(
        spec, folder / "runs", {"PATH": "/usr/bin:/bin"}, Interpreter(str(python), "3.11.2", "2.9.0", "")
    )
    met, finding = (check_nodes_meet if nodes > 1 else check_collective)(context)
    assert met.what.startswith(
        f"{nodes * ranks} ranks{f' on {nodes} nodes' if nodes > 1 else ''} met over gloo"
    )
    assert finding.check == "bandwidth"
    return finding


GOOD = 1e9
FIXES = {
    "the best pair": "every step waits for the slowest: look at its cable, port, switch and driver, or leave it out",
    "gigabit link": "name the fast interface in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or see the link",
}


@pytest.mark.parametrize(
    ("nodes", "rates", "level", "what"),
    [
        (1, {(0, 1): GOOD}, FindingLevel.OK, "ranks 0–1: 1.0 GB/s"),
        (1, {(0, 1): 9e8, (0, 2): 8e8, (1, 2): 4e8}, FindingLevel.OK, "ranks 1–2: 400 MB/s, 0–2: 800 MB/s, 0–1: 900 MB/s"),
        # Cards that are wired in couples: what half of the pairs have is no fault.
        (1, {(0, 1): 2e11, (2, 3): 2e11, (0, 2): 2e10, (0, 3): 2e10, (1, 2): 2e10, (1, 3): 2e10}, FindingLevel.OK, "6 pairs of ranks: 20.0 GB/s to 200.0 GB/s"),
        (1, {(0, 1): GOOD, (0, 2): GOOD, (1, 2): 1e7}, FindingLevel.WARNING, "ranks 1–2: 10 MB/s; the best pair 1.0 GB/s"),
        (2, {(0, 2): GOOD}, FindingLevel.OK, "nodes 0–1 (gpu0, gpu1): 1.0 GB/s"),
        (2, {(0, 2): 1.2e7}, FindingLevel.WARNING, "nodes 0–1 (gpu0, gpu1): 12 MB/s: less than half of a gigabit link"),
        (3, {(0, 2): GOOD, (0, 4): GOOD, (2, 4): 2e6}, FindingLevel.WARNING, "nodes 1–2 (gpu1, gpu2): 2 MB/s; the best pair 1.0 GB/s"),
        (2, {(0, 2): 5e7}, FindingLevel.OK, "nodes 0–1 (gpu0, gpu1): 50 MB/s"),
        (1, {(0, 1): GOOD, (0, 2): GOOD, (1, 2): 3e8}, FindingLevel.OK, "ranks 1–2: 300 MB/s, 0–1: 1.0 GB/s, 0–2: 1.0 GB/s"),
        (1, {(0, n): GOOD if n > 5 else n * 1e6 for n in range(1, 12)}, FindingLevel.WARNING, "ranks 0–1: 1 MB/s, 0–2: 2 MB/s, 0–3: 3 MB/s, 0–4: 4 MB/s, +1; the best pair 1.0 GB/s"),
        (4, {(2 * a, 2 * b): (a + b) * GOOD for a, b in combinations(range(4), 2)}, FindingLevel.WARNING, "nodes 0–1 (gpu0, gpu1): 1.0 GB/s; the best pair 5.0 GB/s"),
        (4, {(2 * a, 2 * b): (a + b + 2) * GOOD for a, b in combinations(range(4), 2)}, FindingLevel.OK, "6 pairs of nodes: 3.0 GB/s to 7.0 GB/s"),
        (3, {(0, 2): GOOD, (0, 4): 3e6, (2, 4): 2e6}, FindingLevel.WARNING, "nodes 1–2 (gpu1, gpu2): 2 MB/s, 0–2 (gpu0, gpu2): 3 MB/s; the best pair 1.0 GB/s"),
    ],
)  # fmt: skip
def test_slow_pairs_are_named(
    tmp_path: Path, nodes: int, rates: dict[tuple[int, int], float], level: FindingLevel, what: str
) -> None:
    finding = of_pairs(tmp_path, rates, nodes=nodes)
    assert (finding.level, finding.what) == (level, what)
    assert finding.fix == next((fix for words, fix in FIXES.items() if words in what), "")


ALL_AT_ONCE = "run this check on all nodes at once, each with its --node-rank"


@pytest.mark.parametrize(
    ("does", "what", "fix"),
    [
        ('touch -d "@$(($(date +%s) - 8))" "$5-$3"; echo timed out', "the ranks of 2 nodes did not meet at gpu0:29501 within 0 s", ALL_AT_ONCE),
        ('touch "$5-$3"; sleep 60', "the ranks of 2 nodes did not meet at gpu0:29501 within 2 s", ALL_AT_ONCE),
        ('touch "$5-$3"; echo "port: 29501, name: EADDRINUSE"', "gpu0:29501 is taken: the ranks cannot meet there", "unless that is this very job, name another port"),
    ],
)  # fmt: skip
def test_other_nodes_that_do_not_come_are_no_reason_to_refuse(
    tmp_path: Path, does: str, what: str, fix: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}; exit 1\n")
    python.chmod(0o755)
    spec = JobSpec(
        "t", EntryKind.SCRIPT, "train.py", nnodes="2", node_rank=1, master_addr="gpu0", master_port=29501
    )
    context = CheckContext(
        spec, tmp_path / "runs", {"PATH": "/usr/bin:/bin"}, Interpreter(str(python), "3.11.2", "2.9.0", "")
    )
    (finding,) = check_nodes_meet(context, meet_s=7, limit_s=2.0)
    assert finding == warn("collective", what, fix)


def test_nodes_meet_only_where_there_are_several_and_the_place_is_known(tmp_path: Path) -> None:
    job = JobSpec("t", EntryKind.SCRIPT, "train.py", nnodes="2", node_rank=1, master_addr="gpu0")
    python = Interpreter(str(tmp_path / "never run"), "3.11.2", "2.9.0", "")
    context = CheckContext(job, tmp_path / "runs", {}, python)
    for none in (
        replace(context, spec=replace(job, nnodes="1")),
        replace(context, spec=replace(job, master_addr=None)),
        replace(context, spec=replace(job, torchrun_flags=("--rdzv-endpoint=gpu0:x",))),
        replace(context, spec=replace(job, node_rank=2)),
        replace(context, spec=replace(job, entry_kind=EntryKind.COMMAND)),
        replace(context, interpreter=None),
        replace(context, interpreter=replace(python, torch_version=None)),
    ):
        assert list(check_nodes_meet(none)) == []

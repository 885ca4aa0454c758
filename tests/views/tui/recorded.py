"""Recorded runs: the states that tests and pictures look at, each told in a few lines."""

from __future__ import annotations

from pathlib import Path

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, Cause, Decision, DecisionKind, FailureClass, Verdict
from supervisor.run.series import METRICS
from tests.views.tui.recording import T0, TREE, Recording

__all__ = (
    "REDUCED",
    "T0",
    "TREE",
    "Recording",
    "backing_off",
    "empty",
    "failed",
    "healthy",
    "healthy_cpu",
    "held",
    "many",
    "observed",
    "several",
    "stalled",
    "succeeded",
)


def _first_attempt(rec: Recording, *, last_step: int = 212) -> None:
    rec.launch("first start")
    rec.steps(1, last_step, step_s=0.85)
    rec.out_of_memory()


REDUCED = "out of memory at micro-batch 16: the next that divides the global batch of 64 is 8"


def healthy(root: Path, *, gpus: int = 2) -> RunPaths:
    """Attempt 1 ran out of memory, attempt 2 is at step 1 840 of 6 000."""
    rec = Recording(root, gpus=gpus)
    _first_attempt(rec)
    rec.decide(DecisionKind.RESTART, REDUCED)
    rec.fact(ev.BackoffStarted(t=rec.t, attempt=1, until=rec.t + 10, delay_s=10))
    rec.t += 10
    rec.shrink()
    rec.launch("restart with micro-batch 8")
    rec.steps(200, 1800, step_s=1.2, every=5, slow_rank=1)
    rec.say(1, "/usr/lib/python3/warnings.py:109: UserWarning: DataLoader took 118 ms for a batch", "stderr")
    rec.fact(
        ev.Advisory(
            t=rec.t,
            attempt=2,
            code="data_bound",
            text="rank 1 waits 118 ms for data (median 3 ms): raise num_workers (now 2), 6 cores idle",
            rank=1,
        )
    )
    rec.fact(ev.NoteAdded(t=rec.t, text="lr looks high", by="me"))
    rec.steps(1801, 1840, step_s=1.2, slow_rank=1)
    return rec.close()


def stalled(root: Path) -> RunPaths:
    """Rank 1 reads and does not come back; the other waits for it in a collective."""
    rec = Recording(root)
    rec.launch("first start")
    rec.steps(1, 900, every=5)
    for code, text in (
        ("data_bound", "rank 1 waits 118 ms for data (median 3 ms): raise num_workers (now 2), 6 cores idle"),
        ("gpu_shared_1", "GPU 1 is shared: process 4711 (python) of alice holds 5.0 GiB of its memory"),
    ):
        rec.fact(ev.Advisory(t=rec.t, attempt=1, code=code, text=text))
        rec.steps(rec.step + 1, rec.step + 26)
    since = rec.t
    rec.t += 9
    rec.fact(
        ev.StallFlagged(
            t=rec.t, attempt=1, since=since, waited_s=9, stage="step", pace_s=1.2, flag_s=3.6, act_s=300
        )
    )
    text = "1 rank in all_reduce (torch/distributed), rank 1 in read() at data.py:41"
    rec.fact(ev.StacksTaken(t=rec.t + 1, attempt=1, text=text, odd=(1,)))
    return rec.close()


def counting_down(root: Path, *, left_s: float = 29.0) -> RunPaths:
    """Rank 1 waits for a lock; after 300 s the attempt is about to be ended for it."""
    rec = Recording(root)
    rec.launch("first start")
    rec.steps(1, 300, every=5)
    since = rec.t
    rec.t += 300
    rec.fact(
        ev.StallFlagged(
            t=rec.t - 296, attempt=1, since=since, waited_s=4, stage="step", pace_s=1.2, flag_s=3.6, act_s=300
        )
    )
    text = "rank 1 in Event.wait() at data.py:41, rank 0 in all_reduce at train.py:88"
    rec.fact(ev.StacksTaken(t=rec.t, attempt=1, text=text, odd=(1,)))
    rec.fact(
        ev.HangCountdown(t=rec.t, attempt=1, until=rec.t + left_s, left_s=30, text=text, rule="lock_for_ever")
    )
    return rec.close()


def healthy_cpu(root: Path) -> RunPaths:
    """The same without a GPU."""
    return healthy(root, gpus=0)


def backing_off(root: Path) -> RunPaths:
    """Attempt 1 ran out of memory; the smaller one starts 10 s after the last fact."""
    rec = Recording(root)
    _first_attempt(rec)
    rec.decide(DecisionKind.RESTART, REDUCED)
    rec.fact(ev.BackoffStarted(t=rec.t, attempt=1, until=rec.t + 10, delay_s=10))
    return rec.close()


def held(root: Path) -> RunPaths:
    """Attempt 1 failed and a person decides."""
    rec = Recording(root)
    _first_attempt(rec)
    reason = "how train.py resumes is not known: a restart might overwrite its checkpoint"
    rec.decide(DecisionKind.HOLD, reason)
    rec.fact(ev.Held(t=rec.t, attempt=1, reason=reason, until=rec.t + 86_400))
    return rec.close()


def succeeded(root: Path) -> RunPaths:
    """Two attempts, the second to its end."""
    rec = Recording(root, total_steps=1000)
    _first_attempt(rec)
    rec.decide(DecisionKind.RESTART, REDUCED, 0.0)
    rec.shrink()
    rec.launch("restart with micro-batch 8")
    rec.steps(200, 1000, every=5)
    rec.fact(
        ev.AttemptEnded(t=rec.t + 1, attempt=2, exit_code=0, last_step=1000, rank_exit_codes={0: 0, 1: 0})
    )
    rec.t += 1
    rec.fact(ev.RunEnded(t=rec.t, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="1000 of 1000 steps"))
    rec.fact(ev.KeeperLeft(t=rec.t, why="run over"))
    return rec.close()


def failed(root: Path) -> RunPaths:
    """A typing error in the user's code: no retry helps."""
    rec = Recording(root)
    rec.launch("first start")
    rec.steps(1, 40, step_s=0.8)
    rec.say(0, "Traceback (most recent call last):", "stderr")
    rec.say(0, '  File "/home/me/gpt/train.py", line 97, in <module>', "stderr")
    rec.say(0, "    print(los)", "stderr")
    rec.say(0, "NameError: name 'los' is not defined", "stderr")
    path = f"{TREE}/0/stderr.log"
    verdict = Verdict(
        failure=FailureClass.CODE_ERROR,
        reason=None,
        confidence=0.95,
        rank=None,
        ranks=(0, 1),
        node=None,
        title="NameError: name 'los' is not defined (train.py:97)",
        cause=Cause(path, 4, "NameError: name 'los' is not defined"),
        consequences=(),
        advice=("fix train.py line 97, then start again",),
        action=Action.STOP,
        fingerprint="code_error:NameError",
    )
    rec.t += 1
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1, last_step=40, rank_exit_codes={0: 1, 1: 1}))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict))
    decision = Decision(
        kind=DecisionKind.FAIL, reason="an error in the code: the next attempt would fail alike"
    )
    rec.fact(ev.Decided(t=rec.t, attempt=1, decision=decision))
    rec.fact(ev.RunEnded(t=rec.t, outcome=ev.Outcome.FAILED, exit_code=1, reason=verdict.title))
    rec.fact(ev.KeeperLeft(t=rec.t, why="run over"))
    return rec.close()


def many(root: Path, *, ranks: int = 64, gpus: int = 8) -> RunPaths:
    """64 ranks and 8 GPUs."""
    rec = Recording(root, name="llama-8b-sft", ranks=ranks, gpus=gpus, micro=4, accumulation=1)
    rec.launch("first start")
    rec.steps(1, 60, slow_rank=17)
    return rec.close()


LINKS: dict[str, float | None] = {
    "net_rx_bytes_per_s.ib0": 1.24e10,
    "net_tx_bytes_per_s.ib0": 1.1e10,
    "net_rx_bytes_per_s.eth0": 2.1e6,
    "net_tx_bytes_per_s.eth0": 9.3e5,
}


def several(
    root: Path,
    *,
    nodes: int = 2,
    ranks: int = 2,
    steps: int = 20,
    slow: int | None = None,
    with_gpus: bool = True,
) -> RunPaths:
    """A run on several nodes; the last rank of node `slow` is slow."""
    for node in reversed(range(nodes)):
        rec = Recording(
            root, ranks=ranks, gpus=ranks * with_gpus, node=node, micro=4, accumulation=1, links=LINKS
        )
        for other in range(1, nodes) if not node else ():
            joined = ev.NodeSeen(t=rec.t, node=other, sight=ev.NodeSight.JOINED, host=f"gpu-box{other}")
            rec.fact(joined)
        rec.launch("first start")
        rec.steps(1, steps, slow_rank=ranks - 1 if node == slow else None)
        rec.close()
    return RunPaths(root)


def observed(root: Path, log: Path, *, is_quiet: bool = False) -> RunPaths:
    """A log that somebody else's run writes, or wrote."""
    log.write_bytes(
        b"[rank0]: epoch 1 step 10 loss=3.21\n[rank1]: epoch 1 step 10 loss=3.22\n"
        b"[rank0]: epoch 1 step 20 loss=3.01\n[rank1]: epoch 1 step 20 loss=3.02\n"
        b"train:  40%|####      | 40/100 [00:10<00:15]\rtrain:  41%|####      | 41/100 [00:10<00:15]"
    )
    rec = Recording(root, name=log.name, mode="observed", gpus=0, total_steps=None)
    rec.number = 1
    rec.fact(ev.LaunchIntended(t=rec.t, attempt=1, argv=(), reason=f"watching {log.name}"))
    rec.fact(ev.AttemptStarted(t=rec.t, attempt=1, pid=0, start_time=0.0))
    rec.fact(ev.RankStarted(t=rec.t, attempt=1, local_rank=0, stdout=str(log)))
    for step in (10, 20):
        rec.t += 5
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": 3.4 - step / 50})
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step, loss=3.4 - step / 50))
    if is_quiet:
        rec.fact(ev.LogQuiet(t=rec.t, attempt=1, since_t=rec.t - 3600))
    return rec.close()


def empty(root: Path) -> RunPaths:
    """A run whose keeper has just begun: nothing launched."""
    return Recording(root).close()

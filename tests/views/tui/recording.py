"""Writes a run directory as a keeper would, through the real journal and series writers, with a clock that is set.

Nothing here is random: the same call gives the same bytes, so that pictures can be compared.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope
from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.records import (
    Action,
    Cause,
    Consequence,
    Decision,
    DecisionKind,
    FailureClass,
    Finding,
    FindingLevel,
    SpecChange,
    Verdict,
)
from supervisor.run.runfile import KeeperSettings, RunFile, write_run_file
from supervisor.run.series import GPU, HOST, METRICS, RANKS, SeriesWriter

T0 = 1_795_270_320.0  # 2026-11-21 14:12:00 UTC
GIB = float(2**30)
FINDINGS = (
    Finding(FindingLevel.OK, "interpreter", "/home/me/env/bin/python, torch 2.13.0"),
    Finding(FindingLevel.OK, "port", "29500 is free"),
    Finding(
        FindingLevel.WARNING,
        "shm",
        "/dev/shm has 64 MiB: DataLoader workers pass batches through it",
        "start the container with --shm-size=8g",
    ),
)
TOTAL_STEPS = 6000
TREE = "torchrun/none_x1/attempt_0"


def noise(seed: float) -> float:
    """A repeatable number in (-1, 1)."""
    value = math.sin(seed * 12.9898 + 4.1) * 43758.5453
    return 2 * (value - math.floor(value)) - 1


@dataclass
class Recording:
    """A run directory being written. `t` is the clock: whatever is written bears it."""

    root: Path
    name: str = "gpt-d12"
    ranks: int = 2
    gpus: int = 2
    mode: str = "launched"
    micro: int = 16
    accumulation: int = 2
    total_steps: int | None = TOTAL_STEPS
    t: float = T0
    number: int = 0
    slow_in: int = 0
    step: int = 0
    node: int = 0  # of a run on several nodes
    links: dict[str, float | None] = field(default_factory=dict)
    journal: JournalWriter = field(init=False)
    series: SeriesWriter = field(init=False)

    def __post_init__(self) -> None:
        self.run = RunPaths(self.root)
        node = self.run.node(self.node)
        node.root.mkdir(parents=True)
        self.run.control.mkdir(exist_ok=True)
        self.journal = JournalWriter(node.journal)
        self.series = SeriesWriter(node.series)
        self.fact(
            ev.RunStarted(
                t=self.t,
                run_id=self.root.name,
                name=self.name,
                mode=self.mode,
                host=f"gpu-box{self.node or ''}",
                total_steps=self.total_steps,
                world_size=self.ranks,
            )
        )
        if self.mode == "launched" and not self.node:
            write_run_file(self.run.run_json, self._record())
            for finding in FINDINGS:
                self.fact(ev.PreflightFound(t=self.t, finding=finding))
        self.fact(ev.KeeperStarted(t=self.t, pid=4100, start_time=10.0, version="0.1.0", interactive=True))

    def _record(self) -> RunFile:
        job = JobSpec(
            name=self.name,
            entry_kind=EntryKind.SCRIPT,
            entry="train.py",
            entry_args=("--lr", "3e-4", "--batch_size", str(self.micro), "--compile"),
            nproc_per_node=self.ranks,
            env=(("OMP_NUM_THREADS", "8"), ("WANDB_API_KEY", "<redacted>")),
            cwd="/home/me/gpt",
            batch=self.batch,
            knobs=Knobs("--batch_size", KnobScope.PER_RANK, "--grad_accum", resume="--resume"),
            origins=(
                ("nproc_per_node", str(self.ranks), "flag"),
                ("max_retries", "3", "default"),
                ("env.OMP_NUM_THREADS", "8", "./stoker.toml"),
                ("batch_knob", "--batch_size", "found in train.py"),
            ),
        )
        return RunFile(
            run_id=self.root.name,
            job=job,
            interpreter="/home/me/env/bin/python",
            settings=KeeperSettings(interactive=True),
            created_t=self.t,
            host="gpu-box",
            user="me",
            stoker_version="0.1.0",
            python_version="3.11.9",
            torch_version="2.13.0",
            git_commit="4be81c7",
        )

    def fact(self, event: ev.Event) -> None:
        self.journal.append(event)

    def close(self) -> RunPaths:
        self.journal.close()
        self.series.close()
        return self.run

    @property
    def batch(self) -> BatchSpec:
        return BatchSpec(self.micro, self.accumulation, self.ranks)

    def launch(self, reason: str) -> None:
        self.number += 1
        self.fact(
            ev.LaunchIntended(
                t=self.t,
                attempt=self.number,
                argv=("python", "-m", "torch.distributed.run", "train.py", "--lr", "3e-4"),
                reason=reason,
                batch=self.batch,
            )
        )
        self.t += 0.4
        self.fact(ev.AttemptStarted(t=self.t, attempt=self.number, pid=4200 + self.number, start_time=11.0))
        for rank in range(self.ranks):
            folder = f"{TREE}/{rank}"
            (self.run.node(self.node).attempt(self.number).root / folder).mkdir(parents=True)
            self.fact(
                ev.RankStarted(
                    t=self.t,
                    attempt=self.number,
                    local_rank=rank,
                    rank=self.node * self.ranks + rank,
                    pid=4300 + 100 * self.number + rank,
                    start_time=12.0,
                    stdout=f"{folder}/stdout.log",
                    stderr=f"{folder}/stderr.log",
                )
            )
        self.say("agent", f"[stoker] attempt {self.number}: torchrun 2.13.0, {self.ranks} ranks")
        self.t += 6

    def say(self, who: int | str, text: str, stream: str = "stdout", end: str = "\n") -> None:
        """Append a line to a rank's file, or to the agent's log."""
        attempt = self.run.node(self.node).attempt(self.number)
        path = attempt.agent_log if who == "agent" else attempt.root / f"{TREE}/{who}/{stream}.log"
        with path.open("ab") as file:
            file.write((text + end).encode("utf-8", "surrogateescape"))
        os.utime(path, (self.t, self.t))

    def steps(
        self, first: int, last: int, step_s: float = 1.2, every: int = 1, slow_rank: int | None = None
    ) -> None:
        """Train from `first` to `last`: facts, samples and log lines."""
        self.fact(ev.PhaseChanged(t=self.t, attempt=self.number, phase=ev.Phase.STEPPING, step=first))
        for step in range(first, last + 1, every):
            self.t += step_s * every
            self.step = step
            if slow_rank is not None and self.slow_in != self.number:
                self.slow_in = self.number
                who = self.node * self.ranks + slow_rank
                found = ev.SlowRankFound(t=self.t, attempt=self.number, rank=who, step_s=step_s)
                self.fact(found)
            self._metrics(step, step_s)
            for rank in range(self.ranks):
                self._rank(step, step_s, rank, slow=rank == slow_rank)
            for gpu in range(self.gpus):
                self._gpu(step, gpu)
            self._machine(step)
            if step % 200 == 0 and step:
                self.fact(
                    ev.CheckpointCommitted(
                        t=self.t, attempt=self.number, step=step, path=f"checkpoints/step_{step}"
                    )
                )

    def loss(self, step: int) -> float:
        return 1.9 + 2.3 * math.exp(-step / 420) + 0.35 * math.exp(-step / 2500) + 0.06 * noise(step)

    def lr(self, step: int) -> float:
        return 3e-4 * min(1.0, step / 300) * (0.5 + 0.5 * math.cos(math.pi * step / TOTAL_STEPS))

    def _metrics(self, step: int, step_s: float) -> None:
        values: dict[str, float | None] = {
            "step": step,
            "loss": self.loss(step),
            "lr": self.lr(step),
            "grad_norm": 0.8 + 0.1 * noise(step + 0.5) + (1.5 if step % 137 == 0 else 0),
            "tokens_per_sec": 27_200 + 500 * noise(step + 0.25),
            "step_time_s": step_s + 0.02 * noise(step + 0.125),
            "data_wait_s": 0.06 + 0.02 * noise(step + 0.75),
        }
        if step % 300 == 0 and step:
            values["val_loss"] = self.loss(step) - 0.06 * noise(step) + 0.07
        self.series.append(METRICS, self.t, "job", self.number, values)
        place = {"t": self.t, "attempt": self.number, "total_steps": self.total_steps}
        self.fact(msgspec.convert(values | place, ev.Progress))

    def _rank(self, step: int, step_s: float, rank: int, *, slow: bool) -> None:
        wait = 0.118 if slow else 0.003
        values: Mapping[str, float | None] = {
            "step": step,
            "loss": self.loss(step),
            "step_time_s": step_s + 0.01 * noise(step + rank) + (0.1 if slow else 0),
            "data_wait_s": wait,
            "memory_used_bytes": (61.2 - 17 * (self.micro < 16)) * GIB if self.gpus else None,
        }
        key = str(self.node * self.ranks + rank)
        self.series.append(RANKS, self.t, key, self.number, values)
        host = {"cpu_ratio": 0.96 + 0.03 * noise(step * 3 + rank), "rss_bytes": 3.1 * GIB, "threads": 14.0}
        self.series.append(HOST, self.t, key, self.number, host)
        self.say(
            rank,
            f"step {step:5d} | loss {self.loss(step):.4f} | lr {self.lr(step):.1e} | {1000 * step_s:.0f} ms",
        )

    def _gpu(self, step: int, gpu: int) -> None:
        dip = 0.4 if step % 45 == 0 else 0.0
        throttled = gpu == 1 and step % 30 < 3
        self.series.append(
            GPU,
            self.t,
            str(gpu),
            self.number,
            {
                "util_ratio": 0.96 + 0.03 * noise(step + gpu) - dip,
                "memory_used_bytes": (61.2 - 17 * (self.micro < 16) + 0.4 * noise(step + gpu)) * GIB,
                "memory_total_bytes": 80 * GIB,
                "temperature_c": 64.0 + 2 * gpu,
                "power_w": 612.0 + 8 * gpu,
                "power_limit_w": 700.0,
                "sm_clock_mhz": 1980.0 - 45 * throttled,
                "throttle": 32.0 if throttled else 0.0,
            },
        )

    def _machine(self, step: int) -> None:
        self.series.append(
            HOST,
            self.t,
            "machine",
            self.number,
            {
                "cpu_ratio": 0.6 + 0.1 * noise(step + 7),
                "memory_used_bytes": 11.4 * GIB,
                "memory_total_bytes": 32 * GIB,
                "load1": 3.2,
                "shm_used_ratio": 0.08,
                "disk_used_ratio": 0.41,
                **self.links,
            },
        )

    def out_of_memory(self) -> Verdict:
        """Rank 1 runs out of memory; rank 0 hears of it; torchrun ends the rest."""
        text = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity "
            "of 79.10 GiB of which 318.50 MiB is free. Including non-PyTorch memory, this process has 78.78 GiB "
            "memory in use. Of the allocated memory 77.20 GiB is allocated by PyTorch, and 412.00 MiB is "
            "reserved by PyTorch but unallocated."
        )
        self.t += 1.2
        self.say(1, "[rank1]: Traceback (most recent call last):", "stderr")
        self.say(1, '[rank1]:   File "/home/me/gpt/train.py", line 418, in <module>', "stderr")
        self.say(1, "[rank1]:     loss.backward()", "stderr")
        self.say(1, f"[rank1]: {text}", "stderr")
        self.say(0, "NCCL WARN NET/Socket: connection closed by remote peer gpu-box<45211>", "stderr")
        where = f"{TREE}/1/stderr.log"
        self.fact(
            ev.EvidenceSeen(
                t=self.t,
                attempt=self.number,
                failure=FailureClass.CUDA_OOM,
                role="cause",
                text=text,
                path=where,
                line=4,
                rank=1,
            )
        )
        self.fact(ev.RankExited(t=self.t + 0.2, attempt=self.number, local_rank=1, exit_code=1))
        self.t += 0.8
        self.say(
            "agent",
            "E1121 14:16:02.114 torch.distributed.elastic] failed (exitcode: 1) local_rank: 1 (pid: 4401)",
        )
        self.fact(
            ev.AttemptEnded(
                t=self.t,
                attempt=self.number,
                exit_code=1,
                last_step=self.step,
                rank_exit_codes={**dict.fromkeys(range(self.ranks), -15), 1: 1},
            )
        )
        verdict = Verdict(
            failure=FailureClass.CUDA_OOM,
            reason=None,
            confidence=0.98,
            rank=1,
            ranks=(1,),
            node=None,
            title="rank 1 ran out of GPU memory in backward: tried 2.00 GiB, 0.31 GiB of 79.1 GiB free",
            cause=Cause(where, 4, text),
            consequences=(
                Consequence(FailureClass.NCCL_ERROR, 0, where.replace("/1/", "/0/"), 3, "connection closed"),
                Consequence(
                    FailureClass.TERMINATED, 0, where.replace("/1/", "/0/"), None, "SIGTERM by torchrun"
                ),
            ),
            advice=(
                "halve the micro-batch: accumulation keeps the global batch",
                "0.4 GiB is reserved but unused: not fragmentation",
            ),
            action=Action.REDUCE_BATCH,
            fingerprint="cuda_oom:backward",
        )
        self.t += 0.1
        self.fact(ev.Diagnosed(t=self.t, attempt=self.number, verdict=verdict))
        trial = MemoryTrial(self.micro, fitted=False, peak_bytes=int(79.2 * GIB), base_bytes=int(6.4 * GIB))
        self.fact(ev.MemoryMeasured(t=self.t, attempt=self.number, trial=trial))
        return verdict

    def decide(self, kind: DecisionKind, reason: str, delay_s: float = 10.0) -> None:
        after = BatchSpec(self.micro // 2, self.accumulation * 2, self.ranks)
        change = SpecChange(batch=BatchChange(self.batch, after))
        decision = Decision(kind=kind, reason=reason, delay_s=delay_s, change=change)
        self.fact(ev.Decided(t=self.t, attempt=self.number, decision=decision))

    def shrink(self) -> None:
        self.micro //= 2
        self.accumulation *= 2

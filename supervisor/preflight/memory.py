"""What earlier runs of the same kind showed about this job's micro-batch: proposed, never applied silently."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never

from supervisor.job.arguments.command_line import names_of, value_of
from supervisor.job.batch import candidates
from supervisor.job.config.files import config_words, read_values
from supervisor.job.knobs.setting_names import words_of
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.run.answers import JobKind, flags_hash, recall_memory
from supervisor.run.records import Finding, FindingLevel

# Settings that say nothing about memory: two launches that differ in them are alike.
_FREE = re.compile(
    r"dir|path|out|output|log|logging|save|seed|name|epochs?|steps?|iters?|iterations?|lr|rate|decay|warmup|"
    r"wandb|report|resume|fault|project|every|interval|port|url|config",
)


def check_memory(spec: JobSpec, env: Mapping[str, str]) -> Finding | None:
    """Whether the micro-batch that is asked for fitted before, on this kind of GPU with as many ranks."""
    if spec.batch is None:
        return None
    lines = recall_memory(kind_of(spec), env)
    if not lines:
        return None
    micro = spec.batch.micro_batch_per_rank
    usable = set(candidates(spec.batch))
    failed = {line.trial.micro_batch: line.t for line in lines if not line.trial.fitted}
    least = min(failed, default=None)
    fitted = [
        line.trial.micro_batch
        for line in lines
        if line.trial.fitted and (least is None or line.trial.micro_batch < least)
    ]
    best = max((m for m in fitted if m in usable), default=None)
    if least is not None and micro >= least:
        day = time.strftime("%Y-%m-%d", time.localtime(failed[least]))
        what = f"micro-batch {least} ran out of memory in an earlier run ({day}), this one asks for {micro}"
        known = f"{best} fitted: --micro-batch {best}" if best is not None else "--fit-batch finds what fits"
        return Finding(FindingLevel.WARNING, "memory", what, known)
    if best is not None and best > micro and spec.fit is None:
        what = f"micro-batch {best} fitted in an earlier run, this one asks for {micro}"
        return Finding(FindingLevel.INFO, "memory", what, f"--micro-batch {best}")
    return Finding(FindingLevel.OK, "memory", f"nothing on record speaks against micro-batch {micro}")


def kind_of(job: JobSpec) -> JobKind:
    """What this job has in common with others that need the same memory."""
    own = {job.knobs.batch, job.knobs.accumulation, job.knobs.global_batch, job.knobs.resume}
    words = [
        f"{name}={value_of(job.entry_args, name)}"
        for name in names_of(job.entry_args)
        if name not in own and not _is_free(name)
    ]
    for file in config_words(job.entry_args):
        words += [
            f"{key}={value}"
            for key, value in read_values(file, _text(Path(job.cwd, file))).items()
            if f"{file}#{key}" not in own and not _is_free(key)
        ]
    folder = Path(job.cwd).resolve()
    match job.entry_kind:
        case EntryKind.SCRIPT:
            script = str((folder / job.entry).resolve())
        case EntryKind.COMMAND:  # every project has a train.py behind some launcher
            files = [str((folder / word).resolve()) for word in job.entry_args if word.endswith(".py")]
            script = " ".join([job.entry, *(files or [str(folder)])][:3])
        case EntryKind.MODULE:
            script = f"{folder} {job.entry}"
        case EntryKind.TRAINER:
            script = job.entry
        case _:
            assert_never(job.entry_kind)
    from supervisor.sources.gpu import probe_gpus  # only where a micro-batch is known

    gpus, _ = probe_gpus()
    device = ", ".join(sorted({gpu.name or "GPU" for gpu in gpus})) or "cpu"
    world = job.batch.world_size if job.batch is not None and job.batch.ranks_known else job.nproc_per_node
    return JobKind(script, flags_hash(sorted(words)), device, world)


def _is_free(name: str) -> bool:
    return any(_FREE.fullmatch(word) for word in words_of(name))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

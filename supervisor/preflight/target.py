"""Checks the job itself: script, batch, data, the checkpoint to resume from, torchrun, and the allocation."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, assert_never

from supervisor.cluster.scheduler import scheduler_of
from supervisor.job.arguments.command_line import names_of, value_of
from supervisor.job.batch import candidates
from supervisor.job.config.files import config_words, read_values
from supervisor.job.knobs.set_batch import why_not_changeable
from supervisor.job.knobs.setting_names import words_of
from supervisor.job.launch.oom_plan import is_measured_later, oom_plan
from supervisor.job.spec import NAMED_UNSEEN, EntryKind, JobSpec, Knobs
from supervisor.preflight.context import KNOBS_CHECK, CheckContext, note, ok, refuse, warn
from supervisor.preflight.interpreter import trainer_main
from supervisor.run.answers import JobKind, flags_hash, recall_memory
from supervisor.run.records import Finding
from supervisor.run.regular import open_regular

MAX_SOURCE_BYTES: Final = 4 * 2**20
FILES: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
# Arguments that tell the data check how and what to read.
DATA_FLAGS: Final = ("train_data_path", "valid_data_path", "vocab_size", "data_dtype", "max_seq_len")
MOST_FILES: Final = 20
# With less time than this left, a larger run soon reaches the limit.
SHORT_S: Final = 600.0


def check_script(context: CheckContext) -> Iterator[Finding]:
    """Check whether the script compiles. If not, only warn, because it may be generated or written for another Python."""
    spec = context.spec
    if spec.entry_kind is not EntryKind.SCRIPT or not spec.entry.endswith(".py"):
        return
    path = Path(spec.cwd) / spec.entry
    try:
        with open_regular(path) as file:
            source = file.read(MAX_SOURCE_BYTES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source, filename=spec.entry)
    except SyntaxError as error:
        what = f"{spec.entry}:{error.lineno or 1}: {error.msg}"
        yield warn("script", what, "it will fail at once unless its Python reads it otherwise")
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        yield warn("script", f"{spec.entry} could not be read as Python: {error}")
    else:
        yield ok("script", f"{spec.entry} compiles")


def check_knobs(context: CheckContext) -> Iterator[Finding]:
    """Check whether the job can be restarted unattended, so the user finds out now and not after a failure at night."""
    spec = context.spec
    if not spec.retry.enabled or spec.entry_kind is EntryKind.TRAINER:
        return
    missing: list[str] = []
    fixes: list[str] = []
    knobs, plan, later = spec.knobs, oom_plan(spec), is_measured_later(spec)
    if not plan.changes and not later and (spec.batch is None or not knobs.can_change_batch):
        why = f"{plan.why} ({plan.help})" if knobs.can_change_batch else why_not_changeable(knobs)
        missing.append(f"no smaller restart after out of memory: {why}")
    flag = knobs.start or knobs.resume_step
    awaits: Finding | None = None
    if not (knobs.resume_is_set or knobs.self_resuming or spec.retry.restart_from_scratch):
        if flag is not None:
            awaits = _awaits_checkpoint(flag, knobs)
        else:
            why = "no restart after a crash beyond the first step: no resume flag is known (--resume-knob)"
            missing.append(why)
            fix = "name it: --resume-knob FLAG=PATH (PATH: the newest complete checkpoint that stoker finds)"
            fixes.append(fix)
    elif knobs.resumes == NAMED_UNSEEN:
        missing.append(f"{knobs.resume} is set without a value, and whether it takes one is not known")
        path = f"'{knobs.resume}=PATH'"
        fixes.append(
            f"if it takes a path: --resume-knob {path} (PATH: the newest complete checkpoint that stoker finds)"
        )
    if missing:
        yield warn(KNOBS_CHECK, "; ".join(missing), "; ".join(fixes))
    if awaits is not None:
        yield awaits
    elif not missing:
        measured = "batch known after the first step, resume flag known"
        yield ok(KNOBS_CHECK, measured if later else "batch and resume flags are known")


def _awaits_checkpoint(flag: str, knobs: Knobs) -> Finding:
    """For a resume flag that takes a checkpoint, note what happens before a checkpoint exists."""
    named = f"{flag}=DIR/FILE"
    if flag == knobs.resume:  # the flag's word for the newest checkpoint, which a switch lacks
        named = f"{flag}={knobs.resume_value}" if knobs.resume_value else flag
    return note(
        KNOBS_CHECK,
        f"after a crash stoker restarts with {flag} and the newest complete checkpoint that it finds; while there is none the run waits for you after a crash beyond the first step. Nothing to do if the script saves checkpoints",
        f"if the script always writes the same checkpoint, name it: --resume-knob '{named}' (used from the second attempt on)",
    )


def check_resume(context: CheckContext) -> Iterator[Finding]:
    """Check whether a checkpoint given in the arguments exists and, for a known layout, is complete."""
    spec = context.spec
    for flag in dict.fromkeys(each for each in (spec.knobs.start, spec.knobs.resume_path) if each):
        given = value_of(spec.entry_args, flag)
        if not given or (os.sep not in given and not given.endswith(FILES)):
            continue  # a word such as "latest", a switch, or a name on a hub
        from supervisor.sources.checkpoint_layouts import whole_at  # most starts name no checkpoint

        path = Path(spec.cwd, os.path.expanduser(given))
        if not path.exists():
            what = f"{flag} names {given}, and there is no such file or folder"
            yield warn("resume", what, "name one that exists, or leave the flag out")
        elif (found := whole_at(str(path))) is None:
            what = f"{flag} names {given}: not a whole checkpoint of a layout that stoker knows"
            yield note("resume", what)
        else:
            step = f", step {found.step}" if found.step is not None else ""
            yield ok("resume", f"{given}: a whole checkpoint ({found.layout}{step})")


def check_data(context: CheckContext) -> Iterator[Finding]:
    """Check that the bundled trainer's data files exist."""
    spec = context.spec
    if spec.entry_kind is not EntryKind.TRAINER:
        return
    for flag in ("train_data_path", "valid_data_path"):
        given = value_of(spec.entry_args, f"--{flag}")
        if not given:
            continue
        if Path(spec.cwd, os.path.expanduser(given)).exists():
            yield ok("data", f"{flag}: {given} is there")
        else:
            fix = "name one that exists; `stoker check --data PATH` reads it through"
            yield refuse("data", f"{flag} names {given}, and there is no such file or folder", fix)


def check_data_through(context: CheckContext) -> Iterator[Finding]:
    """Read the trainer's data files in full, like `stoker check --data`, checking headers, sizes and vocabulary bounds."""
    spec = context.spec
    named = {flag: value_of(spec.entry_args, f"--{flag}") for flag in DATA_FLAGS}
    files = [path for flag in ("train_data_path", "valid_data_path") if (path := named.pop(flag))]
    if spec.entry_kind is not EntryKind.TRAINER or not files:
        return
    flags = [f"--{name}={value}" for name, value in named.items() if value]
    done = subprocess.run(
        [sys.executable, "-I", trainer_main(), "data", "check", *flags, "--", *files],
        cwd=spec.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    said = done.stdout.decode("utf-8", "replace").splitlines()
    for line in said[:MOST_FILES]:
        if done.returncode == 0:
            yield ok("data", line)
        else:
            yield refuse("data", line, "`stoker check --data PATH` reads it alone")


def check_allocation(context: CheckContext) -> Iterator[Finding]:
    """Compare a SLURM allocation with the job: nodes, tasks, and remaining time."""
    spec, scheduler = context.spec, scheduler_of(context.env)
    if (place := scheduler.place) is None:
        return
    if place.nodes > 1 and spec.nnodes == "1" and spec.entry_kind is not EntryKind.COMMAND:
        what = f"the {scheduler.name} job has {place.nodes} nodes, and this start uses one of them"
        fix = "srun --ntasks-per-node=1 stoker run …: started on each node, it finds its place"
        yield warn("SLURM", what, fix)
    if place.tasks_here > 1 and spec.nproc_per_node > 1:
        tasks, nodes = place.tasks_here * place.nodes, place.nodes
        what = f"srun starts {tasks} tasks on {nodes} nodes, and each would start {spec.nproc_per_node} ranks"
        yield warn("SLURM", what, "--ntasks-per-node=1: torchrun starts the ranks")
    if (left_s := scheduler.time_left_s(time.time())) is not None and left_s < SHORT_S:
        what = f"{max(int(left_s // 60), 0)} minutes of the SLURM job are left"
        yield warn("SLURM", what, "ask for more (--time), or save often")


# -- what earlier runs of the same kind showed of the micro-batch --------------------------------------

# Settings without effect on memory. Two launches that differ only in these are alike.
_FREE = re.compile(
    r"dir|path|out|output|log|logging|save|seed|name|epochs?|steps?|iters?|iterations?|lr|rate|decay|warmup|"
    r"wandb|report|resume|fault|project|every|interval|port|url|config",
)


def check_memory(context: CheckContext) -> Iterator[Finding]:
    """Check whether this micro-batch has fit before on this kind of GPU with this many ranks. The job is not changed."""
    spec = context.spec
    if spec.batch is None or not (lines := recall_memory(kind_of(spec), context.env)):
        return
    micro = spec.batch.micro_batch_per_rank
    usable = set(candidates(spec.batch))
    failed = {line.trial.micro_batch: line.t for line in lines if not line.trial.fitted}
    least = min(failed, default=None)
    fitted = {line.trial.micro_batch for line in lines if line.trial.fitted} & usable
    best = max((m for m in fitted if least is None or m < least), default=None)
    if least is not None and micro >= least:
        day = time.strftime("%Y-%m-%d", time.localtime(failed[least]))
        what = f"micro-batch {least} ran out of memory in an earlier run ({day}), this one asks for {micro}"
        known = f"{best} fitted: --micro-batch {best}" if best is not None else "--fit-batch finds what fits"
        yield warn("memory", what, known)
    elif best is not None and best > micro and spec.fit is None:
        what = f"micro-batch {best} fitted in an earlier run, this one asks for {micro}"
        yield note("memory", what, f"--micro-batch {best}")
    else:
        yield ok("memory", f"nothing on record speaks against micro-batch {micro}")


def kind_of(job: JobSpec) -> JobKind:
    """Return the properties shared by all jobs that need the same memory as this one."""
    own = {job.knobs.batch, job.knobs.accumulation, job.knobs.global_batch, job.knobs.resume}
    held = {name: value_of(job.entry_args, name) for name in names_of(job.entry_args)}
    words = [f"{name}={value}" for name, value in held.items() if name not in own and not _is_free(name)]
    for file in config_words(job.entry_args):
        text = ""
        with contextlib.suppress(OSError):
            text = Path(job.cwd, file).read_text(encoding="utf-8", errors="replace")
        keys = read_values(file, text).items()
        words += [f"{key}={value}" for key, value in keys if f"{file}#{key}" not in own and not _is_free(key)]
    folder = Path(job.cwd).resolve()
    match job.entry_kind:
        case EntryKind.SCRIPT:
            script = str((folder / job.entry).resolve())
        case EntryKind.COMMAND:  # many projects have a train.py behind some launcher
            files = [str((folder / word).resolve()) for word in job.entry_args if word.endswith(".py")]
            script = " ".join([job.entry, *(files or [str(folder)])][:3])
        case EntryKind.MODULE:
            script = f"{folder} {job.entry}"
        case EntryKind.TRAINER:
            script = job.entry
        case _:
            assert_never(job.entry_kind)
    from supervisor.sources.gpu import probe_gpus  # needed only for a known micro-batch

    gpus = probe_gpus()
    device = ", ".join(sorted({gpu.name or "GPU" for gpu in gpus})) or "cpu"
    world = job.batch.world_size if job.batch is not None and job.batch.ranks_known else job.nproc_per_node
    return JobKind(script, flags_hash(sorted(words)), device, world)


def _is_free(name: str) -> bool:
    return any(_FREE.fullmatch(word) for word in words_of(name))

"""What will be run, and with what: script, batch, data, the checkpoint to continue from, torchrun, the allocation it runs in."""

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
from typing import Final

from supervisor.cluster.scheduler import scheduler_of
from supervisor.job.arguments.command_line import value_of
from supervisor.job.knobs.set_batch import why_not_changeable
from supervisor.job.launch.oom_plan import OomRefusal, is_measured_later, oom_plan
from supervisor.job.spec import NAMED_UNSEEN, EntryKind, JobSpec, Knobs
from supervisor.preflight.context import KNOBS_CHECK, CheckContext, note, ok, refuse, warn
from supervisor.preflight.interpreter import torchrun_flags, trainer_main
from supervisor.preflight.memory import check_memory
from supervisor.run.records import Finding
from supervisor.run.regular import open_regular

MAX_SOURCE_BYTES: Final = 4 * 2**20
FILES: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
# What tells the checker how to read, and what.
DATA_FLAGS: Final = ("train_data_path", "valid_data_path", "vocab_size", "data_dtype", "max_seq_len")
MOST_FILES: Final = 20
_RANK_FILE: Final = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt")
# Less than this is gone before a run of some size has begun.
SHORT_S: Final = 600.0


def check_script(context: CheckContext) -> Iterator[Finding]:
    """Whether the script compiles. Only a warning: it may be generated, or meant for another Python."""
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
    """Whether the job could be restarted without a person: reported now, not after the first failure at night."""
    spec = context.spec
    if not spec.retry.enabled or spec.entry_kind is EntryKind.TRAINER:
        return
    missing: list[str] = []
    fixes: list[str] = []
    plan = oom_plan(spec)
    later = is_measured_later(spec)
    if isinstance(plan, OomRefusal) and spec.batch is None and spec.knobs.can_change_batch and not later:
        missing.append(f"no smaller restart after out of memory: {plan.why} ({plan.help})")
    elif isinstance(plan, OomRefusal) and not spec.knobs.can_change_batch and not later:
        missing.append(f"no smaller restart after out of memory: {why_not_changeable(spec.knobs)}")
    resumes = spec.knobs.resume_is_set or spec.knobs.self_resuming
    flag = spec.knobs.start or spec.knobs.resume_step
    awaits: Finding | None = None
    if not resumes and not spec.retry.restart_from_scratch and flag is not None:
        awaits = _awaits_checkpoint(flag, spec.knobs)
    elif not resumes and not spec.retry.restart_from_scratch:
        missing.append(
            "no restart after a crash beyond the first step: no resume flag is known (--resume-knob)"
        )
        fixes.append(
            "name it: --resume-knob FLAG=PATH (PATH: the newest complete checkpoint that stoker finds)"
        )
    elif spec.knobs.resumes == NAMED_UNSEEN:
        bare = spec.knobs.resume
        missing.append(f"{bare} is set without a value, and whether it takes one is not known")
        fixes.append(
            f"if it takes a path: --resume-knob '{bare}=PATH' (PATH: the newest complete checkpoint that stoker finds)"
        )
    if missing:
        yield warn(KNOBS_CHECK, "; ".join(missing), "; ".join(fixes))
    if awaits is not None:
        yield awaits
    elif not missing:
        measured = "batch known after the first step, resume flag known"
        yield ok(KNOBS_CHECK, measured if later else "batch and resume flags are known")


def _awaits_checkpoint(flag: str, knobs: Knobs) -> Finding:
    """What happens before there is a checkpoint for a resume flag that takes one."""
    named = f"{flag}=DIR/FILE"
    if flag == knobs.resume:  # its word for the newest one; a switch has none
        named = f"{flag}={knobs.resume_value}" if knobs.resume_value else flag
    return note(
        KNOBS_CHECK,
        f"after a crash stoker restarts with {flag} and the newest complete checkpoint that it finds; while there is none the run waits for you after a crash beyond the first step. Nothing to do if the script saves checkpoints",
        f"if the script always writes the same checkpoint, name it: --resume-knob '{named}' (used from the second attempt on)",
    )


def check_batch_memory(context: CheckContext) -> Iterator[Finding]:
    """What earlier runs of the same kind say of the micro-batch."""
    found = check_memory(context.spec, context.env)
    if found is not None:
        yield found


def check_resume(context: CheckContext) -> Iterator[Finding]:
    """The checkpoint that the arguments name: whether it is there, and whole in a layout that is known."""
    spec = context.spec
    for flag in dict.fromkeys(each for each in (spec.knobs.start, spec.knobs.resume_path) if each):
        given = value_of(spec.entry_args, flag)
        if not given or (os.sep not in given and not given.endswith(FILES)):
            continue  # a word such as "latest", a switch, or a name on a hub
        from supervisor.sources.checkpoint_layouts import whole_at  # most starts name none

        path = Path(spec.cwd, os.path.expanduser(given))
        if not path.exists():
            yield warn(
                "resume",
                f"{flag} names {given}, and there is no such file or folder",
                "name one that exists, or leave the flag out",
            )
        elif (found := whole_at(str(path))) is None:
            yield note(
                "resume", f"{flag} names {given}: not a whole checkpoint of a layout that stoker knows"
            )
        elif (wrote := _ranks_of(path)) is not None and (world := _world(spec)) not in {wrote, None}:
            what = f"{given} was written by {wrote} ranks, and this start has {world}"
            fix = f"start {wrote} ranks, unless the script can take it up with another number (DeepSpeed: a universal checkpoint)"
            yield warn("resume", what, fix)
        else:
            step = f", step {found.step}" if found.step is not None else ""
            yield ok("resume", f"{given}: a whole checkpoint ({found.layout}{step})")


def _ranks_of(path: Path) -> int | None:
    """How many ranks wrote their own part of the optimizer into a checkpoint; None: none did, or it is not known.

    deepspeed/runtime/engine.py names these files; ``latest`` names the folder of the newest.
    """
    tag = path / "latest"
    with contextlib.suppress(OSError, ValueError), open_regular(tag) as file:
        path = path / Path(file.read(200).decode("utf-8", "replace").strip()).name
    try:
        names = os.listdir(path)
    except OSError:
        return None
    ranks = {int(match[1]) for name in names if (match := _RANK_FILE.fullmatch(name))}
    return len(ranks) or None


def _world(spec: JobSpec) -> int | None:
    """Ranks of all nodes; None where the number of nodes may change."""
    return int(spec.nnodes) * spec.nproc_per_node if spec.nnodes.isdecimal() else None


def check_data(context: CheckContext) -> Iterator[Finding]:
    """The files that the bundled trainer is told to read."""
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
    """Those files read to their end, as `stoker check --data` does: header, size, every token within the vocabulary."""
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
    """A SLURM allocation against the job: its nodes, its tasks, and the time that is left."""
    spec, scheduler = context.spec, scheduler_of(context.env)
    if (place := scheduler.place) is None:
        return
    if place.nodes > 1 and spec.nnodes == "1" and spec.entry_kind is not EntryKind.COMMAND:
        what = f"the {scheduler.name} job has {place.nodes} nodes, and this start uses one of them"
        yield warn(
            "SLURM", what, "srun --ntasks-per-node=1 stoker run …: started on each node, it finds its place"
        )
    if place.tasks_here > 1 and spec.nproc_per_node > 1:
        what = (
            f"srun starts {place.tasks_here * place.nodes} tasks on {place.nodes} nodes, "
            f"and each would start {spec.nproc_per_node} ranks"
        )
        yield warn("SLURM", what, "--ntasks-per-node=1: torchrun starts the ranks")
    if (left_s := scheduler.time_left_s(time.time())) is not None and left_s < SHORT_S:
        what = f"{max(int(left_s // 60), 0)} minutes of the SLURM job are left"
        yield warn("SLURM", what, "ask for more (--time), or save often")


def check_launcher_flags(context: CheckContext) -> Iterator[Finding]:
    """Flags that are handed on to torchrun, against those that the target's torchrun knows; asking it imports torch."""
    spec, interpreter = context.spec, context.interpreter
    if not spec.torchrun_flags or interpreter is None or spec.entry_kind is EntryKind.COMMAND:
        return
    known = torchrun_flags(interpreter.path, context.env)
    given = [flag.partition("=")[0] for flag in spec.torchrun_flags]
    unknown = [flag for flag in given if flag not in known and flag.replace("_", "-") not in known]
    if not known:
        yield note("torchrun", f"{interpreter.path} did not list torchrun's flags")
    elif unknown:
        what = f"torchrun of torch {interpreter.torch_version} does not know {', '.join(unknown)}"
        yield refuse("torchrun", what, "leave it out, or use a torch that has it")
    else:
        yield ok("torchrun", f"knows {', '.join(given)}")

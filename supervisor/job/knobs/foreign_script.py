"""A foreign script's knobs and batch: found in what it is given, set where a person asked for it."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.assignments import set_value, settings_of, value_of
from supervisor.job.arguments.launchers import ACCELERATE, Launch, names_machines, read_launch, with_one_rank
from supervisor.job.batch import BatchSpec, BatchUnit, divisors
from supervisor.job.config.settings import Resolver
from supervisor.job.errors import JobError
from supervisor.job.knobs.batch_settings import set_batch as kn
from supervisor.job.knobs.batch_settings.candidates import as_number
from supervisor.job.knobs.batch_settings.find import find_knobs
from supervisor.job.knobs.batch_settings.refusals import SMALLER_GLOBAL
from supervisor.job.knobs.configs import collect_configs
from supervisor.job.knobs.data_loader import find_loader
from supervisor.job.knobs.group_timeout import find_group_timeout
from supervisor.job.knobs.places import Places, is_argument
from supervisor.job.knobs.questions import Outcome, question_of, with_declared
from supervisor.job.knobs.resuming.checkpoint_flags import find_outputs, find_prefixes
from supervisor.job.knobs.source.program import Program, read_program
from supervisor.job.knobs.source.read_source import ScriptSource, scan_files
from supervisor.job.knobs.trial_settings import configured_steps, plan_trial, trial_notes
from supervisor.job.spec import (
    AccumulationCounts,
    AnswerGiven,
    BatchQuestion,
    EntryKind,
    FoundNumber,
    JobSpec,
    Knobs,
    KnobScope,
    Unread,
)

# Ranks of one node, where no GPU is seen that would say more.
_USUAL_RANKS: Final = (1, 2, 4, 8, 16)
_TOTAL_STEPS: Final = (
    "--max_steps",
    "--max_train_steps",
    "--total_steps",
    "--num_iterations",
    "--max_iters",
    "--train_iters",
    "--num_train_steps",
    "--num_steps",
)


def with_knobs(
    spec: JobSpec,
    look: Resolver,
    world: int | None,
    *,
    script_text: str | None = None,
    script_configs: Mapping[str, str] | None = None,
    read: Callable[[str], str | None] | None = None,
    gpus: int = 0,
    alone: str = "",
    accelerate_config: str | None = None,
    answered: Callable[[BatchQuestion], AnswerGiven | None] = lambda _: None,
) -> JobSpec:
    """`spec` with the script's knobs and batch found, and ``--micro-batch`` and ``--global-batch`` applied.

    Args:
        spec: the job so far.
        look: the settings.
        world: ranks in all, if known.
        script_text: the script's source, where the caller opened it already.
        script_configs: config files that the caller opened already, text by name.
        read: opens a file by the name that the command line uses; the source's imports and nested configs come through it.
        gpus: GPUs that the job would see.
        alone: the flag that asks for one rank; empty where none does.
        accelerate_config: path of accelerate's default config.
        answered: what a person answered to a question in an earlier run of the same script, and when.

    Raises:
        JobError: a batch that a person asked for cannot be set or does not divide; a command starts several ranks where one is
            asked for.
    """
    asked = _Asked.of(look)
    as_given = spec.entry_args
    if alone:
        spec = _with_one_rank(spec, read or (lambda _: None), gpus, accelerate_config, alone)
    where, world, script = _places(
        spec, look, world, script_text, script_configs or {}, read, gpus, accelerate_config
    )
    knobs = find_knobs(spec.entry_args, None, asked.knobs, elsewhere=where, world=world)
    spec = replace(spec, world_size=world)
    if spec.entry_kind is EntryKind.COMMAND and knobs.batch_scope is KnobScope.PER_NODE:
        world = None  # how its ranks lie on nodes is the command's own business
    args = spec.entry_args
    set_knobs: dict[str, str] = {}
    if asked.micro is not None:
        if knobs.batch is None or knobs.batch_scope is not KnobScope.PER_RANK:
            unsaid = f"what {knobs.batch} counts is not known: say --batch-scope per_rank"
            why = kn.why_not_changeable(knobs) if knobs.batch is None else unsaid
            raise JobError(f"--micro-batch {asked.micro} cannot be set: {why}")
        args, where = _set_knob(args, where, set_knobs, knobs.batch, str(asked.micro))
    batch, knobs, notes = _batch(spec, args, knobs, where, world, asked)
    if knobs.unread is not None:
        about = _Unread(spec, args, where, world, asked, script)
        spec, knobs, batch = about.settled(knobs, batch, answered)
        if (known := spec.answered) is not None:
            look.note(f"answer.{known.question.what}", known.value, f"you answered on {known.day}")
    if asked.total is not None:
        if batch is None:
            raise JobError(f"--global-batch {asked.total} cannot be set: {kn.why_not_changeable(knobs)}")
        for name, value in kn.batch_values(knobs, batch, local_world_size=spec.nproc_per_node):
            args, where = _set_knob(args, where, set_knobs, name, value)
    _note_origins(look, knobs)
    group_timeout_s = find_group_timeout(settings_of(args), where)
    if group_timeout_s is not None:
        look.note(
            "group timeout", f"{group_timeout_s:g} s", "found in the arguments, the source or the environment"
        )
    trial = spec.trial
    if trial is not None:
        resumes = knobs.start is not None and value_of(args, knobs.start) is not None
        trial = plan_trial(trial, args, where, batch, resumes=resumes)
        for knob in trial.knobs:
            look.note(knob.name, knob.value, "--trial")
            args, where = _set_knob(args, where, set_knobs, knob.name, knob.value)
        trial, notes = replace(trial, args=as_given), (*notes, *trial_notes(trial))
    return replace(
        spec,
        entry_args=args,
        trial=trial,
        knobs=knobs,
        retry=replace(spec.retry, min_micro_batch=max(spec.retry.min_micro_batch, knobs.least_micro)),
        batch=batch,
        loader=find_loader(args, where),
        outputs=find_outputs(settings_of(args), where),
        output_prefixes=find_prefixes(settings_of(args), where),
        group_timeout_s=group_timeout_s,
        set_knobs=tuple(set_knobs.items()),
        notes=notes,
        total_steps=spec.total_steps or _total_steps(args, where),
    )


def _with_one_rank(
    spec: JobSpec, read: Callable[[str], str | None], gpus: int, accelerate_config: str | None, flag: str
) -> JobSpec:
    """The job with its launcher told to start one rank, where another than torchrun of ours starts them.

    Raises:
        JobError: it starts several, and what would make it start one is not known for certain.
    """
    for setting in settings_of(spec.entry_args):
        is_count = setting.name.lstrip("-+").replace("-", "_") in _DEVICES
        if is_count and (as_number(setting.value) or 1) > 1:
            raise JobError(f"{flag} wants one rank, and {setting.name} says {setting.value}: say 1")
    if spec.entry_kind is not EntryKind.COMMAND:
        return spec
    launch, _ = _launch(spec, read, gpus, accelerate_config)
    if launch.ranks in {None, 1} and not names_machines(launch):
        return spec
    changed = with_one_rank((spec.entry, *spec.entry_args), launch)
    if changed is None:
        many = "names machines" if names_machines(launch) else f"starts {launch.ranks}"
        raise JobError(
            f"{flag} wants one rank, and the command after `--` {many}: make it start one, by its own flags"
        )
    note = f"{flag}: {launch.launchers[0]} starts 1 rank, not {launch.ranks}"
    return replace(spec, entry_args=changed[1:], notes=(*spec.notes, note))


@dataclass(frozen=True, slots=True)
class _Unread:
    """A job of whose batch something could not be read. `script`: hash of the files that were read."""

    spec: JobSpec
    args: tuple[str, ...]
    where: Places
    world: int | None
    asked: _Asked
    script: str

    def settled(
        self,
        knobs: Knobs,
        batch: BatchSpec | None,
        answered: Callable[[BatchQuestion], AnswerGiven | None],
    ) -> tuple[JobSpec, Knobs, BatchSpec | None]:
        """With the answer that is known already, else with the question; without both where no answer would help."""
        what, spec = knobs.unread, self.spec
        assert what is not None, "there is something to ask"
        question, outcomes = question_of(
            knobs,
            lambda value: self._outcome(what, value),
            local_world_size=spec.nproc_per_node,
            minimum=spec.retry.min_micro_batch,
            per_node=spec.several_nodes,
            script=self.script,
        )
        if question is None and outcomes:
            return spec, *outcomes[0]
        if question is None:
            return spec, replace(_without_smaller_global(knobs, ""), help="", unread=None), batch
        given = answered(question) if question.script else None
        at = next((i for i, a in enumerate(question.answers) if given and a.value == given.value), None)
        if given is None or at is None:
            spec = replace(spec, question=question, if_answered=outcomes)
            return spec, _with_help(knobs, question), batch
        found, batch = outcomes[at]
        return replace(spec, answered=given), _noted(found, given), batch

    def _outcome(self, what: Unread, value: str) -> Outcome:
        given = with_declared(self.asked.knobs, what, value)
        knobs = find_knobs(self.spec.entry_args, None, given, elsewhere=self.where, world=self.world)
        batch, knobs, _ = _batch(self.spec, self.args, knobs, self.where, self.world, self.asked)
        return knobs, batch


def _with_help(knobs: Knobs, question: BatchQuestion) -> Knobs:
    """The refusal with those flags alone whose answer leads to a smaller batch."""
    ways = [question.flag(answer.value) for answer in question.answers if answer.change is not None]
    more = f"{SMALLER_GLOBAL} with " if knobs.help.startswith(SMALLER_GLOBAL) else ""
    help_ = more + ", or ".join(ways)
    return replace(knobs, refusal=knobs.refusal.replace(f"({knobs.help})", f"({help_})"), help=help_)


def _noted(knobs: Knobs, known: AnswerGiven) -> Knobs:
    """The knobs with the day of the answer where it is said from where each number comes."""
    about = "accumulation" if known.question.what is Unread.ACCUMULATION else "micro"
    text = f"you answered on {known.day}: {known.question.flag(known.value)}"
    return replace(
        knobs,
        found=tuple(
            FoundNumber(n.what, n.value, f"{n.where}, {text}") if n.what == about else n for n in knobs.found
        ),
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a person declared about the batch."""

    knobs: Knobs | None
    unit: BatchUnit | None
    tokens: int
    micro: int | None
    total: int | None

    @classmethod
    def of(cls, look: Resolver) -> _Asked:
        """Reads the settings."""
        return cls(*_declared_knobs(look), look.get("batch.micro"), look.get("batch.global"))

    @property
    def spelt_out(self) -> bool:
        """Whether the batch's numbers or its setting were named: then they must divide."""
        named = self.knobs is not None and self.knobs.batch is not None
        return named or self.micro is not None or self.total is not None


def _places(
    spec: JobSpec,
    look: Resolver,
    world: int | None,
    script_text: str | None,
    script_configs: Mapping[str, str],
    read: Callable[[str], str | None] | None,
    gpus: int,
    accelerate_config: str | None,
) -> tuple[Places, int | None, str]:
    """All that the job's settings can be read from, its ranks if they are known, and the hash of the files that were read."""
    opened = read or (lambda _: None)
    launch, at = _launch(spec, opened, gpus, accelerate_config)
    program = _program(spec, launch, opened, script_text, at)
    source = scan_files(program.files)
    # One rank is a declaration too, unless the command's own launcher says otherwise.
    declared = launch.ranks in {None, 1} and any(
        key == "run.nproc_per_node" and origin != "default" for key, _, origin in look.origins
    )
    if spec.entry_kind is EntryKind.COMMAND and not declared:
        world = _command_world(spec, world, launch)
        if is_plain_python(spec) and world == 1 and starts_own_ranks(source, spec.entry_args, gpus):
            world = None
    configs = collect_configs(spec.entry_args, replace(launch, args_at=at), source, opened, script_configs)
    env = {**look.env, **dict(spec.env)}
    name = launch.program or launch.module or posixpath.basename(launch.script or "")
    where = Places(
        source,
        configs.values,
        env,
        configs.settled,
        configs.roles,
        configs.fixed,
        name,
        at,
        configs.lone,
        configs.written,
        _may_be(launch, gpus) if world is None else (),
    )
    return where, world, _content_hash(program)


def _batch(
    spec: JobSpec, args: tuple[str, ...], knobs: Knobs, where: Places, world: int | None, asked: _Asked
) -> tuple[BatchSpec | None, Knobs, tuple[str, ...]]:
    """The batch's numbers, where they are known; what contradicts them is noted, or raised where a person named them."""
    batch: BatchSpec | None = None
    if world is not None or knobs.can_change_batch or knobs.batch_scope is KnobScope.PER_RANK:
        try:
            batch = kn.batch_of(
                args,
                knobs,
                world_size=world,
                local_world_size=spec.nproc_per_node,
                elsewhere=where,
                global_batch=asked.total,
                unit=asked.unit,
                tokens_per_sample=asked.tokens,
            )
        except JobError as error:
            # A batch that a person spelt out for us must divide; one that we merely found is the script's
            # own business, and may mean something else than its name says.
            if asked.spelt_out:
                raise
            note = f"batch not understood, so never changed by itself: {error.message}"
            knobs = _without_smaller_global(knobs, "")
            return None, replace(knobs, refusal=knobs.refusal or error.message), (*spec.notes, note)
    divided = knobs.paired and knobs.batch_scope in {KnobScope.GLOBAL, KnobScope.PER_NODE}
    is_whole = knobs.batch_scope is KnobScope.GLOBAL and knobs.accumulation is not None
    if batch is None and world is None and not knobs.refusal and where.ranks and is_whole:
        batch, knobs = _divided_by_any(args, knobs, where, asked)
    if batch is None and not knobs.refusal and divided:
        why = f"{knobs.batch} is divided among the ranks, and how many there are is not known"
        knobs = replace(knobs, refusal=why, help="--nproc-per-node N")
    if batch is None and world is None and knobs.batch_scope is not KnobScope.UNKNOWN:
        knobs = _without_smaller_global(knobs, f"--nproc-per-node N with {SMALLER_GLOBAL}")
    return batch, knobs, spec.notes


def _may_be(launch: Launch, gpus: int) -> tuple[int, ...]:
    """How many ranks accelerate, or a program itself, may start where nobody gives a number: one, or one for each GPU that it sees."""
    if names_machines(launch) or not set(launch.launchers[-1:]) <= ACCELERATE:
        return ()
    return (1, gpus) if gpus else _USUAL_RANKS


def _divided_by_any(
    args: tuple[str, ...], knobs: Knobs, where: Places, asked: _Asked
) -> tuple[BatchSpec | None, Knobs]:
    """The batch in the units of its own setting, down to the least that each number of ranks divides as it divides the present one."""
    about = replace(knobs, batch_scope=KnobScope.UNKNOWN) if knobs.paired else knobs
    try:
        whole = kn.batch_of(
            args,
            about,
            world_size=None if knobs.paired else 1,
            local_world_size=1,
            elsewhere=where,
            global_batch=asked.total,
        )
    except JobError:
        whole = None
    if whole is None:
        return None, knobs
    whole = replace(whole, ranks_known=False)
    given, least = whole.micro_batch_per_rank, whole.micro_batch_per_rank
    for smaller in sorted(divisors(given)[:-1], reverse=True):
        if any(smaller < n or (smaller // n) * (given // smaller) != given // n for n in where.ranks):
            break
        least = smaller
    if least == given:
        return None, knobs
    return whole, replace(knobs, least_micro=max(knobs.least_micro, least))


def _without_smaller_global(knobs: Knobs, instead: str) -> Knobs:
    """A refusal without the flag that would not help here, and with what would `instead`."""
    if not knobs.help.startswith(SMALLER_GLOBAL):
        return knobs
    why = knobs.refusal.replace(f" ({knobs.help})", f" ({instead})" if instead else "")
    return replace(knobs, refusal=why, help=instead)


def _note_origins(look: Resolver, knobs: Knobs) -> None:
    """Records in the settings which knobs are used, and whether a person named them."""
    origin = "declared" if knobs.declared else "found in the arguments or the source"
    named = {
        "batch": knobs.batch,
        "accumulation": knobs.accumulation,
        "global batch": knobs.global_batch,
        "resume": knobs.start,
    }
    for label, knob in named.items():
        if knob is not None:
            look.note(f"knob.{label}", knob, origin)


def _total_steps(args: tuple[str, ...], where: Places) -> int | None:
    """How many steps the arguments ask for, else a config."""
    given = (value_of(args, name) for name in _TOTAL_STEPS)
    text = next((value for value in given if value and value.isascii() and value.isdigit()), "")
    return int(text) if 0 < len(text) < 12 else configured_steps(args, where)


def _set_knob(
    args: tuple[str, ...], where: Places, others: dict[str, str], name: str, value: str
) -> tuple[tuple[str, ...], Places]:
    """A knob set from the first launch on; where it is no argument it goes to `others`."""
    if is_argument(name):
        return set_value(args, name, value), where
    others[name] = value
    return args, where.with_value(name, value)


def _declared_knobs(look: Resolver) -> tuple[Knobs | None, BatchUnit | None, int]:
    resume = look.get("resume.knob")
    value = look.get("resume.value")
    if resume is not None and value is None:
        # `--resume-knob --resume=latest` names flag and value at once; without a value the source shows what the flag takes.
        resume, _, value = resume.partition("=")
    scope, counts = look.get("batch.scope"), look.get("batch.accumulation_counts")
    declared = Knobs(
        batch=look.get("batch.knob"),
        batch_scope=KnobScope(scope) if scope else KnobScope.UNKNOWN,
        accumulation=look.get("batch.accumulation_knob"),
        global_batch=look.get("batch.global_knob"),
        resume=resume,
        resume_value=value if value is not None else "auto",
        counts=AccumulationCounts(counts) if counts else AccumulationCounts.PER_RANK,
        self_resuming=bool(look.get("resume.self_resuming")),
    )
    unit = look.get("batch.unit")
    tokens = look.get("batch.tokens_per_sample")
    if unit == "tokens" and tokens is None:
        raise JobError("batch.unit = tokens needs batch.tokens_per_sample")
    known = None if declared == Knobs() else declared
    return known, BatchUnit(unit) if unit else None, tokens or 1


def _launch(
    spec: JobSpec, read: Callable[[str], str | None], gpus: int, accelerate_config: str | None
) -> tuple[Launch, int]:
    """What the job runs, and where the script's own arguments begin within `entry_args`."""
    match spec.entry_kind:
        case EntryKind.SCRIPT:
            return Launch(("torchrun",), None, script=spec.entry), 0
        case EntryKind.MODULE:
            return Launch(("torchrun",), None, module=spec.entry), 0
        case EntryKind.COMMAND | EntryKind.TRAINER:
            words = (spec.entry, *spec.entry_args)
            launch = read_launch(words, read=read, gpus=gpus, accelerate_config=accelerate_config)
            return launch, max(launch.args_at - 1, 0)


def _program(
    spec: JobSpec, launch: Launch, read: Callable[[str], str | None], script_text: str | None, at: int
) -> Program:
    program = read_program(
        read, script=launch.script, module=launch.module, program=launch.program, args=spec.entry_args[at:]
    )
    if not program.files and script_text is not None:
        return Program(((launch.script or "", script_text, 0),))
    return program


def _content_hash(program: Program) -> str:
    """A hash of all that was read of the program, wherever it lies; empty where nothing was."""
    texts = "\0".join(text for _, text, _ in program.files)
    return hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest() if texts else ""


def _command_world(spec: JobSpec, world: int | None, launch: Launch) -> int | None:
    """Ranks of a plain command: one for ``python script.py``, what a launcher's arguments say, else unknown."""
    if spec.nproc_per_node > 1 or is_plain_python(spec):
        return world
    return launch.ranks


_DEVICES: Final = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "trainer.")
    for name in ("devices", "gpus", "ngpu", "ngpus", "num_gpus", "num_devices")
)
"""How many devices a script takes by itself; Lightning refuses more than are visible, or than torchrun started."""

_OWN_RANKS: Final = re.compile(
    r"^-{0,2}(trainer\.)?(devices|gpus|ngpus?|num_gpus|num_devices|nproc|multiprocessing_distributed|world_size|nprocs)$"
)


def starts_own_ranks(source: ScriptSource, args: Sequence[str], gpus: int = 0) -> bool:
    """Whether a script that is run directly starts its ranks itself, or uses several GPUs from one process."""
    for setting in settings_of(args):
        if _OWN_RANKS.match(setting.name.replace("-", "_").replace("__", "--", 1)) and setting.value not in {
            "1",
            "0",
        }:
            return True
    calls = source.calls(depth=1)
    if calls & {"spawn", "start_processes", "notebook_launcher", "LightningCLI", "Fabric"}:
        return True
    return gpus > 1 and bool(calls & {"DataParallel", "Trainer", "from_argparse_args", "HfArgumentParser"})


def is_python(program: str) -> bool:
    """Whether a command is a Python interpreter, by its name."""
    return re.fullmatch(r"python[\d.]*", posixpath.basename(program)) is not None


def is_plain_python(spec: JobSpec) -> bool:
    """Whether a command is a Python script run directly: the process is then the job's one rank, no launcher's."""
    return spec.entry_kind is EntryKind.COMMAND and is_python(spec.entry) and "-m" not in spec.entry_args[:2]

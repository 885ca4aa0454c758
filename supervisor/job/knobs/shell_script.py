"""A job that a shell script starts: its knobs are those of the one training command in it, set by what the script hands on.

A flag that is appended to ``bash train.sh`` reaches the training only where the script hands its arguments on at the end of that command, and
counts there only where the parser takes the last of two. A variable that the script leaves open (``${BATCH:-16}``) is set in the
environment. Both are tried on the script's text before they are used: the command must change by exactly that. Else the plan is refused
with the line, and the command itself is what would help.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from supervisor.job.arguments.assignments import set_value, settings_of, value_of
from supervisor.job.arguments.launchers import LAUNCHERS, Launch, read_launch
from supervisor.job.batch import divisors
from supervisor.job.config.edit import SUFFIXES, config_words
from supervisor.job.config.settings import Resolver
from supervisor.job.env import VISIBLE
from supervisor.job.errors import JobError
from supervisor.job.knobs.places import ENV, Place, config_file, place_of
from supervisor.job.knobs.source.program import read_program
from supervisor.job.knobs.source.read_source import ScriptSource, scan_files
from supervisor.job.oom_plan import OomRefusal, oom_plan
from supervisor.job.shell.expand import as_shell_text, may_be_several, shown, why_unknown
from supervisor.job.shell.run import NotKnownError, ScriptRun, Started, follow, shell_words
from supervisor.job.spec import (
    AccumulationCounts,
    EntryKind,
    FoundNumber,
    JobSpec,
    Knobs,
    KnobScope,
    LoaderKnobs,
)
from supervisor.text.redact import HIDDEN, redact, redact_argv

Read = Callable[[str], str | None]
Find = Callable[[JobSpec, Read, Mapping[str, str], int], JobSpec]

# What is appended to see what the script does with it.
_PROBES: Final = (
    tuple(f"--stoker-{i}=1" for i in range(12)),
    ("--stoker-0=1",),
    ("--stoker-0=1", "--stoker-1", "2"),
)
_BLANK: Final = ("--stoker-a=b c",)
_OTHER: Final = 7919
_PATH: Final = "/stoker/checkpoint"
# Parsers that refuse a flag that is given twice, or of which that is not known.
_ONCE: Final = frozenset({"hydra", "docopt", "sacred", "tyro"})
_DECLARE_IT: Final = "name the training command itself behind `--`"


def with_script_knobs(
    spec: JobSpec, look: Resolver, find: Find, *, read: Read | None, given: Mapping[str, str], gpus: int
) -> JobSpec:
    """The job with its knobs found; those of a shell script from the command that it starts.

    Args:
        spec: the job so far.
        look: the settings.
        find: finds the knobs of a job: with what opens its files, the configs that were opened already, and the GPUs that it sees.
        read: opens a file by its name below the working folder.
        given: config files that the caller opened already, text by name.
        gpus: GPUs that the job would see.

    Raises:
        JobError: as `find`.
    """
    words = (spec.entry, *spec.entry_args)
    opened = read or (lambda _: None)
    if spec.entry_kind is not EntryKind.COMMAND or read is None or not shell_words(words, read):
        return find(spec, opened, given, gpus)
    script = Script(spec, look, words, read)
    try:
        run = script.run(words, {})
        inside = script.inside(run.training, run.touched)
    except NotKnownError as error:
        as_given = find(spec, opened, given, gpus)
        return as_given if look.get("batch.knob") else _refused(as_given, error.why, _DECLARE_IT)
    folder = posixpath.relpath(run.training.cwd, spec.cwd)
    below = opened if folder == "." else lambda name: opened(posixpath.join(folder, name))
    texts = {name: text for name in config_words(inside.entry_args) if (text := below(name)) is not None}
    found = find(inside, below, texts, _gpus(run.training, gpus))
    route = _Route(script, run, found, folder, below)
    if look.get("batch.knob") and not route.reaches(look.get("batch.knob")):
        return find(spec, opened, given, gpus)
    return route.outside()


def _gpus(training: Started, gpus: int) -> int:
    """GPUs that the training sees."""
    visible = dict(training.env).get(VISIBLE)
    if visible is None or why_unknown(visible) is not None:
        return gpus
    return len([part for part in visible.split(",") if part.strip() not in {"", "-1"}])


def _refused(spec: JobSpec, why: str, help_: str) -> JobSpec:
    """The job with a batch and a resume that nothing would change."""
    knobs = Knobs(
        refusal=why,
        help=help_,
        found=spec.knobs.found,
        self_resuming=spec.knobs.self_resuming and spec.knobs.resume_path is None,
        resumes=spec.knobs.resumes if spec.knobs.self_resuming else why,
        declared=spec.knobs.declared,
        batch=spec.knobs.batch,
    )
    return replace(spec, knobs=knobs, question=None, if_answered=(), loader=LoaderKnobs())


class _Route:
    """How settings reach the training through its script."""

    def __init__(self, script: Script, run: ScriptRun, found: JobSpec, folder: str, read: Read) -> None:
        self._script = script
        self._run = run
        self._found = found
        self._folder = folder
        self._read = read
        self._why: list[str] = []

    # -- the script's text, tried

    @cached_property
    def _not_handed_on(self) -> str:
        """Why what is appended to the command line does not stand at the end of the training's; empty where it does."""
        training = self._run.training
        for probe in _PROBES:
            try:
                tried = self._script.run((*self._script.words, *probe), {})
            except NotKnownError as error:
                return f"with a further argument {error.why}"
            after = tried.training
            if after.words != (*training.words, *probe):
                how = "no further arguments on"
                if probe[-1] == after.words[-1]:
                    how = "its arguments on, but takes a further one for itself"
                elif probe[-1] in after.words:
                    how = "its arguments on, but not at its end"
                return f"{training.at} starts it and hands {how}"
            if not self._changes_nothing_else(tried):
                return f"a further argument changes more than the command in {training.at}"
        return ""

    @cached_property
    def _keeps_blanks(self) -> bool:
        """Whether an argument with a blank stays one word."""
        try:
            after = self._script.run((*self._script.words, *_BLANK), {}).training.words
        except NotKnownError:
            return False
        return after == (*self._run.training.words, *_BLANK)

    @cached_property
    def _source(self) -> ScriptSource:
        program = read_program(
            self._read,
            script=self._launch.script,
            module=self._launch.module,
            program=self._launch.program,
            args=self._own,
        )
        return scan_files(program.files)

    @cached_property
    def _inner(self) -> tuple[str, ...]:
        return self._script.inside(self._run.training).entry_args

    @cached_property
    def _launch(self) -> Launch:
        inside = self._script.inside(self._run.training)
        return read_launch((inside.entry, *inside.entry_args))

    @cached_property
    def _own(self) -> tuple[str, ...]:
        """The training script's own arguments."""
        return self._inner[max(self._launch.args_at - 1, 0) :]

    def _not_last(self, name: str) -> str:
        """Why the training would not take a setting behind its other arguments; empty where it does."""
        if value_of(self._own, name) is None:
            return ""  # behind the command alone it would be added just so
        source, at = self._source, self._run.training.at
        once = sorted(_ONCE & source.modules) or ([] if name.startswith("-") else ["its parser"])
        if once:
            return f"{at} sets {name} already, and {once[0]} may not take it twice"
        if not source.files:
            return f"{at} sets {name} already, and its parser could not be read"
        if "--" in self._own:
            return f"{at} has `--` before the arguments that it hands on"
        if "add_subparsers" in source.used | source.calls():
            return f"{at} starts a command with subcommands, and a flag behind them may be another's"
        if "REMAINDER" in source.used:
            return f"{at} starts a command that takes all that follows as one list"
        return ""

    def _not_arriving(self, name: str) -> str:
        """Why a setting of the user's command line would not reach the training under its name; empty where it does."""
        training = self._run.training
        words = (self._script.words[0], *set_value(self._script.words[1:], name, str(_OTHER)))
        try:
            tried = self._script.run(words, {})
        except NotKnownError as error:
            return f"with {name} {error.why}"
        arrives = self._sets_alone(tried, name, str(_OTHER))
        return "" if arrives else f"{training.at} takes {name} for something else"

    def _sets_alone(self, tried: ScriptRun, name: str, value: str, variable: str = "") -> bool:
        """Whether a start of the script with `variable`, or with an argument, sets this of the training and nothing else."""
        training, after = self._run.training, tried.training
        start = len(training.words) - len(self._own)
        head, own, here = training.words[:start], training.words[start:], after.words[start:]
        others = [
            [(s.name, s.value) for s in settings_of(w) if not _alike(s.name, name)] for w in (own, here)
        ]
        same = others[0] == others[1] and after.words[: len(head)] == head
        return value_of(here, name) == value and same and self._changes_nothing_else(tried, variable)

    def _changes_nothing_else(self, tried: ScriptRun, variable: str = "") -> bool:
        """Whether a start of the script leaves all but the training's words as it was, and but `variable`, which was given to it."""
        before, after = self._run.training, tried.training
        env = tuple(pair for pair in after.env if pair[0] != variable)
        return (env, after.cwd, tried.others) == (before.env, before.cwd, self._run.others)

    # -- names

    def reaches(self, name: str) -> bool:
        """Whether a setting can be set from outside."""
        return self._outer(name, "micro") is not None

    def _outer(self, name: str, what: str) -> str | None:
        """The name under which a setting is set from outside; None: it cannot be."""
        match place_of(name):
            case Place.ENVIRONMENT:
                variable = name.removeprefix(ENV)
                if variable not in dict(self._run.training.env):
                    return name
                self._why.append(f"{self._run.training.at} sets {variable} itself")
            case Place.FILE:
                return self._outer_file(name)
            case Place.ARGUMENT:
                why = self._not_handed_on or self._not_last(name) or self._not_arriving(name)
                if not why:
                    return name
                open_ = self._variable(name, what)
                if open_ is not None:
                    return f"{ENV}{open_}"
                self._why.append(why)
        return None

    def _outer_file(self, name: str) -> str | None:
        """A config's key where its changed copy can be named by a flag behind the others."""
        file, _, key = name.partition("#")
        given = [s.name for s in settings_of(self._own) if s.value == config_file(file)]
        flag = file.partition("=")[0] if file.startswith("-") else given[0] if len(given) == 1 else None
        if flag is None or not flag.startswith("-"):
            self._why.append(
                f"{self._run.training.at} names the config {file}, and no flag that could come after it"
            )
            return None
        why = self._not_handed_on or self._not_last(flag) or self._not_arriving(flag)
        if why:
            self._why.append(why)
            return None
        return f"{flag}={posixpath.normpath(posixpath.join(self._folder, config_file(file)))}#{key}"

    def _variable(self, name: str, what: str) -> str | None:
        """The variable that the script leaves open and that gives a setting its value, and nothing else."""
        held = value_of(self._own, name)
        micro = self._found.knobs.number("micro")
        number = micro.value if micro is not None and micro.value is not None else 0
        if held is None or not held.isdigit() or not number:
            return None
        parts = divisors(number)
        values = [*parts] if what == "micro" else [int(held) * part for part in parts]
        return next(
            (v for v in self._run.settable if self._gives(v, [(n, {name: n}) for n in (*values, _OTHER)])),
            None,
        )

    def _gives(self, variable: str, cases: Iterable[tuple[int, Mapping[str, int]]]) -> bool:
        """Whether each value of a variable leads to these settings of the training, and changes nothing else."""
        training = self._run.training
        start = len(training.words) - len(self._own)
        for value, wanted in cases:
            try:
                tried = self._script.run(self._script.words, {variable: str(value)})
            except NotKnownError:
                return False
            own = training.words[start:]
            for name, number in wanted.items():
                own = set_value(own, name, str(number))
            if tried.training.words != (*training.words[:start], *own):
                return False
            if not self._changes_nothing_else(tried, variable):
                return False
        return True

    # -- the job

    def outside(self) -> JobSpec:
        """The job as it is started, with the knobs under the names that reach the training."""
        found, spec = self._found, self._script.spec
        alike = found.knobs
        knobs = self._knobs(alike)
        answers = tuple((self._knobs(k), batch) for k, batch in found.if_answered)
        reached = not knobs.refusal or knobs.refusal == alike.refusal
        job = replace(
            found,
            entry=spec.entry,
            entry_args=spec.entry_args,
            env=spec.env,
            knobs=knobs,
            set_knobs=self._set_now(),
            question=found.question if reached else None,
            if_answered=answers if reached else (),
            loader=self._loader(),
            notes=found.notes,
            outputs=tuple(self._placed(name) for name in found.outputs),
            output_prefixes=tuple(self._placed(name) for name in found.output_prefixes),
        )
        if found.trial is None:
            return job
        lost = {knob.name for knob in found.trial.knobs if self._outer(knob.name, "") is None}
        if not lost:
            return replace(job, trial=replace(found.trial, args=spec.entry_args))
        return replace(job, trial=replace(found.trial, args=spec.entry_args, knobs=(), ends_itself=False))

    def _placed(self, name: str) -> str:
        return posixpath.normpath(posixpath.join(self._folder, name)) if self._folder != "." else name

    def _set_now(self) -> tuple[tuple[str, str], ...]:
        """What is set from the first launch on.

        Raises:
            JobError: it does not reach the training.
        """
        before, after = self._inner, self._found.entry_args
        start, at = len(before) - len(self._own), self._run.training.at
        if after[:start] != before[:start]:
            raise JobError(f"{at} starts several ranks: give the command itself: {self.command}")
        of_trial = {knob.name for knob in self._found.trial.knobs} if self._found.trial is not None else set()
        names = dict.fromkeys(s.name for s in settings_of(after))
        changed = {n: value_of(after, n) or "" for n in names if value_of(after, n) != value_of(before, n)}
        pairs = {}
        for name, value in {**changed, **dict(self._found.set_knobs)}.items():
            outer = self._outer(name, "micro")
            if outer is not None:
                pairs[outer] = value
            elif name not in of_trial:
                raise JobError(
                    f"{name} cannot be set: {self._why[-1]}: give the command itself: {self.command}"
                )
        return tuple(pairs.items())

    def _loader(self) -> LoaderKnobs:
        known = self._found.loader
        kept = {
            name: held
            for name in ("workers", "prefetch", "pinned", "sharing")
            if (held := getattr(known, name)) is not None and self._outer(held[0], "") == held[0]
        }
        return LoaderKnobs(**kept)

    def _knobs(self, knobs: Knobs) -> Knobs:
        """The knobs as they are named from outside; refused where one cannot be set."""
        self._why.clear()
        roles = [
            (knobs.batch, "micro"),
            (knobs.accumulation, "accumulation"),
            (knobs.global_batch, "total"),
            *knobs.same,
        ]
        names = {name: self._outer(name, what) for name, what in roles if name is not None}
        batch_why = next(iter(self._why), "")
        numbers = tuple(
            self._number(n, {what: name for name, what in roles}.get(n.what)) for n in knobs.found
        )
        if None in names.values() and (computed := self._computed(replace(knobs, found=numbers))) is not None:
            return self._with_resume(computed)
        if None in names.values():
            plan = oom_plan(self._found) if knobs is self._found.knobs else None
            why, help_ = (plan.why, plan.help) if isinstance(plan, OomRefusal) else (batch_why, "--")
            knobs = self._with_resume(replace(knobs, found=numbers))
            # The names stay, for people; without a scope nobody can set them either.
            return replace(
                knobs,
                batch_scope=KnobScope.UNKNOWN,
                refusal=why,
                help=self._command_with(help_) if "--" in help_ else help_,
                unread=None,
                choices=(),
            )
        knobs = self._with_resume(replace(knobs, found=numbers))
        if knobs.refusal and self._not_handed_on and "--" in knobs.help:
            knobs = replace(knobs, help=self._command_with(knobs.help), unread=None, choices=())
        renamed = {name: outer for name, outer in names.items() if outer is not None}
        return replace(
            knobs,
            batch=renamed.get(knobs.batch or ""),
            accumulation=renamed.get(knobs.accumulation or ""),
            global_batch=renamed.get(knobs.global_batch or ""),
            same=tuple((renamed[name], what) for name, what in knobs.same),
        )

    def _computed(self, knobs: Knobs) -> Knobs | None:
        """The knobs where the script divides a total that it leaves open by a micro-batch that it leaves open; None elsewhere."""
        batch, name, steps = self._found.batch, knobs.batch, knobs.accumulation
        per_rank = knobs.batch_scope is KnobScope.PER_RANK and knobs.counts is AccumulationCounts.PER_RANK
        if (
            batch is None
            or not batch.ranks_known
            or name is None
            or steps is None
            or knobs.same
            or not per_rank
        ):
            return None
        micro, total = batch.micro_batch_per_rank, batch.global_batch
        whole = micro * batch.accumulation_steps
        parts = [part for part in divisors(whole) if part <= micro]
        smaller = [(part, {name: part, steps: whole // part}) for part in parts]
        larger = [(total, {}), (total * 2, {steps: batch.accumulation_steps * 2})]
        of_micro = next((v for v in self._run.settable if self._gives(v, smaller)), None)
        of_total = next((v for v in self._run.settable if self._gives(v, larger)), None)
        if of_micro is None or of_total is None:
            return None
        at = self._run.training.at
        found = [number for number in knobs.found if number.what != "accumulation"]
        return replace(
            knobs,
            batch=f"{ENV}{of_micro}",
            accumulation=None,
            global_batch=f"{ENV}{of_total}",
            paired=False,
            found=(*found, FoundNumber("total", total, at)),
        )

    def _number(self, found: FoundNumber, name: str | None) -> FoundNumber:
        """A number with the line of the script that gives it; of a flag that stands there twice the last counts."""
        if found.where != "command line":
            return found
        last = value_of(self._own, name) if name is not None else None
        value = int(last) if last is not None and last.isascii() and last.isdigit() else found.value
        return replace(found, value=value, where=self._run.training.at)

    def _with_resume(self, knobs: Knobs) -> Knobs:
        """The knobs with a resume that reaches the training; what does not is not known."""
        self._why.clear()
        own = value_of(self._own, knobs.resume) if knobs.resume is not None else None
        flags = [name for name in (knobs.resume, knobs.resume_path, knobs.resume_step) if name is not None]
        values = {knobs.resume: knobs.resume_value}
        outer = {name: self._outer_start(name, values.get(name, _PATH)) for name in flags}
        resume = outer.get(knobs.resume or "")
        if own is not None and own != knobs.resume_value:
            resume = None
            self._why.append(f"{self._run.training.at} sets {knobs.resume} to {own}")
        lost = bool(flags) and None in {resume if knobs.resume else "", *outer.values()}
        return replace(
            knobs,
            resume=resume,
            resume_path=outer.get(knobs.resume_path or ""),
            resume_step=outer.get(knobs.resume_step or ""),
            loads_state=tuple(name for name in knobs.loads_state if self._outer_start(name)),
            resumes=self._why[0] if lost and self._why and not knobs.self_resuming else knobs.resumes,
        )

    def _outer_start(self, name: str, value: str = _PATH) -> str | None:
        """The name under which a start is set from outside; by default to a checkpoint's path."""
        outer, is_argument = self._outer(name, ""), place_of(name) is Place.ARGUMENT
        blanks = is_argument and " " in self._script.spec.cwd
        if outer == name and blanks and not self._keeps_blanks:
            self._why.append(f"{self._run.training.at} splits its arguments at blanks")
            return None
        if outer is not None or not is_argument or not value:
            return outer
        value = value if value != _PATH or not blanks else f"{value} 2"
        for variable in self._run.settable:
            try:
                tried = self._script.run(self._script.words, {variable: value})
            except NotKnownError:
                continue
            if self._sets_alone(tried, name, value, variable):
                return f"{ENV}{variable}"
        return None

    def _command_with(self, help_: str) -> str:
        """The training's own command, to be pasted, with the flag that would help it."""
        flags = help_.replace(" with ", " ")
        known = re.fullmatch(r"--[a-z-]+( --[a-z-]+ [a-z_]+)*", flags) is not None
        return self.command.replace("stoker run --", f"stoker run {flags} --", 1) if known else self.command

    @cached_property
    def command(self) -> str:
        """The training's own command, to be pasted."""
        training = self._run.training
        words = [
            as_shell_text(word) if why_unknown(word) is not None else shlex.quote(shown)
            for word, shown in zip(training.words, redact_argv(training.words), strict=True)
        ]
        env = [f"{name}={_env_value(name, value)}" for name, value in training.env]
        start = ["stoker run --", *(["env", *env] if env else []), *words]
        above = self._folder.startswith("..")  # elsewhere: as the script itself names it, mostly absolute
        place = self._run.training.cwd if above else self._folder
        folder = [] if place == "." else ["cd", shlex.quote(place), "&&"]
        return " ".join([*folder, *start])


def _alike(left: str, right: str) -> bool:
    return left.replace("_", "-") == right.replace("_", "-")


def _env_value(name: str, value: str) -> str:
    if redact(name, value) == HIDDEN:
        return f'"${name}"'
    return as_shell_text(value) if why_unknown(value) is not None else shlex.quote(redact(name, value))


# -- the training that a script starts, as a job; refused where what is not known may matter -------

# Flags of launchers that say nothing of ranks.
_MEETING: Final = re.compile(r"port|addr|rdzv|node_rank|machine_rank|_ip$|log_dir|job_?name|partition|account|^-p$|^-J$")  # fmt: skip
_CONFIGS: Final = re.compile(r"conf|cfg|yaml|json|deepspeed|params", re.IGNORECASE)


@dataclass(frozen=True)
class Script:
    """The script of a job."""

    spec: JobSpec
    look: Resolver
    words: tuple[str, ...]
    read: Read

    def run(self, words: Sequence[str], more: Mapping[str, str]) -> ScriptRun:
        """What the script would start with these words and these variables more."""
        env = {**self.look.env, **dict(self.spec.env), **more}
        return follow(words, read=self.read, env=env, cwd=self.spec.cwd)

    def inside(self, training: Started, touched: frozenset[str] = frozenset()) -> JobSpec:
        """The job of the training command alone.

        Raises:
            NotKnownError: too much of it is not known.
        """
        _require_known(training)
        for name in _configs_of(training):
            if posixpath.normpath(name) in touched:
                why = (
                    f"{training.file} writes {name}, which the training reads, or hands it to another command"
                )
                raise NotKnownError(why)
        here = training.cwd.rstrip("/") + "/"
        words = [shown(word).removeprefix(here) for word in training.words]
        env = {**dict(self.spec.env), **{name: shown(value) for name, value in training.env}}
        return replace(self.spec, entry=words[0], entry_args=tuple(words[1:]), env=tuple(env.items()))


def _configs_of(training: Started) -> list[str]:
    """The configs that a command names; a JSON file behind another kind of flag is data."""
    found = []
    for at, word in enumerate(training.words):
        flag, equals, value = word.partition("=")
        name = flag if equals else training.words[at - 1] if at else ""
        for file in config_words([value if equals else word]):
            is_data = file.lower().endswith(".json") and name.startswith("-") and not _CONFIGS.search(name)
            found += [] if is_data else [file]
    return found


def _require_known(training: Started) -> None:
    """Refuses a command with unknown words that may be settings, configs, or the number of ranks."""
    launch = read_launch([shown(word) for word in training.words])
    torchrun = all("torch" in name for name in launch.launchers)
    for at, word in enumerate(training.words):
        why = may_be_several(word)
        if why is not None:
            raise NotKnownError(f"{training.at} starts it with {shown(word)}: {why}")
        if (why := why_unknown(word)) is None:
            continue
        flag, equals, _ = word.partition("=")
        name = flag if equals else training.words[at - 1] if at else ""
        own = at < launch.args_at
        risky = not torchrun and not _MEETING.search(name) if own else _CONFIGS.search(name)
        if risky or word.lower().endswith((*SUFFIXES, ".py")) or posixpath.basename(name) in LAUNCHERS:
            raise NotKnownError(f"{training.at} starts it with {shown(word)}: {why}")

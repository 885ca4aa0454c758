"""Turn the arguments of ``stoker run`` into a job. Opens the files; `supervisor.job` only parses their contents."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Final

from supervisor.cli.common import say, user_settings
from supervisor.job.arguments.command_line import settings_of
from supervisor.job.arguments.run_arguments import Flag, ParsedRun, parse_run_argv
from supervisor.job.config.files import parse_config
from supervisor.job.config.resolve import JobInputs, resolve_job, resolve_retry, screen_settings
from supervisor.job.config.setting_values import ConfigFile, spec_key_names
from supervisor.job.errors import JobError
from supervisor.job.knobs.resume_settings import is_declared, with_answered_resume
from supervisor.job.knobs.setting_names import is_resume
from supervisor.job.launch.env import is_measured, refuse_unreached
from supervisor.job.spec import (
    BY_ITSELF,
    NEVER,
    EntryKind,
    JobSpec,
    RetrySettings,
)
from supervisor.run.answers import (
    AnswerLine,
    day_of,
    exit_code_question,
    is_resume_answer,
    recall_answer,
    recalled,
    remember_answer,
    resume_question,
    script_of,
    unmeasured_since,
)
from supervisor.run.index import runs_dir
from supervisor.run.records import FailureClass
from supervisor.run.regular import open_regular

MAX_CONFIG_BYTES = 4 << 20
MAX_SCRIPT_BYTES = 4 << 20
MOST_FOLDERS = 100  # folders to search for a missing script
HAND_OFF = "hand-off"  # a folder of presets whose files are for other programs
NOT_MEASURED = "nothing is measured inside its processes: "
PRESET_SUFFIXES = ("", ".toml", ".py", ".yaml", ".yml")


def parse_words(argv: Sequence[str], env: Mapping[str, str], more_own: Sequence[Flag] = ()) -> ParsedRun:
    """Parse the arguments without opening any files. `more_own` holds another verb's flags. Raises JobError."""
    for word in argv:
        if not word.isprintable() and any(0xDC80 <= ord(char) <= 0xDCFF for char in word):
            raise JobError(f"{word!r}: not UTF-8, and so not to be kept in a run's records: rename it")
    has_config = any(word == "--config" or word.startswith("--config=") for word in argv)
    return parse_run_argv(argv, env=env, spec_keys=spec_key_names() if has_config else (), more_own=more_own)


def load_job(parsed: ParsedRun, env: Mapping[str, str], cwd: Path) -> JobSpec:
    """Open the job file, settings files and script, and resolve the job.

    Raises:
        JobError: a file is missing or unreadable, a key is unknown, or a batch does not divide evenly.
    """
    return _load(parsed, _job_file(parsed, cwd), env, cwd)


def load_settings(parsed: ParsedRun, env: Mapping[str, str], cwd: Path) -> JobSpec:
    """Return the job with every setting, including the TUI's. Without a script, use the settings that apply to any job.

    Raises:
        JobError: see `load_job`.
    """
    job_file = _job_file(parsed, cwd)
    if parsed.entry_kind is None and job_file is None:
        parsed = replace(parsed, entry_kind=EntryKind.COMMAND, entry="true")
    spec = _load(parsed, job_file, env, cwd)
    return replace(spec, origins=(*spec.origins, *screen_settings(_inputs(parsed, job_file, env, cwd))))


def load_draft(name: str, text: str, env: Mapping[str, str], cwd: Path) -> JobSpec:
    """Resolve the job in a job file that has not been written yet.

    Raises:
        JobError: see `load_job`.
    """
    draft = ConfigFile(name, parse_config(name, text.encode()), text)
    return _load(ParsedRun(), draft, env, cwd)


def _load(parsed: ParsedRun, job_file: ConfigFile | None, env: Mapping[str, str], cwd: Path) -> JobSpec:
    spec = resolve_job(_inputs(parsed, job_file, env, cwd))
    if spec.entry_kind is EntryKind.SCRIPT and not (cwd / spec.entry).is_file():
        near = _nearest_script(spec.entry, cwd)
        hint = f"did you mean {near}?" if near else "give the path of the .py file to run, or -m MODULE"
        raise JobError(f"{spec.entry}: no such script: {hint}")
    if spec.entry_kind is EntryKind.SCRIPT and (shell := _shell_of(cwd / spec.entry)) is not None:
        words = " ".join([spec.entry, *spec.entry_args])
        raise JobError(f"{spec.entry} is a script for {shell}, not for Python: stoker run -- {shell} {words}")
    is_trust_named = any(origin != "default" for _, origin in spec.sources("policy.exit_zero"))
    if not is_trust_named and (known := recalled(exit_code_question(spec), env)) is not None:
        note = f"exit code 0 of this script counts as a success, as you answered on {known.day}"
        spec = replace(spec, retry=replace(spec.retry, exit_zero="trust"), notes=(*spec.notes, note))
    return _without_measurements(_with_resume(spec, env), env)


def _with_resume(spec: JobSpec, env: Mapping[str, str]) -> JobSpec:
    """Add the resume option the user chose for this script earlier, unless a setting already specifies one."""
    known = None if is_declared(spec.knobs) else recalled(resume_question(spec), env)
    if known is None or not is_resume_answer(known.value):
        return spec
    words = known.question.flag(known.value)
    note = f"how this script resumes is known, as you answered on {known.day}: {words}"
    knobs = with_answered_resume(spec.knobs, known.value)
    return replace(spec, knobs=knobs, notes=(*spec.notes, note), answered=spec.answered or known)


_WORDS: Final = {"s": BY_ITSELF, "self": BY_ITSELF, "n": NEVER, "no": NEVER}
_NOT_ASKED: Final = ("dry_run", "check_only", "detach", "json", "show_config", "trial", "no_retry")


def with_asked_resume(spec: JobSpec, parsed: ParsedRun, env: Mapping[str, str]) -> JobSpec:
    """Ask how a script resumes (once per script) if a user starts it, an option may take a checkpoint and no setting says how.

    Pressing Enter skips the question. Most scripts reveal the answer during training; a notice then says what is missing.
    """
    knobs, retry = spec.knobs, spec.retry
    known = knobs.starts or knobs.self_resuming or knobs.resume_step or knobs.cannot_resume or spec.node_rank
    never = any(map(parsed.switch, _NOT_ASKED)) or retry.restart_from_scratch or not retry.max_retries
    name, _ = script_of(spec)
    is_foreign = spec.entry_kind is not EntryKind.TRAINER and bool(name)
    if known or never or not is_foreign or not _takes_checkpoint(spec):
        return spec
    question, place = resume_question(spec), os.path.join(os.path.realpath(spec.cwd), spec.entry, name)
    asked = replace(question, script=hashlib.sha256(os.fsencode(place)).hexdigest())
    if recall_answer(asked.script, asked.key, env) is not None:
        return spec  # do not ask again because of an edit
    say(f"{name}: how does it resume from a checkpoint, if stoker restarts it? This is asked once.")
    say("s: by itself · n: not at all · its option, as --resume=PATH · Enter: see what it loads and saves")
    value = sys.stdin.readline().strip()
    value = _WORDS.get(value, value)
    answer = value if is_resume_answer(value) else ""
    if value and not answer:
        say(f"{value}: neither s, n nor an option; left open")
    for about, said in ((asked, "asked"), *(((question, answer),) if answer else ())):
        with contextlib.suppress(OSError):  # then the question is asked again
            remember_answer(
                AnswerLine(script=about.script, question=about.key, value=said, t=time.time()), env
            )
    return _with_resume(spec, env)


def _takes_checkpoint(spec: JobSpec) -> bool:
    """Check whether any option passed to the script may accept a checkpoint."""
    return any(is_resume(setting.name) for setting in settings_of(spec.entry_args))


def folder_of_runs(parsed: ParsedRun, env: Mapping[str, str]) -> Path:
    """Return the folder in which the run directory will be created."""
    named = parsed.flag("run_dir")
    return Path(named).absolute().parent if named else runs_dir(parsed.flag("runs_dir"), env)


def _without_measurements(spec: JobSpec, env: Mapping[str, str]) -> JobSpec:
    """Turn off measurements if this script previously got further without them, unless they were turned on or off explicitly."""
    is_named = any(origin != "default" for _, origin in spec.sources("instrument.enabled"))
    since = unmeasured_since(spec, env) if not is_named else None
    if since is None or not is_measured(spec, {**env, **dict(spec.env)}):
        return spec
    note = (
        f"{NOT_MEASURED}on {day_of(since)} this script got further without it (--instrument measures again)"
    )
    origins = (*spec.origins, ("instrument.enabled", "False", f"remembered from {day_of(since)}"))
    spec = replace(spec, instrument=False, notes=(*spec.notes, note), origins=origins)
    return refuse_unreached(spec, env)


def _inputs(parsed: ParsedRun, job_file: ConfigFile | None, env: Mapping[str, str], cwd: Path) -> JobInputs:
    return JobInputs(
        parsed=parsed,
        env=env,
        cwd=str(cwd),
        job_file=job_file,
        project=_optional(cwd / "stoker.toml"),
        user=_optional(user_settings(env)),
        read=lambda name: script_text(cwd / os.path.expanduser(name)),
        gpus=gpu_count(env),
        cpus=os.cpu_count() or 1,
        failure_classes=frozenset(str(c) for c in FailureClass),
    )


def _nearest_script(named: str, cwd: Path) -> str | None:
    """Suggest a script of the same name one folder deeper, or the closest name in the folder, or None if neither exists."""
    folder, name = os.path.split(named)
    try:
        deeper = islice((cwd / folder).glob("*/"), MOST_FOLDERS)
        exact = next((sub.name for sub in deeper if (sub / name).is_file()), None)
        scripts = [path.name for path in (cwd / folder).iterdir() if path.suffix in {".py", ".sh"}]
    except (OSError, ValueError):  # no such folder, or an invalid path with a NUL in it
        return None
    near = os.path.join(exact, name) if exact else next(iter(get_close_matches(name, scripts, n=1)), None)
    return os.path.join(folder, near) if near else None


def _shell_of(script: Path) -> str | None:
    """Return a script's shell, judging by its first line or else its extension, or None if it is not a shell script."""
    first = (script_text(script) or "").partition("\n")[0]
    if first.startswith("#!"):
        program = re.search(r"\b(bash|sh|zsh|dash|ksh|fish)\s*(?:\s-\S*)*$", first)
        return program[1] if program else None
    return {".sh": "bash", ".bash": "bash", ".zsh": "zsh", ".fish": "fish"}.get(script.suffix)


def policy_of(named: str, env: Mapping[str, str], cwd: Path) -> RetrySettings:
    """Return the ``[policy]`` table of a settings file or preset, with defaults for missing keys.

    Raises:
        JobError: the file is missing, or has an invalid key or value.
    """
    inputs = JobInputs(
        parsed=ParsedRun(),
        env=env,
        cwd=str(cwd),
        job_file=_config_file(_find_config(named, cwd), named, f"--config {named}"),
        failure_classes=frozenset(str(c) for c in FailureClass),
    )
    return resolve_retry(inputs)


def configs_dir() -> Path:
    """Return the presets folder: package data in a wheel, the repository's `configs` in a source tree."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def _find_config(named: str, cwd: Path) -> Path:
    path = cwd / os.path.expanduser(named)
    if path.is_file():
        return path
    presets = configs_dir()
    for suffix in PRESET_SUFFIXES:
        candidate = presets / f"{named}{suffix}"
        if candidate.is_file() and presets in candidate.resolve().parents:
            return candidate
    if path.exists():
        raise JobError(f"--config {named}: not a file")
    known = sorted(
        str(p.relative_to(presets).with_suffix(""))
        for p in presets.rglob("*")
        if p.suffix in PRESET_SUFFIXES[1:] and p.name != "__init__.py" and HAND_OFF not in p.parts
    )
    raise JobError(f"--config {named}: no such file; presets are {', '.join(known)}")


def _job_file(parsed: ParsedRun, cwd: Path) -> ConfigFile | None:
    """Return the job file or preset given by ``--config``, if any."""
    named = parsed.flag("config")
    return _config_file(_find_config(named, cwd), named, f"--config {named}") if named else None


def _config_file(path: Path, name: str, what: str) -> ConfigFile:
    """Read a settings file. Messages call it `name` when they concern a key and `what` when they concern the file."""
    data = _read(path, MAX_CONFIG_BYTES, what)
    text, ours = data.decode("utf-8", "replace"), configs_dir() in path.parents
    return ConfigFile(name, parse_config(str(path), data), text, is_preset=ours)


def _optional(path: Path) -> ConfigFile | None:
    return _config_file(path, str(path), str(path)) if path.is_file() else None


def script_text(path: Path) -> str | None:
    """Return the text of a script or config, or None if it cannot be read."""
    try:
        if not path.is_file():  # reading a pipe would wait
            return None
        return _read(path, MAX_SCRIPT_BYTES, str(path)).decode("utf-8", "replace")
    except (JobError, OSError, ValueError):  # an invalid path: too long, or with a NUL in it
        return None


def _read(path: Path, limit: int, what: str) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise JobError(f"{what}: {error.strerror}") from error
    if len(data) > limit:
        raise JobError(f"{what}: larger than {limit >> 20} MiB: not a job file")
    return data


def gpu_count(env: Mapping[str, str]) -> int:
    """Return the number of GPUs visible to a job. Reads the driver's own list, so no library is loaded."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0

"""Start a resolved job or a run's next attempt: preflight, run directory, keeper, view."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from supervisor import __version__
from supervisor.cli.check import look, print_findings, unmeasured_finding
from supervisor.cli.common import (
    EXIT_REFUSED,
    WITH_LOG,
    appearance_given,
    complain,
    has_terminal,
    say,
    say_crash,
    say_json,
)
from supervisor.cli.job_inputs import folder_of_runs
from supervisor.cli.main import flush_or_drop
from supervisor.job.arguments.run_arguments import ParsedRun
from supervisor.job.errors import JobError
from supervisor.job.launch.oom_plan import answer, container_line, four_lines
from supervisor.job.launch.plan import LaunchPlan, build_plan, plan_as_shell, wants_port
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.job_secrets import redactor_of, without_secrets
from supervisor.preflight.checks import refused
from supervisor.preflight.context import CheckContext
from supervisor.preflight.interpreter import Interpreter, commit_of, find_interpreter, trainer_main
from supervisor.preflight.network import free_port
from supervisor.run.index import claim, link_latest, register, runs_dir
from supervisor.run.journal import StateReader
from supervisor.run.ownership import LockTaken, keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.runfile import KeeperSettings, RunFile, write_run_file
from supervisor.sources.processes import become_subreaper
from supervisor.text.redact import redact_text
from supervisor.views.appearance import Appearance
from supervisor.views.wording.translate import words_in

if TYPE_CHECKING:
    from supervisor.keeper.loop import Keeper

BEGINS_S: Final = 10.0
"""Maximum wait for the next attempt's first journal line, which appears about 0.1 s after the keeper takes the lock."""


def dry_run(spec: JobSpec, parsed: ParsedRun, env: Mapping[str, str]) -> int:
    """Print attempt 1 as a command to paste, and the changes after an out-of-memory failure. Nothing is started or written.

    With ``--json``, print one JSON object on one line. The interpreter needs no torch, because nothing is started.
    """
    try:
        interpreter = find_interpreter(spec, env)
        path, why = str(interpreter.path), interpreter.why
    except JobError as error:
        path, why = spec.python or "python", error.message
    plan = _first_plan(spec, path, runs_dir(parsed.flag("runs_dir"), env) / "RUN", env)
    if parsed.switch("json"):
        say_json(answer(spec, plan))
        return 0
    say(f"# interpreter: {path} ({why})")
    if spec.entry_kind is not EntryKind.TRAINER:
        batch, changes, then, resume = four_lines(spec)
        say(f"# batch: {batch}", f"# out of memory: {changes}", f"# then: {then}", f"# resume: {resume}")
    if line := container_line(spec, plan):
        say(f"# container: nothing in it is measured, unless it gets {line}")
    say(*plan_as_shell(plan).splitlines())
    return 0


def start(spec: JobSpec, parsed: ParsedRun, env: Mapping[str, str]) -> int:
    """Run the checks, claim the run directory, and start the keeper in the mode requested."""
    appearance = appearance_given(parsed, env)
    detached = parsed.switch("detach")
    has_screen = has_terminal() and not parsed.switch("no_ui") and not detached
    if not has_screen and not detached:
        import supervisor.keeper.loop  # noqa: F401 - while the interpreter answers
    if has_screen:
        say(f"{words_in(appearance.spoken)('starting')} {redact_text(spec.name)}", flush=True)
    interpreter = find_interpreter(spec, env)
    runs = folder_of_runs(parsed, env)
    context = CheckContext(spec, runs, env, interpreter)
    unchecked = parsed.switch("no_check")
    findings = unmeasured_finding(spec) if unchecked else look(context, parsed)
    if refused(findings):
        for finding in refused(findings):
            fix = f": {finding.fix}" if finding.fix else ""
            complain("run", f"{finding.check}: {finding.what}{fix}")
        # Refusal for lack of disk space is a usage error, as if the first file did not fit.
        has_no_room = {finding.check for finding in refused(findings)} <= {"disk", "run folder"}
        return 2 if has_no_room else EXIT_REFUSED
    if has_screen:
        print_findings(findings, appearance)
    # Refuse an impossible plan before creating a folder.
    _first_plan(spec, str(interpreter.path), runs / "RUN", env)
    interactive = has_screen or (detached and not parsed.switch("no_ui"))
    settings = KeeperSettings(interactive=interactive, checks=not parsed.switch("no_check"))
    if named := parsed.flag("run_dir"):
        from supervisor.cli.join_run import shared_run

        run = RunPaths(Path(named).absolute())
        shared = replace(settings, shared=True)
        record = _record(run, spec, interpreter, shared)
        run, record = shared_run(run, record)
        if record.node == 0:
            register(run, redact_text(spec.name), env)
    else:
        try:
            run = claim(runs)
        except OSError as error:
            raise JobError(f"{runs}: {error.strerror}: choose another place with --runs-dir") from error
        record = _record(run, spec, interpreter, settings)
        with _beginning(run, record):
            write_run_file(run.run_json, without_secrets(record))
        register(run, redact_text(spec.name), env)
        link_latest(run)
    notable = tuple(f for f in findings if f.level is not FindingLevel.OK)
    for finding in notable if detached else ():
        if finding.level is FindingLevel.WARNING:
            complain("run", f"{finding.check}: {finding.what}")
    how = Going("run", has_screen, parsed.switch("json"), parsed.switch("read_only"), appearance)
    return set_going(run, record, env, how, findings=notable, beginning=lambda: _beginning(run, record))


@contextlib.contextmanager
def _beginning(run: RunPaths, record: RunFile) -> Iterator[None]:
    """Guard the writing of a run's first files. On failure, remove them and raise a one-line JobError."""
    try:
        yield
    except (LockTaken, OSError) as error:
        if record.settings.shared:
            raise JobError(f"{run.root}: node {record.node}: {error}") from error
        shutil.rmtree(run.root, ignore_errors=True)
        why = error.strerror if isinstance(error, OSError) else error
        raise JobError(f"{run.root}: {why}: choose another place with --runs-dir") from error


def _first_plan(spec: JobSpec, interpreter: str, run: Path, env: Mapping[str, str]) -> LaunchPlan:
    attempt_dir = run / "nodes" / "0" / "attempts" / "1"
    return build_plan(
        spec,
        attempt=1,
        interpreter=interpreter,
        run_dir=str(run),
        attempt_dir=str(attempt_dir),
        base_env=env,
        port=free_port() if wants_port(spec) else None,
        trainer_main=trainer_main(),
    )


def _record(run: RunPaths, spec: JobSpec, interpreter: Interpreter, settings: KeeperSettings) -> RunFile:
    return RunFile(
        run_id=run.run_id,
        job=spec,
        interpreter=str(interpreter.path),
        settings=settings,
        created_t=time.time(),
        host=socket.gethostname(),
        user=user_name(),
        stoker_version=__version__,
        python_version=interpreter.version,
        torch_version=interpreter.torch_version,
        torch_cuda=interpreter.torch_cuda,
        torch_hip=interpreter.torch_hip,
        git_commit=commit_of(spec.cwd),
        trainer_main=trainer_main(),
        path=os.path.realpath(run.root),
        uid=os.geteuid(),
    )


def user_name() -> str:
    """Return this user's login name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class Going(NamedTuple):
    """How a verb shows the run it starts. If the run is not interactive, this process is the keeper."""

    verb: str
    has_screen: bool
    as_json: bool
    read_only: bool
    appearance: Appearance


def set_going(
    run: RunPaths,
    record: RunFile,
    env: Mapping[str, str],
    how: Going,
    *,
    findings: tuple[Finding, ...] = (),
    continued_by: str = "",
    beginning: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> int:
    """Start the keeper here or in the background and show the run as requested. `beginning` wraps the first file writes."""
    if not record.settings.interactive:
        from supervisor.keeper.__main__ import make_keeper

        with beginning():
            keeper = make_keeper(run, record, env=env, findings=findings, continued_by=continued_by)
        return _carry_headless(keeper, run, record, env, how, only_news=bool(continued_by))
    from supervisor.cli.open_app import load_app, show
    from supervisor.keeper.process.detach import KeeperDidNotStart, teardown_warning

    warning = teardown_warning(env)
    if warning and not how.has_screen:
        complain(how.verb, warning)
    try:
        # The app loads on another core while the keeper loads its modules.
        load = load_app if how.has_screen else None
        with beginning():
            start_in_background(
                run, record, env, findings=findings, continued_by=continued_by, meanwhile=load
            )
        if how.has_screen:
            return show(run, read_only=how.read_only, env=env, appearance=how.appearance)
    except KeeperDidNotStart as error:
        return complain(how.verb, f"{run.run_id}: {error}", 1)
    except KeyboardInterrupt:
        where = f"`stoker attach {run.run_id}` shows it, `stoker stop {run.run_id}` ends it"
        say(f"stoker {how.verb}: interrupted, but the run has begun: {where}", file=sys.stderr)
        raise
    finally:
        if warning and how.has_screen:  # an earlier message would be covered by the screen
            complain(how.verb, warning)
    try:
        say(run.run_id, flush=True)
    except OSError:
        say(f"stoker {how.verb}: {run.run_id} has begun", file=sys.stderr)
        raise
    return 0


def start_in_background(
    run: RunPaths,
    record: RunFile,
    env: Mapping[str, str],
    *,
    findings: tuple[Finding, ...] = (),
    continued_by: str = "",
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """Start a detached keeper. When continuing a run, wait for the new attempt, so the run no longer appears to have ended.

    Raises:
        KeeperDidNotStart, OSError: see `start_detached`.
    """
    from supervisor.keeper.process.detach import start_detached

    journal = StateReader(run.node(record.node).journal)

    def attempts() -> int:
        while journal.refresh():
            pass
        return len(journal.state.attempts)

    before = attempts() if continued_by else -1
    start_detached(
        run,
        env,
        record=record,
        entry=WITH_LOG,
        findings=findings,
        continued_by=continued_by,
        meanwhile=meanwhile,
    )
    deadline = time.monotonic() + BEGINS_S
    while time.monotonic() < deadline and keeper_is_alive(run.node().lock) and attempts() == before:
        time.sleep(0.02)


def _carry_headless(
    keeper: Keeper,
    run: RunPaths,
    record: RunFile,
    env: Mapping[str, str],
    how: Going,
    *,
    only_news: bool,
) -> int:
    """Run to completion in this process, printing events. Returns the run's exit code.

    If `only_news` is true, skip events that are already in the journal.
    """
    from supervisor.policy import EXIT_LOST
    from supervisor.run.state import Finished
    from supervisor.views.headless.console import ConsoleSettings, ConsoleView, console_file, wants_colour

    settings = ConsoleSettings(
        stdout=sys.stdout,
        log_file=console_file(run, record.node),
        colour=wants_colour(sys.stdout, env),
        as_json=how.as_json,
        least=record.job.log_level,
        redactor=redactor_of(record.job, env),
    )
    become_subreaper()
    undo = keeper.install_signal_handlers()
    console = ConsoleView(run, settings, node=record.node, only_news=only_news)
    console.start()
    why = "the keeper crashed"
    try:
        code = keeper.run_to_end()
        why = "the run ended"
    except Exception as error:  # noqa: BLE001 - a fault of ours must not pass for training's end
        say_crash()
        failed = f"the keeper failed ({type(error).__name__}); what it launched continues"
        complain(how.verb, f"{failed}: `stoker attach --adopt {run.run_id}` takes it over")
        code = EXIT_LOST
    finally:
        keeper.close(why)
        console.finish(with_story=why == "the run ended" and not keeper.astray)
        flush_or_drop()  # lines lost to a full disk do not change the run's own exit code
        undo()
    if keeper.astray and isinstance(keeper.state.condition, Finished):
        complain(how.verb, keeper.state.condition.reason)  # nothing reads the journal's reason any more
    return code

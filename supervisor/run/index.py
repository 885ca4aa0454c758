"""The run index, which looks up a run by path, id, part of an id, or name, or finds the newest run.

Every run of this user has a line in ``$XDG_STATE_HOME/stoker/index.jsonl``: {path, run_id, t, name, note, note_t}. A
run that was renamed, or given a note after it ended, has another line. The last line with a name or a note wins.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from supervisor.job.errors import JobError
from supervisor.run.jsonl import append_line, decoded
from supervisor.run.ownership import has_keeper
from supervisor.run.paths import RunPaths, is_run_directory, make_private, xdg_home
from supervisor.run.regular import Mark, mark_of, read_regular

INDEX = "index.jsonl"
LEAST_BYTES = 1 << 16
LEAST_FILES = 40
"""By its first step, a single-rank run has about 30 files and folders, 20 KB in total."""
LEAST_PART = 3  # the fewest characters of an id that select a run to stop, continue or rename
MAX_NAME = 80
MAX_NOTE = 400
ID_STAMP = len("20260101-0000-")  # the timestamp before the words of an id
# The words of run ids, such as `brave-otter`: short, friendly, easy to say and to tell apart.
ADJECTIVES = tuple(
    """
    able bold brave brisk bright calm clear clever cool crisp deft eager early even fair fast fine firm
    fleet fond free fresh gentle glad grand green happy hardy jolly keen kind light lively lucky mellow
    merry mild neat noble plain proud quick quiet ready rosy round sharp silent silver sleek smart
    smooth snug solid spry steady still stout sunny sure swift tall tidy true vast warm wide wise witty
    young zesty
    """.split()  # noqa: SIM905 - words are read here, not quotes
)
ANIMALS = tuple(
    """
    ant badger bat bear beaver bee bison boar bream carp cat cod crane crow deer dingo dove duck eagle
    eel egret elk emu falcon ferret finch fox frog gecko goat goose grouse gull hare hawk heron hornet
    ibex ibis jay kite koala lark lemur lion llama lynx marten mink mole moose moth mouse newt ocelot
    orca oriole osprey otter owl panda perch pike plover puffin quail rabbit raven robin salmon seal
    shrew skunk snail snipe sparrow squid stoat stork swan tapir tern thrush tiger toad trout tuna viper
    vole walrus wasp weasel whale wolf wombat wren yak zebra
    """.split()  # noqa: SIM905 - words are read here, not quotes
)


class RunNotFound(JobError):  # noqa: N818 - a state of affairs, not an error
    """No run matches, or more than one does. The message is a single line for the user."""


class IndexLine(msgspec.Struct, frozen=True, kw_only=True):
    """An entry for one known run."""

    path: str
    run_id: str
    name: str
    t: float
    note: str = ""
    note_t: float = 0.0


def state_home(env: Mapping[str, str]) -> Path:
    """Return stoker's own state folder."""
    return Path(xdg_home(env, "STATE", ".local/state"), "stoker")


def runs_dir(flag: str | None, env: Mapping[str, str]) -> Path:
    """Return the folder for runs: --runs-dir, else STOKER_RUNS_DIR, else ./runs."""
    return Path(flag or env.get("STOKER_RUNS_DIR") or "runs").absolute()


def claim(parent: Path, now: float | None = None) -> RunPaths:
    """Create a run directory with mkdir, so two starts in the same second get two folders. Its path contains no links.

    Raises:
        OSError: the folder cannot be written, or has no room for a run's first files.
    """
    import secrets  # loads OpenSSL, which reading a run does not need

    make_private(parent, 0o775)  # the umask may also exclude the group; others never have access
    parent = parent.resolve()
    _look_for_room(parent)
    stamp = time.strftime("%Y%m%d-%H%M", time.localtime(now))
    for _ in range(50):
        run_id = f"{stamp}-{secrets.choice(ADJECTIVES)}-{secrets.choice(ANIMALS)}"
        try:
            (parent / run_id).mkdir(mode=0o700)
        except FileExistsError:
            continue
        return RunPaths(parent / run_id)
    raise FileExistsError(f"no free run id under {parent}")


def _look_for_room(folder: Path) -> None:
    """Raise OSError if a run would lack space, inodes or quota from the start, since it would leave no record."""
    import tempfile

    entries = os.statvfs(folder)
    if entries.f_files and entries.f_favail < LEAST_FILES:  # 0: a filesystem that creates inodes as needed
        what = f"No space left on device ({entries.f_favail} more files fit: its inodes are used up)"
        raise OSError(errno.ENOSPC, what, str(folder))
    with tempfile.TemporaryFile(dir=folder) as probe:  # a quota shows only when something is written
        probe.write(bytes(LEAST_BYTES))


def link_latest(run: RunPaths) -> None:
    """Point runs/latest at `run`, atomically. Do nothing on filesystems without symlinks."""
    part = run.root.parent / f".latest-{os.getpid()}"
    try:
        part.unlink(missing_ok=True)
        part.symlink_to(run.run_id)
        part.replace(run.root.parent / "latest")
    except OSError:
        part.unlink(missing_ok=True)


def register(run: RunPaths, name: str, env: Mapping[str, str]) -> None:
    """List a run under its absolute path. If the index cannot be written, the run can still be found in its folder."""
    _add_line(run, env, t=time.time(), name=name)


def give_name(run: RunPaths, name: str, env: Mapping[str, str]) -> str:
    """Rename a run in this user's index only, not in its folder. Return the name as stored.

    Raises:
        ValueError: the name is empty once reduced to one printable line.
        OSError: the index cannot be written.
    """
    return _give(run, "name", _one_line(name)[:MAX_NAME], env)


def give_note(run: RunPaths, note: str, env: Mapping[str, str]) -> str:
    """Add a note to a run that has no keeper to journal it. Otherwise works like `give_name`."""
    return _give(run, "note", _one_line(note)[:MAX_NOTE], env, note_t=time.time())


def _give(run: RunPaths, what: str, kept: str, env: Mapping[str, str], note_t: float = 0.0) -> str:
    if not kept:
        raise ValueError("a name has at least one character" if what == "name" else "a note without text")
    if error := _add_line(run, env, t=_start_t(run.root), note_t=note_t, **{what: kept}):
        raise error
    return kept


def _add_line(
    run: RunPaths, env: Mapping[str, str], *, t: float, name: str = "", note: str = "", note_t: float = 0.0
) -> OSError | None:
    """Append a line about a run to the index. Return the error if that fails."""
    path = str(run.root.absolute())
    line = IndexLine(path=path, run_id=run.run_id, name=name, t=t, note=note, note_t=note_t)
    return append_line(state_home(env) / INDEX, line, follows=True)


def _one_line(text: str) -> str:
    """Return text as a single printable line with secrets removed."""
    from supervisor.text.decode import strip_escapes  # not needed to find a run
    from supervisor.text.redact import redact_text

    return redact_text(" ".join(strip_escapes(text).split()))


def listed_names(env: Mapping[str, str]) -> dict[str, str]:
    """Return the latest name of each run in the index, keyed by its folder with links resolved."""
    return {line.path: line.name for line in _index_lines(env) if line.name}


def listed_notes(env: Mapping[str, str]) -> dict[str, tuple[float, str]]:
    """Return the time and text of each indexed run's latest note, keyed by its folder with links resolved."""
    return {line.path: (line.note_t, line.note) for line in _index_lines(env) if line.note}


def known_runs(runs: Path, env: Mapping[str, str], *, elsewhere: bool = True) -> list[RunPaths]:
    """Return the existing runs under `runs` and, if `elsewhere` is true, those in the index, newest first."""
    found: dict[str, float] = {}
    for entry in list(os.scandir(runs.resolve())) if runs.is_dir() else ():
        if entry.is_dir(follow_symlinks=False) and is_run_directory(entry.path):
            found[entry.path] = _start_t(entry.path)
    for line in _index_lines(env) if elsewhere else ():
        if line.path not in found and is_run_directory(line.path):
            found[line.path] = line.t
    # Ids begin with the minute of the start; within a minute, the later start is newer.
    newest = sorted(found, key=lambda path: (os.path.basename(path)[:13], found[path]), reverse=True)
    return [RunPaths(Path(path)) for path in newest]


def _start_t(path: str | Path) -> float:
    """Return when a run started, taken from run.json, which is written only once. The folder's own mtime changes later."""
    try:
        return os.stat(RunPaths(Path(path)).run_json).st_mtime
    except OSError:
        return os.stat(path).st_mtime


def find_run(
    text: str | None, runs: Path, env: Mapping[str, str], *, elsewhere: bool = True, acting: bool = False
) -> RunPaths:
    """Return the run that `text` selects: a path, an id, a unique part of an id, or the newest run with that name.

    None selects the newest live run, or else the newest. Runs under `runs` take precedence. If `elsewhere` is false, a run
    outside `runs` is found only by its path, which contains a slash. If `acting` is true, part of an id selects only runs
    under `runs` and must have at least `LEAST_PART` characters.

    Raises:
        RunNotFound: no run matches, or several do.
    """
    if text is not None and not text.strip():  # an unset variable does not mean the newest run
        raise RunNotFound("an empty name: say which run, `stoker runs` lists them")
    if text and (elsewhere or os.sep in text):
        path = Path(os.path.expanduser(text))  # pathlib's own raises for a user that does not exist
        if path.is_dir() and is_run_directory(path):
            return RunPaths(path.resolve())
    runs_known = known_runs(runs, env, elsewhere=elsewhere)
    near = dict.fromkeys(those_under(runs_known, runs))
    far = [r for r in runs_known if r not in near]
    if not text:
        if not runs_known:
            more = " and none in the index" if elsewhere else ""
            raise RunNotFound(f"no run under {runs}{more}: start one with `stoker run`")
        live = (r for r in (*near, *far) if has_keeper(r))
        return next(live, (*near, *far)[0])
    exact = [r for r in runs_known if r.run_id == text]
    for place in ([r for r in near if r in exact], exact, [*near], far):
        by_part = not acting or (place == [*near] and len(text) >= LEAST_PART)
        matches = [r for r in place if r.run_id == text or (by_part and text in r.run_id)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(r.run_id for r in matches[:5])
            raise RunNotFound(f"{len(matches)} runs match {text!r}: {names}: give more of the id")
        if named := named_runs(text, place, env):
            return named[0]
    if parts := [str(r.root) for r in runs_known if text in r.run_id]:
        how = f"its whole id, its name or its path; of a run under {runs} also {LEAST_PART} characters of the id"
        raise RunNotFound(f"{text!r} is only a part of {', '.join(parts[:5])}: to act on a run, give {how}")
    guess = _nearest(text, [*near, *far], env)
    hint = f"did you mean {guess}? " if guess else ""
    more = f", `stoker runs --all` {len(runs_known)}" if far else ""
    where = "" if elsewhere else f" under {runs}"
    raise RunNotFound(f"no run named {text!r}{where}: {hint}`stoker runs` lists {len(near)}{more}")


def runs_of(words: str, runs: Path, env: Mapping[str, str]) -> list[RunPaths]:
    """Return the one run that all the words together identify, or else one run per word.

    Raises:
        RunNotFound: a word matches no run, or several.
    """
    try:
        return [find_run(words.strip(), runs, env)]
    except RunNotFound:
        if len(words.split()) < 2:
            raise
    return list(dict.fromkeys(find_run(word, runs, env) for word in words.split()))


def named_runs(name: str, known: list[RunPaths], env: Mapping[str, str]) -> list[RunPaths]:
    """Return the runs in `known` that have exactly this name, in the same order."""
    names = listed_names(env)
    return [r for r in known if (names.get(str(r.root)) or _recorded_name(r)) == name]


def _nearest(text: str, known: list[RunPaths], env: Mapping[str, str]) -> str | None:
    """Return the id of the run whose id, words or name most resembles the typed text, or None if none is close."""
    import difflib  # only once a run is not found

    listed = listed_names(env)
    ids: dict[str, str] = {}
    for run in known:  # newest first, because two with one name mean the newest
        for name in (run.run_id, run.run_id[ID_STAMP:], listed.get(str(run.root), "")):
            ids.setdefault(name, run.run_id)
    near = difflib.get_close_matches(text, list(ids), n=1, cutoff=0.75)
    return ids[near[0]] if near else None


def _recorded_name(run: RunPaths) -> str | None:
    """Return the name in a run's own record, for a run that was moved here or listed by a different user."""
    from supervisor.run.runfile import BadRunFile, read_run_file

    try:
        return read_run_file(run.run_json).job.name
    except BadRunFile:
        return None


def those_under(known: list[RunPaths], runs: Path) -> list[RunPaths]:
    """Return the runs in `known` that are directly inside `runs`."""
    place, real = os.path.realpath(runs), cache(os.path.realpath)
    return [run for run in known if real(os.path.dirname(run.root)) == place]


def _index_lines(env: Mapping[str, str]) -> tuple[IndexLine, ...]:
    """Return the lines of the index, with links in paths resolved. The file is reread if it has changed."""
    path = str(state_home(env) / INDEX)
    return _lines_in(path, mark_of(path))


@lru_cache(maxsize=1)
def _lines_in(path: str, _mark: Mark | None) -> tuple[IndexLine, ...]:
    try:
        data = read_regular(path)
    except OSError:
        return ()
    lines = decoded(msgspec.json.Decoder(IndexLine), data)
    return tuple(replace(line, path=os.path.realpath(line.path)) for line in lines)

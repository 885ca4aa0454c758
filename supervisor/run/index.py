"""The index of runs: finding a run by path, id, part of an id, name, or not at all.

Every run of this user is a line in ``$XDG_STATE_HOME/stoker/index.jsonl``: {path, run_id, t, name, note, note_t}. One that was
named again, or given a note after its end, has a line more; the last one with a name or a note counts.
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
"""A run of one rank has some 30 files and folders, of 20 KB, by its first step."""
LEAST_PART = 3  # characters of an id by which a run can be stopped, continued or renamed
MAX_NAME = 80
MAX_NOTE = 400
ID_STAMP = len("20260101-0000-")  # what stands before the words of an id
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
    """No run, or more than one, goes by that name: one line for the user."""


class IndexLine(msgspec.Struct, frozen=True, kw_only=True):
    """One known run."""

    path: str
    run_id: str
    name: str
    t: float
    note: str = ""
    note_t: float = 0.0


def state_home(env: Mapping[str, str]) -> Path:
    """stoker's own state folder."""
    return Path(xdg_home(env, "STATE", ".local/state"), "stoker")


def runs_dir(flag: str | None, env: Mapping[str, str]) -> Path:
    """Where runs go: --runs-dir, else STOKER_RUNS_DIR, else ./runs."""
    return Path(flag or env.get("STOKER_RUNS_DIR") or "runs").absolute()


def claim(parent: Path, now: float | None = None) -> RunPaths:
    """A fresh run directory, claimed by mkdir: two starts in one second get two folders. Its path has no links in it.

    Raises:
        OSError: the folder cannot be written, or a run's first files do not fit.
    """
    import secrets  # and OpenSSL with it: not to look at a run

    make_private(parent, 0o775)  # the umask may close it to the group too; to everybody it is never open
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
    """Raises OSError where a run would lack space, inodes or quota before it begins: it would run, and nobody would know how."""
    import tempfile

    entries = os.statvfs(folder)
    if entries.f_files and entries.f_favail < LEAST_FILES:  # 0: a filesystem that makes them as it needs them
        what = f"No space left on device ({entries.f_favail} more files fit: its inodes are used up)"
        raise OSError(errno.ENOSPC, what, str(folder))
    with tempfile.TemporaryFile(dir=folder) as probe:  # a quota shows only where something is written
        probe.write(bytes(LEAST_BYTES))


def link_latest(run: RunPaths) -> None:
    """Point runs/latest at `run`, atomically. Filesystems without symlinks are left alone."""
    part = run.root.parent / f".latest-{os.getpid()}"
    try:
        part.unlink(missing_ok=True)
        part.symlink_to(run.run_id)
        part.replace(run.root.parent / "latest")
    except OSError:
        part.unlink(missing_ok=True)


def register(run: RunPaths, name: str, env: Mapping[str, str]) -> None:
    """List a run by its absolute path, where the index can be written: in its folder it is found all the same."""
    _add_line(run, env, t=time.time(), name=name)


def give_name(run: RunPaths, name: str, env: Mapping[str, str]) -> str:
    """Call a run by another name from now on, in this user's index: its folder is not written to. Returns the name as it is kept.

    Raises:
        ValueError: nothing of the name is left once it is one printable line.
        OSError: the index cannot be written.
    """
    return _give(run, "name", _one_line(name)[:MAX_NAME], env)


def give_note(run: RunPaths, note: str, env: Mapping[str, str]) -> str:
    """Put a note on a run that has no keeper to take it; as `give_name` in all else."""
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
    """One more line of a run in the index; the error where it cannot be written."""
    path = str(run.root.absolute())
    line = IndexLine(path=path, run_id=run.run_id, name=name, t=t, note=note, note_t=note_t)
    return append_line(state_home(env) / INDEX, line, follows=True)


def _one_line(text: str) -> str:
    """Text as one printable line, without secrets."""
    from supervisor.text.decode import strip_escapes  # to find a run needs neither
    from supervisor.text.redact import redact_text

    return redact_text(" ".join(strip_escapes(text).split()))


def listed_names(env: Mapping[str, str]) -> dict[str, str]:
    """What the runs of the index are called, the newest name of each, by their folders without links."""
    return {line.path: line.name for line in _index_lines(env) if line.name}


def listed_notes(env: Mapping[str, str]) -> dict[str, tuple[float, str]]:
    """The newest note of each run in the index, and when it was written, by their folders without links."""
    return {line.path: (line.note_t, line.note) for line in _index_lines(env) if line.note}


def known_runs(runs: Path, env: Mapping[str, str], *, elsewhere: bool = True) -> list[RunPaths]:
    """Runs below `runs` and, unless `elsewhere` is False, in the index that still exist, newest first."""
    found: dict[str, float] = {}
    for entry in os.scandir(runs.resolve()) if runs.is_dir() else ():
        if entry.is_dir(follow_symlinks=False) and is_run_directory(entry.path):
            found[entry.path] = _start_t(entry.path)
    for line in _index_lines(env) if elsewhere else ():
        if line.path not in found and is_run_directory(line.path):
            found[line.path] = line.t
    # Ids begin with their minute; within one, the run that was started last is the newer.
    newest = sorted(found, key=lambda path: (os.path.basename(path)[:13], found[path]), reverse=True)
    return [RunPaths(Path(path)) for path in newest]


def _start_t(path: str | Path) -> float:
    """When a run was started: its run.json is written once, while its folder's time changes with every entry, as when it is deleted and brought back."""
    try:
        return os.stat(RunPaths(Path(path)).run_json).st_mtime
    except OSError:
        return os.stat(path).st_mtime


def find_run(
    text: str | None, runs: Path, env: Mapping[str, str], *, elsewhere: bool = True, acting: bool = False
) -> RunPaths:
    """The run that `text` names: a path, an id, a unique part of an id, else the newest run of that name.

    None: the newest live one, else the newest. Always those under `runs` come before those elsewhere. `elsewhere` False: a run
    outside of `runs` is found by its path alone, which has a slash. `acting`: a part of an id counts under `runs` alone, from
    `LEAST_PART` characters on.

    Raises:
        RunNotFound: none, or several.
    """
    if text is not None and not text.strip():  # of an unset variable: the newest is not what was meant
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
    """The run that all the words name, else one for each of them.

    Raises:
        RunNotFound: a word names none, or several.
    """
    try:
        return [find_run(words.strip(), runs, env)]
    except RunNotFound:
        if len(words.split()) < 2:
            raise
    return list(dict.fromkeys(find_run(word, runs, env) for word in words.split()))


def named_runs(name: str, known: list[RunPaths], env: Mapping[str, str]) -> list[RunPaths]:
    """Those of `known` that were given this very name, in the same order."""
    names = listed_names(env)
    return [r for r in known if (names.get(str(r.root)) or _recorded_name(r)) == name]


def _nearest(text: str, known: list[RunPaths], env: Mapping[str, str]) -> str | None:
    """The id of the run whose id, words of it or given name are most like what was typed; None: none is like it."""
    import difflib  # only once a run is not found

    listed = listed_names(env)
    ids: dict[str, str] = {}
    for run in known:  # newest first: it is meant where two have one name
        for name in (run.run_id, run.run_id[ID_STAMP:], listed.get(str(run.root), "")):
            ids.setdefault(name, run.run_id)
    near = difflib.get_close_matches(text, list(ids), n=1, cutoff=0.75)
    return ids[near[0]] if near else None


def _recorded_name(run: RunPaths) -> str | None:
    """A run's name by its own record, for one that was moved here or listed by another user."""
    from supervisor.run.runfile import BadRunFile, read_run_file

    try:
        return read_run_file(run.run_json).job.name
    except BadRunFile:
        return None


def those_under(known: list[RunPaths], runs: Path) -> list[RunPaths]:
    """Those of `known` that lie in this folder of runs."""
    place, real = os.path.realpath(runs), cache(os.path.realpath)
    return [run for run in known if real(os.path.dirname(run.root)) == place]


def _index_lines(env: Mapping[str, str]) -> tuple[IndexLine, ...]:
    """The lines of the index, each with its run's folder without links; read again where the file changed."""
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

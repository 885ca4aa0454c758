"""Run directories as earlier versions wrote them, for tests/run/data/old_runs.tar.xz: ``python tests/recorded/old_versions.py OUT``, as root.

Of each revision below, at which the journal got new events or fields: ``<revision>/run``, a real run (two ranks, one of which leaves with 3), where that version
starts here; and ``<revision>/every``, a run whose journal holds each of its events once, with every field set, encoded by that version.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "tests" / "run" / "data" / "old_runs.tar.xz"
REVISIONS = {
    "cb5fc4fb": "the first journal",
    "e8659967": "trainer_ready",
    "6fac11ca": "stalls, stacks and hangs",
    "bc6b5708": "logs_dated; recovery and probes",
    "fd80423d": "processes_left",
    "fc54b20a": "preconditions",
    "d57d2203": "resume_compared",
    "d239ada8": "hang_countdown, clock_set, processes_gone",
    "f1e46af3": "batch_asked, batch_answered",
    "be718757": "gpu_found",
    "85749b17": "log_quiet",
    "6fef8403": "rank_failing",
    "27cb2258": "node_seen",
    "e977aa41": "slow_rank_found",
    "a8c43f69": "loss_not_finite, loss_finite",
    "f4f25262": "the base of the recordings",
}
T0 = 1_795_270_320.0


def value_of(kind: Any) -> Any:
    """A value of a type as msgspec describes it: never the default where another is possible."""
    import msgspec.inspect as mi

    match kind:
        case mi.UnionType(types=types):
            return value_of(next(one for one in types if not isinstance(one, mi.NoneType)))
        case mi.EnumType(cls=cls):
            return next(iter(cls))
        case mi.BoolType():
            return True
        case mi.IntType():
            return 2
        case mi.FloatType():
            return 2.5
        case mi.StrType():
            return "told"
        case mi.LiteralType(values=values):
            return values[0]
        case mi.StructType(cls=cls, fields=fields) | mi.DataclassType(cls=cls, fields=fields):
            return cls(**{field.name: value_of(field.type) for field in fields})
        case mi.NamedTupleType(cls=cls, fields=fields):
            return cls(*(value_of(field.type) for field in fields))
        case mi.TupleType(item_types=items):
            return tuple(value_of(item) for item in items)
        case mi.VarTupleType(item_type=item) | mi.ListType(item_type=item) | mi.SetType(item_type=item):
            return (value_of(item),)
        case mi.FrozenSetType(item_type=item):
            return frozenset([value_of(item)])
        case mi.DictType(key_type=key, value_type=item):
            return {value_of(key): value_of(item)}
        case _:
            return None


def every_event() -> bytes:
    """A journal with each event of the version that is importable, in the order of its own list; times grow."""
    import msgspec
    import msgspec.inspect as mi

    from supervisor.run import events

    told = mi.type_info(events.Event)
    lines = []
    for number, kind in enumerate(told.types if isinstance(told, mi.UnionType) else (told,)):
        event = msgspec.structs.replace(value_of(kind), t=T0 + number, v=1)
        if hasattr(event, "attempt"):
            event = msgspec.structs.replace(event, attempt=1)
        lines.append(msgspec.json.encode(event))
    first = [line for line in lines if b'"run_started"' in line]
    intended = [line for line in lines if b'"launch_intended"' in line]
    rest = [line for line in lines if line not in first and line not in intended]
    last = [line for line in rest if b'"run_ended"' in line]
    return b"\n".join([*first, *intended, *(line for line in rest if line not in last), *last]) + b"\n"


def write_every(out: Path) -> None:
    journal = out / "every" / "nodes" / "0" / "events.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(every_event())


def record(revision: str, out: Path) -> None:
    """One revision, within the namespace; its checkout is importable."""
    subprocess.run([sys.executable, __file__, str(out), "--every"], check=True)
    cwd = Path("/home/me") / revision
    cwd.mkdir()
    shutil.copy(ROOT / "tests/integration/scripts/job.py", cwd)
    command = [sys.executable, "-m", "supervisor", "run", "--no-ui", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "job.py", "--mode", "exit3", "--steps", "12", "--step-time", "0.1"],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    runs = [path for path in cwd.glob("runs/*") if path.is_dir() and not path.is_symlink()]
    print(revision, "exit code", done.returncode, "" if runs else f"no run: {done.stderr[-300:]}", flush=True)
    for run in runs:
        shutil.copytree(run, out / "run" / run.name, ignore=shutil.ignore_patterns("keeper.lock"))


def in_namespace(revision: str, out: Path) -> None:
    """Check a revision out beside, and record it there as on a machine called ``box``."""
    import torch

    env = Path(str(torch.__file__)).parents[4]
    tree = out / ".tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", revision], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=packed.stdout, check=True)
    script = (
        "set -e; hostname box; mount -t tmpfs -o mode=755 none /home; mkdir -p /home/me/stoker /home/me/env; "
        f"mount --bind '{tree}' /home/me/stoker; mount --bind '{env}' /home/me/env; "
        f"exec /home/me/env/bin/python '{Path(__file__).resolve()}' '{out}' --record {revision}"
    )
    told = {"HOME": "/home/me", "PATH": "/home/me/env/bin:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    told |= {
        "PYTHONPATH": "/home/me/stoker",
        "TZ": "UTC",
        "USER": "me",
        "LOGNAME": "me",
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(["unshare", "--mount", "--uts", "sh", "-c", script], env=told, cwd="/", check=False)
    shutil.rmtree(tree)


def pack(out: Path) -> None:
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as packed:
        for revision in REVISIONS:
            packed.add(out / revision, revision, filter=_neutral)
    print(ARCHIVE.stat().st_size, "bytes")


def _neutral(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return None if info.issym() else info


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="revisions, with commas")
    parser.add_argument("--record", metavar="REVISION", help="within the namespace alone")
    parser.add_argument("--every", action="store_true", help="within the namespace alone")
    parser.add_argument("--pack", action="store_true", help="make the archive of what is in OUT")
    args = parser.parse_args()
    out: Path = args.out.resolve()
    if args.every:
        write_every(out)
    elif args.record:
        record(args.record, out)
    elif args.pack:
        pack(out)
    else:
        for revision in args.only.split(",") if args.only else REVISIONS:
            shutil.rmtree(out / revision, ignore_errors=True)
            in_namespace(revision, out / revision)
    return 0


if __name__ == "__main__":
    sys.exit(main())

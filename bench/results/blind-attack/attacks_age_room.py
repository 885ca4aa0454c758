"""Attacks 11 to 22: age (gc, indexes, snapshots, journals), and room."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from common import STOKER, Screen, Work, main
from attacks_terminal_secrets import each_verb

DAY = 86400


def old(run: Path, days: float = 100) -> None:
    """The same finished run, but of 100 days ago, wherever it says a time."""
    for path in (run / "nodes/0/events.jsonl", run / "run.json", run / "nodes/0/attempts/1/exit"):
        if path.is_file() and not path.is_symlink():
            text = path.read_text()
            text = re.sub(r'("(?:\w*_)?t": ?)(\d{10}\.\d+)', lambda m: m[1] + repr(float(m[2]) - days * DAY), text)
            path.write_text(text)
    for path in run.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (time.time() - days * DAY,) * 2)
    (run.parent / ".index").unlink(missing_ok=True)


def finished(w: Work, name: str = "x", script: str = "echo step 1 loss 2; exit 0") -> Path:
    before = set(w.runs.glob("2*"))
    w.run(script, "--name", name)
    return (set(w.runs.glob("2*")) - before).pop()


def clone(run: Path, run_id: str) -> Path:
    to = run.parent / run_id
    shutil.copytree(run, to, symlinks=True)
    for path in (to / "run.json", to / "nodes/0/events.jsonl"):
        path.write_text(path.read_text().replace(run.name, run_id))
    return to


def a11(w: Work) -> None:
    """gc --now --yes: runs that are links, hold links and hard links to precious files outside, name another path, and a .trash that is a link to a folder outside"""
    base = finished(w)
    old(base)
    out_dir = w.dir / "precious"
    out_dir.mkdir()
    (out_dir / "weights.pt").write_text("precious")
    elsewhere = w.dir / "elsewhere"
    shutil.copytree(base, elsewhere / "20250101-0000-far-away")
    far = elsewhere / "20250101-0000-far-away"
    (far / "run.json").write_text((far / "run.json").read_text().replace(str(base), str(far)).replace(base.name, far.name))
    (w.runs / far.name).symlink_to(far)
    b = clone(base, "20250101-0001-linked-parts")
    shutil.rmtree(b / "artifacts")
    (b / "artifacts").symlink_to(out_dir)
    c = clone(base, "20250101-0002-hard-link")
    os.link(out_dir / "weights.pt", c / "artifacts" / "console-20250101-000000.log")
    d = clone(base, "20250101-0003-other-path")
    (d / "run.json").write_text((d / "run.json").read_text().replace(str(d), str(out_dir)))
    e = clone(base, "20250101-0004-deep-link")
    (e / "nodes/0/attempts/1/telemetry/x").symlink_to("../../../../../../../precious")
    trash = w.dir / "not-a-trash"
    (trash / "20240101-0000-mine").mkdir(parents=True)
    (trash / "20240101-0000-mine" / "notes.txt").write_text("mine")
    os.utime(trash / "20240101-0000-mine", (1, 1))
    (w.runs / ".trash").symlink_to(trash)
    rc, out, err, _ = w.call("gc", "--keep", "1d", "--yes", "--now", "--with-checkpoints")
    w.tracebacks(f"gc rc {rc}", out, err)
    w.fact("what gc said", None, (out + err).decode()[:800])
    w.fact("precious file outside is whole", (out_dir / "weights.pt").is_file() and (out_dir / "weights.pt").read_text() == "precious")
    w.fact("the run outside, reached by a link, is whole", (far / "run.json").is_file())
    w.fact("the folder that .trash links to is untouched", (trash / "20240101-0000-mine" / "notes.txt").is_file(), sorted(p.name for p in trash.rglob("*")))
    (w.runs / ".trash").unlink(missing_ok=True) if (w.runs / ".trash").is_symlink() else None
    inner = w.runs / ".trash"
    inner.mkdir(exist_ok=True)
    (inner / "20240101-0001-x").symlink_to(out_dir)
    (inner / "..2024").mkdir()
    (inner / "..2024" / "l").symlink_to(trash)
    rc, out, err, _ = w.call("gc", "--keep", "1d", "--yes", "--now")
    w.tracebacks(f"gc, links in .trash, rc {rc}", out, err)
    w.fact("precious file is whole after links in .trash", (out_dir / "weights.pt").is_file())
    w.fact("the folder outside is whole after links in .trash", (trash / "20240101-0000-mine" / "notes.txt").is_file())


def a12(w: Work) -> None:
    """gc of runs that are alive but do not look so: .index forged with the journal's own mark, keeper frozen and keeper.lock gone, keeper killed and the job without marks, journal forged as ended in 2001"""
    pid_file = w.dir / "pids"
    script = f"echo step 1 loss 2; exec env -i PATH=/usr/bin:/bin sh -c 'echo $$ >> {pid_file}; while :; do sleep 1; done'"
    runs = []
    for label in ("index", "frozen", "keeper killed", "forged journal"):
        run = w.detach(script, "--name", label.replace(" ", "-"))
        w.wait(lambda: pid_file.exists() and len(pid_file.read_text().split()) > len(runs))
        runs.append(run)
        keeper = json.loads((run / "nodes/0/keeper.lock").read_text().strip())["pid"]
        journal = run / "nodes/0/events.jsonl"
        if label == "frozen":
            os.kill(keeper, signal.SIGSTOP)
            (run / "nodes/0/keeper.lock").unlink()
            (run / "nodes/0/keeper.lock").write_text('{"pid":1,"start_time":1.0,"host":"elsewhere"}')
        if label in ("keeper killed", "forged journal"):
            os.kill(keeper, signal.SIGKILL)
            time.sleep(0.5)
        if label == "forged journal":
            text = journal.read_text() + "".join(json.dumps(x) + "\n" for x in (
                {"kind": "attempt_ended", "t": 1.0, "attempt": 1, "exit_code": 0, "exit_t": 1.0, "last_step": 1},
                {"kind": "run_ended", "t": 2.0, "outcome": "succeeded", "exit_code": 0, "reason": "finished at step 1"},
                {"kind": "keeper_left", "t": 2.0, "why": "the run ended"}))
            fresh = journal.with_name("n")
            fresh.write_text(text)
            fresh.replace(journal)
            (run / "nodes/0/attempts/1/exit").write_text('{"exit_code": 0, "t": 1.0}')
        w.extra_pids = [int(x) for x in pid_file.read_text().split()]
    w.call("runs")
    done = finished(w, "done")
    line = next(x for x in map(json.loads, filter(None, (w.runs / ".index").read_text().splitlines())) if x.get("run_id") == done.name)
    forged = json.loads(json.dumps(line).replace(done.name, runs[0].name).replace(str(line["state"]["ended_t"]), "1000.0"))
    (w.runs / ".index").open("a").close()
    stat = (runs[0] / "nodes/0/events.jsonl").stat()
    forged["mark"] = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    with (w.runs / ".index").open("a") as f:
        f.write(json.dumps(forged) + "\n")
    for extra in ((), ("--now", "--with-checkpoints")):
        rc, out, err, _ = w.call("gc", "--keep", "1h 0GB", "--yes", *extra)
        if rc == 2:
            rc, out, err, _ = w.call("gc", "--keep", "1h 1MB 1", "--yes", *extra)
        w.tracebacks(f"gc {extra} rc {rc}", out, err)
        w.fact(f"what gc {extra} said", None, (out + err).decode()[:900])
    for label, run, pid in zip(("index", "frozen", "keeper killed", "forged journal"), runs, w.extra_pids):
        alive = Path(f"/proc/{pid}").exists()
        w.fact(f"{label}: the job is alive", alive)
        w.fact(f"{label}: its folder is still there", (run / "run.json").is_file())


def a13(w: Work) -> None:
    """gc of a finished run with a checkpoint under a name of stoker's own: artifacts/stacks-….txt, console-….log, attempts/1/telemetry/…, control/…, series/x.jsonl, an empty-looking folder"""
    base = finished(w)
    old(base)
    places = {"artifacts/stacks-1-1795989797.txt": 1, "artifacts/trace-step4-rank0.json": 1, "artifacts/console-20250101-000000.log": 1, "nodes/0/series/weights.jsonl": 1,
              "nodes/0/attempts/1/telemetry/rank0.jsonl": 1, "control/model.json": 1, "nodes/0/attempts/1/torchrun/a/attempt_0/0/stdout.log": 1, "nodes/0/attempts/7/agent.log": 1,
              "nodes/1/events.jsonl": 1, "probes/1/agent.log": 1, "nodes/0/probes/1/model.pt": 1, ".hidden/model.pt": 1, "nodes/0/attempts/1/checkpoint-5/model.safetensors": 1,
              "nodes/0/state.json": 1, "report.json": 1, "artifacts/model.pt.txt": 1}
    header = b"PK\x03\x04" + b"\0" * 20 + b"archive/data.pkl" + os.urandom(300_000)
    for i, place in enumerate(places):
        run = clone(base, f"20250101-01{i:02d}-hidden-{i}")
        (run / place).parent.mkdir(parents=True, exist_ok=True)
        (run / place).write_bytes(header)
        old(run)
    for p in w.runs.glob("2025*"):
        for q in p.rglob("*"):
            os.utime(q, (time.time() - 100 * DAY,) * 2)
    rc, out, err, _ = w.call("gc", "--keep", "1d", "--yes")
    w.tracebacks(f"gc rc {rc}", out, err)
    for i, place in enumerate(places):
        w.fact(f"a run with a checkpoint at {place} stays", (w.runs / f"20250101-01{i:02d}-hidden-{i}" / "run.json").is_file())


def a14(w: Work) -> None:
    """gc waits at its question while the run is continued, replaced by a link, gains a checkpoint; then y"""
    outside = w.dir / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    a = finished(w, "a", "echo step 1 loss 2; test -e $ATTACK/live && sleep 60; exit 3")
    b = finished(w, "b")
    c = finished(w, "c")
    d = finished(w, "d")
    for run in (a, b, c, d):
        old(run)
    s = Screen(w, "gc", "--keep", "1d", "--now")
    seen = s.read(15, until=b"?")
    w.fact("gc asks", b"?" in seen, seen[-300:].decode("utf-8", "replace"))
    (w.dir / "live").touch()
    rc, out, err, _ = w.call("continue", "--yes", "--restart-from-scratch", "--detach", str(a))
    w.fact("the run was continued", rc == 0, (rc, err[-200:]))
    time.sleep(1)
    b.rename(w.dir / "b-moved")
    b.symlink_to(outside)
    (c / "artifacts" / "model.safetensors").write_bytes(os.urandom(100000))
    d.rename(w.dir / "d-moved")
    shutil.copytree(outside, d)
    s.send(b"y\n")
    rc = s.close(20)
    w.tracebacks(f"gc rc {rc}", s.seen)
    w.fact("what gc said", None, s.seen[-700:].decode("utf-8", "replace"))
    w.fact("a run that became live is still there", (a / "run.json").is_file())
    w.fact("what a link in a run's place leads to is whole", (outside / "precious").is_file())
    w.fact("a run that gained a checkpoint is still there", (c / "run.json").is_file())
    w.fact("another folder in a run's place is still there", (d / "precious").is_file())
    w.call("stop", "--now", str(a))


def a15(w: Work) -> None:
    """runs/.index: torn, a folder, a link to somebody's file, a FIFO, 100 MB on one line, right marks with absurd states, ids that are paths, duplicates that disagree"""
    run = finished(w, "honest", "echo step 1 loss 2; exit 3")
    other = finished(w, "other")
    w.call("runs")
    index = w.runs / ".index"
    good = index.read_text()
    honest = w.call("runs")[1]
    lines = [json.loads(x) for x in good.splitlines() if x.strip()]
    victim = w.dir / "victim"
    victim.write_text("root:x:0:0\n")

    def forged(change) -> str:
        rows = json.loads(json.dumps(lines))
        for row in rows:
            change(row)
        return "\n".join(json.dumps(r) for r in rows) + "\n"

    def deep(value):
        return forged(lambda r: r["state"].update({k: value for k in list(r["state"])}))
    cases = {"torn": good[:-40], "nothing": "", "NULs": "\0" * 5000 + good, "states of null": deep(None), "states of 1e308": deep(1e308), "states of lists": deep([[[]]]),
             "states of text": deep("\x1b[31m"), "negative": deep(-10**30), "nested": "[" * 200000, "long": "x" * 100_000_000,
             "ids are paths": forged(lambda r: r.update(run_id="../../" + victim.name)), "mark of text": forged(lambda r: r.update(mark="abc")),
             "success": forged(lambda r: r["state"]["condition"].update(outcome="succeeded", exit_code=0)), "duplicate": good + deep(None) + good,
             "future": forged(lambda r: r["state"].update(started_t=9e11, ended_t=9e15, last_t=1e18)), "NaN": good.replace("2.0", "NaN").replace("1795", "-Infinity795")}

    def look(label: str) -> None:
        for verb in (("runs",), ("runs", "--json"), ("gc", "--keep", "1h", "--yes"), ("stop", run.name)):
            rc, out, err, took = w.call(*verb, timeout=20)
            if rc is None or b"Traceback" in out + err or b"Error:" in err:
                w.fact(f"{label}: {verb[0]} ends without a traceback", False, f"rc {rc} {took:.0f} s {err[-400:]!r}")
            w.safe_quiet = ACTS_IN(out + err)
            if w.safe_quiet:
                w.fact(f"{label}: {verb[0]} prints nothing that acts", False, w.safe_quiet)
            if verb == ("runs",):
                w.fact(f"{label}: both runs are listed as they were", b"honest" in out and b"other" in out and re.search(rb"gave_up", out) is not None, out[-500:].decode("utf-8", "replace"))
        w.fact(f"{label}: both folders are there", run.is_dir() and other.is_dir())

    for label, text in cases.items():
        index.unlink(missing_ok=True)
        index.write_text(text)
        index.chmod(0o600)
        look(label)
    index.unlink()
    index.mkdir()
    look("a folder")
    index.rmdir()
    index.symlink_to(victim)
    look("a link")
    w.fact("the link's target is unchanged", victim.read_text() == "root:x:0:0\n", victim.read_text()[:200])
    index.unlink(missing_ok=True)
    os.mkfifo(index)
    look("a FIFO")
    w.fact("list as at first", None, honest.decode("utf-8", "replace")[:300])


def ACTS_IN(data: bytes) -> str:
    from common import ACTS
    text = data.decode("utf-8", "replace")
    m = ACTS.search(text)
    return repr(text[max(0, m.start() - 50):m.end() + 30]) if m else ""


def a16(w: Work) -> None:
    """the state folder's index.jsonl, answers.jsonl, memory.jsonl: folders, FIFOs, 100,000 forged runs with paths /, /proc/self/root, line breaks, t of 1e400, equal ids; observed/ a link"""
    run = finished(w, "honest")
    state = w.dir / "state" / "stoker"
    index = state / "index.jsonl"
    good = index.read_text()
    row = json.loads(good.strip().splitlines()[0])
    rows = [dict(row, path=p, run_id=i, name=n) for p, i, n in (
        ("/", "x", "root"), ("/proc/self/root", run.name, "honest"), ("relative/../..", "y", "z"), ("/tmp/a\n\x1b[31mb", "20991231-2359-\x1b[2J", "\u202ename"), ("", "", ""),
        (str(run) + "/../" + run.name, run.name, "other name"), ("/dev/fd/0", "z", "z"), ("A" * 5000, "B" * 5000, "C" * 5000))]
    many = "".join(json.dumps(dict(row, path=f"/nonexistent/{i}", run_id=f"20250101-0000-no-{i}")) + "\n" for i in range(100_000))
    bad = good + "".join(json.dumps(r) + "\n" for r in rows) + good.replace("1795", "1e400") + '{"path": 5, "t": [], "name": {}}\n[]\n"x"\nnull\n' + '{"note_t": -1e999, "path": "/x"}\n' + "\xff\n"
    for label, text in (("forged", bad), ("100,000", many + good), ("torn", good[:20])):
        index.write_text(text, encoding="latin-1")
        for verb in (("runs", "--all"), ("runs", "--all", "--json"), ("name", run.name, f"n-{label[:4]}"), ("runs",), ("attach", "--no-ui", run.name), ("stop", "no-99999")):
            rc, out, err, took = w.call(*verb, timeout=30)
            w.tracebacks(f"{label}: {verb} rc {rc} {took:.1f} s", out, err)
            w.fact(f"{label}: {verb[0]} ends within 30 s", rc is not None, f"{took:.1f} s")
            acts = ACTS_IN(out + err)
            w.fact(f"{label}: {verb[0]} nothing acts", not acts, acts)
        rc, out, err, _ = w.run("echo step 1 loss 2; exit 0")
        w.fact(f"{label}: a new run starts", rc == 0, f"{rc} {err[-300:]!r}")
    for label, make in (("folders", lambda p: p.mkdir()), ("FIFOs", os.mkfifo), ("links to /dev/zero", lambda p: p.symlink_to("/dev/zero")), ("links to themselves", lambda p: p.symlink_to(p))):
        for name in ("index.jsonl", "answers.jsonl", "memory.jsonl"):
            p = state / name
            shutil.rmtree(p) if p.is_dir() and not p.is_symlink() else p.unlink(missing_ok=True)
            make(p)
        for verb in (("runs", "--all"), ("name", run.name, "again"), ("runs",)):
            rc, out, err, took = w.call(*verb, timeout=20)
            w.tracebacks(f"{label}: {verb} rc {rc}", out, err)
            w.fact(f"{label}: {verb[0]} ends within 20 s", rc is not None)
        rc, out, err, took = w.run("echo step 1 loss 2; exit 0", timeout=40)
        w.fact(f"{label}: a new run ends with 0 or is refused in one line", rc in (0, 2, 3) and err.count(b"\n") < 4, f"rc {rc} {took:.1f} s {err[-300:]!r}")


def a17(w: Work) -> None:
    """a journal with absurd values, and a state.json that matches it but lies or is absurd: every reader ends, in bounded time, without a traceback"""
    run = finished(w, "absurd", "echo step 1 loss 2; echo step 2 loss 1.5; exit 3")
    journal = run / "nodes/0/events.jsonl"
    good = journal.read_text()
    head, tail = good.splitlines()[:5], good.splitlines()[5:]
    odd = ['{"kind":"progress","t":1e400,"attempt":1,"step":1e400,"loss":NaN,"lows":[[1e308,-1e308],[null,null],"x",[]]}',
           '{"kind":"progress","t":-1e18,"attempt":1,"step":' + "9" * 400 + ',"loss":1e-320}',
           '{"kind":"progress","t":1e17,"attempt":1e9,"step":-5,"loss":"1"}', '{"kind":"progress","t":"x","attempt":null}',
           '{"kind":"launch_intended","t":0,"attempt":' + "1" * 30 + ',"argv":"notalist","reason":5}', '{"kind":"launch_intended","t":5,"attempt":2,"argv":[null,{}],"reason":null,"batch":"x"}',
           '{"kind":"attempt_started","t":253402300800,"attempt":2,"pid":-1,"start_time":"x"}', '{"kind":"rank_started","t":1,"attempt":1,"rank":1000000000,"pid":1}',
           '{"kind":"rank_started","t":1,"attempt":1,"rank":-1,"pid":' + "8" * 40 + '}', '{"kind":"checkpoint_committed","t":1,"attempt":1,"step":null,"path":5}',
           '{"kind":"evidence_seen","t":1,"attempt":1,"line":[],"text":{}}', '{"kind":"diagnosed","t":1,"attempt":1,"verdict":{"failure":"\\u001b[31m","ranks":[1e300],"advice":"x","title":null}}',
           '{"kind":"diagnosed","t":1,"attempt":1,"verdict":[]}', '{"kind":"decided","t":1,"attempt":1,"decision":{"kind":"boom","delay_s":1e308}}', '{"kind":"backoff_started","t":1,"attempt":1,"delay_s":-1e308,"until":1e308}',
           '{"kind":"stop_rung","t":1,"attempt":1,"rung":{}}', '{"kind":"hang_countdown","t":1,"attempt":1,"until":1e400,"left_s":-1,"text":0}', '{"kind":"clock_set","t":1,"ahead_s":1e308}',
           '{"kind":"gpu_found","t":1,"index":-1,"uuid":5,"memory_total_bytes":1e400}', '{"kind":"note_added","t":1e12,"text":' + "[" * 500 + "]" * 500 + '}', '{"kind":"node_seen","t":1,"node":1e9,"host":null}',
           '{"kind":"batch_measured","t":1,"attempt":1,"asks":5,"answers":"x"}', '{"kind":"run_started","t":1e15,"run_id":"../../x","name":[],"host":{}}', '{"kind":["x"],"t":1}', '{"t":1}', '"\\ud800"', '{"kind":"note_added","t":1,"text":"\\ud800\\udfff \\udc00"}']
    verbs = tuple(VERB for VERB in (("runs",), ("runs", "--json"), ("chart",), ("diagnose", "@"), ("diagnose", "@", "--json"), ("metrics", "@", "--csv"), ("policy", "explain", "@"), ("export", "@", "--gpu-csv"),
                                    ("scaling", "@"), ("attach", "--no-ui", "@"), ("attach", "--no-ui", "--json", "@"), ("gc", "--keep", "1h"), ("stop", "@"), ("continue", "@")))

    def all_readers(label: str, few: bool = False) -> None:
        for verb in verbs[:1] + verbs[3:4] + verbs[6:7] + verbs[9:10] if few else verbs:
            words = [str(run) if v == "@" else v for v in verb]
            rc, out, err, took = w.call(*words, timeout=25)
            bad = rc is None or b"Traceback" in out + err or re.search(rb"^\w+Error:", err, re.M) is not None
            w.fact(f"{label}: {' '.join(verb)}", not bad, f"rc {rc} {took:.1f} s {err[-500:].decode('utf-8', 'replace')}" if bad else "")
            acts = ACTS_IN(out + err)
            if acts:
                w.fact(f"{label}: {' '.join(verb)}: nothing acts", False, acts)

    journal.write_text("\n".join([*head, *odd, *tail]) + "\n")
    all_readers("all absurd lines")
    single = []
    for line in odd:  # which one, where only a few readers fall
        journal.write_text("\n".join([*head, line, *tail]) + "\n")
        rc, out, err, took = w.call("runs", timeout=20)
        rc2, out2, err2, took2 = w.call("diagnose", str(run), timeout=20)
        if None in (rc, rc2) or b"Traceback" in out + err + out2 + err2:
            single.append(line[:90])
    w.fact("no absurd line alone fells `runs` or `diagnose`", not single, single)
    notes = "".join(json.dumps({"kind": "note_added", "t": 1795989796.0, "text": f"n{i} " + "x" * 200}) + "\n" for i in range(9000))
    journal.write_text("\n".join([*head, *tail]) + "\n" + notes)
    rc, out, err, _ = w.call("continue", "--yes", "--restart-from-scratch", "--no-ui", str(run), timeout=60)
    state = run / "nodes/0/state.json"
    w.fact("a snapshot was left", None, f"{state.is_file()} rc {rc} {err[-200:]!r}")
    if state.is_file():
        text = state.read_text()
        kept = journal.read_bytes()
        stat = journal.stat()
        data = json.loads(text)
        inner = next((k for k, v in data.items() if isinstance(v, dict) and "attempts" in v), None)
        w.fact("keys of the snapshot", None, {k: str(v)[:60] for k, v in data.items()})
        for label, value in (("null", None), ("text", "x"), ("1e308", 1e308), ("list", [[]]), ("-1", -1)):
            forged = json.loads(text)
            if inner:
                forged[inner] = {k: value for k in forged[inner]}
            state.write_text(json.dumps(forged))
            all_readers(f"snapshot of {label}", few=True)
        forged = json.loads(text)
        if inner:
            for a in forged[inner].get("attempts", []):
                for key in list(a):
                    a[key] = 1e308 if not isinstance(a[key], (list, dict)) else [None]
            state.write_text(json.dumps(forged))
            all_readers("snapshot of absurd attempts", few=True)
        for label, raw in (("torn", text[: len(text) // 2]), ("nested", "[" * 300_000), ("NULs", "\0" * 100_000)):
            state.write_text(raw)
            all_readers(f"snapshot {label}", few=True)
        for label, make in (("FIFO", os.mkfifo), ("folder", lambda p: p.mkdir()), ("/dev/zero", lambda p: p.symlink_to("/dev/zero"))):
            state.unlink() if not state.is_dir() or state.is_symlink() else state.rmdir()
            make(state)
            all_readers(f"snapshot is a {label}", few=True)
        w.fact("readers left the journal alone", journal.read_bytes() == kept and journal.stat().st_mtime_ns == stat.st_mtime_ns)


def a18(w: Work) -> None:
    """3,000 old runs, 200 of the year 2099 with equal names, one live: list, stop without a name, attach without a name, gc; `latest` a link to itself"""
    base = finished(w, "base")
    for i in range(3000):
        year = 2099 if i < 200 else 2024
        to = w.runs / f"{year}0101-{i // 60:02d}{i % 60:02d}-run-{i}"
        (to / "nodes/0/attempts/1").mkdir(parents=True)
        (to / "control").mkdir()
        shift = 73 * 365 * DAY if i < 200 else -2 * 365 * DAY
        for name in ("run.json", "nodes/0/events.jsonl", "nodes/0/keeper.lock"):
            text = (base / name).read_text().replace(base.name, to.name)
            text = re.sub(r'("(?:\w*_)?t": ?)(\d{10}\.\d+)', lambda m: m[1] + repr(float(m[2]) + shift), text)
            (to / name).write_text(text)
    live = w.detach("echo step 1 loss 2; sleep 300", "--name", "base")
    latest = w.runs / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to("latest")
    for label, verb, limit in (("first list", ("runs",), 60), ("second list", ("runs",), 15), ("json", ("runs", "-n", "5", "--json"), 15), ("gc lists", ("gc", "--keep", "100d 10"), 60),
                               ("attach reads", ("attach", "--no-ui", "base"), 20), ("no such", ("stop", "no-such-run"), 20), ("ambiguous", ("stop", "20240101"), 20)):
        rc, out, err, took = w.call(*verb, timeout=limit)
        w.tracebacks(f"{label} rc {rc}", out, err)
        w.fact(f"{label}: within {limit} s and short", rc is not None and len(err) < 5000 or label == "attach reads", f"{took:.1f} s, {len(out)} and {len(err)} bytes: {(out + err)[:250]!r}")
    rc, out, err, took = w.call("runs")
    w.fact("the live run is among the 20 listed", live.name.encode() in out, out.decode("utf-8", "replace")[:400])
    rc, out, err, took = w.call("attach", "--no-ui", timeout=6)
    w.fact("attach without a name takes the live run, not one of 2099", live.name.encode() in out + err or b"step 1" in out, (out + err)[:300].decode("utf-8", "replace"))
    rc, out, err, took = w.call("stop", timeout=60)
    w.fact("stop without a name stops the one live run", rc == 0 and not w.processes("sleep 300"), f"{rc} {(out + err)[-200:]!r}")


def a19(w: Work) -> None:
    """closed stdin, stdout, stderr and /dev/full as stdout: no verb claims success for what nobody got, none prints a traceback, a run keeps its code, --detach leaves no unknown run"""
    finished(w, "base")
    full = {"runs": "runs", "json": "runs --json", "chart": "chart", "metrics": "metrics latest", "diagnose": "diagnose latest", "config": "config explain", "help": "run --help", "explain": "policy explain",
            "version": "--version", "dry-run": "run --dry-run -- true", "attach": "attach --no-ui latest", "export": "export --gpu-csv", "troubleshoot": "troubleshoot stuck", "gc": "gc --keep 500"}
    for name, words in full.items():
        rc, out, err, _ = w.call(shell=f'"$S" {words} >/dev/full', timeout=25)
        w.tracebacks(f"{name} >/dev/full", err)
        w.fact(f"{name} >/dev/full: says so and is not 0", rc not in (0, None) and len(err) < 2000, f"rc {rc} {err[-250:]!r}")
        for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
            rc, out, err, _ = w.call(shell=f'"$S" {words} {closed}', timeout=25)
            bad = rc is None or b"Traceback" in out + err or b"Exception ignored" in err or b"lost sys.stderr" in err
            if bad:
                w.fact(f"{name} {closed}", False, f"rc {rc} {err[-300:]!r}")
    for redirect in (">/dev/full", ">/dev/full 2>/dev/full", ">&-", "<&- >&- 2>&-"):
        for flags in ("", "--json"):
            rc, out, err, _ = w.call(shell=f'"$S" run --no-ui {flags} --no-check -- sh -c "echo step 1 loss 2; exit 0" {redirect}', timeout=40)
            w.fact(f"run --no-ui {flags} {redirect} keeps the job's 0", rc == 0, f"{rc} {err[-250:]!r}")
            w.tracebacks(f"run {flags} {redirect}", err)
    for redirect in (">/dev/full", ">&-", "<&- >&- 2>&-"):
        before = set(w.runs.glob("2*"))
        rc, out, err, _ = w.call(shell=f'"$S" run --detach --no-check -- sh -c "echo step 1 loss 2; sleep 8 ; touch $ATTACK/made" {redirect}', timeout=40)
        made = set(w.runs.glob("2*")) - before
        w.fact(f"run --detach {redirect}: rc 0 with a run, or another and none", (rc == 0) == bool(made), f"rc {rc}, runs {len(made)}, {err[-200:]!r}")
        w.call("stop", "--now", timeout=20)


def mounted(w: Work, options: str) -> Path:
    at = w.dir / "tmpfs"
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "atk", str(at)], check=True)
    return at


def a20(w: Work) -> None:
    """gc where no byte and no inode is left: it must still be able to free room, with and without --now; name, continue, stop there too"""
    for options, label in (("size=6m", "no space"), ("size=40m,nr_inodes=400", "no inodes")):
        at = mounted(w, options)
        try:
            w.env["STOKER_RUNS_DIR"] = str(at / "runs")
            w.runs = at / "runs"
            a, b, c = finished(w, "a"), finished(w, "b"), finished(w, "c", "echo step 1 loss 2; exit 3")
            for run in (a, b, c):
                old(run)
            if label == "no space":
                with open(at / "fill", "wb", buffering=0) as f:
                    try:
                        while True:
                            f.write(b"\0" * 4096)
                    except OSError:
                        pass
            else:
                try:
                    for i in range(100000):
                        (at / f"f{i}").touch()
                except OSError:
                    pass
            for words in (("runs",), ("name", str(c), "full"), ("continue", "--yes", "--restart-from-scratch", "--no-ui", str(c)), ("stop", str(c)), ("gc", "--keep", "1d", "--yes"), ("gc", "--keep", "1d", "--yes", "--now")):
                rc, out, err, took = w.call(*words, timeout=60)
                w.tracebacks(f"{label}: {words[0]} {words[-1][-6:]} rc {rc} {took:.0f} s", out, err)
                w.fact(f"{label}: {words[0]} {words[-1][-6:]}", None, f"rc {rc} {(out + err)[-260:].decode('utf-8', 'replace')}")
                w.fact(f"{label}: {words[0]} ends", rc is not None)
            w.fact(f"{label}: gc --now has deleted the old runs", not a.exists() and not b.exists(), [p.name for p in (at / 'runs').iterdir()])
            w.fact(f"{label}: nothing is left in the trash", not any((at / "runs/.trash").iterdir()) if (at / "runs/.trash").is_dir() else True)
        finally:
            for pid, _ in w.processes():
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.3)
            subprocess.run(["umount", "-l", str(at)], check=False)


def a21(w: Work) -> None:
    """HOME unset, XDG_STATE_HOME a file / a device / relative / missing parent, TMPDIR gone, PATH empty, USER unset, a uid without a passwd line, umask 777"""
    for label, env, drop in (("HOME unset", {}, ("HOME", "XDG_STATE_HOME")), ("XDG is a file", {"XDG_STATE_HOME": "/etc/hostname"}, ()), ("XDG is /dev/null", {"XDG_STATE_HOME": "/dev/null"}, ()),
                             ("XDG is relative", {"XDG_STATE_HOME": "rel/state"}, ()), ("XDG is /proc", {"XDG_STATE_HOME": "/proc"}, ()), ("XDG is empty", {"XDG_STATE_HOME": "", "HOME": "/nonexistent"}, ()),
                             ("TMPDIR gone", {"TMPDIR": "/nonexistent", "TMP": "/nonexistent", "TEMP": "/nonexistent"}, ()), ("PATH empty", {"PATH": ""}, ()), ("HOME is ~", {"HOME": "~"}, ("XDG_STATE_HOME",)),
                             ("runs dir is a file", {"STOKER_RUNS_DIR": "/etc/hostname"}, ()), ("runs dir is /dev/full", {"STOKER_RUNS_DIR": "/dev/full/x"}, ()), ("runs dir with NUL-like and line break", {"STOKER_RUNS_DIR": str(w.dir / "a\nb\x1b[31m")}, ())):
        for words in (("run", "--no-ui", "--no-check", "--", "/bin/sh", "-c", "echo step 1 loss 2; exit 0"), ("runs", "--all"), ("gc", "--keep", "1d")):
            rc, out, err, took = w.call(*words, env=env, drop=drop, timeout=40)
            w.tracebacks(f"{label}: {words[0]} rc {rc}", out, err)
            w.fact(f"{label}: {words[0]}: 0, or one line and 2 or 3", rc == 0 or (rc in (2, 3) and err.count(b"\n") <= 3), f"rc {rc} {err[-250:]!r}")
            acts = ACTS_IN(out + err)
            w.fact(f"{label}: {words[0]}: nothing acts", not acts, acts)
    w.fact("no folder rel/ is made of a relative XDG_STATE_HOME", not (w.dir / "work" / "rel").exists())
    home = w.dir / "anon"
    home.mkdir()
    home.chmod(0o777)
    w.dir.chmod(0o755)
    line = (f'umask 777; cd {home} && HOME={home} XDG_STATE_HOME={home}/s STOKER_RUNS_DIR={home}/runs setpriv --reuid 12345 --regid 12345 --clear-groups env -u USER -u LOGNAME "$S" run --no-ui --no-check -- /bin/sh -c "echo step 1 loss 2; exit 0"')
    rc, out, err, _ = w.call(shell=line)
    w.tracebacks(f"uid 12345, umask 777 rc {rc}", out, err)
    w.fact("uid without a name, umask 777: works, or one line", rc == 0 or (rc in (2, 3) and err.count(b"\n") <= 3), f"{rc} {(out + err)[-300:]!r}")
    modes = {oct(p.stat().st_mode & 0o777) for p in (home / "runs").glob("2*") if p.is_dir()} if (home / "runs").exists() else set()
    w.fact("its folder is 0700", modes <= {"0o700"}, modes)


def a22(w: Work) -> None:
    """limits: files of 2 KB (ulimit -f: SIGXFSZ, EFBIG), 20 descriptors, 300 MB of address space, 2 s of CPU, no core, no processes for the keeper: the job's code counts, or one line"""
    for label, limit, job, expected in (
            ("2 KB files", "ulimit -f 4", "echo step 1 loss 2; sleep 2; exit 0", (0, 2, 3)),
            ("16 KB files", "ulimit -f 32", "echo step 1 loss 2; for i in 2 3 4 5 6 7 8; do echo step $i loss 1; sleep 0.6; done; exit 0", (0, 2, 3)),
            ("12 descriptors", "ulimit -n 12", "echo step 1 loss 2; exit 0", (0, 2, 3)),
            ("20 descriptors", "ulimit -n 20", "echo step 1 loss 2; exit 0", (0, 2, 3)),
            ("250 MB", "ulimit -v 250000", "echo step 1 loss 2; exit 0", (0, 2, 3)),
            ("90 MB", "ulimit -v 90000", "echo step 1 loss 2; exit 0", (0, 1, 2, 3)),
            ("a stack of 64 KB", "ulimit -s 64", "echo step 1 loss 2; exit 0", (0, 2, 3))):
        rc, out, err, took = w.call(shell=f'{limit}; "$S" run --no-ui --no-check -- sh -c "{job}"', timeout=60)
        w.tracebacks(f"{label} rc {rc} {took:.0f} s", out, err)
        w.fact(f"{label}: the job's code, or one line", rc in expected, f"rc {rc} {(err or out)[-400:]!r}")
        left = w.processes()
        w.fact(f"{label}: nothing is left running", not left, left)
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for verb in ("runs", "diagnose latest"):
            rc, out, err, _ = w.call(shell=f'"$S" {verb}', timeout=25)
            w.tracebacks(f"{label}: later {verb} rc {rc}", out, err)


ATTACKS = {11: a11, 12: a12, 13: a13, 14: a14, 15: a15, 16: a16, 17: a17, 18: a18, 19: a19, 20: a20, 21: a21, 22: a22}
if __name__ == "__main__":
    main(ATTACKS)

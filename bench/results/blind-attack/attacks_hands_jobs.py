"""Attacks 23 to 30: half-remembered commands, signals, and what a job can do to stoker."""

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from common import ACTS, STOKER, Screen, Work, main
from attacks_age_room import ACTS_IN, finished, old
from attacks_terminal_secrets import VERBS, each_verb


def keeper_of(run: Path) -> int:
    return json.loads((run / "nodes/0/keeper.lock").read_text().strip().strip("\0"))["pid"]


def a23(w: Work) -> None:
    """18 commands at once on one run, three rounds: continue, stop, stop --now, gc, name, attach; never two copies of the job, nothing left, the folder there while live, the journal whole"""
    job = w.dir / "j.sh"
    job.write_text('mkdir $ATTACK/lock 2>/dev/null || echo two >> $ATTACK/twice\necho step 1 loss 2\n'
                   'trap "rmdir $ATTACK/lock; exit 4" TERM INT\nfor i in $(seq 1 60); do sleep 0.1; done\nrmdir $ATTACK/lock\nexit 3\n')
    run = w.detach(f"exec sh {job}", "--name", "crowd", "--no-retry")
    random.seed(5)
    outputs = []

    def one(words, delay):
        time.sleep(delay)
        outputs.append((words, w.call(*words, timeout=100)))

    for round_ in range(3):
        time.sleep(1.5)
        kinds = [("stop", "crowd"), ("stop", "--now", run.name), ("continue", "--yes", "--restart-from-scratch", "--detach", "crowd"), ("gc", "--keep", "1h 1", "--yes"), ("name", "crowd", "crowd"), ("attach", "--no-ui", "crowd")]
        threads = [threading.Thread(target=one, args=(kinds[i % 6], random.random() * 3)) for i in range(12)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        w.call("stop", "--now", "crowd", timeout=60)
        if (w.dir / "lock").exists() and not w.processes(str(job)):
            (w.dir / "lock").rmdir()  # it was killed by stop --now
        w.call("continue", "--yes", "--restart-from-scratch", "--detach", "crowd", timeout=60)
    w.call("stop", "--now", "crowd", timeout=60)
    w.fact("no command hung", all(r[0] is not None for _, r in outputs), [o[0] for o in outputs if o[1][0] is None])
    for words, (rc, out, err, took) in outputs:
        if b"Traceback" in out + err or b"Error:" in err:
            w.fact(f"{words}: no traceback", False, err[-500:].decode("utf-8", "replace"))
    w.fact("codes", None, sorted({(o[0][0], o[1][0]) for o in outputs}))
    twice = (w.dir / "twice").read_text() if (w.dir / "twice").exists() else ""
    starts = sum(1 for x in (run / "nodes/0/events.jsonl").read_text().splitlines() if '"attempt_started"' in x)
    w.fact("never two copies at once (a kill leaves its lock: at most one a --now)", None, f"{twice.count('two')} of {starts} starts found a lock")
    w.fact("the folder is there", (run / "run.json").is_file())
    lines = (run / "nodes/0/events.jsonl").read_bytes().splitlines()
    broken = [x for x in lines if not _json(x)]
    w.fact("every line of the journal is JSON", not broken, broken[:2])
    numbers = [json.loads(x)["attempt"] for x in lines if b'"kind":"attempt_started"' in x]
    w.fact("attempts have numbers of their own", len(numbers) == len(set(numbers)), numbers)
    time.sleep(1)
    w.fact("no process is left", not w.processes(), w.processes())


def _json(line: bytes) -> bool:
    try:
        json.loads(line)
        return True
    except ValueError:
        return False


def a24(w: Work) -> None:
    """odd targets to stop, attach, diagnose, metrics, chart, continue, name, gc: pid 1, -1, /, .., %s, a 100,000-letter word, /dev/zero, /proc/self/mem, /dev/stdin, endless pipes, a deleted folder"""
    run = w.detach("echo step 1 loss 2; sleep 300", "--name", "only")
    words = ["", " ", ".", "..", "/", "~", "-", "--", "-1", "0", "1", "%s%n", "{0.__class__}", "*", "[a-z]", "latest/../latest", "../runs", "a" * 100_000, "a/" * 3000, "line\nbreak", "\x1b[31m", "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
             "only ", "ONLY", "on", "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/proc/self/mem", "/proc/self/environ", "/proc/self/fd/0", "/proc/1/cmdline", "/sys", str(run / "nodes/0/events.jsonl"), str(run / "control"), run.name[:5], "1e9", "999999999999999999999", "٣"]
    for verb in (("stop", "--timeout", "5"), ("attach", "--no-ui"), ("diagnose",), ("metrics",), ("continue", "--yes"), ("name",)):
        for word in words:
            if verb[0] == "stop" and word in ("only", "on", "latest/../latest", run.name[:5], "ONLY", "only "):
                continue
            if verb[0] in ("diagnose", "metrics") and word in ("/", "/sys", "~", ".."):
                continue
            if verb[0] not in ("stop", "diagnose") and random.Random(verb[0] + word[:9]).random() < 0.35:
                continue
            extra = ("newname",) if verb[0] == "name" else ()
            rc, out, err, took = w.call(*verb, word, *extra, timeout=12)
            label = f"{verb[0]} {word[:30]!r}"
            if b"Traceback" in out + err or re.search(rb"^\w*Error\b", err, re.M):
                w.fact(f"{label}: no traceback", False, err[-400:].decode("utf-8", "replace"))
            if rc is None and not (verb[0] == "attach" and b"step" in out):
                w.fact(f"{label}: ends within 12 s", False if word.startswith("/dev") or word.startswith("/proc") else None, f"{out[-150:]!r} {err[-150:]!r}")
            if len(err) + len(out) > 100_000:
                w.fact(f"{label}: prints little", False, len(err) + len(out))
            acts = ACTS_IN(out + err)
            if acts:
                w.fact(f"{label}: nothing acts", False, acts)
            if not w.processes("sleep 300"):
                w.fact(f"{label}: did not stop the run", False, f"rc {rc} {(out + err)[-200:]!r}")
                run = w.detach("echo step 1 loss 2; sleep 300", "--name", "only")
    for line in ('yes | head -c 300000000 | timeout 25 "$S" diagnose -', 'timeout 15 "$S" metrics - </dev/zero | head -c 1000', 'timeout 12 "$S" diagnose - <&-', 'timeout 12 "$S" attach --no-ui - <&-',
                 'mkdir gone; cd gone; rmdir ../gone; timeout 12 "$S" stop nope', 'mkdir gone; cd gone; rmdir ../gone; timeout 12 "$S" gc --keep 1d', 'timeout 12 "$S" diagnose . ; true', 'timeout 12 "$S" attach --no-ui $$ </dev/null'):
        rc, out, err, took = w.call(shell=line, timeout=40)
        w.tracebacks(f"{line[:60]} rc {rc} {took:.0f} s", out, err)
        w.fact(f"{line[:60]}", None, f"rc {rc}: {(out + err)[:160]!r}")
    w.fact("the run lives after all of them", bool(w.processes("sleep 300")))
    w.call("stop", "--now", "only")


def a25(w: Work) -> None:
    """a live run named like another's full id, like a part of it, 'latest', '.', '-', a pid, a path: what is stopped, continued, deleted is never the one that only borrowed the name"""
    a = w.detach("echo step 1 loss 2; sleep 301", "--name", "aaa")
    b = w.detach("echo step 1 loss 2; sleep 302", "--name", a.name)
    rc, out, err, _ = w.call("stop", "--now", a.name, timeout=40)
    alive_a, alive_b = bool(w.processes("sleep 301")), bool(w.processes("sleep 302"))
    w.fact("stop ID never stops the run that only bears it as a name", alive_b, f"rc {rc} {(out + err)[-250:]!r}; a alive {alive_a}")
    w.fact("stop ID stopped the run with that id, or was refused as ambiguous", (rc == 0 and not alive_a) or (rc == 2 and alive_a), (rc, alive_a))
    if not alive_b:
        b = w.detach("echo step 1 loss 2; sleep 302", "--name", a.name)
    c = finished(w, "ccc", "echo step 1 loss 2; exit 3")
    for name in ("latest", ".", "-", "..", str(os.getpid()), str(c), c.name, c.name[:13], "--now", "aaa"):
        rc, out, err, _ = w.call("name", str(b), name) if not name.startswith("-") else w.call("name", str(b), "--", name)
        named = rc == 0
        if name in (str(c), c.name):
            rc, out, err, _ = w.call("stop", "--now", name, timeout=40)
            w.fact(f"named {name[-24:]!r} ({named}): stop of c's own id or path leaves b alive", bool(w.processes("sleep 302")), f"rc {rc} {(out + err)[-200:]!r}")
            rc, out, err, _ = w.call("diagnose", name)
            w.fact(f"named {name[-24:]!r}: diagnose of c's own id tells c's failure", b"3" in out and rc in (10, 11), f"rc {rc} {out[:200]!r}")
        else:
            rc, out, err, _ = w.call("runs")
            w.tracebacks(f"name {name[:20]!r} ({named}): runs", out, err)
            w.fact(f"name {name[:20]!r}", None, f"taken: {named}")
        if not w.processes("sleep 302"):
            b = w.detach("echo step 1 loss 2; sleep 302", "--name", "bbb")
    d = finished(w, b.name)  # a finished run whose name is the id of a live one
    old(d)
    rc, out, err, _ = w.call("gc", "--keep", "1d", "--yes", "--now")
    w.fact("gc: the live run whose id is the name of an old one is there", (b / "run.json").is_file() and bool(w.processes("sleep 302")), (out + err)[-200:].decode("utf-8", "replace"))
    w.call("stop", "--now", str(b))


def a26(w: Work) -> None:
    """Ctrl-C (SIGINT to the group), SIGTERM, SIGQUIT, SIGPIPE to run, run --detach, continue, gc, runs, stop, init at 14 moments of their first two seconds: no traceback, no orphan, a stop is a stop"""
    base = finished(w, "base", "echo step 1 loss 2; exit 3")
    moments = (0.03, 0.1, 0.2, 0.3, 0.4, 0.55, 0.7, 0.9, 1.1, 1.3, 1.6, 2.0)
    jobs = {"run": ["run", "--no-ui", "--", "sh", "-c", "echo step 1 loss 2; sleep 303"], "detach": ["run", "--detach", "--", "sh", "-c", "echo step 1 loss 2; sleep 303"],
            "continue": ["continue", "--yes", "--restart-from-scratch", "--no-ui", str(base)], "runs": ["runs", "--all"], "init": ["init", "--plain"], "diagnose": ["diagnose", "-"]}
    for name, words in jobs.items():
        for i, moment in enumerate(moments if name in ("run", "detach", "continue") else moments[:7]):
            number = (signal.SIGINT, signal.SIGINT, signal.SIGTERM)[i % 3]
            child = subprocess.Popen([STOKER, *words], env=w.env, cwd=w.dir / "work", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
            time.sleep(moment)
            if child.poll() is None:
                os.killpg(child.pid, number)
            try:
                out, err = child.communicate(timeout=50)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                out, err = child.communicate()
                w.fact(f"{name} at {moment} {number.name}: ends within 50 s", False)
            if b"Traceback" in out + err or b"KeyboardInterrupt" in err or b"Exception ignored" in err:
                w.fact(f"{name} at {moment} s, {number.name}, rc {child.returncode}: no traceback", False, err[-350:].decode("utf-8", "replace"))
            if name in ("run", "continue") and child.returncode not in (130, 5, -2, -15, 1, 4, 3, 2):
                w.fact(f"{name} at {moment} s, {number.name}: its code tells of the stop", False, child.returncode)
            if name == "detach":
                time.sleep(0.6)
                told = out.decode(errors="replace").split()
                live = bool(w.processes("sleep 303"))
                if live and not told:
                    w.fact(f"detach at {moment} s, {number.name}, rc {child.returncode}: a run lives though its id was not printed", None)
                w.call("stop", "--now", timeout=30)
            time.sleep(0.3)
            left = w.processes("sleep 303")
            if left:
                w.fact(f"{name} at {moment} s, {number.name}: no job is left", False, left)
                for pid, _ in left:
                    os.kill(pid, signal.SIGKILL)
        w.fact(f"{name}: tried", True)
    left = w.processes()
    w.fact("no process is left", not left, left)
    odd = [p.name for p in w.runs.iterdir() if p.is_dir() and p.name[0] == "2" and not (p / "run.json").is_file()]
    w.fact("no half-made run folder is left", not odd, odd)
    states = w.call("runs", "-n", "60")[1].decode("utf-8", "replace")
    w.fact("no run is listed as live", not re.search(r"\b(running|launching|preflight|stepping)\b", states), states[:600])


def a27(w: Work) -> None:
    """pids: a victim's pid and start time in attempts/1/pid, the journal and keeper.lock; a job that swaps its daemon's mark to another run; launcher frozen; then stop --now --without-keeper, adopt, stop"""
    victim = subprocess.Popen(["sleep", "3041"], start_new_session=True, env={"PATH": "/usr/bin:/bin"})
    w.extra_pids.append(victim.pid)
    ticks = int(Path(f"/proc/{victim.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    for label in ("dead keeper", "frozen keeper", "live keeper"):
        run = w.detach("echo step 1 loss 2; sleep 3042", "--name", label.split()[0])
        w.wait(lambda: (run / "nodes/0/attempts/1/pid").exists())
        time.sleep(1)
        keeper = keeper_of(run)
        pid = json.loads((run / "nodes/0/attempts/1/pid").read_text().strip("\0 \n"))
        forged = dict(pid, pid=victim.pid, start_ticks=ticks, launcher_pid=victim.pid, launcher_start_ticks=ticks)
        if label == "dead keeper":
            os.kill(keeper, signal.SIGKILL)
        elif label == "frozen keeper":
            os.kill(keeper, signal.SIGSTOP)
        (run / "nodes/0/attempts/1/pid").write_text(json.dumps(forged))
        journal = run / "nodes/0/events.jsonl"
        with journal.open("a") as f:
            f.write(json.dumps({"kind": "rank_started", "t": time.time(), "attempt": 1, "rank": 0, "pid": victim.pid, "start_time": ticks / 100}) + "\n")
        if label != "live keeper":
            (run / "nodes/0/keeper.lock").write_text(json.dumps({"pid": victim.pid, "start_time": ticks / 100, "host": os.uname().nodename}))
        for words in (("stop", "--timeout", "6", str(run)), ("stop", "--now", "--without-keeper", "--timeout", "10", str(run)), ("attach", "--adopt", str(run)), ("stop", "--now", "--timeout", "10", str(run))):
            rc, out, err, _ = w.call(*words, timeout=60)
            w.tracebacks(f"{label}: {words[:2]} rc {rc}", out, err)
            w.fact(f"{label}: after {' '.join(words[:3])}: the victim lives", victim.poll() is None, f"rc {rc} {(out + err)[-250:].decode('utf-8', 'replace')}")
            if victim.poll() is not None:
                victim = subprocess.Popen(["sleep", "3041"], start_new_session=True, env={"PATH": "/usr/bin:/bin"})
                w.extra_pids.append(victim.pid)
        try:
            os.kill(keeper, signal.SIGCONT)
            os.kill(keeper, signal.SIGKILL)
        except OSError:
            pass
        for pid_, _ in w.processes("sleep 3042"):
            w.fact(f"{label}: its own job is left", None, pid_)
            os.kill(pid_, signal.SIGKILL)
    b = w.detach("echo step 1 loss 2; sleep 3043", "--name", "innocent")
    marks = f"STOKER_RUN_DIR={b} STOKER_NODE_DIR={b}/nodes/0 STOKER_ATTEMPT=1 STOKER_TELEMETRY_DIR={b}/nodes/0/attempts/1/telemetry"
    a = w.detach(f"echo step 1 loss 2; (setsid env {marks} sleep 3044 &) ; (setsid sh -c 'setsid env -i /bin/sleep 3045 &' &); exec env {marks} sleep 3046", "--name", "turncoat")
    time.sleep(2)
    rc, out, err, _ = w.call("stop", "--timeout", "50", str(a), timeout=80)
    w.fact("stop of A says done", rc == 0, (rc, (out + err)[-300:]))
    time.sleep(1)
    w.fact("B, whose mark A's processes took, lives", bool(w.processes("sleep 3043")))
    left = [x for x in ("3044", "3045", "3046") if subprocess.run(["pgrep", "-x", "-f", f"(/bin/)?sleep {x}"], capture_output=True).stdout]
    w.fact("nothing that A started is left", not left, left)
    rc, out, err, _ = w.call("stop", "--timeout", "40", str(b), timeout=60)
    w.fact("B can be stopped", rc == 0 and not w.processes("sleep 3043"), (rc, (out + err)[-200:]))
    for x in ("3044", "3045", "3046"):
        for p in subprocess.run(["pgrep", "-x", "-f", f"(/bin/)?sleep {x}"], capture_output=True, text=True).stdout.split():
            w.extra_pids.append(int(p))
    c = w.detach("echo step 1 loss 2; sleep 3047", "--name", "iced")
    time.sleep(1.5)
    launcher = json.loads((c / "nodes/0/attempts/1/pid").read_text().strip("\0 \n"))["launcher_pid"]
    os.kill(launcher, signal.SIGSTOP)
    rc, out, err, took = w.call("stop", "--timeout", "60", str(c), timeout=90)
    w.fact("a stop with a frozen launcher ends the job", not w.processes("sleep 3047"), f"rc {rc} {took:.0f} s {(out + err)[-250:]!r}")
    w.fact("and says so with 0", rc == 0, rc)


def a28(w: Work) -> None:
    """a job forges telemetry/rank0.jsonl and measured0.jsonl: absurd steps, 20 MB lines, files named rank-1, rank99999999999999999999, links to a secret file, FIFOs, folders, a million-key record; the keeper lives and no secret is copied"""
    secret = w.dir / "secret.txt"
    secret.write_text('{"step": 7, "loss": 1.0, "note": "TOPSECRETLINE"}\nTOPSECRETLINE\n')
    job = w.dir / "j.py"
    job.write_text('''
import json, os, time
t = os.environ["STOKER_TELEMETRY_DIR"]
print("step 1 loss 2", flush=True)
odd = [{"step": 10**400}, {"step": -1, "loss": 1}, {"step": 1e308, "loss": float("nan")}, {"step": True, "loss": "x"}, {"step": 3, "loss": [1]}, {"kind": "checkpoint", "step": 5, "path": "/etc/passwd"},
  {"kind": "checkpoint", "step": 10**30, "path": "x" * 100000}, {"kind": "phase", "phase": "\\x1b[31mboom\\u2028"}, {"event": "ready", "world_size": 10**12, "micro_batch": -4, "total_steps": 10**25}, {"type": "step", "t": -1e300, "step": 4}, [], None, "x", 5, {"v": 99999, "schema": "9"},
  {"t": time.time() + 1e9, "kind": "step", "step": 5, "loss": 0.1}, {"t": 1e400, "kind": "exit", "exit_code": 0}, {str(i): i for i in range(300000)}]
for name in ("rank0.jsonl", "measured0.jsonl", "rank-1.jsonl", "rank99999999999999999999.jsonl", "rank1.jsonl", "measured1.jsonl"):
    with open(os.path.join(t, name), "w") as f:
        for o in odd:
            f.write(json.dumps(o) + "\\n")
        f.write("[" * 200000 + "\\n" + "\\xff\\xfe\\n" + "x" * 20_000_000 + "\\n" + '{"step": 8, "loss": 0.5')
for name, make in (("rank2.jsonl", lambda p: os.symlink(os.environ["ATTACK"] + "/secret.txt", p)), ("measured2.jsonl", lambda p: os.symlink(os.environ["ATTACK"] + "/secret.txt", p)), ("rank3.jsonl", os.mkfifo), ("measured3.jsonl", os.mkfifo),
                   ("rank4.jsonl", os.mkdir), ("rank5.jsonl", lambda p: os.symlink("/dev/zero", p)), ("measured5.jsonl", lambda p: os.symlink("/dev/zero", p)), ("rank6.jsonl", lambda p: os.symlink(p, p))):
    make(os.path.join(t, name))
for i in range(3000):
    open(os.path.join(t, f"rank{i + 100}.jsonl"), "w").write('{"step": 1}\\n')
for i in range(2, 12):
    print(f"step {i} loss {2 - i / 20}", flush=True); time.sleep(0.8)
raise SystemExit(3)
''')
    run = w.detach(f"exec python3 {job}", "--name", "forger", "--no-retry")
    keeper = keeper_of(run)
    peak = 0
    start = time.monotonic()
    while time.monotonic() - start < 60:
        try:
            status = Path(f"/proc/{keeper}/status").read_text()
            peak = max(peak, int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024)
        except (OSError, TypeError):
            break
        time.sleep(0.3)
    journal = (run / "nodes/0/events.jsonl").read_text()
    w.fact("the keeper ended the run by itself", '"kind":"run_ended"' in journal, journal[-400:])
    w.fact("the keeper took less than 400 MB", peak < 400, f"{peak} MB")
    w.fact("the run failed with the job's code 3", '"outcome":"failed"' in journal or "gave_up" in journal, journal[-500:])
    w.fact("the last step of the log (11) counts as last step", re.search(r'"kind":"attempt_ended".*"last_step":11\b', journal) is not None, (re.search(r'"last_step":\S{1,60}', journal) or [""])[0])
    w.fact("no checkpoint is believed that is no checkpoint", "/etc/passwd" not in journal, journal[max(0, journal.find("/etc/passwd") - 200):journal.find("/etc/passwd") + 50])
    hits = w.grep("TOPSECRETLINE", skip=("agent.log", "secret.txt"))
    w.fact("nothing of a linked file is copied", not hits, hits)
    log = run / "nodes/0/keeper.log"
    w.fact("keeper.log has no traceback", not log.exists() or "Traceback" not in log.read_text(), log.read_text()[-600:] if log.exists() else "")
    each_verb(w, str(run), "forged telemetry", timeout=30, only=VERBS[:6] + VERBS[8:13])
    w.fact("size of the journal", None, len(journal))


def a29(w: Work) -> None:
    """a job puts links to folders outside in place of attempts/2, artifacts, series, control and of its journal, then crashes and is restarted; and one that deletes its keeper, forges exit and goes on: nothing outside changes"""
    outside = w.dir / "outside"
    for part in ("attempts2", "artifacts", "series", "control", "telemetry"):
        (outside / part).mkdir(parents=True)
        (outside / part / "keep.txt").write_text("mine")
    (outside / "journal.txt").write_text("mine\n")
    (outside / "plan.json").write_text("mine\n")
    job = w.dir / "j.sh"
    job.write_text(f'''echo step 1 loss 2
if [ ! -e $ATTACK/once ]; then touch $ATTACK/once; sleep 1.2; cd $STOKER_RUN_DIR
ln -s {outside}/attempts2 nodes/0/attempts/2
ln -s {outside}/journal.txt run.json.tmp; ln -s {outside}/journal.txt nodes/0/state.json; ln -s {outside}/plan.json nodes/0/state.json.tmp
for p in artifacts control; do mv $p $p.old; ln -s {outside}/$p $p; done
mv nodes/0/series nodes/0/series.old; ln -s {outside}/series nodes/0/series
ln -s {outside}/journal.txt nodes/0/attempts/1/growth.json; ln -s {outside}/plan.json nodes/0/keeper.log
sleep 1; exit 9; fi
for i in 2 3 4 5; do echo step $i loss 1.$i; sleep 0.6; done
exit 9
''')
    def tree() -> dict:
        return {str(p.relative_to(outside)): p.read_bytes()[:80] if p.is_file() else b"dir" for p in sorted(outside.rglob("*"))}
    before = tree()
    rc, out, err, _ = w.run(f"exec sh {job}", "--restart-from-scratch", "--max-retries", "1", timeout=90)
    w.tracebacks(f"run rc {rc}", out, err)
    after = tree()
    w.fact("nothing outside was changed, made or deleted", before == after, {k: after.get(k) for k in set(before) ^ set(after) | {k for k in before if after.get(k) != before[k]}})
    run = w.newest()
    for words in (("stop", str(run)), ("continue", "--yes", "--restart-from-scratch", "--no-ui", str(run)), ("diagnose", str(run)), ("gc", "--keep", "1h 1MB", "--yes", "--now", "--with-checkpoints")):
        rc, out, err, _ = w.call(*words, timeout=60)
        w.tracebacks(f"{words[0]} rc {rc}", out, err)
        w.fact(f"after {words[0]} nothing outside changed", tree() == before, f"rc {rc} " + repr({k: tree().get(k) for k in set(before) ^ set(tree()) | {k for k in before if tree().get(k) != before[k]}}))
    killer = ('echo step 1 loss 2; sleep 1; K=$(sed \'s/.*"pid": *\\([0-9]*\\).*/\\1/\' $STOKER_RUN_DIR/nodes/0/keeper.lock | head -1); kill -9 $K; kill -9 $PPID; '
              'rm -rf $STOKER_RUN_DIR/nodes/0/attempts/1/exit; echo \'{"exit_code": 0, "t": 1e400}\' > $STOKER_RUN_DIR/nodes/0/attempts/1/exit; sleep 3051')
    rc, out, err, _ = w.call("run", "--detach", "--no-check", "--name", "patricide", "--", "sh", "-c", killer)
    time.sleep(4)
    rc, out, err, _ = w.call("runs")
    w.fact("a job that killed keeper and launcher and forged its exit is not listed as succeeded while it lives", not re.search(rb"patricide.*succeeded|succeeded.*patricide", out), out.decode("utf-8", "replace")[:400])
    rc, out, err, _ = w.call("continue", "--yes", "--restart-from-scratch", "--detach", "patricide", timeout=30)
    copies = len(w.processes("sleep 3051"))
    w.fact("continue starts no second copy beside it", len([1 for _, c in w.processes("sleep 3051") if c.startswith("sleep")]) <= 1, f"rc {rc} {(out + err)[-250:]!r} {copies}")
    rc, out, err, _ = w.call("attach", "--adopt", "patricide", timeout=30)
    w.tracebacks(f"adopt rc {rc}", out, err)
    w.fact("it can be adopted", rc == 0, f"rc {rc} {(out + err)[-250:]!r}")
    rc, out, err, _ = w.call("stop", "--now", "patricide", timeout=60)
    w.fact("and stopped", not w.processes("sleep 3051"), f"rc {rc} {(out + err)[-250:]!r}")


def a30(w: Work) -> None:
    """a job prints 600 MB without a line end, then its error: live, by diagnose and by metrics: bounded memory, the error found, a stop heard in the middle"""
    job = w.dir / "j.py"
    job.write_text('import sys, os, time\nprint("step 1 loss 2.0", flush=True)\nb = (b"loss: 1.5 step 3 " * 4096)\nfor i in range(600 * 1024 * 1024 // len(b)):\n    os.write(1, b)\n'
                   'os.write(1, b"\\n")\nprint("step 9 loss 1.0", flush=True)\nif os.environ.get("ENDLESS"):\n    time.sleep(300)\nraise RuntimeError("CUDA error: an illegal memory access was encountered")\n')
    run = w.detach(f"exec python3 {job}", "--name", "long", "--no-retry")
    keeper = keeper_of(run)
    peak, start = 0, time.monotonic()
    while time.monotonic() - start < 120:
        try:
            peak = max(peak, int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{keeper}/status").read_text())[1]) // 1024)
        except (OSError, TypeError):
            break
        time.sleep(0.5)
    took = time.monotonic() - start
    journal = (run / "nodes/0/events.jsonl").read_text()
    w.fact("the run has ended within 120 s", '"kind":"run_ended"' in journal, f"{took:.0f} s {journal[-300:]}")
    w.fact("the keeper took less than 400 MB", peak < 400, f"{peak} MB")
    w.fact("the failure after the long line is found", "illegal memory access" in journal and '"failure":"cuda_error"' in journal, journal[-700:])
    w.fact("step 9 behind it counts", '"last_step":9' in journal, (re.search(r'"last_step":\S{1,40}', journal) or [""])[0])
    log = next(run.rglob("agent.log"))
    for words in (("diagnose", str(log)), ("metrics", str(log), "--json")):
        rc, out, err, seconds = w.call(shell=f'ulimit -v 1500000; "$S" {words[0]} {words[1]} | tail -c 3000', timeout=100)
        w.tracebacks(f"{words[0]} {seconds:.0f} s", out, err)
        w.fact(f"{words[0]}: ends within 100 s in 1.5 GB", rc is not None and b"MemoryError" not in err, f"{seconds:.0f} s {out[:200]!r} {err[-200:]!r}")


ATTACKS = {23: a23, 24: a24, 25: a25, 26: a26, 27: a27, 28: a28, 29: a29, 30: a30}
if __name__ == "__main__":
    main(ATTACKS)

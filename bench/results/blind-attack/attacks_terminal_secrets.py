"""Attacks 1 to 10: the terminal, and secrets."""

import base64
import json
import os
import re
import signal
import time

from common import HIDDEN, Screen, Work, main

HOSTILE = ("a\u009b31m" "\u202e" "gnp" "\u2028" "\u2029" "\u0085" "\u061c" "\U000e0041\U000e007f" "e" + "\u0301" * 3000
           + "\u200d\ufe0f" + "\x7f\x08" + "\u2066" + "z")
VERBS = (("runs",), ("runs", "--json"), ("runs", "--all"), ("chart",), ("diagnose", "@"), ("diagnose", "@", "--json"), ("metrics", "@", "--csv"),
         ("metrics", "@", "--json"), ("policy", "explain", "@"), ("export", "@", "--gpu-csv"), ("scaling", "@"), ("attach", "--no-ui", "@"),
         ("attach", "--no-ui", "--json", "@"), ("gc", "--keep", "1h"), ("stop", "@"), ("continue", "@"))


def each_verb(w: Work, run: str, label: str, timeout: float = 40, only=VERBS, **more) -> bytes:
    everything = b""
    for verb in only:
        words = [run if v == "@" else v for v in verb]
        rc, out, err, took = w.call(*words, timeout=timeout, **more)
        if rc is None:
            w.fact(f"{label} {verb}: ends within {timeout:.0f} s", False)
        w.tracebacks(f"{label} {' '.join(verb)} (rc {rc}, {took:.1f} s)", out, err)
        w.safe(f"{label} {' '.join(verb)}", out, err)
        everything += out + err
    return everything


def a01(w: Work) -> None:
    """C1 controls, bidi, U+2028, tag characters and 3,000 combining marks in --name, an argument, a later name and --env"""
    rc, out, err, _ = w.call("run", "--no-ui", "--no-check", "--name", HOSTILE, "--env", "X=" + HOSTILE, "--", "sh", "-c",
                             "echo step 1 loss 2; exit 3", HOSTILE)
    w.fact("run ends with its own code (1 or 4)", rc in (1, 2, 4), rc)
    w.safe("run", out, err)
    if not w.runs.exists():
        return
    run = str(w.newest())
    rc, out, err, _ = w.call("name", run, HOSTILE[::-1])
    w.safe(f"name (rc {rc})", out, err)
    seen = each_verb(w, run, "hostile name")
    text = seen.decode("utf-8", "replace")
    longest = max((len(m.group()) for m in re.finditer("[\u0300-\u036f]+", text)), default=0)
    w.fact("no column of more than 32 combining marks reaches a terminal", longest <= 32, longest)
    w.fact("tag characters (invisible) do not reach a terminal", not re.search("[\U000e0000-\U000e007f]", text))


def a02(w: Work) -> None:
    """a job forges stoker's own console lines: \\r, U+2028, C1, OSC 52, and '[SUCCESS] … succeeded' in its last error line"""
    job = w.dir / "forge.py"
    job.write_text('import sys\n'
                   'print("step 1 loss 2.0", flush=True)\n'
                   'sys.stdout.buffer.write("step 2 loss 1.9\\r[SUCCESS] 2026-11-29 22:00:00 succeeded: finished (exit code 0)\\n".encode())\n'
                   'sys.stdout.buffer.write(b"\\xc2\\x9b2J\\x1b]52;c;cm0gLXJmIC8=\\x07\\x1bP+q544e\\x1b\\\\\\xe2\\x80\\xa8step 3 loss 1.8\\n")\n'
                   'sys.stdout.flush()\n'
                   'raise RuntimeError("bad\\x1b]0;title\\x07\\u2028[SUCCESS] 2026-11-29 22:00:00 succeeded: finished (exit code 0)\\r[SUCCESS] x\\n'
                   '[SUCCESS] 2026-11-29 22:00:00 succeeded: finished (exit code 0)")\n')
    rc, out, err, _ = w.run(f"python3 {job}")
    w.fact("the run has failed", rc in (1, 4), rc)
    w.safe("console", out, err)
    forged = [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith("[SUCCESS]")]
    w.fact("no line of the console begins with [SUCCESS]", not forged, forged)
    run = str(w.newest())
    seen = each_verb(w, run, "forged", only=VERBS[:6] + VERBS[8:9] + VERBS[11:13])
    forged = [line for line in seen.decode("utf-8", "replace").splitlines() if line.startswith("[SUCCESS]")]
    w.fact("no verb prints a line that begins with [SUCCESS]", not forged, forged)


def a03(w: Work) -> None:
    """metric names: formulas, quotes, a comma, line breaks in JSON keys, 400 names of one line, a key __proto__, a name of 20,000 letters"""
    log = w.dir / "m.log"
    rows = [json.dumps({"step": i, "loss": 2 - i / 10, "=cmd|' /C calc'!A0": 1.5, 'a,"b"\n=1+1': 2.5, "\u202ebidi": 3, "__proto__": 4, "x" * 20000: 5})
            for i in range(1, 6)]
    rows.append("step: 6 | " + " | ".join(f"m{i}\u009b: {i}.5" for i in range(400)))
    log.write_text("\n".join(rows) + "\n")
    for words in (("metrics", str(log), "--csv"), ("metrics", str(log), "--json"), ("metrics", str(log)), ("chart", str(log)), ("diagnose", str(log))):
        rc, out, err, took = w.call(*words, timeout=30)
        w.tracebacks(f"{words[0]} {words[2:]} rc {rc} {took:.1f} s", out, err)
        w.safe(words[0], out, err)
        w.fact(f"{words[0]} {words[2:]} ends", rc is not None)
        if "--csv" in words and out:
            import csv
            import io
            table = list(csv.reader(io.StringIO(out.decode())))
            w.fact("CSV: as many cells in each row as in the header", len({len(r) for r in table}) == 1, {len(r) for r in table})
            risky = [c[:40] for r in table for c in r if c and c[:1] in "=@+" and not re.fullmatch(r"[+]?[\d.e+-]+", c)]
            w.fact("CSV: no cell that a spreadsheet runs as a formula", not risky, risky[:3])
        if "--json" in words:
            good = True
            for line in out.decode().splitlines():
                try:
                    json.loads(line)
                except ValueError:
                    good = False
            w.fact("each line of --json is JSON", good)


def a04(w: Work) -> None:
    """TERM, COLUMNS, LINES, LANG, PYTHONIOENCODING with absurd values: every verb ends without a traceback and prints little"""
    w.run("echo step 1 loss 2; echo step 2 loss 1; exit 0", "--name", "ö\U0001f9a6名前")
    run = str(w.newest())
    some = (("runs",), ("chart",), ("diagnose", "@"), ("runs", "--help"), ("metrics", "@", "--csv"))
    for label, env, drop in (
            ("TERM=../../etc/passwd COLUMNS=-5", {"TERM": "../../etc/passwd", "COLUMNS": "-5", "LINES": "0"}, ()),
            ("COLUMNS=99999999", {"COLUMNS": "99999999", "LINES": "99999999"}, ()),
            ("COLUMNS=1", {"COLUMNS": "1", "LINES": "1"}, ()),
            ("COLUMNS=٣٣ (digits of another script)", {"COLUMNS": "٣٣"}, ()),
            ("ascii", {"LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ("LANG",)),
            ("utf-16", {"PYTHONIOENCODING": "utf-16"}, ()),
            ("unknown locale", {"LC_ALL": "xx_YY.NOPE\x1b[31m", "LANG": "zh_CN.GB18030"}, ()),
            ("no TERM, NO_COLOR empty", {"NO_COLOR": "", "FORCE_COLOR": "9" * 50, "CLICOLOR_FORCE": "1"}, ("TERM",))):
        for verb in some:
            rc, out, err, took = w.call(*[run if v == "@" else v for v in verb], env=env, drop=drop, timeout=25)
            ok = rc == 0 and len(out) < 3_000_000
            if not ok:
                w.fact(f"{label}: {verb[0]} ends with 0 and little output", False, f"rc {rc}, {len(out)} bytes, {took:.1f} s, {err[-300:]!r}")
            if b"Traceback" in err or b"Traceback" in out or b"Error:" in err:
                w.fact(f"{label}: {verb[0]}: no traceback", False, err[-500:].decode(errors="replace"))
        w.fact(f"{label}: tried", True)
    rc, out, err, _ = w.run("echo step 1 loss 2; printf '\\303\\266\\360\\237\\246\\246 done\\n'; exit 0", "--name", "ö\U0001f9a6",
                            env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "COLUMNS": "0"}, drop=("LANG",))
    w.fact("a run under ascii:strict ends with 0", rc == 0, f"{rc} {err[-300:]!r}")


def a05(w: Work) -> None:
    """attach on a terminal of 1×1, resized to 2×1000, 0×0, 300×3; then SIGTERM, SIGHUP, SIGTSTP, SIGINT: the terminal is given back"""
    import termios
    w.detach("for i in $(seq 1 400); do printf 'step %d loss 2.%d e\\314\\201\\314\\201\\314\\201 \\360\\237\\217\\264 \\342\\200\\256 x\\n' $i $i; sleep 0.2; done")
    for label, number in (("SIGTERM", signal.SIGTERM), ("SIGHUP", signal.SIGHUP), ("SIGINT", signal.SIGINT), ("q", None)):
        s = Screen(w, "attach", size=(1, 1))
        s.read(3)
        for rows, columns in ((2, 1000), (0, 0), (300, 3), (1, 1), (24, 80)):
            s.resize(rows, columns)
            s.read(0.8)
            for key in (b"M", b"\x1b", b"L", b"\x1b", b"?", b"\x1b"):
                s.send(key)
                s.read(0.15)
        w.fact(f"{label}: alive after all sizes and keys", s.child.poll() is None, s.seen[-300:].decode("utf-8", "replace") if s.child.poll() is not None else "")
        if s.child.poll() is None:
            if number is None:
                s.send(b"q")
            else:
                os.kill(s.child.pid, number)
        rc = s.close(8)
        w.fact(f"{label}: leaves within 8 s", rc is not None, rc)
        w.tracebacks(label, s.seen)
        after = s.seen
        on, off = after.rfind(b"\x1b[?1049h"), after.rfind(b"\x1b[?1049l")
        w.fact(f"{label}: leaves the second screen", on < off or on < 0, (on, off))
        for code, name in ((b"1000", "mouse"), (b"1003", "all mouse moves"), (b"2004", "bracketed paste")):
            a, b = after.rfind(b"\x1b[?" + code + b"h"), after.rfind(b"\x1b[?" + code + b"l")
            w.fact(f"{label}: {name} switched off", a < 0 or b > a, (a, b))
        a, b = after.rfind(b"\x1b[?25l"), after.rfind(b"\x1b[?25h")
        w.fact(f"{label}: the cursor is shown again", a < 0 or b > a, (a, b))
        w.fact(f"{label}: line mode is back", termios.tcgetattr(s.slave)[3] == s.before[3], (termios.tcgetattr(s.slave)[3], s.before[3]))
    w.call("stop", "--now")


# Made up for this attack; none was ever valid.
GH = "ghp_" + "R7kQ2mZx9LpT4vBn8YcW1sHd6JfA3gEu5oXi"
HF = "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNmQwErTyUi"
PEM_LINE = "MIIEpAIBAAKCAQEAx7Qm2Zp9LkTvBnYcWsHdJfAgEuoXiR7kQ2mZx9LpT4vBn8Yc"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + PEM_LINE + "\n" + PEM_LINE[::-1] + "\n-----END RSA PRIVATE KEY-----"


def look(w: Work, label: str, secrets: dict, outputs: bytes, skip=("agent.log",)) -> None:
    for name, value in secrets.items():
        hits = w.grep(value, skip)
        w.fact(f"{label}: {name} in no file", not hits, " ; ".join(hits[:3]))
        forms = {value.encode(), json.dumps(value)[1:-1].encode(), repr(value)[1:-1].encode()}
        at = next((outputs.find(f) for f in forms if f in outputs), -1)
        w.fact(f"{label}: {name} in no output", at < 0, outputs[max(0, at - 100):at + 80].decode("utf-8", "replace") if at >= 0 else "")


def a06(w: Work) -> None:
    """secrets in nested JSON, YAML and query arguments, a PEM variable of four lines, base64 of user:password, a password with quotes, printed by repr in a traceback"""
    odd = 'q"w\\e\u00f6r#7t\'y9Zk'
    basic = base64.b64encode(b"svc:Tr0ub4dor&3xyz").decode()
    cfg = json.dumps({"db": [{"conn": {"password": "nEsTeD-9f8Kq2"}}], "opts": json.dumps({"api_key": "iNnEr-77aKq2Zx"})})
    job = w.dir / "j.py"
    job.write_text('import os, sys, base64, json\nprint("step 1 loss 2", flush=True)\n'
                   'p = os.environ["DB_PASSWORD"]\nprint("using", p, file=sys.stderr)\n'
                   'raise RuntimeError("could not log in: %r %s %s %s %s" % (p, json.dumps({"x": p}), os.environ["TLS_PRIVATE_KEY"], sys.argv, base64.b64encode(p.encode()).decode()))\n')
    env = {"DB_PASSWORD": odd, "TLS_PRIVATE_KEY": PEM}
    words = ["run", "--no-ui", "--no-check", "--env", "SIDE_TOKEN=sIdE-tok-5512Zq", "--", "python3", str(job), "--cfg", cfg, "--header",
             f"Authorization: Basic {basic}", "--yaml", "db: {user: u, passwd: 'yAmL-33kQzz1'}", "--url",
             "https://h/x?X-Amz-Signature=5f1cd2aa90bb34ee5f1cd2aa90bb34ee&access_token=uRl-88zzQk41", "db.password", "sPaCe-19kkQz"]
    rc, out, err, _ = w.call(*words, env=env)
    seen = out + err
    w.fact("the run failed by itself", rc in (1, 4), rc)
    run = str(w.newest())
    seen += each_verb(w, run, "secrets", only=VERBS[:2] + VERBS[4:6] + VERBS[8:9] + VERBS[10:13] + VERBS[15:])
    rc, out, err, _ = w.call(*[words[0], "--dry-run", *words[2:]], env=env)
    seen += out + err
    secrets = {"password with quotes": odd, "its base64": base64.b64encode(odd.encode()).decode(), "PEM body": PEM_LINE, "PEM second line": PEM_LINE[::-1],
               "basic auth": basic, "nested JSON": "nEsTeD-9f8Kq2", "JSON in JSON": "iNnEr-77aKq2Zx", "--env": "sIdE-tok-5512Zq", "YAML": "yAmL-33kQzz1",
               "signature": "5f1cd2aa90bb34ee5f1cd2aa90bb34ee", "query token": "uRl-88zzQk41", "two words": "sPaCe-19kkQz"}
    look(w, "secrets", secrets, seen)


def a07(w: Work) -> None:
    """secrets where a person slips: --name, a later name, a misspelt flag, an unknown verb's argument, attach URL, stoker.toml error, --env without NAME"""
    seen = b""
    rc, out, err, _ = w.run("echo step 1 loss 2; exit 0", "--name", "run " + GH)
    seen += out + err
    run = str(w.newest())
    for words in (("name", run, "best " + HF), ("runs",), ("runs", "--json"), ("runs", "--all"),
                  ("run", f"--hf-tokn={HF}", "x.py"), ("run", "--api-key", GH, "--no-ui", "x.py"), ("run", "--env", GH, "--no-ui", "--", "true"),
                  ("attach", "--no-ui", f"https://bob:pAssw0rd-zz81@h/{GH}"), ("stop", GH), ("diagnose", f"token={HF}"), ("troubleshoot", "Bearer", GH),
                  ("config", "explain", f"password={HF}"), ("run", "--dry-run", "--config", f"x.toml?api_key={HF}"), ("run", "--max-retries", GH, "x.py"),
                  ("gc", "--keep", GH), ("slurm", "script", "--account", GH, "--", "x.py"), ("replay", "--speed", GH), (GH,), ("policy", GH), ("signatures", GH)):
        rc, out, err, _ = w.call(*words, timeout=25)
        w.tracebacks(f"{words[:2]} rc {rc}"[:60].replace(GH, "GH").replace(HF, "HF"), out, err)
        for label, secret in (("GH", GH), ("HF", HF), ("URL password", "pAssw0rd-zz81")):
            if secret.encode() in out + err:
                at = (out + err).find(secret.encode())
                w.fact(f"{' '.join(words).replace(GH, 'GH').replace(HF, 'HF')[:60]} (rc {rc}): {label} is not printed", False,
                       (out + err)[max(0, at - 80):at + 20].decode("utf-8", "replace"))
    (w.dir / "work" / "stoker.toml").write_text(f'[policy]\nmax_retries = "{GH}"\n[run]\napi_token = "{HF}"\n')
    for words in (("config", "explain"), ("run", "--show-config", "--", "true"), ("runs",)):
        rc, out, err, _ = w.call(*words, timeout=25)
        seen += out + err
        w.tracebacks(f"toml {words} rc {rc}", out, err)
    look(w, "slips", {"GH": GH, "HF": HF}, seen)


def a08(w: Work) -> None:
    """a token broken by colour codes, zero-width spaces, \\r progress, tqdm, or two writes: whole again once the codes are left out; JSON log lines, YAML blocks, checkpoint URLs"""
    job = w.dir / "j.py"
    half = len(GH) // 2
    job.write_text(
        "import sys, time\nw = sys.stdout.buffer.write\n"
        'w(b"step 1 loss 2\\n")\n'
        f'w(b"Saved checkpoint to https://bob:{HF[3:]}@bucket/ck/step_1.pt?sig=zZ91kkQ7vv42mmP0\\n")\n'
        f'w(b"password: >-\\n  bLoCk-55kkQz91\\n")\nw(b"step 2 loss 1.9\\n")\n'
        'w(b"{\\"level\\": \\"error\\", \\"ctx\\": {\\"headers\\": {\\"x-api-key\\": \\"jSoN-head-81kkQ\\"}}, \\"msg\\": \\"CUDA error: boom\\"}\\n")\n'
        f'w(b"RuntimeError: token {GH[:half]}\\x1b[0m{GH[half:]} is bad\\n"); sys.stdout.flush()\n'
        f'sys.stderr.buffer.write("ValueError: token {HF[:12]}\\u200b{HF[12:]} and {HF[:9]}\\u00ad{HF[9:]} and {HF[:9]}\\x08\\x00{HF[9:]}\\n".encode())\n'
        f'raise RuntimeError("401 Client Error for {GH[:half]}\\x1b]8;;x\\x07{GH[half:]} at \\U000e0041" + "{HF[:10]}" + chr(0xe0020) + "{HF[10:]}")\n')
    rc, out, err, _ = w.run(f"python3 {job}")
    seen = out + err
    run = str(w.newest())
    seen += each_verb(w, run, "broken", only=VERBS[:2] + VERBS[4:6] + VERBS[8:9] + VERBS[11:13])
    copy = w.dir / "copy.log"
    copy.write_bytes(next(w.newest().rglob("agent.log")).read_bytes())
    for words in (("diagnose", str(copy), "--explain"), ("diagnose", str(copy), "--json"), ("metrics", str(copy), "--json")):
        seen += b"".join(w.call(*words)[1:3])
    plain = HIDDEN.sub("", seen.decode("utf-8", "replace"))
    look(w, "broken", {"GH": GH, "HF": HF, "URL user token": HF[3:], "signature": "zZ91kkQ7vv42mmP0", "header in JSON": "jSoN-head-81kkQ"}, seen)
    w.fact("no token is whole once invisible characters are left out", GH not in plain and HF not in plain,
           plain[max(0, plain.find(HF) - 80):plain.find(HF) + 60])
    for path in w.newest().rglob("*.jsonl"):
        text = HIDDEN.sub("", json.dumps([json.loads(x) for x in path.read_text().splitlines() if x.strip()], ensure_ascii=False))
        w.fact(f"{path.name}: no token whole once invisible characters are left out", GH not in text and HF not in text)


def a09(w: Work) -> None:
    """a hidden argument is given again as STOKER_ARGUMENT_1: with a line break, with a shape, empty; the job must get it exactly, not see the variable, and no file keep it"""
    job = w.dir / "j.py"
    job.write_text('import os, sys\nopen(os.environ["ATTACK"] + "/seen", "a").write(repr((sys.argv[1:], [k for k in os.environ if k.startswith("STOKER_ARG")])) + "\\n")\n'
                   'print("step 1 loss 2", flush=True)\nraise SystemExit(3)\n')
    first = "fIrSt-91kkQz77"
    rc, out, err, _ = w.call("run", "--no-ui", "--no-check", "--no-retry", "--", "python3", str(job), "--api-key", first)
    seen = out + err
    run = str(w.newest())
    for label, value in (("none", None), ("empty", ""), ("line break", "sEcond-\n44kkQ"), ("redacted", "<redacted>"), ("escape", "tHird-\x1b[31m-12kkQ"), ("long", "L0ng" * 20000)):
        env = {} if value is None else {"STOKER_ARGUMENT_3": value}
        rc, out, err, _ = w.call("continue", "--yes", "--restart-from-scratch", "--no-ui", run, env=env, timeout=40)
        seen += out + err
        w.tracebacks(f"continue with {label} (rc {rc})", out, err)
        w.safe(f"continue with {label}", out, err)
        w.fact(f"continue with {label}", None, f"rc {rc}: {(err + out)[:200]!r}")
    rows = (w.dir / "seen").read_text()
    w.fact("the job never got <redacted>", "redacted" not in rows, rows[:400])
    w.fact("the job never saw STOKER_ARGUMENT_1", "STOKER_ARG" not in rows)
    look(w, "given again", {"first": first, "second": "sEcond-\n44kkQ", "second's tail": "44kkQ", "third": "-12kkQ", "long": "L0ng" * 8}, seen)


def a10(w: Work) -> None:
    """secrets under names with digits, dashes, camel case, Cyrillic look-alikes and other languages' words; a secret of exactly 6 characters, one that is a number, one that equals a common word of stoker's own output"""
    env = {"DB2_PASSWORD_3": "d1git-77kkQz", "dbPassPhrase": "c4mel-88kkQz", "MY-API-KEY": "d4sh-99kkQz", "PASSWORT": "g3rman-11kkQ", "PGPASSWORD": "83719264", "REDIS_URL": "redis://:r3d-55kkQz@h:6379/0",
           "SENTRY_DSN": "https://0a1b2c3d4e5f60718293a4b5c6d7e8f9@o1.ingest.sentry.io/2", "AZ_CONN": "AccountName=x;AccountKey=QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo5OTk5OQ==;EndpointSuffix=y",
           "SMTP_PASS": "Qz7#kk", "MYSQL_PWD": "m4sql-22kkQz", "GIT_ASKPASS_TOKEN": "attempt", "NETRC": "machine h login u password n3trc-33kkQz", "OTP_SEED": "JBSWY3DPEHPK3PXP", "COOKIE": "session=c00kie-44kkQz; theme=x"}
    job = w.dir / "j.py"
    job.write_text('import os, time\nprint("step 1 loss 2", flush=True)\nfor k, v in sorted(os.environ.items()):\n    print("RuntimeError: config", k, "=", v, flush=True)\n'
                   'raise RuntimeError("connect: " + " ".join(v for k, v in os.environ.items() if k in ' + repr(sorted(env)) + '))\n')
    rc, out, err, _ = w.run(f"python3 {job}", env=env)
    seen = out + err
    run = str(w.newest())
    seen += each_verb(w, run, "names", only=VERBS[:2] + VERBS[4:6] + VERBS[8:9] + VERBS[11:13])
    w.fact("a secret that is the word 'attempt' does not hide stoker's own words", b"attempt 1" in seen)
    look(w, "names", {"digits": "d1git-77kkQz", "camel": "c4mel-88kkQz", "dash": "d4sh-99kkQz", "PASSWORT": "g3rman-11kkQ", "number": "83719264", "redis": "r3d-55kkQz",
                      "sentry": "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "azure": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo5OTk5OQ==", "six characters": "Qz7#kk", "MYSQL_PWD": "m4sql-22kkQz",
                      "netrc": "n3trc-33kkQz", "OTP": "JBSWY3DPEHPK3PXP", "cookie": "c00kie-44kkQz"}, seen)


ATTACKS = {1: a01, 2: a02, 3: a03, 4: a04, 5: a05, 6: a06, 7: a07, 8: a08, 9: a09, 10: a10}
if __name__ == "__main__":
    main(ATTACKS)
